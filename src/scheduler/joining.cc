#include "scheduler/joining.h"

#include <algorithm>

#include "base/limits.h"
#include "base/planted.h"
#include "scheduler/sayings.h"

namespace byteps {
namespace {

constexpr std::size_t kPastLivesMax = 16;  // kept of a member; what is older will not come any more

Cause turned_away(const wire::Join& join) {
  return {.kind = CauseKind::kTurnedAway,
          .who = {.role = join.role, .rank = join.wanted_rank, .host = join.host}};
}

bool contains(const std::vector<std::uint64_t>& numbers, std::uint64_t number) {
  return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}

// Whether it is where this member is. A server that may be replaced can be another process, with other shards.
bool is_in_place(const Seat& seat, const wire::Join& join, bool recovers) {
  if (!seat.worker() && recovers) return shares_endpoint(seat.join, join);
  if (seat.join.host != join.host) return false;
  return seat.worker() ? seat.rank == join.wanted_rank : seat.join.endpoints == join.endpoints;
}

bool divides_by_64(std::uint64_t bytes) {
  return bytes > 0 && bytes % 64 == 0;
}

}  // namespace

Status Joining::check(const wire::Join& join) const {
  const std::string who = member_text(join, join.wanted_rank);
  const auto nonsense = [&](std::string what) {
    return Status(Code::kInvalidArgument, std::move(what), turned_away(join));
  };
  if (join.role != Role::kWorker && join.role != Role::kServer) {
    return nonsense("only workers and servers join");
  }
  if (join.worker_count > kWorkersMax || join.server_count > kServersMax) {
    return nonsense(who + " asks for a job of " + std::to_string(join.worker_count) +
                    " workers and " + std::to_string(join.server_count) + " servers; at most " +
                    std::to_string(kWorkersMax) + " and " + std::to_string(kServersMax) +
                    " are possible");
  }
  const wire::Join::Heard& heard = join.heard;
  if (heard.term > wire::kCountMax || heard.epoch.value > wire::kCountMax ||
      heard.revision > wire::kCountMax) {
    return nonsense(who + " tells of a roster that cannot be");
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
  if (join.wanted_rank == kNoRank) {
    return nonsense(who + " does not say its rank: set DMLC_WORKER_ID");
  }
  const std::uint32_t count = join.worker_count > 0 ? join.worker_count : seats_.expected_workers();
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

// ---- who it is

Joining::Known Joining::recognise(const wire::Join& join, const Incarnation& incarnation,
                                  Epoch epoch, const Situation& situation, TimeNs now) const {
  std::optional<Arrival> seated;   // in the roster
  std::optional<Arrival> waiting;  // not
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.join.role != join.role || !is_in_place(seat, join, situation.recovers)) continue;
    (seat.in_roster ? seated : waiting) = arrival;
    if (join.life == 0 || seat.join.life != join.life) continue;
    (seat.in_roster ? waiting : seated).reset();
    break;  // its very self: another one was where it is, and may have a place still
  }
  const bool is_ours = incarnation == job_.incarnation;
  const bool knows_job = incarnation != Incarnation{};
  if (epoch != Epoch(0) || (knows_job && !is_ours)) {
    return recognise_in_epoch(join, epoch, is_ours, situation, waiting, seated);
  }
  Known known;
  if (is_late(join, situation.epoch, waiting, seated)) {
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
  known.is_new = true;
  if (!seated) return known;
  const Seat& seat = seats_.at(*seated);
  const bool begun_anew = situation.in_epoch && !seat.left && seat.applied == situation.epoch;
  const bool is_other_life = join.life != 0 && seat.join.life != 0 && join.life != seat.join.life;
  const bool is_other =
      seat.join.host != join.host || seat.join.endpoints != join.endpoints || is_other_life;
  if (!seat.worker() && situation.recovers && (begun_anew || is_other)) return known;  // its heir
  if (!seat.left && (!begun_anew || !seat.worker())) {
    known.is_new = false;
    known.same = seated;
    if (begun_anew) {
      known.fatal = {Code::kDisconnected,
                     seat.text() + " was started anew while the job ran, and its sums are lost",
                     {.kind = CauseKind::kStartedAnew, .who = seat.participant()}};
    }
    return known;
  }
  // Its Leave was lost, or it never said one.
  if (begun_anew) known.begun = seated;
  return known;
}

// A worker's Member lives for one epoch; a server's goes from epoch to epoch.
Joining::Known Joining::recognise_in_epoch(const wire::Join& join, Epoch epoch, bool is_ours,
                                           const Situation& situation,
                                           std::optional<Arrival> waiting,
                                           std::optional<Arrival> seated) const {
  const Epoch current = situation.epoch;
  Known known;
  const bool worker = join.role == Role::kWorker;
  if (is_ours && (worker ? epoch == current : epoch <= current)) {
    known.same = seated || worker ? seated : waiting;
  }
  // Another server was where it is, and has a place still.
  const bool is_other = known.same && !worker && join.life != 0 &&
                        seats_.at(*known.same).join.life != 0 &&
                        seats_.at(*known.same).join.life != join.life;
  if (is_other) known.same.reset();
  if (known.same) return known;
  // Between two epochs nobody has taken the place of a server that was away: it is one of the next.
  if (!worker && is_ours && !situation.in_epoch && !seats_.was_replaced(join.life)) {
    known.is_new = true;
    return known;
  }
  known.refusal = {Code::kDisconnected,
                   member_text(join, join.wanted_rank) + " comes from epoch " +
                       std::to_string(epoch.value) +
                       ", which this scheduler does not know or which is over: the scheduler was "
                       "started anew, or the job went on without it"};
  // Whose place another one took while it was away, perhaps in an epoch that is over since; or did not need to take,
  // for the epoch of now began without it.
  if (!worker && is_ours && (epoch <= current || seats_.was_replaced(join.life))) {
    known.refusal = {
        Code::kDisconnected,
        member_text(join, join.wanted_rank) +
            " was away for too long: another server has its place, and the job goes on",
        {.kind = CauseKind::kReplaced}};
  }
  if (worker && is_ours && epoch == current && situation.is_vacant) {
    known.refusal = went_on_without(member_text(join, join.wanted_rank));
  }
  return known;
}

// Connections have no order among each other: what a member said first may arrive after all that it said since. A
// number that was never said is a new life; none is older than another, for clocks differ between hosts.
bool Joining::is_late(const wire::Join& join, Epoch epoch, std::optional<Arrival> waiting,
                      std::optional<Arrival> seated) const {
  if (join.life == 0 || PLANTED(late_join_is_new_life)) return false;
  for (const std::optional<Arrival>& place : {waiting, seated}) {
    if (!place) continue;
    const Seat& seat = seats_.at(*place);
    const bool was_further = seat.in_roster && (seat.left || seat.applied == epoch);
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
bool Joining::is_rival(Seat& seat, std::uint64_t life, TimeNs now) {
  if (life == 0 || seat.join.life == 0 || life == seat.join.life) return false;
  if (seat.left || !seat.peer) return false;
  if (seat.rival.life != life) seat.rival = {.life = life, .since_ns = now};
  return true;
}

// It comes again and again, until the old connection ends, or the old life has said something that it cannot have said
// before it made room.
Joining::Known Joining::rival_of(Arrival place, const wire::Join& join) const {
  const Seat& seat = seats_.at(place);
  Known known;
  if (seat.said_ns >= seat.rival.since_ns + 2 * timeout_.heartbeat_ns()) {
    known.refusal = claimed_twice(seat, join);
  } else {
    known.closed = {Code::kAgain, seat.text() + " is connected still"};
  }
  return known;
}

// ---- whether somebody new may come in

void Joining::check_new(const wire::Join& join, bool is_gathering, Known& known) const {
  known.refusal = check_claims(join);
  if (!known.refusal.is_ok() || join.role != Role::kWorker) return;
  (is_gathering ? known.fatal : known.refusal) = check_sizes(join);
}

// Whether a worker that is new here means the next epoch although its rank is still taken in the running one: that
// one is ending, or this process has left it. The first to leave are the first to be back, under ranks whose holders
// may have their Leave still to say.
bool Joining::means_next_epoch(const wire::Join& join) const {
  return std::any_of(seats_.all().begin(), seats_.all().end(), [&](const auto& entry) {
    const Seat& seat = entry.second;
    return seat.in_roster && seat.left && (!seat.left_for_good || seat.join.host == join.host);
  });
}

// A job has only so many servers, and shards.
Status Joining::check_room(const wire::Join& join) const {
  std::size_t servers = 0;
  std::size_t shards = 0;
  for (const auto& [arrival, seat] : seats_.all()) {
    if (seat.worker()) continue;
    ++servers;
    shards += seat.join.endpoints.size();
  }
  if (servers >= kServersMax) {
    return {Code::kUnsupported,
            std::to_string(servers) + " servers are here already, so " + join.host +
                " is refused: a job has no more",
            turned_away(join)};
  }
  if (shards + join.endpoints.size() <= kShardsMax) return Status::ok();
  return {Code::kUnsupported,
          "the servers that are here have " + std::to_string(shards) + " shards, so " + join.host +
              " with " + std::to_string(join.endpoints.size()) +
              " more is refused: a job has at most " + std::to_string(kShardsMax) +
              "; lower BYTEPS_SERVER_ENGINE_THREAD, or use fewer servers",
          turned_away(join)};
}

// A rank or an address belongs to one living process at a time. Ranks of the running epoch and those of the next are
// apart once the running one is ending.
Status Joining::check_claims(const wire::Join& join) const {
  const bool next_epoch = join.role == Role::kWorker && means_next_epoch(join);
  if (join.role == Role::kServer) {
    if (Status room = check_room(join); !room.is_ok()) return room;
  }
  for (const auto& [arrival, seat] : seats_.all()) {
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

Status Joining::claimed_twice(const Seat& seat, const wire::Join& join) {
  const std::string hosts =
      seat.join.host + " is here already, so " +
      (join.host == seat.join.host ? "another process of that name" : join.host) + " is refused; ";
  if (seat.worker()) {
    return {Code::kMismatch,
            "two processes claim to be worker " + std::to_string(seat.rank) + ": " + hosts +
                "give each its own DMLC_WORKER_ID",
            turned_away(join)};
  }
  const auto shared = std::find_first_of(join.endpoints.begin(), join.endpoints.end(),
                                         seat.join.endpoints.begin(), seat.join.endpoints.end());
  return {Code::kMismatch,
          "two servers claim to be at " + shared->text() + ": " + hosts +
              "check their addresses and ports",
          turned_away(join)};
}

// What workers of one generation say about the job's size must agree.
Status Joining::check_sizes(const wire::Join& join) const {
  const auto compare = [&](const Seat& seat, std::uint32_t theirs, std::uint32_t ours,
                           const char* what, const char* variable) {
    if (theirs == 0 || ours == 0 || theirs == ours) return Status::ok();
    return Status(Code::kMismatch,
                  "workers disagree about the size of the job: " + seat.text() + " says " +
                      std::to_string(theirs) + " " + what + ", " +
                      member_text(join, join.wanted_rank) + " says " + std::to_string(ours) +
                      "; make " + variable + " equal everywhere",
                  {.kind = CauseKind::kSizesDiffer, .detail = variable});
  };
  for (const auto& [arrival, seat] : seats_.all()) {
    if (!seat.worker() || seat.in_roster) continue;
    const bool is_of_other = (seat.join.heard.term > 0) != (join.heard.term > 0);  // generation
    if (is_of_other) continue;
    if (!seat.peer && seat.rank == join.wanted_rank) continue;  // it is replaced by this one
    Status agree =
        compare(seat, seat.join.worker_count, join.worker_count, "workers", "DMLC_NUM_WORKER");
    if (!agree.is_ok()) return agree;
    agree = compare(seat, seat.join.server_count, join.server_count, "servers", "DMLC_NUM_SERVER");
    if (!agree.is_ok()) return agree;
  }
  return Status::ok();
}

// ---- coming in

Arrival Joining::admit(wire::Join join, TimeNs now) {
  for (auto it = seats_.all().begin(); it != seats_.all().end();) {
    const Seat& seat = it->second;
    const bool replaced = seat.worker() && join.role == Role::kWorker && !seat.in_roster &&
                          !seat.peer && seat.rank == join.wanted_rank;
    it = replaced ? seats_.all().erase(it) : std::next(it);
  }
  Arrival arrival = 0;
  Seat& seat = seats_.add(arrival);
  if (join.role == Role::kWorker) seat.rank = join.wanted_rank;
  seat.join = std::move(join);
  seat.since_ns = now;
  seat.next_notice_ns = now + timeout_.first_notice_ns;
  return arrival;
}

void Joining::attach(Arrival arrival, PeerId peer, TimeNs now, const Speaker& speaker,
                     KeeperOutputs& out) {
  if (const std::optional<PeerId> before = seats_.attach(arrival, peer, now)) {
    speaker.close(*before,
                  {Code::kDisconnected, "replaced by a newer connection of the same member"}, out);
  }
}

void Joining::renew(Seat& seat, const wire::Join& join) {
  if (seat.worker() || seat.in_roster) return;
  const std::uint64_t life = seat.join.life;
  seat.join = join;
  seat.join.life = life;
}

void Joining::note_life(Seat& seat, std::uint64_t life) {
  if (life == 0 || life == seat.join.life) return;
  if (seat.join.life != 0) seat.past_lives.push_back(seat.join.life);
  if (seat.past_lives.size() > kPastLivesMax) seat.past_lives.erase(seat.past_lives.begin());
  seat.join.life = life;
}

void Joining::remember(const std::vector<Arrival>& gone) {
  former_lives_.clear();
  for (const Arrival arrival : gone) remember_lost(seats_.at(arrival));
}

void Joining::remember_lost(const Seat& seat) {
  std::vector<std::uint64_t>& lives = former_lives_[{seat.join.host, seat.rank}];
  lives.insert(lives.end(), seat.past_lives.begin(), seat.past_lives.end());
  lives.push_back(seat.join.life);
}

}  // namespace byteps
