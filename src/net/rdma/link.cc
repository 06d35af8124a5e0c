#include "net/rdma/link.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include <arpa/inet.h>

#include "base/check.h"

namespace byteps::rdma {
namespace {

constexpr std::size_t kCompletionsPerLook = 64;
constexpr int kLooksMax = 16;  // in a row: others have work, too
constexpr std::size_t kEntriesMax =
    4 * std::size_t{RdmaConfig::kDepthMax};  // of a completion queue

}  // namespace

Link::Link(std::shared_ptr<Device> of, std::shared_ptr<const Slabs> slabs, const Options& options,
           std::uint32_t packet_number, RingMemory ring, QueuePair pair)
    : Rings(std::move(of), std::move(slabs), options, std::move(ring), std::move(pair)),
      way::Link(outgoing, incoming),
      options_(options),
      packet_number_(packet_number) {
  device->add_user(*this);
}

Link::~Link() {
  device->remove_user(*this);
}

Result<std::unique_ptr<Link>> Link::create(std::shared_ptr<Device> of,
                                           std::shared_ptr<const Slabs> slabs,
                                           const Options& options, std::uint32_t packet_number) {
  Result<RingMemory> ring = RingMemory::create(*of, options.ring_bytes, true);
  if (!ring.is_ok()) return ring.status();
  // The probe; and the other side may give credit for as many writes as its own queue has entries.
  const std::uint32_t entries = options.receive_depth + credits_max(RdmaConfig::kDepthMax) + 1;
  Result<QueuePair> pair = QueuePair::create(*of, options, entries);
  if (!pair.is_ok()) return pair.status();
  return std::unique_ptr<Link>(new Link(std::move(of), std::move(slabs), options, packet_number,
                                        std::move(ring).value(), std::move(pair).value()));
}

PeerInfo Link::own_info() const {
  PeerInfo info;
  info.is_infiniband = device->port().is_infiniband;
  info.mtu = static_cast<std::uint8_t>(device->port().mtu);
  info.queue_pair = requests.pair().number();
  info.packet_number = packet_number_;
  info.lid = device->port().lid;
  info.gid = device->gid().gid;
  info.ring_address = reinterpret_cast<std::uintptr_t>(incoming.ring().begin());
  info.ring_bytes = incoming.ring().bytes();
  info.ring_key = incoming.ring().remote_key();
  info.writes_max = options_.receive_depth;
  return info;
}

Status Link::connect(const PeerInfo& peer) {
  CHECK(!is_ready());
  Result<RingMemory> ring = RingMemory::create(*device, peer.ring_bytes, false);
  if (!ring.is_ok()) return ring.status();
  Status status = requests.pair().connect(peer, packet_number_, options_);
  if (status.is_ok()) outgoing.connect(std::move(ring).value(), peer);
  return status;
}

void Link::probe() {
  if (!std::exchange(probe_sent_, true)) outgoing.send_probe();
}

std::string Link::text() const {
  return "RDMA on " + device->text() + ", GID " + std::to_string(device->gid().index) +
         ", rings of " + std::to_string(incoming.ring().bytes() >> 10) + " KiB";
}

std::size_t Link::ring_bytes() const {
  return std::min(incoming.ring().bytes(), outgoing.bytes());
}

void Link::fail(const std::string& why) {
  requests.fail({Code::kDisconnected, "RDMA device " + device->text() + ": " + why});
}

void Link::freeze() {
  // At most as many as there can be: the other side may go on.
  for (std::size_t seen = 0; seen < kEntriesMax && look();
       seen += kLooksMax * kCompletionsPerLook) {
  }
  requests.freeze();
}

void Link::begin_poll() {
  way::Link::begin_poll();
  look();
  flush();
}

// ---- completions

bool Link::look() {
  std::array<abi::Completion, kCompletionsPerLook> completions;
  bool found = false;
  for (int looks = 0; looks < kLooksMax; ++looks) {
    if (requests.is_frozen() || !requests.failure().is_ok() || is_damaged_) return found;
    const Result<std::size_t> count = requests.pair().poll(completions);
    if (!count.is_ok()) {
      requests.fail(count.status());
      return true;
    }
    found |= count.value() > 0;
    std::uint32_t receives = 0;
    for (const abi::Completion& completion : std::span(completions).first(count.value())) {
      if (!requests.failure().is_ok()) return true;
      if (completion.wr_id == kReceiveId) ++receives;
      take(completion);
    }
    // Before anything is credited: the other side counts on them.
    if (Status status = requests.pair().post_receives(receives); !status.is_ok()) {
      requests.fail(std::move(status));
    }
    if (count.value() < completions.size()) break;
  }
  incoming.give_credit();
  return found;
}

void Link::take(const abi::Completion& completion) {
  if (completion.status != abi::kWcSuccess) return take_error(completion);
  if (completion.wr_id != kReceiveId) {
    acknowledged_ = true;
    return outgoing.completed();
  }
  if ((completion.wc_flags & abi::kWcWithImm) == 0) {
    is_damaged_ = true;
    return;
  }
  const std::uint32_t immediate = ntohl(completion.imm_data);
  if (immediate == kProbe) {
    is_damaged_ |= reads() || std::exchange(probe_came_, true);
    return probe();
  }
  const bool makes_sense =
      is_credit(immediate) ? outgoing.take_credit(immediate) : incoming.take(immediate);
  is_damaged_ |= !makes_sense;
}

void Link::take_error(const abi::Completion& completion) {
  const bool no_answer = completion.status == abi::kWcRetryExceeded;
  const char* const what = device->verbs().wc_status_str(completion.status);
  requests.fail({no_answer ? Code::kTimeout : Code::kDisconnected,
                 "RDMA on " + device->text() +
                     " failed: " + (what == nullptr ? "unknown status" : what) + " (" +
                     std::to_string(completion.status) + ")" +
                     (no_answer ? "; its machine or the way there is gone" : "")});
}

// ---- sleeping

bool Link::arm(const frame::Outbox& /*outbox*/, bool /*is_patient*/) {
  if (!requests.failure().is_ok() || is_damaged_) return true;
  const std::uint64_t turn = device->completion_turn();
  if (asked_turn_ != turn) {
    if (Status status = requests.pair().ask_for_event(); !status.is_ok()) {
      requests.fail(std::move(status));
    }
    asked_turn_ = turn;
  }
  const bool found = look();  // what completed before it asked
  flush();
  return found || has_input() || !requests.failure().is_ok();
}

}  // namespace byteps::rdma
