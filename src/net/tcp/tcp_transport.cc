#include "net/tcp/tcp_transport.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/check.h"
#include "net/frame/frame.h"
#include "net/rdma/device.h"
#include "net/rdma/memory.h"
#include "net/rdma/slabs.h"
#include "net/shm/segment.h"
#include "net/tcp/connection.h"
#include "net/tcp/owner.h"
#include "net/tcp/record.h"
#include "net/way/link.h"

namespace byteps {

using frame::EventSpan;
using tcp::Connection;
using Kind = QuietLog::Kind;
using State = tcp::Connection::State;

namespace {

constexpr std::uint64_t kWakeSerial =
    0;  // epoll's word for the eventfd; listeners and connections count from 1
constexpr int kBacklog = 1024;
constexpr int kAcceptsPerPoll = 64;
constexpr int kAcceptsBesideMembers = 8;  // in a poll that may have work for members
constexpr int kWritesPerPoll = 8;
constexpr std::size_t kTurnBytes =
    12 << 10;  // at least, in whole frames: small ones are worth a system call together
constexpr int kWritesAtEnd = 256;
constexpr TimeNs kListenersRestNs = 100 * kMillisecond;
constexpr TimeNs kAcceptPauseNs = 10 * kMillisecond;  // at least, between two bursts
constexpr std::size_t kRefusedInputBytes = 64 << 10;
constexpr int kStrangerDrainsMax = 4;

void set_option(int descriptor, int level, int option, int value = 1) {
  // Refused only for sockets that are no TCP sockets; and then it would only be slower.
  (void)::setsockopt(descriptor, level, option, &value, sizeof value);
}

// See TcpOptions::unreachable_ns. Otherwise the kernel goes on trying for a quarter of an hour, and an idle
// connection is never missed.
void watch_reachability(int descriptor, TimeNs unreachable_ns) {
  set_option(descriptor, IPPROTO_TCP, TCP_USER_TIMEOUT,
             static_cast<int>(std::max<TimeNs>(1, unreachable_ns / kMillisecond)));
  set_option(descriptor, SOL_SOCKET, SO_KEEPALIVE);
  const int seconds = static_cast<int>(std::max<TimeNs>(1, unreachable_ns / (2 * kSecond)));
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set_option(descriptor, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
}

SocketAddress local_address(int descriptor) {
  SocketAddress address;
  address.bytes = sizeof address.storage;
  if (::getsockname(descriptor, address.get(), &address.bytes) != 0) address.bytes = 0;
  return address;
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

Status not_loopback(const std::string& what) {
  return {Code::kInvalidArgument,
          what + " is not on loopback, and a process without a job key talks to this machine only"};
}

}  // namespace

// ---- setting up

Result<std::unique_ptr<TcpTransport>> TcpTransport::create(TcpOptions options, Log log) {
  if (options.read_batch_bytes < 4096 || options.write_batch_bytes == 0 ||
      options.window_bytes == 0 || options.connections_max == 0 || options.strangers_max == 0 ||
      options.accepts_per_second == 0) {
    return Status(Code::kInvalidArgument, "TcpOptions: a limit is too small");
  }
  if (options.shared_ring_bytes != 0 && !shm::Segment::is_ring_size(options.shared_ring_bytes)) {
    return Status(Code::kInvalidArgument,
                  "TcpOptions: shared_ring_bytes must be a power of two from 64 KiB to 64 MiB");
  }
  rdma::Options& rdma = options.rdma;
  rdma.unreachable_ns = options.unreachable_ns;
  if (!rdma::is_ring_size(rdma.ring_bytes) || rdma.receive_depth < RdmaConfig::kReceiveDepthMin ||
      rdma.receive_depth > RdmaConfig::kDepthMax || rdma.send_depth < RdmaConfig::kSendDepthMin ||
      rdma.send_depth > RdmaConfig::kDepthMax) {
    return Status(Code::kInvalidArgument, "TcpOptions: a limit of RDMA is out of range");
  }
  std::unique_ptr<TcpTransport> transport(new TcpTransport(std::move(options), std::move(log)));
  if (Status status = transport->open(); !status.is_ok()) return status;
  return transport;
}

TcpTransport::TcpTransport(TcpOptions options, Log log)
    : options_(std::move(options)), log_(std::move(log)), staging_(options_.read_batch_bytes) {
  // Where locked memory is scarce it is for the rings, which connections cannot do without.
  const bool has_memory = options_.verbs != nullptr || rdma::may_lock_all_memory();
  if (options_.rdma.policy != rdma::Policy::kOff && has_memory) {
    slabs_ = std::make_shared<rdma::Slabs>();
  }
}

TcpTransport::~TcpTransport() {
  resolver_.reset();  // it would wake us
  // Unread input would turn the close into a reset, and the other side could lose what we sent it last.
  for (const auto& [serial, connection] : connections_) {
    if (connection->descriptor >= 0) connection->drain();
  }
  connections_.clear();
  old_links_.clear();
  for (const Listener& listener : listeners_) ::close(listener.descriptor);
  if (spare_ >= 0) ::close(spare_);
  if (wake_ >= 0) ::close(wake_);
  if (epoll_ >= 0) ::close(epoll_);
}

Status TcpTransport::open() {
  epoll_ = ::epoll_create1(EPOLL_CLOEXEC);
  if (epoll_ < 0) return socket_error("epoll_create1", errno);
  wake_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (wake_ < 0) return socket_error("eventfd", errno);
  if (Status status = watch(wake_, kWakeSerial, EPOLLIN); !status.is_ok()) return status;
  for (const Endpoint& endpoint : options_.listen) {
    if (Status status = listen_at(endpoint); !status.is_ok()) return status;
  }
  if (!listeners_.empty()) spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  staging_.begin_poll();
  return Status::ok();
}

Status TcpTransport::watch(int descriptor, std::uint64_t serial, std::uint32_t events) {
  epoll_event interest{};
  interest.events = events | EPOLLET;
  interest.data.u64 = serial;
  if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, descriptor, &interest) == 0) return Status::ok();
  return system_error("epoll_ctl", errno);
}

Status TcpTransport::listen_at(const Endpoint& endpoint) {
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

Status TcpTransport::listen_at(const SocketAddress& address, bool both_families) {
  const std::string what = "cannot listen at " + address.endpoint().text();
  const int descriptor = ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) {
    if (errno == EAFNOSUPPORT) return {Code::kUnsupported, what + ": no such address family"};
    return socket_error(what, errno);
  }
  set_option(descriptor, SOL_SOCKET, SO_REUSEADDR);
  if (address.family() == AF_INET6) {
    const int only_v6 = both_families ? 0 : 1;
    (void)::setsockopt(descriptor, IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
  }
  // The sockets that accept() gives have these from here.
  set_option(descriptor, IPPROTO_TCP, TCP_NODELAY);
  watch_reachability(descriptor, options_.unreachable_ns);
  if (::bind(descriptor, address.get(), address.bytes) != 0 ||
      ::listen(descriptor, kBacklog) != 0) {
    const int error_number = errno;
    ::close(descriptor);
    if (error_number == EADDRNOTAVAIL && both_families) return {Code::kUnsupported, what};
    return system_error(what, error_number);
  }
  listeners_.push_back({descriptor, ++last_serial_, false});
  return watch(descriptor, last_serial_, EPOLLIN);
}

std::vector<Endpoint> TcpTransport::listening() const {
  std::vector<Endpoint> endpoints;
  for (const Listener& listener : listeners_) {
    endpoints.push_back(local_address(listener.descriptor).endpoint());
  }
  return endpoints;
}

std::string TcpTransport::address_of(PeerId peer) const {
  const Connection* connection = find(peer);
  return connection == nullptr ? std::string() : connection->remote.text();
}

// ---- the records of connections

Connection* TcpTransport::find(PeerId peer) const {
  const auto found = peers_.find(peer);
  return found == peers_.end() ? nullptr : found->second;
}

Connection& TcpTransport::add_connection(int descriptor) {
  const std::uint64_t serial = ++last_serial_;
  auto& place = connections_[serial];
  place = std::make_unique<Connection>(serial, descriptor);
  return *place;
}

void TcpTransport::give_peer(Connection& connection) {
  connection.peer = PeerId(++last_peer_);
  peers_[connection.peer] = &connection;
}

void TcpTransport::forget(Connection& connection) {
  set_deadline(connection, kNever);
  delist_stranger(connection);
  drop_link(connection);
  peers_.erase(connection.peer);
  connections_.erase(connection.serial);  // lists that still name its serial find nothing
}

void TcpTransport::set_deadline(Connection& connection, TimeNs deadline) {
  if (connection.deadline != kNever) deadlines_.erase({connection.deadline, connection.serial});
  connection.deadline = deadline;
  if (deadline != kNever) deadlines_.insert({deadline, connection.serial});
}

void TcpTransport::activate(Connection& connection) {
  if (std::exchange(connection.is_active, true)) return;
  active_.push_back(connection.serial);
}

void TcpTransport::mark_dirty(Connection& connection) {
  if (std::exchange(connection.is_dirty, true)) return;
  dirty_.push_back(connection.serial);
}

// ---- the owner's calls

Result<PeerId> TcpTransport::connect(const Endpoint& to, const Hello& self) {
  if (Status flaw = flaw_of(to); !flaw.is_ok()) return flaw;
  if (!make_room()) {
    return Status(Code::kSystem, "no more than " +
                                     std::to_string(options_.connections_max + expected_peers_) +
                                     " connections are allowed here");
  }
  Connection& connection = add_connection(-1);
  connection.outbound = true;
  connection.remote = to;
  connection.self = self;
  connection.addresses = addresses_in_text(to);
  connection.is_named = connection.addresses.empty();
  give_peer(connection);
  unstamped_.push_back(connection.serial);
  const PeerId peer = connection.peer;
  if (connection.is_named) {
    connect_by_name(connection);
    return peer;
  }
  Status status = may_connect_to(connection);
  if (status.is_ok()) status = start_connect(connection);
  if (status.is(Code::kSystem) || status.is(Code::kInvalidArgument)) {
    forget(connection);
    return status;
  }
  if (!status.is_ok()) try_next_address(connection, std::move(status));
  return peer;
}

bool TcpTransport::is_naming(PeerId peer) const {
  const Connection* connection = find(peer);
  return connection != nullptr && connection->state == State::kNaming;
}

Status TcpTransport::send(PeerId peer, const Outgoing& message) {
  CHECK_LE(message.header.size(), kHeaderBytesMax);
  CHECK_LE(message.payload.size(), kPayloadBytesMax);
  Connection* const connection = find(peer);
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
    activate(*connection);
    return Status::ok();
  }
  if (!connection->writable) return Status::ok();
  if (outbox.unsent_bytes() >= options_.write_batch_bytes) {
    connection->flush(options_.write_batch_bytes, 1);
    activate(*connection);
  }
  if (connection->can_flush()) mark_dirty(*connection);
  return Status::ok();
}

void TcpTransport::land(PeerId peer, LandingTag tag, std::span<std::byte> destination) {
  Connection* const connection = find(peer);
  if (connection != nullptr && connection->state != State::kEnded) {
    connection->inbox.land(tag, destination);
    if (connection->link) connection->link->withdraw(tag);
  }
}

void TcpTransport::withdraw(PeerId peer, LandingTag tag) {
  Connection* const connection = find(peer);
  if (connection == nullptr) return;
  connection->inbox.withdraw(tag);
  if (connection->link) connection->link->withdraw(tag);
}

void TcpTransport::close(PeerId peer, Status reason) {
  Connection* const connection = find(peer);
  if (connection == nullptr || connection->state == State::kEnded) return;
  end(*connection, std::move(reason), true);
}

// ---- the turn of things

std::size_t TcpTransport::poll(TimeNs now, std::span<Event> events) {
  now_ = now;
  staging_.begin_poll();
  begin_links();
  hear_names();
  stamp_deadlines();
  look_for_input();
  expire_deadlines();
  accept_all();
  flush_dirty();
  serve_links();
  EventSpan out(events);
  for (std::size_t turns = active_.size(); turns > 0 && !out.full(); --turns) {
    const auto found = connections_.find(active_.front());
    active_.pop_front();
    if (found == connections_.end()) continue;
    Connection& connection = *found->second;
    connection.is_active = false;
    serve(connection, out);
  }
  // Who found no room in the staging memory is first in the next poll.
  active_.insert(active_.begin(), starved_.begin(), starved_.end());
  starved_.clear();
  return out.count();
}

TimeNs TcpTransport::next_deadline() const {
  if (!unstamped_.empty()) return now_;
  const TimeNs deadline = deadlines_.empty() ? kNever : deadlines_.begin()->first;
  return std::min(deadline, listeners_rest_until_);
}

bool TcpTransport::work_is_waiting() const {
  if (!active_.empty() || !dirty_.empty() || !unstamped_.empty()) return true;
  if (listeners_rest_until_ != kNever) return false;
  return std::any_of(listeners_.begin(), listeners_.end(),
                     [](const Listener& listener) { return listener.ready; });
}

void TcpTransport::wait(TimeNs timeout_ns) {
  if (std::exchange(wake_pending_, false) || work_is_waiting()) return;
  asleep_.store(true);  // before it asks wanted_: wake() does the two the other way round
  if (!wanted_.exchange(false)) {
    block(timeout_ns);
    wanted_.exchange(false);  // what was wanted until here is seen by the turn that follows
  }
  asleep_.store(false);
}

void TcpTransport::block(TimeNs timeout_ns) {
  if (arm_links()) return disarm_links();
  // Rounded up: waking before the deadline would only mean to wait once more.
  constexpr TimeNs kLongestMs = 60'000;
  const TimeNs timeout_ms =
      std::min(kLongestMs, timeout_ns / kMillisecond + (timeout_ns % kMillisecond > 0 ? 1 : 0));
  gather(timeout_ns == kNever ? -1 : static_cast<int>(timeout_ms));
  disarm_links();
  gathered_ = true;
  wake_pending_ = false;
}

void TcpTransport::wake() {
  wanted_.store(true);
  if (!asleep_.load()) return;
  const std::uint64_t one = 1;
  // Fails only when the counter is full; then the edge of an earlier write is still to be seen.
  [[maybe_unused]] const ssize_t written = ::write(wake_, &one, sizeof one);
}

// wait() looks anyway. An owner that has handled input takes a poll that writes its answers and one that finds nothing
// more before it waits again; without anything active those two need no look of their own.
void TcpTransport::look_for_input() {
  constexpr int kUnlookedMax = 2;
  if (std::exchange(gathered_, false)) {
    unlooked_count_ = 0;
  } else if (active_.empty() && unlooked_count_ < kUnlookedMax) {
    ++unlooked_count_;
  } else {
    gather(0);
    unlooked_count_ = 0;
  }
}

void TcpTransport::gather(int timeout_ms) {
  std::array<epoll_event, 256> ready;
  const int count = ::epoll_wait(epoll_, ready.data(), static_cast<int>(ready.size()), timeout_ms);
  for (int i = 0; i < count; ++i) {
    const epoll_event& event = ready[static_cast<std::size_t>(i)];
    if ((event.data.u64 & kDeviceSerial) != 0) {
      heed_device(event.data.u64);
      continue;
    }
    const std::uint64_t serial = event.data.u64 & ~kLinkSerial;
    if (serial == kWakeSerial) {
      wake_pending_ = true;
      continue;
    }
    const auto found = connections_.find(serial);
    if (found == connections_.end()) {
      for (Listener& listener : listeners_) listener.ready |= listener.serial == serial;
      continue;
    }
    Connection& connection = *found->second;
    if ((event.data.u64 & kLinkSerial) != 0) {  // a wake-up, perhaps of a link that was dropped
      if (connection.link) connection.link->drain_wakes();
      continue;
    }
    const bool broken = (event.events & (EPOLLERR | EPOLLHUP)) != 0;
    if ((event.events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) connection.peer_has_closed = true;
    if (broken || (event.events & (EPOLLIN | EPOLLRDHUP)) != 0) connection.readable = true;
    if (broken || (event.events & EPOLLOUT) != 0) connection.writable = true;
    if (connection.can_flush()) mark_dirty(connection);
    activate(connection);
  }
}

// connect() is not told the time, so an attempt's limit counts from the poll after it.
void TcpTransport::stamp_deadlines() {
  for (const std::uint64_t serial : unstamped_) {
    const auto found = connections_.find(serial);
    if (found == connections_.end()) continue;
    const State state = found->second->state;
    if (state == State::kNaming) set_deadline(*found->second, now_ + options_.look_up_timeout_ns);
    if (state == State::kConnecting || state == State::kHandshake) {
      set_deadline(*found->second, now_ + options_.connect_timeout_ns);
    }
  }
  unstamped_.clear();
}

void TcpTransport::expire_deadlines() {
  if (listeners_rest_until_ <= now_) wake_listeners();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now_) {
    Connection& connection = *connections_.at(deadlines_.begin()->second);
    set_deadline(connection, kNever);
    if (connection.state == State::kLingering) {
      forget(connection);
    } else if (connection.state == State::kUp) {
      end_malformed(connection, no_link_in_time(connection));
    } else if (connection.outbound) {
      const bool reached = connection.state == State::kHandshake;
      const bool is_naming = connection.state == State::kNaming;
      end(connection,
          {Code::kTimeout, connection.remote.text() +
                               (reached     ? ": accepted, but did not say in time who it is"
                                : is_naming ? ": cannot look up the host name: no answer in time"
                                            : ": no answer in time")},
          false);
    } else {
      log_.write(Kind::kSilent, LogLevel::kInfo, now_,
                 connection.remote.text() + ": connected, but did not say in time who it is");
      forget(connection);
    }
  }
}

// Takes turns: what goes to several peers at once leaves in the order of its frames, not one peer's after the other's.
// Otherwise the last peer would get its first frame when the first has all it may have.
void TcpTransport::flush_dirty() {
  std::vector<std::uint64_t> dirty;
  dirty.swap(dirty_);
  std::vector<Connection*> writing;
  for (const std::uint64_t serial : dirty) {
    const auto found = connections_.find(serial);
    if (found == connections_.end()) continue;
    found->second->is_dirty = false;
    writing.push_back(found->second.get());
    activate(*found->second);
  }
  const bool alone = writing.size() == 1;
  for (int turn = 0; turn < kWritesPerPoll && !writing.empty(); ++turn) {
    for (Connection* connection : writing) {
      connection->flush(
          alone ? options_.write_batch_bytes : connection->outbox.whole_frames(kTurnBytes), 1);
    }
    std::erase_if(writing, [](const Connection* connection) { return !connection->can_flush(); });
  }
  for (Connection* connection : writing) mark_dirty(*connection);
}

// ---- accepting

void TcpTransport::accept_all() {
  if (listeners_rest_until_ != kNever) return;
  const int accepts_max = peers_.empty() ? kAcceptsPerPoll : kAcceptsBesideMembers;
  for (Listener& listener : listeners_) {
    for (int i = 0; i < accepts_max && listener.ready && may_accept(); ++i) accept_one(listener);
  }
}

// Each accept costs a time, paid in advance while members are here; nobody pays for more than all that may be strangers
// at once. So all members can come at once at any time, and a flood of strangers takes a fixed share of this thread.
bool TcpTransport::may_accept() {
  if (peers_.empty()) return true;
  const TimeNs cost_ns = kSecond / static_cast<TimeNs>(options_.accepts_per_second);
  const TimeNs at_once_ns = cost_ns * static_cast<TimeNs>(strangers_max());
  if (accepts_paid_until_ns_ - at_once_ns < now_) return true;
  rest_listeners(std::max(now_ + kAcceptPauseNs, accepts_paid_until_ns_ - at_once_ns + cost_ns));
  return false;
}

// Whoever comes meanwhile waits in the backlog, and does not wake this thread.
void TcpTransport::rest_listeners(TimeNs until) {
  listeners_rest_until_ = until;
  for (Listener& listener : listeners_) {
    listener.ready = false;
    epoll_event nothing{};
    nothing.data.u64 = listener.serial;
    (void)::epoll_ctl(epoll_, EPOLL_CTL_MOD, listener.descriptor, &nothing);
  }
}

void TcpTransport::wake_listeners() {
  listeners_rest_until_ = kNever;
  for (Listener& listener : listeners_) {
    listener.ready = true;
    epoll_event interest{};
    interest.events = EPOLLIN | EPOLLET;
    interest.data.u64 = listener.serial;
    (void)::epoll_ctl(epoll_, EPOLL_CTL_MOD, listener.descriptor, &interest);
  }
}

// What is done here is done for every stranger: little.
void TcpTransport::accept_one(Listener& listener) {
  SocketAddress remote;
  remote.bytes = sizeof remote.storage;
  const int descriptor =
      ::accept4(listener.descriptor, remote.get(), &remote.bytes, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (descriptor < 0) {
    if (const int why = errno; is_out_of_descriptors(why)) {
      // Whoever else waits in the backlog stays there; asking again at once would only spin.
      refuse_without_descriptors(listener);
      log_.write(Kind::kCannotAccept, LogLevel::kError, now_,
                 socket_error("cannot accept connections for a moment", why).text());
      rest_listeners(now_ + kListenersRestNs);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      listener.ready = false;
    }
    return;  // others, such as ECONNABORTED, concern that connection only: accept(2)
  }
  if (!peers_.empty()) {
    accepts_paid_until_ns_ = std::max(accepts_paid_until_ns_, now_) +
                             kSecond / static_cast<TimeNs>(options_.accepts_per_second);
  }
  while (strangers_[0].size() >= strangers_max()) drop_stranger(false);
  if (!make_room()) {
    log_.write(Kind::kTurnedAway, LogLevel::kWarning, now_,
               remote.endpoint().text() + ": turned away, there are already " +
                   std::to_string(connections_.size()) + " connections");
    ::close(descriptor);
    return;
  }
  Connection& connection = add_connection(descriptor);
  connection.remote = remote.endpoint();
  enlist_stranger(connection);
  set_deadline(connection, now_ + options_.handshake_timeout_ns);
  if (Status status = watch(descriptor, connection.serial, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
      !status.is_ok()) {
    log_.write(Kind::kCannotAccept, LogLevel::kError, now_,
               connection.remote.text() + ": " + status.text());
    return forget(connection);
  }
  connection.readable = true;  // its Hello may be here already
  connection.writable = true;
  activate(connection);
}

// ---- strangers: accepted connections that have not proved that they belong to the job

void TcpTransport::enlist_stranger(Connection& connection) {
  delist_stranger(connection);
  connection.is_stranger = true;
  connection.names_job = connection.handshake != nullptr && connection.handshake->knows_job();
  std::set<std::uint64_t>& strangers = strangers_[connection.names_job ? 1 : 0];
  // Those that have not named it lose one when the next is accepted.
  while (connection.names_job && strangers.size() >= strangers_max()) drop_stranger(true);
  strangers.insert(connection.serial);
}

void TcpTransport::delist_stranger(Connection& connection) {
  if (!std::exchange(connection.is_stranger, false)) return;
  strangers_[connection.names_job ? 1 : 0].erase(connection.serial);
}

void TcpTransport::drop_stranger(bool names_job) {
  const std::set<std::uint64_t>& strangers = strangers_[names_job ? 1 : 0];
  Connection& oldest = *connections_.at(*strangers.begin());
  log_.write(Kind::kTurnedAway, LogLevel::kWarning, now_,
             oldest.remote.text() +
                 ": dropped for newer connections before it has proved to belong to the job; "
                 "there are " +
                 std::to_string(strangers.size()) + " such");
  forget(oldest);
}

// For one more connection. False: there are too many that we cannot do without.
bool TcpTransport::make_room() {
  if (connections_.size() < options_.connections_max + expected_peers_) return true;
  if (strangers_[0].empty() && strangers_[1].empty()) return false;
  drop_stranger(strangers_[0].empty());
  return true;
}

// Gives up the spare descriptor in order to tell one of those who wait why nobody answers: it would see a
// connection that says nothing otherwise. What a new connection can take at once needs no waiting.
void TcpTransport::refuse_without_descriptors(Listener& listener) {
  if (spare_ < 0) return;
  ::close(spare_);
  const int descriptor =
      ::accept4(listener.descriptor, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (descriptor >= 0) {
    const std::vector<std::byte> refusal = tcp::encode_refusal_record(
        {Code::kSystem,
         "it has no file descriptor left; raise its limit of open files, ulimit -n"});
    (void)::send(descriptor, refusal.data(), refusal.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    // Closing with unread input would turn into a reset, which takes the refusal with it.
    (void)::shutdown(descriptor, SHUT_WR);
    (void)::recv(descriptor, nullptr, kRefusedInputBytes, MSG_TRUNC | MSG_DONTWAIT);
    ::close(descriptor);
  }
  spare_ = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
}

// ---- connecting, and who is there

void TcpTransport::connect_by_name(Connection& connection) {
  const std::string& host = connection.remote.host;
  const NameBook::Known known = names_.ask(host);
  if (known.look_up) {
    if (!resolver_) {
      resolver_ = std::make_unique<tcp::Resolver>(
          *this, options_.look_up ? options_.look_up : addresses_of_name);
    }
    if (const Status begun = resolver_->look_up(host); !begun.is_ok()) {
      names_.answer(host, begun);
      if (known.addresses == nullptr) {
        return end(connection,
                   {Code::kDisconnected, connection.remote.text() + ": " + begun.message()}, false);
      }
    }
  }
  if (known.addresses != nullptr) return name(connection, *known.addresses);
  connection.state = State::kNaming;
  awaiting_[host].push_back(connection.serial);
}

// What the look-ups have found since the last poll.
void TcpTransport::hear_names() {
  if (!resolver_) return;
  for (tcp::Resolver::Answer& answer : resolver_->take()) {
    names_.answer(answer.host, answer.found);
    const auto waiting = awaiting_.extract(answer.host);
    if (waiting.empty()) continue;
    for (const std::uint64_t serial : waiting.mapped()) {
      const auto found = connections_.find(serial);
      if (found == connections_.end() || found->second->state != State::kNaming) continue;
      Connection& connection = *found->second;
      if (answer.found.is_ok()) {
        name(connection, answer.found.value());
        unstamped_.push_back(serial);
      } else {
        const Status& why = answer.found.status();
        end(connection, {why.code(), connection.remote.text() + ": " + why.message()}, false);
      }
    }
  }
}

// The addresses of its host are known: it begins.
void TcpTransport::name(Connection& connection, const NameBook::Addresses& texts) {
  for (const std::string& text : texts) {
    for (const SocketAddress& address : addresses_in_text({text, connection.remote.port})) {
      connection.addresses.push_back(address);
    }
  }
  std::reverse(connection.addresses.begin(), connection.addresses.end());
  if (Status fine = may_connect_to(connection); !fine.is_ok()) return end(connection, fine, false);
  const Status status = start_connect(connection);
  if (status.is(Code::kSystem)) return end(connection, status, false);
  if (!status.is_ok()) try_next_address(connection, status);
}

Status TcpTransport::may_connect_to(const Connection& connection) const {
  if (connection.addresses.empty()) {
    return {Code::kDisconnected, connection.remote.text() + ": the host has no address"};
  }
  const auto is_outside = [](const SocketAddress& address) { return !address.is_loopback(); };
  if (options_.loopback_only &&
      std::any_of(connection.addresses.begin(), connection.addresses.end(), is_outside)) {
    return not_loopback(connection.remote.text());
  }
  return Status::ok();
}

// kDisconnected: this address does not work. kSystem: none would.
Status TcpTransport::start_connect(Connection& connection) {
  const SocketAddress& address = connection.addresses.back();
  connection.state = State::kConnecting;
  connection.descriptor = ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (connection.descriptor < 0) {
    if (is_out_of_descriptors(errno)) return socket_error(connection.remote.text(), errno);
    return tcp::connection_error(errno);
  }
  set_option(connection.descriptor, IPPROTO_TCP, TCP_NODELAY);
  watch_reachability(connection.descriptor, options_.unreachable_ns);
  if (::connect(connection.descriptor, address.get(), address.bytes) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return tcp::connection_error(errno);
  }
  return watch(connection.descriptor, connection.serial, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

void TcpTransport::try_next_address(Connection& connection, Status why) {
  while (!why.is_ok()) {
    connection.close_socket();
    connection.peer_has_closed = false;
    connection.addresses.pop_back();
    if (connection.addresses.empty()) return end(connection, connection.with_address(why), false);
    why = start_connect(connection);
  }
}

void TcpTransport::finish_connect(Connection& connection) {
  if (!connection.writable) return;
  int error_number = 0;
  socklen_t bytes = sizeof error_number;
  if (::getsockopt(connection.descriptor, SOL_SOCKET, SO_ERROR, &error_number, &bytes) != 0) {
    error_number = errno;
  }
  // A connection to a free port of one's own machine may by chance come from that very port.
  if (error_number == 0 &&
      local_address(connection.descriptor).endpoint() == connection.addresses.back().endpoint()) {
    error_number = ECONNREFUSED;
  }
  if (error_number != 0) return try_next_address(connection, tcp::connection_error(error_number));
  const Status status = begin_handshake(connection, auth::Side::kConnecting, connection.self);
  if (!status.is_ok()) return end(connection, connection.with_address(status), false);
  say(connection, connection.handshake->own_hello());
}

Status TcpTransport::begin_handshake(Connection& connection, auth::Side side, const Hello& self) {
  const Result<auth::Nonce> nonce = auth::fresh_nonce();
  if (!nonce.is_ok()) return nonce.status();
  connection.state = State::kHandshake;
  connection.handshake = std::make_unique<tcp::Handshake>(side, self, nonce.value(), options_.key);
  return Status::ok();
}

void TcpTransport::say(Connection& connection, std::span<const std::byte> record) {
  if (record.empty()) return;
  connection.outbox.put_record(record);
  connection.flush(options_.write_batch_bytes, 1);
}

void TcpTransport::advance_handshake(Connection& connection) {
  if (connection.state == State::kConnecting) finish_connect(connection);
  while (connection.state == State::kHandshake && connection.readable) {
    const Result<bool> taken = take_record(connection);
    if (!taken.is_ok()) return fail_handshake(connection, taken.status());
    if (!taken.value()) return;
    if (connection.handshake->is_done()) finish_handshake(connection);
  }
}

// False: it is not all here. An error: the connection must end.
Result<bool> TcpTransport::take_record(Connection& connection) {
  tcp::RecordHead head;
  const Result<bool> complete = connection.read_record(head);
  if (!complete.is_ok() || !complete.value()) return complete;
  if (!connection.handshake) {
    const Status begun = begin_handshake(connection, auth::Side::kAccepting, options_.self);
    if (!begun.is_ok()) return begun;
  }
  std::vector<std::byte> answer;
  const Status status = connection.handshake->take(head.kind, connection.record, answer);
  if (!status.is_ok()) return status;
  // Now: the other side waits for our answer or has been asked for its own, so its socket has an owner.
  if (options_.loopback_only && head.kind == tcp::RecordKind::kHello) {
    const Status known = tcp::check_owner(connection.descriptor);
    if (!known.is_ok()) return known;
  }
  connection.record.clear();
  say(connection, answer);
  if (connection.is_stranger) enlist_stranger(connection);
  return true;
}

void TcpTransport::finish_handshake(Connection& connection) {
  connection.theirs = connection.handshake->theirs();
  connection.handshake.reset();
  connection.record = {};
  set_deadline(connection, kNever);
  delist_stranger(connection);
  connection.state = State::kUp;
  if (!connection.outbound) give_peer(connection);
  begin_linking(connection);
}

// The other side is told what was wrong with it, if it would understand. One that only went away leaves no trace.
void TcpTransport::fail_handshake(Connection& connection, const Status& why) {
  const Status full = connection.with_address(why);
  const bool wants_to_refuse = connection.handshake ? connection.handshake->wants_to_refuse()
                                                    : tcp::begins_a_record(connection.record);
  if (why.is(Code::kMismatch) && wants_to_refuse) {
    say(connection, tcp::encode_refusal_record(why));
    linger(connection);
  }
  if (connection.outbound) return end(connection, full, false);
  connection.state = State::kEnded;
  if (why.is(Code::kMismatch)) {
    log_.write(Kind::kRefused, LogLevel::kWarning, now_, "refused a connection: " + full.message());
  } else if (why.is(Code::kSystem)) {
    log_.write(Kind::kCannotAccept, LogLevel::kError, now_, full.text());
  } else {
    log_.write(Kind::kWentAway, LogLevel::kDebug, now_, full.message());
  }
}

// ---- one connection's turn

void TcpTransport::serve(Connection& connection, EventSpan& out) {
  if (connection.state == State::kConnecting || connection.state == State::kHandshake) {
    advance_handshake(connection);
  }
  if (connection.state == State::kLingering) {
    return serve_lingering(connection);
  }
  if (connection.state == State::kUp) serve_up(connection, out);
  if (connection.state == State::kEnded) return serve_ended(connection, out);
  if (connection.state != State::kUp) return;  // the next edge goes on
  const bool more = connection.outbox.has_sent() || connection.inbox.has_backlog() ||
                    connection.readable || (connection.link && connection.link->has_input());
  if (more) activate(connection);
}

void TcpTransport::serve_up(Connection& connection, EventSpan& out) {
  if (!connection.up_reported && is_settled(connection)) {
    out.add(Event::Kind::kUp, connection.peer).hello = connection.theirs;
    connection.up_reported = true;
  }
  connection.sent_first = !connection.sent_first;
  if (connection.sent_first) report_sent(connection, out);
  receive(connection, out);
  if (!connection.sent_first) report_sent(connection, out);
}

void TcpTransport::serve_ended(Connection& connection, EventSpan& out) {
  const bool is_known = connection.outbound || connection.up_reported;
  if (connection.peer == PeerId() || !is_known) return forget(connection);  // was never up
  report_sent(connection, out);
  if (out.full()) return activate(connection);
  out.add(Event::Kind::kDown, connection.peer).why = std::move(connection.why);
  forget(connection);
}

void TcpTransport::report_sent(Connection& connection, EventSpan& out) {
  while (connection.outbox.has_sent() && !out.full()) {
    out.add(Event::Kind::kSent, connection.peer).token = connection.outbox.pop_sent();
  }
}

void TcpTransport::receive(Connection& connection, EventSpan& out) {
  std::size_t budget_bytes = options_.read_batch_bytes;
  if (connection.link) {
    const Status status =
        connection.link->receive(connection.peer, connection.inbox, budget_bytes, staging_, out);
    if (!status.is_ok()) return end_malformed(connection, status);
    const Status failure = connection.link->failure();
    if (!failure.is_ok() && !connection.socket_is_over) {
      const bool is_used = connection.link->reads() || connection.outbox.has_stream_end();
      if (is_used) return end_of_link(connection, failure);
      if (Status why = heed_dead_way(connection, failure); !why.is_ok()) {
        return end_malformed(connection, why);
      }
    }
    if (connection.socket_is_over) {
      if (!connection.link->has_input()) end(connection, connection.why, false);
      return;
    }
  }
  while (!out.full()) {
    if (connection.inbox.has_backlog()) {
      const Status status = parse(connection, out);
      if (!status.is_ok()) return end_malformed(connection, status);
      if (connection.inbox.has_backlog()) return;
    }
    if (out.full() || !connection.readable || budget_bytes == 0) return;
    if (staging_.room().size() < connection.inbox.room_wanted(staging_)) {
      connection.is_active = true;
      starved_.push_back(connection.serial);
      return;
    }
    const frame::Inbox::Places places = connection.inbox.places(staging_, budget_bytes);
    Status reason;
    const std::ptrdiff_t count = connection.receive(places, reason);
    if (count < 0) return end_of_socket(connection, connection.with_address(reason));
    if (count == 0) return;
    const auto bytes = static_cast<std::size_t>(count);
    budget_bytes -= std::min(bytes, budget_bytes);
    connection.inbox.received(bytes, places, staging_);
    const Status status = parse(connection, out);
    if (!status.is_ok()) return end_malformed(connection, status);
  }
}

Status TcpTransport::parse(Connection& connection, EventSpan& out) {
  while (true) {
    const std::size_t before = out.count();
    if (Status status = connection.inbox.parse(connection.peer, staging_, out); !status.is_ok()) {
      return status;
    }
    if (!connection.up_reported && out.count() != before) {
      out.cut(before);
      return unlinked_message();
    }
    const std::vector<std::byte> aside = connection.inbox.take_aside();
    if (aside.empty()) return Status::ok();
    if (Status status = heed_aside(connection, aside); !status.is_ok()) return status;
  }
}

// RDMA has failed; the socket may know nothing of it, and the other side is told.
void TcpTransport::end_of_link(Connection& connection, const Status& why) {
  const Status full = connection.with_address(why);
  log_.write(Kind::kRdmaTrouble, LogLevel::kWarning, now_, full.message());
  connection.say_last(frame::encode_farewell(why));
  end(connection, full, true);
}

// ---- the end

void TcpTransport::end_malformed(Connection& connection, const Status& why) {
  const Status full = connection.with_address(why);
  const Kind kind = frame::is_corrupted(why)     ? Kind::kCorrupted
                    : why.is(Code::kUnsupported) ? Kind::kCannotLink
                                                 : Kind::kMalformed;
  log_.write(kind, LogLevel::kWarning, now_, full.message());
  const bool was_told = connection.inbox.heard_farewell();
  if (!was_told) {
    connection.flush(options_.write_batch_bytes, kWritesAtEnd);
    connection.say_last(frame::encode_farewell(why));
  }
  end(connection, full, !was_told);
}

void TcpTransport::end(Connection& connection, Status why, bool graceful) {
  if (graceful && connection.state == State::kUp && connection.descriptor >= 0) {
    connection.flush(options_.write_batch_bytes, kWritesAtEnd);
    if (connection.link) {
      connection.link->write(connection.outbox);
      connection.link->flush();
    }
    linger(connection);
  }
  const bool has_tried =
      connection.state == State::kConnecting || connection.state == State::kHandshake;
  if (connection.is_named && has_tried) names_.failed(connection.remote.host);
  connection.close_socket();
  set_deadline(connection, kNever);
  drop_link(connection);
  connection.outbox.give_up();
  connection.inbox.clear(staging_);
  connection.state = State::kEnded;
  connection.why = std::move(why);
  activate(connection);
}

// Takes the socket over until the other side has closed too, or for a limited time. Closing at once could
// turn into a reset, which would take with it what was just written. What is on its way by RDMA arrives before the
// end of the socket does: the other side looks at nothing behind that.
void TcpTransport::linger(Connection& connection) {
  Connection& rest = add_connection(std::exchange(connection.descriptor, -1));
  rest.state = State::kLingering;
  rest.remote = connection.remote;
  if (connection.is_stranger) enlist_stranger(rest);
  rest.readable = true;
  set_deadline(rest, now_ + options_.linger_ns);
  if (connection.link && connection.link->is_sending()) {
    std::replace(linked_.begin(), linked_.end(), &connection, &rest);
    rest.link = std::move(connection.link);
    rest.link->stop_reading();
  } else if (::shutdown(rest.descriptor, SHUT_WR) != 0) {
    return forget(rest);
  }
  epoll_event interest{};
  interest.events = EPOLLIN | EPOLLRDHUP | EPOLLET;
  interest.data.u64 = rest.serial;
  if (::epoll_ctl(epoll_, EPOLL_CTL_MOD, rest.descriptor, &interest) != 0) return forget(rest);
  activate(rest);
}

void TcpTransport::serve_lingering(Connection& connection) {
  if (connection.link && !connection.link->is_sending()) {
    drop_link(connection);
    if (::shutdown(connection.descriptor, SHUT_WR) != 0) return forget(connection);
  }
  if (!connection.drain()) return forget(connection);
  // A stranger that goes on talking loses the refusal.
  if (connection.is_stranger && ++connection.drain_count > kStrangerDrainsMax) {
    return forget(connection);
  }
  if (connection.readable) activate(connection);
}

}  // namespace byteps
