// Outgoing: the ring to the other side. What is written to it goes into a ring of our own first, of the same size and
// at the same position; then the device writes from there into the other side's. One write for many small frames.
//
// A payload from memory that is registered (net/rdma/slabs.h) is not copied into the own ring: the device takes it from
// where it lies, between what is before and behind it in the ring. It is lent until the device has done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>

#include "net/rdma/device.h"
#include "net/rdma/memory.h"
#include "net/rdma/queue_pair.h"
#include "net/rdma/requests.h"
#include "net/rdma/slabs.h"
#include "net/rdma/window.h"
#include "net/way/ring.h"

namespace byteps::rdma {

class Outgoing final : public way::RingOut {
 public:
  // slabs: null when nothing is sent from where it lies.
  Outgoing(const Device& device, std::shared_ptr<const Slabs> slabs, Requests& requests)
      : device_(device), slabs_(std::move(slabs)), requests_(requests) {}

  // `ring`: our own, of the size of the other side's.
  void connect(RingMemory ring, const PeerInfo& peer);
  bool is_connected() const { return ring_.bytes() != 0; }
  std::size_t bytes() const { return ring_.bytes(); }
  // Something is under way that is not lent.
  bool is_sending() const { return window_.is_sending() && loans_out_ == 0; }

  // The device writes what was filled in since the last time. What finds no place in its queue waits for completions.
  void flush();
  // As long as the longest packet.
  void send_probe();
  void send_credit(std::uint32_t immediate);
  // The device has completed the oldest request.
  void completed();
  // What the other side says it has read. False: that makes no sense.
  bool take_credit(std::uint32_t immediate) { return window_.take_credit(immediate); }

  std::size_t room() override { return requests_.failure().is_ok() ? window_.room() : 0; }
  std::byte* place() override { return ring_.at(window_.filled()); }
  void publish(std::size_t bytes) override;
  std::size_t writable_whole_bytes_max() const override { return ring_.bytes() / 2; }
  bool lend(std::span<const std::byte> payload, std::size_t offset) override;
  void frame_is_written() override { needed_.push_back(loaned_to_); }
  std::size_t take_unneeded(std::size_t written) override;

 private:
  // A part of the ring that is somewhere else in truth.
  struct Loan {
    std::uint64_t begin, end;  // positions
    std::uint64_t address;
    std::uint32_t key;
  };
  bool can_write() const { return is_connected() && window_.may_tell() && requests_.takes(2); }
  void post_write();
  abi::SendRequest request(std::uint32_t immediate, std::uint64_t position) const;

  const Device& device_;
  const std::shared_ptr<const Slabs> slabs_;
  Requests& requests_;
  RingMemory ring_;
  std::uint64_t remote_address_ = 0;  // of the other side's ring
  std::uint32_t remote_key_ = 0;
  SendWindow window_{0, 0};

  std::deque<Loan> loans_;     // not posted to their end yet
  std::size_t loans_out_ = 0;  // those and the posted ones
  // Of each written frame that is still needed: the position behind the last loan before its end.
  std::deque<std::uint64_t> needed_;
  std::uint64_t loaned_to_ = 0;  // behind the last loan
};

}  // namespace byteps::rdma
