// The shelf under chaos against a dull model: workers with several tensors of all kinds, each in an order of its own,
// some of them for all of their machine, with repeats (whose payload is garbage by then), late ones, lost answers and
// new connections. Every result that reaches a worker is compared with the sum of that round, computed by a plain loop
// over whole numbers.
#include <cmath>
#include <deque>
#include <map>
#include <set>
#include <tuple>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "tests/server/shelf_world.h"

namespace byteps {
namespace {

constexpr std::uint64_t kPartitionBytes = 192;
constexpr std::uint64_t kFrameBytes = 64;

struct FrameId {
  std::uint32_t part = 0;
  std::uint64_t offset = 0;
  auto operator<=>(const FrameId&) const = default;
};

// What one worker knows of one tensor.
struct WorkerTensor {
  std::vector<FrameId> led;  // by it in its machine's crew: what it pushes
  std::uint32_t round = 0;
  Bytes result;
  std::set<FrameId> pushed;    // in this round, on this connection
  std::set<FrameId> answered;  // in this round
};

struct Worker {
  std::vector<WorkerTensor> tensors;
  std::set<std::size_t> declared;              // on this connection
  std::deque<ShelfOutput::Answer> on_the_way;  // lost when the connection ends
};

class Chaos {
 public:
  Chaos(std::uint64_t seed, bool deterministic)
      : prng_(seed),
        worker_count_(static_cast<std::uint32_t>(prng_.chance(0.1) ? 60 + prng_.below(11)
                                                                   : 1 + prng_.below(6))),
        groups_(prng_.chance(0.5) ? Groups(some_machines()) : Groups::apart(worker_count_)),
        world_(worker_count_, kPartitionBytes, kFrameBytes, settings(deterministic), machines_),
        workers_(worker_count_) {
    const std::size_t tensor_count = 1 + prng_.below(5);
    for (std::size_t t = 0; t < tensor_count; ++t) add_tensor(t);
    for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
      workers_[rank].tensors.resize(tensor_count);
      for (std::size_t t = 0; t < tensor_count; ++t) {
        std::vector<FrameId>& led = workers_[rank].tensors[t].led;
        for (const FrameId& frame : frames_[t]) {
          if (tensors_[t].members.has(WorkerRank(rank)) && leader(rank, t, frame) == rank) {
            led.push_back(frame);
          }
        }
      }
    }
  }

  void run(std::uint32_t rounds) {
    rounds_ = rounds;
    const std::uint64_t steps_max = 200'000;
    for (std::uint64_t step = 0; step < steps_max && !done(); ++step) {
      act(static_cast<std::uint32_t>(prng_.below(worker_count_)));
      if (prng_.chance(0.05))
        world_.tick(world_.now + static_cast<TimeNs>(prng_.below(4 * kMillisecond)));
      collect();
      if (testing::Test::HasFailure()) return;
    }
    ASSERT_TRUE(done()) << "not finished";
    for (Worker& worker : workers_) worker.on_the_way.clear();
    EXPECT_EQ(world_.shelf.inventory().incomplete_frame_count(), 0U);
    EXPECT_EQ(world_.pool.lent_bytes(), owned_bytes()) << "each frame at rest costs its bytes once";
    world_.tick(world_.now + 100 * kSecond);
    EXPECT_TRUE(world_.out.empty());
    EXPECT_EQ(world_.shelf.next_deadline(), kNever);
  }

 private:
  // Of few machines, and sometimes one that says nothing of itself.
  const std::vector<std::uint64_t>& some_machines() {
    const std::uint64_t machine_count = 1 + prng_.below(worker_count_);
    for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
      machines_.push_back(prng_.chance(0.1) ? 0 : 100 + prng_.below(machine_count));
    }
    return machines_;
  }
  Crew crew(std::uint32_t rank, std::size_t t) const {
    return groups_.crew_of(groups_.group_of(WorkerRank(rank)), tensors_[t].members);
  }
  // Of this worker's crew.
  std::uint32_t leader(std::uint32_t rank, std::size_t t, const FrameId& frame) const {
    return leader_of(crew(rank, t), key_of(tensors_[t].name), frame.part, 1).value;
  }
  bool has_root(std::uint32_t rank, std::size_t t) const {
    return groups_.group_of(WorkerRank(rank)) == groups_.group_of(tensors_[t].root);
  }

  static ShelfSettings settings(bool deterministic) {
    ShelfSettings settings;
    settings.deterministic = deterministic;
    return settings;
  }

  void add_tensor(std::size_t t) {
    const auto dtype = static_cast<DType>(prng_.below(kDTypeCount));
    auto operation = static_cast<Operation>(prng_.below(kOperationCount));
    if (dtype == DType::kBool && operation == Operation::kAverage) operation = Operation::kSum;
    const std::uint64_t count = prng_.chance(0.1) ? 0 : 1 + prng_.below(500 / element_bytes(dtype));
    tensors_.push_back(declaration("tensor " + std::to_string(t), dtype,
                                   count * element_bytes(dtype), operation,
                                   static_cast<std::uint32_t>(prng_.below(worker_count_))));
    frames_.push_back(cut(tensors_.back().total_bytes));
    wire::Declare& tensor = tensors_.back();
    if (prng_.chance(0.3)) choose_members(tensor);
    tensor.root_only = operation != Operation::kBroadcast && prng_.chance(0.2);
    if (prng_.chance(0.3) && flaw_of_scale(-2, dtype, operation) == nullptr) {
      tensor.scale = prng_.chance(0.5) ? 2 : -2;
    }
  }

  // The root and some others; not all, which would be no members.
  void choose_members(wire::Declare& tensor) {
    std::vector<std::uint32_t> members;
    for (std::uint32_t worker = 0; worker < worker_count_; ++worker) {
      if (tensor.root.value == worker || prng_.chance(0.5)) members.push_back(worker);
    }
    if (members.size() < worker_count_) tensor.members = Members(members);
  }

  static double joined(const wire::Declare& tensor, double a, double b) {
    switch (tensor.operation) {
      case Operation::kMin:
        return std::min(a, b);
      case Operation::kMax:
        return std::max(a, b);
      case Operation::kProduct:
        return a * b;
      default:
        return a + b;
    }
  }

  // Whole numbers that stay exact in every kind, also summed over 70 workers; products are powers of two.
  double number(std::size_t t, std::uint32_t round, std::uint32_t worker,
                std::uint64_t index) const {
    const std::uint64_t bits =
        stable_mix(t * 1'000'003 + round * 10'007 + worker * 101 + index) % 4;
    if (tensors_[t].operation == Operation::kProduct) return bits == 3 ? 2 : 1;
    return static_cast<double>(bits);
  }

  // What this worker's crew has together.
  Bytes crews(std::size_t t, std::uint32_t round, std::uint32_t rank, std::uint64_t start,
              std::uint64_t bytes) const {
    const wire::Declare& tensor = tensors_[t];
    if (tensor.operation == Operation::kBroadcast) {
      return contribution(t, round, tensor.root.value, start, bytes);
    }
    const Crew all = crew(rank, t);
    const std::size_t size = element_bytes(tensor.dtype);
    Bytes elements;
    for (std::uint64_t i = start / size; i < (start + bytes) / size; ++i) {
      double sum = number(t, round, all[0].value, i);
      for (std::size_t place = 1; place < all.size(); ++place) {
        sum = joined(tensor, sum, number(t, round, all[place].value, i));
      }
      const bool is_scaled =
          tensor.dtype == DType::kFloat16 &&
          (tensor.operation == Operation::kSum || tensor.operation == Operation::kAverage);
      if (is_scaled) sum = std::ldexp(sum, -headroom_of(groups_.crews_of(tensor.members)));
      append_number(elements, tensor.dtype, sum);
    }
    return elements;
  }

  // Elements of `bytes` bytes from `start`, of what this worker has.
  Bytes contribution(std::size_t t, std::uint32_t round, std::uint32_t worker, std::uint64_t start,
                     std::uint64_t bytes) const {
    const std::size_t size = element_bytes(tensors_[t].dtype);
    Bytes elements;
    for (std::uint64_t i = start / size; i < (start + bytes) / size; ++i) {
      append_number(elements, tensors_[t].dtype, number(t, round, worker, i));
    }
    return elements;
  }

  // The model.
  Bytes expected(std::size_t t, std::uint32_t round) const {
    const wire::Declare& tensor = tensors_[t];
    if (tensor.operation == Operation::kBroadcast) {
      return contribution(t, round, tensor.root.value, 0, tensor.total_bytes);
    }
    const bool floating = tensor.dtype == DType::kFloat32 || tensor.dtype == DType::kFloat64 ||
                          tensor.dtype == DType::kFloat16 || tensor.dtype == DType::kBfloat16;
    Bytes bytes;
    const std::uint64_t count = tensor.total_bytes / element_bytes(tensor.dtype);
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::uint32_t member_count = tensor.members.count(worker_count_);
      double sum = number(t, round, tensor.members.at(0).value, i);
      if (tensor.dtype == DType::kBool) sum = sum != 0;
      for (std::uint32_t place = 1; place < member_count; ++place) {
        const double one = number(t, round, tensor.members.at(place).value, i);
        sum = joined(tensor, sum, tensor.dtype == DType::kBool ? (one != 0) : one);
      }
      // int8 and uint8 wrap; the sum is read as the kind reads it before it is divided.
      if (tensor.dtype == DType::kInt8)
        sum = static_cast<std::int8_t>(static_cast<std::int64_t>(sum));
      if (tensor.operation == Operation::kAverage) {
        sum = tensor.dtype == DType::kFloat64 || !floating
                  ? sum / member_count
                  : static_cast<double>(static_cast<float>(sum) / static_cast<float>(member_count));
        if (!floating && tensor.scale == 1) sum = std::trunc(sum);
      }
      sum = scaled(tensor, sum);
      append_number(bytes, tensor.dtype, sum);
    }
    return bytes;
  }

  // Numbers are small, so only the smallest integers, and zero, are a bound.
  static double scaled(const wire::Declare& tensor, double sum) {
    if (tensor.scale == 1) return sum;
    const double result = sum * tensor.scale;
    switch (tensor.dtype) {
      case DType::kInt8:
        return std::clamp(result, -128.0, 127.0);
      case DType::kUint8:
        return std::clamp(result, 0.0, 255.0);
      case DType::kUint16:
      case DType::kUint32:
      case DType::kUint64:
        return std::max(result, 0.0);
      default:
        return result;
    }
  }

  static std::vector<FrameId> cut(std::uint64_t total) {
    std::vector<FrameId> all;
    for (std::uint64_t start = 0; start < std::max<std::uint64_t>(1, total);
         start += kPartitionBytes) {
      const std::uint64_t length = std::min(kPartitionBytes, total - start);
      for (std::uint64_t at = 0; at < std::max<std::uint64_t>(1, length); at += kFrameBytes) {
        all.push_back({static_cast<std::uint32_t>(start / kPartitionBytes), at});
      }
    }
    return all;
  }
  std::size_t frame_length(std::size_t t, const FrameId& frame) const {
    const std::uint64_t start = frame.part * kPartitionBytes + frame.offset;
    const std::uint64_t part_end =
        std::min((frame.part + 1) * kPartitionBytes, tensors_[t].total_bytes);
    return std::min(kFrameBytes, part_end - start);
  }

  void act(std::uint32_t rank) {
    Worker& worker = workers_[rank];
    const std::size_t t = prng_.below(tensors_.size());
    WorkerTensor& tensor = worker.tensors[t];
    if (!worker.on_the_way.empty() && prng_.chance(0.4)) return receive(rank);
    if (prng_.chance(0.01)) return reconnect(rank);
    if (tensor.round > 0 && prng_.chance(0.1)) return push_late(rank, t);
    const std::vector<FrameId>& all = tensor.led;
    if (tensor.round == rounds_ || all.empty()) return;
    const FrameId frame = all[prng_.below(all.size())];
    const bool repeat = tensor.pushed.contains(frame) || tensor.answered.contains(frame);
    if (repeat && !prng_.chance(0.05)) return;
    push(rank, t, tensor.round, frame, repeat);
    tensor.pushed.insert(frame);
    contributed_[{t, tensor.round, frame}].insert(rank);
  }

  void push(std::uint32_t rank, std::size_t t, std::uint32_t round, const FrameId& frame,
            bool garbage) {
    Worker& worker = workers_[rank];
    if (worker.declared.insert(t).second) world_.declare(rank, tensors_[t]);
    const wire::Declare& tensor = tensors_[t];
    const bool without = tensor.operation == Operation::kBroadcast && !has_root(rank, t);
    Bytes payload;
    if (!without) {
      payload = crews(t, round, rank, frame.part * kPartitionBytes + frame.offset,
                      frame_length(t, frame));
      if (garbage) payload = filled(payload.size(), 0x55);
    }
    world_.push(rank, tensor.name, round, payload, {frame.part, frame.offset},
                without ? wire::kNoPayload : 0, tag(t, round, rank));
  }
  static std::uint32_t tag(std::size_t t, std::uint32_t round, std::uint32_t rank) {
    return 1 + static_cast<std::uint32_t>(t) + 1000 * round + 1'000'000 * rank;
  }

  // A doubled push of an earlier round that arrives now.
  void push_late(std::uint32_t rank, std::size_t t) {
    const std::vector<FrameId>& all = workers_[rank].tensors[t].led;
    const auto round = static_cast<std::uint32_t>(prng_.below(workers_[rank].tensors[t].round));
    push(rank, t, round, all[prng_.below(all.size())], true);
  }

  void reconnect(std::uint32_t rank) {
    Worker& worker = workers_[rank];
    worker.on_the_way.clear();
    worker.declared.clear();
    for (WorkerTensor& tensor : worker.tensors) tensor.pushed.clear();
    world_.reconnect(rank);
  }

  void receive(std::uint32_t rank) {
    Worker& worker = workers_[rank];
    const ShelfOutput::Answer answer = std::move(worker.on_the_way.front());
    worker.on_the_way.pop_front();
    std::size_t t = 0;
    while (key_of(tensors_[t].name) != answer.header.key) ++t;
    WorkerTensor& tensor = worker.tensors[t];
    const FrameId frame{answer.header.part.value, answer.header.offset_bytes};
    ASSERT_EQ(answer.header.tag, tag(t, answer.header.round.value, rank));
    if (answer.header.round.value != tensor.round) return;  // that operation is over
    const wire::Declare& declared = tensors_[t];
    const bool is_root = has_root(rank, t);
    const bool without =
        declared.root_only ? !is_root : is_root && declared.operation == Operation::kBroadcast;
    ASSERT_EQ(answer.header.flags, without ? wire::kNoPayload : 0);
    ASSERT_EQ(answer.payload().size(), without ? 0 : frame_length(t, frame));
    if (tensor.result.empty()) tensor.result.resize(tensors_[t].total_bytes);
    std::copy(answer.payload().begin(), answer.payload().end(),
              tensor.result.begin() +
                  static_cast<std::ptrdiff_t>(frame.part * kPartitionBytes + frame.offset));
    tensor.answered.insert(frame);
    if (tensor.answered.size() < tensor.led.size()) return;
    const Bytes right = without ? Bytes() : expected(t, tensor.round);
    for (const FrameId& led : tensor.led) {
      if (without) break;
      const auto at = static_cast<std::ptrdiff_t>(led.part * kPartitionBytes + led.offset);
      const auto length = static_cast<std::ptrdiff_t>(frame_length(t, led));
      ASSERT_TRUE(
          std::equal(right.begin() + at, right.begin() + at + length, tensor.result.begin() + at))
          << tensors_[t].name << " at worker " << rank << ", round " << tensor.round << ", part "
          << led.part << ", offset " << led.offset;
    }
    ++tensor.round;
    tensor.result.clear();
    tensor.pushed.clear();
    tensor.answered.clear();
  }

  // Takes over what the shelf gave.
  void collect() {
    Told out = world_.take();
    ASSERT_EQ(out.violations.size(), 0U) << out.violations[0].text;
    ASSERT_EQ(out.spoiled.size() + out.failures.size(), 0U);
    for (ShelfOutput::Answer& answer : out.answers) {
      workers_[answer.header.worker.value].on_the_way.push_back(std::move(answer));
    }
    for (const ShelfOutput::Wanted& wanted : out.wanted) {
      bool missing = false;  // in a frame of that part that somebody else has pushed
      for (const auto& [frame, workers] : contributed_) {
        const auto& [t, round, id] = frame;
        missing |= key_of(tensors_[t].name) == wanted.key && round == wanted.round.value &&
                   id.part == wanted.part.value && !workers.contains(wanted.worker.value) &&
                   tensors_[t].members.has(wanted.worker) &&
                   leader(wanted.worker.value, t, id) == wanted.worker.value;
      }
      ASSERT_TRUE(missing) << wanted.worker << " was asked for what it has sent";
    }
  }

  bool done() const {
    for (std::uint32_t rank = 0; rank < worker_count_; ++rank) {
      for (std::size_t t = 0; t < tensors_.size(); ++t) {
        if (workers_[rank].tensors[t].led.empty()) continue;
        if (workers_[rank].tensors[t].round < rounds_) return false;
      }
    }
    return true;
  }

  std::size_t owned_bytes() const {
    std::size_t bytes = 0;
    for (std::size_t t = 0; t < tensors_.size(); ++t) {
      for (const FrameId& frame : frames_[t]) bytes += frame_length(t, frame) > 0 ? kFrameBytes : 0;
    }
    return bytes;
  }

  Prng prng_;
  const std::uint32_t worker_count_;
  std::vector<std::uint64_t> machines_;  // by rank; empty: each has its own
  const Groups groups_;
  ShelfWorld world_;
  std::vector<Worker> workers_;  // after the world: they hold its buffers
  std::vector<wire::Declare> tensors_;
  std::vector<std::vector<FrameId>> frames_;  // by tensor
  std::uint32_t rounds_ = 0;
  std::map<std::tuple<std::size_t, std::uint32_t, FrameId>, std::set<std::uint32_t>> contributed_;
};

TEST(ShelfModel, every_result_is_the_sum_of_its_round_whatever_is_lost_repeated_or_late) {
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Chaos(seed, false).run(4);
    if (HasFailure()) return;
  }
}

TEST(ShelfModel, deterministic_sums_keep_the_same_promises) {
  for (std::uint64_t seed = 1001; seed <= 1050; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Chaos(seed, true).run(4);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace byteps
