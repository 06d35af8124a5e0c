// Link: the frames of one connection that go by RDMA, once both sides are connected. See net/way/link.h for frames.
//
// Each side has a ring in registered memory that the other one writes into. What it sends it first puts into a ring of
// its own (outgoing.h); the immediate data of a write (window.h) says how far the other side's ring is filled. So:
//
//   outbox → own ring (memcpy) → device → the other side's ring (incoming.h) → view
//
// The other side's device writes into that ring only (docs/design/0008-rdma.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "net/rdma/device.h"
#include "net/rdma/incoming.h"
#include "net/rdma/memory.h"
#include "net/rdma/options.h"
#include "net/rdma/outgoing.h"
#include "net/rdma/queue_pair.h"
#include "net/rdma/requests.h"
#include "net/rdma/slabs.h"
#include "net/way/link.h"

namespace byteps::rdma {

// What a link has of the device.
struct Rings {
  Rings(std::shared_ptr<Device> of, std::shared_ptr<const Slabs> slabs, const Options& options,
        RingMemory ring, QueuePair pair)
      : device(std::move(of)),
        outgoing(*device, std::move(slabs), requests),
        incoming(std::move(ring), options.receive_depth, outgoing, requests),
        requests(std::move(pair), options.send_depth) {}

  const std::shared_ptr<Device> device;
  Outgoing outgoing;
  Incoming incoming;
  // Last: destroyed first, so that nothing is read or written any more when the memory goes.
  Requests requests;
};

class Link final : private Device::User, private Rings, public way::Link {
 public:
  // A half of it: what this side has. slabs: memory from which nothing is copied, or null. packet_number: any, below
  // 2^24. kSystem: no memory, or the device refuses.
  static Result<std::unique_ptr<Link>> create(std::shared_ptr<Device> of,
                                              std::shared_ptr<const Slabs> slabs,
                                              const Options& options, std::uint32_t packet_number);
  ~Link() override;
  // What the other side is to be told.
  PeerInfo own_info() const;
  // What it has said. From here on it may write into our ring, and we into its. Errors as QueuePair::connect().
  Status connect(const PeerInfo& peer);
  // Sends a probe, as long as the longest packet; the other side answers with one. TCP coming through says nothing of
  // RDMA: a filter on its UDP port, a wrong GID or VLAN, a switch with a small MTU stop that alone.
  void probe();

  std::string text() const override;
  std::size_t ring_bytes() const override;
  std::uint64_t& share_of(Transport::Ways& ways) const override { return ways.rdma_bytes; }
  void stop() override { requests.stop(); }
  bool is_ready() const override { return outgoing.is_connected(); }
  bool is_proven() const override { return probe_came_ && acknowledged_; }
  bool is_sending() const override {
    return requests.failure().is_ok() && !is_damaged_ && outgoing.is_sending();
  }
  void flush() override { outgoing.flush(); }
  Status failure() const override { return requests.failure(); }
  void freeze() override;
  void begin_poll() override;
  bool arm(const frame::Outbox& outbox, bool is_patient) override;

 private:
  Link(std::shared_ptr<Device> of, std::shared_ptr<const Slabs> slabs, const Options& options,
       std::uint32_t packet_number, RingMemory ring, QueuePair pair);

  bool has(const void* queue) const override { return requests.pair().is_part(queue); }
  void fail(const std::string& why) override;
  bool is_broken() const override { return is_damaged_; }

  bool look();  // takes completions; whether there were any
  void take(const abi::Completion& completion);
  void take_error(const abi::Completion& completion);

  const Options options_;
  const std::uint32_t packet_number_;
  bool probe_sent_ = false;
  bool probe_came_ = false;
  bool acknowledged_ = false;  // something that was sent
  bool is_damaged_ = false;
  std::uint64_t asked_turn_ = 0;  // of the device's events, when an event was asked for
};

}  // namespace byteps::rdma
