// wire.h: every byte that members of a job say to each other. Little-endian throughout.
//
// A message is a fixed header of kHeaderBytes, then a payload whose meaning depends on the kind.
// Data messages (push, answer) carry tensor bytes; control messages carry tagged fields.
//
//   header, 48 bytes                           a tagged field
//    0  u8   kind                               0  u8  tag (1..255)
//    1  u8   flags                              1  u8  type (1 u64, 2 bytes)
//    2  u16  lost                               2  u64 value              when type is u64
//    4  u32  epoch                              2  u32 length, bytes      when type is bytes
//    8  u64  key
//   16  u32  part
//   20  u32  round; of a scheduler's messages its term, where the job recovers
//   24  u64  offset of the frame in its part, bytes
//   32  u32  rank of the worker it is about
//   36  i32  priority of a push
//   40  u32  tag: push: what its sender calls the operation; answer: repeated from the push
//   44  u32  count: push and Ack: how many answers came on this connection; answer and Settled: of how many of them
//           all have the sums
// lost: push of a relay: who of its crew is lost, and not in it: a bit for each place there, the first in the lowest
//
// Rules: every length is checked against a limit before it is used; fields with an unknown tag are
// skipped; a known tag with a wrong type, or any tag of this version twice, makes the message
// malformed; decode never reads outside its input. The tables in wire.cc generate encode and
// decode; golden bytes are in tests/net/wire_test.cc; the fuzzer calls decode.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/card.h"
#include "base/cause.h"
#include "base/ids.h"
#include "base/members.h"
#include "base/place.h"
#include "base/spec.h"
#include "base/status.h"
#include "net/transport.h"

namespace byteps::wire {

inline constexpr std::size_t kHeaderBytes = 48;

enum class Kind : std::uint8_t {
  // data, between worker and shard
  kPush = 1,    // one frame of a contribution, which also asks for the answer
  kAnswer = 2,  // one frame of the result
  // control, between worker and shard
  kDeclare =
      3,  // what a key means at this worker; before its first push on a connection. Of a relay with `part`
          // r + 1: what it means at worker r of its machine
  kWanted = 4,  // shard to worker: others wait for your contribution to (key, part, round)
  kForget = 5,  // worker to shard: this worker is done with the key for ever
  kMismatch =
      6,  // shard to workers: declarations of a key disagree; ends its operations everywhere. Relay to shard:
  // those of its machine do
  kMissing =
      7,  // shard to worker: whose contribution to (key, part, round) is late. Relay to shard: who of its
          // machine has not contributed
  kInputs =
      8,  // worker to shard: the generation of its inputs (in `round`), and whether it has no more (kNoMore)
  kInputsDone =
      9,  // shard to workers: nobody has more; `round` is the next generation, `worker` who said so last. Or to the
          // `worker` that has no more in generation `round`: it was heard
  // the same, after a shard took another's place (docs/design/0013-recovery.md)
  kHave =
      10,  // worker to shard, before its first push on a connection: of which frames of a part it has the sums. With
           // kAll: it has said so of all
  kGive =
      11,  // shard to worker: the sum of that round of that frame is wanted; answered by a push with kSum
  kAgain = 12,  // shard to worker: nobody has the sum of that round of that frame, push it again
  kForgotten = 13,  // shard to workers: all have forgotten the key
  // where a lost server gets a successor (KeptSums, Settling)
  kAck = 14,  // worker to shard: `count`, where no push says it soon
  kSettled =
      15,  // shard to worker: the same, of answers; with kOfFrame: of a frame that it has told by a Have
  // control, between member and scheduler
  kJoin = 16,
  kRoster = 17,
  kHeartbeat = 18,
  kLeave = 19,
  kBarrier = 20,      // member to scheduler: I have arrived
  kBarrierDone = 21,  // scheduler to members: all have
  kFail = 22,         // either way: the job cannot go on; the text says why and who
  kWaiting = 23,      // scheduler to members: who is still missing
  kStalled = 24,      // worker to scheduler: it waits, for what, and what others want of it
  kRecall = 25,  // scheduler that was begun anew to a member: say your roster; answered by a Roster
  kAdopt = 26,   // scheduler to server: serve another one's slots as well
};

// Flags of a push or an answer.
// Broadcast: a non-root's push, the root's answer. Where the root alone gets the result: all other answers.
inline constexpr std::uint8_t kNoPayload = 1;

// Flag of a push: its payload is no contribution, but the finished sum of that round. It is not answered. To a relay,
// with kNoPayload: all have that sum.
inline constexpr std::uint8_t kSum = 2;

// Flags of a Have. Of the frames that its bitmap (the payload: a bit each, the first in the lowest bit of the first
// byte) does not name the worker has the sum of the round before `round`.
inline constexpr std::uint8_t kHasFormer = 1;
inline constexpr std::uint8_t kAll = 2;   // it is the last, and about nothing
inline constexpr std::uint8_t kSome = 4;  // of a relay: some of its crew may lack them

// Flag of a Settled: all have the sum of that round of that frame, and `count` says nothing.
inline constexpr std::uint8_t kOfFrame = 1;
// As its offset: of all frames of the part, and of rounds up to that one.
inline constexpr std::uint64_t kWholePart = UINT64_MAX;

// Flags of an Inputs.
inline constexpr std::uint8_t kNoMore = 1;
// To a shard that took another one's place, before what the worker has: it will say kNoMore behind that, and others may
// be further.
inline constexpr std::uint8_t kEnding = 2;

// Flag of a BarrierDone.
inline constexpr std::uint8_t kNeverDone = 2;  // the worker in the header has left: it cannot end

// Places in a crew of which Header::lost can tell.
inline constexpr std::size_t kLostPlacesMax = 16;

struct Header {
  Kind kind = Kind::kPush;
  std::uint8_t flags = 0;
  Epoch epoch;
  Key key;
  PartIndex part;
  Round round;
  std::uint64_t offset_bytes = 0;
  WorkerRank worker;
  std::int32_t priority = 0;  // of a push: a relay takes it on with the same
  std::uint32_t tag = 0;      // 0: none
  std::uint32_t count = 0;    // modulo 2^32
  std::uint16_t lost = 0;
  bool operator==(const Header&) const = default;
};
using HeaderBytes = std::array<std::byte, kHeaderBytes>;
HeaderBytes encode(const Header& header);
Result<Header> decode_header(std::span<const std::byte> bytes);
// Of what was received. Malformed as well: a payload that is to be decoded, in memory that its sender can still change.
Result<Header> header_of(const Event& received);
// What an encoded header is about, to look ahead: nothing of it has been checked. Empty: it is no push or answer.
struct Glimpse {
  Key key;
  PartIndex part;
  std::uint32_t tag = 0;
};
std::optional<Glimpse> glimpse(std::span<const std::byte> bytes);

// ---- control payloads. Limits: a name or text has at most kTextBytesMax bytes, of a cause the hosts
// kHostTextBytesMax and the detail kDetailBytesMax, a list at most kListMax entries, a shape at most
// kDimensionsMax dimensions, members at most kWorkersMax ranks.

using byteps::kListMax;
using byteps::kTextBytesMax;

struct Declare : Spec {
  std::string name;
  bool operator==(const Declare&) const = default;
};

struct Text {  // kMismatch, kFail, kWaiting
  std::string text;
  std::uint32_t code = 0;  // a byteps::Code
  Cause cause{};           // the same as facts, since version 4; is_of_peer is not sent
  bool operator==(const Text&) const = default;
};

struct Missing {
  Members ranks{};  // whose contributions are late
  bool operator==(const Missing&) const = default;
};

// What a member says when it comes. One process is one member; a server lists an endpoint per
// shard.
struct Join {
  Role role = Role::kWorker;
  std::uint32_t wanted_rank = kNoRank;  // workers know theirs; servers may ask for one
  std::uint32_t worker_count = 0;  // how large this member believes the job to be; 0: does not say
  std::uint32_t server_count = 0;
  std::string host;                   // for messages to people: "host:pid"
  std::vector<Endpoint> endpoints;    // servers: one per shard
  std::uint64_t partition_bytes = 0;  // workers: their settings; rank 0's become the job's
  std::uint64_t frame_bytes = 0;
  // Tells the lives of one host's process apart: random, the same in all Joins of one; 0: does not say.
  // So a Join that comes late, on an older connection, is no new life.
  std::uint64_t life = 0;
  // The same for all processes of one network namespace of a running kernel, which can share memory; 0: does not say.
  std::uint64_t machine = 0;
  // The network card that this process uses: the same for all that use it, on its machine; 0: does not say.
  std::uint64_t card = 0;
  std::uint32_t rate_mbps = 0;            // of that card, in each direction; 0: not known
  std::vector<NetworkCard> more_cards{};  // that it uses besides
  // Workers: which of the launcher's machines this is, on which local ranks are counted. Not `machine`: a launcher may
  // take one machine for several (containers), or several for one.
  std::uint32_t machine_index = 0;
  std::uint16_t relay_port =
      0;  // workers: where others of its machine reach its relay, at 127.0.0.1; 0: it has none
  bool local_reduce = false;  // workers: their settings; rank 0's become the job's
  bool needs_servers = false;
  topology::Place place;  // workers: without a device: they have none, or none is known
  // A scheduler has counted it before, and had no place for it: it was not started for anybody who is missing now.
  bool has_waited = false;
  // For a scheduler that was begun anew: what this member was told by those before it. Zeros and empty: nothing.
  struct Heard {
    // The newest roster: rosters are ordered by these, and members hear no scheduler of a lower term any more.
    std::uint32_t term = 0;
    Epoch epoch;
    std::uint32_t revision = 0;
    // Of that epoch: how many barriers are done, and who has left, for good or for a while.
    std::uint64_t barriers = 0;
    std::vector<std::uint32_t> left_for_good;
    std::vector<std::uint32_t> left_for_a_while;
    bool operator==(const Heard&) const = default;
  };
  Heard heard;
  bool operator==(const Join&) const = default;
};
// Terms, epochs and revisions that anybody says to know are at most this.
inline constexpr std::uint32_t kCountMax = 1U << 31;

struct RosterMember {
  Role role = Role::kWorker;
  std::uint32_t rank = 0;
  std::string host;
  std::vector<Endpoint> endpoints;
  std::uint64_t machine = 0;  // as in its Join
  std::uint64_t card = 0;
  std::uint32_t rate_mbps = 0;
  std::uint32_t machine_index = 0;
  std::uint16_t relay_port = 0;
  std::uint64_t life = 0;  // where the job recovers
  // The revision since which the rank is vacant, because its worker was lost and the job goes on without it; 0: it is
  // not.
  std::uint32_t vacant_since = 0;
  // Of a worker that has left: the revision since which it serves nobody in another one's place; 0: it does, or had no
  // reason to yet.
  std::uint32_t serves_none_since = 0;
  std::uint32_t place = 0;  // 1 + its index in Roster::places; 0: none (member/places.h)
  std::vector<NetworkCard> more_cards{};  // as in its Join
  bool operator==(const RosterMember&) const = default;
};

// Who sums what workers of one machine have.
enum class Summing : std::uint8_t {
  kServers = 0,  // as what all others have
  kRelays = 1,   // their relays first; servers what comes from these
  kAlone = 2,    // their relays, for there is one machine; no server is used
};

// A shard's place in an epoch: element i of Roster::slots is ShardIndex(i). It stays as long as the epoch does, with
// its weight (base/placement.h) and so with its parts; the process that serves it may change.
struct Slot {
  std::uint32_t server = 0;  // rank of the server
  std::uint32_t shard = 0;   // of its endpoints
  std::uint32_t weight = 1;
  std::uint32_t since = 0;  // the revision in which the process that serves it came
  bool operator==(const Slot&) const = default;
};

// Who is here. Sent to every member when the job is complete, and again at each change, with a
// larger epoch or revision.
struct Roster {
  Epoch epoch;
  std::uint32_t your_rank =
      0;  // stands in the header, as `worker`: so all members get the same payload
  std::uint64_t partition_bytes = 0;
  std::uint64_t frame_bytes = 0;
  Summing summing = Summing::kServers;
  std::vector<RosterMember> members;  // workers by rank, then servers by rank
  std::vector<Slot> slots;            // at most kShardsMax
  // Counts the changes within the epoch, from 0: of who serves a slot, and which ranks are vacant; all else stays.
  std::uint32_t revision = 0;
  bool recovers =
      false;  // who is lost gets a successor: workers keep sums, members go on without a scheduler
  Incarnation incarnation{};  // of the job, where it recovers: that of its first scheduler
  bool continues =
      false;  // it goes on without a worker that is lost, and relays get successors too
  // Of workers' devices, as in their Joins; each once, for machines are mostly alike. At most kPlacesBytesMax together.
  std::vector<topology::Place> places;
  bool operator==(const Roster&) const = default;
};

// A sign of life; mostly without payload. Who records a timeline asks the scheduler what time it is there: `sent_ns` is
// its own clock, and the scheduler answers at once with its clock and the question's time in `echo_ns`.
struct Heartbeat {
  std::uint64_t sent_ns = 0;  // 0: does not say, and does not ask
  std::uint64_t echo_ns = 0;  // scheduler only
  bool operator==(const Heartbeat&) const = default;
};

// A member says it of itself; the scheduler says who has left, several in one message when they left together. Where
// the job recovers it tells servers before it answers those who leave, and servers say the same back: they know it
// then.
struct Leave {
  bool final = true;  // the process ends; false: it may join again (shutdown or suspend, then init
                      // or resume)
  Members who{};      // all: the one in the header alone
  std::uint64_t barriers = 0;  // to servers: that are done
  bool operator==(const Leave&) const = default;
};

// One more unit is to be opened in the server's process: a member with so many shards of its own, which joins and
// wishes for that rank.
struct Adopt {
  std::uint32_t rank = 0;    // of the server that is lost, or leaves
  std::uint32_t shards = 1;  // at most kShardsOfServerMax
  bool operator==(const Adopt&) const = default;
};

struct Barrier {
  std::uint64_t number = 0;  // counts the barriers of an epoch
  bool operator==(const Barrier&) const = default;
};

// What a worker waits for: the round of a tensor; or without a name the barrier of that number, or with kInputsKey the
// end of all workers' inputs, of that generation.
inline constexpr Key kInputsKey = Key(1);
struct Awaited {
  std::string name;
  Key key;
  std::uint64_t round = 0;
  bool operator==(const Awaited&) const = default;
};
// A round of a tensor that others have begun, but this worker has not.
struct NotBegun {
  Key key;
  std::uint64_t round = 0;
  bool operator==(const NotBegun&) const = default;
};
// All threads of this worker that submit are blocked in a wait, and nothing has moved for a while
// (protocol.md, Stalls). With nothing awaited: that is over.
struct Stalled {
  std::vector<Awaited> awaited;
  std::vector<NotBegun> not_begun;
  bool operator==(const Stalled&) const = default;
};

std::vector<std::byte> encode(const Declare& message);
std::vector<std::byte> encode(const Text& message);
std::vector<std::byte> encode(const Missing& message);
std::vector<std::byte> encode(const Join& message);
std::vector<std::byte> encode(const Roster& message);
std::vector<std::byte> encode(const Heartbeat& message);
std::vector<std::byte> encode(const Leave& message);
std::vector<std::byte> encode(const Adopt& message);
std::vector<std::byte> encode(const Barrier& message);
std::vector<std::byte> encode(const Stalled& message);
std::vector<std::byte> encode(const Hello& message);

Result<Declare> decode_declare(std::span<const std::byte> bytes);
Result<Text> decode_text(std::span<const std::byte> bytes);
Result<Missing> decode_missing(std::span<const std::byte> bytes);
Result<Join> decode_join(std::span<const std::byte> bytes);
Result<Roster> decode_roster(std::span<const std::byte> bytes);
Result<Heartbeat> decode_heartbeat(std::span<const std::byte> bytes);
Result<Leave> decode_leave(std::span<const std::byte> bytes);
Result<Adopt> decode_adopt(std::span<const std::byte> bytes);
Result<Barrier> decode_barrier(std::span<const std::byte> bytes);
Result<Stalled> decode_stalled(std::span<const std::byte> bytes);
Result<Hello> decode_hello(std::span<const std::byte> bytes);

}  // namespace byteps::wire
