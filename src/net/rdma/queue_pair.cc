#include "net/rdma/queue_pair.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "net/rdma/memory.h"

namespace byteps::rdma {
namespace {

constexpr std::uint32_t kInlineBytes = 256;
constexpr std::uint32_t kReceiveBatch = 64;
constexpr std::uint8_t kHopLimit = 64;
constexpr std::uint8_t kRnrTimer = 12;  // 0.64 ms; never used, see window.h
constexpr std::uint8_t kRnrRetries = 6;
constexpr std::uint32_t kNumberMax = (1U << 24) - 1;

template <typename Number>
void put(std::array<std::byte, PeerInfo::kBytes>& bytes, std::size_t at, Number number) {
  for (std::size_t i = 0; i < sizeof number; ++i) {
    bytes[at + i] = static_cast<std::byte>(static_cast<std::uint64_t>(number) >> (8 * i));
  }
}

template <typename Number>
Number get(std::span<const std::byte> bytes, std::size_t at) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof(Number); ++i) {
    number |= std::to_integer<std::uint64_t>(bytes[at + i]) << (8 * i);
  }
  return static_cast<Number>(number);
}

}  // namespace

std::array<std::byte, PeerInfo::kBytes> encode(const PeerInfo& info) {
  std::array<std::byte, PeerInfo::kBytes> bytes{};
  put(bytes, 0, PeerInfo::kVersion);
  put(bytes, 1, static_cast<std::uint8_t>(info.is_infiniband ? 1 : 0));
  put(bytes, 2, info.mtu);
  put(bytes, 4, info.queue_pair);
  put(bytes, 8, info.packet_number);
  put(bytes, 12, info.lid);
  std::memcpy(bytes.data() + 16, info.gid.data(), info.gid.size());
  put(bytes, 32, info.ring_address);
  put(bytes, 40, info.ring_bytes);
  put(bytes, 48, info.ring_key);
  put(bytes, 52, info.writes_max);
  return bytes;
}

Result<PeerInfo> decode_peer_info(std::span<const std::byte> bytes) {
  const auto wrong = [](const char* what) {
    return Status(Code::kDisconnected, std::string("it offers RDMA with a wrong ") + what);
  };
  if (bytes.size() != PeerInfo::kBytes) return wrong("length");
  if (get<std::uint8_t>(bytes, 0) != PeerInfo::kVersion) {
    return Status(Code::kUnsupported, "it speaks another version of RDMA");
  }
  PeerInfo info;
  info.is_infiniband = get<std::uint8_t>(bytes, 1) != 0;
  info.mtu = get<std::uint8_t>(bytes, 2);
  info.queue_pair = get<std::uint32_t>(bytes, 4);
  info.packet_number = get<std::uint32_t>(bytes, 8);
  info.lid = get<std::uint16_t>(bytes, 12);
  std::memcpy(info.gid.data(), bytes.data() + 16, info.gid.size());
  info.ring_address = get<std::uint64_t>(bytes, 32);
  info.ring_bytes = get<std::uint64_t>(bytes, 40);
  info.ring_key = get<std::uint32_t>(bytes, 48);
  info.writes_max = get<std::uint32_t>(bytes, 52);
  if (info.mtu < 1 || info.mtu > 5) return wrong("mtu");
  if (info.queue_pair > kNumberMax || info.packet_number > kNumberMax) return wrong("number");
  if (!is_ring_size(info.ring_bytes)) return wrong("ring");
  if (info.writes_max < RdmaConfig::kReceiveDepthMin || info.writes_max > RdmaConfig::kDepthMax)
    return wrong("depth");
  return info;
}

std::uint8_t timeout_exponent(TimeNs unreachable_ns) {
  std::uint8_t exponent = 8;
  while (exponent < 22 && (TimeNs{4096} << (exponent + 1)) * (kRetries + 1) <= unreachable_ns) {
    ++exponent;
  }
  return exponent;
}

Result<QueuePair> QueuePair::create(Device& device, const Options& options,
                                    std::uint32_t receive_entries) {
  const Verbs& verbs = device.verbs();
  const auto failed = [&](const std::string& what, int error_number) {
    return system_error("RDMA device " + device.text() + ": " + what, error_number);
  };
  QueuePair pair;
  pair.device_ = &device;
  const int entries = static_cast<int>(options.send_depth + receive_entries);
  pair.queue_ = verbs.create_cq(device.context(), entries, nullptr, device.channel(), 0);
  const auto depths = [](const char* what) {
    return std::string(what) +
           " (BYTEPS_RDMA_RX_DEPTH and BYTEPS_RDMA_MAX_CONCURR_WR may ask too much of it)";
  };
  if (pair.queue_ == nullptr) return failed(depths("ibv_create_cq"), errno);
  pair.pieces_max_ =
      std::min(kPiecesMax, static_cast<std::uint32_t>(std::max(1, device.limits().max_sge)));
  for (const std::uint32_t inline_bytes : {kInlineBytes, 0U}) {
    abi::QpInitAttributes attributes{};
    attributes.send_cq = attributes.recv_cq = pair.queue_;
    attributes.qp_type = abi::kQpReliable;
    attributes.sq_sig_all = 1;
    attributes.cap = {options.send_depth, receive_entries, pair.pieces_max_, 1, inline_bytes};
    pair.pair_ = verbs.create_qp(device.domain(), &attributes);
    pair.inline_bytes_max_ = pair.pair_ == nullptr ? 0 : attributes.cap.max_inline_data;
    if (pair.pair_ != nullptr) break;
  }
  if (pair.pair_ == nullptr) {
    return failed(depths("ibv_create_qp"), errno);
  }
  abi::QpAttributes attributes{};
  attributes.qp_state = abi::kQpInit;
  attributes.port_num = static_cast<std::uint8_t>(device.port().number);
  attributes.qp_access_flags = abi::kAccessRemoteWrite;
  Status status = pair.change(
      attributes, abi::kMaskState | abi::kMaskPkeyIndex | abi::kMaskPort | abi::kMaskAccess,
      "INIT");
  if (status.is_ok()) status = pair.post_receives(receive_entries);
  if (!status.is_ok()) return status;
  return pair;
}

Status QueuePair::change(abi::QpAttributes& attributes, std::uint32_t mask, const char* to) {
  const int failed = device_->verbs().modify_qp(pair_, &attributes, static_cast<int>(mask));
  if (failed == 0) return Status::ok();
  return system_error("RDMA device " + device_->text() + ": ibv_modify_qp to " + to, failed);
}

Status QueuePair::connect(const PeerInfo& peer, std::uint32_t own_packet_number,
                          const Options& options) {
  if (peer.is_infiniband != device_->port().is_infiniband) {
    return {Code::kUnsupported,
            "its RDMA device is on another kind of network than " + device_->text()};
  }
  abi::QpAttributes to_receive{};
  to_receive.qp_state = abi::kQpRtr;
  to_receive.path_mtu = std::min<std::uint32_t>(peer.mtu, device_->port().mtu);
  to_receive.dest_qp_num = peer.queue_pair;
  to_receive.rq_psn = peer.packet_number;
  to_receive.max_dest_rd_atomic = 1;
  to_receive.min_rnr_timer = kRnrTimer;
  abi::AddressAttributes& way = to_receive.ah_attr;
  way.port_num = static_cast<std::uint8_t>(device_->port().number);
  way.sl = options.service_level;
  way.dlid = peer.lid;
  way.is_global = device_->port().is_infiniband && options.gid_index < 0 ? 0 : 1;
  std::memcpy(way.grh.dgid.raw, peer.gid.data(), peer.gid.size());
  way.grh.sgid_index = static_cast<std::uint8_t>(device_->gid().index);
  way.grh.hop_limit = kHopLimit;
  way.grh.traffic_class = options.traffic_class;
  Status status = change(to_receive,
                         abi::kMaskState | abi::kMaskAddress | abi::kMaskMtu | abi::kMaskRemoteQp |
                             abi::kMaskReceivePsn | abi::kMaskReadsIn | abi::kMaskRnrTimer,
                         "RTR");
  if (!status.is_ok()) return status;
  abi::QpAttributes to_send{};
  to_send.qp_state = abi::kQpRts;
  to_send.timeout = timeout_exponent(options.unreachable_ns);
  to_send.retry_cnt = kRetries;
  to_send.rnr_retry = kRnrRetries;
  to_send.sq_psn = own_packet_number;
  to_send.max_rd_atomic = 1;
  return change(to_send,
                abi::kMaskState | abi::kMaskTimeout | abi::kMaskRetries | abi::kMaskRnrRetries |
                    abi::kMaskSendPsn | abi::kMaskReadsOut,
                "RTS");
}

Status QueuePair::post(abi::SendRequest& request) {
  abi::SendRequest* refused = nullptr;
  const int failed = device_->context()->ops.post_send(pair_, &request, &refused);
  if (failed == 0) return Status::ok();
  return system_error("RDMA device " + device_->text() + ": ibv_post_send", failed);
}

Status QueuePair::post_receives(std::uint32_t count) {
  std::array<abi::ReceiveRequest, kReceiveBatch> requests{};
  while (count > 0) {
    const std::uint32_t batch = std::min(count, kReceiveBatch);
    for (std::uint32_t i = 0; i < batch; ++i) {
      requests[i].wr_id = kReceiveId;
      requests[i].next = i + 1 < batch ? &requests[i + 1] : nullptr;
    }
    abi::ReceiveRequest* refused = nullptr;
    const int failed = device_->context()->ops.post_recv(pair_, requests.data(), &refused);
    if (failed != 0) {
      return system_error("RDMA device " + device_->text() + ": ibv_post_recv", failed);
    }
    count -= batch;
  }
  return Status::ok();
}

Result<std::size_t> QueuePair::poll(std::span<abi::Completion> completions) {
  const int count = device_->context()->ops.poll_cq(queue_, static_cast<int>(completions.size()),
                                                    completions.data());
  if (count >= 0) return static_cast<std::size_t>(count);
  return system_error("RDMA device " + device_->text() + ": ibv_poll_cq", EIO);
}

Status QueuePair::ask_for_event() {
  const int failed = device_->context()->ops.req_notify_cq(queue_, 0);
  if (failed == 0) return Status::ok();
  return system_error("RDMA device " + device_->text() + ": ibv_req_notify_cq", failed);
}

QueuePair::QueuePair(QueuePair&& other) noexcept {
  *this = std::move(other);
}

QueuePair& QueuePair::operator=(QueuePair&& other) noexcept {
  std::swap(device_, other.device_);
  std::swap(queue_, other.queue_);
  std::swap(pair_, other.pair_);
  std::swap(inline_bytes_max_, other.inline_bytes_max_);
  std::swap(pieces_max_, other.pieces_max_);
  return *this;
}

QueuePair::~QueuePair() {
  if (pair_ != nullptr) device_->verbs().destroy_qp(pair_);
  if (queue_ == nullptr) return;
  device_->drain_completion_events();  // one that nobody has taken would keep the queue
  device_->verbs().destroy_cq(queue_);
}

}  // namespace byteps::rdma
