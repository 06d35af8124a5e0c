#include "tests/gpu/faults.h"

#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include <unistd.h>

#include "tests/gpu/tsan.h"

namespace fake_gpu {

namespace {

constexpr int kExitCode = 86;

struct Found {
  std::mutex mutex;
  std::uint64_t count = 0;
  std::string last;
  std::atomic<OnViolation> on_violation{OnViolation::kExit};
};

Found& found() {
  static Found* const all = new Found;  // never destroyed: threads may outlive main
  return *all;
}

const char* variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

double number(const char* name, double otherwise) {
  const char* text = variable(name);
  return *text == '\0' ? otherwise : std::strtod(text, nullptr);
}

std::string_view without_version(std::string_view symbol) {
  constexpr std::string_view kVersion = "_v2";
  if (symbol.ends_with(kVersion)) symbol.remove_suffix(kVersion.size());
  return symbol;
}

// "a:1=700,b:2=1" or, without codes, "a:1,b:2".
std::vector<Planned> planned_in(const std::string& text) {
  std::vector<Planned> all;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string item = text.substr(begin, end - begin);
    const std::size_t colon = item.find(':');
    if (colon == std::string::npos) {
      std::fprintf(stderr, "fake gpu: %s is not symbol:call[=code]\n", item.c_str());
      std::_Exit(2);
    }
    Planned one;
    one.symbol = without_version(std::string_view(item).substr(0, colon));
    one.call = std::strtoull(item.c_str() + colon + 1, nullptr, 10);
    const std::size_t equals = item.find('=', colon);
    if (equals != std::string::npos) {
      one.code = static_cast<Code>(std::strtoul(item.c_str() + equals + 1, nullptr, 10));
    }
    all.push_back(std::move(one));
    begin = end + 1;
  }
  return all;
}

}  // namespace

Settings settings_of_environment() {
  constexpr double kBytesPerNsOfMbps = 1e6 / 1e9;
  Settings s;
  s.devices = static_cast<int>(number("FAKE_GPU_COUNT", s.devices));
  s.out_bytes_per_ns = number("FAKE_GPU_OUT_MBPS", 0) * kBytesPerNsOfMbps;
  s.in_bytes_per_ns = number("FAKE_GPU_IN_MBPS", 0) * kBytesPerNsOfMbps;
  s.latency_ns = static_cast<TimeNs>(number("FAKE_GPU_LATENCY_US", 5) * 1e3);
  s.kernel_ns = static_cast<TimeNs>(number("FAKE_GPU_KERNEL_US", 0) * 1e3);
  s.memory_bytes = static_cast<std::size_t>(number("FAKE_GPU_MEMORY_MB", 4096)) << 20;
  s.seed = static_cast<std::uint64_t>(number("FAKE_GPU_SEED", 1));
  s.kill_at = static_cast<std::uint64_t>(number("FAKE_GPU_KILL", 0));
  s.leaks_at_exit = number("FAKE_GPU_LEAKS", 0) != 0;
  s.counts_file = variable("FAKE_GPU_COUNTS");
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  s.has_visible = visible != nullptr;
  if (s.has_visible) s.visible = visible;
  const std::string_view on_violation = variable("FAKE_GPU_ON_VIOLATION");
  if (on_violation == "abort") set_on_violation(OnViolation::kAbort);
  if (on_violation == "count") set_on_violation(OnViolation::kCount);
  if (on_violation == "exit") set_on_violation(OnViolation::kExit);
  return s;
}

Calls::Calls(const Settings& settings)
    : kill_at_(settings.kill_at), planned_(planned_in(variable("FAKE_GPU_FAIL"))) {
  for (Planned& hang : planned_in(variable("FAKE_GPU_HANG"))) planned_.push_back(std::move(hang));
}

const Planned* Calls::begin(std::string_view symbol, bool is_driver) {
  if (is_driver && ++driver_calls_ == kill_at_) ::kill(::getpid(), SIGKILL);
  symbol = without_version(symbol);
  auto entry = counts_.find(symbol);
  if (entry == counts_.end()) entry = counts_.emplace(symbol, 0).first;
  const std::uint64_t call = ++entry->second;
  for (const Planned& one : planned_) {
    if (one.call == call && one.symbol == symbol) return &one;
  }
  return nullptr;
}

void Calls::plan(std::string_view symbol, std::uint64_t from_now, Code code) {
  symbol = without_version(symbol);
  planned_.push_back(Planned{std::string(symbol), count(symbol) + from_now, code});
}

std::uint64_t Calls::count(std::string_view symbol) const {
  const auto entry = counts_.find(without_version(symbol));
  return entry == counts_.end() ? 0 : entry->second;
}

std::string Calls::text() const {
  std::string text;
  for (const auto& [symbol, count] : counts_) text += symbol + " " + std::to_string(count) + "\n";
  return text + "total " + std::to_string(driver_calls_) + "\n";
}

void violation(const char* rule, const char* format, ...) {
  char text[900];
  std::va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  char line[1024];
  const int length = std::snprintf(line, sizeof line, "fake gpu: VIOLATION: %s: %s\n", rule, text);
  Found& all = found();
  const std::lock_guard guard(all.mutex);
  ++all.count;
  all.last = std::string(rule) + ": " + text;
  const OnViolation action = all.on_violation;
  [[maybe_unused]] const ssize_t written =
      ::write(STDERR_FILENO, line, static_cast<std::size_t>(length));
  if (action == OnViolation::kExit) {
    Unseen::end();
    ::_exit(kExitCode);
  }
  if (action == OnViolation::kAbort) std::abort();
}

std::uint64_t violations() {
  Found& all = found();
  const std::lock_guard guard(all.mutex);
  return all.count;
}

std::string last_violation() {
  Found& all = found();
  const std::lock_guard guard(all.mutex);
  return all.last;
}

void clear_violations() {
  Found& all = found();
  const std::lock_guard guard(all.mutex);
  all.count = 0;
  all.last.clear();
}

void set_on_violation(OnViolation action) {
  found().on_violation = action;
}

}  // namespace fake_gpu
