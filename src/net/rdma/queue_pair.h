// QueuePair: a reliable connection between two devices, with the queues that belong to it.
//
// The two sides tell each other a PeerInfo over their authenticated connection; then each connects its own pair to the
// other's. All requests are signaled, so completions of sends come one for each, in order.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "base/status.h"
#include "net/rdma/device.h"
#include "net/rdma/options.h"

namespace byteps::rdma {

// What the other side must know to reach us and to write into our ring. 64 bytes on the wire, little-endian:
//   0 u8 version, u8 InfiniBand (1) or Ethernet (0), u8 mtu, u8 0    4 u32 queue pair   8 u32 packet number
//  12 u16 lid, u16 0   16 gid   32 u64 address of the ring   40 u64 its bytes   48 u32 its key   52 u32 writes   56
// u64 0
struct PeerInfo {
  static constexpr std::size_t kBytes = 64;
  static constexpr std::uint8_t kVersion = 1;
  bool is_infiniband = false;
  std::uint8_t mtu = 0;
  std::uint32_t queue_pair = 0;
  std::uint32_t packet_number = 0;
  std::uint16_t lid = 0;
  GidBytes gid{};
  std::uint64_t ring_address = 0;
  std::uint64_t ring_bytes = 0;
  std::uint32_t ring_key = 0;
  std::uint32_t writes_max = 0;
  bool operator==(const PeerInfo&) const = default;
};
std::array<std::byte, PeerInfo::kBytes> encode(const PeerInfo& info);
// kDisconnected: what is said breaks a limit. kUnsupported: another version.
Result<PeerInfo> decode_peer_info(std::span<const std::byte> bytes);

// How long a device waits for an acknowledgement, as its exponent (4.096 us * 2^n), so that a peer is given up after
// about `unreachable_ns` with kRetries repeats. Not 7 repeats: Soft-RoCE takes that for "for ever".
inline constexpr std::uint8_t kRetries = 6;
std::uint8_t timeout_exponent(TimeNs unreachable_ns);

// abi::Completion::wr_id of what came in; that of requests is 0.
inline constexpr std::uint64_t kReceiveId = 1;

class QueuePair {
 public:
  static constexpr std::uint32_t kPiecesMax = 4;  // of a request
  // Ready to receive; see connect(). kSystem: the device refuses.
  static Result<QueuePair> create(Device& device, const Options& options,
                                  std::uint32_t receive_entries);
  QueuePair() = default;
  QueuePair(QueuePair&& other) noexcept;
  QueuePair& operator=(QueuePair&& other) noexcept;
  // Nothing is read or written by the device any more, on either side's behalf.
  ~QueuePair();

  // `queue`: as libibverbs names the queue pair or its completion queue.
  bool is_part(const void* queue) const { return queue == pair_ || queue == queue_; }
  std::uint32_t number() const { return pair_->qp_num; }
  std::uint32_t inline_bytes_max() const { return inline_bytes_max_; }
  std::uint32_t pieces_max() const { return pieces_max_; }
  // kSystem: the device refuses; kUnsupported: the other one is of another kind of network.
  Status connect(const PeerInfo& peer, std::uint32_t own_packet_number, const Options& options);

  Status post(abi::SendRequest& request);
  // So many writes with immediate data may come.
  Status post_receives(std::uint32_t count);
  // Fills `completions`; how many.
  Result<std::size_t> poll(std::span<abi::Completion> completions);
  // The next completion makes the device's completion descriptor readable. Poll once more after it.
  Status ask_for_event();

 private:
  Status change(abi::QpAttributes& attributes, std::uint32_t mask, const char* to);

  Device* device_ = nullptr;
  abi::CompletionQueue* queue_ = nullptr;
  abi::QueuePair* pair_ = nullptr;
  std::uint32_t inline_bytes_max_ = 0;
  std::uint32_t pieces_max_ = 1;
};

}  // namespace byteps::rdma
