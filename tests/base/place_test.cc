#include "base/place.h"

#include <gtest/gtest.h>

#include "base/prng.h"

namespace byteps::topology {
namespace {

PciAddress address(const char* text) {
  return PciAddress::parse(text).value();
}

Place typical() {
  return {.device = {{address("0000:00:02.0"), 126'030},
                     {address("0000:03:00.0"), 126'030},
                     {address("0000:04:08.0"), 0},
                     {address("0000:06:00.0"), 126'030}},
          .card = {{address("10000:e0:1f.7"), 63'015}},
          .device_node = 1,
          .card_node = -1,
          .card_mbps = 100'000,
          .peers = {{address("0000:07:00.0"), 2}, {address("0000:0a:00.0"), 1}}};
}

TEST(Place, what_is_encoded_is_decoded) {
  EXPECT_EQ(decode(encode(typical())), typical());
  EXPECT_EQ(decode(encode(Place())), Place());
}

TEST(Place, the_largest_one_has_512_bytes_at_most) {
  Place place = typical();
  place.device.clear();
  for (std::uint8_t i = 0; i < kHopsMax; ++i) {
    place.device.push_back({{.domain = 0, .bus = i, .slot = 0}, kRateMbpsMax});
  }
  place.card = place.device;
  place.peers.clear();
  for (std::uint8_t i = 0; i < kPeersMax; ++i) {
    place.peers.push_back({{.domain = 0, .bus = i, .slot = 8}, 18});
  }
  const std::vector<std::byte> bytes = encode(place);
  EXPECT_LE(bytes.size(), kPlaceBytesMax);
  EXPECT_EQ(decode(bytes), place);
}

TEST(Place, the_bytes_of_the_form_stay_as_they_are) {
  Place place;
  place.device = {{address("0001:02:03.4"), 0x0102}};
  place.card_mbps = 7;
  place.peers = {{address("0000:09:00.1"), 6}};
  std::string hex;
  for (const std::byte byte : encode(place)) {
    static constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[std::to_integer<int>(byte) >> 4];
    hex += kDigits[std::to_integer<int>(byte) & 15];
  }
  EXPECT_EQ(hex,
            "01"
            "01"
            "01000000"
            "02"
            "1c"
            "02010000"
            "00"
            "ffff"
            "ffff"
            "07000000"
            "01"
            "00000000"
            "09"
            "01"
            "06");
}

TEST(Place, bytes_that_are_cut_off_or_too_many_are_refused) {
  std::vector<std::byte> bytes = encode(typical());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(decode(std::span(bytes).first(size)), std::nullopt) << size;
  }
  bytes.push_back(std::byte{0});
  EXPECT_EQ(decode(bytes), std::nullopt);
}

TEST(Place, whatever_else_is_decoded_is_encoded_to_the_same_bytes) {
  Prng prng(1);
  const std::vector<std::byte> good = encode(typical());
  int accepted = 0;
  for (int i = 0; i < 200'000; ++i) {
    std::vector<std::byte> bytes = good;
    for (std::uint64_t change = 0; change <= prng.below(3); ++change) {
      bytes[prng.below(bytes.size())] = static_cast<std::byte>(prng.below(256));
    }
    if (prng.below(4) == 0) bytes.resize(prng.below(kPlaceBytesMax + 20));
    const auto place = decode(bytes);
    if (!place) continue;
    ++accepted;
    ASSERT_EQ(encode(*place), bytes);
  }
  EXPECT_GT(accepted, 1000);
}

TEST(Place, limits_hold) {
  const auto is_refused = [](void (*change)(Place&)) {
    Place place = typical();
    change(place);
    return decode(encode(place)) == std::nullopt;
  };
  EXPECT_TRUE(is_refused([](Place& place) { place.device.push_back(place.device.front()); }));
  EXPECT_TRUE(is_refused([](Place& place) { std::swap(place.peers[0], place.peers[1]); }));
  EXPECT_TRUE(is_refused([](Place& place) { place.peers[0].links = 0; }));
  EXPECT_TRUE(is_refused([](Place& place) { place.card_mbps = kRateMbpsMax + 1; }));
  EXPECT_TRUE(is_refused([](Place& place) { place.device[0].rate_mbps = kRateMbpsMax + 1; }));
  EXPECT_TRUE(is_refused([](Place& place) { place.device_node = -2; }));
}

TEST(PciAddress, is_read_as_the_kernel_and_nvml_write_it) {
  EXPECT_EQ(address("0000:3b:1f.7").text(), "0000:3b:1f.7");
  EXPECT_EQ(address("00000000:3B:00.0").text(), "0000:3b:00.0");
  EXPECT_EQ(address("10000:e0:06.0").text(), "10000:e0:06.0");
  for (const char* text :
       {"", "0000", "0000:3b:20.0", "0000:3b:1f.8", "000:3b:00.0", "0000:3b:00.0 ", "0000:3b:00",
        "pci0000:00", "-000:3b:00.0", "0x00:00:00.0"}) {
    EXPECT_EQ(PciAddress::parse(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace byteps::topology
