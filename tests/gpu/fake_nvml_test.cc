#include "tests/gpu/fake_nvml.h"

#include <cstdlib>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace {

// Four devices, two of them at a switch, and one on a node of its own.
class FakeNvml : public testing::Test {
 protected:
  void SetUp() override {
    setenv("FAKE_GPU_COUNT", "4", 1);
    setenv("FAKE_GPU_PLACES", "0.0,0.0,0.1,1.0", 1);
    setenv("FAKE_GPU_LINKS", "0-1:2,1-2:1", 1);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    ASSERT_EQ(nvmlInit_v2(), kNvmlSuccess);
    for (unsigned i = 0; i < devices_.size(); ++i) {
      ASSERT_EQ(nvmlDeviceGetHandleByIndex_v2(i, &devices_[i]), kNvmlSuccess);
    }
  }
  void TearDown() override {
    for (const char* name :
         {"FAKE_GPU_COUNT", "FAKE_GPU_PLACES", "FAKE_GPU_LINKS", "CUDA_VISIBLE_DEVICES"}) {
      unsetenv(name);
    }
    EXPECT_EQ(nvmlShutdown(), kNvmlSuccess);
  }
  std::vector<NvmlDevice*> devices_ = std::vector<NvmlDevice*>(4);
};

TEST_F(FakeNvml, all_devices_of_the_machine_are_told_whatever_is_visible) {
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), kNvmlSuccess);
  EXPECT_EQ(count, 4U);
  NvmlPciInfo info;
  EXPECT_EQ(nvmlDeviceGetPciInfo_v3(devices_[2], &info), kNvmlSuccess);
  EXPECT_EQ(std::string(info.bus_id), "00000000:03:00.0");
  EXPECT_EQ(std::string(info.legacy_bus_id), "0000:03:00.0");
  NvmlDevice* found = nullptr;
  for (const char* id : {info.bus_id, info.legacy_bus_id}) {
    EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2(id, &found), kNvmlSuccess);
    EXPECT_EQ(found, devices_[2]);
  }
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2("0000:05:00.0", &found), kNvmlNotFound);
  EXPECT_EQ(nvmlDeviceGetHandleByPciBusId_v2("05", &found), kNvmlInvalidArgument);
  EXPECT_EQ(nvmlDeviceGetHandleByIndex_v2(4, &found), kNvmlInvalidArgument);
}

TEST_F(FakeNvml, devices_have_uuids_that_differ) {
  char one[96];
  char other[96];
  EXPECT_EQ(nvmlDeviceGetUUID(devices_[0], one, sizeof one), kNvmlSuccess);
  EXPECT_EQ(nvmlDeviceGetUUID(devices_[1], other, sizeof other), kNvmlSuccess);
  EXPECT_EQ(std::string(one), "GPU-12345678-0000-4000-8000-000000000000");
  EXPECT_NE(std::string(one), other);
  EXPECT_EQ(nvmlDeviceGetUUID(devices_[0], one, 40), kNvmlInsufficientSize);
}

TEST_F(FakeNvml, links_lead_to_devices) {
  unsigned is_active = 0;
  for (unsigned link = 0; link < 4; ++link) {
    EXPECT_EQ(nvmlDeviceGetNvLinkState(devices_[1], link, &is_active), kNvmlSuccess);
    EXPECT_EQ(is_active, link < 3 ? 1U : 0U);
  }
  NvmlPciInfo info;
  EXPECT_EQ(nvmlDeviceGetNvLinkRemotePciInfo_v2(devices_[1], 2, &info), kNvmlSuccess);
  EXPECT_EQ(info.bus, 3U);
  EXPECT_EQ(nvmlDeviceGetNvLinkRemotePciInfo_v2(devices_[1], 3, &info), kNvmlNotSupported);
  EXPECT_EQ(nvmlDeviceGetNvLinkState(devices_[3], 0, &is_active), kNvmlNotSupported);
}

TEST_F(FakeNvml, devices_meet_at_a_switch_a_node_or_the_system) {
  const auto level = [&](std::size_t a, std::size_t b) {
    NvmlLevel found = kNvmlSystem;
    EXPECT_EQ(nvmlDeviceGetTopologyCommonAncestor(devices_[a], devices_[b], &found), kNvmlSuccess);
    return found;
  };
  EXPECT_EQ(level(0, 0), kNvmlInternal);
  EXPECT_EQ(level(0, 1), kNvmlSingle);
  EXPECT_EQ(level(0, 2), kNvmlHostBridge);
  EXPECT_EQ(level(2, 3), kNvmlSystem);
}

TEST_F(FakeNvml, nothing_works_before_it_is_initialised) {
  EXPECT_EQ(nvmlShutdown(), kNvmlSuccess);
  unsigned count = 0;
  EXPECT_EQ(nvmlDeviceGetCount_v2(&count), kNvmlUninitialized);
  EXPECT_EQ(std::string(nvmlErrorString(kNvmlUninitialized)), "Uninitialized");
  EXPECT_EQ(nvmlInit_v2(), kNvmlSuccess);
}

}  // namespace
