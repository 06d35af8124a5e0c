// A worker whose tensors are on the fake GPU, with nothing of Python or torch: for jobs that are killed, whose driver
// fails at any of its calls, or whose copies are timed.
//
//   device_worker TENSORS BYTES ROUNDS [LATE_US [timed]]
//
// In each round a kernel fills every tensor, LATE_US after its turn has come; then all are summed, even ones in
// place, odd ones into another tensor; the last of three is a broadcast of rank 0's. When they have ended, a kernel
// of the same stream looks at every byte.
//
// timed: the exchange alone is timed, when the kernels before it have ended.
// Standard output: "rank R round N seconds S" for each round. Exit codes: 0; 1 what was asked of byteps or of the
// driver has failed, and standard error has the words; 2 bad arguments; 4 wrong values; 86 the fake GPU found a
// violation.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <byteps/byteps.h>

#include "tests/gpu/fake_gpu.h"

extern "C" std::uint32_t cuDeviceGetCount(int* count);

namespace {

enum Code { kFailed = 1, kBadArguments = 2, kWrongValues = 4 };

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "device_worker: %s\n", what.c_str());
  std::exit(kFailed);
}

void check_driver(std::uint32_t code, const char* call) {
  if (code != 0) fail(std::string(call) + " of the user failed: " + std::to_string(code));
}

// Small whole numbers: their sum is exact in float32.
float value_of(std::uint32_t rank, int round, int tensor) {
  return static_cast<float>((rank + 1) * static_cast<std::uint32_t>(round + tensor + 1));
}

struct Kernel {
  std::size_t count = 0;
  float value = 0;
  bool is_right = true;
};

struct OneTensor {
  std::string name;
  std::uint64_t input = 0;
  std::uint64_t output = 0;
  bool is_broadcast = false;
  byteps_handle handle = 0;
  Kernel kernel;
};

class Trainer {
 public:
  Trainer(byteps_job* job, int tensors, std::size_t bytes, std::uint64_t late_us, bool is_timed)
      : job_(job),
        bytes_(bytes),
        late_us_(late_us),
        is_timed_(is_timed),
        rank_(byteps_rank(job)),
        size_(byteps_size(job)) {
    int count = 0;
    check_driver(cuInit(0), "cuInit");
    check_driver(cuDeviceGetCount(&count), "cuDeviceGetCount");
    ordinal_ = static_cast<int>(byteps_local_rank(job)) % count;
    check_driver(cuDeviceGet(&device_, ordinal_), "cuDeviceGet");
    check_driver(cuDevicePrimaryCtxRetain(&context_, device_), "cuDevicePrimaryCtxRetain");
    check_driver(cuCtxSetCurrent(context_), "cuCtxSetCurrent");
    check_driver(cuStreamCreateWithPriority(&stream_, 1, 0), "cuStreamCreateWithPriority");
    for (int i = 0; i < tensors; ++i) {
      OneTensor one;
      one.name = "tensor " + std::to_string(i);
      one.input = allocate();
      one.output = i % 2 == 0 ? one.input : allocate();
      one.is_broadcast = i % 3 == 2;
      tensors_.push_back(one);
    }
  }

  // Seconds.
  double round(int number) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      OneTensor& one = tensors_[i];
      one.kernel = {bytes_ / sizeof(float), value_of(rank_, number, static_cast<int>(i)), true};
    }
    if (is_timed_) {
      for (OneTensor& one : tensors_) launch(one.input, one.kernel, 0, true);
      check_driver(cuStreamSynchronize(stream_), "cuStreamSynchronize");
    }
    const auto begin = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      OneTensor& one = tensors_[i];
      if (!is_timed_) launch(one.input, one.kernel, late_us_, true);
      submit(one, static_cast<int>(i));
    }
    byteps_error error;
    for (OneTensor& one : tensors_) {
      if (byteps_wait(job_, one.handle, -1, &error) != BYTEPS_OK) fail(error.message);
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    check(number);
    return seconds.count();
  }

  void end() {
    for (const OneTensor& one : tensors_) {
      check_driver(cuMemFree_v2(one.input), "cuMemFree");
      if (one.output != one.input) check_driver(cuMemFree_v2(one.output), "cuMemFree");
    }
    check_driver(cuStreamDestroy_v2(stream_), "cuStreamDestroy");
    check_driver(cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
    check_driver(cuDevicePrimaryCtxRelease_v2(device_), "cuDevicePrimaryCtxRelease");
  }

  std::uint32_t rank() const { return rank_; }

 private:
  void check(int number) {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      OneTensor& one = tensors_[i];
      one.kernel.value = expected(one, number, static_cast<int>(i));
      launch(one.output, one.kernel, 0, false);
    }
    check_driver(cuStreamSynchronize(stream_), "cuStreamSynchronize");
    for (const OneTensor& one : tensors_) {
      if (one.kernel.is_right) continue;
      std::fprintf(stderr, "device_worker: rank %u: %s is wrong\n", rank_, one.name.c_str());
      std::exit(kWrongValues);
    }
  }

  std::uint64_t allocate() const {
    std::uint64_t address = 0;
    check_driver(cuMemAlloc_v2(&address, bytes_), "cuMemAlloc");
    return address;
  }

  float expected(const OneTensor& one, int number, int index) const {
    if (one.is_broadcast) return value_of(0, number, index);
    float sum = 0;
    for (std::uint32_t rank = 0; rank < size_; ++rank) sum += value_of(rank, number, index);
    return sum;
  }

  void launch(std::uint64_t address, Kernel& kernel, std::uint64_t after_us, bool writes) const {
    const FakeGpuBytes memory{address, bytes_};
    const FakeGpuCompute fill = [](void* argument, void* const*, void* const* written) {
      const auto& what = *static_cast<Kernel*>(argument);
      auto* const values = static_cast<float*>(written[0]);
      for (std::size_t i = 0; i < what.count; ++i) values[i] = what.value;
    };
    const FakeGpuCompute look = [](void* argument, void* const* read, void* const*) {
      auto& what = *static_cast<Kernel*>(argument);
      const auto* const values = static_cast<const float*>(read[0]);
      for (std::size_t i = 0; i < what.count; ++i) what.is_right &= values[i] == what.value;
    };
    check_driver(writes ? fake_gpu_launch(stream_, after_us, nullptr, 0, &memory, 1, fill, &kernel)
                        : fake_gpu_launch(stream_, after_us, &memory, 1, nullptr, 0, look, &kernel),
                 "a kernel");
  }

  void submit(OneTensor& one, int index) const {
    byteps_tensor tensor{};
    tensor.struct_bytes = sizeof tensor;
    tensor.name = one.name.c_str();
    tensor.dtype = BYTEPS_FLOAT32;
    tensor.operation = one.is_broadcast ? BYTEPS_BROADCAST : BYTEPS_SUM;
    tensor.input = reinterpret_cast<const void*>(one.input);
    tensor.output = reinterpret_cast<void*>(one.output);
    tensor.element_count = bytes_ / sizeof(float);
    tensor.priority = -index;
    tensor.memory = BYTEPS_CUDA_MEMORY;
    tensor.device = ordinal_;
    tensor.stream = stream_;
    byteps_error error;
    if (byteps_push_pull(job_, &tensor, &one.handle, &error) != BYTEPS_OK) fail(error.message);
  }

  byteps_job* const job_;
  const std::size_t bytes_;
  const std::uint64_t late_us_;
  const bool is_timed_;
  const std::uint32_t rank_;
  const std::uint32_t size_;
  int ordinal_ = 0;
  int device_ = 0;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  std::vector<OneTensor> tensors_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4 || argc > 6) return kBadArguments;
  const int tensors = std::atoi(argv[1]);
  const auto bytes = static_cast<std::size_t>(std::atoll(argv[2]));
  const int rounds = std::atoi(argv[3]);
  const auto late_us = static_cast<std::uint64_t>(argc > 4 ? std::atoll(argv[4]) : 0);
  byteps_error error;
  byteps_job* job = nullptr;
  if (byteps_join(nullptr, &job, &error) != BYTEPS_OK) fail(error.message);
  Trainer trainer(job, tensors, bytes, late_us, argc > 5);
  for (int number = 0; number < rounds; ++number) {
    const double seconds = trainer.round(number);
    std::printf("rank %u round %d seconds %.6f\n", trainer.rank(), number, seconds);
    std::fflush(stdout);
  }
  if (byteps_leave(job, 1, &error) != BYTEPS_OK) fail(error.message);
  trainer.end();
  if (fake_gpu_check_leaks() != 0) fail("something was not given back");
  return 0;
}
