// FlatMap: a hash map in one piece of memory, for the look-ups that every frame or operation costs. Open addressing,
// linear probing, erased slots closed up by moving their followers back (Knuth 6.4, algorithm R). It has no iteration:
// nothing may depend on hash order.
//
// `Home` spreads keys over the slots: size_t operator()(Key). Its low bits count.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/ids.h"

namespace byteps {

// For keys that are hashes already.
struct HashedHome {
  std::size_t operator()(Key key) const { return static_cast<std::size_t>(key.value); }
};

// For numbers that mostly differ in their low bits.
struct NumberHome {
  std::size_t operator()(std::uint64_t number) const { return static_cast<std::size_t>(number); }
};

// For numbers that count up: neighbours share a cache line or two, and rows of them lie apart, so that an old row that
// was never erased is in nobody's way for long.
struct CountedHome {
  std::size_t operator()(std::uint64_t number) const {
    return static_cast<std::size_t>(stable_mix(number >> kRowBits) << kRowBits |
                                    (number & kRowMask));
  }

 private:
  static constexpr int kRowBits = 4;
  static constexpr std::uint64_t kRowMask = (1 << kRowBits) - 1;
};

template <typename Key, typename Value, typename Home>
class FlatMap {
 public:
  // nullptr: there is none. Valid until the next insert() or erase(). Never allocates.
  Value* find(const Key& key) { return const_cast<Value*>(std::as_const(*this).find(key)); }
  const Value* find(const Key& key) const {
    if (slots_.empty()) return nullptr;
    for (std::size_t at = home(key);; at = next(at)) {
      const Slot& slot = slots_[at];
      if (!slot.used) return nullptr;
      if (slot.key == key) return &slot.value;
    }
  }

  // Asks the CPU for the memory that find() will look at first.
  void prefetch(const Key& key) const {
    if (!slots_.empty()) __builtin_prefetch(&slots_[home(key)]);
  }

  // The key must not be in the map. bad_alloc leaves the map as it was.
  Value& insert(const Key& key, Value value) {
    if (4 * (count_ + 1) > 3 * slots_.size()) grow();
    ++count_;
    return place(key, std::move(value));
  }

  // False: it is not in the map. Never allocates.
  bool erase(const Key& key) {
    if (slots_.empty()) return false;
    std::size_t hole = home(key);
    while (slots_[hole].used && !(slots_[hole].key == key)) hole = next(hole);
    if (!slots_[hole].used) return false;
    slots_[hole] = {};
    --count_;
    // Those behind the hole that a search would no longer find move into it.
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t at = next(hole); slots_[at].used; at = next(at)) {
      const std::size_t wanted = home(slots_[at].key);
      if (((at - wanted) & mask) >= ((at - hole) & mask)) {
        std::swap(slots_[hole], slots_[at]);
        hole = at;
      }
    }
    return true;
  }

  void clear() {
    slots_.clear();
    count_ = 0;
  }
  std::size_t size() const { return count_; }

 private:
  struct Slot {
    Key key{};
    Value value{};
    bool used = false;
  };

  std::size_t home(const Key& key) const { return Home()(key) & (slots_.size() - 1); }
  std::size_t next(std::size_t at) const { return (at + 1) & (slots_.size() - 1); }

  Value& place(const Key& key, Value&& value) {
    std::size_t at = home(key);
    for (; slots_[at].used; at = next(at)) {
      CHECK(!(slots_[at].key == key)) << "it is in the map already";
    }
    slots_[at] = {key, std::move(value), true};
    return slots_[at].value;
  }

  void grow() {
    std::vector<Slot> old(slots_.empty() ? 64 : 2 * slots_.size());
    slots_.swap(old);
    for (Slot& slot : old) {
      if (slot.used) place(slot.key, std::move(slot.value));
    }
  }

  std::vector<Slot> slots_;  // a power of two of them
  std::size_t count_ = 0;
};

}  // namespace byteps
