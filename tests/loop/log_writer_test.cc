// Whoever logs never waits for whoever reads: here a pipe that is full.
#include "loop/log_writer.h"

#include <array>
#include <cerrno>
#include <string>
#include <thread>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace byteps {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class LogWriterTest : public testing::Test {
 protected:
  LogWriterTest() { EXPECT_EQ(pipe2(pipe_.data(), O_CLOEXEC), 0); }
  // The writer's end stays open: a thread that was left to itself may still use it.
  ~LogWriterTest() override {
    if (pipe_[0] >= 0) close(pipe_[0]);
  }
  void fill() {
    const std::string filling(4096, 'x');
    ASSERT_EQ(fcntl(pipe_[1], F_SETFL, O_NONBLOCK), 0);
    while (write(pipe_[1], filling.data(), filling.size()) > 0) filled_ += filling.size();
    ASSERT_EQ(errno, EAGAIN);
    ASSERT_EQ(fcntl(pipe_[1], F_SETFL, 0), 0);
  }
  // What comes, until the text is there, without what fill() put in.
  std::string read_until(const std::string& text) {
    std::array<char, 65536> bytes{};
    while (read_.find(text) == std::string::npos) {
      const ssize_t count = read(pipe_[0], bytes.data(), bytes.size());
      if (count <= 0) break;
      read_.append(bytes.data(), static_cast<std::size_t>(count));
      const std::size_t skipped = std::min(filled_, read_.size());
      read_.erase(0, skipped);
      filled_ -= skipped;
    }
    return read_;
  }

  std::array<int, 2> pipe_{-1, -1};
  std::size_t filled_ = 0;
  std::string read_;
};

TEST_F(LogWriterTest, lines_arrive_whole_and_in_order) {
  LogWriter writer(pipe_[1]);
  const Log log("test", LogLevel::kInfo, writer.sink());
  for (int i = 0; i < 100; ++i) LOG(log, kInfo) << "line " << i;
  const std::string text = read_until("line 99\n");
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += "[byteps INFO test] line " + std::to_string(i) + "\n";
  EXPECT_EQ(text, expected);
}

TEST_F(LogWriterTest, a_pipe_that_is_full_holds_up_nobody_who_logs_and_what_is_dropped_is_counted) {
  fill();
  LogWriter writer(pipe_[1]);
  const auto sink = writer.sink();
  const std::string line(8191, 'a');
  const std::size_t fitting = LogWriter::kWaitingBytesMax / (line.size() + 1);
  for (std::size_t i = 0; i < fitting + 7; ++i) sink(line);  // returns
  const std::string text = read_until("dropped");
  EXPECT_THAT(text, StartsWith(line));
  EXPECT_THAT(text, HasSubstr("[byteps WARNING] 7 lines of the log were dropped"));
}

TEST_F(LogWriterTest, its_end_does_not_wait_for_ever) {
  fill();
  {
    LogWriter writer(pipe_[1]);
    writer.sink()("nobody reads this");
    EXPECT_FALSE(writer.settle(10 * kMillisecond));
  }
  // What was left to itself still writes, and touches nothing that has gone.
  EXPECT_THAT(read_until("this\n"), HasSubstr("nobody reads this\n"));
}

TEST_F(LogWriterTest, a_pipe_without_a_reader_is_no_end_of_anything) {
  close(std::exchange(pipe_[0], -1));
  LogWriter writer(pipe_[1]);
  writer.sink()("to nobody");
  EXPECT_TRUE(writer.settle(20 * kSecond));
}

TEST_F(LogWriterTest, a_descriptor_that_does_not_block_loses_nothing) {
  fill();
  ASSERT_EQ(fcntl(pipe_[1], F_SETFL, O_NONBLOCK), 0);
  LogWriter writer(pipe_[1]);
  writer.sink()("here");
  EXPECT_THAT(read_until("here\n"), HasSubstr("here\n"));
}

}  // namespace
}  // namespace byteps
