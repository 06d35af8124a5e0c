// Worker: the part of a training process that pushes tensors to the job's servers and gets the sums back.
//
//   any thread                 | the worker's thread (a Runner, or the simulator)
//   WorkerDoor --Mailbox-->    | Worker (Actor): MemberPort (joining, heartbeats, barrier, leave)
//   WorkerDoor <--Handles--    |                 Pipeline (tensors to frames, answers to results)
//                              |                 ShardTraffic (one connection to each shard, or to each relay of its
//                              |                 machine) and one to the scheduler, on one Transport
//
// A job of one (JobConfig::scheduler_host is empty) needs no Worker.
//
// A job:  WorkerDoor door(config, &waiter_of_the_transport);
//         Worker worker(config, transport, door, log, "host:pid");
//         Runner runner("byteps-worker", worker, waiter, clock);
//         door.membership().wait(...); door.submit(...); door.wait(...); ...
//         door.leave(true); runner.join();
// The door must outlive the worker; the transport, its waiter and the log must outlive both.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/status.h"
#include "device/devices.h"
#include "loop/actor.h"
#include "member/member_port.h"
#include "net/transport.h"
#include "worker/device_side.h"
#include "worker/door.h"
#include "worker/pipeline.h"
#include "worker/relay_port.h"
#include "worker/relay_watch.h"
#include "worker/shard_traffic.h"
#include "worker/stall_watch.h"
#include "worker/vacancies.h"

namespace byteps {

// The loop's side. Single-threaded: only turn() and the two questions after it are called once it
// runs.
class Worker final : public Actor, private ShardTraffic::Owner {
 public:
  // config.job.scheduler_host must not be empty. `host` ("host:pid") is for messages to people; it also tells a worker
  // that lost its connection from another process with its rank. Empty: "worker <rank>".
  // `road_ends`: stages that parts pass before they are pushed and after they are pulled; they outlive it.
  // `relay`: beside it; its mailboxes outlive both. So do those of `devices`.
  Worker(const Config& config, Transport& transport, WorkerDoor& door, const Log& log,
         std::string host = {}, RoadEnds road_ends = {}, RelayPort relay = {},
         device::Port devices = {});
  ~Worker() override;

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  TimeNs patience() const override { return pipeline_ ? pipeline_->flow().patience() : 0; }
  // After leave() or a failure, when all handles have ended and all lent memory is back.
  bool finished() const override { return state_ == State::kFinished; }
  // The job fails, at this worker and for all.
  void failed(const Status& why) override;

  // Once it is finished: how long to wait for the thread of the relay beside it. 0: it stands still, perhaps for ever.
  TimeNs relay_patience_ns() const { return relay_.patience_ns(); }

  // For tests and the simulator; the worker's thread only. Null before the roster is known.
  const Pipeline* pipeline() const { return pipeline_.get(); }

 private:
  enum class State : std::uint8_t {
    kJoining,     // no roster yet
    kConnecting,  // not all shards were reached yet
    kWorking,
    kEnding,  // left or failed: handles have ended, connections are closed, lent memory comes back
    kFinished,
  };

  // What comes in.
  void take_commands(TimeNs now);
  void obey(WorkerCommand& command, TimeNs now);
  std::size_t take_events(TimeNs now);
  void look_ahead(std::size_t at, std::size_t count) const;
  Status on_message(ShardIndex shard, const wire::Header& header, const Event& event) override;
  void on_sent(SendToken token) override { pipeline_->on_sent(token); }
  void try_work();
  Status on_mismatch(ShardIndex shard, const wire::Header& header,
                     std::span<const std::byte> payload);
  void take_member_events(TimeNs now);
  void on_roster(const wire::Roster& roster, TimeNs now);
  void on_amended(const wire::Roster& roster, TimeNs now);
  void note_departed(const std::vector<WorkerRank>& workers);
  Status check_roster(const wire::Roster& roster) const;
  PipelineConfig pipeline_config(const wire::Roster& roster);

  // What goes out.
  void apply_outputs();
  std::size_t take_reports(TimeNs now);
  void note_end(const PipelineOutput::Complete& end);
  void publish_counters();

  // Stalls.
  void watch_stall(TimeNs now);
  wire::Stalled stall_report(bool proven);
  void give_up_waiting(TimeNs now);
  bool may_stall() const {
    return state_ == State::kWorking && (pipeline_->pending_operations() > 0 ||
                                         pipeline_->inputs().is_finishing() || !barriers_.empty());
  }

  // The end.
  bool is_about_to_leave() const {
    return ending_.leaves_ns != kNever && state_ != State::kEnding && state_ != State::kFinished;
  }
  void try_leave(TimeNs now);
  bool keeps_for_others(TimeNs now);
  void fail_job(const Status& why, TimeNs now);
  void fail(const Status& why);
  void end(const Status& why);
  void end_all();
  void try_finish();
  const TimeoutConfig& timeout() const { return port_.member().timeout(); }

  // constant after construction
  const Config config_;
  Transport& transport_;
  const WorkerDoor::LoopSide door_;
  const Log& log_;
  DeviceSide devices_;  // which owns some of its rows
  const RoadEnds road_ends_;

  // owned by the loop
  State state_ = State::kJoining;
  TimeNs now_ = 0;  // of this turn
  struct Ending {
    Status why;           // what everything ends with
    bool is_all = false;  // everything has
    // It was told to leave: for good or not, and at the latest when, or without waiting.
    bool is_final = false;
    bool is_at_once = false;
    TimeNs leaves_ns = kNever;
    TimeNs notice_ns = kNever;  // when people are told that it waits
  };
  Ending ending_;  // kEnding, but for the last four
  MemberPort port_;
  RelayWatch relay_;
  ShardTraffic shards_;
  Vacancies vacancies_;
  std::unique_ptr<Pipeline> pipeline_;          // from the roster on
  Membership::Facts facts_;                     // from the roster, told when all shards are reached
  std::map<std::uint64_t, HandleId> barriers_;  // begun, by number
  TimeNs planned_ns_ = kNever;                  // when turn() wanted to be called next
  StallWatch stall_watch_;
  std::uint64_t commands_taken_ = 0;
  // Of one turn, to reuse the memory.
  struct Scratch {
    std::vector<WorkerCommand> commands;
    std::vector<Event> events;
    std::vector<Handles::Completion> completions;
  };
  Scratch scratch_;
};

}  // namespace byteps
