// Summing: contributions are added to a frame's accumulator, and what is complete becomes a finished sum.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/ids.h"
#include "base/residuals.h"
#include "server/inventory.h"
#include "server/sums.h"

namespace byteps {

class Summing {
 public:
  // Memory comes from `inventory`; all functions throw bad_alloc when there is none. `residuals`: ShelfSettings'.
  Summing(Inventory& inventory, Residuals* residuals)
      : inventory_(inventory), residuals_(residuals) {}

  // In the order that the tensor wants (I8): that of the contributors' places.
  void add(PartSum& part, std::uint32_t frame, WorkerRank from, std::span<const std::byte> payload);
  // Adds what waits for the turn of contributors that have no more inputs.
  void add_held(PartSum& part, std::uint32_t frame);
  // What has been added of the round is not wanted.
  static void drop(PartSum& part, std::uint32_t frame);
  // All that is to be added has been: the sum is finished, and the one of the round before goes back (I3, I4). So many
  // members are lost, and not in it: an average is of the others.
  void finish(PartSum& part, std::uint32_t frame, std::uint32_t lost);

 private:
  void add_now(PartSum& part, std::uint32_t frame, std::span<const std::byte> payload);
  void add_in_order(PartSum& part, std::uint32_t frame, WorkerRank from,
                    std::span<const std::byte> payload);
  void code(PartSum& part, std::uint32_t frame, std::span<const std::byte> sum);

  Inventory& inventory_;
  Residuals* const residuals_;
};

}  // namespace byteps
