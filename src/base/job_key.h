// JobKey: the secret that the processes of a job share. A type of its own, so that it does not get into a
// text by accident: it cannot be printed.
#pragma once

#include <cstddef>
#include <iosfwd>
#include <span>
#include <string_view>
#include <vector>

namespace byteps {

class JobKey {
 public:
  JobKey() = default;  // none: empty
  explicit JobKey(std::string_view secret) {
    const auto raw = std::as_bytes(std::span(secret));
    secret_.assign(raw.begin(), raw.end());
  }

  bool empty() const { return secret_.empty(); }
  // For src/net/auth.h.
  std::span<const std::byte> secret() const { return secret_; }

  friend std::ostream& operator<<(std::ostream&, const JobKey&) = delete;

 private:
  std::vector<std::byte> secret_;
};

}  // namespace byteps
