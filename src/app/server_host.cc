#include "app/server_host.h"

#include <algorithm>
#include <utility>

#include "base/limits.h"

namespace byteps {
namespace {

constexpr std::size_t kOrdersMax = 64;
// While only others live, whose ends wake nobody here.
constexpr TimeNs kLookEveryNs = 20 * kMillisecond;

}  // namespace

ServerHost::ServerHost(const TransportMaker& maker, const Config& config,
                       std::vector<std::string> addresses, ProcessTransport& to_scheduler,
                       Clock& clock, Log log, AbsenceSink absences)
    : maker_(maker),
      config_(config),
      addresses_(std::move(addresses)),
      to_scheduler_(to_scheduler),
      clock_(clock),
      log_(std::move(log)),
      absences_(std::move(absences)),
      orders_(kOrdersMax, &to_scheduler.waiter()) {}

Status ServerHost::open_first() {
  auto made =
      ServerUnit::make(maker_, config_, addresses_, to_scheduler_, orders_, log_, absences_);
  if (!made.is_ok()) return made.status();
  all_.push_back(std::move(made).value());
  together_.add(first(), all_.front()->waiter());
  all_.front()->start_shards(clock_);
  return Status::ok();
}

std::size_t ServerHost::turn(TimeNs now) {
  now_ = now;
  std::size_t work = first().finished() ? 0 : first().turn(now);
  together_.look();
  std::erase_if(all_, [this](const std::unique_ptr<ServerUnit>& unit) {
    return unit != all_.front() && unit->member().state() == ServerMember::State::kEnded &&
           unit->join_within(0);
  });
  orders_.drain(ordered_);
  for (const UnitOrder& order : ordered_) {
    if (together_.may_open()) open(order);
  }
  return work + ordered_.size();
}

TimeNs ServerHost::next_deadline() const {
  return first().finished() ? now_ + kLookEveryNs : first().next_deadline();
}

bool ServerHost::join_within(TimeNs at_most_ns) {
  bool all_ended = true;
  for (const auto& unit : all_) {
    all_ended = unit->join_within(all_ended ? at_most_ns : 0) && all_ended;
  }
  return all_ended;
}

// All units' workers come on top of each other.
Status ServerHost::has_descriptors(const UnitOrder& order) const {
  std::size_t shards = order.wanted.shards;
  for (const auto& unit : all_) shards += unit->shard_count();
  const std::string what =
      std::to_string(shards) + " shards for " + std::to_string(order.worker_count) + " workers";
  return check_descriptors(descriptors_of_server(shards, order.worker_count),
                           config_.job.descriptors, what);
}

// Its members' words are not recorded: a recording is of one member.
void ServerHost::open(const UnitOrder& order) {
  const std::string place = "the place of server " + std::to_string(order.wanted.rank);
  const auto refuse = [&](const Status& why) {
    LOG(log_, kWarning) << "cannot take " << place << " besides its own: " << why.message();
  };
  if (const Status fine = has_descriptors(order); !fine.is_ok()) return refuse(fine);
  Result<Config> config = with_lot(config_, Role::kServer);
  if (!config.is_ok()) return refuse(config.status());
  config.value().job.listen_port = 0;
  config.value().job.wanted_server_rank = order.wanted.rank;
  config.value().shard_count = order.wanted.shards;
  auto made =
      ServerUnit::make(maker_, config.value(), addresses_, orders_, log_.unrecorded(), absences_);
  if (!made.is_ok()) return refuse(made.status());
  all_.push_back(std::move(made).value());
  ServerUnit& unit = *all_.back();
  together_.add(unit.member(), unit.waiter());
  unit.start_shards(clock_);
  unit.start_member(clock_);
  LOG(log_, kInfo) << "opens one more unit, for " << place;
}

}  // namespace byteps
