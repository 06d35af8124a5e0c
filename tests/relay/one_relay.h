// One relay of two workers of a machine, 0 and 1; it is worker 0's. The test plays them and the servers. Another worker
// is on a machine of its own, unless all are here and no server is used.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "relay/relay.h"
#include "tests/server/shelf_world.h"

namespace byteps {

inline constexpr std::uint64_t kPartitionBytes = 256;
inline constexpr std::uint64_t kFrameBytes = 64;

struct One {
  struct Settings {
    std::uint32_t shards = 1;
    bool is_alone = false;
    bool keeps_sums = false;
    bool continues = false;  // the job does, without a worker that is lost
    bool stands_in = false;  // for worker 0's, which is lost; worker 1 says first what it has
  };

  One() : One(Settings{}) {}
  explicit One(const Settings& one) : settings(one) {
    x.name = name_led_by(0);
    RelayConfig config{
        .shelf = {},
        .uplink = {.self = WorkerRank(0),
                   .epoch = Epoch(7),
                   .placement = Placement(kPartitionBytes, kFrameBytes,
                                          std::vector<std::uint32_t>(settings.shards, 1))},
        .is_alone = settings.is_alone,
        .recovers = settings.continues,
        .takes_over = settings.stands_in,
        .lost = settings.stands_in ? std::vector{WorkerRank(0)} : std::vector<WorkerRank>()};
    std::vector<std::uint64_t> machines = {1, 1};
    if (!settings.is_alone) machines.push_back(2);
    config.uplink.credit_bytes = 1 << 20;  // enough
    config.uplink.keeps_sums = settings.keeps_sums || settings.continues;
    config.uplink.duties = {.waits_for_crew = settings.continues, .stands_in = settings.stands_in};
    config.uplink.groups = std::make_shared<const Groups>(machines);
    relay = std::make_unique<Relay>(config, pool);
    if (!settings.stands_in) relay->connect(WorkerRank(0));
    relay->connect(WorkerRank(1));
    if (settings.is_alone) return;
    for (std::uint32_t shard = 0; shard < settings.shards; ++shard) {
      relay->uplink().on_shard_up(ShardIndex(shard));
    }
  }
  // Whose first part is led by this worker.
  std::string name_led_by(std::uint32_t worker) const {
    std::string name = "x";
    while (leader_of({WorkerRank(0), WorkerRank(1)}, key_of(name), 0, settings.shards) !=
           WorkerRank(worker)) {
      name += "x";
    }
    return name;
  }
  Key key() const { return key_of(x.name); }
  wire::Header about(std::uint32_t worker, wire::Kind kind) const {
    wire::Header header;
    header.kind = kind;
    header.epoch = Epoch(7);
    header.key = key();
    header.worker = WorkerRank(worker);
    return header;
  }

  // ---- the workers of the machine
  void declare(std::uint32_t worker) {
    relay->step(WorkerRank(worker), about(worker, wire::Kind::kDeclare), wire::encode(x), now);
  }
  void push(std::uint32_t worker, std::uint32_t round = 0, std::uint32_t part = 0,
            std::uint64_t offset_bytes = 0) {
    wire::Header header = about(worker, wire::Kind::kPush);
    header.round = byteps::Round(round);
    header.part = PartIndex(part);
    header.offset_bytes = offset_bytes;
    header.tag = 1;
    relay->step(WorkerRank(worker), header, filled(64, 0), now);
  }
  void both(std::uint32_t round = 0, std::uint32_t part = 0) {
    push(0, round, part);
    push(1, round, part);
  }
  // All frames of the first part, from both; and the servers answer.
  void sum_first_part(std::uint32_t round = 0) {
    for (std::uint64_t offset = 0; offset < std::min(kPartitionBytes, x.total_bytes);
         offset += kFrameBytes) {
      for (const std::uint32_t worker : {0U, 1U}) push(worker, round, 0, offset);
    }
    for (const wire::Header& sent : send()) {
      if (sent.kind == wire::Kind::kPush) answer(sent);
    }
    give_back();
  }
  void forget(std::uint32_t worker) {
    relay->step(WorkerRank(worker), about(worker, wire::Kind::kForget), {}, now);
  }
  void inputs(std::uint32_t worker, std::uint32_t generation, bool no_more,
              std::uint64_t rounds = 0) {
    wire::Header header = about(worker, wire::Kind::kInputs);
    header.key = Key();
    header.round = byteps::Round(generation);
    header.flags = no_more ? wire::kNoMore : 0;
    header.offset_bytes = rounds;
    relay->step(WorkerRank(worker), header, {}, now);
  }
  Told told() {
    Told told;
    told.add(std::move(relay->down()));
    relay->down().clear();
    return told;
  }

  // ---- the servers
  // All that may go to this one goes; payloads stay lent.
  std::vector<wire::Header> send(std::uint32_t shard = 0) {
    std::vector<wire::Header> sent;
    Outgoing message;
    payloads.clear();
    relay->tick(now);
    while (relay->uplink().front(ShardIndex(shard), message)) {
      sent.push_back(wire::decode_header(message.header).value());
      payloads.push_back(bytes_of(message.payload));
      if (message.token != 0) tokens.push_back(message.token);
      relay->uplink().pop();
      message = {};
    }
    return sent;
  }
  std::vector<wire::Kind> kinds_sent(std::uint32_t shard = 0) {
    std::vector<wire::Kind> kinds;
    for (const wire::Header& header : send(shard)) kinds.push_back(header.kind);
    return kinds;
  }
  void give_back() {
    for (const SendToken token : std::exchange(tokens, {})) relay->on_sent(token);
  }
  void reconnect(std::uint32_t shard = 0) {
    give_back();
    relay->uplink().on_shard_down(ShardIndex(shard));
    relay->uplink().on_shard_up(ShardIndex(shard));
  }
  void replace(std::uint32_t shard = 0) {
    give_back();
    relay->uplink().on_shard_down(ShardIndex(shard));
    relay->uplink().on_shard_up(ShardIndex(shard), true);
  }
  void answer(const wire::Header& push) {
    wire::Header header = push;
    header.kind = wire::Kind::kAnswer;
    ASSERT_TRUE(relay->on_answer(ShardIndex(0), header, filled(64, 0)).is_ok());
  }
  void inputs_done(std::uint32_t generation, std::uint32_t shard = 0, std::uint32_t last = 2) {
    wire::Header header = about(last, wire::Kind::kInputsDone);
    header.key = Key();
    header.round = byteps::Round(generation);
    relay->on_inputs_done(ShardIndex(shard), header);
  }

  const Settings settings;
  wire::Declare x = declaration("x", DType::kFloat32, 64);
  BufferPool pool;
  std::unique_ptr<Relay> relay;
  std::vector<SendToken> tokens;
  std::vector<Bytes> payloads;  // of what send() has sent last
  TimeNs now = 0;
};

}  // namespace byteps
