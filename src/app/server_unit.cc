#include "app/server_unit.h"

namespace byteps {

ServerUnit::ShardUnit::ShardUnit(const Config& config, ShardIndex index,
                                 std::unique_ptr<ProcessTransport> listening,
                                 Mailbox<ShardNotice>& notices, const Log& log,
                                 const AbsenceSink& absences)
    : transport(std::move(listening)),
      inbox(kNoticesMax, &transport->waiter()),
      shard(config, index, *transport, inbox, notices, log, absences) {}

ServerUnit::ServerUnit(const Config& config, std::unique_ptr<ProcessTransport> own,
                       ProcessTransport& to_scheduler)
    : config_(config),
      own_(std::move(own)),
      to_scheduler_(to_scheduler),
      notices_(kNoticesMax, &to_scheduler.waiter()) {}

Result<std::unique_ptr<ServerUnit>> ServerUnit::make(const TransportMaker& maker,
                                                     const Config& config,
                                                     const std::vector<std::string>& hosts,
                                                     ProcessTransport& to_scheduler,
                                                     Mailbox<UnitOrder>& orders, const Log& log,
                                                     const AbsenceSink& absences) {
  std::unique_ptr<ServerUnit> unit(new ServerUnit(config, nullptr, to_scheduler));
  const Status listens = unit->listen(maker, hosts, orders, log, absences);
  if (!listens.is_ok()) return listens;
  return unit;
}

Result<std::unique_ptr<ServerUnit>> ServerUnit::make(const TransportMaker& maker,
                                                     const Config& config,
                                                     const std::vector<std::string>& hosts,
                                                     Mailbox<UnitOrder>& orders, const Log& log,
                                                     const AbsenceSink& absences) {
  Result<std::unique_ptr<ProcessTransport>> made = maker.make({});
  if (!made.is_ok()) return made.status();
  std::unique_ptr<ProcessTransport> own = std::move(made).value();
  ProcessTransport& to_scheduler = *own;
  std::unique_ptr<ServerUnit> unit(new ServerUnit(config, std::move(own), to_scheduler));
  const Status listens = unit->listen(maker, hosts, orders, log, absences);
  if (!listens.is_ok()) return listens;
  return unit;
}

Status ServerUnit::listen(const TransportMaker& maker, const std::vector<std::string>& hosts,
                          Mailbox<UnitOrder>& orders, const Log& log, const AbsenceSink& absences) {
  std::vector<std::string> told;
  for (const std::string& host : hosts) told.push_back(told_host(host));
  std::vector<Endpoint> endpoints;
  std::vector<Mailbox<ShardCommand>*> inboxes;
  for (std::uint32_t i = 0; i < config_.shard_count; ++i) {
    const auto port = config_.job.listen_port == 0 ? 0U : config_.job.listen_port + i;
    const std::string& host = hosts[i % hosts.size()];
    const bool tells_ways = i == 0;  // each worker comes to all shards
    auto transport =
        maker.make({{listening_host(host), static_cast<std::uint16_t>(port)}}, tells_ways);
    if (!transport.is_ok()) return transport.status();
    endpoints.push_back({told[i % hosts.size()], transport.value()->listening().front().port});
    shards_.push_back(std::make_unique<ShardUnit>(
        config_, ShardIndex(i), std::move(transport).value(), notices_, log, absences));
    inboxes.push_back(&shards_.back()->inbox);
  }
  member_.emplace(with_machine(config_, hosts), to_scheduler_, host_and_pid(), std::move(endpoints),
                  std::move(inboxes), notices_, log, &orders);
  return Status::ok();
}

void ServerUnit::start_shards(Clock& clock) {
  for (const auto& unit : shards_) {
    runners_.push_back(std::make_unique<Runner>("byteps-shard", unit->shard,
                                                unit->transport->waiter(), clock, config_.spin_ns));
  }
}

void ServerUnit::start_member(Clock& clock) {
  runners_.push_back(std::make_unique<Runner>("byteps-member", *member_, waiter(), clock));
}

bool ServerUnit::join_within(TimeNs at_most_ns) {
  bool all_ended = true;
  for (const auto& runner : runners_) {
    all_ended = runner->join_within(all_ended ? at_most_ns : 0) && all_ended;
  }
  return all_ended;
}

}  // namespace byteps
