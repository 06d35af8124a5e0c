#include "app/codec_rates.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <span>

#include "base/prng.h"
#include "kernels/coding.h"

namespace byteps {
namespace {

constexpr std::size_t kFrameElements = std::size_t{64} << 10;
constexpr std::size_t kFrameBytes = kFrameElements * sizeof(float);
constexpr std::size_t kFrames = 128;  // 32 MiB: gradients are not in the caches

// The frames of a tensor, in turn.
class Frames {
 public:
  explicit Frames(float magnitude) : memory_(kFrames * kFrameElements) {
    Prng prng(1);
    for (std::size_t i = 0; i < kFrameElements; ++i) {
      memory_[i] = (static_cast<float>(prng.below(1 << 20)) / float{1 << 19} - 1) * magnitude;
    }
    for (std::size_t frame = 1; frame < kFrames; ++frame) {
      std::memcpy(memory_.data() + frame * kFrameElements, memory_.data(), kFrameBytes);
    }
  }
  std::span<std::byte> next() {
    next_ = (next_ + 1) % kFrames;
    return std::as_writable_bytes(std::span(memory_)).subspan(next_ * kFrameBytes, kFrameBytes);
  }

 private:
  std::vector<float> memory_;
  std::size_t next_ = 0;
};

template <typename Step>
double rate_of(Stopwatch stopwatch, TimeNs step_ns, Step&& step) {
  step();  // takes its memory
  std::vector<TimeNs> took_ns;
  const TimeNs begun_ns = stopwatch();
  for (TimeNs last = begun_ns; last - begun_ns < step_ns || took_ns.empty();) {
    step();
    const TimeNs now = stopwatch();
    took_ns.push_back(std::max<TimeNs>(1, now - last));
    last = now;
  }
  const auto median = took_ns.begin() + static_cast<std::ptrdiff_t>(took_ns.size() / 2);
  std::nth_element(took_ns.begin(), median, took_ns.end());
  return static_cast<double>(kFrameBytes) / static_cast<double>(*median);
}

}  // namespace

std::vector<CodecRates> measure_codecs(const KernelSet& kernels, Stopwatch stopwatch,
                                       TimeNs step_ns) {
  Frames gradient(1e-3F);
  Frames residual(1e-5F);
  Frames sum(1e-3F);
  std::vector<CodecRates> all;
  for (int number = 1; number < kFormatCount; ++number) {
    CodecRates rates{.format = static_cast<Format>(number)};
    if (has_codec(rates.format)) continue;  // how fast those are depends on it
    const CodingKernels coding = coding_kernels_for(rates.format, Codec(), kernels);
    std::vector<std::byte> payload(payload_bytes(rates.format, kFrameElements));
    rates.encode = rate_of(stopwatch, step_ns,
                           [&] { coding.encode(std::span(payload), gradient.next(), {}, {}); });
    rates.decode_add = rate_of(stopwatch, step_ns, [&] {
      coding.add(sum.next(), std::span<const std::byte>(payload), {});
    });
    if (has_residual(rates.format)) {
      rates.encode_with_residual = rate_of(stopwatch, step_ns, [&] {
        coding.encode(std::span(payload), gradient.next(), {.residual = residual.next()}, {});
      });
    }
    all.push_back(rates);
  }
  return all;
}

std::string text(const CodecRates& rates) {
  char line[160];
  const double payload =
      static_cast<double>(payload_bytes(rates.format, kFrameElements)) / double{kFrameBytes};
  std::snprintf(
      line, sizeof line, "%s encode %.2f encode_with_residual %.2f decode_add %.2f payload %.4f",
      name(rates.format), rates.encode, rates.encode_with_residual, rates.decode_add, payload);
  return line;
}

}  // namespace byteps
