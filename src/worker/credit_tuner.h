// CreditTuner: looks for the best horizon of the credit (credit.h) while a worker trains (BYTEPS_AUTOTUNE=1).
//
// Where an answer needs longer than the horizon to come back, the line is idle and credit.h cannot see it: the rate
// that it measures is what its own credit allows. So the tuner tries. A search is kRounds rounds; in each round every
// horizon has one trial, so all horizons meet the same good and bad times. Of each trial's second half the rate of
// answers is measured, while sending waits for credit. Then the medians decide:
//
//   - the smallest horizon within kEqual of the best is wanted: short queues;
//   - it is taken if it is better than the present one by more than kBetter and by more than what the trials scatter,
//     or if it is smaller and the trials hardly scatter at all.
//
// What is better by kBetter is never within kEqual: nothing is taken and given back in turns.
//
// Why not only the neighbours of the present horizon: below the delay all horizons are equally slow (the credit
// shrinks to its least), so one step up may show nothing where three are needed.
//
// Why a trial's length is in bytes and not in time: a sum waits for the slowest worker, so a worker that tries a
// longer horizon alone sees no gain. All workers are answered the same bytes, so a plan in bytes, the same for all
// and independent of what each of them finds, makes them try the same at the same time. How long a trial must be
// is found by doubling: the first ones are too short on fast networks, and then they say nothing. A search in which
// some horizon has too few trials that count changes nothing.
//
//   trials of 2 MiB, 4, 8, 16, 32 MiB: searches one after the other
//   then of 64, 128, 128, ...: each after a pause of 16, 32, 64, 64, ... times the search before it
//
// A pure core: no clock, time and bytes are passed in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/time.h"
#include "worker/credit.h"

namespace byteps {

class CreditTuner {
 public:
  static constexpr std::array<TimeNs, 6> kHorizonsNs{1 * kMillisecond,  2 * kMillisecond,
                                                     4 * kMillisecond,  8 * kMillisecond,
                                                     16 * kMillisecond, 32 * kMillisecond};
  static constexpr std::size_t kRounds = 7;
  static constexpr std::uint64_t kTrialBytesFirst = 2 << 20;
  static constexpr std::uint64_t kTrialBytesPause = 32 << 20;  // from here on with pauses
  static constexpr std::uint64_t kTrialBytesMost = 128 << 20;
  static constexpr std::uint64_t kPauseFirst = 16;
  static constexpr std::uint64_t kPauseMost = 64;
  // A trial of which less was measured says nothing.
  static constexpr TimeNs kMeasuredMinNs = 50 * kMillisecond;
  // So many times what was under way at most must be answered in a trial: what is left of the one before is gone soon.
  static constexpr std::uint64_t kTrialCredits = 8;
  // Without an answer for so long it is a worker that is late, not the line.
  static constexpr TimeNs kGapNs = 100 * kMillisecond;

  // What the credit's horizon is to be now.
  TimeNs horizon_ns() const { return kHorizonsNs[now_trying_]; }
  // The one that was found best, which is used between searches.
  TimeNs chosen_ns() const { return kHorizonsNs[chosen_]; }

  // A frame had to wait for credit.
  void on_blocked() { was_blocked_ = true; }
  // So many bytes were answered; the credit is so much now. True: look at horizon_ns() and take_news().
  bool on_answered(std::uint64_t bytes, std::uint64_t credit_bytes, TimeNs now);
  // Nothing is under way: the time until the next answer does not count.
  void on_idle() { slice_start_ns_ = kNever; }
  // A connection is lost: the present trial does not count.
  void on_shard_down() { is_spoiled_ = !is_pausing_; }

  // A sentence for the user: the first finding, then each change; else empty.
  std::string take_news() { return std::exchange(news_, {}); }

 private:
  static constexpr double kBetter = 0.02;
  static constexpr double kEqual = 0.01;
  static constexpr double kScatters = 2;  // so many times what single trials scatter is chance
  static constexpr std::size_t kTrialsMin = 4;
  static constexpr std::size_t kCount = kHorizonsNs.size();

  struct Score {
    std::vector<double> rates;  // bytes per second, one of each trial that counts
    std::uint64_t credit_bytes = 0;
    double median = 0;   // 0: too few trials
    double scatter = 0;  // relative
  };

  void measure(std::uint64_t bytes, std::uint64_t credit_bytes, TimeNs now);
  void begin_slice(TimeNs now);
  void end_trial(std::uint64_t credit_bytes);
  void end_search();
  void decide();
  void say(std::size_t before);

  static constexpr std::size_t index_of(TimeNs horizon_ns) {
    std::size_t index = 0;
    while (kHorizonsNs[index] < horizon_ns) ++index;
    return index;
  }

  std::size_t chosen_ = index_of(Credit::kHorizonNs);
  std::size_t now_trying_ = 0;
  std::size_t round_ = 0;
  bool is_pausing_ = false;
  std::uint64_t pause_ = kPauseFirst;  // searches long
  std::uint64_t trial_bytes_ = kTrialBytesFirst;
  std::uint64_t length_bytes_ = kTrialBytesFirst;  // of the present trial or pause
  std::uint64_t passed_bytes_ = 0;                 // of it
  std::array<Score, kCount> scores_;
  bool has_told_ = false;
  std::string news_;

  // the present trial
  bool is_spoiled_ = false;
  std::uint64_t credit_most_ = 0;
  std::uint64_t measured_bytes_ = 0;
  TimeNs measured_ns_ = 0;
  // A slice is what is answered from one moment to another, at least the credit; it counts if sending was blocked.
  TimeNs slice_start_ns_ = kNever;
  std::uint64_t slice_bytes_ = 0;
  bool was_blocked_ = false;
  TimeNs answered_ns_ = 0;  // the last time
};

}  // namespace byteps
