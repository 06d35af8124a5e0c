// ShardWay: the way to one shard, as the pipeline sees it: the parts that wait at its gate, and what the shard has not
// been told on the connection that is up. The shell keeps the connection itself.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "net/wire.h"
#include "worker/gate.h"

namespace byteps {

// Something to say to the other end, beside frames.
struct Word {
  wire::Kind kind{};
  std::uint8_t flags = 0;
  Key key{};
  PartIndex part{};
  Round round{};
  std::uint64_t offset_bytes = 0;
  std::vector<std::byte> payload{};
  bool lasts = false;  // is said again on each connection; otherwise once
};

class ShardWay {
 public:
  explicit ShardWay(bool priority_scheduling) : gate_(priority_scheduling, 0) {}

  Gate& gate() { return gate_; }
  const Gate& gate() const { return gate_; }
  bool is_up() const { return is_up_; }
  // Counts ups; what was said on one connection does not count on another. From 1.
  std::uint32_t connection() const { return connection_; }
  // Of memory whose size is known (Transport::capacity_bytes()); 0: not known.
  std::uint64_t capacity_bytes() const { return capacity_bytes_; }
  // Whether that is another than before.
  bool set_capacity(std::uint64_t bytes) { return std::exchange(capacity_bytes_, bytes) != bytes; }

  // Transport::round_trip_ns() of its connection.
  TimeNs round_trip_ns() const { return round_trip_ns_; }
  void set_round_trip(TimeNs round_trip_ns) { round_trip_ns_ = round_trip_ns; }

  void up();
  void down();

  // While parts wait here for credit: when so many frames more may be under way without it (flow.h).
  struct Stall {
    Gate::Ticket ticket = Gate::kNoTicket;  // the part that was first when the way stalled
    TimeNs allows_ns = kNever;
    std::uint32_t frames = 1;
    std::uint64_t cost_bytes = 0;  // of the frame that waits: a part that is coded together is one
    bool has_allowed() const { return frames > 1; }
  };
  Stall& stall() { return stall_; }

  // In order, before anything else.
  void say(Word&& word) { words_.push_back(std::make_shared<const Word>(std::move(word))); }
  // What is said of this kind about this key need not be said any more.
  void take_back(wire::Kind kind, Key key);
  // The next of them; null: none.
  std::shared_ptr<const Word> next_word() const {
    return words_said_ < words_.size() ? words_[words_said_] : nullptr;
  }
  void word_is_said();

  // The shard is to forget this key. It is said again on each connection until the shard has heard it: a loss would
  // leave the key there.
  void forget(Key key) { forgets_.push_back(key); }
  // Those that are next to say; null: none.
  const Key* next_forget() const {
    return forgets_said_ < forgets_.size() ? &forgets_[forgets_said_] : nullptr;
  }
  void forget_is_said() { ++forgets_said_; }
  // How many ever were said before now, on this connection or heard on another.
  std::uint64_t forgets_so_far() const { return forgets_heard_ + forgets_said_; }
  // Connections keep the order: who answers a frame has heard what was said before that frame was sent first.
  void forgets_are_heard(std::uint64_t count);

  // What it was told of the inputs on this connection (inputs.h).
  std::uint64_t inputs_told() const { return inputs_told_; }
  void inputs_are_told(std::uint64_t word) { inputs_told_ = word; }

 private:
  Gate gate_;
  bool is_up_ = false;
  std::uint64_t capacity_bytes_ = 0;
  TimeNs round_trip_ns_ = 0;
  std::uint32_t connection_ = 0;
  Stall stall_;
  std::deque<std::shared_ptr<const Word>> words_;
  std::size_t words_said_ = 0;       // on this connection
  std::deque<Key> forgets_;          // that the shard may not have heard
  std::size_t forgets_said_ = 0;     // of them, on this connection
  std::uint64_t forgets_heard_ = 0;  // ever, and no longer among them
  std::uint64_t inputs_told_ = 0;
};

}  // namespace byteps
