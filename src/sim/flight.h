// Flight: a message between send() and its end, and the pool that all of them come from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "net/transport.h"

namespace byteps::sim {

struct Flight {
  std::vector<std::byte> header;
  std::vector<std::byte> copy;         // the payload once it was read
  std::span<const std::byte> payload;  // the lender's memory, or `copy`
  SendToken token = 0;
  std::uint64_t lent_hash = 0;
  bool is_shared = false;  // as Event::is_shared: it is bulk, and stays on a host
  bool fin = false;        // the end of the connection, behind all messages
  bool read = false;       // `payload` is `copy`
  bool done = false;       // its payload is not needed any more
  bool sent = false;       // ... and kSent was queued, or there is nobody to tell
  bool gone = false;       // given out, lost or dropped

  std::size_t bytes() const { return header.size() + payload.size(); }
};

// Flights that are over lend their memory to later ones.
class FlightPool {
 public:
  // An empty one; it stays where it is until it is put back.
  Flight* take();
  void put_back(Flight* flight);

 private:
  std::vector<std::unique_ptr<Flight>> all_;
  std::vector<Flight*> free_;
};

}  // namespace byteps::sim
