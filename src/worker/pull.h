// Pull: the stage in which a part waits for its answers, and is given what they bring.
//
// Input and output may be the same memory: a frame's sum is written over its contribution, whole, and only when it is
// here and has been checked. So of each frame a worker has either the contribution or the sum (docs/protocol.md, "why
// repeats are harmless").
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/status.h"
#include "net/wire.h"
#include "worker/flow.h"
#include "worker/push.h"
#include "worker/road.h"
#include "worker/work.h"

namespace byteps {

class Pull final : public Stage {
 public:
  Pull(Work& work, Flow& flow, Push& push, KeptSums& kept)
      : work_(work), flow_(flow), push_(push), kept_(kept) {}

  // ---- the stage
  void enter(PartRef /*part*/, Tensor& /*tensor*/, TimeNs /*now*/) override {}
  void abandon(PartRef part, Tensor& tensor) override { push_.abandon(part, tensor); }

  // ---- from the shards
  struct Taken {
    Status broken;  // not ok: the peer breaks the protocol, end its connection
    PartRef part;   // kNoTensor: the answer changed nothing
    bool was_unsent =
        false;  // it had left nothing to push on this connection: it leaves that stage
    bool is_complete = false;  // all of it is answered: it leaves this one
  };
  // An answer, as Pipeline::on_answer().
  Taken take(ShardIndex shard, const wire::Header& header, std::span<const std::byte> payload);
  // As Pipeline::take_had().
  Taken take_had(PartRef part, std::uint32_t frame);
  // Brings what take() needs for an answer that will follow soon nearer to the CPU, as Pipeline::expect().
  static constexpr int kFarthest = 3;
  void expect(const wire::Glimpse& answer, int distance) const;

 private:
  // A frame that an answer is about, once it has been looked at; `what` is wrong, else null.
  struct Named {
    const char* what = nullptr;
    std::uint32_t frame = 0;
    std::uint64_t bytes = 0;     // of its payload, if it has one
    std::byte* place = nullptr;  // where the payload belongs; null: there is none
  };
  TensorIndex tensor_of(const wire::Header& answer) const;
  Named look_at(const Tensor& tensor, ShardIndex shard, const wire::Header& header,
                std::span<const std::byte> payload) const;
  std::uint64_t put(Tensor& tensor, const wire::Header& header, const Named& named,
                    std::span<const std::byte> payload);
  void count(PartRef part, const Named& named, Taken& taken);

  Work& work_;
  Flow& flow_;
  Push& push_;
  KeptSums& kept_;
};

}  // namespace byteps
