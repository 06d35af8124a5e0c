// Scheduler and MemberPort together, over connections that break.
//
// Goal: whatever is lost with a connection, all members of an epoch get the same roster, epochs only grow, each
// barrier ends exactly once for each member and not before all have arrived, everything ends well once the faults
// stop, and every lent payload comes back.
// Method: the real shells over a Switchboard, under a seed: random starts, delays, broken connections and pauses,
// several generations of workers with other counts.
#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "member/member_port.h"
#include "scheduler/scheduler.h"
#include "tests/net/switchboard.h"
#include "tests/scheduler/table.h"

namespace byteps {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

struct Generation {
  std::uint32_t worker_count = 2;
  std::uint32_t server_count = 1;
  std::uint64_t barrier_count = 2;
  std::uint32_t turn = 0;     // worker process n has rank (n + turn) mod worker_count
  std::uint32_t running = 0;  // workers that have not left
  std::uint32_t begun = 0;
  std::map<std::uint64_t, std::uint32_t> arrived;  // barrier -> workers
  std::optional<std::vector<wire::RosterMember>> members;
  Epoch epoch;
};

std::vector<Generation> one_generation(std::uint32_t workers, std::uint32_t servers) {
  Generation generation;
  generation.worker_count = workers;
  generation.server_count = servers;
  return {generation};
}

Hello hello_of(Role role) {
  Hello hello;
  hello.role = role;
  return hello;
}

class World;

// One process: a server for the whole job, or a worker that lives through the generations its number is part of, in
// each under another rank.
class Process {
 public:
  Process(World& world, Role role, std::uint32_t number, TimeNs start_ns);
  void turn(TimeNs now);
  TimeNs next_deadline(TimeNs now) const;
  bool ended() const { return ended_; }
  const Status& outcome() const { return outcome_; }
  std::size_t lent() const { return transport_.lent_count(); }
  const std::string& host() const { return host_; }
  bool running() const { return generation_running_; }
  bool server() const { return role_ == Role::kServer; }

 private:
  void begin(std::size_t generation, TimeNs now);
  void handle(const MemberEvents::value_type& event, TimeNs now);
  void on_roster(const wire::Roster& roster, TimeNs now);
  void go_on(TimeNs now);
  Generation& generation();
  void next_generation(TimeNs now);

  World& world_;
  const Role role_;
  const std::uint32_t number_;
  std::uint32_t rank_ = 0;  // workers: in this generation
  const std::string host_;
  SwitchTransport transport_;
  std::unique_ptr<MemberPort> port_;
  TimeNs wake_ns_;
  std::size_t generation_ = 0;
  bool generation_running_ = false;
  std::uint64_t barriers_done_ = 0;
  std::optional<Epoch> to_apply_;  // servers: a roster that the "shards" still work on
  TimeNs apply_ns_ = kNever;
  Epoch newest_;
  bool left_ = false;
  bool ended_ = false;
  Status outcome_;
};

class World {
 public:
  World(std::uint64_t seed, std::vector<Generation> generations, std::uint32_t servers,
        bool endless = false)
      : prng_(seed), board_(prng_.next()), generations_(std::move(generations)), endless_(endless) {
    config_ = small_job();
    config_.job.worker_count = 1;
    config_.job.server_count = 1;
    std::uint32_t workers = 0;
    for (Generation& generation : generations_) {
      generation.running = generation.worker_count;
      workers = std::max(workers, generation.worker_count);
    }
    for (std::uint32_t i = 0; i < servers; ++i) add(Role::kServer, i);
    for (std::uint32_t i = 0; i < workers; ++i) add(Role::kWorker, i);
    scheduler_start_ns_ = random_start();
  }

  void add(Role role, std::uint32_t number) {
    processes_.push_back(std::make_unique<Process>(*this, role, number, random_start()));
  }
  TimeNs random_start() { return static_cast<TimeNs>(prng_.below(2 * kSecond)); }

  // Runs until everyone has ended or `until`. Until `faults_until` a connection breaks every 100 ms or so, and now
  // and then a process does nothing for a while.
  void run(TimeNs until, TimeNs faults_until) {
    while (now_ < until && !all_ended()) {
      board_.advance(now_);
      if (now_ < faults_until && now_ >= next_drop_ns_) {
        board_.drop_one();
        next_drop_ns_ = now_ + static_cast<TimeNs>(prng_.below(200 * kMillisecond));
      }
      if (now_ < faults_until && now_ >= paused_until_ns_ + 200 * kMillisecond) {
        paused_ = prng_.below(processes_.size());
        paused_until_ns_ = now_ + static_cast<TimeNs>(prng_.below(kSecond));
      }
      turn_scheduler();
      const std::size_t first = prng_.below(std::max<std::size_t>(1, processes_.size()));
      for (std::size_t i = 0; i < processes_.size(); ++i) {
        const std::size_t who = (first + i) % processes_.size();
        if (processes_[who] == nullptr || (who == paused_ && now_ < paused_until_ns_)) continue;
        processes_[who]->turn(now_);
      }
      TimeNs next =
          board_.next_ns();  // at most 20 ms: what waits for others is looked at again then
      if (scheduler_ && !scheduler_->finished()) {
        next = std::min(next, scheduler_->next_deadline());
      }
      for (std::size_t i = 0; i < processes_.size(); ++i) {
        const bool pausing = i == paused_ && now_ < paused_until_ns_;
        if (processes_[i] && !pausing) next = std::min(next, processes_[i]->next_deadline(now_));
      }
      now_ = std::clamp(next, now_ + 100 * kMicrosecond, now_ + 20 * kMillisecond);
    }
  }
  void turn_scheduler() {
    if (scheduler_killed_ || now_ < scheduler_start_ns_) return;
    if (!scheduler_) {
      scheduler_transport_ = std::make_unique<SwitchTransport>(board_, hello_of(Role::kScheduler));
      scheduler_transport_->listen({"10.0.0.9", 9000});
      scheduler_ = std::make_unique<Scheduler>(config_, *scheduler_transport_,
                                               Log("scheduler", LogLevel::kSilent, nullptr));
    }
    if (!scheduler_->finished()) scheduler_->turn(now_);
  }
  // A spare server that comes when the job is over looks for the next one; nobody waits for that.
  bool all_ended() const {
    if (!scheduler_killed_ && !(scheduler_ && scheduler_->finished())) return false;
    return std::all_of(processes_.begin(), processes_.end(), [&](const auto& process) {
      const bool late = !scheduler_killed_ && scheduler_->outcome().is_ok() && process &&
                        process->server() && !process->running();
      return !process || late || process->ended();
    });
  }
  bool all_running() const {
    return std::all_of(processes_.begin(), processes_.end(),
                       [](const auto& process) { return process->running(); });
  }
  void kill(std::size_t process) { processes_[process].reset(); }
  void stop_scheduler() { scheduler_->request_stop(); }
  void kill_scheduler() {
    scheduler_killed_ = true;
    scheduler_.reset();
    scheduler_transport_.reset();
  }

  // Everyone in an epoch has the same roster, and epochs follow generations.
  void check_roster(std::size_t generation, const wire::Roster& roster) {
    Generation& expected = generations_.at(generation);
    if (!expected.members) {
      expected.members = roster.members;
      expected.epoch = roster.epoch;
      ASSERT_EQ(roster.members.size(), expected.worker_count + expected.server_count);
      if (generation > 0) {
        ASSERT_GT(roster.epoch, generations_[generation - 1].epoch);
      }
    }
    EXPECT_EQ(roster.members, *expected.members);
    EXPECT_EQ(roster.epoch, expected.epoch);
  }

  Prng& prng() { return prng_; }
  Switchboard& board() { return board_; }
  TimeNs now() const { return now_; }
  const Config& config() const { return config_; }
  std::vector<Generation>& generations() { return generations_; }
  bool endless() const { return endless_; }
  const Scheduler& scheduler() const { return *scheduler_; }
  std::size_t scheduler_lent() const { return scheduler_transport_->lent_count(); }
  std::vector<std::unique_ptr<Process>>& processes() { return processes_; }

 private:
  Prng prng_;
  Switchboard board_;
  std::vector<Generation> generations_;
  const bool endless_;  // workers do not leave
  Config config_;
  TimeNs now_ = 0;
  TimeNs next_drop_ns_ = 0;
  std::size_t paused_ = 0;
  TimeNs paused_until_ns_ = 0;
  std::vector<std::unique_ptr<Process>> processes_;
  TimeNs scheduler_start_ns_ = 0;
  std::unique_ptr<SwitchTransport> scheduler_transport_;
  std::unique_ptr<Scheduler> scheduler_;
  bool scheduler_killed_ = false;
};

Process::Process(World& world, Role role, std::uint32_t number, TimeNs start_ns)
    : world_(world),
      role_(role),
      number_(number),
      host_((role == Role::kWorker ? "w" : "s") + std::to_string(number) + ":1"),
      transport_(world.board(), hello_of(role)),
      wake_ns_(start_ns) {
  while (role_ == Role::kWorker && world.generations()[generation_].worker_count <= number_) {
    ++generation_;
  }
}

void Process::begin(std::size_t generation, TimeNs now) {
  const Generation& wanted = world_.generations()[generation];
  port_.reset();
  left_ = false;
  barriers_done_ = 0;
  rank_ = (number_ + wanted.turn) % wanted.worker_count;
  wire::Join join = role_ == Role::kServer
                        ? server_join(host_, static_cast<std::uint16_t>(4000 + number_))
                        : worker_join(rank_, host_, wanted.worker_count, wanted.server_count);
  join.life = 1 + number_ + 100 * (generation + 1);
  port_ = std::make_unique<MemberPort>(std::move(join), world_.config(), transport_);
  port_->tick(now);
}

void Process::turn(TimeNs now) {
  if (ended_ || now < wake_ns_) return;
  // A rank that an earlier generation lacks comes when that generation is over; otherwise sizes would disagree.
  if (!port_) {
    if (role_ == Role::kWorker && generation_ > 0 &&
        world_.generations()[generation_ - 1].running > 0) {
      return;
    }
    begin(generation_, now);
  }
  std::array<Event, 8> events;
  while (const std::size_t count = transport_.poll(now, events)) {
    for (std::size_t i = 0; i < count; ++i) EXPECT_TRUE(port_->handle(events[i], now));
  }
  if (now >= apply_ns_) {
    port_->applied(*to_apply_, now);
    apply_ns_ = kNever;
  }
  port_->tick(now);
  for (const auto& event : port_->take_events()) handle(event, now);
  port_->tick(now);
  for (const auto& event : port_->take_events()) handle(event, now);
  if (left_ && port_->closed()) next_generation(now);
}

void Process::handle(const MemberEvents::value_type& event, TimeNs now) {
  EXPECT_FALSE(left_) << "nothing may follow the end";
  std::visit(
      Overloads{[&](const MemberOutput::Notice& notice) { EXPECT_FALSE(notice.text.empty()); },
                [&](const MemberOutput::WorkerLeft& gone) { EXPECT_NE(gone.worker.value, rank_); },
                [&](const MemberOutput::Began& epoch) { on_roster(epoch.roster, now); },
                [](const MemberOutput::Amended&) {},
                [](const MemberOutput::Adopt&) {},
                [&](const MemberOutput::BarrierDone& ended) {
                  Generation& generation = this->generation();
                  EXPECT_EQ(ended.barrier, barriers_done_);
                  EXPECT_EQ(generation.arrived[ended.barrier], generation.worker_count)
                      << "barrier " << ended.barrier << " ended before all had arrived";
                  ++barriers_done_;
                  go_on(now);
                },
                [&](const MemberOutput::Left&) { left_ = true; },
                [&](const MemberOutput::Failed& failed) {
                  left_ = true;
                  outcome_ = failed.why;
                }},
      event);
}

Generation& Process::generation() {
  return world_.generations()[std::min(generation_, world_.generations().size() - 1)];
}

void Process::on_roster(const wire::Roster& roster, TimeNs now) {
  EXPECT_GT(roster.epoch, newest_);
  newest_ = roster.epoch;
  generation_running_ = true;
  if (role_ == Role::kServer) {
    to_apply_ = roster.epoch;
    apply_ns_ = now + static_cast<TimeNs>(world_.prng().below(20 * kMillisecond));
    return world_.check_roster(newest_.value - 1, roster);
  }
  world_.check_roster(generation_, roster);
  go_on(now);
}

// To the next barrier, or out.
void Process::go_on(TimeNs now) {
  if (barriers_done_ < generation().barrier_count || world_.endless()) {
    EXPECT_EQ(port_->barrier(now), barriers_done_);
    ++generation().arrived[barriers_done_];
  } else {
    port_->leave(generation_ + 1 == world_.generations().size(), now);
  }
}

void Process::next_generation(TimeNs now) {
  generation_running_ = false;
  if (role_ == Role::kWorker) {
    --world_.generations()[generation_].running;
    while (outcome_.is_ok() && ++generation_ < world_.generations().size()) {
      if (world_.generations()[generation_].worker_count <= number_) continue;
      port_.reset();
      // Often at once, so that it is back long before the others have left.
      wake_ns_ = now;
      if (world_.prng().chance(0.5)) wake_ns_ += static_cast<TimeNs>(world_.prng().below(kSecond));
      return;
    }
  }
  ended_ = true;
}

TimeNs Process::next_deadline(TimeNs now) const {
  if (ended_) return kNever;
  if (!port_) return wake_ns_ > now ? wake_ns_ : kNever;
  return std::min(port_->next_deadline(), apply_ns_);
}

std::vector<Generation> random_generations(Prng& prng, std::uint32_t server_count) {
  std::vector<Generation> generations(1 + prng.below(3));
  for (Generation& generation : generations) {
    generation.worker_count = static_cast<std::uint32_t>(1 + prng.below(4));
    generation.server_count = static_cast<std::uint32_t>(1 + prng.below(server_count));
    generation.barrier_count = prng.below(4);
    generation.turn = static_cast<std::uint32_t>(prng.below(4));
  }
  return generations;
}

// ---- the tests ----

TEST(SchedulerAndMembers, end_well_in_whatever_order_they_start_and_whichever_connections_break) {
  constexpr std::uint64_t kSeeds = 400;
  std::uint64_t first = 1;
  if (const char* seed = std::getenv("BYTEPS_TEST_SEED")) first = std::strtoull(seed, nullptr, 10);
  for (std::uint64_t seed = first; seed < first + kSeeds; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    const auto servers = static_cast<std::uint32_t>(1 + prng.below(3));
    World world(prng.next(), random_generations(prng, servers), servers);
    world.run(60 * kSecond, 8 * kSecond);
    ASSERT_TRUE(world.all_ended());
    EXPECT_TRUE(world.scheduler().outcome().is_ok()) << world.scheduler().outcome().text();
    EXPECT_EQ(world.scheduler().epoch(),
              Epoch(static_cast<std::uint32_t>(world.generations().size())));
    EXPECT_EQ(world.scheduler_lent(), 0U);
    for (const auto& process : world.processes()) {
      EXPECT_TRUE(process->outcome().is_ok())
          << process->host() << ": " << process->outcome().text();
      EXPECT_TRUE(process->lent() == 0 || !process->ended()) << process->host();
    }
    for (const Generation& generation : world.generations()) {
      EXPECT_EQ(generation.running, 0U);
      EXPECT_TRUE(generation.members.has_value());
    }
    if (HasFailure()) break;
  }
}

TEST(SchedulerAndMembers, every_survivor_learns_who_is_gone) {
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Prng prng(seed);
    World world(prng.next(), one_generation(3, 2), 2, true);
    while (!world.all_running()) world.run(world.now() + 100 * kMillisecond, 4 * kSecond);
    world.run(world.now() + static_cast<TimeNs>(prng.below(kSecond)), 4 * kSecond);
    const std::size_t victim = prng.below(world.processes().size());
    const std::string host = world.processes()[victim]->host();
    world.kill(victim);
    const TimeNs killed_ns = world.now();
    world.run(killed_ns + 30 * kSecond, 0);
    ASSERT_TRUE(world.all_ended());
    EXPECT_LE(world.now() - killed_ns, 2 * world.config().timeout.failure_ns + 100 * kMillisecond);
    EXPECT_TRUE(world.scheduler().outcome().is(Code::kDisconnected));
    for (const auto& process : world.processes()) {
      if (!process) continue;
      EXPECT_TRUE(process->outcome().is(Code::kDisconnected));
      EXPECT_THAT(process->outcome().message(), HasSubstr(host));
    }
    if (HasFailure()) break;
  }
}

TEST(SchedulerAndMembers, members_end_within_the_failure_timeout_when_the_scheduler_is_gone) {
  World world(7, one_generation(3, 2), 2, true);
  while (!world.all_running()) world.run(world.now() + 100 * kMillisecond, 0);
  world.kill_scheduler();
  const TimeNs killed_ns = world.now();
  world.run(killed_ns + 30 * kSecond, 0);
  ASSERT_TRUE(world.all_ended());
  EXPECT_LE(world.now() - killed_ns, world.config().timeout.silence_ns() + 100 * kMillisecond);
  for (const auto& process : world.processes()) {
    EXPECT_TRUE(process->outcome().is(Code::kDisconnected));
    EXPECT_THAT(process->outcome().message(),
                AllOf(HasSubstr("scheduler at 10.0.0.9:9000"), HasSubstr("connection refused")));
  }
}

TEST(SchedulerAndMembers, a_stopped_scheduler_tells_everyone_at_once) {
  World world(8, one_generation(2, 1), 1, true);
  while (!world.all_running()) world.run(world.now() + 100 * kMillisecond, 0);
  world.stop_scheduler();
  const TimeNs stopped_ns = world.now();
  world.run(stopped_ns + 30 * kSecond, 0);
  ASSERT_TRUE(world.all_ended());
  EXPECT_LE(world.now() - stopped_ns, 500 * kMillisecond);
  for (const auto& process : world.processes()) {
    EXPECT_TRUE(process->outcome().is(Code::kCancelled));
    EXPECT_THAT(process->outcome().message(), HasSubstr("scheduler was told to stop"));
  }
}

// ---- a large job ----

TEST(Scheduler, sends_the_roster_of_a_large_job_over_many_turns) {
  constexpr std::uint32_t kWorkers = 300;
  constexpr std::uint32_t kServers = 60;
  Switchboard board(1);
  SwitchTransport listening(board, hello_of(Role::kScheduler));
  listening.listen({"10.0.0.9", 9000});
  Scheduler scheduler(small_job(kWorkers, kServers), listening,
                      Log("scheduler", LogLevel::kSilent, [](std::string_view) {}));
  SwitchTransport crowd(board, {});
  std::map<PeerId, wire::Join> joins;
  for (std::uint32_t i = 0; i < kWorkers + kServers; ++i) {
    wire::Join join = worker_join(i, "worker" + std::to_string(i) + ".of.a.large.cluster:4711",
                                  kWorkers, kServers);
    if (i >= kWorkers) {
      join =
          server_join("server" + std::to_string(i) + ".of.a.large.cluster:4711", 1, i - kWorkers);
      const Endpoint place{"server" + std::to_string(i) + ".of.a.large.cluster", 9000};
      join.endpoints.assign(8, place);
      for (std::uint16_t shard = 0; shard < 8; ++shard)
        join.endpoints[shard].port = static_cast<std::uint16_t>(9000 + shard);
    }
    Hello hello = hello_of(join.role);
    hello.rank = join.wanted_rank;
    joins.emplace(crowd.connect({"10.0.0.9", 9000}, hello).value(), join);
  }
  std::deque<std::vector<std::byte>> lent;
  const auto say = [&](PeerId peer, wire::Kind kind, std::uint32_t epoch,
                       std::vector<std::byte> payload) {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(epoch);
    lent.push_back(std::move(payload));
    const wire::HeaderBytes bytes = wire::encode(header);
    const Outgoing message{.header = bytes, .payload = lent.back()};
    ASSERT_TRUE(crowd.send(peer, message).is_ok());
  };
  std::map<PeerId, std::size_t> roster_bytes;
  std::size_t most_bytes = 0;
  std::size_t turns_that_sent = 0;
  std::array<Event, 64> events;
  for (TimeNs now = 0; now < 20 * kSecond && roster_bytes.size() < joins.size();
       now += 2 * kMillisecond) {
    board.advance(now);
    scheduler.turn(now);
    std::size_t sent_bytes = 0;
    for (const auto& message : listening.sent) sent_bytes += message.payload.size();
    most_bytes = std::max(most_bytes, sent_bytes);
    turns_that_sent += sent_bytes > 100'000 ? 1 : 0;
    for (std::size_t i = 0, n = crowd.poll(now, events); i < n; ++i) {
      const PeerId peer = events[i].peer;
      if (events[i].kind == Event::Kind::kUp)
        say(peer, wire::Kind::kJoin, 0, wire::encode(joins.at(peer)));
      if (events[i].kind != Event::Kind::kReceived) continue;
      const wire::Header header = wire::decode_header(events[i].header).value();
      if (header.kind != wire::Kind::kRoster) continue;
      roster_bytes[peer] = events[i].payload.size();
      const wire::Join& join = joins.at(peer);
      EXPECT_EQ(header.worker.value, join.wanted_rank);
      if (join.role == Role::kServer) say(peer, wire::Kind::kHeartbeat, 1, {});
    }
  }
  ASSERT_EQ(roster_bytes.size(), joins.size());
  const std::size_t each = roster_bytes.begin()->second;
  EXPECT_GT(each * joins.size(), std::size_t{8} << 20)
      << "all together are more than one turn may send";
  EXPECT_LE(most_bytes, (std::size_t{4} << 20) + each);
  EXPECT_GT(turns_that_sent, 1U);
}

// ---- Outbox ----

TEST(Outbox, keeps_the_order_when_the_window_is_full_and_gets_every_payload_back) {
  Switchboard board(1);
  SwitchTransport here(board, {});
  SwitchTransport there(board, {});
  there.listen({"there", 1});
  Outbox outbox(here);
  const PeerId peer = here.connect({"there", 1}, {}).value();
  std::vector<std::uint64_t> received;
  std::array<Event, 16> events;
  bool sent = false;
  for (TimeNs now = 0; now < kSecond; now += kMillisecond) {
    board.advance(now);
    for (std::size_t i = 0, n = here.poll(now, events); i < n; ++i) {
      if (events[i].kind == Event::Kind::kUp && !sent) {
        sent = true;
        for (std::uint64_t number = 0; number < 50; ++number) {
          wire::Header header;
          header.kind = wire::Kind::kBarrier;
          ASSERT_TRUE(outbox.send(peer, header, wire::encode(wire::Barrier{number})).is_ok());
        }
      }
      if (events[i].kind == Event::Kind::kSent) outbox.on_sent(peer, events[i].token);
    }
    for (std::size_t i = 0, n = there.poll(now, events); i < n; ++i) {
      if (events[i].kind != Event::Kind::kReceived) continue;
      received.push_back(wire::decode_barrier(events[i].payload).value().number);
    }
  }
  ASSERT_EQ(received.size(), 50U);
  EXPECT_TRUE(std::is_sorted(received.begin(), received.end()));
  EXPECT_TRUE(outbox.empty());
}

TEST(Outbox, says_again_to_a_peer_that_does_not_read_and_forgets_its_messages_when_it_goes) {
  Switchboard board(1);
  SwitchTransport here(board, {});
  SwitchTransport there(board, {});
  there.listen({"there", 1});
  Outbox outbox(here);
  const PeerId peer = here.connect({"there", 1}, {}).value();
  std::array<Event, 16> events;
  board.advance(kSecond);
  ASSERT_EQ(here.poll(kSecond, events), 1U);
  Status last;
  for (std::size_t i = 0; i < kControlWaitingMax + SwitchTransport::kWindow; ++i) {
    ASSERT_TRUE(outbox.send(peer, {}, {}).is_ok());
  }
  EXPECT_TRUE(outbox.send(peer, {}, {}).is(Code::kAgain));
  here.close(peer, {Code::kAgain, "does not read"});
  for (TimeNs now = kSecond; now < 2 * kSecond; now += kMillisecond) {
    board.advance(now);
    for (std::size_t i = 0, n = here.poll(now, events); i < n; ++i) {
      if (events[i].kind == Event::Kind::kSent) outbox.on_sent(peer, events[i].token);
      if (events[i].kind == Event::Kind::kDown) outbox.on_down(peer);
    }
  }
  EXPECT_TRUE(outbox.empty());
  EXPECT_TRUE(outbox.send(peer, {}, {}).is(Code::kDisconnected));
}

}  // namespace
}  // namespace byteps
