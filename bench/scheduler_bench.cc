// How long the scheduler's loop is busy at once while a large job starts, meets at a barrier and ends: all members say
// everything at the same moment, over a transport that costs nothing. During a turn nobody else is heard.
// usage: scheduler_bench [workers, 1000] [servers, 250] [shards of each, 8]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/flight.h"
#include "base/log.h"
#include "net/transport.h"
#include "net/wire.h"
#include "scheduler/scheduler.h"

namespace byteps {
namespace {

constexpr std::size_t kFlightEvents = 8192;

double processor_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

// Takes every message and gives its payload back at the next poll.
class Crowd final : public Transport {
 public:
  std::size_t sent_bytes = 0;
  std::map<wire::Kind, std::size_t> sent_count;

  void up(PeerId peer, const Hello& hello) {
    Pending pending;
    pending.event.kind = Event::Kind::kUp;
    pending.event.peer = peer;
    pending.event.hello = hello;
    pending_.push_back(std::move(pending));
  }
  void say(PeerId peer, const wire::Header& header, std::vector<std::byte> payload) {
    Pending pending;
    pending.event.kind = Event::Kind::kReceived;
    pending.event.peer = peer;
    const wire::HeaderBytes bytes = wire::encode(header);
    pending.header.assign(bytes.begin(), bytes.end());
    pending.payload = std::move(payload);
    pending_.push_back(std::move(pending));
  }
  bool quiet() const { return pending_.empty(); }

  Result<PeerId> connect(const Endpoint&, const Hello&) override {
    return Status(Code::kUnsupported, "a scheduler connects to nobody");
  }
  Status send(PeerId peer, const Outgoing& message) override {
    sent_bytes += message.payload.size();
    ++sent_count[wire::decode_header(message.header).value().kind];
    Pending pending;
    pending.event.kind = Event::Kind::kSent;
    pending.event.peer = peer;
    pending.event.token = message.token;
    pending_.push_back(std::move(pending));
    return Status::ok();
  }
  std::size_t poll(TimeNs, std::span<Event> events) override {
    shown_.clear();
    while (shown_.size() < events.size() && !pending_.empty()) {
      shown_.push_back(std::move(pending_.front()));
      pending_.pop_front();
      Pending& last = shown_.back();
      last.event.header = last.header;
      last.event.payload = last.payload;
      events[shown_.size() - 1] = last.event;
    }
    return shown_.size();
  }
  TimeNs next_deadline() const override { return kNever; }
  void set_self(const Hello&) override {}
  void close(PeerId, Status) override {}

 private:
  struct Pending {
    Event event;
    std::vector<std::byte> header, payload;
  };
  std::deque<Pending> pending_;
  std::deque<Pending> shown_;
};

class Job {
 public:
  Job(std::uint32_t workers, std::uint32_t servers, std::uint32_t shards, bool recovers)
      : workers_(workers),
        servers_(servers),
        shards_(shards),
        recovers_(recovers),
        flight_(
            kFlightEvents, [] { return TimeNs{0}; },
            [](const FlightRecorder&) { return std::string(); }),
        scheduler_(config(workers, servers, recovers), crowd_,
                   Log(
                       "scheduler", LogLevel::kSilent, [](std::string_view) {}, &flight_)) {}

  void run() {
    for (std::uint32_t i = 0; i < workers_ + servers_; ++i) join(i);
    turn("all join; servers hear of each other");
    for (std::uint32_t i = workers_; i < workers_ + servers_; ++i) say(i, wire::Kind::kHeartbeat);
    turn("servers are ready; workers hear of all");
    for (std::uint32_t i = 0; i < workers_ + servers_; ++i) say(i, wire::Kind::kHeartbeat);
    turn("a heartbeat of everybody");
    for (std::uint32_t i = 0; i < workers_; ++i) {
      say(i, wire::Kind::kBarrier, wire::encode(wire::Barrier{0}));
    }
    turn("a barrier");
    for (std::uint32_t i = 0; i < workers_; ++i) {
      say(i, wire::Kind::kLeave, wire::encode(wire::Leave{true, Members()}));
    }
    turn("all leave");
    if (recovers_) all_know();
    CHECK(scheduler_.outcome().is_ok()) << scheduler_.outcome().message();
    CHECK_EQ(crowd_.sent_count[wire::Kind::kRoster], std::size_t{workers_} + servers_);
    CHECK_EQ(crowd_.sent_count[wire::Kind::kBarrierDone], std::size_t{workers_});
    std::printf(
        "%u workers, %u servers of %u shards%s: nobody waits longer than %.2f ms for a turn\n",
        workers_, servers_, shards_, recovers_ ? ", recovery" : "", longest_ms_);
  }

 private:
  static Config config(std::uint32_t workers, std::uint32_t servers, bool recovers) {
    Config config;
    config.recovers = recovers;
    config.job.worker_count = workers;
    config.job.server_count = servers;
    return config;
  }
  // Who leaves is answered when all servers know it.
  void all_know() {
    std::vector<std::uint32_t> ranks(workers_);
    std::iota(ranks.begin(), ranks.end(), 0U);
    const std::vector<std::byte> known = wire::encode(wire::Leave{true, Members(ranks)});
    for (std::uint32_t i = workers_; i < workers_ + servers_; ++i) {
      say(i, wire::Kind::kLeave, known);
    }
    turn("servers know who leaves");
  }
  PeerId peer(std::uint32_t member) const { return PeerId(member + 1); }

  void join(std::uint32_t member) {
    const bool is_worker = member < workers_;
    const std::uint32_t rank = is_worker ? member : member - workers_;
    wire::Join join;
    join.role = is_worker ? Role::kWorker : Role::kServer;
    join.wanted_rank = rank;
    join.worker_count = workers_;
    join.server_count = servers_;
    join.host =
        (is_worker ? "worker" : "server") + std::to_string(rank) + ".train.svc.cluster.local:4711";
    join.partition_bytes = 4096000;
    join.life = member + 1;
    join.machine = member + 1;
    for (std::uint32_t shard = 0; !is_worker && shard < shards_; ++shard) {
      join.endpoints.push_back(
          {"10.1." + std::to_string(rank / 250) + "." + std::to_string(rank % 250),
           static_cast<std::uint16_t>(9000 + shard)});
    }
    Hello hello;
    hello.role = join.role;
    hello.rank = rank;
    crowd_.up(peer(member), hello);
    wire::Header header;
    header.kind = wire::Kind::kJoin;
    crowd_.say(peer(member), header, wire::encode(join));
  }
  void say(std::uint32_t member, wire::Kind kind, std::vector<std::byte> payload = {}) {
    wire::Header header;
    header.kind = kind;
    header.epoch = scheduler_.epoch();
    header.worker = WorkerRank(member);
    crowd_.say(peer(member), header, std::move(payload));
  }

  // Turns until all that was said is handled.
  void turn(const char* what) {
    double longest_ms = 0;
    double all_ms = 0;
    int turns = 0;
    crowd_.sent_bytes = 0;
    do {
      now_ += kMillisecond;
      const double begin_ms = processor_ms();
      scheduler_.turn(now_);
      const double took_ms = processor_ms() - begin_ms;
      longest_ms = std::max(longest_ms, took_ms);
      all_ms += took_ms;
      ++turns;
    } while (!crowd_.quiet() || scheduler_.next_deadline() <= now_);
    longest_ms_ = std::max(longest_ms_, longest_ms);
    std::printf("%-42s %8.2f ms the longest turn, %9.1f ms in %5d turns, %7.1f MiB sent\n", what,
                longest_ms, all_ms, turns, static_cast<double>(crowd_.sent_bytes) / (1 << 20));
  }

  const std::uint32_t workers_;
  const std::uint32_t servers_;
  const std::uint32_t shards_;
  const bool recovers_;
  TimeNs now_ = kSecond;
  double longest_ms_ = 0;  // of all turns
  Crowd crowd_;
  FlightRecorder flight_;
  Scheduler scheduler_;
};

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  const auto number = [&](int place, const char* otherwise) {
    return static_cast<std::uint32_t>(std::atoi(argc > place ? argv[place] : otherwise));
  };
  const std::uint32_t workers = number(1, "1000");
  const std::uint32_t servers = number(2, "250");
  const std::uint32_t shards = number(3, "8");
  if (workers == 0 || servers == 0 || shards == 0) {
    std::fprintf(stderr, "usage: scheduler_bench [workers] [servers] [shards of each]\n");
    return 2;
  }
  for (const bool recovers : {false, true}) {
    byteps::Job(workers, servers, shards, recovers).run();
    std::printf("\n");
  }
  return 0;
}
