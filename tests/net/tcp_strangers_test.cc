// Goal: connections that have not proved to belong to the job cost little, last a limited time, and do not keep
// members out. Method: bare sockets that stop in the middle of the handshake, and members that come meanwhile.
#include <algorithm>
#include <deque>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "net/tcp/connection.h"
#include "tests/net/tcp_peer.h"

namespace byteps {
namespace {

const JobKey kKey("a key of the job, long enough");
const JobKey kOtherKey("a key of another job, as long");

Hello keyed_hello(Role role, std::uint32_t rank, const JobKey& key = kKey) {
  Hello hello = hello_of(role, rank);
  hello.job_id = auth::job_id_of(key);
  return hello;
}

PeerOptions keyed_options(const JobKey& key = kKey) {
  PeerOptions options = loopback_options();
  options.self = keyed_hello(Role::kServer, 0, key);
  options.key = key;
  return options;
}

PeerOptions connecting_options(const JobKey& key) {
  PeerOptions options;
  options.key = key;
  return options;
}

// Turns both until the client's attempt has an outcome; its text, empty for success.
std::string attempt(TurnedTcp& server, TurnedTcp& client, const Hello& self) {
  const std::size_t ups = client.count(Event::Kind::kUp);
  const std::size_t downs = client.count(Event::Kind::kDown);
  (void)client.transport().connect(server.address(), self).value();
  EXPECT_TRUE(client.until([&] {
    server.poll();
    return client.count(Event::Kind::kUp) > ups || client.count(Event::Kind::kDown) > downs;
  }));
  return client.count(Event::Kind::kUp) > ups ? "" : client.seen().back().why.text();
}

std::size_t lines_with(const TurnedTcp& server, std::string_view text) {
  std::size_t count = 0;
  for (std::size_t at = 0; (at = server.log().find(text, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(TcpKeys, the_same_key_lets_in_and_messages_flow_both_ways) {
  TurnedTcp server(keyed_options());
  TurnedTcp client(connecting_options(kKey));
  EXPECT_EQ(attempt(server, client, keyed_hello(Role::kWorker, 4)), "");
  EXPECT_EQ(client.seen()[0].hello, keyed_hello(Role::kServer, 0));
  const Bytes payload = numbered(1000);
  ASSERT_TRUE(
      client.transport().send(client.seen()[0].peer, {.header = {}, .payload = payload}).is_ok());
  ASSERT_TRUE(server.until([&] {
    client.poll();
    return server.count(Event::Kind::kReceived) == 1;
  }));
  EXPECT_EQ(server.seen()[0].hello, keyed_hello(Role::kWorker, 4));
  EXPECT_EQ(server.seen().back().payload, payload);
}

TEST(TcpKeys, different_keys_or_none_are_told_on_both_sides_which_variables_to_look_at) {
  const std::vector<std::pair<JobKey, JobKey>> pairs = {
      {kKey, kOtherKey}, {kOtherKey, kKey}, {JobKey(), kKey}, {kKey, JobKey()}};
  for (const auto& [at_server, at_client] : pairs) {
    TurnedTcp server(keyed_options(at_server));
    TurnedTcp client(connecting_options(at_client));
    const std::string why = attempt(server, client, keyed_hello(Role::kWorker, 0, at_client));
    EXPECT_NE(why.find("Mismatch"), std::string::npos) << why;
    EXPECT_NE(why.find("BYTEPS_JOB_KEY / BYTEPS_JOB_KEY_FILE"), std::string::npos) << why;
    EXPECT_NE(server.log().find("BYTEPS_JOB_KEY / BYTEPS_JOB_KEY_FILE"), std::string::npos);
    EXPECT_EQ(server.count(Event::Kind::kUp), 0U);
  }
}

TEST(TcpKeys, who_knows_the_job_id_but_not_the_key_fails_in_either_role_and_both_say_why) {
  // As client: it ends when the server's proof is not what its own key would give, and says so.
  TurnedTcp server(keyed_options());
  TurnedTcp liar(connecting_options(kOtherKey));
  EXPECT_NE(attempt(server, liar, keyed_hello(Role::kWorker, 0))
                .find("the proof of the job key is wrong"),
            std::string::npos);
  EXPECT_TRUE(
      server.until([&] { return lines_with(server, "the proof of the job key is wrong") == 1; }));
  EXPECT_EQ(server.count(Event::Kind::kUp), 0U);
  // As server.
  PeerOptions options = keyed_options(kOtherKey);
  options.self = keyed_hello(Role::kServer, 0);
  TurnedTcp impostor(std::move(options));
  TurnedTcp client(connecting_options(kKey));
  EXPECT_NE(attempt(impostor, client, keyed_hello(Role::kWorker, 0))
                .find("the proof of the job key is wrong"),
            std::string::npos);
  EXPECT_EQ(client.count(Event::Kind::kUp), 0U);
  impostor.settle();
  EXPECT_EQ(impostor.count(Event::Kind::kUp), 0U);
}

// The accepting side's two records in full, and the proof that answers them.
Bytes proof_for(BareSocket& socket, TurnedTcp& server, const Hello& self, const JobKey& key) {
  tcp::Handshake handshake(auth::Side::kConnecting, self, auth::fresh_nonce().value(), key);
  EXPECT_TRUE(socket.write(handshake.own_hello()));
  Bytes say;
  for (int i = 0; i < 2; ++i) {
    Bytes record = socket.read_exactly(tcp::kRecordHeadBytes, server);
    const auto head = tcp::decode_record_head(record).value();
    append(record, socket.read_exactly(head.body_bytes, server));
    EXPECT_TRUE(handshake.take(head.kind, record, say).is_ok());
  }
  return say;
}

TEST(TcpHandshake, a_proof_cut_at_any_byte_counts_when_it_is_whole_and_not_before) {
  TurnedTcp server(keyed_options());
  for (std::size_t cut = 1; cut < tcp::kProofRecordBytes; ++cut) {
    BareSocket socket(server.address());
    const Bytes proof = proof_for(socket, server, keyed_hello(Role::kWorker, 1), kKey);
    const std::size_t ups = server.count(Event::Kind::kUp);
    ASSERT_TRUE(socket.write(std::span(proof).first(cut)));
    server.poll();
    server.transport().waiter().wait(kMillisecond);
    server.poll();
    ASSERT_EQ(server.count(Event::Kind::kUp), ups) << cut;
    ASSERT_TRUE(socket.write(std::span(proof).subspan(cut)));
    ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == ups + 1; })) << cut;
  }
}

TEST(TcpHandshake, a_wrong_proof_is_refused_whichever_byte_is_wrong) {
  TurnedTcp server(keyed_options());
  for (std::size_t at = tcp::kRecordHeadBytes; at < tcp::kProofRecordBytes; ++at) {
    BareSocket socket(server.address());
    Bytes proof = proof_for(socket, server, keyed_hello(Role::kWorker, 1), kKey);
    proof[at] ^= std::byte{0x10};
    ASSERT_TRUE(socket.write(proof));
    ASSERT_TRUE(server.until([&] { return socket.has_ended(); })) << at;
  }
  EXPECT_EQ(server.count(Event::Kind::kUp), 0U);
  EXPECT_TRUE(server.seen().empty()) << "nobody hears of a stranger";
}

TEST(TcpHandshake, frames_right_behind_the_proof_are_received) {
  TurnedTcp server(keyed_options());
  BareSocket socket(server.address());
  Bytes bytes = proof_for(socket, server, keyed_hello(Role::kWorker, 1), kKey);
  for (std::size_t i = 0; i < 5; ++i) {
    append(bytes, numbered_frame(100, 8, i));
  }
  ASSERT_TRUE(socket.write(bytes));
  ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kReceived) == 5; }));
  EXPECT_EQ(server.seen()[0].kind, Event::Kind::kUp);
  EXPECT_EQ(server.seen()[5].payload, numbered(100, 12));
}

TEST(TcpHandshake, frames_before_the_proof_are_never_received) {
  TurnedTcp server(keyed_options());
  BareSocket socket(server.address());
  Bytes bytes = tcp::encode_hello_record(keyed_hello(Role::kWorker, 1), {});
  append(bytes, numbered_frame(0, 8));
  ASSERT_TRUE(socket.write(bytes));
  ASSERT_TRUE(server.until([&] { return socket.has_ended(); }));
  EXPECT_TRUE(server.seen().empty());
}

auth::Nonce tcp_nonce(int number) {
  auth::Nonce nonce{};
  nonce[0] = static_cast<std::byte>(number);
  return nonce;
}

TEST(TcpStrangers, have_5_seconds_for_all_of_the_handshake) {
  TurnedTcp server(keyed_options());
  BareSocket slow(server.address());
  const Bytes proof = proof_for(slow, server, keyed_hello(Role::kWorker, 1), kKey);
  // A byte now and then does not buy more time, though the Hello was good.
  for (std::size_t i = 0; i < 4; ++i) {
    server.advance(kSecond);
    ASSERT_TRUE(slow.write(std::span(proof).subspan(i, 1)));
    server.settle();
  }
  EXPECT_FALSE(slow.has_ended());
  server.advance(kSecond);
  EXPECT_TRUE(server.until([&] { return slow.has_ended(); }));
  EXPECT_EQ(server.transport().next_deadline(), kNever);
  EXPECT_EQ(lines_with(server, "did not say in time who it is"), 1U);
}

TEST(TcpStrangers, hold_at_most_a_few_kib) {
  EXPECT_LE(sizeof(tcp::Connection) + tcp::kRecordsBytesMax, 8U << 10);
}

TEST(TcpStrangers, half_open_ones_beyond_the_maximum_make_the_oldest_go_and_members_come_in) {
  PeerOptions options = keyed_options();
  options.strangers_max = 8;
  TurnedTcp server(std::move(options));
  std::deque<BareSocket> crowd;
  for (int i = 0; i < 20; ++i) {
    crowd.emplace_back(server.address());
    server.settle();
  }
  EXPECT_EQ(std::count_if(crowd.begin(), crowd.end(), [](auto& one) { return one.has_ended(); }),
            12);
  EXPECT_TRUE(crowd[11].has_ended() && !crowd[12].has_ended()) << "the oldest";
  EXPECT_EQ(lines_with(server, "dropped for newer connections"), 1U) << server.log();
  TurnedTcp client(connecting_options(kKey));
  EXPECT_EQ(attempt(server, client, keyed_hello(Role::kWorker, 0)), "");
  ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1; }));
}

TEST(TcpStrangers, one_that_names_the_job_goes_after_those_that_do_not) {
  PeerOptions options = keyed_options();
  options.strangers_max = 4;
  TurnedTcp server(std::move(options));
  BareSocket member(server.address());
  const Bytes proof = proof_for(member, server, keyed_hello(Role::kWorker, 1), kKey);
  std::deque<BareSocket> crowd;
  for (int i = 0; i < 20; ++i) {
    crowd.emplace_back(server.address());
    server.settle();
  }
  EXPECT_FALSE(member.has_ended());
  ASSERT_TRUE(member.write(proof));
  EXPECT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1; }));
}

TEST(TcpStrangers, a_crowd_that_is_refused_does_not_use_up_the_places_of_members) {
  PeerOptions options = keyed_options();
  options.strangers_max = 4;
  options.connections_max = 6;
  TurnedTcp server(std::move(options));
  TurnedTcp client(connecting_options(kKey));
  EXPECT_EQ(attempt(server, client, keyed_hello(Role::kWorker, 0)), "");
  std::deque<BareSocket> crowd;  // told why, and then it does not go away
  for (int i = 0; i < 30; ++i) {
    crowd.emplace_back(server.address());
    ASSERT_TRUE(
        crowd.back().write(tcp::encode_hello_record(keyed_hello(Role::kWorker, 0, kOtherKey), {})));
    server.advance(10 * kMillisecond);
    server.settle();
  }
  EXPECT_EQ(lines_with(server, "refused a connection"), 1U) << server.log();
  EXPECT_EQ(attempt(server, client, keyed_hello(Role::kWorker, 1)), "");
  ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 2; }));
  EXPECT_EQ(server.count(Event::Kind::kDown), 0U);
}

// All connect in one turn, as workers do when the roster comes; and none says a word before all are accepted, nor
// proves itself before all have named the job.
void expect_all_to_come_in(TurnedTcp& server, std::uint32_t count) {
  TurnedTcp members(connecting_options(kKey));
  for (std::uint32_t rank = 0; rank < count; ++rank) {
    ASSERT_TRUE(
        members.transport().connect(server.address(), keyed_hello(Role::kWorker, rank)).is_ok());
  }
  const bool all_up = server.until([&] {
    for (std::uint32_t i = 0; i < count; ++i) server.poll();
    members.poll();
    return members.count(Event::Kind::kDown) > 0 || server.count(Event::Kind::kUp) >= count;
  });
  EXPECT_TRUE(all_up) << server.count(Event::Kind::kUp);
  EXPECT_EQ(members.count(Event::Kind::kDown), 0U) << members.seen().back().why.text();
  EXPECT_EQ(lines_with(server, "dropped for newer connections"), 0U) << server.log();
}

TEST(TcpStrangers, a_thousand_members_that_come_at_once_all_come_in_with_no_time_lost) {
  TurnedTcp server(keyed_options());
  server.transport().expect_peers(1000);
  expect_all_to_come_in(server, 1000);
}

TEST(TcpStrangers, members_that_all_come_back_at_once_do_so_beside_a_member_that_never_left) {
  TurnedTcp server(keyed_options());
  server.transport().expect_peers(500);
  TurnedTcp first(connecting_options(kKey));
  EXPECT_EQ(attempt(server, first, keyed_hello(Role::kWorker, 500)), "");
  ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1; }));
  expect_all_to_come_in(server, 499);
}

TEST(TcpStrangers, who_only_names_the_job_takes_no_place_of_those_who_do_not_and_has_a_limit_too) {
  PeerOptions options = keyed_options();
  options.strangers_max = 4;
  TurnedTcp server(std::move(options));
  server.transport().expect_peers(2);
  std::deque<BareSocket> silent;
  std::deque<BareSocket> namers;
  for (int i = 0; i < 6; ++i) silent.emplace_back(server.address());
  server.settle();
  for (int i = 0; i < 9; ++i) {
    namers.emplace_back(server.address());
    ASSERT_TRUE(
        namers.back().write(tcp::encode_hello_record(keyed_hello(Role::kWorker, 0), tcp_nonce(i))));
    ASSERT_FALSE(namers.back().read_exactly(1, server).empty()) << "it is asked for its proof";
  }
  const auto ended = [](std::deque<BareSocket>& crowd) {
    return std::count_if(crowd.begin(), crowd.end(), [](auto& one) { return one.has_ended(); });
  };
  EXPECT_EQ(ended(silent), 1) << "each of the others was one of them for a moment";
  EXPECT_EQ(ended(namers), 3) << "six are left";
  EXPECT_TRUE(namers[2].has_ended() && !namers[3].has_ended()) << "the oldest have gone";
  // One that is older than all of them, but names the job only now.
  ASSERT_TRUE(
      silent[1].write(tcp::encode_hello_record(keyed_hello(Role::kWorker, 0), tcp_nonce(9))));
  ASSERT_FALSE(silent[1].read_exactly(1, server).empty());
  EXPECT_TRUE(namers[3].has_ended() && !namers[4].has_ended());
  EXPECT_FALSE(silent[1].has_ended());
}

TEST(TcpStrangers, who_does_not_speak_our_protocol_is_gone_at_once_and_nothing_is_kept_of_it) {
  TurnedTcp server(keyed_options());
  BareSocket stranger(server.address());
  ASSERT_TRUE(stranger.write(Bytes(100)));
  ASSERT_TRUE(server.until([&] { return stranger.has_ended(); }));
  EXPECT_EQ(server.transport().next_deadline(), kNever);
}

TEST(TcpStrangers, one_that_is_refused_and_goes_on_talking_is_not_listened_to) {
  TurnedTcp server(keyed_options());
  BareSocket stranger(server.address());
  ASSERT_TRUE(
      stranger.write(tcp::encode_hello_record(keyed_hello(Role::kWorker, 0, kOtherKey), {})));
  const Bytes more(16 << 10);
  std::size_t said_bytes = 0;
  while (said_bytes < (16U << 20) && stranger.write(more)) {
    said_bytes += more.size();
    server.settle();
  }
  EXPECT_LT(said_bytes, 16U << 20) << "it reads for ever";
}

TEST(TcpStrangers, beside_members_are_let_in_at_a_pace_and_a_member_behind_them_comes_in_in_time) {
  PeerOptions options = keyed_options();
  options.strangers_max = 40;
  options.accepts_per_second = 100;
  TurnedTcp server(std::move(options));
  TurnedTcp client(connecting_options(kKey));
  EXPECT_EQ(attempt(server, client, keyed_hello(Role::kWorker, 0)), "");
  ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) == 1; }));
  std::deque<BareSocket> crowd;
  for (int i = 0; i < 100; ++i) {
    crowd.emplace_back(server.address());
    ASSERT_TRUE(crowd.back().write(Bytes(100)));
  }
  const auto ended = [&] {
    return std::count_if(crowd.begin(), crowd.end(), [](auto& one) { return one.has_ended(); });
  };
  EXPECT_TRUE(server.until([&] { return ended() == 40; }));
  server.settle();
  EXPECT_EQ(ended(), 40) << "all at once, and then no more";
  EXPECT_LE(server.transport().next_deadline(), server.now() + 20 * kMillisecond);
  server.advance(200 * kMillisecond);
  EXPECT_TRUE(server.until([&] { return ended() == 60; }));
  server.settle();
  EXPECT_EQ(ended(), 60) << "100 a second";
  (void)client.transport().connect(server.address(), keyed_hello(Role::kWorker, 1)).value();
  for (int i = 0; i < 100 && client.count(Event::Kind::kUp) < 2; ++i) {
    server.advance(10 * kMillisecond);
    server.settle();
    client.settle();
  }
  EXPECT_EQ(client.count(Event::Kind::kUp), 2U);
}

TEST(TcpStrangers, of_every_kind_get_one_log_line_a_minute_with_the_count) {
  TurnedTcp server(keyed_options());
  const auto refuse_one = [&] {
    BareSocket socket(server.address());
    ASSERT_TRUE(
        socket.write(tcp::encode_hello_record(keyed_hello(Role::kWorker, 0, kOtherKey), {})));
    ASSERT_TRUE(server.until([&] { return socket.has_ended(); }));
  };
  const auto break_one = [&] {
    BareSocket socket(server.address());
    ASSERT_TRUE(shake_hands(socket, server, keyed_hello(Role::kWorker, 0), kKey));
    ASSERT_TRUE(socket.write(prefix_of(0xffffffff, 0)));
    ASSERT_TRUE(server.until([&] { return socket.has_ended(); }));
  };
  for (int i = 0; i < 21; ++i) refuse_one();
  for (int i = 0; i < 6; ++i) break_one();
  EXPECT_EQ(lines_with(server, "refused a connection"), 1U) << server.log();
  EXPECT_EQ(lines_with(server, "no frame"), 1U) << server.log();
  server.advance(60 * kSecond);
  refuse_one();
  break_one();
  EXPECT_EQ(lines_with(server, "refused a connection"), 2U) << server.log();
  EXPECT_NE(server.log().find("(and 20 more"), std::string::npos) << server.log();
  EXPECT_NE(server.log().find("(and 5 more"), std::string::npos) << server.log();
  refuse_one();
  EXPECT_EQ(lines_with(server, "refused a connection"), 2U) << server.log();
}

}  // namespace
}  // namespace byteps
