// KeptSums: the sums that a worker has and another one may lack. A handle may have ended, and its memory be used for
// something else; so they are kept here, for the successor of a shard that is lost (docs/design/0013-recovery.md).
//
// Of a frame the sum of the round under way is kept once it is there, before that the one of the round before: nobody
// ends a round before all have the sum of the one before. Of a name that is used once the sum is kept until its shards
// say that all have it. A tensor of one member is kept nowhere.
//
// A successor is told of all that is kept there before anything is pushed: Declare and Have for each part, of tensors
// that cannot be summed why, of names that were given up Declare, Have and Forget; last, that this is all.
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
#include "net/wire.h"
#include "worker/work.h"

namespace byteps {

class KeptSums {
 public:
  explicit KeptSums(Work& work) : work_(work), tellings_(work.shards.size()) {}

  // This frame of the active operation is answered. `sum`: with this; empty: what it pushed is the result, or the
  // result is not for this worker.
  void keep(Tensor& tensor, std::uint32_t part, std::uint32_t frame,
            std::span<const std::byte> sum);
  // Shards cannot sum it.
  void note_spoiled(Key key) { spoiled_.insert(key); }
  // The name is given up; its record may go.
  void retire(Tensor& tensor);
  // All have forgotten the key there.
  void on_settled(ShardIndex shard, Key key);

  // A shard has a new connection; whether it took another one's place.
  void on_up(ShardIndex shard, bool is_successor);
  // It wants the sum of a round of a frame.
  void on_give(ShardIndex shard, const wire::Header& header);

  // There is something to be told, and nothing else is to go before it but the word about the inputs.
  bool is_telling(ShardIndex shard) const { return tellings_[shard.value].is_telling(); }
  // The next word for this shard; null: none. Then said(), when it is.
  std::shared_ptr<const Word> next(ShardIndex shard);
  void said(ShardIndex shard);

  std::size_t retired_count() const { return retired_.size(); }

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
    std::deque<wire::Header> gifts{};  // frames whose sums are wanted
    std::shared_ptr<const Word> staged{};
    bool is_telling() const { return stage != Stage::kNothing || !gifts.empty(); }
  };

  bool has_members(const Spec& spec) const;
  bool is_answered(const Tensor& tensor, std::uint32_t part, std::uint32_t frame) const;
  bool has_former(const Tensor& tensor) const;
  bool has_sum(const Tensor& tensor, std::uint32_t part, std::uint32_t frame, Round round) const;
  const Tensor* find(Key key) const;
  std::optional<Word> have_of(const Tensor& tensor, std::uint32_t part) const;
  std::optional<Word> next_of(const Tensor& tensor, ShardIndex shard, Telling& telling) const;
  std::optional<Word> next_of_tensors(ShardIndex shard, Telling& telling);
  std::optional<Word> next_of_retired(ShardIndex shard, Telling& telling);
  std::optional<Word> next_gift(Telling& telling) const;
  std::optional<Word> next_word(ShardIndex shard, Telling& telling);

  Work& work_;
  std::vector<Telling> tellings_;  // by shard
  std::map<Key, Tensor> retired_;  // names that were given up, and some may lack the sum of
  std::set<Key> spoiled_;
};

}  // namespace byteps
