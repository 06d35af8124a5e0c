#include "app/flight_file.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "app/json.h"
#include "app/process.h"
#include "app/whole_file.h"
#include "base/log.h"

namespace byteps {
namespace {

namespace fs = std::filesystem;
using json::Object;

constexpr std::string_view kPrefix = "byteps-flight-";
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

// ---- files

// A folder of ours that nobody else can write to: others may make folders where the default one is.
Status make_private(const std::string& folder) {
  std::error_code failed;
  fs::create_directories(fs::path(folder).parent_path(), failed);
  for (const fs::path& each : {fs::path(folder).parent_path(), fs::path(folder)}) {
    if (mkdir(each.c_str(), 0700) != 0 && errno != EEXIST) return system_error(each, errno);
    struct stat facts {};
    if (lstat(each.c_str(), &facts) != 0) return system_error(each, errno);
    if (!S_ISDIR(facts.st_mode) || facts.st_uid != geteuid() || (facts.st_mode & 022) != 0) {
      return {Code::kSystem, each.string() + " is not a folder that only this user can write to"};
    }
  }
  return Status::ok();
}

Status make_chosen(const std::string& folder) {
  std::error_code failed;
  fs::create_directories(fs::path(folder).parent_path(), failed);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return system_error(folder, errno);
  return Status::ok();
}

// Removes all but the newest files of this kind.
void keep_newest(const std::string& folder, std::size_t kept) {
  std::error_code failed;
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  for (const auto& entry : fs::directory_iterator(folder, failed)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix)) continue;
    files.emplace_back(entry.last_write_time(failed), entry.path());
  }
  if (files.size() <= kept) return;
  std::sort(files.begin(), files.end());
  for (std::size_t i = 0; i < files.size() - kept; ++i) fs::remove(files[i].second, failed);
}

}  // namespace

std::string default_flight_folder() {
  const char* const temporary = std::getenv("TMPDIR");
  const std::string base = temporary != nullptr && *temporary != '\0' ? temporary : "/tmp";
  return base + "/byteps-" + std::to_string(geteuid()) + "/flight";
}

FlightFile::FlightFile(Role role, Environment environment)
    : role_(role),
      environment_(std::move(environment)),
      chosen_(!value_of(environment_, "BYTEPS_FLIGHT_DIR").empty()),
      folder_(chosen_ ? value_of(environment_, "BYTEPS_FLIGHT_DIR") : default_flight_folder()),
      wall_zero_ns_(wall_clock_now() - clock_.now()),
      recorder_(
          event_count(environment_), [this] { return clock_.now(); },
          [this](const FlightRecorder& recorder) { return write(recorder); }) {
  if (event_count(environment_) > 0) spare_file_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
  recorder_.record({.kind = "start", .text = BYTEPS_VERSION});
}

FlightFile::~FlightFile() {
  if (spare_file_ >= 0) close(spare_file_);
}

std::string FlightFile::write(const FlightRecorder& recorder) {
  if (spare_file_ >= 0) close(std::exchange(spare_file_, -1));
  const std::vector<FlightRecorder::Entry> entries = recorder.entries();
  const FlightRecorder::Facts facts = recorder.facts();
  std::string content = header(facts, entries.size());
  for (const FlightRecorder::Entry& entry : entries) {
    content += '\n';
    append_event(content, entry);
  }
  content += '\n';
  Status status = chosen_ ? make_chosen(folder_) : make_private(folder_);
  if (status.is_ok() && path_.empty()) path_ = choose_path(facts);
  if (status.is_ok()) {
    WholeFile file(path_);
    file.append(content);
    status = file.commit();
  }
  if (status.is_ok()) {
    if (!chosen_) keep_newest(folder_, kFilesKept);
    spare_file_ = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return path_;
  }
  if (!std::exchange(warned_, true)) {
    const Log log(byteps::name(role_), LogLevel::kWarning, Log::standard_error());
    LOG(log, kWarning) << "the last events cannot be written: " << status.message()
                       << "; set BYTEPS_FLIGHT_DIR to a folder that this user can write to";
  }
  return {};
}

std::string FlightFile::header(const FlightRecorder::Facts& facts, std::size_t kept) const {
  std::string out;
  {
    Object object(out);
    object.number("byteps_flight", 1);
    object.text("version", BYTEPS_VERSION);
    object.text("role", byteps::name(role_));
    object.number("rank", facts.rank, FlightEvent::kNone);
    object.text("host", host_in_path());
    object.number("pid", getpid());
    const std::string uri = value_of(environment_, "DMLC_PS_ROOT_URI");
    const std::string port = value_of(environment_, "DMLC_PS_ROOT_PORT");
    if (!uri.empty()) object.text("scheduler", uri + ":" + port);
    object.number("epoch", facts.epoch);
    object.number("wall_zero_ns", wall_zero_ns_);
    object.number("wall_step_ns", wall_clock_now() - facts.now_ns - wall_zero_ns_);
    object.number("started_ns", facts.started_ns);
    object.number("written_ns", facts.now_ns);
    object.number("recorded", facts.recorded_count);
    object.number("kept", kept);
    object.text("how", facts.how);
    object.text("code", byteps::name(facts.outcome.code()));
    object.text("text", facts.outcome.message());
    object.name("settings");
    append_settings(out, environment_);
    object.name("peers");
    append_peers(out, facts.peers);
  }
  return out;
}

std::string FlightFile::choose_path(const FlightRecorder::Facts& facts) const {
  const std::string rank =
      facts.rank == FlightEvent::kNone ? std::string("x") : std::to_string(facts.rank);
  const std::string stem = folder_ + "/" + std::string(kPrefix) + byteps::name(role_) + "-" + rank +
                           "-" + host_in_path() + "-" + std::to_string(getpid());
  std::string path = stem + std::string(kSuffix);
  for (int i = 2; access(path.c_str(), F_OK) == 0 && i < 1000; ++i) {
    path = stem + "-" + std::to_string(i) + std::string(kSuffix);
  }
  return path;
}

}  // namespace byteps
