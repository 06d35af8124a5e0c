// Bridge over a job of one: callbacks come exactly once, on another thread, and leaving waits for all of them.
#include "bridge/bridge.h"

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <sys/wait.h>
#include <unistd.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps::bridge {
namespace {

using ::testing::HasSubstr;

constexpr const char* kAlone =
    "DMLC_NUM_WORKER=1\nDMLC_WORKER_ID=0\nBYTEPS_LOCAL_SIZE=1\nBYTEPS_LOCAL_RANK=0\n";

// What a callback was told.
struct Told {
  std::atomic<int> times = 0;
  int code = -1;
  std::string message;
  std::thread::id thread;
};

void tell(void* context, int code, const char* message) {
  Told& told = *static_cast<Told*>(context);
  told.code = code;
  told.message = message;
  told.thread = std::this_thread::get_id();
  ++told.times;
}

byteps_tensor tensor(const char* name, std::vector<float>& values) {
  byteps_tensor made{};
  made.struct_bytes = sizeof made;
  made.name = name;
  made.dtype = BYTEPS_FLOAT32;
  made.input = values.data();
  made.output = values.data();
  made.element_count = values.size();
  return made;
}

class BridgeToOne : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(byteps_join(kAlone, &job_, &error_), BYTEPS_OK) << error_.message;
    ASSERT_EQ(bridge_.attach(job_, &error_), BYTEPS_OK) << error_.message;
  }
  void TearDown() override { leave(); }
  void leave() {
    if (job_ == nullptr) return;
    bridge_.detach();
    EXPECT_EQ(byteps_leave(job_, 1, &error_), BYTEPS_OK) << error_.message;
    job_ = nullptr;
    bridge_.finish();
  }

  byteps_job* job_ = nullptr;
  byteps_error error_{};
  Bridge bridge_;
};

TEST_F(BridgeToOne, calls_back_once_on_a_thread_of_its_own) {
  std::vector<float> values(8, 1.0F);
  Told told;
  ASSERT_EQ(bridge_.submit(tensor("t", values), tell, &told, &error_), BYTEPS_OK) << error_.message;
  leave();
  EXPECT_EQ(told.times, 1);
  EXPECT_EQ(told.code, BYTEPS_OK);
  EXPECT_EQ(told.message, "");
  EXPECT_NE(told.thread, std::this_thread::get_id());
}

TEST_F(BridgeToOne, tells_each_failure_to_its_own_callback) {
  std::vector<float> values(8, 1.0F);
  std::vector<float> others(5, 1.0F);
  Told fine, failed, fine_again;
  ASSERT_EQ(bridge_.submit(tensor("t", values), tell, &fine, &error_), BYTEPS_OK);
  ASSERT_EQ(bridge_.submit(tensor("t", others), tell, &failed, &error_), BYTEPS_OK);
  ASSERT_EQ(bridge_.submit(tensor("t", values), tell, &fine_again, &error_), BYTEPS_OK);
  leave();
  EXPECT_EQ(fine.code, BYTEPS_OK);
  EXPECT_EQ(failed.code, BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(failed.message, HasSubstr("shape 5"));
  EXPECT_EQ(fine_again.code, BYTEPS_OK);
  EXPECT_EQ(fine.times + failed.times + fine_again.times, 3);
}

TEST_F(BridgeToOne, a_call_that_is_refused_at_once_is_not_called_back) {
  std::vector<float> values(8, 1.0F);
  Told told;
  EXPECT_EQ(bridge_.submit(tensor("", values), tell, &told, &error_), BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("name"));
  leave();
  EXPECT_EQ(told.times, 0);
}

TEST_F(BridgeToOne, keeps_a_residual_under_the_name_of_a_tensor_of_float32) {
  std::vector<float> values(1000, 1.0F);
  std::vector<Told> told(3);
  byteps_tensor with = tensor("t", values);
  with.format = BYTEPS_FORMAT_INT8;
  with.flags = BYTEPS_CODED_WHERE_FIT;
  with.residual = kResidualByName;
  EXPECT_EQ(bridge_.submit(with, tell, &told[0], &error_), BYTEPS_OK) << error_.message;
  ASSERT_NE(bridge_.residuals().find("t"), nullptr);
  EXPECT_EQ(*bridge_.residuals().find("t"), std::vector<float>(1000));
  (*bridge_.residuals().find("t"))[7] = 0.5F;
  EXPECT_EQ((*bridge_.residuals().of("t", 1000))[7], 0.5F);
  bridge_.residuals().drop("t");  // while it is in use, perhaps
  EXPECT_EQ(bridge_.residuals().find("t"), nullptr);
  with.name = "whole";
  with.dtype = BYTEPS_INT32;
  EXPECT_EQ(bridge_.submit(with, tell, &told[1], &error_), BYTEPS_OK) << error_.message;
  EXPECT_EQ(bridge_.residuals().find("whole"), nullptr);
  leave();
  EXPECT_EQ(told[0].code + told[1].code, BYTEPS_OK) << told[0].message << told[1].message;
  EXPECT_EQ(bridge_.residuals().of("t", 5)->size(), 5U);
  EXPECT_EQ(bridge_.residuals().of("t", 6)->at(5), 0.0F);
}

TEST_F(BridgeToOne, keeps_momentum_beside_the_residual) {
  std::vector<float> values(1000, 1.0F);
  std::vector<Told> told(2);
  byteps_tensor with = tensor("t", values);
  with.format = BYTEPS_FORMAT_ONEBIT;
  with.flags = BYTEPS_CODED_WHERE_FIT;
  with.momentum = kMomentumByName;
  with.momentum_mu = 0.5;
  EXPECT_EQ(bridge_.submit(with, tell, told.data(), &error_), BYTEPS_OK) << error_.message;
  EXPECT_EQ(bridge_.residuals().find("t"), nullptr);
  ASSERT_NE(bridge_.residuals().find("momentum of t"), nullptr);
  EXPECT_EQ(bridge_.residuals().find("momentum of t")->size(), 1000U);
  with.name = "whole";
  with.dtype = BYTEPS_INT32;
  EXPECT_EQ(bridge_.submit(with, tell, &told[1], &error_), BYTEPS_OK) << error_.message;
  EXPECT_EQ(bridge_.residuals().find("momentum of whole"), nullptr);
  leave();
  EXPECT_EQ(told[0].code + told[1].code, BYTEPS_OK) << told[0].message << told[1].message;
}

TEST_F(BridgeToOne, serves_many_threads_and_one_job_after_another) {
  for (int job = 0; job < 2; ++job) {
    std::vector<Told> told(4 * 250);
    std::vector<std::vector<float>> values(told.size(), std::vector<float>(3, 1.0F));
    std::vector<std::thread> threads;
    for (std::size_t first = 0; first < told.size(); first += 250) {
      threads.emplace_back([&, first] {
        byteps_error error{};
        for (std::size_t i = first; i < first + 250; ++i) {
          const std::string name = "t" + std::to_string(i);
          EXPECT_EQ(bridge_.submit(tensor(name.c_str(), values[i]), tell, &told[i], &error),
                    BYTEPS_OK)
              << error.message;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    leave();
    for (const Told& each : told) EXPECT_EQ(each.times, 1);
    if (job == 0) SetUp();
  }
}

TEST_F(BridgeToOne, without_a_job_it_says_that_init_is_missing) {
  EXPECT_EQ(bridge_.size(), 1U);
  leave();
  std::vector<float> values(8, 1.0F);
  Told told;
  EXPECT_EQ(bridge_.submit(tensor("t", values), tell, &told, &error_), BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("bps.init()"));
  EXPECT_EQ(bridge_.size(), 0U);
}

TEST_F(BridgeToOne, one_job_at_a_time) {
  EXPECT_EQ(bridge_.attach(job_, &error_), BYTEPS_INVALID_ARGUMENT);
  EXPECT_THAT(error_.message, HasSubstr("another job"));
}

// What the child of a fork returns.
int exit_code_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// A child allocates nothing before it is refused: what another thread has locked at the fork, such as the address
// sanitizer's memory, stays locked there.
TEST_F(BridgeToOne, a_forked_child_is_refused) {
  std::vector<float> values(8, 1.0F);
  Told told;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    byteps_error error{};
    const bool refused =
        bridge_.submit(tensor("t", values), tell, &told, &error) == BYTEPS_INVALID_ARGUMENT &&
        std::strstr(error.message, "forked") != nullptr;
    bridge_.detach();
    bridge_.finish();
    _exit(refused ? 0 : 1);
  }
  EXPECT_EQ(exit_code_of(child), 0);
}

// Its locks are held by other threads at any fork; SIGALRM ends a child that waits for one of them.
TEST_F(BridgeToOne, children_forked_while_others_use_it_are_refused) {
  constexpr int kForks = 50;
  constexpr unsigned kPatienceS = 20;
  std::atomic<bool> enough = false;
  std::thread other([&] {
    byteps_error error{};
    while (!enough) EXPECT_EQ(bridge_.attach(job_, &error), BYTEPS_INVALID_ARGUMENT);
  });
  std::vector<float> values(8, 1.0F);
  Told told;
  for (int i = 0; i < kForks; ++i) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      alarm(kPatienceS);
      byteps_error error{};
      const bool refused =
          bridge_.refuse_in_child(&error) == BYTEPS_INVALID_ARGUMENT &&
          bridge_.submit(tensor("t", values), tell, &told, &error) == BYTEPS_INVALID_ARGUMENT &&
          bridge_.size() == 0;
      _exit(refused ? 0 : 1);
    }
    EXPECT_EQ(exit_code_of(child), 0);
  }
  enough = true;
  other.join();
}

TEST_F(BridgeToOne, a_forked_child_may_have_a_job_of_its_own) {
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  GTEST_SKIP()
      << "after a fork the thread sanitizer starts no threads, and the address sanitizer's "
         "memory may be locked by a thread that is not there";
#endif
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    std::vector<float> values(8, 1.0F);
    Told told;
    byteps_error error{};
    byteps_job* own = nullptr;
    const bool joined = byteps_join(kAlone, &own, &error) == BYTEPS_OK &&
                        bridge_.attach(own, &error) == BYTEPS_OK &&
                        bridge_.submit(tensor("t", values), tell, &told, &error) == BYTEPS_OK;
    bridge_.detach();
    byteps_leave(own, 1, &error);
    bridge_.finish();
    _exit(joined && told.times == 1 ? 0 : 1);
  }
  EXPECT_EQ(exit_code_of(child), 0);
}

}  // namespace
}  // namespace byteps::bridge
