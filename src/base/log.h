// Log: one line per event to a sink, with the process's role in front. Built in app/ and handed
// down.
#pragma once

#include <functional>
#include <sstream>
#include <string>
#include <string_view>

namespace byteps {

enum class LogLevel : int { kTrace = 0, kDebug, kInfo, kWarning, kError, kSilent };

// Thread-safe as far as its sink is: each line is passed to the sink in one call.
class Log {
 public:
  using Sink = std::function<void(std::string_view line)>;  // line without newline

  // Writes "[byteps WARNING worker 1] message". `who` may change once the rank is known.
  Log(std::string who, LogLevel level, Sink sink)
      : who_(std::move(who)), level_(level), sink_(std::move(sink)) {}

  bool enabled(LogLevel level) const { return level >= level_; }
  void write(LogLevel level, std::string_view message) const;
  void rename(std::string who) { who_ = std::move(who); }  // by the thread that owns the Actor

  // Lines to standard error (one write(2) each).
  static Sink standard_error();

 private:
  std::string who_;
  LogLevel level_;
  Sink sink_;
};

// LOG(log, kWarning) << "text"; nothing is formatted when the level is off.
class LogLine {
 public:
  LogLine(const Log& log, LogLevel level) : log_(log), level_(level) {}
  ~LogLine() { log_.write(level_, stream_.str()); }
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
