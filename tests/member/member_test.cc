// Member with plain messages: the same rules from a member's side.
#include "member/member.h"

#include <algorithm>

#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/base/only.h"
#include "tests/member/joins.h"

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Kind = wire::Kind;

constexpr const char* kKeysDiffer = "job keys differ: BYTEPS_JOB_KEY must be the same for all";

Hello scheduler_hello(std::byte incarnation = {}) {
  Hello hello;
  hello.role = Role::kScheduler;
  hello.incarnation[0] = incarnation;
  return hello;
}

// A Member whose network is this class: it grants connections, or refuses them.
class Desk {
 public:
  // Time passes, and this process does nothing.
  void stand_still(TimeNs duration) { now_ += duration; }
  explicit Desk(const wire::Join& join = worker_join(1, "beta:11"), Config config = small_job())
      : member_(join, config) {}

  void tick() {
    member_.tick(now_, out_);
    grant();
  }
  void pass(TimeNs duration, bool scheduler_lives = false) {
    const TimeNs until = now_ + duration;
    while (now_ < until) {
      now_ = std::min(until, now_ + 50 * kMillisecond);
      if (scheduler_lives) say(Kind::kHeartbeat);
      tick();
    }
  }
  void connect(std::byte incarnation = {}) {
    tick();
    ASSERT_TRUE(member_.peer().has_value());
    member_.on_up(scheduler_hello(incarnation), now_, out_);
  }
  void say(Kind kind, const std::vector<std::byte>& payload = {}, Epoch epoch = Epoch(1),
           WorkerRank worker = WorkerRank(0)) {
    wire::Header header;
    header.kind = kind;
    header.epoch = epoch;
    header.worker = worker;
    member_.on_message(header, payload, now_, out_);
  }
  void say_roster(std::uint32_t epoch = 1, std::uint32_t rank = 1) {
    say(Kind::kRoster, wire::encode(roster(epoch, rank)), Epoch(epoch), WorkerRank(rank));
  }
  static wire::Roster roster(std::uint32_t epoch, std::uint32_t rank) {
    wire::Roster roster;
    roster.epoch = Epoch(epoch);
    roster.your_rank = rank;
    roster.partition_bytes = 6400;
    roster.frame_bytes = 640;
    roster.members = {{Role::kWorker, 0, "alpha:10", {}},
                      {Role::kWorker, 1, "beta:11", {}},
                      {Role::kServer, 0, "gamma:12", {{"10.0.0.2", 4000}}}};
    roster.slots = {{.server = 0, .shard = 0, .weight = 256}};
    return roster;
  }
  void down(const char* why = "connection reset by peer") {
    member_.on_down({Code::kDisconnected, why}, now_, out_);
  }

  std::vector<MemberOutput::Send> sent(Kind kind) const {
    std::vector<MemberOutput::Send> found;
    for (MemberOutput::Send& message : happened<MemberOutput::Send>()) {
      if (message.header.kind == kind) found.push_back(std::move(message));
    }
    return found;
  }
  // Of this kind, since the last forget().
  template <typename What>
  std::vector<What> happened() const {
    std::vector<What> found = only<What>(done_);
    for (What& fresh : only<What>(out_)) found.push_back(std::move(fresh));
    return found;
  }
  // All that is the owner's.
  std::size_t happenings() const {
    return done_.size() + out_.size() - happened<MemberOutput::Connect>().size() -
           happened<MemberOutput::Send>().size() - happened<MemberOutput::Close>().size();
  }
  std::size_t attempts() const { return attempts_; }
  void forget() {
    out_ = {};
    done_.clear();
  }
  Member& member() { return member_; }
  TimeNs now() const { return now_; }
  MemberOutputs& out() { return out_; }
  bool refuse_ = false;
  Status refusal_{Code::kDisconnected, "connection refused"};

 private:
  void grant() {
    MemberOutputs outputs = std::exchange(out_, {});
    for (auto& output : outputs) {
      if (std::holds_alternative<MemberOutput::Connect>(output)) {
        ++attempts_;
        member_.on_connecting(PeerId(next_peer_++), now_, out_);
        if (refuse_) member_.on_down(refusal_, now_, out_);
      }
      done_.push_back(std::move(output));
    }
  }

  Member member_;
  TimeNs now_ = 500 * kSecond;
  std::uint32_t next_peer_ = 1;
  std::size_t attempts_ = 0;
  MemberOutputs out_;
  MemberOutputs done_;
};

struct RunningDesk : Desk {
  explicit RunningDesk(const wire::Join& join = worker_join(1, "beta:11")) : Desk(join) {
    connect();
    say_roster(1, join.role == Role::kWorker ? 1 : 0);
  }
};

// ---- connecting and joining ----

TEST(Member, connects_with_its_role_and_rank_and_joins) {
  Desk desk;
  desk.member().tick(desk.now(), desk.out());
  ASSERT_EQ(desk.out().size(), 1U);
  const auto& attempt = std::get<MemberOutput::Connect>(desk.out()[0]);
  EXPECT_EQ(attempt.to.text(), "10.0.0.9:9000");
  EXPECT_EQ(attempt.hello.role, Role::kWorker);
  EXPECT_EQ(attempt.hello.rank, 1U);
  desk.member().on_connecting(PeerId(1), desk.now(), desk.out());
  desk.member().on_up(scheduler_hello(), desk.now(), desk.out());
  ASSERT_EQ(desk.sent(Kind::kJoin).size(), 1U);
  wire::Join expected = worker_join(1, "beta:11");
  const wire::Join said = wire::decode_join(desk.sent(Kind::kJoin)[0].payload).value();
  EXPECT_EQ(said, expected);
}

TEST(Member, tries_again_after_a_pause_and_never_faster) {
  Desk desk;
  desk.refuse_ = true;
  desk.tick();
  for (int i = 0; i < 100; ++i) desk.tick();  // no time passes
  EXPECT_EQ(desk.attempts(), 1U);
  desk.pass(1 * kSecond);
  EXPECT_EQ(desk.attempts(), 21U);  // failure_ns / 60 = 50 ms
}

TEST(Member, says_that_the_scheduler_is_unreachable_after_5_s_and_every_10_s_after_then_gives_up) {
  Config config = small_job();
  config.timeout.start_ns = 30 * kSecond;
  Desk desk(worker_join(1, "beta:11"), config);
  desk.refuse_ = true;
  desk.tick();
  desk.pass(4950 * kMillisecond);
  EXPECT_EQ(desk.happenings(), 0U);
  desk.pass(50 * kMillisecond);
  ASSERT_EQ(desk.happened<MemberOutput::Notice>().size(), 1U);
  EXPECT_EQ(desk.happened<MemberOutput::Notice>()[0].text,
            "scheduler at 10.0.0.9:9000 unreachable since 5 s: connection refused; is it started, "
            "and are "
            "DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT right?");
  desk.pass(10 * kSecond);
  EXPECT_EQ(desk.happened<MemberOutput::Notice>().size(), 2U);
  desk.pass(15 * kSecond);
  ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
  const Status why = desk.happened<MemberOutput::Failed>()[0].why;
  EXPECT_TRUE(why.is(Code::kTimeout));
  EXPECT_THAT(why.message(),
              AllOf(HasSubstr("after 30 s"), HasSubstr("10.0.0.9:9000"), HasSubstr("refused")));
  const Cause expected{.kind = CauseKind::kUnreachable,
                       .who = {.role = Role::kScheduler},
                       .for_ns = 30 * kSecond,
                       .detail = "connection refused"};
  EXPECT_EQ(why.cause(), expected);
  EXPECT_TRUE(desk.member().done());
  EXPECT_EQ(desk.member().next_deadline(), kNever);
}

TEST(Member,
     misses_the_scheduler_for_the_failure_timeout_and_a_heartbeat_only_once_it_has_answered) {
  for (const bool answered : {true, false}) {
    Desk desk;
    desk.connect();
    if (answered) desk.say(Kind::kHeartbeat);
    desk.refuse_ = true;
    desk.down();
    desk.pass(3500 * kMillisecond);
    EXPECT_EQ(desk.member().done(), answered);
  }
}

TEST(Member, passes_on_who_is_missing_and_ends_with_that_when_it_gives_up) {
  Config config = small_job();
  config.timeout.start_ns = 10 * kSecond;
  Desk desk(worker_join(1, "beta:11"), config);
  desk.connect();
  wire::Text waiting{"waiting for worker 0 of 2", 2};
  waiting.cause = {
      .kind = CauseKind::kIncomplete, .detail = "worker 0 of 2", .missing_workers = {0}};
  desk.say(Kind::kWaiting, wire::encode(waiting));
  ASSERT_EQ(desk.happened<MemberOutput::Notice>().size(), 1U);
  EXPECT_EQ(desk.happened<MemberOutput::Notice>()[0].text,
            "scheduler at 10.0.0.9:9000 says: waiting for worker 0 of 2");
  desk.pass(12 * kSecond, true);
  EXPECT_FALSE(desk.member().done()) << "the scheduler gives up first";
  desk.pass(1 * kSecond, true);
  EXPECT_EQ(desk.happened<MemberOutput::Notice>().size(), 1U)
      << "the scheduler is the one to say more";
  ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
  EXPECT_EQ(desk.happened<MemberOutput::Failed>()[0].why.message(),
            "gave up joining after 10 s: the scheduler said 13 s ago: waiting for worker 0 of 2")
      << "the durations in the scheduler's text are of the time when it said it";
  EXPECT_EQ(desk.happened<MemberOutput::Failed>()[0].why.cause(), waiting.cause);
}

TEST(Member,
     repeats_who_is_missing_for_the_flight_recorder_only_where_the_scheduler_is_read_itself) {
  for (const bool tells : {true, false}) {
    Config config = small_job();
    config.tells_roll_call = tells;
    Desk desk(worker_join(1, "beta:11"), config);
    desk.connect();
    wire::Text said{"whatever the text is", 2};
    desk.say(Kind::kWaiting, wire::encode(said));
    said.cause.kind = CauseKind::kIncomplete;
    desk.say(Kind::kWaiting, wire::encode(said));
    const std::vector<MemberOutput::Notice> notices = desk.happened<MemberOutput::Notice>();
    ASSERT_EQ(notices.size(), 2U);
    EXPECT_EQ(notices[0].level, LogLevel::kWarning);
    EXPECT_EQ(notices[1].level, tells ? LogLevel::kWarning : LogLevel::kDebug);
  }
}

TEST(Member, backs_off_and_soon_gives_up_when_it_is_refused_as_one_of_another_job) {
  Desk desk;
  desk.refuse_ = true;
  desk.refusal_ = Status(Code::kMismatch, kKeysDiffer, {.kind = CauseKind::kKeysDiffer});
  desk.tick();
  desk.pass(5 * kSecond);
  EXPECT_LE(desk.attempts(), 7U);
  ASSERT_EQ(desk.happened<MemberOutput::Notice>().size(), 1U);
  EXPECT_THAT(
      desk.happened<MemberOutput::Notice>()[0].text,
      AllOf(HasSubstr("job keys differ"), HasSubstr("BYTEPS_JOB_KEY"), Not(HasSubstr("started"))));
  desk.pass(2 * kSecond);
  ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
  const Status why = desk.happened<MemberOutput::Failed>()[0].why;
  EXPECT_TRUE(why.is(Code::kMismatch));
  EXPECT_THAT(why.message(), AllOf(HasSubstr("10.0.0.9:9000"), HasSubstr("BYTEPS_JOB_KEY")));
  EXPECT_TRUE(why.is_because_of(CauseKind::kKeysDiffer));
  EXPECT_FALSE(why.cause().who.role) << "it is this member that is refused";
}

TEST(Member, treats_a_server_at_the_schedulers_address_as_a_refusal_and_names_it) {
  Desk desk;
  Hello server;
  server.role = Role::kServer;
  server.rank = 2;
  for (int i = 0; i < 70 && !desk.member().done(); ++i) {
    desk.pass(100 * kMillisecond);
    if (!desk.member().peer()) continue;
    desk.member().on_up(server, desk.now(), desk.out());
    EXPECT_FALSE(desk.member().peer()) << "the connection is closed";
  }
  EXPECT_TRUE(desk.sent(Kind::kJoin).empty()) << "nothing is said to a stranger";
  EXPECT_LE(desk.attempts(), 10U);
  ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
  EXPECT_THAT(desk.happened<MemberOutput::Failed>()[0].why.message(),
              AllOf(HasSubstr("10.0.0.9:9000"), HasSubstr("server 2 answers there"),
                    HasSubstr("DMLC_PS_ROOT_PORT")));
  EXPECT_TRUE(desk.happened<MemberOutput::Failed>()[0].why.is_because_of(CauseKind::kRefused));
}

TEST(Member, gives_up_soon_too_when_one_side_has_no_descriptors_and_says_which) {
  for (const bool is_of_peer : {true, false}) {
    Desk desk;
    desk.refuse_ = true;
    desk.refusal_ = Status(Code::kSystem, "refused by it: it has no file descriptor left",
                           {.kind = CauseKind::kNoDescriptors, .is_of_peer = is_of_peer});
    desk.tick();
    desk.pass(7 * kSecond);
    ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
    const Status why = desk.happened<MemberOutput::Failed>()[0].why;
    EXPECT_TRUE(why.is(Code::kSystem));
    EXPECT_THAT(why.message(),
                AllOf(HasSubstr("10.0.0.9:9000"), HasSubstr("no file descriptor left"),
                      Not(HasSubstr("another job"))));
    EXPECT_TRUE(why.is_because_of(CauseKind::kNoDescriptors));
    EXPECT_EQ(why.cause().who.role, is_of_peer ? std::optional(Role::kScheduler) : std::nullopt);
  }
}

TEST(Member, refusals_that_end_in_time_do_not_end_the_member) {
  Desk desk;
  desk.refuse_ = true;
  const Status refused(Code::kMismatch, kKeysDiffer);
  for (int i = 0; i < 5; ++i) {  // one job after the other has the address
    desk.refusal_ = refused;
    desk.pass(4 * kSecond);
    desk.refusal_ = Status(Code::kDisconnected, "connection refused");
    desk.pass(2 * kSecond);
  }
  EXPECT_FALSE(desk.member().done());
  desk.refuse_ = false;
  desk.pass(1 * kSecond);
  desk.connect();
  desk.say_roster();
  EXPECT_EQ(desk.happened<MemberOutput::Began>().size(), 1U);
}

TEST(Member, joins_again_on_each_new_connection_with_the_epoch_it_is_in) {
  RunningDesk desk;
  desk.forget();
  desk.down();
  desk.pass(50 * kMillisecond);
  desk.connect();
  ASSERT_EQ(desk.sent(Kind::kJoin).size(), 1U);
  EXPECT_EQ(desk.sent(Kind::kJoin)[0].header.epoch, Epoch(1));
}

TEST(Member, ends_when_another_scheduler_answers_at_the_address_and_says_nothing_to_it) {
  Desk desk;
  desk.connect(std::byte{4});
  desk.down();
  desk.pass(50 * kMillisecond);
  desk.connect(std::byte{5});  // it has begun the job by then
  desk.say_roster();
  EXPECT_EQ(desk.member().incarnation(), scheduler_hello(std::byte{5}).incarnation);
  desk.down();
  desk.forget();
  desk.pass(50 * kMillisecond);
  ASSERT_EQ(desk.happened<MemberOutput::Connect>().size(), 1U);
  EXPECT_EQ(desk.happened<MemberOutput::Connect>()[0].hello.incarnation,
            desk.member().incarnation());
  desk.connect(std::byte{6});
  EXPECT_THAT(desk.sent(Kind::kJoin), testing::SizeIs(0));
  ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
  EXPECT_TRUE(desk.happened<MemberOutput::Failed>()[0].why.is(Code::kDisconnected));
  EXPECT_THAT(
      desk.happened<MemberOutput::Failed>()[0].why.message(),
      AllOf(HasSubstr("10.0.0.9:9000"), HasSubstr("is not the one that this job began with")));
  EXPECT_TRUE(desk.happened<MemberOutput::Failed>()[0].why.is_because_of(CauseKind::kStartedAnew));
}

TEST(Member, who_is_leaving_and_meets_another_scheduler_has_left) {
  RunningDesk desk;
  desk.down();
  desk.member().leave(true, desk.now(), desk.out());
  desk.pass(50 * kMillisecond);
  desk.connect(std::byte{6});
  EXPECT_EQ(desk.happened<MemberOutput::Left>().size(), 1U);
}

TEST(Member, a_deaf_connection_is_replaced_before_the_failure_timeout) {
  RunningDesk desk;
  desk.pass(1500 * kMillisecond);
  EXPECT_EQ(desk.attempts(), 2U);
  desk.member().on_up(scheduler_hello(), desk.now(), desk.out());
  desk.pass(10 * kSecond, true);
  EXPECT_FALSE(desk.member().done());
}

// ---- running ----

TEST(Member, a_worker_hears_the_roster_once_and_confirms_it_at_once) {
  RunningDesk desk;
  ASSERT_EQ(desk.happened<MemberOutput::Began>().size(), 1U);
  EXPECT_EQ(desk.happened<MemberOutput::Began>()[0].roster, Desk::roster(1, 1));
  ASSERT_EQ(desk.sent(Kind::kHeartbeat).size(), 1U);
  EXPECT_EQ(desk.sent(Kind::kHeartbeat)[0].header.epoch, Epoch(1));
  desk.say_roster();
  EXPECT_EQ(desk.happened<MemberOutput::Began>().size(), 1U);
}

TEST(Member, a_server_confirms_an_epoch_only_when_its_shards_have_applied_it) {
  RunningDesk desk(server_join("gamma:12", 4000));
  desk.pass(1 * kSecond, true);
  for (const MemberOutput::Send& message : desk.sent(Kind::kHeartbeat))
    EXPECT_EQ(message.header.epoch, Epoch(0));
  desk.forget();
  desk.member().applied(Epoch(1), desk.now(), desk.out());
  ASSERT_EQ(desk.sent(Kind::kHeartbeat).size(), 1U);
  EXPECT_EQ(desk.sent(Kind::kHeartbeat)[0].header.epoch, Epoch(1));
  desk.say_roster(2, 0);
  EXPECT_EQ(desk.happened<MemberOutput::Began>().size(), 1U);
  EXPECT_EQ(desk.member().epoch(), Epoch(1));
}

TEST(Member, sends_heartbeats_every_sixth_of_the_failure_timeout) {
  RunningDesk desk;
  desk.forget();
  desk.pass(3 * kSecond, true);
  EXPECT_EQ(desk.sent(Kind::kHeartbeat).size(), 6U);
}

// A scheduler that stood still for just less than the failure timeout after its last heartbeat is not gone.
TEST(Member,
     ends_naming_the_scheduler_when_it_is_unreachable_for_a_heartbeat_more_than_the_timeout) {
  RunningDesk desk;
  desk.refuse_ = true;
  desk.down();
  desk.pass(3450 * kMillisecond);
  EXPECT_FALSE(desk.member().done());
  desk.pass(50 * kMillisecond);
  ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
  const Status why = desk.happened<MemberOutput::Failed>()[0].why;
  EXPECT_TRUE(why.is(Code::kDisconnected));
  EXPECT_THAT(why.message(), AllOf(HasSubstr("scheduler at 10.0.0.9:9000"), HasSubstr("3.5 s"),
                                   HasSubstr("connection refused")));
  const Cause expected{.kind = CauseKind::kGone,
                       .who = {.role = Role::kScheduler},
                       .for_ns = 3500 * kMillisecond,
                       .detail = "connection refused"};
  EXPECT_EQ(why.cause(), expected);
}

TEST(Member, ends_when_the_scheduler_is_there_but_says_nothing_for_as_long) {
  RunningDesk desk;
  desk.pass(3500 * kMillisecond);
  ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
  EXPECT_THAT(desk.happened<MemberOutput::Failed>()[0].why.message(),
              HasSubstr("scheduler at 10.0.0.9:9000"));
  EXPECT_TRUE(desk.happened<MemberOutput::Failed>()[0].why.is_because_of(CauseKind::kGone))
      << "nor has it answered to connecting anew";
}

// What the scheduler said meanwhile is not all handed in when the clock is looked at.
TEST(Member, does_not_take_its_own_pause_for_a_silence_of_the_scheduler) {
  Desk desk;
  desk.connect();
  desk.say_roster();
  desk.pass(kSecond, true);
  desk.stand_still(10 * kSecond);
  desk.tick();
  EXPECT_FALSE(desk.member().done());
  EXPECT_EQ(desk.attempts(), 1U) << "the connection is not given up either";
  desk.pass(kSecond);
  EXPECT_FALSE(desk.member().done());
  desk.pass(3 * kSecond);
  EXPECT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
}

TEST(Member, ends_with_the_reason_that_the_scheduler_gives) {
  RunningDesk desk;
  wire::Text gone{"worker 0 (alpha:10) is gone", 4};
  gone.cause = {.kind = CauseKind::kGone,
                .who = {.role = Role::kWorker, .rank = 0, .host = "alpha:10"},
                .for_ns = 3 * kSecond,
                .detail = "reset"};
  desk.say(Kind::kFail, wire::encode(gone));
  ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
  EXPECT_TRUE(desk.happened<MemberOutput::Failed>()[0].why.is(Code::kDisconnected));
  EXPECT_EQ(desk.happened<MemberOutput::Failed>()[0].why.message(), "worker 0 (alpha:10) is gone");
  EXPECT_EQ(desk.happened<MemberOutput::Failed>()[0].why.cause(), gone.cause);
  desk.say(Kind::kFail, wire::encode(wire::Text{"again", 4}));
  desk.pass(10 * kSecond);
  EXPECT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U) << "once";
}

TEST(Member, tells_its_own_failure_and_ends_when_the_scheduler_knows) {
  for (const bool scheduler_answers : {true, false}) {
    RunningDesk desk;
    const Cause cause{.kind = CauseKind::kNoMemory, .detail = "x"};
    desk.member().fail({Code::kSystem, "no memory", cause}, desk.now(), desk.out());
    ASSERT_EQ(desk.sent(Kind::kFail).size(), 1U);
    const wire::Text said = wire::decode_text(desk.sent(Kind::kFail)[0].payload).value();
    EXPECT_EQ(said.text, "no memory");
    EXPECT_EQ(said.code, 6U);
    EXPECT_EQ(said.cause, cause);
    EXPECT_FALSE(desk.member().done());
    if (scheduler_answers) {
      desk.say(Kind::kFail, wire::encode(wire::Text{"worker 1 (beta:11): no memory", 6}));
    } else {
      desk.pass(3 * kSecond);
    }
    ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
    EXPECT_EQ(desk.happened<MemberOutput::Failed>()[0].why.message(), "no memory");
  }
}

TEST(Member, nonsense_from_the_scheduler_ends_the_connection_and_not_the_process) {
  wire::Roster gap = Desk::roster(1, 1);
  gap.members[1].rank = 2;
  wire::Roster no_frame = Desk::roster(1, 1);
  no_frame.frame_bytes = 0;
  wire::Roster no_address = Desk::roster(1, 1);
  no_address.members[2].endpoints.clear();
  no_address.slots.clear();
  wire::Roster no_slot = Desk::roster(1, 1);
  no_slot.slots.clear();
  wire::Roster strange_server = Desk::roster(1, 1);
  strange_server.slots[0].server = 1;
  wire::Roster strange_shard = Desk::roster(1, 1);
  strange_shard.slots[0].shard = 1;
  wire::Roster no_weight = Desk::roster(1, 1);
  no_weight.slots[0].weight = 0;
  wire::Roster too_heavy = Desk::roster(1, 1);
  too_heavy.slots[0].weight = (1 << 16) + 1;
  wire::Roster too_many = Desk::roster(1, 1);
  too_many.slots.resize(kShardsMax + 1, too_many.slots[0]);
  const std::vector<std::pair<std::vector<std::byte>, std::uint32_t>> rosters = {
      {std::vector<std::byte>(5, std::byte{0xff}), 1},
      {wire::encode(gap), 1},
      {wire::encode(no_frame), 1},
      {wire::encode(no_address), 1},
      {wire::encode(no_slot), 1},
      {wire::encode(strange_server), 1},
      {wire::encode(strange_shard), 1},
      {wire::encode(no_weight), 1},
      {wire::encode(too_heavy), 1},
      {wire::encode(too_many), 1},
      {wire::encode(Desk::roster(1, 7)), 7},
      {wire::encode(Desk::roster(1, 0)), 0},  // another's rank
      {wire::encode(Desk::roster(0, 1)), 1},
  };
  for (const auto& [payload, rank] : rosters) {
    Desk desk;
    desk.connect();
    desk.say(Kind::kRoster, payload, Epoch(1), WorkerRank(rank));
    EXPECT_FALSE(desk.member().peer().has_value());
    EXPECT_EQ(desk.happenings(), 0U);
    desk.pass(50 * kMillisecond);
    EXPECT_EQ(desk.attempts(), 2U);
  }
}

// ---- barriers ----

TEST(Member, a_barrier_is_said_again_after_a_lost_connection_and_done_once) {
  RunningDesk desk;
  EXPECT_EQ(desk.member().barrier(desk.now(), desk.out()), 0U);
  desk.down();
  desk.pass(50 * kMillisecond);
  desk.connect();
  ASSERT_EQ(desk.sent(Kind::kBarrier).size(), 2U);
  desk.say(Kind::kBarrierDone, wire::encode(wire::Barrier{0}));
  desk.say(Kind::kBarrierDone, wire::encode(wire::Barrier{0}));
  ASSERT_EQ(desk.happened<MemberOutput::BarrierDone>().size(), 1U);
  EXPECT_EQ(desk.happened<MemberOutput::BarrierDone>()[0].barrier, 0U);
}

TEST(Member, a_barrier_that_can_never_end_says_who_left) {
  RunningDesk desk;
  desk.member().barrier(desk.now(), desk.out());
  wire::Header header;
  header.kind = Kind::kBarrierDone;
  header.epoch = Epoch(1);
  header.flags = wire::kNeverDone;
  header.worker = WorkerRank(0);
  desk.member().on_message(header, wire::encode(wire::Barrier{0}), desk.now(), desk.out());
  ASSERT_EQ(desk.happened<MemberOutput::BarrierDone>().size(), 1U);
  EXPECT_TRUE(desk.happened<MemberOutput::BarrierDone>()[0].why.is(Code::kDisconnected));
  EXPECT_THAT(desk.happened<MemberOutput::BarrierDone>()[0].why.message(),
              HasSubstr("worker 0 has left"));
  const Cause& cause = desk.happened<MemberOutput::BarrierDone>()[0].why.cause();
  EXPECT_EQ(cause.kind, CauseKind::kLeft);
  EXPECT_EQ(cause.who.rank, 0U);
}

TEST(Member, barriers_asked_for_at_once_are_gone_through_one_after_the_other) {
  RunningDesk desk;
  EXPECT_EQ(desk.member().barrier(desk.now(), desk.out()), 0U);
  EXPECT_EQ(desk.member().barrier(desk.now(), desk.out()), 1U);
  EXPECT_EQ(desk.sent(Kind::kBarrier).size(), 1U);
  desk.say(Kind::kBarrierDone, wire::encode(wire::Barrier{0}));
  ASSERT_EQ(desk.sent(Kind::kBarrier).size(), 2U);
  EXPECT_EQ(wire::decode_barrier(desk.sent(Kind::kBarrier)[1].payload).value().number, 1U);
  desk.say(Kind::kBarrierDone, wire::encode(wire::Barrier{1}));
  EXPECT_EQ(desk.happened<MemberOutput::BarrierDone>().size(), 2U);
}

TEST(Member, a_barrier_asked_for_before_the_roster_is_said_when_it_comes) {
  Desk desk;
  desk.connect();
  desk.member().barrier(desk.now(), desk.out());
  EXPECT_TRUE(desk.sent(Kind::kBarrier).empty());
  desk.say_roster();
  EXPECT_EQ(desk.sent(Kind::kBarrier).size(), 1U);
}

// ---- leaving ----

TEST(Member, leaves_when_the_scheduler_answers) {
  RunningDesk desk;
  desk.member().leave(false, desk.now(), desk.out());
  ASSERT_EQ(desk.sent(Kind::kLeave).size(), 1U);
  EXPECT_FALSE(wire::decode_leave(desk.sent(Kind::kLeave)[0].payload).value().final);
  EXPECT_FALSE(desk.member().done());
  desk.say(Kind::kLeave, wire::encode(wire::Leave{false}), Epoch(1), WorkerRank(1));
  EXPECT_EQ(desk.happened<MemberOutput::Left>().size(), 1U);
  EXPECT_TRUE(desk.member().done());
}

TEST(Member,
     says_leave_again_after_a_lost_connection_and_is_gone_after_the_failure_timeout_anyway) {
  RunningDesk desk;
  desk.member().leave(true, desk.now(), desk.out());
  desk.down();
  desk.pass(50 * kMillisecond);
  desk.connect();
  EXPECT_EQ(desk.sent(Kind::kLeave).size(), 2U);
  desk.down();
  desk.refuse_ = true;
  desk.pass(2950 * kMillisecond);
  EXPECT_EQ(desk.happened<MemberOutput::Left>().size(), 1U);
  EXPECT_TRUE(desk.happened<MemberOutput::Failed>().empty());
}

TEST(Member, leaving_before_the_scheduler_was_reached_needs_no_answer) {
  Desk desk;
  desk.refuse_ = true;
  desk.tick();
  desk.member().leave(true, desk.now(), desk.out());
  EXPECT_EQ(desk.happened<MemberOutput::Left>().size(), 1U);
}

TEST(Member, a_failure_of_the_job_while_leaving_is_no_longer_this_members_business) {
  RunningDesk desk;
  desk.member().leave(true, desk.now(), desk.out());
  desk.say(Kind::kFail, wire::encode(wire::Text{"x", 4}));
  EXPECT_EQ(desk.happened<MemberOutput::Left>().size(), 1U);
  EXPECT_TRUE(desk.happened<MemberOutput::Failed>().empty());
}

TEST(Member, hears_once_of_each_worker_that_left) {
  RunningDesk desk;
  for (int i = 0; i < 2; ++i) {
    desk.say(Kind::kLeave, wire::encode(wire::Leave{true}), Epoch(1), WorkerRank(0));
  }
  ASSERT_EQ(desk.happened<MemberOutput::WorkerLeft>().size(), 1U);
  EXPECT_EQ(desk.happened<MemberOutput::WorkerLeft>()[0].worker, WorkerRank(0));
  EXPECT_TRUE(desk.happened<MemberOutput::WorkerLeft>()[0].final);
}

TEST(Member, hears_of_several_that_left_in_one_message_of_each_once) {
  RunningDesk desk;
  const auto left = [&](std::vector<std::uint32_t> ranks, bool final) {
    desk.say(Kind::kLeave, wire::encode(wire::Leave{final, Members(ranks)}));
  };
  left({0, 5}, true);
  left({0, 3, 5, 9}, false);
  std::vector<std::pair<std::uint32_t, bool>> heard;
  for (const MemberOutput::WorkerLeft& gone : desk.happened<MemberOutput::WorkerLeft>()) {
    heard.emplace_back(gone.worker.value, gone.final);
  }
  EXPECT_EQ(heard, (std::vector<std::pair<std::uint32_t, bool>>{
                       {0, true}, {5, true}, {3, false}, {9, false}}));
}

// ---- the failure timeout ----

TEST(
    Member,
    beats_and_waits_as_the_schedulers_failure_timeout_wants_it_and_says_that_its_own_does_not_count) {
  Config config = small_job();
  config.timeout.failure_ns = 30 * kSecond;
  Desk desk(worker_join(1, "beta:11"), config);
  desk.tick();
  Hello scheduler = scheduler_hello();
  scheduler.failure_ms = 3000;
  desk.member().on_up(scheduler, desk.now(), desk.out());
  ASSERT_EQ(desk.happened<MemberOutput::Notice>().size(), 1U);
  EXPECT_THAT(
      desk.happened<MemberOutput::Notice>()[0].text,
      AllOf(HasSubstr("BYTEPS_FAILURE_TIMEOUT_MS is 30000 here, but 3000 at the scheduler at"),
            HasSubstr("counts for the whole job")));
  desk.say_roster();
  desk.forget();
  desk.pass(3 * kSecond, true);
  EXPECT_GE(desk.sent(Kind::kHeartbeat).size(), 5U) << "every sixth of 3 s";
  EXPECT_EQ(desk.member().timeout().failure_ns, 3 * kSecond);
  desk.pass(4 * kSecond);
  EXPECT_TRUE(desk.member().done()) << "the scheduler has said nothing for 3.5 s";
}

TEST(Member, says_that_its_word_about_losses_does_not_count_where_the_schedulers_is_another) {
  Config config = small_job();
  config.continues = true;
  Desk desk(worker_join(1, "beta:11"), config);
  desk.tick();
  desk.member().on_up(scheduler_hello(), desk.now(), desk.out());
  desk.say_roster();
  ASSERT_EQ(desk.happened<MemberOutput::Notice>().size(), 1U);
  EXPECT_THAT(desk.happened<MemberOutput::Notice>()[0].text,
              AllOf(HasSubstr("BYTEPS_ON_WORKER_LOSS is continue here, but fail at the scheduler"),
                    HasSubstr("counts for the whole job")));
}

TEST(Member, does_not_take_over_a_failure_timeout_that_cannot_be_set) {
  Desk desk;
  desk.tick();
  Hello scheduler = scheduler_hello();
  scheduler.failure_ms = 1;
  desk.member().on_up(scheduler, desk.now(), desk.out());
  EXPECT_FALSE(desk.member().peer().has_value());
  EXPECT_EQ(desk.member().timeout().failure_ns, TimeoutConfig().failure_ns);
}

TEST(Member, a_servers_job_is_over_when_the_scheduler_says_leave) {
  RunningDesk desk(server_join("gamma:12", 4000));
  desk.say(Kind::kLeave, wire::encode(wire::Leave{true}));
  EXPECT_EQ(desk.happened<MemberOutput::Left>().size(), 1U);
  EXPECT_TRUE(desk.member().done());
}

// ---- servers that leave, or are asked to take another one's place

TEST(Member, a_server_that_hands_over_goes_on_until_it_hears_that_another_has_its_place) {
  RunningDesk desk(server_join("gamma:12", 4000));
  desk.forget();
  desk.member().leave(true, desk.now(), desk.out());
  desk.member().leave(true, desk.now(), desk.out());
  EXPECT_EQ(desk.sent(Kind::kLeave).size(), 1U);
  desk.say(Kind::kWaiting, wire::encode(wire::Text{"delta:13 is asked"}));
  desk.pass(300 * kSecond, true);
  EXPECT_FALSE(desk.member().done());
  desk.say(Kind::kFail, wire::encode(wire::Text{"server 0 (delta:13) has its place",
                                                static_cast<std::uint32_t>(Code::kDisconnected),
                                                {.kind = CauseKind::kReplaced}}));
  ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
  EXPECT_TRUE(desk.happened<MemberOutput::Failed>()[0].why.is_because_of(CauseKind::kReplaced));
}

TEST(Member, that_it_hands_over_is_said_again_on_a_new_connection) {
  RunningDesk desk(server_join("gamma:12", 4000));
  desk.member().leave(true, desk.now(), desk.out());
  desk.down();
  desk.forget();
  desk.pass(100 * kMillisecond);
  desk.member().on_up(scheduler_hello(), desk.now(), desk.out());
  EXPECT_EQ(desk.sent(Kind::kLeave).size(), 1U);
}

TEST(Member, a_server_whose_scheduler_does_not_answer_that_it_leaves_ends_with_the_reason) {
  RunningDesk desk(server_join("gamma:12", 4000));
  desk.member().leave(true, desk.now(), desk.out());
  desk.pass(61 * kSecond, true);
  ASSERT_EQ(desk.happened<MemberOutput::Failed>().size(), 1U);
  EXPECT_THAT(
      desk.happened<MemberOutput::Failed>()[0].why.message(),
      AllOf(HasSubstr("has not answered for 60 s"), HasSubstr("BYTEPS_RECOVERY_TIMEOUT_S")));
}

TEST(Member, a_server_without_a_place_just_leaves_and_one_that_gets_it_then_hands_over) {
  for (const bool gets_a_place : {false, true}) {
    Desk desk(server_join("gamma:12", 4000));
    desk.connect();
    desk.member().leave(true, desk.now(), desk.out());
    EXPECT_EQ(desk.sent(Kind::kLeave).size(), 1U);
    if (gets_a_place) {
      desk.say_roster(1, 0);
      EXPECT_EQ(desk.happened<MemberOutput::Began>().size(), 1U);
      desk.pass(10 * kSecond, true);
      EXPECT_FALSE(desk.member().done());
    }
    desk.say(Kind::kLeave, wire::encode(wire::Leave{true}));
    EXPECT_EQ(desk.happened<MemberOutput::Left>().size(), 1U);
  }
}

TEST(Member, a_spare_server_waits_for_as_long_as_the_scheduler_lives) {
  Desk desk(server_join("gamma:12", 4000));
  desk.connect();
  desk.pass(5000 * kSecond, true);
  EXPECT_FALSE(desk.member().done());
}

TEST(Member, a_server_tells_its_owner_of_a_place_to_take_and_closes_at_an_impossible_one) {
  RunningDesk desk(server_join("gamma:12", 4000));
  desk.say(Kind::kAdopt, wire::encode(wire::Adopt{.rank = 1, .shards = 2}));
  ASSERT_EQ(desk.happened<MemberOutput::Adopt>().size(), 1U);
  EXPECT_EQ(desk.happened<MemberOutput::Adopt>()[0].adopt, (wire::Adopt{.rank = 1, .shards = 2}));
  for (const wire::Adopt& bad :
       {wire::Adopt{.rank = 1, .shards = 0}, wire::Adopt{.rank = 1, .shards = 257},
        wire::Adopt{.rank = 1024, .shards = 1}}) {
    RunningDesk other(server_join("gamma:12", 4000));
    other.say(Kind::kAdopt, wire::encode(bad));
    EXPECT_TRUE(other.happened<MemberOutput::Adopt>().empty());
    EXPECT_FALSE(other.member().peer().has_value());
  }
  RunningDesk worker;
  worker.say(Kind::kAdopt, wire::encode(wire::Adopt{}));
  EXPECT_TRUE(worker.happened<MemberOutput::Adopt>().empty());
  EXPECT_FALSE(worker.member().peer().has_value());
}

}  // namespace
}  // namespace byteps
