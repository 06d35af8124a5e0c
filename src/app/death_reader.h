// DeathReader: hears from bpslaunch which workers' processes have ended (byteps_scheduler --deaths-on-stdin).
//
// Who starts processes sees at once how they end; the network may show it late, or not at all where a machine is cut
// off. What arrives at the descriptor, a line for each death:
//
//   worker RANK HOW          "worker 3 was ended by signal SIGKILL"
//
// HOW follows the worker's name in sentences: printable text, at most what fits into kLineBytesMax. A line of another
// form is passed over, and the first one is a warning. The end of the input means that whoever writes has ended; that
// is not the end of anything here. A scheduler that is started anew is told again of all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/log.h"
#include "base/status.h"
#include "loop/executor.h"

namespace byteps {

struct Death {
  std::uint32_t rank = 0;
  std::string how;
  bool operator==(const Death&) const = default;
};

// What a line says, without its end; none: it has another form.
std::optional<Death> death_in(std::string_view line);

class DeathReader {
 public:
  // On the reader's thread. An error is a warning like that of a bad line.
  using Tell = std::function<Status(Death death)>;

  // Reads on a thread of its own until the input ends. The descriptor stays the caller's, and open for as long as this
  // lives.
  DeathReader(int descriptor, Tell tell, const Log& log);
  // `tell` is not called any more afterwards.
  ~DeathReader();
  DeathReader(const DeathReader&) = delete;
  DeathReader& operator=(const DeathReader&) = delete;

  static constexpr std::size_t kLineBytesMax = 1024;

 private:
  struct State;

  const std::shared_ptr<State> state_;  // with the thread, which an Executor may leave to itself
  Executor executor_;
};

}  // namespace byteps
