// Strangers: accepted connections that have not proved that they belong to the job, the oldest first: those that have
// not named the job, and those that have.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "net/tcp/connection.h"

namespace byteps::tcp {

class Strangers {
 public:
  std::size_t count(bool names_job) const { return lists_[names_job ? 1 : 0].size(); }
  std::uint64_t oldest(bool names_job) const { return *lists_[names_job ? 1 : 0].begin(); }

  void enlist(Connection& connection, bool names_job) {
    delist(connection);
    connection.standing.is_stranger = true;
    connection.standing.names_job = names_job;
    lists_[names_job ? 1 : 0].insert(connection.turn.serial);
  }
  void delist(Connection& connection) {
    if (!std::exchange(connection.standing.is_stranger, false)) return;
    lists_[connection.standing.names_job ? 1 : 0].erase(connection.turn.serial);
  }

 private:
  std::array<std::set<std::uint64_t>, 2> lists_;  // serials
};

}  // namespace byteps::tcp
