#include "net/tcp/linker.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "net/way/aside.h"
#include "net/way/negotiation.h"

namespace byteps::tcp {
namespace {

void count(const way::Link& link, Transport::Ways& ways) {
  link.share_of(ways) += link.moved_bytes();
}

}  // namespace

// What a negotiation makes, for the connection that it is of.
class Linker::Keeper final : public way::LinkKeeper {
 public:
  Keeper(Linker& linker, Connection& connection) : linker_(linker), connection_(connection) {}

  Status keep(std::unique_ptr<way::Link> link) override {
    CHECK(!connection_.link);
    if (link->wake_descriptor() >= 0) {
      Status status = linker_.reactor_.watch_input(link->wake_descriptor(),
                                                   Reactor::kLink | connection_.turn.serial);
      if (!status.is_ok()) return status;
    }
    connection_.link = std::move(link);
    linker_.linked_.push_back({&connection_, connection_.dial.is_outbound});
    return Status::ok();
  }
  void retire() override { linker_.retire(connection_); }

 private:
  Linker& linker_;
  Connection& connection_;
};

Linker::Linker(Ways ways, Reactor& reactor, QuietLog& log)
    : ways_(std::move(ways)), reactor_(reactor), log_(log) {
  for (std::size_t i = 0; i < ways_.size(); ++i) ways_[i]->attach(reactor_, Reactor::way_word(i));
}

// ---- one connection

way::Site Linker::site_of(const Connection& connection) {
  return {.remote = connection.remote,
          .socket = connection.socket.descriptor,
          .now = reactor_.now(),
          .log = log_};
}

Status Linker::begin(Connection& connection, TimeNs limit_ns) {
  // With the scheduler nobody exchanges tensors.
  if (connection.theirs.role == Role::kScheduler) return Status::ok();
  using Side = way::Negotiation::Side;
  connection.negotiation = std::make_unique<way::Negotiation>(
      connection.dial.is_outbound ? Side::kConnecting : Side::kAccepting, ways_, connection.outbox,
      connection.inbox);
  Keeper keeper(*this, connection);
  const Status status = connection.negotiation->begin(site_of(connection), keeper);
  if (connection.negotiation->must_link()) {
    reactor_.set_deadline(connection.turn, reactor_.now() + limit_ns);
  }
  return settle(connection, false, status);
}

Status Linker::heed(Connection& connection, std::span<const std::byte> aside) {
  if (!connection.negotiation) return way::out_of_turn();
  const bool was_settled = connection.is_settled();
  Keeper keeper(*this, connection);
  return settle(connection, was_settled,
                connection.negotiation->heed(site_of(connection), keeper, aside));
}

Status Linker::heed_failure(Connection& connection, const Status& failure) {
  Keeper keeper(*this, connection);
  return settle(connection, true,
                connection.negotiation->heed_failure(site_of(connection), keeper, failure));
}

// After a step of its negotiation.
Status Linker::settle(Connection& connection, bool was_settled, Status status) {
  if (connection.can_flush()) reactor_.mark_dirty(connection.turn);
  if (!status.is_ok() || !connection.reads_link()) return status;
  if (!was_settled) reactor_.set_deadline(connection.turn, kNever);
  reactor_.activate(connection.turn);
  return status;
}

void Linker::drop(Connection& connection) {
  connection.negotiation.reset();
  if (connection.link) retire(connection);
}

void Linker::retire(Connection& connection) {
  const auto linked = find(connection);
  count(*connection.link, past_);
  if (linked->is_outbound) count(*connection.link, past_outbound_);
  connection.link->stop();
  old_links_.push_back(std::move(connection.link));
  linked_.erase(linked);
}

std::vector<Linker::Linked>::iterator Linker::find(const Connection& connection) {
  const auto found = std::find_if(linked_.begin(), linked_.end(), [&](const Linked& each) {
    return each.connection == &connection;
  });
  CHECK(found != linked_.end()) << "a link of a connection that has none";
  return found;
}

void Linker::hand_over(Connection& from, Connection& to) {
  from.negotiation.reset();
  find(from)->connection = &to;
  to.link = std::move(from.link);
  to.link->stop_reading();
}

// ---- all of them

void Linker::begin_poll() {
  old_links_.clear();
  for (const auto& way : ways_) way->begin_poll(reactor_.now(), log_);
  for (const Linked& linked : linked_) linked.connection->link->begin_poll();
}

void Linker::serve() {
  for (const Linked& linked : linked_) {
    Connection* const connection = linked.connection;
    way::Link& link = *connection->link;
    if (connection->negotiation && connection->negotiation->may_switch()) {
      connection->negotiation->switch_over();
      if (connection->can_flush()) reactor_.mark_dirty(connection->turn);
    }
    link.write(connection->outbox);
    link.flush();
    const bool is_over = connection->state == Connection::State::kLingering && !link.is_sending();
    if (connection->outbox.has_sent() || link.has_input() || link.is_useless() || is_over) {
      reactor_.activate(connection->turn);
    }
  }
}

bool Linker::arm(bool is_patient) {
  bool has_work = false;
  for (const Linked& linked : linked_) {
    has_work |= linked.connection->link->arm(linked.connection->outbox, is_patient);
  }
  return has_work;
}

void Linker::disarm() {
  for (const Linked& linked : linked_) linked.connection->link->disarm();
}

void Linker::heed_way(std::uint64_t word) {
  const std::uint64_t number = word & ~Reactor::kWay;
  ways_.at(number / way::Way::kWordsMax)
      ->heed_input(number % way::Way::kWordsMax, reactor_.now(), log_);
}

Transport::Ways Linker::moved() const {
  Transport::Ways moved = past_;
  for (const Linked& linked : linked_) count(*linked.connection->link, moved);
  return moved;
}

Transport::Ways Linker::moved_outbound() const {
  Transport::Ways moved = past_outbound_;
  for (const Linked& linked : linked_) {
    if (linked.is_outbound) count(*linked.connection->link, moved);
  }
  return moved;
}

std::shared_ptr<BufferSource> Linker::payload_source() const {
  for (const auto& way : ways_) {
    if (std::shared_ptr<BufferSource> source = way->payload_source()) return source;
  }
  return nullptr;
}

}  // namespace byteps::tcp
