// Cargo: what an operation pushes and gets where that is not one caller's memory: at a relay (relay/relay.h), which
// takes to the servers what the workers of a machine have together, frame by frame, only of the parts that it leads;
// and of a tensor on a device (staging.h), whose frames pass through host memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "net/wire.h"

namespace byteps {

// Of one operation. Outlives it.
class Cargo {
 public:
  virtual ~Cargo() = default;

  // Whether this part is pushed here. One at least is.
  virtual bool leads(std::uint32_t part) const = 0;
  // So many frames of this part, from the first on, can be pushed. When there are more, Pipeline::on_ready() says so.
  virtual std::uint32_t ready_frames(std::uint32_t part) const = 0;
  // What is pushed of this frame, which is ready and not answered; empty where it goes without payload.
  // It stays as it is until it is answered, and no transport has anything of its part any more.
  virtual std::span<const std::byte> frame(std::uint32_t part, std::uint32_t frame) const = 0;
  // What its push says beside it (wire::Header).
  struct Note {
    std::uint8_t flags = 0;
    std::uint16_t lost = 0;  // places in its crew
  };
  virtual Note note(std::uint32_t /*part*/, std::uint32_t /*frame*/) const { return {}; }
  // A transport has something of this part; or has it no more, once for each time.
  virtual void on_lent(std::uint32_t part) = 0;
  virtual void on_given_back(std::uint32_t part) = 0;
  // Its answer. The payload is only read during the call; kNoPayload: it has none.
  virtual void answered(const wire::Header& header, std::span<const std::byte> payload) = 0;
  // The operation ends early: the part is off the road. How many pieces of it are in use by what cannot be called back;
  // each is given back later (StageOutput::given_back), and the operation does not end before.
  virtual std::uint32_t abandon(std::uint32_t /*part*/) { return 0; }
};

}  // namespace byteps
