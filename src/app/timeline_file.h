// TimelineFile: a process's timeline, and the file it goes to, for Perfetto and `bps trace` (docs/timeline.md).
//
// Chrome's trace format, as upstream wrote it (byteps/common/global.cc, OutputTraces): {"traceEvents": [...],
// "displayTimeUnit": "ms", "otherData": {...}}, complete events ("ph": "X") whose pid is "Comm.<tensor>" and whose
// tid is "total" or the part; times in microseconds of the process's monotonic clock. otherData says who this is, and
// how far its clock is from the scheduler's.
//
//   worker   <BYTEPS_TRACE_DIR>/<local rank>/comm.json, and if the job has several machines, which may share the
//            folder, comm-<rank>.json beside it
//   server   <BYTEPS_TRACE_DIR>/server-<rank>/comm.json
//   relay    <BYTEPS_TRACE_DIR>/relay-<rank>/comm.json, written by the worker of that rank, beside its own
//
// A thread of its own writes it when records have come and then none for a second: so soon after the last recorded
// step. What has come since is written at the end.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/status.h"
#include "base/timeline.h"
#include "loop/actor.h"
#include "loop/clock.h"
#include "loop/log_writer.h"
#include "loop/runner.h"
#include "loop/sleeper.h"
#include "net/transport.h"

namespace byteps {

class TimelineFile {
 public:
  // Null when config.trace.on is false.
  static std::unique_ptr<TimelineFile> make(Role role, const Config& config, LogWriter& writer);

  TimelineFile(Role role, const Config& config, LogWriter& writer);
  // Writes what is not written yet. Whoever records must have ended.
  ~TimelineFile();
  TimelineFile(const TimelineFile&) = delete;
  TimelineFile& operator=(const TimelineFile&) = delete;

  Timeline& timeline() { return timeline_; }

  // The same for those who have none: null.
  static Timeline* timeline_of(const std::unique_ptr<TimelineFile>& file) {
    return file == nullptr ? nullptr : &file->timeline_;
  }

 private:
  // Looks every second whether there is something to write.
  class Watch final : public Actor {
   public:
    explicit Watch(TimelineFile& file) : file_(file) {}
    std::size_t turn(TimeNs now) override;
    TimeNs next_deadline() const override { return next_look_ns_; }
    bool finished() const override { return false; }

   private:
    TimelineFile& file_;
    TimeNs next_look_ns_ = 0;
    std::size_t seen_count_ = 0;
  };

  void write(std::size_t count);
  std::vector<std::string> paths(const Timeline::Facts& facts, Recorder recorder) const;
  Status write_to(const std::string& path, const Timeline::Facts& facts, Recorder recorder) const;
  std::string other_data(const Timeline::Facts& facts, Recorder recorder) const;

  // constant
  const Role role_;
  LogWriter& writer_;
  const Config& config_;
  MonotonicClock clock_;
  Timeline timeline_;

  // by the one who writes: the watch, and at the end the destructor
  std::size_t written_count_ = 0;

  Sleeper sleeper_;
  Watch watch_;
  std::unique_ptr<Runner> runner_;
};

}  // namespace byteps
