// What a training step takes in virtual time, where computing costs no processor: the models of bench/steps.py on as
// many workers as servers, each on a machine of its own; 0.2 s forward and 0.4 s backward. So what the protocol loses
// is told from what busy cores lose.
//
// Ideal is one line that carries what is ready, the first layer's gradient first, and costs nothing else. What is
// aimed at is 0.97 of it; the limits here are a little below what is reached, so that it cannot become less.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "sim/cluster.h"

namespace byteps::sim {
namespace {

constexpr double kForwardS = 0.2;
constexpr double kBackwardS = 0.4;
constexpr int kWarm = 3;
constexpr int kSteps = 6;  // counted
// Sanitizers look at the code, which is the same at any rate.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kAllRates = false;
#else
constexpr bool kAllRates = true;
#endif

struct StepModel {
  struct Layer {
    std::vector<std::uint64_t> bytes;  // of its gradients
    double share = 0;                  // of the time of a pass
  };
  struct Ideal {
    std::uint64_t bytes_per_second = 0;
    double global_s = 0;
    double crossed_s = 0;
  };
  std::vector<Layer> layers;
  Ideal ideals[2] = {};
};

#include "step_models.inc"

enum class Barrier : std::uint8_t {
  kGlobal,   // the forward pass begins when all sums are there
  kCrossed,  // a layer's begins when its own is
};

struct Case {
  const char* name;
  StepModel (*model)();
  std::uint32_t processes;  // workers, and servers
  std::size_t rate;         // which of the model's ideals
  Barrier barrier;
  double uneven;  // each layer takes so much of its time more or less, differently on each rank
  double least;   // of the ideal
};

// ---- what is reached

class StepFigures : public testing::TestWithParam<Case> {
 protected:
  StepFigures() : model_(GetParam().model()), ideal_(model_.ideals[GetParam().rate]) {
    std::uint64_t offset = 0;
    for (const StepModel::Layer& layer : model_.layers) {
      first_.push_back(gradients_.size());
      for (const std::uint64_t bytes : layer.bytes) {
        gradients_.push_back({offset, bytes});
        offset += bytes;
      }
    }
    first_.push_back(gradients_.size());
    gradients_.push_back({offset, 3 * gradients_.size()});
    ones_.assign(offset + gradients_.back().bytes, std::byte{1});

    Config config;
    config.job.scheduler_host = SchedulerProcess::endpoint().host;
    config.job.scheduler_port = SchedulerProcess::endpoint().port;
    config.job.worker_count = config.job.server_count = GetParam().processes;
    ClusterOptions options;
    options.network.bytes_per_second = ideal_.bytes_per_second;
    options.network.delay_ns = 50 * kMicrosecond;
    options.network.window_bytes = 4 << 20;
    options.network.lending = {Lending::kReadAtDepart};
    options.network.poison_views = false;
    cluster_ = std::make_unique<SimCluster>(options, Prng(1), trace_);
    scheduler_ = std::make_unique<SchedulerProcess>(*cluster_, config, 0);
    for (std::uint32_t i = 0; i < config.job.server_count; ++i) {
      servers_.push_back(std::make_unique<ServerProcess>(*cluster_, config, i, 1 + i, 1));
    }
    for (std::uint32_t rank = 0; rank < config.job.worker_count; ++rank) {
      config.job.rank = rank;
      const std::string name = "worker " + std::to_string(rank);
      ranks_.push_back(std::make_unique<Rank>());
      ranks_.back()->process =
          std::make_unique<WorkerProcess>(*cluster_, config, name, name, 100 + rank);
      ranks_.back()->sum.assign(ones_.size(), std::byte{0});
      ranks_.back()->handles.resize(gradients_.size());
    }
    EXPECT_TRUE(run_until([this] {
      return std::all_of(ranks_.begin(), ranks_.end(), [](const auto& rank) {
        return rank->process->door.membership().state().is_ok();
      });
    }));
  }

  // Of the ideal; told as a property of the test.
  double reached() {
    EXPECT_TRUE(run_until([this] {
      for (auto& rank : ranks_) go_on(*rank);
      return std::all_of(ranks_.begin(), ranks_.end(),
                         [](const auto& rank) { return rank->begun_ns.size() > kWarm + kSteps; });
    }));
    for (const auto& rank : ranks_) {
      const std::byte sum{static_cast<unsigned char>(ranks_.size())};
      const auto wrong = std::find_if(rank->sum.begin(), rank->sum.end(),
                                      [sum](std::byte each) { return each != sum; });
      EXPECT_EQ(wrong, rank->sum.end()) << "a sum of ones";
    }
    const std::vector<TimeNs>& begun = ranks_[0]->begun_ns;
    const double step_s = static_cast<double>(begun[kWarm + kSteps] - begun[kWarm]) / kSteps / 1e9;
    const double ideal_s = is_crossed() ? ideal_.crossed_s : ideal_.global_s;
    const double share = ideal_s / step_s;
    RecordProperty("of_ideal", std::to_string(share));
    EXPECT_LE(share, 1) << "nothing is better than ideal";
    return share;
  }

 private:
  struct Gradient {
    std::uint64_t offset;
    std::uint64_t bytes;
  };
  struct Rank {
    std::vector<std::byte> sum;
    std::unique_ptr<WorkerProcess> process;
    std::vector<std::optional<HandleId>> handles;  // by gradient, of the step before
    std::vector<TimeNs> begun_ns;                  // its steps
    std::size_t layer = 0;                         // whose forward is next
    bool is_computing = false;
  };

  bool is_crossed() const { return GetParam().barrier == Barrier::kCrossed; }
  bool run_until(const std::function<bool()>& done) {
    return cluster_->run_until(done, cluster_->now() + 60 * kSecond);
  }
  double some(double seconds) {
    if (GetParam().uneven == 0) return seconds;
    return seconds * (1 + GetParam().uneven * (static_cast<double>(prng_.below(2001)) / 1000 - 1));
  }
  void after(double seconds, std::function<void()> what) {
    cluster_->at(cluster_->now() + static_cast<TimeNs>(seconds * kSecond), std::move(what));
  }

  bool is_there(Rank& rank, std::size_t gradient) {
    std::optional<HandleId>& handle = rank.handles[gradient];
    if (!handle) return true;
    if (!rank.process->door.poll(*handle).value()) return false;
    EXPECT_TRUE(rank.process->door.wait(*std::exchange(handle, std::nullopt), 0).is_ok());
    return true;
  }

  // Begins the forward pass of its next layer, if it may.
  void go_on(Rank& rank) {
    if (rank.is_computing) return;
    const bool waits_for_all = rank.layer == 0 && !is_crossed();
    const std::size_t end = waits_for_all ? first_.back() : first_[rank.layer + 1];
    for (std::size_t i = first_[rank.layer]; i < end; ++i) {
      if (!is_there(rank, i)) return;
    }
    if (rank.layer == 0 && !is_there(rank, first_.back())) return;
    if (rank.layer == 0) rank.begun_ns.push_back(cluster_->now());
    rank.is_computing = true;
    after(some(kForwardS * model_.layers[rank.layer].share), [this, &rank] {
      if (++rank.layer == model_.layers.size()) return go_back(rank);
      rank.is_computing = false;
      go_on(rank);
    });
  }

  // The backward pass of the layer before `layer`, and of those before that.
  void go_back(Rank& rank) {
    --rank.layer;
    after(some(kBackwardS * model_.layers[rank.layer].share), [this, &rank] {
      for (std::size_t i = first_[rank.layer + 1]; i-- > first_[rank.layer];) submit(rank, i);
      if (rank.layer > 0) return go_back(rank);
      submit(rank, first_.back());
      rank.is_computing = false;
      go_on(rank);
    });
  }

  void submit(Rank& rank, std::size_t gradient) {
    const auto [offset, bytes] = gradients_[gradient];
    const bool is_last = gradient == first_.back();
    const std::string name = is_last ? "present" : "gradient." + std::to_string(gradient);
    Submission submission;
    submission.name = name;
    submission.input = ones_.data() + offset;
    submission.output = rank.sum.data() + offset;
    submission.element_count = bytes;
    submission.dtype = static_cast<std::uint32_t>(DType::kUint8);
    submission.priority = is_last ? 1 : -static_cast<std::int32_t>(gradient);
    const Result<HandleId> submitted = rank.process->door.submit(submission);
    ASSERT_TRUE(submitted.is_ok());
    rank.handles[gradient] = submitted.value();
  }

  const StepModel model_;
  const StepModel::Ideal ideal_;
  std::vector<Gradient> gradients_;  // and, as the last, the word of who has which
  std::vector<std::size_t> first_;   // by layer: of its gradients; then that word
  std::vector<std::byte> ones_;
  Prng prng_{7};
  Trace trace_;
  std::unique_ptr<SimCluster> cluster_;
  std::unique_ptr<SchedulerProcess> scheduler_;
  std::vector<std::unique_ptr<ServerProcess>> servers_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_P(StepFigures, a_step_is_near_the_ideal) {
  EXPECT_GE(reached(), GetParam().least);
}

// At 500 Mbit/s a frame takes 1 ms, and those of four workers come to a server one after the other. There a worker has
// what takes 10 ms (credit.h), in place of the two frames on each connection that take 8. More frames would be nearer,
// but in the laboratory those of eight workers overflow queues of 10 ms.
double least_of(std::uint32_t processes, std::size_t rate, bool has_large_front) {
  if (processes != 4 || rate == 0) return 0.979;
  return has_large_front ? 0.942 : 0.96;
}

// Where a forward waits for its own gradient, it waits a little longer for one that is large: one frame of it goes
// ahead (worker/push.cc). Most of ResNet-50's are.
constexpr double kLeastOfLargeCrossed = 0.974;

std::vector<Case> cases() {
  const std::pair<const char*, StepModel (*)()> models[] = {
      {"equal_layers", uniform},
      {"large_embedding", embedding},
      {"dense_layers_last", vgg},
      {"resnet50", resnet50},
  };
  std::vector<Case> all;
  for (const auto& [name, model] : models) {
    for (const Barrier barrier : {Barrier::kGlobal, Barrier::kCrossed}) {
      for (const std::uint32_t processes : {4U, 2U}) {
        for (const std::size_t rate : {0U, 1U}) {
          if (!kAllRates && (rate == 1 || processes == 2)) continue;
          const bool has_large = model == uniform || model == resnet50;
          const bool is_large = has_large && barrier == Barrier::kCrossed && rate == 0;
          const double least =
              is_large ? kLeastOfLargeCrossed : least_of(processes, rate, model == embedding);
          all.push_back({name, model, processes, rate, barrier, 0, least});
        }
      }
    }
  }
  // Gradients are there some milliseconds apart, as on real machines.
  constexpr double kUneven[][2] = {{0.975, 0.965}, {0.965, 0.97}, {0.98, 0.972}, {0.97, 0.966}};
  for (std::size_t i = 0; i < std::size(models); ++i) {
    const auto& [name, model] = models[i];
    all.push_back({name, model, 4, 0, Barrier::kGlobal, 0.08, kUneven[i][0]});
    all.push_back({name, model, 4, 0, Barrier::kCrossed, 0.08, kUneven[i][1]});
  }
  return all;
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  const Case& each = info.param;
  return std::string(each.name) + (each.barrier == Barrier::kCrossed ? "_crossed" : "") +
         (each.uneven > 0 ? "_uneven" : "") + "_n" + std::to_string(each.processes) +
         (each.rate == 0 ? "_1_gbit" : "_500_mbit");
}

INSTANTIATE_TEST_SUITE_P(Models, StepFigures, testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace byteps::sim
