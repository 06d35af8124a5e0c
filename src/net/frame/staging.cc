#include "net/frame/staging.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace byteps::frame {
namespace {

constexpr std::size_t kHeaderBlockBytes = 16 << 10;

}  // namespace

void Staging::begin_poll() {
  held_.clear();
  if (!current_ || shared_) current_ = pool_.take(batch_bytes_);
  if (!headers_) headers_ = pool_.take(kHeaderBlockBytes);
  used_bytes_ = 0;
  headers_used_bytes_ = 0;
  shared_ = false;
}

void Staging::use(std::size_t bytes) {
  CHECK_LE(bytes, room().size());
  // The next reader begins on a cache line of its own; the payloads it gets are then aligned like their
  // frames.
  const std::size_t end = used_bytes_ + bytes;
  used_bytes_ = std::min((end + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment,
                         current_.span().size());
}

BufferRef Staging::share() {
  shared_ = true;
  return current_;
}

std::span<const std::byte> Staging::keep(std::span<const std::byte> header) {
  if (headers_used_bytes_ + header.size() > headers_.span().size()) {
    held_.push_back(headers_);
    headers_ = pool_.take(kHeaderBlockBytes);
    headers_used_bytes_ = 0;
  }
  const std::span<std::byte> copy = headers_.span().subspan(headers_used_bytes_, header.size());
  std::copy(header.begin(), header.end(), copy.begin());
  headers_used_bytes_ += header.size();
  return copy;
}

}  // namespace byteps::frame
