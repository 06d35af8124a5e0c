// The simulated network for the conformance suite: lines with a rate, delays, and all ways of lending.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "base/prng.h"
#include "sim/network.h"
#include "sim/sim_transport.h"
#include "sim/trace.h"
#include "tests/conformance/transport_factory.h"

namespace byteps::conformance {

class SimWorld final : public World {
 public:
  explicit SimWorld(std::uint64_t seed) : network_(options(), Prng(seed), trace_) {}
  ~SimWorld() override { nodes_.clear(); }

  Node make_listening(const Hello& self) override {
    sim::SimTransportOptions options = next_options();
    options.listen = Endpoint{"sim", static_cast<std::uint16_t>(1000 + nodes_.size())};
    options.self = self;
    return add(std::move(options));
  }
  Node make_connecting() override { return add(next_options()); }

  Transport& transport(Node node) override { return *nodes_.at(node); }
  Endpoint address(Node listening) override {
    return {"sim", static_cast<std::uint16_t>(1000 + listening)};
  }
  Endpoint nobody() override { return {"sim", 9}; }
  TimeNs now() override { return network_.now(); }
  void idle() override {
    // A poll of a real node takes some time too; without it, those who send in each round would stop the
    // clock.
    const TimeNs soon = network_.now() + 20 * kMicrosecond;
    const TimeNs next = network_.next_event_ns();
    network_.advance(next == kNever ? soon : std::max(next, soon));
  }
  void kill(Node node) override { nodes_.at(node).reset(); }

 private:
  static sim::SimNetworkOptions options() {
    sim::SimNetworkOptions options;
    options.mix_peers = true;
    options.check_lent_memory = true;
    return options;
  }
  sim::SimTransportOptions next_options() const {
    sim::SimTransportOptions options;
    options.name = "node " + std::to_string(nodes_.size());
    options.host = static_cast<sim::HostIndex>(nodes_.size());
    return options;
  }
  Node add(sim::SimTransportOptions options) {
    nodes_.push_back(std::make_unique<sim::SimTransport>(network_, std::move(options)));
    return nodes_.size() - 1;
  }

  sim::Trace trace_;
  sim::SimNetwork network_;
  std::vector<std::unique_ptr<sim::SimTransport>> nodes_;
};

inline std::unique_ptr<World> make_sim_world(std::uint64_t seed) {
  return std::make_unique<SimWorld>(seed);
}

}  // namespace byteps::conformance
