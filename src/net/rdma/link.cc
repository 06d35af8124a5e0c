#include "net/rdma/link.h"

#include <algorithm>
#include <utility>

#include <arpa/inet.h>

#include "base/check.h"

namespace byteps::rdma {
namespace {

constexpr std::size_t kCompletionsPerLook = 64;
constexpr int kLooksMax = 16;  // in a row: others have work, too
constexpr std::size_t kEntriesMax =
    4 * std::size_t{RdmaConfig::kDepthMax};  // of a completion queue
constexpr std::uint32_t kProbeBytes = 4096;
constexpr std::size_t kWriteBytes = 64 << 10;   // told of at the latest, while more is written
constexpr std::size_t kLoanBytesMin = 4 << 10;  // shorter payloads are copied

}  // namespace

Link::Link(std::shared_ptr<Device> device, std::shared_ptr<const Slabs> slabs,
           const Options& options, std::uint32_t packet_number)
    : device_(std::move(device)),
      slabs_(std::move(slabs)),
      options_(options),
      packet_number_(packet_number),
      receive_(options.ring_bytes, options.receive_depth) {}

Result<std::unique_ptr<Link>> Link::create(std::shared_ptr<Device> device,
                                           std::shared_ptr<const Slabs> slabs,
                                           const Options& options, std::uint32_t packet_number) {
  std::unique_ptr<Link> link(new Link(std::move(device), std::move(slabs), options, packet_number));
  Result<RingMemory> ring = RingMemory::create(*link->device_, options.ring_bytes, true);
  if (!ring.is_ok()) return ring.status();
  link->receiving_ = std::move(ring).value();
  // The probe; and the other side may give credit for as many writes as its own queue has entries.
  const std::uint32_t entries = options.receive_depth + credits_max(RdmaConfig::kDepthMax) + 1;
  Result<QueuePair> pair = QueuePair::create(*link->device_, options, entries);
  if (!pair.is_ok()) return pair.status();
  link->pair_ = std::move(pair).value();
  return link;
}

PeerInfo Link::own_info() const {
  PeerInfo info;
  info.is_infiniband = device_->port().is_infiniband;
  info.mtu = static_cast<std::uint8_t>(device_->port().mtu);
  info.queue_pair = pair_.number();
  info.packet_number = packet_number_;
  info.lid = device_->port().lid;
  info.gid = device_->gid().gid;
  info.ring_address = reinterpret_cast<std::uintptr_t>(receiving_.begin());
  info.ring_bytes = receiving_.bytes();
  info.ring_key = receiving_.remote_key();
  info.writes_max = options_.receive_depth;
  return info;
}

Status Link::connect(const PeerInfo& peer) {
  CHECK(!is_ready());
  Result<RingMemory> ring = RingMemory::create(*device_, peer.ring_bytes, false);
  if (!ring.is_ok()) return ring.status();
  if (Status status = pair_.connect(peer, packet_number_, options_); !status.is_ok()) return status;
  sending_ = std::move(ring).value();
  send_ = SendWindow(peer.ring_bytes, peer.writes_max);
  peer_ = peer;
  return Status::ok();
}

void Link::probe() {
  if (std::exchange(probe_sent_, true)) return;
  abi::Piece piece{reinterpret_cast<std::uintptr_t>(sending_.begin()), kProbeBytes,
                   sending_.local_key()};
  abi::SendRequest request{};
  request.sg_list = &piece;
  request.num_sge = 1;
  request.opcode = abi::kWrWriteWithImm;
  request.send_flags = abi::kSendSignaled;
  request.imm_data = htonl(kProbe);
  request.remote_addr = peer_.ring_address;
  request.rkey = peer_.ring_key;
  post(request, {0, 0});
}

std::string Link::text() const {
  return "RDMA on " + device_->text() + ", GID " + std::to_string(device_->gid().index) +
         ", rings of " + std::to_string(receiving_.bytes() >> 10) + " KiB";
}

std::size_t Link::ring_bytes() const {
  return std::min(receiving_.bytes(), sending_.bytes());
}

void Link::fail(const std::string& why) {
  set_failure({Code::kDisconnected, "RDMA device " + device_->text() + ": " + why});
}

void Link::set_failure(Status why) {
  if (failure_.is_ok()) failure_ = std::move(why);
}

// ---- writing

std::size_t Link::room() {
  return failure_.is_ok() ? send_.room() : 0;
}

void Link::publish(std::size_t bytes) {
  send_.fill(bytes);
  if (send_.filled() - send_.told() >= kWriteBytes) flush();
}

bool Link::lend(std::span<const std::byte> payload, std::size_t offset) {
  if (slabs_ == nullptr || payload.size() < kLoanBytesMin || pair_.pieces_max() < 2) return false;
  const std::optional<std::uint32_t> key = slabs_->key(*device_, payload);
  if (!key) return false;
  const std::uint64_t begin = send_.filled() + offset;
  loaned_to_ = begin + payload.size();
  loans_.push_back({begin, loaned_to_, reinterpret_cast<std::uintptr_t>(payload.data()), *key});
  ++loans_out_;
  return true;
}

std::size_t Link::take_unneeded() {
  std::size_t count = 0;
  for (; !needed_.empty() && needed_.front() <= send_.done(); ++count) needed_.pop_front();
  return count;
}

// The device writes what was filled in since the last time. What finds no place in its queue waits for completions.
void Link::flush() {
  while (can_write()) post_write();
}

// One request: as far as the end of the ring, or as its number of pieces goes.
void Link::post_write() {
  const std::uint64_t from = send_.told();
  const std::uint64_t ring_end = (from / sending_.bytes() + 1) * sending_.bytes();
  const std::uint64_t limit = std::min(send_.filled(), ring_end);
  const std::size_t pieces_max = pair_.pieces_max();
  std::array<abi::Piece, QueuePair::kPiecesMax> pieces;
  std::size_t count = 0;
  std::size_t loan_count = 0;  // that end here
  std::uint64_t position = from;
  while (position < limit && count < pieces_max) {
    const Loan* const loan = loan_count < loans_.size() ? &loans_[loan_count] : nullptr;
    const bool is_lent = loan != nullptr && loan->begin <= position;
    const std::uint64_t end = std::min(limit, loan == nullptr ? limit
                                              : is_lent       ? loan->end
                                                              : loan->begin);
    // What is told of is in units: behind a payload comes the rest of its last one.
    if (is_lent && end % kUnitBytes != 0 && count + 2 > pieces_max) break;
    const auto own = reinterpret_cast<std::uintptr_t>(sending_.at(position));
    pieces[count++] = {is_lent ? loan->address + (position - loan->begin) : own,
                       static_cast<std::uint32_t>(end - position),
                       is_lent ? loan->key : sending_.local_key()};
    if (is_lent && end == loan->end) ++loan_count;
    position = end;
  }
  abi::SendRequest request{};
  request.sg_list = pieces.data();
  request.num_sge = static_cast<int>(count);
  request.opcode = abi::kWrWriteWithImm;
  request.send_flags = abi::kSendSignaled;
  if (position - from <= pair_.inline_bytes_max()) request.send_flags |= abi::kSendInline;
  request.imm_data = htonl(send_.tell(position));
  request.remote_addr = peer_.ring_address + from % sending_.bytes();
  request.rkey = peer_.ring_key;
  loans_.erase(loans_.begin(), loans_.begin() + static_cast<std::ptrdiff_t>(loan_count));
  post(request, {position, loan_count});
}

void Link::post(abi::SendRequest& request, const Posted& posted) {
  if (Status status = pair_.post(request); !status.is_ok()) return set_failure(std::move(status));
  posted_.push_back(posted);
}

void Link::stop() {
  pair_ = QueuePair();
  frozen_ = true;
}

// ---- reading

std::span<const std::byte> Link::readable() {
  seen_bytes_ = receive_.position() + receive_.readable();
  return {receiving_.at(receive_.position()), receive_.readable()};
}

bool Link::has_moved() const {
  return receive_.position() + receive_.readable() != seen_bytes_;
}

void Link::release() {
  receive_.release();
  give_credit();
}

void Link::give_credit() {
  while (receive_.owes_credit() && !frozen_ && is_ready() && failure_.is_ok() && can_post(1)) {
    abi::SendRequest request{};
    request.opcode = abi::kWrWriteWithImm;
    request.send_flags = abi::kSendSignaled;
    request.imm_data = htonl(receive_.give_credit());
    request.remote_addr = peer_.ring_address;
    request.rkey = peer_.ring_key;
    post(request, {send_.told(), 0});
  }
}

void Link::freeze() {
  // At most as many as there can be: the other side may go on.
  for (std::size_t seen = 0; seen < kEntriesMax && look();
       seen += kLooksMax * kCompletionsPerLook) {
  }
  frozen_ = true;
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
    if (frozen_ || !failure_.is_ok() || is_damaged_) return found;
    const Result<std::size_t> count = pair_.poll(completions);
    if (!count.is_ok()) {
      set_failure(count.status());
      return true;
    }
    found |= count.value() > 0;
    std::uint32_t receives = 0;
    for (const abi::Completion& completion : std::span(completions).first(count.value())) {
      if (!failure_.is_ok()) return true;
      if (completion.wr_id == kReceiveId) ++receives;
      take(completion);
    }
    // Before anything is credited: the other side counts on them.
    if (Status status = pair_.post_receives(receives); !status.is_ok()) {
      set_failure(std::move(status));
    }
    if (count.value() < completions.size()) break;
  }
  give_credit();
  return found;
}

void Link::take(const abi::Completion& completion) {
  if (completion.status != abi::kWcSuccess) {
    const bool no_answer = completion.status == abi::kWcRetryExceeded;
    const char* const what = device_->verbs().wc_status_str(completion.status);
    return set_failure({no_answer ? Code::kTimeout : Code::kDisconnected,
                        "RDMA on " + device_->text() +
                            " failed: " + (what == nullptr ? "unknown status" : what) + " (" +
                            std::to_string(completion.status) + ")" +
                            (no_answer ? "; its machine or the way there is gone" : "")});
  }
  if (completion.wr_id != kReceiveId) {
    CHECK(!posted_.empty());
    acknowledged_ = true;
    send_.done(posted_.front().position);
    loans_out_ -= posted_.front().loan_count;
    posted_.pop_front();
    return;
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
      is_credit(immediate) ? send_.take_credit(immediate) : receive_.take(immediate);
  is_damaged_ |= !makes_sense;
}

// ---- sleeping

bool Link::arm(const frame::Outbox& /*outbox*/) {
  if (!failure_.is_ok() || is_damaged_) return true;
  const std::uint64_t turn = device_->completion_turn();
  if (asked_turn_ != turn) {
    if (Status status = pair_.ask_for_event(); !status.is_ok()) set_failure(std::move(status));
    asked_turn_ = turn;
  }
  const bool found = look();  // what completed before it asked
  flush();
  return found || has_input() || !failure_.is_ok();
}

}  // namespace byteps::rdma
