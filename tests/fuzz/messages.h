// Control messages as a script wishes them: mostly ones that a member of a small job could send, so that what
// lies behind the first checks is reached; sometimes with bytes changed, sometimes any bytes at all.
#pragma once

#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "net/wire.h"
#include "tests/fuzz/script.h"

namespace byteps::fuzz {

struct Message {
  std::vector<std::byte> header;
  std::vector<std::byte> payload;
};

inline Endpoint endpoint_of(std::uint32_t number) {
  return {"10.0.0." + std::to_string(number / 4 + 1),
          static_cast<std::uint16_t>(4000 + number % 4)};
}

inline std::string text_of(Script& script) {
  const std::vector<std::byte> raw = script.bytes(64);
  return {reinterpret_cast<const char*>(raw.data()), raw.size()};
}

inline Codec codec_of(Script& script) {
  Codec codec;
  codec.k = script.flag() ? script.below(5) : std::bit_cast<double>(script.number());
  if (script.flag()) codec.seed = script.number();
  codec.scaling = script.below(4) == 0;
  codec.natural = script.below(4) == 0;
  codec.l2 = script.below(4) == 0;
  codec.error_feedback = script.flag();
  if (script.below(4) == 0) codec.momentum = 0.5;
  return codec;
}

// Of a device of this number; made of what a message has anyway, so that it takes nothing more from the script.
inline topology::Place place_of(std::uint64_t number) {
  topology::Place place;
  const auto bus = static_cast<std::uint8_t>(number % 7);
  place.device = {{{.domain = 0, .bus = bus, .slot = 0}, 126'030},
                  {{.domain = 0, .bus = bus, .slot = 8}, 126'030}};
  if (number % 3 == 1) place.peers = {{{.domain = 1, .bus = bus, .slot = 0}, 2}};
  return place;
}

inline wire::Join join_of(Script& script) {
  wire::Join join;
  const std::uint32_t who = script.below(12);
  join.role = who < 6 ? Role::kWorker : Role::kServer;
  join.host = (who < 6 ? "w" : "s") + std::to_string(who % 4) + ":1";
  join.wanted_rank = who < 6 ? who % 3 : kNoRank;
  join.worker_count = 2;
  join.server_count = 1;
  join.partition_bytes = 4096;
  join.frame_bytes = 1024;
  join.life = 1;
  if (join.role == Role::kServer) join.endpoints = {endpoint_of(who % 4)};
  for (std::uint32_t change = script.below(3); change > 0; --change) {
    switch (script.below(10)) {
      case 9:  // it was in a job
        join.heard.term = script.below(4);
        join.heard.epoch = Epoch(script.below(4));
        join.heard.revision = script.below(4);
        join.heard.barriers = script.below(4);
        if (script.flag()) join.heard.left_for_good = {script.below(3)};
        if (script.flag()) join.heard.left_for_a_while = {script.below(3)};
        break;
      case 0:
        join.wanted_rank = script.number32();
        break;
      case 1:
        join.worker_count = script.number32();
        break;
      case 2:
        join.server_count = script.number32();
        break;
      case 3:
        join.host = text_of(script);
        break;
      case 4:
        join.endpoints.push_back(endpoint_of(script.byte()));
        break;
      case 5:
        join.partition_bytes = script.number();
        break;
      case 6:
        join.frame_bytes = script.number();
        break;
      case 7:
        join.life = script.number();
        join.place = place_of(join.life);
        break;
      case 8:
        join.role = static_cast<Role>(script.below(3));
        break;
    }
  }
  return join;
}

// A job of `worker_count` workers and `server_count` servers of one shard each.
inline wire::Roster roster_of(std::uint32_t worker_count, std::uint32_t server_count,
                              std::uint32_t your_rank, Epoch epoch) {
  wire::Roster roster;
  roster.epoch = epoch;
  roster.your_rank = your_rank;
  roster.partition_bytes = 256;
  roster.frame_bytes = 64;
  for (std::uint32_t rank = 0; rank < worker_count; ++rank) {
    roster.members.push_back({Role::kWorker, rank, "w" + std::to_string(rank), {}});
  }
  for (std::uint32_t rank = 0; rank < server_count; ++rank) {
    roster.members.push_back(
        {Role::kServer, rank, "s" + std::to_string(rank), {endpoint_of(rank)}});
    roster.slots.push_back({.server = rank, .shard = 0, .weight = 256});
  }
  return roster;
}

inline wire::Roster strange_roster_of(Script& script) {
  wire::Roster roster =
      roster_of(script.below(4), script.below(4), script.below(3), Epoch(script.number32()));
  for (std::uint32_t change = script.below(3); change > 0; --change) {
    switch (script.below(8)) {
      case 6:
        roster.recovers = true;
        break;
      case 7:
        roster.revision = script.number32();
        roster.places = {place_of(roster.revision)};
        if (!roster.members.empty()) roster.members[0].place = roster.revision % 3;
        break;
      case 0:
        roster.partition_bytes = script.number();
        break;
      case 1:
        roster.frame_bytes = script.number();
        break;
      case 2:
        roster.your_rank = script.number32();
        break;
      case 3:
        for (auto& member : roster.members) member.endpoints.push_back(endpoint_of(script.byte()));
        break;
      case 4:
        if (!roster.members.empty()) roster.members[0].rank = script.number32();
        break;
      case 5:
        roster.slots.push_back({script.below(4), script.below(2), script.number32()});
        break;
    }
  }
  return roster;
}

inline wire::Stalled stalled_of(Script& script) {
  wire::Stalled stalled;
  for (std::uint32_t count = script.below(4); count > 0; --count) {
    const std::string name = "t" + std::to_string(script.below(4));
    const std::uint64_t round = script.below(3);
    if (script.flag()) {
      stalled.awaited.push_back({script.below(4) == 0 ? "" : name, key_of(name), round});
    } else {
      stalled.not_begun.push_back({key_of(name), round});
    }
  }
  return stalled;
}

inline Members members_of(Script& script) {
  std::vector<std::uint32_t> ranks = {script.below(3)};
  while (script.flag() && ranks.back() < 60'000) {
    ranks.push_back(ranks.back() + 1 + script.below(script.flag() ? 3 : 5'000));
  }
  return Members(ranks);
}

// Made of what else a text has, so that it takes nothing more from the script: kept inputs stay what they are.
inline Cause cause_of(const std::string& text, std::uint32_t code) {
  const std::uint64_t kinds = static_cast<std::uint64_t>(kCauseKindLast) + 1;
  Cause cause;
  cause.kind = *cause_kind_of(code % kinds);
  if (code % 3 != 0) {
    const auto role = static_cast<Role>(code % 3);
    cause.who = {.role = role, .rank = code % 5, .host = text.substr(0, 200)};
  }
  if (code % 7 == 1) cause.told_by = {.role = Role::kWorker, .rank = code, .host = text};
  cause.for_ns = static_cast<TimeNs>(code) * kMillisecond;
  cause.detail = text;
  if (code % 2 == 1) cause.missing_workers = {code % kWorkersMax};
  return cause;
}

inline std::vector<std::byte> payload_of(Script& script, wire::Kind kind) {
  switch (kind) {
    case wire::Kind::kJoin:
      return wire::encode(join_of(script));
    case wire::Kind::kRoster:
      return wire::encode(strange_roster_of(script));
    case wire::Kind::kLeave:
      return wire::encode(wire::Leave{script.flag()});
    case wire::Kind::kBarrier:
    case wire::Kind::kBarrierDone:
      return wire::encode(wire::Barrier{script.number()});
    case wire::Kind::kAdopt:
      return wire::encode(wire::Adopt{script.below(4), script.below(4)});
    case wire::Kind::kFail:
    case wire::Kind::kWaiting:
    case wire::Kind::kMismatch: {
      const std::string text = text_of(script);
      const std::uint32_t code = script.number32();
      return wire::encode(wire::Text{text, code, cause_of(text, code)});
    }
    case wire::Kind::kMissing:
      return wire::encode(wire::Missing{members_of(script)});
    case wire::Kind::kStalled:
      return wire::encode(stalled_of(script));
    case wire::Kind::kDeclare: {
      wire::Declare declare;
      declare.name = "t" + std::to_string(script.below(4));
      declare.dtype = static_cast<DType>(script.below(kDTypeCount));
      declare.operation = static_cast<Operation>(script.below(kOperationCount));
      declare.total_bytes = script.number();
      declare.root = WorkerRank(script.number32());
      declare.scale = std::bit_cast<double>(script.number());
      declare.root_only = script.flag();
      if (script.flag()) declare.members = members_of(script);
      if (script.below(4) == 0) {
        declare.format = static_cast<Format>(script.below(kFormatCount));
        declare.codec = codec_of(script);
      }
      return wire::encode(declare);
    }
    default:
      return {};
  }
}

// What someone may say to or as the scheduler.
inline Message control_of(Script& script) {
  static constexpr wire::Kind kKinds[] = {
      wire::Kind::kJoin,    wire::Kind::kRoster,      wire::Kind::kHeartbeat, wire::Kind::kLeave,
      wire::Kind::kBarrier, wire::Kind::kBarrierDone, wire::Kind::kFail,      wire::Kind::kWaiting,
      wire::Kind::kStalled, wire::Kind::kRecall};
  wire::Header header;
  header.kind = kKinds[script.below(10)];
  header.epoch = Epoch(script.number32());
  header.round = Round(script.below(3));
  header.worker = WorkerRank(script.number32());
  header.flags = script.below(8) == 0 ? script.byte() : std::uint8_t{0};
  // Instead of what else would be said, so that it takes nothing more from the script.
  if (header.flags % 8 == 5) header.kind = wire::Kind::kAdopt;
  Message message;
  message.payload = payload_of(script, header.kind);
  const wire::HeaderBytes bytes = wire::encode(header);
  message.header.assign(bytes.begin(), bytes.end());
  return message;
}

inline void spoil(Script& script, Message& message) {
  switch (script.below(4)) {
    case 0:
      script.mutate(message.header);
      break;
    case 1:
      script.mutate(message.payload);
      break;
    case 2:
      message.payload = script.bytes();
      break;
    case 3:
      message.header = script.bytes();
      message.payload = script.bytes();
      break;
  }
}

}  // namespace byteps::fuzz
