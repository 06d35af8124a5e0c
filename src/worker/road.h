// Road: the stages that a part passes, in their order. It drives: a part that leaves a stage enters the next one.
//
//   push    it waits at its shard's gate; leaves when its last frame has been handed to the transport
//   pull    its frames are answered, in any order; leaves when all have been
//
// That is the network's part of the road. Stages that work on a part before it is sent (reduce at a relay, copy_out
// of a device: staging.h) have their rows before push, those that work on a result (copy_in) theirs after pull: a row
// and a file. Parts may leave a stage in any order, at once or later. A part can come back: what was pushed on a
// connection that has ended is pushed again.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/time.h"
#include "worker/tensor_table.h"

namespace byteps {

struct PartRef {
  TensorIndex tensor = kNoTensor;
  std::uint32_t part = 0;
};

// What stages finish by themselves, without a message of the network.
struct StageOutput {
  std::vector<PartRef> leaving;
  // More frames of these can be pushed (Cargo::ready_frames).
  std::vector<PartRef> ready;
  // Memory of these tensors that a stage had lent, once for each time, is no longer in use.
  std::vector<TensorIndex> given_back;
  void clear() {
    leaving.clear();
    ready.clear();
    given_back.clear();
  }
  void add(const StageOutput& other) {
    leaving.insert(leaving.end(), other.leaving.begin(), other.leaving.end());
    ready.insert(ready.end(), other.ready.begin(), other.ready.end());
    given_back.insert(given_back.end(), other.given_back.begin(), other.given_back.end());
  }
};

// Where parts are worked on. A stage has a part from enter() on, until it leaves or is abandoned. A stage that lends
// the operation's memory to something that cannot give it back at once (a copy engine) counts that in
// Tensor::lent_count, and says when it is back: the operation does not end before, well or not.
class Stage {
 public:
  virtual ~Stage() = default;

  virtual void enter(PartRef part, Tensor& tensor, TimeNs now) = 0;
  // The operation ends early: the part is off the road.
  virtual void abandon(PartRef part, Tensor& tensor) = 0;
  // Others wait for the part, which is here: whatever it waits for is to come at once.
  virtual void want(PartRef /*part*/, Tensor& /*tensor*/) {}

  virtual void tick(TimeNs /*now*/, StageOutput& /*out*/) {}
  virtual TimeNs next_deadline() const { return kNever; }
};

class Road {
 public:
  struct Row {
    std::string_view name;
    std::string_view waits_for;  // what keeps a part there, for messages to people
    Stage* stage = nullptr;      // outlives the road
    bool has_time = true;        // its tick() and next_deadline() may say something
    bool only_cargo = false;     // parts of operations without a Cargo pass it by
  };

  explicit Road(std::vector<Row> rows);

  // The part enters the first stage.
  void begin(PartRef part, Tensor& tensor, TimeNs now);
  // It leaves the stage where it is, and enters the next one. True: that was the last.
  bool leave(PartRef part, Tensor& tensor, TimeNs now);
  // From a later stage back to this one.
  void come_back(PartRef part, Tensor& tensor, const Stage& to, TimeNs now);
  // Others wait for the part, wherever it is.
  void want(PartRef part, Tensor& tensor);
  // All parts of the tensor leave the road.
  void abandon(TensorIndex index, Tensor& tensor);

  // Whether the part is at this stage.
  bool is_at(const PartState& part, const Stage& stage) const {
    return part.stage < rows_.size() && rows_[part.stage].stage == &stage;
  }

  // Whether any of its stages does.
  bool has_time() const { return has_time_; }
  void tick(TimeNs now, StageOutput& out);
  TimeNs next_deadline() const;

  const std::vector<Row>& rows() const { return rows_; }

 private:
  std::uint8_t place_of(const Stage& stage) const;
  std::size_t row_for(const Tensor& tensor, std::size_t first) const;
  void enter(PartRef part, Tensor& tensor, std::size_t row, TimeNs now);

  const std::vector<Row> rows_;
  const bool has_time_;
};

// Rows before and after those of the network.
struct RoadEnds {
  std::vector<Road::Row> before_push;
  std::vector<Road::Row> after_pull;
};

}  // namespace byteps
