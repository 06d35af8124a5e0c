// Member: a worker's or a server's side of the conversation with the scheduler (docs/protocol.md,
// Joining).
//
// A core: connections, messages and ticks go in; what to do on the network (actions) and what the
// owner should know (events) come out. It has no socket, clock or thread. MemberPort
// (member_port.h) carries the actions out on a Transport, so that a worker's Actor and a server's
// use the same code.
//
// A life: the first tick() starts it. It connects, sends Join, and again after each lost
// connection; then
//   kRoster          the job is complete (a server hears this once per generation of workers)
//   kAmended ...     a server that was lost has a successor
//   kAdopt ...       a server is asked to serve the slots of another one as well
//   kBarrierDone ... kWorkerLeft ... kNotice
// and ends with exactly one of
//   kLeft            worker: leave() was acknowledged, or failure_ns passed; server: the job is
//                    over, well
//   kFailed          the job cannot go on; the status says why, who, and what to do
// after which it is done() and says nothing more.
//
// Where the job recovers it goes on without the scheduler (docs/recovery.md), and tells one that was begun anew what
// the former ones have said. One that is older than that (of a lower term) it hears no more.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "base/log.h"
#include "base/outputs.h"
#include "base/timeline.h"
#include "member/line.h"
#include "member/testimony.h"
#include "net/transport.h"
#include "net/wire.h"

namespace byteps {

// What a member's shell has to do, by kind.
struct MemberOutput {
  // ---- the network's side
  struct Connect {  // answer with Member::on_connecting
    Endpoint to;
    Hello hello;
  };
  struct Send {
    PeerId peer;
    wire::Header header;
    std::vector<std::byte> payload;
  };
  struct Close {
    PeerId peer;
    Status reason;
  };
  // ---- what the owner should know
  struct Began {  // an epoch, larger than any before
    wire::Roster roster;
  };
  struct Amended {  // the epoch's roster has another revision, larger than any before
    wire::Roster roster;
  };
  struct Adopt {  // servers: one more unit is to be opened
    wire::Adopt adopt;
  };
  struct BarrierDone {
    std::uint64_t barrier = 0;  // the number that barrier() returned
    Status why;                 // Ok, or why this barrier can never end
  };
  struct Succeeded {  // a scheduler that was begun anew has the job
    std::uint32_t term = 0;
    std::string text;  // what happened, for people
  };
  struct WorkerLeft {  // once per worker and epoch
    WorkerRank worker;
    bool final = false;  // it will not come back
  };
  struct Notice {  // a line for people: who is missing, what is unreachable
    std::string text;
    LogLevel level = LogLevel::kWarning;
  };
  struct Left {};
  struct Failed {
    Status why;
  };
};
using MemberOutputs =
    Outputs<MemberOutput::Connect, MemberOutput::Send, MemberOutput::Close, MemberOutput::Began,
            MemberOutput::Amended, MemberOutput::Adopt, MemberOutput::BarrierDone,
            MemberOutput::Succeeded, MemberOutput::WorkerLeft, MemberOutput::Notice,
            MemberOutput::Left, MemberOutput::Failed>;
// Those for the owner.
using MemberEvents = Outputs<MemberOutput::Began, MemberOutput::Amended, MemberOutput::Adopt,
                             MemberOutput::BarrierDone, MemberOutput::WorkerLeft,
                             MemberOutput::Notice, MemberOutput::Left, MemberOutput::Failed>;

// What a member says of itself, from its settings. `host` is "host:pid", for messages to people; it
// also tells a member that lost its connection from another process with its rank. Servers list one
// endpoint per shard, with an address that workers can reach.
wire::Join make_join(const Config& config, Role role, std::string host,
                     std::vector<Endpoint> endpoints);

class Member {
 public:
  // What the settings of this process say, and the scheduler's decide.
  struct Asked {
    bool recovers = true;
    bool continues = false;
  };
  // Uses config.job (scheduler's address, job id), config.timeout and, until there is a roster, config.recovers.
  // With a timeline it asks the scheduler for the
  // time with each heartbeat, and the timeline gets the answers.
  Member(wire::Join join, const Config& config, Timeline* timeline = nullptr);

  // ---- from the network. Who carries out Connect says so with on_connecting: the peer of the
  // attempt, or the status with which it failed at once. Events of other peers must not be passed.
  void on_connecting(const Result<PeerId>& attempt, TimeNs now, MemberOutputs& out);
  void on_up(const Hello& theirs, TimeNs now, MemberOutputs& out);
  void on_down(const Status& why, TimeNs now, MemberOutputs& out);
  void on_message(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                  MemberOutputs& out);
  void on_malformed(const Status& why, TimeNs now, MemberOutputs& out);  // the header was nonsense

  // ---- from the owner.
  // Servers: all shards work with this epoch now. (A worker's epoch is applied by itself when its
  // roster comes.)
  void applied(Epoch epoch, TimeNs now, MemberOutputs& out);
  // Workers: arrives at the next barrier and returns its number; BarrierDone tells when all have.
  // May be called before the roster came and while an earlier barrier is open.
  std::uint64_t barrier(TimeNs now, MemberOutputs& out);
  // Workers: what this one waits for while nothing moves, told to the scheduler when it changes, and
  // again on a new connection. Nothing awaited: it does not stall.
  void stalled(wire::Stalled report, MemberOutputs& out);
  // Left follows, at the latest after failure_ns, or recovery_ns while a scheduler is away whose job recovers.
  // `final`: this process will not join again.
  // A server that has a place in the job goes on until another one has it (then Failed follows, because of kReplaced)
  // or the job is over. Failed also if the scheduler does not answer for recovery_ns. (Where servers get no
  // successors, it is the end of the job.)
  void leave(bool final, TimeNs now, MemberOutputs& out);
  // Tells everyone that the job cannot go on, because of `why` at this member. Failed(why) follows
  // when the scheduler knows, at the latest after failure_ns.
  void fail(const Status& why, TimeNs now, MemberOutputs& out);

  // Time passes. Call it after what has arrived was handed in. The time by which a call comes later than
  // next_deadline() is a pause of this process, and does not count as silence of the scheduler.
  void tick(TimeNs now, MemberOutputs& out);
  TimeNs next_deadline() const;

  bool done() const { return stage_ == Stage::kDone; }
  // How messages number the barrier that barrier() gave this number: they count in each epoch anew.
  std::uint64_t barrier_on_wire(std::uint64_t number) const { return number - barriers_.base; }
  Epoch epoch() const { return job_.epoch; }  // applied; 0 before the first roster
  // Of the scheduler that sent the roster; zero before the first.
  const Incarnation& incarnation() const { return job_.incarnation; }
  std::optional<PeerId> peer() const {
    return line_.peer();
  }  // the connection, or the attempt at one
  // The job's: own settings, but the failure timeout of the scheduler that answered last.
  const TimeoutConfig& timeout() const { return timeout_; }
  std::string scheduler_text() const {
    return line_.scheduler_text();
  }  // "scheduler at 10.0.0.1:9000"

 private:
  enum class Stage : std::uint8_t {
    kJoining,  // no roster yet
    kRunning,
    kLeaving,  // leave() was called, the answer is not here
    kFailing,  // fail() was called, likewise
    kDone,
  };

  // Numbered in this life; on the wire they count from 0 in each epoch.
  struct Barriers {
    std::uint64_t wanted = 0;
    std::uint64_t done = 0;
    std::uint64_t base = 0;  // done in earlier epochs
    bool is_open() const { return wanted > done; }
    std::uint64_t open_on_wire() const { return done - base; }
    void begin_epoch() { base = done; }
  };
  // What is known of the job.
  struct Job {
    Incarnation answering{};        // of who is at the other end of the connection
    Incarnation scheduler{};        // of who sent the newest roster
    TimeNs scheduler_heard_ns = 0;  // that one for the last time, when another answers
    Incarnation incarnation{};      // since the first roster
    Epoch roster_epoch;             // of the newest roster ...
    std::uint32_t revision = 0;     // ... and its revision
    Epoch epoch;                    // applied
    std::uint32_t rank = kNoRank;
  };
  // kLeaving, kFailing; kRunning while a server hands over
  struct Exit {
    bool final = true;
    bool hands_over = false;
    Status failing;  // at give_up_ns
    TimeNs give_up_ns = kNever;
    // Who leaves waits for a scheduler that is away until `away_until_ns`.
    TimeNs due_ns(TimeNs away_until_ns) const {
      const bool waits = give_up_ns != kNever && failing.is_ok();
      return waits ? std::max(give_up_ns, away_until_ns) : give_up_ns;
    }
  };
  // The scheduler's last word about who is missing.
  struct Waiting {
    Status why;
    TimeNs said_ns = 0;
  };

  void send(wire::Kind kind, std::vector<std::byte> payload, MemberOutputs& out);
  void send_heartbeat(TimeNs now, MemberOutputs& out);
  void send_barrier(MemberOutputs& out);
  void connect(TimeNs now, MemberOutputs& out);
  void drop_connection(const Status& reason, TimeNs now, MemberOutputs& out);
  void meet_another_scheduler(MemberOutputs& out);
  void meet_successor(std::uint32_t term, TimeNs now, MemberOutputs& out);
  void finish(Status why, MemberOutputs& out);
  void on_heartbeat(std::span<const std::byte> payload, TimeNs now, MemberOutputs& out);
  void on_roster(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                 MemberOutputs& out);
  void on_leave(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                MemberOutputs& out);
  void on_barrier_done(const wire::Header& header, std::span<const std::byte> payload, TimeNs now,
                       MemberOutputs& out);
  void on_fail(std::span<const std::byte> payload, TimeNs now, MemberOutputs& out);
  void look_at_clock(TimeNs now, MemberOutputs& out);
  void watch_start(TimeNs now, MemberOutputs& out);
  void watch_silence(TimeNs now, MemberOutputs& out);
  // The job goes on without its scheduler for recovery_ns.
  bool recovers() const {
    return job_.roster_epoch == Epoch(0) ? asked_.recovers : testimony_.recovers();
  }
  // When the scheduler's absence is an end. Before it has answered it may not have been started.
  TimeNs give_up_scheduler_ns() const;
  TimeNs exit_due_ns() const {
    const bool waits = recovers() && !line_.is_up();
    return exit_.due_ns(waits ? line_.silent_since_ns() + timeout_.recovery_ns : 0);
  }
  // A scheduler that is there gives up by itself, knows who is missing, and gets the time to say it. A spare server has
  // no place for as long as all others live.
  TimeNs give_up_joining_ns() const {
    if (join_.role == Role::kServer && line_.is_up()) return kNever;
    return started_ns_ + timeout_.start_ns + (line_.is_up() ? timeout_.failure_ns : 0);
  }

  // Constant after construction.
  const wire::Join join_;
  const std::array<std::byte, 16> job_id_;
  const bool tells_roll_call_;
  const Asked asked_;
  Timeline* const timeline_;

  TimeoutConfig timeout_;  // with the scheduler's failure timeout, once it has answered
  Line line_;
  Stage stage_ = Stage::kJoining;
  bool started_ = false;
  TimeNs started_ns_ = 0;
  TimeNs planned_ns_ = kNever;  // when tick() wanted to be called next
  TimeNs next_heartbeat_ns_ = kNever;
  TimeNs next_notice_ns_ = kNever;
  Job job_;
  Testimony testimony_;
  Waiting waiting_;
  Barriers barriers_;
  wire::Stalled stalled_;  // as said last
  Exit exit_;
};

}  // namespace byteps
