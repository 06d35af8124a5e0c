// SimNetwork: the wires between SimTransports, with a time of its own and faults under a seed, as whoever plays the
// world sees it.
//
//   line      each host sends and receives at bytes_per_second; what it cannot send yet queues, first in, first out,
//             or its connections take turns. What stays on a host goes through memory instead (lines.h)
//   flight    delay_ns and up to jitter_ns more; a connection keeps its order, two connections do not (carriage.h)
//   lending   when the payload is read out of the lender's memory, and when kSent comes: a connection chooses one of
//             Lending by chance, because a real transport may do either, and a caller must not care (payloads.h)
//
// Faults are asked for here (cut, block, hold, put_up, slow_down, freeze) or happen by chance (SimNetworkOptions). One
// thread, no clock: whoever owns the network moves its time with advance(). Equal calls under an equal seed give equal
// runs. The pieces that do all that are in wires.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "sim/network_options.h"
#include "sim/obstacles.h"
#include "sim/trace.h"
#include "sim/wires.h"

namespace byteps::sim {

class SimNetwork {
 public:
  // Its transports end before it.
  SimNetwork(SimNetworkOptions options, const Prng& prng, Trace& trace)
      : wires_(std::move(options), prng, trace) {}
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // The side of the transports.
  Wires& wires() { return wires_; }

  // ---- time
  TimeNs now() const { return medium().now(); }
  TimeNs next_event_ns() const { return medium().agenda.next_ns(); }
  // Carries out all that happens up to `to`, which must not be before now().
  void advance(TimeNs to);

  // ---- faults. They name transports by their number, see SimTransport::number().
  using Pair = Obstacles::Pair;
  // Pairs of transports with a connection between them that is up at both ends, each once, in order.
  std::vector<Pair> connected_pairs() const { return medium().connections.connected_pairs(); }
  // They have a connection, and it goes through the memory of a host.
  bool is_within_host(Pair pair) const;
  // Breaks the connections between two transports now. Each message under way survives only if those before it do.
  // `a` hears of it after a_hears_ns, `b` after b_hears_ns; until then they send into nothing, and what survives may
  // still arrive, up to late_ns later than it would have.
  struct Cut {
    Pair pair;
    TimeNs a_hears_ns = 0;
    TimeNs b_hears_ns = 0;
    TimeNs late_ns = 0;
  };
  void cut(const Cut& cut);
  // Nobody connects between these two until then. silent: attempts are not refused, they hang and are repeated.
  void block(Pair pair, TimeNs until, bool silent);
  // Nothing departs between these two until then.
  void hold(Pair pair, TimeNs until);
  // Whichever way is shut, no connection is made across, and one that is there ends at both ends with kTimeout once the
  // wall has stood for unreachable_ns, as TCP without acknowledgements does. What waits at a wall that falls before
  // departs then.
  using Wall = Obstacles::Wall;
  void put_up(const Wall& wall);
  // This host's card has so many bytes per second from now on, in both directions; 0: no limit.
  void slow_down(HostIndex host, std::uint64_t bytes_per_second);
  // The process of this transport stands still until then: its listener answers nobody.
  void freeze(std::uint32_t number, TimeNs until);
  // From now on so many of the messages between hosts are corrupted.
  void corrupt(double chance) { wires_.medium.options.chances.corrupt = chance; }
  // From now on nothing happens by chance but delays: no repeats, no lost tails, no corruption.
  void end_chances();

  // ---- what was seen
  // Sentences about contracts that the owner of a transport broke.
  const std::vector<std::string>& breaches() const { return wires_.payloads.breaches(); }
  const NetworkCounts& counts() const { return medium().counts; }
  // Whoever wants to look on puts itself in.
  NetworkProbes& probes() { return wires_.medium.probes; }
  // Payloads accepted and not given back, of all transports that live.
  std::size_t lent_payloads() const { return medium().stations.lent_payloads(); }

 private:
  const Medium& medium() const { return wires_.medium; }

  Wires wires_;
};

}  // namespace byteps::sim
