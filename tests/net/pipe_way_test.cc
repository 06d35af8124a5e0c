// A TcpTransport with a way that it has never heard of: that it is used, and that its end is that of the connection.
// The conformance suite holds it to the transport's contract.
#include "tests/net/pipe_way.h"

#include <memory>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tests/net/tcp_peer.h"

namespace byteps {
namespace {

class Pair {
 public:
  explicit Pair(bool server_has_pipes = true)
      : server(options(server_has_pipes)), client(options(true)) {
    out = client.transport().connect(server.address(), hello_of(Role::kWorker, 0)).value();
    EXPECT_TRUE(until([&] {
      return server.count(Event::Kind::kUp) == 1 && client.count(Event::Kind::kUp) == 1;
    }));
    for (int i = 0; i < 20; ++i) turn();
  }

  void turn() {
    if (server.poll() + client.poll() == 0) client.transport().waiter().wait(kMillisecond);
  }
  bool until(const std::function<bool()>& done) {
    for (int i = 0; i < 5'000 && !done(); ++i) turn();
    return done();
  }
  bool passes(std::size_t bytes) {
    const Bytes payload = numbered(bytes, ++sent_);
    const std::size_t before = server.count(Event::Kind::kReceived);
    return client.transport()
               .send(out, {.header = {}, .payload = payload, .bulk = true, .token = sent_})
               .is_ok() &&
           until([&] { return server.count(Event::Kind::kReceived) == before + 1; }) &&
           server.seen().back().payload == payload;
  }

 private:
  PeerOptions options(bool has_pipes) {
    PeerOptions options = loopback_options();
    options.ways_instead = [this, has_pipes] {
      Ways ways;
      if (has_pipes) ways.push_back(std::make_unique<PipeWay>(depot_, std::size_t{256} << 10));
      return ways;
    };
    return options;
  }

  const std::shared_ptr<PipeDepot> depot_ = std::make_shared<PipeDepot>();
  std::size_t sent_ = 0;

 public:
  TurnedTcp server;
  TurnedTcp client;
  PeerId out;
};

TEST(PipeWay, messages_of_any_size_go_by_a_way_that_tcp_does_not_know) {
  Pair pair;
  std::uint64_t sum = 0;
  for (const std::size_t bytes : {0U, 1U, 1000U, 100'000U, 200'000U, 1'000'000U}) {
    ASSERT_TRUE(pair.passes(bytes)) << bytes;
    sum += bytes;
  }
  EXPECT_EQ(pair.client.transport().ways().shared_bytes, sum);
  EXPECT_EQ(pair.server.transport().ways().shared_bytes, sum);
  EXPECT_EQ(pair.client.transport().capacity_bytes(pair.out), std::size_t{256} << 10);
}

TEST(PipeWay, a_member_of_the_job_that_has_other_ways_is_not_one_of_it) {
  Pair pair(false);
  EXPECT_TRUE(pair.until([&] { return pair.client.count(Event::Kind::kDown) == 1; }));
  EXPECT_NE(pair.client.seen().back().why.message().find("out of turn"), std::string::npos);
}

TEST(PipeWay, what_was_sent_before_a_close_arrives) {
  Pair pair;
  const Bytes payload = numbered(50'000, 1);
  for (std::size_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(pair.client.transport()
                    .send(pair.out, {.header = {}, .payload = payload, .bulk = true, .token = i})
                    .is_ok());
  }
  pair.client.transport().close(pair.out, {Code::kCancelled, "leaving"});
  ASSERT_TRUE(pair.until([&] { return pair.server.count(Event::Kind::kDown) == 1; }));
  EXPECT_EQ(pair.server.count(Event::Kind::kReceived), 4U);
  EXPECT_EQ(pair.client.count(Event::Kind::kSent), 4U);
}

}  // namespace
}  // namespace byteps
