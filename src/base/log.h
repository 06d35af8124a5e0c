// Log: one line per event to a sink, with the process's role in front. Built in app/ and handed
// down. It also carries the process's flight recorder, if it has one (lines from kDebug on are recorded,
// printed or not), and its timeline.
#pragma once

#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

#include "base/flight.h"
#include "base/status.h"
#include "base/timeline.h"

namespace byteps {

enum class LogLevel : int { kTrace = 0, kDebug, kInfo, kWarning, kError, kSilent };

// Thread-safe as far as its sink is: each line is passed to the sink in one call.
class Log {
 public:
  // A line without newline. It must not block: loops call it (loop/log_writer.h).
  using Sink = std::function<void(std::string_view line)>;

  // Writes "[byteps WARNING worker 1] message". `who` may change once the rank is known.
  // The recorder and the timeline must outlive the log and its copies.
  Log(std::string who, LogLevel level, Sink sink, FlightRecorder* flight = nullptr,
      Timeline* timeline = nullptr)
      : who_(std::move(who)),
        level_(level),
        sink_(std::move(sink)),
        flight_(flight),
        timeline_(timeline) {}

  bool enabled(LogLevel level) const { return level >= level_ || recorded(level); }
  void write(LogLevel level, std::string_view message) const;
  // The same, down to this level: for what somebody has asked for, whatever BYTEPS_LOG_LEVEL says.
  Log at(LogLevel level) const {
    Log log = *this;
    log.level_ = level;
    return log;
  }
  // The same without recorder and timeline.
  Log unrecorded() const { return {who_, level_, sink_}; }
  void rename(std::string who) { who_ = std::move(who); }  // by the thread that owns the Actor

  // The flight recorder (flight.h); without one, nothing happens.
  void record(const FlightEvent& event) const {
    if (flight_ != nullptr) flight_->record(event);
  }
  Status left_behind(const char* how, Status why) const {
    return flight_ == nullptr ? std::move(why) : flight_->with_path(how, std::move(why));
  }
  FlightRecorder* flight() const { return flight_; }

  // The timeline (timeline.h); null when this process records none.
  Timeline* timeline() const { return timeline_; }

 private:
  bool recorded(LogLevel level) const { return flight_ != nullptr && level >= LogLevel::kDebug; }

  std::string who_;
  LogLevel level_;
  Sink sink_;
  FlightRecorder* flight_;
  Timeline* timeline_;
};

// LOG(log, kWarning) << "text"; nothing is formatted when the level is off.
class LogLine {
 public:
  LogLine(const Log& log, LogLevel level) : log_(log), level_(level) {}
  ~LogLine() { log_.write(level_, stream_.view()); }
  LogLine(const LogLine&) = delete;
  LogLine& operator=(const LogLine&) = delete;
  std::ostream& stream() { return stream_; }

 private:
  const Log& log_;
  LogLevel level_;
  std::ostringstream stream_;
};

// Gives both arms of the conditional in LOG the type void.
struct LogVoidify {
  void operator&(std::ostream&) const {}
};

}  // namespace byteps

#define LOG(log, level)                     \
  !(log).enabled(::byteps::LogLevel::level) \
      ? (void)0                             \
      : ::byteps::LogVoidify() & ::byteps::LogLine((log), ::byteps::LogLevel::level).stream()
