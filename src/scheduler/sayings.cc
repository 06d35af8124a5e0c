#include "scheduler/sayings.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/limits.h"
#include "base/phrases.h"
#include "member/summing.h"

namespace byteps {
namespace {

constexpr std::size_t kListedMax = 16;  // members named one by one; the others are counted

struct Mention {
  const Seat* seat;
  std::uint32_t rank;  // which the seat may not have yet
};

std::string list_of(const std::vector<Mention>& seats, TimeNs now) {
  std::string text;
  for (std::size_t i = 0; i < std::min(seats.size(), kListedMax); ++i) {
    const auto& [seat, rank] = seats[i];
    text += (i > 0 ? ", " : "") + member_text(seat->join, rank) + " since " +
            duration_text(now - seat->since_ns);
  }
  if (seats.size() > kListedMax) {
    text += " and " + std::to_string(seats.size() - kListedMax) + " more";
  }
  return text;
}

std::vector<std::uint32_t> missing(const std::vector<std::optional<Arrival>>& side) {
  std::vector<std::uint32_t> ranks;
  for (std::uint32_t rank = 0; rank < side.size(); ++rank) {
    if (!side[rank]) ranks.push_back(rank);
  }
  return ranks;
}

std::string missing_text(const Cast& roles) {
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

}  // namespace

// What the workers say about the job's size counts: a scheduler may count machines where they count processes. But
// that others were started for another size may be why somebody is missing. Later generations may have any size.
std::string other_sizes_text(const Scene& scene) {
  const std::map<Arrival, Seat>& seats = scene.seats.all();
  const bool first = scene.epoch.value == (scene.is_gathering ? 0 : 1);
  const auto worker = std::find_if(seats.begin(), seats.end(), [](const auto& entry) {
    return entry.second.worker() && entry.second.join.server_count > 0;
  });
  if (!first || worker == seats.end()) return "";
  const wire::Join& join = worker->second.join;
  const auto says = [](std::uint32_t workers, std::uint32_t servers) {
    return " was started for " + std::to_string(workers) + " workers and " +
           std::to_string(servers) + " servers";
  };
  std::string others;
  const bool same_workers = join.worker_count == 0 || join.worker_count == scene.job.worker_count;
  const bool same_servers =
      scene.job.server_count == 0 || join.server_count == scene.job.server_count;
  const bool complete = !scene.is_gathering;
  if (!same_servers || (!same_workers && !complete)) {
    others += "the scheduler" + says(scene.job.worker_count, scene.job.server_count);
  }
  for (const auto& [arrival, seat] : seats) {
    const std::uint32_t servers = seat.join.server_count;
    if (seat.worker() || servers == 0 || servers == join.server_count) continue;
    others += (others.empty() ? "" : ", ") + seat.text() + says(seat.join.worker_count, servers);
    break;
  }
  if (others.empty()) return "";
  return worker->second.text() + says(join.worker_count, join.server_count) + ", but " + others +
         ": DMLC_NUM_WORKER and DMLC_NUM_SERVER should be equal everywhere";
}

std::string waiting_text(const Scene& scene, const std::string& last_refusal, TimeNs now) {
  const Cast roles = scene.seats.cast();
  const auto rank_of = [&](Arrival arrival, const Seat& seat) {
    const auto place = std::find(roles.servers.begin(), roles.servers.end(), arrival);
    if (seat.worker() || seat.in_roster || place == roles.servers.end()) return seat.rank;
    return static_cast<std::uint32_t>(place - roles.servers.begin());
  };
  std::vector<Mention> here;
  std::vector<Mention> lost;
  std::vector<Mention> behind;  // servers that do not work with the new epoch yet
  for (const bool workers : {true, false}) {
    for (const auto& [arrival, seat] : scene.seats.all()) {
      if (seat.worker() != workers || seat.left) continue;
      const Mention mention{&seat, rank_of(arrival, seat)};
      (seat.peer ? here : lost).push_back(mention);
      if (seat.in_roster && !workers && seat.applied != scene.epoch) behind.push_back(mention);
    }
  }
  std::string text;
  if (scene.is_confirming) {
    text = "waiting until all servers have taken up epoch " + std::to_string(scene.epoch.value) +
           "; not yet: " + list_of(behind, now);
  } else {
    text = "waiting for " + missing_text(roles) +
           "; here: " + (here.empty() ? "nobody" : list_of(here, now));
  }
  const std::string sizes = other_sizes_text(scene);
  if (!sizes.empty()) text += "; " + sizes;
  if (!lost.empty()) text += "; lost its connection: " + list_of(lost, now);
  if (!last_refusal.empty()) text += "; refused: " + printable(last_refusal, 512);
  return printable(text, kTextBytesMax);
}

Cause waiting_cause(const Scene& scene) {
  Cause cause{.kind = CauseKind::kIncomplete};
  if (scene.is_confirming) return cause;  // all have come
  const Cast roles = scene.seats.cast();
  cause.missing_workers = missing(roles.workers);
  cause.missing_servers = missing(roles.servers);
  cause.detail = missing_text(roles);
  return cause;
}

Status went_on_without(const std::string& worker) {
  return {Code::kDisconnected,
          worker + " was away for too long: the job goes on without it, and its rank is vacant",
          {.kind = CauseKind::kReplaced}};
}

std::string running_text(const Seats& seats, TimeNs now) {
  std::vector<Mention> running;
  for (const auto& [arrival, seat] : seats.all()) {
    if (seat.plays() && !seat.left) running.push_back({&seat, seat.rank});
  }
  return "waiting until the workers that run now have left: " + list_of(running, now);
}

std::string who_sums_text(const wire::Roster& roster, std::size_t servers) {
  const std::string at_servers = std::to_string(servers) + (servers == 1 ? " server" : " servers");
  if (roster.summing == wire::Summing::kServers) return at_servers;
  const std::vector<Crew> machines = groups_of(roster).crews_of(Members());
  std::size_t least = machines.front().size();
  for (const Crew& crew : machines) least = std::min(least, crew.size());
  const std::size_t most = groups_of(roster).most_ranks();
  std::string text = "relays of ";
  text += machines.size() == 1 ? "one machine" : std::to_string(machines.size()) + " machines";
  text += " with " + (least < most ? std::to_string(least) + " to " : "") + std::to_string(most) +
          (most == 1 ? " worker" : " workers") + (machines.size() == 1 ? "" : " each");
  return text + (roster.summing == wire::Summing::kAlone ? " alone" : ", then " + at_servers);
}

std::vector<std::string> summing_texts(const wire::Roster& roster, std::size_t servers,
                                       bool local_reduce) {
  std::vector<std::string> texts;
  if (servers > 0 && roster.summing == wire::Summing::kAlone) {
    texts.push_back(std::to_string(servers) + (servers == 1 ? " server is" : " servers are") +
                    " not used: all workers are on one machine, and sum there themselves "
                    "(BYTEPS_FORCE_DISTRIBUTED=1 uses servers all the same)");
  }
  if (const auto without = who_has_no_relay(roster, local_reduce)) {
    texts.push_back(
        "worker " + std::to_string(without->value) + " (" + roster.members[without->value].host +
        ") has no relay (is BYTEPS_LOCAL_REDUCE=0 there?), so each worker exchanges with "
        "the servers by itself, and machines with several send as many copies");
  } else if (local_reduce && roster.summing == wire::Summing::kServers &&
             is_beyond_relays(roster)) {
    texts.push_back("a machine has more than " + std::to_string(wire::kLostPlacesMax) +
                    " workers, and the job goes on without one that is lost "
                    "(BYTEPS_ON_WORKER_LOSS=continue), so each worker exchanges with the servers "
                    "by itself, and machines with several send as many copies");
  }
  return texts;
}

}  // namespace byteps
