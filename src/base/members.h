// Members: the ranks that take part in a tensor's exchange: all workers of the job, or some of them.
//
// On the wire (and in Members::bitmap()) some are a bit per rank, the lowest rank in the lowest bit of the first byte,
// up to the byte of the last member; all are nothing at all. So equal sets have equal bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/limits.h"

namespace byteps {

class Members {
 public:
  Members() = default;  // all
  // Ascending ranks without repeats, at least one, below kWorkersMax.
  explicit Members(std::span<const std::uint32_t> ranks) : some_(ranks.begin(), ranks.end()) {}
  // nullopt: it is empty, too long, or ends with an empty byte.
  static std::optional<Members> of_bitmap(std::span<const std::byte> bitmap);
  std::vector<std::byte> bitmap() const;

  bool is_all() const { return some_.empty(); }
  // Empty: all.
  const std::vector<std::uint32_t>& some() const { return some_; }
  std::uint32_t count(std::uint32_t worker_count) const {
    return is_all() ? worker_count : static_cast<std::uint32_t>(some_.size());
  }
  bool has(WorkerRank rank) const;
  // The member that comes after so many others.
  WorkerRank at(std::uint32_t place) const { return WorkerRank(is_all() ? place : some_[place]); }
  // How many members have a lower rank.
  std::uint32_t place_of(WorkerRank rank) const;

  bool operator==(const Members&) const = default;

 private:
  std::vector<std::uint32_t> some_;
};

// What is wrong with such a list of ranks, given by one of `worker_count` workers; empty when nothing is.
std::string flaw_of_members(std::span<const std::uint32_t> ranks, WorkerRank self,
                            std::uint32_t worker_count);

}  // namespace byteps
