#include "topology/visible.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <string_view>

namespace byteps::topology {
namespace {

// The device that a word of CUDA_VISIBLE_DEVICES names.
const ListedDevice* named(const std::vector<ListedDevice>& all, std::string_view word) {
  if (word.starts_with("GPU-")) {
    const auto is_meant = [&](const ListedDevice& device) { return device.uuid.starts_with(word); };
    if (std::count_if(all.begin(), all.end(), is_meant) != 1) return nullptr;
    return &*std::find_if(all.begin(), all.end(), is_meant);
  }
  std::size_t number = 0;
  const char* const end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(word.data(), end, number);
  return error == std::errc() && stop == end && number < all.size() ? &all[number] : nullptr;
}

}  // namespace

std::vector<PciAddress> visible_devices(const std::vector<ListedDevice>& all,
                                        const std::optional<std::string>& said) {
  std::vector<PciAddress> visible;
  if (!said) {
    for (const ListedDevice& device : all) visible.push_back(device.address);
    return visible;
  }
  std::string_view rest = *said;
  while (!rest.empty()) {
    const std::string_view word = rest.substr(0, rest.find(','));
    const ListedDevice* const device = named(all, word);
    if (device == nullptr) break;
    visible.push_back(device->address);
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
  }
  return visible;
}

std::optional<PciAddress> device_of(const std::vector<PciAddress>& visible,
                                    const LocalPlace& local) {
  if (visible.size() == 1) return visible.front();
  if (!local.is_said || local.rank >= visible.size()) return std::nullopt;
  return visible[local.rank];
}

}  // namespace byteps::topology
