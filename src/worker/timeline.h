// WorkerTimeline: what the pipeline tells of the parts of the rounds that are recorded (base/timeline.h). The pipeline
// calls it where a part passes from one stage to the next (stages.h); the clock is read here, and only for such rounds.
//
// A part that is sent again on a new connection keeps its first times of sending and answer, and gets new last ones.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/time.h"
#include "base/timeline.h"
#include "worker/tensor_table.h"

namespace byteps {

class WorkerTimeline {
 public:
  explicit WorkerTimeline(TimelineLane& lane) : lane_(lane) {}
  static std::unique_ptr<WorkerTimeline> make(TimelineLane* lane) {
    return lane == nullptr ? nullptr : std::make_unique<WorkerTimeline>(*lane);
  }

  // A round begins: all its parts wait at their gates, at a relay for its workers, or for their device. It was
  // submitted in this turn, or before and the round before it has just ended.
  void on_started(TensorIndex index, const Tensor& tensor, TimeNs submitted_ns);
  // At a relay, and of a tensor on a device: the part has a frame to send. It waits at its gate from now on.
  void on_queued(TensorIndex index, const Tensor& tensor, std::uint32_t part);
  // The transport took a frame of this part.
  void on_sent(TensorIndex index, const Tensor& tensor, std::uint32_t part);
  // A frame of this part was answered.
  void on_answered(TensorIndex index, const Tensor& tensor, std::uint32_t part);
  // A frame of this part was coded just now, or its answer made elements, in so much time.
  void on_encoded(TensorIndex index, const Tensor& tensor, std::uint32_t part, TimeNs took_ns);
  void on_decoded(TensorIndex index, const Tensor& tensor, std::uint32_t part, TimeNs took_ns);
  // All were, and what follows is done.
  void on_part_done(TensorIndex index, const Tensor& tensor, std::uint32_t part);
  // The round has ended well, with the part that was done last.
  void on_done(TensorIndex index, const Tensor& tensor, TimeNs submitted_ns);

 private:
  struct Times {
    TimeNs queued_ns = 0;  // 0: since the round began
    TimeNs first_sent_ns = 0;
    TimeNs last_sent_ns = 0;
    TimeNs first_answer_ns = 0;
    TimeNs last_answer_ns = 0;
  };
  struct Stretch {
    TimeNs first_ns = 0;
    TimeNs last_ns = 0;
    TimeNs busy_ns = 0;
  };
  struct Coding {
    Stretch encode;
    Stretch decode;
  };
  struct Round {
    TimeNs started_ns = 0;
    std::vector<Times> parts;
    std::vector<Coding> codings;  // of the parts of a coded tensor; else empty
  };
  // False: this round is not recorded.
  bool traces(TensorIndex index, const Tensor& tensor) const {
    return lane_.timeline().traces(tensor.round) && index < rounds_.size() &&
           rounds_[index].parts.size() == tensor.parts.size();
  }

  // nullptr: nothing is recorded of its coding.
  Coding* coding_of(TensorIndex index, const Tensor& tensor, std::uint32_t part);
  void extend(Stretch& stretch, TimeNs took_ns);
  TimelineRecord record_of(const Tensor& tensor, std::uint32_t part) const;

  TimeNs look() { return looked_ns_ = lane_.timeline().now(); }

  TimelineLane& lane_;
  TimeNs looked_ns_ = 0;       // at the clock, last
  std::vector<Round> rounds_;  // by TensorIndex, of tensors that were recorded
};

}  // namespace byteps
