// Placement: how tensors are cut into parts and frames, and which shard owns which part. A pure function of the roster
// (the sizes and the shards' weights), the tensor's key and its size: the same on every worker and server.
//
// Every shard has a weight: its share of a large tensor's bytes (member/shares.h says where it comes from).
//
// A tensor is cut into stripes, and a stripe into one part per shard, in proportion to the weights. A full stripe gives
// the heaviest shard a part of partition_bytes; the last stripe has what is left. If that is at most one frame per
// shard, it is cut into single frames, one a part: so a small tensor goes whole to one shard.
//
// Frames are frame_bytes long. Those of a tensor that would have only a few are shorter, down to 15 KiB: the time
// until the first frame is summed and until the last is answered is a large part of such a tensor's time. All that is
// in bytes of elements. Where those are coded (format.h), it is the payloads of frames that have these lengths: a
// frame has more elements, a whole number of blocks, and four times frame_bytes of them at most, which with its
// payload fit a cache. Where a part is coded together, it is one frame, and what is said here of partition_bytes and of
// frame_bytes is both said of the lesser of partition_bytes and kPartElementsMax.
//
// Part 0 goes where the key says, whatever the size: workers that disagree about a tensor meet there, and the shard can
// tell them (docs/protocol.md, Mismatch). Part i is on the i-th shard after it. Shards are numbered across servers
// first, so successive parts go to different servers. Tensors of one part are spread by their keys' hashes, in
// proportion to the weights.
#pragma once

#include <cstdint>
#include <vector>

#include "base/format.h"
#include "base/ids.h"

namespace byteps {

class Placement {
 public:
  // Sizes in bytes, above 0, multiples of 64 (frames are as short as parts at most). Weights: one per shard, each 1 to
  // kWeightMax; at least one shard.
  Placement(std::uint64_t partition_bytes, std::uint64_t frame_bytes,
            std::vector<std::uint32_t> weights);
  static constexpr std::uint32_t kWeightMax = 1 << 16;

  // The size of frames where nobody asks for another one. A frame and its head fit the 64 KiB that the kernel sends
  // as one packet: a frame of 64 KiB goes as two, and two of 32 KiB cost three quarters more processor time. With
  // many shards, and with unequal ones, frames are smaller, because a worker has two of them under way to the
  // lightest and more to the others (worker/credit.h), and all its bytes under way have to fit the queues of the
  // network. So they are on slow lines, where a frame takes 1.25 ms at the most or has 15 KiB. Rates: 0 is unknown.
  static std::uint64_t usual_frame_bytes(const std::vector<std::uint32_t>& weights,
                                         std::uint32_t line_mbps = 0);

  // A part of a tensor: bytes [offset, offset + bytes) of it.
  struct Part {
    std::uint64_t offset = 0;  // multiple of 64
    std::uint64_t bytes = 0;
    ShardIndex shard;
    std::uint64_t frame_bytes = 0;  // of all its frames but the last
  };
  // An empty tensor has one empty part. 64 bits: whoever takes sizes from others compares with its own limit.
  std::uint64_t part_count(const Extent& tensor) const;
  // index < part_count(tensor).
  Part part(Key key, const Extent& tensor, std::uint64_t index) const;
  // Where part 0 is.
  ShardIndex first_shard(Key key) const;
  // An empty part has one empty frame.
  static std::uint32_t frame_count(const Part& part);

  std::uint64_t partition_bytes() const { return partition_bytes_; }
  // The longest frames of plain elements.
  std::uint64_t frame_bytes() const { return frame_bytes_; }
  std::uint32_t shard_count() const { return static_cast<std::uint32_t>(weights_.size()); }
  const std::vector<std::uint32_t>& weights() const { return weights_; }
  // So many shards as light as the lightest would have the weight of all; at least shard_count().
  std::uint64_t lightest_count() const;

 private:
  std::uint64_t part_bytes_of(Format format) const;
  std::uint64_t stripe_bytes_of(Format format) const {
    return stripe_bytes_[is_of_parts(format) ? 1 : 0];
  }
  std::uint64_t frame_bytes_of(const Extent& tensor) const;
  bool is_single_frames(std::uint64_t rest_bytes, std::uint64_t frame_bytes) const {
    return rest_bytes <= frame_bytes * weights_.size();
  }
  std::uint64_t start(const Extent& tensor, std::uint64_t first, std::uint64_t index) const;

  std::uint64_t partition_bytes_;
  std::uint64_t frame_bytes_;
  std::vector<std::uint32_t> weights_;  // in lowest terms
  std::vector<std::uint64_t> before_;   // sum of the weights before each shard, and of all
  std::uint32_t weight_max_ = 1;
  std::uint64_t stripe_bytes_[2] = {};  // of a full one; where parts are coded together
};

}  // namespace byteps
