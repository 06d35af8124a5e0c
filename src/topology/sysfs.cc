#include "topology/sysfs.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace byteps::topology {
namespace {

namespace fs = std::filesystem;

// "8.0 GT/s PCIe", "2.5 GT/s": in MT/s; 0 for "Unknown".
std::uint64_t transfers_of(const std::string& text) {
  std::uint64_t whole = 0;
  std::uint64_t tenth = 0;
  const char* const end = text.data() + text.size();
  auto [stop, error] = std::from_chars(text.data(), end, whole);
  if (error != std::errc() || whole > 1000) return 0;
  if (stop != end && *stop == '.') {
    const auto after = std::from_chars(stop + 1, std::min(stop + 2, end), tenth);
    stop = after.ptr;
  }
  return std::string_view(stop, static_cast<std::size_t>(end - stop)).starts_with(" GT/s")
             ? whole * 1000 + tenth * 100
             : 0;
}

std::int64_t number_of(const std::string& text, std::int64_t otherwise) {
  std::int64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end ? value : otherwise;
}

// What the lanes carry: 8 of 10 bits of the first two generations, 128 of 130 of the others.
std::uint32_t rate_of(const std::string& speed, const std::string& width) {
  const std::uint64_t transfers = transfers_of(speed);
  const std::int64_t lanes = number_of(width, 0);
  if (transfers == 0 || lanes < 1 || lanes > 64) return 0;
  const std::uint64_t mbps = transfers * static_cast<std::uint64_t>(lanes);
  return static_cast<std::uint32_t>(transfers < 8000 ? mbps * 8 / 10 : mbps * 128 / 130);
}

bool is_of_gpu(const std::string& kind, const std::string& vendor) {
  const bool is_display = kind.starts_with("0x0300") || kind.starts_with("0x0302") ||
                          kind.starts_with("0x0380") || kind.starts_with("0x1200");
  return is_display && (vendor == "0x10de" || vendor == "0x1002");
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "0-3,8,10-11"
bool is_in_list(const std::string& list, std::uint32_t cpu) {
  const char* at = list.data();
  const char* const end = at + list.size();
  while (at < end) {
    std::uint32_t first = 0;
    auto [stop, error] = std::from_chars(at, end, first);
    if (error != std::errc()) return false;
    std::uint32_t last = first;
    if (stop != end && *stop == '-') {
      const auto after = std::from_chars(stop + 1, end, last);
      if (after.ec != std::errc()) return false;
      stop = after.ptr;
    }
    if (first <= cpu && cpu <= last) return true;
    at = stop == end ? end : stop + 1;
  }
  return false;
}

void sort_by_address(std::vector<Found>& found) {
  std::stable_sort(found.begin(), found.end(), [](const Found& a, const Found& b) {
    return a.path.back().address < b.path.back().address;
  });
}

}  // namespace

std::string Sysfs::line(const std::string& file) const {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

// The lanes that are used, at the speed that this end is capable of: an idle GPU slows its link down to 2.5 GT/s, and
// is fast again when something is copied.
std::uint32_t Sysfs::rate_at(const std::string& folder) const {
  std::string speed = line(folder + "/max_link_speed");
  if (transfers_of(speed) == 0) speed = line(folder + "/current_link_speed");
  return rate_of(speed, line(folder + "/current_link_width"));
}

// The functions on the way to a folder are the parts of its real path that are addresses: behind the last of them may
// be what is not PCI's, as virtio0.
Found Sysfs::at(const std::string& folder) const {
  Found found;
  std::error_code error;
  const fs::path real = fs::canonical(folder, error);
  if (error) return found;
  fs::path part;
  for (const fs::path& name : real) {
    part /= name;
    const auto address = PciAddress::parse(name.string());
    if (!address) continue;
    const std::string file = part.string();
    found.path.push_back({.address = *address, .rate_mbps = rate_at(file)});
    const std::int64_t node = number_of(line(file + "/numa_node"), -1);
    if (node >= 0 && node <= kNodeMax) found.node = static_cast<std::int16_t>(node);
  }
  if (found.path.size() > kHopsMax) found.path.clear();
  return found;
}

Found Sysfs::device(const std::string& pci_address) const {
  const auto address = PciAddress::parse(pci_address);
  if (!address) return {};
  return at(root_ + "/bus/pci/devices/" + address->text());
}

Found Sysfs::card(const std::string& interface) const {
  const std::string folder = root_ + "/class/net/" + interface;
  if (interface.empty() || interface.find('/') != std::string::npos) return {};
  Found found = at(folder + "/device");
  found.name = interface;
  const std::int64_t mbps = number_of(line(folder + "/speed"), 0);
  if (mbps > 0 && mbps <= kRateMbpsMax) found.rate_mbps = static_cast<std::uint32_t>(mbps);
  return found;
}

std::vector<Found> Sysfs::gpus() const {
  std::vector<Found> found;
  const std::string folder = root_ + "/bus/pci/devices";
  for (const std::string& name : names_in(folder)) {
    std::string file = folder;
    file.append("/").append(name);
    if (!is_of_gpu(line(file + "/class"), line(file + "/vendor"))) continue;
    Found gpu = device(name);
    gpu.name = "GPU";
    if (!gpu.path.empty()) found.push_back(std::move(gpu));
  }
  sort_by_address(found);
  return found;
}

std::int16_t Sysfs::node_of(const std::vector<std::uint32_t>& cpus) const {
  const std::string folder = root_ + "/devices/system/node";
  for (const std::string& name : names_in(folder)) {
    if (!name.starts_with("node")) continue;
    const std::int64_t node = number_of(name.substr(4), -1);
    if (node < 0 || node > kNodeMax) continue;
    const std::string list = line(folder + "/" + name + "/cpulist");
    const auto is_here = [&](std::uint32_t cpu) { return is_in_list(list, cpu); };
    if (!cpus.empty() && std::all_of(cpus.begin(), cpus.end(), is_here)) {
      return static_cast<std::int16_t>(node);
    }
  }
  return -1;
}

std::vector<Found> Sysfs::cards() const {
  std::vector<Found> found;
  for (const std::string& name : names_in(root_ + "/class/net")) {
    std::error_code error;
    if (fs::exists(root_ + "/class/net/" + name + "/device/physfn", error)) continue;
    Found one = card(name);
    if (!one.path.empty()) found.push_back(std::move(one));
  }
  sort_by_address(found);
  return found;
}

}  // namespace byteps::topology
