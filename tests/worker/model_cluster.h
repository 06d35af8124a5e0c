// A dull cluster around real Pipelines: shards that are maps and add 64-bit integers, connections that are queues. It
// checks the protocol's rules as it goes (EXPECT), and moves only when told to, one step at a time.
//
// A message's life: front()/pop() -> `sending` (payload still in the worker's memory) -> transmit(): bytes are read,
// the payload comes back -> `to_shard` -> deliver_to_shard(): summed, perhaps answered -> `to_worker` ->
// deliver_to_worker().
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "net/wire.h"
#include "tests/worker/delay_stage.h"
#include "tests/worker/played_device.h"
#include "worker/pipeline.h"

namespace byteps::model {

using Bytes = std::vector<std::byte>;

struct Message {
  wire::Header header;
  Bytes payload;
};

class Cluster {
 public:
  struct Settings {
    std::uint32_t workers = 2;
    std::uint32_t shards = 2;
    std::uint64_t partition_bytes = 256;
    std::uint64_t frame_bytes = 64;
    std::uint64_t credit_bytes = 2 << 20;
    std::uint64_t credit_frames_min = 4;
    bool priority_scheduling = true;
    std::uint32_t finishing_rounds_max = kRoundsPerGeneration;
    TimeNs delay_ns = 0;  // parts are kept for up to so long before they are pushed, and after
    std::uint64_t pool_bytes = 0;  // each worker has a device, with so much pinned memory
  };

  Cluster(const Settings& settings, std::uint64_t seed)
      : settings_(settings),
        placement_(settings.partition_bytes, settings.frame_bytes,
                   std::vector<std::uint32_t>(settings.shards, 1)),
        prng_(seed) {
    for (std::uint32_t rank = 0; rank < settings.workers; ++rank) {
      PipelineConfig config{.self = WorkerRank(rank), .epoch = Epoch(3), .placement = placement_};
      config.credit_bytes = settings.credit_bytes;
      config.credit_frames_min = settings.credit_frames_min;
      config.priority_scheduling = settings.priority_scheduling;
      config.finishing.rounds_max = settings.finishing_rounds_max;
      if (settings.delay_ns > 0) {
        for (auto* const rows : {&config.road_ends.before_push, &config.road_ends.after_pull}) {
          delays_.push_back(std::make_unique<DelayStage>(seed + delays_.size(), settings.delay_ns));
          rows->push_back({"delay", "its time", delays_.back().get()});
        }
      }
      if (settings.pool_bytes > 0) {
        devices_.push_back(std::make_unique<PlayedDevice>(settings.pool_bytes, seed + rank));
        devices_.back()->staging().begin(config.self, settings.priority_scheduling, nullptr);
        config.road_ends = devices_.back()->staging().road_ends();
      }
      workers_.push_back(std::make_unique<Pipeline>(config));
      results_.emplace_back();
    }
    links_.resize(settings.workers * settings.shards);
    shards_.resize(settings.shards);
  }

  Pipeline& worker(std::uint32_t rank) { return *workers_[rank]; }
  // Where workers have devices.
  PlayedDevice& device(std::uint32_t rank) { return *devices_[rank]; }
  // Handles that ended, per worker.
  const std::map<std::int64_t, Status>& results(std::uint32_t rank) const { return results_[rank]; }
  std::vector<std::string>& notices() { return notices_; }
  // Called for each ended handle, when its memory is the caller's again.
  std::function<void(std::uint32_t rank, HandleId handle, const Status& status)> on_complete;

  // Of a hundred answers so many are sent twice.
  int repeat_percent = 0;

  void up(std::uint32_t rank, std::uint32_t shard) {
    Link& link = link_of(rank, shard);
    ASSERT_FALSE(link.up);
    link.up = true;
    workers_[rank]->on_shard_up(ShardIndex(shard));
    apply(rank);
    for (const auto& [key, text] : shards_[shard].spoiled) send_mismatch(rank, shard, key, text);
  }
  void all_up() {
    for (std::uint32_t rank = 0; rank < settings_.workers; ++rank) {
      for (std::uint32_t shard = 0; shard < settings_.shards; ++shard) {
        if (!link_of(rank, shard).up) up(rank, shard);
      }
    }
  }

  // The connection ends: what is under way is lost, lent payloads come back.
  void down(std::uint32_t rank, std::uint32_t shard) {
    Link& link = link_of(rank, shard);
    ASSERT_TRUE(link.up);
    // Lent payloads are back before the end (T4), and that may finish an operation and begin the next.
    while (!link.sending.empty()) give_back(rank, link);
    apply(rank);
    link.up = false;
    link.to_shard.clear();
    link.to_worker.clear();
    link.declared.clear();
    workers_[rank]->on_shard_down(ShardIndex(shard));
    apply(rank);
  }

  // ---- single steps; false: there was nothing to do

  bool take_frame(std::uint32_t rank, std::uint32_t shard) {
    Outgoing message;
    if (!workers_[rank]->front(ShardIndex(shard), message)) return false;
    const Result<wire::Header> header = wire::decode_header(message.header);
    EXPECT_TRUE(header.is_ok());
    Link& link = link_of(rank, shard);
    EXPECT_TRUE(link.up) << "a message for a connection that is down";
    EXPECT_EQ(message.bulk, header.value().kind == wire::Kind::kPush);
    link.sending.push_back({header.value(), message.payload, message.token});
    workers_[rank]->pop();
    ++taken_frames;
    return true;
  }
  bool transmit(std::uint32_t rank, std::uint32_t shard) {
    Link& link = link_of(rank, shard);
    if (link.sending.empty()) return false;
    const Sending& first = link.sending.front();
    link.to_shard.push_back({first.header, Bytes(first.payload.begin(), first.payload.end())});
    give_back(rank, link);
    apply(rank);
    return true;
  }
  bool deliver_to_shard(std::uint32_t rank, std::uint32_t shard) {
    Link& link = link_of(rank, shard);
    if (link.to_shard.empty()) return false;
    const Message message = std::move(link.to_shard.front());
    link.to_shard.pop_front();
    step_shard(rank, shard, message);
    return true;
  }
  bool deliver_to_worker(std::uint32_t rank, std::uint32_t shard) {
    Link& link = link_of(rank, shard);
    if (link.to_worker.empty()) return false;
    const Message message = std::move(link.to_worker.front());
    link.to_worker.pop_front();
    Pipeline& pipeline = *workers_[rank];
    switch (message.header.kind) {
      case wire::Kind::kAnswer: {
        const Status fine = pipeline.on_answer(ShardIndex(shard), message.header, message.payload);
        EXPECT_TRUE(fine.is_ok()) << fine.text();
        break;
      }
      case wire::Kind::kWanted:
        pipeline.on_wanted(ShardIndex(shard), message.header);
        break;
      case wire::Kind::kMismatch:
        pipeline.on_mismatch(
            message.header.key,
            Status(Code::kMismatch, wire::decode_text(message.payload).value().text));
        break;
      default:
        ADD_FAILURE() << "a kind that shards do not send";
    }
    apply(rank);
    return true;
  }
  // Each incomplete frame asks who is missing. True if anybody was asked.
  bool want(std::uint32_t shard) {
    bool asked = false;
    for (auto& [place, frame] : shards_[shard].frames) {
      if (frame.contributed.empty()) continue;
      for (std::uint32_t rank = 0; rank < settings_.workers; ++rank) {
        Link& link = link_of(rank, shard);
        if (!link.up || frame.contributed.contains(rank)) continue;
        Message wanted{frame.header, {}};
        wanted.header.kind = wire::Kind::kWanted;
        wanted.header.round = frame.round;
        wanted.header.offset_bytes = frame.header.offset_bytes + 1;  // up to this frame
        wanted.header.worker = WorkerRank(rank);
        link.to_worker.push_back(wanted);
        asked = true;
      }
    }
    return asked;
  }

  // Time passes, where parts are kept for a while.
  bool pass_time(TimeNs by_ns) {
    if (delays_.empty()) return false;
    now_ += by_ns;
    for (std::uint32_t rank = 0; rank < settings_.workers; ++rank) {
      workers_[rank]->begin_turn(now_);
      workers_[rank]->tick();
      apply(rank);
    }
    return true;
  }
  // To the time at which the next part goes on. False: none is kept.
  bool pass_delay() {
    TimeNs next = kNever;
    for (const auto& delay : delays_) next = std::min(next, delay->next_deadline());
    return next != kNever && pass_time(std::max<TimeNs>(0, next - now_));
  }
  std::size_t delayed_parts() const {
    std::size_t count = 0;
    for (const auto& delay : delays_) count += delay->passed();
    return count;
  }

  // Something happens on this worker's device. False: nothing is under way there, or it has none.
  bool step_device(std::uint32_t rank) {
    if (devices_.empty() || !devices_[rank]->step()) return false;
    workers_[rank]->begin_turn(now_);
    do {
      workers_[rank]->tick();
      apply(rank);
    } while (workers_[rank]->next_deadline() <= now_);
    return true;
  }

  // Everything that can move without Wanted, until nothing does. True if anything did.
  bool run_until_quiet() {
    bool any = false;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::uint32_t rank = 0; rank < settings_.workers; ++rank) {
        for (std::uint32_t shard = 0; shard < settings_.shards; ++shard) {
          while (take_frame(rank, shard)) moved = true;
          while (transmit(rank, shard)) moved = true;
          while (deliver_to_shard(rank, shard)) moved = true;
          while (deliver_to_worker(rank, shard)) moved = true;
        }
        settle(rank);
        while (step_device(rank)) moved = true;
      }
      moved = moved || pass_delay();
      any = any || moved;
    }
    return any;
  }
  // The same with Wanted, and with time for ways that stall, whenever nothing else moves: what a real cluster reaches
  // in the end. Ends too when asking does not bring new frames any more (a deadlock, which the caller sees in what is
  // pending).
  void run_to_the_end() {
    for (int idle = 0; idle < 3; ++idle) {
      const std::uint64_t taken_before = taken_frames;
      run_until_quiet();
      for (std::uint32_t shard = 0; shard < settings_.shards; ++shard) {
        if (want(shard)) ++wanted_rounds;
      }
      now_ += 300 * kMillisecond;
      for (std::uint32_t rank = 0; rank < settings_.workers; ++rank) {
        workers_[rank]->begin_turn(now_);
        workers_[rank]->tick();
        apply(rank);
      }
      if (taken_frames != taken_before) idle = -1;
    }
  }
  // One random step; submissions and connections are the caller's.
  bool random_step() {
    const auto rank = static_cast<std::uint32_t>(prng_.below(settings_.workers));
    const auto shard = static_cast<std::uint32_t>(prng_.below(settings_.shards));
    if (!devices_.empty() && prng_.below(4) == 0) {
      settle(rank);
      return step_device(rank);
    }
    switch (prng_.below(5)) {
      case 0:
        return take_frame(rank, shard);
      case 1:
        return transmit(rank, shard);
      case 2:
        return deliver_to_shard(rank, shard);
      case 3:
        return deliver_to_worker(rank, shard);
      default:
        return pass_time(settings_.delay_ns / 20) || (prng_.below(20) == 0 && want(shard));
    }
  }

  // The worker's turn ends: what stages have to say is heard.
  void settle(std::uint32_t rank) {
    if (devices_.empty()) return;
    workers_[rank]->begin_turn(now_);
    workers_[rank]->tick();
    apply(rank);
  }

  void apply(std::uint32_t rank) {
    Pipeline& pipeline = *workers_[rank];
    const Overloads does{
        [&](const PipelineOutput::Complete& end) {
          EXPECT_TRUE(results_[rank].emplace(end.handle.value, end.status).second)
              << end.handle << " ended twice";
          if (!devices_.empty()) devices_[rank]->staging().on_ended(end.handle);
          if (on_complete) on_complete(rank, end.handle, end.status);
        },
        [&](const PipelineOutput::Notice& notice) { notices_.push_back(notice.text); },
        [&](const PipelineOutput::Tuned& tuned) { notices_.push_back(tuned.text); }};
    for (const auto& output : pipeline.outputs()) std::visit(does, output);
    pipeline.clear_outputs();
  }

  bool is_up(std::uint32_t rank, std::uint32_t shard) { return link_of(rank, shard).up; }
  std::size_t lent_count() const {
    std::size_t count = 0;
    for (const Link& link : links_) count += link.sending.size();
    return count;
  }
  // Keys that a shard knows.
  std::size_t declared_count(std::uint32_t shard) const { return shards_[shard].declared.size(); }
  const std::deque<Message>& to_shard(std::uint32_t rank, std::uint32_t shard) {
    return link_of(rank, shard).to_shard;
  }
  std::uint64_t taken_frames = 0;
  std::uint64_t wanted_rounds = 0;

 private:
  struct Sending {
    wire::Header header;
    std::span<const std::byte> payload;
    SendToken token = 0;
  };
  struct Link {
    bool up = false;
    std::deque<Sending> sending;
    std::deque<Message> to_shard;
    std::deque<Message> to_worker;
    std::set<Key> declared;
  };
  struct Frame {
    wire::Header header;  // key, part, offset
    Round round;
    std::set<std::uint32_t> contributed;
    std::map<std::uint32_t, std::uint32_t> tags;
    Bytes sum;
    Bytes last;
  };
  struct Shard {
    std::map<std::tuple<Key, PartIndex, std::uint64_t>, Frame> frames;
    std::map<Key, std::pair<wire::Declare, std::uint32_t>> declared;
    std::map<Key, std::string> spoiled;
    std::map<Key, std::set<std::uint32_t>> forgotten;
  };

  Link& link_of(std::uint32_t rank, std::uint32_t shard) {
    return links_[rank * settings_.shards + shard];
  }
  bool hits(int percent) { return static_cast<int>(prng_.below(100)) < percent; }

  void give_back(std::uint32_t rank, Link& link) {
    const SendToken token = link.sending.front().token;
    link.sending.pop_front();
    workers_[rank]->on_sent(token);
  }

  void send_mismatch(std::uint32_t rank, std::uint32_t shard, Key key, const std::string& text) {
    Message message;
    message.header.kind = wire::Kind::kMismatch;
    message.header.key = key;
    message.payload =
        wire::encode(wire::Text{.text = text, .code = static_cast<std::uint32_t>(Code::kMismatch)});
    link_of(rank, shard).to_worker.push_back(message);
  }

  void step_shard(std::uint32_t rank, std::uint32_t index, const Message& message) {
    Shard& shard = shards_[index];
    const wire::Header& header = message.header;
    EXPECT_EQ(header.worker, WorkerRank(rank));
    EXPECT_EQ(header.epoch, Epoch(3));
    if (header.kind == wire::Kind::kForget) {
      if (!shard.declared.contains(header.key)) return;
      shard.forgotten[header.key].insert(rank);
      const Members& members = shard.declared.at(header.key).first.members;
      if (shard.forgotten[header.key].size() < members.count(settings_.workers)) return;
      shard.forgotten.erase(header.key);
      shard.declared.erase(header.key);
      std::erase_if(shard.frames,
                    [&](const auto& each) { return std::get<0>(each.first) == header.key; });
      return;
    }
    if (header.kind == wire::Kind::kDeclare) return declare(rank, index, message);
    ASSERT_EQ(header.kind, wire::Kind::kPush);
    ASSERT_TRUE(link_of(rank, index).declared.contains(header.key)) << "pushed before declared";
    if (shard.spoiled.contains(header.key)) return;
    push(rank, index, message);
  }

  void declare(std::uint32_t rank, std::uint32_t index, const Message& message) {
    Shard& shard = shards_[index];
    const Key key = message.header.key;
    EXPECT_TRUE(link_of(rank, index).declared.insert(key).second)
        << "declared twice on a connection";
    const wire::Declare declared = wire::decode_declare(message.payload).value();
    EXPECT_EQ(key_of(declared.name), key);
    if (shard.spoiled.contains(key)) return send_mismatch(rank, index, key, shard.spoiled[key]);
    const auto [known, is_new] = shard.declared.emplace(key, std::pair(declared, rank));
    if (is_new || known->second.first == declared) return;
    shard.spoiled[key] = "tensor '" + declared.name + "' differs between ranks " +
                         std::to_string(known->second.second) + " and " + std::to_string(rank);
    for (std::uint32_t each = 0; each < settings_.workers; ++each) {
      if (link_of(each, index).up) send_mismatch(each, index, key, shard.spoiled[key]);
    }
  }

  void push(std::uint32_t rank, std::uint32_t index, const Message& message) {
    Shard& shard = shards_[index];
    const wire::Header& header = message.header;
    const wire::Declare& declared = shard.declared.at(header.key).first;
    const Placement::Part part =
        placement_.part(header.key, declared.total_bytes, header.part.value);
    EXPECT_EQ(part.shard, ShardIndex(index));
    const std::uint64_t bytes = std::min(settings_.frame_bytes, part.bytes - header.offset_bytes);
    EXPECT_TRUE(declared.members.has(WorkerRank(rank)));
    const bool empty_handed = !declared.gives(WorkerRank(rank));
    EXPECT_EQ(header.flags, empty_handed ? wire::kNoPayload : 0);
    ASSERT_EQ(message.payload.size(), empty_handed ? 0 : bytes);

    Frame& frame = shard.frames[{header.key, header.part, header.offset_bytes}];
    frame.header = header;
    if (header.round.value + 1 == frame.round.value) {  // the answer was lost
      return answer(rank, index, frame, header.round, header.tag, declared);
    }
    if (header.round < frame.round) return;
    ASSERT_EQ(header.round, frame.round) << "a push of a round too far ahead";
    frame.tags[rank] = header.tag;
    if (!frame.contributed.insert(rank).second) return;
    frame.sum.resize(bytes);
    add(frame.sum, message.payload);
    if (frame.contributed.size() < declared.members.count(settings_.workers)) return;
    frame.last = std::exchange(frame.sum, {});
    const std::set<std::uint32_t> all = std::exchange(frame.contributed, {});
    ++frame.round.value;
    for (const std::uint32_t each : all) {
      const int times = hits(repeat_percent) ? 2 : 1;
      for (int i = 0; i < times; ++i) {
        answer(each, index, frame, header.round, frame.tags[each], declared);
      }
    }
  }

  static void add(Bytes& sum, const Bytes& contribution) {
    for (std::size_t i = 0; i + 8 <= contribution.size(); i += 8) {
      std::uint64_t a = 0;
      std::uint64_t b = 0;
      std::memcpy(&a, &sum[i], 8);
      std::memcpy(&b, &contribution[i], 8);
      a += b;
      std::memcpy(&sum[i], &a, 8);
    }
  }

  void answer(std::uint32_t rank, std::uint32_t index, const Frame& frame, Round round,
              std::uint32_t tag, const wire::Declare& declared) {
    Link& link = link_of(rank, index);
    if (!link.up) return;
    Message message{frame.header, frame.last};
    message.header.kind = wire::Kind::kAnswer;
    message.header.flags = 0;
    message.header.round = round;
    message.header.worker = WorkerRank(rank);
    message.header.tag = tag;
    const bool is_root = declared.root == WorkerRank(rank);
    if (declared.root_only ? !is_root : is_root && declared.operation == Operation::kBroadcast) {
      message.header.flags = wire::kNoPayload;
      message.payload.clear();
    }
    link.to_worker.push_back(message);
  }

  const Settings settings_;
  const Placement placement_;
  std::vector<std::unique_ptr<DelayStage>> delays_;  // two of each worker, which they outlive
  std::vector<std::unique_ptr<PlayedDevice>> devices_;
  TimeNs now_ = 0;
  Prng prng_;
  std::vector<std::unique_ptr<Pipeline>> workers_;
  std::vector<std::map<std::int64_t, Status>> results_;
  std::vector<Link> links_;
  std::vector<Shard> shards_;
  std::vector<std::string> notices_;
};

}  // namespace byteps::model
