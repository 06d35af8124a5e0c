// RelayPort: what a Worker and the relay beside it in its process (relay/relay_loop.h) say to each other. Each has a
// thread of its own.
#pragma once

#include <cstdint>

#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "loop/mailbox.h"
#include "net/wire.h"
#include "base/residuals.h"

namespace byteps {

struct RelayCommand {
  enum class Kind : std::uint8_t {
    kBegin,  // serve those of this machine, as the roster says
    kAmend,  // another process serves a shard, as the roster says
    kLeft,   // `left` has left the job
    kLeave,  // the worker beside it leaves: answered by kSettled once others have what it keeps
    kEnd,    // the job is over here because of `why`: sends what waits to be sent, and ends
    kPing,   // answered by kAlive: the relay's thread comes round
  };
  Kind kind = Kind::kEnd;
  wire::Roster roster{};
  WorkerRank left{};
  Incarnation incarnation{};
  TimeNs failure_ns = 0;  // the job's failure timeout
  Status why{};
};

struct RelayNotice {
  enum class Kind : std::uint8_t {
    kReady,    // workers are served, and the servers were reached
    kFailed,   // the job cannot go on: `why`
    kSettled,  // the answer to kLeave
    kAlive,    // the answer to kPing
  };
  Kind kind = Kind::kReady;
  Status why{};
};

struct RelayPort {
  Mailbox<RelayCommand>* commands = nullptr;  // null: this worker has no relay
  Mailbox<RelayNotice>* notices = nullptr;    // wakes the worker
  std::uint16_t listening_port = 0;           // of the relay, at 127.0.0.1
  Residuals* residuals = nullptr;  // of operations of the worker; null: relays code without
};

}  // namespace byteps
