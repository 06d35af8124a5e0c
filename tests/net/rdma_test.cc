// RDMA under a connection, with a device that is played (fake_verbs.h): when it is used, what happens where it cannot
// be, and how connections end when it fails. The conformance suite holds it to the transport's contract.
#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/buffer.h"
#include "base/prng.h"
#include "net/rdma/queue_pair.h"
#include "net/rdma/slabs.h"
#include "net/shm/doorway.h"
#include "net/way/aside.h"
#include "tests/net/fake_verbs.h"
#include "tests/net/tcp_peer.h"

namespace byteps {
namespace {

using rdma::fake_fabric;
using rdma::Policy;

PeerOptions with_rdma(Policy policy, PeerOptions options = {}) {
  options.rdma = rdma::fake_options();
  options.rdma.policy = policy;
  options.verbs = rdma::fake_verbs();
  options.connect_timeout_ns = 100 * kMillisecond;
  return options;
}

PeerOptions serving(Policy policy) {
  return with_rdma(policy, loopback_options());
}

// Two transports, turned in step. The device is as new for each.
class Pair {
 public:
  explicit Pair(PeerOptions server_options = serving(Policy::kRequired),
                PeerOptions client_options = with_rdma(Policy::kRequired))
      : server(std::move(server_options)), client(std::move(client_options)) {
    out = client.transport().connect(server.address(), hello_of(Role::kWorker, 0)).value();
    until([&] { return is_up() || client.count(Event::Kind::kDown) > 0; });
    settle();
    if (is_up()) in = server.seen().at(0).peer;
  }
  ~Pair() { fake_fabric().heal(); }

  bool is_up() {
    return server.count(Event::Kind::kUp) == 1 && client.count(Event::Kind::kUp) == 1;
  }
  bool until(const std::function<bool()>& done) {
    for (int i = 0; i < 5'000; ++i) {
      if (done()) return true;
      turn();
    }
    return done();
  }
  void turn() {
    if (server.poll() + client.poll() > 0) return;
    client.transport().waiter().wait(kMillisecond);
    server.advance(kMillisecond);
    client.advance(kMillisecond);
  }
  void settle() {
    for (int i = 0; i < 20; ++i) turn();
  }
  bool passes(std::size_t bytes) {
    const Bytes payload = numbered(bytes, ++sent_);
    const std::size_t before = server.count(Event::Kind::kReceived);
    if (!client.transport()
             .send(out, {.header = {}, .payload = payload, .bulk = true, .token = sent_})
             .is_ok())
      return false;
    return until([&] { return server.count(Event::Kind::kReceived) == before + 1; }) &&
           server.seen().back().payload == payload;
  }
  std::string client_why() {
    return client.count(Event::Kind::kDown) == 1 ? client.seen().back().why.text() : "(not down)";
  }

  TurnedTcp server;
  TurnedTcp client;
  PeerId out;
  PeerId in;

 private:
  std::size_t sent_ = 0;
};

bool has(const std::string& text, const std::string& word) {
  return text.find(word) != std::string::npos;
}

// ---- that it is used

TEST(Rdma, where_both_want_it_every_payload_goes_by_it_and_the_log_names_the_device) {
  for (const Policy policy : {Policy::kAuto, Policy::kRequired}) {
    Pair pair(serving(policy), with_rdma(policy));
    ASSERT_TRUE(pair.is_up());
    ASSERT_TRUE(pair.passes(100'000));
    EXPECT_EQ(pair.client.transport().ways().rdma_bytes, 100'000U);
    EXPECT_EQ(pair.server.transport().ways().rdma_bytes, 100'000U);
    EXPECT_EQ(pair.client.transport().ways().shared_bytes, 0U);
    EXPECT_TRUE(has(pair.client.log(), "goes on through RDMA on fake0 port 1, GID 2"))
        << pair.client.log();
    EXPECT_EQ(pair.client.transport().capacity_bytes(pair.out), rdma::fake_options().ring_bytes);
  }
}

TEST(Rdma, many_small_messages_share_a_write) {
  Pair pair;
  const std::size_t before = fake_fabric().writes;
  const Bytes payload = numbered(100, 1);
  for (std::size_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(pair.client.transport()
                    .send(pair.out, {.header = {}, .payload = payload, .bulk = true, .token = i})
                    .is_ok());
  }
  ASSERT_TRUE(pair.until([&] { return pair.server.count(Event::Kind::kReceived) == 200; }));
  EXPECT_LT(fake_fabric().writes - before, 20U);
}

TEST(Rdma, a_receive_queue_never_runs_dry_however_slowly_the_other_side_reads) {
  PeerOptions server = serving(Policy::kRequired);
  server.rdma.receive_depth = RdmaConfig::kReceiveDepthMin;
  PeerOptions client = with_rdma(Policy::kRequired);
  client.rdma.receive_depth = RdmaConfig::kReceiveDepthMin;
  client.rdma.send_depth = RdmaConfig::kSendDepthMin;
  Pair pair(std::move(server), std::move(client));
  const Bytes payload = numbered(500, 1);
  std::size_t sent = 0;
  ASSERT_TRUE(pair.until([&] {
    // Each by itself: a turn between two sends makes a write of each.
    for (int i = 0; i < 10 && sent < 2000; ++i) {
      if (!pair.client.transport()
               .send(pair.out, {.header = {}, .payload = payload, .bulk = true, .token = sent})
               .is_ok())
        break;
      ++sent;
      pair.client.poll();
    }
    return pair.server.count(Event::Kind::kReceived) == 2000;
  })) << sent;
  EXPECT_EQ(fake_fabric().rnr_count, 0U);
}

TEST(Rdma, peers_on_one_host_share_memory_also_where_rdma_is_required) {
  PeerOptions server = serving(Policy::kRequired);
  server.shared_ring_bytes = 256 << 10;
  PeerOptions client = with_rdma(Policy::kRequired);
  client.shared_ring_bytes = 256 << 10;
  Pair pair(std::move(server), std::move(client));
  ASSERT_TRUE(pair.is_up());
  ASSERT_TRUE(pair.passes(100'000));
  EXPECT_EQ(pair.client.transport().ways().shared_bytes, 100'000U);
  EXPECT_EQ(pair.client.transport().ways().rdma_bytes, 0U);
}

TEST(Rdma, who_declines_to_share_memory_is_offered_rdma) {
  PeerOptions client = with_rdma(Policy::kRequired);
  client.shared_ring_bytes = 256 << 10;  // and the server's is 0
  Pair pair(serving(Policy::kRequired), std::move(client));
  ASSERT_TRUE(pair.passes(1000));
  EXPECT_EQ(pair.client.transport().ways().rdma_bytes, 1000U);
}

TEST(Rdma, a_connection_to_the_scheduler_needs_none) {
  PeerOptions scheduler = loopback_options();
  scheduler.self = hello_of(Role::kScheduler, kNoRank);
  Pair pair(std::move(scheduler), with_rdma(Policy::kRequired));
  ASSERT_TRUE(pair.is_up());
  EXPECT_TRUE(pair.passes(1000));
}

// ---- payloads from registered memory

// A payload that the client's device may read where it lies.
BufferRef lendable(BufferPool& pool, std::size_t bytes, std::size_t number) {
  BufferRef buffer = pool.take(bytes);
  const Bytes content = numbered(bytes, number);
  std::copy(content.begin(), content.end(), buffer.span().begin());
  return buffer;
}

TEST(RdmaLending, a_payload_of_registered_memory_is_not_copied_and_is_lent_until_it_is_written) {
  Pair pair;
  BufferPool pool(pair.client.transport().payload_source());
  BufferRef buffer = lendable(pool, 60'000, 1);
  fake_fabric().delivers = false;
  ASSERT_TRUE(
      pair.client.transport()
          .send(pair.out,
                {.header = {}, .payload = buffer.span().first(60'000), .bulk = true, .token = 7})
          .is_ok());
  pair.settle();
  EXPECT_EQ(pair.client.count(Event::Kind::kSent), 0U);
  buffer.span()[100] =
      std::byte{0xee};  // which nobody may do; here it shows where the device reads
  fake_fabric().delivers = true;
  ASSERT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kSent) == 1; }));
  ASSERT_TRUE(pair.until([&] { return pair.server.count(Event::Kind::kReceived) == 1; }));
  EXPECT_EQ(pair.server.seen().back().payload[100], std::byte{0xee});
  EXPECT_EQ(pair.server.seen().back().payload.size(), 60'000U);
}

TEST(RdmaLending, all_sizes_arrive_whole_and_in_order_lent_and_copied_in_turn) {
  PeerOptions server = serving(Policy::kRequired);
  server.rdma.ring_bytes = 64 << 10;
  Pair pair(std::move(server));
  BufferPool pool(pair.client.transport().payload_source());
  Prng prng(5);
  std::vector<BufferRef> buffers;
  std::vector<std::size_t> sizes;
  std::size_t sent = 0;
  ASSERT_TRUE(pair.until([&] {
    for (int burst = 0; burst < 4 && sent < 600; ++burst) {
      if (buffers.size() == sent) {
        sizes.push_back(prng.chance(0.3) ? prng.below(200) : 4000 + prng.below(27'000));
        buffers.push_back(lendable(pool, std::max<std::size_t>(1, sizes.back()), sent));
      }
      const auto payload = std::span<const std::byte>(buffers[sent].span()).first(sizes[sent]);
      if (!pair.client.transport()
               .send(pair.out, {.header = numbered(sent % 200),
                                .payload = payload,
                                .bulk = true,
                                .token = sent})
               .is_ok())
        break;
      ++sent;
    }
    return pair.server.count(Event::Kind::kReceived) == 600 &&
           pair.client.count(Event::Kind::kSent) == 600;
  })) << sent;
  std::size_t number = 0;
  for (const auto& event : pair.server.seen()) {
    if (event.kind != Event::Kind::kReceived) continue;
    ASSERT_TRUE(event.payload == numbered(sizes[number], number)) << number;
    ++number;
  }
  number = 0;
  for (const auto& event : pair.client.seen()) {
    if (event.kind != Event::Kind::kSent) continue;
    EXPECT_EQ(event.token, number++);
  }
}

TEST(RdmaLending, at_the_end_what_is_lent_comes_back_when_the_device_reads_no_more) {
  Pair pair;
  BufferPool pool(pair.client.transport().payload_source());
  const BufferRef buffer = lendable(pool, 60'000, 1);
  fake_fabric().delivers = false;
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(
        pair.client.transport()
            .send(pair.out,
                  {.header = {}, .payload = buffer.span().first(60'000), .bulk = true, .token = i})
            .is_ok());
  }
  pair.client.poll();
  EXPECT_EQ(fake_fabric().pairs.size(), 2U);
  pair.client.transport().close(pair.out, {Code::kCancelled, "leaving"});
  EXPECT_EQ(fake_fabric().pairs.size(), 1U) << "before anything is given back";
  ASSERT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kDown) == 1; }));
  EXPECT_EQ(pair.client.count(Event::Kind::kSent), 3U);
}

TEST(RdmaLending, where_it_cannot_be_registered_it_is_copied_and_the_log_says_so) {
  Pair pair;
  ASSERT_TRUE(pair.is_up());
  fake_fabric().registrations_max = 0;
  BufferPool pool(pair.client.transport().payload_source());
  const BufferRef buffer = lendable(pool, 60'000, 1);
  fake_fabric().delivers = false;
  ASSERT_TRUE(
      pair.client.transport()
          .send(pair.out,
                {.header = {}, .payload = buffer.span().first(60'000), .bulk = true, .token = 7})
          .is_ok());
  pair.settle();
  EXPECT_EQ(pair.client.count(Event::Kind::kSent), 1U);
  EXPECT_TRUE(has(pair.client.log(), "is copied first")) << pair.client.log();
}

TEST(RdmaSlabs, memory_is_registered_by_the_slab_and_given_back_with_its_last_piece) {
  rdma::Slabs slabs;
  rdma::GidBytes own{};
  own[10] = own[11] = 0xff;
  own[12] = 127;
  own[15] = 1;
  const std::shared_ptr<rdma::Device> device =
      rdma::Device::open(rdma::fake_verbs(), rdma::fake_options(), own, "127.0.0.1", "").value();
  std::byte* const early = slabs.take(64 << 10);
  slabs.add_device(device);
  const std::size_t before = fake_fabric().regions.size();
  EXPECT_TRUE(slabs.key(*device, {early, 64 << 10})) << "also what was taken before";
  std::vector<std::byte*> pieces;
  for (int i = 0; i < 63; ++i) pieces.push_back(slabs.take(64 << 10));
  EXPECT_EQ(fake_fabric().regions.size(), before) << "one slab";
  pieces.push_back(slabs.take(64 << 10));
  EXPECT_EQ(fake_fabric().regions.size(), before + 1);
  std::byte* const small = slabs.take(64);
  EXPECT_FALSE(slabs.key(*device, {small, 64}));
  slabs.give_back(small, 64);
  for (std::byte* const piece : pieces) slabs.give_back(piece, 64 << 10);
  slabs.give_back(early, 64 << 10);
  EXPECT_EQ(fake_fabric().regions.size(), before - 1) << "both slabs are gone";
  std::byte* const again = slabs.take(32 << 10);
  std::memset(again, 1, 32 << 10);
  slabs.give_back(again, 32 << 10);
}

// ---- where it cannot be

TEST(Rdma, where_one_side_does_not_want_it_auto_stays_on_tcp) {
  Pair server_off(loopback_options(), with_rdma(Policy::kAuto));
  EXPECT_TRUE(server_off.passes(1000));
  EXPECT_EQ(server_off.client.transport().ways().rdma_bytes, 0U);
  Pair client_off(serving(Policy::kAuto), PeerOptions());
  EXPECT_TRUE(client_off.passes(1000));
  EXPECT_EQ(client_off.client.transport().ways().rdma_bytes, 0U);
}

TEST(Rdma, where_it_is_required_and_the_server_has_none_the_worker_is_told_why) {
  Pair pair(loopback_options(), with_rdma(Policy::kRequired));
  ASSERT_EQ(pair.client.count(Event::Kind::kDown), 1U);
  EXPECT_EQ(pair.client.count(Event::Kind::kUp), 0U) << "never up, so nothing was sent by TCP";
  EXPECT_TRUE(has(pair.client_why(), "DMLC_ENABLE_RDMA is not set there")) << pair.client_why();
  EXPECT_TRUE(has(pair.client_why(), "127.0.0.1")) << pair.client_why();
}

TEST(Rdma, where_a_server_requires_it_a_worker_that_never_asks_is_told_what_to_set) {
  Pair pair(serving(Policy::kRequired), PeerOptions());
  ASSERT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kDown) == 1; }));
  EXPECT_TRUE(has(pair.client_why(), "DMLC_ENABLE_RDMA")) << pair.client_why();
  EXPECT_TRUE(pair.server.seen().empty()) << "its owner never heard of it";
}

TEST(Rdma, where_a_server_requires_it_nothing_is_taken_over_tcp) {
  TurnedTcp server(serving(Policy::kRequired));
  BareSocket socket(server.address());
  ASSERT_TRUE(shake_hands(socket, server, hello_of(Role::kWorker, 0)));
  socket.write(numbered_frame(1000, 8));
  ASSERT_TRUE(server.until([&] { return socket.has_ended(); }));
  EXPECT_TRUE(has(server.log(), "sends over TCP")) << server.log();
  EXPECT_TRUE(server.seen().empty()) << "its owner never heard of it";
}

TEST(Rdma, a_port_that_is_down_is_named_where_it_is_required) {
  fake_fabric().port_is_up = false;
  Pair pair;
  EXPECT_TRUE(has(pair.client_why(), "fake0 port 1 is down")) << pair.client_why();
}

TEST(Rdma, a_device_that_cannot_be_opened_is_named_with_what_to_do_and_auto_warns) {
  fake_fabric().open_error = EPERM;
  {
    Pair pair;
    for (const char* word : {"fake0 (cannot be opened: Operation not permitted)", "--device"}) {
      EXPECT_TRUE(has(pair.client_why(), word)) << pair.client_why();
    }
  }
  fake_fabric().open_error = EMFILE;
  Pair pair(serving(Policy::kAuto), with_rdma(Policy::kAuto));
  EXPECT_TRUE(pair.passes(1000));
  EXPECT_TRUE(has(pair.client.log(), "WARNING")) << pair.client.log();
}

TEST(Rdma, devices_are_not_looked_through_for_each_connection_while_none_can_be_had) {
  fake_fabric().port_is_up = false;
  fake_fabric().listed_count = 0;
  Pair pair(serving(Policy::kAuto), with_rdma(Policy::kAuto));
  for (std::size_t i = 2; i <= 4; ++i) {
    ASSERT_TRUE(
        pair.client.transport().connect(pair.server.address(), hello_of(Role::kWorker, 0)).is_ok());
    ASSERT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kUp) == i; }));
  }
  EXPECT_EQ(fake_fabric().listed_count, 1U);
}

TEST(Rdma, refused_registration_names_the_limit_and_auto_stays_on_tcp) {
  fake_fabric().registrations_max = 0;
  {
    Pair pair;
    EXPECT_TRUE(has(pair.client_why(), "ulimit -l unlimited")) << pair.client_why();
  }
  fake_fabric().registrations_max = 1;  // the client's ring, and not the server's
  Pair pair(serving(Policy::kAuto), with_rdma(Policy::kAuto));
  EXPECT_TRUE(pair.passes(1000));
  EXPECT_EQ(pair.client.transport().ways().rdma_bytes, 0U);
  EXPECT_TRUE(has(pair.server.log(), "ulimit -l unlimited")) << pair.server.log();
}

TEST(Rdma, limits_that_are_out_of_range_are_invalid) {
  for (const auto& spoil :
       {std::function<void(RdmaConfig&)>([](RdmaConfig& c) { c.ring_bytes = 65537; }),
        std::function<void(RdmaConfig&)>([](RdmaConfig& c) { c.send_depth = 1; })}) {
    PeerOptions options = with_rdma(Policy::kAuto);
    spoil(options.rdma);
    const auto made = make_transport(std::move(options), Log("test", LogLevel::kSilent, {}));
    EXPECT_TRUE(made.status().is(Code::kInvalidArgument));
  }
}

// ---- what is said of it

// Connects so many more times, and lets a minute pass before each: then quiet lines may be written again.
void connect_again(Pair& pair, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    pair.client.advance(60 * kSecond);
    const std::size_t ups = pair.client.count(Event::Kind::kUp);
    (void)pair.client.transport()
        .connect(pair.server.address(), hello_of(Role::kWorker, 0))
        .value();
    EXPECT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kUp) == ups + 1; }));
    pair.settle();
  }
}

std::size_t count_of(const std::string& word, const std::string& text) {
  std::size_t count = 0;
  for (auto at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++count;
  return count;
}

TEST(Rdma, which_way_is_taken_and_why_is_one_line_for_all_connections_of_a_process) {
  for (const bool is_there : {true, false}) {
    Pair pair(is_there ? serving(Policy::kAuto) : loopback_options(), with_rdma(Policy::kAuto));
    connect_again(pair, 3);
    const std::string log = pair.client.log();
    EXPECT_EQ(count_of("[byteps INFO", log), 1U) << log;
    EXPECT_TRUE(has(log, is_there
                             ? "goes on through RDMA on fake0 port 1"
                             : "stays on TCP: refused by it: DMLC_ENABLE_RDMA is not set there"))
        << log;
  }
  PeerOptions of_second_shard = serving(Policy::kAuto);
  of_second_shard.tells_ways = false;
  Pair pair(std::move(of_second_shard), with_rdma(Policy::kAuto));
  EXPECT_EQ(count_of("[byteps INFO", pair.server.log()), 0U) << pair.server.log();
  EXPECT_EQ(count_of("goes on through RDMA", pair.server.log()), 1U) << pair.server.log();
}

TEST(Rdma, a_device_that_cannot_be_used_is_warned_of_also_right_behind_connections_without_one) {
  Pair pair(loopback_options(), with_rdma(Policy::kAuto));
  fake_fabric().registrations_max = 0;
  (void)pair.client.transport().connect(pair.server.address(), hello_of(Role::kWorker, 0)).value();
  ASSERT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kUp) == 2; }));
  EXPECT_EQ(count_of("[byteps WARNING", pair.client.log()), 1U) << pair.client.log();
  EXPECT_TRUE(has(pair.client.log(), "ulimit -l unlimited")) << pair.client.log();
}

// ---- a way that lets TCP through and RDMA not

TEST(RdmaWay,
     where_rdma_is_required_nobody_is_up_before_it_came_through_and_the_end_says_where_to_look) {
  fake_fabric().drops = true;
  Pair pair;
  EXPECT_EQ(pair.client.count(Event::Kind::kUp), 0U);
  EXPECT_EQ(pair.server.count(Event::Kind::kUp), 0U);
  for (const char* word : {"DMLC_ENABLE_RDMA", "retry counter exceeded", "UDP port 4791"}) {
    EXPECT_TRUE(has(pair.client_why(), word)) << pair.client_why();
  }
}

TEST(RdmaWay, where_nothing_is_told_the_time_limit_says_it_too) {
  fake_fabric().delivers = false;
  Pair pair;
  EXPECT_EQ(pair.client.count(Event::Kind::kUp), 0U);
  EXPECT_TRUE(has(pair.client_why(), "UDP port 4791")) << pair.client_why();
}

TEST(RdmaWay, otherwise_all_goes_by_tcp_with_a_warning_and_without_a_pause) {
  fake_fabric().delivers = false;
  Pair pair(serving(Policy::kAuto), with_rdma(Policy::kAuto));
  ASSERT_TRUE(pair.is_up());
  EXPECT_TRUE(pair.passes(1000)) << "while the probe is under way";
  fake_fabric().drops = true;
  pair.settle();
  EXPECT_TRUE(pair.passes(100'000));
  EXPECT_EQ(pair.client.transport().ways().rdma_bytes, 0U);
  EXPECT_TRUE(has(pair.client.log(), "UDP port 4791")) << pair.client.log();
  EXPECT_TRUE(fake_fabric().pairs.empty()) << "neither side keeps its half";
  EXPECT_EQ(pair.client.count(Event::Kind::kDown), 0U);
}

TEST(RdmaWay, an_answer_that_does_not_come_through_is_as_bad) {
  for (const bool is_required : {true, false}) {
    const Policy policy = is_required ? Policy::kRequired : Policy::kAuto;
    fake_fabric().drops_from_second = true;
    Pair pair(serving(policy), with_rdma(policy));
    EXPECT_EQ(pair.is_up(), !is_required);
    if (!is_required) {
      EXPECT_TRUE(pair.passes(1000));
      EXPECT_EQ(pair.client.transport().ways().rdma_bytes, 0U);
    }
  }
}

TEST(RdmaWay, a_device_that_has_failed_is_opened_anew_for_the_next_connection) {
  fake_fabric().opened_count = 0;
  Pair pair;
  rdma::fake_device_event(rdma::abi::kEventDeviceFatal);  // of the server's: it was opened last
  pair.server.transport().waiter().wait(0);
  ASSERT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kDown) == 1; }));
  pair.out =
      pair.client.transport().connect(pair.server.address(), hello_of(Role::kWorker, 0)).value();
  ASSERT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kUp) == 2; }));
  EXPECT_TRUE(pair.passes(1000));
  EXPECT_EQ(fake_fabric().opened_count, 3U) << "the client's, and two of the server's";
  EXPECT_EQ(fake_fabric().open_count, 2U) << "the one that failed is closed";
}

// ---- the end

TEST(Rdma, a_peer_whose_device_does_not_answer_ends_the_connection_with_its_name_and_the_reason) {
  Pair pair;
  fake_fabric().delivers = false;
  const Bytes payload = numbered(1000, 1);
  ASSERT_TRUE(pair.client.transport()
                  .send(pair.out, {.header = {}, .payload = payload, .bulk = true, .token = 1})
                  .is_ok());
  pair.settle();
  EXPECT_EQ(pair.client.count(Event::Kind::kDown), 0U);
  fake_fabric().expire();
  ASSERT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kDown) == 1; }));
  for (const char* word : {"Timeout", "127.0.0.1", "fake0", "transport retry counter exceeded"}) {
    EXPECT_TRUE(has(pair.client_why(), word)) << pair.client_why();
  }
  EXPECT_EQ(pair.client.count(Event::Kind::kSent), 1U);
  ASSERT_TRUE(pair.until([&] { return pair.server.count(Event::Kind::kDown) == 1; }))
      << "the other side is told over TCP";
}

TEST(Rdma, a_device_that_fails_ends_its_connections_and_a_port_that_goes_down_only_warns) {
  Pair pair;
  rdma::fake_device_event(rdma::abi::kEventPortError);  // of the server's: it was opened last
  pair.server.transport().waiter().wait(0);
  pair.settle();
  EXPECT_TRUE(has(pair.server.log(), "its port is down")) << pair.server.log();
  EXPECT_TRUE(pair.passes(1000)) << "it came back in time";
  rdma::fake_device_event(rdma::abi::kEventDeviceFatal);
  pair.server.transport().waiter().wait(0);
  ASSERT_TRUE(pair.until([&] { return pair.server.count(Event::Kind::kDown) == 1; }));
  EXPECT_TRUE(has(pair.server.seen().back().why.message(), "fake0 port 1: it has failed"));
  ASSERT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kDown) == 1; }));
}

TEST(Rdma, a_queue_that_fails_ends_the_connection_that_has_it_and_no_other) {
  Pair pair;
  int of_somebody_else = 0;
  rdma::fake_device_event(rdma::abi::kEventCompletionQueueError, &of_somebody_else);
  pair.server.transport().waiter().wait(0);
  pair.settle();
  EXPECT_TRUE(pair.passes(1000));
  // The server's pair was made second.
  rdma::fake_device_event(rdma::abi::kEventQueuePairFatal, fake_fabric().pairs.rbegin()->second);
  pair.server.transport().waiter().wait(0);
  ASSERT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kDown) == 1; }));
  EXPECT_TRUE(has(pair.client_why(), "a queue pair has failed")) << pair.client_why();
}

TEST(Rdma, what_was_sent_before_a_close_arrives) {
  Pair pair;
  fake_fabric().steps_per_look = 1;
  const Bytes payload = numbered(100'000, 1);
  for (std::size_t i = 0; i < 5; ++i) {
    ASSERT_TRUE(pair.client.transport()
                    .send(pair.out, {.header = {}, .payload = payload, .bulk = true, .token = i})
                    .is_ok());
  }
  pair.client.transport().close(pair.out, {Code::kCancelled, "leaving"});
  ASSERT_TRUE(pair.until([&] { return pair.server.count(Event::Kind::kDown) == 1; }));
  EXPECT_EQ(pair.server.count(Event::Kind::kReceived), 5U);
}

TEST(Rdma, nothing_is_left_registered_or_open_behind_the_last_connection) {
  {
    Pair pair;
    ASSERT_TRUE(pair.passes(1000));
    EXPECT_FALSE(fake_fabric().pairs.empty());
    pair.client.transport().close(pair.out, {Code::kCancelled, "leaving"});
    ASSERT_TRUE(pair.until([&] { return pair.server.count(Event::Kind::kDown) == 1; }));
    pair.settle();
    EXPECT_TRUE(fake_fabric().pairs.empty());
    EXPECT_TRUE(fake_fabric().regions.empty());
  }
}

// ---- what a hostile member of the job may say

// Says asides of its own to a server that wants RDMA.
class Stranger {
 public:
  Stranger() : server(serving(Policy::kAuto)), socket(server.address()) {
    EXPECT_TRUE(shake_hands(socket, server, hello_of(Role::kWorker, 0)));
    EXPECT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1; }));
  }
  void say(way::Aside kind, std::span<const std::byte> content) {
    Bytes header{static_cast<std::byte>(kind)};
    append(header, content);
    Bytes out(frame::kPrefixBytes);
    frame::encode({.header_bytes = static_cast<std::uint16_t>(header.size()),
                   .is_aside = true,
                   .header_crc = crc32c(0, header)},
                  std::span(out).first<frame::kPrefixBytes>());
    append(out, header);
    socket.write(out);
  }
  bool is_ended() {
    return server.until([&] { return server.count(Event::Kind::kDown) == 1; });
  }
  TurnedTcp server;
  BareSocket socket;
};

rdma::PeerInfo plausible() {
  rdma::PeerInfo info;
  info.mtu = 3;
  info.queue_pair = 99;
  info.ring_bytes = 64 << 10;
  info.writes_max = 32;
  return info;
}

TEST(RdmaHostile, an_offer_that_breaks_a_limit_or_comes_twice_ends_the_connection) {
  {
    Stranger stranger;
    rdma::PeerInfo info = plausible();
    info.ring_bytes = 12345;
    stranger.say(way::Aside::kOffer, rdma::encode(info));
    EXPECT_TRUE(stranger.is_ended());
  }
  Stranger stranger;
  stranger.say(way::Aside::kOffer, rdma::encode(plausible()));
  stranger.say(way::Aside::kOffer, rdma::encode(plausible()));
  EXPECT_TRUE(stranger.is_ended());
}

TEST(RdmaHostile, an_invitation_to_shared_memory_behind_an_offer_ends_the_connection) {
  Stranger stranger;
  stranger.say(way::Aside::kOffer, rdma::encode(plausible()));
  stranger.say(way::Aside::kInvite, Bytes(shm::Invitation::kBytes));
  EXPECT_TRUE(stranger.is_ended()) << "the link that is there would be lost";
}

TEST(RdmaHostile, an_accept_nobody_asked_for_and_a_switch_to_nothing_end_the_connection) {
  {
    Stranger stranger;
    stranger.say(way::Aside::kAccept, rdma::encode(plausible()));
    EXPECT_TRUE(stranger.is_ended());
  }
  Stranger stranger;
  stranger.say(way::Aside::kSwitch, {});
  EXPECT_TRUE(stranger.is_ended());
}

}  // namespace
}  // namespace byteps
