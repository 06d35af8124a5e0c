#include "worker/connections.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/phrases.h"
#include "base/planted.h"
#include "member/connection_end.h"

namespace byteps {
namespace {

constexpr std::size_t kMissingListedMax = 16;  // shards named one by one; the others are counted
constexpr std::uint32_t kPauseDoublings = 3;

}  // namespace

ShardConnections::ShardConnections(const Config& config, Transport& transport, const Log& log)
    : config_(config),
      transport_(transport),
      log_(log),
      chance_(config.job.rank) {}  // of each worker another

void ShardConnections::begin(const Job& job, std::vector<ShardPlace> places, TimeNs now) {
  job_ = job;
  transport_.expect_peers(places.size() + 1);
  next_notice_ns_ = now + config_.timeout.first_notice_ns;
  for (ShardPlace& place : places) {
    Link& link = links_.emplace_back();
    link.place = std::move(place);
    link.lost_since_ns = now;
    link.next_attempt_ns = now;
  }
}

std::vector<WorkerRank> ShardConnections::amend(std::vector<ShardPlace> places, TimeNs now) {
  std::vector<WorkerRank> departed;
  note_replaced(places, now);
  for (std::size_t at = 0; at < std::min(links_.size(), places.size()); ++at) {
    Link& link = links_[at];
    if (places[at].since <= link.place.since) continue;
    const ShardIndex shard(static_cast<std::uint32_t>(at));
    const std::string before = describe(shard);
    const bool is_relay = places[at].relay.has_value();
    link.place = std::move(places[at]);
    link.left_ns = kNever;
    if (note_departed(link, now)) departed.push_back(*link.place.relay);
    if (link.peer && !link.closing) end(shard, {Code::kDisconnected, "its place is another's now"});
    link.moved = true;
    link.lost_since_ns = now;
    link.next_attempt_ns = now;
    link.attempt_count = 0;
    if (is_relay) {
      LOG(log_, kInfo) << before << " was lost; " << describe(shard) << " stands in for it";
    } else {
      LOG(log_, kWarning) << before << " was lost; " << describe(shard) << " has taken its place";
    }
  }
  return departed;
}

// Each server once, by the one of its connections that was lost first.
void ShardConnections::note_replaced(const std::vector<ShardPlace>& places, TimeNs now) {
  const auto lost_ns = [](const Link& link) { return link.up ? kNever : link.lost_since_ns; };
  std::map<ServerRank, std::size_t> replaced;
  for (std::size_t at = 0; at < std::min(links_.size(), places.size()); ++at) {
    const Link& link = links_[at];
    if (places[at].since <= link.place.since || places[at].relay) continue;
    const auto [first, is_new] = replaced.try_emplace(link.place.server, at);
    if (!is_new && lost_ns(link) < lost_ns(links_[first->second])) first->second = at;
  }
  counts_.lost_servers += replaced.size();
  for (const auto& [server, at] : replaced) record_replaced(links_[at], places[at], now);
}

void ShardConnections::record_replaced(const Link& lost, const ShardPlace& heir, TimeNs now) const {
  const Participant owner = owner_of(lost);
  const std::string rank = "server " + std::to_string(owner.rank);
  const std::string before = rank + " (" + owner.host + ")";
  const std::string after = rank + " (" + printable(heir.host, 128) + ")";
  std::string text = after + " took the place of " + before + ", whose connection was still open";
  const char* cause = nullptr;
  if (!lost.up && lost.lost_since_ns != kNever) {
    const Status& why = lost.last_down;
    cause = FlightEvent::cause_of_down(why);
    if (cause == nullptr) cause = name(CauseKind::kGone);
    const std::string reason = why.is_ok() ? "" : " (" + why.message() + ")";
    text = before + " was lost" + reason + "; " + after + " took its place " +
           duration_text(now - lost.lost_since_ns) + " later";
  }
  log_.record({.kind = "replaced",
               .role = name(*owner.role),
               .rank = owner.rank,
               .cause = cause,
               .epoch = job_.epoch.value,
               .number = heir.since,
               .host = owner.host,
               .text = text,
               .at_ns = now,
               .stays = true});
  if (log_.timeline() == nullptr) return;
  log_.timeline()->mark(
      {.name = rank + " replaced", .text = text, .number = heir.since, .at_ns = now});
}

// ---- events of the transport

std::optional<ShardIndex> ShardConnections::shard_of(PeerId peer) const {
  const auto found = shard_of_.find(peer);
  return found == shard_of_.end() ? std::nullopt : std::optional(found->second);
}

// Whether who answers is who the roster says is there, of our incarnation and in our epoch.
Status ShardConnections::check(const Link& link, const Hello& theirs) const {
  const Participant owner = owner_of(link);
  const std::uint32_t rank =
      link.place.relay_host ? link.place.relay_host->value : owner.rank;  // who answers
  if (theirs.role != owner.role || theirs.rank != rank) {
    return {Code::kMismatch, "a " + theirs.text() + " answers there"};
  }
  if (theirs.incarnation != job_.incarnation && !PLANTED(incarnation_not_fenced)) {
    return {Code::kMismatch, "a " + theirs.text() +
                                 " of another job, or of another life of this one, answers there: "
                                 "its scheduler is another"};
  }
  // One that stands in for another listens where its worker's own relay does; which is meant our Hello says.
  if (!link.place.relay && theirs.since != link.place.since) {
    return {Code::kDisconnected, "it serves this slot since revision " +
                                     std::to_string(theirs.since) + ", the roster says " +
                                     std::to_string(link.place.since)};
  }
  if (theirs.epoch != job_.epoch) {
    return {Code::kDisconnected, "it is of epoch " + std::to_string(theirs.epoch.value) +
                                     ", this worker of epoch " + std::to_string(job_.epoch.value)};
  }
  return Status::ok();
}

bool ShardConnections::on_up(ShardIndex shard, const Hello& theirs, TimeNs now) {
  Link& link = links_[shard.value];
  if (link.closing) return false;
  if (Status fine = check(link, theirs); !fine.is_ok()) {
    end(shard, fine);
    return false;
  }
  if (link.was_up) ++counts_.reconnects;
  link.up = true;
  link.was_up = true;
  link.full = false;
  link.moved = false;
  link.up_since_ns = now;
  record("up", shard, {}, now);
  return true;
}

bool ShardConnections::on_down(ShardIndex shard, const Status& why, TimeNs now, bool is_expected) {
  Link& link = links_[shard.value];
  shard_of_.erase(*link.peer);
  if (link.up || why.message() != link.last_down.message()) {
    record("down", shard, why, now);
  }
  // A connection that was up for a while, or for longer than there was none, was a good one. One that ends as soon as
  // it is made is not; but while it was there, the shard could be reached.
  if (link.lost_since_ns == kNever) {
    link.lost_since_ns = now;
    link.attempt_count = 0;
  } else if (link.up) {
    const TimeNs up_ns = now - link.up_since_ns;
    const TimeNs down_ns = link.up_since_ns - link.lost_since_ns;
    const bool was_good = up_ns >= job_.failure_ns / 6 || up_ns > down_ns;
    link.lost_since_ns = was_good ? now : link.lost_since_ns + up_ns;
    if (was_good) link.attempt_count = 0;
  }
  if (link.up && !is_expected && !link.closing) {
    LOG(log_, kInfo) << "lost " << describe(shard) << ": " << why.message();
  }
  const bool was_up = std::exchange(link.up, false);
  link.closing = false;
  link.peer.reset();
  link.last_down = why;
  // The successor is there, for it has been made known.
  link.next_attempt_ns = link.moved && link.attempt_count == 0 ? now : now + pause_after(link);
  return was_up;
}

// ---- time

std::vector<WorkerRank> ShardConnections::note_left(WorkerRank worker, TimeNs now) {
  std::vector<WorkerRank> departed;
  left_.insert(worker);
  for (Link& link : links_) {
    if (note_departed(link, now)) departed.push_back(*link.place.relay);
  }
  return departed;
}

bool ShardConnections::note_departed(Link& link, TimeNs now) {
  if (!link.place.relay || has_left(link)) return false;
  if (!left_.contains(link.place.relay_host.value_or(*link.place.relay))) return false;
  link.left_ns = now;
  return true;
}

void ShardConnections::end_left(Link& link, TimeNs now) {
  if (!has_left(link) || !link.up || link.closing) return;
  const TimeNs ends_ns = std::max(link.left_ns + 2 * job_.failure_ns, excused_until_ns_);
  if (now < ends_ns) {
    deadline_ns_ = std::min(deadline_ns_, ends_ns);
    return;
  }
  link.closing = true;
  link.last_down = {Code::kTimeout, "its worker has left the job, and its relay does not end"};
}

void ShardConnections::excuse(TimeNs pause_ns, TimeNs now) {
  // What came meanwhile may take more than one turn to be taken in.
  if (pause_ns > job_.failure_ns / 60) excused_until_ns_ = now + job_.failure_ns / 60;
  for (Link& link : links_) {
    if (link.lost_since_ns == kNever) continue;
    link.lost_since_ns = std::min(now, link.lost_since_ns + pause_ns);
  }
}

// When the job cannot go on without this shard. The time in which its host's name was looked up does not count: who
// answers late then is a name server.
TimeNs ShardConnections::give_up_time(const Link& link) const {
  if (link.lost_since_ns == kNever) return kNever;
  const TimeNs named_ns = std::min(link.naming_ns, link.lost_since_ns + Transport::kLookUpNs);
  // Of a relay the scheduler knows before whether its worker has left or is lost; and of a server that may get a
  // successor, whether there is one.
  TimeNs patience_ns = link.place.relay ? 2 * job_.failure_ns : job_.failure_ns;
  // A way that settings rule out is there with no successor.
  if (job_.recovers && !link.last_down.is(Code::kUnsupported)) {
    patience_ns = config_.timeout.recovery_ns + 2 * job_.failure_ns;
  }
  return std::max(std::max(link.lost_since_ns, named_ns) + patience_ns, excused_until_ns_);
}

Status ShardConnections::keep(TimeNs now, bool is_ending) {
  deadline_ns_ = kNever;
  for (ShardIndex shard(0); shard.value < links_.size(); ++shard.value) {
    Link& link = links_[shard.value];
    end_left(link, now);
    if (link.closing && !link.close_called) close(link, link.last_down);
    if (is_ending || has_left(link) || (link.up && !link.closing)) continue;
    if (link.peer && transport_.is_naming(*link.peer)) {
      link.naming_ns = now;
      deadline_ns_ = std::min(deadline_ns_, now + job_.failure_ns / 60);
    }
    const TimeNs give_up_ns = give_up_time(link);
    if (now >= give_up_ns) return unreachable(shard, now);
    deadline_ns_ = std::min(deadline_ns_, give_up_ns);
    const bool is_own = link.place.relay && link.place.since == 0;  // else it may not be there yet
    if (link.peer || (is_own && link.was_used)) continue;
    if (now >= link.next_attempt_ns) connect(shard, now);
    if (!link.peer) deadline_ns_ = std::min(deadline_ns_, link.next_attempt_ns);
  }
  if (!is_ending && !all_were_up()) tell_missing(now);
  return Status::ok();
}

Status ShardConnections::unreachable(ShardIndex shard, TimeNs now) const {
  const Link& link = links_[shard.value];
  const TimeNs for_ns = now - link.lost_since_ns;
  return {Code::kDisconnected,
          describe(shard) + " cannot be reached for " + duration_text(for_ns) +
              (link.last_down.is_ok() ? "" : ": " + link.last_down.message()),
          cause_of_end(link.last_down, CauseKind::kUnreachable, owner_of(shard), for_ns)};
}

// Joining waits for all shards: says for which ones, and why they are not there.
void ShardConnections::tell_missing(TimeNs now) {
  if (now >= next_notice_ns_) {
    next_notice_ns_ = now + config_.timeout.notice_every_ns;
    std::string text;
    std::size_t missing_count = 0;
    for (ShardIndex shard(0); shard.value < links_.size(); ++shard.value) {
      const Link& link = links_[shard.value];
      if (link.was_up || has_left(link) || ++missing_count > kMissingListedMax) continue;
      text += (missing_count > 1 ? ", " : "") + describe(shard) + " since " +
              duration_text(now - link.lost_since_ns) +
              (link.last_down.is_ok() ? "" : " (" + link.last_down.message() + ")");
    }
    if (missing_count > kMissingListedMax) {
      text += " and " + std::to_string(missing_count - kMissingListedMax) + " more";
    }
    LOG(log_, kWarning) << "all members are here, but there is no connection yet to " << text;
  }
  deadline_ns_ = std::min(deadline_ns_, next_notice_ns_);
}

void ShardConnections::connect(ShardIndex shard, TimeNs now) {
  Link& link = links_[shard.value];
  Hello self;
  self.role = Role::kWorker;
  self.rank = job_.self.value;
  self.epoch = job_.epoch;
  self.since = link.place.since;
  self.relay_of = link.place.relay ? link.place.relay->value + 1 : 0;
  self.stands_since = job_.stands_since;
  self.job_id = config_.job.job_id;
  self.incarnation = job_.incarnation;
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
  shard_of_.emplace(attempt.value(), shard);
}

// All workers lose a shard at the same moment, and it takes them one after the other: so each waits for another time,
// at most twice as long as another, and longer after each attempt in vain, but makes a few of them in failure_ns.
TimeNs ShardConnections::pause_after(const Link& link) {
  const std::uint32_t doublings = std::min(std::max(link.attempt_count, 1U) - 1, kPauseDoublings);
  // A relay that is not there yet begins in a moment.
  const TimeNs first_ns = job_.failure_ns / (link.place.relay ? 600 : 60);
  const TimeNs longest_ns = std::max<TimeNs>(2, first_ns << doublings);
  return longest_ns -
         static_cast<TimeNs>(chance_.below(static_cast<std::uint64_t>(longest_ns / 2)));
}

// ---- use

bool ShardConnections::all_are_up() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const Link& link) { return link.up || has_left(link); });
}

bool ShardConnections::all_were_up() const {
  return std::all_of(links_.begin(), links_.end(),
                     [](const Link& link) { return link.was_up || has_left(link); });
}

std::optional<PeerId> ShardConnections::peer_of(ShardIndex shard) const {
  const Link& link = links_[shard.value];
  return link.up ? link.peer : std::nullopt;
}

bool ShardConnections::may_send(ShardIndex shard) const {
  return is_in_use(shard) && !links_[shard.value].full;
}

bool ShardConnections::send(ShardIndex shard, const Outgoing& message) {
  Link& link = links_[shard.value];
  if (transport_.send(*link.peer, message).is_ok()) return link.was_used = true;
  // Otherwise the connection has ended, and its kDown is on the way.
  link.full = true;
  return false;
}

void ShardConnections::end(ShardIndex shard, const Status& why) {
  Link& link = links_[shard.value];
  link.closing = true;
  link.last_down = why;
}

void ShardConnections::close_all(const Status& why) {
  for (Link& link : links_) {
    if (link.peer && !link.close_called) close(link, why);
  }
}

void ShardConnections::close(Link& link, const Status& why) {
  link.closing = true;
  link.close_called = true;
  transport_.close(*link.peer, why);
}

// ---- words

void ShardConnections::record(const char* kind, ShardIndex shard, const Status& why,
                              TimeNs now) const {
  if (log_.flight() == nullptr) return;
  const std::string text = describe(shard) + (why.is_ok() ? "" : ": " + why.message());
  log_.record({.kind = kind,
               .role = name(*owner_of(shard).role),
               .rank = owner_of(shard).rank,
               .cause = FlightEvent::cause_of_down(why),
               .text = text,
               .at_ns = now});
}

Participant ShardConnections::owner_of(const Link& link) {
  const ShardPlace& place = link.place;
  Participant owner{.role = Role::kServer, .rank = place.server.value, .host = {}};
  if (place.relay) {
    const WorkerRank host = place.relay_host.value_or(*place.relay);
    owner = {.role = Role::kWorker, .rank = host.value, .host = {}};
  }
  owner.host = printable(place.host, 128);
  return owner;
}

std::string ShardConnections::describe(ShardIndex shard) const {
  const ShardPlace& place = links_[shard.value].place;
  const Participant owner = owner_of(shard);
  return std::string(name(*owner.role)) + " " + std::to_string(owner.rank) + " (" + owner.host +
         ") at " + place.endpoint.text() + ", " +
         (place.since > 0 && place.relay
              ? "its relay for worker " + std::to_string(place.relay->value)
          : place.relay ? "its relay"
                        : "shard " + std::to_string(place.shard_of_server));
}

}  // namespace byteps
