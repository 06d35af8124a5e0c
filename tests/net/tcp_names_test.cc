// Connecting by host name: look-ups that take long, fail, or never answer. Nobody waits for them but the attempt.
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/net/tcp_peer.h"

namespace byteps {
namespace {

using testing::HasSubstr;

// A name server that answers when the test says so. Shared with look-ups that may outlive the test's transport.
class NameServer {
 public:
  tcp::Resolver::LookUp look_up() {
    return [state = state_](const std::string& host) -> Result<NameBook::Addresses> {
      std::unique_lock lock(state->mutex);
      ++state->asked;
      state->changed.notify_all();
      state->changed.wait(lock, [&] { return state->answers; });
      if (state->addresses.empty()) {
        return Status(Code::kDisconnected, "cannot look up the host name: nobody knows " + host);
      }
      return state->addresses;
    };
  }
  void answer(NameBook::Addresses addresses) {
    const std::lock_guard lock(state_->mutex);
    state_->addresses = std::move(addresses);
    state_->answers = true;
    state_->changed.notify_all();
  }
  void fall_silent() {
    const std::lock_guard lock(state_->mutex);
    state_->answers = false;
  }
  int asked() {
    const std::lock_guard lock(state_->mutex);
    return state_->asked;
  }

 private:
  struct State {
    std::mutex mutex;  // guards what follows
    std::condition_variable changed;
    bool answers = false;
    int asked = 0;
    NameBook::Addresses addresses;
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

class TcpNames : public testing::Test {
 protected:
  ~TcpNames() override { names_.answer({}); }  // a look-up that is left must end before its process
  PeerOptions options() {
    PeerOptions options;
    options.look_up = names_.look_up();
    return options;
  }
  PeerId connect(TurnedTcp& client, const std::string& host, std::uint16_t port) {
    return client.transport().connect({host, port}, hello_of(Role::kWorker, 0)).value();
  }
  // Both ends are turned.
  bool until(TurnedTcp& client, TurnedTcp& server, const std::function<bool()>& done) {
    return client.until([&] {
      server.poll();
      return done();
    });
  }
  NameServer names_;
};

TEST_F(TcpNames, a_look_up_that_takes_long_holds_up_nothing_else) {
  TurnedTcp server;
  TurnedTcp client(options());
  const PeerId named = connect(client, "slow", server.address().port);
  EXPECT_TRUE(client.transport().is_naming(named));
  connect(client, "127.0.0.1", server.address().port);
  ASSERT_TRUE(until(client, server, [&] { return client.count(Event::Kind::kUp) == 1; }));
  EXPECT_NE(client.seen()[0].peer, named);
  client.advance(10 * kSecond);  // three times what a connection may take: that does not count yet
  client.settle();
  EXPECT_TRUE(client.transport().is_naming(named));
  names_.answer({"127.0.0.1"});
  ASSERT_TRUE(until(client, server, [&] { return client.count(Event::Kind::kUp) == 2; }));
  EXPECT_FALSE(client.transport().is_naming(named));
}

TEST_F(TcpNames, what_was_looked_up_is_kept_and_all_who_wait_get_one_answer) {
  TurnedTcp server;
  TurnedTcp client(options());
  for (int i = 0; i < 3; ++i) connect(client, "host", server.address().port);
  names_.answer({"127.0.0.1"});
  ASSERT_TRUE(until(client, server, [&] { return client.count(Event::Kind::kUp) == 3; }));
  names_.fall_silent();
  const PeerId later = connect(client, "host", server.address().port);
  EXPECT_FALSE(client.transport().is_naming(later));
  ASSERT_TRUE(until(client, server, [&] { return client.count(Event::Kind::kUp) == 4; }));
  EXPECT_EQ(names_.asked(), 1);
}

TEST_F(TcpNames, a_lost_connection_is_made_again_though_no_name_server_answers_any_more) {
  auto server = std::make_unique<TurnedTcp>();
  const std::uint16_t port = server->address().port;
  TurnedTcp client(options());
  connect(client, "host", port);
  names_.answer({"127.0.0.1"});
  ASSERT_TRUE(until(client, *server, [&] { return client.count(Event::Kind::kUp) == 1; }));
  names_.fall_silent();
  server.reset();
  ASSERT_TRUE(client.until([&] { return client.count(Event::Kind::kDown) == 1; }));
  connect(client, "host", port);  // refused: from now on the name is in doubt
  ASSERT_TRUE(client.until([&] { return client.count(Event::Kind::kDown) == 2; }));
  PeerOptions again = loopback_options();
  again.listen = {{"127.0.0.1", port}};
  server = std::make_unique<TurnedTcp>(again);
  const PeerId peer = connect(client, "host", port);
  EXPECT_FALSE(client.transport().is_naming(peer));
  ASSERT_TRUE(until(client, *server, [&] { return client.count(Event::Kind::kUp) == 2; }));
  EXPECT_TRUE(client.until([&] { return names_.asked() == 2; })) << "looked up anew, beside it";
}

TEST_F(TcpNames, a_host_that_moved_is_found_at_its_new_address) {
  TurnedTcp server;
  TurnedTcp client(options());
  names_.answer({"127.0.0.9"});  // nobody listens there
  connect(client, "host", server.address().port);
  ASSERT_TRUE(client.until([&] { return client.count(Event::Kind::kDown) == 1; }));
  names_.answer({"127.0.0.1"});
  std::size_t attempts = 1;
  EXPECT_TRUE(until(client, server, [&] {
    if (client.count(Event::Kind::kDown) == attempts) {
      ++attempts;
      connect(client, "host", server.address().port);
    }
    return client.count(Event::Kind::kUp) == 1;
  }));
}

TEST_F(TcpNames, a_name_that_nobody_knows_ends_in_down_that_says_so_and_is_asked_for_again) {
  TurnedTcp client(options());
  names_.answer({});
  for (std::size_t i = 1; i <= 2; ++i) {
    connect(client, "nobody", 9);
    ASSERT_TRUE(client.until([&] { return client.count(Event::Kind::kDown) == i; }));
  }
  EXPECT_EQ(client.seen()[1].why.text(),
            "Disconnected: nobody:9: cannot look up the host name: nobody knows nobody");
  EXPECT_EQ(names_.asked(), 2);
}

TEST_F(TcpNames, a_look_up_without_an_answer_ends_at_its_time_limit) {
  TurnedTcp client(options());
  connect(client, "slow", 9);
  client.settle();
  client.advance(Transport::kLookUpNs);
  ASSERT_TRUE(client.until([&] { return client.count(Event::Kind::kDown) == 1; }));
  EXPECT_THAT(client.seen()[0].why.text(),
              HasSubstr("slow:9: cannot look up the host name: no answer in time"));
}

TEST_F(TcpNames, an_attempt_that_was_closed_meanwhile_is_not_begun) {
  TurnedTcp server;
  TurnedTcp client(options());
  const PeerId peer = connect(client, "slow", server.address().port);
  client.transport().close(peer, {Code::kCancelled, "enough"});
  ASSERT_TRUE(client.until([&] { return client.count(Event::Kind::kDown) == 1; }));
  names_.answer({"127.0.0.1"});
  client.settle();
  server.settle();
  EXPECT_EQ(server.count(Event::Kind::kUp), 0U);
  EXPECT_EQ(client.seen().size(), 1U);
}

TEST_F(TcpNames, without_a_key_a_name_that_leads_elsewhere_is_refused) {
  PeerOptions loopback = options();
  loopback.loopback_only = true;
  TurnedTcp client(loopback);
  names_.answer({"127.0.0.1", "192.0.2.1"});
  connect(client, "elsewhere", 9);
  ASSERT_TRUE(client.until([&] { return client.count(Event::Kind::kDown) == 1; }));
  EXPECT_TRUE(client.seen()[0].why.is(Code::kInvalidArgument)) << client.seen()[0].why.text();
}

TEST_F(TcpNames, a_transport_ends_without_the_look_ups_that_are_under_way) {
  auto client = std::make_unique<TurnedTcp>(options());
  connect(*client, "slow", 9);
  ASSERT_TRUE(client->until([&] { return names_.asked() == 1; }));
  client.reset();
  names_.answer({"127.0.0.1"});  // to nobody
}

}  // namespace
}  // namespace byteps
