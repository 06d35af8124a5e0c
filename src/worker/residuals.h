// Residuals: the memory for error feedback of operations that are under way at a worker whose machine sums first, for
// the relays of its process, which code what the machine has together (kernels/coding.h). Their threads share it.
//
// A residual is the caller's memory until its operation ends, well or not: it is lent here when the operation's round
// begins, and taken back before the caller hears of the end. A frame is coded with it inside the lock, so that no relay
// writes there later.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <span>

#include "base/ids.h"

namespace byteps {

class Residuals {
 public:
  // The worker.
  void lend(Key key, std::span<std::byte> residual) {
    const std::lock_guard lock(mutex_);
    lent_.insert_or_assign(key, residual);
  }
  void take_back(Key key) {
    const std::lock_guard lock(mutex_);
    lent_.erase(key);
  }

  // A relay: code(the residual of this tensor of so many bytes), empty where none is lent.
  template <typename Code>
  void code_with(Key key, std::size_t bytes, Code&& code) {
    const std::lock_guard lock(mutex_);
    const auto found = lent_.find(key);
    const bool is_its = found != lent_.end() && found->second.size() == bytes;
    code(is_its ? found->second : std::span<std::byte>());
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::map<Key, std::span<std::byte>> lent_;
};

}  // namespace byteps
