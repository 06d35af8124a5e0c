// The scheduler, and anyone who can connect to it, saying anything in any order while time passes.
//
// The input is a script (fuzz/script.h). Beside the sanitizers: each turn comes to rest and says less than a
// fixed number of messages per event; what is sent can be read, and a roster is one that members accept; epochs
// never go back; the scheduler always knows when it wants to be called next; when it is stopped, and everyone
// takes what it sends or goes, it has finished within its failure timeout, and nothing is lent.
#include <map>
#include <string>

#include "base/check.h"
#include "scheduler/scheduler.h"
#include "tests/fuzz/black_box.h"
#include "tests/fuzz/messages.h"
#include "tests/net/scripted_transport.h"

namespace byteps::fuzz {
namespace {

class SchedulerTarget {
 public:
  SchedulerTarget(Script script, bool recovers)
      : script_(script),
        config_(config(recovers)),
        scheduler_(config_, transport_, black_box_.log()) {}

  void run() {
    turn();
    for (int step = 0; step < 400 && !script_.done() && !scheduler_.finished(); ++step) act();
    stop();
  }

 private:
  static constexpr std::size_t kPeersMax = 16;

  static Config config(bool recovers) {
    Config config;
    config.recovers = recovers;
    config.job.worker_count = 2;
    config.job.server_count = 1;
    config.job.scheduler_host = "10.0.0.9";
    config.job.scheduler_port = 9000;
    return config;
  }
  void act() {
    switch (script_.below(17)) {
      case 0:
        return arrive(static_cast<Role>(script_.below(3)), script_.number32());
      case 1:
      case 2: {
        const Message message = control_of(script_);
        return say(message);
      }
      case 3: {
        Message message = control_of(script_);
        spoil(script_, message);
        return say(message);
      }
      case 4: {  // a member joins on a connection of its own
        const wire::Join join = join_of(script_);
        arrive(join.role, join.role == Role::kWorker ? join.wanted_rank : kNoRank);
        return say(last_peer_, wire::Kind::kJoin, wire::encode(join), Epoch(0), 0);
      }
      case 5:
        return say_for_each(wire::Kind::kHeartbeat, wire::encode(wire::Heartbeat{.sent_ns = 7}));
      case 6:
        return say_for_each(wire::Kind::kBarrier, wire::encode(wire::Barrier{script_.below(4)}));
      case 7:
        return say_for_each(wire::Kind::kLeave, wire::encode(wire::Leave{script_.flag()}));
      case 8:
        if (PeerId peer; pick(peer)) transport_.end(peer, {Code::kDisconnected, "gone"});
        return;
      case 9:
        transport_.window = 1 + script_.below(8);
        transport_.events_per_poll = 1 + script_.below(8);
        transport_.deliver_after_close = script_.flag();
        return;
      case 10:
        transport_.give_back_all();
        return turn();
      case 11:
        return turn();
      case 12:
        return pass();
      case 14:  // each waits for what another has not begun, or nearly
        for (const auto& [peer, state] : transport_.peers) {
          say(peer, wire::Kind::kStalled, wire::encode(stalled_of(script_)), scheduler_.epoch(),
              rank_of_[peer]);
        }
        return turn();
      case 15:  // members of a job that another scheduler had
        for (std::uint32_t who : {0U, 1U, 6U}) {
          if (script_.below(4) > 0) join_well(who, 1 + script_.below(3), script_.below(2));
        }
        return turn();
      case 16:  // what they are asked for
        for (const auto& [peer, state] : transport_.peers) {
          wire::Roster roster = roster_of(2, 1, 0, Epoch(1));
          if (script_.below(4) == 0) roster = strange_roster_of(script_);
          roster.recovers = true;
          roster.revision = script_.below(2);
          for (wire::RosterMember& member : roster.members) member.host += ":1";
          say(peer, wire::Kind::kRoster, wire::encode(roster), Epoch(1), rank_of_[peer]);
        }
        return turn();
      case 13:  // the whole job comes, as it should
        for (std::uint32_t who : {0U, 1U, 6U}) join_well(who);
        turn();
        if (scheduler_.finished()) return;
        say_for_each(wire::Kind::kHeartbeat, {});
        return turn();
    }
  }

  void arrive(Role role, std::uint32_t rank) {
    if (transport_.peers.size() >= kPeersMax) return;
    Hello hello;
    hello.role = role;
    hello.rank = rank;
    last_peer_ = transport_.arrive(hello);
    rank_of_[last_peer_] = 0;
  }
  // `term`: of the scheduler that it had; 0: none.
  void join_well(std::uint32_t who, std::uint32_t term = 0, std::uint32_t revision = 0) {
    wire::Join join;
    join.role = who < 6 ? Role::kWorker : Role::kServer;
    join.host = (who < 6 ? "w" : "s") + std::to_string(who % 6) + ":1";
    join.wanted_rank = who < 6 ? who : kNoRank;
    join.worker_count = 2;
    join.server_count = 1;
    join.partition_bytes = join.frame_bytes = 4096;
    join.life = ++life_;
    if (join.role == Role::kServer) join.endpoints = {endpoint_of(0)};
    const Epoch epoch(term > 0 ? 1 : 0);
    if (term > 0) {
      join.heard.term = term;
      join.heard.epoch = epoch;
      join.heard.revision = revision;
    }
    arrive(join.role, join.wanted_rank);
    rank_of_[last_peer_] = who % 6;
    say(last_peer_, wire::Kind::kJoin, wire::encode(join), epoch, 0);
  }
  bool pick(PeerId& peer) {
    if (transport_.peers.empty()) return false;
    const std::uint32_t index = script_.below(static_cast<std::uint32_t>(transport_.peers.size()));
    peer = std::next(transport_.peers.begin(), index)->first;
    return true;
  }
  void say(const Message& message) {
    if (PeerId peer; pick(peer)) transport_.say(peer, message.header, message.payload);
  }
  void say(PeerId peer, wire::Kind kind, const std::vector<std::byte>& payload, Epoch epoch,
           std::uint32_t worker) {
    wire::Header header;
    header.kind = kind;
    header.epoch = epoch;
    header.worker = WorkerRank(worker);
    transport_.say(peer, header, payload);
  }
  void say_for_each(wire::Kind kind, const std::vector<std::byte>& payload) {
    const std::uint8_t silent = script_.byte();  // a bit per peer
    std::uint32_t index = 0;
    for (const auto& [peer, state] : transport_.peers) {
      if ((silent >> (index++ % 8) & 1) != 0) continue;
      say(peer, kind, payload, scheduler_.epoch(), rank_of_[peer]);
    }
  }

  // The end of a connection may bring more events, so a turn is many; they must come to an end.
  void turn() {
    if (scheduler_.finished()) return;
    const std::size_t sent_before = transport_.sent_count;
    const std::size_t lines_before = black_box_.line_count();
    std::size_t work = 0;
    int rounds = 0;
    do {
      const std::size_t now_done = scheduler_.turn(now_);
      work += now_done + 1;
      CHECK_LT(++rounds, 2000) << "the scheduler does not come to rest";
      if (now_done == 0 && transport_.quiet() && scheduler_.next_deadline() > now_) break;
    } while (true);
    // Each event can make one message and one line for each member, and what waited for room goes out.
    const std::size_t bound = (work + 4) * 8 * (kPeersMax + 4) + 1024 * kPeersMax;
    CHECK_LE(transport_.sent_count - sent_before, bound);
    CHECK_LE(black_box_.line_count() - lines_before, bound);
    CHECK(scheduler_.next_deadline() != kNever || scheduler_.finished())
        << "nobody will wake the scheduler";
    read_what_was_sent();
    CHECK_LE(epoch_, scheduler_.epoch());
    epoch_ = scheduler_.epoch();
  }

  void read_what_was_sent() {
    for (; !transport_.sent.empty(); transport_.sent.pop_front()) {
      const ScriptedTransport::Sent& sent = transport_.sent.front();
      switch (sent.header.kind) {
        case wire::Kind::kRoster: {
          const auto roster = wire::decode_roster(sent.payload);
          CHECK(roster.is_ok()) << roster.status().text();
          CHECK(roster.value().epoch != Epoch(0) && !roster.value().members.empty());
          CHECK_LT(sent.header.worker.value, roster.value().members.size());
          CHECK_EQ(roster.value().partition_bytes % 64 + roster.value().frame_bytes % 64, 0U);
          CHECK_GT(roster.value().partition_bytes * roster.value().frame_bytes, 0U);
          break;
        }
        case wire::Kind::kAdopt: {
          const auto adopt = wire::decode_adopt(sent.payload);
          CHECK(adopt.is_ok() && adopt.value().shards > 0) << "nothing to take over";
          break;
        }
        case wire::Kind::kLeave:
          CHECK(wire::decode_leave(sent.payload).is_ok());
          break;
        case wire::Kind::kBarrierDone:
          CHECK(wire::decode_barrier(sent.payload).is_ok());
          break;
        case wire::Kind::kFail:
        case wire::Kind::kWaiting: {
          const auto text = wire::decode_text(sent.payload);
          CHECK(text.is_ok() && !text.value().text.empty()) << "people learn nothing";
          break;
        }
        case wire::Kind::kHeartbeat:
          CHECK(wire::decode_heartbeat(sent.payload).is_ok());
          break;
        case wire::Kind::kRecall:
          CHECK(sent.payload.empty());
          break;
        default:
          CHECK(false) << "schedulers do not send kind " << static_cast<int>(sent.header.kind);
      }
    }
  }

  void pass() {
    static constexpr TimeNs kSteps[] = {1,       kMillisecond, 100 * kMillisecond, kSecond / 2,
                                        kSecond, 3 * kSecond,  10 * kSecond,       600 * kSecond};
    const std::uint32_t choice = script_.below(16);
    if (choice < 8) {
      now_ += kSteps[choice];
    } else if (scheduler_.next_deadline() != kNever) {
      now_ = std::max(now_, scheduler_.next_deadline());
    }
    turn();
  }

  void stop() {
    turn();
    scheduler_.request_stop();
    const TimeNs until = now_ + config_.timeout.failure_ns;
    transport_.window = 64;
    while (!scheduler_.finished()) {
      turn();
      transport_.give_back_all();
      turn();
      if (scheduler_.finished()) break;
      const TimeNs next = scheduler_.next_deadline();
      CHECK_LE(next, until) << "stopped, and not finished within the failure timeout";
      now_ = std::max(now_, next);
    }
  }

  Script script_;
  const Config config_;
  ScriptedTransport transport_{64};
  BlackBox black_box_{"scheduler"};
  Scheduler scheduler_;
  TimeNs now_ = 1000 * kSecond;
  PeerId last_peer_;
  std::map<PeerId, std::uint32_t> rank_of_;
  std::uint64_t life_ = 10;
  Epoch epoch_;
};

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  byteps::fuzz::SchedulerTarget(byteps::fuzz::Script(data, size), size % 2 == 1).run();
  return 0;
}
