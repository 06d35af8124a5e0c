// A tensor of more than 4 GiB through the whole cluster: scheduler, server, two workers, in place. Goal: every
// length and offset on the way has 64 bits.
//
// Method: the tensors are almost all zeros, in memory that is reserved and not touched, and pages that are all zero are
// handed back to the system as soon as something was written there. That changes no byte and keeps the test small. The
// bytes that are not zero stand at the places where 31, 32 and 33 bits end, at borders of frames, and at random ones.
// Beside them the offsets of all messages are written down: pushes and answers must cover the tensor once, without gap.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "base/prng.h"
#include "net/wire.h"
#include "sim/cluster.h"

namespace byteps::sim {
namespace {

constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
constexpr std::uint64_t kPageBytes = 4096;
constexpr std::uint64_t kTensorBytes = 4 * kGiB + 3 * kPayloadBytesMax + 1234;

// Pages within `memory` that are all zero cost no memory afterwards; their content stays zero.
void drop_zero_pages(std::span<const std::byte> memory) {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::uintptr_t end = begin + memory.size();
  std::uintptr_t run = 0;  // first of the zero pages just before `page`
  const auto drop = [&run](std::uintptr_t until) {
    if (run != 0) madvise(reinterpret_cast<void*>(run), until - run, MADV_DONTNEED);
    run = 0;
  };
  std::uintptr_t page = (begin + kPageBytes - 1) / kPageBytes * kPageBytes;
  for (; page + kPageBytes <= end; page += kPageBytes) {
    const auto* bytes = reinterpret_cast<const std::byte*>(page);
    const bool zero =
        bytes[0] == std::byte{0} && std::memcmp(bytes, bytes + 1, kPageBytes - 1) == 0;
    if (!zero) {
      drop(page);
    } else if (run == 0) {
      run = page;
    }
  }
  drop(page);
}

// Zeros that cost memory only where they are changed.
class SparseMemory {
 public:
  explicit SparseMemory(std::size_t bytes)
      : bytes_(bytes),
        memory_(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~SparseMemory() {
    if (is_there()) munmap(memory_, bytes_);
  }
  SparseMemory(const SparseMemory&) = delete;
  SparseMemory& operator=(const SparseMemory&) = delete;
  bool is_there() const { return memory_ != MAP_FAILED; }
  std::span<std::byte> span() { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  std::size_t bytes_;
  void* memory_;
};

// Where bytes that are not zero stand.
std::vector<std::uint64_t> marked_places(std::uint64_t frame_bytes) {
  std::vector<std::uint64_t> places = {0, kTensorBytes - 1};
  for (const std::uint64_t border : {2 * kGiB, 4 * kGiB, 3 * frame_bytes, 700 * frame_bytes}) {
    places.insert(places.end(), {border - 1, border, border + 1});
  }
  Prng prng(5);
  for (int i = 0; i < 100; ++i) places.push_back(prng.below(kTensorBytes));
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  return places;
}

class LargeTensor : public testing::Test {
 protected:
  static constexpr std::uint32_t kWorkers = 2;

  LargeTensor() {
    config_.job.scheduler_host = SchedulerProcess::endpoint().host;
    config_.job.scheduler_port = SchedulerProcess::endpoint().port;
    config_.job.worker_count = kWorkers;
    config_.job.server_count = 1;
    config_.flow.frame_bytes = kPayloadBytesMax;
    config_.flow.credit_bytes = 4 * kPayloadBytesMax;
  }

  void make_cluster(std::uint64_t partition_bytes, std::uint32_t shard_count) {
    shard_count_ = shard_count;
    config_.flow.partition_bytes = partition_bytes;
    ClusterOptions options;
    options.network.bytes_per_second = 0;
    options.network.lending = {Lending::kReadAtArrive};
    options.network.window_bytes = 16 << 20;
    options.network.poison_views = false;
    cluster_ = std::make_unique<SimCluster>(options, Prng(1), trace_);
    NetworkProbes& probes = cluster_->network().probes();
    probes.on_send = [this](auto header, auto payload) { sent(header, payload); };
    probes.on_receive = [this](auto header, auto payload) { received(header, payload); };
    scheduler_ = std::make_unique<SchedulerProcess>(*cluster_, config_, 0);
    server_ = std::make_unique<ServerProcess>(*cluster_, config_, 0, 1, shard_count);
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
      Config config = config_;
      config.job.rank = rank;
      const std::string name = "worker " + std::to_string(rank);
      workers_.push_back(std::make_unique<WorkerProcess>(*cluster_, config, name, name, 2 + rank));
      memory_.push_back(std::make_unique<SparseMemory>(kTensorBytes));
    }
  }

  std::uint64_t place_of(const wire::Header& header) const {
    const Placement placement(config_.flow.partition_bytes, config_.flow.frame_bytes,
                              std::vector<std::uint32_t>(shard_count_, 1));
    return placement.part(header.key, kTensorBytes, header.part.value).offset + header.offset_bytes;
  }

  // A push reads the tensor where its header says it does.
  void sent(std::span<const std::byte> bytes, std::span<const std::byte> payload) {
    const wire::Header header = wire::decode_header(bytes).value();
    if (header.kind == wire::Kind::kAnswer) return drop_zero_pages(payload);
    if (header.kind != wire::Kind::kPush) return;
    const std::byte* expected = memory_[header.worker.value]->span().data() + place_of(header);
    wrong_places_ += payload.data() != expected ? 1 : 0;
    pushed_[header.worker.value].emplace(place_of(header), payload.size());
    // Who pushes has copied what it was answered before.
    std::vector<std::span<const std::byte>>& written = written_[header.worker.value];
    for (const std::span<const std::byte> frame : written) drop_zero_pages(frame);
    written.clear();
  }

  // An answer is copied where its header says it belongs: its receiver does that next.
  void received(std::span<const std::byte> bytes, std::span<const std::byte> payload) {
    const wire::Header header = wire::decode_header(bytes).value();
    if (header.kind != wire::Kind::kAnswer) return;
    const std::uint64_t place = place_of(header);
    answered_[header.worker.value].emplace(place, payload.size());
    written_[header.worker.value].push_back(
        memory_[header.worker.value]->span().subspan(place, payload.size()));
  }

  static void expect_covered_once(const std::multimap<std::uint64_t, std::uint64_t>& messages) {
    std::uint64_t end = 0;
    for (const auto& [place, bytes] : messages) {
      ASSERT_EQ(place, end);
      end = place + bytes;
    }
    EXPECT_EQ(end, kTensorBytes);
  }

  bool run_until(const std::function<bool()>& done) {
    return cluster_->run_until(done, cluster_->now() + 600 * kSecond);
  }

  void exchange_and_check();

  std::uint32_t shard_count_ = 1;
  Config config_;
  Trace trace_;
  std::unique_ptr<SimCluster> cluster_;
  std::unique_ptr<SchedulerProcess> scheduler_;
  std::unique_ptr<ServerProcess> server_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
  std::vector<std::unique_ptr<SparseMemory>> memory_;
  std::uint64_t wrong_places_ = 0;
  std::multimap<std::uint64_t, std::uint64_t> pushed_[kWorkers];
  std::multimap<std::uint64_t, std::uint64_t> answered_[kWorkers];
  // Where answers were copied, since the worker's last push.
  std::vector<std::span<const std::byte>> written_[kWorkers];
};

void LargeTensor::exchange_and_check() {
  ASSERT_TRUE(run_until([this] {
    return std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
      return worker->door.membership().state().is_ok();
    });
  }));
  const std::vector<std::uint64_t> places = marked_places(kPayloadBytesMax);
  std::vector<HandleId> handles;
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    const std::span<std::byte> memory = memory_[rank]->span();
    for (std::size_t i = 0; i < places.size(); ++i) {
      memory[places[i]] = static_cast<std::byte>(1 + rank * 100 + i % 20);
    }
    Submission submission;
    submission.name = "large";
    submission.input = submission.output = memory.data();
    submission.element_count = kTensorBytes;
    submission.dtype = static_cast<std::uint32_t>(DType::kUint8);
    handles.push_back(workers_[rank]->door.submit(submission).value());
  }
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    WorkerDoor& door = workers_[rank]->door;
    ASSERT_TRUE(run_until([&] { return door.poll(handles[rank]).value(); }));
    EXPECT_TRUE(door.wait(handles[rank], 0).is_ok());
  }
  EXPECT_EQ(wrong_places_, 0U);
  for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
    expect_covered_once(pushed_[rank]);
    expect_covered_once(answered_[rank]);
    const std::span<const std::byte> result = memory_[rank]->span();
    for (std::size_t i = 0; i < places.size(); ++i) {
      ASSERT_EQ(result[places[i]], static_cast<std::byte>(2 + 100 + 2 * (i % 20))) << places[i];
    }
    for (const std::uint64_t place : places) {
      const std::uint64_t next = place + 2;
      if (next >= kTensorBytes || std::binary_search(places.begin(), places.end(), next)) continue;
      ASSERT_EQ(result[next], std::byte{0}) << next;
    }
    EXPECT_EQ(workers_[rank]->door.metrics().finished_bytes, kTensorBytes);
  }
}

TEST_F(LargeTensor, of_4_gib_is_summed_exactly_in_parts_of_16_mib) {
  make_cluster(16 << 20, 2);
  ASSERT_TRUE(memory_[0]->is_there() && memory_[1]->is_there());
  exchange_and_check();
}

// One part is the whole tensor, so that also offsets within a part pass 4 GiB.
TEST_F(LargeTensor, of_4_gib_is_summed_exactly_as_one_part) {
  make_cluster(8 * kGiB, 1);
  ASSERT_TRUE(memory_[0]->is_there() && memory_[1]->is_there());
  exchange_and_check();
}

}  // namespace
}  // namespace byteps::sim
