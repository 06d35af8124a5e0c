// Link: the frames of one connection that go by RDMA, once both sides are connected. See net/way/link.h for frames.
//
// Each side has a ring in registered memory that the other one writes into. What it sends it first puts into a ring of
// its own, of the same size and at the same position; then the device writes from there into the other side's. One
// write for many small frames, its immediate data (window.h) says how far the ring is filled. So:
//
//   outbox → own ring (memcpy) → device → the other side's ring → view, or landing (memcpy)
//
// A payload from memory that is registered (slabs.h), as a server's sums are, is not copied into the own ring: the
// device takes it from where it lies, between what is before and behind it in the ring. It is lent until the device
// has done.
//
// No landing is ever written by the other side's device, so nothing needs to be taken back from it when a landing is
// withdrawn (docs/design/0008-rdma.md).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "net/frame/outbox.h"
#include "net/rdma/device.h"
#include "net/rdma/memory.h"
#include "net/rdma/options.h"
#include "net/rdma/queue_pair.h"
#include "net/rdma/slabs.h"
#include "net/rdma/window.h"
#include "net/way/link.h"

namespace byteps::rdma {

class Link final : public way::Link {
 public:
  // A half of it: what this side has. slabs: memory from which nothing is copied, or null. packet_number: any, below
  // 2^24. kSystem: no memory, or the device refuses.
  static Result<std::unique_ptr<Link>> create(std::shared_ptr<Device> device,
                                              std::shared_ptr<const Slabs> slabs,
                                              const Options& options, std::uint32_t packet_number);
  // What the other side is to be told.
  PeerInfo own_info() const;
  // What it has said. From here on it may write into our ring, and we into its. Errors as QueuePair::connect().
  Status connect(const PeerInfo& peer);
  // Sends a probe, as long as the longest packet; the other side answers with one. TCP coming through says nothing of
  // RDMA: a filter on its UDP port, a wrong GID or VLAN, a switch with a small MTU stop that alone.
  void probe();
  const Device& device() const { return *device_; }
  // `queue`: what libibverbs says has failed; null: the device, with all that uses it.
  bool is_part(const void* queue) const { return queue == nullptr || pair_.is_part(queue); }
  void fail(const std::string& why);

  std::string text() const override;
  std::size_t ring_bytes() const override;
  bool is_rdma() const override { return true; }
  void stop() override;
  bool is_ready() const override { return sending_.bytes() != 0; }
  bool is_proven() const override { return probe_came_ && acknowledged_; }
  bool is_sending() const override {
    return failure_.is_ok() && !is_damaged_ && send_.is_sending() && loans_out_ == 0;
  }
  void flush() override;
  Status failure() const override { return failure_; }
  void freeze() override;
  void begin_poll() override;
  bool arm(const frame::Outbox& outbox) override;

 private:
  // A part of the sending ring that is somewhere else in truth.
  struct Loan {
    std::uint64_t begin, end;  // positions
    std::uint64_t address;
    std::uint32_t key;
  };
  // Requests that the device has not completed: the position that each writes up to, and the loans that end in it.
  struct Posted {
    std::uint64_t position;
    std::size_t loan_count;
  };

  Link(std::shared_ptr<Device> device, std::shared_ptr<const Slabs> slabs, const Options& options,
       std::uint32_t packet_number);

  std::size_t room() override;
  std::byte* place() override { return sending_.at(send_.filled()); }
  void publish(std::size_t bytes) override;
  std::size_t whole_bytes_max() const override { return sending_.bytes() / 2; }
  bool lend(std::span<const std::byte> payload, std::size_t offset) override;
  void frame_is_written() override { needed_.push_back(loaned_to_); }
  std::size_t take_unneeded() override;
  std::span<const std::byte> readable() override;
  std::size_t readable_whole_bytes_max() const override { return receiving_.bytes() / 2; }
  std::uint64_t position() const override { return receive_.position(); }
  void skip(std::size_t bytes) override { receive_.skip(bytes); }
  void release() override;
  bool has_moved() const override;
  bool is_broken() const override { return is_damaged_; }

  bool look();  // takes completions; whether there were any
  void take(const abi::Completion& completion);
  void give_credit();
  void post(abi::SendRequest& request, const Posted& posted);
  void post_write();
  bool can_write() const {
    return failure_.is_ok() && !frozen_ && is_ready() && send_.may_tell() && can_post(2);
  }
  bool can_post(std::size_t count) const { return posted_.size() + count <= options_.send_depth; }
  void set_failure(Status why);

  // constant after connect()
  const std::shared_ptr<Device> device_;
  const std::shared_ptr<const Slabs> slabs_;
  const Options options_;
  const std::uint32_t packet_number_;
  RingMemory receiving_;
  RingMemory sending_;
  PeerInfo peer_;

  SendWindow send_{0, 0};
  ReceiveWindow receive_;
  std::deque<Posted> posted_;
  std::deque<Loan> loans_;     // not posted to their end yet
  std::size_t loans_out_ = 0;  // those and the posted ones
  // Of each written frame that is still needed: the position behind the last loan before its end.
  std::deque<std::uint64_t> needed_;
  std::uint64_t loaned_to_ = 0;   // behind the last loan
  std::uint64_t seen_bytes_ = 0;  // position up to which readable() has looked
  bool probe_sent_ = false;
  bool probe_came_ = false;
  bool acknowledged_ = false;  // something that was sent
  bool is_damaged_ = false;
  bool frozen_ = false;
  Status failure_;
  std::uint64_t asked_turn_ = 0;  // of the device's events, when an event was asked for
  // Last: destroyed first, so that nothing is read or written any more when the memory goes.
  QueuePair pair_;
};

}  // namespace byteps::rdma
