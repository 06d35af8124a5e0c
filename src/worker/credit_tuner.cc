#include "worker/credit_tuner.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace byteps {
namespace {

// The value that this part of the others lies below.
double quantile(std::vector<double> values, std::size_t part, std::size_t of) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(values.size() * part / of);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

double median_of(const std::vector<double>& values) {
  return quantile(values, 1, 2);
}

// How far values go from their median, relative to it, but for the farthest one or two.
double scatter_of(const std::vector<double>& values, double median) {
  std::vector<double> distances;
  distances.reserve(values.size());
  for (const double value : values) distances.push_back(std::abs(value - median));
  return quantile(std::move(distances), 3, 4) / median;
}

std::string with_unit(double value, const char* unit) {
  char text[48];
  std::snprintf(text, sizeof text, value < 9.95 ? "%.1f %s" : "%.0f %s", value, unit);
  return text;
}

std::string size_text(std::uint64_t bytes) {
  const double kib = static_cast<double>(bytes) / 1024;
  return kib < 1024 ? with_unit(kib, "KiB") : with_unit(kib / 1024, "MiB");
}

}  // namespace

bool CreditTuner::on_answered(std::uint64_t bytes, std::uint64_t credit_bytes, TimeNs now) {
  if (!is_pausing_) measure(bytes, credit_bytes, now);
  passed_bytes_ += bytes;
  if (passed_bytes_ < length_bytes_) return false;
  passed_bytes_ -=
      length_bytes_;  // what is over belongs to the next one: the workers stay together
  if (is_pausing_) {
    is_pausing_ = false;
    now_trying_ = 0;
    length_bytes_ = trial_bytes_;
  } else {
    end_trial(credit_bytes);
  }
  credit_most_ = credit_bytes;
  begin_slice(now);
  return true;
}

void CreditTuner::begin_slice(TimeNs now) {
  slice_start_ns_ = now;
  slice_bytes_ = 0;
  was_blocked_ = false;
}

void CreditTuner::measure(std::uint64_t bytes, std::uint64_t credit_bytes, TimeNs now) {
  const std::uint64_t half_bytes = length_bytes_ / 2;
  const TimeNs gap_ns = now - std::exchange(answered_ns_, now);
  const bool is_settled = passed_bytes_ >= half_bytes;
  if (is_settled) credit_most_ = std::max(credit_most_, credit_bytes);
  const bool is_half = !is_settled && passed_bytes_ + bytes >= half_bytes;
  if (slice_start_ns_ == kNever || gap_ns > kGapNs || is_half) return begin_slice(now);
  slice_bytes_ += bytes;
  if (now - slice_start_ns_ < kMillisecond || slice_bytes_ < credit_bytes) return;
  if (is_settled && was_blocked_) {
    measured_bytes_ += slice_bytes_;
    measured_ns_ += now - slice_start_ns_;
  }
  begin_slice(now);
}

void CreditTuner::end_trial(std::uint64_t credit_bytes) {
  Score& score = scores_[now_trying_];
  const bool is_long =
      credit_most_ * kTrialCredits <= length_bytes_ && measured_ns_ >= kMeasuredMinNs;
  if (is_long && !is_spoiled_) {
    score.rates.push_back(static_cast<double>(measured_bytes_) * static_cast<double>(kSecond) /
                          static_cast<double>(measured_ns_));
    score.credit_bytes = credit_bytes;
  }
  is_spoiled_ = false;
  measured_bytes_ = 0;
  measured_ns_ = 0;
  if (++now_trying_ < kCount) return;
  now_trying_ = 0;
  if (++round_ < kRounds) return;
  round_ = 0;
  end_search();
}

void CreditTuner::end_search() {
  for (Score& score : scores_) {
    const bool is_enough = score.rates.size() >= kTrialsMin;
    score.median = is_enough ? median_of(score.rates) : 0;
    score.scatter = is_enough ? scatter_of(score.rates, score.median) : 0;
  }
  decide();
  for (Score& score : scores_) score = Score{};
  is_pausing_ = trial_bytes_ >= kTrialBytesPause;
  if (is_pausing_) now_trying_ = chosen_;
  const std::uint64_t search_bytes = trial_bytes_ * kCount * kRounds;
  trial_bytes_ = std::min(2 * trial_bytes_, kTrialBytesMost);
  length_bytes_ = is_pausing_ ? pause_ * search_bytes : trial_bytes_;
  if (is_pausing_) pause_ = std::min(2 * pause_, kPauseMost);
}

void CreditTuner::decide() {
  const Score& present = scores_[chosen_];
  double best = 0;
  for (const Score& score : scores_) {
    if (score.median == 0) return;
    best = std::max(best, score.median);
  }
  std::size_t wanted = 0;
  while (scores_[wanted].median < best * (1 - kEqual)) ++wanted;
  // Those that come to the same credit, at one of its bounds, are the same.
  while (wanted < chosen_ && scores_[wanted].credit_bytes == scores_[wanted + 1].credit_bytes) {
    ++wanted;
  }
  const double chance = kScatters * std::max(present.scatter, scores_[wanted].scatter);
  const bool is_better = scores_[wanted].median > present.median * (1 + std::max(kBetter, chance));
  const bool is_shorter = wanted < chosen_ && chance <= kBetter;
  const std::size_t before = chosen_;
  if (is_better || is_shorter) chosen_ = wanted;
  if (chosen_ == before && has_told_) return;
  has_told_ = true;
  say(before);
}

void CreditTuner::say(std::size_t before) {
  const Score& chosen = scores_[chosen_];
  const double credit = static_cast<double>(chosen.credit_bytes);
  news_ = std::string("autotune: credit ") + (chosen_ == before ? "stays at " : "is now ") +
          size_text(chosen.credit_bytes) + " (" + with_unit(credit / chosen.median * 1e3, "ms") +
          " of the " + with_unit(chosen.median / 1e6, "MB/s") + " that answers come at)";
  if (chosen_ == before) {
    news_ += "; neither more nor less is better";
  } else {
    news_ += "; " + size_text(scores_[before].credit_bytes) + " gave " +
             with_unit(scores_[before].median / 1e6, "MB/s");
  }
}

}  // namespace byteps
