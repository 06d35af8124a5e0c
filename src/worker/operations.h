// Operations: the push_pulls that a worker has begun and that have not ended, in order of their submission. Each has a
// place, whose number is its name here and in its tag.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/carry.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/members.h"
#include "base/time.h"
#include "net/transport.h"
#include "worker/cargo.h"
#include "worker/handles.h"
#include "worker/tensor_table.h"

namespace byteps {

enum class OpState : std::uint8_t {
  kFree,
  kWaiting,  // in its tensor's line
  kActive,
  kEnding,  // failed, lent memory is not back
};

// Whom a part misses, as its shard said last of the parts that it has.
struct Lack {
  PartIndex part;
  Members whom;
};

struct Op {
  std::int32_t priority = 0;
  TensorIndex tensor = kNoTensor;
  std::span<const std::byte> input;
  std::span<std::byte> output;
  Cargo* cargo = nullptr;  // instead of both
  HandleId handle;
  std::uint64_t submission = 0;  // counts them
  TimeNs submitted_ns = 0;
  std::unique_ptr<Carry> carry;  // of coded elements; null: nothing
  std::vector<Lack> lacks;       // what shards said last of it, the newest last
  OpIndex line_next = kNoOp;     // in its tensor's line
  OpIndex older = kNoOp;         // among all, by time of submission
  OpIndex newer = kNoOp;
  OpState state = OpState::kFree;
  bool once = false;
};

class Operations {
 public:
  // A new one, the newest; the caller fills in the rest.
  OpIndex add(TensorIndex tensor, TimeNs now);
  void remove(OpIndex index);

  Op& operator[](OpIndex index) { return places_[index]; }
  const Op& operator[](OpIndex index) const { return places_[index]; }
  std::size_t count() const { return count_; }
  OpIndex oldest() const { return oldest_; }  // then its `newer`, and so on; kNoOp: none
  std::vector<HandleId> handles() const;      // of all, in order of submission

  // What pushes of the operation in this place say and answers repeat, so that these need no search: a hint.
  static std::uint32_t tag_of(OpIndex index) { return index + 1; }
  // Where that operation is, or was; kNoOp: nowhere. Who is there now may be another.
  OpIndex place_of(std::uint32_t tag) const {
    return tag == 0 || tag > places_.size() ? kNoOp : tag - 1;
  }

 private:
  std::vector<Op> places_;
  std::vector<OpIndex> free_;
  OpIndex oldest_ = kNoOp;
  OpIndex newest_ = kNoOp;
  std::size_t count_ = 0;
  std::uint64_t submission_count_ = 0;
};

}  // namespace byteps
