// ServerUnit: one member of a job in a server's process, with its shards and their threads.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "app/process.h"
#include "base/config.h"
#include "base/log.h"
#include "loop/clock.h"
#include "loop/mailbox.h"
#include "loop/runner.h"
#include "server/server_member.h"
#include "server/shard.h"

namespace byteps {

class ServerUnit {
 public:
  // Listens for workers as config.job.listen_port and config.shard_count say, at these addresses, of which shards take
  // the next one each, in turn. `to_scheduler` only connects; the unit owns it or, where it is lent, not. All
  // references must outlive the unit.
  static Result<std::unique_ptr<ServerUnit>> make(const TransportMaker& maker, const Config& config,
                                                  const std::vector<std::string>& hosts,
                                                  ProcessTransport& to_scheduler,
                                                  Mailbox<UnitOrder>& orders, const Log& log,
                                                  const AbsenceSink& absences);
  static Result<std::unique_ptr<ServerUnit>> make(const TransportMaker& maker, const Config& config,
                                                  const std::vector<std::string>& hosts,
                                                  Mailbox<UnitOrder>& orders, const Log& log,
                                                  const AbsenceSink& absences);

  ServerMember& member() { return *member_; }
  Waiter& waiter() { return to_scheduler_.waiter(); }
  std::size_t shard_count() const { return shards_.size(); }

  // Threads for its shards.
  void start_shards(Clock& clock);
  // One for its member, unless the caller turns that.
  void start_member(Clock& clock);
  // Waits for them, at most so long altogether. False: one still runs; perhaps it stands still for ever.
  bool join_within(TimeNs at_most_ns);

 private:
  // One shard with all that belongs to it, in the order of construction.
  struct ShardUnit {
    ShardUnit(const Config& config, ShardIndex index, std::unique_ptr<ProcessTransport> listening,
              Mailbox<ShardNotice>& notices, const Log& log, const AbsenceSink& absences);
    std::unique_ptr<ProcessTransport> transport;
    Mailbox<ShardCommand> inbox;
    Shard shard;
  };
  static constexpr std::size_t kNoticesMax = 4096;

  ServerUnit(const Config& config, std::unique_ptr<ProcessTransport> own,
             ProcessTransport& to_scheduler);
  Status listen(const TransportMaker& maker, const std::vector<std::string>& hosts,
                Mailbox<UnitOrder>& orders, const Log& log, const AbsenceSink& absences);

  const Config config_;
  const std::unique_ptr<ProcessTransport> own_;  // null: it is lent
  ProcessTransport& to_scheduler_;
  Mailbox<ShardNotice> notices_;
  std::vector<std::unique_ptr<ShardUnit>> shards_;
  std::optional<ServerMember> member_;
  std::vector<std::unique_ptr<Runner>> runners_;
};

}  // namespace byteps
