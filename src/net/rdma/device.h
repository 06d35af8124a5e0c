// Device: one port of an RDMA device, opened, and how the port that belongs to a connection is found.
//
// RoCE: an address of the network interface is also an entry of the port's GID table, once per version of the protocol.
// Wanted is the entry of type "RoCE v2" that is the connection's own address: so RDMA takes the way of TCP.
// InfiniBand: GIDs are no addresses; wanted is the port of the interface (IPoIB) that has the address.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "net/rdma/options.h"
#include "net/rdma/verbs.h"

namespace byteps::rdma {

using GidBytes = std::array<std::uint8_t, 16>;

struct GidEntry {
  int index = 0;
  GidBytes gid{};
  std::string type;  // "RoCE v2", "IB/RoCE v1"
};

// What is known of a port without using it.
struct Port {
  std::string device;
  int number = 1;
  bool active = false;
  bool is_infiniband = false;
  std::uint16_t lid = 0;
  std::uint32_t mtu = 0;         // as in abi::PortAttributes
  bool is_of_interface = false;  // of the connection
  std::vector<GidEntry> gids;    // without empty ones
  std::string trouble;  // why the device cannot be opened; nothing else is known of it then
};

// Which port and which of its GIDs.
struct Choice {
  std::size_t port_index = 0;  // in the ports given
  GidEntry gid;
};

// `own_address` is that of the connection, IPv4 as in IPv6 (::ffff:10.0.0.1). kUnsupported: none fits, and the text
// says what there is and what to set. kSystem: one that may fit cannot be opened.
Result<Choice> choose(const std::vector<Port>& ports, const Options& options,
                      const GidBytes& own_address, const std::string& address_text);

class Device {
 public:
  // As choose(); kSystem also: the device refuses something.
  static Result<std::unique_ptr<Device>> open(std::shared_ptr<const Verbs> verbs,
                                              const Options& options, const GidBytes& own_address,
                                              const std::string& address_text,
                                              const std::string& interface);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  const Verbs& verbs() const { return *verbs_; }
  const Port& port() const { return port_; }
  const GidEntry& gid() const { return gid_; }
  abi::Context* context() const { return context_; }
  abi::ProtectionDomain* domain() const { return domain_; }
  abi::CompletionChannel* channel() const { return channel_; }
  const abi::DeviceAttributes& limits() const { return limits_; }
  std::string text() const;  // "mlx5_0 port 1"

  // Both never block; to be watched for input. The first brings completions, the second what happens to the device.
  int completion_descriptor() const { return channel_->fd; }
  int event_descriptor() const { return context_->async_fd; }
  // Takes what the completion channel has to say. Then every queue that wants to be told must ask again: it has been
  // told, or somebody else has taken the word, when completion_turn() is another than when it asked.
  void drain_completion_events();
  std::uint64_t completion_turn() const { return completion_turn_; }
  // Its port is up and has the address still. Otherwise it is to be opened anew.
  bool is_current() const;

  // Somebody who has queues of the device. He must be gone before it is.
  class User {
   public:
    virtual ~User() = default;
    virtual bool has(
        const void* queue) const = 0;  // a queue pair or completion queue, as libibverbs names it
    virtual void fail(const std::string& why) = 0;
  };
  void add_user(User& user) { users_.push_back(&user); }
  void remove_user(User& user) { std::erase(users_, &user); }
  bool has_users() const { return !users_.empty(); }
  // Takes what has happened to the device: as texts, and the users that it concerns have failed. A port that is down
  // may come back in time; what failed does not.
  std::vector<std::string> take_troubles();

 private:
  Device(std::shared_ptr<const Verbs> verbs, abi::Context* context)
      : verbs_(std::move(verbs)), context_(context) {}
  Status prepare();
  void fail_users(const void* queue, const std::string& why);

  const std::shared_ptr<const Verbs> verbs_;
  abi::Context* context_ = nullptr;
  abi::ProtectionDomain* domain_ = nullptr;
  abi::CompletionChannel* channel_ = nullptr;
  abi::DeviceAttributes limits_{};
  Port port_;
  GidEntry gid_;
  std::uint64_t completion_turn_ = 1;
  bool has_failed_ = false;
  std::vector<User*> users_;
};

// The names of all devices, as they are or with their ports' states: for messages and for `bps doctor`.
std::vector<Port> list_ports(const Verbs& verbs, const std::string& interface);

}  // namespace byteps::rdma
