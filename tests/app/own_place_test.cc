// Where a worker is by a played NVML (tests/gpu/fake_nvml.h), whose devices are 0000:01:00.0 and the following, and a
// folder that looks like /sys.
#include "app/own_place.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

namespace byteps {
namespace {

namespace fs = std::filesystem;
using testing::IsEmpty;
using topology::PciAddress;
using topology::Place;

class OwnPlace : public testing::Test {
 protected:
  void SetUp() override {
    ::setenv("FAKE_GPU_COUNT", "2", 1);      // NOLINT(concurrency-mt-unsafe): no other thread
    ::setenv("FAKE_GPU_LINKS", "0-1:2", 1);  // NOLINT(concurrency-mt-unsafe): likewise
    const fs::path port = sys_ / "devices/pci0000:00/0000:00:02.0";
    add_function(port / "0000:02:00.0", "0x030200");
    fs::create_directories(sys_ / "bus/pci/devices");
    fs::create_directory_symlink(port / "0000:02:00.0", sys_ / "bus/pci/devices/0000:02:00.0");
    add_function(port / "0000:05:00.0", "0x020000");
    fs::create_directories(sys_ / "class/net/eth7");
    fs::create_directory_symlink(port / "0000:05:00.0", sys_ / "class/net/eth7/device");
    std::ofstream(sys_ / "class/net/eth7/speed") << "25000\n";
  }
  void TearDown() override { fs::remove_all(sys_); }

  static void add_function(const fs::path& folder, const char* kind) {
    fs::create_directories(folder);
    std::ofstream(folder / "class") << kind << "\n";
    std::ofstream(folder / "vendor") << "0x10de\n";
    std::ofstream(folder / "numa_node") << "1\n";
  }
  PlaceQuestion question(const char* visible) const {
    return {.local = {},
            .visible = visible,
            .interface = {},
            .card_mbps = 0,
            .sys = sys_.string(),
            .nvml_library = FAKE_NVML_LIBRARY};
  }

  const fs::path sys_ =
      fs::temp_directory_path() / ("byteps-own-place-" + std::to_string(getpid()));
};

TEST_F(OwnPlace, is_what_nvml_and_the_kernel_say_of_the_visible_device) {
  const Place place = own_place(question("1"));
  ASSERT_EQ(place.device.size(), 2U);
  EXPECT_EQ(place.device[1].address, PciAddress::parse("0000:02:00.0"));
  EXPECT_EQ(place.device_node, 1);
  ASSERT_EQ(place.card.size(), 2U);
  EXPECT_EQ(place.card[1].address, PciAddress::parse("0000:05:00.0"));
  EXPECT_EQ(place.card_mbps, 25'000U);
  ASSERT_EQ(place.peers.size(), 1U);
  EXPECT_EQ(place.peers[0].address, PciAddress::parse("0000:01:00.0"));
  EXPECT_EQ(place.peers[0].links, 2);
}

TEST_F(OwnPlace, has_the_cards_rate_that_is_said) {
  PlaceQuestion asked = question("1");
  asked.card_mbps = 777;
  EXPECT_EQ(own_place(asked).card_mbps, 777U);
}

TEST_F(OwnPlace, is_none_where_the_device_cannot_be_told) {
  EXPECT_EQ(own_place(question("0,1")), Place());
  EXPECT_EQ(own_place(question("")), Place());
  PlaceQuestion asked = question("1");
  asked.nvml_library = "/nonexistent/libnvidia-ml.so.1";
  EXPECT_EQ(own_place(asked), Place());
}

TEST_F(OwnPlace, is_none_where_somebody_does_not_answer) {
  const fs::path pipe = sys_ / "class/net/eth7/speed";
  fs::remove(pipe);
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto begun = std::chrono::steady_clock::now();
  EXPECT_EQ(own_place(question("1"), 50 * kMillisecond), Place());
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
  std::ofstream(pipe) << "1\n";  // who has hung there ends
}

TEST(PlaceQuestion, is_what_the_settings_say) {
  const Environment environment = {{"DMLC_INTERFACE", "eth1"},        {"BYTEPS_NIC_MBPS", "100"},
                                   {"DMLC_NUM_WORKER", "1"},          {"DMLC_NUM_SERVER", "0"},
                                   {"DMLC_PS_ROOT_URI", "127.0.0.1"}, {"DMLC_PS_ROOT_PORT", "9000"},
                                   {"BYTEPS_LOCAL_RANK", "1"},        {"BYTEPS_LOCAL_SIZE", "2"},
                                   {"CUDA_VISIBLE_DEVICES", "2,3"}};
  const auto parsed = parse_environment(Role::kWorker, environment);
  ASSERT_TRUE(parsed.is_ok()) << parsed.status().text();
  EXPECT_THAT(parsed.value().warnings, IsEmpty());
  const PlaceQuestion asked = place_question(parsed.value(), environment);
  EXPECT_EQ(asked.interface, "eth1");
  EXPECT_EQ(asked.card_mbps, 100U);
  EXPECT_EQ(asked.visible, "2,3");
  EXPECT_EQ(asked.local.rank, 1U);
  EXPECT_TRUE(asked.local.is_said);
  EXPECT_EQ(place_question(parsed.value(), {}).visible, std::nullopt);
}

}  // namespace
}  // namespace byteps
