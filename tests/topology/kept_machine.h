// KeptMachine: a folder that looks like the /sys of a machine of tests/topology/machines, and what its NVML would say.
#pragma once

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <unistd.h>

#include "topology/nvml.h"
#include "topology/survey.h"

namespace byteps::topology {

class KeptMachine {
 public:
  explicit KeptMachine(const std::string& name)
      : root_(std::filesystem::temp_directory_path() /
              ("byteps-" + name + "-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(root_);
    std::ifstream file("tests/topology/machines/" + name + ".txt");
    EXPECT_TRUE(file.is_open()) << "no machine " << name << "; run in the repository's root";
    for (std::string line; std::getline(file, line);) {
      if (!line.empty() && line[0] != '#') add(line);
    }
  }
  ~KeptMachine() { std::filesystem::remove_all(root_); }
  KeptMachine(const KeptMachine&) = delete;
  KeptMachine& operator=(const KeptMachine&) = delete;

  std::string root() const { return root_; }
  Sysfs sysfs() const { return Sysfs(root()); }
  std::vector<Peer> peers_of(const PciAddress& device) const {
    std::vector<Peer> peers;
    const auto found = links_.find(device);
    if (found == links_.end()) return peers;
    for (const auto& [other, count] : found->second) peers.push_back({other, count});
    return peers;
  }
  Survey survey() const {
    return survey_of(sysfs(), [this](const PciAddress& device) { return peers_of(device); });
  }

 private:
  void add(const std::string& line) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (first == "node") {
      words >> node_;
    } else if (first == "nvlink") {
      std::string one, other;
      int count = 0;
      words >> one >> other >> count;
      const auto address = [](const std::string& text) {
        return text == "unseen" ? kUnseenSwitch : PciAddress::parse("0000:" + text).value();
      };
      links_[address(one)][address(other)] = static_cast<std::uint8_t>(count);
      links_[address(other)][address(one)] = static_cast<std::uint8_t>(count);
    } else {
      add_function(line.find_first_not_of(' ') / 2, first, words);
    }
  }

  void add_function(std::size_t depth, const std::string& address, std::istringstream& words) {
    std::string kind, speed, width, name, mbps;
    words >> kind >> speed >> width >> name >> mbps;
    folders_.resize(depth);
    const auto parent =
        depth == 0 ? root_ / "devices" / ("pci" + address.substr(0, 7)) : folders_.back();
    const auto folder = parent / address;
    folders_.push_back(folder);
    std::filesystem::create_directories(folder);
    write(folder / "class", kind == "gpu"      ? "0x030200"
                            : kind == "bridge" ? "0x060400"
                                               : "0x020000");
    write(folder / "vendor", kind == "gpu" ? "0x10de" : "0x15b3");
    write(folder / "numa_node", std::to_string(node_));
    if (speed != "-") {
      const std::string now = name == "idle" ? mbps : speed;
      write(folder / "max_link_speed", speed + " GT/s PCIe");
      write(folder / "current_link_speed", now + " GT/s PCIe");
      write(folder / "current_link_width", width.substr(1));
    }
    std::filesystem::create_directories(root_ / "bus/pci/devices");
    std::filesystem::create_directory_symlink(folder, root_ / "bus/pci/devices" / address);
    if (kind == "card" || kind == "virtio") {
      add_interface(kind == "virtio" ? folder / "virtio0" : folder, name, mbps);
    }
  }

  void add_interface(const std::filesystem::path& device, const std::string& name,
                     const std::string& mbps) {
    std::filesystem::create_directories(device / "net" / name);
    std::filesystem::create_directory_symlink(device, device / "net" / name / "device");
    write(device / "net" / name / "speed", mbps);
    std::filesystem::create_directories(root_ / "class/net");
    std::filesystem::create_directory_symlink(device / "net" / name, root_ / "class/net" / name);
  }

  static void write(const std::filesystem::path& path, const std::string& text) {
    std::ofstream(path) << text << "\n";
  }

  const std::filesystem::path root_;
  int node_ = -1;
  std::vector<std::filesystem::path> folders_;
  std::map<PciAddress, std::map<PciAddress, std::uint8_t>> links_;
};

}  // namespace byteps::topology
