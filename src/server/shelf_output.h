// What a shelf (shelf.h) has its shell do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/buffer.h"
#include "base/ids.h"
#include "base/outputs.h"
#include "base/status.h"
#include "net/wire.h"

namespace byteps {

// What the shelf wants done, by kind.
struct ShelfOutput {
  // Send one frame of a result to header.worker. The buffer is lent as long as this ref (or a copy)
  // lives.
  struct Answer {
    wire::Header header;  // kind, flags, epoch, key, part, round, offset, worker, tag
    BufferRef buffer;     // empty when there is no payload
    std::size_t payload_bytes = 0;
    std::span<const std::byte> payload() const {
      return buffer ? std::span<const std::byte>(buffer.span()).first(payload_bytes)
                    : std::span<const std::byte>();
    }
  };
  // At a relay: the worker beside it has no more inputs, which is to be said to the servers; then inputs_are_heard().
  struct InputsEnd {
    std::uint64_t rounds = 0;  // that it has begun at most of a tensor
  };
  // At a relay: this name is not used again by any of its workers, nor is it known here any more.
  struct Forgotten {
    Key key;
    wire::Declare declared;
  };
  // At a relay that stands in for another: somebody of the crew had the sum of this round of this frame already, and
  // nobody else will contribute to it.
  struct Had {
    Key key;
    PartIndex part;
    Round round;
    std::uint64_t offset_bytes = 0;
    bool is_given =
        false;  // it is here now, and others may lack it: with this, or without a payload
    BufferRef buffer{};
    std::size_t payload_bytes = 0;
  };
  // At a relay: all of the crew have the sum of this round of this frame.
  struct CrewHas {
    Key key;
    PartIndex part;
    Round round;
    std::uint64_t offset_bytes = 0;
  };
  // At a relay: of this tensor's crew nobody has inputs any more, and some are lost: what they have begun is over.
  struct CrewGone {
    Key key;
  };
  // At a relay: what the workers of the machine have together goes on, as one contribution. Until its answer is handed
  // to answered() the buffer is not used.
  struct Forward {
    wire::Header header;  // kind (kPush), flags, epoch, key, part, round, offset
    BufferRef buffer;     // empty when there is no payload
    std::size_t payload_bytes = 0;
    std::span<const std::byte> payload() const {
      return buffer ? std::span<const std::byte>(buffer.span()).first(payload_bytes)
                    : std::span<const std::byte>();
    }
  };
  // Tell this worker that others wait for its contribution.
  struct Wanted {
    WorkerRank worker;
    Key key;
    PartIndex part;
    Round round;
    std::uint64_t end_bytes = 0;  // of the part, from its start; 0: all of it
  };
  // Tell those who have contributed whom they wait for: ascending ranks.
  struct Missing {
    std::vector<WorkerRank> to;
    Key key;
    PartIndex part;
    Round round;
    std::vector<std::uint32_t> ranks;
  };
  // Tell one worker, or all that are connected, that this tensor cannot be summed
  // (wire::Kind::kMismatch).
  struct Spoiled {
    std::optional<WorkerRank> worker;  // empty: all
    Key key;
    Code code = Code::kMismatch;  // kMismatch: declarations differ; kSystem: no memory; ...
    std::string text;
    Cause cause{};  // kOther: as the code says
  };
  // Tell one worker, or all that are connected, that nobody has more inputs: the next generation begins. Or one worker
  // that it was heard: `generation` is still the one in which it has no more.
  struct InputsDone {
    std::optional<WorkerRank> worker;  // empty: all
    std::uint32_t generation = 0;
    WorkerRank last;
  };
  // End this worker's connection, so that it says again what it waits for.
  struct Renew {
    WorkerRank worker;
    std::string text;
  };
  // A word to a worker about a round of a frame. Of a shard that has taken another one's place: it is asked for the sum
  // (kGive), or to push it again (kAgain). Of any: all have the sum, of which it has said by a Have that it has it
  // (kSettled).
  struct Ask {
    wire::Kind kind = wire::Kind::kGive;
    WorkerRank worker;
    Key key;
    PartIndex part;
    Round round;
    std::uint64_t offset_bytes = 0;
  };
  // All have forgotten the key: tell this worker, or all that are connected.
  struct ForgottenByAll {
    std::optional<WorkerRank> worker;  // empty: all
    Key key;
  };
  // Tell this worker of how many of its answers all have the sums.
  struct Settled {
    WorkerRank worker;
    std::uint32_t count = 0;
  };
  // Sums of these elements of a tensor are without this worker, which is lost, from this round on. It is said when the
  // first of them is finished, by whoever finishes it: so of all that is said of a frame the earliest round is right,
  // also where another shard has taken it over.
  struct Absence {
    WorkerRank worker;
    std::string name;  // of the tensor
    std::uint64_t first_element = 0;
    std::uint64_t element_count = 0;
    Round since;
    std::string text() const;
  };
  // This worker broke the protocol: end its connection with one log line.
  struct Violation {
    WorkerRank worker;
    std::string text;
  };
  // The job cannot go on with this server.
  struct Failure {
    Status why;
  };
};
using ShelfOutputs =
    Outputs<ShelfOutput::Answer, ShelfOutput::Forward, ShelfOutput::Wanted, ShelfOutput::Missing,
            ShelfOutput::Spoiled, ShelfOutput::InputsDone, ShelfOutput::InputsEnd,
            ShelfOutput::Forgotten, ShelfOutput::Had, ShelfOutput::CrewHas, ShelfOutput::CrewGone,
            ShelfOutput::Renew, ShelfOutput::Ask, ShelfOutput::ForgottenByAll, ShelfOutput::Settled,
            ShelfOutput::Absence, ShelfOutput::Violation, ShelfOutput::Failure>;

// Where it is recorded which sums a lost worker is not in: by who finishes them, a shard, or a relay that sums alone.
// Must not block.
using AbsenceSink = std::function<void(Epoch, const ShelfOutput::Absence&)>;

}  // namespace byteps
