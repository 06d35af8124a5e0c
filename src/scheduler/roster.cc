#include "scheduler/roster.h"

#include <algorithm>
#include <utility>

#include "base/phrases.h"
#include "base/placement.h"
#include "base/planted.h"
#include "member/shares.h"
#include "net/wire_text.h"
#include "scheduler/stall.h"

namespace byteps {
namespace {

Status nonsense(std::string what) {
  return {Code::kInvalidArgument, std::move(what)};
}

constexpr std::size_t kPastLivesMax = 16;  // kept of a member; what is older will not come any more

bool contains(const std::vector<std::uint64_t>& numbers, std::uint64_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

bool divides_by_64(std::uint64_t bytes) {
  return bytes > 0 && bytes % 64 == 0;
}

// Several who have left, in one message.
SharedBytes departed_message(std::vector<std::uint32_t> ranks, bool final) {
  std::sort(ranks.begin(), ranks.end());
  return wire::encode(wire::Leave{final, Members(ranks)});
}

std::vector<std::byte> encode_status(const Status& why) {
  return wire::encode(wire::Text{printable(why.message(), wire::kTextBytesMax),
                                 static_cast<std::uint32_t>(why.code())});
}

}  // namespace

RosterKeeper::RosterKeeper(const Config& config)
    : job_(config.job), flow_(config.flow), timeout_(config.timeout) {}

// ---- from the network ----

void RosterKeeper::on_up(PeerId peer, const Hello& hello, TimeNs now, Outputs& out) {
  begin(now);
  connections_[peer].since_ns = now;
  connections_[peer].hello = hello;
  if (hello.role == Role::kScheduler) {
    close(peer, nonsense("a scheduler called a scheduler"), out);
  } else if (phase_ ==
             Phase::kEnded) {  // nothing must be said to it: the scheduler would have to stay
    close(peer, {Code::kCancelled, "the job has ended"}, out);
  }
}

void RosterKeeper::on_down(PeerId peer, const Status& why, TimeNs now, Outputs& out) {
  const auto connection = connections_.find(peer);
  if (connection == connections_.end()) return;
  const std::optional<Arrival> arrival = connection->second.seat;
  connections_.erase(connection);
  if (arrival) {
    Seat& seat = seats_.at(*arrival);
    seat.peer.reset();
    seat.heard_ns = now;
    seat.lost_why = why;
    if (!seat.left && phase_ != Phase::kEnding) {
      notice(LogLevel::kInfo, describe(seat) + " lost its connection: " + why.message(), out);
    }
  }
  try_end(now, out);
}

void RosterKeeper::on_malformed(PeerId peer, const Status& why, Outputs& out) {
  const auto connection = connections_.find(peer);
  if (connection == connections_.end() || connection->second.refused) return;
  const std::optional<Arrival> arrival = connection->second.seat;
  const std::string who = arrival ? describe(seats_.at(*arrival)) : "a process that has not joined";
  notice(LogLevel::kWarning, "closing the connection of " + who + ": " + why.message(), out,
         KeeperOutput::Cause::kMalformed);
  close(peer, why, out);
}

void RosterKeeper::step(PeerId peer, const wire::Header& header, std::span<const std::byte> payload,
                        TimeNs now, Outputs& out) {
  const auto connection = connections_.find(peer);
  if (connection == connections_.end() || connection->second.closed) return;
  // Leave is answered whoever sends it: its answer may have been lost with an older connection.
  if (header.kind == wire::Kind::kLeave) return on_leave(peer, header, payload, now, out);
  if (connection->second.refused || phase_ == Phase::kEnded) return;
  if (header.kind == wire::Kind::kJoin) return on_join(peer, header, payload, now, out);
  const std::optional<Arrival> arrival = connection->second.seat;
  if (!arrival) {
    // A member that has left may still have something on the way.
    if (header.epoch == Epoch(0)) on_malformed(peer, nonsense("a message before Join"), out);
    return;
  }
  Seat& seat = seats_.at(*arrival);
  seat.heard_ns = seat.said_ns = now;
  if (phase_ == Phase::kEnding) return;
  switch (header.kind) {
    case wire::Kind::kHeartbeat:
      return on_heartbeat(peer, seat, header, payload, now, out);
    case wire::Kind::kBarrier:
      return on_barrier(peer, seat, header, payload, out);
    case wire::Kind::kStalled:
      return on_stalled(peer, seat, header, payload, now, out);
    case wire::Kind::kFail:
      return on_fail(peer, *arrival, payload, now, out);
    default:
      return on_malformed(peer, nonsense("a message that members do not send"), out);
  }
}

// ---- joining ----

void RosterKeeper::on_join(PeerId peer, const wire::Header& header,
                           std::span<const std::byte> payload, TimeNs now, Outputs& out) {
  if (connections_.at(peer).seat) return on_malformed(peer, nonsense("a second Join"), out);
  Result<wire::Join> decoded = wire::decode_join(payload);
  if (!decoded.is_ok()) return on_malformed(peer, decoded.status(), out);
  wire::Join& join = decoded.value();
  join.host = printable(join.host, kHostTextBytesMax);
  if (join.role == Role::kWorker) join.endpoints.clear();  // nobody connects to a worker
  const Hello& hello = connections_.at(peer).hello;
  if (join.role != hello.role || (join.role == Role::kWorker && join.wanted_rank != hello.rank)) {
    return on_malformed(peer, nonsense("a Join of another role or rank than its Hello"), out);
  }
  const Status fine = check_join(join);
  if (!fine.is_ok()) return refuse(peer, fine, now, out);

  const Known known = recognise(join, hello.incarnation, header.epoch, now, out);
  if (!known.closed.is_ok()) return close(peer, known.closed, out);
  if (phase_ == Phase::kEnding) {  // perhaps only now, by what was recognised
    if (!known.same) return turn_away(peer, header.epoch, now, out);
    attach(*known.same, peer, now, out);
    if (PLANTED(last_word_said_once)) return;
    return tell_end(seats_.at(*known.same), out);
  }
  if (!known.refusal.is_ok()) return refuse(peer, known.refusal, now, out);
  const bool is_new = !known.same.has_value();
  const std::uint64_t life = join.life;
  const Arrival arrival = is_new ? admit(std::move(join), now) : *known.same;
  attach(arrival, peer, now, out);
  if (!known.fatal.is_ok()) return fail_job(known.fatal, now, out);

  Seat& seat = seats_.at(arrival);
  note_life(seat, life);
  notice(LogLevel::kInfo, describe(seat) + (is_new ? " is here" : " is back"), out);
  if (phase_ == Phase::kGathering) return try_complete(now, out);
  if (!seat.in_roster) return;
  catch_up(seat, out);
  note_epoch(seat, header.epoch, out);
}

// Someone new, after the end.
void RosterKeeper::turn_away(PeerId peer, Epoch epoch, TimeNs now, Outputs& out) {
  if (!outcome_.is_ok()) return refuse(peer, outcome_, now, out);
  if (epoch == Epoch(0)) {
    // One of the next job, perhaps, which has the same address: let it try again.
    return close(peer, {Code::kCancelled, "the job has ended"}, out);
  }
  connections_.at(peer).refused = true;  // a former member: its Leave is answered, nothing else
}

// What a Join must be in itself, whoever else is here.
Status RosterKeeper::check_join(const wire::Join& join) const {
  const std::string who = describe(join, join.wanted_rank);
  if (join.role != Role::kWorker && join.role != Role::kServer) {
    return nonsense("only workers and servers join");
  }
  if (join.worker_count > kWorkersMax || join.server_count > kServersMax) {
    return nonsense(who + " asks for a job of " + std::to_string(join.worker_count) +
                    " workers and " + std::to_string(join.server_count) + " servers; at most " +
                    std::to_string(kWorkersMax) + " and " + std::to_string(kServersMax) +
                    " are possible");
  }
  if (join.role == Role::kServer) {
    if (join.endpoints.size() > kShardsOfServerMax) {
      return nonsense(who + " names " + std::to_string(join.endpoints.size()) +
                      " addresses; a server has at most " + std::to_string(kShardsOfServerMax) +
                      " shards: lower BYTEPS_SERVER_ENGINE_THREAD");
    }
    for (const Endpoint& endpoint : join.endpoints) {
      if (endpoint.host.empty() || endpoint.host.size() > kHostNameBytesMax || endpoint.port == 0) {
        return nonsense(who + " names no address that workers could connect to");
      }
    }
    return join.endpoints.empty() ? nonsense(who + " names no address") : Status::ok();
  }
  if (join.wanted_rank == Hello::kNoRank) {
    return nonsense(who + " does not say its rank: set DMLC_WORKER_ID");
  }
  const std::uint32_t count = join.worker_count > 0 ? join.worker_count : expected_workers();
  if (join.wanted_rank >= count) {
    return nonsense(who + " cannot be part of a job of " + std::to_string(count) +
                    " workers, whose ranks are 0 to " + std::to_string(count - 1) +
                    ": check DMLC_WORKER_ID and DMLC_NUM_WORKER");
  }
  const bool frame_is_free = join.frame_bytes == 0;
  if (!divides_by_64(join.partition_bytes) ||
      (!frame_is_free && !divides_by_64(join.frame_bytes)) || join.frame_bytes > kPayloadBytesMax) {
    return nonsense(
        who + " has impossible sizes: parts of " + std::to_string(join.partition_bytes) +
        " and frames of " + std::to_string(join.frame_bytes) +
        " bytes; both must be multiples of 64, frames at most " + std::to_string(kPayloadBytesMax));
  }
  return Status::ok();
}

// Is this the same member on a new connection, or a new one? `epoch` is the one it works in: 0 for a process that
// has just begun (or has heard no roster), so a member of the running epoch that says 0 in a later life has begun
// anew.
RosterKeeper::Known RosterKeeper::recognise(const wire::Join& join, const Incarnation& incarnation,
                                            Epoch epoch, TimeNs now, Outputs& out) {
  Known known;
  std::optional<Arrival> seated;   // in the roster
  std::optional<Arrival> waiting;  // not
  for (const auto& [arrival, seat] : seats_) {
    if (seat.join.role != join.role || seat.join.host != join.host) continue;
    if (seat.worker() ? seat.rank != join.wanted_rank : seat.join.endpoints != join.endpoints)
      continue;
    (seat.in_roster ? seated : waiting) = arrival;
  }
  const bool knows_job = incarnation != Incarnation{};
  if (epoch != Epoch(0) || (knows_job && incarnation != job_.incarnation)) {
    // A worker's Member lives for one epoch; a server's goes from epoch to epoch.
    const bool worker = join.role == Role::kWorker;
    const bool ours = incarnation == job_.incarnation;
    if (ours && (worker ? epoch == epoch_ : epoch <= epoch_))
      known.same = seated || worker ? seated : waiting;
    if (!known.same) {
      known.refusal = {
          Code::kDisconnected,
          describe(join, join.wanted_rank) + " comes from epoch " + std::to_string(epoch.value) +
              ", which this scheduler does not know or which is over: the scheduler was "
              "started anew, or the job went on without it"};
    }
    return known;
  }
  if (is_late(join, waiting, seated)) {
    known.closed = {Code::kDisconnected, "overtaken by a newer connection"};
    return known;
  }
  for (const std::optional<Arrival>& place : {waiting, seated}) {
    if (place && is_rival(seats_.at(*place), join.life, now)) return rival_of(*place, join);
  }
  if (waiting) {
    known.same = waiting;
    return known;
  }
  if (seated) {
    Seat& seat = seats_.at(*seated);
    const bool in_epoch = phase_ == Phase::kConfirming || phase_ == Phase::kRunning;
    const bool begun_anew = in_epoch && !seat.left && seat.applied == epoch_;
    if (!seat.left && !begun_anew) {
      known.same = seated;
      return known;
    }
    if (begun_anew && !seat.worker()) {
      known.fatal = {Code::kDisconnected, describe(seat) +
                                              " was started anew while the job ran, and its sums "
                                              "are lost"};
      known.same = seated;
      return known;
    }
    // Its Leave was lost, or it never said one.
    if (begun_anew) mark_left(seat, false, now, out);
  }
  known.refusal = check_claims(join);
  if (known.refusal.is_ok() && join.role == Role::kWorker) {
    const Status sizes = check_sizes(join);
    (phase_ == Phase::kGathering ? known.fatal : known.refusal) = sizes;
  }
  return known;
}

// Connections have no order among each other: what a member said first may arrive after all that it said since. A
// number that was never said is a new life; none is older than another, for clocks differ between hosts.
bool RosterKeeper::is_late(const wire::Join& join, std::optional<Arrival> waiting,
                           std::optional<Arrival> seated) const {
  if (join.life == 0 || PLANTED(late_join_is_new_life)) return false;
  for (const std::optional<Arrival>& place : {waiting, seated}) {
    if (!place) continue;
    const Seat& seat = seats_.at(*place);
    const bool was_further = seat.in_roster && (seat.left || seat.applied == epoch_);
    if (contains(seat.past_lives, join.life)) return true;
    if (join.life == seat.join.life && was_further) return true;
  }
  if (join.role != Role::kWorker) return false;
  const auto former = former_lives_.find({join.host, join.wanted_rank});
  return former != former_lives_.end() && contains(former->second, join.life);
}

// Another life under the name of a member whose connection is up. Mostly the old life has just ended, and the end of
// its connection is on the way. But it may be another process: on two machines, or in two containers of one, that have
// one name.
bool RosterKeeper::is_rival(Seat& seat, std::uint64_t life, TimeNs now) {
  if (life == 0 || seat.join.life == 0 || life == seat.join.life) return false;
  if (seat.left || !seat.peer) return false;
  if (seat.rival != life) {
    seat.rival = life;
    seat.rival_since_ns = now;
  }
  return true;
}

// It comes again and again, until the old connection ends, or the old life has said something that it cannot have said
// before it made room.
RosterKeeper::Known RosterKeeper::rival_of(Arrival place, const wire::Join& join) const {
  const Seat& seat = seats_.at(place);
  Known known;
  if (seat.said_ns >= seat.rival_since_ns + 2 * timeout_.heartbeat_ns()) {
    known.refusal = claimed_twice(seat, join);
  } else {
    known.closed = {Code::kAgain, describe(seat) + " is connected still"};
  }
  return known;
}

// Whether a worker that is new here means the next epoch although its rank is still taken in the running one: that
// one is ending, or this process has left it. The first to leave are the first to be back, under ranks whose holders
// may have their Leave still to say.
bool RosterKeeper::means_next_epoch(const wire::Join& join) const {
  return std::any_of(seats_.begin(), seats_.end(), [&](const auto& entry) {
    const Seat& seat = entry.second;
    return seat.in_roster && seat.left && (!seat.left_for_good || seat.join.host == join.host);
  });
}

std::size_t RosterKeeper::count_shards() const {
  std::size_t count = 0;
  for (const auto& [arrival, seat] : seats_)
    count += seat.worker() ? 0 : seat.join.endpoints.size();
  return count;
}

// A rank or an address belongs to one living process at a time. Ranks of the running epoch and those of the next are
// apart once the running one is ending.
Status RosterKeeper::check_claims(const wire::Join& join) const {
  const bool next_epoch = join.role == Role::kWorker && means_next_epoch(join);
  const auto servers = std::count_if(seats_.begin(), seats_.end(),
                                     [](const auto& entry) { return !entry.second.worker(); });
  if (join.role == Role::kServer && servers >= std::ptrdiff_t{kServersMax}) {
    return {Code::kUnsupported, std::to_string(servers) + " servers are here already, so " +
                                    join.host + " is refused: a job has no more"};
  }
  const std::size_t shards = count_shards();
  if (join.role == Role::kServer && shards + join.endpoints.size() > kShardsMax) {
    return {Code::kUnsupported,
            "the servers that are here have " + std::to_string(shards) + " shards, so " +
                join.host + " with " + std::to_string(join.endpoints.size()) +
                " more is refused: a job has at most " + std::to_string(kShardsMax) +
                "; lower BYTEPS_SERVER_ENGINE_THREAD, or use fewer servers"};
  }
  for (const auto& [arrival, seat] : seats_) {
    if (seat.join.role != join.role || seat.left || !seat.peer) continue;
    const bool taken = seat.worker()
                           ? seat.rank == join.wanted_rank && !(seat.in_roster && next_epoch)
                           : std::find_first_of(join.endpoints.begin(), join.endpoints.end(),
                                                seat.join.endpoints.begin(),
                                                seat.join.endpoints.end()) != join.endpoints.end();
    if (taken) return claimed_twice(seat, join);
  }
  return Status::ok();
}

Status RosterKeeper::claimed_twice(const Seat& seat, const wire::Join& join) {
  const std::string hosts =
      seat.join.host + " is here already, so " +
      (join.host == seat.join.host ? "another process of that name" : join.host) + " is refused; ";
  if (seat.worker()) {
    return {Code::kMismatch, "two processes claim to be worker " + std::to_string(seat.rank) +
                                 ": " + hosts + "give each its own DMLC_WORKER_ID"};
  }
  const auto shared = std::find_first_of(join.endpoints.begin(), join.endpoints.end(),
                                         seat.join.endpoints.begin(), seat.join.endpoints.end());
  return {Code::kMismatch, "two servers claim to be at " + shared->text() + ": " + hosts +
                               "check their addresses and ports"};
}

// What workers of one generation say about the job's size must agree.
Status RosterKeeper::check_sizes(const wire::Join& join) const {
  const auto compare = [&](const Seat& seat, std::uint32_t theirs, std::uint32_t ours,
                           const char* what, const char* variable) {
    if (theirs == 0 || ours == 0 || theirs == ours) return Status::ok();
    return Status(Code::kMismatch, "workers disagree about the size of the job: " + describe(seat) +
                                       " says " + std::to_string(theirs) + " " + what + ", " +
                                       describe(join, join.wanted_rank) + " says " +
                                       std::to_string(ours) + "; make " + variable +
                                       " equal everywhere");
  };
  for (const auto& [arrival, seat] : seats_) {
    if (!seat.worker() || seat.in_roster) continue;
    if (!seat.peer && seat.rank == join.wanted_rank) continue;  // it is replaced by this one
    Status agree =
        compare(seat, seat.join.worker_count, join.worker_count, "workers", "DMLC_NUM_WORKER");
    if (!agree.is_ok()) return agree;
    agree = compare(seat, seat.join.server_count, join.server_count, "servers", "DMLC_NUM_SERVER");
    if (!agree.is_ok()) return agree;
  }
  return Status::ok();
}

RosterKeeper::Arrival RosterKeeper::admit(wire::Join join, TimeNs now) {
  // Whoever waited under this rank and lost its connection is replaced.
  for (auto it = seats_.begin(); it != seats_.end();) {
    const Seat& seat = it->second;
    const bool replaced = seat.worker() && join.role == Role::kWorker && !seat.in_roster &&
                          !seat.peer && seat.rank == join.wanted_rank;
    it = replaced ? seats_.erase(it) : std::next(it);
  }
  const Arrival arrival = next_arrival_++;
  Seat& seat = seats_[arrival];
  if (join.role == Role::kWorker) {
    seat.rank = join.wanted_rank;
    if (idle()) gather(now);  // the next generation begins to come
  }
  seat.join = std::move(join);
  seat.since_ns = now;
  seat.next_notice_ns = now + timeout_.first_notice_ns;
  return arrival;
}

void RosterKeeper::note_life(Seat& seat, std::uint64_t life) {
  if (life == 0 || life == seat.join.life) return;
  if (seat.join.life != 0) seat.past_lives.push_back(seat.join.life);
  if (seat.past_lives.size() > kPastLivesMax) seat.past_lives.erase(seat.past_lives.begin());
  seat.join.life = life;
}

void RosterKeeper::attach(Arrival arrival, PeerId peer, TimeNs now, Outputs& out) {
  Seat& seat = seats_.at(arrival);
  if (seat.peer && *seat.peer != peer) {
    connections_.at(*seat.peer).seat.reset();
    close(*seat.peer, {Code::kDisconnected, "replaced by a newer connection of the same member"},
          out);
  }
  seat.peer = peer;
  seat.heard_ns = now;
  connections_.at(peer).seat = arrival;
}

// What a member of the roster may have missed while it had no connection.
void RosterKeeper::catch_up(const Seat& seat, Outputs& out) {
  if (!seat.peer || seat.left || (seat.worker() && phase_ != Phase::kRunning)) return;
  send(*seat.peer, wire::Kind::kRoster, WorkerRank(seat.rank), roster_, out);
  if (!seat.worker() || left_count_ == 0) return;
  for (const bool final : {true, false}) {
    std::vector<std::uint32_t> ranks;
    for (const auto& [arrival, other] : seats_) {
      if (other.in_roster && other.left && other.left_for_good == final)
        ranks.push_back(other.rank);
    }
    if (ranks.empty()) continue;
    send(*seat.peer, wire::Kind::kLeave, WorkerRank(), departed_message(std::move(ranks), final),
         out);
  }
}

void RosterKeeper::refuse(PeerId peer, const Status& why, TimeNs now, Outputs& out) {
  notice(LogLevel::kWarning, "refused: " + why.message(), out, KeeperOutput::Cause::kRefused);
  send(peer, wire::Kind::kFail, WorkerRank(), encode_status(why), out);
  connections_.at(peer).refused = true;
  connections_.at(peer).since_ns = now;
  if (phase_ == Phase::kGathering) last_refusal_ = why.message();
}

void RosterKeeper::erase(Arrival arrival, TimeNs now) {
  const Seat& seat = seats_.at(arrival);
  if (seat.peer) {
    connections_.at(*seat.peer).seat.reset();
    connections_.at(*seat.peer).since_ns = now;
  }
  seats_.erase(arrival);
}

// ---- the other messages ----

void RosterKeeper::on_heartbeat(PeerId peer, Seat& seat, const wire::Header& header,
                                std::span<const std::byte> payload, TimeNs now, Outputs& out) {
  const Result<wire::Heartbeat> heartbeat = wire::decode_heartbeat(payload);
  if (!heartbeat.is_ok()) return on_malformed(peer, heartbeat.status(), out);
  if (heartbeat.value().sent_ns != 0) {
    const wire::Heartbeat answer{.sent_ns = static_cast<std::uint64_t>(now),
                                 .echo_ns = heartbeat.value().sent_ns};
    send(peer, wire::Kind::kHeartbeat, WorkerRank(), wire::encode(answer), out);
  }
  note_epoch(seat, header.epoch, out);
}

// The epoch that a member works in, as it says.
void RosterKeeper::note_epoch(Seat& seat, Epoch epoch, Outputs& out) {
  if (!seat.in_roster || (epoch != epoch_ && !PLANTED(epoch_not_fenced))) return;
  seat.applied = epoch_;
  try_run(out);
}

void RosterKeeper::on_leave(PeerId peer, const wire::Header& header,
                            std::span<const std::byte> payload, TimeNs now, Outputs& out) {
  const Result<wire::Leave> leave = wire::decode_leave(payload);
  if (!leave.is_ok()) return on_malformed(peer, leave.status(), out);
  const std::optional<Arrival> arrival = connections_.at(peer).seat;
  const bool server_of_running_job = arrival && !seats_.at(*arrival).worker() &&
                                     seats_.at(*arrival).in_roster &&
                                     (phase_ == Phase::kConfirming || phase_ == Phase::kRunning);
  if (server_of_running_job) {
    return fail_job(
        {Code::kDisconnected, describe(seats_.at(*arrival)) + " was stopped while the job ran"},
        now, out);
  }
  if (arrival && phase_ == Phase::kEnding) {
    seats_.at(*arrival).heard_end = true;
    return;
  }
  send(peer, wire::Kind::kLeave, header.worker, wire::encode(leave.value()), out);
  if (!arrival || phase_ == Phase::kEnded) return;
  Seat& seat = seats_.at(*arrival);
  seat.heard_ns = now;
  if (seat.in_roster && seat.worker()) {
    if (!seat.left) mark_left(seat, leave.value().final, now, out);
    return;
  }
  notice(LogLevel::kInfo, describe(seat) + " left before the job was complete", out);
  erase(*arrival, now);
  note_absence(now);
}

void RosterKeeper::mark_left(Seat& seat, bool final, TimeNs now, Outputs& out) {
  seat.left = true;
  seat.left_for_good = final;
  notice(LogLevel::kInfo, describe(seat) + (final ? " has left" : " has left and may come back"),
         out);
  ++left_count_;
  if (phase_ == Phase::kRunning) {  // in kConfirming they hear of it with the roster
    (final ? departed_for_good_ : departed_for_a_while_).push_back(seat.rank);
  }
  if (const auto never = barrier_misses_for_ever()) {
    for (const auto& [arrival, other] : seats_) {
      const bool waits = other.in_roster && other.worker() && barrier_arrived_.contains(other.rank);
      if (waits) answer_barrier(other, barrier_number_, never, out);
    }
  }
  if (stall_until_ns_ != kNever) stall_until_ns_ = now + timeout_.failure_ns;
  try_next_generation(now, out);
}

// All who have left since the last time, in one message: when a thousand leave at once, that is not a million messages.
void RosterKeeper::tell_departed(Outputs& out) {
  for (std::vector<std::uint32_t>* const ranks : {&departed_for_good_, &departed_for_a_while_}) {
    if (ranks->empty()) continue;
    const SharedBytes message =
        departed_message(std::exchange(*ranks, {}), ranks == &departed_for_good_);
    if (phase_ != Phase::kRunning) continue;
    for (const auto& [arrival, other] : seats_) {
      if (!other.in_roster || !other.worker() || other.left || !other.peer) continue;
      send(*other.peer, wire::Kind::kLeave, WorkerRank(), message, out);
    }
  }
}

void RosterKeeper::on_barrier(PeerId peer, const Seat& seat, const wire::Header& header,
                              std::span<const std::byte> payload, Outputs& out) {
  const Result<wire::Barrier> barrier = wire::decode_barrier(payload);
  if (!barrier.is_ok()) return on_malformed(peer, barrier.status(), out);
  if (!seat.in_roster || seat.left || header.epoch != epoch_) return;  // of another epoch
  const std::uint64_t number = barrier.value().number;
  const std::optional<WorkerRank> never = barrier_misses_for_ever();
  const bool in_turn = number <= barrier_number_ || never.has_value();
  if (!seat.worker() || phase_ != Phase::kRunning || !in_turn) {
    return on_malformed(peer, nonsense("barrier " + std::to_string(number) + " out of turn"), out);
  }
  if (number < barrier_number_) return answer_barrier(seat, number, std::nullopt, out);
  if (never) return answer_barrier(seat, number, never, out);
  if (PLANTED(barrier_counted_twice) && barrier_arrived_.contains(seat.rank)) {
    barrier_arrived_.insert(kWorkersMax + seat.rank);
  }
  barrier_arrived_.insert(seat.rank);
  if (barrier_arrived_.size() < barrier_size_) return;
  barrier_arrived_.clear();
  ++barrier_number_;
  for (const auto& [arrival, other] : seats_) {
    if (other.in_roster && other.worker()) answer_barrier(other, number, std::nullopt, out);
  }
}

void RosterKeeper::answer_barrier(const Seat& to, std::uint64_t number,
                                  std::optional<WorkerRank> never, Outputs& out) const {
  if (!to.peer || to.left) return;
  send(*to.peer, wire::Kind::kBarrierDone, never.value_or(WorkerRank()),
       wire::encode(wire::Barrier{number}), out);
  if (never) out.back().header.flags = wire::kNeverDone;
}

// A worker that left without having come to the open barrier: no barrier of this epoch ends any more.
std::optional<WorkerRank> RosterKeeper::barrier_misses_for_ever() const {
  if (left_count_ == 0) return std::nullopt;
  for (const auto& [arrival, seat] : seats_) {
    if (seat.in_roster && seat.left && !barrier_arrived_.contains(seat.rank)) {
      return WorkerRank(seat.rank);
    }
  }
  return std::nullopt;
}

void RosterKeeper::on_stalled(PeerId peer, Seat& seat, const wire::Header& header,
                              std::span<const std::byte> payload, TimeNs now, Outputs& out) {
  Result<wire::Stalled> stalled = wire::decode_stalled(payload);
  if (!stalled.is_ok()) return on_malformed(peer, stalled.status(), out);
  if (!seat.in_roster || seat.left || header.epoch != epoch_) return;  // of another epoch
  if (!seat.worker()) return on_malformed(peer, nonsense("a server that waits"), out);
  seat.stalled = std::move(stalled).value();
  stall_until_ns_ = stall().empty() ? kNever : now + timeout_.failure_ns;
}

// Why no worker can go on; empty: one may.
std::string RosterKeeper::stall() const {
  std::vector<StalledWorker> workers;
  for (const auto& [arrival, seat] : seats_) {
    if (!seat.in_roster || !seat.worker() || seat.left) continue;
    if (seat.stalled.awaited.empty()) return "";
    workers.push_back({seat.rank, &seat.stalled});
  }
  return stall_text(workers, barrier_arrived_, barrier_number_);
}

void RosterKeeper::on_fail(PeerId peer, Arrival arrival, std::span<const std::byte> payload,
                           TimeNs now, Outputs& out) {
  const Result<wire::Text> text = wire::decode_text(payload);
  if (!text.is_ok()) return on_malformed(peer, text.status(), out);
  const Seat& seat = seats_.at(arrival);
  const Status said = error_of(text.value(), Code::kCancelled, wire::kTextBytesMax / 2);
  const Status why(said.code(), describe(seat) + ": " + said.message());
  if (seat.in_roster || phase_ == Phase::kGathering) return fail_job(why, now, out);
  // It waits for the next epoch; the running one is none of its business.
  erase(arrival, now);
  refuse(peer, why, now, out);
}

// ---- phases ----

bool RosterKeeper::Cast::complete() const {
  const auto here = [](const std::optional<Arrival>& seat) { return seat.has_value(); };
  return !workers.empty() && std::all_of(workers.begin(), workers.end(), here) &&
         std::all_of(servers.begin(), servers.end(), here);
}

bool RosterKeeper::anyone_waits() const {
  return std::any_of(seats_.begin(), seats_.end(), [](const auto& entry) {
    return entry.second.worker() && !entry.second.in_roster;
  });
}

// The first of the waiting workers that says how many; all that say it agree.
std::uint32_t RosterKeeper::expected_workers() const {
  for (const auto& [arrival, seat] : seats_) {
    if (seat.worker() && !seat.in_roster && seat.join.worker_count > 0)
      return seat.join.worker_count;
  }
  return std::max<std::uint32_t>(job_.worker_count, 1);
}

std::uint32_t RosterKeeper::expected_servers() const {
  for (const auto& [arrival, seat] : seats_) {
    if (seat.worker() && !seat.in_roster && seat.join.server_count > 0)
      return seat.join.server_count;
  }
  return job_.server_count;
}

// Workers sit by rank. Servers get the rank they had or wish, the earlier one first; the others fill the gaps in
// order of arrival; who then has none is spare.
RosterKeeper::Cast RosterKeeper::cast() const {
  Cast cast;
  cast.workers.resize(expected_workers());
  cast.servers.resize(expected_servers());
  std::vector<Arrival> without_rank;
  for (const auto& [arrival, seat] : seats_) {
    if (!seat.peer || (seat.worker() && seat.in_roster)) continue;
    if (seat.worker()) {
      if (seat.rank < cast.workers.size()) cast.workers[seat.rank] = arrival;
      continue;
    }
    const std::uint32_t wish = seat.rank != Hello::kNoRank ? seat.rank : seat.join.wanted_rank;
    if (wish < cast.servers.size() && !cast.servers[wish]) {
      cast.servers[wish] = arrival;
    } else {
      without_rank.push_back(arrival);
    }
  }
  std::size_t next = 0;
  for (std::optional<Arrival>& place : cast.servers) {
    if (!place && next < without_rank.size()) place = without_rank[next++];
  }
  return cast;
}

void RosterKeeper::gather(TimeNs now) {
  phase_ = Phase::kGathering;
  gather_ns_ = now;
  next_notice_ns_ = now + timeout_.first_notice_ns;
  idle_until_ns_ = kNever;
  last_refusal_.clear();
}

void RosterKeeper::try_complete(TimeNs now, Outputs& out) {
  const Cast roles = cast();
  if (!roles.complete()) return;
  if (roles.servers.empty()) {
    return fail_job({Code::kInvalidArgument,
                     "all workers are here, but nobody said how many servers the job has: set "
                     "DMLC_NUM_SERVER to at least 1"},
                    now, out);
  }
  begin_epoch(roles, now, out);
}

void RosterKeeper::begin_epoch(const Cast& roles, TimeNs now, Outputs& out) {
  epoch_ = Epoch(epoch_.value + 1);
  phase_ = Phase::kConfirming;
  idle_until_ns_ = kNever;
  barrier_number_ = 0;
  barrier_arrived_.clear();
  stall_until_ns_ = kNever;
  barrier_size_ = static_cast<std::uint32_t>(roles.workers.size());
  left_count_ = 0;
  departed_for_good_.clear();
  departed_for_a_while_.clear();
  wire::Roster roster;
  roster.epoch = epoch_;
  for (auto& [arrival, seat] : seats_) seat.in_roster = false;
  for (const auto* side : {&roles.workers, &roles.servers}) {
    for (std::uint32_t rank = 0; rank < side->size(); ++rank) {
      Seat& seat = seats_.at(*(*side)[rank]);
      seat.in_roster = true;
      seat.rank = rank;
      roster.members.push_back({seat.join.role, rank, seat.join.host, seat.join.endpoints,
                                seat.join.machine, seat.join.rate_mbps, seat.join.machine_index});
    }
  }
  const Seat& first = seats_.at(*roles.workers[0]);
  roster.partition_bytes = first.join.partition_bytes;
  roster.frame_bytes = first.join.frame_bytes;
  if (roster.frame_bytes == 0) {
    roster.frame_bytes = Placement::usual_frame_bytes(weights_of(shards_of(roster)));
  }
  roster_ = wire::encode(roster);
  if (roster_.size() > kPayloadBytesMax) {
    return fail_job({Code::kUnsupported, "the job is too large: its roster has " +
                                             std::to_string(roster_.size()) + " bytes, at most " +
                                             std::to_string(kPayloadBytesMax) + " fit a message"},
                    now, out);
  }
  notice(LogLevel::kInfo,
         "complete: epoch " + std::to_string(epoch_.value) + " with " +
             std::to_string(roles.workers.size()) + " workers and " +
             std::to_string(roles.servers.size()) + " servers",
         out);
  const std::string sizes = other_sizes_text();
  if (!sizes.empty()) notice(LogLevel::kWarning, sizes, out);
  const SharedBytes spare = encode_status(
      {Code::kAgain, "this server is a spare: the job has " + std::to_string(roles.servers.size()) +
                         " others, as DMLC_NUM_SERVER says, and began without it"});
  for (const auto& [arrival, seat] : seats_) {
    if (seat.in_roster) catch_up(seat, out);  // servers only, in this phase
    if (seat.in_roster || seat.worker() || !seat.peer) continue;
    notice(LogLevel::kWarning, describe(seat) + " is a spare", out);
    send(*seat.peer, wire::Kind::kWaiting, WorkerRank(), spare, out);
  }
}

void RosterKeeper::try_run(Outputs& out) {
  if (phase_ != Phase::kConfirming) return;
  for (const auto& [arrival, seat] : seats_) {
    if (PLANTED(roster_unconfirmed)) break;
    if (seat.in_roster && !seat.worker() && seat.applied != epoch_) return;
  }
  phase_ = Phase::kRunning;
  next_notice_ns_ = kNever;
  for (const auto& [arrival, seat] : seats_) {
    if (seat.in_roster && seat.worker()) catch_up(seat, out);
  }
}

void RosterKeeper::try_next_generation(TimeNs now, Outputs& out) {
  if (phase_ != Phase::kConfirming && phase_ != Phase::kRunning) return;
  bool for_good = true;
  std::vector<Arrival> gone;
  for (const auto& [arrival, seat] : seats_) {
    if (!seat.worker() || !seat.in_roster) continue;
    if (!seat.left) return;
    for_good = for_good && seat.left_for_good;
    gone.push_back(arrival);
  }
  former_lives_.clear();
  for (const Arrival arrival : gone) {
    const Seat& seat = seats_.at(arrival);
    std::vector<std::uint64_t>& lives = former_lives_[{seat.join.host, seat.rank}];
    lives.insert(lives.end(), seat.past_lives.begin(), seat.past_lives.end());
    lives.push_back(seat.join.life);
    erase(arrival, now);
  }
  if (for_good && !anyone_waits()) return succeed("all workers have left", now, out);
  gather(now);
  note_absence(now);
  try_complete(now, out);
}

// After the first epoch, a job without any worker lives on for a while only.
void RosterKeeper::note_absence(TimeNs now) {
  if (phase_ != Phase::kGathering || epoch_ == Epoch(0) || idle() || anyone_waits()) return;
  idle_until_ns_ = now + 2 * timeout_.failure_ns;
}

void RosterKeeper::fail_job(Status why, TimeNs now, Outputs& out) {
  if (phase_ == Phase::kEnding || phase_ == Phase::kEnded) return;
  notice(LogLevel::kError, "the job has failed: " + why.message(), out);
  phase_ = Phase::kEnding;
  outcome_ = std::move(why);
  // With silence_ns() before it, as when a member stands still, this process too ends within twice the failure timeout.
  ending_until_ns_ = now + timeout_.failure_ns - 2 * timeout_.heartbeat_ns();
  for (auto& [arrival, seat] : seats_) tell_end(seat, out);
  try_end(now, out);
}

void RosterKeeper::succeed(const std::string& text, TimeNs now, Outputs& out) {
  notice(LogLevel::kInfo, "the job is over: " + text, out);
  phase_ = Phase::kEnding;
  ending_until_ns_ = now + timeout_.failure_ns;
  for (auto& [arrival, seat] : seats_) tell_end(seat, out);
  try_end(now, out);
}

void RosterKeeper::tell_end(Seat& seat, Outputs& out) {
  if (seat.left) seat.heard_end = true;  // it is done with us
  if (!seat.peer || seat.left) return;
  seat.told_end = true;
  if (outcome_.is_ok() && !seat.worker()) {
    return send(*seat.peer, wire::Kind::kLeave, WorkerRank(), wire::encode(wire::Leave{true}), out);
  }
  const Status why = outcome_.is_ok()
                         ? Status(Code::kCancelled, "the job has ended: all workers have left")
                         : outcome_;
  send(*seat.peer, wire::Kind::kFail, WorkerRank(), encode_status(why), out);
}

// When nobody need be waited for any more: all have acknowledged the last word or, told that the job has failed and
// disconnected, have not come back for a sixth of the failure timeout, which is several of their attempts. After a good
// end nobody goes without a word, so who is not back is cut off, and gets as long as in the middle of the job: it
// would end with an error otherwise.
TimeNs RosterKeeper::end_ns() const {
  TimeNs end = connections_.empty() ? 0 : ending_until_ns_;
  for (const auto& [arrival, seat] : seats_) {
    if (seat.heard_end) continue;
    const bool gone = seat.told_end && !seat.peer && !outcome_.is_ok();
    end = std::max(end, gone ? seat.heard_ns + timeout_.heartbeat_ns() : ending_until_ns_);
  }
  return std::min(end, ending_until_ns_);
}

void RosterKeeper::try_end(TimeNs now, Outputs& out) {
  if (phase_ != Phase::kEnding || now < end_ns()) return;
  phase_ = Phase::kEnded;
  for (auto& [peer, connection] : connections_) {
    if (!connection.closed) close(peer, {Code::kCancelled, "the job has ended"}, out);
  }
}

void RosterKeeper::stop(const Status& why, TimeNs now, Outputs& out) {
  CHECK(!why.is_ok()) << "stopping needs a reason";
  fail_job(why, now, out);
  ending_until_ns_ = std::min(ending_until_ns_, now + 2 * timeout_.heartbeat_ns());
}

// ---- time ----

// At the first that it hears of the time.
void RosterKeeper::begin(TimeNs now) {
  if (started_) return;
  started_ = true;
  gather(now);
  next_heartbeat_ns_ = now + timeout_.heartbeat_ns();
}

void RosterKeeper::tick(TimeNs now, Outputs& out) {
  begin(now);
  excuse_own_pause(now);
  tell_departed(out);
  look_at_clock(now, out);
  planned_ns_ = next_deadline();
}

// While the scheduler stood still it could hear nobody, and what came may still wait to be handed in.
void RosterKeeper::excuse_own_pause(TimeNs now) {
  if (now <= planned_ns_) return;
  const TimeNs late_ns = now - planned_ns_;
  for (auto& [arrival, seat] : seats_) seat.heard_ns = std::min(now, seat.heard_ns + late_ns);
  for (auto& [peer, connection] : connections_) {
    connection.since_ns = std::min(now, connection.since_ns + late_ns);
  }
}

void RosterKeeper::look_at_clock(TimeNs now, Outputs& out) {
  try_end(now, out);
  if (phase_ == Phase::kEnded) return;
  drop_strangers(now, out);
  if (phase_ == Phase::kEnding) return;
  beat(now, out);
  watch_silence(now, out);
  watch_start(now, out);
  watch_queue(now, out);
  watch_stall(now, out);
}

void RosterKeeper::beat(TimeNs now, Outputs& out) {
  if (now < next_heartbeat_ns_ || phase_ == Phase::kEnding || phase_ == Phase::kEnded) return;
  next_heartbeat_ns_ = now + timeout_.heartbeat_ns();
  if (PLANTED(silence_forgiven)) {
    for (auto& [arrival, seat] : seats_) seat.heard_ns = now;
  }
  for (const auto& [arrival, seat] : seats_) {
    if (seat.peer) send(*seat.peer, wire::Kind::kHeartbeat, WorkerRank(), {}, out);
  }
}

void RosterKeeper::drop_strangers(TimeNs now, Outputs& out) {
  for (auto& [peer, connection] : connections_) {
    if (connection.seat || connection.closed) continue;
    if (now < connection.since_ns + timeout_.failure_ns) continue;
    close(peer, {Code::kTimeout, "did not join within " + duration_text(timeout_.failure_ns)}, out);
  }
}

// Who is connected may have stood still for the failure timeout since its last heartbeat.
TimeNs RosterKeeper::patience_ns(const Seat& seat) const {
  return seat.peer ? timeout_.silence_ns() : timeout_.failure_ns;
}

void RosterKeeper::watch_silence(TimeNs now, Outputs& out) {
  std::vector<Arrival> gone;
  for (const auto& [arrival, seat] : seats_) {
    if (!seat.left && now >= seat.heard_ns + patience_ns(seat)) gone.push_back(arrival);
  }
  for (const Arrival arrival : gone) {
    Seat& seat = seats_.at(arrival);
    std::string text = describe(seat) +
                       (seat.peer ? " has said nothing for " : " has been gone for ") +
                       duration_text(now - seat.heard_ns);
    if (!seat.peer) text += " (" + seat.lost_why.message() + ")";
    if (seat.in_roster && phase_ != Phase::kGathering) {
      fail_job(
          {Code::kDisconnected,
           text + " and the job cannot go on without it; look at its log, or whether its machine "
                  "is down"},
          now, out);
      seat.heard_end = true;  // nobody waits for it; when it is back it is told
      return try_end(now, out);
    }
    notice(LogLevel::kWarning, text, out);
    if (seat.peer) {
      const PeerId peer = *seat.peer;
      connections_.at(peer).seat.reset();
      seat.peer.reset();
      close(peer, {Code::kTimeout, "silent for " + duration_text(timeout_.silence_ns())}, out);
    }
    erase(arrival, now);
    note_absence(now);
  }
}

void RosterKeeper::watch_start(TimeNs now, Outputs& out) {
  if (phase_ != Phase::kGathering && phase_ != Phase::kConfirming) return;
  if (idle()) {
    if (now < idle_until_ns_) return;
    return succeed(
        "all workers left, and none came back within " + duration_text(2 * timeout_.failure_ns),
        now, out);
  }
  if (now >= gather_ns_ + timeout_.start_ns) {
    return fail_job({Code::kTimeout, "gave up after " + duration_text(timeout_.start_ns) + ": " +
                                         waiting_text(now)},
                    now, out);
  }
  if (now < next_notice_ns_) return;
  next_notice_ns_ = now + timeout_.notice_every_ns;
  const std::string text = waiting_text(now);
  notice(LogLevel::kWarning, text, out);
  const SharedBytes payload = encode_status({Code::kAgain, text});
  for (const auto& [arrival, seat] : seats_) {
    if (seat.peer && !seat.left) send(*seat.peer, wire::Kind::kWaiting, WorkerRank(), payload, out);
  }
}

// Workers that came while an epoch runs: they are told whose leaving they wait for.
void RosterKeeper::watch_queue(TimeNs now, Outputs& out) {
  if (phase_ != Phase::kRunning && phase_ != Phase::kConfirming) return;
  for (auto& [arrival, seat] : seats_) {
    if (!seat.worker() || seat.in_roster || now < seat.next_notice_ns) continue;
    seat.next_notice_ns = now + timeout_.notice_every_ns;
    if (!seat.peer) continue;
    std::vector<Mention> running;
    for (const auto& [other_arrival, other] : seats_) {
      if (other.worker() && other.in_roster && !other.left) running.push_back({&other, other.rank});
    }
    const std::string text =
        "waiting until the workers that run now have left: " + list_of(running, now);
    send(*seat.peer, wire::Kind::kWaiting, WorkerRank(), encode_status({Code::kAgain, text}), out);
  }
}

// Nothing has changed for the failure timeout. Asked again, because a barrier may have been reached since.
void RosterKeeper::watch_stall(TimeNs now, Outputs& out) {
  if (phase_ != Phase::kRunning || now < stall_until_ns_) return;
  stall_until_ns_ = kNever;
  const std::string text = stall();
  if (!text.empty()) fail_job({Code::kMismatch, text}, now, out);
}

TimeNs RosterKeeper::next_deadline() const {
  if (!started_) return 0;
  if (phase_ == Phase::kEnded) return kNever;
  TimeNs next = kNever;
  for (const auto& [peer, connection] : connections_) {
    if (!connection.seat && !connection.closed) {
      next = std::min(next, connection.since_ns + timeout_.failure_ns);
    }
  }
  if (phase_ == Phase::kEnding) return std::min(next, end_ns());
  next = std::min(next, next_heartbeat_ns_);
  for (const auto& [arrival, seat] : seats_) {
    if (!seat.left) next = std::min(next, seat.heard_ns + patience_ns(seat));
    if (seat.worker() && !seat.in_roster && phase_ != Phase::kGathering) {
      next = std::min(next, seat.next_notice_ns);
    }
  }
  if (idle()) return std::min(next, idle_until_ns_);
  if (phase_ == Phase::kRunning) return std::min(next, stall_until_ns_);
  return std::min({next, next_notice_ns_, gather_ns_ + timeout_.start_ns});
}

// ---- outputs ----

void RosterKeeper::send(PeerId peer, wire::Kind kind, WorkerRank worker, SharedBytes payload,
                        Outputs& out) const {
  KeeperOutput output;
  output.kind = KeeperOutput::Kind::kSend;
  output.peer = peer;
  output.header.kind = kind;
  output.header.epoch = epoch_;
  output.header.worker = worker;
  output.payload = std::move(payload);
  out.push_back(std::move(output));
}

void RosterKeeper::close(PeerId peer, Status reason, Outputs& out) {
  Connection& connection = connections_.at(peer);
  connection.refused = true;
  connection.closed = true;
  KeeperOutput output;
  output.kind = KeeperOutput::Kind::kClose;
  output.peer = peer;
  output.reason = std::move(reason);
  out.push_back(std::move(output));
}

void RosterKeeper::notice(LogLevel level, std::string text, Outputs& out,
                          KeeperOutput::Cause cause) {
  KeeperOutput output;
  output.level = level;
  output.text = std::move(text);
  output.cause = cause;
  out.push_back(std::move(output));
}

}  // namespace byteps
