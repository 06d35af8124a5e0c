// A worker in a training process, and a scheduler and shards that say anything in any order while time passes.
//
// The input is a script (fuzz/script.h). Beside the sanitizers:
//  - the memory of a submission is freed in the moment its handle ends, so whatever touches it later is found:
//    an answer that comes late, a payload that is still lent;
//  - an operation that ended well has exactly the bytes that the shards answered;
//  - each turn comes to rest, and the worker always knows when it wants to be called next;
//  - after leave(), or a failure, every handle ends within the failure timeout, the worker finishes, and takes
//    nothing more.
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/check.h"
#include "tests/fuzz/black_box.h"
#include "tests/fuzz/messages.h"
#include "tests/net/scripted_transport.h"
#include "worker/worker.h"

namespace byteps::fuzz {
namespace {

const Endpoint kScheduler{"10.0.0.9", 9000};

class WorkerTarget {
 public:
  explicit WorkerTarget(Script script)
      : script_(script),
        config_(config()),
        door_(config_, nullptr),
        worker_(config_, transport_, door_, black_box_.log(), "machine:42") {
    transport_.answers_overwrite_pushes = true;
  }

  void run() {
    turn();
    for (int step = 0; step < 400 && !script_.done() && !worker_.finished(); ++step) act();
    leave();
  }

 private:
  struct Submitted {
    std::unique_ptr<std::byte[]> input;  // none: in place
    std::unique_ptr<std::byte[]> output;
    std::size_t bytes = 0;
  };

  static Config config() {
    Config config;
    config.job.scheduler_host = kScheduler.host;
    config.job.scheduler_port = kScheduler.port;
    config.job.worker_count = 2;
    config.job.server_count = 2;
    config.flow.credit_bytes = 512;
    config.flow.credit_frames_min = 1;
    return config;
  }

  void act() {
    switch (script_.below(17)) {
      case 0:
      case 1:
        return submit();
      case 2:
        if (const auto handle = door_.begin_barrier(); handle.is_ok()) {
          submitted_.emplace(handle.value(), Submitted{});
        }
        return turn();
      case 3:
        return say_as_scheduler(control_of(script_));
      case 4: {
        Message message = control_of(script_);
        spoil(script_, message);
        return say_as_scheduler(message);
      }
      case 5:
        return join(script_.below(4));
      case 6:
        return connect_all();
      case 7:
      case 8:
        answer(script_.below(8));
        return turn();
      case 9:
        return answer_wrongly();
      case 10:
        return say_as_shard();
      case 11:
        if (PeerId peer; pick(peer)) transport_.end(peer, reason());
        return turn();
      case 12:
        transport_.window = 1 + script_.below(8);
        transport_.events_per_poll = 1 + script_.below(8);
        transport_.deliver_after_close = script_.flag();
        transport_.refuse_attempts = script_.below(8) == 0;
        return;
      case 13:
        transport_.give_back_all();
        return turn();
      case 14:
        return pass();
      case 15:
        for (int i = 0; i < 4; ++i) answer(0);
        transport_.give_back_all();
        return turn();
      case 16:
        if (script_.below(8) == 0) door_.leave(script_.flag());
        return turn();
    }
  }

  // ---- the process

  void submit() {
    if (submitted_.size() >= 32) return;
    Submission submission;
    const std::string name = "t" + std::to_string(script_.below(4));
    submission.name = name;
    // The same tensor by the same name, mostly.
    submission.element_count = script_.below(8) == 0 ? script_.below(64) : name[1] * 7U % 80;
    submission.dtype = script_.below(8) == 0 ? script_.byte() : std::uint32_t{0};
    submission.operation = script_.below(8) == 0 ? script_.byte() : name[1] % 3U;
    submission.root = script_.below(8) == 0 ? script_.number32() : std::uint32_t{name[1] % 2U};
    submission.priority = static_cast<std::int32_t>(script_.below(3));
    submission.once = script_.below(8) == 0;
    Submitted memory;
    memory.bytes = submission.element_count * 8;  // of the largest dtype
    memory.output.reset(new std::byte[memory.bytes]);
    std::memset(memory.output.get(), script_.byte(), memory.bytes);
    submission.output = memory.output.get();
    submission.input = memory.output.get();
    if (script_.flag()) {
      memory.input.reset(new std::byte[memory.bytes]);
      std::memset(memory.input.get(), script_.byte(), memory.bytes);
      submission.input = memory.input.get();
    }
    const Result<HandleId> handle = door_.submit(submission);
    if (handle.is_ok()) {
      CHECK(submitted_.emplace(handle.value(), std::move(memory)).second) << "a handle came twice";
    }
    turn();
  }

  // ---- the scheduler

  std::optional<PeerId> scheduler() const {
    for (auto it = transport_.peers.rbegin(); it != transport_.peers.rend(); ++it) {
      if (it->second.to == kScheduler) return it->first;
    }
    return std::nullopt;
  }
  bool reach(PeerId peer) {
    if (!transport_.peers.contains(peer)) return false;
    if (!transport_.peers.at(peer).is_up)
      transport_.up(peer, hello_of(transport_.peers.at(peer).to));
    return true;
  }
  // What the member at this place says of itself; seldom something else.
  Hello hello_of(const Endpoint& place) {
    Hello hello;
    hello.role = place == kScheduler ? Role::kScheduler : Role::kServer;
    hello.epoch = Epoch(1);
    hello.rank = 0;
    while (hello.rank < 16 && !(endpoint_of(hello.rank) == place)) ++hello.rank;
    if (script_.below(16) == 15) {
      hello.role = static_cast<Role>(script_.below(3));
      hello.rank = script_.number32();
      hello.epoch = Epoch(script_.number32());
    }
    return hello;
  }
  void say_as_scheduler(const Message& message) {
    const auto peer = scheduler();
    if (!peer || !reach(*peer)) return turn();
    transport_.say(*peer, message.header, message.payload);
    turn();
  }
  void say_as_scheduler(wire::Kind kind, const std::vector<std::byte>& payload) {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(1);
    const wire::HeaderBytes bytes = wire::encode(header);
    say_as_scheduler(Message{{bytes.begin(), bytes.end()}, payload});
  }
  void join(std::uint32_t more_servers) {
    say_as_scheduler(wire::Kind::kRoster,
                     wire::encode(roster_of(2, 1 + more_servers, 0, Epoch(1))));
    connect_all();
  }

  // ---- the shards

  bool pick(PeerId& peer) {
    if (transport_.peers.empty()) return false;
    const std::uint32_t index = script_.below(static_cast<std::uint32_t>(transport_.peers.size()));
    peer = std::next(transport_.peers.begin(), index)->first;
    return true;
  }
  void connect_all() {
    std::vector<PeerId> all;
    for (const auto& [peer, state] : transport_.peers) all.push_back(peer);
    for (const PeerId peer : all) reach(peer);
    turn();
  }
  Status reason() {
    static constexpr Code kCodes[] = {Code::kDisconnected, Code::kTimeout, Code::kMismatch,
                                      Code::kSystem};
    return {kCodes[script_.below(4)], "the network says so"};
  }
  // Answers a push that is here, with its own bytes.
  void answer(std::uint32_t index) {
    const auto push = take_push(index);
    if (!push) return;
    wire::Header header = push->header;
    header.kind = wire::Kind::kAnswer;
    std::vector<std::byte> payload = push->payload;
    if (header.flags == wire::kNoPayload) {  // a broadcast's root is elsewhere
      header.flags = 0;
      payload.assign(frame_bytes_of(header), std::byte{0x55});
    }
    say_answer(push->peer, header, payload);
  }
  void say_answer(PeerId peer, const wire::Header& header, const std::vector<std::byte>& payload) {
    transport_.say(peer, header, payload, script_.flag());
  }
  // By what this worker has declared.
  std::size_t frame_bytes_of(const wire::Header& header) {
    const auto known = declared_bytes_.find(header.key);
    if (known == declared_bytes_.end()) return 64;
    const std::uint64_t start = header.part.value * std::uint64_t{256} + header.offset_bytes;
    return start < known->second ? std::min<std::size_t>(64, known->second - start) : 0;
  }
  std::optional<ScriptedTransport::Sent> take_push(std::uint32_t index) {
    if (pushes_.empty()) return std::nullopt;
    const auto chosen = pushes_.begin() + index % static_cast<std::ptrdiff_t>(pushes_.size());
    ScriptedTransport::Sent push = std::move(*chosen);
    pushes_.erase(chosen);
    return push;
  }
  void answer_wrongly() {
    const auto push = take_push(script_.below(8));
    if (!push) return;
    wire::Header header = push->header;
    header.kind = wire::Kind::kAnswer;
    std::vector<std::byte> payload = push->payload;
    PeerId peer = push->peer;
    for (std::uint32_t change = 1 + script_.below(2); change > 0; --change) {
      switch (script_.below(9)) {
        case 0:
          header.epoch = Epoch(script_.number32());
          break;
        case 1:
          header.part = PartIndex(script_.number32());
          break;
        case 2:
          header.round = Round(script_.number32());
          break;
        case 3:
          header.offset_bytes = script_.number();
          break;
        case 4:
          header.flags = script_.byte();
          break;
        case 5:
          script_.mutate(payload);
          break;
        case 6:
          header.tag = static_cast<std::uint32_t>(script_.number());
          break;
        case 7:
          header.key = key_of("t" + std::to_string(script_.below(5)));
          break;
        case 8:
          pick(peer);
          break;
      }
    }
    say_answer(peer, header, payload);
    if (script_.flag()) say_answer(peer, header, payload);
    pushes_.push_back(*push);  // it may still be answered well
    turn();
  }
  void say_as_shard() {
    static constexpr wire::Kind kKinds[] = {wire::Kind::kWanted, wire::Kind::kMismatch,
                                            wire::Kind::kAnswer, wire::Kind::kPush,
                                            wire::Kind::kMissing};
    PeerId peer;
    if (!pick(peer) || !reach(peer)) return turn();
    wire::Header header;
    header.kind = kKinds[script_.below(5)];
    header.epoch = script_.below(8) == 0 ? Epoch(script_.number32()) : Epoch(1);
    header.key = key_of("t" + std::to_string(script_.below(5)));
    header.part = PartIndex(script_.number32());
    header.round = Round(script_.number32());
    Message message;
    message.payload = payload_of(script_, header.kind);
    const wire::HeaderBytes bytes = wire::encode(header);
    message.header.assign(bytes.begin(), bytes.end());
    if (script_.below(4) == 0) spoil(script_, message);
    transport_.say(peer, message.header, message.payload, script_.flag());
    turn();
  }

  // ---- turns

  void turn() {
    int rounds = 0;
    do {
      CHECK_LT(++rounds, 4000) << "the worker does not come to rest";
    } while (worker_.turn(now_) > 0 || !transport_.quiet() || must_turn());
    CHECK(worker_.finished() || worker_.next_deadline() != kNever) << "nobody will wake the worker";
    for (; !transport_.sent.empty(); transport_.sent.pop_front())
      take_sent(transport_.sent.front());
    while (pushes_.size() > 256) pushes_.pop_front();
    free_what_ended();
  }
  bool must_turn() const { return !worker_.finished() && worker_.next_deadline() <= now_; }

  void take_sent(ScriptedTransport::Sent& sent) {
    switch (sent.header.kind) {
      case wire::Kind::kPush:
        CHECK_LE(sent.payload.size(), kPayloadBytesMax);
        pushes_.push_back(std::move(sent));
        break;
      case wire::Kind::kDeclare: {
        const auto declare = wire::decode_declare(sent.payload);
        CHECK(declare.is_ok());
        declared_bytes_[sent.header.key] = declare.value().total_bytes;
        break;
      }
      case wire::Kind::kJoin:
        CHECK(wire::decode_join(sent.payload).is_ok());
        break;
      case wire::Kind::kFail: {
        const auto text = wire::decode_text(sent.payload);
        CHECK(text.is_ok() && !text.value().text.empty());
        break;
      }
      case wire::Kind::kStalled:
        CHECK(wire::decode_stalled(sent.payload).is_ok());
        break;
      case wire::Kind::kRoster:  // that it was given
        CHECK(wire::decode_roster(sent.payload).is_ok());
        break;
      case wire::Kind::kForget:
      case wire::Kind::kHeartbeat:
      case wire::Kind::kLeave:
      case wire::Kind::kBarrier:
        break;
      default:
        CHECK(false) << "workers do not send kind " << static_cast<int>(sent.header.kind);
    }
  }
  void free_what_ended() {
    for (auto it = submitted_.begin(); it != submitted_.end();) {
      const Result<bool> ended = door_.poll(it->first);
      CHECK(ended.is_ok()) << ended.status().text();
      if (ended.value()) {
        const Status result = door_.wait(it->first, 0);
        CHECK(!result.is(Code::kAgain));
        CHECK(result.is_ok() || !result.message().empty()) << "an error says what is wrong";
        it = submitted_.erase(it);
      } else {
        ++it;
      }
    }
  }

  void pass() {
    static constexpr TimeNs kSteps[] = {
        1,           kMillisecond, 50 * kMillisecond, kSecond / 2,
        2 * kSecond, 3 * kSecond,  10 * kSecond,      600 * kSecond};
    const std::uint32_t choice = script_.below(16);
    if (choice < 8) {
      now_ += kSteps[choice];
    } else if (!worker_.finished() && worker_.next_deadline() != kNever) {
      now_ = std::max(now_, worker_.next_deadline());
    }
    if (script_.flag()) say_as_scheduler(wire::Kind::kHeartbeat, {});
    turn();
  }

  void leave() {
    turn();
    door_.leave(true);
    turn();
    CHECK(submitted_.empty()) << submitted_.size() << " handles did not end with leave()";
    // Where the job recovers it waits for a scheduler that is away.
    const TimeNs until = now_ + 2 * config_.timeout.failure_ns + config_.timeout.recovery_ns;
    while (!worker_.finished()) {
      const TimeNs next = worker_.next_deadline();
      CHECK_LE(next, until) << "left, and not finished within the failure timeout";
      now_ = std::max(now_, next);
      turn();
    }
    CHECK(!door_.begin_barrier().is_ok());
    CHECK_EQ(door_.pending_handles(), 0U);
    CHECK(transport_.peers.empty()) << "a connection is left";
  }

  Script script_;
  const Config config_;
  ScriptedTransport transport_{64};
  const BlackBox black_box_{"worker 0"};
  WorkerDoor door_;
  Worker worker_;
  TimeNs now_ = 1000 * kSecond;
  std::map<HandleId, Submitted> submitted_;
  std::deque<ScriptedTransport::Sent> pushes_;   // not yet answered
  std::map<Key, std::uint64_t> declared_bytes_;  // by this worker
};

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  byteps::fuzz::WorkerTarget(byteps::fuzz::Script(data, size)).run();
  return 0;
}
