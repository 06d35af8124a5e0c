// Settling: which workers are known to have the sums that they were answered with, where a server that is lost gets a
// successor. What all have is *settled*: the shard gives its memory back, and the workers theirs.
//
// Answers to one worker are counted on its connection, from 1. It says how many have come (in each push, or an Ack),
// and is told of how many of them the sums are settled (in each answer, or a Settled): of all up to that one. What it
// has not said of an earlier connection it says by a Have, or by its next push of that frame.
//
// Where the root alone gets a sum (Spec::root_only), the others are answered when it has said that it has it: their
// contributions are in the memory of operations that end with that, and there is no other copy.
//
// At a relay before servers those above may lack a sum, too: those of other machines, as the servers tell
// (settled_above()). And what all of the crew have is told (take_crew_has()): only then the servers hear that this
// machine has it.
//
// Invariants:
//   N1 A frame whose sum is not settled has a record, with a bit for each worker that may lack it.
//   N2 A record lives as long as its frame's sum does, or an answer with it counts. Once the frame sums on or is
//      dropped it is settled: who pushes a round has the sum of the one before.
//   N3 Per worker there are at most kIdleMax answers more than twice those that are not settled.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "server/generations.h"
#include "server/shelf_output.h"
#include "server/sums.h"

namespace byteps {

class Settling {
 public:
  // Forgets everything. 0 workers: nothing is counted. `is_below`: of a relay with servers.
  void begin_epoch(std::uint32_t worker_count, bool is_below = false);
  bool is_on() const { return !answers_.empty(); }

  // The frame has a sum now, and those who contribute to it lack it; who has no more inputs lacks nothing.
  void begin(PartSum& part, std::uint32_t frame_index, const Generations& generations);
  // All have its sum, so it is here no longer.
  bool is_settled(const FrameSum& frame) const {
    return is_on() && frame.settling == 0 && !frame.takeover;
  }
  // The others wait until the root has it.
  void wait_for_root(PartSum& part, std::uint32_t frame_index, const Generations& generations);
  // Whether this contributor may be answered with it.
  static bool may_answer(const PartSum& part, std::uint32_t frame_index, WorkerRank to);
  // Frames whose others may be answered since the last call.
  struct Frame {
    Key key;
    PartIndex part;
    std::uint32_t frame = 0;
    std::uint64_t offset_bytes = 0;
    Round round{};  // whose sum it is
  };
  std::vector<Frame> take_answerable() { return std::exchange(answerable_, {}); }
  // It has that sum no longer, or another.
  void end(FrameSum& frame);
  // This worker is answered with it. What the answer is to say: of how many before it the sums are settled.
  std::uint32_t answer(const FrameSum& frame, WorkerRank to);
  // Frames of which all of the crew have the sum, since the last call.
  std::vector<Frame> take_crew_has() { return std::exchange(crew_has_, {}); }
  // All of other machines have the sum of this frame.
  void settled_above(FrameSum& frame) {
    if (above_) note_has(frame, *above_);
  }
  // It has that sum, as is known without its count.
  void note_has(FrameSum& frame, WorkerRank worker);
  // The same, as it has said by a Have: it is told when all have that sum, for no count of answers tells it.
  void note_told(FrameSum& frame, WorkerRank worker);
  // To be told so since the last call.
  struct ToldFrame {
    Frame frame;
    WorkerRank worker;
  };
  std::vector<ToldFrame> take_told() { return std::exchange(told_settled_, {}); }
  // It has left the job, or is lost: it lacks nothing, nor does a root that is this worker, nor a crew of which all
  // have. (For the others of its crew it may speak still, or who stands in for its relay.)
  void note_left(WorkerRank worker);
  // It says how many answers came. Empty, or what is wrong with that.
  const char* ack(WorkerRank from, std::uint32_t count);
  // It has a new connection: counts begin anew.
  void connect(WorkerRank worker);

  // Tells workers whom no answer has told for a while.
  void tick(TimeNs now, ShelfOutputs& out);
  TimeNs next_deadline() const { return due_ns_; }

  // Answers that are remembered, of all workers; for tests.
  std::size_t answer_count() const;

  static constexpr TimeNs kSilenceNs = kMillisecond;
  // Of records and answers, for one frame.
  static std::size_t bytes_of_frame(std::uint32_t worker_count);

 private:
  using Index = std::uint32_t;  // of a record
  struct Record {
    PartSum* part = nullptr;  // null: it is settled
    std::uint32_t frame = 0;
    Round round{};
    std::uint32_t holders = 0;  // its frame, and answers
    bool crew_has = false;      // and it was told
  };
  struct Answer {
    std::uint32_t number = 0;
    Index record = 0;
  };
  struct Answers {  // to one worker, on its connection
    std::uint32_t sent = 0;
    std::uint32_t acked = 0;
    std::uint32_t told = 0;      // of how many it was told that they are settled
    std::deque<Answer> open{};   // the first is not settled
    std::size_t acked_open = 0;  // of those: the first so many are acked
    std::size_t sweep_at = kIdleMax;
  };
  static constexpr std::size_t kIdleMax = 1024;

  std::span<std::uint64_t> lacks_of(Index index);
  std::span<std::uint64_t> told_of(Index index);
  void tell_those(Index index);
  void settle(Index index);
  void let_go(Index index);
  void root_has(FrameSum& frame);
  void look_at_crew(Index index);
  void say_crew_has(Index index);
  void drop_settled(Answers& answers);
  void sweep(Answers& answers);
  std::uint32_t settled_of(Answers& answers);

  std::optional<WorkerRank> above_;  // the bit of those above
  std::size_t words_ = 0;            // of a record's bits
  std::vector<Record> records_;
  std::vector<std::uint64_t> lacks_;  // of all records: bits of those that may lack the sum
  std::vector<std::uint64_t>
      told_;  // likewise: of those that have said by a Have that they have it
  std::vector<ToldFrame> told_settled_;
  std::vector<Index> free_;
  std::vector<Answers> answers_;  // by worker
  std::vector<Frame> answerable_;
  std::vector<Frame> crew_has_;
  std::vector<std::uint64_t> left_;  // a bit for each worker that has left
  TimeNs now_ = 0;                   // of the last tick
  TimeNs due_ns_ = kNever;           // when workers are told
};

}  // namespace byteps
