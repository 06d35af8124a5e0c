// The transport that tests of the rooms above net/ play all peers on (tests/net/scripted_transport.h), several of them
// connected by a Switchboard.
#pragma once

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/conformance/transport_factory.h"
#include "tests/net/switchboard.h"

namespace byteps::conformance {

class ScriptedWorld final : public World {
 public:
  explicit ScriptedWorld(std::uint64_t seed) : board_(seed) {}

  Node make_listening(const Hello& self) override {
    const Node node = add(self);
    nodes_.at(node)->listen(address(node));
    return node;
  }
  Node make_connecting() override { return add({}); }
  Transport& transport(Node node) override { return *nodes_.at(node); }
  Endpoint address(Node listening) override {
    return {"script", static_cast<std::uint16_t>(1000 + listening)};
  }
  Endpoint nobody() override { return {"script", 9}; }
  TimeNs now() override { return board_.now(); }
  void idle() override {
    const TimeNs next = board_.next_ns();
    board_.advance(next == kNever ? board_.now() + kMillisecond : std::max(next, board_.now()));
  }
  void kill(Node node) override { nodes_.at(node).reset(); }

 private:
  Node add(const Hello& self) {
    nodes_.push_back(std::make_unique<SwitchTransport>(board_, self));
    nodes_.back()->forgiving = true;
    return nodes_.size() - 1;
  }

  Switchboard board_;
  std::vector<std::unique_ptr<SwitchTransport>> nodes_;
};

}  // namespace byteps::conformance
