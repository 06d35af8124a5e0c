// How the two ends of a connection come to RDMA. See net/tcp/links.cc for what they say and when.
//
// The connecting side makes its half of a link and offers it; the accepting side makes its own, connects it and
// accepts; then the connecting side connects its half. Offer and accept are a PeerInfo each (net/rdma/queue_pair.h).
// They travel over the connection on which both have proved that they belong to the job.
#include <algorithm>
#include <cstring>
#include <utility>

#include <ifaddrs.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "net/auth.h"
#include "net/rdma/link.h"
#include "net/rdma/slabs.h"
#include "net/tcp/connection.h"
#include "net/tcp/tcp_transport.h"
#include "net/way/aside.h"

namespace byteps {

using rdma::Policy;
using tcp::Connection;
using way::Aside;
using Kind = QuietLog::Kind;

namespace {

// As in the GID tables of RoCE: IPv4 as in IPv6.
rdma::GidBytes gid_of(const SocketAddress& address) {
  rdma::GidBytes gid{};
  if (address.family() == AF_INET6) {
    std::memcpy(gid.data(), &reinterpret_cast<const sockaddr_in6*>(address.get())->sin6_addr,
                gid.size());
  } else {
    gid[10] = gid[11] = 0xff;
    std::memcpy(gid.data() + 12, &reinterpret_cast<const sockaddr_in*>(address.get())->sin_addr, 4);
  }
  return gid;
}

// The network interface that has the address; empty: none.
std::string interface_of(const rdma::GidBytes& gid) {
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return {};
  std::string name;
  for (const ifaddrs* each = all; each != nullptr && name.empty(); each = each->ifa_next) {
    if (each->ifa_addr == nullptr) continue;
    const int family = each->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.bytes = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, each->ifa_addr, address.bytes);
    if (gid_of(address) == gid) name = each->ifa_name;
  }
  ::freeifaddrs(all);
  return name;
}

// Looking through all devices takes a while, and many connections may come at once.
constexpr TimeNs kRefusalNs = kSecond;

Result<std::uint32_t> fresh_packet_number() {
  const Result<auth::Nonce> nonce = auth::fresh_nonce();
  if (!nonce.is_ok()) return nonce.status();
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    number = number << 8 | std::to_integer<std::uint32_t>(nonce.value()[i]);
  }
  return number;
}

bool is_rdma(const Connection& connection) {
  return dynamic_cast<const rdma::Link*>(connection.link.get()) != nullptr;
}

rdma::Link& rdma_link(const Connection& connection) {
  return static_cast<rdma::Link&>(*connection.link);
}

}  // namespace

// The device that belongs to the connection's own address. kUnsupported: there is none.
Result<std::shared_ptr<rdma::Device>> TcpTransport::rdma_device(const Connection& connection) {
  SocketAddress own;
  own.bytes = sizeof own.storage;
  if (::getsockname(connection.descriptor, own.get(), &own.bytes) != 0) {
    return system_error("getsockname", errno);
  }
  if (own.is_loopback() && options_.rdma.device.empty()) {
    return Status(Code::kUnsupported, "RDMA does not go over the loopback address " +
                                          own.endpoint().host +
                                          "; shared memory does (BYTEPS_ENABLE_IPC=1)");
  }
  const rdma::GidBytes gid = gid_of(own);
  for (RdmaDevice& known : rdma_devices_) {
    if (!known.device || known.own_address != gid) continue;
    if (known.device->is_current()) return known.device;
    forget_device(known);
  }
  if (rdma_refusal_.own_address == gid && now_ < rdma_refusal_.until) return rdma_refusal_.why;
  Result<std::shared_ptr<rdma::Device>> device = open_device(gid, own.endpoint().host);
  if (!device.is_ok()) rdma_refusal_ = {gid, device.status(), now_ + kRefusalNs};
  return device;
}

// One that is not current any more; as long as links use it, they need its events.
void TcpTransport::forget_device(RdmaDevice& known) {
  if (known.device->has_users()) return;
  if (slabs_ && slabs_->has_device(*known.device)) slabs_->drop_device(*known.device);
  known.device.reset();
}

Result<std::shared_ptr<rdma::Device>> TcpTransport::open_device(const rdma::GidBytes& gid,
                                                                const std::string& address) {
  if (options_.verbs == nullptr) {
    Result<const rdma::Verbs*> verbs = rdma::load_verbs();
    if (!verbs.is_ok()) return verbs.status();
    options_.verbs = verbs.value();
  }
  Result<std::unique_ptr<rdma::Device>> opened =
      rdma::Device::open(*options_.verbs, options_.rdma, gid, address, interface_of(gid));
  if (!opened.is_ok()) return opened.status();
  const std::shared_ptr<rdma::Device> device = std::move(opened).value();
  // A place that is free again: ports may come and go for ever.
  auto place = std::find_if(rdma_devices_.begin(), rdma_devices_.end(),
                            [](const RdmaDevice& known) { return !known.device; });
  if (place == rdma_devices_.end()) place = rdma_devices_.insert(place, RdmaDevice());
  const std::uint64_t word =
      kDeviceSerial | (2 * static_cast<std::uint64_t>(place - rdma_devices_.begin()));
  Status status = watch(device->completion_descriptor(), word, EPOLLIN);
  if (status.is_ok()) status = watch(device->event_descriptor(), word + 1, EPOLLIN);
  if (!status.is_ok()) return status;
  *place = {gid, device};
  if (slabs_) slabs_->add_device(device);
  return device;
}

Result<std::unique_ptr<rdma::Link>> TcpTransport::make_rdma_link(const Connection& connection) {
  Result<std::shared_ptr<rdma::Device>> device = rdma_device(connection);
  if (!device.is_ok()) return device.status();
  const Result<std::uint32_t> number = fresh_packet_number();
  if (!number.is_ok()) return number.status();
  return rdma::Link::create(std::move(device).value(), slabs_, options_.rdma, number.value());
}

std::shared_ptr<BufferSource> TcpTransport::payload_source() {
  return slabs_;
}

// epoll's word for a device.
void TcpTransport::heed_device(std::uint64_t word) {
  const std::size_t index = (word & ~kDeviceSerial) / 2;
  const std::shared_ptr<rdma::Device> known = rdma_devices_.at(index).device;
  if (!known) return;
  rdma::Device& device = *known;
  if (word % 2 == 0) return device.drain_completion_events();
  for (const std::string& trouble : device.take_troubles()) {
    log_.write(Kind::kRdmaTrouble, LogLevel::kWarning, now_,
               "RDMA device " + device.text() + ": " + trouble);
  }
}

void TcpTransport::look_after_slabs() {
  const Status refusal = slabs_->take_refusal();
  if (refusal.is_ok()) return;
  log_.write(Kind::kRdmaTrouble, LogLevel::kWarning, now_,
             "what is sent by RDMA is copied first: " + refusal.message());
}

// ---- the connecting side

Status TcpTransport::offer_rdma(Connection& connection) {
  if (options_.rdma.policy == Policy::kOff) return Status::ok();
  Result<std::unique_ptr<rdma::Link>> link = make_rdma_link(connection);
  if (!link.is_ok()) return go_without_rdma(connection, link.status());
  const rdma::PeerInfo info = link.value()->own_info();
  adopt_link(connection, std::move(link).value());
  say_aside(connection, Aside::kOffer, rdma::encode(info));
  return Status::ok();
}

Status TcpTransport::heed_accept(Connection& connection, std::span<const std::byte> content) {
  if (connection.has_declined && !connection.link) return Status::ok();  // both at once
  const bool has_offered = connection.outbound && connection.link && is_rdma(connection);
  if (!has_offered || connection.link->is_ready()) return way::out_of_turn();
  const Result<rdma::PeerInfo> info = rdma::decode_peer_info(content);
  if (!info.is_ok()) return info.status();
  if (Status status = rdma_link(connection).connect(info.value()); !status.is_ok()) {
    drop_link(connection);
    decline(connection, status);
    return go_without_rdma(connection, status);
  }
  rdma_link(connection).probe();
  return Status::ok();
}

// ---- the accepting side

Status TcpTransport::heed_offer(Connection& connection, std::span<const std::byte> content) {
  if (connection.outbound || std::exchange(connection.was_offered, true) || connection.link) {
    return way::out_of_turn();
  }
  const Result<rdma::PeerInfo> info = rdma::decode_peer_info(content);
  if (info.status().is(Code::kDisconnected)) return info.status();
  Status status = info.status();
  if (status.is_ok() && options_.rdma.policy == Policy::kOff) {
    status = {Code::kUnsupported, "DMLC_ENABLE_RDMA is not set there"};
  }
  if (status.is_ok()) {
    Result<std::unique_ptr<rdma::Link>> link = make_rdma_link(connection);
    status = link.status();
    if (status.is_ok()) status = link.value()->connect(info.value());
    if (status.is_ok()) {
      say_aside(connection, Aside::kAccept, rdma::encode(link.value()->own_info()));
      adopt_link(connection, std::move(link).value());
      return Status::ok();
    }
  }
  decline(connection, status);
  return options_.rdma.policy == Policy::kOff ? Status::ok() : go_without_rdma(connection, status);
}

// ---- when it cannot be

// What an operator can look at.
constexpr const char* kNoWay =
    "TCP comes through and RDMA does not: look for a filter on UDP port 4791, and at GID index, "
    "VLAN and the switch's MTU";

// The link has failed before anybody went over to it.
Status TcpTransport::heed_dead_way(Connection& connection, const Status& why) {
  const bool has_no_answer = why.is(Code::kTimeout);
  const Status full(why.code(), why.message() + (has_no_answer ? std::string("; ") + kNoWay : ""));
  drop_link(connection);
  decline(connection, full);
  return go_without_rdma(connection, full);
}

// Which way connections go, and why: once for each way and reason.
void TcpTransport::tell_way(const std::string& way, const std::string& text) {
  log_.write_once(options_.tells_ways ? LogLevel::kInfo : LogLevel::kDebug, way, text);
}

// An error, which ends the connection, where RDMA is required.
Status TcpTransport::go_without_rdma(Connection& connection, const Status& why) {
  if (connection.must_link) {
    return {Code::kUnsupported, "no RDMA, which DMLC_ENABLE_RDMA requires here: " + why.message()};
  }
  const std::string text = connection.remote.text() + ": stays on TCP: " + why.message();
  if (why.is(Code::kUnsupported)) {
    tell_way(why.message(), text);
  } else {
    log_.write(Kind::kCannotLink, LogLevel::kWarning, now_, text);
  }
  return Status::ok();
}

// The other side does not wait for a link before it sends.
Status TcpTransport::unlinked_message() {
  return {Code::kUnsupported,
          "it sends over TCP, and DMLC_ENABLE_RDMA requires RDMA here; set it to the same in all "
          "processes"};
}

// A connection that must have a link has none in time.
Status TcpTransport::no_link_in_time(const Connection& connection) {
  if (connection.link && connection.link->is_ready()) {
    return {Code::kUnsupported,
            std::string("no RDMA, which DMLC_ENABLE_RDMA requires here: ") + kNoWay};
  }
  const bool waits_for_answer = connection.outbound || connection.was_offered;
  return {Code::kUnsupported,
          std::string("no RDMA, which DMLC_ENABLE_RDMA requires here: the other side ") +
              (waits_for_answer ? "did not answer in time"
                                : "did not offer it; set DMLC_ENABLE_RDMA there too")};
}

}  // namespace byteps
