#include "worker/coder.h"

#include <memory>

#include "base/planted.h"

namespace byteps {

void Coder::begin(Tensor& tensor) {
  if (!kernels_) kernels_ = best_kernels();
  tensor.codes = std::make_unique<Codes>(
      Codes{.kernels = coding_kernels_for(tensor.spec.format, *tensor.spec.codec, *kernels_),
            .frames = {}});
  tensor.codes->frames.resize(tensor.parts.size() * std::size_t{tensor.frames_per_part});
}

std::span<const std::byte> Coder::payload(Tensor& tensor, Frame frame, WorkerRank self,
                                          std::span<const std::byte> elements, const Carry& carry) {
  const std::size_t bytes = tensor.codes->kernels.payload_bytes(elements.size());
  BufferRef& codes = tensor.codes->frames[tensor.place_of(frame.part, frame.frame)];
  const bool is_new = !codes || PLANTED(coded_again);
  if (!codes) codes = pool_.take(bytes);
  const std::span payload = codes.span().first(bytes);
  if (!is_new) return payload;
  const TimeNs begun_ns = now();
  tensor.codes->kernels.encode(payload, elements, carry,
                               {.key = tensor.key,
                                .part = PartIndex(frame.part),
                                .round = tensor.round,
                                .rank = self.value});
  encode_ns_ += now() - begun_ns;
  encoded_bytes_ += elements.size();
  return payload;
}

void Coder::decode(const Tensor& tensor, std::uint32_t part, std::span<const std::byte> payload,
                   std::span<std::byte> elements) {
  const TimeNs begun_ns = now();
  tensor.codes->kernels.load(elements, payload,
                             {.key = tensor.key, .part = PartIndex(part), .round = tensor.round});
  decode_ns_ += now() - begun_ns;
}

std::span<const std::byte> Coder::decoded(const Tensor& tensor, std::uint32_t part,
                                          std::span<const std::byte> payload,
                                          std::size_t element_bytes) {
  if (scratch_.size() < element_bytes) scratch_.resize(element_bytes);
  const std::span elements = std::span(scratch_).first(element_bytes);
  decode(tensor, part, payload, elements);
  return elements;
}

void Coder::note_answered(Tensor& tensor, std::size_t place) {
  if (tensor.codes != nullptr && tensor.lent_count == 0) tensor.codes->frames[place] = {};
}

void Coder::end(Tensor& tensor) {
  if (tensor.codes == nullptr) return;
  for (BufferRef& each : tensor.codes->frames) each = {};
}

}  // namespace byteps
