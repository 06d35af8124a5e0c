// Connections of workers as a relay has them: those of its machine only, and with outputs that are for its owner.
// All else that they do is in shard_test.cc.
#include "server/worker_links.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/net/scripted_transport.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::SizeIs;

using Kind = WorkerLinks::News::Kind;

// The relay at worker 3 of six, whose machine has workers 1, 3 and 4 too.
class WorkerLinksTest : public testing::Test {
 protected:
  WorkerLinksTest()
      : log_("worker 3", LogLevel::kSilent, nullptr),
        links_({}, {.noun = "relay", .index = ShardIndex(0)}, transport_, pool_, log_, nullptr) {}

  void begin() {
    links_.begin({.self = hello(3),
                  .worker_count = 6,
                  .crew = {WorkerRank(1), WorkerRank(3), WorkerRank(4)}});
  }
  static Hello hello(std::uint32_t rank) {
    Hello hello;
    hello.rank = rank;
    hello.epoch = Epoch(1);
    return hello;
  }
  // All that happened, as an owner sees it.
  std::vector<WorkerLinks::News> turn(TimeNs now = 0) {
    std::vector<WorkerLinks::News> news;
    std::vector<Event> events(64);
    links_.begin_turn(now);
    while (const std::size_t count = transport_.poll(now, events)) {
      for (std::size_t i = 0; i < count; ++i) {
        const WorkerLinks::News one = links_.handle(events[i]);
        if (one.kind != Kind::kNothing) news.push_back(one);
      }
      links_.close_ended();
    }
    return news;
  }

  ScriptedTransport transport_;
  BufferPool pool_;
  const Log log_;
  WorkerLinks links_;
};

TEST_F(WorkerLinksTest, a_relay_serves_the_workers_of_its_machine_and_says_so_to_others) {
  const PeerId early = transport_.arrive(hello(1));
  EXPECT_THAT(turn(), SizeIs(0));
  EXPECT_EQ(transport_.closed.at(early).message(), "this relay serves nobody now");
  begin();
  ASSERT_TRUE(transport_.told);
  EXPECT_EQ(transport_.told->text(), "worker 3");
  const PeerId stranger = transport_.arrive(hello(2));
  const PeerId beyond = transport_.arrive(hello(6));
  Hello server = hello(1);
  server.role = Role::kServer;
  const PeerId no_worker = transport_.arrive(server);
  transport_.arrive(hello(4));
  transport_.arrive(hello(3));
  const auto news = turn();
  ASSERT_THAT(news, SizeIs(2));
  EXPECT_EQ(news[0].kind, Kind::kUp);
  EXPECT_EQ(news[0].worker, WorkerRank(4));
  EXPECT_EQ(news[1].worker, WorkerRank(3)) << "its own worker comes as the others do";
  EXPECT_EQ(transport_.closed.at(stranger).message(),
            "a relay serves the workers of its machine, not worker 2");
  EXPECT_EQ(transport_.closed.at(beyond).message(), "worker 6 of a job with 6");
  EXPECT_EQ(transport_.closed.at(no_worker).message(), "a relay serves workers, not a server");
}

TEST_F(WorkerLinksTest, what_a_worker_says_comes_out_and_what_nobody_can_read_ends_its_connection) {
  begin();
  const PeerId one = transport_.arrive(hello(1));
  const PeerId four = transport_.arrive(hello(4));
  wire::Header header;
  header.kind = wire::Kind::kForget;
  header.epoch = Epoch(1);
  header.key = Key(77);
  header.worker = WorkerRank(1);
  transport_.say(one, header);
  transport_.say(four, std::vector<std::byte>(48, std::byte{0xff}));
  header.worker = WorkerRank(4);
  transport_.say(four, header);
  const auto news = turn();
  ASSERT_THAT(news, SizeIs(3));
  EXPECT_EQ(news[2].kind, Kind::kMessage);
  EXPECT_EQ(news[2].worker, WorkerRank(1));
  EXPECT_EQ(news[2].header.key, Key(77));
  EXPECT_FALSE(transport_.closed.contains(one));
  EXPECT_TRUE(transport_.closed.contains(four));
}

TEST_F(WorkerLinksTest,
       words_that_their_sender_can_still_change_end_its_connection_and_tensor_bytes_do_not) {
  begin();
  const PeerId one = transport_.arrive(hello(1));
  const PeerId four = transport_.arrive(hello(4));
  turn();
  const std::vector<std::byte> payload(64);
  wire::Header header;
  header.epoch = Epoch(1);
  header.kind = wire::Kind::kPush;
  header.worker = WorkerRank(1);
  transport_.say(one, header, payload, true);
  header.kind = wire::Kind::kDeclare;
  header.worker = WorkerRank(4);
  transport_.say(four, header, payload, true);
  const auto news = turn();
  ASSERT_THAT(news, SizeIs(1));
  EXPECT_EQ(news[0].kind, Kind::kMessage);
  EXPECT_EQ(news[0].header.kind, wire::Kind::kPush);
  EXPECT_FALSE(transport_.closed.contains(one));
  EXPECT_TRUE(transport_.closed.contains(four));
}

TEST_F(WorkerLinksTest, what_is_not_for_workers_is_given_to_the_owner) {
  begin();
  const PeerId four = transport_.arrive(hello(4));
  turn();
  ShelfOutputs said;
  said.emplace_back(ShelfOutput::Forward{});
  said.emplace_back(ShelfOutput::Wanted{WorkerRank(4), Key(77), PartIndex(0), Round(2)});
  said.emplace_back(ShelfOutput::Wanted{WorkerRank(1), Key(77), PartIndex(0), Round(2)});
  said.emplace_back(ShelfOutput::Failure{{Code::kSystem, "no memory"}});
  std::vector<std::string> own;
  const std::size_t count = links_.deliver(
      said,
      Overloads{[&](ShelfOutput::Forward&) { own.emplace_back("forward"); },
                [&](ShelfOutput::Failure& failure) { own.emplace_back(failure.why.message()); },
                [](auto&) { FAIL() << "of a relay"; }});
  EXPECT_EQ(count, 4U);
  EXPECT_THAT(said, SizeIs(0));
  EXPECT_THAT(own, ElementsAre("forward", "no memory"));
  const auto sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(1)) << "worker 1 is not connected";
  EXPECT_EQ(sent[0].peer, four);
  EXPECT_EQ(sent[0].header.kind, wire::Kind::kWanted);
}

TEST_F(WorkerLinksTest, an_earlier_attempt_that_is_heard_of_later_does_not_end_the_connection) {
  begin();
  const PeerId earlier = transport_.attempt();
  const PeerId later = transport_.arrive(hello(1));
  turn();
  transport_.up(earlier, hello(1));
  EXPECT_THAT(turn(), SizeIs(0));
  EXPECT_EQ(transport_.closed.at(earlier).message(), "this worker has a newer connection");
  EXPECT_FALSE(transport_.closed.contains(later));
  const PeerId last = transport_.arrive(hello(1));
  ASSERT_THAT(turn(), SizeIs(1));
  EXPECT_TRUE(transport_.closed.contains(later));
  EXPECT_FALSE(transport_.closed.contains(last));
}

TEST_F(WorkerLinksTest, knows_since_when_all_are_gone) {
  begin();
  EXPECT_EQ(links_.deserted_since_ns(), kNever) << "nobody has come yet";
  const PeerId one = transport_.arrive(hello(1));
  const PeerId four = transport_.arrive(hello(4));
  turn(1);
  transport_.end(one);
  turn(2);
  EXPECT_TRUE(links_.any_up());
  EXPECT_EQ(links_.deserted_since_ns(), kNever);
  transport_.end(four);
  turn(3);
  EXPECT_FALSE(links_.any_up());
  EXPECT_EQ(links_.deserted_since_ns(), 3);
  EXPECT_TRUE(links_.empty());
  transport_.arrive(hello(4));
  turn(4);
  EXPECT_EQ(links_.deserted_since_ns(), kNever);
}

TEST_F(WorkerLinksTest, after_stop_nobody_is_served_any_more) {
  begin();
  const PeerId one = transport_.arrive(hello(1));
  turn();
  links_.stop({Code::kCancelled, "the worker ends"});
  const PeerId late = transport_.arrive(hello(4));
  EXPECT_THAT(turn(), SizeIs(0));
  EXPECT_EQ(transport_.closed.at(one).code(), Code::kCancelled);
  EXPECT_EQ(transport_.closed.at(late).text(), "Disconnected: the worker ends");
  turn();
  EXPECT_TRUE(links_.empty());
}

TEST_F(WorkerLinksTest, who_looks_for_another_than_this_successor_is_refused) {
  begin();
  Hello other = hello(1);
  other.since = 2;
  const PeerId stranger = transport_.arrive(other);
  EXPECT_THAT(turn(), SizeIs(0));
  EXPECT_EQ(transport_.closed.at(stranger).message(),
            "it looks for who serves this slot since revision 2, this relay does since 0");
}

TEST_F(WorkerLinksTest, the_end_of_a_connection_is_news_once) {
  begin();
  const PeerId one = transport_.arrive(hello(1));
  turn();
  transport_.end(one);
  const auto news = turn();
  ASSERT_THAT(news, SizeIs(1));
  EXPECT_EQ(news[0].kind, Kind::kDown);
  EXPECT_EQ(news[0].worker, WorkerRank(1));
}

// ---- workers that are lost

TEST_F(WorkerLinksTest, for_a_lost_worker_only_the_newest_relay_that_stands_in_is_served) {
  begin();
  const PeerId own = transport_.arrive(hello(4));
  EXPECT_THAT(turn(), SizeIs(1));
  EXPECT_THAT(links_.lose(WorkerRank(4), {{WorkerRank(4), 2}}), SizeIs(1));
  links_.close_ended();
  EXPECT_TRUE(transport_.closed.contains(own));
  const PeerId back = transport_.arrive(hello(4));
  Hello first = hello(4);
  first.stands_since = 2;
  const PeerId former = transport_.arrive(first);
  const auto news = turn();
  EXPECT_TRUE(transport_.closed.contains(back));
  EXPECT_FALSE(transport_.closed.contains(former));
  EXPECT_EQ(news.back().kind, Kind::kUp);
  EXPECT_THAT(links_.lose(WorkerRank(4), {{WorkerRank(4), 2}}), SizeIs(0)) << "it is known";
  EXPECT_THAT(links_.lose(WorkerRank(3), {{WorkerRank(3), 5}, {WorkerRank(4), 5}}), SizeIs(2))
      << "that one's process was lost, too";
  links_.close_ended();
  EXPECT_TRUE(transport_.closed.contains(former));
  Hello second = hello(4);
  second.stands_since = 5;
  const PeerId newest = transport_.arrive(second);
  turn();
  EXPECT_FALSE(transport_.closed.contains(newest));
}

}  // namespace
}  // namespace byteps
