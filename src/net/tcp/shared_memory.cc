// How a connection passes from its socket to shared memory. Asides (net/tcp/frame.h) are what the two transports say:
//
//   connecting side                     accepting side
//   1 invite: an Invitation .............→  makes the memory, hands it in (net/shm/doorway.h)
//   ←.............................. 2 ready
//   3 switch: the last frame on the
//     socket in this direction ..........→  reads from its ring from here on
//   ←.............................. 3 switch, the same
//
// Either side may say 4, decline, where it would otherwise go on; then all stays on the socket. So each direction has
// one point before which everything is on the socket and behind which everything is in the ring, and order is kept.
// Behind it the socket brings only farewells and the end of the connection.
#include <cstring>
#include <utility>

#include <sys/epoll.h>

#include "net/shm/doorway.h"
#include "net/shm/link.h"
#include "net/tcp/connection.h"
#include "net/tcp/tcp_transport.h"

namespace byteps {

using tcp::Connection;
using tcp::EventSpan;
using Kind = tcp::QuietLog::Kind;

namespace {

enum class Aside : std::uint8_t { kInvite = 1, kReady = 2, kSwitch = 3, kDecline = 4 };

Status out_of_turn() {
  return {Code::kDisconnected, "it talks about shared memory out of turn"};
}

}  // namespace

std::uint64_t TcpTransport::shared_bytes() const {
  std::uint64_t bytes = 0;
  for (const Connection* connection : linked_) bytes += connection->link->moved_bytes();
  return bytes;
}

std::size_t TcpTransport::capacity_bytes(PeerId peer) const {
  const Connection* const connection = find(peer);
  const bool shares = connection != nullptr && connection->link && connection->link->reads();
  return shares ? connection->link->ring_bytes() : 0;
}

// ---- what is said

void TcpTransport::say_aside(Connection& connection, std::uint8_t kind,
                             std::span<const std::byte> content) {
  std::vector<std::byte> aside{std::byte{kind}};
  aside.insert(aside.end(), content.begin(), content.end());
  connection.outbox.push_aside(aside);
  if (connection.can_flush()) mark_dirty(connection);
}

void TcpTransport::invite(Connection& connection) {
  Result<shm::Doorway> doorway = shm::Doorway::open(options_.self.job_id);
  if (!doorway.is_ok()) return stay_on_socket(connection, doorway.status());
  connection.doorway = std::make_unique<shm::Doorway>(std::move(doorway).value());
  say_aside(connection, static_cast<std::uint8_t>(Aside::kInvite),
            shm::encode(connection.doorway->invitation()));
}

// Says why in the log, if it could have been otherwise.
void TcpTransport::stay_on_socket(Connection& connection, const Status& why) {
  connection.doorway.reset();
  if (why.is(Code::kUnsupported)) return;
  log_.write(Kind::kCannotShare, LogLevel::kWarning, now_,
             connection.remote.text() +
                 ": on this host, but it goes on over TCP, which is slower: " + why.message() +
                 "; give this process more memory or descriptors, or set BYTEPS_ENABLE_IPC=0");
}

void TcpTransport::decline(Connection& connection, const Status& why) {
  stay_on_socket(connection, why);
  say_aside(connection, static_cast<std::uint8_t>(Aside::kDecline), {});
}

// The rest of what this side sends goes through the ring.
void TcpTransport::switch_over(Connection& connection) {
  say_aside(connection, static_cast<std::uint8_t>(Aside::kSwitch), {});
  connection.outbox.end_stream();
}

// ---- what is heard

// An error: the connection must end.
Status TcpTransport::heed_aside(Connection& connection, std::span<const std::byte> aside) {
  const std::span<const std::byte> content = aside.subspan(1);
  const auto kind = static_cast<Aside>(aside[0]);
  if (kind == Aside::kInvite) return heed_invitation(connection, content);
  if (!content.empty()) return out_of_turn();
  if (kind == Aside::kReady) return heed_ready(connection);
  if (kind == Aside::kSwitch) return heed_switch(connection);
  if (kind != Aside::kDecline) return out_of_turn();
  const bool may_decline = connection.doorway || (connection.link && !connection.link->reads());
  if (!may_decline || connection.outbox.has_stream_end()) return out_of_turn();
  connection.doorway.reset();
  drop_link(connection);
  return Status::ok();
}

Status TcpTransport::heed_invitation(Connection& connection, std::span<const std::byte> content) {
  if (connection.outbound || std::exchange(connection.was_invited, true) ||
      content.size() != shm::Invitation::kBytes) {
    return out_of_turn();
  }
  if (options_.shared_ring_bytes == 0) {
    decline(connection, {Code::kUnsupported, "not wanted"});
    return Status::ok();
  }
  Result<shm::Meeting> meeting = shm::answer(
      shm::decode_invitation(content.first<shm::Invitation::kBytes>()), options_.shared_ring_bytes);
  Status status = meeting.status();
  if (status.is_ok()) {
    status = adopt_link(connection, std::make_unique<shm::Link>(std::move(meeting).value(),
                                                                shm::Link::Side::kMaker));
  }
  if (!status.is_ok()) {
    decline(connection, status);
    return Status::ok();
  }
  say_aside(connection, static_cast<std::uint8_t>(Aside::kReady), {});
  return Status::ok();
}

Status TcpTransport::heed_ready(Connection& connection) {
  if (!connection.doorway) return out_of_turn();
  Result<shm::Meeting> meeting = connection.doorway->take();
  connection.doorway.reset();
  Status status = meeting.status();
  if (status.is_ok()) {
    status = adopt_link(connection, std::make_unique<shm::Link>(std::move(meeting).value(),
                                                                shm::Link::Side::kOpener));
  }
  if (!status.is_ok()) {
    decline(connection, status);
    return Status::ok();
  }
  switch_over(connection);
  return Status::ok();
}

Status TcpTransport::heed_switch(Connection& connection) {
  if (!connection.link || connection.link->reads()) return out_of_turn();
  if (!connection.outbound) {
    if (Status status = connection.link->check_seals(); !status.is_ok()) return status;
    switch_over(connection);
  }
  connection.inbox.end_messages();
  connection.link->start_reading();
  log_.write(Kind::kShares, LogLevel::kDebug, now_,
             connection.remote.text() + ": goes on through shared memory, two rings of " +
                 std::to_string(connection.link->ring_bytes() >> 10) + " KiB");
  activate(connection);
  return Status::ok();
}

// ---- links

Status TcpTransport::adopt_link(Connection& connection, std::unique_ptr<shm::Link> link) {
  Status status = watch(link->socket(), connection.serial | kLinkSerial, EPOLLIN);
  if (!status.is_ok()) return status;
  connection.link = std::move(link);
  linked_.push_back(&connection);
  return Status::ok();
}

void TcpTransport::drop_link(Connection& connection) {
  if (!connection.link) return;
  old_links_.push_back(std::move(connection.link));
  std::erase(linked_, &connection);
}

void TcpTransport::begin_links() {
  old_links_.clear();
  for (Connection* connection : linked_) connection->link->begin_poll();
}

void TcpTransport::serve_links() {
  for (Connection* connection : linked_) {
    shm::Link& link = *connection->link;
    link.write(connection->outbox);
    link.wake_reader();
    if (connection->outbox.has_sent() || link.has_input() || link.is_broken())
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

// The other side is gone; what it has left in shared memory is still to be received.
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
