#include "net/tcp/listener.h"

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/tcp/record.h"
#include "net/tcp/socket.h"

namespace byteps::tcp {
namespace {

using Kind = QuietLog::Kind;

constexpr int kBacklog = 1024;
constexpr int kAcceptsPerPoll = 64;
constexpr int kAcceptsBesideMembers = 8;  // in a poll that may have work for members
constexpr TimeNs kRestNs = 100 * kMillisecond;
constexpr TimeNs kAcceptPauseNs = 10 * kMillisecond;  // at least, between two bursts
constexpr std::size_t kRefusedInputBytes = 64 << 10;

}  // namespace

Listener::~Listener() {
  for (const Door& door : doors_) ::close(door.descriptor);
  if (spare_ >= 0) ::close(spare_);
}

// ---- listening

Status Listener::open() {
  for (const Endpoint& endpoint : options_.listen) {
    if (Status status = listen_at(endpoint); !status.is_ok()) return status;
  }
  if (!doors_.empty()) spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  return Status::ok();
}

Status Listener::listen_at(const Endpoint& endpoint) {
  if (!endpoint.host.empty()) {
    // Port 0 is what resolve() calls no port; any other will do for the look-up.
    const std::uint16_t port = endpoint.port;
    Result<std::vector<SocketAddress>> addresses =
        resolve({endpoint.host, port == 0 ? std::uint16_t{1} : port});
    if (!addresses.is_ok()) {
      return {Code::kInvalidArgument, "cannot listen at " + addresses.status().message()};
    }
    for (SocketAddress& address : addresses.value()) {
      if (options_.loopback_only && !address.is_loopback()) return not_loopback(endpoint.text());
      address.set_port(port);
      if (Status status = listen_at(address, false); !status.is_ok()) return status;
    }
    return Status::ok();
  }
  if (options_.loopback_only) return not_loopback("all addresses of this machine");
  Status status = listen_at(SocketAddress::any(AF_INET6, endpoint.port), true);
  if (status.is(Code::kUnsupported)) {  // no IPv6 here
    status = listen_at(SocketAddress::any(AF_INET, endpoint.port), false);
  }
  return status;
}

Status Listener::listen_at(const SocketAddress& address, bool both_families) {
  const std::string what = "cannot listen at " + address.endpoint().text();
  const int descriptor = ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) {
    if (errno == EAFNOSUPPORT) return {Code::kUnsupported, what + ": no such address family"};
    return socket_error(what, errno);
  }
  set_option(descriptor, SOL_SOCKET, SO_REUSEADDR);
  if (address.family() == AF_INET6) {
    set_option(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, both_families ? 0 : 1);
  }
  // The sockets that accept() gives have these from here.
  prepare(descriptor, address, options_.unreachable_ns);
  if (::bind(descriptor, address.get(), address.bytes) != 0 ||
      ::listen(descriptor, kBacklog) != 0) {
    const int error_number = errno;
    ::close(descriptor);
    if (error_number == EADDRNOTAVAIL && both_families) return {Code::kUnsupported, what};
    return system_error(what, error_number);
  }
  doors_.push_back({descriptor, connections_.fresh_serial(), false});
  return reactor_.watch(descriptor, doors_.back().serial, EPOLLIN);
}

std::vector<Endpoint> Listener::listening() const {
  std::vector<Endpoint> endpoints;
  for (const Door& door : doors_) endpoints.push_back(local_address(door.descriptor).endpoint());
  return endpoints;
}

// ---- when to accept

void Listener::heed(std::uint64_t serial) {
  for (Door& door : doors_) door.ready |= door.serial == serial;
}

bool Listener::has_work() const {
  return rest_until_ == kNever &&
         std::any_of(doors_.begin(), doors_.end(), [](const Door& door) { return door.ready; });
}

void Listener::accept_all() {
  if (rest_until_ <= reactor_.now()) rise();
  if (rest_until_ != kNever) return;
  const int accepts_max = connections_.has_peers() ? kAcceptsBesideMembers : kAcceptsPerPoll;
  for (Door& door : doors_) {
    for (int i = 0; i < accepts_max && door.ready && may_accept(); ++i) accept_one(door);
  }
}

// Each accept costs a time, paid in advance while members are here; nobody pays for more than all that may be strangers
// at once. So all members can come at once at any time, and a flood of strangers takes a fixed share of this thread.
bool Listener::may_accept() {
  if (!connections_.has_peers()) return true;
  const TimeNs now = reactor_.now();
  const TimeNs cost_ns = kSecond / static_cast<TimeNs>(options_.accepts_per_second);
  const TimeNs at_once_ns = cost_ns * static_cast<TimeNs>(strangers_max());
  if (paid_until_ns_ - at_once_ns < now) return true;
  rest(std::max(now + kAcceptPauseNs, paid_until_ns_ - at_once_ns + cost_ns));
  return false;
}

// Whoever comes meanwhile waits in the backlog, and does not wake this thread.
void Listener::rest(TimeNs until) {
  rest_until_ = until;
  for (Door& door : doors_) {
    door.ready = false;
    (void)reactor_.rewatch(door.descriptor, door.serial, 0);
  }
}

void Listener::rise() {
  rest_until_ = kNever;
  for (Door& door : doors_) {
    door.ready = true;
    (void)reactor_.rewatch(door.descriptor, door.serial, EPOLLIN);
  }
}

// ---- accepting

// What is done here is done for every stranger: little.
void Listener::accept_one(Door& door) {
  SocketAddress remote;
  remote.bytes = sizeof remote.storage;
  const int descriptor =
      ::accept4(door.descriptor, remote.get(), &remote.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (descriptor >= 0) return admit(descriptor, remote);
  if (const int why = errno; is_out_of_descriptors(why)) {
    // Whoever else waits in the backlog stays there; asking again at once would only spin.
    refuse_without_descriptors(door);
    log_.write(Kind::kCannotAccept, LogLevel::kError, reactor_.now(),
               socket_error("cannot accept connections for a moment", why).text());
    rest(reactor_.now() + kRestNs);
  } else if (why == EAGAIN || why == EWOULDBLOCK) {
    door.ready = false;
  }
  // Others, such as ECONNABORTED, concern that connection only: accept(2).
}

void Listener::admit(int descriptor, const SocketAddress& remote) {
  const TimeNs now = reactor_.now();
  if (connections_.has_peers()) {
    paid_until_ns_ =
        std::max(paid_until_ns_, now) + kSecond / static_cast<TimeNs>(options_.accepts_per_second);
  }
  while (strangers_.count(false) >= strangers_max()) drop_stranger(false);
  if (!make_room()) {
    log_.write(Kind::kTurnedAway, LogLevel::kWarning, now,
               remote.endpoint().text() + ": turned away, there are already " +
                   std::to_string(connections_.count()) + " connections");
    ::close(descriptor);
    return;
  }
  Connection& connection = connections_.add(descriptor);
  connection.remote = remote.endpoint();
  strangers_.enlist(connection, false);
  reactor_.set_deadline(connection.turn, now + options_.handshake_timeout_ns);
  const Status status =
      reactor_.watch(descriptor, connection.turn.serial, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
  if (!status.is_ok()) {
    log_.write(Kind::kCannotAccept, LogLevel::kError, now,
               connection.remote.text() + ": " + status.text());
    return closer_.forget(connection);
  }
  connection.socket.readable = true;  // its Hello may be here already
  connection.socket.writable = true;
  reactor_.activate(connection.turn);
}

// Gives up the spare descriptor in order to tell one of those who wait why nobody answers: it would see a
// connection that says nothing otherwise. What a new connection can take at once needs no waiting.
void Listener::refuse_without_descriptors(const Door& door) {
  if (spare_ < 0) return;
  ::close(spare_);
  const int descriptor = ::accept4(door.descriptor, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (descriptor >= 0) {
    const std::vector<std::byte> refusal = encode_refusal_record(
        {Code::kSystem,
         "it has no file descriptor left; raise its limit of open files, ulimit -n",
         {.kind = CauseKind::kNoDescriptors}});
    (void)::send(descriptor, refusal.data(), refusal.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    // Closing with unread input would turn into a reset, which takes the refusal with it.
    (void)::shutdown(descriptor, SHUT_WR);
    (void)::recv(descriptor, nullptr, kRefusedInputBytes, MSG_TRUNC | MSG_DONTWAIT);
    ::close(descriptor);
  }
  spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

// ---- who has a place

void Listener::hear_of(Connection& stranger, bool names_job) {
  // Those that have not named it lose one when the next is accepted.
  strangers_.delist(stranger);
  while (names_job && strangers_.count(true) >= strangers_max()) drop_stranger(true);
  strangers_.enlist(stranger, names_job);
}

void Listener::drop_stranger(bool names_job) {
  Connection& oldest = *connections_.find(strangers_.oldest(names_job));
  log_.write(Kind::kTurnedAway, LogLevel::kWarning, reactor_.now(),
             oldest.remote.text() +
                 ": dropped for newer connections before it has proved to belong to the job; "
                 "there are " +
                 std::to_string(strangers_.count(names_job)) + " such");
  closer_.forget(oldest);
}

bool Listener::make_room() {
  if (connections_.count() < connections_max()) return true;
  if (strangers_.count(false) == 0 && strangers_.count(true) == 0) return false;
  drop_stranger(strangers_.count(false) == 0);
  return true;
}

}  // namespace byteps::tcp
