// Link: the frames of one connection that go by RDMA, once both sides are connected. See net/tcp/link.h for frames.
//
// Each side has a ring in registered memory that the other one writes into. What it sends it first puts into a ring of
// its own, of the same size and at the same position; then the device writes from there into the other side's. One
// write for many small frames, its immediate data (window.h) says how far the ring is filled. So:
//
//   outbox → own ring (memcpy) → device → the other side's ring → view, or landing (memcpy)
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
#include "net/rdma/device.h"
#include "net/rdma/memory.h"
#include "net/rdma/options.h"
#include "net/rdma/queue_pair.h"
#include "net/rdma/window.h"
#include "net/tcp/link.h"
#include "net/tcp/outbox.h"

namespace byteps::rdma {

class Link final : public tcp::Link {
 public:
  // A half of it: what this side has. packet_number: any, below 2^24. kSystem: no memory, or the device refuses.
  static Result<std::unique_ptr<Link>> create(std::shared_ptr<Device> device,
                                              const Options& options, std::uint32_t packet_number);
  // What the other side is to be told.
  PeerInfo own_info() const;
  // What it has said. From here on it may write into our ring, and we into its. Errors as QueuePair::connect().
  Status connect(const PeerInfo& peer);
  const Device& device() const { return *device_; }
  // The device has failed, with all that uses it.
  void fail(const std::string& why);

  std::string text() const override;
  std::size_t ring_bytes() const override;
  bool is_rdma() const override { return true; }
  bool is_ready() const override { return sending_.bytes() != 0; }
  bool is_sending() const override {
    return failure_.is_ok() && !is_damaged_ && send_.is_sending();
  }
  void flush() override;
  Status failure() const override { return failure_; }
  void freeze() override;
  void begin_poll() override;
  bool arm(const tcp::Outbox& outbox) override;

 private:
  Link(std::shared_ptr<Device> device, const Options& options, std::uint32_t packet_number);

  std::size_t room() override;
  std::byte* place() override { return sending_.at(send_.filled()); }
  void publish(std::size_t bytes) override;
  std::size_t whole_bytes_max() const override { return sending_.bytes() / 2; }
  std::span<const std::byte> readable() override;
  std::size_t readable_whole_bytes_max() const override { return receiving_.bytes() / 2; }
  std::uint64_t position() const override { return receive_.position(); }
  void skip(std::size_t bytes) override { receive_.skip(bytes); }
  void release() override;
  bool has_moved() const override;
  bool is_broken() const override { return is_damaged_; }

  void look();  // takes completions
  void take(const abi::Completion& completion);
  void give_credit();
  void post(abi::SendRequest& request, std::uint64_t position);
  void post_write(std::uint64_t from, std::uint64_t to, bool tells);
  bool can_post(std::size_t count) const { return posted_.size() + count <= options_.send_depth; }
  void set_failure(Status why);

  // constant after connect()
  const std::shared_ptr<Device> device_;
  const Options options_;
  const std::uint32_t packet_number_;
  RingMemory receiving_;
  RingMemory sending_;
  PeerInfo peer_;

  SendWindow send_{0, 0};
  ReceiveWindow receive_;
  // Of each request that the device has not completed: the position that it writes up to.
  std::deque<std::uint64_t> posted_;
  std::uint64_t seen_bytes_ = 0;  // position up to which readable() has looked
  bool is_damaged_ = false;
  bool frozen_ = false;
  Status failure_;
  std::uint64_t asked_turn_ = 0;  // of the device's events, when an event was asked for
  // Last: destroyed first, so that nothing is read or written any more when the memory goes.
  QueuePair pair_;
};

}  // namespace byteps::rdma
