// What the cores of the scheduler have their shell do, and Speaker, which forms it.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/cause.h"
#include "base/ids.h"
#include "base/log.h"
#include "base/outputs.h"
#include "base/status.h"
#include "member/shared_bytes.h"
#include "net/transport.h"
#include "net/wire.h"
#include "scheduler/seats.h"

namespace byteps {

// What the scheduler's shell has to do, by kind.
struct KeeperOutput {
  struct Send {
    PeerId peer;
    wire::Header header;
    SharedBytes payload;
  };
  struct Close {
    PeerId peer;
    Status reason;
  };
  // A line for people. Whether it is about something that others can cause again and again, and of which sort.
  enum class Sort : std::uint8_t { kJob, kRefused, kMalformed, kUnread };
  static constexpr std::size_t kSorts = 4;
  struct Notice {
    LogLevel level = LogLevel::kInfo;
    std::string text;
    Sort sort = Sort::kJob;
  };
  // What became of a member, for the flight recorder.
  struct News {
    const char* kind;  // "here", "lost", "back", "left" or "replaced"
    Participant who;
    Status why;  // "lost", "replaced"
  };
};
using KeeperOutputs =
    Outputs<KeeperOutput::Send, KeeperOutput::Close, KeeperOutput::Notice, KeeperOutput::News>;

class Speaker {
 public:
  // All outlive it. `epoch`, `term`: of the messages.
  Speaker(Seats& seats, const Epoch& epoch, const std::uint32_t& term)
      : seats_(seats), epoch_(epoch), term_(term) {}

  void send(PeerId peer, wire::Kind kind, WorkerRank worker, SharedBytes payload,
            KeeperOutputs& out) const;
  // Nothing that it says counts any more.
  void close(PeerId peer, Status reason, KeeperOutputs& out) const;
  // The same to a member that has a connection: it is lost then.
  void drop(Seat& seat, const Status& why, KeeperOutputs& out) const;
  static void notice(LogLevel level, std::string text, KeeperOutputs& out,
                     KeeperOutput::Sort sort = KeeperOutput::Sort::kJob);
  // The same of a member, for the flight recorder too: `text` is its title with what follows.
  static void news(const char* kind, const Seat& seat, const std::string& text, KeeperOutputs& out,
                   Status why = {});

 private:
  Seats& seats_;
  const Epoch& epoch_;
  const std::uint32_t& term_;
};

// A status as the payload of Fail or Waiting.
std::vector<std::byte> encode_status(const Status& why);

}  // namespace byteps
