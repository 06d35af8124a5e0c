// Residuals: the memory for error feedback and momentum of operations that are under way at a worker whose machine sums
// first, for the relays of its process, which code what the machine has together (base/carry.h). Their threads share
// it.
//
// It is the caller's memory until its operation ends, well or not: it is lent here when the operation's round begins,
// and taken back before the caller hears of the end. A frame is coded with it inside the lock, so that no relay writes
// there later.
//
// So it is where all workers are on one machine, and a relay that has no servers behind it finishes sums: it codes
// nothing, but where they have momentum that is added to what the machine has together.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>

#include "base/carry.h"
#include "base/ids.h"

namespace byteps {

class Residuals {
 public:
  // The worker.
  void lend(Key key, const Carry& carry, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    lent_.insert_or_assign(key, Lent{carry, bytes});
  }
  void take_back(Key key) {
    const std::lock_guard lock(mutex_);
    lent_.erase(key);
  }

  // A relay: code(what is lent of this tensor of so many bytes), which may be empty.
  template <typename Code>
  void code_with(Key key, std::size_t bytes, Code&& code) {
    const std::lock_guard lock(mutex_);
    const auto found = lent_.find(key);
    const bool is_its = found != lent_.end() && found->second.bytes == bytes;
    code(is_its ? found->second.carry : Carry());
  }

 private:
  std::mutex mutex_;  // guards what follows
  struct Lent {
    Carry carry;
    std::size_t bytes = 0;
  };
  std::map<Key, Lent> lent_;
};

}  // namespace byteps
