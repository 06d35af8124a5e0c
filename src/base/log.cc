#include "base/log.h"

#include <unistd.h>

namespace byteps {
namespace {

const char* label(LogLevel level) {
  constexpr const char* kLabels[] = {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", ""};
  return kLabels[static_cast<int>(level)];
}

}  // namespace

void Log::write(LogLevel level, std::string_view message) const {
  if (recorded(level)) flight_->record({.kind = "log", .name = label(level), .text = message});
  if (level < level_ || !sink_) return;
  std::string line = "[byteps ";
  line.append(label(level)).append(" ").append(who_).append("] ").append(message);
  sink_(line);
}

Log::Sink Log::standard_error() {
  return [](std::string_view line) {
    std::string text(line);
    text.push_back('\n');
    // A log line that cannot be written has no one to be reported to.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  };
}

}  // namespace byteps
