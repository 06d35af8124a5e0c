// KeptSums: the sums that a worker has and another one may lack. A handle may have ended, and its memory be used for
// something else; so they are kept here, for the successor of a shard that is lost (docs/design/0013-recovery.md).
//
// Of a frame the sum of the round under way is kept once it is there, before that the one of the round before: nobody
// ends a round before all have the sum of the one before. It is in the operation's memory until that ends, and copied
// then, or at once where it passes through (Cargo). Who contributes alone (Work::is_alone_in) keeps no copy: nobody can
// lack that sum but its shard, which is only told that it came.
//
// It goes when it is settled: all have it. Answers are counted on each connection; a shard is told how many have come,
// and says of how many of them the sums are settled (server/settling.h). What was open when a connection ended is told
// on the next one, and kept until the tensor's next round. Of a name that is used once the record is kept until its
// shards say that all have forgotten it.
//
// A successor is told of all that is kept there before anything is pushed: Declare and Have for each part, of tensors
// that cannot be summed why, of names that were given up Declare, Have and Forget; last, that this is all.
// At a relay where a worker may be lost (PipelineConfig::Duties) answers count when all of the crew have their sums:
// then no shard gives up a sum that one of them lacks, whoever of them is lost. A relay that stands in for another gets
// from the crew what others may lack (inherit()).
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "base/ids.h"
#include "base/time.h"
#include "net/wire.h"
#include "worker/work.h"

namespace byteps {

// Who leaves waits so long at most until nobody lacks what it has, while all shards are there: one that only looks so
// is missed by then (TimeoutConfig::silence_ns()).
inline TimeNs longest_kept_ns(TimeNs failure_ns) {
  return failure_ns + failure_ns / 3;
}

class KeptSums {
 public:
  explicit KeptSums(Work& work)
      : work_(work),
        tellings_(work.shards.size()),
        answers_(work.shards.size()),
        may_say_all_(!work.config.duties.stands_in) {}

  // An answer has come, which says of how many before it the sums are settled. Then keep(), if it is news.
  void begin_answer(ShardIndex shard, const wire::Header& answer);
  // This frame of the active operation is answered. `sum`: with this; empty: what it pushed is the result, or the
  // result is not for this worker.
  void keep(TensorIndex index, std::uint32_t part, std::uint32_t frame,
            std::span<const std::byte> sum);
  // The active operation ends well: its memory is given back.
  void release(Tensor& tensor);
  // Of so many of its answers all have the sums.
  void on_settled(ShardIndex shard, std::uint32_t count);
  // Of this frame, which it was told of.
  void on_settled_frame(ShardIndex shard, const wire::Header& header);
  // ---- at a relay
  // All of its crew have the sum of this round of a frame.
  void note_crew_has(Key key, PartIndex part, std::uint64_t offset_bytes, Round round);
  // It has this sum from its crew, or knows that the root has it (nothing). The tensor is known here.
  void inherit(TensorIndex index, PartIndex part, std::uint64_t offset_bytes, Round round,
               const std::optional<std::span<const std::byte>>& sum);
  // Its crew have begun this tensor, of which nothing is under way here before all of them have. Who hears what this
  // relay has does not take it for one that knows nothing of it.
  void note_begun(TensorIndex index);
  // Sums that all have, since the last call.
  struct Settled {
    Key key;
    PartIndex part;
    std::uint64_t offset_bytes = 0;
    Round round;
  };
  std::vector<Settled> take_settled() { return std::exchange(settled_, {}); }
  // Successors may hear that it has said all: its crew have.
  void say_all() { may_say_all_ = true; }
  bool is_retired(Key key) const { return retired_.contains(key); }

  // Shards cannot sum it.
  void note_spoiled(Key key);
  // The name is given up; its record may go.
  void retire(Tensor& tensor);
  // All have forgotten the key there.
  void on_forgotten(ShardIndex shard, Key key);

  // A shard has a new connection; whether it took another one's place.
  void on_up(ShardIndex shard, bool is_successor);
  // It wants the sum of a round of a frame.
  void on_give(ShardIndex shard, const wire::Header& header);

  // There is something to be told, and nothing else is to go before it but the word about the inputs. (Where a relay
  // stands in, and its crew have not said all, next() is nothing yet, and sums go on.)
  bool is_telling(ShardIndex shard) const { return tellings_[shard.value].is_telling(); }
  // The next word for this shard; null: none. Then said(), when it is.
  std::shared_ptr<const Word> next(ShardIndex shard);
  void said(ShardIndex shard);

  // How many answers came on this connection: to be said in each push, or where it is due alone; then it is said.
  std::uint32_t came(ShardIndex shard) const { return answers_[shard.value].counted; }
  bool owes_ack(ShardIndex shard) const { return work_.now >= answers_[shard.value].due_ns; }
  void came_is_said(ShardIndex shard);
  TimeNs next_deadline() const;
  static constexpr TimeNs kSilenceNs = kMillisecond;

  // Whether somebody may lack a sum that it has, or the word that the root has it.
  bool keeps_any() const;

 private:
  // Where it is with what a shard is told.
  struct Telling {
    enum class Stage : std::uint8_t { kTensors, kRetired, kAll, kNothing };
    Stage stage = Stage::kNothing;
    bool is_successor = false;
    TensorIndex tensor = 0;            // kTensors: those before it are told
    std::optional<Key> key;            // kRetired: the last that is told
    std::uint32_t part = 0;            // of it: those before are told
    bool is_declared = false;          // kRetired: it is, on this connection
    bool has_told_of_all = false;      // of that part: next is what some of the crew lack
    std::deque<wire::Header> gifts{};  // frames whose sums are wanted
    std::deque<Word> news{};           // what it has since it has told
    std::shared_ptr<const Word> staged{};
    bool is_of_news = false;  // `staged`
    bool is_telling() const { return stage != Stage::kNothing || !gifts.empty() || !news.empty(); }
  };

  // An answer that is not settled.
  struct Open {
    std::uint32_t number = 0;
    TensorIndex tensor = kNoTensor;
    std::uint32_t place = 0;  // of the frame in the tensor (TensorTable, invariant 4)
    Round round;
    Key key;
  };
  // At a relay: an answer whose sum not all of the crew have, or one behind it.
  struct Held {
    std::uint32_t number = 0;
    Key key;
    PartIndex part;
    std::uint64_t offset_bytes = 0;
    Round round;
    bool crew_has = false;
  };
  // From one shard, on its connection.
  struct Answers {
    std::uint32_t came = 0;
    std::uint32_t counted =
        0;                    // of them: at a relay those that all of its crew have, without a gap
    std::deque<Held> held{};  // the others
    std::uint32_t said = 0;
    std::uint32_t settled = 0;
    TimeNs due_ns = kNever;  // when it is to be said how many came
    std::deque<Open> open{};
    std::size_t sweep_at = kSweepLeast;
    // Those that have come; with `waits_for_crew` those whose sums all of the crew have.
    void count(bool waits_for_crew, TimeNs now);
  };
  static constexpr std::size_t kSweepLeast = 1024;
  static constexpr std::size_t kIdleBytesMax = std::size_t{4} << 20;

  KeptFrame* frame_of(const Open& answer);
  void sweep(Answers& answers);
  void copy(KeptFrame& kept, std::span<const std::byte> sum);
  bool is_open(const Tensor& tensor, std::uint32_t part) const;
  std::optional<std::span<const std::byte>> sum_of(const Tensor& tensor, std::uint32_t part,
                                                   std::uint32_t frame, Round round) const;
  const Tensor* find(Key key) const;
  std::optional<Word> have_of(const Tensor& tensor, std::uint32_t part) const;
  std::optional<Word> have_of_crew(const Tensor& tensor, std::uint32_t part, bool some) const;
  void tell_news(const Tensor& tensor, std::uint32_t part);
  void note_settled(const Tensor& tensor, std::size_t place, Round round);
  std::optional<Word> next_of(const Tensor& tensor, ShardIndex shard, Telling& telling) const;
  std::optional<Word> next_of_tensors(ShardIndex shard, Telling& telling);
  std::optional<Word> next_of_retired(ShardIndex shard, Telling& telling);
  std::optional<Word> next_gift(Telling& telling) const;
  std::optional<Word> next_word(ShardIndex shard, Telling& telling);

  Work& work_;
  std::vector<Telling> tellings_;  // by shard
  std::vector<Answers> answers_;   // by shard
  std::map<Key, Tensor> retired_;  // names that were given up, and some may lack the sum of
  std::set<Key> spoiled_;
  std::vector<Settled> settled_;
  std::set<Key> begun_;  // by its crew, see note_begun()
  bool may_say_all_ = false;
};

}  // namespace byteps
