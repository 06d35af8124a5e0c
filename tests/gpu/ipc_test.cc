// Memory and events that two processes share. The other process is this program once more: its part of a test is the
// disabled test of that name, and it exits with how many violations it has found.
#include "tests/gpu/ipc.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/gpu/fake_gpu.h"

namespace {

using fake_gpu::IpcHandle;

constexpr std::size_t kBytes = 64 << 10;
constexpr std::uint64_t kLateUs = 50'000;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kShared = 2 | 4;  // no timing, interprocess
constexpr unsigned kLazyPeerAccess = 1;
constexpr int kCount = 2;
enum : std::uint32_t { kSuccess = 0, kInvalidValue = 1, kInvalidContext = 201 };

std::string text_of(const IpcHandle& handle) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text;
  const auto* const bytes = reinterpret_cast<const unsigned char*>(&handle);
  for (std::size_t i = 0; i < sizeof handle; ++i) {
    text += kDigits[bytes[i] >> 4];
    text += kDigits[bytes[i] & 15];
  }
  return text;
}

IpcHandle handle_in(const char* variable) {
  IpcHandle handle;
  const std::string text = std::getenv(variable);
  auto* const bytes = reinterpret_cast<unsigned char*>(&handle);
  for (std::size_t i = 0; i < sizeof handle; ++i) {
    bytes[i] = static_cast<unsigned char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

void write_sevens(void* /*argument*/, void* const* /*reads*/, void* const* writes) {
  std::memset(writes[0], 7, kBytes);
}

class FakeGpuIpc : public testing::Test {
 protected:
  void SetUp() override {
    fake_gpu_reset();
    fake_gpu_on_violation(kCount);
    void* context = nullptr;
    ASSERT_EQ(cuInit(0), kSuccess);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), kSuccess);
    ASSERT_EQ(cuCtxPushCurrent_v2(context), kSuccess);
    ASSERT_EQ(cuStreamCreateWithPriority(&stream_, kNonBlocking, 0), kSuccess);
  }
  void TearDown() override { fake_gpu_reset(); }

  // Memory that a late kernel fills with sevens, and an event after that.
  void share_late_sevens() {
    ASSERT_EQ(cuMemAlloc_v2(&memory_, kBytes), kSuccess);
    ASSERT_EQ(cuEventCreate(&event_, kShared), kSuccess);
    const FakeGpuBytes bytes{memory_, kBytes};
    ASSERT_EQ(fake_gpu_launch(stream_, kLateUs, nullptr, 0, &bytes, 1, &write_sevens, nullptr),
              kSuccess);
    IpcHandle handle;  // of what is in use already
    ASSERT_EQ(cuIpcGetMemHandle(&handle, memory_), kSuccess);
    setenv("FAKE_GPU_TEST_MEMORY", text_of(handle).c_str(), 1);
    ASSERT_EQ(cuIpcGetEventHandle(&handle, event_), kSuccess);
    setenv("FAKE_GPU_TEST_EVENT", text_of(handle).c_str(), 1);
    ASSERT_EQ(cuEventRecord(event_, stream_), kSuccess);
  }

  // The other process does its part; that part alone, of whichever shard this test is.
  static pid_t start_other(const std::string& part) {
    unsetenv("GTEST_TOTAL_SHARDS");
    unsetenv("GTEST_SHARD_INDEX");
    const std::string filter = "--gtest_filter=FakeGpuIpc.DISABLED_" + part;
    std::array<char*, 4> arguments{const_cast<char*>("ipc_test"), const_cast<char*>(filter.c_str()),
                                   const_cast<char*>("--gtest_also_run_disabled_tests"), nullptr};
    pid_t process = 0;
    EXPECT_EQ(posix_spawn(&process, "/proc/self/exe", nullptr, nullptr, arguments.data(), environ),
              0);
    return process;
  }
  static int end_of(pid_t process) {
    int status = 0;
    EXPECT_EQ(waitpid(process, &status, 0), process);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  static int run_other(const std::string& part) { return end_of(start_other(part)); }

  // In the other process.
  std::uint64_t opened() {
    std::uint64_t memory = 0;
    EXPECT_EQ(cuIpcOpenMemHandle_v2(&memory, handle_in("FAKE_GPU_TEST_MEMORY"), kLazyPeerAccess),
              kSuccess);
    return memory;
  }
  void* opened_event() {
    void* event = nullptr;
    EXPECT_EQ(cuIpcOpenEventHandle(&event, handle_in("FAKE_GPU_TEST_EVENT")), kSuccess);
    return event;
  }
  // What is there, on the stream; then the process ends.
  [[noreturn]] void read_and_exit(std::uint64_t memory) {
    std::vector<unsigned char> bytes(kBytes);
    EXPECT_EQ(cuMemcpyDtoHAsync_v2(bytes.data(), memory, kBytes, stream_), kSuccess);
    const bool is_right = bytes[0] == 7 && bytes[kBytes - 1] == 7;
    const auto violations = static_cast<int>(fake_gpu_violations());
    EXPECT_EQ(cuIpcCloseMemHandle(memory), kSuccess);
    std::_Exit(violations > 0 ? violations : is_right && !HasFailure() ? 0 : 99);
  }

  std::uint64_t memory_ = 0;
  void* event_ = nullptr;
  void* stream_ = nullptr;
};

TEST_F(FakeGpuIpc, DISABLED_a_stream_waits) {
  const std::uint64_t memory = opened();
  EXPECT_EQ(cuStreamWaitEvent(stream_, opened_event(), 0), kSuccess);
  read_and_exit(memory);
}
TEST_F(FakeGpuIpc, DISABLED_the_host_waits) {
  const std::uint64_t memory = opened();
  EXPECT_EQ(cuEventSynchronize(opened_event()), kSuccess);
  read_and_exit(memory);
}
TEST_F(FakeGpuIpc, DISABLED_nobody_waits) {
  read_and_exit(opened());
}
TEST_F(FakeGpuIpc, DISABLED_memory_stays_open) {
  opened();
  constexpr char kOpen = 'o';
  EXPECT_EQ(write(std::atoi(std::getenv("FAKE_GPU_TEST_PIPE")), &kOpen, 1), 1);
  constexpr unsigned kLongS = 60;  // it is killed
  sleep(kLongS);
}

TEST_F(FakeGpuIpc, another_process_waits_for_an_event_and_finds_what_was_written) {
  for (const char* const part : {"a_stream_waits", "the_host_waits"}) {
    share_late_sevens();
    EXPECT_EQ(run_other(part), 0) << part;
  }
}

TEST_F(FakeGpuIpc, another_process_that_does_not_wait_is_found) {
  share_late_sevens();
  EXPECT_EQ(run_other("nobody_waits"), 1);
}

TEST_F(FakeGpuIpc, what_a_process_has_waited_for_is_before_what_others_do_then) {
  share_late_sevens();
  EXPECT_EQ(cuEventSynchronize(event_), kSuccess);
  EXPECT_EQ(run_other("nobody_waits"), 0);
}

TEST_F(FakeGpuIpc, shared_memory_is_closed_before_it_is_freed) {
  share_late_sevens();
  EXPECT_EQ(cuEventSynchronize(event_), kSuccess);
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  setenv("FAKE_GPU_TEST_PIPE", std::to_string(ends[1]).c_str(), 1);
  const pid_t other = start_other("memory_stays_open");
  char told = 0;
  close(ends[1]);
  EXPECT_EQ(read(ends[0], &told, 1), 1);
  close(ends[0]);
  EXPECT_EQ(cuMemFree_v2(memory_), kSuccess);
  EXPECT_NE(
      std::string(fake_gpu_last_violation()).find("shared memory is closed before it is freed"),
      std::string::npos);
  kill(other, SIGKILL);
  end_of(other);
}

TEST_F(FakeGpuIpc, handles_are_for_other_processes_and_for_what_was_made_for_them) {
  share_late_sevens();
  std::uint64_t memory = 0;
  void* event = nullptr;
  EXPECT_EQ(cuIpcOpenMemHandle_v2(&memory, handle_in("FAKE_GPU_TEST_MEMORY"), kLazyPeerAccess),
            kInvalidContext);
  EXPECT_EQ(cuIpcOpenMemHandle_v2(&memory, handle_in("FAKE_GPU_TEST_MEMORY"), 0), kInvalidValue);
  EXPECT_EQ(cuIpcOpenMemHandle_v2(&memory, handle_in("FAKE_GPU_TEST_EVENT"), kLazyPeerAccess),
            kInvalidValue);
  EXPECT_EQ(cuIpcOpenEventHandle(&event, handle_in("FAKE_GPU_TEST_EVENT")), kInvalidContext);
  EXPECT_EQ(cuIpcCloseMemHandle(memory_), kInvalidValue);
  EXPECT_EQ(cuEventCreate(&event, 4), kInvalidValue);  // with timing
  EXPECT_EQ(cuEventCreate(&event, 2), kSuccess);
  IpcHandle handle;
  EXPECT_EQ(cuIpcGetEventHandle(&handle, event), kInvalidValue);
  EXPECT_EQ(cuEventSynchronize(event_), kSuccess);
}

}  // namespace
