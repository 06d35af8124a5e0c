// TCP over loopback for the conformance suite, bare or inside the faulty wrapper, and the same with shared memory.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/prng.h"
#include "loop/clock.h"
#include "net/faulty/faulty_transport.h"
#include "net/tcp/tcp_transport.h"
#include "tests/conformance/transport_factory.h"

namespace byteps::conformance {

class TcpWorld final : public World {
 public:
  // host: "127.0.0.1" or "::1". With faults, every node is wrapped. ring_bytes: 0, or of shared memory.
  explicit TcpWorld(std::string host, const Faults* faults = nullptr, std::uint64_t seed = 1,
                    std::size_t ring_bytes = 0)
      : host_(std::move(host)), ring_bytes_(ring_bytes), prng_(seed) {
    if (faults != nullptr) faults_ = std::make_unique<Faults>(*faults);
  }

  // False when the machine has no such address.
  bool is_available() const { return TcpTransport::create(listening_options({}), log()).is_ok(); }

  Node make_listening(const Hello& self) override { return add(listening_options(self)); }
  Node make_connecting() override {
    TcpOptions options;
    options.shared_ring_bytes = ring_bytes_;
    return add(std::move(options));
  }
  Transport& transport(Node node) override { return *nodes_.at(node).transport; }
  Endpoint address(Node listening) override { return nodes_.at(listening).tcp->listening().at(0); }

  Endpoint nobody() override {
    // A port that was free a moment ago.
    return TcpTransport::create(listening_options({}), log()).value()->listening().at(0);
  }

  TimeNs now() override { return clock_.now(); }

  void idle() override {
    TcpTransport* last = nullptr;
    for (const Entry& entry : nodes_) {
      if (entry.tcp == nullptr) continue;
      entry.tcp->wait(0);
      last = entry.tcp;
    }
    if (last != nullptr) last->wait(kMillisecond);
  }

  void kill(Node node) override { nodes_.at(node) = {}; }

 private:
  struct Entry {
    TcpTransport* tcp = nullptr;
    std::unique_ptr<Transport> transport;
  };

  static Log log() { return {"conformance", LogLevel::kSilent, {}}; }

  TcpOptions listening_options(const Hello& self) const {
    TcpOptions options;
    options.listen = {Endpoint{host_, 0}};
    options.self = self;
    options.shared_ring_bytes = ring_bytes_;
    return options;
  }

  Node add(TcpOptions options) {
    std::unique_ptr<TcpTransport> tcp = TcpTransport::create(std::move(options), log()).value();
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
  const std::size_t ring_bytes_;
  std::unique_ptr<Faults> faults_;
  Prng prng_;
  MonotonicClock clock_;
  std::vector<Entry> nodes_;
};

}  // namespace byteps::conformance
