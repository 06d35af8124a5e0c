// Lateness: from which age on an incomplete frame is late, so that the missing contributions are asked for (Wanted).
//
// At least wanted_ns. Where the line is slow the contributions to one frame come one after the other, and none of them
// is late: to ask for it would only put more bytes into queues that are full. So it is as long as kRounds frames of
// all contributors take at the rate at which contributions come when they come fast, which is the largest of the last
// samples: pauses between exchanges, and workers that wait for each other, make some samples smaller, not all. (Where
// small tensors come one at a time all are small, and the next frame that is late is asked for later, until samples are
// of full ones.) Before there are so many it is wanted_ns.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/time.h"

namespace byteps {

class Lateness {
 public:
  // Who waits that long at the most for a part whose sender does not know that others wait.
  static constexpr TimeNs kMostTimes = 20;

  explicit Lateness(TimeNs wanted_ns) : least_ns_(wanted_ns), age_ns_(wanted_ns) {}

  // `round_bytes`: what all contribute to one frame of the usual length.
  void begin_epoch(std::uint64_t round_bytes) {
    round_bytes_ = round_bytes;
    began_ns_ = kNever;
    samples_ = {};
    count_ = 0;
    age_ns_ = least_ns_;
  }

  // `bytes`: of the frame; a contribution without payload counts as well.
  void on_contribution(std::size_t bytes, TimeNs now) {
    if (began_ns_ == kNever || now < began_ns_) return begin_sample(now);
    bytes_ += bytes;
    const TimeNs took_ns = now - began_ns_;
    if (bytes_ < round_bytes_ || took_ns == 0 || took_ns * kShortest < least_ns_) return;
    samples_[count_++ % kSamples] = static_cast<double>(bytes_) / static_cast<double>(took_ns);
    begin_sample(now);
    if (count_ < kSamples) return;
    const double rate = *std::ranges::max_element(samples_);
    const double age_ns = kRounds * static_cast<double>(round_bytes_) / rate;
    age_ns_ =
        std::clamp(static_cast<TimeNs>(std::min(age_ns, 1e18)), least_ns_, kMostTimes * least_ns_);
  }

  TimeNs age_ns() const { return age_ns_; }

 private:
  static constexpr double kRounds = 2;
  static constexpr TimeNs kShortest = 5;  // a sample takes this part of wanted_ns at least
  static constexpr std::size_t kSamples = 8;

  void begin_sample(TimeNs now) {
    began_ns_ = now;
    bytes_ = 0;
  }

  const TimeNs least_ns_;
  TimeNs age_ns_;
  std::uint64_t round_bytes_ = 0;
  TimeNs began_ns_ = kNever;
  std::uint64_t bytes_ = 0;                 // since then
  std::array<double, kSamples> samples_{};  // bytes per ns
  std::uint64_t count_ = 0;
};

}  // namespace byteps
