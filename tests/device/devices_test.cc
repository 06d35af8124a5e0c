// Devices and their loop on the fake GPU (tests/gpu): what is ordered, when it is over, and what goes wrong. Each
// test ends with nothing that broke an order and nothing that was not given back.
#include "device/devices.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu/fake_gpu.h"

namespace byteps::device {
namespace {

using testing::HasSubstr;
using testing::StartsWith;
using Kind = Order::Kind;

constexpr std::size_t kLong = 1 << 20;
constexpr std::size_t kPool = 16 * kLong;
constexpr std::size_t kBytes = 64 << 10;
constexpr TimeNs kLongNs = 20 * kSecond;

// The user of a device: memory, a stream, and kernels that take their time.
class User {
 public:
  explicit User(int ordinal = 0) {
    int device = 0;
    EXPECT_EQ(cuInit(0), 0U);
    EXPECT_EQ(cuDeviceGet(&device, ordinal), 0U);
    device_ = device;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&context_, device), 0U);
    const Inside inside(*this);
    EXPECT_EQ(cuStreamCreateWithPriority(&stream_, 1, 0), 0U);
  }
  ~User() {
    {
      const Inside inside(*this);
      // Events that were recorded and given up may still be under way: a context ends after its work.
      EXPECT_EQ(cuCtxSynchronize(), 0U);
      for (const std::uint64_t each : memory_) EXPECT_EQ(cuMemFree_v2(each), 0U);
      EXPECT_EQ(cuStreamDestroy_v2(stream_), 0U);
    }
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(device_), 0U);
  }
  class Inside {
   public:
    explicit Inside(const User& user) { EXPECT_EQ(cuCtxPushCurrent_v2(user.context_), 0U); }
    ~Inside() {
      void* context = nullptr;
      EXPECT_EQ(cuCtxPopCurrent_v2(&context), 0U);
    }
  };

  std::uint64_t allocate(std::size_t bytes = kBytes) {
    const Inside inside(*this);
    std::uint64_t address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, bytes), 0U);
    memory_.push_back(address);
    return address;
  }
  // A kernel that writes `value` everywhere, `after_us` after its turn has come.
  void fill(std::uint64_t address, int value, std::uint64_t after_us = 0,
            std::size_t bytes = kBytes) {
    const Inside inside(*this);
    const FakeGpuBytes written{address, bytes};
    argument_ = {value, bytes};
    arguments_.push_back(std::make_unique<Argument>(argument_));
    EXPECT_EQ(fake_gpu_launch(
                  stream_, after_us, nullptr, 0, &written, 1,
                  [](void* argument, void* const*, void* const* writes) {
                    const auto& what = *static_cast<Argument*>(argument);
                    std::memset(writes[0], what.value, what.bytes);
                  },
                  arguments_.back().get()),
              0U);
  }
  // A kernel that reads it, on the user's stream.
  void read(std::uint64_t address, std::size_t bytes = kBytes) {
    const Inside inside(*this);
    const FakeGpuBytes seen{address, bytes};
    EXPECT_EQ(fake_gpu_launch(stream_, 0, &seen, 1, nullptr, 0, nullptr, nullptr), 0U);
    EXPECT_EQ(cuStreamSynchronize(stream_), 0U);
  }
  static std::vector<unsigned char> look(std::uint64_t address, std::size_t bytes = kBytes) {
    std::vector<unsigned char> seen(bytes);
    std::memcpy(seen.data(), fake_gpu_alias(address), bytes);
    return seen;
  }
  void synchronize() {
    const Inside inside(*this);
    EXPECT_EQ(cuStreamSynchronize(stream_), 0U);
  }
  abi::Stream stream() const { return static_cast<abi::Stream>(stream_); }

 private:
  struct Argument {
    int value = 0;
    std::size_t bytes = 0;
  };
  Argument argument_;
  std::vector<std::unique_ptr<Argument>> arguments_;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  int device_ = 0;
  std::vector<std::uint64_t> memory_;
};

const void* pointer(std::uint64_t address) {
  return reinterpret_cast<const void*>(address);
}

// What is begun by the one is ended by the other.
constexpr std::pair<const char*, const char*> kPairs[] = {
    {"cuEventCreate", "cuEventDestroy_v2"},
    {"cuStreamCreateWithPriority", "cuStreamDestroy_v2"},
    {"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2"},
    {"cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"},
    {"cuMemHostRegister_v2", "cuMemHostUnregister"}};

class DevicesTest : public testing::Test {
 protected:
  DevicesTest() {
    fake_gpu_reset();
    fake_gpu_on_violation(2);
    config_.cuda_library = FAKE_CUDA_LIBRARY;
    config_.pinned_bytes = kPool;
    devices_.emplace(config_, log_, clock_, &worker_);
    user_.emplace();
  }
  ~DevicesTest() override {
    end();
    user_.reset();
    EXPECT_EQ(fake_gpu_violations(), 0U) << fake_gpu_last_violation();
    EXPECT_EQ(fake_gpu_check_leaks(), 0U) << fake_gpu_last_violation();
    // A context that is released takes with it what others have left in it.
    for (const auto& [begun, ended] : kPairs) {
      const bool pins = std::string_view(begun) == "cuMemHostRegister_v2";
      EXPECT_EQ(fake_gpu_calls(begun) - (pins ? refused_pins_ : 0), fake_gpu_calls(ended)) << begun;
    }
  }
  void end() {
    if (!devices_) return;
    EXPECT_TRUE(devices_->close_within(kLongNs));
    devices_.reset();
  }

  Place place(std::uint64_t input, std::uint64_t output) {
    Result<Place> found = devices_->place(0, user_->stream(), pointer(input), pointer(output));
    EXPECT_TRUE(found.is_ok()) << found.status().text();
    return std::move(found).value();
  }
  std::byte* slab() { return devices_->port().pool.data(); }

  void order(Kind kind, std::uint64_t address, std::byte* host = nullptr, std::uint64_t source = 0,
             std::size_t bytes = kBytes) {
    Order one;
    one.kind = kind;
    one.operation = 1;
    one.device = devices_->use(0).value();
    one.address = address;
    one.host = host;
    one.source = source;
    one.bytes = bytes;
    EXPECT_TRUE(devices_->port().orders->post(std::move(one)).is_ok());
  }
  void await(Place&& at) {
    Order one;
    one.operation = 1;
    one.device = at.device;
    one.lane = at.lane;
    one.ready = std::move(at.ready);
    EXPECT_TRUE(devices_->port().orders->post(std::move(one)).is_ok());
  }
  // The next report.
  Report report() {
    std::vector<Report> fresh;
    while (reports_.empty()) {
      devices_->port().reports->drain(fresh);
      for (Report& each : fresh) reports_.push_back(std::move(each));
      if (reports_.empty()) worker_.wait(kSecond);
    }
    Report first = std::move(reports_.front());
    reports_.erase(reports_.begin());
    return first;
  }
  // What a tensor of nobody else ends with.
  Status alone(std::uint64_t input, std::uint64_t output,
               std::function<void(std::span<std::byte>)> finish = {}) {
    std::atomic<bool> is_over{false};
    Status result;
    Alone call;
    call.place = place(input, output);
    call.input = input;
    call.output = output;
    call.bytes = kBytes;
    call.finish = std::move(finish);
    call.ended = [&](Status status) {
      result = std::move(status);
      is_over = true;
    };
    EXPECT_TRUE(devices_->post(std::move(call)).is_ok());
    while (!is_over) std::this_thread::sleep_for(std::chrono::microseconds(100));
    return result;
  }

  DeviceConfig config_;
  std::vector<std::string> lines_;
  const Log log_{"test", LogLevel::kWarning,
                 [this](std::string_view line) { lines_.emplace_back(line); }};
  MonotonicClock clock_;
  Sleeper worker_;
  std::optional<Devices> devices_;
  std::optional<User> user_;
  std::vector<Report> reports_;
  std::uint64_t refused_pins_ = 0;
};

// ---- what is read and written, and when

TEST_F(DevicesTest, a_copy_out_is_begun_when_the_kernel_has_ended_and_reported_when_it_is_there) {
  const std::uint64_t memory = user_->allocate();
  user_->fill(memory, 7, 20'000);
  await(place(memory, memory));
  EXPECT_EQ(report().kind, Kind::kAwait);
  order(Kind::kOut, memory, slab());
  EXPECT_EQ(report().kind, Kind::kOut);
  fake_gpu_host_access(slab(), kBytes, 0);
  EXPECT_EQ(std::vector<std::byte>(slab(), slab() + kBytes),
            std::vector<std::byte>(kBytes, std::byte{7}));
}

TEST_F(DevicesTest, a_copy_in_is_reported_when_any_stream_may_read_it) {
  const std::uint64_t memory = user_->allocate();
  await(place(memory, memory));
  report();
  std::memset(slab(), 9, kBytes);
  order(Kind::kIn, memory, slab());
  EXPECT_EQ(report().kind, Kind::kIn);
  fake_gpu_host_access(slab(), kBytes, 1);
  std::memset(slab(), 0, kBytes);
  user_->read(memory);
  EXPECT_EQ(User::look(memory), std::vector<unsigned char>(kBytes, 9));
}

TEST_F(DevicesTest, a_copy_within_the_device_is_reported_when_any_stream_may_read_it) {
  const std::uint64_t from = user_->allocate();
  const std::uint64_t to = user_->allocate();
  user_->fill(from, 3, 1'000);
  await(place(from, to));
  report();
  order(Kind::kWithin, to, nullptr, from);
  EXPECT_EQ(report().kind, Kind::kWithin);
  user_->read(to);
  EXPECT_EQ(User::look(to), std::vector<unsigned char>(kBytes, 3));
}

TEST_F(DevicesTest, orders_of_a_direction_are_reported_in_their_order) {
  const std::uint64_t memory = user_->allocate();
  user_->fill(memory, 1);
  await(place(memory, memory));
  report();
  for (std::uint32_t chunk = 0; chunk < 8; ++chunk) {
    order(Kind::kOut, memory + chunk * 4096, slab() + chunk * 4096, 0, 4096);
  }
  for (std::uint32_t chunk = 0; chunk < 8; ++chunk) EXPECT_TRUE(report().result.is_ok());
  fake_gpu_host_access(slab(), 8 * 4096, 0);
}

// Two streams: the later call is ready first.
TEST_F(DevicesTest, a_stream_that_is_late_holds_up_no_other) {
  User other;
  const std::uint64_t slow = user_->allocate();
  const std::uint64_t quick = other.allocate();
  user_->fill(slow, 1, 200'000);
  other.fill(quick, 2);
  await(place(slow, slow));
  Place second = std::move(devices_->place(0, other.stream(), pointer(quick), nullptr)).value();
  Order one;
  one.operation = 2;
  one.device = second.device;
  one.lane = second.lane;
  one.ready = std::move(second.ready);
  EXPECT_TRUE(devices_->port().orders->post(std::move(one)).is_ok());
  EXPECT_EQ(report().operation, 2U);
  EXPECT_EQ(report().operation, 1U);
}

// Each event is used again and again.
TEST_F(DevicesTest, many_calls_use_few_events_and_mix_nothing_up) {
  const std::uint64_t memory = user_->allocate();
  for (int step = 0; step < 50; ++step) {
    user_->fill(memory, step, 100);
    await(place(memory, memory));
    report();
    order(Kind::kOut, memory, slab());
    report();
    fake_gpu_host_access(slab(), kBytes, 0);
    ASSERT_EQ(slab()[kBytes - 1], static_cast<std::byte>(step));
  }
  EXPECT_LT(fake_gpu_calls("cuEventCreate"), 5U);
}

TEST_F(DevicesTest, several_threads_submit_at_once) {
  const std::uint64_t memory = user_->allocate();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) await(place(memory, memory));
    });
  }
  for (int i = 0; i < 80; ++i) EXPECT_TRUE(report().result.is_ok());
  for (std::thread& thread : threads) thread.join();
}

// ---- tensors of nobody else

TEST_F(DevicesTest, alone_in_place_ends_when_the_stream_has_come_so_far) {
  const std::uint64_t memory = user_->allocate();
  user_->fill(memory, 4, 10'000);
  EXPECT_TRUE(alone(memory, memory).is_ok());
  EXPECT_EQ(User::look(memory)[0], 4);
  User other;
  other.read(memory);
}

TEST_F(DevicesTest, alone_the_output_gets_the_input) {
  const std::uint64_t from = user_->allocate();
  const std::uint64_t to = user_->allocate();
  user_->fill(from, 5, 1'000);
  EXPECT_TRUE(alone(from, to).is_ok());
  user_->read(to);
  EXPECT_EQ(User::look(to), std::vector<unsigned char>(kBytes, 5));
}

TEST_F(DevicesTest, alone_values_are_finished_in_host_memory) {
  const std::uint64_t memory = user_->allocate();
  user_->fill(memory, 5, 1'000);
  EXPECT_TRUE(alone(memory, memory, [](std::span<std::byte> values) {
                for (std::byte& value : values) value = std::byte(static_cast<int>(value) * 2);
              }).is_ok());
  user_->read(memory);
  EXPECT_EQ(User::look(memory), std::vector<unsigned char>(kBytes, 10));
}

TEST_F(DevicesTest, a_device_that_fails_for_one_alone_is_reported_as_a_matter_of_all) {
  const std::uint64_t from = user_->allocate();
  const std::uint64_t to = user_->allocate();
  EXPECT_TRUE(devices_->use(0).is_ok());
  fake_gpu_fail("cuMemcpyDtoDAsync_v2", 1, 1);
  EXPECT_TRUE(alone(from, to).is(Code::kSystem));
  const Report failed = report();
  EXPECT_EQ(failed.operation, kNoOperation);
  EXPECT_THAT(failed.result.message(), HasSubstr("cuMemcpyDtoDAsync failed"));
}

// What is posted before the end is ended, whenever the loop looks into its boxes.
TEST_F(DevicesTest, whatever_was_posted_before_the_end_has_an_end) {
  const std::uint64_t memory = user_->allocate();
  std::atomic<int> ended{0};
  constexpr int kCalls = 50;
  for (int i = 0; i < kCalls; ++i) {
    Alone call;
    call.place = place(memory, memory);
    call.input = call.output = memory;
    call.bytes = kBytes;
    call.ended = [&](const Status&) { ++ended; };
    EXPECT_TRUE(devices_->post(std::move(call)).is_ok());
  }
  end();
  EXPECT_EQ(ended, kCalls);
}

// The handle of a thread's default stream is the same in all threads.
TEST_F(DevicesTest, a_threads_default_stream_is_a_lane_of_its_own) {
  auto* const own = reinterpret_cast<abi::Stream>(abi::kStreamPerThread);
  const std::uint64_t memory = user_->allocate();
  const auto lane_here = [&] {
    return std::move(devices_->place(0, own, pointer(memory), nullptr)).value().lane;
  };
  std::uint64_t there = 0;
  std::thread other([&] { there = lane_here(); });
  const std::uint64_t here = lane_here();
  other.join();
  EXPECT_NE(here, there);
  EXPECT_EQ(here, lane_here());
  EXPECT_EQ(place(memory, memory).lane, place(memory, memory).lane);
}

// ---- what is refused

TEST_F(DevicesTest, memory_that_is_not_the_devices_is_refused_by_name) {
  std::vector<char> host(64);
  const auto refused = [&](int ordinal, const void* input, const void* output) {
    return devices_->place(ordinal, nullptr, input, output).status().message();
  };
  const std::uint64_t memory = user_->allocate();
  EXPECT_THAT(refused(0, host.data(), nullptr), HasSubstr("input is no memory of a CUDA device"));
  EXPECT_THAT(refused(0, pointer(memory), host.data()), HasSubstr("output is no memory"));
  EXPECT_THAT(refused(1, pointer(memory), nullptr),
              HasSubstr("input is memory of CUDA device 0, and the tensor is said to be on 1"));
}

TEST_F(DevicesTest, a_device_that_is_not_there_is_refused_with_how_many_there_are) {
  EXPECT_TRUE(devices_->use(7).status().is(Code::kUnsupported));
  EXPECT_THAT(devices_->use(7).status().message(), HasSubstr("no CUDA device 7"));
  EXPECT_THAT(devices_->use(-1).status().message(), HasSubstr("this process sees 2"));
}

TEST_F(DevicesTest, a_stream_from_which_a_graph_is_captured_is_refused_and_the_capture_goes_on) {
  const std::uint64_t memory = user_->allocate();
  {
    const User::Inside inside(*user_);
    ASSERT_EQ(cuStreamBeginCapture_v2(user_->stream(), 2), 0U);
  }
  const auto refused = devices_->place(0, user_->stream(), pointer(memory), nullptr);
  EXPECT_TRUE(refused.status().is(Code::kInvalidArgument));
  EXPECT_THAT(refused.status().message(), HasSubstr("a CUDA graph is captured"));
  const User::Inside inside(*user_);
  void* graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(user_->stream(), &graph), 0U);
  EXPECT_NE(graph, nullptr);
}

// As torch captures: in global mode, in which certain calls of any thread spoil it.
TEST_F(DevicesTest, a_graph_that_another_thread_captures_is_not_spoiled) {
  const std::uint64_t memory = user_->allocate();
  void* captured = nullptr;
  {
    const User::Inside inside(*user_);
    ASSERT_EQ(cuStreamCreateWithPriority(&captured, 1, 0), 0U);
    ASSERT_EQ(cuStreamBeginCapture_v2(captured, 0), 0U);
  }
  std::thread submitter([&] {
    user_->fill(memory, 6, 5'000);
    await(place(memory, memory));
  });
  submitter.join();
  EXPECT_TRUE(report().result.is_ok());
  order(Kind::kOut, memory, slab());
  EXPECT_TRUE(report().result.is_ok());
  const User::Inside inside(*user_);
  void* graph = nullptr;
  EXPECT_EQ(cuStreamEndCapture(captured, &graph), 0U);
  EXPECT_NE(graph, nullptr);
  EXPECT_EQ(cuStreamDestroy_v2(captured), 0U);
}

TEST(Driver, where_there_is_none_the_error_says_what_was_looked_for) {
  const Status missing = load_driver("/nowhere/libcuda.so.1").status();
  EXPECT_TRUE(missing.is(Code::kUnsupported));
  EXPECT_THAT(missing.message(), HasSubstr("/nowhere/libcuda.so.1"));
  EXPECT_THAT(missing.message(), HasSubstr("install NVIDIA's driver"));
  const Status other = load_driver("libm.so.6").status();
  EXPECT_THAT(other.message(), HasSubstr("libm.so.6 has no cuInit"));
}

TEST(Driver, a_stub_library_is_called_one) {
  fake_gpu_reset();
  fake_gpu_fail("cuInit", 1, 34);
  EXPECT_THAT(load_driver(FAKE_CUDA_LIBRARY).status().message(), HasSubstr("stub"));
}

// The toolkit's stub has all symbols of the real driver, under their full names, and refuses to begin.
TEST(Driver, the_stub_of_a_toolkit_has_all_that_is_needed_and_is_called_one) {
  const std::string stub = CUDA_STUB_LIBRARY;
  if (stub.empty()) GTEST_SKIP() << "no toolkit is installed";
  const Status refused = load_driver(stub).status();
  EXPECT_TRUE(refused.is(Code::kUnsupported));
  EXPECT_THAT(refused.message(), HasSubstr("the library found is the toolkit's stub"));
}

TEST(Driver, no_device_is_said) {
  fake_gpu_reset();
  fake_gpu_fail("cuInit", 1, 100);
  EXPECT_THAT(load_driver(FAKE_CUDA_LIBRARY).status().message(),
              HasSubstr("no CUDA driver: cuInit"));
}

TEST(Driver, the_devices_of_a_process_are_told_with_the_drivers_version) {
  fake_gpu_reset();
  EXPECT_EQ(describe_devices(FAKE_CUDA_LIBRARY),
            "2: Fake GPU (0000:01:00.0), Fake GPU (0000:02:00.0); the driver is for CUDA 13.0");
  EXPECT_THAT(describe_devices("/nowhere/libcuda.so.1"),
              StartsWith("none: no CUDA driver: /nowhere/libcuda.so.1"));
}

// ---- what fails

TEST_F(DevicesTest, a_copy_that_fails_is_reported_with_device_call_and_the_drivers_words) {
  const std::uint64_t memory = user_->allocate();
  await(place(memory, memory));
  report();
  fake_gpu_fail("cuMemcpyDtoHAsync_v2", 1, 1);
  order(Kind::kOut, memory, slab());
  const Report failed = report();
  EXPECT_TRUE(failed.result.is(Code::kSystem));
  EXPECT_THAT(failed.result.message(), HasSubstr("CUDA device 0"));
  EXPECT_THAT(failed.result.message(),
              HasSubstr("cuMemcpyDtoHAsync failed: CUDA_ERROR_INVALID_VALUE"));
}

TEST_F(DevicesTest, a_copy_whose_end_cannot_be_known_has_ended_when_it_is_reported) {
  constexpr std::size_t kCopies = kPool / kLong;  // others before it, so that it would be late
  const std::uint64_t memory = user_->allocate(kLong);
  user_->fill(memory, 7, 0, kLong);
  user_->synchronize();
  await(place(memory, memory));
  report();
  fake_gpu_fail("cuEventRecord", kCopies, 1);
  for (std::size_t i = 0; i < kCopies; ++i) {
    order(Kind::kOut, memory, slab() + i * kLong, 0, kLong);
  }
  Report failed = report();
  std::size_t fine = 0;
  for (; failed.result.is_ok(); failed = report()) ++fine;
  EXPECT_EQ(slab()[kPool - 1], std::byte{7});
  EXPECT_THAT(failed.result.message(), HasSubstr("cuEventRecord failed"));
  for (; fine < kCopies - 1; ++fine) EXPECT_TRUE(report().result.is_ok());
}

TEST_F(DevicesTest, a_copy_that_cannot_be_asked_for_has_ended_when_it_is_reported) {
  const std::uint64_t memory = user_->allocate(kLong);
  user_->fill(memory, 7, 0, kLong);
  user_->synchronize();
  await(place(memory, memory));
  report();
  fake_gpu_fail("cuEventQuery", 1, 1);
  order(Kind::kOut, memory, slab(), 0, kLong);
  const Report failed = report();
  EXPECT_EQ(slab()[kLong - 1], std::byte{7});
  EXPECT_THAT(failed.result.message(), HasSubstr("cuEventQuery failed"));
}

TEST_F(DevicesTest, memory_that_cannot_be_pinned_is_used_all_the_same_with_one_warning) {
  fake_gpu_fail("cuMemHostRegister_v2", 1, 2);
  refused_pins_ = 1;
  const std::uint64_t memory = user_->allocate();
  user_->fill(memory, 8);
  await(place(memory, memory));
  report();
  order(Kind::kOut, memory, slab());
  EXPECT_TRUE(report().result.is_ok());
  EXPECT_EQ(slab()[0], std::byte{8});
  order(Kind::kIn, memory, slab());
  EXPECT_TRUE(report().result.is_ok());
  EXPECT_TRUE(devices_->use(1).is_ok());
  ASSERT_EQ(lines_.size(), 1U);
  EXPECT_THAT(lines_[0], HasSubstr("could not be pinned"));
}

// ---- the end

TEST_F(DevicesTest, nothing_is_loaded_before_the_first_tensor) {
  end();
  EXPECT_EQ(fake_gpu_calls("cuStreamCreateWithPriority"), 1U) << "the user's";
}

TEST_F(DevicesTest, what_waits_for_a_stream_is_given_up_at_the_end) {
  const std::uint64_t memory = user_->allocate();
  user_->fill(memory, 1, 300'000);
  std::atomic<bool> is_over{false};
  Status result;
  Alone call;
  call.place = place(memory, memory);
  call.input = call.output = memory;
  call.bytes = kBytes;
  call.ended = [&](Status status) {
    result = std::move(status);
    is_over = true;
  };
  ASSERT_TRUE(devices_->post(std::move(call)).is_ok());
  EXPECT_TRUE(devices_->close_within(kLongNs));
  EXPECT_TRUE(is_over);
  EXPECT_TRUE(result.is(Code::kCancelled));
  user_->synchronize();
}

}  // namespace
}  // namespace byteps::device
