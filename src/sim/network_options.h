// What a simulated network is told when it is made, and what it tells: its options, who looks on, and its counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/time.h"
#include "net/transport.h"

namespace byteps::sim {

// A machine of the network: transports on one machine share its card, and reach each other through memory.
using HostIndex = std::uint32_t;

// When a payload is read, and when its lender gets it back.
enum class Lending : std::uint8_t {
  kCopyAtSend,    // read by send(); kSent when it departs
  kReadAtDepart,  // read and given back when it departs, as a kernel's socket buffer does
  kReadAtArrive,  // read and given back when the receiver gets it, as RDMA does
};

// What happens by chance, beside delays: how likely, from 0 to 1, and how much of it.
struct NetworkChances {
  // close() loses what was accepted and has not departed.
  double lost_tail_at_close = 0;
  // A message is given out twice, contrary to T1, so much later at most, if its protocol bears it.
  double repeat = 0;
  TimeNs repeat_within_ns = 0;
  std::function<bool(std::span<const std::byte> header)> may_repeat;
  // The look-up of a host's name is late, by so much at most; otherwise it takes no time.
  double late_look_up = 0;
  TimeNs look_up_late_max_ns = 0;
  // A message arrives with changed bytes, which its receiver's checksum shows: that connection ends there, and the
  // message is not given out.
  double corrupt = 0;
};

struct SimNetworkOptions {
  std::uint64_t bytes_per_second = 1'250'000'000;  // of each host and direction; 0: no limit
  // Of one connection and direction so many messages stand in the queue of a card at a time, at its sender and at its
  // receiver; at least 1.
  std::size_t at_sender = 2;
  std::size_t at_receiver = 64;
  TimeNs delay_ns = 20 * kMicrosecond;  // one way
  TimeNs jitter_ns = 10 * kMicrosecond;
  // What stays on a host: each transport sends and receives there at this rate, and a message flies for so long and up
  // to as much again. Nothing of it is damaged or repeated.
  std::uint64_t memory_bytes_per_second = 10'000'000'000;  // 0: no limit
  TimeNs memory_delay_ns = 2 * kMicrosecond;
  std::size_t window_bytes = 1 << 20;  // per connection and direction: sent, and no kSent given out
  TimeNs connect_timeout_ns = 3 * kSecond;  // then a connection attempt ends
  TimeNs unreachable_ns =
      1500 * kMillisecond;  // a connection ends behind a wall that stands so long
  std::size_t events_per_poll_max = 1 << 20;

  bool mix_peers = false;  // poll() takes the peers in a random order
  NetworkChances chances;
  bool check_lent_memory =
      false;  // a payload changed by its owner while it is lent is a breach, see breaches()
  bool trace_payloads = false;  // what is sent enters the trace's hash, not only its headers
  bool poison_views = true;     // what poll() gave out is overwritten when its time is over
  std::vector<Lending> lending = {Lending::kCopyAtSend, Lending::kReadAtDepart,
                                  Lending::kReadAtArrive};
  std::function<std::string(std::span<const std::byte> header)>
      describe;  // a message in words, for the trace; empty: leave it out
  // To see that a broken network is found: may change a payload just before it is given out; false: the message is not
  // given out at all. `lent` is the sender's memory of it, where the network still has that: it may be written to as
  // well, and later, when it is the sender's again.
  using Tamper = std::function<bool(const Event& event, std::span<std::byte> payload,
                                    std::span<std::byte> lent)>;
  Tamper tamper;
};

// Those who look on. They must not call the network.
struct NetworkProbes {
  // Each message that a transport accepts; the payload is the lender's memory.
  std::function<void(std::span<const std::byte> header, std::span<const std::byte> payload)>
      on_send;
  // Each message that has arrived at a living transport.
  std::function<void(std::uint32_t from_number, std::uint32_t to_number,
                     std::span<const std::byte> header)>
      on_arrival;
  // Each payload that a receiver gets, for tests that look at offsets.
  std::function<void(std::span<const std::byte> header, std::span<const std::byte> payload)>
      on_receive;
  // Each connection that reaches a listener that lets it in.
  std::function<void(const Hello& hello, std::uint32_t from_number, std::uint32_t to_number)>
      on_connect;
};

// What has happened so far.
struct NetworkCounts {
  std::uint64_t delivered_messages = 0;
  std::uint64_t delivered_bytes = 0;  // of payloads
  std::uint64_t corrupted_messages = 0;
  std::uint64_t repeated_messages = 0;
  std::uint64_t late_look_ups = 0;
};

}  // namespace byteps::sim
