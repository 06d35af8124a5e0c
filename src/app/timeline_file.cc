#include "app/timeline_file.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include <unistd.h>

#include "app/json.h"
#include "app/process.h"
#include "app/whole_file.h"
#include "base/log.h"

namespace byteps {
namespace {

using Record = TimelineRecord;

constexpr TimeNs kLookEveryNs = kSecond;
constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

void append_number(std::string& out, std::uint64_t number) {
  std::array<char, 24> digits{};
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  out.append(digits.data(), end);
}

// Nanoseconds as microseconds.
void append_us(std::string& out, TimeNs ns) {
  append_number(out, static_cast<std::uint64_t>(ns / kMicrosecond));
  const auto rest = static_cast<std::uint64_t>(ns % kMicrosecond);
  out += '.';
  out += static_cast<char>('0' + rest / 100);
  out += static_cast<char>('0' + rest / 10 % 10);
  out += static_cast<char>('0' + rest % 10);
}

// An instant, not a stretch of time as all others.
void append_mark(std::string& out, const TimelineMark& mark) {
  out += R"({"ph":"i","s":"p","cat":"Comm","pid":"Comm","tid":"job","name":"Comm.MARK","ts":)";
  append_us(out, mark.at_ns);
  out += R"(,"args":{"name":)";
  json::append_text(out, mark.name);
  out += R"(,"number":)";
  append_number(out, mark.number);
  out += R"(,"text":)";
  json::append_text(out, mark.text);
  out += "}}";
}

// One recorder's records as events.
class EventWriter {
 public:
  EventWriter(const Timeline::Facts& facts, Recorder recorder, WholeFile& file)
      : facts_(facts),
        is_relay_(recorder == Recorder::kRelay),
        sends_to_relays_(!is_relay_ && !facts.relay_of_way.empty()),
        file_(file) {}
  ~EventWriter() { file_.append(out_); }
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  void add(const std::vector<TimelineMark>& marks) {
    for (const TimelineMark& mark : marks) {
      out_ += std::exchange(comma_, ",\n");
      append_mark(out_, mark);
    }
  }

  void add(const Record& record) {
    switch (record.kind) {
      case Record::Kind::kOperation:
        return operation(record);
      case Record::Kind::kPart:
        return part(record);
      case Record::Kind::kSum:
        return is_relay_ ? reduce(record) : sum(record);
      case Record::Kind::kBacklog:
        return backlog(record);
      case Record::Kind::kSpread:
        return spread(record);
      case Record::Kind::kCopyOut:
        return copy_out(record);
      case Record::Kind::kCopyIn:
        return copy_in(record);
      case Record::Kind::kCoding:
        return coding(record);
    }
  }

 private:
  // "Comm.<tensor>" without quotes.
  const std::string& name_of(std::uint64_t key) {
    std::string& name = names_[Key(key)];
    if (!name.empty()) return name;
    const auto found = facts_.names.find(Key(key));
    std::string quoted;
    json::append_text(quoted,
                      found == facts_.names.end() ? "key " + std::to_string(key) : found->second);
    name = "Comm." + quoted.substr(1, quoted.size() - 2);
    return name;
  }

  // Begins an event; its args stay open. Empty `stage`: the whole operation.
  void begin(const Record& record, std::string_view stage, TimeNs from, TimeNs to) {
    if (out_.size() > kChunkBytes) {
      file_.append(out_);
      out_.clear();
    }
    const std::string& name = name_of(record.key);
    out_ += std::exchange(comma_, ",\n");
    out_ += R"({"ph":"X","cat":"Comm","pid":")";
    (out_ += name) += R"(","tid":")";
    if (stage.empty()) {
      out_ += "total";
    } else {
      append_number(out_, record.part);
    }
    (out_ += R"(","name":")") += name;
    if (!stage.empty()) (out_ += '.') += stage;
    out_ += R"(","ts":)";
    append_us(out_, from);
    out_ += R"(,"dur":)";
    append_us(out_, std::max<TimeNs>(0, to - from));
    ((out_ += R"(,"args":{"name":")") += name) += '"';
    number("round", record.round);
  }
  void number(const char* name, std::uint64_t value) {
    ((out_ += ",\"") += name) += "\":";
    append_number(out_, value);
  }
  void us(const char* name, TimeNs ns) {
    ((out_ += ",\"") += name) += "\":";
    append_us(out_, std::max<TimeNs>(0, ns));
  }
  void end() { out_ += "}}"; }

  void operation(const Record& record) {
    begin(record, "", record.at_ns[Record::kSubmitted], record.at_ns[Record::kDone]);
    number("bytes", record.bytes);
    us("started", record.at_ns[Record::kStarted]);
    end();
  }

  // Its stages follow each other; answers to its first frames may come while the last are not sent.
  void part(const Record& record) {
    const auto& at = record.at_ns;
    begin(record, "QUEUED", at[Record::kQueued], at[Record::kFirstSent]);
    end();
    begin(record, "PUSH", at[Record::kFirstSent], at[Record::kLastSent]);
    number("shard", record.shard);
    const auto& peers = sends_to_relays_ ? facts_.relay_of_way : facts_.server_of_shard;
    if (record.shard < peers.size()) {
      number(sends_to_relays_ ? "relay" : "server", peers[record.shard]);
    }
    us("first_answer", at[Record::kFirstAnswer]);
    end();
    const TimeNs answers_ns = std::max(at[Record::kLastSent], at[Record::kFirstAnswer]);
    if (answers_ns > at[Record::kLastSent]) {
      begin(record, "WAIT", at[Record::kLastSent], answers_ns);
      end();
    }
    begin(record, "PULL", answers_ns, at[Record::kLastAnswer]);
    end();
  }

  void sum(const Record& record) {
    const auto& at = record.at_ns;
    begin(record, "GATHER", at[Record::kFirstCame], at[Record::kLastCame]);
    contributors(record);
    end();
    begin(record, "SUM", at[Record::kLastCame], at[Record::kLastFrameSummed]);
    summing(record);
    end();
  }

  // In one event, because frames go on to the servers as soon as they are summed.
  void reduce(const Record& record) {
    const auto& at = record.at_ns;
    begin(record, "REDUCE", at[Record::kFirstCame], at[Record::kLastFrameSummed]);
    contributors(record);
    us("last_came", at[Record::kLastCame]);
    summing(record);
    end();
  }
  void contributors(const Record& record) {
    const auto& at = record.at_ns;
    number("first_worker", record.first_worker);
    number("last_worker", record.worker);
    if (at[Record::kLastButOneCame] != 0) {
      us("late", at[Record::kLastCame] - at[Record::kLastButOneCame]);
    }
  }
  void summing(const Record& record) {
    us("busy", record.busy_ns);
    us("first_frame", record.at_ns[Record::kFirstFrameSummed]);
    number("bytes", record.bytes);
  }

  void spread(const Record& record) {
    begin(record, "SPREAD", record.at_ns[Record::kFirstReturned],
          record.at_ns[Record::kLastSpread]);
    number("bytes", record.bytes);
    end();
  }

  void copy_out(const Record& record) {
    const auto& at = record.at_ns;
    begin(record, "STREAM", at[Record::kEntered], at[Record::kReady]);
    end();
    begin(record, "SLAB", at[Record::kReady], at[Record::kLent]);
    end();
    if (at[Record::kFirstOut] == 0) return;
    begin(record, "COPY_OUT", at[Record::kLent], at[Record::kLastOut]);
    us("first_chunk", at[Record::kFirstOut]);
    number("bytes", record.bytes);
    end();
  }

  void copy_in(const Record& record) {
    begin(record, "COPY_IN", record.at_ns[Record::kFirstIn], record.at_ns[Record::kLastIn]);
    number("bytes", record.bytes);
    end();
  }

  void coding(const Record& record) {
    const auto& at = record.at_ns;
    if (record.busy_ns != 0) {
      begin(record, "ENCODE", at[Record::kFirstEncoded], at[Record::kLastEncoded]);
      us("busy", record.busy_ns);
      end();
    }
    if (at[Record::kDecodeBusy] == 0) return;
    begin(record, "DECODE", at[Record::kFirstDecoded], at[Record::kLastDecoded]);
    us("busy", at[Record::kDecodeBusy]);
    end();
  }

  void backlog(const Record& record) {
    out_ += std::exchange(comma_, ",\n");
    out_ += R"({"ph":"X","cat":"Comm","pid":"Comm","tid":"worker )";
    append_number(out_, record.worker);
    out_ += R"(, shard )";
    append_number(out_, record.shard);
    out_ += R"(","name":"Comm.BACKLOG","ts":)";
    append_us(out_, record.at_ns[Record::kBegan]);
    out_ += R"(,"dur":)";
    append_us(out_, record.at_ns[Record::kEnded] - record.at_ns[Record::kBegan]);
    out_ += R"(,"args":{"worker":)";
    append_number(out_, record.worker);
    end();
  }

  const Timeline::Facts& facts_;
  const bool is_relay_;
  const bool sends_to_relays_;
  WholeFile& file_;
  std::map<Key, std::string> names_;
  std::string out_;
  const char* comma_ = "";
};

std::vector<const TimelineLane*> lanes_of(const Timeline::Facts& facts, Recorder recorder) {
  std::vector<const TimelineLane*> lanes;
  for (const TimelineLane* lane : facts.lanes) {
    if (lane->recorder() == recorder) lanes.push_back(lane);
  }
  return lanes;
}

bool has_records(const Timeline::Facts& facts, Recorder recorder) {
  const std::vector<const TimelineLane*> lanes = lanes_of(facts, recorder);
  return std::any_of(lanes.begin(), lanes.end(),
                     [](const TimelineLane* lane) { return !lane->records().empty(); });
}

std::uint64_t dropped_count(const std::vector<const TimelineLane*>& lanes) {
  std::uint64_t count = 0;
  for (const TimelineLane* lane : lanes) count += lane->dropped();
  return count;
}

}  // namespace

std::unique_ptr<TimelineFile> TimelineFile::make(Role role, const Config& config,
                                                 LogWriter& writer) {
  return config.trace.on ? std::make_unique<TimelineFile>(role, config, writer) : nullptr;
}

TimelineFile::TimelineFile(Role role, const Config& config, LogWriter& writer)
    : role_(role),
      writer_(writer),
      config_(config),
      timeline_(Round(config.trace.first_round), Round(config.trace.last_round),
                [this] { return clock_.now(); }),
      watch_(*this),
      runner_(std::make_unique<Runner>("byteps-timeline", watch_, sleeper_, clock_)) {}

TimelineFile::~TimelineFile() {
  runner_.reset();
  const std::size_t count = timeline_.record_count();
  if (count != written_count_) write(count);
}

std::size_t TimelineFile::Watch::turn(TimeNs now) {
  if (now < next_look_ns_) return 0;
  next_look_ns_ = now + kLookEveryNs;
  const std::size_t count = file_.timeline_.record_count();
  const bool quiet = std::exchange(seen_count_, count) == count;
  if (quiet && count != file_.written_count_) file_.write(count);
  return 0;
}

void TimelineFile::write(std::size_t count) {
  written_count_ = count;  // also when it fails: it would fail again
  const Timeline::Facts facts = timeline_.facts();
  const std::string who =
      byteps::name(role_) + (facts.rank ? " " + std::to_string(*facts.rank) : std::string());
  const Log log(who, LogLevel::kInfo, writer_.sink());
  std::string places;
  bool all_written = true;
  for (const Recorder recorder : {Recorder::kProcess, Recorder::kRelay}) {
    if (recorder == Recorder::kRelay && !has_records(facts, recorder)) continue;
    const std::vector<std::string> files = paths(facts, recorder);
    for (const std::string& path : files) {
      const Status status = write_to(path, facts, recorder);
      if (status.is_ok()) continue;
      all_written = false;
      LOG(log, kWarning) << "the timeline cannot be written: " << status.message()
                         << "; set BYTEPS_TRACE_DIR to a folder that this user can write to";
    }
    places += (places.empty() ? "" : ", its relay's in ") + files.front();
  }
  if (!all_written) return;
  LOG(log, kInfo) << "the timeline is in " << places << "; bps trace top " << config_.trace.folder
                  << " says where the time goes";
  const std::uint64_t dropped = dropped_count(facts.lanes);
  if (dropped == 0) return;
  LOG(log, kWarning) << "the timeline was full: " << dropped
                     << " records are missing; choose fewer steps (BYTEPS_TRACE_START_STEP, "
                        "BYTEPS_TRACE_END_STEP)";
}

std::vector<std::string> TimelineFile::paths(const Timeline::Facts& facts,
                                             Recorder recorder) const {
  const std::string& folder = config_.trace.folder;
  const std::uint32_t rank = facts.rank.value_or(config_.job.rank);
  if (role_ == Role::kServer) return {folder + "/server-" + std::to_string(rank) + "/comm.json"};
  if (recorder == Recorder::kRelay) {
    return {folder + "/relay-" + std::to_string(rank) + "/comm.json"};
  }
  const std::string own = folder + "/" + std::to_string(config_.job.local.rank);
  std::vector<std::string> paths{own + "/comm.json"};
  if (config_.job.worker_count > config_.job.local.size) {
    paths.push_back(own + "/comm-" + std::to_string(rank) + ".json");
  }
  return paths;
}

Status TimelineFile::write_to(const std::string& path, const Timeline::Facts& facts,
                              Recorder recorder) const {
  std::error_code failed;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failed);
  if (failed) return system_error(path, failed.value());
  WholeFile file(path);
  file.append("{\"traceEvents\":[\n");
  {
    EventWriter events(facts, recorder, file);
    for (const TimelineLane* lane : lanes_of(facts, recorder)) {
      for (const Record& record : lane->records()) events.add(record);
    }
    if (recorder == Recorder::kProcess) events.add(facts.marks);
  }
  file.append("],\n\"displayTimeUnit\":\"ms\",\n\"otherData\":" + other_data(facts, recorder) +
              "}\n");
  return file.commit();
}

std::string TimelineFile::other_data(const Timeline::Facts& facts, Recorder recorder) const {
  std::string out;
  {
    json::Object object(out);
    object.number("byteps_timeline", 1);
    object.text("version", BYTEPS_VERSION);
    object.text("role", recorder == Recorder::kRelay ? "relay" : byteps::name(role_));
    if (facts.rank) object.number("rank", *facts.rank);
    if (role_ == Role::kWorker) object.number("local_rank", config_.job.local.rank);
    object.text("host", host_name());
    object.number("pid", getpid());
    object.text("scheduler",
                Endpoint{config_.job.scheduler_host, config_.job.scheduler_port}.text());
    object.number("first_step", config_.trace.first_round);
    object.number("last_step", config_.trace.last_round);
    object.number("wall_zero_ns", wall_clock_now() - timeline_.now());
    if (facts.offset) {
      object.number("clock_offset_ns", facts.offset->offset_ns);
      object.number("clock_error_ns", facts.offset->error_ns);
    }
    object.number("dropped", dropped_count(lanes_of(facts, recorder)));
  }
  return out;
}

}  // namespace byteps
