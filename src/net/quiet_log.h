// QuietLog: a Log for what others do to a transport, at most one line per kind and minute (base/quiet_lines.h), and for
// what is worth one line in the whole life of the process.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/quiet_lines.h"
#include "base/time.h"

namespace byteps {

class QuietLog {
 public:
  enum class Kind : std::uint8_t {
    kRefused,       // another job, version or key, or no idea of the protocol
    kWentAway,      // ended during the handshake
    kSilent,        // took too long for the handshake
    kTurnedAway,    // too many connections
    kMalformed,     // frames that are none
    kCorrupted,     // frames whose checksum is wrong
    kCannotAccept,  // no descriptors
    kLinked,        // goes on through a link
    kCannotShare,   // shares no memory, though it could
    kCannotLink,    // has no link, though it wants one
    kLinkTrouble,   // a link that does not work any more
  };
  static constexpr std::size_t kKinds = 11;
  static constexpr std::size_t kSubjectsMax = 16;

  explicit QuietLog(Log log) : log_(std::move(log)) {}

  void write(Kind kind, LogLevel level, TimeNs now, const std::string& text) {
    const auto line = lines_.pass(static_cast<std::size_t>(kind), now, text);
    if (line) log_.write(level, *line);
  }

  // Only the first line about each subject is written, of the first kSubjectsMax: others can invent more.
  void write_once(LogLevel level, const std::string& subject, const std::string& text) {
    if (subjects_.size() == kSubjectsMax || !subjects_.insert(subject).second) return;
    log_.write(level, text);
  }

 private:
  const Log log_;
  QuietLines<kKinds> lines_;
  std::set<std::string> subjects_;  // of write_once()
};

}  // namespace byteps
