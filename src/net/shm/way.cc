// How the two ends of a connection come to shared memory, when they are on one host. See net/tcp/links.cc for what
// they say and when; the memory is handed over at a doorway (net/shm/doorway.h).
#include <cstring>
#include <utility>

#include <sys/epoll.h>

#include "net/shm/doorway.h"
#include "net/shm/link.h"
#include "net/tcp/connection.h"
#include "net/tcp/tcp_transport.h"
#include "net/way/aside.h"

namespace byteps {

using tcp::Connection;
using way::Aside;
using Kind = QuietLog::Kind;

// False: it cannot be, and something else may be tried.
bool TcpTransport::invite(Connection& connection) {
  Result<shm::Doorway> doorway = shm::Doorway::open(options_.self.job_id);
  if (!doorway.is_ok()) {
    go_without_sharing(connection, doorway.status());
    return false;
  }
  connection.doorway = std::make_unique<shm::Doorway>(std::move(doorway).value());
  say_aside(connection, Aside::kInvite, shm::encode(connection.doorway->invitation()));
  return true;
}

// Says why in the log, if it could have been otherwise.
void TcpTransport::go_without_sharing(Connection& connection, const Status& why) {
  connection.doorway.reset();
  if (why.is(Code::kUnsupported)) return;
  log_.write(Kind::kCannotShare, LogLevel::kWarning, now_,
             connection.remote.text() +
                 ": on this host, but it goes on over TCP, which is slower: " + why.message() +
                 "; give this process more memory or descriptors, or set BYTEPS_ENABLE_IPC=0");
}

Status TcpTransport::share(Connection& connection, shm::Meeting meeting, bool is_maker) {
  auto link = std::make_unique<shm::Link>(
      std::move(meeting), is_maker ? shm::Link::Side::kMaker : shm::Link::Side::kOpener);
  Status status = watch(link->wake_descriptor(), connection.serial | kLinkSerial, EPOLLIN);
  if (status.is_ok()) adopt_link(connection, std::move(link));
  return status;
}

// ---- what is heard

Status TcpTransport::heed_invitation(Connection& connection, std::span<const std::byte> content) {
  if (connection.outbound || std::exchange(connection.was_invited, true) ||
      connection.was_offered || connection.link || content.size() != shm::Invitation::kBytes) {
    return way::out_of_turn();
  }
  if (options_.shared_ring_bytes == 0) {
    decline(connection, {Code::kUnsupported, "not wanted"});
    return Status::ok();
  }
  Result<shm::Meeting> meeting = shm::answer(
      shm::decode_invitation(content.first<shm::Invitation::kBytes>()), options_.shared_ring_bytes);
  Status status = meeting.status();
  if (status.is_ok()) status = share(connection, std::move(meeting).value(), true);
  if (!status.is_ok()) {
    go_without_sharing(connection, status);
    decline(connection, status);
    return Status::ok();
  }
  say_aside(connection, Aside::kReady, {});
  return Status::ok();
}

Status TcpTransport::heed_ready(Connection& connection) {
  if (!connection.doorway) return way::out_of_turn();
  Result<shm::Meeting> meeting = connection.doorway->take();
  connection.doorway.reset();
  Status status = meeting.status();
  if (status.is_ok()) status = share(connection, std::move(meeting).value(), false);
  if (!status.is_ok()) {
    go_without_sharing(connection, status);
    decline(connection, status);
    return offer_rdma(connection);
  }
  switch_over(connection);
  return Status::ok();
}

}  // namespace byteps
