// SimTransport: the Transport on a SimNetwork. It keeps T1 to T7 (tests/conformance), unless the network was told to
// repeat messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "net/transport.h"
#include "sim/network.h"
#include "sim/station.h"

namespace byteps::sim {

class SimTransport final : public Transport {
 public:
  // The network must outlive the transport.
  SimTransport(SimNetwork& network, SimTransportOptions options);
  ~SimTransport() override;  // die()
  SimTransport(const SimTransport&) = delete;
  SimTransport& operator=(const SimTransport&) = delete;

  // The process dies: lent payloads are the lender's again, the peers find out as if the connections had been closed.
  // No other function may be called any more. Whoever lent memory calls it before that memory goes.
  void die();
  // Death inside a turn: so many messages more leave, and with the last of them `then` is called, once; those after it
  // do not. The process is to die before its next turn.
  void let_leave(std::size_t count, std::function<void()> then);

  Result<PeerId> connect(const Endpoint& to, const Hello& self) override;
  bool is_naming(PeerId peer) const override;
  Status send(PeerId peer, const Outgoing& message) override;
  std::size_t poll(TimeNs now, std::span<Event> events) override;
  TimeNs next_deadline() const override { return kNever; }  // the network wakes
  void set_self(const Hello& self) override { station_.set_self(self); }
  void close(PeerId peer, Status reason) override;

  // poll() would give something.
  bool is_ready() const { return station_.ready_count() > 0; }
  // Numbers the transports of a network in the order made, from 1.
  std::uint32_t number() const { return station_.number(); }
  const std::string& name() const { return station_.name(); }

  // Why this memory is not its owner's alone: a payload of it is lent; empty if it is.
  std::string claim_on(std::span<const std::byte> memory) const {
    return station_.claim_on(memory);
  }
  std::size_t lent_payloads() const { return station_.lent_payloads(); }

 private:
  // False: there is no event after all.
  bool give_out(PeerId id, Ready& ready, Event& event);
  bool give_received(const Flight& flight, Event& event);
  void end_views();

  Wires& wires_;
  Station station_;
  bool is_dead_ = false;
  // Of let_leave().
  std::size_t leaving_ = SIZE_MAX;
  std::function<void()> then_;
  std::vector<std::vector<std::byte>> views_;  // headers and payloads given out by the last poll
  std::size_t views_used_ = 0;
};

}  // namespace byteps::sim
