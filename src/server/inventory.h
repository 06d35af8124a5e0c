// Inventory: every tensor and part that a shelf knows, and the memory that all of it has.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "base/buffer.h"
#include "base/flat_map.h"
#include "base/ids.h"
#include "base/placement.h"
#include "base/timeline.h"
#include "net/wire.h"
#include "server/alarms.h"
#include "server/settling.h"
#include "server/sums.h"

namespace byteps {

struct ShelfSettings;
struct ShelfEpoch;

class Inventory {
 public:
  // All outlive it. `alarms`, `settling`: those of its parts, which it takes back when a part is dropped.
  Inventory(const ShelfSettings& settings, BufferPool& pool, Alarms& alarms, Settling& settling);

  // Forgets everything, and gives back its memory.
  void clear();

  // ---- tensors. `facts` are those of the epoch.
  using Tensors = std::map<Key, std::unique_ptr<TensorSum>>;
  const Tensors& tensors() const { return tensors_; }
  TensorSum* find(Key key) const;
  // Why no more can be declared; empty when this one can.
  std::string flaw_of_another(const wire::Declare& declared, const ShelfEpoch& facts) const;
  TensorSum& make(Key key, WorkerRank from, wire::Declare declared, const ShelfEpoch& facts);
  // This worker is lost: what only it has of broadcasts is in their sums alone, or nowhere.
  void note_lost(WorkerRank worker);
  // Forgets its parts, or all of it.
  void drop_parts(TensorSum& tensor);
  void drop(TensorSum& tensor);

  // ---- parts
  PartSum* find(Key key, PartIndex part) const;
  void prefetch(Key key, PartIndex part) const { parts_.prefetch({key, part}); }
  // Its frames are in round `first`. bad_alloc when there is no memory for the record, or the limit is reached.
  PartSum& make_part(TensorSum& tensor, PartIndex index, Round first, const ShelfEpoch& facts);

  // What this worker's crew has contributed to the frame is without it, which is lost. bad_alloc as above.
  void note_lacking(PartSum& part, std::uint32_t frame, WorkerRank worker);

  // Frames with a contribution, and not all.
  std::size_t incomplete_frame_count() const { return incomplete_frame_count_; }
  void begin_frame(PartSum& part);
  void end_frame(PartSum& part);

  const Settling& settling() const { return settling_; }

  // ---- memory
  // bad_alloc when there is none, or the limit is reached.
  BufferRef take(std::size_t bytes);
  // After bad_alloc, for people: what was wanted beside what is in use. `used` is from before anything was given back.
  std::size_t used_bytes() const { return pool_.lent_bytes() + record_bytes_ + declared_bytes_; }
  std::string out_of_memory_text(std::size_t used) const;
  void trim() { pool_.trim(); }

 private:
  struct PartName {
    Key key;
    PartIndex part;
    bool operator==(const PartName&) const = default;
  };
  struct PartHome {  // keys are hashes already; parts of one key follow each other
    std::size_t operator()(const PartName& name) const {
      return static_cast<std::size_t>(stable_mix(name.key.value + name.part.value));
    }
  };
  std::shared_ptr<const Contributors> contributors_of(const Members& members,
                                                      const ShelfEpoch& facts);
  void refuse_beyond_limit(std::size_t bytes);

  const ShelfSettings& settings_;
  BufferPool& pool_;
  Alarms& alarms_;
  Settling& settling_;
  Tensors tensors_;
  std::shared_ptr<const Contributors> all_;      // of tensors of all workers
  std::shared_ptr<const Groups> apart_;          // at a relay
  FlatMap<PartName, PartSum*, PartHome> parts_;  // of all tensors, for the one look-up per frame
  std::size_t incomplete_frame_count_ = 0;
  std::size_t record_bytes_ = 0;    // of all parts
  std::size_t declared_bytes_ = 0;  // of all tensors
  std::size_t refused_bytes_ = 0;   // what could not be given last
};

}  // namespace byteps
