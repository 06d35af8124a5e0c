// Credit: how many bytes a worker may have sent without an answer, on all its connections together; each has the share
// that its shard has of the tensors. It finds the value by itself:
//
//   credit = rate of answers * horizon
//
// Too little leaves the line idle between an answer and the next push. Too much fills the queues on the way: what
// overflows is lost, and the flows of the workers drift apart, so that the frames of each wait for those of the others.
// A few milliseconds of the line's rate are enough for the first and small for the second; the rate is what the answers
// show, so it is right for slow and fast cards, for many servers and few. The rate is the largest of the last kWindows
// measurements: waiting for a late worker says nothing about the line. Each measurement at most doubles the credit. The
// horizon is kHorizonNs, and kLongHorizonNs in a long exchange: there gradients overtake each other, and workers get
// some milliseconds out of step, while a short one is over sooner where the queues are short. On a slow line that is no
// more than the least, two frames on each connection, of which each has to be answered while the other one is sent;
// where frames overtake each other it is not, so there a long exchange has three, or what takes kLongestHorizonNs if
// that is less: more would overflow queues of 10 ms where workers are many. If somebody looks for a better horizon
// (credit_tuner.h), that one holds.
//
// On a long line (set_round_trip()) an answer comes a round trip later at the soonest, so the horizon is kRoundTrips of
// them: one for what is on its way; and while TCP sends a lost packet again, which takes another, what came behind it
// waits, here or at the server, and the line goes on. What the line cannot take waits in the socket, not in queues on
// the way: TCP's congestion control sees to that. It needs some round trips to find the line's rate, and nothing here
// should hold it back then: so the credit begins with the most, and the first measurement makes it smaller.
//
// Where the way to a shard is memory of a known size (a ring, net/shm), nothing is lost and nothing is to be found out:
// there the connection may have that much, so neither side ever waits for room, and no more lies around than the caches
// hold.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace byteps {

class Credit {
 public:
  static constexpr TimeNs kHorizonNs = 2 * kMillisecond;
  static constexpr TimeNs kLongHorizonNs = 8 * kMillisecond;
  static constexpr TimeNs kLongestHorizonNs = 10 * kMillisecond;
  static constexpr TimeNs kRoundTrips = 3;
  static constexpr std::uint64_t kLongCredits =
      4;  // an exchange is long when so many times the least are answered
  static constexpr TimeNs kWindowMinNs = kMillisecond;
  static constexpr std::size_t kWindows = 8;

  // Begins with `least` and stays within both. Equal: fixed.
  Credit(std::uint64_t least, std::uint64_t most) : least_(least), most_(most), bytes_(least) {}

  std::uint64_t bytes() const { return bytes_; }
  // The rate of answers, bytes per millisecond; 0: not known, or the credit is fixed.
  std::uint64_t rate() const { return *std::max_element(rates_.begin(), rates_.end()); }

  // From the next measurement on. Until the rate stops growing with it the credit doubles: with a horizon little above
  // the delay it would take long to rise.
  void set_horizon(TimeNs horizon_ns) {
    horizon_ns_ = horizon_ns;
    horizon_is_given_ = true;
    rates_.fill(0);
    is_rising_ = true;
    last_rate_ = 0;
  }

  // Of a long line; 0: it is none.
  void set_round_trip(TimeNs round_trip_ns) {
    if (round_trip_ns_ == 0 && round_trip_ns > 0) bytes_ = most_;
    round_trip_ns_ = round_trip_ns;
  }

  // A frame had to wait for credit. Only then a measurement says what the line can carry.
  void on_blocked() { was_blocked_ = true; }
  // So many bytes were answered.
  void on_answered(std::uint64_t bytes, TimeNs now) {
    if (least_ == most_) return;
    if (window_start_ns_ == kNever) {
      window_start_ns_ = now;
      return;
    }
    exchanged_bytes_ += bytes;
    answered_bytes_ += bytes;
    const TimeNs passed_ns = now - window_start_ns_;
    if (passed_ns < kWindowMinNs || answered_bytes_ < bytes_) return;
    if (was_blocked_) {
      measure(answered_bytes_ * 1000 / static_cast<std::uint64_t>(passed_ns / kMicrosecond));
    }
    window_start_ns_ = now;
    answered_bytes_ = 0;
    was_blocked_ = false;
  }
  // Nothing is to be sent and all is answered: the time until the next answer is not the line's.
  void on_idle() {
    if (is_long()) bytes_ = std::clamp(of_horizon(horizon_ns_), least_, bytes_);
    exchanged_bytes_ = 0;
    window_start_ns_ = kNever;
    answered_bytes_ = 0;
    was_blocked_ = false;
  }

 private:
  void measure(std::uint64_t bytes_per_ms) {
    if (is_rising_) {  // what a smaller credit gave says nothing
      rates_.fill(0);
      is_rising_ = bytes_per_ms > last_rate_ + last_rate_ / 4;
      last_rate_ = bytes_per_ms;
    }
    rates_[next_rate_++ % kWindows] = bytes_per_ms;
    if (is_rising_) {
      bytes_ = std::min(most_, 2 * bytes_);
      return;
    }
    const std::uint64_t wanted = is_long()
                                     ? std::clamp(least_ + least_ / 2, of_horizon(kLongHorizonNs),
                                                  of_horizon(kLongestHorizonNs))
                                     : of_horizon(horizon_ns_);
    bytes_ = std::min({std::max(wanted, least_), most_, 2 * bytes_});
  }
  bool is_long() const { return !horizon_is_given_ && exchanged_bytes_ >= kLongCredits * least_; }
  std::uint64_t of_horizon(TimeNs horizon_ns) const {
    const TimeNs longest_ns = std::max(horizon_ns, kRoundTrips * round_trip_ns_);
    return rate() * static_cast<std::uint64_t>(longest_ns / kMicrosecond) / 1000;
  }

  std::uint64_t least_;
  std::uint64_t most_;
  std::uint64_t bytes_;
  TimeNs horizon_ns_ = kHorizonNs;
  bool horizon_is_given_ = false;
  TimeNs round_trip_ns_ = 0;  // of a long line
  TimeNs window_start_ns_ = kNever;
  std::uint64_t exchanged_bytes_ = 0;            // answered since nothing was under way
  std::uint64_t answered_bytes_ = 0;             // since then
  bool was_blocked_ = false;                     // since then
  std::array<std::uint64_t, kWindows> rates_{};  // bytes per millisecond
  std::size_t next_rate_ = 0;
  bool is_rising_ = false;  // after set_horizon()
  std::uint64_t last_rate_ = 0;
};

}  // namespace byteps
