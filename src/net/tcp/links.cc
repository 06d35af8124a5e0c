// How a connection passes from its socket to another way, a link (net/way/link.h). Asides (net/frame/frame.h) are what
// the two transports say to each other:
//
//   connecting side                       accepting side
//   1 invite to shared memory ............→ or 5 offer RDMA (net/shm/way.cc, net/rdma/way.cc)
//   ←.............. 2 ready               or 6 accept
//   3 switch: the last frame on the
//     socket in this direction ...........→ reads from the link from here on
//   ←.............. 3 switch, the same
//
// Between 6 and 3 each side sends the other a probe by RDMA, and the connecting side goes over when its own has arrived
// and the other's has come; until then messages go by the socket. Either side may say 4, decline, with the reason,
// where it would otherwise go on; then the connecting side may go on with the next way: first shared memory, then RDMA,
// then all stays on the socket. Each direction has one point before which everything is on the socket and behind which
// everything is in the link, so order is kept. Behind it the socket brings only farewells and the connection's end.
//
// Where RDMA is required, a connection is not up for its owner before it has a link, and ends if it gets none.
#include <cstring>
#include <utility>

#include "base/check.h"
#include "net/rdma/link.h"
#include "net/shm/doorway.h"
#include "net/tcp/connection.h"
#include "net/tcp/tcp_transport.h"
#include "net/way/aside.h"
#include "net/way/link.h"

namespace byteps {

using frame::EventSpan;
using tcp::Connection;
using way::Aside;
using Kind = QuietLog::Kind;

namespace {

bool is_rdma(const Connection& connection) {
  return dynamic_cast<const rdma::Link*>(connection.link.get()) != nullptr;
}

}  // namespace

void TcpTransport::count(const way::Link& link, Ways& ways) {
  link.share_of(ways) += link.moved_bytes();
}

Transport::Ways TcpTransport::ways() const {
  Ways ways = past_ways_;
  for (const Connection* connection : linked_) count(*connection->link, ways);
  return ways;
}

std::size_t TcpTransport::capacity_bytes(PeerId peer) const {
  const Connection* const connection = find(peer);
  const bool links = connection != nullptr && connection->link && connection->link->reads();
  return links ? connection->link->ring_bytes() : 0;
}

// For its owner it is up.
bool TcpTransport::is_settled(const Connection& connection) const {
  return !connection.must_link || (connection.link && connection.link->reads());
}

// ---- what is said

// The handshake is done. With the scheduler nobody exchanges tensors.
void TcpTransport::begin_linking(Connection& connection) {
  if (connection.theirs.role == Role::kScheduler) return;
  connection.must_link = options_.rdma.policy == rdma::Policy::kRequired;
  if (connection.must_link) set_deadline(connection, now_ + options_.connect_timeout_ns);
  if (!connection.outbound) return;
  if (options_.shared_ring_bytes > 0 && invite(connection)) return;
  if (Status status = offer_rdma(connection); !status.is_ok()) end_malformed(connection, status);
}

void TcpTransport::say_aside(Connection& connection, Aside kind,
                             std::span<const std::byte> content) {
  std::vector<std::byte> aside{static_cast<std::byte>(kind)};
  aside.insert(aside.end(), content.begin(), content.end());
  connection.outbox.push_aside(aside);
  if (connection.can_flush()) mark_dirty(connection);
}

void TcpTransport::decline(Connection& connection, const Status& why) {
  connection.has_declined = true;
  say_aside(connection, Aside::kDecline, way::encode_reason(why));
}

// The rest of what this side sends goes through the link.
void TcpTransport::switch_over(Connection& connection) {
  say_aside(connection, Aside::kSwitch, {});
  connection.outbox.end_stream();
}

// ---- what is heard

// An error: the connection must end.
Status TcpTransport::heed_aside(Connection& connection, std::span<const std::byte> aside) {
  const std::span<const std::byte> content = aside.subspan(1);
  switch (static_cast<Aside>(aside[0])) {
    case Aside::kInvite:
      return heed_invitation(connection, content);
    case Aside::kOffer:
      return heed_offer(connection, content);
    case Aside::kAccept:
      return heed_accept(connection, content);
    case Aside::kDecline:
      return heed_decline(connection, content);
    case Aside::kReady:
      return content.empty() ? heed_ready(connection) : way::out_of_turn();
    case Aside::kSwitch:
      return content.empty() ? heed_switch(connection) : way::out_of_turn();
  }
  return way::out_of_turn();
}

Status TcpTransport::heed_decline(Connection& connection, std::span<const std::byte> content) {
  const bool both_declined = connection.has_declined && !connection.doorway && !connection.link;
  if (both_declined) return Status::ok();
  const bool may_decline = connection.doorway || (connection.link && !connection.link->reads());
  if (!may_decline) return way::out_of_turn();
  const bool was_rdma = is_rdma(connection);
  // What this side has sent behind the switch is lost.
  if (connection.outbox.has_stream_end()) {
    return was_rdma ? way::decode_reason(content) : way::out_of_turn();
  }
  connection.doorway.reset();
  drop_link(connection);
  if (was_rdma) return go_without_rdma(connection, way::decode_reason(content));
  return connection.outbound ? offer_rdma(connection) : Status::ok();
}

Status TcpTransport::heed_switch(Connection& connection) {
  if (connection.has_declined && !connection.link) {
    return {Code::kDisconnected, "RDMA failed while the connection went over to it"};
  }
  if (!connection.link || connection.link->reads()) return way::out_of_turn();
  if (connection.outbound ? !connection.outbox.has_stream_end() : !connection.link->is_ready()) {
    return way::out_of_turn();
  }
  if (Status status = connection.link->confirm(); !status.is_ok()) return status;
  if (!connection.outbound) switch_over(connection);
  connection.inbox.end_messages();
  connection.link->start_reading();
  if (connection.must_link) set_deadline(connection, kNever);
  const std::string text =
      connection.remote.text() + ": goes on through " + connection.link->text();
  if (is_rdma(connection)) {
    tell_way(connection.link->text(), text);
  } else {
    log_.write(Kind::kLinked, LogLevel::kDebug, now_, text);
  }
  activate(connection);
  return Status::ok();
}

// ---- links

void TcpTransport::adopt_link(Connection& connection, std::unique_ptr<way::Link> link) {
  CHECK(!connection.link);
  connection.link = std::move(link);
  linked_.push_back(&connection);
}

void TcpTransport::drop_link(Connection& connection) {
  if (!connection.link) return;
  count(*connection.link, past_ways_);
  connection.link->stop();
  old_links_.push_back(std::move(connection.link));
  std::erase(linked_, &connection);
}

void TcpTransport::begin_links() {
  old_links_.clear();
  if (slabs_) look_after_slabs();
  for (Connection* connection : linked_) connection->link->begin_poll();
}

void TcpTransport::serve_links() {
  for (Connection* connection : linked_) {
    way::Link& link = *connection->link;
    const bool goes_over = connection->outbound && connection->state == Connection::State::kUp &&
                           link.is_proven() && !link.is_useless() &&
                           !connection->outbox.has_stream_end();
    if (goes_over) switch_over(*connection);
    link.write(connection->outbox);
    link.flush();
    const bool is_over = connection->state == Connection::State::kLingering && !link.is_sending();
    if (connection->outbox.has_sent() || link.has_input() || link.is_useless() || is_over)
      activate(*connection);
  }
}

bool TcpTransport::arm_links() {
  bool has_work = false;
  for (Connection* connection : linked_) has_work |= connection->link->arm(connection->outbox);
  return has_work;
}

void TcpTransport::disarm_links() {
  for (Connection* connection : linked_) connection->link->disarm();
}

// The other side is gone; what it has left in the link is still to be received.
void TcpTransport::end_of_socket(Connection& connection, Status reason) {
  if (!connection.link || !connection.link->reads())
    return end(connection, std::move(reason), false);
  connection.link->freeze();
  connection.close_socket();
  connection.socket_is_over = true;
  connection.why = std::move(reason);
  activate(connection);
}

}  // namespace byteps
