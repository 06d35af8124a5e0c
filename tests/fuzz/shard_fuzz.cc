// A shard, its workers, and anyone who can connect to it, saying anything in any order while time passes.
//
// The input is a script (fuzz/script.h). Two honest workers sum three tensors: they declare, push, repeat, lose
// their connections and come back, as the protocol says. The others are strangers (of another role, rank or
// epoch); in a job of three they may also be worker 2, who says whatever the script wants. Beside the sanitizers:
//  - the shard ends no connection of an honest worker, unless worker 2 has said that nobody has more inputs: then
//    others are to say again, on a new one, what they wait for (Shelf::begin_by_word_of);
//  - an answer to an honest worker is the exact sum; in a job of three, that plus some contribution of worker 2 to
//    the same frame, which it need not make once it has said that it has no more; and the same for both;
//  - in a job of two everything honest ends, whatever the strangers do; in a job of three unless worker 2 has
//    spoiled the tensor, or withholds its part;
//  - memory is taken for what came, never for a length that was announced;
//  - each turn comes to rest, what is sent can be read, and after kStop the shard finishes at once.
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>

#include "base/check.h"
#include "server/shard.h"
#include "tests/fuzz/black_box.h"
#include "tests/fuzz/messages.h"
#include "tests/net/scripted_transport.h"

namespace byteps::fuzz {
namespace {

constexpr std::uint64_t kPartitionBytes = 128;
constexpr std::uint64_t kFrameBytes = 64;
constexpr std::uint32_t kEvil = 2;  // the rank that lies

constexpr std::uint32_t kTensors = 3;

struct Place {  // of a frame
  std::uint32_t tensor = 0;
  std::uint32_t part = 0;
  std::uint64_t offset_bytes = 0;
  auto operator<=>(const Place&) const = default;
};

// What all mean by a tensor's name. The first two have two parts, and a short frame at the end.
struct Known {
  wire::Declare declare;
  Key key;
  std::vector<std::byte> declaration;
  std::vector<Place> frames;
};
Known known_tensor(std::uint32_t number) {
  static constexpr DType kTypes[] = {DType::kInt32, DType::kFloat32, DType::kInt32};
  Known known;
  known.declare.name = "t" + std::to_string(number);
  known.declare.dtype = kTypes[number % 3];
  known.declare.total_bytes = number % 3 == 2 ? 40 : kPartitionBytes + kFrameBytes + 8;
  if (number == 0)
    known.declare.shape = Shape(std::array<std::uint64_t, 2>{2, known.declare.total_bytes / 8});
  known.key = key_of(known.declare.name);
  known.declaration = wire::encode(known.declare);
  for (std::uint64_t at = 0; at < known.declare.total_bytes; at += kFrameBytes) {
    known.frames.push_back(
        {number, static_cast<std::uint32_t>(at / kPartitionBytes), at % kPartitionBytes});
  }
  return known;
}
// One more than honest workers use.
const std::array<Known, kTensors + 1> kKnown = {known_tensor(0), known_tensor(1), known_tensor(2),
                                                known_tensor(3)};

std::size_t bytes_of(const Place& place) {
  const std::uint64_t start = place.part * kPartitionBytes + place.offset_bytes;
  return std::min(kFrameBytes, kKnown[place.tensor].declare.total_bytes - start);
}
bool is_float(const Place& place) {
  return kKnown[place.tensor].declare.dtype == DType::kFloat32;
}

// Whole numbers below 100, exact as floats too.
std::uint32_t value(std::uint32_t rank, const Place& place, std::uint32_t round,
                    std::size_t element) {
  return static_cast<std::uint32_t>(stable_mix(rank + 7 * place.tensor + 31 * place.part +
                                               101 * place.offset_bytes + 977 * round +
                                               7919 * element) %
                                    100);
}
std::vector<std::byte> contribution(std::uint32_t rank, const Place& place, std::uint32_t round) {
  std::vector<std::byte> bytes(bytes_of(place));
  for (std::size_t i = 0; i < bytes.size() / 4; ++i) {
    const std::uint32_t number = value(rank, place, round, i);
    const auto real = static_cast<float>(number);
    std::memcpy(bytes.data() + 4 * i, is_float(place) ? static_cast<const void*>(&real) : &number,
                4);
  }
  return bytes;
}

// A worker that keeps the protocol.
struct Honest {
  struct Round {
    std::uint32_t round = 0;
    std::set<Place> pushed, answered;
  };
  std::uint32_t rank = 0;
  std::optional<PeerId> peer;
  std::set<std::uint32_t> declared;  // on this connection
  std::array<Round, kTensors> tensors;
};

class ShardTarget {
 public:
  explicit ShardTarget(Script script)
      : script_(script),
        worker_count_(script_.flag() ? 3 : 2),
        config_(config(script_.flag())),
        shard_(config_, ShardIndex(0), transport_, inbox_, outbox_, black_box_.log()) {
    honest_[1].rank = 1;
  }

  void run() {
    begin_epoch(Epoch(1));
    for (int step = 0; step < 400 && !script_.done(); ++step) act();
    finish_what_can_be();
    stop();
  }

 private:
  static constexpr std::size_t kPeersMax = 16;
  using FrameOfRound = std::tuple<Place, std::uint32_t>;

  static Config config(bool deterministic) {
    Config config;
    config.deterministic = deterministic;
    return config;
  }
  void act() {
    switch (script_.below(15)) {
      case 0:
        return arrive_strange();
      case 1:
      case 2:
        return speak(strange_message());
      case 3: {
        Message message = strange_message();
        spoil(script_, message);
        return speak(std::move(message));
      }
      case 4:
        return connect(honest_[script_.below(2)]);
      case 5:
      case 6:
      case 7:
        return push(honest_[script_.below(2)], script_.below(kTensors), script_.byte());
      case 8:
        for (Honest& worker : honest_) push_all(worker, script_.below(kTensors));
        return;
      case 9:
        if (Honest& worker = honest_[script_.below(2)]; worker.peer) {
          transport_.end(*worker.peer, {Code::kDisconnected, "gone"});
          lost(worker);
        }
        return;
      case 10:
        if (worker_count_ == 3) evil_keeps_the_protocol();
        return;
      case 11:
        transport_.window = 1 + script_.below(8);
        transport_.events_per_poll = 1 + script_.below(8);
        transport_.deliver_after_close = script_.flag();
        return;
      case 12:
        transport_.give_back_all();
        return turn();
      case 13:
        return pass_time(TimeNs{1} << script_.below(36));
      case 14:
        if (script_.below(8) == 0) begin_epoch(Epoch(epoch_.value + 1));
        return turn();
    }
  }

  // ---- those who do not keep the protocol

  void arrive_strange() {
    if (transport_.peers.size() >= kPeersMax) return;
    Hello hello;
    hello.role = Role::kWorker;
    hello.rank = kEvil;
    hello.epoch = epoch_;
    switch (script_.below(4)) {
      case 0:
        hello.role = static_cast<Role>(script_.below(2));
        break;
      case 1:
        hello.rank = std::max<std::uint32_t>(kEvil, script_.number32());
        break;
      case 2:
        hello.epoch = Epoch(script_.number32());
        break;
      case 3:
        break;
    }
    if (hello.role == Role::kWorker && hello.epoch == epoch_ && hello.rank < kEvil) return;
    strangers_.push_back(transport_.arrive(hello));
  }
  // A stranger's Declare, Push or Forget, more or less right.
  Message strange_message() {
    static constexpr wire::Kind kKinds[] = {
        wire::Kind::kPush,   wire::Kind::kPush,   wire::Kind::kDeclare, wire::Kind::kDeclare,
        wire::Kind::kForget, wire::Kind::kInputs, wire::Kind::kAnswer,  wire::Kind::kJoin};
    wire::Header header;
    header.kind = kKinds[script_.below(std::size(kKinds))];
    header.epoch = script_.below(8) == 0 ? Epoch(script_.number32()) : epoch_;
    header.worker = WorkerRank(script_.below(8) == 0 ? script_.number32() : kEvil);
    wire::Declare declare = kKnown[script_.below(kTensors + 1)].declare;
    header.key = key_of(declare.name);
    Message message;
    if (header.kind == wire::Kind::kDeclare) {
      switch (script_.below(10)) {
        case 0:
          declare.total_bytes = script_.number();
          break;
        case 1:
          declare.dtype = static_cast<DType>(script_.below(kDTypeCount));
          break;
        case 2:
          declare.operation = static_cast<Operation>(script_.below(kOperationCount));
          break;
        case 3:
          declare.root = WorkerRank(script_.number32());
          break;
        case 4:
          declare.name = text_of(script_);
          header.key = key_of(declare.name);
          break;
        case 5:
          declare.scale = std::bit_cast<double>(script_.number());
          break;
        case 6:
          declare.members = members_of(script_);
          break;
        case 7:
          declare.root_only = true;
          break;
        case 8:
          declare.format = static_cast<Format>(script_.below(kFormatCount));
          declare.codec = codec_of(script_);
          break;
        default:
          break;
      }
      message.payload = wire::encode(declare);
    } else if (header.kind == wire::Kind::kPush) {
      header.part = PartIndex(script_.number32());
      header.round = Round(script_.number32());
      header.offset_bytes = script_.flag() ? script_.below(4) * kFrameBytes : script_.number();
      header.flags = script_.below(8) == 0 ? script_.byte() : std::uint8_t{0};
      header.tag = static_cast<std::uint32_t>(script_.number());
      header.count = static_cast<std::uint32_t>(script_.number());
      message.payload.assign(script_.flag() ? kFrameBytes : script_.byte(),
                             std::byte{script_.byte()});
    } else if (header.kind == wire::Kind::kInputs) {
      header.round = Round(script_.below(4));
      header.flags = script_.flag() ? wire::kNoMore : std::uint8_t{0};
    }
    const wire::HeaderBytes bytes = wire::encode(header);
    message.header.assign(bytes.begin(), bytes.end());
    return message;
  }
  void speak(Message message) {
    if (strangers_.empty()) return arrive_strange();
    const PeerId peer = strangers_[script_.below(static_cast<std::uint32_t>(strangers_.size()))];
    note_evil(message);
    received_bytes_ += message.payload.size() + 512;
    transport_.say(peer, message.header, message.payload);
  }
  // Worker 2 pushes the next frames of a tensor like the others.
  void evil_keeps_the_protocol() {
    const std::uint32_t number = script_.below(kTensors);
    if (strangers_.empty()) return arrive_strange();
    const PeerId peer = strangers_.back();
    wire::Header header;
    header.epoch = epoch_;
    header.worker = WorkerRank(kEvil);
    header.key = kKnown[number].key;
    header.kind = wire::Kind::kDeclare;
    transport_.say(peer, header, kKnown[number].declaration);
    header.kind = wire::Kind::kPush;
    header.round =
        Round(script_.below(4) == 0 ? script_.below(4) : honest_[0].tensors[number].round);
    for (const Place& place : kKnown[number].frames) {
      if (script_.below(8) == 0) continue;
      header.part = PartIndex(place.part);
      header.offset_bytes = place.offset_bytes;
      Message message;
      message.payload = contribution(kEvil, place, header.round.value);
      const wire::HeaderBytes bytes = wire::encode(header);
      message.header.assign(bytes.begin(), bytes.end());
      note_evil(message);
      received_bytes_ += message.payload.size() + 512;
      transport_.say(peer, message.header, message.payload);
    }
  }
  // Whatever worker 2 has ever sent for a frame may be in its sum.
  void note_evil(const Message& message) {
    const auto header = wire::decode_header(message.header);
    if (!header.is_ok()) return;
    if (worker_count_ == 3 && header.value().kind == wire::Kind::kInputs)
      evil_spoke_of_inputs_ = true;
    for (std::uint32_t number = 0; number < kTensors; ++number) {
      if (header.value().key != kKnown[number].key) continue;
      evil_[{number, header.value().part.value, header.value().offset_bytes}].insert(
          message.payload);
    }
  }

  // ---- those who do

  void connect(Honest& worker) {
    if (worker.peer)
      lost(worker);  // a newer connection of the same rank: the shard closes the older one
    Hello hello;
    hello.role = Role::kWorker;
    hello.rank = worker.rank;
    hello.epoch = epoch_;
    worker.peer = transport_.arrive(hello);
  }
  void lost(Honest& worker) {
    worker.peer.reset();
    worker.declared.clear();
    for (Honest::Round& round : worker.tensors) round.pushed = {};
  }
  void say(const Honest& worker, const wire::Header& header,
           const std::vector<std::byte>& payload) {
    received_bytes_ += payload.size() + 512;
    transport_.say(*worker.peer, header, payload);
  }
  void push(Honest& worker, std::uint32_t number, std::size_t frame) {
    if (!worker.peer) connect(worker);
    const std::vector<Place> places = kKnown[number].frames;
    const Place& place = places[frame % places.size()];
    Honest::Round& round = worker.tensors[number];
    if (round.answered.contains(place)) return;
    wire::Header header;
    header.epoch = epoch_;
    header.worker = WorkerRank(worker.rank);
    header.key = kKnown[number].key;
    if (worker.declared.insert(number).second) {
      header.kind = wire::Kind::kDeclare;
      say(worker, header, kKnown[number].declaration);
    }
    header.kind = wire::Kind::kPush;
    header.part = PartIndex(place.part);
    header.round = Round(round.round);
    header.offset_bytes = place.offset_bytes;
    header.tag = 1000 * worker.rank + number + 1;
    round.pushed.insert(place);
    say(worker, header, contribution(worker.rank, place, round.round));
  }
  void push_all(Honest& worker, std::uint32_t number) {
    for (std::size_t i = 0; i < kKnown[number].frames.size(); ++i) push(worker, number, i);
  }

  void take_answer(Honest& worker, const ScriptedTransport::Sent& sent) {
    const wire::Header& header = sent.header;
    std::uint32_t number = 0;
    while (number < kTensors && kKnown[number].key != header.key) ++number;
    CHECK_LT(number, kTensors) << "an answer for a tensor that it has not";
    Honest::Round& round = worker.tensors[number];
    CHECK_EQ(header.worker.value, worker.rank);
    CHECK_EQ(header.epoch, epoch_);
    CHECK_LE(header.round.value, round.round) << "an answer of a round that was not pushed";
    if (header.round.value < round.round) return;  // a repeat
    const Place place{number, header.part.value, header.offset_bytes};
    CHECK_EQ(header.tag, std::uint64_t{1000} * worker.rank + number + 1);
    check_sum(place, header.round.value, sent.payload);
    round.answered.insert(place);
    if (round.answered.size() < kKnown[number].frames.size()) return;
    ++round.round;
    round.pushed.clear();
    round.answered.clear();
  }
  void check_sum(const Place& place, std::uint32_t round, const std::vector<std::byte>& sum) {
    CHECK_EQ(sum.size(), bytes_of(place));
    const auto known = sums_.emplace(FrameOfRound{place, round}, sum);
    CHECK(known.first->second == sum) << "two workers got different sums";
    if (!known.second) return;
    if (worker_count_ == 2) {
      const std::vector<std::byte> nothing(sum.size());
      CHECK(is_sum_with(nothing, sum, place, round)) << describe(place, round);
      return;
    }
    if (evil_spoke_of_inputs_ && is_sum_with(std::vector<std::byte>(sum.size()), sum, place, round))
      return;
    for (const std::vector<std::byte>& third : evil_[place]) {
      if (third.size() == sum.size() && is_sum_with(third, sum, place, round)) return;
    }
    CHECK(false) << describe(place, round);
  }
  static std::string describe(const Place& place, std::uint32_t round) {
    return "the answer is not the sum of tensor " + std::to_string(place.tensor) + " part " +
           std::to_string(place.part) + " offset " + std::to_string(place.offset_bytes) +
           " round " + std::to_string(round);
  }
  // The honest workers' numbers are small and whole, so their order is irrelevant. If the third one's is not, the
  // sum of floats depends on the order, and nothing is claimed.
  static bool is_sum_with(const std::vector<std::byte>& third, const std::vector<std::byte>& sum,
                          const Place& place, std::uint32_t round) {
    for (std::size_t i = 0; i < sum.size() / 4; ++i) {
      const std::uint32_t both = value(0, place, round, i) + value(1, place, round, i);
      std::uint32_t theirs = 0;
      std::uint32_t total = 0;
      std::memcpy(&theirs, third.data() + 4 * i, 4);
      std::memcpy(&total, sum.data() + 4 * i, 4);
      if (is_float(place)) {
        const float their_real = std::bit_cast<float>(theirs);
        const bool is_small = std::abs(their_real) < 1e6F && their_real == std::floor(their_real);
        if (is_small && std::bit_cast<float>(total) != their_real + static_cast<float>(both)) {
          return false;
        }
      } else if (total != theirs + both) {
        return false;
      }
    }
    return true;
  }

  // ---- turns

  // Honest workers are not all away for so long that the shard forgets them (server/shard.h, S5).
  void pass_time(TimeNs time) {
    alone_ns_ = honest_[0].peer || honest_[1].peer ? 0 : alone_ns_ + time;
    if (alone_ns_ >= config_.timeout.failure_ns) {
      connect(honest_[0]);
      alone_ns_ = 0;
    }
    turn();
    now_ += time;
    turn();
  }

  void turn() {
    int rounds = 0;
    do {
      CHECK_LT(++rounds, 4000) << "the shard does not come to rest";
    } while (shard_.turn(now_) > 0 || !transport_.quiet() || shard_.next_deadline() <= now_);
    outbox_.drain(notices_);
    for (const ShardNotice& notice : notices_) {
      if (notice.kind == ShardNotice::Kind::kEpochApplied) applied_ = notice.epoch;
      CHECK(notice.kind == ShardNotice::Kind::kEpochApplied) << notice.why.text();
    }
    read_what_was_sent();
    for (Honest& worker : honest_) {
      if (!worker.peer || transport_.peers.contains(*worker.peer)) continue;
      const auto closed = transport_.closed.find(*worker.peer);
      CHECK(evil_spoke_of_inputs_ && closed != transport_.closed.end() &&
            closed->second.message().ends_with("say again what you wait for"))
          << "the shard ended the connection of honest worker " << worker.rank
          << (closed == transport_.closed.end() ? "" : ": " + closed->second.message());
      connect(worker);
    }
    // Accumulator (fp16: twice the bytes), sum, and what waits to be sent; in powers of two.
    CHECK_LE(shard_.lent_bytes(), 16 * received_bytes_ + 65536);
  }

  void read_what_was_sent() {
    for (; !transport_.sent.empty(); transport_.sent.pop_front()) {
      const ScriptedTransport::Sent& sent = transport_.sent.front();
      const wire::Kind kind = sent.header.kind;
      CHECK(kind == wire::Kind::kAnswer || kind == wire::Kind::kWanted ||
            kind == wire::Kind::kMismatch || kind == wire::Kind::kMissing ||
            (kind == wire::Kind::kInputsDone && evil_spoke_of_inputs_))
          << "shards do not send kind " << static_cast<int>(kind);
      for (Honest& worker : honest_) {
        if (!worker.peer || *worker.peer != sent.peer) continue;
        CHECK(kind != wire::Kind::kInputsDone) << "honest worker " << worker.rank << " has more";
        if (kind == wire::Kind::kAnswer) take_answer(worker, sent);
        if (kind == wire::Kind::kMissing) {
          const auto missing = wire::decode_missing(sent.payload);
          CHECK(missing.is_ok() && !missing.value().ranks.is_all());
        }
        if (kind == wire::Kind::kMismatch) {
          const auto text = wire::decode_text(sent.payload);
          CHECK(text.is_ok() && text.value().code != 0);
          CHECK_EQ(worker_count_, 3U) << text.value().text;
        }
      }
    }
  }

  void begin_epoch(Epoch epoch) {
    epoch_ = epoch;
    ShardCommand command;
    command.kind = ShardCommand::Kind::kBeginEpoch;
    command.facts = {epoch, worker_count_,
                     std::make_shared<const Placement>(kPartitionBytes, kFrameBytes,
                                                       std::vector<std::uint32_t>{1})};
    CHECK(inbox_.post(std::move(command)).is_ok());
    for (Honest& worker : honest_) {
      const std::uint32_t rank = worker.rank;
      worker = Honest{};
      worker.rank = rank;
    }
    evil_.clear();
    evil_spoke_of_inputs_ = false;
    sums_.clear();
    turn();
    CHECK_EQ(applied_, epoch_);
  }

  // Everybody honest says all that is left; then it has all answers.
  void finish_what_can_be() {
    transport_.window = 64;
    for (Honest& worker : honest_) connect(worker);
    turn();
    // The one who is a round behind first: the other may have the sum already.
    for (std::uint32_t number = 0; number < kTensors; ++number) {
      std::uint32_t last =
          std::max(honest_[0].tensors[number].round, honest_[1].tensors[number].round);
      for (int i = 0; i < 2; ++i) {
        for (Honest& worker : honest_) {
          if (worker.tensors[number].round <= last) push_all(worker, number);
        }
        drain();
      }
      if (worker_count_ == 3) continue;
      for (const Honest& worker : honest_) {
        CHECK_EQ(worker.tensors[number].round, last + 1)
            << "worker " << worker.rank << " waits for tensor " << number << " for ever";
      }
    }
  }
  void drain() {
    std::size_t sent_before = 0;
    do {
      sent_before = transport_.sent_count;
      turn();
      transport_.give_back_all();
      turn();
    } while (transport_.sent_count != sent_before);
  }

  void stop() {
    CHECK(inbox_.post(ShardCommand{}).is_ok());
    for (Honest& worker : honest_) worker.peer.reset();
    turn();
    CHECK(shard_.finished()) << "stopped, and not finished";
    CHECK(transport_.peers.empty());
  }

  Script script_;
  const std::uint32_t worker_count_;
  const Config config_;
  ScriptedTransport transport_{64};
  Mailbox<ShardCommand> inbox_{64, nullptr};
  Mailbox<ShardNotice> outbox_{4096, nullptr};
  BlackBox black_box_{"server"};
  Shard shard_;
  std::vector<ShardNotice> notices_;
  TimeNs now_ = 1000 * kSecond;
  TimeNs alone_ns_ = 0;  // since an honest worker was last connected when time passed
  Epoch epoch_;
  Epoch applied_;
  std::array<Honest, 2> honest_;
  std::vector<PeerId> strangers_;
  std::map<Place, std::set<std::vector<std::byte>>> evil_;
  bool evil_spoke_of_inputs_ = false;  // in this epoch
  std::map<FrameOfRound, std::vector<std::byte>> sums_;
  std::size_t received_bytes_ = 0;
};

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  byteps::fuzz::ShardTarget(byteps::fuzz::Script(data, size)).run();
  return 0;
}
