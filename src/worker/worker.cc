#include "worker/worker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/phrases.h"
#include "member/summing.h"
#include "net/wire.h"
#include "net/wire_text.h"
#include "worker/machine_plan.h"

namespace byteps {

namespace {

constexpr std::size_t kEventsPerTurn = 256;
constexpr std::size_t kEventsPerStep = 2;   // of look_ahead()
constexpr std::size_t kAwaitedMax = 1024;   // of more than that nothing is proven
constexpr std::size_t kNotBegunMax = 4096;  // told to the scheduler, 24 bytes each

std::string own_name(const Config& config, std::string host) {
  return host.empty() ? "worker " + std::to_string(config.job.rank) : std::move(host);
}

wire::Join join_of(const Config& config, std::string host, const RelayPort& relay) {
  wire::Join join = make_join(config, Role::kWorker, std::move(host), {});
  join.relay_port = relay.listening_port;
  return join;
}

// The end of a handle, for the flight recorder.
void record_end(const Log& log, const char* kind, HandleId handle, const Status& why, TimeNs now) {
  FlightEvent event{.kind = kind};
  if (!why.is_ok()) event = FlightEvent::of_end(kind, why);
  event.number = static_cast<std::uint64_t>(handle.value);
  event.at_ns = now;
  log.record(event);
}

// People wait for shutdown().
constexpr const char* kWaitsToLeave =
    "leaving waits until others have the last sums of this worker, because a server is lost or "
    "says "
    "nothing; when another has its place, or after BYTEPS_RECOVERY_TIMEOUT_S, it goes on";

// Not only through relays.
bool reaches_servers(const wire::Roster& roster) {
  return roster.summing == wire::Summing::kServers;
}

void tell_machine(const Log& log, const wire::Roster& roster, const DeviceConfig& wishes) {
  if (!log.enabled(LogLevel::kInfo)) return;
  const std::string line = machine_line_of(roster, WorkerRank(roster.your_rank), wishes);
  if (!line.empty()) LOG(log, kInfo) << line;
}

void record_wanted(const Log& log, const Pipeline& pipeline, const wire::Header& header) {
  if (log.flight() == nullptr) return;
  const TensorIndex tensor = pipeline.tensors().find(header.key);
  log.record({.kind = "wanted",
              .key = header.key.value,
              .part = header.part.value,
              .round = header.round.value,
              .text = tensor == kNoTensor ? std::string_view() : pipeline.tensors()[tensor].name});
}

}  // namespace

Worker::Worker(const Config& config, Transport& transport, WorkerDoor& door, const Log& log,
               std::string host, RoadEnds road_ends, RelayPort relay, device::Port devices)
    : config_(config),
      transport_(transport),
      door_(door.loop_side()),
      log_(log),
      devices_(devices),
      road_ends_(devices_.with_rows(std::move(road_ends))),
      port_(join_of(config, own_name(config, std::move(host)), relay), config, transport,
            log.flight(), log.timeline()),
      relay_(relay, config.timeout),
      shards_(config_, transport, log, *this),
      vacancies_(door_.membership, log),
      stall_watch_(config.timeout.stall_ns),
      scratch_{.commands = {}, .events = std::vector<Event>(kEventsPerTurn), .completions = {}} {
  CHECK(!config.job.scheduler_host.empty()) << "a job of one needs no Worker";
}

Worker::~Worker() = default;

std::size_t Worker::turn(TimeNs now) {
  if (state_ == State::kFinished) return 0;
  now_ = now;
  const TimeNs late_ns = std::max<TimeNs>(0, now - planned_ns_);
  if (late_ns > 0) shards_.connections().excuse(late_ns, now);
  if (pipeline_) pipeline_->begin_turn(now);
  std::size_t work = take_events(now);
  if (const Status fine = relay_.look(late_ns, now); !fine.is_ok()) fail_job(fine, now);
  try_work();
  take_commands(now);
  work += scratch_.commands.size();
  work += take_reports(now);
  port_.tick(now);
  take_member_events(now);
  const Status reached = shards_.connections().keep(now, state_ == State::kEnding);
  if (!reached.is_ok()) fail_job(reached, now);
  vacancies_.tick(now);
  if (pipeline_) {
    watch_stall(now);
    pipeline_->tick();
    apply_outputs();
    work += shards_.send_frames();
    devices_.post_orders(now);
    publish_counters();
  }
  try_leave(now);
  port_.tick_again(now);
  take_member_events(now);
  try_finish();
  planned_ns_ = next_deadline();
  return work;
}

TimeNs Worker::next_deadline() const {
  TimeNs next = std::min({transport_.next_deadline(), port_.next_deadline(),
                          shards_.connections().next_deadline(), relay_.next_deadline(),
                          devices_.next_deadline(), vacancies_.next_deadline()});
  if (pipeline_) next = std::min(next, pipeline_->next_deadline());
  if (is_about_to_leave()) next = std::min({next, ending_.leaves_ns, ending_.notice_ns});
  if (may_stall()) next = std::min(next, stall_watch_.next_look_ns());
  return next;
}

// ---- what comes in

void Worker::take_commands(TimeNs now) {
  door_.commands.drain(scratch_.commands);
  if (!scratch_.commands.empty()) port_.stalled({});
  commands_taken_ += scratch_.commands.size();
  for (WorkerCommand& command : scratch_.commands) obey(command, now);
}

void Worker::obey(WorkerCommand& command, TimeNs now) {
  const auto record = [&](const char* kind) {
    log_.record({.kind = kind,
                 .number = static_cast<std::uint64_t>(command.handle.value),
                 .bytes = command.call.spec.total_bytes,
                 .text = command.call.name,
                 .at_ns = now});
  };
  switch (command.kind) {
    case WorkerCommand::Kind::kSubmit:
      // The door lets nobody through before the job is joined, so the pipeline is there unless we have failed.
      if (!pipeline_) return door_.handles.complete(command.handle, ending_.why);
      record("submit");
      if (command.call.place.device != nullptr) devices_.staging().take(command.call);
      return pipeline_->submit(std::move(command.call));
    case WorkerCommand::Kind::kBarrier:
      if (state_ != State::kWorking) return door_.handles.complete(command.handle, ending_.why);
      record("barrier");
      barriers_.emplace(port_.barrier(now), command.handle);
      return;
    case WorkerCommand::Kind::kFinish:
      if (!pipeline_) return door_.handles.complete(command.handle, ending_.why);
      record("finish");
      return pipeline_->finish_inputs(command.handle);
    case WorkerCommand::Kind::kLeave:
      if (state_ == State::kEnding) return;
      log_.record(
          {.kind = "leave", .text = command.final ? "for good" : "may come back", .at_ns = now});
      ending_.is_final = command.final;
      ending_.leaves_ns = now + longest_kept_ns(timeout().failure_ns);
      ending_.notice_ns = now + timeout().failure_ns / 3;
      return;
  }
}

std::size_t Worker::take_events(TimeNs now) {
  const std::size_t count = transport_.poll(now, scratch_.events);
  for (std::size_t i = 0; i < count; ++i) {
    look_ahead(i, count);
    const Event& event = scratch_.events[i];
    if (!port_.handle(event, now)) shards_.handle(event, now, state_ == State::kEnding);
  }
  return count;
}

// Records of small tensors are far away in memory: fetches those of the next answers meanwhile.
void Worker::look_ahead(std::size_t at, std::size_t count) const {
  if (!pipeline_) return;
  for (int distance = 1; distance <= Pipeline::kFarthest; ++distance) {
    const std::size_t next = at + kEventsPerStep * static_cast<std::size_t>(distance);
    if (next >= count) return;
    if (scratch_.events[next].kind != Event::Kind::kReceived) continue;
    if (const auto answer = wire::glimpse(scratch_.events[next].header)) {
      pipeline_->expect(*answer, distance);
    }
  }
}

// Everybody who is needed was reached: the job can be used.
void Worker::try_work() {
  if (state_ != State::kConnecting || (relay_.has_begun() && !relay_.is_ready())) return;
  if (!shards_.connections().all_were_up()) return;
  state_ = State::kWorking;
  door_.membership.joined(facts_);
}

Status Worker::on_message(ShardIndex shard, const wire::Header& header, const Event& event) {
  switch (header.kind) {
    case wire::Kind::kAnswer:
      return pipeline_->on_answer(shard, header, event.payload);
    case wire::Kind::kWanted:
      record_wanted(log_, *pipeline_, header);
      pipeline_->on_wanted(shard, header);
      return Status::ok();
    case wire::Kind::kMismatch:
      return on_mismatch(shard, header, event.payload);
    case wire::Kind::kInputsDone:
      pipeline_->on_inputs_done(shard, header);
      door_.membership.inputs_ended(pipeline_->inputs().last());
      return Status::ok();
    case wire::Kind::kGive:
    case wire::Kind::kAgain:
    case wire::Kind::kForgotten:
    case wire::Kind::kSettled:
      pipeline_->on_recovery(shard, header);
      return Status::ok();
    case wire::Kind::kMissing: {
      const Result<wire::Missing> missing = wire::decode_missing(event.payload);
      if (missing.is_ok()) pipeline_->on_missing(shard, header, missing.value().ranks);
      return missing.status();
    }
    default:
      return {Code::kDisconnected, "a message of a kind that shards do not send"};
  }
}

Status Worker::on_mismatch(ShardIndex shard, const wire::Header& header,
                           std::span<const std::byte> payload) {
  if (header.epoch != pipeline_->epoch()) return Status::ok();
  const Result<wire::Text> text = wire::decode_text(payload);
  if (!text.is_ok()) return text.status();
  const TensorIndex tensor = pipeline_->tensors().find(header.key);
  const Status why = shards_.error_of_mismatch(
      shard, text.value(), tensor == kNoTensor ? std::string() : pipeline_->tensors()[tensor].name);
  FlightEvent event = FlightEvent::of_end("mismatch", why);
  event.key = header.key.value;
  log_.record(event);
  pipeline_->on_mismatch(header.key, why);
  return Status::ok();
}

void Worker::take_member_events(TimeNs now) {
  const Overloads does{
      [&](const MemberOutput::Began& epoch) { on_roster(epoch.roster, now); },
      [&](const MemberOutput::Amended& amended) { on_amended(amended.roster, now); },
      [](const MemberOutput::Adopt&) {},  // of servers
      [&](const MemberOutput::BarrierDone& ended) {
        const auto found = barriers_.find(ended.barrier);
        if (found == barriers_.end()) return;
        record_end(log_, "done", found->second, ended.why, now);
        door_.handles.complete(found->second, ended.why);
        barriers_.erase(found);
      },
      [&](const MemberOutput::WorkerLeft& gone) {
        if (pipeline_) pipeline_->on_worker_left(gone.worker);
        relay_.note_left(gone.worker);
        note_departed(shards_.connections().note_left(gone.worker, now));
      },
      [&](const MemberOutput::Notice& notice) { log_.write(notice.level, notice.text); },
      [&](const MemberOutput::Left&) {
        end(Status(Code::kCancelled, "this process has left the job"));
      },
      [&](const MemberOutput::Failed& failed) { fail(failed.why); }};
  for (const auto& event : port_.take_events()) std::visit(does, event);
}

void Worker::on_roster(const wire::Roster& roster, TimeNs now) {
  if (state_ == State::kEnding) return;
  if (const Status fine = check_roster(roster); !fine.is_ok()) return fail_job(fine, now);
  const PipelineConfig pipeline = pipeline_config(roster);
  pipeline_ = std::make_unique<Pipeline>(pipeline);
  devices_.staging().begin(pipeline.self, config_.flow.priority_scheduling,
                           pipeline.measured.timeline);
  facts_.rank = config_.job.rank;
  facts_.epoch = roster.epoch;
  facts_.incarnation = port_.member().incarnation();
  facts_.neighbours = neighbours_of(roster, config_.job);
  for (const wire::RosterMember& member : roster.members) {
    if (member.role == Role::kServer) ++facts_.server_count;
  }
  vacancies_.note(roster, now);
  tell_machine(log_, roster, config_.device);
  state_ = State::kConnecting;
  std::vector<ShardPlace> places = shards_of(roster);
  if (!reaches_servers(roster)) {
    places = relays_of(roster, groups_of(roster), WorkerRank(roster.your_rank));
    relay_.begin(roster, facts_.incarnation, timeout(), now);
  }
  const ShardConnections::Job job{.epoch = roster.epoch,
                                  .incarnation = facts_.incarnation,
                                  .failure_ns = timeout().failure_ns,
                                  .recovers = roster.recovers,
                                  .self = WorkerRank(roster.your_rank)};
  shards_.begin(*pipeline_, job, std::move(places), now);
}

// Who serves a slot has changed; its parts stay there.
void Worker::on_amended(const wire::Roster& roster, TimeNs now) {
  if (state_ == State::kEnding) return;
  vacancies_.note(roster, now);
  if (!reaches_servers(roster)) {
    relay_.amend(roster);
    return note_departed(shards_.connections().amend(
        relays_of(roster, groups_of(roster), WorkerRank(roster.your_rank)), now));
  }
  if (roster.slots.size() != shards_.connections().count()) {
    return fail_job({Code::kDisconnected, "the roster of an epoch has other shards than before"},
                    now);
  }
  shards_.connections().amend(shards_of(roster), now);
}

// A relay is missed as its worker is, or the worker in whose process it stood in for another's.
void Worker::note_departed(const std::vector<WorkerRank>& workers) {
  for (const WorkerRank each : workers) {
    if (pipeline_) pipeline_->on_worker_left(each);
  }
}

PipelineConfig Worker::pipeline_config(const wire::Roster& roster) {
  PipelineConfig pipeline = with_flow({.self = WorkerRank(roster.your_rank),
                                       .epoch = roster.epoch,
                                       .placement = placement_of(roster),
                                       .worker_count = groups_of(roster).worker_count()},
                                      config_.flow);
  // Longer than any silence is borne: if somebody else is lost, that is said first.
  pipeline.departed_ns = timeout().silence_ns() + timeout().heartbeat_ns();
  pipeline.first_notice_ns = config_.timeout.first_notice_ns;
  pipeline.notice_every_ns = config_.timeout.notice_every_ns;
  pipeline.road_ends = road_ends_;
  pipeline.keeps_sums = roster.recovers && (reaches_servers(roster) || roster.continues);
  if (!reaches_servers(roster)) {
    const auto groups = std::make_shared<const Groups>(groups_of(roster));
    pipeline.groups = groups;
    pipeline.relays.residuals = relay_.residuals();
    pipeline.autotune = false;  // that is the relays'
    // The relay beside it speaks for this worker; where there is no server, all ask the first one.
    const Crew machine = groups->crew_of(groups->group_of(pipeline.self), Members());
    const auto own = std::find(machine.begin(), machine.end(), pipeline.self) - machine.begin();
    const bool is_alone = roster.summing == wire::Summing::kAlone;
    pipeline.relays.are_alone = is_alone;
    pipeline.finishing.way = ShardIndex(is_alone ? 0 : static_cast<std::uint32_t>(own));
  }
  if (Timeline* const timeline = log_.timeline(); timeline != nullptr) {
    std::vector<std::uint32_t> server_of_shard;
    for (const ShardPlace& place : shards_of(roster)) {
      server_of_shard.push_back(place.server.value);
    }
    timeline->set_servers(std::move(server_of_shard));
    std::vector<std::uint32_t> relay_of_way;
    if (pipeline.groups) {
      for (const ShardPlace& place : relays_of(roster, *pipeline.groups, pipeline.self)) {
        relay_of_way.push_back(place.relay->value);
      }
    }
    timeline->set_relays(std::move(relay_of_way));
    pipeline.measured.timeline = &timeline->open_lane();
  }
  return pipeline;
}

Status Worker::check_roster(const wire::Roster& roster) const {
  if (state_ != State::kJoining) {
    return {Code::kDisconnected, "the job was formed anew (epoch " +
                                     std::to_string(roster.epoch.value) +
                                     ") while this worker was in it"};
  }
  const auto is_server = [](const wire::RosterMember& member) {
    return member.role == Role::kServer;
  };
  if (!reaches_servers(roster) && !relay_.exists()) {
    return {Code::kUnsupported, "a roster that wants a relay of a worker without one"};
  }
  if (roster.summing != wire::Summing::kAlone &&
      !std::any_of(roster.members.begin(), roster.members.end(), is_server)) {
    return {Code::kInvalidArgument,
            "the job has workers but no server: start one, and set DMLC_NUM_SERVER"};
  }
  if (std::min(roster.frame_bytes, roster.partition_bytes) > kPayloadBytesMax) {
    return {Code::kInvalidArgument, "frames of " + std::to_string(roster.frame_bytes) +
                                        " bytes are too large; at most " +
                                        std::to_string(kPayloadBytesMax) + " are allowed"};
  }
  std::size_t shards = roster.slots.size();
  std::string what = "connections to " + std::to_string(shards) + " shards of the servers";
  if (roster.summing == wire::Summing::kServers) {
    return check_descriptors(descriptors_of_worker(shards), config_.job.descriptors, what);
  }
  // To the relays of its machine, and from their workers to its own.
  const WorkerRank self(roster.your_rank);
  const std::size_t local = 2 * relays_of(roster, groups_of(roster), self).size();
  if (roster.summing == wire::Summing::kAlone) shards = 0;
  what = std::to_string(local) + " connections within this machine, and to " +
         std::to_string(shards) + " shards of the servers";
  return check_descriptors(descriptors_of_worker(shards + local), config_.job.descriptors, what);
}

// ---- what goes out

void Worker::apply_outputs() {
  scratch_.completions.clear();  // of a turn that failed: its outputs are all there still
  const Overloads does{
      [this](const PipelineOutput::Complete& end) { note_end(end); },
      [this](const PipelineOutput::Notice& notice) { LOG(log_, kWarning) << notice.text; },
      [this](const PipelineOutput::Tuned& tuned) {
        LOG(log_.at(LogLevel::kInfo), kInfo) << tuned.text;
      }};
  for (const auto& output : pipeline_->outputs()) std::visit(does, output);
  pipeline_->clear_outputs();
  if (scratch_.completions.empty()) return;
  publish_counters();  // who hears of an end finds it counted
  // Together: who waits for one after the other wakes up once.
  door_.handles.complete(scratch_.completions);
  scratch_.completions.clear();
}

// An operation's handle ends. The first that fails, before anyone hears of it, leaves the last events behind: the job
// goes on, but a user whose tensor cannot be summed will end it.
void Worker::note_end(const PipelineOutput::Complete& end) {
  Status status = end.status;
  if (status.is_ok()) {
    record_end(log_, "done", end.handle, status, now_);
  } else if (state_ != State::kEnding) {
    record_end(log_, "failed", end.handle, status, now_);
    const bool misuse = status.is(Code::kInvalidArgument);
    if (!misuse) status = log_.left_behind("operation", status);
  }
  devices_.staging().on_ended(end.handle);
  scratch_.completions.push_back({end.handle, std::move(status)});
}

// ---- devices

// What has failed on a device ends the job: its values are nowhere else.
std::size_t Worker::take_reports(TimeNs now) {
  const DeviceSide::Taken taken = devices_.take_reports();
  if (!taken.failure.is_ok() && state_ != State::kEnding) fail_job(taken.failure, now);
  devices_.look(now, log_);
  return taken.count;
}

void Worker::publish_counters() {
  const auto publish = [](std::atomic<std::uint64_t>& counter, std::uint64_t value) {
    counter.store(value, std::memory_order_relaxed);
  };
  const PipelineCounters& now = pipeline_->counters();
  shards_.publish(relay_.has_begun() ? door_.counters.local : door_.counters.servers);
  publish(door_.counters.lost_workers, door_.membership.lost_workers());
  publish(door_.counters.finished_operations, now.finished_operations);
  publish(door_.counters.finished_bytes, now.finished_bytes);
  publish(door_.counters.failed_operations, now.failed_operations);
  publish(door_.counters.device_out_bytes, devices_.staging().counters().out_bytes);
  publish(door_.counters.device_in_bytes, devices_.staging().counters().in_bytes);
  publish(door_.counters.lost_schedulers, port_.lost_schedulers());
}

// ---- stalls

// Tells the scheduler when nobody here can submit anything before an operation ends, and nothing has moved since the
// last look; or when nothing has for so long that the user wants no proof (docs/protocol.md, Stalls).
void Worker::watch_stall(TimeNs now) {
  if (!may_stall()) return;
  const PipelineCounters& counters = pipeline_->counters();
  const std::uint64_t moved = commands_taken_ + devices_.count_wait() + counters.pulled_bytes +
                              counters.finished_operations + counters.failed_operations;
  const StallWatch::Finding finding = stall_watch_.look(now, moved, timeout().failure_ns);
  switch (finding) {
    case StallWatch::Finding::kNotYet:
      return;
    case StallWatch::Finding::kMoves:
      return port_.stalled({});
    case StallWatch::Finding::kOver:
      return give_up_waiting(now);
    case StallWatch::Finding::kStands:
    case StallWatch::Finding::kImpatient: {
      const bool proven = door_.handles.is_blocked();
      const bool counts = proven || finding == StallWatch::Finding::kImpatient;
      return port_.stalled(counts ? stall_report(proven) : wire::Stalled());
    }
  }
}

// What this worker waits for. Empty when it could go on after all.
wire::Stalled Worker::stall_report(bool proven) {
  if (devices_.waits()) return {};
  std::vector<HandleId> handles = pipeline_->standstill().pending_handles();
  for (const auto& [number, barrier] : barriers_) handles.push_back(barrier);
  std::sort(handles.begin(), handles.end());
  if (proven) door_.handles.keep_awaited(handles);
  if (handles.size() > kAwaitedMax) {
    if (proven) return {};
    handles.resize(kAwaitedMax);
  }
  wire::Stalled report;
  // A later one ends after the first that is open.
  const bool in_barrier = std::any_of(barriers_.begin(), barriers_.end(), [&](const auto& each) {
    return std::binary_search(handles.begin(), handles.end(), each.second);
  });
  if (in_barrier) {
    const std::uint64_t first = port_.member().barrier_on_wire(barriers_.begin()->first);
    report.awaited.push_back({.name = {}, .key = Key(), .round = first});
  }
  if (!pipeline_->standstill().add_awaited(handles, report.awaited)) return {};
  if (!report.awaited.empty()) report.not_begun = pipeline_->standstill().not_begun(kNotBegunMax);
  return report;
}

// BYTEPS_STALL_TIMEOUT_S is over, and not all workers wait: others compute, or do something else.
void Worker::give_up_waiting(TimeNs now) {
  std::string text = pipeline_->standstill().pending_text();
  if (!barriers_.empty()) text += text.empty() ? "a barrier" : "; and a barrier";
  const TimeNs for_ns = now - stall_watch_.stands_since_ns();
  const Status why(
      Code::kTimeout,
      "nothing has moved for " + duration_text(for_ns) + " (BYTEPS_STALL_TIMEOUT_S is " +
          std::to_string(config_.timeout.stall_ns / kSecond) + "), waiting for " + text,
      {.kind = CauseKind::kStallTimeout, .for_ns = for_ns});
  fail_job(why, now);
}

// ---- the end

// Told to leave. What was not waited for ends at once.
void Worker::try_leave(TimeNs now) {
  if (!is_about_to_leave()) return;
  if (!ending_.is_at_once && keeps_for_others(now)) {
    if (now < ending_.notice_ns) return;
    ending_.notice_ns = now + timeout().notice_every_ns;
    LOG(log_, kWarning) << kWaitsToLeave;
    return;
  }
  port_.leave(ending_.is_final, now);
  end(Status(Code::kCancelled, "this process has left the job"));
}

// What others may lack it keeps until they have it: that takes a round trip. (A server that is lost is waited for
// first: its successor asks for it.)
bool Worker::keeps_for_others(TimeNs now) {
  const bool has_ended_all =
      state_ == State::kWorking && barriers_.empty() && pipeline_->pending_operations() == 0;
  if (!has_ended_all) return false;
  relay_.ask_to_settle();
  // Or a relay: another one stands in for it.
  const bool misses_server = !relay_.has_settled() || !shards_.connections().all_are_up();
  // A lost server may not have told all that their inputs have ended; its successor is to hear it.
  const bool keeps_sums = pipeline_->uplink().keeps_sums();
  const bool has_heard_end = keeps_sums && misses_server && pipeline_->inputs().generation() > 0;
  const bool keeps = pipeline_->uplink().keeps_any() || has_heard_end;
  // Where relays alone keep sums, its own says when others have them.
  const bool may_relay_keep = !keeps_sums && !relay_.has_settled();
  if (!keeps && !may_relay_keep) return false;
  if (misses_server) ending_.leaves_ns = now + longest_kept_ns(timeout().failure_ns);
  return now < ending_.leaves_ns;
}

// This worker ends the job.
void Worker::fail_job(const Status& why, TimeNs now) {
  if (is_about_to_leave()) {  // what fails now is no concern of it
    ending_.is_at_once = true;
    return try_leave(now);
  }
  port_.fail(why, now);
  fail(why);
}

// The job has failed for this worker. Everyone who waits hears why, and where the last events are.
void Worker::fail(const Status& why) {
  if (state_ == State::kEnding || state_ == State::kFinished) return;
  if (is_about_to_leave()) {
    ending_.is_at_once = true;
    return try_leave(now_);
  }
  end(log_.left_behind("job", why));
}

// The job is over for this worker: everything ends with `why`, connections are closed so that lent memory comes back.
void Worker::end(const Status& why) {
  if (state_ == State::kEnding || state_ == State::kFinished) return;
  ending_.why = why;
  devices_.note_end(now_, timeout().failure_ns);
  state_ = State::kEnding;
  end_all();
}

// Throws when there is no memory; then it is to be called again.
void Worker::end_all() {
  if (ending_.is_all) return;
  door_.membership.ended(ending_.why);
  if (pipeline_) pipeline_->fail_all(ending_.why);
  while (!barriers_.empty()) {
    door_.handles.complete(barriers_.begin()->second, ending_.why);
    barriers_.erase(barriers_.begin());
  }
  if (pipeline_) apply_outputs();
  shards_.connections().close_all(ending_.why);
  relay_.end(ending_.why);
  ending_.is_all = true;
}

void Worker::failed(const Status& why) {
  if (state_ == State::kFinished) return;
  fail_job(why.in_words("its communication thread failed: " + why.message()), now_);
  if (state_ == State::kEnding) end_all();
}

void Worker::try_finish() {
  if (state_ != State::kEnding) return;
  end_all();
  if (!port_.done() || !port_.closed() || !shards_.connections().none_is_left()) return;
  if (devices_.staging().is_copying()) return;
  // Lent to a stage, which gives it back when its time has come.
  if (pipeline_ && pipeline_->pending_operations() > 0 && pipeline_->next_deadline() != kNever) {
    return;
  }
  if (pipeline_) apply_outputs();
  CHECK(!pipeline_ || pipeline_->pending_operations() == 0) << "lent memory did not come back";
  door_.commands.close(scratch_.commands);
  for (const WorkerCommand& command : scratch_.commands) {
    if (command.kind != WorkerCommand::Kind::kLeave)
      door_.handles.complete(command.handle, ending_.why);
  }
  state_ = State::kFinished;
}

}  // namespace byteps
