// Goal: every transport keeps T1 to T7 of net/transport.h. Method: the same sentences over every kind of
// World; the suite itself knows no sockets, no clock and no sleeping. The last tests compare long random
// runs with what was sent.
#include <array>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "base/buffer.h"
#include "base/prng.h"
#include "tests/conformance/cluster.h"
#include "tests/conformance/scripted_factory.h"
#include "tests/conformance/tcp_factory.h"
#if __has_include("tests/conformance/sim_factory.h")
#include "tests/conformance/sim_factory.h"
#define BYTEPS_HAS_SIM_WORLD 1
#endif

namespace byteps::conformance {
namespace {

struct WorldKind {
  std::string name;
  std::function<std::unique_ptr<World>()> make;  // null: not on this machine
};

void PrintTo(const WorldKind& kind, std::ostream* out) {
  *out << kind.name;
}

std::unique_ptr<World> tcp_world(const std::string& host) {
  auto world = std::make_unique<TcpWorld>(host);
  return world->is_available() ? std::move(world) : nullptr;
}

// Of this machine's RDMA devices: tests/rdma runs it where there are none of hardware.
std::unique_ptr<World> rdma_world() {
  const std::string host = rdma_host();
  if (host.empty()) return nullptr;
  PeerOptions options;
  options.rdma.policy = rdma::Policy::kRequired;
  options.rdma.ring_bytes = std::size_t{1} << 20;
  return std::make_unique<TcpWorld>(host, nullptr, 1, std::move(options));
}

std::vector<WorldKind> kinds() {
  std::vector<WorldKind> out;
  out.push_back({"tcp_ipv4", [] { return tcp_world("127.0.0.1"); }});
  out.push_back({"tcp_ipv6", [] { return tcp_world("::1"); }});
  out.push_back({"faulty_tcp", [] {
                   const Faults faults{.again = 0.3, .delay = 0.3};
                   return std::make_unique<TcpWorld>("127.0.0.1", &faults, 7);
                 }});
  out.push_back({"shm", [] {
                   return std::make_unique<TcpWorld>("127.0.0.1", nullptr, 1,
                                                     sharing_options(std::size_t{1} << 20));
                 }});
  out.push_back({"shm_small_ring", [] {
                   return std::make_unique<TcpWorld>("127.0.0.1", nullptr, 1,
                                                     sharing_options(std::size_t{64} << 10));
                 }});
  out.push_back({"faulty_shm", [] {
                   const Faults faults{.again = 0.3, .delay = 0.3};
                   return std::make_unique<TcpWorld>("127.0.0.1", &faults, 7,
                                                     sharing_options(std::size_t{1} << 20));
                 }});
  const auto fake = [](rdma::Policy policy, std::size_t ring_bytes, const Faults* faults) {
    return std::make_unique<TcpWorld>("127.0.0.1", faults, 7,
                                      fake_rdma_options(policy, ring_bytes));
  };
  out.push_back({"played_rdma",
                 [fake] { return fake(rdma::Policy::kRequired, std::size_t{1} << 20, nullptr); }});
  out.push_back({"played_rdma_small_ring",
                 [fake] { return fake(rdma::Policy::kAuto, std::size_t{64} << 10, nullptr); }});
  out.push_back({"faulty_played_rdma", [fake] {
                   const Faults faults{.again = 0.3, .delay = 0.3};
                   return fake(rdma::Policy::kRequired, std::size_t{1} << 20, &faults);
                 }});
  out.push_back({"rdma", rdma_world});
  const auto pipes = [](std::size_t capacity, const Faults* faults) {
    return std::make_unique<TcpWorld>("127.0.0.1", faults, 7, pipe_options(capacity));
  };
  out.push_back({"pipe", [pipes] { return pipes(std::size_t{1} << 20, nullptr); }});
  out.push_back({"pipe_small", [pipes] { return pipes(std::size_t{64} << 10, nullptr); }});
  out.push_back({"faulty_pipe", [pipes] {
                   const Faults faults{.again = 0.3, .delay = 0.3};
                   return pipes(std::size_t{1} << 20, &faults);
                 }});
#ifdef BYTEPS_HAS_SIM_WORLD
  out.push_back({"sim", [] { return make_sim_world(7); }});
#endif
  out.push_back({"scripted", [] { return std::make_unique<ScriptedWorld>(7); }});
  return out;
}

Hello hello_of(Role role, std::uint32_t rank, std::uint8_t job = 1) {
  Hello hello;
  hello.role = role;
  hello.rank = rank;
  hello.epoch = Epoch(3);
  hello.job_id.fill(std::byte{job});
  return hello;
}

class Conformance : public testing::TestWithParam<WorldKind> {
 protected:
  void SetUp() override {
    world_ = GetParam().make();
    if (world_ == nullptr) GTEST_SKIP() << "not available on this machine";
    cluster_ = std::make_unique<Cluster>(*world_);
  }

  Cluster& cluster() { return *cluster_; }

  Cluster::Link make_link() {
    const Node server = cluster().listen(hello_of(Role::kServer, 0));
    return make_link_to(server, 0);
  }
  Cluster::Link make_link_to(Node server, std::uint32_t rank) {
    const Node client = cluster().make();
    const Cluster::Link link = cluster().link(client, server, hello_of(Role::kWorker, rank));
    EXPECT_NE(link.in, PeerId()) << "the connection did not come up";
    return link;
  }

  // Sends tensor bytes, turning the cluster while the window is full. The payload must live until its kSent.
  void send(const Cluster::Link& link, const Outgoing& message) {
    send(link.from, link.out, message);
  }
  void send(Node node, PeerId peer, Outgoing message) {
    message.bulk = true;
    Status status;
    const bool accepted = cluster().until([&] {
      status = cluster().at(node).send(peer, message);
      return !status.is(Code::kAgain);
    });
    ASSERT_TRUE(accepted && status.is_ok()) << status.text();
  }

  std::vector<SendToken> tokens(Node node, PeerId peer) {
    std::vector<SendToken> out;
    for (const Seen& event : cluster().seen(node, Kind::kSent, peer)) out.push_back(event.token);
    return out;
  }

  // T4, T5: everything accepted came back once, in order, then one kDown, and nothing after.
  void expect_clean_end(Node node, PeerId peer, std::size_t accepted) {
    std::vector<Seen> all = cluster().seen(node);
    std::erase_if(all, [&](const Seen& event) { return event.peer != peer; });
    ASSERT_FALSE(all.empty());
    EXPECT_EQ(all.back().kind, Kind::kDown);
    EXPECT_EQ(cluster().seen(node, Kind::kDown, peer).size(), 1U);
    std::vector<SendToken> expected(accepted);
    for (std::size_t i = 0; i < accepted; ++i) expected[i] = i;
    EXPECT_EQ(tokens(node, peer), expected);
  }

 private:
  std::unique_ptr<World> world_;
  std::unique_ptr<Cluster> cluster_;
};

INSTANTIATE_TEST_SUITE_P(Transports, Conformance, testing::ValuesIn(kinds()),
                         [](const auto& kind) { return kind.param.name; });

// ---- coming and going

TEST_P(Conformance, hello_arrives_at_both_sides) {
  const Node server = cluster().listen(hello_of(Role::kServer, 5));
  const Node client = cluster().make();
  const auto link = cluster().link(client, server, hello_of(Role::kWorker, 9));
  ASSERT_EQ(cluster().seen(client).size(), 1U);
  ASSERT_EQ(cluster().seen(server).size(), 1U);
  EXPECT_EQ(cluster().seen(client)[0].hello, hello_of(Role::kServer, 5));
  EXPECT_EQ(cluster().seen(client)[0].peer, link.out);
  EXPECT_EQ(cluster().seen(server)[0].hello, hello_of(Role::kWorker, 9));
}

TEST_P(Conformance, another_job_is_refused_with_a_reason_and_the_listener_does_not_notice) {
  const Node server = cluster().listen(hello_of(Role::kServer, 0, 1));
  const Node client = cluster().make();
  const PeerId peer = cluster()
                          .at(client)
                          .connect(cluster().world().address(server), hello_of(Role::kWorker, 0, 2))
                          .value();
  ASSERT_TRUE(cluster().until([&] { return cluster().count(client, Kind::kDown) == 1; }));
  EXPECT_EQ(cluster().seen(client).size(), 1U);
  EXPECT_EQ(cluster().seen(client)[0].peer, peer);
  EXPECT_TRUE(cluster().seen(client)[0].why.is(Code::kMismatch))
      << cluster().seen(client)[0].why.text();
  EXPECT_NE(cluster().seen(client)[0].why.message().find("job"), std::string::npos);
  cluster().turns(5);
  EXPECT_TRUE(cluster().seen(server).empty());
}

TEST_P(Conformance, another_version_is_refused) {
  const Node server = cluster().listen(hello_of(Role::kServer, 0));
  const Node client = cluster().make();
  Hello hello = hello_of(Role::kWorker, 0);
  hello.version = 77;
  (void)cluster().at(client).connect(cluster().world().address(server), hello).value();
  ASSERT_TRUE(cluster().until([&] { return cluster().count(client, Kind::kDown) == 1; }));
  EXPECT_TRUE(cluster().seen(client)[0].why.is(Code::kMismatch));
  EXPECT_NE(cluster().seen(client)[0].why.message().find("77"), std::string::npos);
}

TEST_P(Conformance, connecting_to_nobody_ends_in_down_without_up) {
  const Node client = cluster().make();
  const Endpoint nobody = cluster().world().nobody();
  const PeerId peer = cluster().at(client).connect(nobody, hello_of(Role::kWorker, 0)).value();
  ASSERT_TRUE(cluster().until([&] { return !cluster().seen(client).empty(); }));
  cluster().turns(5);
  ASSERT_EQ(cluster().seen(client).size(), 1U);
  EXPECT_EQ(cluster().seen(client)[0].kind, Kind::kDown);
  EXPECT_EQ(cluster().seen(client)[0].peer, peer);
  EXPECT_TRUE(cluster().seen(client)[0].why.is(Code::kDisconnected));
  EXPECT_NE(cluster().seen(client)[0].why.message().find(nobody.text()), std::string::npos)
      << cluster().seen(client)[0].why.text();
}

TEST_P(Conformance, an_endpoint_without_a_host_is_an_invalid_argument) {
  const Node client = cluster().make();
  const auto result = cluster().at(client).connect({"", 9000}, hello_of(Role::kWorker, 0));
  ASSERT_FALSE(result.is_ok());
  EXPECT_TRUE(result.status().is(Code::kInvalidArgument));
}

TEST_P(Conformance, a_close_before_up_ends_in_one_down_with_the_owners_reason) {
  const Node server = cluster().listen(hello_of(Role::kServer, 0));
  const Node client = cluster().make();
  const PeerId peer = cluster()
                          .at(client)
                          .connect(cluster().world().address(server), hello_of(Role::kWorker, 0))
                          .value();
  cluster().at(client).close(peer, {Code::kCancelled, "changed our mind"});
  ASSERT_TRUE(cluster().until([&] { return cluster().count(client, Kind::kDown) == 1; }));
  cluster().turns(5);
  expect_clean_end(client, peer, 0);
  EXPECT_EQ(cluster().count(client, Kind::kUp), 0U);
  EXPECT_EQ(cluster().seen(client).back().why.message(), "changed our mind");
}

TEST_P(Conformance, close_ends_both_sides_and_the_owner_gets_its_own_reason) {
  const auto link = make_link();
  cluster().at(link.from).close(link.out, {Code::kCancelled, "we are leaving"});
  ASSERT_TRUE(cluster().until([&] {
    return cluster().count(link.from, Kind::kDown) == 1 &&
           cluster().count(link.to, Kind::kDown) == 1;
  }));
  cluster().at(link.from).close(link.out, {Code::kCancelled, "again"});  // no effect
  cluster().turns(5);
  expect_clean_end(link.from, link.out, 0);
  expect_clean_end(link.to, link.in, 0);
  EXPECT_TRUE(cluster().seen(link.from).back().why.is(Code::kCancelled));
  EXPECT_EQ(cluster().seen(link.from).back().why.message(), "we are leaving");
  EXPECT_TRUE(cluster().seen(link.to).back().why.is(Code::kDisconnected));
  EXPECT_FALSE(cluster().seen(link.to).back().why.message().empty());
}

TEST_P(Conformance, peer_ids_are_never_used_again) {
  const Node server = cluster().listen(hello_of(Role::kServer, 0));
  const Node client = cluster().make();
  std::set<PeerId> at_client;
  std::set<PeerId> at_server;
  for (int i = 0; i < 10; ++i) {
    const auto link = cluster().link(client, server, hello_of(Role::kWorker, 0));
    EXPECT_TRUE(at_client.insert(link.out).second);
    EXPECT_TRUE(at_server.insert(link.in).second);
    cluster()
        .at(i % 2 == 0 ? client : server)
        .close(i % 2 == 0 ? link.out : link.in, {Code::kCancelled, "next"});
    const std::size_t downs = at_client.size();
    ASSERT_TRUE(cluster().until([&] {
      return cluster().count(client, Kind::kDown) == downs &&
             cluster().count(server, Kind::kDown) == downs;
    }));
  }
}

TEST_P(Conformance, sending_to_someone_who_is_not_up_is_disconnected_and_takes_nothing) {
  const Node server = cluster().listen(hello_of(Role::kServer, 0));
  const Node client = cluster().make();
  Transport& transport = cluster().at(client);
  EXPECT_TRUE(transport.send(PeerId(4711), {}).is(Code::kDisconnected));
  const PeerId peer =
      transport.connect(cluster().world().address(server), hello_of(Role::kWorker, 0)).value();
  EXPECT_TRUE(transport.send(peer, {}).is(Code::kDisconnected)) << "before kUp";
  ASSERT_TRUE(cluster().until([&] { return cluster().count(client, Kind::kUp) == 1; }));
  transport.close(peer, {Code::kCancelled, "enough"});
  EXPECT_TRUE(transport.send(peer, {}).is(Code::kDisconnected)) << "after close";
  ASSERT_TRUE(cluster().until([&] { return cluster().count(client, Kind::kDown) == 1; }));
  EXPECT_TRUE(transport.send(peer, {}).is(Code::kDisconnected)) << "after kDown";
  expect_clean_end(client, peer, 0);
  transport.close(peer, {Code::kCancelled, "again"});  // without effect
}

// ---- messages

TEST_P(Conformance, messages_of_all_sizes_arrive_whole_and_in_order) {
  const auto link = make_link();
  const std::vector<std::size_t> sizes = {
      0,      1,       7,    8,    23,    24,     25,      255,      256,
      4095,   4096,    8191, 8192, 32768, 65536,  131072,  262143,   262144,
      262145, 1000003, 0,    3,    32768, 524288, 1048577, 4u << 20, (4u << 20) - 1,
      5};
  std::deque<Bytes> payloads;
  std::deque<Bytes> headers;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    payloads.push_back(pattern(i, sizes[i]));
    headers.push_back(pattern(1000 + i, (i * 37) % (kHeaderBytesMax + 1)));
    send(link, {.header = headers.back(), .payload = payloads.back(), .token = i});
  }
  ASSERT_TRUE(cluster().until([&] {
    return cluster().count(link.to, Kind::kReceived) == sizes.size() &&
           cluster().count(link.from, Kind::kSent) == sizes.size();
  }));
  const auto received = cluster().seen(link.to, Kind::kReceived, link.in);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_TRUE(received[i].payload == payloads[i]) << "message " << i << " of " << sizes[i];
    EXPECT_TRUE(received[i].header == headers[i]) << "header " << i;
  }
  for (std::size_t i = 0; i < sizes.size(); ++i) EXPECT_EQ(tokens(link.from, link.out)[i], i);
}

TEST_P(Conformance, headers_of_every_length_arrive) {
  const auto link = make_link();
  for (std::size_t bytes = 0; bytes <= kHeaderBytesMax; ++bytes) {
    const Bytes header = pattern(bytes, bytes);
    send(link, {.header = header, .payload = {}, .token = bytes});  // the header is copied
  }
  ASSERT_TRUE(cluster().until(
      [&] { return cluster().count(link.to, Kind::kReceived) == kHeaderBytesMax + 1; }));
  const auto received = cluster().seen(link.to, Kind::kReceived);
  for (std::size_t bytes = 0; bytes <= kHeaderBytesMax; ++bytes) {
    EXPECT_EQ(received[bytes].header, pattern(bytes, bytes));
  }
}

TEST_P(Conformance, one_event_per_poll_is_enough_to_get_everything) {
  const auto link = make_link();
  cluster().set_span(1);
  const Bytes payload = pattern(1, 300);
  for (std::uint64_t i = 0; i < 500; ++i) {
    const Bytes header = pattern(i, 16);
    send(link, {.header = header, .payload = payload, .token = i});
  }
  ASSERT_TRUE(cluster().until([&] {
    return cluster().count(link.to, Kind::kReceived) == 500 &&
           cluster().count(link.from, Kind::kSent) == 500;
  }));
  const auto received = cluster().seen(link.to, Kind::kReceived);
  for (std::uint64_t i = 0; i < 500; ++i) EXPECT_EQ(received[i].header, pattern(i, 16));
}

TEST_P(Conformance, views_stay_what_they_were_until_the_next_poll) {
  const auto link = make_link();
  const Bytes answer = pattern(7, 100);
  std::deque<Bytes> payloads;
  std::vector<Event> events(64);
  std::uint64_t sent = 0;
  std::uint64_t received = 0;
  for (int rounds = 0; rounds < 20'000 && received < 60; ++rounds) {
    for (Status status; status.is_ok() && sent < 60; sent += status.is_ok() ? 1 : 0) {
      payloads.push_back(pattern(sent, 1000 + sent * 777));
      status = cluster().at(link.from).send(
          link.out,
          {.header = pattern(sent, 200), .payload = payloads.back(), .bulk = true, .token = sent});
      if (!status.is_ok()) payloads.pop_back();
    }
    cluster().poll(link.from);
    const std::size_t count = cluster().at(link.to).poll(cluster().world().now(), events);
    // Looked at only when the whole span is there, and something was sent in between.
    (void)cluster().at(link.to).send(link.in, {.header = answer, .payload = {}, .token = 1});
    for (std::size_t i = 0; i < count; ++i) {
      if (events[i].kind != Kind::kReceived) continue;
      EXPECT_EQ(bytes_of(events[i].header), pattern(received, 200));
      EXPECT_TRUE(bytes_of(events[i].payload) == pattern(received, 1000 + received * 777));
      ++received;
    }
    if (count == 0) cluster().world().idle();
  }
  EXPECT_EQ(received, 60U);
}

TEST_P(Conformance, both_directions_work_at_the_same_time) {
  const auto link = make_link();
  const Bytes there = pattern(1, 100'000);
  const Bytes back = pattern(2, 70'001);
  for (std::uint64_t i = 0; i < 40; ++i) {
    send(link.from, link.out, {.header = {}, .payload = there, .token = i});
    send(link.to, link.in, {.header = {}, .payload = back, .token = i});
  }
  ASSERT_TRUE(cluster().until([&] {
    return cluster().count(link.to, Kind::kReceived) == 40 &&
           cluster().count(link.from, Kind::kReceived) == 40;
  }));
  for (const Seen& event : cluster().seen(link.to, Kind::kReceived)) {
    EXPECT_TRUE(event.payload == there);
  }
  for (const Seen& event : cluster().seen(link.from, Kind::kReceived)) {
    EXPECT_TRUE(event.payload == back);
  }
}

TEST_P(Conformance, a_full_window_says_again_and_the_next_sent_opens_it) {
  const auto link = make_link();
  const Bytes payload = pattern(1, 256 << 10);
  std::uint64_t accepted = 0;
  Status status;
  while (accepted < 1000) {
    status = cluster().at(link.from).send(
        link.out, {.header = {}, .payload = payload, .bulk = true, .token = accepted});
    if (!status.is_ok()) break;
    ++accepted;
  }
  ASSERT_TRUE(status.is(Code::kAgain)) << "after " << accepted;
  ASSERT_GT(accepted, 0U);
  for (int i = 0; i < 3; ++i) {
    const std::size_t before = cluster().count(link.from, Kind::kSent);
    ASSERT_TRUE(cluster().until([&] { return cluster().count(link.from, Kind::kSent) > before; }));
    send(link, {.header = {}, .payload = payload, .token = accepted});
    ++accepted;
  }
  ASSERT_TRUE(cluster().until([&] {
    return cluster().count(link.from, Kind::kSent) == accepted &&
           cluster().count(link.to, Kind::kReceived) == accepted;
  }));
  cluster().turns(5);
  EXPECT_EQ(cluster().count(link.to, Kind::kReceived), accepted) << "a refused one was sent";
}

TEST_P(Conformance, connections_are_independent) {
  const Node server = cluster().listen(hello_of(Role::kServer, 0));
  const auto first = make_link_to(server, 0);
  const auto second = make_link_to(server, 1);
  const Bytes payload = pattern(1, 50'000);
  for (std::uint64_t i = 0; i < 20; ++i) {
    send(first, {.header = {}, .payload = payload, .token = i});
    send(second, {.header = {}, .payload = payload, .token = i});
  }
  cluster().kill(first.from);
  ASSERT_TRUE(cluster().until([&] {
    return cluster().count(server, Kind::kDown, first.in) == 1 &&
           cluster().count(server, Kind::kReceived, second.in) == 20;
  }));
  send(server, second.in, {.header = {}, .payload = payload, .token = 7});
  ASSERT_TRUE(cluster().until([&] { return cluster().count(second.from, Kind::kReceived) == 1; }));
  EXPECT_TRUE(cluster().seen(server, Kind::kDown, second.in).empty());
}

TEST_P(Conformance, peers_32_fan_in_and_each_keeps_its_order) {
  constexpr std::uint64_t kPeers = 32;
  constexpr std::uint64_t kMessages = 20;
  const Node server = cluster().listen(hello_of(Role::kServer, 0));
  std::vector<Cluster::Link> links;
  for (std::uint32_t i = 0; i < kPeers; ++i) links.push_back(make_link_to(server, i));
  std::deque<Bytes> payloads;
  for (std::uint64_t m = 0; m < kMessages; ++m) {
    for (std::uint64_t p = 0; p < kPeers; ++p) {
      payloads.push_back(pattern(p * 1000 + m, 1 + (m * 4999) % 40'000));
      send(links[p], {.header = {}, .payload = payloads.back(), .token = m});
    }
  }
  ASSERT_TRUE(cluster().until(
      [&] { return cluster().count(server, Kind::kReceived) == kPeers * kMessages; }));
  for (std::uint64_t p = 0; p < kPeers; ++p) {
    const auto received = cluster().seen(server, Kind::kReceived, links[p].in);
    ASSERT_EQ(received.size(), kMessages);
    for (std::uint64_t m = 0; m < kMessages; ++m) {
      EXPECT_TRUE(received[m].payload == pattern(p * 1000 + m, 1 + (m * 4999) % 40'000));
    }
  }
}

// ---- payloads

TEST_P(Conformance, a_payload_in_memory_that_its_sender_can_change_is_one_of_tensor_bytes) {
  const auto link = make_link();
  const Bytes large = pattern(1, 60'000);
  const Bytes small = pattern(2, 4096);
  const Outgoing words{.header = {}, .payload = small, .token = 0};
  ASSERT_TRUE(cluster().at(link.from).send(link.out, words).is_ok());
  send(link, {.header = {}, .payload = small, .token = 1});
  send(link, {.header = {}, .payload = large, .token = 2});
  ASSERT_TRUE(cluster().until([&] { return cluster().count(link.to, Kind::kReceived) == 3; }));
  const auto received = cluster().seen(link.to, Kind::kReceived);
  EXPECT_FALSE(received[0].is_shared) << "words are looked at";
  EXPECT_EQ(received[0].payload, small);
  EXPECT_EQ(received[1].payload, small);
  EXPECT_EQ(received[2].payload, large);
}

TEST_P(Conformance, a_payload_whose_sender_ends_arrives_whole_or_not_at_all) {
  const Bytes payload = pattern(1, kPayloadBytesMax);
  for (const bool is_killed : {false, true}) {
    const auto link = make_link();
    send(link, {.header = {}, .payload = payload, .token = 0});
    cluster().turns(2);
    if (is_killed) {
      cluster().kill(link.from);
    } else {
      cluster().at(link.from).close(link.out, {Code::kCancelled, "enough"});
    }
    ASSERT_TRUE(cluster().until([&] { return cluster().count(link.to, Kind::kDown) == 1; }));
    for (const Seen& event : cluster().seen(link.to, Kind::kReceived)) {
      EXPECT_TRUE(event.payload == payload);
    }
  }
}

// ---- the end, with much on the way

TEST_P(Conformance, on_close_every_lent_payload_comes_back_once_before_down) {
  const auto link = make_link();
  const Bytes payload = pattern(1, 256 << 10);
  std::uint64_t accepted = 0;
  while (accepted < 100 &&
         cluster()
             .at(link.from)
             .send(link.out, {.header = {}, .payload = payload, .bulk = true, .token = accepted})
             .is_ok()) {
    ++accepted;
  }
  cluster().at(link.from).close(link.out, {Code::kCancelled, "we are leaving"});
  ASSERT_TRUE(cluster().until([&] {
    return cluster().count(link.from, Kind::kDown) == 1 &&
           cluster().count(link.to, Kind::kDown) == 1;
  }));
  cluster().turns(5);
  expect_clean_end(link.from, link.out, accepted);
  const auto received = cluster().seen(link.to, Kind::kReceived);
  EXPECT_LE(received.size(), accepted);
  for (const Seen& event : received) EXPECT_TRUE(event.payload == payload) << "not whole";
}

TEST_P(Conformance, when_the_peer_dies_every_lent_payload_comes_back_once_before_down) {
  const auto link = make_link();
  const Bytes payload = pattern(1, 256 << 10);
  std::uint64_t accepted = 0;
  while (accepted < 100 &&
         cluster()
             .at(link.from)
             .send(link.out, {.header = {}, .payload = payload, .bulk = true, .token = accepted})
             .is_ok()) {
    ++accepted;
  }
  cluster().turns(2);
  cluster().kill(link.to);
  ASSERT_TRUE(cluster().until([&] { return cluster().count(link.from, Kind::kDown) == 1; }));
  cluster().turns(5);
  expect_clean_end(link.from, link.out, accepted);
  EXPECT_TRUE(cluster().seen(link.from).back().why.is(Code::kDisconnected));
}

TEST_P(Conformance, the_end_is_told_one_event_at_a_time_if_need_be) {
  const auto link = make_link();
  cluster().set_span(1);
  const Bytes payload = pattern(1, 1000);
  std::uint64_t accepted = 0;
  while (accepted < 100 &&
         cluster()
             .at(link.from)
             .send(link.out, {.header = {}, .payload = payload, .bulk = true, .token = accepted})
             .is_ok()) {
    ++accepted;
  }
  cluster().at(link.from).close(link.out, {Code::kCancelled, "we are leaving"});
  ASSERT_TRUE(cluster().until([&] { return cluster().count(link.from, Kind::kDown) == 1; }));
  expect_clean_end(link.from, link.out, accepted);
}

// ---- payloads from memory of the transport's own, where it has some: it may send them without a copy

// A payload in it.
BufferRef lendable(BufferPool& pool, const Bytes& content) {
  BufferRef buffer = pool.take(content.size());
  std::copy(content.begin(), content.end(), buffer.span().begin());
  return buffer;
}

TEST_P(Conformance,
       payloads_of_its_own_memory_arrive_whole_though_it_is_used_anew_when_they_are_sent) {
  const auto link = make_link();
  BufferPool pool(cluster().at(link.from).payload_source());
  const std::vector<std::size_t> sizes = {1,      4095,   4096,    4097,    16'384,   16'385,
                                          40'000, 65'536, 262'144, 524'289, 4u << 20, 70'000};
  constexpr std::size_t kRounds = 3;
  std::deque<BufferRef> lent;
  std::deque<Bytes> copied;  // between them, others
  std::size_t sent = 0;
  std::size_t come_back = 0;
  const auto use_anew = [&] {
    for (const std::size_t all = cluster().count(link.from, Kind::kSent); come_back < all;
         ++come_back) {
      if (come_back % 2 != 0) continue;
      std::ranges::fill(lent.front().span(), std::byte{0xee});
      lent.pop_front();
      pool.trim();
    }
  };
  for (std::size_t i = 0; i < kRounds * sizes.size(); ++i) {
    const std::size_t bytes = sizes[i % sizes.size()];
    lent.push_back(lendable(pool, pattern(i, bytes)));
    copied.push_back(pattern(i, 3000 + i));
    send(link, {.header = {}, .payload = lent.back().span().first(bytes), .token = sent++});
    send(link, {.header = {}, .payload = copied.back(), .token = sent++});
    use_anew();
  }
  ASSERT_TRUE(cluster().until([&] {
    use_anew();
    return come_back == sent && cluster().count(link.to, Kind::kReceived) == sent;
  }));
  const auto received = cluster().seen(link.to, Kind::kReceived, link.in);
  for (std::size_t i = 0; i < kRounds * sizes.size(); ++i) {
    EXPECT_TRUE(received[2 * i].payload == pattern(i, sizes[i % sizes.size()])) << "message " << i;
    EXPECT_TRUE(received[2 * i + 1].payload == copied[i]) << "behind message " << i;
  }
  for (std::size_t i = 0; i < sent; ++i) EXPECT_EQ(tokens(link.from, link.out)[i], i);
  EXPECT_EQ(pool.lent_bytes(), 0U);
}

TEST_P(Conformance, one_payload_of_its_own_memory_goes_to_many_peers) {
  constexpr std::size_t kPeers = 4;
  constexpr std::size_t kBytes = 100'000;
  constexpr std::size_t kRounds = 8;
  const Node server = cluster().listen(hello_of(Role::kServer, 0));
  std::vector<Cluster::Link> links;
  for (std::uint32_t i = 0; i < kPeers; ++i) links.push_back(make_link_to(server, i));
  BufferPool pool(cluster().at(server).payload_source());
  std::deque<std::optional<std::uint32_t>> crcs(kRounds);
  std::vector<BufferRef> sums;
  for (std::size_t round = 0; round < kRounds; ++round) {
    sums.push_back(lendable(pool, pattern(round, kBytes)));
    for (const Cluster::Link& link : links) {
      send(server, link.in,
           {.header = {},
            .payload = std::span<const std::byte>(sums.back().span()).first(kBytes),
            .payload_crc = &crcs[round],
            .token = round});
    }
  }
  ASSERT_TRUE(cluster().until([&] {
    return cluster().count(server, Kind::kSent) == kPeers * kRounds &&
           std::ranges::all_of(links, [&](const Cluster::Link& link) {
             return cluster().count(link.from, Kind::kReceived) == kRounds;
           });
  }));
  for (const Cluster::Link& link : links) {
    const auto received = cluster().seen(link.from, Kind::kReceived);
    for (std::size_t round = 0; round < kRounds; ++round) {
      EXPECT_TRUE(received[round].payload == pattern(round, kBytes)) << round;
    }
  }
}

TEST_P(Conformance, at_the_end_payloads_of_its_own_memory_come_back_once_before_down) {
  for (const bool is_killed : {false, true}) {
    const auto link = make_link();
    BufferPool pool(cluster().at(link.from).payload_source());
    std::vector<BufferRef> lent;
    std::uint64_t accepted = 0;
    for (; accepted < 100; ++accepted) {
      lent.push_back(lendable(pool, pattern(accepted, 60'000)));
      const auto payload = std::span<const std::byte>(lent.back().span()).first(60'000);
      const Outgoing message{.header = {}, .payload = payload, .bulk = true, .token = accepted};
      if (!cluster().at(link.from).send(link.out, message).is_ok()) break;
    }
    cluster().turns(2);
    if (is_killed) {
      cluster().kill(link.to);
    } else {
      cluster().at(link.from).close(link.out, {Code::kCancelled, "we are leaving"});
    }
    ASSERT_TRUE(cluster().until([&] { return cluster().count(link.from, Kind::kDown) == 1; }));
    for (BufferRef& buffer : lent) std::ranges::fill(buffer.span(), std::byte{0xee});
    lent.clear();
    pool.trim();
    cluster().turns(5);
    expect_clean_end(link.from, link.out, accepted);
    const auto received = cluster().seen(link.to, Kind::kReceived);
    for (std::size_t i = 0; i < received.size(); ++i) {
      EXPECT_TRUE(received[i].payload == pattern(i, 60'000)) << "message " << i;
    }
  }
}

// ---- long random runs against what was sent

class Storm {
 public:
  Storm(Cluster& cluster, Prng prng) : cluster_(cluster), prng_(prng) {}

  void add(const Cluster::Link& link) {
    add(link.from, link.out, link.to, link.in);
    add(link.to, link.in, link.from, link.out);
  }

  void run(int steps) {
    for (int i = 0; i < steps; ++i) {
      for (std::uint64_t burst = prng_.below(6); burst > 0; --burst) send_one();
      cluster_.set_span(1 + prng_.below(20));
      cluster_.turn();
    }
  }

  bool finish() {
    return cluster_.until([&] {
      return std::all_of(lanes_.begin(), lanes_.end(), [&](const Lane& lane) {
        return cluster_.count(lane.to, Kind::kReceived, lane.in) == lane.sent.size() &&
               cluster_.count(lane.from, Kind::kSent, lane.out) == lane.sent.size();
      });
    });
  }

  // T1: what was received is a beginning of what was sent.
  void expect_prefixes() {
    for (const Lane& lane : lanes_) {
      const auto received = cluster_.seen(lane.to, Kind::kReceived, lane.in);
      ASSERT_LE(received.size(), lane.sent.size());
      for (std::size_t i = 0; i < received.size(); ++i) {
        EXPECT_TRUE(received[i].payload == lane.sent[i].payload) << "message " << i;
        EXPECT_EQ(received[i].header, pattern(i, 24));
      }
    }
  }

 private:
  struct Sent {
    Bytes payload;
    BufferRef lent;  // the same, where it is sent from memory of the transport's own
  };
  struct Lane {
    Node from;
    PeerId out;
    Node to;
    PeerId in;
    std::unique_ptr<BufferPool> pool;
    std::deque<Sent> sent;
  };

  void add(Node from, PeerId out, Node to, PeerId in) {
    auto pool = std::make_unique<BufferPool>(cluster_.at(from).payload_source());
    lanes_.push_back({from, out, to, in, std::move(pool), {}});
  }

  std::size_t random_size() {
    switch (prng_.below(4)) {
      case 0:
        return prng_.below(32);
      case 1:
        return prng_.below(3000);
      case 2:
        return 32768;
      default:
        return prng_.below(300'000);
    }
  }

  void send_one() {
    Lane& lane = lanes_[prng_.below(lanes_.size())];
    const std::uint64_t number = lane.sent.size();
    Sent& sent = lane.sent.emplace_back(Sent{pattern(prng_.next(), random_size()), {}});
    if (prng_.chance(0.5)) sent.lent = lendable(*lane.pool, sent.payload);
    const bool is_long = sent.payload.size() > kPrivateBytesMax;
    const Status status = cluster_.at(lane.from).send(
        lane.out,
        {.header = pattern(number, 24),
         .payload = sent.lent
                        ? std::span<const std::byte>(sent.lent.span()).first(sent.payload.size())
                        : std::span<const std::byte>(sent.payload),
         .bulk = is_long || prng_.chance(0.5),
         .token = number});
    if (!status.is_ok()) lane.sent.pop_back();  // kAgain, or the connection has ended
  }

  Cluster& cluster_;
  Prng prng_;
  std::deque<Lane> lanes_;
};

TEST_P(Conformance, a_random_run_delivers_exactly_what_was_sent) {
  const Node server = cluster().listen(hello_of(Role::kServer, 0));
  const Node other = cluster().listen(hello_of(Role::kServer, 1));
  Storm storm(cluster(), Prng(11));
  for (std::uint32_t i = 0; i < 3; ++i) {
    storm.add(make_link_to(server, i));
    storm.add(make_link_to(other, i));
  }
  storm.run(150);
  ASSERT_TRUE(storm.finish());
  storm.expect_prefixes();
}

TEST_P(Conformance, a_random_run_cut_short_delivers_a_beginning_of_what_was_sent) {
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const Node server = cluster().listen(hello_of(Role::kServer, 0));
    Prng prng(seed);
    Storm storm(cluster(), prng.split());
    const auto killed = make_link_to(server, 0);
    const auto closed = make_link_to(server, 1);
    storm.add(killed);
    storm.add(closed);
    storm.run(10 + static_cast<int>(prng.below(40)));
    cluster().at(closed.from).close(closed.out, {Code::kCancelled, "enough"});
    cluster().kill(killed.from);
    // Until then the closed one may still read what it was lent.
    ASSERT_TRUE(cluster().until([&] {
      return cluster().count(server, Kind::kDown) == 2 &&
             cluster().count(closed.from, Kind::kDown) == 1;
    }));
    storm.expect_prefixes();
    EXPECT_EQ(cluster().seen(server, Kind::kDown, killed.in).size(), 1U);
    EXPECT_EQ(cluster().seen(server, Kind::kDown, closed.in).size(), 1U);
  }
}

}  // namespace
}  // namespace byteps::conformance
