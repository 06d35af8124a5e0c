#include "worker/worker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/limits.h"
#include "base/phrases.h"
#include "base/planted.h"
#include "net/wire.h"
#include "net/wire_text.h"

namespace byteps {

namespace {

constexpr std::size_t kEventsPerTurn = 256;
constexpr std::size_t kFramesPerTurn = 256;
constexpr std::size_t kEventsPerStep = 2;      // of look_ahead()
constexpr std::size_t kMissingListedMax = 16;  // shards named one by one; the others are counted
constexpr std::size_t kAwaitedMax = 1024;      // of more than that nothing is proven
constexpr std::size_t kNotBegunMax = 4096;     // told to the scheduler, 24 bytes each
constexpr std::uint32_t kPauseDoublings = 3;

std::string own_name(const Config& config, std::string host) {
  return host.empty() ? "worker " + std::to_string(config.job.rank) : std::move(host);
}

}  // namespace

Worker::Worker(const Config& config, Transport& transport, WorkerDoor& door, const Log& log,
               std::string host)
    : config_(config),
      transport_(transport),
      door_(door),
      log_(log),
      port_(make_join(config, Role::kWorker, own_name(config, std::move(host)), {}), config,
            transport, log.flight(), log.timeline()),
      chance_(config.job.rank),  // of each worker another
      events_(kEventsPerTurn) {
  CHECK(!config.job.scheduler_host.empty()) << "a job of one needs no Worker";
}

Worker::~Worker() = default;

std::size_t Worker::turn(TimeNs now) {
  if (state_ == State::kFinished) return 0;
  now_ = now;
  excuse_own_pause(now);
  if (pipeline_) pipeline_->begin_turn(now);
  std::size_t work = take_events(now);
  take_commands(now);
  work += commands_.size();
  port_.tick(now);
  take_member_events(now);
  keep_links(now);
  if (pipeline_) {
    watch_stall(now);
    pipeline_->tick(now);
    apply_outputs();
    work += send_frames();
    publish_counters();
  }
  port_.tick(now);  // what this turn asked of it
  take_member_events(now);
  try_finish();
  planned_ns_ = next_deadline();
  return work;
}

TimeNs Worker::next_deadline() const {
  TimeNs next = std::min({transport_.next_deadline(), port_.next_deadline(), links_deadline_ns_});
  if (pipeline_) next = std::min(next, pipeline_->next_deadline());
  if (may_stall()) next = std::min(next, next_look_ns_);
  return next;
}

// ---- what comes in

void Worker::take_commands(TimeNs now) {
  door_.mailbox_.drain(commands_);
  if (!commands_.empty()) port_.stalled({});
  commands_taken_ += commands_.size();
  for (WorkerDoor::Command& command : commands_) {
    switch (command.kind) {
      case WorkerDoor::Command::Kind::kSubmit:
        // The door lets nobody through before the job is joined, so the pipeline is there unless we have failed.
        if (pipeline_) {
          log_.record({.kind = "submit",
                       .number = static_cast<std::uint64_t>(command.handle.value),
                       .bytes = command.call.spec.total_bytes,
                       .text = command.call.name,
                       .at_ns = now});
          pipeline_->submit(std::move(command.call), now);
        } else {
          door_.complete(command.handle, ended_);
        }
        break;
      case WorkerDoor::Command::Kind::kBarrier:
        if (state_ == State::kWorking) {
          log_.record({.kind = "barrier",
                       .number = static_cast<std::uint64_t>(command.handle.value),
                       .at_ns = now});
          barriers_.emplace(port_.barrier(now), command.handle);
        } else {
          door_.complete(command.handle, ended_);
        }
        break;
      case WorkerDoor::Command::Kind::kFinish:
        if (pipeline_) {
          log_.record({.kind = "finish",
                       .number = static_cast<std::uint64_t>(command.handle.value),
                       .at_ns = now});
          pipeline_->finish_inputs(command.handle, now);
        } else {
          door_.complete(command.handle, ended_);
        }
        break;
      case WorkerDoor::Command::Kind::kLeave:
        if (state_ == State::kEnding) break;
        log_.record(
            {.kind = "leave", .text = command.final ? "for good" : "may come back", .at_ns = now});
        port_.leave(command.final, now);
        end(Status(Code::kCancelled, "this process has left the job"));
        break;
    }
  }
}

std::size_t Worker::take_events(TimeNs now) {
  // Outputs are applied after all events: landing and withdrawing would end the views they carry.
  const std::size_t count = transport_.poll(now, events_);
  for (std::size_t i = 0; i < count; ++i) {
    look_ahead(i, count);
    if (!port_.handle(events_[i], now)) handle(events_[i], now);
  }
  return count;
}

// Records of small tensors are far away in memory: fetches those of the next answers meanwhile.
void Worker::look_ahead(std::size_t at, std::size_t count) const {
  if (!pipeline_) return;
  for (int distance = 1; distance <= Pipeline::kFarthest; ++distance) {
    const std::size_t next = at + kEventsPerStep * static_cast<std::size_t>(distance);
    if (next >= count) return;
    if (events_[next].kind != Event::Kind::kReceived) continue;
    if (const auto answer = wire::glimpse(events_[next].header)) {
      pipeline_->expect(*answer, distance);
    }
  }
}

void Worker::handle(const Event& event, TimeNs now) {
  const auto found = link_of_.find(event.peer);
  if (found == link_of_.end()) return;  // nobody that we know connects to a worker
  const std::uint32_t shard = found->second;
  switch (event.kind) {
    case Event::Kind::kUp:
      on_link_up(shard, event.hello, now);
      break;
    case Event::Kind::kDown:
      link_of_.erase(found);
      on_link_down(shard, event.why, now);
      break;
    case Event::Kind::kSent:
      if (!PLANTED(full_for_ever) || event.token != 0) links_[shard].full = false;
      pipeline_->on_sent(event.token);
      break;
    case Event::Kind::kReceived:
      on_message(shard, event, now);
      break;
  }
}

// Whether who answers is who the roster says is there, of our incarnation and in our epoch.
Status Worker::check_shard(const Link& link, const Hello& theirs) const {
  if (theirs.role != Role::kServer || theirs.rank != link.place.server.value) {
    return {Code::kMismatch, "a " + theirs.text() + " answers there"};
  }
  if (theirs.incarnation != port_.member().incarnation() && !PLANTED(incarnation_not_fenced)) {
    return {Code::kMismatch, "a " + theirs.text() +
                                 " of another job, or of another life of this one, answers there: "
                                 "its scheduler is another"};
  }
  if (theirs.epoch != pipeline_->epoch()) {
    return {Code::kDisconnected, "it is of epoch " + std::to_string(theirs.epoch.value) +
                                     ", this worker of epoch " +
                                     std::to_string(pipeline_->epoch().value)};
  }
  return Status::ok();
}

void Worker::on_link_up(std::uint32_t shard, const Hello& theirs, TimeNs now) {
  Link& link = links_[shard];
  if (link.closing) return;
  if (Status fine = check_shard(link, theirs); !fine.is_ok()) {
    link.closing = true;  // closed after the events of this turn, whose views close() would end
    link.last_down = std::move(fine);
    return;
  }
  if (link.was_up) ++reconnects_;
  link.up = true;
  link.was_up = true;
  link.full = false;
  link.up_since_ns = now;
  record_link("up", link, {}, now);
  pipeline_->on_shard_up(ShardIndex(shard));
  if (state_ != State::kConnecting) return;
  if (!std::all_of(links_.begin(), links_.end(), [](const Link& each) { return each.was_up; })) {
    return;
  }
  state_ = State::kWorking;
  door_.joined(config_.job.rank, machines_, server_count_, pipeline_->epoch(),
               port_.member().incarnation());
}

void Worker::on_link_down(std::uint32_t shard, const Status& why, TimeNs now) {
  Link& link = links_[shard];
  if (link.up || why.message() != link.last_down.message()) {
    record_link("down", link, why.message(), now);
  }
  // A connection that was up for a while was a good one; one that ends as soon as it is made is not.
  const bool was_good = link.up && now - link.up_since_ns >= timeout().heartbeat_ns();
  if (link.lost_since_ns == kNever || was_good) {
    link.lost_since_ns = now;
    link.attempt_count = 0;
  }
  if (link.up) {
    pipeline_->on_shard_down(ShardIndex(shard));
    if (state_ != State::kEnding && !link.closing) {
      LOG(log_, kInfo) << "lost " << describe(link) << ": " << why.message();
    }
  }
  link.up = false;
  link.closing = false;
  link.peer.reset();
  link.last_down = why;
  link.next_attempt_ns = now + pause_after(link);
}

void Worker::on_message(std::uint32_t shard, const Event& event, TimeNs now) {
  Link& link = links_[shard];
  if (!link.up || link.closing) return;
  Status fine;
  const Result<wire::Header> header = wire::decode_header(event.header);
  if (!header.is_ok()) {
    fine = header.status();
  } else {
    switch (header.value().kind) {
      case wire::Kind::kAnswer:
        fine = pipeline_->on_answer(ShardIndex(shard), header.value(), event.payload, event.landed);
        break;
      case wire::Kind::kWanted:
        record_wanted(header.value());
        pipeline_->on_wanted(ShardIndex(shard), header.value());
        break;
      case wire::Kind::kMismatch:
        fine = on_mismatch(shard, header.value(), event.payload);
        break;
      case wire::Kind::kInputsDone:
        pipeline_->on_inputs_done(ShardIndex(shard), header.value());
        door_.last_with_inputs_.store(pipeline_->last_with_inputs().value,
                                      std::memory_order_release);
        break;
      case wire::Kind::kMissing:
        fine = on_missing(shard, header.value(), event.payload);
        break;
      default:
        fine = Status(Code::kDisconnected, "a message of a kind that shards do not send");
    }
  }
  if (fine.is_ok()) {
    // Only an answer is a step forward: the shard may ask again and again for what never arrives whole.
    if (header.value().kind == wire::Kind::kAnswer) link.lost_since_ns = kNever;
  } else {
    const auto line =
        quiet_.pass(0, now, "ending the connection to " + describe(link) + ": " + fine.message());
    if (line) log_.write(LogLevel::kWarning, *line);
    link.closing = true;  // closed after the events of this turn, whose views close() would end
    link.last_down = fine;
  }
}

Status Worker::on_mismatch(std::uint32_t shard, const wire::Header& header,
                           std::span<const std::byte> payload) {
  if (header.epoch != pipeline_->epoch()) return Status::ok();
  const Result<wire::Text> text = wire::decode_text(payload);
  if (!text.is_ok()) return text.status();
  log_.record({.kind = "mismatch", .key = header.key.value, .text = text.value().text});
  Status why = error_of(text.value(), Code::kMismatch);
  if (why.is(Code::kSystem)) {  // it is about that server, which does not know its name
    why = Status(Code::kSystem, describe(links_[shard]) + ": " + why.message());
  }
  pipeline_->on_mismatch(header.key, why);
  return Status::ok();
}

Status Worker::on_missing(std::uint32_t shard, const wire::Header& header,
                          std::span<const std::byte> payload) {
  const Result<wire::Missing> missing = wire::decode_missing(payload);
  if (!missing.is_ok()) return missing.status();
  pipeline_->on_missing(ShardIndex(shard), header, missing.value().ranks);
  return Status::ok();
}

void Worker::take_member_events(TimeNs now) {
  for (const MemberEvent& event : port_.take_events()) {
    switch (event.kind) {
      case MemberEvent::Kind::kRoster:
        on_roster(event.roster, now);
        break;
      case MemberEvent::Kind::kBarrierDone: {
        const auto found = barriers_.find(event.barrier);
        if (found == barriers_.end()) break;
        log_.record({.kind = "done",
                     .number = static_cast<std::uint64_t>(found->second.value),
                     .text = event.why.message(),
                     .at_ns = now});
        door_.complete(found->second, event.why);
        barriers_.erase(found);
        break;
      }
      case MemberEvent::Kind::kWorkerLeft:
        if (pipeline_) pipeline_->on_worker_left(event.worker, now);
        break;
      case MemberEvent::Kind::kNotice:
        LOG(log_, kWarning) << event.text;
        break;
      case MemberEvent::Kind::kLeft:
        end(Status(Code::kCancelled, "this process has left the job"));
        break;
      case MemberEvent::Kind::kFailed:
        fail(event.why);
        break;
    }
  }
}

void Worker::on_roster(const wire::Roster& roster, TimeNs now) {
  if (state_ == State::kEnding) return;
  const Status fine = check_roster(roster);
  if (!fine.is_ok()) {
    port_.fail(fine, now);
    return fail(fine);
  }
  std::vector<ShardPlace> places = shards_of(roster);
  PipelineConfig pipeline{
      .self = WorkerRank(roster.your_rank),
      .epoch = roster.epoch,
      .placement = Placement(roster.partition_bytes, roster.frame_bytes, weights_of(places))};
  pipeline.credit_bytes = config_.flow.credit_bytes;
  pipeline.credit_frames_min = config_.flow.credit_frames_min;
  pipeline.autotune = config_.flow.autotune;
  pipeline.priority_scheduling = config_.flow.priority_scheduling;
  // Longer than any silence is borne: if somebody else is lost, that is said first.
  pipeline.departed_ns = timeout().silence_ns() + timeout().heartbeat_ns();
  pipeline.first_notice_ns = config_.timeout.first_notice_ns;
  pipeline.notice_every_ns = config_.timeout.notice_every_ns;
  if (Timeline* const timeline = log_.timeline(); timeline != nullptr) {
    std::vector<std::uint32_t> server_of_shard;
    for (const ShardPlace& place : places) server_of_shard.push_back(place.server.value);
    timeline->set_servers(std::move(server_of_shard));
    pipeline.timeline = &timeline->open_lane();
  }
  pipeline_ = std::make_unique<Pipeline>(pipeline);

  for (const wire::RosterMember& member : roster.members) {
    if (member.role == Role::kWorker) machines_.push_back(member.machine_index);
    if (member.role == Role::kServer) ++server_count_;
  }
  transport_.expect_peers(places.size() + 1);
  state_ = State::kConnecting;
  next_notice_ns_ = now + config_.timeout.first_notice_ns;
  for (ShardPlace& place : places) {
    Link& link = links_.emplace_back();
    link.place = std::move(place);
    link.lost_since_ns = now;
    link.next_attempt_ns = now;
  }
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
  if (!std::any_of(roster.members.begin(), roster.members.end(), is_server)) {
    return {Code::kInvalidArgument,
            "the job has workers but no server: start one, and set DMLC_NUM_SERVER"};
  }
  if (std::min(roster.frame_bytes, roster.partition_bytes) > kPayloadBytesMax) {
    return {Code::kInvalidArgument, "frames of " + std::to_string(roster.frame_bytes) +
                                        " bytes are too large; at most " +
                                        std::to_string(kPayloadBytesMax) + " are allowed"};
  }
  std::size_t shards = 0;
  for (const wire::RosterMember& member : roster.members) shards += member.endpoints.size();
  return check_descriptors(descriptors_of_worker(shards), config_.job.descriptors,
                           "connections to " + std::to_string(shards) + " shards of the servers");
}

// ---- what goes out

// While this process stood still it could reach no shard: that time does not count.
void Worker::excuse_own_pause(TimeNs now) {
  if (now <= planned_ns_) return;
  for (Link& link : links_) {
    if (link.lost_since_ns == kNever) continue;
    link.lost_since_ns = std::min(now, link.lost_since_ns + now - planned_ns_);
  }
}

// When the job cannot go on without this shard. The time in which its host's name was looked up does not count: who
// answers late then is a name server.
TimeNs Worker::give_up_time(const Link& link) const {
  if (link.lost_since_ns == kNever) return kNever;
  const TimeNs named_ns = std::min(link.naming_ns, link.lost_since_ns + Transport::kLookUpNs);
  return std::max(link.lost_since_ns, named_ns) + timeout().failure_ns;
}

// Connects to shards that are not connected, and gives up the job when one is unreachable for too long.
void Worker::keep_links(TimeNs now) {
  links_deadline_ns_ = kNever;
  for (std::uint32_t shard = 0; shard < links_.size(); ++shard) {
    Link& link = links_[shard];
    if (link.closing && !link.close_called) close_link(shard, link.last_down);
    if (state_ == State::kEnding || (link.up && !link.closing)) continue;
    if (link.peer && transport_.is_naming(*link.peer)) link.naming_ns = now;
    const TimeNs give_up_ns = give_up_time(link);
    if (now >= give_up_ns) {
      const Status why(Code::kDisconnected,
                       describe(link) + " cannot be reached for " +
                           duration_text(now - link.lost_since_ns) +
                           (link.last_down.is_ok() ? "" : ": " + link.last_down.message()));
      port_.fail(why, now);
      return fail(why);
    }
    links_deadline_ns_ = std::min(links_deadline_ns_, give_up_ns);
    if (link.peer) continue;
    if (now >= link.next_attempt_ns) connect(shard, now);
    if (!link.peer) links_deadline_ns_ = std::min(links_deadline_ns_, link.next_attempt_ns);
  }
  if (state_ == State::kConnecting) tell_missing_links(now);
}

// Joining waits for all shards: says for which ones, and why they are not there.
void Worker::tell_missing_links(TimeNs now) {
  if (now >= next_notice_ns_) {
    next_notice_ns_ = now + config_.timeout.notice_every_ns;
    std::string text;
    std::size_t missing_count = 0;
    for (const Link& link : links_) {
      if (link.was_up || ++missing_count > kMissingListedMax) continue;
      text += (missing_count > 1 ? ", " : "") + describe(link) + " since " +
              duration_text(now - link.lost_since_ns) +
              (link.last_down.is_ok() ? "" : " (" + link.last_down.message() + ")");
    }
    if (missing_count > kMissingListedMax) {
      text += " and " + std::to_string(missing_count - kMissingListedMax) + " more";
    }
    LOG(log_, kWarning) << "all members are here, but there is no connection yet to " << text;
  }
  links_deadline_ns_ = std::min(links_deadline_ns_, next_notice_ns_);
}

void Worker::connect(std::uint32_t shard, TimeNs now) {
  Link& link = links_[shard];
  Hello self;
  self.role = Role::kWorker;
  self.rank = config_.job.rank;
  self.epoch = pipeline_->epoch();
  self.job_id = config_.job.job_id;
  self.incarnation = port_.member().incarnation();
  const Result<PeerId> attempt = transport_.connect(link.place.endpoint, self);
  ++link.attempt_count;
  if (!attempt.is_ok()) {
    link.last_down = attempt.status();
    link.next_attempt_ns = now + pause_after(link);
    return;
  }
  link.peer = attempt.value();
  link.closing = false;
  link.close_called = false;
  link_of_.emplace(attempt.value(), shard);
}

// All workers lose a shard at the same moment, and it takes them one after the other: so each waits for another time,
// at most twice as long as another, and longer after each attempt in vain, but makes a few of them in failure_ns.
TimeNs Worker::pause_after(const Link& link) {
  const std::uint32_t doublings = std::min(std::max(link.attempt_count, 1U) - 1, kPauseDoublings);
  const TimeNs longest_ns = std::max<TimeNs>(2, timeout().reconnect_ns() << doublings);
  return longest_ns -
         static_cast<TimeNs>(chance_.below(static_cast<std::uint64_t>(longest_ns / 2)));
}

void Worker::close_link(std::uint32_t shard, const Status& why) {
  Link& link = links_[shard];
  link.closing = true;
  link.close_called = true;
  transport_.close(*link.peer, why);
}

void Worker::apply_outputs() {
  completions_.clear();  // of a turn that failed: its outputs are all there still
  for (const PipelineOutput& output : pipeline_->outputs()) {
    switch (output.kind) {
      case PipelineOutput::Kind::kLand: {
        const Link& link = links_[output.shard.value];
        if (link.up) transport_.land(*link.peer, output.tag, output.landing);
        break;
      }
      case PipelineOutput::Kind::kWithdraw: {
        const Link& link = links_[output.shard.value];
        if (link.up) transport_.withdraw(*link.peer, output.tag);
        break;
      }
      case PipelineOutput::Kind::kComplete:
        note_end(output);
        break;
      case PipelineOutput::Kind::kNotice:
        LOG(log_, kWarning) << output.status.message();
        break;
      case PipelineOutput::Kind::kTuned:
        LOG(log_.at(LogLevel::kInfo), kInfo) << output.status.message();
        break;
    }
  }
  pipeline_->clear_outputs();
  if (completions_.empty()) return;
  publish_counters();  // who hears of an end finds it counted
  // Together, when all landings are withdrawn: who waits for one after the other wakes up once.
  door_.complete(completions_);
  completions_.clear();
}

// One frame to each shard in turn, so that those of different servers interleave on the way.
std::size_t Worker::send_frames() {
  std::size_t sent_count = 0;
  std::uint32_t idle_count = 0;
  const std::uint32_t link_count = static_cast<std::uint32_t>(links_.size());
  for (std::uint32_t shard = 0; shard < link_count; ++shard) {
    if (!links_[shard].up) continue;
    pipeline_->set_capacity(ShardIndex(shard), transport_.capacity_bytes(*links_[shard].peer));
  }
  while (idle_count < link_count && sent_count < kFramesPerTurn) {
    const bool sent = send_next(next_link_);
    if (++next_link_ == link_count) next_link_ = 0;
    idle_count = sent ? 0 : idle_count + 1;
    sent_count += sent ? 1 : 0;
  }
  return sent_count;
}

bool Worker::send_next(std::uint32_t shard) {
  Link& link = links_[shard];
  Outgoing message;
  if (!link.up || link.closing || link.full || !pipeline_->front(ShardIndex(shard), message)) {
    return false;
  }
  const Status accepted = transport_.send(*link.peer, message);
  if (accepted.is_ok()) {
    pipeline_->pop();
    return true;
  }
  // Otherwise the connection has ended, and its kDown is on the way.
  link.full = true;
  return false;
}

void Worker::publish_counters() {
  const PipelineCounters& now = pipeline_->counters();
  WorkerDoor::Counters& door = door_.counters_;
  door.pushed_bytes.store(now.pushed_bytes, std::memory_order_relaxed);
  door.pulled_bytes.store(now.pulled_bytes, std::memory_order_relaxed);
  door.finished_operations.store(now.finished_operations, std::memory_order_relaxed);
  door.finished_bytes.store(now.finished_bytes, std::memory_order_relaxed);
  door.failed_operations.store(now.failed_operations, std::memory_order_relaxed);
  door.reconnects.store(reconnects_, std::memory_order_relaxed);
  const Transport::Ways ways = transport_.ways();
  door.shared_bytes.store(ways.shared_bytes, std::memory_order_relaxed);
  door.rdma_bytes.store(ways.rdma_bytes, std::memory_order_relaxed);
}

// ---- the flight recorder

void Worker::record_link(const char* kind, const Link& link, const std::string& why,
                         TimeNs now) const {
  if (log_.flight() == nullptr) return;
  const std::string text = describe(link) + (why.empty() ? "" : ": " + why);
  log_.record({.kind = kind,
               .role = "server",
               .rank = link.place.server.value,
               .text = text,
               .at_ns = now});
}

void Worker::record_wanted(const wire::Header& header) const {
  if (log_.flight() == nullptr) return;
  const TensorIndex tensor = pipeline_->tensors().find(header.key);
  log_.record(
      {.kind = "wanted",
       .key = header.key.value,
       .part = header.part.value,
       .round = header.round.value,
       .text = tensor == kNoTensor ? std::string_view() : pipeline_->tensors()[tensor].name});
}

// An operation's handle ends. The first that fails, before anyone hears of it, leaves the last events behind: the job
// goes on, but a user whose tensor cannot be summed will end it.
void Worker::note_end(const PipelineOutput& output) {
  const auto handle = static_cast<std::uint64_t>(output.handle.value);
  Status status = output.status;
  if (status.is_ok()) {
    log_.record({.kind = "done", .number = handle, .at_ns = now_});
  } else if (state_ != State::kEnding) {
    log_.record({.kind = "failed", .number = handle, .text = status.message(), .at_ns = now_});
    const bool misuse = status.is(Code::kInvalidArgument);
    if (!misuse) status = log_.left_behind("operation", status);
  }
  completions_.push_back({output.handle, std::move(status)});
}

// Tells the scheduler when nobody here can submit anything before an operation ends, and nothing has moved since the
// last look; or when nothing has for so long that the user wants no proof (docs/protocol.md, Stalls).
void Worker::watch_stall(TimeNs now) {
  if (!may_stall() || now < next_look_ns_) return;
  stands_since_ns_ += now - next_look_ns_;  // while this process stood still nothing could move
  next_look_ns_ = now + timeout().heartbeat_ns();
  const PipelineCounters& counters = pipeline_->counters();
  const std::uint64_t moved = commands_taken_ + counters.pulled_bytes +
                              counters.finished_operations + counters.failed_operations;
  if (std::exchange(moved_, moved) != moved) {
    stands_since_ns_ = now;
    return port_.stalled({});
  }
  const TimeNs patience_ns = config_.timeout.stall_ns;
  const TimeNs stands_ns = now - stands_since_ns_;
  const bool impatient = patience_ns > 0 && stands_ns >= patience_ns;
  // Until then the scheduler says who waits for whom, if all workers wait.
  const TimeNs verdict_ns = timeout().failure_ns + 2 * timeout().heartbeat_ns();
  if (impatient && stands_ns >= patience_ns + verdict_ns) return give_up_waiting(now);
  const bool proven = door_.handles_.is_blocked();
  port_.stalled(proven || impatient ? stall_report(proven) : wire::Stalled());
}

// What this worker waits for. Empty when it could go on after all.
wire::Stalled Worker::stall_report(bool proven) {
  std::vector<HandleId> handles = pipeline_->pending_handles();
  for (const auto& [number, barrier] : barriers_) handles.push_back(barrier);
  std::sort(handles.begin(), handles.end());
  if (proven) door_.handles_.keep_awaited(handles);
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
  if (!pipeline_->add_awaited(handles, report.awaited)) return {};
  if (!report.awaited.empty()) report.not_begun = pipeline_->not_begun(kNotBegunMax);
  return report;
}

// BYTEPS_STALL_TIMEOUT_S is over, and not all workers wait: others compute, or do something else.
void Worker::give_up_waiting(TimeNs now) {
  std::string text = pipeline_->pending_text();
  if (!barriers_.empty()) text += text.empty() ? "a barrier" : "; and a barrier";
  const Status why(Code::kTimeout, "nothing has moved for " +
                                       duration_text(now - stands_since_ns_) +
                                       " (BYTEPS_STALL_TIMEOUT_S is " +
                                       std::to_string(config_.timeout.stall_ns / kSecond) +
                                       "), waiting for " + text);
  port_.fail(why, now);
  fail(why);
}

// ---- the end

// The job has failed for this worker. Everyone who waits hears why, and where the last events are.
void Worker::fail(const Status& why) {
  if (state_ == State::kEnding || state_ == State::kFinished) return;
  end(log_.left_behind("job", why));
}

// The job is over for this worker: everything ends with `why`, connections are closed so that lent memory comes back.
void Worker::end(const Status& why) {
  if (state_ == State::kEnding || state_ == State::kFinished) return;
  ended_ = why;
  state_ = State::kEnding;
  end_all();
}

// Throws when there is no memory; then it is to be called again.
void Worker::end_all() {
  if (all_ended_) return;
  door_.ended(ended_);
  if (pipeline_) pipeline_->fail_all(ended_);
  while (!barriers_.empty()) {
    door_.complete(barriers_.begin()->second, ended_);
    barriers_.erase(barriers_.begin());
  }
  if (pipeline_)
    apply_outputs();  // landings are withdrawn first: close() may leave a late answer under way
  for (std::uint32_t shard = 0; shard < links_.size(); ++shard) {
    if (links_[shard].peer && !links_[shard].close_called) close_link(shard, ended_);
  }
  all_ended_ = true;
}

void Worker::failed(const Status& why) {
  if (state_ == State::kFinished) return;
  const Status told(why.code(), "its communication thread failed: " + why.message());
  port_.fail(told, now_);
  fail(told);
  if (state_ == State::kEnding) end_all();
}

void Worker::try_finish() {
  if (state_ != State::kEnding) return;
  end_all();
  if (!port_.done() || !port_.closed() || !link_of_.empty()) return;
  if (pipeline_) apply_outputs();
  CHECK(!pipeline_ || pipeline_->pending_operations() == 0) << "lent memory did not come back";
  door_.mailbox_.close(commands_);
  for (const WorkerDoor::Command& command : commands_) {
    if (command.kind != WorkerDoor::Command::Kind::kLeave) door_.complete(command.handle, ended_);
  }
  state_ = State::kFinished;
}

std::string Worker::describe(const Link& link) const {
  return "server " + std::to_string(link.place.server.value) + " (" +
         printable(link.place.host, 128) + ") at " + link.place.endpoint.text() + ", shard " +
         std::to_string(link.place.shard_of_server);
}

}  // namespace byteps
