// What tensors on GPUs cost in virtual time (docs/gpu.md), where processors are free: two hosts with a GPU each, two
// servers, 256 MiB in 16 tensors, cards of 100 Gbit/s and copies of 105 Gbit/s in each direction, or of twice as much.
//
// The limit is what the cards need, M/B. One stage after the other takes M/b + M/B + M/b, a third of that speed where
// b = B. Overlapped they take as long as the slowest, and the time of a few pieces.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sim/cluster.h"

namespace byteps::sim {
namespace {

constexpr std::uint64_t kCardBytesPerSecond = 12'500'000'000;
constexpr std::uint64_t kBus = 13'125'000'000;  // 105 Gbit/s, as of PCIe 3.0 with 16 lanes
constexpr std::uint32_t kTensors = 16;
constexpr std::uint64_t kTensorBytes = 16 << 20;
constexpr std::uint64_t kBytes = kTensors * kTensorBytes;
constexpr std::uint32_t kWorkers = 2;
constexpr std::uint32_t kServers = 2;

class DeviceFigures : public testing::Test {
 protected:
  // `gpu`: none where tensors are in host memory.
  void make_cluster(const std::optional<SimDeviceOptions>& gpu) {
    Config config;
    config.job.scheduler_host = SchedulerProcess::endpoint().host;
    config.job.scheduler_port = SchedulerProcess::endpoint().port;
    config.job.worker_count = kWorkers;
    config.job.server_count = kServers;
    ClusterOptions options;
    options.network.bytes_per_second = kCardBytesPerSecond;
    options.network.delay_ns = 10 * kMicrosecond;
    options.network.jitter_ns = 2 * kMicrosecond;
    options.network.window_bytes = 4 << 20;
    options.network.lending = {Lending::kReadAtDepart};
    options.network.poison_views = false;
    cluster_ = std::make_unique<SimCluster>(options, Prng(1), trace_);
    scheduler_ = std::make_unique<SchedulerProcess>(*cluster_, config, 0);
    for (std::uint32_t i = 0; i < kServers; ++i) {
      servers_.push_back(std::make_unique<ServerProcess>(*cluster_, config, i, 1 + i, 1));
    }
    for (std::uint32_t rank = 0; rank < kWorkers; ++rank) {
      config.job.rank = rank;
      const std::string name = "worker " + std::to_string(rank);
      workers_.push_back(std::make_unique<WorkerProcess>(*cluster_, config, name, name, 10 + rank,
                                                         std::function<void()>(),
                                                         gpu ? &*gpu : nullptr));
      memory_.emplace_back(kBytes, std::byte{static_cast<unsigned char>(1 + rank)});
    }
    ASSERT_TRUE(run_until([this] {
      return std::all_of(workers_.begin(), workers_.end(), [](const auto& worker) {
        return worker->door.membership().state().is_ok();
      });
    }));
  }

  bool run_until(const std::function<bool()>& done) {
    return cluster_->run_until(done, cluster_->now() + 60 * kSecond);
  }

  // All tensors of both workers, at once.
  TimeNs exchange() {
    const TimeNs begun_ns = cluster_->now();
    for (std::uint32_t i = 0; i < kTensors; ++i) {
      for (std::uint32_t rank = 0; rank < kWorkers; ++rank) submit(rank, i);
    }
    EXPECT_TRUE(run_until([this] {
      return std::all_of(workers_.begin(), workers_.end(),
                         [](const auto& worker) { return worker->door.pending_handles() == 0; });
    }));
    return cluster_->now() - begun_ns;
  }

  void submit(std::uint32_t rank, std::uint32_t tensor) {
    WorkerProcess& worker = *workers_[rank];
    std::byte* const memory = memory_[rank].data() + tensor * kTensorBytes;
    const std::string name = "tensor." + std::to_string(tensor);
    Submission submission;
    submission.name = name;
    submission.input = submission.output = worker.device ? SimDevice::far(memory) : memory;
    if (worker.device) submission.device = Submission::OnDevice();
    submission.element_count = kTensorBytes;
    submission.dtype = static_cast<std::uint32_t>(DType::kUint8);
    submission.priority = -static_cast<std::int32_t>(tensor);
    EXPECT_TRUE(worker.door.submit(submission).is_ok());
  }

  // The second exchange: names, connections and credit are known then. It is checked.
  TimeNs measure(const std::optional<SimDeviceOptions>& gpu) {
    make_cluster(gpu);
    exchange();
    const TimeNs ns = exchange();
    for (const std::vector<std::byte>& memory : memory_) {
      // 1 + 2 = 3, and 3 + 3.
      const auto wrong = std::find_if(memory.begin(), memory.end(),
                                      [](std::byte value) { return value != std::byte{6}; });
      EXPECT_EQ(wrong, memory.end());
    }
    return ns;
  }

  // One tensor of a host after the other is copied out of a GPU, and in again, and nothing else happens meanwhile.
  TimeNs copy_all(const SimDeviceOptions& options) {
    SimDevice gpu("the GPU", options, [this] { return cluster_->now(); });
    const TimeNs begun_ns = cluster_->now();
    std::vector<std::byte> host(kTensorBytes);
    for (std::uint32_t i = 0; i < 2 * kTensors; ++i) {
      const bool is_out = i < kTensors;
      std::byte* const memory = SimDevice::far(memory_[0].data() + i % kTensors * kTensorBytes);
      const auto address = reinterpret_cast<std::uintptr_t>(memory);
      const Result<device::Event> copied = is_out ? gpu.copy_out(host.data(), address, kTensorBytes)
                                                  : gpu.copy_in(address, host.data(), kTensorBytes);
      const auto is_over = [&] {
        cluster_->at(cluster_->now() + kMicrosecond, [] {});
        return gpu.has_happened(copied.value()).value();
      };
      EXPECT_TRUE(run_until(is_over));
    }
    return cluster_->now() - begun_ns;
  }

  // How much of the limit is reached.
  static double share(TimeNs ns) {
    const double limit_ns = static_cast<double>(kBytes) * kSecond / kCardBytesPerSecond;
    return limit_ns / static_cast<double>(ns);
  }

  Trace trace_;
  std::vector<std::vector<std::byte>> memory_;
  std::unique_ptr<SimCluster> cluster_;
  std::unique_ptr<SchedulerProcess> scheduler_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<WorkerProcess>> workers_;
};

TEST_F(DeviceFigures, where_the_bus_is_as_fast_as_the_card_a_step_takes_what_the_card_takes) {
  const double reached = share(measure(SimDeviceOptions{.bytes_per_second = kBus}));
  RecordProperty("limit_per_time", std::to_string(reached));
  EXPECT_GE(reached, 0.95);
}

TEST_F(DeviceFigures, and_where_it_is_twice_as_fast) {
  const double reached = share(measure(SimDeviceOptions{.bytes_per_second = 2 * kBus}));
  RecordProperty("limit_per_time", std::to_string(reached));
  EXPECT_GE(reached, 0.97);
}

// What the others are measured against: all is copied out, then it is summed as host memory is, then it is copied in.
TEST_F(DeviceFigures, one_stage_after_the_other_reaches_a_third) {
  const TimeNs on_network_ns = measure(std::nullopt);
  EXPECT_GE(share(on_network_ns), 0.97) << "host memory";
  const double reached =
      share(copy_all(SimDeviceOptions{.bytes_per_second = kBus}) + on_network_ns);
  RecordProperty("limit_per_time", std::to_string(reached));
  EXPECT_NEAR(reached, 0.34, 0.02);
}

}  // namespace
}  // namespace byteps::sim
