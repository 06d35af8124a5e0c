#include "net/tcp/greeter.h"

#include <memory>
#include <utility>
#include <vector>

#include "net/cards.h"
#include "net/tcp/handshake.h"
#include "net/tcp/owner.h"
#include "net/tcp/record.h"
#include "net/tcp/socket.h"
#include "net/transport.h"

namespace byteps::tcp {
namespace {

using Kind = QuietLog::Kind;
using State = Connection::State;

}  // namespace

Status Greeter::greet(Connection& connection) {
  Status status = begin(connection, auth::Side::kConnecting, connection.dial.self);
  if (status.is_ok()) say(connection, connection.greeting.handshake->own_hello());
  return status;
}

Status Greeter::begin(Connection& connection, auth::Side side, const Hello& self) {
  const Result<auth::Nonce> nonce = auth::fresh_nonce();
  if (!nonce.is_ok()) return nonce.status();
  connection.state = State::kHandshake;
  connection.greeting.handshake =
      std::make_unique<Handshake>(side, self, nonce.value(), options_.key);
  return Status::ok();
}

void Greeter::say(Connection& connection, std::span<const std::byte> record) {
  if (record.empty()) return;
  connection.outbox.put_record(record);
  connection.flush(options_.write_batch_bytes, 1);
}

Result<bool> Greeter::advance(Connection& connection) {
  while (connection.state == State::kHandshake && connection.socket.readable) {
    const Result<bool> taken = take_record(connection);
    if (!taken.is_ok()) {
      Status status = fail(connection, taken.status());
      if (!status.is_ok()) return status;
      return false;
    }
    if (!taken.value()) return false;
    if (connection.greeting.handshake->is_done()) {
      finish(connection);
      return true;
    }
  }
  return false;
}

// False: it is not all here. An error: the connection must end.
Result<bool> Greeter::take_record(Connection& connection) {
  Connection::Greeting& greeting = connection.greeting;
  RecordHead head;
  const Result<bool> complete = connection.socket.read_record(greeting.record, head);
  if (!complete.is_ok() || !complete.value()) return complete;
  if (!greeting.handshake) {
    const Status begun = begin(connection, auth::Side::kAccepting, options_.self);
    if (!begun.is_ok()) return begun;
  }
  std::vector<std::byte> answer;
  const Status status = greeting.handshake->take(head.kind, greeting.record, answer);
  if (!status.is_ok()) return status;
  // Now: the other side waits for our answer or has been asked for its own, so its socket has an owner.
  if (options_.loopback_only && head.kind == RecordKind::kHello) {
    const Status known = check_owner(connection.socket.descriptor);
    if (!known.is_ok()) return known;
  }
  greeting.record.clear();
  say(connection, answer);
  if (connection.standing.is_stranger) {
    listener_.hear_of(connection, greeting.handshake->knows_job());
  }
  return true;
}

void Greeter::finish(Connection& connection) {
  connection.theirs = connection.greeting.handshake->theirs();
  connection.greeting = {};
  reactor_.set_deadline(connection.turn, kNever);
  strangers_.delist(connection);
  connection.state = State::kUp;
  connection.round_trip_ns = round_trip_ns(connection.socket.descriptor);
  if (connection.round_trip_ns >= kLongLineNs) fit_to_long_line(connection.socket.descriptor);
  if (!connection.dial.is_outbound) connections_.give_peer(connection);
  hold_to_card(connection);
}

// On either side, and not before it is known that somebody of the job is there: strangers are to cost little.
void Greeter::hold_to_card(const Connection& connection) {
  if (options_.cards.empty()) return;
  const int descriptor = connection.socket.descriptor;
  const std::string card = card_to_hold(options_.cards, interface_addresses(),
                                        local_address(descriptor), remote_address(descriptor));
  if (card.empty()) return;
  const Status held = hold_to_device(descriptor, card);
  if (held.is_ok()) return;
  log_.write_once(LogLevel::kWarning, "hold to " + card,
                  "connections of " + card +
                      " go by whichever card of its subnet the routes say: " + held.message() +
                      "; it needs Linux 5.7 or newer, or the right CAP_NET_RAW");
}

// The other side is told what was wrong with it, if it would understand. One that only went away leaves no trace.
Status Greeter::fail(Connection& connection, const Status& why) {
  const Status full = connection.with_address(why);
  const Connection::Greeting& greeting = connection.greeting;
  const bool wants_to_refuse =
      greeting.handshake ? greeting.handshake->wants_to_refuse() : begins_a_record(greeting.record);
  if (why.is(Code::kMismatch) && wants_to_refuse) {
    say(connection, encode_refusal_record(why));
    closer_.linger(connection);
  }
  if (connection.dial.is_outbound) return full;
  connection.state = State::kEnded;
  if (why.is(Code::kMismatch)) {
    log_.write(Kind::kRefused, LogLevel::kWarning, reactor_.now(),
               "refused a connection: " + full.message());
  } else if (why.is(Code::kSystem)) {
    log_.write(Kind::kCannotAccept, LogLevel::kError, reactor_.now(), full.text());
  } else {
    log_.write(Kind::kWentAway, LogLevel::kDebug, reactor_.now(), full.message());
  }
  return Status::ok();
}

}  // namespace byteps::tcp
