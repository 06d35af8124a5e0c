// WholeFile: a file that appears whole or not at all: written beside its place, and renamed. Mode 0600.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace byteps {

class WholeFile {
 public:
  // The folder must be there. The first error of all is commit()'s.
  explicit WholeFile(std::string path);
  ~WholeFile();  // without commit() nothing is left
  WholeFile(const WholeFile&) = delete;
  WholeFile& operator=(const WholeFile&) = delete;

  void append(std::string_view content);
  Status commit();

 private:
  const std::string path_;
  std::string draft_;
  int file_ = -1;
  int error_ = 0;
};

}  // namespace byteps
