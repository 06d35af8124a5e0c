// ServerHost: a server's process. Turns the member that it begins with, opens one more unit (server_unit.h) for each
// server whose slots it is asked to take besides, and has ended when all of them have.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/process.h"
#include "app/server_unit.h"
#include "base/config.h"
#include "base/log.h"
#include "loop/actor.h"
#include "loop/clock.h"
#include "loop/mailbox.h"
#include "server/server_units.h"

namespace byteps {

class ServerHost final : public Actor {
 public:
  // `addresses`: of this process, as of its first unit. `to_scheduler` is that unit's and wakes this actor; `log` is
  // that unit's too. All references must outlive the host.
  ServerHost(const TransportMaker& maker, const Config& config, std::vector<std::string> addresses,
             ProcessTransport& to_scheduler, Clock& clock, Log log, AbsenceSink absences);
  // Makes the first unit, which listens from now on.
  Status open_first();

  std::size_t turn(TimeNs now) override;
  TimeNs next_deadline() const override;
  bool finished() const override { return together_.all_ended(); }
  void failed(const Status& why) override { first().failed(why); }

  ServerUnits& units() { return together_; }
  // Waits for all threads, at most so long. False: one still runs.
  bool join_within(TimeNs at_most_ns);

 private:
  ServerMember& first() { return all_.front()->member(); }
  const ServerMember& first() const { return all_.front()->member(); }
  void open(const UnitOrder& order);
  Status has_descriptors(const UnitOrder& order) const;

  const TransportMaker& maker_;
  const Config& config_;
  const std::vector<std::string> addresses_;
  ProcessTransport& to_scheduler_;
  Clock& clock_;
  const Log log_;
  const AbsenceSink absences_;  // of all units
  Mailbox<UnitOrder> orders_;
  std::vector<UnitOrder> ordered_;
  std::vector<std::unique_ptr<ServerUnit>> all_;
  ServerUnits together_;
  TimeNs now_ = 0;
};

}  // namespace byteps
