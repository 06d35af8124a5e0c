// The parts of RDMA that need no device: what a peer may say, which device belongs to an address, and what there is
// where the library is missing. The arithmetic of rings and credits: rdma_window_test.cc.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "net/rdma/device.h"
#include "net/rdma/queue_pair.h"
#include "net/rdma/verbs.h"

namespace byteps::rdma {
namespace {

constexpr std::size_t kRing = 64 << 10;

// ---- what a peer says

PeerInfo sound_info() {
  PeerInfo info;
  info.mtu = 3;
  info.queue_pair = 0x123456;
  info.packet_number = 0xabcdef;
  info.lid = 7;
  info.gid[15] = 9;
  info.ring_address = 0x7f0000001000;
  info.ring_bytes = kRing;
  info.ring_key = 0xdeadbeef;
  info.writes_max = 512;
  return info;
}

TEST(RdmaPeerInfo, arrives_as_it_was_said) {
  const PeerInfo info = sound_info();
  EXPECT_EQ(decode_peer_info(encode(info)).value(), info);
}

TEST(RdmaPeerInfo, what_breaks_a_limit_is_refused_and_another_version_is_no_offence) {
  const auto is_refused = [](const auto& spoil) {
    PeerInfo info = sound_info();
    spoil(info);
    return decode_peer_info(encode(info)).status().is(Code::kDisconnected);
  };
  EXPECT_TRUE(is_refused([](PeerInfo& info) { info.mtu = 0; }));
  EXPECT_TRUE(is_refused([](PeerInfo& info) { info.mtu = 6; }));
  EXPECT_TRUE(is_refused([](PeerInfo& info) { info.queue_pair = 1 << 24; }));
  EXPECT_TRUE(is_refused([](PeerInfo& info) { info.packet_number = 1 << 24; }));
  EXPECT_TRUE(is_refused([](PeerInfo& info) { info.ring_bytes = kRing + 64; }));
  EXPECT_TRUE(is_refused([](PeerInfo& info) { info.ring_bytes = std::uint64_t{1} << 40; }));
  EXPECT_TRUE(is_refused([](PeerInfo& info) { info.writes_max = 31; }));
  EXPECT_TRUE(is_refused([](PeerInfo& info) { info.writes_max = 1 << 20; }));
  auto bytes = encode(sound_info());
  EXPECT_FALSE(decode_peer_info(std::span(bytes).first(63)).is_ok());
  bytes[0] = std::byte{2};
  EXPECT_TRUE(decode_peer_info(bytes).status().is(Code::kUnsupported));
}

TEST(RdmaPeerInfo, no_bytes_are_taken_for_what_is_out_of_range) {
  Prng prng(3);
  for (int i = 0; i < 20'000; ++i) {
    std::array<std::byte, PeerInfo::kBytes> bytes = encode(sound_info());
    for (int changes = 0; changes < 3; ++changes) {
      bytes[prng.below(bytes.size())] = static_cast<std::byte>(prng.below(256));
    }
    const Result<PeerInfo> info = decode_peer_info(bytes);
    if (!info.is_ok()) continue;
    EXPECT_TRUE(info.value().ring_bytes >= 64 << 10 && info.value().ring_bytes <= 64 << 20);
    EXPECT_LT(info.value().queue_pair, 1U << 24);
  }
}

// ---- choosing a device

GidBytes ipv4(std::uint8_t last) {
  GidBytes gid{};
  gid[10] = gid[11] = 0xff;
  gid[12] = 10;
  gid[15] = last;
  return gid;
}

Port roce(const std::string& device, std::uint8_t address, int number = 1) {
  GidBytes link_local{};
  link_local[0] = 0xfe;
  link_local[1] = 0x80;
  Port port;
  port.device = device;
  port.number = number;
  port.active = true;
  port.gids = {{0, link_local, "IB/RoCE v1"},
               {1, link_local, "RoCE v2"},
               {2, ipv4(address), "IB/RoCE v1"},
               {3, ipv4(address), "RoCE v2"}};
  return port;
}

TEST(RdmaDevice, of_several_the_one_with_the_connections_address_is_chosen_and_version_2_of_roce) {
  const std::vector<Port> ports = {roce("mlx5_0", 1), roce("mlx5_1", 2)};
  const Choice choice = choose(ports, {}, ipv4(2), "10.0.0.2").value();
  EXPECT_EQ(choice.port_index, 1U);
  EXPECT_EQ(choice.gid.index, 3);
}

TEST(RdmaDevice, where_none_has_the_address_it_says_which_there_are_and_what_to_set) {
  const std::vector<Port> ports = {roce("mlx5_0", 1), roce("mlx5_1", 2)};
  const Status none = choose(ports, {}, ipv4(9), "10.0.0.9").status();
  EXPECT_TRUE(none.is(Code::kUnsupported));
  for (const char* word : {"10.0.0.9", "mlx5_0 port 1", "mlx5_1", "DMLC_INTERFACE"}) {
    EXPECT_NE(none.message().find(word), std::string::npos) << none.message();
  }
  const Status empty = choose({}, {}, ipv4(9), "10.0.0.9").status();
  EXPECT_NE(empty.message().find("no RDMA device"), std::string::npos) << empty.message();
}

TEST(RdmaDevice, names_ports_and_indices_that_are_given_win) {
  const std::vector<Port> ports = {roce("mlx5_0", 1), roce("mlx5_1", 2), roce("mlx5_1", 3, 2)};
  Options options;
  options.device = "mlx5_7,mlx5_1";
  options.gid_index = 1;
  const Choice choice = choose(ports, options, ipv4(1), "10.0.0.1").value();
  EXPECT_EQ(choice.port_index, 1U);
  EXPECT_EQ(choice.gid.index, 1);
  options.port = 2;
  EXPECT_EQ(choose(ports, options, ipv4(1), "10.0.0.1").value().port_index, 2U);
  options.device = "mlx5";
  const Status status = choose(ports, options, ipv4(1), "10.0.0.1").status();
  EXPECT_NE(status.message().find("BYTEPS_RDMA_DEVICE"), std::string::npos) << status.message();
}

TEST(RdmaDevice, a_port_that_is_down_is_named) {
  std::vector<Port> ports = {roce("mlx5_0", 1)};
  ports[0].active = false;
  const Status status = choose(ports, {}, ipv4(1), "10.0.0.1").status();
  EXPECT_TRUE(status.is(Code::kUnsupported));
  EXPECT_NE(status.message().find("mlx5_0 port 1 is down"), std::string::npos) << status.message();
}

TEST(RdmaDevice, on_infiniband_the_port_of_the_connections_interface_is_chosen) {
  std::vector<Port> ports = {roce("mlx5_0", 1), roce("mlx5_1", 2), roce("mlx5_2", 2)};
  for (std::size_t i : {1U, 2U}) {
    ports[i].is_infiniband = true;
    ports[i].gids = {{0, {0xfe, 0x80}, "IB/RoCE v1"}};
  }
  ports[2].is_of_interface = true;
  const Choice choice = choose(ports, {}, ipv4(9), "10.0.0.9").value();
  EXPECT_EQ(choice.port_index, 2U);
  EXPECT_EQ(choice.gid.index, 0);
}

TEST(RdmaDevice, among_the_devices_that_are_given_the_interfaces_comes_first_on_infiniband) {
  std::vector<Port> ports = {roce("mlx5_0", 1), roce("mlx5_1", 2)};
  for (Port& port : ports) {
    port.is_infiniband = true;
    port.gids = {{0, {0xfe, 0x80}, "IB/RoCE v1"}};
  }
  ports[1].is_of_interface = true;
  Options options;
  options.device = "mlx5_0,mlx5_1";
  EXPECT_EQ(choose(ports, options, ipv4(9), "10.0.0.9").value().port_index, 1U);
  ports[1].is_of_interface = false;
  EXPECT_EQ(choose(ports, options, ipv4(9), "10.0.0.9").value().port_index, 0U);
  EXPECT_FALSE(choose(ports, {}, ipv4(9), "10.0.0.9").is_ok()) << "none is asked for";
}

TEST(RdmaTimeout, a_peer_is_given_up_within_the_time_and_not_much_before) {
  for (const TimeNs limit : {100 * kMillisecond, 1500 * kMillisecond, 5 * kSecond}) {
    const TimeNs all = (TimeNs{4096} << timeout_exponent(limit)) * (kRetries + 1);
    EXPECT_LE(all, limit);
    EXPECT_GT(2 * all, limit);
  }
  EXPECT_LT(kRetries, 7) << "Soft-RoCE takes 7 for ever";
}

// ---- the library

TEST(RdmaVerbs, where_the_library_is_missing_it_says_what_to_install) {
  const Status status = load_verbs("libibverbs-that-is-not-there.so.1").status();
  EXPECT_TRUE(status.is(Code::kUnsupported));
  EXPECT_NE(status.message().find("libibverbs-that-is-not-there"), std::string::npos);
  EXPECT_NE(status.message().find("install rdma-core"), std::string::npos) << status.message();
}

TEST(RdmaVerbs, another_library_of_that_name_is_not_called) {
  const Status status = load_verbs("libc.so.6").status();
  EXPECT_TRUE(status.is(Code::kUnsupported));
  EXPECT_NE(status.message().find("ibv_get_device_list"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace byteps::rdma
