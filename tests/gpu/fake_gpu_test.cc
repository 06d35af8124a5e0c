// The rules of README.md, each shown by a test. The tests play the user of a driver.
#include "tests/gpu/fake_gpu.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace {

constexpr std::size_t kBytes = 64 << 10;
constexpr unsigned kNonBlocking = 1;
constexpr int kCount = 2;  // violations are counted
constexpr std::uint64_t kLateUs = 20'000;
enum : std::uint32_t {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidContext = 201,
  kInvalidHandle = 400,
  kNotReady = 600,
  kIllegalAddress = 700,
  kContextIsDestroyed = 709,
  kAlreadyRegistered = 712,
  kNotRegistered = 713,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901,
  kCaptureIsolation = 905,
  kCaptureImplicit = 906,
  kCapturedEvent = 907,
};

#ifdef __SANITIZE_THREAD__
constexpr bool kThreadsAreWatched =
    true;  // ThreadSanitizer finds what is planted, too, and so the test would fail
#else
constexpr bool kThreadsAreWatched = false;
#endif

// Whole pages of the host.
class Pages {
 public:
  explicit Pages(std::size_t bytes = kBytes)
      : bytes_(bytes),
        begin_(static_cast<unsigned char*>(
            mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}
  ~Pages() { munmap(begin_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  unsigned char* get() const { return begin_; }
  bool all_are(int byte) const {
    for (std::size_t i = 0; i < bytes_; ++i) {
      if (begin_[i] != byte) return false;
    }
    return true;
  }

 private:
  const std::size_t bytes_;
  unsigned char* const begin_;
};

void write_sevens(void* /*argument*/, void* const* /*reads*/, void* const* writes) {
  std::memset(writes[0], 7, kBytes);
}

// Runs after the driver's own end, which is registered later.
bool asks_at_exit = false;
const int registered = std::atexit([] {
  if (asks_at_exit) std::_Exit(static_cast<int>(cuInit(0)));
});

class FakeGpu : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name :
         {"CUDA_VISIBLE_DEVICES", "FAKE_GPU_FAIL", "FAKE_GPU_HANG", "FAKE_GPU_KILL"}) {
      unsetenv(name);
    }
    begin();
  }
  // Leaves nothing for the exit of the process.
  void TearDown() override { fake_gpu_reset(); }

  void begin() {
    fake_gpu_reset();
    fake_gpu_on_violation(kCount);
    ASSERT_EQ(cuInit(0), kSuccess);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), kSuccess);
    ASSERT_EQ(cuCtxPushCurrent_v2(context_), kSuccess);
  }

  static void* stream(unsigned flags = kNonBlocking) {
    void* made = nullptr;
    EXPECT_EQ(cuStreamCreateWithPriority(&made, flags, 0), kSuccess);
    return made;
  }
  static void* event() {
    void* made = nullptr;
    EXPECT_EQ(cuEventCreate(&made, 2), kSuccess);
    return made;
  }
  static std::uint64_t memory(std::size_t bytes = kBytes) {
    std::uint64_t address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, bytes), kSuccess);
    return address;
  }
  static void pin(const Pages& pages) {
    EXPECT_EQ(cuMemHostRegister_v2(pages.get(), kBytes, 1), kSuccess);
  }
  // A kernel that takes kLateUs and fills the block with sevens.
  static void late_sevens(std::uint64_t to, void* on) {
    const FakeGpuBytes bytes{to, kBytes};
    EXPECT_EQ(fake_gpu_launch(on, kLateUs, nullptr, 0, &bytes, 1, &write_sevens, nullptr),
              kSuccess);
  }
  static void reads(std::uint64_t from, void* on) {
    const FakeGpuBytes bytes{from, kBytes};
    EXPECT_EQ(fake_gpu_launch(on, 0, &bytes, 1, nullptr, 0, nullptr, nullptr), kSuccess);
  }
  static void wait_for(void* of) {
    while (cuEventQuery(of) == kNotReady) std::this_thread::yield();
  }
  static void expect_violation(const std::string& text) {
    EXPECT_EQ(fake_gpu_violations(), 1U);
    EXPECT_NE(std::string(fake_gpu_last_violation()).find(text), std::string::npos)
        << fake_gpu_last_violation();
  }
  static void expect_none() { EXPECT_EQ(fake_gpu_violations(), 0U) << fake_gpu_last_violation(); }

  void* context_ = nullptr;
};
// The same, where the process ends.
using FakeGpuDeathTest = FakeGpu;

// ---- streams

TEST_F(FakeGpu, work_of_a_stream_is_done_in_its_order) {
  const std::uint64_t memory_of_it = memory();
  void* const s = stream();
  const Pages out;
  late_sevens(memory_of_it, s);
  EXPECT_EQ(cuMemsetD8Async(memory_of_it, 3, kBytes / 2, s), kSuccess);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), memory_of_it, kBytes, s), kSuccess);
  EXPECT_EQ(cuStreamSynchronize(s), kSuccess);
  EXPECT_EQ(out.get()[0], 3);
  EXPECT_EQ(out.get()[kBytes - 1], 7);
  expect_none();
}

TEST_F(FakeGpu, streams_run_side_by_side_without_order) {
  const std::uint64_t shared = memory();
  late_sevens(shared, stream());
  reads(shared, stream());
  expect_violation("is not ordered after kernel of stream");
}

TEST_F(FakeGpu, a_missing_wait_is_found_though_the_data_is_there) {
  const std::uint64_t shared = memory();
  void* const writer = stream();
  EXPECT_EQ(cuMemsetD8Async(shared, 1, kBytes, writer), kSuccess);
  while (fake_gpu_calls("cuEventQuery") < 1000) {
    void* const unrecorded = event();
    EXPECT_EQ(cuEventQuery(unrecorded), kSuccess);
    EXPECT_EQ(cuEventDestroy_v2(unrecorded), kSuccess);
  }
  reads(shared, stream());
  expect_violation("cuMemsetD8Async");
}

TEST_F(FakeGpu, a_write_after_a_read_must_be_ordered_too) {
  const std::uint64_t shared = memory();
  reads(shared, stream());
  EXPECT_EQ(cuMemsetD8Async(shared, 1, kBytes, stream()), kSuccess);
  expect_violation("which reads some of them");
}

TEST_F(FakeGpu, order_is_by_the_byte) {
  const std::uint64_t shared = memory();
  EXPECT_EQ(cuMemsetD8Async(shared, 1, 1000, stream()), kSuccess);
  EXPECT_EQ(cuMemsetD8Async(shared + 1000, 1, 1000, stream()), kSuccess);
  expect_none();
  EXPECT_EQ(cuMemsetD8Async(shared + 999, 1, 1, stream()), kSuccess);
  expect_violation("offset 999");
}

TEST_F(FakeGpu, the_default_stream_and_blocking_streams_wait_for_each_other) {
  const std::uint64_t shared = memory();
  void* const blocking = stream(0);
  const Pages out;
  pin(out);
  for (void* const handle : {static_cast<void*>(nullptr), reinterpret_cast<void*>(1)}) {
    late_sevens(shared, blocking);
    EXPECT_EQ(cuMemsetD8Async(shared, 3, kBytes, handle), kSuccess);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), shared, kBytes, blocking), kSuccess);
    EXPECT_EQ(cuStreamSynchronize(blocking), kSuccess);
    EXPECT_TRUE(out.all_are(3));
  }
  expect_none();
}

TEST_F(FakeGpu, the_default_stream_and_non_blocking_streams_do_not) {
  const std::uint64_t shared = memory();
  late_sevens(shared, nullptr);
  reads(shared, stream());
  expect_violation("is not ordered");
}

TEST_F(FakeGpu, work_of_a_destroyed_blocking_stream_is_before_the_default_stream) {
  const std::uint64_t shared = memory();
  void* const blocking = stream(0);
  const Pages out;
  late_sevens(shared, blocking);
  EXPECT_EQ(cuStreamDestroy_v2(blocking), kSuccess);
  EXPECT_EQ(cuMemcpyDtoH_v2(out.get(), shared, kBytes), kSuccess);
  EXPECT_TRUE(out.all_are(7));
  expect_none();
}

TEST_F(FakeGpu, handle_2_is_a_stream_of_the_thread) {
  const std::uint64_t shared = memory();
  void* const per_thread = reinterpret_cast<void*>(2);
  EXPECT_EQ(cuMemsetD8Async(shared, 1, kBytes, per_thread), kSuccess);
  EXPECT_EQ(cuMemsetD8Async(shared, 2, kBytes, per_thread), kSuccess);
  reads(shared, nullptr);  // a blocking stream
  expect_none();
  EXPECT_EQ(cuMemsetD8Async(shared, 1, kBytes, per_thread), kSuccess);
  std::thread([&] {
    EXPECT_EQ(cuCtxSetCurrent(context_), kSuccess);
    EXPECT_EQ(cuMemsetD8Async(shared, 3, kBytes, per_thread), kSuccess);
  }).join();
  expect_violation("is not ordered");
}

TEST_F(FakeGpu, a_stream_that_is_destroyed_ends_its_work) {
  const std::uint64_t to = memory();
  void* const s = stream();
  void* const done = event();
  const Pages out;
  late_sevens(to, s);
  EXPECT_EQ(cuEventRecord(done, s), kSuccess);
  EXPECT_EQ(cuStreamDestroy_v2(s), kSuccess);
  EXPECT_EQ(cuEventQuery(done), kNotReady);
  wait_for(done);
  EXPECT_EQ(cuMemcpyDtoH_v2(out.get(), to, kBytes), kSuccess);
  EXPECT_TRUE(out.all_are(7));
  expect_none();
}

TEST_F(FakeGpu, a_stream_after_its_end_is_a_violation) {
  void* const s = stream();
  EXPECT_EQ(cuStreamDestroy_v2(s), kSuccess);
  EXPECT_EQ(cuStreamQuery(s), kInvalidHandle);
  expect_violation("does not exist");
}

TEST_F(FakeGpu, a_query_of_a_stream_tells_whether_it_is_done) {
  const std::uint64_t to = memory();
  void* const s = stream();
  EXPECT_EQ(cuStreamQuery(s), kSuccess);
  late_sevens(to, s);
  EXPECT_EQ(cuStreamQuery(s), kNotReady);
  while (cuStreamQuery(s) == kNotReady) std::this_thread::yield();
  reads(to, stream());
  expect_none();
}

TEST_F(FakeGpu, a_context_is_done_when_all_its_streams_are) {
  const std::uint64_t to = memory();
  late_sevens(to, stream());
  EXPECT_EQ(cuCtxSynchronize(), kSuccess);
  reads(to, stream());
  expect_none();
}

TEST_F(FakeGpu, a_host_function_runs_in_the_streams_order_and_makes_no_calls) {
  const std::uint64_t to = memory();
  void* const s = stream();
  std::atomic<std::uint32_t> code{0};
  late_sevens(to, s);
  const auto function = [](void* result) {
    *static_cast<std::atomic<std::uint32_t>*>(result) = cuStreamQuery(nullptr);
  };
  EXPECT_EQ(cuLaunchHostFunc(s, function, &code), kSuccess);
  EXPECT_EQ(code, 0U);
  EXPECT_EQ(cuStreamSynchronize(s), kSuccess);
  EXPECT_EQ(code, 800U);
  expect_violation("within a host function");
}

// ---- events

TEST_F(FakeGpu, an_event_is_ready_when_the_work_before_its_record_is) {
  const std::uint64_t to = memory();
  void* const s = stream();
  void* const ready = event();
  late_sevens(to, s);
  EXPECT_EQ(cuEventRecord(ready, s), kSuccess);
  EXPECT_EQ(cuEventQuery(ready), kNotReady);
  fake_gpu_launch(s, 10 * kLateUs, nullptr, 0, nullptr, 0, nullptr, nullptr);  // not captured
  wait_for(ready);
  EXPECT_EQ(cuStreamQuery(s), kNotReady);
  reads(to, stream());
  expect_none();
}

TEST_F(FakeGpu, an_event_that_was_never_recorded_is_ready_and_no_wait) {
  const std::uint64_t to = memory();
  void* const unrecorded = event();
  void* const s = stream();
  EXPECT_EQ(cuEventQuery(unrecorded), kSuccess);
  late_sevens(to, stream());
  EXPECT_EQ(cuStreamWaitEvent(s, unrecorded, 0), kSuccess);
  EXPECT_EQ(cuStreamQuery(s), kSuccess);
  reads(to, s);
  expect_violation("is not ordered");
}

TEST_F(FakeGpu, a_wait_keeps_what_the_event_had_captured_when_it_is_recorded_again) {
  const std::uint64_t first = memory();
  const std::uint64_t second = memory();
  void* const a = stream();
  void* const b = stream();
  void* const e = event();
  late_sevens(first, a);
  EXPECT_EQ(cuEventRecord(e, a), kSuccess);
  EXPECT_EQ(cuStreamWaitEvent(b, e, 0), kSuccess);
  late_sevens(second, a);
  EXPECT_EQ(cuEventRecord(e, a), kSuccess);
  reads(first, b);
  expect_none();
  reads(second, b);
  expect_violation("is not ordered");
  wait_for(e);  // the second record
  EXPECT_EQ(cuStreamQuery(a), kSuccess);
}

TEST_F(FakeGpu, an_event_may_be_destroyed_before_it_is_ready) {
  const std::uint64_t to = memory();
  void* const a = stream();
  void* const b = stream();
  void* const e = event();
  const Pages out;
  late_sevens(to, a);
  EXPECT_EQ(cuEventRecord(e, a), kSuccess);
  EXPECT_EQ(cuStreamWaitEvent(b, e, 0), kSuccess);
  EXPECT_EQ(cuEventDestroy_v2(e), kSuccess);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), to, kBytes, b), kSuccess);
  EXPECT_TRUE(out.all_are(7));
  expect_none();
  EXPECT_EQ(cuEventQuery(e), kInvalidHandle);
  expect_violation("does not exist");
}

TEST_F(FakeGpu, an_event_of_another_context_is_not_recorded) {
  void* other = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&other, 1), kSuccess);
  void* const e = event();
  EXPECT_EQ(cuCtxPushCurrent_v2(other), kSuccess);
  EXPECT_EQ(cuEventRecord(e, stream()), kInvalidHandle);
  EXPECT_EQ(cuEventRecord(e, nullptr), kInvalidHandle);
}

TEST_F(FakeGpu, a_stream_may_wait_for_an_event_of_another_device) {
  void* other = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&other, 1), kSuccess);
  const std::uint64_t to = memory();
  void* const s = stream();
  void* const e = event();
  late_sevens(to, s);
  EXPECT_EQ(cuEventRecord(e, s), kSuccess);
  EXPECT_EQ(cuCtxPushCurrent_v2(other), kSuccess);
  void* const foreign = stream();
  EXPECT_EQ(cuStreamWaitEvent(foreign, e, 0), kSuccess);
  EXPECT_EQ(cuStreamSynchronize(foreign), kSuccess);
  EXPECT_EQ(cuEventQuery(e), kSuccess);
}

// ---- copies

TEST_F(FakeGpu, a_copy_to_paged_memory_returns_when_it_is_done) {
  const std::uint64_t from = memory();
  void* const s = stream();
  const Pages out;
  late_sevens(from, s);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), from, kBytes, s), kSuccess);
  EXPECT_TRUE(out.all_are(7));
  expect_none();
}

TEST_F(FakeGpu, a_copy_from_paged_memory_returns_when_the_source_was_read) {
  const std::uint64_t to = memory();
  void* const s = stream();
  const Pages in;
  const Pages out;
  std::memset(in.get(), 5, kBytes);
  late_sevens(to, s);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(to, in.get(), kBytes, s), kSuccess);
  std::memset(in.get(), 6, kBytes);
  EXPECT_EQ(cuStreamQuery(s), kNotReady);
  reads(to, s);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), to, kBytes, s), kSuccess);
  EXPECT_TRUE(out.all_are(5));
  expect_none();
}

TEST_F(FakeGpu, a_copy_to_pinned_memory_is_not_there_before_its_event) {
  if (kThreadsAreWatched) GTEST_SKIP() << "ThreadSanitizer finds it, too";
  const std::uint64_t from = memory();
  void* const s = stream();
  void* const done = event();
  const Pages out;
  pin(out);
  std::memset(out.get(), 1, kBytes);
  late_sevens(from, s);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), from, kBytes, s), kSuccess);
  EXPECT_EQ(cuEventRecord(done, s), kSuccess);
  EXPECT_NE(out.get()[0], 7);
  EXPECT_NE(out.get()[0], 1);  // nor what was there
  wait_for(done);
  EXPECT_TRUE(out.all_are(7));
  expect_none();
}

TEST_F(FakeGpu, the_source_of_a_copy_must_not_change_until_it_is_done) {
  if (kThreadsAreWatched) GTEST_SKIP() << "ThreadSanitizer finds it, too";
  const std::uint64_t to = memory();
  void* const s = stream();
  const Pages in;
  pin(in);
  fake_gpu_launch(s, kLateUs, nullptr, 0, nullptr, 0, nullptr, nullptr);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(to, in.get(), kBytes, s), kSuccess);
  in.get()[kBytes - 1] = 1;
  EXPECT_EQ(cuStreamSynchronize(s), kSuccess);
  expect_violation("the host changed the source");
}

TEST_F(FakeGpu, the_target_of_a_copy_must_not_be_written_until_it_is_done) {
  if (kThreadsAreWatched) GTEST_SKIP() << "ThreadSanitizer finds it, too";
  const std::uint64_t from = memory();
  void* const s = stream();
  const Pages out;
  pin(out);
  late_sevens(from, s);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), from, kBytes, s), kSuccess);
  out.get()[17] = 1;
  EXPECT_EQ(cuStreamSynchronize(s), kSuccess);
  expect_violation("the host wrote to the target");
}

TEST_F(FakeGpu, pinned_memory_goes_through_copies_that_are_ordered) {
  const std::uint64_t from = memory();
  const std::uint64_t to = memory();
  void* const a = stream();
  void* const b = stream();
  void* const there = event();
  const Pages bounce;
  const Pages out;
  pin(bounce);
  late_sevens(from, a);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(bounce.get(), from, kBytes, a), kSuccess);
  EXPECT_EQ(cuEventRecord(there, a), kSuccess);
  EXPECT_EQ(cuStreamWaitEvent(b, there, 0), kSuccess);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(to, bounce.get(), kBytes, b), kSuccess);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), to, kBytes, b), kSuccess);
  EXPECT_TRUE(out.all_are(7));
  expect_none();
}

TEST_F(FakeGpu, copies_of_pinned_memory_must_be_ordered) {
  if (kThreadsAreWatched) GTEST_SKIP() << "ThreadSanitizer finds it, too";
  const std::uint64_t from = memory();
  const std::uint64_t to = memory();
  const Pages bounce;
  pin(bounce);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(bounce.get(), from, kBytes, stream()), kSuccess);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(to, bounce.get(), kBytes, stream()), kSuccess);
  expect_violation("pinned memory");
  EXPECT_EQ(cuCtxSynchronize(), kSuccess);  // before the pages go
}

TEST_F(FakeGpu, an_access_of_the_host_before_the_event_is_known_can_be_asked_about) {
  const std::uint64_t from = memory();
  void* const s = stream();
  void* const done = event();
  const Pages out;
  pin(out);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), from, kBytes, s), kSuccess);
  EXPECT_EQ(cuEventRecord(done, s), kSuccess);
  fake_gpu_host_access(out.get(), kBytes, 0);
  EXPECT_EQ(fake_gpu_violations(), 1U);
  wait_for(done);
  fake_gpu_host_access(out.get(), kBytes, 0);
  EXPECT_EQ(fake_gpu_violations(), 1U);
}

TEST_F(FakeGpu, a_copy_of_nothing_is_nothing) {
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(nullptr, 0, 0, nullptr), kSuccess);
  EXPECT_EQ(cuMemcpyHtoDAsync_v2(0, nullptr, 0, nullptr), kSuccess);
  expect_none();
}

TEST_F(FakeGpu, copies_of_a_direction_take_their_engines_time_and_directions_overlap) {
  setenv("FAKE_GPU_OUT_MBPS", "1000", 1);
  setenv("FAKE_GPU_IN_MBPS", "1000", 1);
  begin();
  constexpr std::size_t kLarge = 10 << 20;  // 10.5 ms
  const std::uint64_t device = memory(4 * kLarge);
  const Pages host(4 * kLarge);
  EXPECT_EQ(cuMemHostRegister_v2(host.get(), 4 * kLarge, 0), kSuccess);
  const auto begin_time = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.get() + i * kLarge, device + i * kLarge, kLarge, stream()),
              kSuccess);
    EXPECT_EQ(cuMemcpyHtoDAsync_v2(device + (2 + i) * kLarge, host.get() + (2 + i) * kLarge, kLarge,
                                   stream()),
              kSuccess);
  }
  EXPECT_EQ(cuCtxSynchronize(), kSuccess);
  const auto took = std::chrono::steady_clock::now() - begin_time;
  EXPECT_GE(took, std::chrono::milliseconds(20));
  unsetenv("FAKE_GPU_OUT_MBPS");
  unsetenv("FAKE_GPU_IN_MBPS");
}

// ---- memory

TEST_F(FakeGpuDeathTest, the_cpu_cannot_read_device_memory) {
  const std::uint64_t address = memory();
  EXPECT_DEATH(std::_Exit(*reinterpret_cast<volatile char*>(address)), "");  // of a SIGSEGV
}

TEST_F(FakeGpu, memory_must_not_be_freed_while_it_is_used) {
  const std::uint64_t to = memory();
  late_sevens(to, stream());
  EXPECT_EQ(cuMemFree_v2(to), kSuccess);
  expect_violation("the free of memory");
}

TEST_F(FakeGpu, memory_is_gone_when_it_is_freed) {
  const std::uint64_t to = memory();
  EXPECT_EQ(cuMemFree_v2(to), kSuccess);
  expect_none();
  EXPECT_EQ(cuMemsetD8Async(to, 1, 1, nullptr), kInvalidValue);
  expect_violation("is no memory of a device");
}

TEST_F(FakeGpu, a_copy_past_the_end_of_a_block_is_a_violation) {
  const std::uint64_t to = memory(1000);
  EXPECT_EQ(cuMemsetD8Async(to, 1, 1001, nullptr), kInvalidValue);
  expect_violation("1001 bytes at offset 0 of a block of 1000");
}

TEST_F(FakeGpu, a_copy_that_takes_one_memory_for_the_other_is_a_violation) {
  const std::uint64_t device = memory();
  const Pages host;
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(reinterpret_cast<void*>(device), device, 8, nullptr),
            kInvalidValue);
  EXPECT_EQ(
      cuMemcpyHtoDAsync_v2(reinterpret_cast<std::uint64_t>(host.get()), host.get(), 8, nullptr),
      kInvalidValue);
  EXPECT_EQ(fake_gpu_violations(), 2U);
}

TEST_F(FakeGpu, a_copy_is_on_a_stream_of_its_memorys_device) {
  void* other = nullptr;
  const std::uint64_t from = memory();
  const Pages out;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&other, 1), kSuccess);
  EXPECT_EQ(cuCtxPushCurrent_v2(other), kSuccess);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), from, 8, stream()), kInvalidValue);
  expect_violation("the memory is another's");
}

TEST_F(FakeGpu, a_device_has_an_end_of_its_memory) {
  std::uint64_t address = 0;
  EXPECT_EQ(cuMemAlloc_v2(&address, std::size_t{5} << 30), kOutOfMemory);
  expect_none();
}

TEST_F(FakeGpu, pointers_tell_their_kind_and_device) {
  const std::uint64_t device = memory();
  const Pages host;
  pin(host);
  const auto host_address = reinterpret_cast<std::uint64_t>(host.get());
  unsigned kind = 0;
  int ordinal = -1;
  EXPECT_EQ(cuPointerGetAttribute(&kind, 2, device + 5), kSuccess);
  EXPECT_EQ(kind, 2U);
  EXPECT_EQ(cuPointerGetAttribute(&ordinal, 9, device + 5), kSuccess);
  EXPECT_EQ(ordinal, 0);
  EXPECT_EQ(cuPointerGetAttribute(&kind, 2, host_address), kSuccess);
  EXPECT_EQ(kind, 1U);
  EXPECT_EQ(cuMemHostUnregister(host.get()), kSuccess);
  EXPECT_EQ(cuPointerGetAttribute(&kind, 2, host_address), kInvalidValue);
}

TEST_F(FakeGpu, memory_is_registered_once) {
  const Pages host;
  pin(host);
  EXPECT_EQ(cuMemHostRegister_v2(host.get(), kBytes, 1), kAlreadyRegistered);
  EXPECT_EQ(cuMemHostRegister_v2(host.get() + 4096, 4096, 1), kAlreadyRegistered);
  EXPECT_EQ(cuMemHostUnregister(host.get() + 4096), kNotRegistered);
  EXPECT_EQ(cuMemHostUnregister(host.get()), kSuccess);
  EXPECT_EQ(cuMemHostUnregister(host.get()), kNotRegistered);
  expect_none();
}

TEST_F(FakeGpu, memory_that_is_not_there_is_not_registered) {
  void* const gone = mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  munmap(gone, 4096);
  EXPECT_EQ(cuMemHostRegister_v2(gone, 4096, 1), kInvalidValue);
}

TEST_F(FakeGpu, a_registration_ends_after_the_copies_that_use_it) {
  const std::uint64_t from = memory();
  const Pages out;
  pin(out);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), from, kBytes, stream()), kSuccess);
  EXPECT_EQ(cuMemHostUnregister(out.get()), kSuccess);
  expect_violation("the end of a registration");
  EXPECT_EQ(cuCtxSynchronize(), kSuccess);
}

TEST_F(FakeGpu, a_copy_lies_within_one_registration) {
  const std::uint64_t from = memory();
  const Pages out;
  EXPECT_EQ(cuMemHostRegister_v2(out.get(), 4096, 1), kSuccess);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), from, 8192, nullptr), kInvalidValue);
  expect_violation("registered in part");
}

TEST_F(FakeGpu, host_memory_that_goes_away_during_a_copy_is_a_violation) {
  if (kThreadsAreWatched) GTEST_SKIP() << "ThreadSanitizer finds it, too";
  const std::uint64_t from = memory();
  void* const s = stream();
  void* const out =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_EQ(cuMemHostRegister_v2(out, kBytes, 1), kSuccess);
  late_sevens(from, s);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out, from, kBytes, s), kSuccess);
  munmap(out, kBytes);
  EXPECT_EQ(cuStreamSynchronize(s), kSuccess);
  expect_violation("are gone");
}

// ---- contexts, devices, the process

TEST_F(FakeGpu, nothing_works_before_it_is_initialised) {
  fake_gpu_reset();
  fake_gpu_on_violation(kCount);
  int device = 0;
  void* context = nullptr;
  EXPECT_EQ(cuDeviceGet(&device, 0), kNotInitialized);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, 0), kNotInitialized);
  EXPECT_EQ(cuCtxPopCurrent_v2(&context), kNotInitialized);
  EXPECT_EQ(cuEventQuery(nullptr), kNotInitialized);
}

TEST_F(FakeGpu, what_needs_a_context_says_that_there_is_none) {
  const std::uint64_t address = memory();
  void* const s = stream();
  void* const e = event();
  const Pages host;
  void* made = nullptr;
  EXPECT_EQ(cuCtxPopCurrent_v2(&made), kSuccess);
  EXPECT_EQ(made, context_);
  EXPECT_EQ(cuCtxPopCurrent_v2(&made), kInvalidContext);
  EXPECT_EQ(cuStreamCreateWithPriority(&made, 0, 0), kInvalidContext);
  EXPECT_EQ(cuEventCreate(&made, 0), kInvalidContext);
  EXPECT_EQ(cuEventRecord(e, s), kInvalidContext);
  EXPECT_EQ(cuStreamWaitEvent(s, e, 0), kInvalidContext);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(host.get(), address, 8, s), kInvalidContext);
  EXPECT_EQ(cuMemHostRegister_v2(host.get(), kBytes, 1), kInvalidContext);
  EXPECT_EQ(cuEventQuery(e), kSuccess);  // needs none
  unsigned kind = 0;
  EXPECT_EQ(cuPointerGetAttribute(&kind, 2, address), kSuccess);  // neither
  expect_none();
}

TEST_F(FakeGpu, contexts_are_a_stack_of_each_thread) {
  void* other = nullptr;
  void* found = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&other, 1), kSuccess);
  EXPECT_EQ(cuCtxPushCurrent_v2(other), kSuccess);
  EXPECT_EQ(cuCtxGetCurrent(&found), kSuccess);
  EXPECT_EQ(found, other);
  std::thread([] {
    void* none = &none;
    EXPECT_EQ(cuCtxGetCurrent(&none), kSuccess);
    EXPECT_EQ(none, nullptr);
  }).join();
  EXPECT_EQ(cuCtxPopCurrent_v2(&found), kSuccess);
  EXPECT_EQ(cuCtxGetCurrent(&found), kSuccess);
  EXPECT_EQ(found, context_);
}

TEST_F(FakeGpu, who_pushes_without_end_is_found) {
  for (int i = 0; i < 64; ++i) EXPECT_EQ(cuCtxPushCurrent_v2(context_), kSuccess);
  expect_violation("a thread has pushed 64 contexts");
}

TEST_F(FakeGpu, the_primary_context_is_one_and_ends_with_its_last_reference) {
  void* again = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&again, 0), kSuccess);
  EXPECT_EQ(again, context_);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kSuccess);
  const std::uint64_t address = memory();
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kSuccess);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kInvalidContext);
  EXPECT_EQ(cuMemFree_v2(address), kContextIsDestroyed);
}

TEST_F(FakeGpu, a_context_ends_after_its_work) {
  late_sevens(memory(), stream());
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kSuccess);
  expect_violation("is released for the last time");
}

TEST_F(FakeGpu, visible_devices_are_numbered_anew) {
  setenv("CUDA_VISIBLE_DEVICES", "1", 1);
  begin();
  int device = -1;
  EXPECT_EQ(cuDeviceGet(&device, 0), kSuccess);
  EXPECT_NE(cuDeviceGet(&device, 1), kSuccess);
  setenv("CUDA_VISIBLE_DEVICES", "", 1);
  fake_gpu_reset();
  EXPECT_EQ(cuInit(0), kNoDevice);
}

TEST_F(FakeGpu, a_child_of_fork_has_no_driver) {
  const Pages host;
  const std::uint64_t from = memory();
  EXPECT_EQ(cuMemcpyDtoH_v2(host.get(), from, 8), kSuccess);  // the engine's thread runs
  const pid_t child = fork();
  if (child == 0) std::exit(static_cast<int>(cuInit(0)) + static_cast<int>(cuCtxSynchronize()));
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 2 * static_cast<int>(kNotInitialized));
}

// Death tests begin anew: a child of fork would have no driver.
TEST_F(FakeGpuDeathTest, what_runs_after_the_driver_has_gone_is_told_so) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  asks_at_exit = true;
  EXPECT_EXIT(std::exit(0), testing::ExitedWithCode(kDeinitialized), "");
  asks_at_exit = false;
}

// ---- faults

TEST_F(FakeGpu, a_call_fails_as_planned_and_does_nothing) {
  void* made = nullptr;
  fake_gpu_fail("cuEventCreate", 2, kOutOfMemory);
  EXPECT_EQ(cuEventCreate(&made, 0), kSuccess);
  EXPECT_EQ(cuEventCreate(&made, 0), kOutOfMemory);
  EXPECT_EQ(cuEventCreate(&made, 0), kSuccess);
}

TEST_F(FakeGpu, an_error_that_ends_a_context_stays) {
  const std::uint64_t from = memory();
  void* const s = stream();
  void* const e = event();
  const Pages out;
  pin(out);
  late_sevens(from, s);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), from, kBytes, s), kSuccess);
  EXPECT_EQ(cuEventRecord(e, s), kSuccess);
  fake_gpu_fail("cuMemcpyDtoHAsync_v2", 1, kIllegalAddress);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), from, kBytes, s), kIllegalAddress);
  EXPECT_EQ(cuEventQuery(e), kIllegalAddress);
  EXPECT_EQ(cuStreamSynchronize(s), kIllegalAddress);
  EXPECT_EQ(cuMemHostUnregister(out.get()), kIllegalAddress);
  void* other = nullptr;
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&other, 0), kIllegalAddress);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&other, 1), kSuccess);  // another device is well
}

TEST_F(FakeGpu, a_stream_hangs_as_planned_and_others_go_on) {
  const std::uint64_t from = memory();
  void* const s = stream();
  void* const e = event();
  const Pages out;
  pin(out);
  fake_gpu_fail("cuMemcpyDtoHAsync", 1, 0);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), from, 8, s), kSuccess);
  EXPECT_EQ(cuEventRecord(e, s), kSuccess);
  void* const other = stream();
  reads(from, other);
  EXPECT_EQ(cuStreamSynchronize(other), kSuccess);
  EXPECT_EQ(cuEventQuery(e), kNotReady);
}

TEST_F(FakeGpu, faults_are_planned_by_the_environment) {
  setenv("FAKE_GPU_FAIL", "cuMemAlloc_v2:1=2,cuEventCreate:2=1", 1);
  begin();
  std::uint64_t address = 0;
  void* made = nullptr;
  EXPECT_EQ(cuMemAlloc_v2(&address, 8), kOutOfMemory);
  EXPECT_EQ(cuEventCreate(&made, 0), kSuccess);
  EXPECT_EQ(cuEventCreate(&made, 0), kInvalidValue);
  EXPECT_EQ(fake_gpu_calls("cuEventCreate"), 2U);
}

TEST_F(FakeGpuDeathTest, the_process_is_killed_at_a_call) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("FAKE_GPU_KILL", "4", 1);  // init, retain, push
  begin();
  EXPECT_EXIT(cuCtxSynchronize(), testing::KilledBySignal(SIGKILL), "");
}

TEST_F(FakeGpuDeathTest, a_violation_ends_the_process_with_86) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  fake_gpu_on_violation(0);
  EXPECT_EXIT(cuEventQuery(&context_), testing::ExitedWithCode(86),
              "fake gpu: VIOLATION: handles are of what exists");
}

TEST_F(FakeGpu, what_is_not_given_back_is_a_leak) {
  void* const s = stream();
  void* const e = event();
  const std::uint64_t address = memory();
  EXPECT_EQ(fake_gpu_check_leaks(), 4U);
  EXPECT_EQ(cuStreamDestroy_v2(s), kSuccess);
  EXPECT_EQ(cuEventDestroy_v2(e), kSuccess);
  EXPECT_EQ(cuMemFree_v2(address), kSuccess);
  EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kSuccess);
  EXPECT_EQ(fake_gpu_check_leaks(), 0U);
}

TEST_F(FakeGpuDeathTest, leaks_are_looked_for_at_exit_where_that_is_wanted) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  setenv("FAKE_GPU_LEAKS", "1", 1);
  begin();
  fake_gpu_on_violation(0);
  EXPECT_EXIT(std::exit(0), testing::ExitedWithCode(86), "primary context of device 0");
  unsetenv("FAKE_GPU_LEAKS");
}

// ---- the fake's own thread

TEST_F(FakeGpu, a_stream_that_hangs_costs_no_time) {
  fake_gpu_fail("cuMemsetD8Async", 1, 0);
  EXPECT_EQ(cuMemsetD8Async(memory(), 1, 1, stream()), kSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const std::clock_t begin_time = std::clock();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_LT(std::clock() - begin_time, CLOCKS_PER_SEC / 50);
}

TEST_F(FakeGpu, signals_are_not_for_its_thread) {
  EXPECT_EQ(cuMemsetD8Async(memory(), 1, 1, stream()), kSuccess);
  EXPECT_EQ(cuCtxSynchronize(), kSuccess);
  int found = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "status");
    const std::string status((std::istreambuf_iterator<char>(file)), {});
    if (status.find("fake-gpu") == std::string::npos) continue;
    ++found;
    EXPECT_NE(status.find("SigBlk:\tf"), std::string::npos) << status;
  }
  EXPECT_EQ(found, 1);
}

// ---- capture

TEST_F(FakeGpu, what_is_put_on_a_capturing_stream_is_not_done) {
  const std::uint64_t to = memory();
  void* const s = stream();
  void* const e = event();
  void* graph = nullptr;
  unsigned status = 9;
  const Pages out;
  EXPECT_EQ(cuStreamIsCapturing(s, &status), kSuccess);
  EXPECT_EQ(status, 0U);
  EXPECT_EQ(cuStreamBeginCapture_v2(s, 2), kSuccess);
  EXPECT_EQ(cuStreamIsCapturing(s, &status), kSuccess);
  EXPECT_EQ(status, 1U);
  EXPECT_EQ(cuMemsetD8Async(to, 7, kBytes, s), kSuccess);
  EXPECT_EQ(cuEventRecord(e, s), kSuccess);
  EXPECT_EQ(cuStreamEndCapture(s, &graph), kSuccess);
  EXPECT_NE(graph, nullptr);
  EXPECT_EQ(cuEventQuery(e), kCapturedEvent);
  EXPECT_EQ(cuMemcpyDtoH_v2(out.get(), to, kBytes), kSuccess);
  EXPECT_TRUE(out.all_are(0));
  expect_none();
}

TEST_F(FakeGpu, a_wait_for_a_captured_event_takes_the_stream_into_the_capture) {
  void* const a = stream();
  void* const b = stream();
  void* const e = event();
  void* graph = nullptr;
  unsigned status = 0;
  EXPECT_EQ(cuStreamBeginCapture_v2(a, 2), kSuccess);
  EXPECT_EQ(cuEventRecord(e, a), kSuccess);
  EXPECT_EQ(cuStreamWaitEvent(b, e, 0), kSuccess);
  EXPECT_EQ(cuStreamIsCapturing(b, &status), kSuccess);
  EXPECT_EQ(status, 1U);
  EXPECT_EQ(cuStreamEndCapture(a, &graph), kSuccess);
  EXPECT_EQ(cuStreamIsCapturing(b, &status), kSuccess);
  EXPECT_EQ(status, 0U);
}

TEST_F(FakeGpu, a_capture_does_not_wait_for_what_is_outside) {
  void* const s = stream();
  void* const e = event();
  void* graph = nullptr;
  unsigned status = 0;
  EXPECT_EQ(cuEventRecord(e, stream()), kSuccess);
  EXPECT_EQ(cuStreamBeginCapture_v2(s, 2), kSuccess);
  EXPECT_EQ(cuStreamWaitEvent(s, e, 0), kCaptureIsolation);
  EXPECT_EQ(cuStreamIsCapturing(s, &status), kSuccess);
  EXPECT_EQ(status, 2U);
  EXPECT_EQ(cuStreamEndCapture(s, &graph), kCaptureInvalidated);
  EXPECT_EQ(graph, nullptr);
}

TEST_F(FakeGpu, the_default_stream_cannot_be_used_while_a_blocking_stream_captures) {
  const std::uint64_t to = memory();
  unsigned status = 0;
  EXPECT_EQ(cuStreamBeginCapture_v2(nullptr, 0), kCaptureUnsupported);
  EXPECT_EQ(cuStreamBeginCapture_v2(stream(0), 2), kSuccess);
  EXPECT_EQ(cuStreamIsCapturing(nullptr, &status), kCaptureImplicit);
  EXPECT_EQ(cuMemsetD8Async(to, 1, 1, nullptr), kCaptureImplicit);
}

// What torch's graphs use. Whoever polls events beside them must have exchanged its mode.
TEST_F(FakeGpu, a_query_of_another_thread_spoils_a_global_capture_unless_its_mode_is_relaxed) {
  void* const s = stream();
  void* const e = event();
  void* graph = nullptr;
  EXPECT_EQ(cuStreamBeginCapture_v2(s, 0), kSuccess);
  std::thread([&] {
    unsigned mode = 1;
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
    EXPECT_EQ(mode, 0U);
    EXPECT_EQ(cuEventQuery(e), kSuccess);
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
    EXPECT_EQ(cuEventQuery(e), kCaptureUnsupported);
  }).join();
  EXPECT_EQ(cuStreamEndCapture(s, &graph), kCaptureInvalidated);
}

TEST_F(FakeGpu, memory_is_not_allocated_during_a_capture_of_ones_own) {
  std::uint64_t address = 0;
  void* const s = stream();
  EXPECT_EQ(cuStreamBeginCapture_v2(s, 1), kSuccess);
  EXPECT_EQ(cuMemAlloc_v2(&address, 8), kCaptureUnsupported);
}

// ---- kernels that the calling thread computes

TEST_F(FakeGpu, a_kernel_of_the_caller_has_its_turn_and_holds_the_stream) {
  const std::uint64_t to = memory();
  void* const s = stream();
  const Pages out;
  const FakeGpuBytes bytes{to, kBytes};
  late_sevens(to, s);
  void* const kernel = fake_gpu_kernel_begin("adds one", 0, s, &bytes, 1, &bytes, 1);
  ASSERT_NE(kernel, nullptr);
  auto* const alias = static_cast<unsigned char*>(fake_gpu_alias(to));
  EXPECT_EQ(alias[0], 7);
  for (std::size_t i = 0; i < kBytes; ++i) ++alias[i];
  EXPECT_EQ(cuStreamQuery(s), kNotReady);
  fake_gpu_kernel_end(kernel);
  EXPECT_EQ(cuMemcpyDtoHAsync_v2(out.get(), to, kBytes, s), kSuccess);
  EXPECT_TRUE(out.all_are(8));
  reads(to, stream());
  expect_none();  // the copy has waited
}

}  // namespace
