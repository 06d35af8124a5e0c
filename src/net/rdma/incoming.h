// Incoming: the ring that the other side's device writes into, and the credit that goes back for what was read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "net/rdma/memory.h"
#include "net/rdma/outgoing.h"
#include "net/rdma/requests.h"
#include "net/rdma/window.h"
#include "net/way/ring.h"

namespace byteps::rdma {

class Incoming final : public way::RingIn {
 public:
  // depth: writes of the other side that there are receive entries for.
  Incoming(RingMemory ring, std::uint32_t depth, Outgoing& outgoing, const Requests& requests)
      : ring_(std::move(ring)),
        window_(ring_.bytes(), depth),
        outgoing_(outgoing),
        requests_(requests) {}

  const RingMemory& ring() const { return ring_; }
  // The other side says how far the ring is filled. False: that makes no sense.
  bool take(std::uint32_t immediate) { return window_.take(immediate); }
  void give_credit() {
    while (window_.owes_credit() && outgoing_.is_connected() && requests_.takes(1)) {
      outgoing_.send_credit(window_.give_credit());
    }
  }

  std::span<const std::byte> readable() override {
    seen_bytes_ = window_.position() + window_.readable();
    return {ring_.at(window_.position()), window_.readable()};
  }
  std::size_t readable_whole_bytes_max() const override { return ring_.bytes() / 2; }
  std::uint64_t position() const override { return window_.position(); }
  void skip(std::size_t bytes) override { window_.skip(bytes); }
  void release() override {
    window_.release();
    give_credit();
  }
  bool has_moved() const override { return window_.position() + window_.readable() != seen_bytes_; }

 private:
  const RingMemory ring_;
  ReceiveWindow window_;
  Outgoing& outgoing_;
  const Requests& requests_;
  std::uint64_t seen_bytes_ = 0;  // position up to which readable() has looked
};

}  // namespace byteps::rdma
