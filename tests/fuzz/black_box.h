// A log that also feeds a flight recorder, as in a real process, and whose lines must be harmless for a terminal. (What
// is recorded may be anything; its reader makes it harmless.)
#pragma once

#include <string>
#include <string_view>

#include "base/check.h"
#include "base/flight.h"
#include "base/log.h"
#include "base/phrases.h"

namespace byteps::fuzz {

class BlackBox {
 public:
  explicit BlackBox(std::string who)
      : recorder_(
            32, [] { return TimeNs{0}; },
            [](const FlightRecorder& all) {
              std::size_t bytes = all.facts().outcome.message().size();
              for (const auto& entry : all.entries()) bytes += entry.text.size();
              for (const auto& peer : all.facts().peers) bytes += peer.host.size();
              return "/flight/" + std::to_string(bytes);
            }),
        log_(
            std::move(who), LogLevel::kDebug,
            [this](std::string_view line) {
              ++line_count_;
              check(line);
            },
            &recorder_) {}
  ~BlackBox() {
    (void)recorder_.leave_behind("job", Status(Code::kCancelled, "the input has ended"));
  }

  const Log& log() const { return log_; }
  std::size_t line_count() const { return line_count_; }

 private:
  static void check(std::string_view text) {
    CHECK_EQ(printable(text, text.size()), text) << "a text that can move the cursor";
  }

  FlightRecorder recorder_;
  std::size_t line_count_ = 0;
  Log log_;
};

}  // namespace byteps::fuzz
