#include "net/tcp/dialler.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "net/address.h"
#include "net/cards.h"
#include "net/tcp/socket.h"

namespace byteps::tcp {
namespace {

using State = Connection::State;

}  // namespace

Result<PeerId> Dialler::connect(const Endpoint& to, const Hello& self) {
  Connection& connection = connections_.add(-1);
  connection.remote = to;
  connection.dial.is_outbound = true;
  connection.dial.self = self;
  connection.dial.addresses = addresses_in_text(to);
  connection.dial.is_named = connection.dial.addresses.empty();
  connections_.give_peer(connection);
  unstamped_.push_back(connection.turn.serial);
  const PeerId peer = connection.peer;
  if (connection.dial.is_named) {
    connect_by_name(connection);
    return peer;
  }
  Status status = may_connect_to(connection);
  if (status.is_ok()) status = start_connect(connection);
  if (status.is(Code::kSystem) || status.is(Code::kInvalidArgument)) {
    closer_.forget(connection);
    return status;
  }
  if (!status.is_ok()) try_next_address(connection, std::move(status));
  return peer;
}

void Dialler::fail(Connection& connection, Status why) {
  const bool has_tried =
      connection.state == State::kConnecting || connection.state == State::kHandshake;
  if (connection.dial.is_named && has_tried) names_.failed(connection.remote.host);
  closer_.end(connection, std::move(why), false);
}

void Dialler::stamp_deadlines() {
  for (const std::uint64_t serial : unstamped_) {
    Connection* const connection = connections_.find(serial);
    if (connection == nullptr) continue;
    const TimeNs now = reactor_.now();
    if (connection->state == State::kNaming) {
      reactor_.set_deadline(connection->turn, now + options_.look_up_timeout_ns);
    }
    if (connection->state == State::kConnecting || connection->state == State::kHandshake) {
      reactor_.set_deadline(connection->turn, now + options_.connect_timeout_ns);
    }
  }
  unstamped_.clear();
}

// ---- names

void Dialler::connect_by_name(Connection& connection) {
  const std::string& host = connection.remote.host;
  const NameBook::Known known = names_.ask(host);
  if (known.look_up) {
    if (!resolver_) {
      resolver_ = std::make_unique<Resolver>(
          waiter_, options_.look_up ? options_.look_up : addresses_of_name);
    }
    if (const Status begun = resolver_->look_up(host); !begun.is_ok()) {
      names_.answer(host, begun);
      if (known.addresses == nullptr) {
        return fail(connection, connection.with_address({Code::kDisconnected, begun.message()}));
      }
    }
  }
  if (known.addresses != nullptr) return name(connection, *known.addresses);
  connection.state = State::kNaming;
  awaiting_[host].push_back(connection.turn.serial);
}

void Dialler::hear_names() {
  if (!resolver_) return;
  for (Resolver::Answer& answer : resolver_->take()) {
    names_.answer(answer.host, answer.found);
    const auto waiting = awaiting_.extract(answer.host);
    if (waiting.empty()) continue;
    for (const std::uint64_t serial : waiting.mapped()) {
      Connection* const connection = connections_.find(serial);
      if (connection == nullptr || connection->state != State::kNaming) continue;
      if (answer.found.is_ok()) {
        name(*connection, answer.found.value());
        unstamped_.push_back(serial);
      } else {
        fail(*connection, connection->with_address(answer.found.status()));
      }
    }
  }
}

// The addresses of its host are known: it begins.
void Dialler::name(Connection& connection, const NameBook::Addresses& texts) {
  std::vector<SocketAddress>& addresses = connection.dial.addresses;
  for (const std::string& text : texts) {
    for (const SocketAddress& address : addresses_in_text({text, connection.remote.port})) {
      addresses.push_back(address);
    }
  }
  std::reverse(addresses.begin(), addresses.end());
  if (Status fine = may_connect_to(connection); !fine.is_ok()) return fail(connection, fine);
  const Status status = start_connect(connection);
  if (status.is(Code::kSystem)) return fail(connection, status);
  if (!status.is_ok()) try_next_address(connection, status);
}

// ---- addresses

Status Dialler::may_connect_to(const Connection& connection) const {
  const std::vector<SocketAddress>& addresses = connection.dial.addresses;
  if (addresses.empty()) {
    return connection.with_address({Code::kDisconnected, "the host has no address"});
  }
  const auto is_outside = [](const SocketAddress& address) { return !address.is_loopback(); };
  if (options_.loopback_only && std::any_of(addresses.begin(), addresses.end(), is_outside)) {
    return not_loopback(connection.remote.text());
  }
  return Status::ok();
}

// kDisconnected: this address does not work. kSystem: none would.
Status Dialler::start_connect(Connection& connection) {
  const SocketAddress& address = connection.dial.addresses.back();
  connection.state = State::kConnecting;
  int& descriptor = connection.socket.descriptor;
  descriptor = ::socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (descriptor < 0) {
    if (is_out_of_descriptors(errno)) return socket_error(connection.remote.text(), errno);
    return connection_error(errno);
  }
  prepare(descriptor, address, options_.unreachable_ns);
  if (Status bound = leave_by_card(connection); !bound.is_ok()) return bound;
  if (::connect(descriptor, address.get(), address.bytes) != 0 && errno != EINPROGRESS &&
      errno != EINTR) {
    return connection_error(errno);
  }
  return reactor_.watch(descriptor, connection.turn.serial, EPOLLIN | EPOLLOUT | EPOLLRDHUP);
}

// Its address is that of a card, where several are to be used. kDisconnected: the card has just lost it.
Status Dialler::leave_by_card(Connection& connection) {
  connection.dial.card.clear();
  if (options_.cards.empty()) return Status::ok();
  const auto chosen =
      choose_card(options_.cards, interface_addresses(), connection.dial.addresses.back(),
                  [this](const std::string& card) { return connections_.count_by(card); });
  if (!chosen) return Status::ok();
  const int descriptor = connection.socket.descriptor;
  // The port is chosen by connect(), which needs it to be another one only for the same place.
  set_option(descriptor, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT);
  if (::bind(descriptor, chosen->from.get(), chosen->from.bytes) != 0) {
    return connection_error(errno);
  }
  connection.dial.card = chosen->interface;
  return Status::ok();
}

void Dialler::try_next_address(Connection& connection, Status why) {
  while (!why.is_ok()) {
    connection.socket.close();
    connection.socket.peer_has_closed = false;
    connection.dial.addresses.pop_back();
    if (connection.dial.addresses.empty()) return fail(connection, connection.with_address(why));
    why = start_connect(connection);
  }
}

void Dialler::finish_connect(Connection& connection) {
  if (!connection.socket.writable) return;
  const int descriptor = connection.socket.descriptor;
  int error_number = 0;
  socklen_t bytes = sizeof error_number;
  if (::getsockopt(descriptor, SOL_SOCKET, SO_ERROR, &error_number, &bytes) != 0) {
    error_number = errno;
  }
  // A connection to a free port of one's own machine may by chance come from that very port.
  const Endpoint other = connection.dial.addresses.back().endpoint();
  if (error_number == 0 && local_address(descriptor).endpoint() == other) {
    error_number = ECONNREFUSED;
  }
  if (error_number != 0) return try_next_address(connection, connection_error(error_number));
  const Status status = greeter_.greet(connection);
  if (!status.is_ok()) fail(connection, connection.with_address(status));
}

}  // namespace byteps::tcp
