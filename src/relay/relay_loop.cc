#include "relay/relay_loop.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/planted.h"
#include "member/summing.h"
#include "net/wire.h"

namespace byteps {
namespace {

constexpr std::size_t kEventBatch = 256;
constexpr int kBatchesPerTurn =
    8;  // then mailbox, timers and the way to the servers get their turn

// What servers may use is no limit for what slow workers leave unread here; their credit is.
Config config_of(Config worker) {
  worker.memory_bytes_max = UINT64_MAX;
  return worker;
}

}  // namespace

RelayLoop::RelayLoop(const Config& config, Transport& transport, const RelayPort& port,
                     TrafficCounters& counters, const Log& log, AbsenceSink absences)
    : config_(config_of(config)),
      transport_(transport),
      port_(port),
      counters_(counters),
      log_(log),
      absences_(std::move(absences)),
      timeline_(log_.timeline() == nullptr ? nullptr
                                           : &log_.timeline()->open_lane(Recorder::kRelay)),
      job_{.incarnation = {}, .failure_ns = config.timeout.failure_ns},
      scratch_{.commands = {}, .events = std::vector<Event>(kEventBatch)} {
  add_post();
}

RelayLoop::~RelayLoop() = default;

RelayPost& RelayLoop::add_post() {
  posts_.push_back(std::make_unique<RelayPost>(
      config_, transport_, port_.residuals, log_, timeline_, absences_,
      [this](const Status& why) { notify(RelayNotice::Kind::kFailed, why); }));
  posts_.back()->begin_turn(now_);
  return *posts_.back();
}

std::size_t RelayLoop::turn(TimeNs now) {
  if (state_ == State::kFinished) return 0;
  now_ = now;
  for (const auto& post : posts_) {
    post->begin_turn(now);
    if (now > planned_ns_) post->excuse(now - planned_ns_, now);
  }
  std::size_t work = take_commands();
  for (int batch = 0; batch < kBatchesPerTurn; ++batch) {
    const std::size_t count = transport_.poll(now, scratch_.events);
    for (std::size_t i = 0; i < count; ++i) handle(scratch_.events[i]);
    close_ended();
    work += count;
    if (count < scratch_.events.size()) break;
  }
  if (own().has_begun()) {
    for (const auto& post : posts_) {
      const Status reached = post->keep(now);
      if (!reached.is_ok()) notify(RelayNotice::Kind::kFailed, reached);
      work += post->tick(now);
    }
    if (work > 0) publish();
    tell_ready();
    tell_settled();
  }
  close_ended();
  try_finish();
  planned_ns_ = next_deadline();
  return work;
}

TimeNs RelayLoop::next_deadline() const {
  TimeNs next = std::min({transport_.next_deadline(), settled_by_ns_,
                          state_ == State::kFlushing ? flush_until_ns_ : kNever});
  for (const auto& post : posts_) next = std::min(next, post->next_deadline());
  return next;
}

// ---- the worker beside it

std::size_t RelayLoop::take_commands() {
  port_.commands->drain(scratch_.commands);
  for (const RelayCommand& command : scratch_.commands) {
    switch (command.kind) {
      case RelayCommand::Kind::kBegin:
        begin(command);
        break;
      case RelayCommand::Kind::kAmend:
        amend(command.roster);
        break;
      case RelayCommand::Kind::kLeft:
        note_left(command.left);
        break;
      case RelayCommand::Kind::kLeave:
        be_asked_to_settle();
        break;
      case RelayCommand::Kind::kEnd:
        end(command.why);
        break;
      case RelayCommand::Kind::kPing:
        notify(RelayNotice::Kind::kAlive, Status::ok());
        break;
    }
  }
  return scratch_.commands.size();
}

void RelayLoop::begin(const RelayCommand& command) {
  if (state_ != State::kWaiting) return;
  state_ = State::kServing;
  job_ = {.incarnation = command.incarnation, .failure_ns = command.failure_ns};
  posts_.front()->begin({.worker = WorkerRank(command.roster.your_rank)}, command.roster, job_,
                        now_);
  stand_in(command.roster);
}

void RelayLoop::amend(const wire::Roster& roster) {
  if (state_ != State::kServing) return;
  for (const auto& post : posts_) post->amend(roster, now_);
  stand_in(roster);
}

void RelayLoop::note_left(WorkerRank worker) {
  if (state_ != State::kServing) return;
  left_.push_back(worker);
  for (const auto& post : posts_) post->note_left(worker, now_);
}

// For those who are lost, where that is this process's to do.
void RelayLoop::stand_in(const wire::Roster& roster) {
  const WorkerRank self(roster.your_rank);
  const Groups groups = groups_of(roster);
  for (const WorkerRank each : groups.crew_of(groups.group_of(self), Members())) {
    const auto place = relay_place_of(roster, groups, each);
    const bool is_here = std::any_of(posts_.begin(), posts_.end(), [&](const auto& post) {
      return post->place().worker == each;
    });
    if (!place || place->host != self || is_here) continue;
    LOG(log_, kInfo) << "its relay's thread stands in for the relay of " << each
                     << ", which is lost";
    RelayPost& post = add_post();
    post.begin({.worker = each, .since = place->since}, roster, job_, now_);
    for (const WorkerRank left : left_) post.note_left(left, now_);
  }
}

// ---- events

void RelayLoop::handle(const Event& event) {
  for (const auto& post : posts_) {
    if (post->handle_upward(event, now_)) return;
  }
  // Another worker may have the roster already.
  if (event.kind == Event::Kind::kUp && !is_known(event.hello)) take_commands();
  post_of(event).handle_downward(event, now_);
}

bool RelayLoop::is_known(const Hello& hello) const {
  return std::any_of(posts_.begin(), posts_.end(),
                     [&](const auto& post) { return post->is_meant(hello); });
}

// Its own refuses whom none expects.
RelayPost& RelayLoop::post_of(const Event& event) {
  if (event.kind != Event::Kind::kUp) {
    const auto found = post_of_.find(event.peer);
    RelayPost& post = found == post_of_.end() ? *posts_.front() : *found->second;
    if (event.kind == Event::Kind::kDown) post_of_.erase(event.peer);
    return post;
  }
  const auto meant = std::find_if(posts_.begin(), posts_.end(),
                                  [&](const auto& post) { return post->is_meant(event.hello); });
  RelayPost& post = meant == posts_.end() ? *posts_.front() : **meant;
  post_of_[event.peer] = &post;
  return post;
}

void RelayLoop::close_ended() {
  for (const auto& post : posts_) post->close_ended();
}

void RelayLoop::publish() {
  PipelineCounters others;
  for (const auto& post : posts_) {
    const Relay* const each = post->relay();
    if (post == posts_.front() || each == nullptr || each->is_alone()) continue;
    const PipelineCounters& its = each->uplink().counters();
    others.pushed_bytes += its.pushed_bytes;
    others.pulled_bytes += its.pulled_bytes;
    others.pushed_wire_bytes += its.pushed_wire_bytes;
    others.pulled_wire_bytes += its.pulled_wire_bytes;
    others.encode_ns += its.encode_ns;
    others.decode_ns += its.decode_ns;
    others.pushed_frames += its.pushed_frames;
    others.wanted_messages += its.wanted_messages;
  }
  own().publish(counters_, others);
}

std::uint64_t RelayLoop::kept_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& post : posts_) {
    const Relay* const each = post->relay();
    if (each != nullptr && !each->is_alone()) bytes += each->uplink().counters().kept_bytes;
  }
  return bytes;
}

void RelayLoop::tell_ready() {
  if (said_.ready || state_ != State::kServing || !own().has_reached_all()) return;
  said_.ready = true;
  notify(RelayNotice::Kind::kReady, Status::ok());
}

void RelayLoop::tell_settled() {
  if (settled_by_ns_ == kNever) return;
  const auto any = [this](auto does) {
    return std::any_of(posts_.begin(), posts_.end(), [&](const auto& post) { return does(*post); });
  };
  const bool keeps = any([](const RelayPost& post) { return post.keeps_for_others(); });
  if (keeps && any([](const RelayPost& post) { return post.misses_server(); }))
    be_asked_to_settle();
  if (keeps && now_ < settled_by_ns_) return;
  settled_by_ns_ = kNever;
  notify(RelayNotice::Kind::kSettled, Status::ok());
}

// The worker beside it is about to leave.
void RelayLoop::be_asked_to_settle() {
  settled_by_ns_ = now_ + longest_kept_ns(job_.failure_ns);
}

void RelayLoop::notify(RelayNotice::Kind kind, Status why) {
  if (kind == RelayNotice::Kind::kFailed && std::exchange(said_.failed, true)) return;
  const Status posted = port_.notices->post({.kind = kind, .why = std::move(why)});
  CHECK(posted.is_ok()) << posted.text();
}

// ---- the end

void RelayLoop::end(const Status& why) {
  if (state_ > State::kServing) return;
  ended_ = why;
  state_ = State::kFlushing;
  flush_until_ns_ = now_ + job_.failure_ns;  // so long others may stand still
  end_unneeded();
}

// One that stands in for another serves on, for those who wait for what it leads: nobody else has its place before they
// have left as well.
void RelayLoop::end_unneeded() {
  for (const auto& post : posts_) {
    const bool is_needed = post->serves_others() && now_ < flush_until_ns_;
    if (!post->is_ending() && !is_needed) post->end(ended_);
  }
}

void RelayLoop::try_finish() {
  const auto are_all = [this](auto does) {
    return std::all_of(posts_.begin(), posts_.end(), [&](const auto& post) { return does(*post); });
  };
  if (state_ == State::kFlushing) end_unneeded();
  const bool is_flushed = PLANTED(relay_ends_unflushed) ||
                          are_all([](const RelayPost& post) { return post.is_flushed(); });
  if (state_ == State::kFlushing && (is_flushed || now_ >= flush_until_ns_)) {
    state_ = State::kClosing;
    for (const auto& post : posts_) post->stop(ended_);
  }
  if (state_ != State::kClosing) return;
  if (are_all([](const RelayPost& post) { return post.is_over(); })) state_ = State::kFinished;
}

void RelayLoop::failed(const Status& why) {
  if (state_ == State::kFinished) return;
  notify(RelayNotice::Kind::kFailed, why.in_words("its relay's thread failed: " + why.message()));
}

}  // namespace byteps
