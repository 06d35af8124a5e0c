// Takeover: the rule by which a frame goes on whose shard has taken another one's place (docs/design/0013-recovery.md).
// The rule alone: it knows who has which sum, and neither payloads nor connections. Whoever uses it adds, keeps and
// sends, and has the frame's bits: who has contributed to round().
//
// A successor knows of no frame which round it is in, and whether anybody has used the sum of the round before. Members
// say what they have on their new connections, before anything else (Have), and a push of a round says that its worker
// has the sum of the one before.
//
// Invariants:
//   V1 A sum that a living member has is not made anew: its round is summed again only when nobody alive has said that
//      it has the sum, and all who are to contribute have come on their new connections, which they make after they
//      have closed those to the shard that was here before.
//   V2 Who needs the sum of the round before gets it from who has it, as long as anybody has, and is asked for its
//      contribution otherwise.
//   V3 With the first sum that is finished here the takeover of the frame is over: who contributed has the one before.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/ids.h"

namespace byteps {

class Takeover {
 public:
  // A bit per worker (worker_bits.h).
  using Bits = std::span<const std::uint64_t>;
  // Of the frame and its shard, at the moment.
  struct Scene {
    Bits contributed;  // to round()
    Bits connected;
    Bits done{};  // have no more inputs, so that others may be further; empty: nobody
  };

  // `fetches`: the sum of the round before is asked for as soon as anybody has it, for others may come for it here (at
  // a relay, those of other machines).
  explicit Takeover(std::uint32_t worker_count, bool fetches = false);

  // What is to be done, in this order.
  struct Doing {
    bool is_wrong = false;  // the peer breaks the protocol
    bool drops =
        false;  // what was added: the frame sums another round(), and nobody has contributed to it
    bool adds = false;                   // the push that came
    bool keeps = false;                  // the sum that came is that of the round before
    std::vector<WorkerRank> answered{};  // with the sum of the round before
    std::optional<WorkerRank> giver{};   // is asked for it (Give)
    std::vector<WorkerRank> again{};     // are asked to push round() (Again)
    bool operator==(const Doing&) const = default;
  };

  // A push of this round came; a member says that it has the sum of this round; somebody gives that.
  Doing on_push(WorkerRank from, Round round, const Scene& scene);
  Doing on_have(WorkerRank from, Round round, const Scene& scene);
  Doing on_sum(WorkerRank from, Round round);
  // Who was asked says that all have it.
  void on_settled(WorkerRank from, Round round);
  // Its connection has ended, and it may come back; or it is lost, and never does.
  Doing on_down(WorkerRank worker, const Scene& scene);
  Doing on_lost(WorkerRank worker, const Scene& scene);

  // Being summed; nullopt while nobody has said anything.
  std::optional<Round> round() const { return round_; }
  // Whether this member has said that it has the sum of the round before.
  bool has_sum(WorkerRank worker) const;
  // It is a relay: of its crew some may lack the sum that it has said to have.
  void note_some(WorkerRank worker, bool some);
  bool is_for_some(WorkerRank worker) const;
  // The sum of the round before is here, or all have it; or somebody is asked for it.
  bool has_sum() const { return has_sum_ || is_settled_; }
  bool is_settled() const { return is_settled_; }  // all have it
  // Who needs it can have it of nobody but these.
  bool waits_only_for(Bits whom) const;
  bool is_fetching() const { return fetches_ && asked_ && !has_sum(); }
  // All of it, to tell two states apart.
  std::string text() const;

 private:
  bool may_skip(const Scene& scene) const;
  bool move_on(WorkerRank from, Round to, const Scene& scene, Doing& doing);
  void ask(const Scene& scene, Doing& doing);

  const bool fetches_;
  std::optional<Round> round_;
  // Of the round before.
  bool is_settled_ = false;            // all have it
  std::vector<std::uint64_t> some_;    // of has_, those whose crews may lack it
  bool has_sum_ = false;               // it is here
  std::vector<std::uint64_t> has_;     // a bit for each that is known to have it, and lives ...
  std::vector<std::uint64_t> needs_;   // ... or has asked for it
  std::optional<WorkerRank> asked_{};  // to give it
};

}  // namespace byteps
