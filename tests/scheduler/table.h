// Table: a RosterKeeper with plain messages, for tests. Time stands still unless pass() moves it.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/roster.h"
#include "tests/base/only.h"
#include "tests/member/joins.h"

namespace byteps {

class Table {
 public:
  using Out = std::vector<KeeperOutput::Send>;

  explicit Table(const Config& config = small_job(), bool has_ticked = true) : keeper_(config) {
    if (has_ticked) tick();
  }

  PeerId up(Role role, std::uint32_t rank = kNoRank, const Incarnation& incarnation = {}) {
    const PeerId peer(next_peer_++);
    Hello hello;
    hello.role = role;
    hello.rank = rank;
    hello.incarnation = incarnation;
    keeper_.on_up(peer, hello, now_, out_);
    return peer;
  }
  PeerId join(const wire::Join& join, Epoch epoch = Epoch(0), const Incarnation& incarnation = {}) {
    const PeerId peer = up(join.role, join.wanted_rank, incarnation);
    say(peer, wire::Kind::kJoin, wire::encode(join), epoch);
    return peer;
  }
  void say(PeerId peer, wire::Kind kind, const std::vector<std::byte>& payload = {},
           Epoch epoch = Epoch(0), WorkerRank worker = WorkerRank(0)) {
    wire::Header header;
    header.kind = kind;
    header.epoch = epoch;
    header.worker = worker;
    keeper_.step(peer, header, payload, now_, out_);
  }
  void heartbeat(PeerId peer, std::uint32_t epoch) {
    say(peer, wire::Kind::kHeartbeat, {}, Epoch(epoch));
  }
  void barrier(PeerId peer, std::uint64_t number, std::uint32_t epoch = 1) {
    say(peer, wire::Kind::kBarrier, wire::encode(wire::Barrier{number}), Epoch(epoch));
  }
  void leave(PeerId peer, std::uint32_t rank, bool final, std::uint32_t epoch = 1) {
    say(peer, wire::Kind::kLeave, wire::encode(wire::Leave{final}), Epoch(epoch), WorkerRank(rank));
    tick();  // others are told at the end of a turn
  }
  void down(PeerId peer, const char* why = "connection reset by peer") {
    const bool is_timeout = std::string_view(why) == "connection timed out";
    keeper_.on_down(peer, {is_timeout ? Code::kTimeout : Code::kDisconnected, why}, now_, out_);
  }
  void worker_ended(std::uint32_t rank, const std::string& how) {
    keeper_.on_worker_ended(WorkerRank(rank), how, now_);
    tick();  // at the end of a turn
  }
  void hear_end(PeerId peer) {  // what a Member does with the last word
    leave(peer, 0, true);
    down(peer, "left");
  }
  void tick() { keeper_.tick(now_, out_); }
  // Moves time in steps of the keeper's own deadlines, while `alive` members send heartbeats.
  void pass(TimeNs duration, const std::vector<PeerId>& alive = {}, std::uint32_t epoch = 0) {
    const TimeNs until = now_ + duration;
    while (now_ < until) {
      now_ = std::min(until, now_ + 100 * kMillisecond);
      for (const PeerId peer : alive) heartbeat(peer, epoch);
      tick();
    }
  }

  // Time passes, and the keeper's process does nothing.
  void stand_still(TimeNs duration) { now_ += duration; }

  RosterKeeper& keeper() { return keeper_; }
  TimeNs now() const { return now_; }

  // What was sent to a peer since the last forget(), as far as it is of this kind.
  Out sent(PeerId peer, wire::Kind kind) const {
    Out found;
    for (KeeperOutput::Send& message : only<KeeperOutput::Send>(out_)) {
      if (message.peer == peer && message.header.kind == kind) found.push_back(std::move(message));
    }
    return found;
  }
  std::string text_to(PeerId peer, wire::Kind kind) const {  // of the last one
    const Out found = sent(peer, kind);
    if (found.empty()) return "";
    return wire::decode_text(found.back().payload).value().text;
  }
  Cause cause_to(PeerId peer) const {
    const Out found = sent(peer, wire::Kind::kFail);
    if (found.empty()) return {};
    return wire::decode_text(found.back().payload).value().cause;
  }
  Code code_to(PeerId peer) const {
    const Out found = sent(peer, wire::Kind::kFail);
    if (found.empty()) return Code::kOk;
    return static_cast<Code>(wire::decode_text(found.back().payload).value().code);
  }
  wire::Roster roster_to(PeerId peer) const {
    const Out found = sent(peer, wire::Kind::kRoster);
    if (found.empty()) return {};
    wire::Roster roster = wire::decode_roster(found.back().payload).value();
    roster.your_rank = found.back().header.worker.value;
    return roster;
  }
  bool closed(PeerId peer) const {
    const std::vector<KeeperOutput::Close> endings = only<KeeperOutput::Close>(out_);
    return std::any_of(endings.begin(), endings.end(),
                       [&](const KeeperOutput::Close& ending) { return ending.peer == peer; });
  }
  std::vector<std::string> notices(LogLevel level) const {
    std::vector<std::string> texts;
    for (const KeeperOutput::Notice& notice : only<KeeperOutput::Notice>(out_)) {
      if (notice.level == level) texts.push_back(notice.text);
    }
    return texts;
  }
  // What became of members, for the flight recorder: "lost worker 1 beta:11: why".
  std::vector<std::string> news() const {
    std::vector<std::string> texts;
    for (const KeeperOutput::News& news : only<KeeperOutput::News>(out_)) {
      texts.push_back(std::string(news.kind) + " " + name(*news.who.role) + " " +
                      std::to_string(news.who.rank) + " " + news.who.host +
                      (news.why.is_ok() ? "" : ": " + news.why.message()));
    }
    return texts;
  }
  void forget() { out_.clear(); }

 private:
  RosterKeeper keeper_;
  TimeNs now_ = 1000 * kSecond;
  std::uint32_t next_peer_ = 1;
  KeeperOutputs out_;
};

// A job of two workers and one server that runs in epoch 1.
struct RunningJob {
  explicit RunningJob(const Config& config = small_job()) : table(config) {
    worker0 = table.join(worker_join(0, "alpha:10"));
    worker1 = table.join(worker_join(1, "beta:11"));
    server = table.join(server_join("gamma:12", 4000));
    table.heartbeat(server, 1);
    table.heartbeat(worker0, 1);
    table.heartbeat(worker1, 1);
  }
  std::vector<PeerId> all() const { return {worker0, worker1, server}; }
  Table table;
  PeerId worker0, worker1, server;
};

}  // namespace byteps
