// Coder: codes the frames that are pushed to shards which sum coded tensors (base/format.h), and makes elements of
// their answers.
//
// Invariants:
//   C1 A frame is coded once in a round, when it is pushed for the first time, and the same bytes are pushed again
//      until it is answered: what the codes left is in the residual by then, and the elements may have been overwritten
//      by the answer, which may land where they were.
//   C2 Codes go when their frame is answered and no transport has anything of the tensor; with the operation at last.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/time.h"
#include "kernels/kernels.h"
#include "worker/tensor_table.h"

namespace byteps {

class Coder {
 public:
  // `stopwatch`: of what it takes.
  explicit Coder(Stopwatch stopwatch) : stopwatch_(stopwatch) {}

  // A tensor that is new here, and whose shards sum codes.
  void begin(Tensor& tensor);

  // A frame of the tensor's active operation, of a part.
  struct Frame {
    std::uint32_t part = 0;
    std::uint32_t frame = 0;
  };
  // What is pushed of it. `carry`: of these elements, changed where they are coded. `self`: who pushes.
  std::span<const std::byte> payload(Tensor& tensor, Frame frame, WorkerRank self,
                                     std::span<const std::byte> elements, const Carry& carry);
  // The elements that an answer says, which has no flaw (CodingKernels).
  void decode(const Tensor& tensor, std::uint32_t part, std::span<const std::byte> payload,
              std::span<std::byte> elements);
  // The same, until the next call.
  std::span<const std::byte> decoded(const Tensor& tensor, std::uint32_t part,
                                     std::span<const std::byte> payload, std::size_t element_bytes);
  // This frame is answered; the operation ends.
  static void note_answered(Tensor& tensor, std::size_t place);
  static void end(Tensor& tensor);

  std::size_t lent_bytes() const { return pool_.lent_bytes(); }
  TimeNs encode_ns() const { return encode_ns_; }
  TimeNs decode_ns() const { return decode_ns_; }

 private:
  TimeNs now() const { return stopwatch_ == nullptr ? 0 : stopwatch_(); }

  const Stopwatch stopwatch_;
  TimeNs encode_ns_ = 0;
  TimeNs decode_ns_ = 0;
  std::optional<KernelSet> kernels_;  // from the first coded tensor on
  BufferPool pool_;
  std::vector<std::byte> scratch_;
};

}  // namespace byteps
