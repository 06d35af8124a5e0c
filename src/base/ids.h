// The names of things on the wire, each a type of its own so that two of them cannot be swapped.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <ostream>
#include <string_view>

namespace byteps {

// A number that knows what it counts. Tag is a struct with a `static constexpr const char* kName`.
template <typename Tag, typename Number>
struct Id {
  using number_type = Number;
  Number value{};

  constexpr Id() = default;
  constexpr explicit Id(Number number) : value(number) {}
  constexpr auto operator<=>(const Id&) const = default;
  friend std::ostream& operator<<(std::ostream& out, Id id) {
    return out << Tag::kName << ' ' << id.value;
  }
};

struct KeyTag {
  static constexpr const char* kName = "key";
};
struct PartTag {
  static constexpr const char* kName = "part";
};
struct RoundTag {
  static constexpr const char* kName = "round";
};
struct EpochTag {
  static constexpr const char* kName = "epoch";
};
struct WorkerTag {
  static constexpr const char* kName = "worker";
};
struct ServerTag {
  static constexpr const char* kName = "server";
};
struct ShardTag {
  static constexpr const char* kName = "shard";
};
struct PeerTag {
  static constexpr const char* kName = "peer";
};

using Key = Id<KeyTag, std::uint64_t>;         // a tensor: hash of its name, equal on all workers
using PartIndex = Id<PartTag, std::uint32_t>;  // which part of the tensor
using Round = Id<RoundTag, std::uint32_t>;     // how often this tensor has been pushed before
using Epoch = Id<EpochTag, std::uint32_t>;     // grows by one with each change of membership
using WorkerRank = Id<WorkerTag, std::uint32_t>;
using ServerRank = Id<ServerTag, std::uint32_t>;
using ShardIndex = Id<ShardTag, std::uint32_t>;  // over all shards of all servers, in roster order
using PeerId = Id<PeerTag, std::uint32_t>;  // one connection of one Transport; never used again

// Which life of which job: random, drawn by each scheduler when it begins. Epochs and ranks say something together with
// it only. All zero: none is known yet.
using Incarnation = std::array<std::byte, 16>;

// What a process is in its job.
enum class Role : std::uint8_t { kScheduler = 0, kServer = 1, kWorker = 2 };
const char* name(Role role);

inline constexpr std::uint32_t kNoRank = 0xffffffff;  // of a member, before the scheduler gave one

// Rounds and epochs count up and may wrap: which of two is later is the sign of their difference.
template <typename Id>
std::int32_t later_by(Id a, Id b) {
  return static_cast<std::int32_t>(a.value - b.value);
}

// A job's inputs come in generations: the next begins when all workers have said that they have no more
// (docs/protocol.md, Uneven inputs). The rounds of each begin with a number of their own, so that nothing of an
// earlier one is taken for theirs; a generation that is to end may have so many of a tensor, the last has no limit.
inline constexpr int kRoundBits = 26;
inline constexpr std::uint32_t kRoundsPerGeneration = 1U << kRoundBits;
inline Round first_round(std::uint32_t generation) {
  return Round(generation << kRoundBits);
}
inline std::uint32_t round_in_generation(std::uint64_t round) {
  return static_cast<std::uint32_t>(round & ((1U << kRoundBits) - 1));
}

// 64-bit FNV-1a with a final mix: the key of a tensor's name, and the spread of keys over shards.
// The same on every machine and in every version: it is part of the protocol.
std::uint64_t stable_hash(std::string_view text);
// Mixes one number into well-spread bits (the finaliser of splitmix64).
inline std::uint64_t stable_mix(std::uint64_t number) {
  number ^= number >> 30;
  number *= 0xbf58476d1ce4e5b9ULL;
  number ^= number >> 27;
  number *= 0x94d049bb133111ebULL;
  return number ^ (number >> 31);
}

inline Key key_of(std::string_view tensor_name) {
  return Key(stable_hash(tensor_name));
}

}  // namespace byteps

template <typename Tag, typename Number>
struct std::hash<byteps::Id<Tag, Number>> {
  std::size_t operator()(byteps::Id<Tag, Number> id) const {
    return static_cast<std::size_t>(byteps::stable_mix(static_cast<std::uint64_t>(id.value)));
  }
};
