#include "app/timeline_file.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>

#include <stdlib.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

class TimelineFileTest : public testing::Test {
 protected:
  TimelineFileTest() {
    std::string pattern = (fs::temp_directory_path() / "timeline_test_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    config_.trace = {.on = true, .first_round = 0, .last_round = 9, .folder = folder_.string()};
    config_.job.scheduler_host = "10.0.0.9";
  }
  ~TimelineFileTest() override { fs::remove_all(folder_); }

  std::string content(const char* path) const {
    std::ifstream file(folder_ / path);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  static TimelineRecord part() {
    TimelineRecord record{};
    record.kind = TimelineRecord::Kind::kPart;
    record.key = 7;
    record.part = 3;
    record.round = 2;
    record.shard = 1;
    for (int i = 0; i < 5; ++i) record.at_ns[i] = (i + 1) * 1'000'001;
    return record;
  }

  fs::path folder_;
  Config config_;
  LogWriter writer_;
};

TEST_F(TimelineFileTest, is_not_made_when_it_is_off) {
  config_.trace.on = false;
  EXPECT_EQ(TimelineFile::make(Role::kWorker, config_, writer_), nullptr);
  EXPECT_EQ(TimelineFile::timeline_of(nullptr), nullptr);
}

TEST_F(TimelineFileTest, nothing_is_written_when_nothing_was_recorded) {
  { TimelineFile file(Role::kWorker, config_, writer_); }
  EXPECT_TRUE(fs::is_empty(folder_));
}

TEST_F(TimelineFileTest, a_worker_writes_upstreams_events_to_upstreams_place) {
  config_.job.local.rank = 2;
  config_.job.local.size = 4;
  config_.job.worker_count = 4;
  {
    TimelineFile file(Role::kWorker, config_, writer_);
    file.timeline().set_rank(2);
    file.timeline().set_name(Key(7), "say \"w\"");
    file.timeline().set_servers({0, 5});
    file.timeline().clock_sample(100, 1100, 300);
    file.timeline().open_lane().add(part());
  }
  const std::string text = content("2/comm.json");
  EXPECT_THAT(text, HasSubstr(R"({"ph":"X","cat":"Comm","pid":"Comm.say \"w\"","tid":"3",)"
                              R"("name":"Comm.say \"w\".QUEUED","ts":1000.001,"dur":1000.001,)"));
  EXPECT_THAT(text, AllOf(HasSubstr(R"(.PUSH","ts":2000.002,"dur":1000.001)"),
                          HasSubstr(R"("shard":1,"server":5,"first_answer":4000.004)"),
                          HasSubstr(R"(.WAIT","ts":3000.003,"dur":1000.001)"),
                          HasSubstr(R"(.PULL","ts":4000.004,"dur":1000.001)")));
  EXPECT_THAT(text, AllOf(HasSubstr(R"("displayTimeUnit":"ms")"), HasSubstr(R"("role":"worker")"),
                          HasSubstr(R"("clock_offset_ns":900,"clock_error_ns":100)")));
  EXPECT_FALSE(fs::exists(folder_ / "2/comm-2.json")) << "one machine";
}

TEST_F(TimelineFileTest,
       workers_of_several_machines_that_share_the_folder_do_not_overwrite_each_other) {
  config_.job.worker_count = 2;
  for (const std::uint32_t rank : {0U, 1U}) {
    TimelineFile file(Role::kWorker, config_, writer_);
    file.timeline().set_rank(rank);
    file.timeline().open_lane().add(part());
  }
  for (const char* path : {"0/comm.json", "0/comm-0.json", "0/comm-1.json"}) {
    EXPECT_TRUE(fs::exists(folder_ / path)) << path;
  }
  EXPECT_THAT(content("0/comm-0.json"), HasSubstr(R"("rank":0,)"));
}

TEST_F(TimelineFileTest, a_worker_that_sums_at_relays_names_them_and_writes_its_own_relays_file) {
  {
    TimelineFile file(Role::kWorker, config_, writer_);
    Timeline& timeline = file.timeline();
    timeline.set_rank(4);
    timeline.set_servers({0, 5});
    timeline.set_relays({3, 4});
    timeline.open_lane().add(part());
    TimelineLane& relay = timeline.open_lane(Recorder::kRelay);
    relay.add(part());
    TimelineRecord record = part();
    record.kind = TimelineRecord::Kind::kSum;
    record.worker = 4;
    record.first_worker = 3;
    relay.add(record);
    record.kind = TimelineRecord::Kind::kSpread;
    relay.add(record);
  }
  const std::string worker = content("0/comm.json");
  EXPECT_THAT(worker, AllOf(HasSubstr(R"("shard":1,"relay":4,"first_answer")"),
                            HasSubstr(R"("role":"worker","rank":4,"local_rank":0)")));
  EXPECT_THAT(worker, Not(AnyOf(HasSubstr("REDUCE"), HasSubstr("SPREAD"), HasSubstr("server"))));
  const std::string relay = content("relay-4/comm.json");
  EXPECT_THAT(relay, AllOf(HasSubstr(R"("shard":1,"server":5,"first_answer")"),
                           HasSubstr(R"("role":"relay","rank":4,)")));
  EXPECT_THAT(relay, HasSubstr(R"(.REDUCE","ts":1000.001,"dur":4000.004)"));
  EXPECT_THAT(relay, HasSubstr(R"("first_worker":3,"last_worker":4,"late":1000.001,)"
                               R"("last_came":3000.003,"busy":0.000,"first_frame":4000.004)"));
  EXPECT_THAT(relay, HasSubstr(R"(.SPREAD","ts":1000.001,"dur":1000.001)"));
}

TEST_F(TimelineFileTest, a_worker_says_what_a_part_waited_for_at_its_device) {
  {
    TimelineFile file(Role::kWorker, config_, writer_);
    TimelineRecord record = part();
    record.bytes = 4096;
    record.kind = TimelineRecord::Kind::kCopyIn;
    file.timeline().open_lane().add(record);
    record.kind = TimelineRecord::Kind::kCopyOut;
    file.timeline().open_lane().add(record);
    record.round = 3;
    record.at_ns[TimelineRecord::kFirstOut] = record.at_ns[TimelineRecord::kLastOut] = 0;
    file.timeline().open_lane().add(record);
  }
  const std::string text = content("0/comm.json");
  EXPECT_THAT(text, HasSubstr(R"(.COPY_IN","ts":1000.001,"dur":1000.001)"));
  for (const char* const round : {R"("round":2)", R"("round":3)"}) {
    EXPECT_THAT(text,
                HasSubstr(R"(.STREAM","ts":1000.001,"dur":1000.001,"args":{"name":"Comm.key 7",)" +
                          std::string(round) + "}"));
    EXPECT_THAT(text,
                HasSubstr(R"(.SLAB","ts":2000.002,"dur":1000.001,"args":{"name":"Comm.key 7",)" +
                          std::string(round) + "}"));
  }
  const std::string out = R"(.COPY_OUT","ts":3000.003,"dur":2000.002)";
  EXPECT_THAT(text, HasSubstr(out));
  EXPECT_EQ(text.find(out), text.rfind("COPY_OUT") - 1) << "who gives nothing copies nothing out";
  EXPECT_THAT(text, HasSubstr(R"("first_chunk":4000.004,"bytes":4096)"));
}

TEST_F(TimelineFileTest, coding_is_a_stretch_with_what_it_took) {
  {
    TimelineFile file(Role::kWorker, config_, writer_);
    TimelineRecord record = part();
    record.kind = TimelineRecord::Kind::kCoding;
    record.busy_ns = 500'000;
    record.at_ns[TimelineRecord::kDecodeBusy] = 0;  // no answer had codes
    file.timeline().open_lane().add(record);
    record.busy_ns = 0;
    record.at_ns[TimelineRecord::kDecodeBusy] = 7'000;
    record.round = 3;
    file.timeline().open_lane().add(record);
  }
  const std::string text = content("0/comm.json");
  EXPECT_THAT(text,
              HasSubstr(R"(.ENCODE","ts":1000.001,"dur":1000.001,"args":{"name":"Comm.key 7",)"
                        R"("round":2,"busy":500.000})"));
  EXPECT_THAT(text,
              HasSubstr(R"(.DECODE","ts":3000.003,"dur":1000.001,"args":{"name":"Comm.key 7",)"
                        R"("round":3,"busy":7.000})"));
  EXPECT_EQ(text.find("ENCODE"), text.rfind("ENCODE"));
  EXPECT_EQ(text.find("DECODE"), text.rfind("DECODE"));
}

TEST_F(TimelineFileTest, a_mark_is_an_instant_in_the_file_of_the_process) {
  {
    TimelineFile file(Role::kWorker, config_, writer_);
    file.timeline().open_lane().add(part());
    file.timeline().open_lane(Recorder::kRelay).add(part());
    file.timeline().mark(
        {.name = "server 1 replaced", .text = "a \"b\"", .number = 1, .at_ns = 1'234'567});
  }
  EXPECT_THAT(content("0/comm.json"),
              HasSubstr(R"({"ph":"i","s":"p","cat":"Comm","pid":"Comm","tid":"job",)"
                        R"("name":"Comm.MARK","ts":1234.567,)"
                        R"("args":{"name":"server 1 replaced","number":1,"text":"a \"b\""}})"));
  EXPECT_THAT(content("relay-0/comm.json"), Not(HasSubstr("Comm.MARK")));
}

TEST_F(TimelineFileTest, a_relay_that_recorded_nothing_has_no_file) {
  {
    TimelineFile file(Role::kWorker, config_, writer_);
    file.timeline().open_lane().add(part());
    file.timeline().open_lane(Recorder::kRelay);
  }
  EXPECT_TRUE(fs::exists(folder_ / "0/comm.json"));
  EXPECT_FALSE(fs::exists(folder_ / "relay-0"));
}

TEST_F(TimelineFileTest, a_server_says_who_was_late) {
  {
    TimelineFile file(Role::kServer, config_, writer_);
    file.timeline().set_rank(1);
    TimelineRecord record = part();
    record.kind = TimelineRecord::Kind::kSum;
    record.worker = 6;
    record.busy_ns = 5000;
    file.timeline().open_lane().add(record);
    record = {};
    record.kind = TimelineRecord::Kind::kBacklog;
    record.worker = 4;
    record.at_ns[TimelineRecord::kBegan] = 1000;
    record.at_ns[TimelineRecord::kEnded] = 3000;
    file.timeline().open_lane().add(record);
  }
  const std::string text = content("server-1/comm.json");
  EXPECT_THAT(text, HasSubstr(R"("name":"Comm.key 7.GATHER","ts":1000.001,"dur":2000.002)"));
  EXPECT_THAT(text, HasSubstr(R"("first_worker":0,"last_worker":6,"late":1000.001)"));
  EXPECT_THAT(text, HasSubstr(R"(.SUM","ts":3000.003,"dur":2000.002)"));
  EXPECT_THAT(text,
              HasSubstr(R"("name":"Comm.BACKLOG","ts":1.000,"dur":2.000,"args":{"worker":4})"));
}

TEST_F(TimelineFileTest, is_written_while_the_job_runs_on_when_nothing_more_is_recorded) {
  TimelineFile file(Role::kServer, config_, writer_);
  file.timeline().set_rank(0);
  file.timeline().open_lane().add(part());
  const auto began = std::chrono::steady_clock::now();
  while (!fs::exists(folder_ / "server-0/comm.json")) {
    ASSERT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

TEST_F(TimelineFileTest, a_folder_that_cannot_be_written_does_no_harm) {
  config_.trace.folder = "/dev/null/nowhere";
  TimelineFile file(Role::kWorker, config_, writer_);
  file.timeline().open_lane().add(part());
}

}  // namespace
}  // namespace byteps
