#include "sim/network.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "sim/sim_transport.h"

namespace byteps::sim {
namespace {

constexpr std::size_t kMessageBytes = 512;  // what a message costs of the window beside its payload
constexpr int kSynsPerTimeout = 8;          // how often an attempt that nobody answers is repeated

std::uint64_t hash_of(std::span<const std::byte> bytes) {
  std::uint64_t hash = bytes.size();
  std::size_t at = 0;
  for (; at + 8 <= bytes.size(); at += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    hash ^= hash >> 29;
  }
  for (; at < bytes.size(); ++at) hash = (hash ^ static_cast<std::uint64_t>(bytes[at])) * 31;
  return hash;
}

}  // namespace

SimNetwork::SimNetwork(SimNetworkOptions options, Prng prng, Trace& trace)
    : options_(std::move(options)), prng_(prng), trace_(trace) {
  CHECK(!options_.lending.empty());
}

SimNetwork::~SimNetwork() {
  CHECK(transports_.empty()) << "the network ended before its transports";
}

// ---- time

void SimNetwork::schedule(TimeNs at, Happening what, ConnectionId id, int side,
                          std::uint64_t argument) {
  events_.push({at, ++last_event_, what, static_cast<std::uint8_t>(side), id, argument});
}

void SimNetwork::advance(TimeNs to) {
  CHECK_GE(to, now_) << "time goes forward";
  while (!events_.empty() && events_.top().at <= to) {
    const Scheduled event = events_.top();
    events_.pop();
    now_ = std::max(now_, event.at);
    happen(event);
  }
  now_ = to;
}

void SimNetwork::happen(const Scheduled& event) {
  const auto host = static_cast<HostIndex>(event.argument);
  if (event.what == Happening::kDepart) return after_depart(host, event.connection, event.side);
  if (event.what == Happening::kArrive) return after_arrive(host, event.connection, event.side);
  if (event.what == Happening::kNamed) return on_named(event.argument);
  Connection* connection = find(event.connection);
  if (event.what == Happening::kRepeat && connection == nullptr) {
    return_flight(repeats_.extract(event.argument).mapped());
  }
  if (connection == nullptr) return;
  switch (event.what) {
    case Happening::kSyn:
      on_syn(*connection);
      break;
    case Happening::kHello:
      on_hello(*connection);
      break;
    case Happening::kRefused:
      end_down(*connection, 0, connection->refused);
      break;
    case Happening::kConnectTimeout:
      if (connection->ends[0].state == EndState::kConnecting) {
        end_down(*connection, 0,
                 {Code::kTimeout, connection->to.text() + " did not answer in time"});
      }
      break;
    case Happening::kResume:
      offer(*connection, event.side);
      break;
    case Happening::kReach:
      on_reach(*connection, event.side);
      break;
    case Happening::kHear:
      end_down(*connection, event.side, {Code::kDisconnected, "the connection was reset"});
      break;
    case Happening::kUnreachable:
      on_unreachable(*connection, event.side, event.argument);
      break;
    case Happening::kDepart:
    case Happening::kArrive:
    case Happening::kNamed:
      break;  // above
    case Happening::kRepeat:
      on_repeat(*connection, event.side, event.argument);
      break;
  }
  retire(event.connection);
}

TimeNs SimNetwork::flight_ns(const Connection& connection) {
  return connection.delay_ns +
         static_cast<TimeNs>(prng_.below(static_cast<std::uint64_t>(options_.jitter_ns) + 1));
}

// ---- transports and connections

std::uint32_t SimNetwork::attach(SimTransport& transport) {
  transports_.emplace(++last_number_, &transport);
  return last_number_;
}

void SimNetwork::detach(SimTransport& transport) {
  for (auto& [peer_id, peer] : transport.peers_) {
    Connection* connection = find(peer.connection);
    if (connection == nullptr) continue;
    const int side = peer.side;
    End& end = connection->ends[side];
    transport.drop_received(peer_id);
    if (end.state != EndState::kDown) {
      Direction& way = connection->way[side];
      // What has departed still arrives; of the rest, what its kernel had.
      const std::uint64_t waiting = way.end() - std::min(way.end(), way.next_depart);
      way.lost_from = std::min(way.lost_from, way.next_depart + prng_.below(waiting + 1));
      end_down(*connection, side, Status::ok());
      enqueue_fin(*connection, side);
    }
    end.owner = nullptr;
    retire(connection->id);
  }
  transports_.erase(transport.number_);
}

Result<PeerId> SimNetwork::connect(SimTransport& from, const Endpoint& to, const Hello& self) {
  if (to.host.empty()) return Status(Code::kInvalidArgument, "an endpoint without a host");
  const auto id = static_cast<ConnectionId>(connections_.size());
  Connection& connection = *connections_.emplace_back(std::make_unique<Connection>());
  connection.id = id;
  connection.to = to;
  connection.hello = self;
  connection.delay_ns =
      options_.delay_ns / 2 +
      static_cast<TimeNs>(prng_.below(static_cast<std::uint64_t>(options_.delay_ns) + 1));
  for (Direction& way : connection.way) {
    way.lending = options_.lending[prng_.below(options_.lending.size())];
  }
  connection.ends[0] = {&from,       from.number(), from.options_.host,
                        from.name(), PeerId(),      EndState::kConnecting};
  connection.ends[0].peer = from.add_peer(id, 0);
  note(Trace::What::kConnect, "connects", connection, 0);
  const PeerId peer = connection.ends[0].peer;
  NameBook::Known known = from.names_.ask(to.host);
  if (known.look_up && options_.late_look_up > 0 && prng_.chance(options_.late_look_up)) {
    look_ups_[++last_look_up_] = {from.number(), to.host};
    const auto late = static_cast<std::uint64_t>(options_.look_up_late_max_ns) + 1;
    schedule(now_ + static_cast<TimeNs>(prng_.below(late)), Happening::kNamed, id, 0,
             last_look_up_);
  } else if (known.look_up) {
    from.names_.answer(to.host, NameBook::Addresses{to.host});
    known = from.names_.ask(to.host);
  }
  connection.is_naming = known.addresses == nullptr;
  if (!connection.is_naming) begin_connecting(connection);
  return peer;
}

void SimNetwork::begin_connecting(Connection& connection) {
  schedule(now_ + flight_ns(connection), Happening::kSyn, connection.id, 0);
  schedule(now_ + options_.connect_timeout_ns, Happening::kConnectTimeout, connection.id, 0);
}

// A late look-up has its answer: who waits for it begins.
void SimNetwork::on_named(std::uint64_t number) {
  const LookUp look_up = look_ups_.extract(number).mapped();
  const auto asker = transports_.find(look_up.number);
  if (asker == transports_.end()) return;
  asker->second->names_.answer(look_up.host, NameBook::Addresses{look_up.host});
  for (const auto& connection : connections_) {
    if (connection == nullptr || !connection->is_naming) continue;
    if (connection->ends[0].number != look_up.number || connection->to.host != look_up.host)
      continue;
    connection->is_naming = false;
    if (connection->ends[0].state == EndState::kConnecting) begin_connecting(*connection);
  }
}

void SimNetwork::on_syn(Connection& connection) {
  if (connection.ends[0].state != EndState::kConnecting) return;
  const auto listener = std::find_if(transports_.begin(), transports_.end(), [&](const auto& each) {
    return each.second->options_.listen == connection.to;
  });
  const std::string to = connection.to.text();
  if (listener == transports_.end()) {
    return refuse(connection, {Code::kDisconnected, to + " refused the connection"});
  }
  SimTransport& other = *listener->second;
  if (is_walled(connection.ends[0].host, other.options_.host)) {
    return schedule(now_ + options_.connect_timeout_ns / kSynsPerTimeout, Happening::kSyn,
                    connection.id, 0);
  }
  const auto frozen = frozen_until_.find(other.number());
  if (frozen != frozen_until_.end() && now_ < frozen->second) {
    if (frozen->second != kNever) schedule(frozen->second, Happening::kSyn, connection.id, 0);
    return;
  }
  const Block* block = block_between(connection.ends[0].number, other.number());
  if (block != nullptr && block->silent) {
    return schedule(now_ + options_.connect_timeout_ns / kSynsPerTimeout, Happening::kSyn,
                    connection.id, 0);
  }
  if (block != nullptr) return refuse(connection, {Code::kDisconnected, to + " is unreachable"});
  const Hello& theirs = other.options_.self;
  if (connection.hello.version != theirs.version) {
    return refuse(connection,
                  {Code::kMismatch, to + " speaks version " + std::to_string(theirs.version) +
                                        ", not " + std::to_string(connection.hello.version)});
  }
  if (connection.hello.job_id != theirs.job_id) {
    return refuse(connection, {Code::kMismatch, to + " belongs to another job"});
  }
  connection.ends[1] = {&other,       other.number(), other.options_.host,
                        other.name(), PeerId(),       EndState::kUp};
  connection.ends[1].peer = other.add_peer(connection.id, 1);
  connection.answer = theirs;
  note(Trace::What::kUp, "accepts", connection, 1);
  if (connect_probe_) connect_probe_(connection.hello, connection.ends[0].number, other.number());
  SimTransport::Ready ready;
  ready.kind = Event::Kind::kUp;
  ready.hello = connection.hello;
  other.queue(connection.ends[1].peer, std::move(ready));
  connection.way[1].last_arrival = now_ + flight_ns(connection);
  schedule(connection.way[1].last_arrival, Happening::kHello, connection.id, 1);
}

void SimNetwork::refuse(Connection& connection, Status why) {
  note(Trace::What::kRefused, "is refused", connection, 0, {}, why);
  connection.refused = std::move(why);
  schedule(now_ + flight_ns(connection), Happening::kRefused, connection.id, 0);
}

void SimNetwork::on_hello(Connection& connection) {
  End& end = connection.ends[0];
  if (end.state != EndState::kConnecting) return;
  if (connection.broken) return;  // it will hear so
  end.state = EndState::kUp;
  note(Trace::What::kUp, "is up", connection, 0);
  SimTransport::Ready ready;
  ready.kind = Event::Kind::kUp;
  ready.hello = connection.answer;
  end.owner->queue(end.peer, std::move(ready));
}

// ---- messages

SimNetwork::Flight* SimNetwork::take_flight() {
  if (free_flights_.empty()) {
    all_flights_.push_back(std::make_unique<Flight>());
    return all_flights_.back().get();
  }
  Flight* flight = free_flights_.back();
  free_flights_.pop_back();
  return flight;
}

void SimNetwork::return_flight(Flight* flight) {
  std::vector<std::byte> header = std::move(flight->header);  // keep their memory
  std::vector<std::byte> copy = std::move(flight->copy);
  *flight = Flight{};
  header.clear();
  copy.clear();
  flight->header = std::move(header);
  flight->copy = std::move(copy);
  free_flights_.push_back(flight);
}

Status SimNetwork::send(ConnectionId id, int side, const Outgoing& message) {
  Connection* connection = find(id);
  if (connection == nullptr || connection->ends[side].state != EndState::kUp) {
    return {Code::kDisconnected, "not connected"};
  }
  CHECK_LE(message.header.size(), kHeaderBytesMax);
  CHECK_LE(message.payload.size(), kPayloadBytesMax);
  Direction& way = connection->way[side];
  const std::size_t charge = message.payload.size() + kMessageBytes;
  if (way.charged_bytes > 0 && way.charged_bytes + charge > options_.window_bytes) {
    return {Code::kAgain, "the window is full"};
  }
  way.charged_bytes += charge;
  Flight* flight = take_flight();
  flight->header.assign(message.header.begin(), message.header.end());
  flight->payload = message.payload;
  flight->landing = message.landing;
  flight->landing_offset = message.landing_offset;
  flight->token = message.token;
  if (options_.check_lent_memory) flight->lent_hash = hash_of(message.payload);
  if (send_probe_) send_probe_(message.header, message.payload);
  if (way.lending == Lending::kCopyAtSend) read(*connection, side, *flight);
  note(Trace::What::kSend, "sends", *connection, side, flight->header);
  if (options_.trace_payloads) {
    trace_.note(now_, Trace::What::kSend, 0, 0, hash_of(message.payload));
  }
  enqueue(*connection, side, flight);
  return Status::ok();
}

void SimNetwork::enqueue(Connection& connection, int side, Flight* flight) {
  connection.way[side].flights.push_back(flight);
  offer(connection, side);
}

void SimNetwork::enqueue_fin(Connection& connection, int side) {
  if (connection.ends[1 - side].state == EndState::kNone) return;  // nobody answered yet
  Flight* fin = take_flight();
  fin->fin = true;
  enqueue(connection, side, fin);
  give_back(connection, side, *fin);
}

// The payload is copied out of the lender's memory.
void SimNetwork::read(Connection& connection, int side, Flight& flight) {
  if (flight.read || flight.fin) return;
  flight.copy.assign(flight.payload.begin(), flight.payload.end());
  flight.payload = flight.copy;
  flight.read = true;
  if (options_.check_lent_memory && hash_of(flight.payload) != flight.lent_hash) {
    breaches_.push_back("a payload lent by " + connection.ends[side].name +
                        " was changed before it came back");
  }
}

// The lender hears that its payload is its own again, in the order sent.
void SimNetwork::give_back(Connection& connection, int side, Flight& flight) {
  flight.done = true;
  Direction& way = connection.way[side];
  const End& end = connection.ends[side];
  for (; way.next_sent < way.end() && way.flight(way.next_sent).done; ++way.next_sent) {
    Flight& next = way.flight(way.next_sent);
    next.sent = true;
    if (end.owner == nullptr || next.fin) continue;
    SimTransport::Ready ready;
    ready.kind = Event::Kind::kSent;
    ready.token = next.token;
    ready.charged_bytes = next.payload.size() + kMessageBytes;
    end.owner->queue(end.peer, std::move(ready));
  }
}

// Its line has sent the next message that is still to be sent.
void SimNetwork::on_depart(Connection& connection, int side) {
  Direction& way = connection.way[side];
  const std::uint64_t number = way.next_depart++;
  Flight& flight = way.flight(number);
  if (number >= way.lost_from && (connection.broken || !flight.fin)) {
    flight.gone = true;
    // In the third way of lending it is held until its connection ends.
    if (way.lending != Lending::kReadAtArrive) give_back(connection, side, flight);
    return;
  }
  if (way.lending == Lending::kReadAtDepart) read(connection, side, flight);
  if (way.lending != Lending::kReadAtArrive) give_back(connection, side, flight);
  way.last_arrival = std::max(now_ + flight_ns(connection), way.last_arrival);
  schedule(way.last_arrival, Happening::kReach, connection.id, side);
}

void SimNetwork::on_reach(Connection& connection, int side) {
  Direction& way = connection.way[side];
  if (now_ < way.arrive_not_before_ns) {
    return schedule(way.arrive_not_before_ns, Happening::kReach, connection.id, side);
  }
  way.reached_ns.push_back(now_);
  offer_far(connection, side);
}

void SimNetwork::on_arrive(Connection& connection, int side) {
  Direction& way = connection.way[side];
  way.reached_ns.pop_front();
  // Those that were lost before they departed have no arrival.
  way.next_arrive = std::max(way.next_arrive, way.first);
  while (way.flight(way.next_arrive).gone) ++way.next_arrive;
  const std::uint64_t number = way.next_arrive++;
  Flight& flight = way.flight(number);
  End& receiver = connection.ends[1 - side];
  const bool lost = number >= way.lost_from && (connection.broken || !flight.fin);
  if (flight.fin || lost || receiver.owner == nullptr || receiver.state != EndState::kUp) {
    flight.gone = true;
    if (flight.fin && !lost) {
      end_down(connection, 1 - side,
               {Code::kDisconnected, connection.ends[side].name + " closed the connection"});
    }
    return give_back(connection, side, flight);
  }
  if (corrupts(connection, side, flight)) return;
  flight.arrived = true;
  if (prng_.chance(options_.partial_landing)) write_landing(connection, side, flight, false);
  SimTransport::Ready ready;
  ready.kind = Event::Kind::kReceived;
  ready.flight = &flight;
  receiver.owner->queue(receiver.peer, std::move(ready));
  if (arrival_probe_) arrival_probe_(connection.ends[side].number, receiver.number, flight.header);
}

void SimNetwork::given_out(ConnectionId id, int side, Flight& flight, bool dropped) {
  Connection& connection = *find(id);
  flight.gone = true;
  if (!dropped) {
    note(Trace::What::kReceive, "receives", connection, side, flight.header);
    ++delivered_messages_;
    delivered_bytes_ += flight.payload.size();
    maybe_repeat(connection, side, flight);
  }
  give_back(connection, 1 - side, flight);
  if (!dropped) retire(id);  // whoever drops still works on the connection
}

void SimNetwork::down_given_out(ConnectionId id, int side) {
  Connection* connection = find(id);
  if (connection != nullptr) connection->ends[side].owner = nullptr;
}

void SimNetwork::sent_given_out(ConnectionId id, int side, std::size_t charged_bytes) {
  Connection* connection = find(id);
  if (connection != nullptr) connection->way[side].charged_bytes -= charged_bytes;
}

void SimNetwork::maybe_repeat(const Connection& connection, int side, const Flight& flight) {
  if (options_.repeat == 0 || !prng_.chance(options_.repeat)) return;
  if (!options_.may_repeat || !options_.may_repeat(flight.header)) return;
  Flight* repeat = take_flight();
  repeat->header = flight.header;
  repeat->copy.assign(flight.payload.begin(), flight.payload.end());
  repeat->payload = repeat->copy;
  repeat->landing = flight.landing;
  repeat->landing_offset = flight.landing_offset;
  repeat->read = repeat->done = repeat->sent = repeat->gone = true;
  repeats_.emplace(++last_repeat_, repeat);
  const auto within = static_cast<std::uint64_t>(options_.repeat_within_ns) + 1;
  schedule(now_ + static_cast<TimeNs>(prng_.below(within)), Happening::kRepeat, connection.id, side,
           last_repeat_);
}

void SimNetwork::on_repeat(Connection& connection, int side, std::uint64_t repeat) {
  Flight* flight = repeats_.extract(repeat).mapped();
  const End& end = connection.ends[side];
  if (end.owner == nullptr || end.state != EndState::kUp) return return_flight(flight);
  note(Trace::What::kRepeat, "receives again", connection, side, flight->header);
  SimTransport::Ready ready;
  ready.kind = Event::Kind::kReceived;
  ready.flight = flight;
  ready.repeated = true;
  end.owner->queue(end.peer, std::move(ready));
}

// ---- ends

// One end learns that the connection is over.
void SimNetwork::end_down(Connection& connection, int side, const Status& why) {
  End& end = connection.ends[side];
  if (end.state == EndState::kDown || end.state == EndState::kNone) return;
  Direction& out = connection.way[side];
  for (std::uint64_t number = out.first; number < out.end(); ++number) {
    Flight& flight = out.flight(number);
    if (flight.done) continue;
    if (!flight.gone && number < out.lost_from) read(connection, side, flight);
    if (number >= out.lost_from && number >= out.next_depart) flight.gone = true;
    give_back(connection, side, flight);
  }
  Direction& in = connection.way[1 - side];
  const bool half = in.next_arrive < in.next_depart && in.next_arrive >= in.first;
  if (half && prng_.chance(options_.partial_landing)) {
    write_landing(connection, 1 - side, in.flight(in.next_arrive), false);
  }
  if (side == 0 && end.state == EndState::kConnecting && !connection.is_naming) {
    end.owner->names_.failed(connection.to.host);
  }
  end.state = EndState::kDown;
  note(Trace::What::kDown, "is down", connection, side, {}, why);
  SimTransport::Ready ready;
  ready.kind = Event::Kind::kDown;
  ready.why = why;
  end.owner->queue(end.peer, std::move(ready));
}

void SimNetwork::close(ConnectionId id, int side, const Status& reason) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  End& end = connection->ends[side];
  if (end.state == EndState::kDown || end.state == EndState::kNone) return;
  note(Trace::What::kClose, "closes", *connection, side, {}, reason);
  end.owner->drop_received(end.peer);
  Direction& way = connection->way[side];
  if (prng_.chance(options_.lost_tail_at_close)) {
    const std::uint64_t waiting = way.end() - std::min(way.end(), way.next_depart);
    way.lost_from = std::min(way.lost_from, way.next_depart + prng_.below(waiting + 1));
  }
  end_down(*connection, side, reason);
  enqueue_fin(*connection, side);
  retire(id);
}

// Forgets flights that are over, and the connection when nothing of it is left.
void SimNetwork::retire(ConnectionId id) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  for (Direction& way : connection->way) {
    while (!way.flights.empty() && way.flights.front()->gone && way.flights.front()->sent) {
      return_flight(way.flights.front());
      way.flights.pop_front();
      ++way.first;
    }
  }
  const auto is_over = [](const End& end) {
    return end.state == EndState::kDown || end.state == EndState::kNone;
  };
  if (!is_over(connection->ends[0]) || !is_over(connection->ends[1])) return;
  if (!connection->way[0].flights.empty() || !connection->way[1].flights.empty()) return;
  connections_[id].reset();
}

// ---- what was seen

std::string SimNetwork::name(std::uint32_t number) const {
  const auto found = transports_.find(number);
  return found == transports_.end() ? "" : found->second->name();
}

HostIndex SimNetwork::host(std::uint32_t number) const {
  return transports_.at(number)->options_.host;
}

std::size_t SimNetwork::lent_payloads() const {
  std::size_t count = 0;
  for (const auto& [number, transport] : transports_) count += transport->lent_payloads();
  return count;
}

// ---- the trace

void SimNetwork::note(Trace::What what, const char* word, const Connection& connection, int side,
                      std::span<const std::byte> header, const Status& why) {
  const End& end = connection.ends[side];
  const End& other = connection.ends[1 - side];
  trace_.note(now_, what, end.number, other.number,
              connection.id ^ (header.empty() ? 0 : hash_of(header) << 8));
  if (!trace_.keeps_text()) return;
  const std::string message = header.empty() || !options_.describe ? "" : options_.describe(header);
  if (!header.empty() && options_.describe && message.empty()) return;  // not worth a line
  std::string text = end.name + " " + word + " " +
                     (other.name.empty() ? connection.to.text() : other.name) + " (connection " +
                     std::to_string(connection.id) + ")";
  if (!message.empty()) text += ": " + message;
  if (!why.is_ok()) text += ": " + why.message();
  trace_.say(now_, text);
}

}  // namespace byteps::sim
