// QuietLog: lines about what others do to us. Whoever can cause one can cause thousands, so each kind gets
// one line a minute, which says how many it stands for.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>

#include "base/log.h"
#include "base/time.h"

namespace byteps::tcp {

class QuietLog {
 public:
  enum class Kind : std::uint8_t {
    kRefused,       // another job, version or key, or no idea of the protocol
    kWentAway,      // ended during the handshake
    kSilent,        // took too long for the handshake
    kTurnedAway,    // too many connections
    kMalformed,     // frames that are none
    kCannotAccept,  // no descriptors
  };
  static constexpr std::size_t kKinds = 6;
  static constexpr TimeNs kEveryNs = 60 * kSecond;

  explicit QuietLog(Log log) : log_(std::move(log)) {}

  void write(Kind kind, LogLevel level, TimeNs now, const std::string& text) {
    State& state = states_[static_cast<std::size_t>(kind)];
    if (now < state.next_ns) {
      ++state.left_out;
      return;
    }
    state.next_ns = now + kEveryNs;
    const std::uint64_t others = std::exchange(state.left_out, 0);
    if (!log_.enabled(level)) return;
    log_.write(level, others == 0 ? text
                                  : text + " (and " + std::to_string(others) +
                                        " more like this since the last such line)");
  }

 private:
  struct State {
    TimeNs next_ns = 0;
    std::uint64_t left_out = 0;
  };
  const Log log_;
  std::array<State, kKinds> states_;
};

}  // namespace byteps::tcp
