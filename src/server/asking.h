// Asking: a shelf asks for the contributions that frames miss for too long, and says who is missing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/groups.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "net/wire.h"
#include "server/alarms.h"
#include "server/generations.h"
#include "server/inventory.h"
#include "server/shelf_output.h"
#include "server/sums.h"

namespace byteps {

class Asking {
 public:
  // All outlive it.
  Asking(const ShelfSettings& settings, const Inventory& inventory, Alarms& alarms,
         const Generations& generations)
      : settings_(settings), inventory_(inventory), alarms_(alarms), generations_(generations) {}

  void begin_epoch(std::uint32_t worker_count);
  // Asks where that is due.
  void tick(TimeNs now, ShelfOutputs& out);
  // Asks at once who has not contributed to this round of the part, of a known tensor, up to this byte of the part; 0:
  // to its end.
  void want(Key key, PartIndex part, Round round, std::uint64_t end_bytes, ShelfOutputs& out);

  // At a server: whom the relay of this worker misses in its crew. Not ok: it is malformed.
  Status heed(WorkerRank from, const wire::Header& header, std::span<const std::byte> payload,
              const Groups& groups);

  // Wanted repeats after twice, four times, ... the age at which a frame is late (lateness.h), and after
  // `wanted_ns << this` at the latest.
  static constexpr std::uint32_t kWantedDoublings = 8;

 private:
  void ring(PartSum& part, TimeNs now, ShelfOutputs& out);
  void tell_missing(const PartSum& part, const FrameSum& oldest, TimeNs now, ShelfOutputs& out);
  void add_missing(const TensorSum& tensor, std::uint32_t place, WorkerRank contributor,
                   Round round, std::vector<std::uint32_t>& ranks) const;

  const ShelfSettings& settings_;
  const Inventory& inventory_;
  Alarms& alarms_;
  const Generations& generations_;
  std::vector<std::uint64_t> missing_;  // scratch of ring(): a bit per worker
};

}  // namespace byteps
