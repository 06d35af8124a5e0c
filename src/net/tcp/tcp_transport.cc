#include "net/tcp/tcp_transport.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace byteps {

using frame::EventSpan;
using tcp::Connection;
using tcp::Reactor;
using Kind = QuietLog::Kind;
using State = tcp::Connection::State;

namespace {

constexpr int kWritesPerPoll = 8;
constexpr std::size_t kTurnBytes =
    12 << 10;  // at least, in whole frames: small ones are worth a system call together

}  // namespace

// ---- setting up

Result<std::unique_ptr<TcpTransport>> TcpTransport::create(
    TcpOptions options, std::vector<std::unique_ptr<way::Way>> ways, Log log) {
  if (options.read_batch_bytes < 4096 || options.write_batch_bytes == 0 ||
      options.window_bytes == 0 || options.connections_max == 0 || options.strangers_max == 0 ||
      options.accepts_per_second == 0) {
    return Status(Code::kInvalidArgument, "TcpOptions: a limit is too small");
  }
  std::unique_ptr<TcpTransport> transport(
      new TcpTransport(std::move(options), std::move(ways), std::move(log)));
  if (Status status = transport->open(); !status.is_ok()) return status;
  return transport;
}

TcpTransport::TcpTransport(TcpOptions options, std::vector<std::unique_ptr<way::Way>> ways, Log log)
    : options_(std::move(options)),
      log_(std::move(log)),
      staging_(options_.read_batch_bytes),
      linker_(std::move(ways), reactor_, log_),
      closer_(options_, reactor_, connections_, strangers_, linker_, staging_, log_),
      listener_(options_, reactor_, connections_, strangers_, closer_, log_),
      greeter_(options_, reactor_, connections_, strangers_, listener_, closer_, log_),
      dialler_(options_, reactor_, connections_, greeter_, closer_, *this),
      intake_(options_.read_batch_bytes, reactor_, linker_, closer_, staging_) {}

TcpTransport::~TcpTransport() {
  dialler_.stop();
  connections_.close_all();  // before the ways that their links are of
}

Status TcpTransport::open() {
  if (Status status = reactor_.open(); !status.is_ok()) return status;
  if (Status status = listener_.open(); !status.is_ok()) return status;
  staging_.begin_poll();
  return Status::ok();
}

// ---- the owner's calls

Result<PeerId> TcpTransport::connect(const Endpoint& to, const Hello& self) {
  if (Status flaw = flaw_of(to); !flaw.is_ok()) return flaw;
  if (listener_.make_room()) return dialler_.connect(to, self);
  return Status(Code::kSystem, "no more than " + std::to_string(listener_.connections_max()) +
                                   " connections are allowed here");
}

bool TcpTransport::is_naming(PeerId peer) const {
  const Connection* const connection = connections_.find(peer);
  return connection != nullptr && connection->state == State::kNaming;
}

std::size_t TcpTransport::capacity_bytes(PeerId peer) const {
  const Connection* const connection = connections_.find(peer);
  return connection != nullptr && connection->reads_link() ? connection->link->ring_bytes() : 0;
}

TimeNs TcpTransport::round_trip_ns(PeerId peer) const {
  const Connection* const connection = connections_.find(peer);
  return connection != nullptr ? connection->round_trip_ns : 0;
}

Status TcpTransport::send(PeerId peer, const Outgoing& message) {
  CHECK_LE(message.header.size(), kHeaderBytesMax);
  CHECK_LE(message.payload.size(), kPayloadBytesMax);
  Connection* const connection = connections_.find(peer);
  if (connection == nullptr || connection->state != State::kUp || !connection->up_reported) {
    return {Code::kDisconnected, "this peer is not connected"};
  }
  frame::Outbox& outbox = connection->outbox;
  const std::size_t charged_bytes = outbox.charged_bytes();
  // One message always fits, however large.
  if (charged_bytes > 0 &&
      charged_bytes + frame::Outbox::charge_bytes(message) > options_.window_bytes) {
    return {Code::kAgain, "the connection's window is full"};
  }
  outbox.push(message);
  if (outbox.is_past_stream()) {
    connection->link->write(outbox);
    reactor_.activate(connection->turn);
    return Status::ok();
  }
  if (!connection->socket.writable) return Status::ok();
  if (connection->can_flush()) reactor_.mark_dirty(connection->turn);
  return Status::ok();
}

void TcpTransport::close(PeerId peer, Status reason) {
  Connection* const connection = connections_.find(peer);
  if (connection == nullptr || connection->state == State::kEnded) return;
  if (connection->state != State::kUp) return dialler_.fail(*connection, std::move(reason));
  closer_.end(*connection, std::move(reason), true);
}

// ---- the turn of things

std::size_t TcpTransport::poll(TimeNs now, std::span<Event> events) {
  reactor_.begin_poll(now);
  staging_.begin_poll();
  linker_.begin_poll();
  dialler_.hear_names();
  dialler_.stamp_deadlines();
  take_notes(reactor_.look());
  expire_deadlines();
  listener_.accept_all();
  flush_dirty();
  linker_.serve();
  EventSpan out(events);
  for (std::size_t turns = reactor_.active_count(); turns > 0 && !out.full(); --turns) {
    Connection* const connection = connections_.find(reactor_.take_active());
    if (connection == nullptr) continue;
    connection->turn.is_active = false;
    serve(*connection, out);
  }
  reactor_.end_poll();
  return out.count();
}

TimeNs TcpTransport::next_deadline() const {
  if (dialler_.wants_poll()) return reactor_.now();
  return std::min(reactor_.next_deadline(), listener_.resting_until());
}

bool TcpTransport::work_is_waiting() const {
  return reactor_.has_work() || dialler_.wants_poll() || listener_.has_work();
}

void TcpTransport::doze(TimeNs timeout_ns, TimeNs patience_ns) {
  if (reactor_.take_wake() || work_is_waiting()) return;
  if (patience_ns > 0) timeout_ns = std::min(timeout_ns, patience_ns);
  const bool sleeps = reactor_.fall_asleep();
  if (sleeps) {
    if (!linker_.arm(patience_ns > 0)) take_notes(reactor_.wait_for_input(timeout_ns));
    linker_.disarm();
  }
  reactor_.wake_up(sleeps);
}

void TcpTransport::take_notes(std::span<const epoll_event> ready) {
  for (const epoll_event& event : ready) {
    const std::uint64_t word = event.data.u64;
    if ((word & Reactor::kWay) != 0) {
      linker_.heed_way(word);
      continue;
    }
    Connection* const connection = connections_.find(word & ~Reactor::kLink);
    if ((word & Reactor::kLink) != 0) {  // a wake-up, perhaps of a link that was dropped
      if (connection != nullptr && connection->link) connection->link->drain_wakes();
      continue;
    }
    if (connection == nullptr) {
      listener_.heed(word);
      continue;
    }
    connection->socket.heed(event.events);
    if (connection->can_flush()) reactor_.mark_dirty(connection->turn);
    reactor_.activate(connection->turn);
  }
}

void TcpTransport::expire_deadlines() {
  while (const auto serial = reactor_.expired()) {
    Connection& connection = *connections_.find(*serial);
    reactor_.set_deadline(connection.turn, kNever);
    expire(connection);
  }
}

void TcpTransport::expire(Connection& connection) {
  const char* what = ": connected, but did not say in time who it is";
  switch (connection.state) {
    case State::kLingering:
      return closer_.forget(connection);
    case State::kUp:
      return closer_.end_malformed(connection, connection.negotiation->no_link_in_time());
    case State::kNaming:
      what = ": cannot look up the host name: no answer in time";
      break;
    case State::kConnecting:
      what = ": no answer in time";
      break;
    default:
      if (connection.dial.is_outbound) what = ": accepted, but did not say in time who it is";
      break;
  }
  const std::string text = connection.remote.text() + what;
  if (connection.dial.is_outbound) return dialler_.fail(connection, {Code::kTimeout, text});
  log_.write(Kind::kSilent, LogLevel::kInfo, reactor_.now(), text);
  closer_.forget(connection);
}

// Takes turns: what goes to several peers at once leaves in the order of its frames, not one peer's after the other's.
// Otherwise the last peer would get its first frame when the first has all it may have.
void TcpTransport::flush_dirty() {
  std::vector<Connection*> writing;
  for (const std::uint64_t serial : reactor_.take_dirty()) {
    Connection* const connection = connections_.find(serial);
    if (connection == nullptr) continue;
    connection->turn.is_dirty = false;
    writing.push_back(connection);
    reactor_.activate(connection->turn);
  }
  const bool alone = writing.size() == 1;
  for (int turn = 0; turn < kWritesPerPoll && !writing.empty(); ++turn) {
    for (Connection* connection : writing) {
      connection->flush(
          alone ? options_.write_batch_bytes : connection->outbox.whole_frames(kTurnBytes), 1);
    }
    std::erase_if(writing, [](const Connection* connection) { return !connection->can_flush(); });
  }
  for (Connection* connection : writing) reactor_.mark_dirty(connection->turn);
}

// ---- one connection's turn

void TcpTransport::serve(Connection& connection, EventSpan& out) {
  serve_handshake(connection);
  if (connection.state == State::kLingering) return closer_.serve_lingering(connection);
  if (connection.state == State::kUp) intake_.serve(connection, out);
  if (connection.state == State::kEnded) return serve_ended(connection, out);
  if (connection.state != State::kUp) return;  // the next edge goes on
  const bool more = connection.outbox.has_sent() || connection.inbox.has_backlog() ||
                    connection.socket.readable || (connection.link && connection.link->has_input());
  if (more) reactor_.activate(connection.turn);
}

void TcpTransport::serve_handshake(Connection& connection) {
  if (connection.state == State::kConnecting) dialler_.finish_connect(connection);
  if (connection.state != State::kHandshake) return;
  const Result<bool> is_up = greeter_.advance(connection);
  if (!is_up.is_ok()) return dialler_.fail(connection, is_up.status());
  if (!is_up.value()) return;
  const Status status = linker_.begin(connection, options_.connect_timeout_ns);
  if (!status.is_ok()) closer_.end_malformed(connection, status);
}

void TcpTransport::serve_ended(Connection& connection, EventSpan& out) {
  const bool is_known = connection.dial.is_outbound || connection.up_reported;
  // Otherwise it was never up.
  if (connection.peer == PeerId() || !is_known) return closer_.forget(connection);
  tcp::Intake::report_sent(connection, out);
  if (out.full()) return reactor_.activate(connection.turn);
  out.add(Event::Kind::kDown, connection.peer).why = std::move(connection.why);
  closer_.forget(connection);
}

}  // namespace byteps
