// Peers: the connections of a shard, by peer: which worker is at the other end, and whether it is still served.
#pragma once

#include <unordered_map>

#include "base/ids.h"

namespace byteps {

class Peers {
 public:
  struct Peer {
    WorkerRank worker;
    bool served = false;  // false: closed by us, its kDown is still to come
  };

  bool empty() const { return peers_.empty(); }
  // null: not known. Valid until add() or remove().
  Peer* find(PeerId id) {
    if (recent_ != nullptr && recent_id_ == id) return recent_;
    const auto found = peers_.find(id);
    if (found == peers_.end()) return nullptr;
    recent_id_ = id;
    recent_ = &found->second;  // elements of an unordered_map stay where they are
    return recent_;
  }
  void add(PeerId id, WorkerRank worker) { peers_[id] = {worker, false}; }
  void remove(PeerId id) {
    if (recent_id_ == id) recent_ = nullptr;
    peers_.erase(id);
  }

 private:
  // Every connection that is not down, also those no longer served. Only looked up.
  std::unordered_map<PeerId, Peer> peers_;
  Peer* recent_ = nullptr;  // that of recent_id_: events come in runs of one peer
  PeerId recent_id_;
};

}  // namespace byteps
