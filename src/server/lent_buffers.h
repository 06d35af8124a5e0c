// LentBuffers: sums that are on their way. The transport reads them until it gives back their token.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/check.h"
#include "net/transport.h"

namespace byteps {

class LentBuffers {
 public:
  // The token of the buffer that is lent next; never 0. bad_alloc leaves everything as it was.
  SendToken next_token() {
    if (free_.empty()) {
      lent_.emplace_back();
      free_.reserve(lent_.capacity());  // giving back never allocates
      free_.push_back(static_cast<std::uint32_t>(lent_.size() - 1));
    }
    return free_.back() + SendToken{1};
  }
  // Lends it under that token.
  void lend(BufferRef buffer) {
    lent_[free_.back()] = std::move(buffer);
    free_.pop_back();
  }
  void give_back(SendToken token) {
    const auto slot = static_cast<std::uint32_t>(token - 1);
    CHECK(slot < lent_.size() && lent_[slot]) << "a payload came back that was not lent";
    lent_[slot] = {};
    free_.push_back(slot);
  }
  bool all_are_back() const { return free_.size() == lent_.size(); }

 private:
  std::vector<BufferRef> lent_;  // by token - 1
  std::vector<std::uint32_t> free_;
};

}  // namespace byteps
