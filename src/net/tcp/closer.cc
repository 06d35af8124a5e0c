#include "net/tcp/closer.h"

#include <utility>

#include <sys/epoll.h>
#include <sys/socket.h>

#include "net/frame/frame.h"

namespace byteps::tcp {
namespace {

using Kind = QuietLog::Kind;
using State = Connection::State;

constexpr int kWritesAtEnd = 256;
constexpr int kStrangerDrainsMax = 4;

}  // namespace

void Closer::end_malformed(Connection& connection, const Status& why) {
  const Status full = connection.with_address(why);
  const Kind kind = why.is_because_of(CauseKind::kDamaged) ? Kind::kCorrupted
                    : why.is(Code::kUnsupported)           ? Kind::kCannotLink
                                                           : Kind::kMalformed;
  log_.write(kind, LogLevel::kWarning, reactor_.now(), full.message());
  const bool was_told = connection.inbox.heard_farewell();
  if (!was_told) {
    connection.flush(options_.write_batch_bytes, kWritesAtEnd);
    connection.say_last(frame::encode_farewell(why));
  }
  end(connection, full, !was_told);
}

void Closer::end_of_link(Connection& connection, const Status& why) {
  const Status full = connection.with_address(why);
  log_.write(Kind::kLinkTrouble, LogLevel::kWarning, reactor_.now(), full.message());
  connection.say_last(frame::encode_farewell(why));
  end(connection, full, true);
}

void Closer::end_of_socket(Connection& connection, Status reason) {
  if (!connection.reads_link()) return end(connection, std::move(reason), false);
  connection.link->freeze();
  connection.socket.close();
  connection.socket_is_over = true;
  connection.why = std::move(reason);
  reactor_.activate(connection.turn);
}

void Closer::end(Connection& connection, Status why, bool graceful) {
  if (graceful && connection.state == State::kUp && connection.socket.descriptor >= 0) {
    connection.flush(options_.write_batch_bytes, kWritesAtEnd);
    if (connection.link) {
      connection.link->write(connection.outbox);
      connection.link->flush();
    }
    linger(connection);
  }
  connection.socket.close();
  reactor_.set_deadline(connection.turn, kNever);
  linker_.drop(connection);
  connection.outbox.give_up();
  connection.inbox.clear(staging_);
  connection.state = State::kEnded;
  connection.why = std::move(why);
  reactor_.activate(connection.turn);
}

void Closer::forget(Connection& connection) {
  reactor_.set_deadline(connection.turn, kNever);
  strangers_.delist(connection);
  linker_.drop(connection);
  connections_.erase(connection);
}

// Closing at once could turn into a reset, which would take with it what was just written. What is on its way in a link
// arrives before the end of the socket does: the other side looks at nothing behind that.
void Closer::linger(Connection& connection) {
  Connection& rest = connections_.add(connection.socket.release());
  rest.state = State::kLingering;
  rest.remote = connection.remote;
  if (connection.standing.is_stranger) strangers_.enlist(rest, false);
  rest.socket.readable = true;
  reactor_.set_deadline(rest.turn, reactor_.now() + options_.linger_ns);
  if (connection.link && connection.link->is_sending()) {
    linker_.hand_over(connection, rest);
  } else if (::shutdown(rest.socket.descriptor, SHUT_WR) != 0) {
    return forget(rest);
  }
  if (!reactor_.rewatch(rest.socket.descriptor, rest.turn.serial, EPOLLIN | EPOLLRDHUP)) {
    return forget(rest);
  }
  reactor_.activate(rest.turn);
}

void Closer::serve_lingering(Connection& connection) {
  if (connection.link && !connection.link->is_sending()) {
    linker_.drop(connection);
    if (::shutdown(connection.socket.descriptor, SHUT_WR) != 0) return forget(connection);
  }
  if (!connection.socket.drain()) return forget(connection);
  // A stranger that goes on talking loses the refusal.
  if (connection.standing.is_stranger && ++connection.standing.drain_count > kStrangerDrainsMax) {
    return forget(connection);
  }
  if (connection.socket.readable) reactor_.activate(connection.turn);
}

}  // namespace byteps::tcp
