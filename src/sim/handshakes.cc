#include "sim/handshakes.h"

#include <utility>

#include "net/name_book.h"

namespace byteps::sim {
namespace {

constexpr int kSynsPerTimeout = 8;  // how often an attempt that nobody answers is repeated

}  // namespace

// ---- names

Result<PeerId> Handshakes::connect(Station& from, const Endpoint& to, const Hello& self) {
  if (to.host.empty()) return Status(Code::kInvalidArgument, "an endpoint without a host");
  Connection& connection = medium_.connections.make();
  connection.to = to;
  connection.hello = self;
  connection.delay_ns =
      medium_.options.delay_ns / 2 + medium_.random_up_to(medium_.options.delay_ns);
  const std::vector<Lending>& lending = medium_.options.lending;
  for (Direction& way : connection.way) way.lending = lending[medium_.prng.below(lending.size())];
  const PeerId peer = from.add_peer(connection.id, 0);
  connection.ends[0] = {&from,       from.number(), from.host(),
                        from.name(), peer,          EndState::kConnecting};
  medium_.note(Trace::What::kConnect, "connects", connection, 0);
  look_up(connection, from);
  if (!connection.is_naming) begin(connection);
  return peer;
}

void Handshakes::look_up(Connection& connection, Station& from) {
  const std::string& host = connection.to.host;
  NameBook::Known known = from.names().ask(host);
  const NetworkChances& chances = medium_.options.chances;
  if (known.look_up && chances.late_look_up > 0 && medium_.prng.chance(chances.late_look_up)) {
    const std::uint64_t number = ++medium_.counts.late_look_ups;
    look_ups_[number] = {from.number(), host};
    const TimeNs takes = medium_.random_up_to(chances.look_up_late_max_ns);
    medium_.agenda.schedule(medium_.now() + takes, Happening::kNamed, connection.id, 0, number);
  } else if (known.look_up) {
    from.names().answer(host, NameBook::Addresses{host});
    known = from.names().ask(host);
  }
  connection.is_naming = known.addresses == nullptr;
}

bool Handshakes::is_naming(ConnectionId id) const {
  const Connection* connection = medium_.connections.find(id);
  return connection != nullptr && connection->is_naming;
}

void Handshakes::on_named(std::uint64_t number) {
  const LookUp look_up = look_ups_.extract(number).mapped();
  Station* asker = medium_.stations.find(look_up.number);
  if (asker == nullptr) return;
  asker->names().answer(look_up.host, NameBook::Addresses{look_up.host});
  for (Connection* connection : medium_.connections.all()) {
    if (!connection->is_naming || connection->ends[0].number != look_up.number) continue;
    if (connection->to.host != look_up.host) continue;
    connection->is_naming = false;
    if (connection->ends[0].state == EndState::kConnecting) begin(*connection);
  }
}

// ---- attempts

void Handshakes::begin(Connection& connection) {
  medium_.agenda.schedule(medium_.now() + medium_.flight_ns(connection), Happening::kSyn,
                          connection.id, 0);
  medium_.agenda.schedule(medium_.now() + medium_.options.connect_timeout_ns,
                          Happening::kConnectTimeout, connection.id, 0);
}

void Handshakes::on_syn(Connection& connection) {
  if (connection.ends[0].state != EndState::kConnecting) return;
  const TimeNs now = medium_.now();
  const std::string to = connection.to.text();
  Station* listener = medium_.stations.listener(connection.to);
  if (listener == nullptr) {
    return refuse(connection, {Code::kDisconnected, to + " refused the connection"});
  }
  const Obstacles& obstacles = medium_.obstacles;
  if (obstacles.is_walled(connection.ends[0].host, listener->host(), now)) {
    return try_again(connection);
  }
  const TimeNs frozen_until = obstacles.frozen_until(listener->number());
  if (now < frozen_until) {
    if (frozen_until == kNever) return;
    return medium_.agenda.schedule(frozen_until, Happening::kSyn, connection.id, 0);
  }
  switch (obstacles.passage(connection.ends[0].number, listener->number(), now)) {
    case Obstacles::Passage::kSilent:
      return try_again(connection);
    case Obstacles::Passage::kRefused:
      return refuse(connection, {Code::kDisconnected, to + " is unreachable"});
    case Obstacles::Passage::kFree:
      break;
  }
  const Hello& theirs = listener->self();
  if (connection.hello.version != theirs.version) {
    return refuse(connection, {Code::kMismatch,
                               to + " speaks version " + std::to_string(theirs.version) + ", not " +
                                   std::to_string(connection.hello.version),
                               {.kind = CauseKind::kVersionsDiffer}});
  }
  if (connection.hello.job_id != theirs.job_id) {
    return refuse(
        connection,
        {Code::kMismatch, to + " belongs to another job", {.kind = CauseKind::kKeysDiffer}});
  }
  let_in(connection, *listener);
}

void Handshakes::try_again(const Connection& connection) {
  medium_.agenda.schedule(medium_.now() + medium_.options.connect_timeout_ns / kSynsPerTimeout,
                          Happening::kSyn, connection.id, 0);
}

void Handshakes::refuse(Connection& connection, Status why) {
  medium_.note(Trace::What::kRefused, "is refused", connection, 0, {}, why);
  connection.refused = std::move(why);
  medium_.agenda.schedule(medium_.now() + medium_.flight_ns(connection), Happening::kRefused,
                          connection.id, 0);
}

void Handshakes::let_in(Connection& connection, Station& listener) {
  const PeerId peer = listener.add_peer(connection.id, 1);
  connection.ends[1] = {&listener, listener.number(), listener.host(), listener.name(),
                        peer,      EndState::kUp};
  connection.answer = listener.self();
  medium_.note(Trace::What::kUp, "accepts", connection, 1);
  if (medium_.probes.on_connect) {
    medium_.probes.on_connect(connection.hello, connection.ends[0].number, listener.number());
  }
  Ready ready;
  ready.kind = Event::Kind::kUp;
  ready.hello = connection.hello;
  listener.queue(peer, std::move(ready));
  connection.way[1].last_arrival = medium_.now() + medium_.flight_ns(connection);
  medium_.agenda.schedule(connection.way[1].last_arrival, Happening::kHello, connection.id, 1);
}

// ---- answers

void Handshakes::on_hello(Connection& connection) {
  End& end = connection.ends[0];
  if (end.state != EndState::kConnecting) return;
  if (connection.broken) return;  // it will hear so
  end.state = EndState::kUp;
  medium_.note(Trace::What::kUp, "is up", connection, 0);
  Ready ready;
  ready.kind = Event::Kind::kUp;
  ready.hello = connection.answer;
  end.owner->queue(end.peer, std::move(ready));
}

void Handshakes::on_refused(Connection& connection) {
  endings_.tell(connection, 0, connection.refused);
}

void Handshakes::on_timeout(Connection& connection) {
  if (connection.ends[0].state != EndState::kConnecting) return;
  endings_.tell(connection, 0, {Code::kTimeout, connection.to.text() + " did not answer in time"});
}

}  // namespace byteps::sim
