#include "base/flight.h"

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

// A recorder whose time is set by hand and whose files are only counted.
struct Desk {
  explicit Desk(std::size_t event_count)
      : recorder(
            event_count, [this] { return now; },
            [this](const FlightRecorder&) {
              ++written;
              return can_write ? std::string("/a/file") : std::string();
            }) {}

  std::vector<std::string> texts() const {
    std::vector<std::string> texts;
    for (const FlightRecorder::Entry& entry : recorder.entries()) {
      texts.push_back(entry.text_lost ? "(lost)" : entry.text);
    }
    return texts;
  }

  TimeNs now = 100;
  int written = 0;
  bool can_write = true;
  FlightRecorder recorder;
};

TEST(FlightRecorder, keeps_the_last_events_oldest_first) {
  Desk desk(3);
  for (const char* text : {"a", "b", "c", "d", "e"}) desk.recorder.record({.text = text});
  EXPECT_THAT(desk.texts(), testing::ElementsAre("c", "d", "e"));
  EXPECT_EQ(desk.recorder.facts().recorded_count, 5U);
}

TEST(FlightRecorder, an_event_that_stays_is_there_however_many_come_after_it) {
  Desk desk(2);
  const auto record = [&](const char* text, TimeNs at_ns, bool stays) {
    desk.recorder.record({.host = "there:7", .text = text, .at_ns = at_ns, .stays = stays});
  };
  record("a", 1, false);
  record("loss", 2, true);
  for (int i = 0; i < 10; ++i) record("b", 3 + i, false);
  record("another", 12, true);
  record("c", 13, false);
  EXPECT_THAT(desk.texts(), testing::ElementsAre("loss", "b", "another", "c"));
  EXPECT_EQ(desk.recorder.entries()[0].host, "there:7");
  EXPECT_EQ(desk.recorder.facts().recorded_count, 14U);
  for (std::size_t i = 0; i < 2 * FlightRecorder::kStayingMax; ++i) record("more", 20, true);
  EXPECT_EQ(desk.texts().size(), FlightRecorder::kStayingMax + 2) << "there is a limit";
  EXPECT_EQ(desk.texts()[0], "loss");
}

TEST(FlightRecorder, asks_its_clock_unless_the_event_has_a_time) {
  Desk desk(2);
  desk.recorder.record({.kind = "one"});
  desk.recorder.record({.kind = "two", .at_ns = 50});
  EXPECT_EQ(desk.recorder.entries()[0].event.at_ns, 100);
  EXPECT_EQ(desk.recorder.entries()[1].event.at_ns, 50);
}

// Against a dull model: every text that is not said to be lost is the one that was recorded.
TEST(FlightRecorder, a_text_is_whole_or_said_to_be_lost) {
  constexpr std::size_t kEvents = 40;
  Desk desk(kEvents);
  std::vector<std::string> all;
  for (std::size_t i = 0; i < 2000; ++i) {
    const std::size_t bytes = i * i * 7 % (FlightRecorder::kTextBytesMax + 200);
    all.emplace_back(bytes, static_cast<char>('a' + i % 26));
    desk.recorder.record({.text = all.back()});
    const std::vector<std::string> kept = desk.texts();
    EXPECT_EQ(kept.back(), all.back().substr(0, FlightRecorder::kTextBytesMax));
    for (std::size_t k = 0; k < kept.size(); ++k) {
      const std::string& told = all[all.size() - kept.size() + k];
      const bool lost = kept[k] == "(lost)";
      EXPECT_TRUE(lost || kept[k] == told.substr(0, FlightRecorder::kTextBytesMax));
    }
  }
}

TEST(FlightRecorder, host_detail_and_text_of_an_event_are_kept_or_lost_together) {
  constexpr std::size_t kEvents = 20;
  Desk desk(kEvents);
  const auto some = [](std::size_t bytes, std::size_t i) {
    return std::string(bytes, static_cast<char>('a' + i % 26));
  };
  for (std::size_t i = 0; i < 1000; ++i) {
    const std::string host = some(i * 3 % (FlightRecorder::kHostBytesMax + 20), i);
    const std::string detail = some(i * 5 % (FlightRecorder::kDetailBytesMax + 20), i + 1);
    const std::string text = some(i * 7 % 300, i + 2);
    desk.recorder.record({.number = i, .host = host, .detail = detail, .text = text});
    for (const FlightRecorder::Entry& entry : desk.recorder.entries()) {
      const std::size_t k = entry.event.number;
      if (entry.text_lost) {
        EXPECT_EQ(entry.host + entry.detail + entry.text, "");
        continue;
      }
      EXPECT_EQ(entry.host, some(std::min(k * 3 % (FlightRecorder::kHostBytesMax + 20),
                                          FlightRecorder::kHostBytesMax),
                                 k));
      EXPECT_EQ(entry.detail, some(std::min(k * 5 % (FlightRecorder::kDetailBytesMax + 20),
                                            FlightRecorder::kDetailBytesMax),
                                   k + 1));
      EXPECT_EQ(entry.text, some(k * 7 % 300, k + 2));
    }
    EXPECT_FALSE(desk.recorder.entries().back().text_lost);
  }
}

TEST(FlightRecorder, an_end_has_its_cause_in_fields) {
  Desk desk(4);
  const Status why(Code::kDisconnected, "it has left",
                   {.kind = CauseKind::kLeft,
                    .who = {.role = Role::kWorker, .rank = 1, .host = "there:7"},
                    .detail = "w"});
  desk.recorder.leave_behind("operation", why);
  const FlightRecorder::Entry entry = desk.recorder.entries().back();
  EXPECT_STREQ(entry.event.kind, "end");
  EXPECT_STREQ(entry.event.name, "operation");
  EXPECT_STREQ(entry.event.cause, "left");
  EXPECT_STREQ(entry.event.role, "worker");
  EXPECT_EQ(entry.event.rank, 1U);
  EXPECT_EQ(entry.host, "there:7");
  EXPECT_EQ(entry.detail, "w");
  EXPECT_EQ(entry.text, "it has left");
  EXPECT_EQ(desk.recorder.facts().outcome.cause(), why.cause());
  EXPECT_EQ(FlightEvent::cause_of_down({Code::kTimeout, "too many open files"}), nullptr);
  EXPECT_STREQ(FlightEvent::cause_of_down(why), "left");
}

TEST(FlightRecorder, short_texts_of_all_events_are_kept) {
  Desk desk(100);
  const std::string name(FlightRecorder::kTextBytesPerEvent, 'n');
  for (int i = 0; i < 1000; ++i) desk.recorder.record({.text = name});
  EXPECT_THAT(desk.texts(), testing::Each(name));
}

TEST(FlightRecorder, the_first_reason_stays_when_others_follow) {
  Desk desk(10);
  desk.recorder.leave_behind("operation", {Code::kMismatch, "first"});
  desk.recorder.leave_behind("job", {Code::kCancelled, "second"});
  EXPECT_EQ(desk.written, 2);
  EXPECT_EQ(desk.recorder.facts().outcome.message(), "first");
  EXPECT_STREQ(desk.recorder.facts().how, "operation");
  EXPECT_THAT(desk.texts(), testing::ElementsAre("first", "second"));
}

TEST(FlightRecorder, many_failures_of_one_sort_are_written_once_and_all_name_the_file) {
  Desk desk(10);
  for (int i = 0; i < 5; ++i) {
    const Status told = desk.recorder.with_path("operation", {Code::kMismatch, "it differs"});
    EXPECT_EQ(told.message(), "it differs (events: /a/file)");
    EXPECT_TRUE(told.is(Code::kMismatch));
  }
  EXPECT_EQ(desk.written, 1);
}

TEST(FlightRecorder, an_error_stays_as_it_is_when_no_file_can_be_written) {
  Desk desk(10);
  desk.can_write = false;
  EXPECT_EQ(desk.recorder.with_path("job", {Code::kSystem, "bad"}).message(), "bad");
}

TEST(FlightRecorder, of_no_events_records_nothing_and_writes_nothing) {
  Desk desk(0);
  desk.recorder.record({.text = "a"});
  desk.recorder.heard("worker", 1, 5);
  EXPECT_EQ(desk.recorder.with_path("job", {Code::kSystem, "bad"}).message(), "bad");
  EXPECT_EQ(desk.written, 0);
  EXPECT_TRUE(desk.recorder.entries().empty());
}

TEST(FlightRecorder, knows_when_each_peer_was_last_heard) {
  Desk desk(1);
  for (const TimeNs now : {10, 20, 30}) desk.recorder.heard("worker", 1, now);
  desk.recorder.heard("worker", 2, 15);
  const auto peers = desk.recorder.facts().peers;
  ASSERT_EQ(peers.size(), 2U);
  EXPECT_EQ(peers[0].heard_ns, 30);
  EXPECT_EQ(peers[1].heard_ns, 15);
}

TEST(FlightRecorder, a_turn_long_after_its_deadline_is_a_pause) {
  Desk desk(4);
  desk.recorder.note_late(kNever, kSecond);
  desk.recorder.note_late(kSecond, kSecond + FlightRecorder::kLateNs);
  EXPECT_TRUE(desk.recorder.entries().empty());
  desk.recorder.note_late(kSecond, 4 * kSecond);
  ASSERT_EQ(desk.recorder.entries().size(), 1U);
  EXPECT_EQ(desk.recorder.entries()[0].event.number, static_cast<std::uint64_t>(3 * kSecond));
}

TEST(FlightRecorder, takes_events_of_several_threads_while_it_is_read) {
  Desk desk(64);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) desk.recorder.record({.kind = "x", .text = "text"});
    });
  }
  for (int i = 0; i < 20; ++i) {
    for (const std::string& text : desk.texts()) EXPECT_EQ(text, "text");
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(desk.recorder.facts().recorded_count, 3000U);
}

TEST(Log, lines_from_debug_on_are_recorded_also_when_they_are_not_printed) {
  Desk desk(10);
  std::vector<std::string> printed;
  const Log log(
      "worker 1", LogLevel::kWarning, [&](std::string_view line) { printed.emplace_back(line); },
      &desk.recorder);
  LOG(log, kTrace) << "trace";
  LOG(log, kDebug) << "debug";
  LOG(log, kError) << "error";
  EXPECT_THAT(desk.texts(), testing::ElementsAre("debug", "error"));
  EXPECT_THAT(printed, testing::ElementsAre("[byteps ERROR worker 1] error"));
}

}  // namespace
}  // namespace byteps
