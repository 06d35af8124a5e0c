// The shard on a network that the test plays: who is served, in which order messages leave, and that
// everything lent comes back.
#include "server/shard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/net/scripted_transport.h"
#include "tests/server/shelf_world.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr Incarnation kJob = {std::byte{7}, std::byte{1}};

class ShardTest : public testing::Test {
 protected:
  ShardTest()
      : inbox_(16, nullptr),
        outbox_(16, nullptr),
        shard_({}, ShardIndex(3), transport_, inbox_, outbox_,
               Log("server", LogLevel::kWarning,
                   [this](std::string_view line) { log_.emplace_back(line); })) {}

  void TearDown() override { EXPECT_EQ(transport_.vain_closes, 0U); }

  void begin(std::uint32_t epoch, std::uint32_t worker_count) {
    ASSERT_TRUE(inbox_.post(command(epoch, worker_count)).is_ok());
  }
  static ShardCommand command(std::uint32_t epoch, std::uint32_t worker_count) {
    const auto placement =
        std::make_shared<const Placement>(256, 64, std::vector<std::uint32_t>{1});
    return {ShardCommand::Kind::kBeginEpoch, {Epoch(epoch), worker_count, placement}, 7, kJob};
  }
  static Hello hello(std::uint32_t rank, std::uint32_t epoch = 1, Role role = Role::kWorker) {
    Hello hello;
    hello.role = role;
    hello.rank = rank;
    hello.epoch = Epoch(epoch);
    hello.incarnation = kJob;
    return hello;
  }
  void turn(TimeNs now = 0) {
    while (shard_.turn(now) > 0) {
    }
  }
  static wire::Header about(std::uint32_t worker, const std::string& name) {
    wire::Header header;
    header.epoch = Epoch(1);
    header.key = key_of(name);
    header.worker = WorkerRank(worker);
    return header;
  }
  void declare(PeerId peer, std::uint32_t worker, const wire::Declare& declared) {
    wire::Header header = about(worker, declared.name);
    header.kind = wire::Kind::kDeclare;
    transport_.say(peer, header, wire::encode(declared));
  }
  void push(PeerId peer, std::uint32_t worker, const std::string& name, std::uint32_t round,
            const Bytes& payload, std::uint64_t offset = 0) {
    wire::Header header = about(worker, name);
    header.kind = wire::Kind::kPush;
    header.round = Round(round);
    header.offset_bytes = offset;
    header.tag = 100 + worker;
    transport_.say(peer, header, payload);
  }
  // Epoch 1 with workers that are connected and have declared "x", four float32 frames.
  std::vector<PeerId> begin_with_x(std::uint32_t worker_count) {
    begin(1, worker_count);
    std::vector<PeerId> peers;
    for (std::uint32_t worker = 0; worker < worker_count; ++worker) {
      peers.push_back(transport_.arrive(hello(worker)));
      declare(peers.back(), worker, kX);
    }
    turn();
    return peers;
  }
  std::vector<ShardNotice> notices() {
    std::vector<ShardNotice> taken;
    outbox_.drain(taken);
    return taken;
  }

  const wire::Declare kX = declaration("x", DType::kFloat32, 256);
  std::vector<std::string> log_;
  ScriptedTransport transport_;
  Mailbox<ShardCommand> inbox_;
  Mailbox<ShardNotice> outbox_;
  Shard shard_;
};

TEST_F(ShardTest, applies_an_epoch_and_says_so) {
  begin(1, 2);
  turn();
  const auto said = notices();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].kind, ShardNotice::Kind::kEpochApplied);
  EXPECT_EQ(said[0].shard, ShardIndex(3));
  EXPECT_EQ(said[0].epoch, Epoch(1));
}

TEST_F(ShardTest, answers_a_ping_when_it_comes_round) {
  ASSERT_TRUE(inbox_.post({ShardCommand::Kind::kPing, {}, 0}).is_ok());
  EXPECT_THAT(notices(), SizeIs(0));
  turn();
  const auto said = notices();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].kind, ShardNotice::Kind::kAlive);
  EXPECT_EQ(said[0].shard, ShardIndex(3));
}

TEST_F(ShardTest, a_turn_that_threw_is_told_by_name) {
  shard_.failed({Code::kSystem, "out of memory"});
  const auto said = notices();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].kind, ShardNotice::Kind::kFailed);
  EXPECT_EQ(said[0].why.text(), "System: shard 3 failed: out of memory");
}

TEST_F(ShardTest, an_epoch_that_cannot_be_served_is_a_failure) {
  begin(1, 0);
  turn();
  const auto said = notices();
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_EQ(said[0].kind, ShardNotice::Kind::kFailed);
  EXPECT_EQ(said[0].why.code(), Code::kInvalidArgument);
}

TEST_F(ShardTest, sums_a_frame_and_answers_all_from_one_buffer) {
  const auto peers = begin_with_x(2);
  push(peers[0], 0, "x", 0, elements(DType::kFloat32, std::vector<double>(16, 1)), 128);
  push(peers[1], 1, "x", 0, elements(DType::kFloat32, std::vector<double>(16, 2)), 128);
  turn();
  EXPECT_EQ(shard_.lent_bytes(), 64U) << "one buffer, whatever the number of workers";
  const auto sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(2));
  for (std::uint32_t worker = 0; worker < 2; ++worker) {
    EXPECT_EQ(sent[worker].peer, peers[worker]);
    EXPECT_EQ(sent[worker].header.kind, wire::Kind::kAnswer);
    EXPECT_EQ(sent[worker].header.tag, 100 + worker);
    EXPECT_TRUE(sent[worker].bulk);
    EXPECT_EQ(sent[worker].payload, elements(DType::kFloat32, std::vector<double>(16, 3)));
  }
}

TEST_F(ShardTest, tells_who_connects_which_server_it_is_and_of_which_epoch) {
  begin(5, 2);
  turn();
  ASSERT_TRUE(transport_.told);
  EXPECT_EQ(transport_.told->role, Role::kServer);
  EXPECT_EQ(transport_.told->rank, 7U);
  EXPECT_EQ(transport_.told->epoch, Epoch(5));
}

TEST_F(ShardTest, refuses_who_is_no_worker_of_this_epoch) {
  begin(5, 2);
  turn();
  const PeerId server = transport_.arrive(hello(0, 5, Role::kServer));
  const PeerId rank_2 = transport_.arrive(hello(2, 5));
  const PeerId no_rank = transport_.arrive(hello(kNoRank, 5));
  const PeerId older = transport_.arrive(hello(0, 4));
  const PeerId newer = transport_.arrive(hello(0, 6));
  const PeerId good = transport_.arrive(hello(0, 5));
  turn();
  for (const PeerId peer : {server, rank_2, no_rank, older, newer}) {
    EXPECT_TRUE(transport_.closed.contains(peer)) << peer;
  }
  EXPECT_FALSE(transport_.closed.contains(good));
  EXPECT_THAT(log_, SizeIs(0)) << "connections of another epoch are nothing to worry people with";
}

TEST_F(ShardTest,
       a_worker_of_another_incarnation_of_the_job_neither_contributes_nor_takes_a_place) {
  const auto peers = begin_with_x(2);
  ASSERT_TRUE(transport_.told);
  EXPECT_EQ(transport_.told->incarnation, kJob);
  // Left behind by a job with the same key, port, name, rank and epoch.
  Hello leftover = hello(0);
  leftover.incarnation[15] = std::byte{0x77};
  const PeerId stranger = transport_.arrive(leftover);
  Hello nameless = hello(0);
  nameless.incarnation = {};
  const PeerId other_stranger = transport_.arrive(nameless);
  declare(stranger, 0, kX);
  push(stranger, 0, "x", 0, elements(DType::kFloat32, std::vector<double>(16, 1000)));
  turn();
  EXPECT_TRUE(transport_.closed.contains(stranger));
  EXPECT_TRUE(transport_.closed.contains(other_stranger));
  EXPECT_FALSE(transport_.closed.contains(peers[0])) << "the worker of that rank keeps its place";
  push(peers[0], 0, "x", 0, elements(DType::kFloat32, std::vector<double>(16, 1)));
  push(peers[1], 1, "x", 0, elements(DType::kFloat32, std::vector<double>(16, 1)));
  turn();
  const auto sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].payload, elements(DType::kFloat32, std::vector<double>(16, 2)));
}

TEST_F(ShardTest, serves_nobody_before_the_first_epoch) {
  const PeerId peer = transport_.arrive(hello(0, 0));
  turn();
  EXPECT_TRUE(transport_.closed.contains(peer));
}

TEST_F(ShardTest, a_worker_that_is_faster_than_the_mailbox_is_served) {
  // The roster reaches the inbox between the start of the turn and the worker's connection.
  class LateCommand final : public ScriptedTransport {
   public:
    explicit LateCommand(Mailbox<ShardCommand>& inbox) : inbox_(inbox) {}
    std::size_t poll(TimeNs now, std::span<Event> events) override {
      if (!posted_) {
        EXPECT_TRUE(inbox_.post(command(1, 1)).is_ok());
      }
      posted_ = true;
      return ScriptedTransport::poll(now, events);
    }

   private:
    Mailbox<ShardCommand>& inbox_;
    bool posted_ = false;
  };
  LateCommand transport(inbox_);
  Shard shard({}, ShardIndex(0), transport, inbox_, outbox_,
              Log("server", LogLevel::kSilent, nullptr));
  transport.arrive(hello(0, 1));
  shard.turn(0);
  EXPECT_THAT(transport.closed, SizeIs(0));
  EXPECT_THAT(notices(), SizeIs(1));
}

TEST_F(ShardTest, the_newest_connection_of_a_rank_ends_the_older_one) {
  const auto peers = begin_with_x(2);
  push(peers[0], 0, "x", 0, filled(64, 0));
  const PeerId newer = transport_.arrive(hello(0));
  push(peers[0], 0, "x", 0, filled(64, 0), 64);  // still in the air on the old one
  turn();
  EXPECT_TRUE(transport_.closed.contains(peers[0]));
  EXPECT_EQ(shard_.shelf().inventory().incomplete_frame_count(), 1U)
      << "the old one is not heard any more";
  push(peers[1], 1, "x", 0, filled(64, 0));
  turn();
  const auto sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].peer, newer);
  EXPECT_EQ(sent[1].peer, peers[1]);
}

TEST_F(ShardTest, a_broken_message_ends_its_connection_with_one_line_and_the_others_do_not_notice) {
  const auto peers = begin_with_x(3);
  transport_.say(peers[0], filled(48, 0xff));
  transport_.say(peers[0], filled(48, 0xff));
  push(peers[2], 2, "undeclared", 0, filled(64, 0));
  for (std::uint32_t worker = 1; worker < 2; ++worker) {  // in the same poll() as the violations
    push(peers[worker], worker, "x", 0, elements(DType::kFloat32, std::vector<double>(16, 5)));
  }
  turn();
  EXPECT_TRUE(transport_.closed.contains(peers[0]));
  EXPECT_FALSE(transport_.closed.contains(peers[1]));
  EXPECT_TRUE(transport_.closed.contains(peers[2]));
  EXPECT_THAT(log_, ElementsAre(HasSubstr("worker 0 broke the protocol"))) << "one line a minute";
  for (const std::uint32_t worker : {0, 2}) {
    const PeerId again = transport_.arrive(hello(worker));
    declare(again, worker, kX);
    push(again, worker, "x", 0, elements(DType::kFloat32, std::vector<double>(16, 1)));
  }
  turn();
  const auto sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(3));
  EXPECT_EQ(sent[1].payload, elements(DType::kFloat32, std::vector<double>(16, 7)));
}

TEST_F(ShardTest, answers_wait_for_the_window_and_keep_their_order) {
  const auto peers = begin_with_x(2);
  transport_.window = 1;
  for (const std::uint64_t offset : {0, 64, 128, 192}) {
    for (std::uint32_t worker = 0; worker < 2; ++worker) {
      push(peers[worker], worker, "x", 0, filled(64, 0), offset);
    }
  }
  turn();
  EXPECT_EQ(transport_.lent_count(), 2U);
  EXPECT_EQ(shard_.queued_message_count(), 6U);
  std::map<PeerId, std::vector<std::uint64_t>> offsets;
  for (int i = 0; i < 4; ++i) {
    for (const auto& sent : transport_.take_sent()) {
      offsets[sent.peer].push_back(sent.header.offset_bytes);
    }
    turn();
  }
  EXPECT_THAT(offsets[peers[0]], ElementsAre(0, 64, 128, 192));
  EXPECT_THAT(offsets[peers[1]], ElementsAre(0, 64, 128, 192));
  EXPECT_EQ(shard_.queued_message_count(), 0U);
}

TEST_F(ShardTest, what_waits_for_a_worker_is_dropped_when_it_is_gone) {
  const auto peers = begin_with_x(2);
  transport_.window = 0;
  for (std::uint32_t round = 0; round < 2; ++round) {
    for (std::uint32_t worker = 0; worker < 2; ++worker) {
      push(peers[worker], worker, "x", round, filled(64, 0));
    }
  }
  turn();
  EXPECT_EQ(shard_.lent_bytes(), 128U) << "the sum of round 0 waits to be sent";
  transport_.end(peers[0]);
  transport_.end(peers[1]);
  turn();
  EXPECT_EQ(shard_.queued_message_count(), 0U);
  EXPECT_EQ(shard_.lent_bytes(), 64U) << "the last sum is kept";
  transport_.window = 10;
  const PeerId again = transport_.arrive(hello(1));
  declare(again, 1, kX);
  push(again, 1, "x", 1, filled(64, 0));
  turn();
  EXPECT_THAT(transport_.take_sent(), SizeIs(1)) << "and sent again";
}

TEST_F(ShardTest, a_worker_that_asks_without_end_and_never_reads_is_cut_off) {
  const auto peers = begin_with_x(1);
  transport_.window = 1;
  for (std::size_t i = 0; i < waiting_messages_max(1) + 2; ++i) {
    push(peers[0], 0, "x", 0, filled(64, 0));
    if (i % 4096 == 0) turn();
  }
  turn();
  EXPECT_TRUE(transport_.closed.contains(peers[0]));
  EXPECT_EQ(shard_.queued_message_count(), 0U);
  EXPECT_THAT(log_, ElementsAre(HasSubstr("does not read")));
}

TEST_F(ShardTest, where_contributions_come_slowly_what_is_missing_is_late_later) {
  const auto peers = begin_with_x(3);
  const TimeNs usual_ns = TimeoutConfig().wanted_ns;
  TimeNs now = 0;
  for (std::uint32_t round = 0; round < 20; ++round) {
    for (std::uint32_t worker = 0; worker < 3; ++worker) {
      push(peers[worker], worker, "x", round, filled(64, 0));
      turn(now += 2 * usual_ns);
    }
  }
  push(peers[1], 1, "x", 20, filled(64, 0));
  turn(now += 2 * usual_ns);
  transport_.take_sent();
  const TimeNs late_ns = 2 * 3 * 2 * usual_ns;
  turn(now + late_ns - 1);
  EXPECT_THAT(transport_.take_sent(), SizeIs(0));
  turn(now + late_ns);
  EXPECT_THAT(transport_.take_sent(), SizeIs(2)) << "after two rounds of contributions";
}

TEST_F(ShardTest, asks_for_what_is_missing_when_it_is_time) {
  const auto peers = begin_with_x(3);
  push(peers[1], 1, "x", 0, filled(64, 0));
  turn();
  const TimeNs due = shard_.next_deadline();
  EXPECT_EQ(due, TimeoutConfig().wanted_ns);
  turn(due);
  const auto sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(2));
  EXPECT_EQ(sent[0].peer, peers[0]);
  EXPECT_EQ(sent[0].header.kind, wire::Kind::kWanted);
  EXPECT_EQ(sent[0].header.key, key_of("x"));
  EXPECT_EQ(sent[0].header.epoch, Epoch(1));
  EXPECT_EQ(sent[0].header.worker, WorkerRank(0));
  EXPECT_EQ(sent[0].header.offset_bytes, 64U) << "what worker 1 has begun";
  EXPECT_EQ(sent[1].peer, peers[2]);
}

TEST_F(ShardTest, a_mismatch_goes_to_all_and_to_those_who_come_later) {
  const auto peers = begin_with_x(2);
  declare(peers[1], 1, declaration("x", DType::kInt32, 256));
  turn();
  auto sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(2));
  for (const auto& message : sent) {
    EXPECT_EQ(message.header.kind, wire::Kind::kMismatch);
    EXPECT_EQ(message.header.key, key_of("x"));
    const wire::Text text = wire::decode_text(message.payload).value();
    EXPECT_EQ(text.code, static_cast<std::uint32_t>(Code::kMismatch));
    EXPECT_THAT(text.text, HasSubstr("worker 1 (int32, shape 64, 256 bytes, sum)"));
  }
  EXPECT_THAT(log_, ElementsAre(HasSubstr("differs between ranks")));
  const PeerId again = transport_.arrive(hello(0));
  turn();
  sent = transport_.take_sent();
  ASSERT_THAT(sent, SizeIs(1));
  EXPECT_EQ(sent[0].peer, again);
  turn();
  EXPECT_EQ(shard_.lent_bytes(), 0U);
}

TEST_F(ShardTest, a_new_epoch_ends_all_connections_and_forgets) {
  const auto peers = begin_with_x(2);
  push(peers[0], 0, "x", 0, filled(64, 0));
  turn();
  begin(2, 1);
  turn();
  EXPECT_THAT(transport_.closed, SizeIs(2));
  EXPECT_EQ(shard_.lent_bytes(), 0U);
  transport_.arrive(hello(0, 2));
  turn();
  EXPECT_THAT(transport_.closed, SizeIs(2)) << "the new one is served";
}

TEST_F(ShardTest, after_stop_it_is_finished_when_all_that_was_lent_is_back) {
  const auto peers = begin_with_x(2);
  for (std::uint32_t worker = 0; worker < 2; ++worker) {
    push(peers[worker], worker, "x", 0, filled(64, 0));
  }
  turn();
  EXPECT_EQ(transport_.lent_count(), 2U);
  ASSERT_TRUE(inbox_.post({ShardCommand::Kind::kStop, {}}).is_ok());
  EXPECT_FALSE(shard_.finished());
  turn();
  EXPECT_TRUE(shard_.finished());
  EXPECT_EQ(transport_.lent_count(), 0U);
  const PeerId late = transport_.arrive(hello(0));
  turn();
  EXPECT_TRUE(transport_.closed.contains(late));
}

TEST_F(ShardTest, after_stop_nothing_is_due_to_those_who_were_waited_for) {
  const auto peers = begin_with_x(2);
  push(peers[0], 0, "x", 0, filled(64, 0));
  turn();
  ASSERT_EQ(shard_.shelf().inventory().incomplete_frame_count(), 1U);
  transport_.take_sent();
  ASSERT_TRUE(inbox_.post({ShardCommand::Kind::kStop, {}}).is_ok());
  turn(kSecond);  // the frame is overdue, and the worker that misses in it gone
  EXPECT_THAT(transport_.take_sent(), SizeIs(0));
  EXPECT_EQ(shard_.shelf().inventory().incomplete_frame_count(), 0U);
  EXPECT_EQ(shard_.next_deadline(), kNever);
  EXPECT_TRUE(shard_.finished());
}

TEST_F(ShardTest, sums_that_nobody_can_want_any_more_are_not_kept) {
  const auto peers = begin_with_x(2);
  for (std::uint32_t worker = 0; worker < 2; ++worker) {
    push(peers[worker], worker, "x", 0, filled(64, 0));
  }
  turn();
  transport_.take_sent();
  const TimeNs patience_ns = 2 * TimeoutConfig().failure_ns;
  transport_.end(peers[0]);
  turn(kSecond);
  turn(kSecond + patience_ns);
  EXPECT_EQ(shard_.lent_bytes(), 64U) << "worker 1 is here";
  const TimeNs left_ns = kSecond + patience_ns;
  transport_.end(peers[1]);
  turn(left_ns);
  EXPECT_EQ(shard_.next_deadline(), left_ns + patience_ns);
  turn(left_ns + patience_ns - 1);
  EXPECT_EQ(shard_.lent_bytes(), 64U) << "a network may be away";
  turn(left_ns + patience_ns);
  EXPECT_EQ(shard_.lent_bytes(), 0U);
  EXPECT_EQ(shard_.shelf().inventory().tensors().size(), 0U);
  const PeerId late = transport_.arrive(hello(0));
  turn(left_ns + patience_ns);
  EXPECT_TRUE(transport_.closed.contains(late)) << "it would not get what it waits for";
  begin(2, 1);
  transport_.arrive(hello(0, 2));
  turn(left_ns + patience_ns);
  EXPECT_THAT(transport_.closed, SizeIs(1)) << "the next epoch is served";
}

TEST_F(ShardTest, a_worker_that_comes_back_in_time_finds_the_sums) {
  const auto peers = begin_with_x(1);
  push(peers[0], 0, "x", 0, filled(64, 0));
  turn();
  transport_.take_sent();
  const TimeNs patience_ns = 2 * TimeoutConfig().failure_ns;
  transport_.end(peers[0]);
  turn(0);
  const PeerId again = transport_.arrive(hello(0));
  turn(patience_ns - 1);
  turn(2 * patience_ns);
  declare(again, 0, kX);
  push(again, 0, "x", 0, filled(64, 0));
  turn(2 * patience_ns);
  EXPECT_THAT(transport_.take_sent(), SizeIs(1));
}

TEST_F(ShardTest, sums_that_wait_for_a_worker_that_does_not_read_have_a_limit_in_bytes) {
  constexpr std::size_t kFrame = 1 << 20;
  ShardCommand large = command(1, 1);
  large.facts.placement =
      std::make_shared<const Placement>(64 * kFrame, kFrame, std::vector<std::uint32_t>{1});
  const std::uint64_t tensor_bytes = 64 * kFrame;  // small ones have small frames
  ASSERT_EQ(large.facts.placement->part(key_of("x"), tensor_bytes, 0).frame_bytes, kFrame);
  Config config;
  config.memory_bytes_max = 8 * kFrame;
  Shard shard(config, ShardIndex(0), transport_, inbox_, outbox_,
              Log("server", LogLevel::kWarning,
                  [this](std::string_view line) { log_.emplace_back(line); }));
  ASSERT_TRUE(inbox_.post(std::move(large)).is_ok());
  const PeerId peer = transport_.arrive(hello(0));
  declare(peer, 0, declaration("x", DType::kFloat32, tensor_bytes));
  transport_.window = 0;
  std::size_t count = 0;
  for (; transport_.closed.empty() && count < 100; ++count) {
    push(peer, 0, "x", 0, filled(kFrame, 0));
    while (shard.turn(0) > 0) continue;
  }
  EXPECT_EQ(count, kWaitingBytesLeast / kFrame + 1);
  EXPECT_THAT(log_, ElementsAre(HasSubstr("does not read: 16 messages of 16777216 bytes")));
  EXPECT_EQ(shard.queued_message_count(), 0U);
}

TEST_F(ShardTest, a_notice_that_finds_the_box_full_is_posted_later) {
  Mailbox<ShardNotice> small(1, nullptr);
  Shard shard({}, ShardIndex(0), transport_, inbox_, small,
              Log("server", LogLevel::kSilent, nullptr));
  begin(1, 1);
  begin(2, 1);
  shard.turn(0);
  std::vector<ShardNotice> taken;
  small.drain(taken);
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_LT(shard.next_deadline(), kSecond);
  shard.turn(shard.next_deadline());
  small.drain(taken);
  ASSERT_THAT(taken, SizeIs(1));
  EXPECT_EQ(taken[0].epoch, Epoch(2));
}

}  // namespace
}  // namespace byteps
