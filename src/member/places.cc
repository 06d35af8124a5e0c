#include "member/places.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "base/limits.h"

namespace byteps {
namespace {

constexpr std::size_t kEntryBytes =
    10;  // beside a place: its length in the list, tag, type, length

}  // namespace

void give_places(const std::vector<topology::Place>& places, wire::Roster& roster) {
  std::map<std::vector<std::byte>, std::uint32_t> numbers;  // by what is sent
  std::size_t bytes = 0;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    if (places[rank].device.empty()) continue;
    std::vector<std::byte> encoded = topology::encode(places[rank]);
    const std::size_t entry_bytes = encoded.size() + kEntryBytes;
    const auto number = static_cast<std::uint32_t>(roster.places.size() + 1);
    const auto [known, is_new] = numbers.emplace(std::move(encoded), number);
    if (is_new) {
      roster.places.push_back(places[rank]);
      bytes += entry_bytes;
    }
    roster.members[rank].place = known->second;
  }
  if (bytes <= kPlacesBytesMax) return;
  roster.places.clear();
  for (wire::RosterMember& member : roster.members) member.place = 0;
}

std::vector<topology::Place> places_of(const wire::Roster& roster,
                                       const std::vector<WorkerRank>& workers) {
  std::vector<topology::Place> places;
  for (const WorkerRank worker : workers) {
    const std::uint32_t number = roster.members[worker.value].place;
    places.push_back(number > 0 ? roster.places[number - 1] : topology::Place());
  }
  return places;
}

}  // namespace byteps
