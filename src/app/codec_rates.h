// How fast this machine codes gradients, one core of it: what bps doctor tells (byteps_server --codecs).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "base/format.h"
#include "base/time.h"
#include "kernels/kernels.h"

namespace byteps {

// Bytes of float32 elements in a nanosecond, which are GB/s.
struct CodecRates {
  Format format = Format::kPlain;
  double encode = 0;
  double encode_with_residual = 0;  // 0: it has none
  double decode_add = 0;
};

// Of each format. A step is repeated for `step_ns`, over the frames of a tensor that is larger than most caches; its
// median counts.
std::vector<CodecRates> measure_codecs(const KernelSet& kernels, Stopwatch stopwatch,
                                       TimeNs step_ns = 2 * kMillisecond);

// "int8 encode 18.2 encode_with_residual 9.1 decode_add 21.0 payload 0.254": what travels of a byte at last.
std::string text(const CodecRates& rates);

}  // namespace byteps
