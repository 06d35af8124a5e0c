// The arithmetic of rings and credits between two sides that both send, as net/rdma/link.cc does it. The model counts
// what a device would have: places in its send queue, receive entries, packets on the way.
#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <numeric>

#include <gtest/gtest.h>

#include "base/config.h"
#include "base/prng.h"
#include "net/rdma/window.h"

namespace byteps::rdma {
namespace {

constexpr std::size_t kRing = 64 << 10;

struct Sizes {
  std::size_t ring_bytes;  // that it receives into
  std::uint32_t receive_depth;
  std::uint32_t send_depth;
};

// One side and its device.
struct Side {
  Side(const Sizes& own, const Sizes& other)
      : sizes(own),
        send(other.ring_bytes, other.receive_depth),
        receive(own.ring_bytes, own.receive_depth),
        entries(own.receive_depth + credits_max(other.receive_depth)) {}

  bool can_post(std::size_t count) const { return posted.size() + count <= sizes.send_depth; }
  void post(std::uint32_t immediate) {
    way.push_back(immediate);
    posted.push_back(send.told());
  }
  // Every write is answered by credit, which takes an entry and a place in the queue of its own.
  void give_credit() {
    while (receive.owes_credit() && can_post(1)) post(receive.give_credit());
  }

  const Sizes sizes;
  SendWindow send;
  ReceiveWindow receive;
  std::size_t entries;                // of the receive queue, that wait for something
  std::deque<std::uint32_t> way;      // immediate data that has not reached the other side
  std::deque<std::uint64_t> posted;   // positions of requests that were not completed
  std::deque<std::uint32_t> arrived;  // what nobody has looked at yet
  std::uint64_t sent_bytes = 0;
  std::uint64_t read_bytes = 0;
  std::size_t crossed_count =
      0;  // times that credit was given while the other side's was on the way
};

// Every step does one of the things that may happen on one of the sides, in any order.
class Exchange {
 public:
  Exchange(const Sizes& one, const Sizes& two, std::uint64_t seed)
      : sides_{Side(one, two), Side(two, one)}, prng_(seed) {}

  // False: a device found no receive entry, a side took the other's word for a mistake, or wrote over what its device
  // had still to send.
  bool run(int phases) {
    for (int i = 0; i < phases && is_well_; ++i) {
      for (auto& weights : weights_) {
        for (std::uint64_t& weight : weights) weight = prng_.chance(0.3) ? 0 : 1 + prng_.below(8);
      }
      for (int steps = 0; steps < kStepsPerPhase && is_well_; ++steps) step();
    }
    drain();
    return is_well_;
  }
  const Side& side(std::size_t index) const { return sides_[index]; }

 private:
  void step() {
    const std::size_t index = prng_.below(2);
    Side& own = sides_[index];
    Side& other = sides_[1 - index];
    const auto& weights = weights_[index];
    const std::uint64_t all = std::accumulate(weights.begin(), weights.end(), std::uint64_t{0});
    if (all == 0) return;
    std::uint64_t drawn = prng_.below(all);
    std::size_t action = 0;
    while (drawn >= weights[action]) drawn -= weights[action++];
    switch (action) {
      case 0:
        return fill(own);
      case 1:
        return write(own);
      case 2:
        return deliver(own, other);
      case 3:
        return complete(own);
      case 4:
        return look(own, other, 1 + prng_.below(8));
      default:
        return consume(own);
    }
  }
  void fill(Side& own) {
    const std::size_t ring_bytes = own.send.ring_bytes();
    const std::size_t bytes = (1 + prng_.below(ring_bytes / kUnitBytes / 2)) * kUnitBytes;
    const std::size_t small_bytes = std::min<std::size_t>(bytes, 4 * kUnitBytes);
    const std::size_t wanted_bytes = prng_.chance(0.5) ? bytes : small_bytes;
    if (own.send.room() < wanted_bytes) return;
    own.send.fill(wanted_bytes);
    is_well_ &= own.send.filled() - own.send.done() <= ring_bytes;
    own.sent_bytes += wanted_bytes;
  }
  void write(Side& own) {
    if (!own.send.may_tell() || !own.can_post(2)) return;
    const std::uint64_t units = (own.send.filled() - own.send.told()) / kUnitBytes;
    const std::uint64_t told_units = prng_.chance(0.5) ? 1 : 1 + prng_.below(units);
    const std::uint64_t to = own.send.told() + told_units * kUnitBytes;
    own.post(own.send.tell(to));
  }
  // The other side's device takes it, into memory and into a receive entry.
  void deliver(Side& own, Side& other) {
    if (own.way.empty()) return;
    is_well_ &= other.entries > 0;
    --other.entries;
    other.arrived.push_back(own.way.front());
    own.way.pop_front();
  }
  // A request is complete when the other side's device has it.
  void complete(Side& own) {
    if (own.posted.size() <= own.way.size()) return;
    own.send.done(own.posted.front());
    own.posted.pop_front();
  }
  // As Link::look(): what has come is taken, then its entries are new, and then credit is given.
  void look(Side& own, const Side& other, std::size_t count_max) {
    std::size_t count = 0;
    for (; count < count_max && !own.arrived.empty(); ++count) {
      const std::uint32_t immediate = own.arrived.front();
      own.arrived.pop_front();
      is_well_ &=
          is_credit(immediate) ? own.send.take_credit(immediate) : own.receive.take(immediate);
    }
    own.entries += count;
    give_credit(own, other);
  }
  void consume(Side& own) {
    const std::size_t all_bytes = own.receive.readable();
    const std::size_t bytes =
        prng_.chance(0.5) ? all_bytes : prng_.below(all_bytes / kUnitBytes + 1) * kUnitBytes;
    own.receive.skip(bytes);
    own.read_bytes += bytes;
    own.receive.release();
    own.give_credit();
  }
  static void give_credit(Side& own, const Side& other) {
    const bool crosses =
        own.receive.owes_credit() && std::any_of(other.way.begin(), other.way.end(), is_credit);
    own.crossed_count += crosses ? 1 : 0;
    own.give_credit();
  }
  // From any state everything gets through.
  void drain() {
    for (int i = 0; i < 100'000 && is_well_; ++i) {
      for (const std::size_t index : {0U, 1U}) {
        Side& own = sides_[index];
        Side& other = sides_[1 - index];
        write(own), deliver(own, other), complete(own), look(own, other, 8), consume(own);
      }
      if (is_quiet(sides_[0]) && is_quiet(sides_[1])) break;
    }
  }
  static bool is_quiet(const Side& side) {
    return side.posted.empty() && side.arrived.empty() && !side.send.is_sending() &&
           side.receive.readable() == 0;
  }

  static constexpr int kStepsPerPhase = 300;
  static constexpr std::size_t kActions = 6;

  std::array<Side, 2> sides_;
  // How often each side does what: in some phases one never looks, in others it only sends.
  std::array<std::array<std::uint64_t, kActions>, 2> weights_{};
  Prng prng_;
  bool is_well_ = true;
};

TEST(RdmaWindow, no_order_of_events_on_two_sides_that_both_send_runs_out_of_entries_or_stops) {
  const std::array<std::array<Sizes, 2>, 5> pairs = {{
      {{{kRing, 32, 16}, {kRing, 32, 16}}},
      {{{kRing, 33, 256}, {kRing, 33, 16}}},
      {{{kRing, 512, 256}, {kRing, 512, 256}}},
      {{{16 * kRing, 32, 16}, {kRing, 512, 256}}},
      {{{kRing, 32, 512}, {4 * kRing, RdmaConfig::kDepthMax, 16}}},
  }};
  std::size_t crossed_count = 0;
  for (const auto& [one, two] : pairs) {
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
      Exchange exchange(one, two, seed);
      ASSERT_TRUE(exchange.run(40)) << "depth " << one.receive_depth << ", seed " << seed;
      for (const std::size_t index : {0U, 1U}) {
        const Side& own = exchange.side(index);
        EXPECT_GT(own.sent_bytes, kRing);
        EXPECT_EQ(own.sent_bytes, exchange.side(1 - index).read_bytes) << "seed " << seed;
        EXPECT_GE(own.send.room(), own.send.ring_bytes() / 2)
            << "a whole message always finds room in the end";
        crossed_count += own.crossed_count;
      }
    }
  }
  EXPECT_GT(crossed_count, 300U) << "otherwise this shows little";
}

TEST(RdmaWindow, a_receiver_refuses_more_bytes_than_there_is_room_and_more_writes_than_allowed) {
  ReceiveWindow window(kRing, 32);
  EXPECT_FALSE(window.take(0)) << "nothing";
  EXPECT_FALSE(window.take(kRing / kUnitBytes + 1));
  EXPECT_FALSE(window.take(0x7fffffff));
  EXPECT_TRUE(window.take(kRing / kUnitBytes));
  EXPECT_FALSE(window.take(1)) << "full";
  window.skip(kRing);
  EXPECT_FALSE(window.take(1)) << "read, but not given back";
  window.release();
  (void)window.give_credit();
  for (int i = 0; i < 32; ++i) EXPECT_TRUE(window.take(1)) << i;
  EXPECT_FALSE(window.take(1)) << "a write too many";
}

TEST(RdmaWindow, a_sender_refuses_credit_for_what_it_has_not_written) {
  SendWindow window(kRing, 32);
  EXPECT_FALSE(window.take_credit(kCreditBit | 1));
  EXPECT_FALSE(window.take_credit(kCreditBit | (1U << 21)));
  window.fill(4 * kUnitBytes);
  EXPECT_EQ(window.tell(window.filled()), 4U);
  EXPECT_FALSE(window.take_credit(kCreditBit | (1U << 21) | 5));
  EXPECT_TRUE(window.take_credit(kCreditBit | (1U << 21) | 4));
  EXPECT_EQ(window.room(), kRing - 4 * kUnitBytes) << "our own device still reads it";
  window.done(4 * kUnitBytes);
  EXPECT_EQ(window.room(), kRing);
}

}  // namespace
}  // namespace byteps::rdma
