// Values: what a simulated worker contributes, and what must come back. Small integers, chosen so that every sum,
// average and product is exact in the tensor's dtype, scaled or not; a broadcast's are arbitrary bytes. Where workers
// share hosts, some float16 sums are of large integers: what those of a host have together is beyond float16, and the
// result is not. Computed the dull way, without the kernels that are being tested.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/codec.h"
#include "base/dtype.h"
#include "base/format.h"
#include "base/placement.h"

namespace byteps::sim {

// What all ranks must agree about, and what the values follow from.
struct TensorFacts {
  std::string name;
  DType dtype = DType::kFloat32;
  Operation operation = Operation::kSum;
  std::uint32_t root = 0;
  bool root_only = false;              // nobody else gets the result
  double scale = 1;                    // a power of two or its negative; 0.5 not for halves
  std::vector<std::uint32_t> members;  // ascending ranks that take part; empty: all
  // By rank: how many rounds it has inputs for. Empty: all. Later ones than `uneven_rounds` have all again.
  std::vector<std::uint32_t> rounds_of;
  std::uint32_t uneven_rounds = 0;
  bool is_inexact = false;  // float32: sums depend on the order of additions
  // Of inexact sums and averages: how they travel, of which ranks have the same bits all the same.
  Format format = Format::kPlain;
  Codec codec{};
  std::int64_t unit = 1;  // of sums and averages: values are multiples of this power of two
  std::uint64_t element_count = 0;
  std::uint64_t value_seed = 0;

  std::uint64_t bytes() const { return element_count * element_bytes(dtype); }
  bool has_member(std::uint32_t rank) const;
  bool has_root() const { return operation == Operation::kBroadcast || root_only; }
  // Whether this member pushes a payload, and whether it gets one.
  bool gives(std::uint32_t rank) const {
    return operation != Operation::kBroadcast || rank == root;
  }
  bool gets(std::uint32_t rank) const { return !root_only || rank == root; }
};

// The bytes that `rank` of `worker_count` puts in.
std::vector<std::byte> contribution(const TensorFacts& tensor, std::uint32_t round,
                                    std::uint32_t rank, std::uint32_t worker_count);

// Ranks that are not in a sum although they are members: they were lost before.
using Absent = std::set<std::uint32_t>;

// The bytes that those who get any must get.
std::vector<std::byte> expected_result(const TensorFacts& tensor, std::uint32_t round,
                                       std::uint32_t worker_count, const Absent& absent = {});

// Of inexact values, whose sum depends on the order: whether this may be it, in these elements of it.
bool may_be_result(const TensorFacts& tensor, std::uint32_t round, std::uint32_t worker_count,
                   std::span<const std::byte> result, const Absent& absent = {},
                   std::uint64_t first = 0, std::uint64_t end = UINT64_MAX);

// By how much a residual counts in this round, where the codec takes such a factor.
double ratio_of(const TensorFacts& tensor, std::uint32_t round);

// Where a contribution is coded, and when: the generation's `step`-th round, which is `round` on the wire.
struct CodedWhere {
  const Placement& placement;
  std::uint32_t rank = 0;
  std::uint32_t step = 0;
  Round round;
};
// What its codes leave of it and of what was left before: error feedback; and momentum. Empty: it has none.
void leave_residual(const TensorFacts& tensor, const CodedWhere& where,
                    std::span<const std::byte> contribution, std::vector<float>& residual,
                    std::vector<float>& momentum);

}  // namespace byteps::sim
