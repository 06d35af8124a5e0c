// Pull: the stage in which a part waits for its answers, and the landings in which these are written. The landing of an
// operation is its whole output, promised to each shard that has parts of it.
//
// Results land in place: input and output may be the same memory. Resending a frame whose answer has half overwritten
// it is harmless (docs/protocol.md, "why repeats are harmless").
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
  Pull(Work& work, Flow& flow, Push& push) : work_(work), flow_(flow), push_(push) {}

  // ---- the stage
  void enter(PartRef /*part*/, Tensor& /*tensor*/, TimeNs /*now*/) override {}
  void abandon(PartRef part, Tensor& tensor) override { push_.abandon(part, tensor); }

  // ---- landings. Promises are made to the connections that are up; those that come up later get theirs then.
  void begin_round(const Tensor& tensor);
  void end_round(const Tensor& tensor);
  void on_shard_up(ShardIndex shard);

  // ---- from the shards
  struct Taken {
    Status broken;                    // not ok: the peer breaks the protocol, end its connection
    TensorIndex spoiled = kNoTensor;  // and has written over this tensor
    PartRef part;                     // kNoTensor: the answer changed nothing
    bool was_unsent =
        false;  // it had left nothing to push on this connection: it leaves that stage
    bool is_complete = false;  // all of it is answered: it leaves this one
  };
  // An answer, as Pipeline::on_answer().
  Taken take(ShardIndex shard, const wire::Header& header, std::span<const std::byte> payload,
             bool landed);
  // Brings what take() needs for an answer that will follow soon nearer to the CPU, as Pipeline::expect().
  static constexpr int kFarthest = 3;
  void expect(const wire::Glimpse& answer, int distance) const;

 private:
  // A frame that an answer is about, once it has been looked at; `what` is wrong, else null.
  struct Named {
    const char* what = nullptr;
    std::uint32_t frame = 0;
    std::uint64_t bytes = 0;
    std::byte* place = nullptr;  // where the payload belongs; null: there is none
  };
  TensorIndex tensor_of(const wire::Header& answer) const;
  Named look_at(const Tensor& tensor, ShardIndex shard, const wire::Header& header,
                std::size_t payload_bytes) const;
  void count(PartRef part, const Named& named, Taken& taken);
  void land_on(ShardIndex shard, const Tensor& tensor);

  Work& work_;
  Flow& flow_;
  Push& push_;
};

}  // namespace byteps
