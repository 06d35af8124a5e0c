// The C interface as a caller sees it, through the shared library: a job of one, wrong calls, and a forked child.
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "byteps/byteps.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace {

using ::testing::HasSubstr;

// The settings under test come from here alone, whatever the environment says.
constexpr const char* kAlone =
    "DMLC_NUM_WORKER=1\nDMLC_WORKER_ID=0\nBYTEPS_LOCAL_SIZE=1\nBYTEPS_LOCAL_RANK=0\n";

class JobOfOne : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(byteps_join(kAlone, &job_, &error_), BYTEPS_OK) << error_.message;
  }
  void TearDown() override {
    if (job_ != nullptr) {
      EXPECT_EQ(byteps_leave(job_, 1, &error_), BYTEPS_OK) << error_.message;
    }
  }

  byteps_tensor tensor(const char* name, std::vector<float>& values) const {
    byteps_tensor made{};
    made.struct_bytes = sizeof made;
    made.name = name;
    made.dtype = BYTEPS_FLOAT32;
    made.input = values.data();
    made.output = values.data();
    made.element_count = values.size();
    return made;
  }
  int push_pull(const byteps_tensor& tensor) {
    byteps_handle handle = 0;
    const int code = byteps_push_pull(job_, &tensor, &handle, &error_);
    return code != BYTEPS_OK ? code : byteps_wait(job_, handle, -1, &error_);
  }

  byteps_job* job_ = nullptr;
  byteps_error error_{};
};

TEST_F(JobOfOne, is_rank_zero_of_one_without_servers) {
  EXPECT_EQ(byteps_rank(job_), 0U);
  EXPECT_EQ(byteps_size(job_), 1U);
  EXPECT_EQ(byteps_local_rank(job_), 0U);
  EXPECT_EQ(byteps_local_size(job_), 1U);
  EXPECT_EQ(byteps_server_count(job_), 0U);
  uint32_t machines[2] = {7, 7};
  EXPECT_EQ(byteps_machines(job_, machines, 2), 1U);
  EXPECT_EQ(machines[0], 0U);
  EXPECT_EQ(machines[1], 7U);
  EXPECT_EQ(byteps_machines(job_, nullptr, 0), 1U);
  EXPECT_EQ(byteps_machines(nullptr, machines, 2), 0U);
}

TEST_F(JobOfOne, the_sum_of_one_is_a_copy) {
  std::vector<float> input = {1, 2, 3};
  std::vector<float> output(3);
  byteps_tensor call = tensor("t", input);
  call.output = output.data();
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  EXPECT_EQ(output, input);
}

TEST_F(JobOfOne, a_seal_is_for_one_rank_name_and_payload) {
  const char payload[] = "payload";
  uint8_t seal[BYTEPS_SEAL_BYTES] = {};
  ASSERT_EQ(byteps_seal(job_, "a.1", payload, 7, seal, &error_), BYTEPS_OK) << error_.message;
  const auto check = [&](uint32_t rank, const char* name, const void* content, uint64_t bytes) {
    return byteps_check_seal(job_, rank, name, content, bytes, seal, &error_);
  };
  EXPECT_EQ(check(0, "a.1", payload, 7), BYTEPS_OK) << error_.message;
  EXPECT_EQ(check(1, "a.1", payload, 7), BYTEPS_MISMATCH);
  EXPECT_THAT(error_.message, HasSubstr("'a.1'"));
  EXPECT_THAT(error_.message, HasSubstr("rank 1"));
  EXPECT_EQ(check(0, "a.2", payload, 7), BYTEPS_MISMATCH);
  EXPECT_EQ(check(0, "a.1", payload, 6), BYTEPS_MISMATCH);
  EXPECT_EQ(check(0, nullptr, payload, 7), BYTEPS_INVALID_ARGUMENT);
  EXPECT_EQ(check(0, "a.1", nullptr, 7), BYTEPS_INVALID_ARGUMENT);
  EXPECT_EQ(byteps_check_seal(job_, 0, "a.1", payload, 7, nullptr, &error_),
            BYTEPS_INVALID_ARGUMENT);
  EXPECT_EQ(byteps_seal(job_, "a.1", payload, 7, nullptr, &error_), BYTEPS_INVALID_ARGUMENT);
  seal[31] ^= 1;
  EXPECT_EQ(check(0, "a.1", payload, 7), BYTEPS_MISMATCH);
  EXPECT_EQ(byteps_seal(job_, "empty", nullptr, 0, seal, &error_), BYTEPS_OK) << error_.message;
  EXPECT_EQ(check(0, "empty", nullptr, 0), BYTEPS_OK) << error_.message;
}

TEST_F(JobOfOne, a_handle_is_finished_once_and_then_unknown) {
  std::vector<float> values(4, 1.0F);
  const byteps_tensor call = tensor("t", values);
  byteps_handle handle = 0;
  ASSERT_EQ(byteps_push_pull(job_, &call, &handle, &error_), BYTEPS_OK);
  EXPECT_NE(handle, 0);
  EXPECT_EQ(byteps_poll(job_, handle), 1);
  EXPECT_EQ(byteps_wait(job_, handle, -1, &error_), BYTEPS_OK);
  EXPECT_EQ(byteps_poll(job_, handle), -1);
  EXPECT_EQ(byteps_wait(job_, handle, -1, &error_), BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr(std::to_string(handle)));
}

TEST_F(JobOfOne, wrong_calls_are_refused_with_a_reason) {
  std::vector<float> values(4, 1.0F);
  byteps_handle handle = 0;
  const byteps_tensor good = tensor("t", values);
  const auto refused = [&](const byteps_tensor& call, const char* reason) {
    EXPECT_EQ(byteps_push_pull(job_, &call, &handle, &error_), BYTEPS_INVALID_ARGUMENT) << reason;
    EXPECT_THAT(error_.message, HasSubstr(reason));
  };
  byteps_tensor bad = good;
  bad.struct_bytes = 4;
  refused(bad, "struct_bytes");
  bad = good, bad.name = nullptr;
  refused(bad, "name is NULL");
  bad = good, bad.flags = 0x80;
  refused(bad, "unknown bits");
  bad = good, bad.reserved = 1;
  refused(bad, "reserved is 1");
  bad = good, bad.dtype = 77;
  refused(bad, "dtype");
  bad = good, bad.dtype = 99U << 8;
  refused(bad, "dtype");
  bad = good, bad.operation = 9;
  refused(bad, "operation");
  bad = good, bad.output = nullptr;
  refused(bad, "output");
  bad = good, bad.operation = BYTEPS_BROADCAST, bad.root = 1;
  refused(bad, "root");
  bad = good, bad.dtype = BYTEPS_BOOL, bad.operation = BYTEPS_AVERAGE;
  refused(bad, "bool");
  bad = good, bad.element_count = ~0ULL / 2;
  refused(bad, "t");
  EXPECT_EQ(byteps_push_pull(job_, nullptr, &handle, &error_), BYTEPS_INVALID_ARGUMENT);
  EXPECT_EQ(byteps_push_pull(job_, &good, nullptr, &error_), BYTEPS_INVALID_ARGUMENT);
  EXPECT_EQ(byteps_push_pull(nullptr, &good, &handle, &error_), BYTEPS_INVALID_ARGUMENT);
}

TEST_F(JobOfOne, a_shape_belongs_to_the_tensor) {
  std::vector<float> values(6, 1.0F);
  const uint64_t wide[] = {2, 3};
  const uint64_t tall[] = {3, 2};
  byteps_tensor call = tensor("t", values);
  call.shape = wide;
  call.dimension_count = 2;
  ASSERT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  call.shape = tall;
  EXPECT_EQ(push_pull(call), BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("shape 2x3"));
  EXPECT_THAT(error_.message, HasSubstr("shape 3x2"));
  call.dimension_count = 1;
  EXPECT_EQ(push_pull(call), BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("shape 3 has 3 elements, but element_count is 6"));
  call.name = "scalar";
  call.element_count = 1;
  call.dimension_count = 0;
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  call.shape = nullptr;
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
}

TEST_F(JobOfOne, a_queue_reports_ends_instead_of_wait) {
  byteps_queue* queue = nullptr;
  ASSERT_EQ(byteps_queue_create(job_, &queue, &error_), BYTEPS_OK) << error_.message;
  std::vector<float> values(6, 1.0F);
  byteps_tensor call = tensor("t", values);
  call.queue = queue;
  call.tag = 41;
  byteps_handle handle = 0;
  ASSERT_EQ(byteps_push_pull(job_, &call, &handle, &error_), BYTEPS_OK) << error_.message;
  EXPECT_EQ(byteps_wait(job_, handle, 0, &error_), BYTEPS_INVALID_ARGUMENT);
  call.element_count = 5;  // not what it was
  call.tag = 42;
  ASSERT_EQ(byteps_push_pull(job_, &call, &handle, &error_), BYTEPS_OK) << error_.message;

  byteps_ended ended[8];
  uint32_t count = 0;
  ASSERT_EQ(byteps_queue_wait(queue, ended, 8, &count, -1, &error_), BYTEPS_OK);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(ended[0].tag, 41U);
  EXPECT_EQ(ended[0].code, BYTEPS_OK);
  ASSERT_EQ(byteps_queue_wait(queue, ended, 8, &count, -1, &error_), BYTEPS_OK);
  ASSERT_EQ(count, 1U);
  EXPECT_EQ(ended[0].tag, 42U);
  EXPECT_EQ(ended[0].handle, handle);
  EXPECT_EQ(ended[0].code, BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("shape 5"));
  EXPECT_EQ(byteps_queue_wait(queue, ended, 8, &count, 0, &error_), BYTEPS_AGAIN);
  EXPECT_EQ(byteps_queue_wait(queue, ended, 0, &count, 0, &error_), BYTEPS_INVALID_ARGUMENT);
  EXPECT_EQ(byteps_queue_wait(nullptr, ended, 8, &count, 0, &error_), BYTEPS_INVALID_ARGUMENT);

  ASSERT_EQ(byteps_leave(job_, 1, &error_), BYTEPS_OK);
  job_ = nullptr;
  EXPECT_EQ(byteps_queue_wait(queue, ended, 8, &count, -1, &error_), BYTEPS_CANCELLED);
  byteps_queue_destroy(queue);
  byteps_queue_destroy(nullptr);
}

TEST_F(JobOfOne, a_queue_of_another_job_is_refused) {
  byteps_job* other = nullptr;
  byteps_queue* queue = nullptr;
  ASSERT_EQ(byteps_join(kAlone, &other, &error_), BYTEPS_OK) << error_.message;
  ASSERT_EQ(byteps_queue_create(other, &queue, &error_), BYTEPS_OK) << error_.message;
  std::vector<float> values(6, 1.0F);
  byteps_tensor call = tensor("t", values);
  call.queue = queue;
  byteps_handle handle = 0;
  EXPECT_EQ(byteps_push_pull(job_, &call, &handle, &error_), BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("another job"));
  EXPECT_EQ(byteps_leave(other, 1, &error_), BYTEPS_OK);
  byteps_queue_destroy(queue);
}

// Before interface version 3 the struct ended with `flags`; what lies behind it is not ours to read.
TEST_F(JobOfOne, a_program_that_knows_no_shapes_is_served) {
  std::vector<float> values(6, 1.0F);
  byteps_tensor call = tensor("t", values);
  ASSERT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  call.struct_bytes = offsetof(byteps_tensor, shape);
  call.shape = reinterpret_cast<const uint64_t*>(1);
  call.dimension_count = 77;
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  call.shape = nullptr;
  call.dimension_count = 0;
  call.struct_bytes = offsetof(byteps_tensor, scale);  // of version 3
  call.queue = reinterpret_cast<byteps_queue*>(1);
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  call.queue = nullptr;
  call.struct_bytes = offsetof(byteps_tensor, codec);  // of version 12
  call.momentum_mu = 7;
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  call.struct_bytes = offsetof(byteps_tensor, format);  // of version 10
  call.format = 77;
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  call.struct_bytes = sizeof call - 1;
  EXPECT_EQ(push_pull(call), BYTEPS_INVALID_ARGUMENT);
}

TEST_F(JobOfOne, a_format_and_a_residual_that_cannot_be_are_refused_with_a_reason) {
  std::vector<float> values(256, 1.0F);
  std::vector<float> residual(256);
  const byteps_tensor good = tensor("t", values);
  const auto refused = [&](const byteps_tensor& call, const char* reason) {
    EXPECT_EQ(push_pull(call), BYTEPS_INVALID_ARGUMENT) << reason;
    EXPECT_THAT(error_.message, HasSubstr(reason));
    EXPECT_THAT(error_.message, HasSubstr("'t'"));
  };
  byteps_tensor bad = good;
  bad.format = 10;
  refused(bad, "no format has the number 10");
  bad = good, bad.format = BYTEPS_FORMAT_INT8, bad.operation = BYTEPS_MAX;
  refused(bad, "only sums and averages");
  bad = good, bad.format = BYTEPS_FORMAT_INT8, bad.dtype = BYTEPS_INT32;
  refused(bad, "only float32");
  bad = good, bad.residual = residual.data();
  refused(bad, "residual must be NULL");
  bad.format = BYTEPS_FORMAT_FLOAT16;
  refused(bad, "residual must be NULL");
  bad.format = BYTEPS_FORMAT_INT4, bad.residual = values.data() + 255;
  refused(bad, "shares memory");
  bad = good, bad.format = BYTEPS_FORMAT_INT8, bad.residual = residual.data();
  EXPECT_EQ(push_pull(bad), BYTEPS_OK) << error_.message;
  EXPECT_EQ(values, std::vector<float>(256, 1.0F)) << "nobody else takes part";
}

TEST_F(JobOfOne, where_a_format_is_for_what_it_fits_other_tensors_are_no_error) {
  std::vector<float> values(256, 1.0F);
  byteps_tensor call = tensor("small", values);
  call.format = BYTEPS_FORMAT_INT4;
  call.flags = BYTEPS_CODED_WHERE_FIT;
  call.residual = values.data();  // is not touched
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  call.name = "integers", call.dtype = BYTEPS_INT32;
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  call.name = "largest", call.dtype = BYTEPS_FLOAT32, call.operation = BYTEPS_MAX;
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  call.name = "unknown", call.format = 77;
  EXPECT_EQ(push_pull(call), BYTEPS_INVALID_ARGUMENT);
}

TEST_F(JobOfOne, a_codec_that_cannot_be_is_refused_with_a_reason) {
  std::vector<float> values(256, 1.0F);
  std::vector<float> memory(256);
  const auto refused = [&](const byteps_tensor& call, const char* reason) {
    EXPECT_EQ(push_pull(call), BYTEPS_INVALID_ARGUMENT) << reason;
    EXPECT_THAT(error_.message, HasSubstr(reason));
  };
  byteps_codec codec{};
  byteps_tensor call = tensor("t", values);
  call.codec = &codec;
  call.format = BYTEPS_FORMAT_TOPK;
  refused(call, "tensor 't': k must be above 0");
  codec.k = 0.01;
  codec.flags = 32;
  refused(call, "byteps_codec.flags has unknown bits: 32");
  codec.flags = BYTEPS_CODEC_SCALING;
  refused(call, "scaling is for onebit");
  codec.flags = BYTEPS_CODEC_ERROR_FEEDBACK;
  refused(call, "error feedback, and no residual");
  call.residual = memory.data();
  call.residual_ratio = -1;
  refused(call, "residual_ratio is -1");
  call.residual_ratio = 0;
  call.momentum_mu = 0.9;
  refused(call, "momentum_mu is set");
  call.momentum = memory.data();
  refused(call, "momentum shares memory with its residual");
  call.momentum = values.data();
  refused(call, "momentum shares memory with its input");
  codec.reserved = 1;
  refused(call, "byteps_codec.reserved");
  codec.reserved = 0;
  codec.flags = 0;
  call.momentum = nullptr, call.momentum_mu = 0;
  refused(call, "is for error feedback alone");
  call.residual = nullptr;
  call.format = BYTEPS_FORMAT_INT8;
  refused(call, "only onebit, topk, randomk, dithering and float32");
}

TEST_F(JobOfOne, momentum_is_added_where_nobody_else_takes_part_and_where_a_tensor_is_too_small) {
  std::vector<float> values(256, 1.0F);
  std::vector<float> momentum(256);
  byteps_codec codec{.k = 0.01, .seed = 0, .flags = 0, .reserved = 0};
  byteps_tensor call = tensor("t", values);
  call.format = BYTEPS_FORMAT_TOPK;
  call.codec = &codec;
  call.flags = BYTEPS_CODED_WHERE_FIT;
  call.momentum = momentum.data();
  call.momentum_mu = 0.5;
  call.scale = 2;
  ASSERT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  EXPECT_EQ(values, std::vector<float>(256, 3.0F));
  EXPECT_EQ(momentum, std::vector<float>(256, 1.0F));
  call.name = "integers", call.dtype = BYTEPS_INT32, call.scale = 0;
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
  EXPECT_EQ(momentum, std::vector<float>(256, 1.0F)) << "is not touched";
}

TEST_F(JobOfOne, an_empty_tensor_needs_no_memory) {
  std::vector<float> none;
  byteps_tensor call = tensor("empty", none);
  call.input = call.output = nullptr;
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;
}

TEST_F(JobOfOne, counts_what_it_did) {
  std::vector<float> values(256, 1.0F);
  ASSERT_EQ(push_pull(tensor("t", values)), BYTEPS_OK);
  byteps_metrics metrics{};
  EXPECT_EQ(byteps_get_metrics(job_, &metrics),
            BYTEPS_INVALID_ARGUMENT);  // struct_bytes is not set
  metrics.struct_bytes = sizeof metrics;
  ASSERT_EQ(byteps_get_metrics(job_, &metrics), BYTEPS_OK);
  EXPECT_EQ(metrics.finished_operations, 1U);
  EXPECT_EQ(metrics.finished_bytes, 1024U);
  EXPECT_EQ(metrics.failed_operations, 0U);
}

TEST_F(JobOfOne, a_caller_that_knows_fewer_metrics_gets_those) {
  byteps_metrics metrics{};
  metrics.struct_bytes = offsetof(byteps_metrics, shared_bytes);
  metrics.rdma_bytes = 77;
  metrics.local_shared_bytes = 78;
  ASSERT_EQ(byteps_get_metrics(job_, &metrics), BYTEPS_OK);
  EXPECT_EQ(metrics.rdma_bytes, 77U) << "it was not touched";
  metrics.struct_bytes = offsetof(byteps_metrics, local_pushed_bytes);
  ASSERT_EQ(byteps_get_metrics(job_, &metrics), BYTEPS_OK);
  EXPECT_EQ(metrics.rdma_bytes, 0U);
  EXPECT_EQ(metrics.local_shared_bytes, 78U) << "it was not touched";
  metrics.struct_bytes = offsetof(byteps_metrics, lost_servers);
  metrics.wanted_messages = 79;
  metrics.lost_workers = 80;
  ASSERT_EQ(byteps_get_metrics(job_, &metrics), BYTEPS_OK);
  EXPECT_EQ(metrics.wanted_messages, 0U);
  EXPECT_EQ(metrics.lost_workers, 80U) << "it was not touched";
  metrics.struct_bytes = offsetof(byteps_metrics, pushed_wire_bytes);
  metrics.pushed_wire_bytes = 81;
  ASSERT_EQ(byteps_get_metrics(job_, &metrics), BYTEPS_OK);
  EXPECT_EQ(metrics.lost_workers, 0U);
  EXPECT_EQ(metrics.pushed_wire_bytes, 81U) << "it was not touched";
  metrics.struct_bytes = sizeof metrics;
  ASSERT_EQ(byteps_get_metrics(job_, &metrics), BYTEPS_OK);
  EXPECT_EQ(metrics.pushed_wire_bytes, 0U);
}

TEST_F(JobOfOne, a_barrier_of_one_is_passed) {
  EXPECT_EQ(byteps_barrier(job_, -1, &error_), BYTEPS_OK) << error_.message;
}

TEST_F(JobOfOne, inputs_of_one_are_finished_at_once) {
  std::uint32_t last = 7;
  EXPECT_EQ(byteps_finish_inputs(job_, -1, &last, &error_), BYTEPS_OK) << error_.message;
  EXPECT_EQ(last, 0U);
  EXPECT_EQ(byteps_finish_inputs(job_, -1, nullptr, &error_), BYTEPS_OK) << error_.message;
}

TEST_F(JobOfOne, what_a_binding_says_of_all_threads_holds_until_something_moves) {
  const uint64_t before = byteps_progress(job_);
  EXPECT_EQ(byteps_all_wait(job_, before, 0), BYTEPS_OK);
  EXPECT_EQ(byteps_all_wait(job_, before, BYTEPS_NOT_COUNTED), BYTEPS_OK);
  EXPECT_EQ(byteps_all_wait(job_, before, 1), BYTEPS_AGAIN) << "nobody is in a wait";
  std::vector<float> values = {1, 2};
  ASSERT_EQ(push_pull(tensor("w", values)), BYTEPS_OK) << error_.message;
  EXPECT_NE(byteps_progress(job_), before);
  EXPECT_EQ(byteps_all_wait(job_, before, BYTEPS_NOT_COUNTED), BYTEPS_AGAIN);
  EXPECT_EQ(byteps_progress(nullptr), 0U);
  EXPECT_EQ(byteps_all_wait(nullptr, 0, 0), BYTEPS_INVALID_ARGUMENT);
}

TEST_F(JobOfOne, nothing_goes_on_without_a_job_of_one) {
  EXPECT_EQ(byteps_is_replaced(job_), 0);
  EXPECT_EQ(byteps_is_replaced(nullptr), 0);
}

TEST_F(JobOfOne, keeps_what_a_caller_records) {
  EXPECT_EQ(byteps_record(job_, "a line", 0, &error_), BYTEPS_OK) << error_.message;
  EXPECT_EQ(byteps_record(job_, nullptr, 0, &error_), BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("it is NULL"));
}

TEST(Record, of_what_ended_the_process_is_in_a_file_when_the_call_returns) {
  const std::string folder = ::testing::TempDir() + "byteps_record_" + std::to_string(getpid());
  const std::string settings = kAlone + ("BYTEPS_FLIGHT_DIR=" + folder + "\n");
  for (const bool interrupted : {false, true}) {
    byteps_job* job = nullptr;
    byteps_error error{};
    ASSERT_EQ(byteps_join(settings.c_str(), &job, &error), BYTEPS_OK) << error.message;
    const int failed = interrupted ? BYTEPS_INTERRUPTED : 1;
    EXPECT_EQ(byteps_record(job, "KeyboardInterrupt: ", failed, &error), BYTEPS_OK);
    std::string all;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream file(entry.path());
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    EXPECT_THAT(all, HasSubstr("KeyboardInterrupt: "));
    EXPECT_THAT(all, HasSubstr(interrupted ? R"("cause":{"kind":"interrupted"})"
                                           : R"("cause":{"kind":"raised"})"));
    EXPECT_EQ(byteps_leave(job, 1, &error), BYTEPS_OK) << error.message;
    std::filesystem::remove_all(folder);
  }
}

TEST_F(JobOfOne, a_forked_childs_copy_is_inert) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer's memory may be locked by a thread that is not there after a fork";
#endif
  std::vector<float> values(4, 1.0F);
  const byteps_tensor call = tensor("t", values);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    byteps_handle handle = 0;
    const bool refused =
        byteps_push_pull(job_, &call, &handle, &error_) == BYTEPS_INVALID_ARGUMENT &&
        std::strstr(error_.message, "fork") != nullptr &&
        byteps_wait(job_, 1, 0, nullptr) == BYTEPS_INVALID_ARGUMENT && byteps_poll(job_, 1) == -1 &&
        byteps_leave(job_, 1, nullptr) == BYTEPS_INVALID_ARGUMENT;
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(push_pull(call), BYTEPS_OK) << error_.message;  // the parent's goes on
}

TEST(Join, bad_settings_are_named) {
  byteps_job* job = nullptr;
  byteps_error error{};
  EXPECT_EQ(byteps_join("DMLC_NUM_WORKER=two", &job, &error), BYTEPS_INVALID_ARGUMENT);
  EXPECT_EQ(job, nullptr);
  EXPECT_THAT(error.message, HasSubstr("DMLC_NUM_WORKER='two'"));
  EXPECT_EQ(byteps_join("DMLC_NUM_WORKER=2\nDMLC_NUM_SERVER=1\nDMLC_WORKER_ID=0\n", &job, &error),
            BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(error.message, HasSubstr("DMLC_PS_ROOT_URI"));
  EXPECT_EQ(byteps_join(nullptr, nullptr, &error), BYTEPS_INVALID_ARGUMENT);
}

TEST(Join, without_a_scheduler_ends_at_its_time_limit_with_the_address) {
  byteps_job* job = nullptr;
  byteps_error error{};
  // Port 9 (discard) of loopback: nobody listens there.
  const char* settings =
      "DMLC_NUM_WORKER=2\nDMLC_NUM_SERVER=1\nDMLC_WORKER_ID=0\nDMLC_PS_ROOT_URI=127.0.0.1\nDMLC_PS_"
      "ROOT_PORT=9\n"
      "BYTEPS_START_TIMEOUT_S=1\nBYTEPS_FAILURE_TIMEOUT_MS=300\nBYTEPS_LOG_LEVEL=ERROR\n";
  EXPECT_EQ(byteps_join(settings, &job, &error), BYTEPS_TIMEOUT) << error.message;
  EXPECT_EQ(job, nullptr);
  EXPECT_THAT(error.message, HasSubstr("127.0.0.1:9"));
}

TEST(Join, can_be_left_while_it_is_still_joining) {
  byteps_job* job = nullptr;
  byteps_error error{};
  const char* settings =
      "DMLC_NUM_WORKER=2\nDMLC_NUM_SERVER=1\nDMLC_WORKER_ID=0\nDMLC_PS_ROOT_URI=127.0.0.1\nDMLC_PS_"
      "ROOT_PORT=9\n"
      "BYTEPS_FAILURE_TIMEOUT_MS=300\nBYTEPS_LOG_LEVEL=ERROR\n";
  ASSERT_EQ(byteps_join_start(settings, &job, &error), BYTEPS_OK) << error.message;
  EXPECT_EQ(byteps_join_finish(&job, 10'000'000, &error), BYTEPS_AGAIN);
  ASSERT_NE(job, nullptr);
  EXPECT_EQ(byteps_leave(job, 1, &error), BYTEPS_OK) << error.message;
}

TEST(Join, again_after_leaving_works) {
  for (int time = 0; time < 3; ++time) {
    byteps_job* job = nullptr;
    byteps_error error{};
    ASSERT_EQ(byteps_join(kAlone, &job, &error), BYTEPS_OK) << error.message;
    EXPECT_EQ(byteps_leave(job, 0, &error), BYTEPS_OK);
  }
}

TEST(Library, knows_its_variables) {
  EXPECT_THAT(byteps_environment_reference(), HasSubstr("| `DMLC_NUM_WORKER` |"));
}

TEST(Library, says_its_version) {
  EXPECT_EQ(byteps_abi_version(), static_cast<uint32_t>(BYTEPS_ABI_VERSION));
  EXPECT_STREQ(byteps_version(), BYTEPS_VERSION);
}

}  // namespace
