// Staging: the memory in which received bytes wait for the owner, from one poll() to the next.
//
// All connections of a transport read into one buffer in turn, so that it stays in the cache of the core
// that then sums what is in it. Whatever is handed out lives until the next begin_poll().
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/buffer.h"

namespace byteps::frame {

class Staging {
 public:
  explicit Staging(std::size_t batch_bytes) : batch_bytes_(batch_bytes) {}

  // Everything handed out by the last poll ends.
  void begin_poll();

  // The free rest of the buffer; use() takes from its front.
  std::span<std::byte> room() const { return current_.span().subspan(used_bytes_); }
  void use(std::size_t bytes);

  // Keeps the buffer that room() is part of alive for someone who has not finished with its bytes.
  BufferRef share();
  // Keeps a buffer alive until the next poll.
  void hold(BufferRef buffer) { held_.push_back(std::move(buffer)); }
  // A copy of a message's header that lives until the next poll.
  std::span<const std::byte> keep(std::span<const std::byte> header);

  std::size_t batch_bytes() const { return batch_bytes_; }
  // Memory for a payload that goes on beyond one poll.
  BufferRef take(std::size_t bytes) { return pool_.take(bytes); }

 private:
  const std::size_t batch_bytes_;
  BufferPool pool_;
  BufferRef current_;
  std::size_t used_bytes_ = 0;
  bool shared_ = false;  // someone else holds current_: the next poll needs another one
  std::vector<BufferRef> held_;
  BufferRef headers_;
  std::size_t headers_used_bytes_ = 0;
};

}  // namespace byteps::frame
