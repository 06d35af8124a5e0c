// MemberPort: a Member on a Transport that it may share with other connections of the same Actor.
//
// Use, in the Actor's turn():
//   for each event of transport.poll():  if (port.handle(event, now)) continue;  // else it is one of yours
//   port.tick(now);                                                              // after all events of this turn
//   for (const auto& event : port.take_events()) std::visit(...);
// Send tokens with the top bit set (Outbox::owns) belong to the port; your own must not have it.
#pragma once

#include <vector>

#include "base/flight.h"
#include "loop/actor.h"
#include "member/member.h"
#include "member/outbox.h"

namespace byteps {

class MemberPort {
 public:
  // The Transport must outlive the port, and so must the recorder, which gets all that is said but heartbeats, and the
  // timeline, which gets the rank and what the scheduler's clock says.
  MemberPort(wire::Join join, const Config& config, Transport& transport,
             FlightRecorder* flight = nullptr, Timeline* timeline = nullptr);

  // True: the event belonged to the connection with the scheduler and is dealt with.
  bool handle(const Event& event, TimeNs now);
  void tick(TimeNs now);
  // The same at the end of a turn, if anything has been asked of it since.
  void tick_again(TimeNs now);
  TimeNs next_deadline() const;

  // See Member.
  void applied(Epoch epoch, TimeNs now);
  std::uint64_t barrier(TimeNs now);
  void leave(bool final, TimeNs now);
  void fail(const Status& why, TimeNs now);
  void stalled(wire::Stalled report);

  // What happened since the last call, in order.
  MemberEvents take_events();

  // The Member has ended. Wait for closed() too before the Transport is destroyed.
  bool done() const { return member_.done(); }
  // No connection with the scheduler is left and every lent payload is back.
  bool closed() const { return own_peers_.empty() && outbox_.empty(); }
  const Member& member() const { return member_; }
  // How often a scheduler that was begun anew has taken the job up.
  std::uint64_t lost_schedulers() const { return lost_schedulers_; }

 private:
  void carry_out(TimeNs now);
  void record(const Event& event, TimeNs now);
  void record(const char* kind, const wire::Header& header, std::span<const std::byte> payload,
              TimeNs now) const;

  void record_roster(const wire::Roster& roster);
  void record_replaced(const wire::Roster& roster, TimeNs now) const;
  void note_successor(MemberOutput::Succeeded& successor, TimeNs now);

  Transport& transport_;
  const Role role_;
  FlightRecorder* const flight_;
  Timeline* const timeline_;
  wire::Roster roster_;     // the newest, at servers and with a recorder
  std::string last_down_;   // recorded, and no connection since
  TimeNs due_ns_ = kNever;  // when tick() wanted to be called again
  Member member_;
  Outbox outbox_;
  std::uint64_t lost_schedulers_ = 0;
  MemberOutputs out_;              // to be carried out by the next tick()
  bool is_asked_ = false;          // since tick() began
  MemberEvents happened_;          // for the owner
  std::vector<PeerId> own_peers_;  // current connection and those that still owe their kDown
};

}  // namespace byteps
