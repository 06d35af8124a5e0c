// What a scheduler hears on its standard input of workers that have ended.
#include "app/death_reader.h"

#include <array>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include <unistd.h>

#include "base/limits.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(DeathIn, a_line_names_a_rank_and_how_it_ended) {
  EXPECT_EQ(death_in("worker 3 was ended by signal SIGKILL"),
            (Death{3, "was ended by signal SIGKILL"}));
  EXPECT_EQ(death_in("worker 0 x"), (Death{0, "x"}));
  EXPECT_EQ(death_in("worker 4095 h\xc3\xa9"), (Death{4095, "h\xc3\xa9"})) << "UTF-8 is text";
}

TEST(DeathIn, a_line_of_another_form_is_none) {
  for (const char* line :
       {"", "worker", "worker ", "worker 3", "worker 3 ", "worker -1 died", "worker +1 died",
        "worker 3died", "worker  3 died", "worker x died", "server 3 died", " worker 3 died",
        "Worker 3 died", "worker 4096 died", "worker 99999999999999999999 died",
        "worker 3 rang\a bells", "worker 3 went\tby", "worker 3 died\r", "worker 3 \x7f"}) {
    EXPECT_EQ(death_in(line), std::nullopt) << line;
  }
  EXPECT_EQ(death_in(std::string_view("worker 3 di\0ed", 14)), std::nullopt);
}

// A pipe with a reader at its end; what that says is collected.
class Told {
 public:
  Told() { EXPECT_EQ(pipe(ends_.data()), 0); }
  ~Told() {
    stop_writing();
    close(ends_[0]);
  }
  Told(const Told&) = delete;
  Told& operator=(const Told&) = delete;

  DeathReader reader() {
    return {ends_[0],
            [this](Death death) {
              const std::lock_guard lock(mutex_);
              deaths_.push_back(std::to_string(death.rank) + " " + death.how);
              changed_.notify_all();
              return answer;
            },
            Log("scheduler", LogLevel::kInfo, [this](std::string_view line) {
              const std::lock_guard lock(mutex_);
              warnings_.emplace_back(line);
            })};
  }
  void write(std::string_view text) {
    ASSERT_EQ(::write(ends_[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
  void stop_writing() {
    if (ends_[1] >= 0) close(ends_[1]);
    ends_[1] = -1;
  }
  // Once there are so many.
  std::vector<std::string> deaths(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return deaths_.size() >= count; });
    return deaths_;
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

  Status answer;

 private:
  std::array<int, 2> ends_{-1, -1};
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::vector<std::string> deaths_;
  std::vector<std::string> warnings_;
};

TEST(DeathReader, tells_of_lines_in_their_order_however_they_are_cut) {
  Told told;
  const DeathReader reader = told.reader();
  told.write("worker 3 was ended by signal SIGKILL\nworker 1 wa");
  EXPECT_EQ(told.deaths(1).size(), 1U);
  told.write("s lost");
  told.write(" with its host a\nworker 2 died\n");
  EXPECT_THAT(told.deaths(3),
              ElementsAre("3 was ended by signal SIGKILL", "1 was lost with its host a", "2 died"));
  EXPECT_TRUE(told.warnings().empty());
}

TEST(DeathReader, passes_over_bad_lines_with_one_warning_in_all) {
  Told told;
  const DeathReader reader = told.reader();
  told.write("hello\nworker 1 died\n\nserver 2 died\nworker 2 died\n");
  EXPECT_THAT(told.deaths(2), ElementsAre("1 died", "2 died"));
  ASSERT_EQ(told.warnings().size(), 1U);
  EXPECT_THAT(told.warnings()[0], HasSubstr("not of the form 'worker RANK HOW'"));
}

TEST(DeathReader, keeps_no_more_of_a_line_than_its_limit) {
  Told told;
  const DeathReader reader = told.reader();
  const std::string start = "worker 1 ";
  const std::string fits = start + std::string(DeathReader::kLineBytesMax - start.size(), 'x');
  for (int i = 0; i < 100; ++i) told.write(std::string(1000, 'y'));
  told.write("\n" + fits + "z\n" + fits + "\nworker 2 died\n");
  EXPECT_THAT(told.deaths(2), ElementsAre(fits.substr(7), "2 died"));
  ASSERT_EQ(told.warnings().size(), 1U);
  EXPECT_THAT(told.warnings()[0], HasSubstr("more than 1024 bytes"));
}

TEST(DeathReader, says_once_that_somebody_does_not_take_what_it_tells) {
  Told told;
  told.answer = Status(Code::kAgain, "the mailbox is full");
  {
    const DeathReader reader = told.reader();
    told.write("worker 1 died\nworker 2 died\nworker 3 died\n");
    EXPECT_EQ(told.deaths(3).size(), 3U);
  }
  ASSERT_EQ(told.warnings().size(), 1U);
  EXPECT_THAT(told.warnings()[0], HasSubstr("the mailbox is full"));
}

TEST(DeathReader, the_end_of_the_input_is_quiet_and_a_line_without_an_end_is_none) {
  Told told;
  const DeathReader reader = told.reader();
  told.write("worker 1 died\nworker 2 di");
  told.stop_writing();
  EXPECT_THAT(told.deaths(1), ElementsAre("1 died"));
  EXPECT_TRUE(told.warnings().empty());
}

TEST(DeathReader, ends_at_once_while_the_input_is_open) {
  Told told;
  for (int i = 0; i < 20; ++i) const DeathReader reader = told.reader();
  told.write("worker 1 died\n");
  const DeathReader reader = told.reader();
  EXPECT_THAT(told.deaths(1), ElementsAre("1 died"));
}

}  // namespace
}  // namespace byteps
