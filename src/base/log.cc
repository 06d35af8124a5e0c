#include "base/log.h"

#include <new>

namespace byteps {
namespace {

const char* label(LogLevel level) {
  constexpr const char* kLabels[] = {"TRACE", "DEBUG", "INFO", "WARNING", "ERROR", ""};
  return kLabels[static_cast<int>(level)];
}

}  // namespace

// Out of memory, a line is lost: whoever logs must not fail of it.
void Log::write(LogLevel level, std::string_view message) const try {
  if (recorded(level)) flight_->record({.kind = "log", .name = label(level), .text = message});
  if (level < level_ || !sink_) return;
  std::string line = "[byteps ";
  line.append(label(level)).append(" ").append(who_).append("] ").append(message);
  sink_(line);
} catch (const std::bad_alloc&) {
}

}  // namespace byteps
