// Seats: the members that the scheduler knows, their connections, and who of them would play what.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/cause.h"
#include "base/config.h"
#include "base/flight.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "net/transport.h"
#include "net/wire.h"

namespace byteps {

using Arrival = std::uint64_t;  // numbers members in order of arrival; never used again

// One member. Workers outside the roster wait for the next epoch; servers outside it are spare.
struct Seat {
  wire::Join join;  // host made printable
  std::vector<std::uint64_t>
      past_lives;                // those before join.life; what they said may still be on the way
  std::uint32_t rank = kNoRank;  // workers: from Join; servers: from their first roster on
  bool in_roster = false;        // of the current epoch
  bool left = false;             // workers in the roster only
  bool left_for_good = false;
  // Where the job recovers: workers that want to leave, until all witnesses know it: those who would tell a scheduler
  // begun anew.
  struct Leaving {
    std::optional<bool> final;
    bool is_told = false;  // all witnesses that were here were
    // As a witness: of how many that leave it was told, and by rank of whom it knows.
    std::size_t told_count = 0;
    std::vector<bool> knows;
  };
  Leaving leaving;
  bool leaves = false;     // servers: it was told to stop, and serves until another has its place
  bool told_end = false;   // the job is ending: the last word was sent
  bool heard_end = false;  // it acknowledged the last word, or needs none
  std::optional<PeerId> peer;  // none: the connection is lost
  TimeNs since_ns = 0;
  TimeNs heard_ns = 0;  // last sign of life, or when the connection was lost
  TimeNs said_ns = 0;   // its last message
  // A life that claims this place while our connection is up; 0: none.
  struct Rival {
    std::uint64_t life = 0;
    TimeNs since_ns = 0;  // its first claim
  };
  Rival rival;
  Status lost_why;
  Epoch applied;          // the epoch it works in, by Join and Heartbeat
  wire::Stalled stalled;  // workers: what they wait for while nothing moves
  // On this connection it was asked for a roster that is not known here, and hears of none before it has answered.
  std::optional<PeerId> asked;
  TimeNs next_notice_ns = 0;  // workers that wait while an epoch runs

  bool worker() const { return join.role == Role::kWorker; }
  bool plays() const { return in_roster && worker(); }  // in this epoch, or has left it
  bool is_asked() const { return peer && asked == peer; }
  std::string text() const;  // "worker 1 (host:pid)"
  Participant participant() const { return {join.role, rank, join.host}; }
};

struct Connection {
  TimeNs since_ns = 0;          // a connection without seat is closed after failure_ns
  Hello hello;                  // who it said it is, before Join
  std::optional<Arrival> seat;  // none: not joined, refused, or its member has gone
  bool refused = false;         // nothing it says counts any more
  bool closed = false;          // it is being closed
};

// Who would play what, if the job were complete now. nullopt: missing.
struct Cast {
  std::vector<std::optional<Arrival>> workers;  // by rank
  std::vector<std::optional<Arrival>> servers;
  bool complete() const;
};

// As a roster has it.
wire::RosterMember member_of(const Seat& seat);

// The other way round, as far as that tells: not of its place, which the roster keeps.
wire::Join join_of(const wire::RosterMember& member);

// Both name one address: at most one of them can be there.
bool shares_endpoint(const wire::Join& a, const wire::Join& b);

// "worker 1 (host:pid)", "server 0 (host:pid at 10.0.0.2:4000)".
std::string member_text(const wire::Join& join, std::uint32_t rank);

class Seats {
 public:
  // The scheduler's own settings say how many members there are, until a worker says otherwise.
  explicit Seats(const JobConfig& job) : job_(job) {}

  std::map<Arrival, Seat>& all() { return seats_; }
  const std::map<Arrival, Seat>& all() const { return seats_; }
  Seat& at(Arrival arrival) { return seats_.at(arrival); }
  const Seat& at(Arrival arrival) const { return seats_.at(arrival); }
  std::map<PeerId, Connection>& connections() { return connections_; }
  const std::map<PeerId, Connection>& connections() const { return connections_; }
  Connection& connection(PeerId peer) { return connections_.at(peer); }
  const Connection* find(PeerId peer) const;
  // Whose connection it is, for people.
  std::string who(PeerId peer) const;

  Seat& add(Arrival& arrival);
  // Without a seat its connection counts as a stranger's from `now` on.
  void erase(Arrival arrival, TimeNs now);
  // The member has this connection now. Returns the one it had before, which has no seat any more.
  std::optional<PeerId> attach(Arrival arrival, PeerId peer, TimeNs now);
  // The connection has ended; returns its member.
  std::optional<Arrival> detach(PeerId peer, const Status& why, TimeNs now);

  bool anyone_waits() const;  // for the next epoch
  std::uint32_t expected_workers() const;
  std::uint32_t expected_servers() const;
  Cast cast() const;
  // All take the places of this complete cast: the roster of the epoch that begins. `continues`: it goes on without a
  // worker that is lost, so none sums for others.
  wire::Roster take(const Cast& cast, Epoch epoch, bool continues);
  // Of the roster that was taken last, or that another scheduler has made: this rank is vacant, its worker was lost.
  void note_vacant(std::uint32_t rank) { vacant_.insert(rank); }
  bool is_vacant(std::uint32_t rank) const { return vacant_.contains(rank); }
  // The server with this life has lost its place to another one, in whatever epoch. (0: it never said one.)
  void note_replaced(std::uint64_t life) {
    if (life != 0) replaced_.insert(life);
  }
  bool was_replaced(std::uint64_t life) const { return replaced_.contains(life); }
  // Of rank 0 of the roster that was taken last.
  bool local_reduce() const { return local_reduce_; }

  // For the flight recorder: all with their last sign of life.
  std::vector<FlightPeer> flight_peers() const;

 private:
  const JobConfig& job_;
  std::map<Arrival, Seat> seats_;
  std::map<PeerId, Connection> connections_;
  Arrival next_arrival_ = 0;
  bool local_reduce_ = false;
  std::set<std::uint32_t> vacant_;
  std::set<std::uint64_t> replaced_;  // lives
};

}  // namespace byteps
