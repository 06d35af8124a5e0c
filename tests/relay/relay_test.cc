// Relays between real shelves and dull workers: whatever comes in whatever order, everybody gets the sum of all.
#include "relay/relay.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/prng.h"
#include "tests/relay/one_relay.h"

namespace byteps {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

struct Message {
  wire::Header header;
  Bytes payload;
};

// What one worker knows of one tensor.
struct Round {
  std::uint32_t number = 0;
  std::set<std::pair<std::uint32_t, std::uint64_t>> pushed;    // part and offset
  std::set<std::pair<std::uint32_t, std::uint64_t>> answered;  // the same
  Bytes result;
};

// A machine's network is queues; nothing moves but by step(), which takes one of them by chance.
class Cluster {
 public:
  Cluster(const std::vector<std::uint64_t>& machines, std::uint32_t shard_count, std::uint64_t seed)
      : prng_(seed),
        groups_(std::make_shared<const Groups>(machines)),
        worker_count_(static_cast<std::uint32_t>(machines.size())),
        shard_count_(shard_count),
        placement_(std::make_shared<const Placement>(kPartitionBytes, kFrameBytes,
                                                     std::vector<std::uint32_t>(shard_count, 1))) {
    for (std::uint32_t shard = 0; shard < shard_count; ++shard) {
      servers_.push_back(std::make_unique<ShelfWorld>(
          ShelfEpoch{Epoch(7), worker_count_, placement_, groups_, std::nullopt}, ShelfSettings{}));
    }
    for (WorkerRank rank(0); rank.value < worker_count_; ++rank.value) {
      RelayConfig config{.uplink = {.self = rank, .epoch = Epoch(7), .placement = *placement_}};
      config.uplink.credit_bytes = 400;  // few frames at once
      config.uplink.credit_frames_min = 2;
      config.uplink.groups = groups_;
      relays_.push_back(std::make_unique<Relay>(config, pool_));
      for (std::uint32_t worker = 0; worker < worker_count_; ++worker) {
        relays_.back()->connect(WorkerRank(worker));
      }
      for (std::uint32_t shard = 0; shard < shard_count; ++shard) {
        relays_.back()->uplink().on_shard_up(ShardIndex(shard));
      }
    }
    links_.resize(std::size_t{worker_count_} * shard_count);
    rounds_.resize(worker_count_);
    declared_.resize(worker_count_);
  }
  ~Cluster() { drop_payloads(); }

  void add(const wire::Declare& tensor) {
    tensors_.push_back(tensor);
    for (auto& rounds : rounds_) rounds.emplace_back();
  }

  // Until all workers have had so many rounds of each tensor.
  void run(std::uint32_t rounds) {
    for (int step = 0; step < 400'000; ++step) {
      if (is_done(rounds)) return;
      act(rounds);
      if (testing::Test::HasFailure()) return;
    }
    FAIL() << "not finished";
  }

  void cut_sometimes() { cuts_ = true; }
  const std::vector<ShelfOutput::Spoiled>& spoiled() const { return spoiled_; }
  std::uint32_t leader(std::uint32_t rank, const wire::Declare& tensor, std::uint32_t part) const {
    const Crew crew = groups_->crew_of(groups_->group_of(WorkerRank(rank)), tensor.members);
    return leader_of(crew, key_of(tensor.name), part, shard_count_).value;
  }
  std::uint64_t pushes() const { return pushes_; }  // that servers got
  std::size_t pool_bytes() const { return pool_.lent_bytes(); }
  Relay& relay(std::uint32_t rank) { return *relays_[rank]; }
  bool stops_when_spoiled = false;

 private:
  struct Link {  // of a relay with a shard
    std::deque<Message> up;
    std::deque<Message> down;
  };
  Link& link(std::uint32_t relay, std::uint32_t shard) {
    return links_[std::size_t{relay} * shard_count_ + shard];
  }

  double number(std::size_t t, std::uint32_t round, std::uint32_t worker, std::uint64_t i) const {
    return static_cast<double>(stable_mix(t * 1'000'003 + round * 10'007 + worker * 101 + i) % 4);
  }
  Bytes input(std::size_t t, std::uint32_t round, std::uint32_t worker) const {
    Bytes bytes;
    for (std::uint64_t i = 0; i < tensors_[t].element_count(); ++i) {
      append_number(bytes, tensors_[t].dtype, number(t, round, worker, i));
    }
    return bytes;
  }
  Bytes expected(std::size_t t, std::uint32_t round, std::uint32_t to) const {
    const wire::Declare& tensor = tensors_[t];
    if (!tensor.is_sent_to(WorkerRank(to))) return {};
    if (tensor.operation == Operation::kBroadcast) return input(t, round, tensor.root.value);
    Bytes bytes;
    for (std::uint64_t i = 0; i < tensor.element_count(); ++i) {
      double sum = 0;
      for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
        if (tensor.members.has(WorkerRank(rank))) sum += number(t, round, rank, i);
      }
      append_number(bytes, tensor.dtype, sum);
    }
    return bytes;
  }

  bool is_done(std::uint32_t rounds) const {
    if (stops_when_spoiled && !spoiled_.empty()) return true;
    for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        if (!tensors_[t].members.has(WorkerRank(rank))) continue;
        if (rounds_[rank][t].number < rounds) return false;
      }
    }
    return true;
  }

  void act(std::uint32_t rounds) {
    const auto rank = static_cast<std::uint32_t>(prng_.below(worker_count_));
    const auto shard = static_cast<std::uint32_t>(prng_.below(shard_count_));
    now_ += static_cast<TimeNs>(prng_.below(20 * kMicrosecond));
    switch (prng_.below(6)) {
      case 0:
      case 1:
        return push(rank, rounds);
      case 2:
        return send(rank, shard);
      case 3:
        return deliver_up(rank, shard);
      case 4:
        return deliver_down(rank, shard);
      default:
        if (cuts_ && prng_.chance(0.02)) return cut(rank, shard);
        give_back();
        relays_[rank]->tick(now_);
        tell(rank);
        servers_[shard]->tick(now_);
        return answer(shard);
    }
  }

  // A frame of a worker goes to the relay that leads its part.
  void push(std::uint32_t rank, std::uint32_t rounds) {
    const std::size_t t = prng_.below(tensors_.size());
    const wire::Declare& tensor = tensors_[t];
    Round& round = rounds_[rank][t];
    if (round.number == rounds || !tensor.members.has(WorkerRank(rank))) return;
    const Key key = key_of(tensor.name);
    const auto index = prng_.below(placement_->part_count(tensor.total_bytes));
    const Placement::Part part = placement_->part(key, tensor.total_bytes, index);
    const std::uint64_t offset = prng_.below(Placement::frame_count(part)) * part.frame_bytes;
    const auto part_number = static_cast<std::uint32_t>(index);
    if (!round.pushed.emplace(part_number, offset).second) return;
    const std::uint32_t to = leader(rank, tensor, part_number);
    wire::Header header;
    header.epoch = Epoch(7);
    header.key = key;
    header.worker = WorkerRank(rank);
    if (declared_[rank].emplace(to, t).second) {
      header.kind = wire::Kind::kDeclare;
      relays_[to]->step(WorkerRank(rank), header, wire::encode(tensor), now_);
    }
    header.kind = wire::Kind::kPush;
    header.part = PartIndex(part_number);
    header.round = byteps::Round(round.number);
    header.offset_bytes = offset;
    header.tag = 1;
    Bytes payload;
    if (tensor.gives(WorkerRank(rank))) {
      const Bytes all = input(t, round.number, rank);
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(part.offset + offset);
      payload.assign(begin, begin + static_cast<std::ptrdiff_t>(
                                        std::min(part.frame_bytes, part.bytes - offset)));
    } else {
      header.flags = wire::kNoPayload;
    }
    relays_[to]->step(WorkerRank(rank), header, payload, now_);
    tell(to);
  }

  // A relay hands a message for a shard to its transport, which sends it, sometimes later.
  void send(std::uint32_t rank, std::uint32_t shard) {
    Outgoing message;
    if (!relays_[rank]->uplink().front(ShardIndex(shard), message)) return;
    const Result<wire::Header> header = wire::decode_header(message.header);
    ASSERT_TRUE(header.is_ok());
    link(rank, shard).up.push_back({header.value(), bytes_of(message.payload)});
    if (message.token != 0) sent_.emplace_back(rank, message.token);
    relays_[rank]->uplink().pop();
    if (prng_.chance(0.5)) give_back();
  }
  void give_back() {
    if (sent_.empty()) return;
    const auto [rank, token] = sent_.front();
    sent_.pop_front();
    relays_[rank]->on_sent(token);
  }
  void drop_payloads() {
    while (!sent_.empty()) give_back();
  }

  void deliver_up(std::uint32_t rank, std::uint32_t shard) {
    std::deque<Message>& up = link(rank, shard).up;
    if (up.empty()) return;
    const Message message = std::move(up.front());
    up.pop_front();
    pushes_ += message.header.kind == wire::Kind::kPush ? 1 : 0;
    servers_[shard]->now = now_;
    servers_[shard]->step(rank, message.header, message.payload);
    answer(shard);
  }
  void answer(std::uint32_t shard) {
    const Told told = servers_[shard]->take();
    ASSERT_THAT(told.violations, IsEmpty()) << told.violations[0].text;
    for (const ShelfOutput::Answer& each : told.answers) {
      link(each.header.worker.value, shard).down.push_back({each.header, bytes_of(each.payload())});
    }
    for (const ShelfOutput::Wanted& wanted : told.wanted) {
      wire::Header header;
      header.kind = wire::Kind::kWanted;
      header.epoch = Epoch(7);
      header.key = wanted.key;
      header.part = wanted.part;
      header.round = wanted.round;
      header.offset_bytes = wanted.end_bytes;
      link(wanted.worker.value, shard).down.push_back({header, {}});
    }
    for (const ShelfOutput::Spoiled& spoiled : told.spoiled) {
      for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
        relays_[rank]->on_mismatch(spoiled.key, {spoiled.code, spoiled.text});
        tell(rank);
      }
    }
  }
  void deliver_down(std::uint32_t rank, std::uint32_t shard) {
    std::deque<Message>& down = link(rank, shard).down;
    if (down.empty()) return;
    const Message message = std::move(down.front());
    down.pop_front();
    if (message.header.kind == wire::Kind::kWanted) {
      relays_[rank]->on_wanted(ShardIndex(shard), message.header);
    } else {
      const Status fine =
          relays_[rank]->on_answer(ShardIndex(shard), message.header, message.payload);
      ASSERT_TRUE(fine.is_ok()) << fine.message();
    }
    tell(rank);
  }

  // The connection ends and is made again: what is on it is lost.
  void cut(std::uint32_t rank, std::uint32_t shard) {
    drop_payloads();
    link(rank, shard) = {};
    relays_[rank]->uplink().on_shard_down(ShardIndex(shard));
    servers_[shard]->reconnect(rank);
    relays_[rank]->uplink().on_shard_up(ShardIndex(shard));
  }

  // A relay's words reach its workers.
  void tell(std::uint32_t relay) {
    Told told;
    told.add(std::move(relays_[relay]->down()));
    relays_[relay]->down().clear();
    ASSERT_THAT(told.violations, IsEmpty()) << told.violations[0].text;
    for (const ShelfOutput::Spoiled& spoiled : told.spoiled) spoiled_.push_back(spoiled);
    for (const ShelfOutput::Answer& answer : told.answers) take(answer);
  }
  void take(const ShelfOutput::Answer& answer) {
    const std::uint32_t rank = answer.header.worker.value;
    std::size_t t = 0;
    while (key_of(tensors_[t].name) != answer.header.key) ++t;
    Round& round = rounds_[rank][t];
    ASSERT_EQ(answer.header.round.value, round.number);
    ASSERT_TRUE(round.answered.emplace(answer.header.part.value, answer.header.offset_bytes).second)
        << "answered twice";
    if (tensors_[t].is_sent_to(WorkerRank(rank))) {
      round.result.resize(tensors_[t].total_bytes);
      const Bytes payload = bytes_of(answer.payload());
      const std::uint64_t at =
          placement_->part(answer.header.key, tensors_[t].total_bytes, answer.header.part.value)
              .offset +
          answer.header.offset_bytes;
      std::copy(payload.begin(), payload.end(),
                round.result.begin() + static_cast<std::ptrdiff_t>(at));
    }
    std::size_t frames = 0;
    for (std::uint64_t part = 0; part < placement_->part_count(tensors_[t].total_bytes); ++part) {
      frames += Placement::frame_count(
          placement_->part(answer.header.key, tensors_[t].total_bytes, part));
    }
    if (round.answered.size() < frames) return;
    ASSERT_EQ(round.result, expected(t, round.number, rank))
        << tensors_[t].text() << " at worker " << rank << ", round " << round.number;
    round = {.number = round.number + 1, .pushed = {}, .answered = {}, .result = {}};
  }

  Prng prng_;
  const std::shared_ptr<const Groups> groups_;
  const std::uint32_t worker_count_;
  const std::uint32_t shard_count_;
  const std::shared_ptr<const Placement> placement_;
  BufferPool pool_;
  std::vector<std::unique_ptr<ShelfWorld>> servers_;
  std::vector<std::unique_ptr<Relay>> relays_;
  std::vector<Link> links_;                               // by relay and shard
  std::deque<std::pair<std::uint32_t, SendToken>> sent_;  // payloads that transports have
  std::vector<wire::Declare> tensors_;
  std::vector<std::vector<Round>> rounds_;  // by worker and tensor
  std::vector<std::set<std::pair<std::uint32_t, std::size_t>>>
      declared_;  // by worker: relay, tensor
  std::vector<ShelfOutput::Spoiled> spoiled_;
  std::uint64_t pushes_ = 0;
  bool cuts_ = false;
  TimeNs now_ = 0;
};

wire::Declare some_tensor(Prng& prng, int number, std::uint32_t worker_count) {
  constexpr DType kKinds[] = {DType::kFloat32, DType::kFloat16, DType::kInt64, DType::kUint8};
  const DType dtype = kKinds[prng.below(4)];
  const Operation operation = prng.chance(0.3) ? Operation::kBroadcast : Operation::kSum;
  wire::Declare tensor =
      declaration("tensor " + std::to_string(number), dtype, element_bytes(dtype) * prng.below(600),
                  operation, static_cast<std::uint32_t>(prng.below(worker_count)));
  tensor.root_only = operation == Operation::kSum && prng.chance(0.2);
  if (prng.chance(0.3)) {
    std::vector<std::uint32_t> members;
    for (std::uint32_t rank = 0; rank < worker_count; ++rank) {
      if (rank == tensor.root.value || prng.chance(0.5)) members.push_back(rank);
    }
    if (members.size() < worker_count) tensor.members = Members(members);
  }
  return tensor;
}

void run_some(std::uint64_t seed, bool cuts) {
  Prng prng(seed);
  const auto worker_count = static_cast<std::uint32_t>(1 + prng.below(7));
  std::vector<std::uint64_t> machines;
  for (std::uint32_t rank = 0; rank < worker_count; ++rank) machines.push_back(prng.below(4));
  Cluster cluster(machines, static_cast<std::uint32_t>(1 + prng.below(3)), seed);
  if (cuts) cluster.cut_sometimes();
  const auto tensor_count = 1 + prng.below(4);
  for (std::uint64_t i = 0; i < tensor_count; ++i) {
    cluster.add(some_tensor(prng, static_cast<int>(i), worker_count));
  }
  cluster.run(3);
}

TEST(Relay, everybody_gets_the_sum_of_all_in_whatever_order_things_come) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_some(seed, false);
    if (HasFailure()) return;
  }
}

TEST(Relay, also_when_connections_with_servers_end_and_are_made_again) {
  for (std::uint64_t seed = 1001; seed <= 1100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    run_some(seed, true);
    if (HasFailure()) return;
  }
}

TEST(Relay, each_frame_crosses_the_network_once_for_each_machine) {
  Cluster cluster({1, 1, 1, 2, 2, 2}, 2, 3);
  cluster.add(declaration("x", DType::kFloat32, 16 * kPartitionBytes));
  cluster.run(2);
  EXPECT_EQ(cluster.pushes(), 2u * 2u * 16u * (kPartitionBytes / kFrameBytes));
}

TEST(RelayEnds, what_is_lent_stays_until_it_is_back_also_when_the_tensor_is_given_up) {
  One one;
  one.declare(0);
  one.declare(1);
  one.both(0);
  const std::vector<wire::Header> sent = one.send();
  ASSERT_EQ(sent.size(), 2u);  // a Declare and a push
  one.answer(sent[1]);
  EXPECT_EQ(one.told().answers.size(), 2u);
  one.both(1);  // waits: the payload of round 0 is at the transport
  EXPECT_GT(one.pool.lent_bytes(), 64u);
  one.relay->on_mismatch(key_of(one.x.name), {Code::kMismatch, "ranks disagree"});
  EXPECT_EQ(one.told().spoiled.size(), 1u);
  EXPECT_EQ(one.pool.lent_bytes(), 64u) << "the transport has it still";
  for (const SendToken token : one.tokens) one.relay->on_sent(token);
  EXPECT_EQ(one.pool.lent_bytes(), 0u);
}

TEST(RelayEnds, parts_that_come_after_the_end_change_nothing_and_are_told_so) {
  One one;
  one.x.total_bytes = 2 * kPartitionBytes;
  // Both parts must be led here, so the other worker is no member of it.
  const std::vector<std::uint32_t> members = {0, 2};
  one.x.members = Members(members);
  one.declare(0);
  for (std::uint64_t offset = 0; offset < kPartitionBytes; offset += kFrameBytes) {
    wire::Header header = one.about(0, wire::Kind::kPush);
    header.offset_bytes = offset;
    one.relay->step(WorkerRank(0), header, filled(64, 0), 0);
  }
  EXPECT_GT(one.send().size(), 1u);
  one.relay->fail_all({Code::kDisconnected, "the job has failed"});
  for (std::uint64_t offset = 0; offset < kPartitionBytes; offset += kFrameBytes) {
    wire::Header header = one.about(0, wire::Kind::kPush);
    header.part = PartIndex(1);
    header.offset_bytes = offset;
    one.relay->step(WorkerRank(0), header, filled(64, 0), 0);
  }
  one.relay->tick(1);
  for (const SendToken token : one.tokens) one.relay->on_sent(token);
  const Told told = one.told();
  ASSERT_EQ(told.spoiled.size(), 1u);
  EXPECT_THAT(told.spoiled[0].text, HasSubstr("the job has failed"));
  EXPECT_EQ(one.pool.lent_bytes(), 0u);
}

TEST(RelayEnds, workers_that_disagree_hear_of_it_and_so_do_the_servers_once) {
  One one;
  one.declare(0);
  one.push(0);
  one.x.total_bytes = 128;
  one.declare(1);
  EXPECT_EQ(one.told().spoiled.size(), 1u);
  const std::vector<wire::Header> sent = one.send();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].kind, wire::Kind::kDeclare) << "that was before";
  EXPECT_EQ(sent[1].kind, wire::Kind::kMismatch);
  EXPECT_EQ(sent[1].key, key_of(one.x.name));
  one.relay->on_mismatch(key_of(one.x.name), {Code::kMismatch, "as the servers say"});
  EXPECT_THAT(one.send(), IsEmpty());
  EXPECT_EQ(one.pool.lent_bytes(), 0u);
}

TEST(RelayEnds, what_others_want_is_asked_of_all_where_nobody_has_begun_it) {
  One one;
  wire::Header header = one.about(0, wire::Kind::kWanted);
  one.relay->on_wanted(ShardIndex(0), header);
  EXPECT_EQ(one.told().wanted.size(), 2u);
  header.epoch = Epoch(6);
  one.relay->on_wanted(ShardIndex(0), header);
  EXPECT_THAT(one.told().wanted, IsEmpty());
}

}  // namespace
}  // namespace byteps
