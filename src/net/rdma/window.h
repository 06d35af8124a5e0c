// SendWindow and ReceiveWindow: the arithmetic of one direction between two rings. No device, no memory.
//
// A receiver has a ring that its sender writes into, from the front round and round. Positions count bytes since the
// beginning, in multiples of kUnitBytes. The two sides tell each other how far they are by the 32 bits of immediate
// data of a write, each of which also uses up one entry of the other side's receive queue:
//
//   bit 31  0: so many units more are in the ring         bits 0..30
//              none: a probe (net/rdma/link.h), once and before all else; it has an entry of its own in the queue
//           1: credit: so many units of the ring are free again   bits 0..20
//              and so many entries of the receive queue are new   bits 21..30
//
// Why a receive queue never runs dry (RNR). A sender writes only while writes_max of its writes are not yet credited.
// Credit is given when a quarter of the ring or of writes_max is to be given back, so at most four of each kind can be
// on the way before the other side has made use of one, or as many as it takes to name all writes: credits_max(). A
// receive queue has writes_max + credits_max().
//
// Why nothing waits for ever. A message that is written as a whole takes at most half a ring; a reader that has read
// all owes less than a quarter.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace byteps::rdma {

inline constexpr std::size_t kUnitBytes = 64;
inline constexpr std::uint32_t kProbe = 0;
inline constexpr std::uint32_t kCreditBit = 1U << 31;
inline constexpr std::uint32_t kCreditUnitsMax = (1U << 21) - 1;
inline constexpr std::uint32_t kCreditWritesMax = (1U << 10) - 1;

inline constexpr std::uint32_t credits_max(std::uint32_t writes_max) {
  return 4 + std::max(4U, writes_max / kCreditWritesMax + 1);
}
inline constexpr bool is_credit(std::uint32_t immediate) {
  return (immediate & kCreditBit) != 0;
}

class SendWindow {
 public:
  SendWindow(std::size_t ring_bytes, std::uint32_t writes_max)
      : ring_bytes_(ring_bytes), writes_max_(writes_max) {}

  std::size_t ring_bytes() const { return ring_bytes_; }
  // Where the next byte goes, and where the next one that was not told yet is.
  std::uint64_t filled() const { return filled_; }
  std::uint64_t told() const { return told_; }
  // What the other side has given back, and our own device has done with.
  std::size_t room() const {
    return ring_bytes_ - static_cast<std::size_t>(filled_ - std::min(freed_, done_));
  }
  void fill(std::size_t bytes) { filled_ += bytes; }

  // One more write may be told of.
  bool may_tell() const { return told_ != filled_ && uncredited_writes_ < writes_max_; }
  // Up to `position` is written with this as immediate data.
  std::uint32_t tell(std::uint64_t position) {
    const std::uint64_t units = (position - told_) / kUnitBytes;
    told_ = position;
    ++uncredited_writes_;
    return static_cast<std::uint32_t>(units);
  }
  // Not all that was filled in is with the other side.
  bool is_sending() const { return done_ != filled_; }
  // The device does not need the bytes before this position any more.
  void done(std::uint64_t position) { done_ = position; }
  std::uint64_t done() const { return done_; }

  // False: nothing, or more than there is to give back.
  bool take_credit(std::uint32_t immediate) {
    const std::uint64_t bytes = std::uint64_t{immediate & kCreditUnitsMax} * kUnitBytes;
    const std::uint32_t writes = (immediate >> 21) & kCreditWritesMax;
    if (bytes == 0 && writes == 0) return false;
    if (bytes > told_ - freed_ || writes > uncredited_writes_) return false;
    freed_ += bytes;
    uncredited_writes_ -= writes;
    return true;
  }

 private:
  std::size_t ring_bytes_;
  std::uint32_t writes_max_;
  std::uint64_t filled_ = 0;
  std::uint64_t told_ = 0;
  std::uint64_t done_ = 0;
  std::uint64_t freed_ = 0;
  std::uint32_t uncredited_writes_ = 0;
};

class ReceiveWindow {
 public:
  ReceiveWindow(std::size_t ring_bytes, std::uint32_t writes_max)
      : ring_bytes_(ring_bytes), writes_max_(writes_max) {}

  std::size_t ring_bytes() const { return ring_bytes_; }
  std::uint64_t position() const { return read_; }
  std::size_t readable() const { return static_cast<std::size_t>(arrived_ - read_); }
  void skip(std::size_t bytes) { read_ += bytes; }
  // All that was skipped may be overwritten.
  void release() { released_ = read_; }

  // The immediate data of a write. False: it is more than there was room for.
  bool take(std::uint32_t immediate) {
    const std::uint64_t bytes = std::uint64_t{immediate} * kUnitBytes;
    if (bytes == 0 || bytes > ring_bytes_ - (arrived_ - credited_)) return false;
    if (uncredited_writes_ == writes_max_) return false;
    arrived_ += bytes;
    ++uncredited_writes_;
    return true;
  }

  bool owes_credit() const {
    return released_ - credited_ >= ring_bytes_ / 4 || uncredited_writes_ >= writes_max_ / 4;
  }
  // The immediate data that gives it; what does not fit is still owed.
  std::uint32_t give_credit() {
    const std::uint64_t units =
        std::min<std::uint64_t>((released_ - credited_) / kUnitBytes, kCreditUnitsMax);
    const std::uint32_t writes = std::min(uncredited_writes_, kCreditWritesMax);
    credited_ += units * kUnitBytes;
    uncredited_writes_ -= writes;
    return kCreditBit | (writes << 21) | static_cast<std::uint32_t>(units);
  }

 private:
  const std::size_t ring_bytes_;
  const std::uint32_t writes_max_;
  std::uint64_t arrived_ = 0;
  std::uint64_t read_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t credited_ = 0;
  std::uint32_t uncredited_writes_ = 0;
};

}  // namespace byteps::rdma
