// NVML's peers by the played library (tests/gpu/fake_nvml.h, which is compared with nvml.h), and without one.
#include "topology/nvml.h"

#include <cstddef>
#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace declared {
#define FAKE_NVML_API
#include "tests/gpu/fake_nvml.h"
}  // namespace declared

namespace byteps::topology {
namespace {

// Laid out as the played ones are.
static_assert(sizeof(Nvml::PciInfo) == sizeof(::declared::NvmlPciInfo));
static_assert(offsetof(Nvml::PciInfo, bus_id) == offsetof(declared::NvmlPciInfo, bus_id));
static_assert(sizeof(Nvml::Code) == sizeof(declared::NvmlResult));

std::vector<std::string> texts(const std::vector<Peer>& peers) {
  std::vector<std::string> all;
  for (const Peer& peer : peers)
    all.push_back(peer.address.text() + " x " + std::to_string(peer.links));
  return all;
}

PciAddress address(const char* text) {
  return PciAddress::parse(text).value();
}

TEST(Nvml, without_a_library_there_is_no_nvlink) {
  const auto nvml = load_nvml("/nonexistent/libnvidia-ml.so.1");
  ASSERT_FALSE(nvml.is_ok());
  EXPECT_TRUE(nvml.status().is(Code::kUnsupported));
  EXPECT_THAT(nvml.status().message(), testing::HasSubstr("/nonexistent/libnvidia-ml.so.1"));
}

TEST(Nvml, a_library_of_something_else_is_none) {
  EXPECT_THAT(load_nvml("libc.so.6").status().message(), testing::HasSubstr("lacks a function"));
}

TEST(Nvml, peers_are_counted_by_address) {
  ::setenv("FAKE_GPU_COUNT", "3", 1);            // NOLINT(concurrency-mt-unsafe): no other thread
  ::setenv("FAKE_GPU_LINKS", "0-1:2,0-2:1", 1);  // NOLINT(concurrency-mt-unsafe): likewise
  const auto nvml = load_nvml(FAKE_NVML_LIBRARY);
  ASSERT_TRUE(nvml.is_ok()) << nvml.status().text();
  EXPECT_THAT(texts(peers_of(nvml.value(), address("0000:01:00.0"))),
              testing::ElementsAre("0000:02:00.0 x 2", "0000:03:00.0 x 1"));
  EXPECT_THAT(peers_of(nvml.value(), address("0000:77:00.0")), testing::IsEmpty());
}

TEST(Nvml, devices_have_addresses_and_uuids_in_their_order) {
  ::setenv("FAKE_GPU_COUNT", "3", 1);  // NOLINT(concurrency-mt-unsafe): no other thread
  const auto nvml = load_nvml(FAKE_NVML_LIBRARY);
  ASSERT_TRUE(nvml.is_ok()) << nvml.status().text();
  const std::vector<ListedDevice> devices = devices_of(nvml.value());
  ASSERT_EQ(devices.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(devices[i].address.text(), "0000:0" + std::to_string(i + 1) + ":00.0");
  }
  EXPECT_EQ(devices[1].uuid, "GPU-2468acf0-0000-4000-8000-000000000000");
}

TEST(Nvml, a_session_keeps_it_initialised) {
  auto nvml = load_nvml(FAKE_NVML_LIBRARY);
  ASSERT_TRUE(nvml.is_ok()) << nvml.status().text();
  unsigned count = 0;
  EXPECT_NE(nvml.value().device_count(&count), 0U) << "nobody has begun it";
  {
    const NvmlSession session(nvml.value());
    EXPECT_THAT(devices_of(nvml.value()), testing::Not(testing::IsEmpty()));
    EXPECT_EQ(nvml.value().device_count(&count), 0U) << "a session within it has not ended it";
  }
  EXPECT_NE(nvml.value().device_count(&count), 0U);
  nvml.value().init = [] { return Nvml::Code{999}; };
  nvml.value().shutdown = []() -> Nvml::Code {
    ADD_FAILURE() << "what has not begun is not ended";
    return 0;
  };
  EXPECT_THAT(devices_of(nvml.value()), testing::IsEmpty());
  EXPECT_THAT(peers_of(nvml.value(), address("0000:01:00.0")), testing::IsEmpty());
}

}  // namespace
}  // namespace byteps::topology
