// Shelf: what is summed. The pure core of a shard: a message comes in, what to send comes out. No
// socket, no thread, no clock (docs/protocol.md: "Summing", "Why repeats are harmless", "Hostile
// bytes").
//
// A tensor that somebody declared is an entry; a part of it gets a record at its first push; a
// frame of a part has the round being summed, a bit per worker, an accumulator while it is
// incomplete, and the last finished sum.
//
// Invariants (n members of the tensor; frame f sums round r, that is: its rounds below r are finished):
//   I1 A worker's bit is set exactly when its contribution of round r is in. Each contribution is
//      added at most once.
//   I2 f has an accumulator, or contributions held back, only while 0 < set bits < n. (A broadcast
//      has an accumulator only after the root's push.) With the n-th bit the frame is finished in
//      the same step: r grows by one and all bits are clear.
//   I3 f has a finished sum exactly when r > 0, and it is that of round r-1. The one of round r-2
//      went back when round r-1 was finished. So a frame at rest costs its own bytes once.
//   I4 A push of round r says that its worker has the whole sum of round r-1; a push of round r-1
//      only that it may have lost the answer.
//   I5 Memory is taken for what came, never for a length that was announced: a declaration costs
//      its name, members and two bits per worker, the first push of a part the records of that part's frames. All of it
//      is counted.
//   I6 A part with an incomplete frame has exactly one alarm; no part ever has two.
//   I7 What comes out depends on the messages, their order and `now`; on no address and no hash
//      order.
//   I8 In deterministic mode floats are added in order of rank; a contribution that comes before
//      its turn is held back.
//   I10 A member that has no more inputs is not waited for: a frame is finished when all others have contributed. It
//      has no bit set, for all its rounds are finished.
//   I9 At most one answer to a worker's contribution names its landing: the one with which the frame was finished. A
//      repeated answer goes without, for it may be damaged on the way, and the place it would be written to before
//      anybody notices may hold the sum already.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/flat_map.h"
#include "base/ids.h"
#include "base/limits.h"
#include "base/placement.h"
#include "base/status.h"
#include "base/time.h"
#include "base/timeline.h"
#include "kernels/kernels.h"
#include "net/wire.h"

namespace byteps {

// What the shelf wants done, in the order of the vectors' entries. The caller clears it and passes
// it in again, so that the steady state allocates nothing.
struct ShelfOutput {
  // Send one frame of a result to header.worker. The buffer is lent as long as this ref (or a copy)
  // lives.
  struct Answer {
    wire::Header header;  // kind, epoch, key, part, round, offset, worker, its landing tag
    std::uint64_t landing_offset = 0;  // offset of the frame in the whole tensor, bytes
    BufferRef buffer;                  // empty when there is no payload
    std::size_t payload_bytes = 0;
    std::span<const std::byte> payload() const {
      return buffer ? std::span<const std::byte>(buffer.span()).first(payload_bytes)
                    : std::span<const std::byte>();
    }
  };
  // Tell this worker that others wait for its contribution.
  struct Wanted {
    WorkerRank worker;
    Key key;
    PartIndex part;
    Round round;
  };
  // Tell those who have contributed whom they wait for: ascending ranks.
  struct Missing {
    std::vector<WorkerRank> to;
    Key key;
    PartIndex part;
    Round round;
    std::vector<std::uint32_t> ranks;
  };
  // Tell one worker, or all that are connected, that this tensor cannot be summed
  // (wire::Kind::kMismatch).
  struct Spoiled {
    std::optional<WorkerRank> worker;  // empty: all
    Key key;
    Code code = Code::kMismatch;  // kMismatch: declarations differ; kSystem: no memory; ...
    std::string text;
  };
  // Tell one worker, or all that are connected, that nobody has more inputs: the next generation begins. Or one worker
  // that it was heard: `generation` is still the one in which it has no more.
  struct InputsDone {
    std::optional<WorkerRank> worker;  // empty: all
    std::uint32_t generation = 0;
    WorkerRank last;
  };
  // This worker broke the protocol: end its connection with one log line.
  struct Violation {
    WorkerRank worker;
    std::string text;
  };

  std::vector<Answer> answers;
  std::vector<Wanted> wanted;
  std::vector<Missing> missing;
  std::vector<Spoiled> spoiled;
  std::vector<InputsDone> inputs_done;
  std::vector<Violation> violations;
  std::vector<Status> failures;  // the job cannot go on with this server

  bool empty() const {
    return answers.empty() && wanted.empty() && missing.empty() && spoiled.empty() &&
           inputs_done.empty() && violations.empty() && failures.empty();
  }
  void clear();
};

struct ShelfSettings {
  // A frame incomplete for so long asks for the missing contributions.
  TimeNs wanted_ns = 5 * kMillisecond;
  // A tensor with a frame incomplete for so long says who is missing, again when that changes or ...
  TimeNs missing_ns = 2500 * kMillisecond;
  TimeNs missing_every_ns = 10 * kSecond;  // ... after this
  // Floats are added in order of rank.
  bool deterministic = false;
  // One more tensor fails the job.
  std::size_t tensor_count_max = kTensorsMax;
  // Bytes lent by the pool, and of declarations and the records of parts; a tensor that needs more is spoiled.
  std::size_t memory_bytes_max = SIZE_MAX;
  // Of that for declarations, at most a quarter; one more fails the job.
  std::size_t declared_bytes_max = kDeclaredBytesMax;
  KernelSet kernels = best_kernels();
  TimelineLane* timeline = nullptr;  // null: none is recorded
};

// Facts of an epoch, from the roster.
struct ShelfEpoch {
  Epoch epoch;
  std::uint32_t worker_count = 0;
  std::shared_ptr<const Placement> placement;
};

class Shelf {
 public:
  // `pool` gives the memory of accumulators and sums; it must outlive the shelf and every Answer.
  Shelf(const ShelfSettings& settings, BufferPool& pool);
  ~Shelf();
  Shelf(const Shelf&) = delete;
  Shelf& operator=(const Shelf&) = delete;

  // Forgets everything of the former epoch and serves this one. kInvalidArgument: facts that cannot
  // be served (no worker, sizes that are no multiple of 64 bytes or beyond the limits); the shelf
  // then serves nothing.
  Status begin_epoch(const ShelfEpoch& facts);

  // Forgets everything, gives back its memory, and serves nothing.
  void end_epoch();

  // A worker has a new connection: it has to declare its keys again, and hears of spoiled ones.
  // What it contributed through an earlier connection counts; the end of a connection is no event
  // here.
  void connect(WorkerRank worker, ShelfOutput& out);
  // One message (kDeclare, kPush, kForget, kInputs) of a connected worker. `payload` is only read during the
  // call. Appends to out.
  void step(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
            TimeNs now, ShelfOutput& out);

  // Asks for contributions that are missing for too long. Cheap when there is nothing to ask.
  void tick(TimeNs now, ShelfOutput& out);
  // When tick() wants to be called; kNever if nothing is incomplete.
  TimeNs next_deadline() const;

  // Brings the record of a part that will be pushed soon nearer to the CPU. Calls with distance
  // kFarthest, kFarthest - 1, ... 1 do it: each looks where the one before has pointed.
  static constexpr int kFarthest = 4;
  void expect(Key key, PartIndex part, int distance) const;

  // For metrics and tests.
  std::size_t tensor_count() const { return tensors_.size(); }
  std::size_t incomplete_frame_count() const { return incomplete_frame_count_; }

  // Wanted repeats at wanted_ns, 2 wanted_ns, 4 wanted_ns, ... and from then on every wanted_ns <<
  // this.
  static constexpr std::uint32_t kWantedDoublings = 8;

 private:
  struct Tensor;
  struct Frame;
  struct Part;
  struct PartName {
    Key key;
    PartIndex part;
    bool operator==(const PartName&) const = default;
  };
  struct PartHome {  // keys are hashes already; parts of one key follow each other
    std::size_t operator()(const PartName& name) const {
      return static_cast<std::size_t>(stable_mix(name.key.value + name.part.value));
    }
  };
  // "Look at this part then." It counts only if it is the one that the part's record names; the
  // part may be forgotten by then, or have a newer alarm.
  struct Alarm {
    TimeNs due_at_ns;
    std::uint64_t number;  // counts alarms: equal times ring in the order they were set
    Key key;
    PartIndex part;
  };

  void dispatch(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
                TimeNs now, ShelfOutput& out);
  void violation(WorkerRank from, std::string text, ShelfOutput& out) const;
  void out_of_memory(Key key, ShelfOutput& out);

  // ---- tensors
  void declare(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
               ShelfOutput& out);
  Tensor& make_tensor(WorkerRank from, Key key, wire::Declare declared);
  void spoil(Tensor& tensor, Code code, std::string text, ShelfOutput& out);
  void forget(WorkerRank from, Key key);
  void drop_parts(Tensor& tensor);
  void drop(Tensor& tensor);  // destroys it
  bool is_forgotten(const Tensor& tensor) const;
  bool is_complete(const Part& part, std::uint32_t frame_index) const;

  // ---- the end of inputs
  void inputs(WorkerRank from, const wire::Header& header, ShelfOutput& out);
  void finish_without(Tensor& tensor, ShelfOutput& out);
  void begin_generation(std::uint32_t generation, WorkerRank last);
  void begin_announced(std::uint32_t generation, WorkerRank by);
  void contradict(WorkerRank from, ShelfOutput& out);
  void look_for_contradiction(WorkerRank from, const wire::Header& header, ShelfOutput& out);
  static Round next_round_of(const Tensor& tensor, Round first);
  // A worker that was cut off from this shard may be so many generations ahead when it is back.
  static constexpr std::int32_t kGenerationsAheadMax = 8;

  // ---- frames
  void push(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
            TimeNs now, ShelfOutput& out);
  Part* open_part(WorkerRank from, const wire::Header& header, ShelfOutput& out);
  Part& make_part(Tensor& tensor, PartIndex index);
  const char* flaw_of_push(const Part& part, WorkerRank from, const wire::Header& header,
                           std::size_t payload_bytes) const;
  void contribute(Part& part, std::uint32_t frame_index, WorkerRank from,
                  std::span<const std::byte> payload, TimeNs now, ShelfOutput& out);
  void add(Part& part, Frame& frame, std::span<const std::byte> payload);
  void add_in_order(Part& part, std::uint32_t frame_index, WorkerRank from,
                    std::span<const std::byte> payload);
  void add_held(Part& part, std::uint32_t frame_index);
  void spoil_rootless(Tensor& tensor, ShelfOutput& out);
  void finish(Part& part, std::uint32_t frame_index, ShelfOutput& out);
  void answer(const Part& part, std::uint32_t frame_index, WorkerRank to, LandingTag landing,
              ShelfOutput& out) const;
  static std::size_t frame_length(const Part& part, std::uint32_t frame_index);
  std::size_t used_bytes() const { return pool_.lent_bytes() + record_bytes_ + declared_bytes_; }
  std::size_t declared_bytes_of(const wire::Declare& declared) const;
  std::size_t record_bytes_of(std::uint64_t frame_count, const Tensor& tensor) const;
  void refuse_beyond_limit(std::size_t bytes);  // throws bad_alloc
  BufferRef take(std::size_t bytes);  // bad_alloc when there is no memory, or the limit is reached

  // ---- alarms
  void make_young(Part& part, TimeNs due_at_ns);
  void take_from_young(Part& part);
  bool ring_next(TimeNs now, ShelfOutput& out);
  void watch(Part& part, const Frame& frame);
  void set_alarm(Part& part, TimeNs due_at_ns);
  void ring(Part& part, TimeNs now, ShelfOutput& out);
  void tell_missing(const Part& part, const Frame& oldest, TimeNs now, ShelfOutput& out);

  const ShelfSettings settings_;
  BufferPool& pool_;

  ShelfEpoch facts_;           // worker_count 0: serves nothing
  std::size_t bit_words_ = 0;  // 64-bit words for one bit per worker
  std::map<Key, std::unique_ptr<Tensor>> tensors_;
  FlatMap<PartName, Part*, PartHome>
      parts_;  // every part of every tensor, for the one look-up per frame
  Part* young_first_ =
      nullptr;  // parts whose alarm is wanted_ns after a frame was begun, earliest first
  Part* young_last_ = nullptr;
  std::vector<Alarm> alarms_;     // of the others: a heap, earliest first
  std::uint32_t generation_ = 0;  // of inputs
  std::optional<WorkerRank>
      announced_by_;  // says that the next one has begun; nothing of it has come yet
  std::optional<WorkerRank> begun_by_;  // by whose word alone this one began
  std::vector<std::uint32_t>
      heard_in_;     // by worker: the generation that it is in at least, by its own word
  WorkerRank last_;  // who had inputs longest in the generation before
  std::uint32_t no_more_count_ = 0;
  std::vector<std::uint64_t> no_more_;  // a bit per worker: it has no more inputs
  std::vector<std::uint64_t> missing_;  // scratch of ring(): a bit per worker
  std::uint64_t alarms_set_ = 0;
  std::size_t incomplete_frame_count_ = 0;
  std::size_t record_bytes_ = 0;    // of all parts
  std::size_t declared_bytes_ = 0;  // of all tensors
  std::size_t refused_bytes_ = 0;   // what take() could not give last
};

}  // namespace byteps
