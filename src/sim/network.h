// SimNetwork: the wires between SimTransports, with a time of its own and faults under a seed.
//
// A message's road:   send() -> waits for its host's line -> departs -> flies -> arrives -> poll() gives it out
//
//   line      each host sends and receives at bytes_per_second; what it cannot send yet queues, and its connections
//             take turns message by message, so that a heartbeat does not wait behind megabytes
//   flight    delay_ns and up to jitter_ns more; a connection keeps its order, two connections do not
//   lending   when the payload is read out of the lender's memory, and when kSent comes: a connection chooses one of
//             Lending by chance, because a real transport may do either, and a caller must not care
//   landing   a prefix of a payload may be written into its landing before the message is whole, also when the rest
//             never comes
//
// Faults are asked for from outside (cut, block, hold, put_up, slow_down, freeze) or happen by chance
// (SimNetworkOptions). One thread, no clock: whoever owns the network moves its time with advance(). Equal calls under
// an equal seed give equal runs. Connections and messages are in network.cc, lines in network_lines.cc, faults in
// network_faults.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/prng.h"
#include "net/transport.h"
#include "sim/trace.h"

namespace byteps::sim {

class SimTransport;

// A machine of the network: transports on one machine share its line.
using HostIndex = std::uint32_t;

// When a payload is read, and when its lender gets it back.
enum class Lending : std::uint8_t {
  kCopyAtSend,    // read by send(); kSent when it departs
  kReadAtDepart,  // read and given back when it departs, as a kernel's socket buffer does
  kReadAtArrive,  // read and given back when the receiver gets it, as RDMA does
};

struct SimNetworkOptions {
  std::uint64_t bytes_per_second = 1'250'000'000;  // of each host and direction; 0: no limit
  TimeNs delay_ns = 20 * kMicrosecond;             // one way
  TimeNs jitter_ns = 10 * kMicrosecond;
  std::size_t window_bytes = 1 << 20;  // per connection and direction: sent, and no kSent given out
  TimeNs connect_timeout_ns = 3 * kSecond;  // then a connection attempt ends
  TimeNs unreachable_ns =
      1500 * kMillisecond;  // a connection ends behind a wall that stands so long
  std::size_t events_per_poll_max = 1 << 20;

  bool mix_peers = false;  // poll() takes the peers in a random order
  double partial_landing =
      0;  // chance that a payload is half in its landing before it is given out
  double lost_tail_at_close =
      0;                        // chance that close() loses what was accepted and has not departed
  double repeat = 0;            // chance that a message is given out twice, contrary to T1 ...
  TimeNs repeat_within_ns = 0;  // ... so much later at most ...
  std::function<bool(std::span<const std::byte> header)>
      may_repeat;                  // ... if its protocol bears it
  double late_look_up = 0;         // chance that the look-up of a host's name is late ...
  TimeNs look_up_late_max_ns = 0;  // ... by so much at most; otherwise it takes no time
  double corrupt =
      0;  // chance that a message arrives with changed bytes, which its receiver's checksum shows: that
  // connection ends there, the message is not given out, and its landing may have been written
  bool check_lent_memory =
      false;  // a payload changed by its owner while it is lent is a breach, see breaches()
  bool trace_payloads = false;  // what is sent enters the trace's hash, not only its headers
  bool poison_views = true;     // what poll() gave out is overwritten when its time is over
  std::vector<Lending> lending = {Lending::kCopyAtSend, Lending::kReadAtDepart,
                                  Lending::kReadAtArrive};
  std::function<std::string(std::span<const std::byte> header)>
      describe;  // a message in words, for the trace; empty: leave it out
  // To see that a broken network is found: may change a payload just before it is given out; false: the message is not
  // given out at all.
  using Tamper = std::function<bool(const Event& event, std::span<std::byte> payload)>;
  Tamper tamper;
};

// Called for each payload that a receiver gets, for tests that look at offsets.
using ReceiveProbe = std::function<void(std::span<const std::byte> header,
                                        std::span<const std::byte> payload, bool landed)>;

// Called for each message that a transport accepts; the payload is the lender's memory.
using SendProbe =
    std::function<void(std::span<const std::byte> header, std::span<const std::byte> payload)>;

// Called when a message has arrived at a living transport. It must not call the network.
using ArrivalProbe = std::function<void(std::uint32_t from_number, std::uint32_t to_number,
                                        std::span<const std::byte> header)>;

// Called when a connection reaches a listener that lets it in. It must not call the network.
using ConnectProbe =
    std::function<void(const Hello& hello, std::uint32_t from_number, std::uint32_t to_number)>;

class SimNetwork {
 public:
  using ConnectionId = std::uint32_t;

  SimNetwork(SimNetworkOptions options, Prng prng, Trace& trace);
  ~SimNetwork();
  SimNetwork(const SimNetwork&) = delete;
  SimNetwork& operator=(const SimNetwork&) = delete;

  // ---- time
  TimeNs now() const { return now_; }
  TimeNs next_event_ns() const { return events_.empty() ? kNever : events_.top().at; }
  // Carries out all that happens up to `to`, which must not be before now().
  void advance(TimeNs to);

  // ---- faults. They name transports by their number, see SimTransport::number().
  struct Pair {
    std::uint32_t a = 0;
    std::uint32_t b = 0;
  };
  // Pairs of transports with a connection between them that is up at both ends, each once, in order.
  std::vector<Pair> connected_pairs() const;
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
  // A partition. Until `until` (kNever: for ever) nothing departs from hosts of `from` to hosts of `to`, nor the other
  // way when `both`. Whichever way is shut, no connection is made across, and one that is there ends at both ends
  // with kTimeout once the wall has stood for unreachable_ns, as TCP without acknowledgements does. What
  // waits at a wall that falls before departs then.
  struct Wall {
    std::vector<HostIndex> from;
    std::vector<HostIndex> to;
    bool both = true;
    TimeNs until = 0;
  };
  void put_up(const Wall& wall);
  // This host's line has so many bytes per second from now on, in both directions; 0: no limit.
  void slow_down(HostIndex host, std::uint64_t bytes_per_second);
  // The process of this transport stands still until then: its listener answers nobody.
  void freeze(std::uint32_t number, TimeNs until);
  // From now on nothing happens by chance but delays: no repeats, no lost tails, no partial landings, no corruption.
  void end_chances();

  // ---- what was seen
  // Sentences about contracts that the owner of a transport broke.
  const std::vector<std::string>& breaches() const { return breaches_; }
  std::uint64_t delivered_messages() const { return delivered_messages_; }
  std::uint64_t delivered_bytes() const { return delivered_bytes_; }
  std::uint64_t corrupted_messages() const { return corrupted_messages_; }
  std::uint64_t late_look_ups() const { return last_look_up_; }
  std::uint64_t repeated_messages() const { return last_repeat_; }
  void set_receive_probe(ReceiveProbe probe) { receive_probe_ = std::move(probe); }
  void set_send_probe(SendProbe probe) { send_probe_ = std::move(probe); }
  void set_arrival_probe(ArrivalProbe probe) { arrival_probe_ = std::move(probe); }
  void set_connect_probe(ConnectProbe probe) { connect_probe_ = std::move(probe); }
  // The name of the transport with this number; empty when it has gone.
  std::string name(std::uint32_t number) const;
  // Of a transport that lives.
  HostIndex host(std::uint32_t number) const;
  // Payloads accepted and not given back, of all transports that live.
  std::size_t lent_payloads() const;

 private:
  friend class SimTransport;
  static constexpr std::uint64_t kNoNumber = ~std::uint64_t{0};

  // A message between send() and its end.
  struct Flight {
    std::vector<std::byte> header;
    std::vector<std::byte> copy;         // the payload once it was read
    std::span<const std::byte> payload;  // the lender's memory, or `copy`
    LandingTag landing = kNoLanding;
    std::uint64_t landing_offset = 0;
    SendToken token = 0;
    std::uint64_t lent_hash = 0;
    bool fin = false;      // the end of the connection, behind all messages
    bool read = false;     // `payload` is `copy`
    bool done = false;     // its payload is not needed any more
    bool sent = false;     // ... and kSent was queued, or there is nobody to tell
    bool arrived = false;  // waits in the receiver's ready queue
    bool gone = false;     // given out, lost or dropped
  };
  // From end `side` to the other one. Flights are numbered in the order sent.
  struct Direction {
    std::deque<Flight*> flights;
    std::uint64_t first = 0;  // number of flights.front()
    std::uint64_t next_depart = 0;
    std::uint64_t next_arrive = 0;
    std::uint64_t next_sent = 0;
    std::uint64_t lost_from = kNoNumber;
    TimeNs last_arrival = 0;  // no message of it reaches the other host earlier
    TimeNs depart_not_before_ns = 0;
    TimeNs arrive_not_before_ns = 0;
    TimeNs resume_at_ns = 0;        // a kResume is scheduled for then
    bool at_line = false;           // waits for its sender's line, or is served there
    bool at_far_line = false;       // ... its receiver's
    std::deque<TimeNs> reached_ns;  // of messages that wait for the receiver's line: since when
    std::size_t charged_bytes = 0;
    Lending lending = Lending::kCopyAtSend;
    std::uint64_t end() const { return first + flights.size(); }
    Flight& flight(std::uint64_t number) { return *flights[number - first]; }
  };
  enum class EndState : std::uint8_t { kNone, kConnecting, kUp, kDown };
  struct End {
    SimTransport* owner = nullptr;
    std::uint32_t number = 0;  // of the owner, this and the next two also when that has gone
    HostIndex host = 0;
    std::string name;
    PeerId peer;
    EndState state = EndState::kNone;
  };
  // ends[0] connects, ends[1] listens. way[i] goes from ends[i] to the other.
  struct Connection {
    ConnectionId id = 0;
    End ends[2];
    Direction way[2];
    Endpoint to;
    Hello hello;   // of ends[0]
    Hello answer;  // of ends[1]
    Status refused;
    TimeNs delay_ns = 0;
    bool is_naming = false;  // ends[0] waits for the look-up of the host's name
    bool broken = false;
  };
  enum class Happening : std::uint8_t {
    kNamed,  // argument: the look-up
    kSyn,
    kHello,
    kRefused,
    kConnectTimeout,
    kResume,       // what was held may depart
    kDepart,       // the sender's line has sent it; argument: the host
    kReach,        // it is at the receiver's host
    kArrive,       // the receiver's line has received it; argument: the host
    kHear,         // of a cut
    kUnreachable,  // argument: the wall
    kRepeat
  };
  struct Scheduled {
    TimeNs at;
    std::uint64_t number;  // equal times happen in the order they were scheduled
    Happening what;
    std::uint8_t side;
    ConnectionId connection;
    std::uint64_t argument;
    bool operator>(const Scheduled& other) const {
      return at != other.at ? at > other.at : number > other.number;
    }
  };
  // One direction of a connection.
  struct Lane {
    ConnectionId connection;
    int side;
  };
  // What a host sends, or what it receives: one message after the other, of each lane in turn.
  struct Queue {
    std::deque<Lane> waiting;
    bool is_busy = false;
    TimeNs free_ns = 0;  // since when it is not
  };
  struct Line {
    std::uint64_t bytes_per_second = 0;
    Queue send;
    Queue receive;
  };
  struct Block {
    Pair pair;
    TimeNs until;
    bool silent;
  };
  struct LookUp {
    std::uint32_t number;  // of the transport that asks
    std::string host;
  };
  struct StandingWall {
    std::uint64_t number;
    Wall wall;
  };

  // For SimTransport.
  std::uint32_t attach(SimTransport& transport);
  void detach(SimTransport& transport);
  Result<PeerId> connect(SimTransport& from, const Endpoint& to, const Hello& self);
  bool is_naming(ConnectionId id) const {
    return connections_[id] != nullptr && connections_[id]->is_naming;
  }
  Status send(ConnectionId id, int side, const Outgoing& message);
  void close(ConnectionId id, int side, const Status& reason);
  // End `side` was given this message (or dropped it, when it closed).
  void given_out(ConnectionId id, int side, Flight& flight, bool dropped);
  // End `side` was given its kDown: its owner does not know it any more.
  void down_given_out(ConnectionId id, int side);
  // End `side` was given a kSent.
  void sent_given_out(ConnectionId id, int side, std::size_t charged_bytes);
  void maybe_repeat(const Connection& connection, int side, const Flight& flight);

  void schedule(TimeNs at, Happening what, ConnectionId id, int side, std::uint64_t argument = 0);
  void happen(const Scheduled& event);
  void begin_connecting(Connection& connection);
  void on_named(std::uint64_t number);
  void on_syn(Connection& connection);
  void on_hello(Connection& connection);
  void on_depart(Connection& connection, int side);
  void on_reach(Connection& connection, int side);
  void on_arrive(Connection& connection, int side);
  void on_unreachable(Connection& connection, int side, std::uint64_t wall);
  void on_repeat(Connection& connection, int side, std::uint64_t repeat);
  void refuse(Connection& connection, Status why);

  // Lines.
  void offer(Connection& connection, int side);
  void offer_far(Connection& connection, int side);
  void serve_send(HostIndex host);
  void serve_receive(HostIndex host);
  void after_depart(HostIndex host, ConnectionId id, int side);
  void after_arrive(HostIndex host, ConnectionId id, int side);
  Line& line(HostIndex host);
  static TimeNs line_ns(const Line& line, std::size_t bytes);

  void enqueue(Connection& connection, int side, Flight* flight);
  void enqueue_fin(Connection& connection, int side);
  void end_down(Connection& connection, int side, const Status& why);
  void give_back(Connection& connection, int side, Flight& flight);
  void read(Connection& connection, int side, Flight& flight);
  void retire(ConnectionId id);
  const Block* block_between(std::uint32_t a, std::uint32_t b);
  TimeNs wall_until(HostIndex from, HostIndex to) const;
  bool is_walled(HostIndex a, HostIndex b) const;
  bool corrupts(Connection& connection, int side, Flight& flight);
  void write_landing(Connection& connection, int from_side, const Flight& flight, bool garbage);
  TimeNs flight_ns(const Connection& connection);
  Connection* find(ConnectionId id) { return connections_[id].get(); }
  Flight* take_flight();
  void return_flight(Flight* flight);
  void note(Trace::What what, const char* word, const Connection& connection, int side,
            std::span<const std::byte> header = {}, const Status& why = {});

  SimNetworkOptions options_;
  Prng prng_;
  Trace& trace_;
  TimeNs now_ = 0;
  std::priority_queue<Scheduled, std::vector<Scheduled>, std::greater<>> events_;
  std::uint64_t last_event_ = 0;
  std::vector<std::unique_ptr<Connection>> connections_;  // by id; null when over
  std::map<std::uint32_t, SimTransport*> transports_;     // those that live, by number
  std::uint32_t last_number_ = 0;
  std::vector<Line> lines_;
  std::vector<Block> blocks_;
  std::vector<StandingWall> walls_;
  std::uint64_t last_wall_ = 0;
  std::map<std::uint32_t, TimeNs> frozen_until_;  // by number
  std::map<std::uint64_t, Flight*> repeats_;      // scheduled
  std::uint64_t last_repeat_ = 0;
  std::map<std::uint64_t, LookUp> look_ups_;  // late ones, under way
  std::uint64_t last_look_up_ = 0;
  std::vector<std::unique_ptr<Flight>> all_flights_;
  std::vector<Flight*> free_flights_;
  std::vector<std::string> breaches_;
  std::uint64_t delivered_messages_ = 0;
  std::uint64_t delivered_bytes_ = 0;
  std::uint64_t corrupted_messages_ = 0;
  ReceiveProbe receive_probe_;
  SendProbe send_probe_;
  ArrivalProbe arrival_probe_;
  ConnectProbe connect_probe_;
};

}  // namespace byteps::sim
