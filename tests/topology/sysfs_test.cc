// What is read of machines that are public (machines/README.md).
#include "topology/sysfs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/topology/kept_machine.h"
#include "topology/machine.h"

namespace byteps::topology {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> addresses(const std::vector<Hop>& path) {
  std::vector<std::string> texts;
  for (const Hop& hop : path) texts.push_back(hop.address.text());
  return texts;
}

TEST(Sysfs, a_path_is_the_chain_of_bridges_with_their_wires_and_the_node) {
  const KeptMachine machine("dgx1");
  const Found gpu = machine.sysfs().device("0000:86:00.0");
  EXPECT_THAT(addresses(gpu.path),
              ElementsAre("0000:80:02.0", "0000:82:00.0", "0000:83:0c.0", "0000:86:00.0"));
  for (const Hop& hop : gpu.path) EXPECT_EQ(hop.rate_mbps, 126'030U);  // 8 GT/s x 16 x 128 / 130
  EXPECT_EQ(gpu.node, 1);
  const Found card = machine.sysfs().card("ib2");
  EXPECT_THAT(addresses(card.path),
              ElementsAre("0000:80:02.0", "0000:82:00.0", "0000:83:04.0", "0000:84:00.0"));
  EXPECT_EQ(card.rate_mbps, 100'000U);
}

TEST(Sysfs, an_idle_link_counts_as_what_it_can_be) {
  const KeptMachine machine("pcie-2x4");
  EXPECT_EQ(machine.sysfs().device("0000:4e:00.0").path.back().rate_mbps, 252'061U);
}

TEST(Sysfs, what_is_not_there_is_not_known) {
  const Sysfs nothing("/nonexistent");
  EXPECT_THAT(nothing.gpus(), IsEmpty());
  EXPECT_THAT(nothing.cards(), IsEmpty());
  EXPECT_THAT(nothing.device("0000:06:00.0").path, IsEmpty());
  const KeptMachine machine("flat-vm");
  for (const char* name : {"", "eth1", "..", "../../bus", "eth0/device"}) {
    EXPECT_THAT(machine.sysfs().card(name).path, IsEmpty()) << name;
  }
  EXPECT_THAT(machine.sysfs().device("0000:00:ff.0").path, IsEmpty());
}

TEST(Sysfs, a_card_of_virtio_is_where_its_pci_function_is) {
  const KeptMachine machine("flat-vm");
  const std::vector<Found> cards = machine.sysfs().cards();
  ASSERT_EQ(cards.size(), 1U);
  EXPECT_EQ(cards[0].name, "eth0");
  EXPECT_THAT(addresses(cards[0].path), ElementsAre("0000:00:03.0"));
  EXPECT_EQ(cards[0].rate_mbps, 0U);
  EXPECT_EQ(cards[0].node, -1);
}

TEST(PlaceAt, is_what_the_survey_has_for_that_device) {
  for (const char* name : {"dgx1", "dgx-h100", "pcie-2x4", "aws-p4d", "flat-vm"}) {
    const KeptMachine machine(name);
    const PeersOf peers = [&](const PciAddress& device) { return machine.peers_of(device); };
    for (const Place& place : machine.survey().places) {
      EXPECT_EQ(place_at(machine.sysfs(), place.device.back().address, "", peers), place) << name;
    }
  }
}

TEST(PlaceAt, an_interface_that_is_said_wins_over_the_nearest_card) {
  const KeptMachine machine("dgx1");
  const PeersOf none = [](const PciAddress&) { return std::vector<Peer>(); };
  const PciAddress device = PciAddress::parse("0000:86:00.0").value();
  const Place place = place_at(machine.sysfs(), device, "ib0", none);
  EXPECT_EQ(place.card, machine.sysfs().card("ib0").path);
  EXPECT_EQ(place.card_node, 0);
  EXPECT_EQ(place.device_node, 1);
  EXPECT_THAT(place_at(machine.sysfs(), device, "bond0", none).card, IsEmpty());
}

TEST(PlaceAt, a_device_that_the_kernel_does_not_show_has_its_address) {
  const KeptMachine machine("pcie-2x4");
  const PeersOf peers = [](const PciAddress&) { return std::vector<Peer>{{kUnseenSwitch, 4}}; };
  const PciAddress device = PciAddress::parse("0000:77:00.0").value();
  const Place place = place_at(machine.sysfs(), device, "", peers);
  EXPECT_THAT(addresses(place.device), ElementsAre("0000:77:00.0"));
  EXPECT_EQ(place.device_node, -1);
  EXPECT_EQ(place.peers.size(), 1U);
  EXPECT_THAT(addresses(place.card), ElementsAre("0000:16:02.0", "0000:17:00.0"));
}

// By GPU: its card, how many ranks are behind its switch (1: none that is known), its island's size.
struct Seen {
  std::string card;
  std::size_t behind;
  std::size_t island;
  bool operator==(const Seen&) const = default;
};
std::ostream& operator<<(std::ostream& out, const Seen& seen) {
  return out << seen.card << " " << seen.behind << " " << seen.island;
}

std::vector<Seen> seen_of(const std::string& name) {
  const KeptMachine kept(name);
  const Survey survey = kept.survey();
  const Machine machine = machine_of(survey.places);
  std::vector<Seen> all;
  for (std::size_t i = 0; i < machine.ranks.size(); ++i) {
    EXPECT_EQ(decode(encode(survey.places[i])), survey.places[i]);
    const Machine::Rank& rank = machine.ranks[i];
    Seen seen{
        .card = survey.places[i].card.back().address.text().substr(5, 2), .behind = 0, .island = 1};
    for (const Machine::Rank& other : machine.ranks) {
      seen.behind += &other == &rank || (rank.shared && rank.shared == other.shared) ? 1 : 0;
    }
    if (rank.island) seen.island = machine.islands[*rank.island].size();
    all.push_back(seen);
  }
  return all;
}

TEST(KeptMachines, dgx1) {
  EXPECT_THAT(seen_of("dgx1"),
              ElementsAre(Seen{"05", 2, 8}, Seen{"05", 2, 8}, Seen{"0c", 2, 8}, Seen{"0c", 2, 8},
                          Seen{"84", 2, 8}, Seen{"84", 2, 8}, Seen{"8b", 2, 8}, Seen{"8b", 2, 8}));
}

TEST(KeptMachines, dgx_h100) {
  EXPECT_THAT(seen_of("dgx-h100"),
              ElementsAre(Seen{"18", 1, 8}, Seen{"40", 1, 8}, Seen{"4f", 1, 8}, Seen{"5e", 1, 8},
                          Seen{"9a", 1, 8}, Seen{"c0", 1, 8}, Seen{"ce", 1, 8}, Seen{"dc", 1, 8}));
}

TEST(KeptMachines, two_switches_of_four) {
  EXPECT_THAT(seen_of("pcie-2x4"), testing::Each(Seen{"17", 4, 1}));
}

TEST(KeptMachines, a_cloud_instance_whose_switches_are_not_seen) {
  EXPECT_THAT(seen_of("aws-p4d"),
              ElementsAre(Seen{"10", 1, 8}, Seen{"10", 1, 8}, Seen{"20", 1, 8}, Seen{"20", 1, 8},
                          Seen{"90", 1, 8}, Seen{"90", 1, 8}, Seen{"a0", 1, 8}, Seen{"a0", 1, 8}));
}

TEST(KeptMachines, a_flat_one) {
  EXPECT_THAT(seen_of("flat-vm"), testing::Each(Seen{"00", 1, 1}));
}

TEST(KeptMachines, are_drawn) {
  const KeptMachine kept("pcie-2x4");
  EXPECT_THAT(drawing_of(kept.survey()),
              ElementsAre("node 0",  //
                          "  card ens1f0 0000:17:00.0, 100 Gbit/s, wire of 252 Gbit/s",
                          "  switch 0000:4a:00.0, wire of 252 Gbit/s",
                          "    GPU 0 0000:4e:00.0, wire of 252 Gbit/s",
                          "    GPU 1 0000:4f:00.0, wire of 252 Gbit/s",
                          "    GPU 2 0000:50:00.0, wire of 252 Gbit/s",
                          "    GPU 3 0000:51:00.0, wire of 252 Gbit/s", "node 1",
                          "  switch 0000:ca:00.0, wire of 252 Gbit/s",
                          "    GPU 4 0000:ce:00.0, wire of 252 Gbit/s",
                          "    GPU 5 0000:cf:00.0, wire of 252 Gbit/s",
                          "    GPU 6 0000:d0:00.0, wire of 252 Gbit/s",
                          "    GPU 7 0000:d1:00.0, wire of 252 Gbit/s"));
}

}  // namespace
}  // namespace byteps::topology
