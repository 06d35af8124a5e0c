// A server of two shards, and a scheduler and workers that say anything in any order while time passes.
//
// The input is a script (fuzz/script.h). Beside the sanitizers: each turn comes to rest; an epoch is confirmed only
// when every shard has begun to serve it; epochs never go back; what is sent can be read; when the server is stopped,
// or the job has ended, member and shards finish within the failure timeout, and nothing is lent. (What a shard makes
// of workers is shard_fuzz.cc's.)

#include "base/check.h"
#include "server/server_member.h"
#include "tests/fuzz/black_box.h"
#include "tests/fuzz/messages.h"
#include "tests/net/scripted_transport.h"

namespace byteps::fuzz {
namespace {

const Endpoint kScheduler{"10.0.0.9", 9000};

class ServerTarget {
 public:
  explicit ServerTarget(Script script) : script_(script), config_(config()) {}

  void run() {
    turn();
    for (int step = 0; step < 300 && !script_.done() && !member_.finished(); ++step) act();
    stop();
  }

 private:
  static Config config() {
    Config config;
    config.job.scheduler_host = kScheduler.host;
    config.job.scheduler_port = kScheduler.port;
    return config;
  }

  void act() {
    switch (script_.below(11)) {
      case 0:
        return say(control_of(script_));
      case 1: {
        Message message = control_of(script_);
        spoil(script_, message);
        return say(message);
      }
      case 2:  // the next epoch, as it should be
      case 3:
        ++next_epoch_;
        return say(
            wire::Kind::kRoster,
            wire::encode(roster_of(1 + script_.below(4), 2, script_.below(2), Epoch(next_epoch_))));
      case 4:
        return say(wire::Kind::kRoster, wire::encode(strange_roster_of(script_)));
      case 5:
        if (const auto peer = scheduler()) transport_.end(*peer, reason());
        return turn();
      case 6: {  // a worker comes to a shard
        Hello hello;
        hello.rank = script_.below(4);
        hello.epoch = script_.flag() ? Epoch(next_epoch_) : Epoch(script_.number32());
        shard_transports_[script_.below(2)].arrive(hello);
        return turn();
      }
      case 7:
        transport_.window = 1 + script_.below(8);
        transport_.events_per_poll = 1 + script_.below(8);
        transport_.deliver_after_close = script_.flag();
        transport_.refuse_attempts = script_.below(8) == 0;
        return;
      case 8:
        is_slow_ = script_.flag();  // the second shard: it takes no commands
        return turn();
      case 9:
        transport_.give_back_all();
        return turn();
      case 10:
        return pass();
    }
  }

  std::optional<PeerId> scheduler() const {
    if (transport_.peers.empty()) return std::nullopt;
    return transport_.peers.rbegin()->first;
  }
  void say(const Message& message) {
    const auto peer = scheduler();
    if (!peer) return turn();
    if (!transport_.peers.at(*peer).is_up) {
      Hello hello;
      hello.role = script_.below(16) == 15 ? Role::kWorker : Role::kScheduler;
      transport_.up(*peer, hello);
    }
    transport_.say(*peer, message.header, message.payload);
    turn();
  }
  void say(wire::Kind kind, const std::vector<std::byte>& payload) {
    wire::Header header;
    header.kind = kind;
    const wire::HeaderBytes bytes = wire::encode(header);
    say(Message{{bytes.begin(), bytes.end()}, payload});
  }
  Status reason() {
    static constexpr Code kCodes[] = {Code::kDisconnected, Code::kTimeout, Code::kMismatch};
    return {kCodes[script_.below(3)], "the network says so"};
  }

  void turn() {
    int rounds = 0;
    bool rests = false;
    while (!rests) {
      CHECK_LT(++rounds, 4000) << "the server does not come to rest";
      rests = true;
      for (std::size_t i = 0; i < shards_.size(); ++i) {
        if (i == 1 && is_slow_) continue;
        Shard& shard = shards_[i];
        rests &=
            shard.turn(now_) == 0 && shard_transports_[i].quiet() && shard.next_deadline() > now_;
        reached_[i] = std::max(reached_[i], shard.epoch());
        shard_transports_[i].give_back_all();
      }
      rests &= member_.turn(now_) == 0 && transport_.quiet() &&
               (member_.finished() || member_.next_deadline() > now_);
      read_what_was_sent();
    }
    CHECK(member_.finished() || member_.next_deadline() != kNever) << "nobody will wake the server";
  }
  void read_what_was_sent() {
    for (; !transport_.sent.empty(); transport_.sent.pop_front()) {
      const ScriptedTransport::Sent& sent = transport_.sent.front();
      switch (sent.header.kind) {
        case wire::Kind::kJoin:
          CHECK(wire::decode_join(sent.payload).is_ok());
          break;
        case wire::Kind::kFail: {
          const auto text = wire::decode_text(sent.payload);
          CHECK(text.is_ok() && !text.value().text.empty());
          break;
        }
        case wire::Kind::kRoster:  // that it was given
          CHECK(wire::decode_roster(sent.payload).is_ok());
          break;
        case wire::Kind::kHeartbeat:
        case wire::Kind::kLeave:
          break;
        default:
          CHECK(false) << "servers do not send kind " << static_cast<int>(sent.header.kind);
      }
      CHECK_LE(confirmed_, sent.header.epoch) << "back to an older epoch";
      if (sent.header.epoch == confirmed_) continue;
      confirmed_ = sent.header.epoch;
      for (const Epoch reached : reached_) {
        CHECK_LE(confirmed_, reached) << "confirmed, and a shard has not served it yet";
      }
    }
    for (ScriptedTransport& transport : shard_transports_) transport.sent.clear();
  }

  void pass() {
    static constexpr TimeNs kSteps[] = {
        1,           kMillisecond, 50 * kMillisecond, kSecond / 2,
        2 * kSecond, 3 * kSecond,  10 * kSecond,      600 * kSecond};
    const std::uint32_t choice = script_.below(16);
    if (choice < 8) {
      now_ += kSteps[choice];
    } else if (!member_.finished() && member_.next_deadline() != kNever) {
      now_ = std::max(now_, member_.next_deadline());
    }
    if (script_.flag()) say(wire::Kind::kHeartbeat, {});
    turn();
  }

  void stop() {
    is_slow_ = false;
    turn();
    member_.request_stop();
    const TimeNs until = now_ + config_.timeout.failure_ns;
    turn();
    while (!member_.finished()) {
      transport_.give_back_all();
      const TimeNs next = member_.next_deadline();
      CHECK_LE(next, until) << "stopped, and not finished within the failure timeout";
      now_ = std::max(now_, next);
      turn();
    }
    turn();
    CHECK(transport_.peers.empty()) << "a connection is left";
    for (const Shard& shard : shards_) CHECK(shard.finished()) << "a shard is left";
  }

  Script script_;
  const Config config_;
  const BlackBox black_box_{"server"};
  ScriptedTransport transport_{64};
  std::array<ScriptedTransport, 2> shard_transports_{ScriptedTransport(64), ScriptedTransport(64)};
  Mailbox<ShardNotice> notices_{64, nullptr};
  std::array<Mailbox<ShardCommand>, 2> inboxes_{Mailbox<ShardCommand>{2, nullptr},
                                                Mailbox<ShardCommand>{2, nullptr}};
  std::array<Shard, 2> shards_{
      Shard(config_, ShardIndex(0), shard_transports_[0], inboxes_[0], notices_, black_box_.log()),
      Shard(config_, ShardIndex(1), shard_transports_[1], inboxes_[1], notices_, black_box_.log())};
  ServerMember member_{config_,
                       transport_,
                       "machine:42",
                       {{"10.0.0.1", 4000}, {"10.0.0.1", 4001}},
                       {&inboxes_[0], &inboxes_[1]},
                       notices_,
                       black_box_.log()};
  TimeNs now_ = 1000 * kSecond;
  std::uint32_t next_epoch_ = 0;
  Epoch confirmed_;
  std::array<Epoch, 2> reached_;  // the newest that each shard has served
  bool is_slow_ = false;
};

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  byteps::fuzz::ServerTarget(byteps::fuzz::Script(data, size)).run();
  return 0;
}
