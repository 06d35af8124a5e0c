#include "net/rdma/way.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <ifaddrs.h>
#include <sys/socket.h>

#include "base/check.h"
#include "net/auth.h"
#include "net/rdma/memory.h"
#include "net/rdma/queue_pair.h"

namespace byteps::rdma {
namespace {

using Kind = QuietLog::Kind;
using way::Aside;
using way::Site;
using way::Step;

// Looking through all devices takes a while, and many connections may come at once.
constexpr TimeNs kRefusalNs = kSecond;

// What an operator can look at.
constexpr const char* kNoWay =
    "TCP comes through and RDMA does not: look for a filter on UDP port 4791, and at GID index, "
    "VLAN and the switch's MTU";
constexpr const char* kRequired = "no RDMA, which DMLC_ENABLE_RDMA requires here: ";

// As in the GID tables of RoCE: IPv4 as in IPv6.
GidBytes gid_of(const SocketAddress& address) {
  GidBytes gid{};
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
std::string interface_of(const GidBytes& gid) {
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

Result<std::uint32_t> fresh_packet_number() {
  const Result<auth::Nonce> nonce = auth::fresh_nonce();
  if (!nonce.is_ok()) return nonce.status();
  std::uint32_t number = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    number = number << 8 | std::to_integer<std::uint32_t>(nonce.value()[i]);
  }
  return number;
}

way::Words words(Aside kind, const PeerInfo& info) {
  const auto content = encode(info);
  return {.kind = kind, .content = {content.begin(), content.end()}};
}

// A half of a link is offered.
class Offered final : public way::Attempt {
 public:
  explicit Offered(Link& link) : link_(link) {}

  Result<Step> heed(const Site& /*site*/, Aside /*kind*/,
                    std::span<const std::byte> content) override {
    const Result<PeerInfo> info = decode_peer_info(content);
    if (!info.is_ok()) return info.status();
    Step step;
    step.failed = link_.connect(info.value());
    if (step.failed.is_ok()) link_.probe();
    return step;
  }

 private:
  Link& link_;
};

}  // namespace

Result<std::unique_ptr<way::Way>> Way::create(Settings settings) {
  const Options& options = settings.options;
  if (!is_ring_size(options.ring_bytes) || options.receive_depth < RdmaConfig::kReceiveDepthMin ||
      options.receive_depth > RdmaConfig::kDepthMax ||
      options.send_depth < RdmaConfig::kSendDepthMin ||
      options.send_depth > RdmaConfig::kDepthMax) {
    return Status(Code::kInvalidArgument, "a limit of RDMA is out of range");
  }
  return std::unique_ptr<way::Way>(new Way(std::move(settings)));
}

Way::Way(Settings settings)
    : settings_(std::move(settings)),
      slabs_(settings_.has_slabs && is_wanted() ? std::make_shared<Slabs>() : nullptr) {}

void Way::attach(way::Watcher& watcher, std::uint64_t first_word) {
  watcher_ = &watcher;
  first_word_ = first_word;
}

// ---- devices

Result<std::unique_ptr<Link>> Way::make_link(const Site& site) {
  Result<std::shared_ptr<Device>> device = device_of(site);
  if (!device.is_ok()) return device.status();
  const Result<std::uint32_t> number = fresh_packet_number();
  if (!number.is_ok()) return number.status();
  return Link::create(std::move(device).value(), slabs_, options(), number.value());
}

// The device that belongs to the connection's own address. kUnsupported: there is none.
Result<std::shared_ptr<Device>> Way::device_of(const Site& site) {
  SocketAddress own;
  own.bytes = sizeof own.storage;
  if (::getsockname(site.socket, own.get(), &own.bytes) != 0) {
    return system_error("getsockname", errno);
  }
  if (own.is_loopback() && options().device.empty()) {
    return Status(Code::kUnsupported, "RDMA does not go over the loopback address " +
                                          own.endpoint().host +
                                          "; shared memory does (BYTEPS_ENABLE_IPC=1)");
  }
  const GidBytes gid = gid_of(own);
  for (Known& known : devices_) {
    if (!known.device || known.own_address != gid) continue;
    if (known.device->is_current()) return known.device;
    forget(known);
  }
  if (refusal_.own_address == gid && site.now < refusal_.until) return refusal_.why;
  Result<std::shared_ptr<Device>> device = open_device(gid, own.endpoint().host);
  if (!device.is_ok()) refusal_ = {gid, device.status(), site.now + kRefusalNs};
  return device;
}

// One that is not current any more; as long as links use it, they need its events.
void Way::forget(Known& known) {
  if (known.device->has_users()) return;
  if (slabs_ && slabs_->has_device(*known.device)) slabs_->drop_device(*known.device);
  known.device.reset();
}

Result<std::shared_ptr<Device>> Way::open_device(const GidBytes& gid, const std::string& address) {
  if (!settings_.verbs.is_ok()) return settings_.verbs.status();
  Result<std::unique_ptr<Device>> opened =
      Device::open(settings_.verbs.value(), options(), gid, address, interface_of(gid));
  if (!opened.is_ok()) return opened.status();
  const std::shared_ptr<Device> device = std::move(opened).value();
  // A place that is free again: ports may come and go for ever.
  auto place = std::find_if(devices_.begin(), devices_.end(),
                            [](const Known& known) { return !known.device; });
  if (place == devices_.end()) place = devices_.insert(place, Known());
  const std::uint64_t word = first_word_ + 2 * static_cast<std::uint64_t>(place - devices_.begin());
  Status status = watcher_->watch_input(device->completion_descriptor(), word);
  if (status.is_ok()) status = watcher_->watch_input(device->event_descriptor(), word + 1);
  if (!status.is_ok()) return status;
  *place = {gid, device};
  if (slabs_) slabs_->add_device(device);
  return device;
}

// Twice a device's place, and one more for what happens to the device itself.
void Way::heed_input(std::uint64_t n, TimeNs now, QuietLog& log) {
  const std::shared_ptr<Device> device = devices_.at(n / 2).device;
  if (!device) return;
  if (n % 2 == 0) return device->drain_completion_events();
  for (const std::string& trouble : device->take_troubles()) {
    log.write(Kind::kLinkTrouble, LogLevel::kWarning, now,
              "RDMA device " + device->text() + ": " + trouble);
  }
}

void Way::begin_poll(TimeNs now, QuietLog& log) {
  if (!slabs_) return;
  const Status refusal = slabs_->take_refusal();
  if (refusal.is_ok()) return;
  log.write(Kind::kLinkTrouble, LogLevel::kWarning, now,
            "what is sent by RDMA is copied first: " + refusal.message());
}

// ---- one connection

Step Way::open(const Site& site) {
  Step step;
  Result<std::unique_ptr<Link>> link = make_link(site);
  step.failed = link.status();
  if (!link.is_ok()) return step;
  step.say = words(opening(), link.value()->own_info());
  step.attempt = std::make_unique<Offered>(*link.value());
  step.link = std::move(link).value();
  return step;
}

Result<Step> Way::answer(const Site& site, std::span<const std::byte> content) {
  const Result<PeerInfo> info = decode_peer_info(content);
  if (info.status().is(Code::kDisconnected)) return info.status();
  Step step;
  step.failed = info.status();
  if (step.failed.is_ok() && !is_wanted()) {
    step.failed = {Code::kUnsupported, "DMLC_ENABLE_RDMA is not set there"};
  }
  if (!step.failed.is_ok()) return step;
  Result<std::unique_ptr<Link>> link = make_link(site);
  step.failed = link.status();
  if (step.failed.is_ok()) step.failed = link.value()->connect(info.value());
  if (!step.failed.is_ok()) return step;
  step.say = words(answering(), link.value()->own_info());
  step.link = std::move(link).value();
  return step;
}

void Way::taken(const Site& site, const way::Link& link) {
  tell(site.log, link.text(), site.remote.text() + ": goes on through " + link.text());
}

// Which way connections go, and why: once for each way and reason.
void Way::tell(QuietLog& log, const std::string& subject, const std::string& text) const {
  log.write_once(settings_.tells_ways ? LogLevel::kInfo : LogLevel::kDebug, subject, text);
}

// ---- when it cannot be

Status Way::explained(const Status& failure) const {
  const bool has_no_answer = failure.is(Code::kTimeout);
  return failure.in_words(failure.message() + (has_no_answer ? std::string("; ") + kNoWay : ""));
}

Status Way::go_without(const Site& site, const Status& why, bool must_link, bool /*by_them*/) {
  if (!is_wanted()) return Status::ok();
  if (must_link) return {Code::kUnsupported, kRequired + why.message()};
  const std::string text = site.remote.text() + ": stays on TCP: " + why.message();
  if (why.is(Code::kUnsupported)) {
    tell(site.log, why.message(), text);
  } else {
    site.log.write(Kind::kCannotLink, LogLevel::kWarning, site.now, text);
  }
  return Status::ok();
}

Status Way::no_link_in_time(way::Stage stage) const {
  const auto required = [](const std::string& why) {
    return Status(Code::kUnsupported, kRequired + why);
  };
  switch (stage) {
    case way::Stage::kNotProven:
      return required(kNoWay);
    case way::Stage::kNotAnswered:
      return required("the other side did not answer in time");
    case way::Stage::kNothingHeard:
      break;
  }
  return required("the other side did not offer it; set DMLC_ENABLE_RDMA there too");
}

// The other side does not wait for a link before it sends.
Status Way::unlinked_message() const {
  return {Code::kUnsupported,
          "it sends over TCP, and DMLC_ENABLE_RDMA requires RDMA here; set it to the same in all "
          "processes"};
}

}  // namespace byteps::rdma
