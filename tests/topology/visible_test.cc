#include "topology/visible.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace byteps::topology {
namespace {

const std::vector<ListedDevice> kThree = {
    {PciAddress::parse("0000:06:00.0").value(), "GPU-8932f937-d72c"},
    {PciAddress::parse("0000:07:00.0").value(), "GPU-89aaf937-d72c"},
    {PciAddress::parse("0000:0a:00.0").value(), "GPU-c12f0000-20bd"}};

// Their buses.
std::vector<int> seen(const std::optional<std::string>& said) {
  std::vector<int> buses;
  for (const PciAddress& address : visible_devices(kThree, said)) buses.push_back(address.bus);
  return buses;
}

TEST(Visible, all_are_where_nothing_is_said_and_none_where_it_is_empty) {
  EXPECT_EQ(seen(std::nullopt), (std::vector<int>{6, 7, 10}));
  EXPECT_EQ(seen(""), std::vector<int>());
}

TEST(Visible, they_are_numbered_anew_in_the_order_that_is_said) {
  EXPECT_EQ(seen("2,0"), (std::vector<int>{10, 6}));
  EXPECT_EQ(seen("1"), std::vector<int>{7});
  EXPECT_EQ(seen("1,"), std::vector<int>{7});
}

TEST(Visible, what_is_behind_one_that_is_none_is_not_seen) {
  for (const char* said : {"0,3,1", "0,-1,1", "0,x,1", "0,1x", "0, 1", "0,,1", "0,MIG-1,1",
                           "0,GPU-,1", "0,GPU-89,1", "0,GPU-77,1", "0,99999999999999999999999,1"}) {
    EXPECT_EQ(seen(said), std::vector<int>{6}) << said;
  }
}

TEST(Visible, beginnings_of_uuids_name_them) {
  EXPECT_EQ(seen("GPU-c,GPU-893"), (std::vector<int>{10, 6}));
}

TEST(Visible, a_worker_has_the_only_one_or_the_one_of_its_local_rank) {
  const auto of = [](const char* visible, const LocalPlace& local) {
    const auto device = device_of(visible_devices(kThree, visible), local);
    return device ? int{device->bus} : -1;
  };
  EXPECT_EQ(of("0,1,2", {.rank = 2, .size = 3, .is_said = true}), 10);
  EXPECT_EQ(of("0,1", {.rank = 2, .size = 3, .is_said = true}), -1) << "more workers than devices";
  EXPECT_EQ(of("0,1", {}), -1) << "which of them is not said";
  EXPECT_EQ(of("1", {}), 7);
  EXPECT_EQ(of("1", {.rank = 2, .size = 3, .is_said = true}), 7) << "each sees its own";
  EXPECT_EQ(of("", {}), -1);
}

}  // namespace
}  // namespace byteps::topology
