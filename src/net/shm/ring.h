// RingWriter and RingReader: the two ends of a byte ring between two processes, one writer and one reader.
//
// Each end keeps its own position to itself and only tells it; what the other end tells is checked before it is used,
// and once it makes no sense the end is broken and moves nothing any more.
//
// Sleeping. Whoever finds nothing to do says so (reader_sleeps, writer_sleeps) and looks once more before it sleeps;
// whoever moves a position looks at the flag after that. All are sequentially consistent, so at least one of them sees
// the other (Dekker's argument). A pair that is busy never sets a flag, so neither makes a system call for the other.
// A writer is woken when half of the ring is free: the reader can always get there.
//
// A reader that dozes will look again soon, whatever happens. It is woken for what the writer calls urgent, and when
// kDozeBytesMost, or half of the ring, is to be read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "net/shm/segment.h"

namespace byteps::shm {

class RingWriter {
 public:
  explicit RingWriter(RingMemory memory) : memory_(memory) {}

  // Room for so many bytes in a row at place(); at most the ring's size. False: not now, or broken.
  bool has_room(std::size_t bytes);
  std::size_t room();
  std::byte* place() const { return memory_.bytes + (written_ & (memory_.ring_bytes - 1)); }
  // So many bytes at place() are for the reader now. If it sleeps, it must be woken at some time after that.
  void publish(std::size_t bytes);
  // True: the reader sleeps and is to be woken now. Not told again. is_urgent: also if it only dozes.
  [[nodiscard]] bool reader_wants_waking(bool is_urgent);

  // Before sleeping for want of room; true when there may be some already.
  bool arm();
  void disarm() { memory_.control->writer_sleeps.store(0, std::memory_order_relaxed); }
  // The reader has moved since there was no room.
  bool has_moved() const { return memory_.control->read.load(std::memory_order_seq_cst) != read_; }

  bool is_broken() const { return broken_; }

 private:
  const RingMemory memory_;
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;  // as last told and checked
  bool broken_ = false;
};

class RingReader {
 public:
  explicit RingReader(RingMemory memory) : memory_(memory) {}

  // What is there. The other side may change these bytes at any time: copy before you decide.
  std::span<const std::byte> readable();
  std::uint64_t position() const { return read_; }
  // So many of them are not needed for further reading.
  void skip(std::size_t bytes) { read_ += bytes; }
  // The writer may overwrite all that was skipped. True: it sleeps and is to be woken.
  [[nodiscard]] bool release();

  // Nothing that is written from now on is read any more.
  void freeze();

  // Before sleeping, or dozing, for want of bytes; true when more than at the last readable() are there.
  bool arm(bool dozes = false);
  void disarm() { memory_.control->reader_sleeps.store(0, std::memory_order_relaxed); }
  bool has_moved() const { return told() != written_; }

  bool is_broken() const { return broken_; }

 private:
  std::uint64_t told() const {
    return frozen_ ? frozen_at_ : memory_.control->written.load(std::memory_order_seq_cst);
  }

  const RingMemory memory_;
  std::uint64_t read_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t written_ = 0;  // as last told
  std::uint64_t frozen_at_ = 0;
  bool frozen_ = false;
  bool broken_ = false;
};

}  // namespace byteps::shm
