// Repeats: messages that are given out twice, contrary to T1, as a protocol must bear that sends again what had no
// answer. Chance chooses among those that SimNetworkOptions::may_repeat allows.
#pragma once

#include <cstdint>
#include <map>

#include "sim/connection.h"
#include "sim/flight.h"
#include "sim/medium.h"

namespace byteps::sim {

class Repeats {
 public:
  explicit Repeats(Medium& medium) : medium_(medium) {}

  // The end `side` was given this message: it may get it again, with kRepeat.
  void maybe_repeat(const Connection& connection, int side, const Flight& flight);
  // Null: the connection is over.
  void on_repeat(const Connection* connection, int side, std::uint64_t number);

 private:
  Medium& medium_;
  std::map<std::uint64_t, Flight*> scheduled_;  // by number, counted from 1
};

}  // namespace byteps::sim
