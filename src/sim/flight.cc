#include "sim/flight.h"

#include <utility>

namespace byteps::sim {

Flight* FlightPool::take() {
  if (free_.empty()) {
    all_.push_back(std::make_unique<Flight>());
    return all_.back().get();
  }
  Flight* flight = free_.back();
  free_.pop_back();
  return flight;
}

void FlightPool::put_back(Flight* flight) {
  std::vector<std::byte> header = std::move(flight->header);  // keep their memory
  std::vector<std::byte> copy = std::move(flight->copy);
  *flight = Flight{};
  header.clear();
  copy.clear();
  flight->header = std::move(header);
  flight->copy = std::move(copy);
  free_.push_back(flight);
}

}  // namespace byteps::sim
