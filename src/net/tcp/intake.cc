#include "net/tcp/intake.h"

#include <algorithm>
#include <vector>

namespace byteps::tcp {

void Intake::serve(Connection& connection, frame::EventSpan& out) {
  if (!connection.up_reported && connection.is_settled()) {
    out.add(Event::Kind::kUp, connection.peer).hello = connection.theirs;
    connection.up_reported = true;
  }
  connection.sent_first = !connection.sent_first;
  if (connection.sent_first) report_sent(connection, out);
  receive(connection, out);
  if (!connection.sent_first) report_sent(connection, out);
}

void Intake::report_sent(Connection& connection, frame::EventSpan& out) {
  while (connection.outbox.has_sent() && !out.full()) {
    out.add(Event::Kind::kSent, connection.peer).token = connection.outbox.pop_sent();
  }
}

void Intake::receive(Connection& connection, frame::EventSpan& out) {
  if (connection.link && !receive_link(connection, out)) return;
  receive_socket(connection, out);
}

bool Intake::receive_link(Connection& connection, frame::EventSpan& out) {
  way::Link& link = *connection.link;
  const Status status = link.receive(connection.peer, batch_bytes_, staging_, out);
  if (!status.is_ok()) {
    closer_.end_malformed(connection, status);
    return false;
  }
  if (connection.socket_is_over) {
    if (!link.has_input()) closer_.end(connection, connection.why, false);
    return false;
  }
  const Status failure = link.failure();
  if (failure.is_ok()) return true;
  if (link.reads() || connection.outbox.has_stream_end()) {
    closer_.end_of_link(connection, failure);
    return false;
  }
  const Status why = linker_.heed_failure(connection, failure);
  if (!why.is_ok()) closer_.end_malformed(connection, why);
  return why.is_ok();
}

void Intake::receive_socket(Connection& connection, frame::EventSpan& out) {
  frame::Inbox& inbox = connection.inbox;
  std::size_t budget_bytes = batch_bytes_;
  while (!out.full()) {
    if (inbox.has_backlog()) {
      const Status status = parse(connection, out);
      if (!status.is_ok()) return closer_.end_malformed(connection, status);
      if (inbox.has_backlog()) return;
    }
    if (out.full() || !connection.socket.readable || budget_bytes == 0) return;
    if (staging_.room().size() < inbox.room_wanted(staging_)) {
      return reactor_.starve(connection.turn);
    }
    const frame::Inbox::Places places = inbox.places(staging_, budget_bytes);
    Status reason;
    const std::ptrdiff_t count = connection.socket.receive(places, reason);
    if (count < 0) return closer_.end_of_socket(connection, connection.with_address(reason));
    if (count == 0) return;
    const auto bytes = static_cast<std::size_t>(count);
    budget_bytes -= std::min(bytes, budget_bytes);
    inbox.received(bytes, places, staging_);
    const Status status = parse(connection, out);
    if (!status.is_ok()) return closer_.end_malformed(connection, status);
  }
}

Status Intake::parse(Connection& connection, frame::EventSpan& out) {
  while (true) {
    const std::size_t before = out.count();
    if (Status status = connection.inbox.parse(connection.peer, staging_, out); !status.is_ok()) {
      return status;
    }
    // The other side does not wait for a link before it sends.
    if (!connection.up_reported && out.count() != before) {
      out.cut(before);
      return connection.negotiation->unlinked_message();
    }
    const std::vector<std::byte> aside = connection.inbox.take_aside();
    if (aside.empty()) return Status::ok();
    if (Status status = linker_.heed(connection, aside); !status.is_ok()) return status;
  }
}

}  // namespace byteps::tcp
