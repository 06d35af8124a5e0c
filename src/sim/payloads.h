// Payloads: when the bytes of a message are read out of its lender's memory (Lending), and when the lender hears that
// they are its own again.
#pragma once

#include <string>
#include <vector>

#include "sim/connection.h"
#include "sim/flight.h"
#include "sim/medium.h"

namespace byteps::sim {

class Payloads {
 public:
  explicit Payloads(Medium& medium) : medium_(medium) {}

  // In all of these `side` is the end that has sent the flight.
  // It is copied out of the lender's memory, unless it was before.
  void read(const Connection& connection, int side, Flight& flight);
  // It is not needed any more: the lender hears so, in the order sent.
  void give_back(Connection& connection, int side, Flight& flight);

  // Sentences about payloads that their owner changed while they were lent.
  const std::vector<std::string>& breaches() const { return breaches_; }

 private:
  Medium& medium_;
  std::vector<std::string> breaches_;
};

}  // namespace byteps::sim
