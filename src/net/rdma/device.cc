#include "net/rdma/device.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fcntl.h>

namespace byteps::rdma {
namespace {

constexpr std::string_view kRoceV2 = "RoCE v2";
constexpr int kGidsMax = 256;

bool is_named(std::string_view list, std::string_view name) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    if (list.substr(0, comma) == name) return true;
    list.remove_prefix(std::min(list.size(), comma + 1));
  }
  return false;
}

std::string text_of(const Port& port) {
  return port.trouble.empty() ? port.device + " port " + std::to_string(port.number) : port.device;
}

std::string ports_text(const std::vector<Port>& ports) {
  if (ports.empty()) return "this machine has no RDMA device";
  std::string text = "there is";
  for (const Port& port : ports) {
    text += (&port == ports.data() ? " " : ", ") + text_of(port);
    if (!port.trouble.empty()) {
      text += " (cannot be opened: " + port.trouble + ")";
    } else if (!port.active) {
      text += " (down)";
    }
  }
  return text;
}

// The entry of a port that the connection is to use.
const GidEntry* find_gid(const Port& port, const Options& options, const GidBytes& own_address) {
  if (options.gid_index >= 0) {
    const auto found = std::find_if(port.gids.begin(), port.gids.end(), [&](const GidEntry& entry) {
      return entry.index == options.gid_index;
    });
    return found == port.gids.end() ? nullptr : &*found;
  }
  if (port.is_infiniband) return port.gids.empty() ? nullptr : &port.gids.front();
  for (const GidEntry& entry : port.gids) {
    if (entry.type == kRoceV2 && entry.gid == own_address) return &entry;
  }
  return nullptr;
}

bool is_wanted(const Port& port, const Options& options) {
  return (options.device.empty() || is_named(options.device, port.device)) &&
         (options.port == 0 || options.port == port.number);
}

Port describe(const Verbs& verbs, abi::Context* context, std::string device, int number,
              const std::string& interface) {
  Port port;
  port.device = std::move(device);
  port.number = number;
  abi::PortAttributes attributes{};
  if (verbs.query_port(context, static_cast<std::uint8_t>(number), &attributes) != 0) return port;
  port.active = attributes.state == abi::kPortActive;
  port.is_infiniband = attributes.link_layer == abi::kLinkInfiniband;
  port.lid = attributes.lid;
  port.mtu = attributes.active_mtu;
  port.is_of_interface =
      !interface.empty() && verbs.is_of_interface(interface, port.device, number);
  for (int index = 0; index < std::min(attributes.gid_tbl_len, kGidsMax); ++index) {
    abi::Gid gid{};
    if (verbs.query_gid(context, static_cast<std::uint8_t>(number), index, &gid) != 0) continue;
    GidEntry entry{.index = index, .gid = {}, .type = {}};
    std::memcpy(entry.gid.data(), gid.raw, entry.gid.size());
    if (entry.gid == GidBytes{}) continue;
    entry.type = verbs.gid_type(port.device, number, index);
    port.gids.push_back(std::move(entry));
  }
  return port;
}

struct Found {
  abi::Context* context = nullptr;  // null: it cannot be opened
  std::vector<Port> ports;
};

// All devices, opened; the caller closes them.
std::vector<Found> find_devices(const Verbs& verbs, const std::string& interface) {
  std::vector<Found> all;
  int count = 0;
  abi::Device** const devices = verbs.get_device_list(&count);
  if (devices == nullptr) return all;
  for (int i = 0; i < count; ++i) {
    Found& found = all.emplace_back();
    found.context = verbs.open_device(devices[i]);
    if (found.context == nullptr) {
      Port& port = found.ports.emplace_back();
      port.device = verbs.get_device_name(devices[i]);
      port.trouble = std::strerror(errno);
      continue;
    }
    abi::DeviceAttributes attributes{};
    if (verbs.query_device(found.context, &attributes) != 0) continue;
    for (int number = 1; number <= attributes.phys_port_cnt; ++number) {
      found.ports.push_back(
          describe(verbs, found.context, verbs.get_device_name(devices[i]), number, interface));
    }
  }
  verbs.free_device_list(devices);
  return all;
}

Status set_nonblocking(int descriptor) {
  const int flags = ::fcntl(descriptor, F_GETFL);
  if (flags >= 0 && ::fcntl(descriptor, F_SETFL, flags | O_NONBLOCK) == 0) return Status::ok();
  return system_error("fcntl", errno);
}

}  // namespace

Result<Choice> choose(const std::vector<Port>& ports, const Options& options,
                      const GidBytes& own_address, const std::string& address_text) {
  std::string near_miss;
  bool is_one_closed = false;
  for (const bool of_interface : {true, false}) {
    for (std::size_t i = 0; i < ports.size(); ++i) {
      const Port& port = ports[i];
      if (!is_wanted(port, options) || port.is_of_interface != of_interface) continue;
      is_one_closed |= !port.trouble.empty();
      // InfiniBand: its GIDs are no addresses, so another port than the interface's must be asked for.
      if (port.is_infiniband && !of_interface && options.device.empty()) continue;
      const GidEntry* const gid = find_gid(port, options, own_address);
      if (gid == nullptr) continue;
      if (port.active) return Choice{i, *gid};
      near_miss =
          "RDMA device " + text_of(port) + " is down; look at its cable and at `ibv_devinfo`";
    }
  }
  if (!near_miss.empty()) return Status(Code::kUnsupported, near_miss);
  std::string text = "no RDMA device for the address " + address_text + ": " + ports_text(ports);
  if (is_one_closed) {
    return Status(Code::kSystem,
                  text +
                      "; let this process open /dev/infiniband/uverbs*: docker run --device "
                      "/dev/infiniband, or its group's rights, or more descriptors (ulimit -n)");
  }
  if (!ports.empty()) {
    text += options.device.empty() && options.gid_index < 0
                ? "; set DMLC_NODE_HOST or DMLC_INTERFACE to the network of one of them, or choose "
                  "with BYTEPS_RDMA_DEVICE and BYTEPS_RDMA_GID_INDEX"
                : "; look at BYTEPS_RDMA_DEVICE, BYTEPS_RDMA_PORT and BYTEPS_RDMA_GID_INDEX";
  }
  return Status(Code::kUnsupported, text);
}

std::vector<Port> list_ports(const Verbs& verbs, const std::string& interface) {
  std::vector<Port> all;
  for (Found& found : find_devices(verbs, interface)) {
    all.insert(all.end(), found.ports.begin(), found.ports.end());
    if (found.context != nullptr) verbs.close_device(found.context);
  }
  return all;
}

Result<std::unique_ptr<Device>> Device::open(std::shared_ptr<const Verbs> verbs,
                                             const Options& options, const GidBytes& own_address,
                                             const std::string& address_text,
                                             const std::string& interface) {
  std::vector<Port> ports;
  std::vector<abi::Context*> contexts;  // of each port
  std::vector<Found> all = find_devices(*verbs, interface);
  for (const Found& found : all) {
    ports.insert(ports.end(), found.ports.begin(), found.ports.end());
    contexts.resize(ports.size(), found.context);
  }
  const Result<Choice> choice = choose(ports, options, own_address, address_text);
  abi::Context* const chosen = choice.is_ok() ? contexts[choice.value().port_index] : nullptr;
  for (const Found& found : all) {
    if (found.context != nullptr && found.context != chosen) verbs->close_device(found.context);
  }
  if (!choice.is_ok()) return choice.status();
  std::unique_ptr<Device> device(new Device(std::move(verbs), chosen));
  device->port_ = ports[choice.value().port_index];
  device->gid_ = choice.value().gid;
  if (Status status = device->prepare(); !status.is_ok()) return status;
  return device;
}

Status Device::prepare() {
  const auto failed = [&](const char* what, int error_number) {
    return system_error("RDMA device " + text() + ": " + what, error_number);
  };
  const int refused = verbs_->query_device(context_, &limits_);
  if (refused != 0) return failed("ibv_query_device", refused);
  domain_ = verbs_->alloc_pd(context_);
  if (domain_ == nullptr) return failed("ibv_alloc_pd", errno);
  channel_ = verbs_->create_comp_channel(context_);
  if (channel_ == nullptr) return failed("ibv_create_comp_channel", errno);
  if (Status status = set_nonblocking(channel_->fd); !status.is_ok()) return status;
  return set_nonblocking(context_->async_fd);
}

Device::~Device() {
  if (channel_ != nullptr) verbs_->destroy_comp_channel(channel_);
  if (domain_ != nullptr) verbs_->dealloc_pd(domain_);
  verbs_->close_device(context_);
}

std::string Device::text() const {
  return text_of(port_);
}

void Device::drain_completion_events() {
  abi::CompletionQueue* queue = nullptr;
  void* context = nullptr;
  // Acknowledged at once: a queue with an event that is not cannot be destroyed.
  while (verbs_->get_cq_event(channel_, &queue, &context) == 0) {
    verbs_->ack_cq_events(queue, 1);
    ++completion_turn_;
  }
}

bool Device::is_current() const {
  const auto number = static_cast<std::uint8_t>(port_.number);
  abi::PortAttributes attributes{};
  abi::Gid gid{};
  return !has_failed_ && verbs_->query_port(context_, number, &attributes) == 0 &&
         attributes.state == abi::kPortActive && attributes.active_mtu == port_.mtu &&
         verbs_->query_gid(context_, number, gid_.index, &gid) == 0 &&
         std::memcmp(gid.raw, gid_.gid.data(), gid_.gid.size()) == 0;
}

std::vector<std::string> Device::take_troubles() {
  std::vector<std::string> troubles;
  abi::AsyncEvent event{};
  while (verbs_->get_async_event(context_, &event) == 0) {
    verbs_->ack_async_event(&event);
    switch (event.event_type) {
      case abi::kEventDeviceFatal:
        has_failed_ = true;
        troubles.emplace_back("it has failed");
        fail_users(nullptr, troubles.back());
        break;
      case abi::kEventCompletionQueueError:
        troubles.emplace_back("a completion queue has failed");
        fail_users(event.element.object, troubles.back());
        break;
      case abi::kEventQueuePairFatal:
        troubles.emplace_back("a queue pair has failed");
        fail_users(event.element.object, troubles.back());
        break;
      case abi::kEventPortError:
        if (event.element.port_num == port_.number) troubles.emplace_back("its port is down");
        break;
      default:
        break;
    }
  }
  return troubles;
}

// Those that have the queue; null: all.
void Device::fail_users(const void* queue, const std::string& why) {
  for (User* user : users_) {
    if (queue == nullptr || user->has(queue)) user->fail(why);
  }
}

}  // namespace byteps::rdma
