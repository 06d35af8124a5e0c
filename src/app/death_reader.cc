#include "app/death_reader.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <mutex>
#include <utility>

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/limits.h"

namespace byteps {

std::optional<Death> death_in(std::string_view line) {
  constexpr std::string_view kWho = "worker ";
  if (!line.starts_with(kWho)) return std::nullopt;
  line.remove_prefix(kWho.size());
  Death death;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), death.rank);
  line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  if (error != std::errc() || death.rank >= kWorkersMax) return std::nullopt;
  if (line.size() < 2 || line.front() != ' ') return std::nullopt;
  line.remove_prefix(1);
  for (const char each : line) {
    if (static_cast<unsigned char>(each) < ' ' || each == '\x7f') return std::nullopt;
  }
  death.how = line;
  return death;
}

struct DeathReader::State {
  State(int descriptor, Tell told, const Log& own_log)
      : input(descriptor), tell(std::move(told)), log(own_log) {}
  ~State() {
    if (wake >= 0) close(wake);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void serve();
  void take(std::string_view bytes);
  void take_line();
  void warn(const std::string& what);

  const int input;
  const int wake =
      eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);  // from the destructor: nothing more to read
  const Tell tell;
  const Log log;

  // The thread's.
  std::string line;
  bool is_too_long = false;
  bool has_warned = false;

  std::mutex mutex;  // guards what follows, and holds the destructor while `tell` is called
  bool is_closed = false;
};

// Until the input ends, or the destructor wakes it.
void DeathReader::State::serve() {
  std::array<char, 4096> bytes{};
  std::array<pollfd, 2> ready{pollfd{.fd = input, .events = POLLIN, .revents = 0},
                              pollfd{.fd = wake, .events = POLLIN, .revents = 0}};
  for (;;) {
    if (poll(ready.data(), ready.size(), -1) < 0) {
      if (errno == EINTR) continue;
      return;
    }
    if (ready[1].revents != 0) return;
    const ssize_t count = read(input, bytes.data(), bytes.size());
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (count <= 0) return;
    take({bytes.data(), static_cast<std::size_t>(count)});
  }
}

void DeathReader::State::take(std::string_view bytes) {
  for (const char each : bytes) {
    if (each == '\n') {
      take_line();
      line.clear();
      is_too_long = false;
    } else if (line.size() < kLineBytesMax) {
      line.push_back(each);
    } else {
      is_too_long = true;
    }
  }
}

void DeathReader::State::take_line() {
  if (is_too_long) return warn("a line of more than " + std::to_string(kLineBytesMax) + " bytes");
  std::optional<Death> death = death_in(line);
  if (!death) return warn("a line that is not of the form 'worker RANK HOW'");
  const std::lock_guard lock(mutex);
  if (is_closed) return;
  const Status told = tell(std::move(*death));
  if (!told.is_ok()) warn("a line that was not taken: " + told.message());
}

// The text of the line is not repeated: nobody knows what it is.
void DeathReader::State::warn(const std::string& what) {
  if (std::exchange(has_warned, true)) return;
  LOG(log, kWarning) << "standard input, which tells of workers that have ended, has " << what
                     << "; it is passed over, as others like it will be";
}

DeathReader::DeathReader(int descriptor, Tell tell, const Log& log)
    : state_(std::make_shared<State>(descriptor, std::move(tell), log)),
      executor_("byteps-deaths", 1) {
  const Status started = state_->wake < 0 ? system_error("eventfd", errno)
                                          : executor_.post([state = state_] { state->serve(); });
  if (!started.is_ok()) {
    LOG(log, kWarning) << "what bpslaunch tells of workers that have ended is not heard: "
                       << started.message();
  }
}

DeathReader::~DeathReader() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->is_closed = true;
  }
  const std::uint64_t one = 1;
  if (state_->wake >= 0) (void)!write(state_->wake, &one, sizeof one);
}

}  // namespace byteps
