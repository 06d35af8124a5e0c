#include "net/rdma/outgoing.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include <arpa/inet.h>

namespace byteps::rdma {
namespace {

constexpr std::uint32_t kProbeBytes = 4096;
constexpr std::size_t kWriteBytes = 64 << 10;   // told of at the latest, while more is written
constexpr std::size_t kLoanBytesMin = 4 << 10;  // shorter payloads are copied

}  // namespace

void Outgoing::connect(RingMemory ring, const PeerInfo& peer) {
  ring_ = std::move(ring);
  window_ = SendWindow(peer.ring_bytes, peer.writes_max);
  remote_address_ = peer.ring_address;
  remote_key_ = peer.ring_key;
}

// A write into the other side's ring; of nothing, as long as it has no pieces.
abi::SendRequest Outgoing::request(std::uint32_t immediate, std::uint64_t position) const {
  abi::SendRequest request{};
  request.opcode = abi::kWrWriteWithImm;
  request.send_flags = abi::kSendSignaled;
  request.imm_data = htonl(immediate);
  request.remote_addr = remote_address_ + position % ring_.bytes();
  request.rkey = remote_key_;
  return request;
}

void Outgoing::send_probe() {
  abi::Piece piece{reinterpret_cast<std::uintptr_t>(ring_.begin()), kProbeBytes, ring_.local_key()};
  abi::SendRequest probe = request(kProbe, 0);
  probe.sg_list = &piece;
  probe.num_sge = 1;
  requests_.post(probe, {0, 0});
}

void Outgoing::send_credit(std::uint32_t immediate) {
  abi::SendRequest credit = request(immediate, 0);
  requests_.post(credit, {window_.told(), 0});
}

void Outgoing::completed() {
  const Requests::Posted posted = requests_.complete();
  window_.done(posted.position);
  loans_out_ -= posted.loan_count;
}

void Outgoing::publish(std::size_t bytes) {
  window_.fill(bytes);
  if (window_.filled() - window_.told() >= kWriteBytes) flush();
}

bool Outgoing::lend(std::span<const std::byte> payload, std::size_t offset) {
  if (slabs_ == nullptr || payload.size() < kLoanBytesMin || requests_.pair().pieces_max() < 2) {
    return false;
  }
  const std::optional<std::uint32_t> key = slabs_->key(device_, payload);
  if (!key) return false;
  const std::uint64_t begin = window_.filled() + offset;
  loaned_to_ = begin + payload.size();
  loans_.push_back({begin, loaned_to_, reinterpret_cast<std::uintptr_t>(payload.data()), *key});
  ++loans_out_;
  return true;
}

std::size_t Outgoing::take_unneeded(std::size_t /*written*/) {
  std::size_t count = 0;
  for (; !needed_.empty() && needed_.front() <= window_.done(); ++count) needed_.pop_front();
  return count;
}

void Outgoing::flush() {
  while (can_write()) post_write();
}

// One request: as far as the end of the ring, or as its number of pieces goes.
void Outgoing::post_write() {
  const std::uint64_t from = window_.told();
  const std::uint64_t ring_end = (from / ring_.bytes() + 1) * ring_.bytes();
  const std::uint64_t limit = std::min(window_.filled(), ring_end);
  const std::size_t pieces_max = requests_.pair().pieces_max();
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
    const auto own = reinterpret_cast<std::uintptr_t>(ring_.at(position));
    pieces[count++] = {is_lent ? loan->address + (position - loan->begin) : own,
                       static_cast<std::uint32_t>(end - position),
                       is_lent ? loan->key : ring_.local_key()};
    if (is_lent && end == loan->end) ++loan_count;
    position = end;
  }
  abi::SendRequest write = request(window_.tell(position), from);
  write.sg_list = pieces.data();
  write.num_sge = static_cast<int>(count);
  if (position - from <= requests_.pair().inline_bytes_max()) write.send_flags |= abi::kSendInline;
  loans_.erase(loans_.begin(), loans_.begin() + static_cast<std::ptrdiff_t>(loan_count));
  requests_.post(write, {position, loan_count});
}

}  // namespace byteps::rdma
