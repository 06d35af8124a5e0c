// SimCluster: the processes of a job in one thread: the production Actors on SimTransports, turned by virtual time.
//
// An actor is turned when its transport has something, when somebody woke it, or at its deadline, each time after a
// random moment of thinking; never otherwise. So nothing spins, and a cluster that waits for its next heartbeat costs
// nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/prng.h"
#include "device/device_loop.h"
#include "device/devices.h"
#include "loop/actor.h"
#include "loop/mailbox.h"
#include "relay/relay_loop.h"
#include "scheduler/scheduler.h"
#include "server/server_member.h"
#include "server/server_units.h"
#include "server/shard.h"
#include "sim/device.h"
#include "sim/network.h"
#include "sim/sim_transport.h"
#include "sim/trace.h"
#include "worker/worker.h"

namespace byteps::sim {

struct ClusterOptions {
  SimNetworkOptions network;
  TimeNs think_max_ns = 5 * kMicrosecond;  // between a reason to turn and the turn
  TimeNs turn_max_ns = 2 * kMicrosecond;   // between two turns while there is work
  // For tests: stages of each worker's road beside the network's. They outlive the cluster.
  std::function<RoadEnds()> road_ends;
};

class SimCluster {
 public:
  SimCluster(ClusterOptions options, Prng prng, Trace& trace);
  ~SimCluster();
  SimCluster(const SimCluster&) = delete;
  SimCluster& operator=(const SimCluster&) = delete;

  SimNetwork& network() { return network_; }
  TimeNs now() const { return network_.now(); }
  // A port of 127.0.0.1 that no relay has had: here that is one host for all.
  std::uint16_t new_relay_port() { return ++last_relay_port_; }
  RoadEnds road_ends() const { return options_.road_ends ? options_.road_ends() : RoadEnds(); }

  // ---- what runs on it

  // An actor's place: when it is turned next. It is the Waiter of the actor's transport and mailboxes, so it is made
  // before them and ends after them.
  class Seat final : public Waiter {
   public:
    // Names differ within a cluster.
    Seat(SimCluster& cluster, std::string name);
    ~Seat() override;
    Seat(const Seat&) = delete;
    Seat& operator=(const Seat&) = delete;

    // The actor is turned from now on until it is finished; `after_turn` is called after each turn, and must not end
    // the seat.
    void sit(Actor& actor, std::function<void()> after_turn = {});
    // The actor is turned no more.
    void rise() { actor_ = nullptr; }

    void wait(TimeNs timeout_ns) override;  // never called: the cluster waits
    void wake() override;
    const std::string& name() const { return name_; }

    // The actor's process stands still until then.
    void pause(TimeNs until);
    // Until then each of its turns comes so much later at most.
    void slow_down(TimeNs think_max_ns, TimeNs until);

    // It has an actor that is not finished.
    bool is_busy() const { return actor_ != nullptr && !actor_->finished(); }
    // When turn() is due; kNever.
    TimeNs next_turn_ns() const;
    void turn();

   private:
    TimeNs slowness_ns();

    SimCluster& cluster_;
    const std::string name_;
    Actor* actor_ = nullptr;
    std::function<void()> after_turn_;
    TimeNs next_turn_ns_ = kNever;
    TimeNs paused_until_ns_ = 0;
    TimeNs slow_until_ns_ = 0;
    TimeNs slow_think_max_ns_ = 0;
    std::uint32_t idle_turns_ = 0;  // in a row: no work, and its deadline was not later
    std::uint32_t busy_turns_ = 0;  // in a row: work
  };
  // Those with an actor that is not finished, in the order made.
  std::vector<Seat*> busy_seats();

  // Calls `what` at that time; equal times in the order of the calls.
  void at(TimeNs when, std::function<void()> what);

  // ---- time

  // Goes to the next thing that happens and does it. False: nothing ever will, or not before `limit`.
  bool step(TimeNs limit = kNever);
  // Steps until done() or the limit; returns done().
  bool run_until(const std::function<bool()>& done, TimeNs limit);

  // ---- what was seen
  // Sentences about actors that turn without end or without reason, and what the network saw.
  std::vector<std::string> breaches() const;
  std::uint64_t turns() const { return turns_; }

  // A log whose lines go to the trace.
  Log log_for(const std::string& who, LogLevel level = LogLevel::kInfo);

 private:
  TimeNs random_up_to(TimeNs most) {
    return static_cast<TimeNs>(prng_.below(static_cast<std::uint64_t>(most) + 1));
  }

  const ClusterOptions options_;
  Prng prng_;
  Trace& trace_;
  SimNetwork network_;
  std::vector<Seat*> seats_;  // in the order made
  std::multimap<TimeNs, std::function<void()>> timers_;
  std::uint64_t turns_ = 0;
  std::uint16_t last_relay_port_ = 0;
  std::vector<std::string> breaches_;
};

// ---- processes. Each starts when it is constructed and dies when it is destroyed.

// A thread of a process, for whoever does something to it: its actor's place, and its transport.
struct Thread {
  SimCluster::Seat& seat;
  SimTransport* transport;  // null: it has none
};

struct SchedulerProcess {
  SchedulerProcess(SimCluster& cluster, const Config& config, HostIndex host);
  ~SchedulerProcess() { transport.die(); }
  static Endpoint endpoint() { return {"scheduler", 9000}; }
  std::vector<Thread> threads() { return {{seat, &transport}}; }

  SimCluster::Seat seat;
  SimTransport transport;
  Scheduler scheduler;
};

// A server as byteps_server has it: a unit from the beginning, and more for what it is asked to adopt.
struct ServerProcess {
  // `place`: which ports and which name on its host.
  ServerProcess(SimCluster& cluster, const Config& config, std::uint32_t number, HostIndex host,
                std::uint32_t shard_count, std::uint32_t place = 0);
  // Of each unit its member's, then its shards' in order.
  std::vector<Thread> threads();
  std::uint32_t rank() const { return units.front()->member->rank(); }
  // Whether the process exits, as byteps_server does: when all its threads have ended, or, once its members have,
  // without those that do not end within the failure timeout. Then how it ends.
  bool is_finished();
  const Status& outcome() const { return together.outcome(); }

  struct ShardUnit {
    ShardUnit(SimCluster& cluster, const Config& config, const std::string& name, ShardIndex index,
              HostIndex host, const Endpoint& endpoint, Mailbox<ShardNotice>& notices);
    ~ShardUnit() { transport.die(); }
    SimCluster::Seat seat;
    SimTransport transport;
    Mailbox<ShardCommand> inbox;
    Shard shard;
  };
  // One member of the job.
  struct Unit {
    Unit(ServerProcess& process, const Config& config, const std::string& name,
         std::uint16_t first_port, std::uint32_t shard_count);
    ~Unit() { transport.die(); }
    SimCluster::Seat seat;
    SimTransport transport;
    Mailbox<ShardNotice> notices;
    std::vector<std::unique_ptr<ShardUnit>> shards;
    std::optional<ServerMember> member;
  };
  Mailbox<UnitOrder> orders;
  std::vector<std::unique_ptr<Unit>> units;
  ServerUnits together;  // of them

 private:
  void open(const Config& config, const std::string& name, std::size_t first_port,
            std::uint32_t shard_count);
  void look();

  SimCluster& cluster_;
  const Config config_;
  const std::uint32_t number_;
  const HostIndex host_;
  const std::uint32_t place_;
  TimeNs ended_ns_ = kNever;
};

struct WorkerProcess {
  // `name` must differ from those of all other processes; `host_text` is what the worker says of itself. `gpu`: null
  // where it has none.
  WorkerProcess(SimCluster& cluster, const Config& config, const std::string& name,
                std::string host_text, HostIndex host, std::function<void()> after_turn = {},
                const SimDeviceOptions* gpu = nullptr);
  ~WorkerProcess() { transport.die(); }
  // Its worker's first.
  std::vector<Thread> threads();
  // Whether it can leave the job behind, as byteps_leave() does: when all its threads have ended, or, once its worker
  // has, without a relay or a GPU that does not end in time.
  bool is_finished();
  // Of all its transports (SimTransport), but that of a relay which it leaves behind.
  std::size_t lent_payloads();
  // Also of its GPU.
  std::string claim_on(std::span<const std::byte> memory);

  struct RelayUnit {
    RelayUnit(SimCluster& cluster, const Config& config, const std::string& name, HostIndex host,
              Waiter& worker, TrafficCounters& counters, std::function<void()> after_turn);
    ~RelayUnit() { transport.die(); }
    RelayPort port() { return {&commands, &notices, listening_port, &residuals}; }
    SimCluster::Seat seat;
    const std::uint16_t listening_port;
    SimTransport transport;
    Mailbox<RelayCommand> commands;
    Mailbox<RelayNotice> notices;
    Residuals residuals;
    RelayLoop loop;
  };
  // Its GPU, and the thread that speaks with it: what device::Devices has in production.
  struct DeviceUnit final : device::Places {
    DeviceUnit(SimCluster& cluster, const std::string& name, const SimDeviceOptions& options,
               Waiter& worker, std::function<void()> after_turn);
    Result<device::Place> place(int ordinal, device::abi::Stream stream, const void* input,
                                const void* output) override;
    Status post(device::Alone&& alone) override;
    device::Port port();
    void close();

    SimCluster::Seat seat;
    const std::size_t chunk_bytes;
    const device::Pages pool;
    SimDevice gpu;
    std::atomic<std::size_t> alone_count{0};
    Mailbox<device::Order> orders;
    Mailbox<device::Alone> alone;
    Mailbox<device::Report> reports;
    device::DeviceLoop loop;
    bool is_closed = false;
  };
  SimCluster::Seat seat;
  SimTransport transport;
  std::unique_ptr<DeviceUnit> device;  // null: it has none
  WorkerDoor door;
  Log log;
  std::unique_ptr<RelayUnit> relay;  // null: this worker's settings want none
  Worker worker;

 private:
  bool is_device_finished();

  SimCluster& cluster_;
  const TimeNs failure_ns_;
  TimeNs worker_ended_ns_ = kNever;
};

}  // namespace byteps::sim
