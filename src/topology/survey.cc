#include "topology/survey.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>

#include "topology/machine.h"

namespace byteps::topology {
namespace {

// What is told of one GPU or card, and where it is.
struct Entry {
  const Found* found = nullptr;
  std::string text;
};

std::string gbits(std::uint32_t mbps) {
  const std::string tenth = mbps % 1000 < 100 ? "" : "." + std::to_string(mbps % 1000 / 100);
  return std::to_string(mbps / 1000) + tenth + " Gbit/s";
}

// Of the wire that ends at this hop: what both of its ends can do.
std::uint32_t rate_at(const std::vector<Hop>& path, std::size_t hop) {
  const std::uint32_t below = path[hop].rate_mbps;
  const std::uint32_t above = hop % 2 == 1 ? path[hop - 1].rate_mbps : 0;
  return below == 0 || above == 0 ? std::max(below, above) : std::min(below, above);
}

std::string text_of_wire(const std::vector<Hop>& path, std::size_t hop) {
  const std::uint32_t mbps = rate_at(path, hop);
  return mbps == 0 ? ", its wire is not told" : ", wire of " + gbits(mbps);
}

std::string text_of(const Found& found, std::size_t number, bool is_gpu, const Place* place) {
  const std::string address = found.path.back().address.text();
  std::string text = is_gpu ? "GPU " + std::to_string(number) : "card " + found.name;
  text += " " + address;
  if (!is_gpu) text += found.rate_mbps > 0 ? ", " + gbits(found.rate_mbps) : ", rate not told";
  text += text_of_wire(found.path, found.path.size() - 1);
  std::size_t links = 0;
  if (place != nullptr) {
    for (const Peer& peer : place->peers) links += peer.links;
  }
  return links == 0 ? text : text + ", " + std::to_string(links) + " NVLinks";
}

// Those that have the first `hops` of their paths in common, from `first` on.
void draw(const std::vector<Entry>& entries, std::size_t hops, const std::string& indent,
          std::vector<std::string>& lines) {
  std::vector<bool> is_drawn(entries.size(), false);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (is_drawn[i]) continue;
    const std::vector<Hop>& path = entries[i].found->path;
    std::vector<Entry> behind;
    std::size_t common = path.size();
    for (std::size_t j = i; j < entries.size(); ++j) {
      const std::vector<Hop>& other = entries[j].found->path;
      if (is_drawn[j] || other.size() <= hops || other[hops].address != path[hops].address)
        continue;
      is_drawn[j] = true;
      behind.push_back(entries[j]);
      std::size_t same = hops;
      while (same < std::min(path.size(), other.size()) &&
             path[same].address == other[same].address) {
        ++same;
      }
      common = std::min(common, same);
    }
    if (behind.size() == 1 || common >= path.size()) {
      for (const Entry& entry : behind) lines.push_back(indent + entry.text);
      continue;
    }
    lines.push_back(indent + "switch " + path[common - 1].address.text() +
                    text_of_wire(path, common - 1));
    draw(behind, common, indent + "  ", lines);
  }
}

}  // namespace

Place place_of(const Found& gpu, const Found& card, std::vector<Peer> peers) {
  return {.device = gpu.path,
          .card = card.path,
          .device_node = gpu.node,
          .card_node = card.node,
          .card_mbps = card.rate_mbps,
          .peers = std::move(peers)};
}

Place place_at(const Sysfs& sysfs, const PciAddress& device, const std::string& interface,
               const PeersOf& peers_of) {
  Found gpu = sysfs.device(device.text());
  if (gpu.path.empty()) gpu.path = {{.address = device, .rate_mbps = 0}};
  if (!interface.empty()) return place_of(gpu, sysfs.card(interface), peers_of(device));
  const std::vector<Found> cards = sysfs.cards();
  if (cards.empty()) return place_of(gpu, {}, peers_of(device));
  // Devices with several nearest cards take turns, in order of address: all of the machine's, whoever may use them.
  std::size_t turn = 0;
  for (const Found& other : sysfs.gpus()) {
    if (other.path.back().address < device) ++turn;
  }
  return place_of(gpu, cards[nearest_card(gpu.path, gpu.node, cards, turn)], peers_of(device));
}

Survey survey_of(const Sysfs& sysfs, const PeersOf& peers_of) {
  Survey survey{.gpus = sysfs.gpus(), .cards = sysfs.cards(), .places = {}};
  for (std::size_t i = 0; i < survey.gpus.size(); ++i) {
    const Found& gpu = survey.gpus[i];
    const Found card = survey.cards.empty()
                           ? Found()
                           : survey.cards[nearest_card(gpu.path, gpu.node, survey.cards, i)];
    survey.places.push_back(place_of(gpu, card, peers_of(gpu.path.back().address)));
  }
  return survey;
}

std::vector<std::string> drawing_of(const Survey& survey) {
  std::map<int, std::vector<Entry>> nodes;
  for (std::size_t i = 0; i < survey.gpus.size(); ++i) {
    const Found& gpu = survey.gpus[i];
    nodes[gpu.node].push_back({&gpu, text_of(gpu, i, true, &survey.places[i])});
  }
  for (const Found& card : survey.cards) {
    nodes[card.node].push_back({&card, text_of(card, 0, false, nullptr)});
  }
  std::vector<std::string> lines;
  for (auto& [node, entries] : nodes) {
    std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
      return a.found->path.back().address < b.found->path.back().address;
    });
    lines.push_back(node < 0 ? "node not told" : "node " + std::to_string(node));
    draw(entries, 0, "  ", lines);
  }
  return lines;
}

}  // namespace byteps::topology
