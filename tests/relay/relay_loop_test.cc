// The relay's shell. The test plays its worker, the others of the machine and a server on a scripted transport, and is
// the clock.
#include "relay/relay_loop.h"

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/net/scripted_transport.h"
#include "worker/kept_sums.h"

namespace byteps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using wire::Kind;
using At = TimelineRecord::At;

constexpr Incarnation kJob = {std::byte{9}};
constexpr TimeNs kFailure = 3 * kSecond;
const Endpoint kServer{"10.0.0.1", 9000};
constexpr std::size_t kFrameBytes = 64;

// The relay of worker 0. Worker 1 is on its machine, worker 2 on another, and there is a server.
class RelayLoopTest : public testing::Test {
 protected:
  RelayLoopTest() {
    Hello& server = transport_.answers[kServer.text()];
    server.role = Role::kServer;
    server.rank = 0;
    server.epoch = Epoch(1);
    server.incarnation = kJob;
    while (leader_of({WorkerRank(0), WorkerRank(1)}, key_of(x_.name), 0, 1) != WorkerRank(0)) {
      x_.name += "x";
    }
    x_.dtype = DType::kUint8;
    x_.total_bytes = kFrameBytes;
  }
  wire::Roster roster(bool is_alone) const {
    wire::Roster roster;
    roster.recovers = recovers_;
    roster.continues = continues_;
    roster.epoch = Epoch(1);
    roster.partition_bytes = 256;
    roster.frame_bytes = kFrameBytes;
    roster.summing = is_alone ? wire::Summing::kAlone : wire::Summing::kRelays;
    for (std::uint32_t rank = 0; rank < (is_alone ? 2U : 3U); ++rank) {
      roster.members.push_back({.role = Role::kWorker,
                                .rank = rank,
                                .host = "w",
                                .endpoints = {},
                                .machine = rank < 2 ? 1U : 2U,
                                .relay_port = static_cast<std::uint16_t>(7000 + rank)});
    }
    roster.members.push_back(
        {.role = Role::kServer, .rank = 0, .host = "s:1", .endpoints = {kServer}});
    roster.slots.push_back({.server = 0, .shard = 0, .weight = 256});
    return roster;
  }
  void turn(TimeNs after = kMillisecond) {
    now_ += after;
    for (int i = 0; i < 1000 && loop_.turn(now_) > 0; ++i) {
    }
    std::vector<RelayNotice> fresh;
    notices_.drain(fresh);
    for (RelayNotice& notice : fresh) told_.push_back(std::move(notice));
  }
  void pass(TimeNs duration) {
    for (const TimeNs end = now_ + duration; now_ < end && !loop_.finished();) {
      turn(50 * kMillisecond);
    }
  }
  void begin(bool is_alone = false) {
    ASSERT_TRUE(commands_
                    .post({.kind = RelayCommand::Kind::kBegin,
                           .roster = roster(is_alone),
                           .incarnation = kJob,
                           .failure_ns = kFailure})
                    .is_ok());
    turn();
  }
  void end(const Status& why = {Code::kCancelled, "the worker has left"}) {
    ASSERT_TRUE(commands_.post({.kind = RelayCommand::Kind::kEnd, .why = why}).is_ok());
    turn();
  }
  // The worker beside it is about to leave.
  void be_asked_to_settle() {
    told_.clear();
    ASSERT_TRUE(commands_.post({.kind = RelayCommand::Kind::kLeave}).is_ok());
  }
  static Hello hello(std::uint32_t rank) {
    Hello hello;
    hello.rank = rank;
    hello.epoch = Epoch(1);
    hello.incarnation = kJob;
    return hello;
  }
  void serve() {
    begin();
    transport_.up(server());
    for (const std::uint32_t rank : {0U, 1U}) workers_.push_back(transport_.arrive(hello(rank)));
    turn();
  }
  PeerId server() { return transport_.peer_at(kServer); }
  wire::Header about(std::uint32_t rank, Kind kind) const {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(1);
    header.key = key_of(x_.name);
    header.worker = WorkerRank(rank);
    return header;
  }
  void push(std::uint32_t rank) {
    transport_.say(workers_[rank], about(rank, Kind::kDeclare), wire::encode(x_));
    transport_.say(workers_[rank], about(rank, Kind::kPush),
                   std::vector<std::byte>(kFrameBytes, static_cast<std::byte>(rank + 1)));
    turn();
  }
  void both_push() {
    push(0);
    push(1);
  }
  // The server has the sum of all.
  void answer() {
    const auto pushed = transport_.take(Kind::kPush);
    ASSERT_TRUE(pushed);
    ASSERT_EQ(pushed->peer, server());
    EXPECT_EQ(pushed->payload, std::vector<std::byte>(kFrameBytes, std::byte{3}));
    wire::Header header = pushed->header;
    header.kind = Kind::kAnswer;
    transport_.say(server(), header, std::vector<std::byte>(kFrameBytes, std::byte{9}));
    turn();
  }
  // "up relay worker 1", "wanted relay server 0".
  std::vector<std::string> recorded() {
    std::vector<std::string> events;
    for (const FlightRecorder::Entry& entry : flight_.entries()) {
      const FlightEvent& event = entry.event;
      std::string text = event.kind;
      if (event.name != nullptr) text += std::string(" ") + event.name;
      if (event.role != nullptr) text += std::string(" ") + event.role;
      if (event.rank != FlightEvent::kNone) text += " " + std::to_string(event.rank);
      events.push_back(std::move(text));
    }
    return events;
  }
  std::span<const TimelineRecord> records() const { return timeline_.facts().lanes[0]->records(); }
  std::vector<RelayNotice::Kind> kinds_told() const {
    std::vector<RelayNotice::Kind> kinds;
    for (const RelayNotice& notice : told_) kinds.push_back(notice.kind);
    return kinds;
  }

  static constexpr auto kReady = RelayNotice::Kind::kReady;
  static constexpr auto kFailed = RelayNotice::Kind::kFailed;
  const Config config_;
  ScriptedTransport transport_;
  Mailbox<RelayCommand> commands_{16, nullptr};
  Mailbox<RelayNotice> notices_{16, nullptr};
  Timeline timeline_{Round(0), Round(9), [this] { return now_ + ++looks_; }, 64};
  TimeNs looks_ = 0;  // at the clock, each of which takes a nanosecond
  TrafficCounters counters_;
  FlightRecorder flight_{100, [] { return TimeNs{1}; },
                         [](const FlightRecorder&) { return std::string(); }};
  const Log log_{"worker 0", LogLevel::kSilent, nullptr, &flight_, &timeline_};
  RelayLoop loop_{config_, transport_, {&commands_, &notices_}, counters_, log_};
  wire::Declare x_ = [] {
    wire::Declare x;
    x.name = "x";
    return x;
  }();
  bool recovers_ = false;
  bool continues_ = false;
  std::vector<PeerId> workers_;
  std::vector<RelayNotice> told_;
  TimeNs now_ = kSecond;
};

TEST_F(RelayLoopTest, before_it_is_told_to_begin_it_serves_nobody_and_reaches_nobody) {
  const PeerId early = transport_.arrive(hello(1));
  turn();
  EXPECT_EQ(transport_.closed.at(early).message(), "this relay serves nobody now");
  EXPECT_THAT(transport_.attempts, IsEmpty());
  EXPECT_EQ(loop_.relay(), nullptr);
  EXPECT_EQ(loop_.next_deadline(), kNever);
}

TEST_F(RelayLoopTest, begins_as_its_worker_and_is_ready_when_the_servers_are_reached) {
  begin();
  ASSERT_THAT(transport_.attempts, SizeIs(1));
  EXPECT_EQ(transport_.attempts[0].to, kServer);
  EXPECT_EQ(transport_.attempts[0].hello.role, Role::kWorker);
  EXPECT_EQ(transport_.attempts[0].hello.rank, 0U);
  EXPECT_EQ(transport_.attempts[0].hello.incarnation, kJob);
  ASSERT_TRUE(transport_.told);
  EXPECT_EQ(transport_.told->text(), "worker 0");
  EXPECT_EQ(transport_.told->epoch, Epoch(1));
  EXPECT_THAT(kinds_told(), IsEmpty());
  transport_.up(server());
  turn();
  EXPECT_THAT(kinds_told(), ElementsAre(kReady));
  transport_.end(server());
  pass(kSecond);
  transport_.up(server());
  turn();
  EXPECT_THAT(kinds_told(), ElementsAre(kReady)) << "once";
}

TEST_F(RelayLoopTest, serves_the_workers_of_its_machine_and_nobody_else) {
  serve();
  const PeerId other = transport_.arrive(hello(2));
  Hello old = hello(1);
  old.incarnation = {};
  const PeerId of_another_life = transport_.arrive(old);
  turn();
  EXPECT_THAT(transport_.closed.at(other).message(), HasSubstr("the workers of its machine"));
  EXPECT_TRUE(transport_.closed.contains(of_another_life));
  for (const PeerId worker : workers_) EXPECT_FALSE(transport_.closed.contains(worker));
}

TEST_F(RelayLoopTest, what_its_workers_push_is_pushed_once_and_its_answer_goes_to_each) {
  serve();
  both_push();
  const auto declared = transport_.take(Kind::kDeclare);
  ASSERT_TRUE(declared);
  EXPECT_EQ(declared->peer, server());
  answer();
  for (const PeerId worker : workers_) {
    const auto answered = transport_.take(Kind::kAnswer);
    ASSERT_TRUE(answered);
    EXPECT_EQ(answered->payload, std::vector<std::byte>(kFrameBytes, std::byte{9}));
    EXPECT_TRUE(answered->peer == worker || answered->peer == workers_[0]);
  }
  transport_.give_back_all();
  turn();
  EXPECT_TRUE(loop_.relay()->is_idle());
}

TEST_F(RelayLoopTest, records_when_a_part_was_summed_sent_on_answered_and_spread) {
  serve();
  both_push();
  answer();
  transport_.give_back_all();
  turn();
  ASSERT_THAT(records(), SizeIs(4));
  const TimelineRecord sum = records()[0], spread = records()[1], part = records()[2];
  EXPECT_EQ(sum.kind, TimelineRecord::Kind::kSum);
  EXPECT_EQ(sum.worker, 1U);
  EXPECT_EQ(spread.kind, TimelineRecord::Kind::kSpread);
  EXPECT_EQ(part.kind, TimelineRecord::Kind::kPart);
  EXPECT_EQ(part.shard, 0U);
  EXPECT_EQ(records()[3].kind, TimelineRecord::Kind::kOperation);
  const std::vector<TimeNs> times = {
      sum.at_ns[At::kFirstCame],     sum.at_ns[At::kLastCame],   sum.at_ns[At::kLastFrameSummed],
      part.at_ns[At::kQueued],       part.at_ns[At::kLastSent],  spread.at_ns[At::kFirstReturned],
      spread.at_ns[At::kLastSpread], part.at_ns[At::kLastAnswer]};
  for (std::size_t i = 1; i < times.size(); ++i) EXPECT_LT(times[i - 1], times[i]) << i;
}

TEST_F(RelayLoopTest, alone_it_records_what_it_sums) {
  begin(true);
  for (const std::uint32_t rank : {0U, 1U}) workers_.push_back(transport_.arrive(hello(rank)));
  both_push();
  ASSERT_THAT(records(), SizeIs(1));
  EXPECT_EQ(records()[0].kind, TimelineRecord::Kind::kSum);
  EXPECT_EQ(timeline_.facts().lanes[0]->recorder(), Recorder::kRelay);
  EXPECT_EQ(timeline_.facts().names.at(key_of(x_.name)), x_.name);
}

TEST_F(RelayLoopTest, a_servers_words_reach_its_workers) {
  serve();
  both_push();
  transport_.take_sent();
  transport_.say(server(), about(0, Kind::kMissing),
                 wire::encode(wire::Missing{Members(std::vector<std::uint32_t>{2})}));
  turn();
  EXPECT_TRUE(transport_.take(Kind::kMissing));
  EXPECT_TRUE(transport_.take(Kind::kMissing));
  transport_.say(server(), about(0, Kind::kMismatch),
                 wire::encode(wire::Text{"ranks 0 and 2 disagree",
                                         static_cast<std::uint32_t>(Code::kMismatch)}));
  turn();
  for (int i = 0; i < 2; ++i) {
    const auto told = transport_.take(Kind::kMismatch);
    ASSERT_TRUE(told);
    EXPECT_NE(told->peer, server());
    EXPECT_EQ(wire::decode_text(told->payload).value().text, "ranks 0 and 2 disagree");
  }
}

TEST_F(RelayLoopTest, gives_a_sign_of_life_when_it_is_asked) {
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(commands_.post({.kind = RelayCommand::Kind::kPing}).is_ok());
    turn();
    EXPECT_THAT(kinds_told(), ElementsAre(RelayNotice::Kind::kAlive));
    told_.clear();
    if (i == 0) begin();
  }
}

// Where a server that is lost is replaced, whose successor would ask this relay for sums.
TEST_F(RelayLoopTest, says_when_others_have_the_sums_that_it_keeps) {
  recovers_ = true;
  serve();
  both_push();
  answer();
  be_asked_to_settle();
  turn();
  EXPECT_THAT(kinds_told(), IsEmpty());
  wire::Header settled = about(0, Kind::kSettled);
  settled.key = Key();
  settled.count = 1;
  transport_.say(server(), settled, {});
  turn();
  EXPECT_THAT(kinds_told(), ElementsAre(RelayNotice::Kind::kSettled));
}

TEST_F(RelayLoopTest, waits_for_that_while_a_server_is_missed_and_else_a_while) {
  recovers_ = true;
  serve();
  both_push();
  answer();
  be_asked_to_settle();
  turn();
  transport_.end(server(), Status(Code::kDisconnected, "reset by peer"));
  pass(kFailure - 100 * kMillisecond);
  EXPECT_THAT(kinds_told(), IsEmpty());
  transport_.up(server());
  pass(kFailure * 4 / 3 - 100 * kMillisecond);
  EXPECT_THAT(kinds_told(), IsEmpty());
  pass(200 * kMillisecond);
  EXPECT_THAT(kinds_told(), ElementsAre(RelayNotice::Kind::kSettled));
}

TEST_F(RelayLoopTest, where_the_crew_keeps_sums_as_well_it_says_so_at_once) {
  recovers_ = continues_ = true;
  serve();
  both_push();
  answer();
  be_asked_to_settle();
  turn();
  EXPECT_THAT(kinds_told(), ElementsAre(RelayNotice::Kind::kSettled));
}

TEST_F(RelayLoopTest, but_not_while_a_server_is_missed_whose_successor_may_ask_them) {
  recovers_ = continues_ = true;
  serve();
  transport_.end(server(), Status(Code::kDisconnected, "reset by peer"));
  be_asked_to_settle();
  pass(kFailure - 100 * kMillisecond);
  EXPECT_THAT(kinds_told(), IsEmpty());
  transport_.up(server());
  turn();
  EXPECT_THAT(kinds_told(), ElementsAre(RelayNotice::Kind::kSettled));
}

TEST_F(RelayLoopTest, counts_what_it_exchanges_with_the_servers_and_not_with_its_workers) {
  serve();
  both_push();
  EXPECT_EQ(counters_.pushed_bytes, kFrameBytes);
  EXPECT_EQ(counters_.pulled_bytes, 0U);
  answer();
  EXPECT_EQ(counters_.pushed_bytes, kFrameBytes);
  EXPECT_EQ(counters_.pulled_bytes, kFrameBytes);
  EXPECT_EQ(counters_.reconnects, 0U);
}

TEST_F(RelayLoopTest, alone_it_exchanges_nothing_with_servers) {
  begin(true);
  for (const std::uint32_t rank : {0U, 1U}) workers_.push_back(transport_.arrive(hello(rank)));
  both_push();
  EXPECT_EQ(counters_.pushed_bytes, 0U);
}

TEST_F(RelayLoopTest, what_it_does_and_waits_for_is_in_the_flight_recorder) {
  serve();
  push(1);
  pass(config_.timeout.first_notice_ns);  // worker 0 is late
  push(0);
  const wire::Missing missing{Members(std::vector<std::uint32_t>{2})};
  transport_.say(server(), about(0, Kind::kWanted));
  transport_.say(server(), about(0, Kind::kMissing), wire::encode(missing));
  const wire::Text text{"ranks 0 and 2 disagree", static_cast<std::uint32_t>(Code::kMismatch)};
  transport_.say(server(), about(0, Kind::kMismatch), wire::encode(text));
  turn();
  transport_.end(workers_[1]);
  turn();
  EXPECT_THAT(recorded(),
              testing::IsSupersetOf({"up server 0", "up relay worker 1", "declare relay worker 1",
                                     "wanted relay worker 0", "missing relay worker 0",
                                     "wanted relay server 0", "missing relay worker 2",
                                     "mismatch relay server 0", "down relay worker 1"}));
}

TEST_F(RelayLoopTest, what_waits_for_the_servers_for_long_is_recorded_and_not_said) {
  serve();
  both_push();
  pass(config_.timeout.first_notice_ns + kSecond);
  std::string lines;
  for (const FlightRecorder::Entry& entry : flight_.entries()) {
    if (std::string(entry.event.kind) == "log") lines += entry.text + "\n";
  }
  EXPECT_THAT(lines, HasSubstr("its relay: waiting for 5"));
  EXPECT_THAT(lines, HasSubstr("tensor '" + x_.name + "'"));
}

TEST_F(RelayLoopTest, a_server_without_memory_is_named_to_the_workers) {
  serve();
  both_push();
  transport_.say(server(), about(0, Kind::kMismatch),
                 wire::encode(wire::Text{"no memory", static_cast<std::uint32_t>(Code::kSystem)}));
  turn();
  const auto told = transport_.take(Kind::kMismatch);
  ASSERT_TRUE(told);
  EXPECT_EQ(wire::decode_text(told->payload).value().text,
            "server 0 (s:1) at 10.0.0.1:9000, shard 0: no memory");
}

TEST_F(RelayLoopTest,
       another_relay_without_memory_is_named_to_the_workers_and_not_the_server_that_tells_it) {
  serve();
  both_push();
  wire::Text text{"no memory", static_cast<std::uint32_t>(Code::kSystem)};
  text.cause = {.kind = CauseKind::kNoMemory, .who = {.role = Role::kWorker, .rank = 2}};
  transport_.say(server(), about(0, Kind::kMismatch), wire::encode(text));
  turn();
  const auto told = transport_.take(Kind::kMismatch);
  ASSERT_TRUE(told);
  const wire::Text passed_on = wire::decode_text(told->payload).value();
  EXPECT_EQ(passed_on.text, "no memory");
  EXPECT_EQ(passed_on.cause, text.cause);
}

TEST_F(RelayLoopTest, a_server_that_breaks_the_protocol_is_connected_anew) {
  serve();
  both_push();
  const PeerId before = server();
  transport_.say(before, about(0, Kind::kPush));
  turn();
  EXPECT_TRUE(transport_.closed.contains(before));
  transport_.take_sent();
  pass(kSecond);
  ASSERT_NE(server(), before);
  transport_.up(server());
  turn();
  EXPECT_TRUE(transport_.take(Kind::kDeclare));
  answer();
  EXPECT_TRUE(transport_.take(Kind::kAnswer));
}

TEST_F(RelayLoopTest, a_server_that_cannot_be_reached_is_said_once) {
  begin();
  for (TimeNs passed = 0; passed < 4 * kFailure; passed += 50 * kMillisecond) {
    turn(50 * kMillisecond);
    if (transport_.peers.contains(server())) {
      transport_.end(server(), {Code::kDisconnected, "connection refused"});
    }
  }
  ASSERT_THAT(kinds_told(), ElementsAre(kFailed));
  EXPECT_THAT(told_[0].why.message(), HasSubstr("server 0 (s:1) at 10.0.0.1:9000"));
  EXPECT_THAT(told_[0].why.message(), HasSubstr("connection refused"));
  EXPECT_EQ(told_[0].why.cause().kind, CauseKind::kUnreachable);
  end();
  EXPECT_TRUE(loop_.finished());
}

TEST_F(RelayLoopTest, a_thread_that_fails_is_said_to_the_worker) {
  serve();
  told_.clear();
  loop_.failed({Code::kSystem, "out of threads"});
  turn();
  ASSERT_THAT(kinds_told(), ElementsAre(kFailed));
  EXPECT_EQ(told_[0].why.message(), "its relay's thread failed: out of threads");
}

TEST_F(RelayLoopTest, at_the_end_workers_get_first_what_is_theirs) {
  serve();
  both_push();
  transport_.give_back_all();
  answer();
  end();
  EXPECT_TRUE(transport_.closed.contains(server())) << "nothing is to be had there any more";
  for (const PeerId worker : workers_) EXPECT_FALSE(transport_.closed.contains(worker));
  EXPECT_FALSE(loop_.finished());
  transport_.give_back_all();  // it is sent
  turn();
  for (const PeerId worker : workers_) {
    EXPECT_EQ(transport_.closed.at(worker).message(), "the worker has left");
  }
  turn();
  EXPECT_TRUE(loop_.finished());
  EXPECT_EQ(loop_.turn(now_), 0U);
}

// Its crew turn to another relay, which asks the servers for what they have not got.
TEST_F(RelayLoopTest, one_whose_job_goes_on_without_it_does_not_say_that_its_crew_have_everything) {
  recovers_ = continues_ = true;
  serve();
  both_push();
  answer();
  end({Code::kDisconnected, "was away for too long", {.kind = CauseKind::kReplaced}});
  turn(2 * KeptSums::kSilenceNs);
  EXPECT_FALSE(transport_.take(Kind::kAck));
  EXPECT_TRUE(transport_.closed.contains(server()));
}

TEST_F(RelayLoopTest, and_one_that_leaves_does) {
  recovers_ = continues_ = true;
  serve();
  both_push();
  answer();
  end();
  turn(2 * KeptSums::kSilenceNs);
  EXPECT_TRUE(transport_.take(Kind::kAck));
}

TEST_F(RelayLoopTest, at_the_end_who_does_not_read_is_waited_for_only_so_long) {
  serve();
  both_push();
  transport_.give_back_all();
  answer();
  end();
  pass(kFailure - 50 * kMillisecond);
  EXPECT_FALSE(transport_.closed.contains(workers_[1]));
  pass(100 * kMillisecond);
  EXPECT_TRUE(transport_.closed.contains(workers_[1]));
  EXPECT_TRUE(loop_.finished());
}

TEST_F(RelayLoopTest, at_the_end_nobody_is_told_of_what_waits_for_the_servers) {
  serve();
  both_push();
  transport_.give_back_all();
  turn();
  end();
  EXPECT_FALSE(transport_.take(Kind::kMismatch)) << "who is to know hears it from the scheduler";
  EXPECT_TRUE(loop_.finished());
}

TEST_F(RelayLoopTest, nor_of_what_is_on_its_way_there_when_it_comes_back) {
  serve();
  both_push();
  end();
  transport_.give_back_all();
  turn();
  EXPECT_FALSE(transport_.take(Kind::kMismatch));
  EXPECT_TRUE(loop_.finished());
}

TEST_F(RelayLoopTest, an_end_before_the_beginning_is_one) {
  end();
  EXPECT_TRUE(loop_.finished());
}

TEST_F(RelayLoopTest, alone_it_is_ready_at_once_and_answers_by_itself) {
  begin(true);
  EXPECT_THAT(kinds_told(), ElementsAre(kReady));
  EXPECT_THAT(transport_.attempts, IsEmpty()) << "the server is not used";
  for (const std::uint32_t rank : {0U, 1U}) workers_.push_back(transport_.arrive(hello(rank)));
  both_push();
  for (int i = 0; i < 2; ++i) {
    const auto answered = transport_.take(Kind::kAnswer);
    ASSERT_TRUE(answered);
    EXPECT_EQ(answered->payload, std::vector<std::byte>(kFrameBytes, std::byte{3}));
  }
  end();
  transport_.give_back_all();
  turn();
  EXPECT_TRUE(loop_.finished());
}

}  // namespace
}  // namespace byteps
