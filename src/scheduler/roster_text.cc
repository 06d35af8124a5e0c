// What RosterKeeper says to people.
#include <algorithm>

#include "base/phrases.h"
#include "scheduler/roster.h"

namespace byteps {
namespace {

constexpr std::size_t kListedMax = 16;  // members named one by one; the others are counted

}  // namespace

std::string RosterKeeper::describe(const wire::Join& join, std::uint32_t rank) const {
  std::string text = name(join.role);
  if (rank != Hello::kNoRank) text += " " + std::to_string(rank);
  text += " (" + (join.host.empty() ? "unknown host" : printable(join.host, kHostTextBytesMax));
  if (!join.endpoints.empty()) {
    text += " at " + printable(join.endpoints[0].text(), kHostTextBytesMax);
  }
  return text + ")";
}

std::string RosterKeeper::describe(const Seat& seat) const {
  return describe(seat.join, seat.rank);
}

std::string RosterKeeper::who(PeerId peer) const {
  const auto connection = connections_.find(peer);
  const bool seated = connection != connections_.end() && connection->second.seat.has_value();
  return seated ? describe(seats_.at(*connection->second.seat)) : "a process that has not joined";
}

std::vector<FlightPeer> RosterKeeper::members() const {
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

std::string RosterKeeper::list_of(const std::vector<Mention>& seats, TimeNs now) const {
  std::string text;
  for (std::size_t i = 0; i < std::min(seats.size(), kListedMax); ++i) {
    const auto& [seat, rank] = seats[i];
    text += (i > 0 ? ", " : "") + describe(seat->join, rank) + " since " +
            duration_text(now - seat->since_ns);
  }
  if (seats.size() > kListedMax) {
    text += " and " + std::to_string(seats.size() - kListedMax) + " more";
  }
  return text;
}

std::string RosterKeeper::missing_text(const Cast& roles) const {
  const auto missing = [](const std::vector<std::optional<Arrival>>& side) {
    std::vector<std::uint32_t> ranks;
    for (std::uint32_t rank = 0; rank < side.size(); ++rank) {
      if (!side[rank]) ranks.push_back(rank);
    }
    return ranks;
  };
  const std::vector<std::uint32_t> workers = missing(roles.workers);
  const std::vector<std::uint32_t> servers = missing(roles.servers);
  std::string text;
  if (!workers.empty()) {
    text += missing_ranks("worker", workers, static_cast<std::uint32_t>(roles.workers.size()));
  }
  if (!servers.empty()) {
    if (!text.empty()) text += " and ";
    text += missing_ranks("server", servers, static_cast<std::uint32_t>(roles.servers.size()));
  }
  return text.empty() ? "nobody" : text;
}

// What the workers say about the job's size counts: a scheduler may count machines where they count processes. But
// that others were started for another size may be why somebody is missing. Later generations may have any size.
std::string RosterKeeper::other_sizes_text() const {
  const bool first = epoch_.value == (phase_ == Phase::kGathering ? 0 : 1);
  const auto worker = std::find_if(seats_.begin(), seats_.end(), [](const auto& entry) {
    return entry.second.worker() && entry.second.join.server_count > 0;
  });
  if (!first || worker == seats_.end()) return "";
  const wire::Join& join = worker->second.join;
  const auto says = [](std::uint32_t workers, std::uint32_t servers) {
    return " was started for " + std::to_string(workers) + " workers and " +
           std::to_string(servers) + " servers";
  };
  std::string others;
  const bool same_workers = join.worker_count == 0 || join.worker_count == job_.worker_count;
  const bool same_servers = job_.server_count == 0 || join.server_count == job_.server_count;
  const bool complete = phase_ != Phase::kGathering;
  if (!same_servers || (!same_workers && !complete)) {
    others += "the scheduler" + says(job_.worker_count, job_.server_count);
  }
  for (const auto& [arrival, seat] : seats_) {
    const std::uint32_t servers = seat.join.server_count;
    if (seat.worker() || servers == 0 || servers == join.server_count) continue;
    others += (others.empty() ? "" : ", ") + describe(seat) + says(seat.join.worker_count, servers);
    break;
  }
  if (others.empty()) return "";
  return describe(worker->second) + says(join.worker_count, join.server_count) + ", but " + others +
         ": DMLC_NUM_WORKER and DMLC_NUM_SERVER should be equal everywhere";
}

std::string RosterKeeper::waiting_text(TimeNs now) const {
  const Cast roles = cast();
  const auto rank_of = [&](Arrival arrival, const Seat& seat) {
    const auto place = std::find(roles.servers.begin(), roles.servers.end(), arrival);
    if (seat.worker() || seat.in_roster || place == roles.servers.end()) return seat.rank;
    return static_cast<std::uint32_t>(place - roles.servers.begin());
  };
  std::vector<Mention> here;
  std::vector<Mention> lost;
  std::vector<Mention> behind;  // servers that do not work with the new epoch yet
  for (const bool workers : {true, false}) {
    for (const auto& [arrival, seat] : seats_) {
      if (seat.worker() != workers || seat.left) continue;
      const Mention mention{&seat, rank_of(arrival, seat)};
      (seat.peer ? here : lost).push_back(mention);
      if (seat.in_roster && !workers && seat.applied != epoch_) behind.push_back(mention);
    }
  }
  std::string text;
  if (phase_ == Phase::kConfirming) {
    text = "waiting until all servers have taken up epoch " + std::to_string(epoch_.value) +
           "; not yet: " + list_of(behind, now);
  } else {
    text = "waiting for " + missing_text(roles) +
           "; here: " + (here.empty() ? "nobody" : list_of(here, now));
  }
  const std::string sizes = other_sizes_text();
  if (!sizes.empty()) text += "; " + sizes;
  if (!lost.empty()) text += "; lost its connection: " + list_of(lost, now);
  if (!last_refusal_.empty()) text += "; refused: " + printable(last_refusal_, 512);
  return printable(text, wire::kTextBytesMax);
}

}  // namespace byteps
