// RingOut and RingIn: the two rings of bytes that a link is made of, as the frames in them see them (net/way/link.h).
// Each has one writer and one reader, in two processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace byteps::way {

// What is written and read in one go begins and ends at a multiple of this, so that payloads are aligned.
inline constexpr std::size_t kAlignment = 64;
constexpr std::size_t filled(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The ring to the other side.
class RingOut {
 public:
  virtual ~RingOut() = default;

  // Room for so many bytes in a row at place(); publish() gives them to the reader. All that it gives is a multiple of
  // kAlignment.
  virtual std::size_t room() = 0;
  virtual bool has_room(std::size_t bytes) { return room() >= bytes; }
  virtual std::byte* place() = 0;
  virtual void publish(std::size_t bytes) = 0;
  virtual std::size_t writable_whole_bytes_max()
      const = 0;  // of a frame that is written as a whole

  // The payload goes to the ring from where it lies, `offset` behind place(), instead of being copied there. It is
  // needed until take_unneeded() says so. False: it must be copied.
  virtual bool lend(std::span<const std::byte> /*payload*/, std::size_t /*offset*/) {
    return false;
  }
  // All of a frame was published.
  virtual void frame_is_written() {}
  // Of the frames written, in order: so many more whose payload is not needed any more. `written`: frames since the
  // last call.
  virtual std::size_t take_unneeded(std::size_t written) { return written; }
};

// The ring to us.
class RingIn {
 public:
  virtual ~RingIn() = default;

  // The other side may change these bytes at any time: copy before you decide.
  virtual std::span<const std::byte> readable() = 0;
  virtual std::size_t readable_whole_bytes_max() const = 0;
  virtual std::uint64_t position() const = 0;
  virtual void skip(std::size_t bytes) = 0;
  virtual void release() = 0;  // all that was skipped may be written over
  // More than at the last readable() is there.
  virtual bool has_moved() const = 0;
};

}  // namespace byteps::way
