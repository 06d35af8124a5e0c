// Goal: without a job key only processes of our own user come in, and we go to no other. Method: sockets that are made
// as another user (setfsuid(2): a socket belongs to the user that its thread then was), so as root only.
#include <functional>
#include <string>
#include <utility>

#include <gtest/gtest.h>
#include <sys/fsuid.h>

#include "net/tcp/owner.h"
#include "tests/net/tcp_peer.h"

namespace byteps {
namespace {

constexpr uid_t kStranger = 54321;

// What this thread makes while this lives, is the user's.
class AsUser {
 public:
  explicit AsUser(uid_t user) { ::setfsuid(user); }
  ~AsUser() { ::setfsuid(::geteuid()); }
  AsUser(const AsUser&) = delete;
  AsUser& operator=(const AsUser&) = delete;
};

// Both ends of a connection; each closed at the end, or before.
struct Pair {
  explicit Pair(const std::string& listen_host, const std::string& connect_host, uid_t user) {
    SocketAddress at = resolve({listen_host, 1}).value().at(0);
    at.set_port(0);
    const int listener = ::socket(at.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int no = 0;
    if (at.family() == AF_INET6) ::setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    EXPECT_EQ(::bind(listener, at.get(), at.bytes), 0);
    EXPECT_EQ(::listen(listener, 1), 0);
    at.bytes = sizeof at.storage;
    EXPECT_EQ(::getsockname(listener, at.get(), &at.bytes), 0);
    const std::uint16_t port = at.endpoint().port;
    const SocketAddress to = resolve({connect_host, port}).value().at(0);
    {
      const AsUser stranger(user);
      theirs = ::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    }
    EXPECT_EQ(::connect(theirs, to.get(), to.bytes), 0);
    ours = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_GE(ours, 0);
    ::close(listener);
    remote.bytes = local.bytes = sizeof remote.storage;
    EXPECT_EQ(::getpeername(ours, remote.get(), &remote.bytes), 0);
    EXPECT_EQ(::getsockname(ours, local.get(), &local.bytes), 0);
  }
  ~Pair() {
    close_theirs();
    ::close(ours);
  }
  Pair(const Pair&) = delete;
  Pair& operator=(const Pair&) = delete;

  void close_theirs() {
    if (theirs >= 0) ::close(std::exchange(theirs, -1));
  }
  void reset_theirs() {
    const linger now{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(theirs, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close_theirs();
  }

  int theirs = -1;
  int ours = -1;
  SocketAddress remote;
  SocketAddress local;
};

using Way = std::function<Result<uid_t>(const SocketAddress&, const SocketAddress&)>;

class Owner : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can make sockets of another user";
  }
  const std::vector<std::pair<const char*, Way>> ways_ = {{"netlink", tcp::owner_by_netlink},
                                                          {"tables", tcp::owner_by_tables},
                                                          {"either", tcp::owner_of}};
};

TEST_F(Owner, is_who_has_made_the_other_end_in_every_family) {
  for (const auto& [listen_host, connect_host] : {std::pair{"127.0.0.1", "127.0.0.1"},
                                                  {"::1", "::1"},
                                                  {"::", "127.0.0.1"},
                                                  {"127.0.0.1", "::ffff:127.0.0.1"}}) {
    for (const uid_t user : {uid_t{0}, kStranger}) {
      const Pair pair(listen_host, connect_host, user);
      for (const auto& [name, way] : ways_) {
        const Result<uid_t> owner = way(pair.remote, pair.local);
        ASSERT_TRUE(owner.is_ok()) << name << ' ' << connect_host << owner.status().text();
        EXPECT_EQ(owner.value(), user) << name << ' ' << listen_host << ' ' << connect_host;
      }
    }
  }
}

// The kernel calls a socket without a process root's: that is nobody's here.
TEST_F(Owner, of_an_end_that_was_closed_is_nobody) {
  Pair pair("127.0.0.1", "127.0.0.1", kStranger);
  pair.close_theirs();
  for (const auto& [name, way] : ways_) {
    EXPECT_FALSE(way(pair.remote, pair.local).is_ok()) << name;
  }
  EXPECT_TRUE(tcp::check_owner(pair.ours).is(Code::kDisconnected));
  Pair reset("127.0.0.1", "127.0.0.1", kStranger);
  reset.reset_theirs();
  for (const auto& [name, way] : ways_) {
    EXPECT_FALSE(way(reset.remote, reset.local).is_ok()) << name;
  }
  EXPECT_TRUE(tcp::check_owner(reset.ours).is(Code::kDisconnected));
}

// A connection that is gone is not taken for the one who listens at its port.
TEST_F(Owner, is_not_who_listens_at_the_port) {
  bool listens = false;
  for (int attempt = 0; attempt < 10 && !listens; ++attempt) {  // others may take the port first
    Pair pair("127.0.0.1", "127.0.0.1", kStranger);
    const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    pair.reset_theirs();
    listens =
        ::bind(listener, pair.remote.get(), pair.remote.bytes) == 0 && ::listen(listener, 1) == 0;
    EXPECT_FALSE(listens && tcp::owner_of(pair.remote, pair.local).is_ok());
    ::close(listener);
  }
  EXPECT_TRUE(listens);
}

// ---- of a transport

PeerOptions local_options(bool listens) {
  PeerOptions options = loopback_options();
  if (!listens) options.listen.clear();
  options.loopback_only = true;
  return options;
}

// Turns both, each as its user, until the client's attempt has an outcome: its text, empty for success.
std::string attempt(TurnedTcp& server, uid_t server_user, uid_t client_user) {
  PeerOptions options = local_options(false);
  options.loopback_only = client_user == 0;  // a stranger's program looks at nothing
  TurnedTcp client(std::move(options));
  {
    const AsUser user(client_user);
    (void)client.transport().connect(server.address(), hello_of(Role::kWorker, 1)).value();
  }
  EXPECT_TRUE(client.until([&] {
    const AsUser user(server_user);
    server.poll();
    return !client.seen().empty();
  }));
  if (client.count(Event::Kind::kUp) == 1) return "";
  return client.seen().back().why.text();
}

TEST_F(Owner, lets_in_its_own_user_without_a_job_key) {
  TurnedTcp server(local_options(true));
  EXPECT_EQ(attempt(server, 0, 0), "");
  EXPECT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1; }));
}

TEST_F(Owner, refuses_another_user_without_a_job_key_and_says_what_to_do) {
  TurnedTcp server(local_options(true));
  const std::string why = attempt(server, 0, kStranger);
  EXPECT_NE(why.find("another user of this machine (uid 54321, not 0)"), std::string::npos) << why;
  EXPECT_NE(why.find("BYTEPS_JOB_KEY_FILE"), std::string::npos) << why;
  EXPECT_NE(server.log().find("refused a connection"), std::string::npos) << server.log();
  EXPECT_EQ(server.count(Event::Kind::kUp), 0U);
}

TEST_F(Owner, goes_to_no_other_user_without_a_job_key) {
  PeerOptions options = local_options(true);
  options.loopback_only = false;
  TurnedTcp impostor(std::move(options));
  const std::string why = attempt(impostor, kStranger, 0);
  EXPECT_NE(why.find("another user of this machine (uid 54321, not 0)"), std::string::npos) << why;
  impostor.settle();
  EXPECT_EQ(impostor.count(Event::Kind::kUp), 0U);
}

// With a key, or with BYTEPS_INSECURE=1, users do not matter.
TEST_F(Owner, does_not_matter_where_the_key_says_who_belongs_to_the_job) {
  TurnedTcp server;
  EXPECT_EQ(attempt(server, 0, kStranger), "");
}

}  // namespace
}  // namespace byteps
