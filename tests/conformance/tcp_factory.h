// TCP over loopback for the conformance suite, bare or inside the faulty wrapper, and the same with shared memory and
// with RDMA, of devices that there are or of one that is played (tests/net/fake_verbs.h); and with a way that exists
// only in tests (tests/net/pipe_way.h).
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/prng.h"
#include "loop/clock.h"
#include "net/faulty/faulty_transport.h"
#include "net/rdma/device.h"
#include "tests/conformance/transport_factory.h"
#include "tests/net/fake_verbs.h"
#include "tests/net/peer_options.h"
#include "tests/net/pipe_way.h"

namespace byteps::conformance {

class TcpWorld final : public World {
 public:
  // host: "127.0.0.1" or "::1". With faults, every node is wrapped. options: of what a connection may use.
  explicit TcpWorld(std::string host, const Faults* faults = nullptr, std::uint64_t seed = 1,
                    PeerOptions options = {})
      : host_(std::move(host)), options_(std::move(options)), prng_(seed) {
    if (faults != nullptr) faults_ = std::make_unique<Faults>(*faults);
  }

  // False when the machine has no such address.
  bool is_available() const { return make_transport(listening_options({}), log()).is_ok(); }

  Node make_listening(const Hello& self) override { return add(listening_options(self)); }
  Node make_connecting() override { return add(options_); }
  Transport& transport(Node node) override { return *nodes_.at(node).transport; }
  Endpoint address(Node listening) override { return nodes_.at(listening).tcp->listening().at(0); }

  Endpoint nobody() override {
    // A port that was free a moment ago.
    return make_transport(listening_options({}), log()).value()->listening().at(0);
  }

  TimeNs now() override { return clock_.now(); }

  void idle() override {
    TcpTransport* last = nullptr;
    for (const Entry& entry : nodes_) {
      if (entry.tcp == nullptr) continue;
      entry.tcp->waiter().wait(0);
      last = entry.tcp;
    }
    if (last != nullptr) last->waiter().wait(kMillisecond);
  }

  void kill(Node node) override { nodes_.at(node) = {}; }

 private:
  struct Entry {
    TcpTransport* tcp = nullptr;
    std::unique_ptr<Transport> transport;
  };

  static Log log() { return {"conformance", LogLevel::kSilent, {}}; }

  PeerOptions listening_options(const Hello& self) const {
    PeerOptions options = options_;
    options.listen = {Endpoint{host_, 0}};
    options.self = self;
    return options;
  }

  Node add(PeerOptions options) {
    std::unique_ptr<TcpTransport> tcp = make_transport(std::move(options), log()).value();
    Entry entry;
    entry.tcp = tcp.get();
    entry.transport = std::move(tcp);
    if (faults_ != nullptr) {
      entry.transport =
          std::make_unique<FaultyTransport>(std::move(entry.transport), *faults_, prng_.split());
    }
    nodes_.push_back(std::move(entry));
    return nodes_.size() - 1;
  }

  const std::string host_;
  const PeerOptions options_;
  std::unique_ptr<Faults> faults_;
  Prng prng_;
  MonotonicClock clock_;
  std::vector<Entry> nodes_;
};

inline PeerOptions sharing_options(std::size_t ring_bytes) {
  PeerOptions options;
  options.shared_ring_bytes = ring_bytes;
  return options;
}

inline PeerOptions fake_rdma_options(rdma::Policy policy, std::size_t ring_bytes) {
  PeerOptions options;
  options.rdma = rdma::fake_options(ring_bytes);
  options.rdma.policy = policy;
  options.verbs = rdma::fake_verbs();
  return options;
}

// A way that exists only in tests: what net/tcp makes of it, it makes of any.
inline PeerOptions pipe_options(std::size_t capacity) {
  PeerOptions options;
  const auto depot = std::make_shared<PipeDepot>();
  options.ways_instead = [depot, capacity] {
    Ways ways;
    ways.push_back(std::make_unique<PipeWay>(depot, capacity));
    return ways;
  };
  return options;
}

// The IPv4 address of an RDMA device (RoCE) of this machine; empty: there is none.
inline std::string rdma_host() {
  const auto verbs = rdma::load_verbs();
  if (!verbs.is_ok()) return {};
  for (const rdma::Port& port : rdma::list_ports(*verbs.value(), "")) {
    for (const rdma::GidEntry& entry : port.gids) {
      const bool is_ipv4 = entry.gid[10] == 0xff && entry.gid[11] == 0xff;
      if (!port.active || !is_ipv4 || entry.type != "RoCE v2") continue;
      std::string text;
      for (std::size_t i = 12; i < 16; ++i) {
        text += (i == 12 ? "" : ".") + std::to_string(entry.gid[i]);
      }
      return text;
    }
  }
  return {};
}

}  // namespace byteps::conformance
