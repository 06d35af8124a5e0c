#include "scheduler/seats.h"

#include <algorithm>

#include "base/limits.h"
#include "base/phrases.h"
#include "base/placement.h"
#include "member/places.h"
#include "member/summing.h"

namespace byteps {

std::string member_text(const wire::Join& join, std::uint32_t rank) {
  std::string text = name(join.role);
  if (rank != kNoRank) text += " " + std::to_string(rank);
  text += " (" + (join.host.empty() ? "unknown host" : printable(join.host, kHostTextBytesMax));
  if (!join.endpoints.empty()) {
    text += " at " + printable(join.endpoints[0].text(), kHostTextBytesMax);
  }
  return text + ")";
}

bool shares_endpoint(const wire::Join& a, const wire::Join& b) {
  return std::find_first_of(a.endpoints.begin(), a.endpoints.end(), b.endpoints.begin(),
                            b.endpoints.end()) != a.endpoints.end();
}

wire::RosterMember member_of(const Seat& seat) {
  const wire::Join& join = seat.join;
  wire::RosterMember member{join.role,       seat.rank, join.host,      join.endpoints,
                            join.machine,    join.card, join.rate_mbps, join.machine_index,
                            join.relay_port, join.life};
  member.more_cards = join.more_cards;
  return member;
}

wire::Join join_of(const wire::RosterMember& member) {
  wire::Join join;
  join.role = member.role;
  join.wanted_rank = member.rank;
  join.host = member.host;
  join.endpoints = member.endpoints;
  join.machine = member.machine;
  join.card = member.card;
  join.rate_mbps = member.rate_mbps;
  join.more_cards = member.more_cards;
  join.machine_index = member.machine_index;
  join.relay_port = member.relay_port;
  join.life = member.life;
  return join;
}

std::string Seat::text() const {
  return member_text(join, rank);
}

bool Cast::complete() const {
  const auto here = [](const std::optional<Arrival>& seat) { return seat.has_value(); };
  return !workers.empty() && std::all_of(workers.begin(), workers.end(), here) &&
         std::all_of(servers.begin(), servers.end(), here);
}

const Connection* Seats::find(PeerId peer) const {
  const auto found = connections_.find(peer);
  return found == connections_.end() ? nullptr : &found->second;
}

std::string Seats::who(PeerId peer) const {
  const Connection* const connection = find(peer);
  const bool seated = connection != nullptr && connection->seat.has_value();
  return seated ? at(*connection->seat).text() : "a process that has not joined";
}

Seat& Seats::add(Arrival& arrival) {
  arrival = next_arrival_++;
  return seats_[arrival];
}

void Seats::erase(Arrival arrival, TimeNs now) {
  const Seat& seat = at(arrival);
  if (seat.peer) {
    connections_.at(*seat.peer).seat.reset();
    connections_.at(*seat.peer).since_ns = now;
  }
  seats_.erase(arrival);
}

std::optional<PeerId> Seats::attach(Arrival arrival, PeerId peer, TimeNs now) {
  Seat& seat = at(arrival);
  std::optional<PeerId> before;
  if (seat.peer && *seat.peer != peer) {
    before = seat.peer;
    connections_.at(*before).seat.reset();
  }
  seat.peer = peer;
  seat.heard_ns = now;
  connections_.at(peer).seat = arrival;
  return before;
}

std::optional<Arrival> Seats::detach(PeerId peer, const Status& why, TimeNs now) {
  const auto connection = connections_.find(peer);
  if (connection == connections_.end()) return std::nullopt;
  const std::optional<Arrival> arrival = connection->second.seat;
  connections_.erase(connection);
  if (!arrival) return std::nullopt;
  Seat& seat = at(*arrival);
  seat.peer.reset();
  seat.heard_ns = now;
  seat.lost_why = why;
  return arrival;
}

bool Seats::anyone_waits() const {
  return std::any_of(seats_.begin(), seats_.end(), [](const auto& entry) {
    return entry.second.worker() && !entry.second.in_roster;
  });
}

// The first of the waiting workers that says how many; all that say it agree.
std::uint32_t Seats::expected_workers() const {
  for (const auto& [arrival, seat] : seats_) {
    if (seat.worker() && !seat.in_roster && seat.join.worker_count > 0)
      return seat.join.worker_count;
  }
  return std::max<std::uint32_t>(job_.worker_count, 1);
}

std::uint32_t Seats::expected_servers() const {
  for (const auto& [arrival, seat] : seats_) {
    if (seat.worker() && !seat.in_roster && seat.join.server_count > 0)
      return seat.join.server_count;
  }
  return job_.server_count;
}

// Workers sit by rank. Servers get the rank they had or wish, the earlier one first; the others fill the gaps in
// order of arrival; who then has none is spare.
Cast Seats::cast() const {
  Cast cast;
  cast.workers.resize(expected_workers());
  cast.servers.resize(expected_servers());
  std::vector<Arrival> without_rank;
  for (const auto& [arrival, seat] : seats_) {
    if (!seat.peer || seat.plays()) continue;
    if (seat.worker()) {
      if (seat.rank < cast.workers.size()) cast.workers[seat.rank] = arrival;
      continue;
    }
    const std::uint32_t wish = seat.rank != kNoRank ? seat.rank : seat.join.wanted_rank;
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

namespace {

// That of the fastest card of workers or of servers, whichever are slower; 0: not known, or none is used. (One slow
// card among fast ones, or among unknown ones, does not make all frames short: they cost processor time.)
std::uint32_t line_mbps_of(const wire::Roster& roster) {
  if (roster.summing == wire::Summing::kAlone) return 0;
  constexpr std::uint32_t kUnknown = ~0U;
  std::uint32_t workers = 0;
  std::uint32_t servers = 0;
  for (const auto& member : roster.members) {
    std::uint32_t& fastest = member.role == Role::kWorker ? workers : servers;
    fastest = std::max(fastest, member.rate_mbps == 0 ? kUnknown : member.rate_mbps);
  }
  const std::uint32_t slower = std::min(workers, servers);
  return slower == kUnknown ? 0 : slower;
}

}  // namespace

wire::Roster Seats::take(const Cast& roles, Epoch epoch, bool continues) {
  wire::Roster roster;
  roster.epoch = epoch;
  vacant_.clear();
  for (auto& [arrival, seat] : seats_) seat.in_roster = false;
  for (const auto* side : {&roles.workers, &roles.servers}) {
    for (std::uint32_t rank = 0; rank < side->size(); ++rank) {
      Seat& seat = at(*(*side)[rank]);
      seat.in_roster = true;
      seat.rank = rank;
      roster.members.push_back(member_of(seat));
    }
  }
  std::vector<topology::Place> places;
  for (const std::optional<Arrival>& worker : roles.workers)
    places.push_back(at(*worker).join.place);
  give_places(places, roster);
  const Seat& first = at(*roles.workers[0]);
  local_reduce_ = first.join.local_reduce;
  roster.continues = continues;
  roster.summing = summing_of(roster, local_reduce_, first.join.needs_servers);
  roster.slots = slots_of(roster);
  roster.partition_bytes = first.join.partition_bytes;
  roster.frame_bytes = first.join.frame_bytes;
  if (roster.frame_bytes == 0) {
    const std::vector<std::uint32_t> weights = shard_weights_of(roster);
    roster.frame_bytes = Placement::usual_frame_bytes(weights.empty() ? std::vector{1U} : weights,
                                                      line_mbps_of(roster));
  }
  roster.partition_bytes = partition_bytes_of(roster, roster.partition_bytes, roster.frame_bytes);
  return roster;
}

std::vector<FlightPeer> Seats::flight_peers() const {
  std::vector<FlightPeer> members;
  for (const auto& [arrival, seat] : seats_) {
    FlightPeer member;
    member.role = name(seat.join.role);
    member.rank = seat.rank;
    member.host = seat.join.host;
    member.heard_ns = seat.heard_ns;
    member.state = seat.left ? "left" : seat.peer ? "here" : "lost";
    members.push_back(std::move(member));
  }
  return members;
}

}  // namespace byteps
