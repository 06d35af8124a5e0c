// Spec: what all ranks must agree about when they exchange a tensor under one name. It is the same thing at each door:
// a call of the C interface is made one, the worker keeps it with the tensor, a Declare carries it to the shards (its
// fields on the wire are in net/wire.cc), and a shard compares those of all ranks.
//
// A new fact that ranks must agree about: a field here, its flaw and its words in spec.cc, its line in wire.cc.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/codec.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/ids.h"
#include "base/members.h"
#include "base/shape.h"
#include "base/status.h"

namespace byteps {

struct Spec {
  DType dtype = DType::kFloat32;
  Operation operation = Operation::kSum;
  std::uint64_t total_bytes = 0;
  WorkerRank
      root{};     // of a broadcast, and where it alone gets the result; otherwise it means nothing
  Shape shape{};  // flat: one dimension
  double scale = 1;                // what a sum or average is multiplied by
  bool root_only = false;          // nobody but the root gets the result
  Members members{};               // who takes part
  Format format = Format::kPlain;  // how its elements travel
  SharedCodec codec{};             // what that is to be
  LogicalType logical{};  // what the elements are to the framework, where they travel as others

  bool operator==(const Spec& other) const;

  bool has_root() const { return operation == Operation::kBroadcast || root_only; }
  // Whether this member has an input: its pushes have a payload.
  bool gives(WorkerRank rank) const { return operation != Operation::kBroadcast || rank == root; }
  // Whether this member has an output.
  bool gets(WorkerRank rank) const { return !root_only || rank == root; }
  // Whether the answers to this member have a payload: a broadcast's root has its output already.
  bool is_sent_to(WorkerRank rank) const {
    return gets(rank) && (operation != Operation::kBroadcast || rank != root);
  }

  Extent extent() const { return {total_bytes, format}; }
  std::uint64_t element_count() const { return total_bytes / element_bytes(dtype); }
  // "float32, shape 2x512, 4096 bytes, sum times 0.5, of workers 0-3"
  std::string text() const;
  // Why `self`, one of `worker_count` workers, cannot take part in this; empty when it can.
  std::string flaw(WorkerRank self, std::uint32_t worker_count) const;
};

// The same as a caller says it: numbers and addresses at which nobody has looked.
struct RawSpec {
  std::uint64_t element_count = 0;
  std::uint32_t dtype = 0;      // a DType's number, and a LogicalType's times 256
  std::uint32_t operation = 0;  // an Operation's number
  std::uint32_t root = 0;       // of a broadcast, or with root_only
  bool root_only = false;
  double scale = 0;                        // 0: not scaled
  std::span<const std::uint64_t> shape{};  // empty: one dimension of element_count
  const std::uint32_t* members = nullptr;  // ranks, ascending, the caller's among them; null: all
  std::uint32_t member_count = 0;
  std::uint32_t format = 0;  // a Format's number
  Codec codec{};
};

// Status: kInvalidArgument with the flaw.
Result<Spec> spec_of(const RawSpec& raw, WorkerRank self, std::uint32_t worker_count);

}  // namespace byteps
