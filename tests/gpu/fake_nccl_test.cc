// The rules of NCCL in README.md, each shown by a test: the ranks are threads of this process, each with a device.
#include "tests/gpu/fake_nccl.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/gpu/fake_gpu.h"

namespace {

constexpr int kRanks = 2;
constexpr int kCount = 1000;
constexpr int kCountViolations = 2;
constexpr unsigned kNonBlocking = 1;
constexpr std::uint32_t kSuccess = 0;
constexpr std::uint32_t kNotReady = 600;
constexpr unsigned kDisableTiming = 2;

// Memory of a device with some floats.
class Floats {
 public:
  explicit Floats(std::size_t count, float first = 0, float step = 0) : count_(count) {
    EXPECT_EQ(cuMemAlloc_v2(&address_, count * sizeof(float)), kSuccess);
    std::vector<float> values(count);
    for (std::size_t i = 0; i < count; ++i) values[i] = first + step * static_cast<float>(i);
    EXPECT_EQ(cuMemcpyHtoD_v2(address_, values.data(), count * sizeof(float)), kSuccess);
    EXPECT_EQ(cuCtxSynchronize(), kSuccess);
  }
  void* get() const { return reinterpret_cast<void*>(address_); }
  float* at(std::size_t i) const { return static_cast<float*>(get()) + i; }
  std::uint64_t address() const { return address_; }
  // What the host finds, on a stream.
  std::vector<float> read(void* stream) const {
    std::vector<float> values(count_);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(values.data(), address_, count_ * sizeof(float), stream),
              kSuccess);
    return values;
  }

 private:
  std::size_t count_;
  std::uint64_t address_ = 0;
};

struct Rank {
  int number = 0;
  NcclComm* comm = nullptr;
  void* stream = nullptr;
};

class FakeNccl : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"CUDA_VISIBLE_DEVICES", "FAKE_GPU_FAIL", "FAKE_NCCL_WAIT_S"})
      unsetenv(name);
    fake_gpu_reset();
    fake_gpu_on_violation(kCountViolations);
    ASSERT_EQ(cuInit(0), kSuccess);
    ASSERT_EQ(ncclGetUniqueId(&id_), kNcclSuccess);
  }
  void TearDown() override { fake_gpu_reset(); }

  // Makes the device of a number the thread's.
  static void use(int device) {
    void* context = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, device), kSuccess);
    ASSERT_EQ(cuCtxPushCurrent_v2(context), kSuccess);
  }
  static void* stream() {
    void* made = nullptr;
    EXPECT_EQ(cuStreamCreateWithPriority(&made, kNonBlocking, 0), kSuccess);
    return made;
  }
  static void synchronize(void* stream) { ASSERT_EQ(cuStreamSynchronize(stream), kSuccess); }

  void on_threads(const std::function<void(int)>& body) {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < kRanks; ++rank) threads.emplace_back([&, rank] { body(rank); });
    for (std::thread& one : threads) one.join();
  }
  // Each rank in a thread, with a communicator that is destroyed, or aborted, afterwards.
  void on_ranks(const std::function<void(Rank)>& body, bool aborts = false) {
    on_threads([&](int rank) {
      use(rank);
      Rank mine{rank, nullptr, stream()};
      ASSERT_EQ(ncclCommInitRank(&mine.comm, kRanks, id_, rank), kNcclSuccess);
      body(mine);
      EXPECT_EQ(aborts ? ncclCommAbort(mine.comm) : ncclCommDestroy(mine.comm), kNcclSuccess);
    });
  }
  // What the state becomes that is not `before`.
  static NcclResult state_after(NcclComm* comm, NcclResult before) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    NcclResult state = before;
    while (state == before && std::chrono::steady_clock::now() < until) {
      EXPECT_EQ(ncclCommGetAsyncError(comm, &state), kNcclSuccess);
    }
    return state;
  }
  static void expect_violation(const std::string& text) {
    EXPECT_EQ(fake_gpu_violations(), 1U);
    EXPECT_NE(std::string(fake_gpu_last_violation()).find(text), std::string::npos)
        << fake_gpu_last_violation();
  }
  static void expect_none() { EXPECT_EQ(fake_gpu_violations(), 0U) << fake_gpu_last_violation(); }

  NcclUniqueId id_{};
};

TEST_F(FakeNccl, ranks_get_the_same_sum_again_and_again) {
  on_ranks([](Rank me) {
    const Floats mine(kCount, static_cast<float>(me.number), 1);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(
          ncclAllReduce(mine.get(), mine.get(), kCount, kNcclFloat32, kNcclSum, me.comm, me.stream),
          kNcclSuccess);
    }
    const std::vector<float> sum = mine.read(me.stream);
    EXPECT_EQ(sum[0], 4 * 1.0F);
    EXPECT_EQ(sum[10], 4 * 21.0F);
  });
  expect_none();
}

TEST_F(FakeNccl, a_call_returns_before_the_collective_has_happened_and_its_stream_waits) {
  on_threads([this](int rank) {
    use(rank);
    NcclComm* comm = nullptr;
    ASSERT_EQ(ncclCommInitRank(&comm, kRanks, id_, rank), kNcclSuccess);
    void* const on = stream();
    const Floats mine(kCount, 1);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_EQ(ncclAllReduce(mine.get(), mine.get(), kCount, kNcclFloat32, kNcclSum, comm, on),
              kNcclSuccess);
    if (rank == 0) {
      EXPECT_EQ(cuStreamQuery(on), kNotReady);
    }
    EXPECT_EQ(mine.read(on)[kCount - 1], 2);
    EXPECT_EQ(ncclCommDestroy(comm), kNcclSuccess);
  });
  expect_none();
}

TEST_F(FakeNccl, each_collective_gives_what_it_should) {
  on_ranks([](Rank me) {
    const auto rank = static_cast<float>(me.number);
    const Floats mine(2, rank, 10);  // 0 10, and 1 11
    const Floats all(4, -1);
    const Floats one(1, -1);
    ASSERT_EQ(ncclAllGather(mine.get(), all.get(), 2, kNcclFloat32, me.comm, me.stream),
              kNcclSuccess);
    EXPECT_EQ(all.read(me.stream), (std::vector<float>{0, 10, 1, 11}));
    ASSERT_EQ(
        ncclReduceScatter(mine.get(), one.get(), 1, kNcclFloat32, kNcclMax, me.comm, me.stream),
        kNcclSuccess);
    EXPECT_EQ(one.read(me.stream)[0], me.number == 0 ? 1 : 11);
    const Floats swapped(2, -1);
    ASSERT_EQ(ncclAlltoAll(mine.get(), swapped.get(), 1, kNcclFloat32, me.comm, me.stream),
              kNcclSuccess);
    EXPECT_EQ(swapped.read(me.stream),
              me.number == 0 ? (std::vector<float>{0, 1}) : (std::vector<float>{10, 11}));
    ASSERT_EQ(
        ncclReduce(mine.get(), swapped.get(), 2, kNcclFloat32, kNcclProd, 1, me.comm, me.stream),
        kNcclSuccess);
    EXPECT_EQ(swapped.read(me.stream)[1], me.number == 0 ? 1 : 110);
    ASSERT_EQ(ncclBroadcast(mine.get(), swapped.get(), 2, kNcclFloat32, 1, me.comm, me.stream),
              kNcclSuccess);
    EXPECT_EQ(swapped.read(me.stream), (std::vector<float>{1, 11}));
    ASSERT_EQ(ncclAllReduce(mine.get(), mine.get(), 2, kNcclFloat32, kNcclAvg, me.comm, me.stream),
              kNcclSuccess);
    EXPECT_EQ(mine.read(me.stream), (std::vector<float>{0.5, 10.5}));
  });
  expect_none();
}

TEST_F(FakeNccl, an_operator_of_ones_own_scales_before_the_sum) {
  on_ranks([](Rank me) {
    const Floats mine(2, 3);
    const Floats device_scalar(1, static_cast<float>(me.number) + 1);
    float scalar = static_cast<float>(me.number) + 1;
    for (void* const from : {static_cast<void*>(&scalar), device_scalar.get()}) {
      const auto where = from == &scalar ? kNcclScalarHost : kNcclScalarDevice;
      NcclOperator op = kNcclSum;
      ASSERT_EQ(ncclRedOpCreatePreMulSum(&op, from, kNcclFloat32, where, me.comm), kNcclSuccess);
      const Floats sum(2);
      ASSERT_EQ(ncclAllReduce(mine.get(), sum.get(), 2, kNcclFloat32, op, me.comm, me.stream),
                kNcclSuccess);
      ASSERT_EQ(ncclRedOpDestroy(op, me.comm), kNcclSuccess);
      EXPECT_EQ(sum.read(me.stream)[1], 3 * 1 + 3 * 2);
      EXPECT_EQ(ncclAllReduce(mine.get(), sum.get(), 2, kNcclFloat32, op, me.comm, me.stream),
                kNcclInvalidArgument);
    }
  });
  expect_none();
}

TEST_F(FakeNccl, transfers_of_a_group_may_wait_for_each_other) {
  on_ranks([](Rank me) {
    const int peer = 1 - me.number;
    const Floats mine(kCount, static_cast<float>(me.number));
    const Floats theirs(kCount, -1);
    ncclGroupStart();
    EXPECT_EQ(ncclRecv(theirs.get(), kCount, kNcclFloat32, peer, me.comm, me.stream), kNcclSuccess);
    EXPECT_EQ(ncclSend(mine.get(), kCount, kNcclFloat32, peer, me.comm, me.stream), kNcclSuccess);
    EXPECT_EQ(ncclGroupEnd(), kNcclSuccess);
    EXPECT_EQ(theirs.read(me.stream)[kCount - 1], static_cast<float>(peer));
  });
  expect_none();
}

TEST_F(FakeNccl, a_thread_makes_the_communicators_of_its_devices_in_a_group) {
  std::array<NcclComm*, kRanks> comms{};
  ASSERT_EQ(ncclCommInitAll(comms.data(), kRanks, nullptr), kNcclSuccess);
  ncclGroupStart();
  std::vector<std::pair<Floats, void*>> all;
  for (int rank = 0; rank < kRanks; ++rank) {
    use(rank);
    all.emplace_back(Floats(1, 2), stream());
    const auto& [memory, on] = all.back();
    EXPECT_EQ(ncclAllReduce(memory.get(), memory.get(), 1, kNcclFloat32, kNcclSum,
                            comms[static_cast<std::size_t>(rank)], on),
              kNcclSuccess);
  }
  EXPECT_EQ(ncclGroupEnd(), kNcclSuccess);
  for (const auto& [memory, on] : all) EXPECT_EQ(memory.read(on)[0], 4);
  for (NcclComm* const comm : comms) EXPECT_EQ(ncclCommAbort(comm), kNcclSuccess);
  expect_none();
}

// ---- order

TEST_F(FakeNccl, a_collective_must_be_ordered_with_other_uses_of_its_bytes) {
  on_ranks([](Rank me) {
    const Floats mine(kCount, 1);
    if (me.number == 0) {
      EXPECT_EQ(cuMemsetD8Async(mine.address(), 0, 4, stream()), kSuccess);
    }
    EXPECT_EQ(
        ncclAllReduce(mine.get(), mine.get(), kCount, kNcclFloat32, kNcclSum, me.comm, me.stream),
        kNcclSuccess);
    synchronize(me.stream);
  });
  expect_violation("ncclAllReduce of stream");
}

TEST_F(FakeNccl, its_result_is_used_after_its_stream) {
  on_ranks([](Rank me) {
    const Floats mine(kCount, 1);
    EXPECT_EQ(
        ncclAllReduce(mine.get(), mine.get(), kCount, kNcclFloat32, kNcclSum, me.comm, me.stream),
        kNcclSuccess);
    void* const other = stream();
    if (me.number == 0) {
      void* event = nullptr;
      EXPECT_EQ(cuEventCreate(&event, kDisableTiming), kSuccess);
      EXPECT_EQ(cuEventRecord(event, me.stream), kSuccess);
      EXPECT_EQ(cuStreamWaitEvent(other, event, 0), kSuccess);
    }
    EXPECT_EQ(cuMemsetD8Async(mine.address(), 0, 4, other), kSuccess);  // rank 1 does not wait
    synchronize(other);
    synchronize(me.stream);
  });
  expect_violation("cuMemsetD8Async of stream");
}

TEST_F(FakeNccl, buffers_are_the_same_or_apart) {
  on_ranks([](Rank me) {
    const Floats mine(3, 1);
    if (me.number == 0) {
      EXPECT_EQ(
          ncclAllReduce(mine.get(), mine.at(1), 2, kNcclFloat32, kNcclSum, me.comm, me.stream),
          kNcclInvalidArgument);
    }
    const Floats all(4, static_cast<float>(me.number));
    EXPECT_EQ(ncclAllGather(all.at(static_cast<std::size_t>(2 * me.number)), all.get(), 2,
                            kNcclFloat32, me.comm, me.stream),
              kNcclSuccess);
    EXPECT_EQ(all.read(me.stream), (std::vector<float>{0, 0, 1, 1}));
  });
  expect_violation("they overlap");
}

TEST_F(FakeNccl, the_stream_is_one_of_the_communicators_device) {
  on_ranks([](Rank me) {
    const Floats mine(1, 1);
    if (me.number == 1) return;
    use(1);
    EXPECT_EQ(ncclAllReduce(mine.get(), mine.get(), 1, kNcclFloat32, kNcclSum, me.comm, stream()),
              kNcclUnhandledCudaError);
    void* popped = nullptr;
    EXPECT_EQ(cuCtxPopCurrent_v2(&popped), kSuccess);
  });
  expect_violation("a communicator's streams are of its device");
}

// ---- what ranks must have alike

TEST_F(FakeNccl, ranks_that_issue_different_collectives_are_found) {
  on_ranks(
      [](Rank me) {
        const Floats mine(kCount, 1);
        const std::size_t count = me.number == 0 ? kCount : kCount - 1;
        EXPECT_EQ(ncclAllReduce(mine.get(), mine.get(), count, kNcclFloat32, kNcclSum, me.comm,
                                me.stream),
                  kNcclSuccess);
        EXPECT_EQ(state_after(me.comm, kNcclSuccess), kNcclRemoteError);
      },
      true);
  expect_violation("ncclAllReduce(count 999");
}

TEST_F(FakeNccl, a_receive_that_does_not_fit_its_send_is_found) {
  on_ranks([](Rank me) {
    const Floats mine(kCount, 1);
    if (me.number == 0) {
      ncclSend(mine.get(), kCount, kNcclFloat32, 1, me.comm, me.stream);
    } else {
      ncclRecv(mine.get(), kCount - 1, kNcclFloat32, 0, me.comm, me.stream);
    }
    synchronize(me.stream);
  });
  expect_violation("a send and its receive have the same count and type");
}

TEST_F(FakeNccl, a_collective_that_not_all_ranks_issue_is_found) {
  setenv("FAKE_NCCL_WAIT_S", "1", 1);
  on_ranks(
      [](Rank me) {
        if (me.number == 1) return std::this_thread::sleep_for(std::chrono::seconds(3));
        const Floats mine(kCount, 1);
        ncclAllReduce(mine.get(), mine.get(), kCount, kNcclFloat32, kNcclSum, me.comm, me.stream);
        EXPECT_EQ(state_after(me.comm, kNcclSuccess), kNcclRemoteError);
      },
      true);
  expect_violation("rank 0 has waited 1 s in ncclAllReduce");
}

// ---- communicators

TEST_F(FakeNccl, two_ranks_on_one_device_are_refused) {
  on_threads([this](int rank) {
    use(0);
    NcclComm* comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, kRanks, id_, rank), kNcclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(comm)).find("Duplicate GPU"), std::string::npos);
    EXPECT_EQ(ncclCommAbort(comm), kNcclSuccess);
  });
  expect_none();
}

TEST_F(FakeNccl, a_communicator_that_does_not_block_tells_when_it_is_ready) {
  on_threads([this](int rank) {
    use(rank);
    NcclConfig config{};
    config.blocking = 0;
    NcclComm* comm = nullptr;
    EXPECT_EQ(ncclCommInitRankConfig(&comm, kRanks, id_, rank, &config), kNcclInProgress);
    EXPECT_EQ(state_after(comm, kNcclInProgress), kNcclSuccess);
    const Floats mine(kCount, 1);
    EXPECT_EQ(ncclAllReduce(mine.get(), mine.get(), kCount, kNcclFloat32, kNcclSum, comm, nullptr),
              kNcclSuccess);
    EXPECT_EQ(ncclCommFinalize(comm), kNcclInProgress);
    EXPECT_EQ(state_after(comm, kNcclInProgress), kNcclSuccess);
    EXPECT_EQ(mine.read(nullptr)[0], 2);  // what was issued has ended
    EXPECT_EQ(ncclCommDestroy(comm), kNcclSuccess);
  });
  expect_none();
}

TEST_F(FakeNccl, an_abort_ends_what_runs_and_the_others_are_told) {
  std::promise<void> issued;
  on_ranks(
      [&](Rank me) {
        const Floats mine(kCount, 1);
        if (me.number == 1) return issued.get_future().wait();  // and aborts
        ncclAllReduce(mine.get(), mine.get(), kCount, kNcclFloat32, kNcclSum, me.comm, me.stream);
        issued.set_value();
        EXPECT_EQ(state_after(me.comm, kNcclSuccess), kNcclRemoteError);
        EXPECT_EQ(std::string(ncclGetLastError(me.comm)), "rank 1 is gone");
        EXPECT_EQ(cuStreamQuery(me.stream), kNotReady);  // until it is aborted here, too
        EXPECT_EQ(
            ncclAllReduce(mine.get(), mine.get(), 1, kNcclFloat32, kNcclSum, me.comm, me.stream),
            kNcclRemoteError);
      },
      true);
  for (int device = 0; device < kRanks; ++device) {
    use(device);
    EXPECT_EQ(cuCtxSynchronize(), kSuccess);
  }
  expect_none();
}

TEST_F(FakeNccl, a_communicator_that_is_not_destroyed_is_a_leak) {
  NcclComm* comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 1, id_, 0), kNcclSuccess);
  EXPECT_EQ(fake_gpu_check_leaks(), 1U);
  expect_violation("1 communicators that were neither destroyed nor aborted");
  EXPECT_EQ(ncclCommDestroy(comm), kNcclSuccess);
  EXPECT_EQ(fake_gpu_check_leaks(), 0U);
  EXPECT_EQ(ncclCommDestroy(comm), kNcclInvalidArgument);
  EXPECT_EQ(fake_gpu_violations(), 2U);
}

TEST_F(FakeNccl, arguments_that_make_no_sense_are_refused) {
  on_ranks([](Rank me) {
    const Floats mine(1, 1);
    EXPECT_EQ(ncclBroadcast(mine.get(), mine.get(), 1, kNcclFloat32, 2, me.comm, me.stream),
              kNcclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(mine.get(), mine.get(), 1, kNcclFloat32, kNcclSum, nullptr, me.stream),
              kNcclInvalidArgument);
    EXPECT_EQ(ncclAllReduce(mine.get(), mine.get(), 1, static_cast<NcclType>(77), kNcclSum, me.comm,
                            me.stream),
              kNcclInvalidArgument);
    EXPECT_EQ(ncclGroupEnd(), kNcclInvalidUsage);
  });
  expect_none();
}

TEST_F(FakeNccl, a_call_fails_as_planned) {
  NcclComm* comm = nullptr;
  EXPECT_EQ(ncclCommInitRank(&comm, 1, id_, 0), kNcclSuccess);
  use(0);
  const Floats mine(1, 1);
  fake_gpu_fail("ncclAllReduce", 2, kNcclSystemError);
  for (const NcclResult expected : {kNcclSuccess, kNcclSystemError, kNcclSuccess}) {
    EXPECT_EQ(ncclAllReduce(mine.get(), mine.get(), 1, kNcclFloat32, kNcclSum, comm, nullptr),
              expected);
  }
  EXPECT_EQ(ncclCommDestroy(comm), kNcclSuccess);
  expect_none();
}

}  // namespace
