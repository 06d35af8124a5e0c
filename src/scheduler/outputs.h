// What the cores of the scheduler have their shell do, and Speaker, which forms it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/log.h"
#include "base/status.h"
#include "member/shared_bytes.h"
#include "net/transport.h"
#include "net/wire.h"
#include "scheduler/seats.h"

namespace byteps {

// Something for the shell to do, in order.
struct KeeperOutput {
  enum class Kind : std::uint8_t { kSend, kClose, kNotice };
  Kind kind = Kind::kNotice;
  PeerId peer;                       // kSend, kClose
  wire::Header header;               // kSend
  SharedBytes payload;               // kSend
  Status reason;                     // kClose
  LogLevel level = LogLevel::kInfo;  // kNotice
  std::string text;                  // kNotice
  // kNotice: whether it is about something that others can cause again and again, and of which kind.
  enum class Cause : std::uint8_t { kJob, kRefused, kMalformed, kUnread };
  static constexpr std::size_t kCauses = 4;
  Cause cause = Cause::kJob;
};
using KeeperOutputs = std::vector<KeeperOutput>;

class Speaker {
 public:
  // Both outlive it. `epoch`: of the messages.
  Speaker(Seats& seats, const Epoch& epoch) : seats_(seats), epoch_(epoch) {}

  void send(PeerId peer, wire::Kind kind, WorkerRank worker, SharedBytes payload,
            KeeperOutputs& out) const;
  // Nothing that it says counts any more.
  void close(PeerId peer, Status reason, KeeperOutputs& out) const;
  static void notice(LogLevel level, std::string text, KeeperOutputs& out,
                     KeeperOutput::Cause cause = KeeperOutput::Cause::kJob);

 private:
  Seats& seats_;
  const Epoch& epoch_;
};

// A status as the payload of Fail or Waiting.
std::vector<std::byte> encode_status(const Status& why);

}  // namespace byteps
