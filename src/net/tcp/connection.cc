#include "net/tcp/connection.h"

#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <utility>

#include <sys/socket.h>
#include <unistd.h>

#include "net/shm/doorway.h"
#include "net/way/link.h"

namespace byteps::tcp {
namespace {

constexpr std::size_t kEntriesMax = 126;
constexpr std::size_t kDrainBytes = 16 << 10;

bool would_block(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK;
}

}  // namespace

Connection::Connection(std::uint64_t serial_number, int socket)
    : serial(serial_number), descriptor(socket) {}

Connection::~Connection() {
  close_socket();
}

void Connection::flush(std::size_t batch_bytes, int calls_max) {
  std::array<iovec, kEntriesMax> entries;
  for (int call = 0; call < calls_max && can_flush(); ++call) {
    std::size_t bytes = 0;
    msghdr message{};
    message.msg_iov = entries.data();
    message.msg_iovlen = outbox.gather(entries, batch_bytes, bytes);
    const ssize_t sent = ::sendmsg(descriptor, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0) {
      if (errno == EINTR) continue;
      writable = false;
      if (would_block(errno)) return;
      write_error = errno;
      readable = true;
      return;
    }
    outbox.advance(static_cast<std::size_t>(sent));
    // A short count means full, epoll(7); the next edge comes when there is room.
    if (static_cast<std::size_t>(sent) < bytes) writable = false;
  }
}

void Connection::say_last(std::span<const std::byte> bytes) {
  if (can_flush() || !writable) return;
  // Whatever comes of it, the connection ends.
  (void)!::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

std::ptrdiff_t Connection::receive(const frame::Inbox::Places& places, Status& reason) {
  ssize_t count = 0;
  do {
    count = ::readv(descriptor, places.entries.data(), places.count);
  } while (count < 0 && errno == EINTR);
  if (count > 0) {
    // A short count means empty, epoll(7); but the end of the stream is only seen by reading again.
    if (static_cast<std::size_t>(count) < places.bytes && !peer_has_closed) readable = false;
    return count;
  }
  if (count == 0) {
    reason = closed_by_peer();
    return -1;
  }
  if (would_block(errno)) {
    readable = false;
    if (write_error == 0) return 0;
    reason = connection_error(write_error);
    return -1;
  }
  reason = connection_error(errno);
  return -1;
}

Result<bool> Connection::read_record(RecordHead& head) {
  std::size_t wanted_bytes = kRecordHeadBytes;
  while (true) {
    if (record.size() >= kRecordHeadBytes) {
      const auto decoded = decode_record_head(std::span(record).first(kRecordHeadBytes));
      if (!decoded.is_ok()) return decoded.status();
      head = decoded.value();
      wanted_bytes = kRecordHeadBytes + head.body_bytes;
      if (record.size() == wanted_bytes) return true;
    }
    const std::size_t have_bytes = record.size();
    record.resize(wanted_bytes);
    const ssize_t count =
        ::recv(descriptor, record.data() + have_bytes, wanted_bytes - have_bytes, MSG_DONTWAIT);
    const int error_number = errno;
    record.resize(have_bytes + (count > 0 ? static_cast<std::size_t>(count) : 0));
    if (count > 0) continue;
    if (count == 0) return closed_by_peer();
    if (error_number == EINTR) continue;
    if (!would_block(error_number)) return connection_error(error_number);
    readable = false;
    return false;
  }
}

bool Connection::drain() {
  // The kernel could throw the bytes away by itself (MSG_TRUNC without a buffer, tcp(7)), but valgrind would
  // report that to each user who looks for faults of his own.
  std::byte unread[kDrainBytes];
  const ssize_t count = ::recv(descriptor, unread, sizeof unread, MSG_DONTWAIT);
  if (count > 0) return true;
  if (count == 0) return false;
  if (errno == EINTR) return true;
  readable = false;
  return would_block(errno);
}

void Connection::close_socket() {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
  readable = false;
  writable = false;
}

Status Connection::with_address(const Status& reason) const {
  return {reason.code(), remote.text() + ": " + reason.message()};
}

Status Connection::closed_by_peer() const {
  if (write_error != 0 && write_error != EPIPE) return connection_error(write_error);
  return {Code::kDisconnected, "the other side closed the connection"};
}

Status connection_error(int error_number) {
  char buffer[128];
  std::string reason = strerror_r(error_number, buffer, sizeof buffer);
  if (!reason.empty()) reason[0] = static_cast<char>(std::tolower(reason[0]));
  return {error_number == ETIMEDOUT ? Code::kTimeout : Code::kDisconnected, std::move(reason)};
}

}  // namespace byteps::tcp
