#include "net/tcp/socket.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

namespace byteps::tcp {
namespace {

constexpr std::size_t kEntriesMax = 126;
constexpr std::size_t kDrainBytes = 16 << 10;

// The kernel's tcp_info up to tcpi_min_rtt, which C libraries may be too old for (linux/tcp.h; it only grows).
struct ShortestRoundTrip {
  std::byte before[148];
  std::uint32_t us;
};

bool would_block(int error_number) {
  return error_number == EAGAIN || error_number == EWOULDBLOCK;
}

}  // namespace

// ---- writing

void Socket::flush(frame::Outbox& outbox, std::size_t batch_bytes, int calls_max) {
  std::array<iovec, kEntriesMax> entries;
  for (int call = 0; call < calls_max && can_flush(outbox); ++call) {
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

void Socket::say(std::span<const std::byte> bytes) const {
  if (!writable) return;
  // Whatever comes of it, the connection ends.
  (void)!::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

// ---- reading

std::ptrdiff_t Socket::receive(const frame::Inbox::Places& places, Status& reason) {
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

Result<bool> Socket::read_record(std::vector<std::byte>& record, RecordHead& head) {
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

bool Socket::drain() {
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

void Socket::heed(std::uint32_t events) {
  const bool broken = (events & (EPOLLERR | EPOLLHUP)) != 0;
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) peer_has_closed = true;
  if (broken || (events & (EPOLLIN | EPOLLRDHUP)) != 0) readable = true;
  if (broken || (events & EPOLLOUT) != 0) writable = true;
}

void Socket::close() {
  if (descriptor >= 0) ::close(descriptor);
  descriptor = -1;
  readable = false;
  writable = false;
}

Status Socket::closed_by_peer() const {
  if (write_error != 0 && write_error != EPIPE) return connection_error(write_error);
  return {Code::kDisconnected, "the other side closed the connection"};
}

// ---- errors and options

Status connection_error(int error_number) {
  char buffer[128];
  std::string reason = strerror_r(error_number, buffer, sizeof buffer);
  if (!reason.empty()) reason[0] = static_cast<char>(std::tolower(reason[0]));
  return {error_number == ETIMEDOUT ? Code::kTimeout : Code::kDisconnected, std::move(reason)};
}

bool is_out_of_descriptors(int error_number) {
  return error_number == EMFILE || error_number == ENFILE || error_number == ENOBUFS ||
         error_number == ENOMEM;
}

Status socket_error(const std::string& what, int error_number) {
  if (error_number == EMFILE) {
    return system_error(what + " (raise the limit of open files, ulimit -n)", error_number);
  }
  return system_error(what, error_number);
}

void set_option(int descriptor, int level, int option, int value) {
  (void)::setsockopt(descriptor, level, option, &value, sizeof value);
}

void prepare(int descriptor, const SocketAddress& address, TimeNs unreachable_ns) {
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY);
  // Not there: nothing is lost, and the kernel tells the end of the other process. So it could only be one that stands
  // still, for which the scheduler has more patience, and a link to a relay is not made again.
  if (!address.is_localhost()) {
    set_option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT,
               static_cast<int>(std::max<TimeNs>(1, unreachable_ns / kMillisecond)));
  }
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE);
  const int seconds = static_cast<int>(std::max<TimeNs>(1, unreachable_ns / (2 * kSecond)));
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
}

TimeNs round_trip_ns(int descriptor) {
  ShortestRoundTrip info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return 0;
  const bool is_told = bytes == sizeof info && info.us != ~std::uint32_t{0};
  return is_told ? info.us * kMicrosecond : 0;
}

void fit_to_long_line(int descriptor) {
  constexpr std::string_view kBbr = "bbr";
  char name[16] = {};  // TCP_CA_NAME_MAX
  socklen_t bytes = sizeof name - 1;
  if (::getsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, name, &bytes) != 0) return;
  const std::string_view present(name);
  if (present != "reno" && present != "cubic") return;
  (void)::setsockopt(descriptor, IPPROTO_TCP, TCP_CONGESTION, kBbr.data(), kBbr.size());
}

SocketAddress local_address(int descriptor) {
  SocketAddress address;
  address.bytes = sizeof address.storage;
  if (::getsockname(descriptor, address.get(), &address.bytes) != 0) address.bytes = 0;
  return address;
}

SocketAddress remote_address(int descriptor) {
  SocketAddress address;
  address.bytes = sizeof address.storage;
  if (::getpeername(descriptor, address.get(), &address.bytes) != 0) address.bytes = 0;
  return address;
}

Status hold_to_device(int descriptor, const std::string& interface) {
  const auto bytes = static_cast<socklen_t>(interface.size());
  if (::setsockopt(descriptor, SOL_SOCKET, SO_BINDTODEVICE, interface.data(), bytes) == 0) {
    return Status::ok();
  }
  return system_error("SO_BINDTODEVICE", errno);
}

Status not_loopback(const std::string& what) {
  return {Code::kInvalidArgument,
          what + " is not on loopback, and a process without a job key talks to this machine only"};
}

}  // namespace byteps::tcp
