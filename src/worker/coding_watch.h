// CodingWatch: whether tensors are coded though that takes longer than they would on the way as they are. It goes by
// what is measured, and tells the user once.
//
//   line rate   bytes of tensors that are not coded, as the broadcasts of weights are which a training begins with, by
//               the time in which they were awaited. Waiting for others is in it, so the line is no slower than that.
//               What goes one way only counts half: where exchanging is a processor's work, both take twice as long.
//   coding      what coding of pushed elements took. Decoding the answers is left out, for it is also the first touch
//               of fresh memory, which copying would be.
//
// Where all the elements would have taken less time at that rate than coding alone, exchanges are slower for it: both
// may overlap, and coding alone is longer already. That is why it is not compared with what is saved.
#pragma once

#include <cstdint>
#include <optional>

#include "base/time.h"

namespace byteps {

class CodingWatch {
 public:
  static constexpr std::uint64_t kFrameBytesMin = 32 << 10;   // smaller ones say how long a way is
  static constexpr std::uint64_t kLineBytesMin = 16 << 20;    // until then the line is not known
  static constexpr std::uint64_t kCodedBytesMin = 1 << 30;  // is judged, then the next as much

  // A frame is sent; one is answered, of so many bytes that tell of the line; nothing is under way.
  void on_sent(TimeNs now) {
    if (under_way_++ == 0) since_ns_ = now;
  }
  void on_answered(std::uint64_t line_bytes, TimeNs now) {
    if (under_way_ > 0) --under_way_;
    if (line_bytes > 0) {
      line_bytes_ += line_bytes;
      line_ns_ += now - since_ns_;
    }
    since_ns_ = now;
  }
  void on_idle() { under_way_ = 0; }

  struct Verdict {
    std::uint64_t coded_bytes;
    TimeNs coding_ns;
    TimeNs line_ns;  // they would have taken
    std::uint64_t line_bytes_per_ms;
  };
  // So many bytes of elements were coded in all, in so much time. Something once: it does not pay.
  std::optional<Verdict> judge(std::uint64_t coded_bytes, TimeNs coding_ns) {
    if (coded_bytes - judged_bytes_ < kCodedBytesMin || has_told_) return std::nullopt;
    const std::uint64_t bytes = coded_bytes - judged_bytes_;
    const TimeNs took_ns = coding_ns - judged_ns_;
    judged_bytes_ = coded_bytes;
    judged_ns_ = coding_ns;
    const std::uint64_t rate = line_bytes_per_ms();
    if (rate == 0) return std::nullopt;
    const auto line_ns = static_cast<TimeNs>(bytes * 1000 / rate) * kMicrosecond;
    if (took_ns <= line_ns) return std::nullopt;
    has_told_ = true;
    return Verdict{bytes, took_ns, line_ns, rate};
  }

 private:
  // 0: not known.
  std::uint64_t line_bytes_per_ms() const {
    if (line_bytes_ < kLineBytesMin || line_ns_ < kMillisecond) return 0;
    return line_bytes_ * 1000 / static_cast<std::uint64_t>(line_ns_ / kMicrosecond);
  }

  std::uint64_t under_way_ = 0;  // frames
  TimeNs since_ns_ = 0;          // the last answer, or the first frame behind it
  std::uint64_t line_bytes_ = 0;
  TimeNs line_ns_ = 0;
  std::uint64_t judged_bytes_ = 0;
  TimeNs judged_ns_ = 0;
  bool has_told_ = false;
};

}  // namespace byteps
