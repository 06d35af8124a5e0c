#include "loop/log_writer.h"

#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include <poll.h>
#include <unistd.h>

namespace byteps {
namespace {

constexpr std::size_t kWaitingLinesMax = 4096;

// On the writer's own thread, which may wait as long as it takes. A line that cannot be written has no one to be
// reported to.
void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
    if (written > 0 || errno == EINTR) continue;
    if (errno != EAGAIN) return;
    pollfd room{.fd = descriptor, .events = POLLOUT, .revents = 0};
    if (::poll(&room, 1, -1) < 0 && errno != EINTR) return;
  }
}

}  // namespace

struct LogWriter::State {
  const int descriptor;
  std::atomic<std::size_t> waiting_bytes{0};
  std::atomic<std::size_t> dropped_count{0};

  void put(const std::string& text) {
    write_all(descriptor, text);
    waiting_bytes -= text.size();
    const std::size_t dropped = dropped_count.exchange(0);
    if (dropped == 0) return;
    write_all(descriptor, "[byteps WARNING] " + std::to_string(dropped) +
                              " lines of the log were dropped here: they were not taken in time\n");
  }
};

LogWriter::LogWriter(int descriptor)
    : state_(new State{.descriptor = descriptor}), executor_("byteps-log", kWaitingLinesMax) {}

LogWriter::~LogWriter() {
  settle(kEndNs);
}

Log::Sink LogWriter::sink() {
  return [this](std::string_view line) { write(line); };
}

void LogWriter::write(std::string_view line) {
  std::string text;
  text.reserve(line.size() + 1);
  text.append(line).push_back('\n');
  const std::size_t bytes = text.size();
  bool taken = state_->waiting_bytes.fetch_add(bytes) + bytes <= kWaitingBytesMax;
  if (taken) {
    taken = executor_.post([state = state_, text = std::move(text)] { state->put(text); }).is_ok();
  }
  if (taken) return;
  state_->waiting_bytes -= bytes;
  ++state_->dropped_count;
}

}  // namespace byteps
