#include "app/whole_file.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace byteps {

// The draft is this object's own: processes that write one file, perhaps on several machines, must not take each
// other's away.
WholeFile::WholeFile(std::string path) : path_(std::move(path)), draft_(path_ + ".XXXXXX.part") {
  file_ = mkostemps(draft_.data(), 5, O_CLOEXEC);
  if (file_ < 0) error_ = errno;
}

WholeFile::~WholeFile() {
  if (file_ < 0) return;
  close(file_);
  unlink(draft_.c_str());
}

void WholeFile::append(std::string_view content) {
  while (!content.empty() && error_ == 0) {
    const ssize_t written = ::write(file_, content.data(), content.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) error_ = errno;
    if (written > 0) content.remove_prefix(static_cast<std::size_t>(written));
  }
}

Status WholeFile::commit() {
  if (error_ == 0 && rename(draft_.c_str(), path_.c_str()) != 0) error_ = errno;
  if (error_ != 0) return system_error(path_, error_);
  close(std::exchange(file_, -1));
  return Status::ok();
}

}  // namespace byteps
