// PartMap: (key, part) to a record, for the one look-up that a frame costs. Open addressing, linear
// probing, erased slots closed up by moving their followers back. It does not own what it points to
// and has no iteration: nothing may depend on hash order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/ids.h"

namespace byteps {

template <typename Record>
class PartMap {
 public:
  // nullptr: there is none. Never allocates.
  Record* find(Key key, PartIndex part) const {
    if (slots_.empty()) return nullptr;
    for (std::size_t at = home(key, part);; at = next(at)) {
      const Slot& slot = slots_[at];
      if (slot.record == nullptr) return nullptr;
      if (slot.key == key && slot.part == part) return slot.record;
    }
  }

  // The pair must not be in the map. bad_alloc leaves the map as it was.
  void insert(Key key, PartIndex part, Record* record) {
    CHECK(record != nullptr && find(key, part) == nullptr) << key << ' ' << part;
    if (4 * (count_ + 1) > 3 * slots_.size()) grow();
    place({key, part, record});
    ++count_;
  }

  // The pair must be in the map.
  void erase(Key key, PartIndex part) {
    std::size_t hole = home(key, part);
    while (slots_[hole].key != key || slots_[hole].part != part) {
      CHECK(slots_[hole].record != nullptr) << key << ' ' << part << " is not in the map";
      hole = next(hole);
    }
    CHECK(slots_[hole].record != nullptr) << key << ' ' << part << " is not in the map";
    slots_[hole] = {};
    --count_;
    // Those behind the hole that a search would no longer find move into it (Knuth 6.4, algorithm
    // R).
    for (std::size_t at = next(hole); slots_[at].record != nullptr; at = next(at)) {
      const std::size_t wanted = home(slots_[at].key, slots_[at].part);
      const std::size_t mask = slots_.size() - 1;
      if (((at - wanted) & mask) >= ((at - hole) & mask)) {
        std::swap(slots_[hole], slots_[at]);
        hole = at;
      }
    }
  }

  void clear() {
    slots_.clear();
    count_ = 0;
  }
  std::size_t size() const { return count_; }

 private:
  struct Slot {
    Key key;
    PartIndex part;
    Record* record = nullptr;  // nullptr: empty
  };

  std::size_t home(Key key, PartIndex part) const {
    // Keys are hashes already; parts of one key follow each other.
    return static_cast<std::size_t>(stable_mix(key.value + part.value)) & (slots_.size() - 1);
  }
  std::size_t next(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }

  void place(const Slot& slot) {
    std::size_t at = home(slot.key, slot.part);
    while (slots_[at].record != nullptr) at = next(at);
    slots_[at] = slot;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    slots_.swap(old);
    for (const Slot& slot : old) {
      if (slot.record != nullptr) place(slot);
    }
  }

  std::vector<Slot> slots_;  // a power of two of them
  std::size_t count_ = 0;
};

}  // namespace byteps
