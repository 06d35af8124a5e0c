#include "app/flight_file.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/json.h"
#include "app/process.h"
#include "app/whole_file.h"
#include "base/log.h"
#include "loop/clock.h"

namespace byteps {
namespace {

namespace fs = std::filesystem;
using json::Object;

constexpr std::string_view kPrefix = "byteps-flight-";
constexpr std::string_view kAbsencesPrefix = "byteps-absences-";
constexpr std::string_view kSuffix = ".jsonl";

std::string value_of(const Environment& environment, const std::string& name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

std::size_t event_count(const Environment& environment) {
  const std::string text = value_of(environment, "BYTEPS_FLIGHT_EVENTS");
  std::size_t count = FlightFile::kEventsDefault;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  const bool valid = error == std::errc() && stop == text.data() + text.size();
  return valid ? std::min(count, FlightFile::kEventsMax) : FlightFile::kEventsDefault;
}

std::string host_in_path() {
  std::string name = host_name();
  std::replace(name.begin(), name.end(), '/', '_');
  return name;
}

// ---- JSON

void append_event(std::string& out, const FlightRecorder::Entry& entry) {
  const FlightEvent& event = entry.event;
  Object object(out);
  object.number("t", event.at_ns);
  object.text("kind", event.kind);
  object.text("name", event.name);
  object.text("role", event.role);
  object.number("rank", event.rank, FlightEvent::kNone);
  object.text("host", entry.host);
  object.text("cause", event.cause);
  object.text("detail", entry.detail);
  object.number("epoch", event.epoch, FlightEvent::kNone);
  object.number("key", event.key, std::uint64_t{0});
  object.number("part", event.part, FlightEvent::kNone);
  object.number("round", event.round, FlightEvent::kNone);
  object.number("number", event.number, FlightEvent::kNoNumber);
  object.number("bytes", event.bytes, FlightEvent::kNoNumber);
  object.text("text", entry.text);
  if (entry.text_lost) object.number("text_lost", 1);
}

// A setting for the file: keys and other secrets are only said to be there.
std::string shown(const std::string& name, const std::string& value) {
  const bool secret = name.ends_with("KEY") || name.find("SECRET") != std::string::npos ||
                      name.find("TOKEN") != std::string::npos ||
                      name.find("PASS") != std::string::npos;
  return secret ? "(set)" : value;
}

void append_settings(std::string& out, const Environment& environment) {
  Object object(out);
  for (const auto& [name, value] : environment) object.text(name.c_str(), shown(name, value));
}

void append_peers(std::string& out, const std::vector<FlightPeer>& peers) {
  const char* comma = "[";
  for (const FlightPeer& peer : peers) {
    out += std::exchange(comma, ",");
    Object object(out);
    object.text("role", peer.role);
    object.number("rank", peer.rank, FlightEvent::kNone);
    object.text("host", peer.host);
    object.text("state", peer.state);
    object.number("heard_ns", peer.heard_ns, kNever);
  }
  out += peers.empty() ? "[]" : "]";
}

void append_scheduler(Object& object, const Environment& environment) {
  const std::string uri = value_of(environment, "DMLC_PS_ROOT_URI");
  const std::string port = value_of(environment, "DMLC_PS_ROOT_PORT");
  if (!uri.empty()) object.text("scheduler", uri + ":" + port);
}

void append_participant(Object& object, const Participant& who) {
  if (who.role) object.text("role", byteps::name(*who.role));
  object.number("rank", who.rank, kNoRank);
  object.text("host", who.host);
}

void append_ranks(std::string& out, Object& object, const char* field,
                  const std::vector<std::uint32_t>& ranks) {
  if (ranks.empty()) return;
  object.name(field);
  const char* comma = "[";
  for (const std::uint32_t rank : ranks) {
    out += std::exchange(comma, ",");
    out += std::to_string(rank);
  }
  out += ']';
}

void append_cause(std::string& out, const Cause& cause) {
  Object object(out);
  object.text("kind", byteps::name(cause.kind));
  append_participant(object, cause.who);
  object.number("for_ns", cause.for_ns, TimeNs{0});
  object.text("detail", cause.detail);
  append_ranks(out, object, "missing_workers", cause.missing_workers);
  append_ranks(out, object, "missing_servers", cause.missing_servers);
  if (!cause.told_by.role) return;
  object.name("told_by");
  Object told_by(out);
  append_participant(told_by, cause.told_by);
}

// ---- files

Status not_private(const fs::path& folder) {
  return {Code::kSystem, folder.string() + " is not a folder that only this user can write to"};
}

// A folder of ours that nobody else can write to: others may make folders where the default one is.
Status flaw_of_private(const fs::path& folder) {
  struct stat facts {};
  if (lstat(folder.c_str(), &facts) != 0) return system_error(folder, errno);
  const bool is_ours =
      S_ISDIR(facts.st_mode) && facts.st_uid == geteuid() && (facts.st_mode & 022) == 0;
  return is_ours ? Status::ok() : not_private(folder);
}

Status make_private(const std::string& folder) {
  std::error_code failed;
  fs::create_directories(fs::path(folder).parent_path(), failed);
  for (const fs::path& each : {fs::path(folder).parent_path(), fs::path(folder)}) {
    if (mkdir(each.c_str(), 0700) != 0 && errno != EEXIST) return system_error(each, errno);
    if (Status flaw = flaw_of_private(each); !flaw.is_ok()) return flaw;
  }
  return Status::ok();
}

Status make_chosen(const std::string& folder) {
  std::error_code failed;
  fs::create_directories(fs::path(folder).parent_path(), failed);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return system_error(folder, errno);
  return Status::ok();
}

// Why nothing could be written there, as far as that can be told without making anything.
Status flaw_of_folder(const std::string& folder, bool chosen) {
  fs::path nearest(folder);
  struct stat facts {};
  while (stat(nearest.c_str(), &facts) != 0) {
    if (errno != ENOENT || !nearest.has_parent_path() || nearest == nearest.parent_path()) {
      return system_error(nearest, errno);
    }
    nearest = nearest.parent_path();
  }
  if (!S_ISDIR(facts.st_mode)) return system_error(nearest, ENOTDIR);
  if (access(nearest.c_str(), W_OK | X_OK) != 0) return system_error(nearest, errno);
  if (chosen) return Status::ok();
  for (const fs::path& each : {fs::path(folder).parent_path(), fs::path(folder)}) {
    if (lstat(each.c_str(), &facts) != 0) return Status::ok();  // it is still to be made
    if (Status flaw = flaw_of_private(each); !flaw.is_ok()) return flaw;
  }
  return Status::ok();
}

// Of the files of this process, which may have been in other jobs, the next number: 1 when it has none.
int next_number(const std::string& folder, Role role) {
  const std::string head = std::string(kPrefix) + name(role) + "-";
  const std::string process = "-" + host_in_path() + "-" + std::to_string(getpid());
  int number = 1;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const std::string file = entry.path().filename();
    const std::size_t at = file.find(process);
    if (!file.starts_with(head) || !file.ends_with(kSuffix) || at == std::string::npos) continue;
    const std::string_view rest = std::string_view(file).substr(at + process.size());
    int its = 1;
    if (rest != kSuffix &&
        (rest.front() != '-' ||
         std::from_chars(rest.data() + 1, rest.data() + rest.size(), its).ec != std::errc())) {
      continue;  // of another process, whose number begins like ours
    }
    number = std::max(number, its + 1);
  }
  return number;
}

// Removes all but the newest files of this kind.
void keep_newest(const std::string& folder, std::string_view prefix, std::size_t kept) {
  std::error_code failed;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(prefix)) continue;
    files.emplace_back(entry.last_write_time(failed), entry.path());
  }
  if (files.size() <= kept) return;
  std::sort(files.begin(), files.end());
  for (std::size_t i = 0; i < files.size() - kept; ++i) fs::remove(files[i].second, failed);
}

}  // namespace

std::string absence_line(Epoch epoch, const ShelfOutput::Absence& absence) {
  std::string out;
  {
    Object object(out);
    object.number("epoch", epoch.value);
    object.text("tensor", absence.name);
    object.number("first", absence.first_element);
    object.number("count", absence.element_count);
    object.number("worker", absence.worker.value);
    object.number("round", absence.since.value);
  }
  return out + '\n';
}

std::string default_flight_folder() {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): nobody sets variables at that time
  const char* const temporary = std::getenv("TMPDIR");
  const std::string base = temporary != nullptr && *temporary != '\0' ? temporary : "/tmp";
  return base + "/byteps-" + std::to_string(geteuid()) + "/flight";
}

struct FlightFile::State {
  State(Role own_role, Environment variables);
  ~State() {
    if (spare_file >= 0) close(spare_file);
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void write();
  void write_absences();
  Status open_absences();
  std::string header(const FlightRecorder::Facts& facts, std::size_t kept) const;
  std::string absences_header() const;
  std::string path_of(std::uint32_t rank) const;
  void warn(const Status& why);

  // constant
  const Role role;
  const Environment environment;
  const bool chosen;  // the folder, by BYTEPS_FLIGHT_DIR
  const bool always;  // BYTEPS_FLIGHT_ALWAYS
  const std::string folder;
  const bool keeps_absences;
  MonotonicClock clock;
  const TimeNs wall_zero_ns;  // the time of day at the clock's zero, when the process began
  Status flaw;                // why nothing can be written
  int number = 1;             // of this process's file
  std::function<std::string(const FlightRecorder&)> on_leave;

  // by the one that leaves something behind; the recorder lets in one at a time
  std::string path;  // "" before the first time

  std::atomic<bool> is_due{false};  // a job that writes waits

  // Lines for the file of absences.
  struct Absences {
    std::mutex mutex;       // guards the next three
    std::string waiting;    // not yet written
    std::size_t bytes = 0;  // that there ever were
    bool is_due = false;    // a job that writes them waits
    int file = -1;          // by the thread that writes; -1: there were none yet
    ~Absences() {
      if (file >= 0) close(file);
    }
  };
  Absences absences;

  // by the thread that writes
  int spare_file = -1;  // a descriptor for the file, when the process has none left; -1: none
  bool warned = false;

  FlightRecorder recorder;  // last: it ends before what its writer uses
};

FlightFile::State::State(Role own_role, Environment variables)
    : role(own_role),
      environment(std::move(variables)),
      chosen(!value_of(environment, "BYTEPS_FLIGHT_DIR").empty()),
      always(value_of(environment, "BYTEPS_FLIGHT_ALWAYS") == "1"),
      folder(chosen ? value_of(environment, "BYTEPS_FLIGHT_DIR") : default_flight_folder()),
      keeps_absences(event_count(environment) > 0),
      wall_zero_ns(wall_clock_now() - clock.now()),
      recorder(
          event_count(environment), [this] { return clock.now(); },
          [this](const FlightRecorder& from) { return on_leave(from); }) {
  if (event_count(environment) == 0) return;
  flaw = flaw_of_folder(folder, chosen);
  if (flaw.is_ok()) number = next_number(folder, role);
  spare_file = open("/dev/null", O_RDONLY | O_CLOEXEC);
}

FlightFile::FlightFile(Role role, Environment environment)
    : state_(std::make_shared<State>(role, std::move(environment))), executor_("byteps-flight", 2) {
  state_->on_leave = [this](const FlightRecorder& recorder) { return leave(recorder); };
  recorder().record({.kind = "start", .text = BYTEPS_VERSION});
}

FlightFile::~FlightFile() {
  if (state_->always && state_->path.empty()) recorder().leave_behind("well", Status::ok());
  settle();
}

FlightRecorder& FlightFile::recorder() {
  return state_->recorder;
}

// Has it written, and says where it will be.
std::string FlightFile::leave(const FlightRecorder& recorder) {
  State& state = *state_;
  if (!state.flaw.is_ok()) {
    (void)executor_.post([shared = state_] { shared->warn(shared->flaw); });
    return {};
  }
  if (state.path.empty()) state.path = state.path_of(recorder.facts().rank);
  if (state.is_due.exchange(true)) return state.path;
  const Status posted = executor_.post([shared = state_] {
    shared->is_due = false;
    shared->write();
  });
  if (posted.is_ok()) return state.path;
  state.is_due = false;
  return {};
}

void FlightFile::record_absence(const std::string& line) {
  if (!state_->keeps_absences) return;
  State::Absences& absences = state_->absences;
  const std::lock_guard lock(absences.mutex);
  if (absences.bytes > kAbsencesBytesMax) return;
  absences.bytes += line.size();
  absences.waiting += line;
  if (absences.bytes > kAbsencesBytesMax) absences.waiting += "{\"full\":1}\n";
  if (absences.is_due) return;
  absences.is_due = executor_.post([shared = state_] { shared->write_absences(); }).is_ok();
}

AbsenceSink FlightFile::absence_sink() {
  return [this](Epoch epoch, const ShelfOutput::Absence& absence) {
    record_absence(absence_line(epoch, absence));
  };
}

Status FlightFile::State::open_absences() {
  const Status status = chosen ? make_chosen(folder) : make_private(folder);
  if (!status.is_ok()) return status;
  if (!chosen) keep_newest(folder, kAbsencesPrefix, kFilesKept);
  const std::string to = folder + "/" + std::string(kAbsencesPrefix) + host_in_path() + "-" +
                         std::to_string(getpid()) + std::string(kSuffix);
  absences.file = open(to.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
  return absences.file < 0 ? system_error(to, errno) : Status::ok();
}

void FlightFile::State::write_absences() {
  std::string lines;
  {
    const std::lock_guard lock(absences.mutex);
    absences.is_due = false;
    lines.swap(absences.waiting);
  }
  if (absences.file < 0) {
    const Status opened = open_absences();
    if (!opened.is_ok()) return warn(opened);
    lines.insert(0, absences_header());
  }
  for (std::size_t done = 0; done < lines.size();) {
    const ssize_t count = ::write(absences.file, lines.data() + done, lines.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return warn(system_error(folder, errno));
    done += static_cast<std::size_t>(count);
  }
}

void FlightFile::State::write() {
  if (spare_file >= 0) close(std::exchange(spare_file, -1));
  const std::vector<FlightRecorder::Entry> entries = recorder.entries();
  std::string content = header(recorder.facts(), entries.size());
  for (const FlightRecorder::Entry& entry : entries) {
    content += '\n';
    append_event(content, entry);
  }
  content += '\n';
  Status status = chosen ? make_chosen(folder) : make_private(folder);
  if (status.is_ok()) {
    WholeFile file(path);
    file.append(content);
    status = file.commit();
  }
  if (status.is_ok() && !chosen) keep_newest(folder, kPrefix, kFilesKept);
  spare_file = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (!status.is_ok()) warn(status);
}

// On the thread that writes, which may wait for standard error as well.
void FlightFile::State::warn(const Status& why) {
  if (std::exchange(warned, true)) return;
  const Log log(byteps::name(role), LogLevel::kWarning, [](std::string_view line) {
    const std::string text = std::string(line) + "\n";
    // A line that cannot be written has no one to be reported to.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
  });
  LOG(log, kWarning) << "the last events cannot be written: " << why.message()
                     << "; set BYTEPS_FLIGHT_DIR to a folder that this user can write to";
}

std::string FlightFile::State::absences_header() const {
  std::string out;
  {
    Object object(out);
    object.number("byteps_absences", 1);
    object.text("version", BYTEPS_VERSION);
    object.text("host", host_in_path());
    object.number("pid", getpid());
    append_scheduler(object, environment);
    object.number("wall_ns", wall_clock_now());
  }
  return out + '\n';
}

std::string FlightFile::State::header(const FlightRecorder::Facts& facts, std::size_t kept) const {
  std::string out;
  {
    Object object(out);
    object.number("byteps_flight", 2);
    object.text("version", BYTEPS_VERSION);
    object.text("role", byteps::name(role));
    object.number("rank", facts.rank, FlightEvent::kNone);
    object.text("host", host_in_path());
    object.number("pid", getpid());
    append_scheduler(object, environment);
    object.number("epoch", facts.epoch);
    object.number("wall_zero_ns", wall_zero_ns);
    object.number("wall_step_ns", wall_clock_now() - facts.now_ns - wall_zero_ns);
    object.number("started_ns", facts.started_ns);
    object.number("written_ns", facts.now_ns);
    object.number("recorded", facts.recorded_count);
    object.number("kept", kept);
    object.text("how", facts.how);
    object.text("code", byteps::name(facts.outcome.code()));
    object.text("text", facts.outcome.message());
    object.name("cause");
    append_cause(out, facts.outcome.cause());
    object.name("settings");
    append_settings(out, environment);
    object.name("peers");
    append_peers(out, facts.peers);
  }
  return out;
}

std::string FlightFile::State::path_of(std::uint32_t rank) const {
  const std::string its = rank == FlightEvent::kNone ? std::string("x") : std::to_string(rank);
  return folder + "/" + std::string(kPrefix) + byteps::name(role) + "-" + its + "-" +
         host_in_path() + "-" + std::to_string(getpid()) +
         (number > 1 ? "-" + std::to_string(number) : std::string()) + std::string(kSuffix);
}

}  // namespace byteps
