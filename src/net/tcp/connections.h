// Connections: all that a transport has, of every kind, by the serial and by the owner's name for them.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "base/ids.h"
#include "net/tcp/connection.h"

namespace byteps::tcp {

class Connections {
 public:
  // Null: it is gone.
  Connection* find(PeerId peer) const {
    const auto found = peers_.find(peer);
    return found == peers_.end() ? nullptr : found->second;
  }
  Connection* find(std::uint64_t serial) const {
    const auto found = all_.find(serial);
    return found == all_.end() ? nullptr : found->second.get();
  }
  std::size_t count() const { return all_.size(); }
  bool has_peers() const { return !peers_.empty(); }
  // Those that go, or try to, by this interface (Connection::Dial::card).
  std::size_t count_by(const std::string& card) const {
    return static_cast<std::size_t>(
        std::count_if(peers_.begin(), peers_.end(), [&](const auto& entry) {
          return entry.second->dial.card == card &&
                 entry.second->state != Connection::State::kEnded;
        }));
  }

  std::uint64_t fresh_serial() { return ++last_serial_; }
  Connection& add(int descriptor) {
    const std::uint64_t serial = fresh_serial();
    auto& place = all_[serial];
    place = std::make_unique<Connection>(serial, descriptor);
    return *place;
  }
  void give_peer(Connection& connection) {
    connection.peer = PeerId(++last_peer_);
    peers_[connection.peer] = &connection;
  }
  // Destroys it.
  void erase(Connection& connection) {
    peers_.erase(connection.peer);
    all_.erase(connection.turn.serial);  // lists that still name its serial find nothing
  }
  void close_all() {
    // Unread input would turn a close into a reset, and the other side could lose what we sent it last.
    for (const auto& [serial, connection] : all_) {
      if (connection->socket.descriptor >= 0) connection->socket.drain();
    }
    peers_.clear();
    all_.clear();
  }

 private:
  std::unordered_map<std::uint64_t, std::unique_ptr<Connection>> all_;  // by serial
  std::unordered_map<PeerId, Connection*> peers_;
  std::uint64_t last_serial_ = 0;
  std::uint32_t last_peer_ = 0;
};

}  // namespace byteps::tcp
