#include "net/shm/ring.h"

#include <algorithm>

#include "base/check.h"
#include "net/transport.h"

namespace byteps::shm {
namespace {

// RingControl::reader_sleeps
constexpr std::uint32_t kSleeps = 1;
constexpr std::uint32_t kDozes = 2;

}  // namespace

// ---- writer

bool RingWriter::has_room(std::size_t bytes) {
  const std::uint64_t used = written_ - read_;
  if (memory_.ring_bytes - used >= bytes && !broken_) return true;
  return room() >= bytes;
}

std::size_t RingWriter::room() {
  const std::uint64_t told = memory_.control->read.load(std::memory_order_acquire);
  // It may neither go back nor be ahead of what was written.
  broken_ |= told - read_ > written_ - read_;
  if (broken_) return 0;
  read_ = told;
  return memory_.ring_bytes - static_cast<std::size_t>(written_ - read_);
}

void RingWriter::publish(std::size_t bytes) {
  CHECK_LE(written_ + bytes - read_, memory_.ring_bytes);
  written_ += bytes;
  memory_.control->written.store(written_, std::memory_order_seq_cst);
}

bool RingWriter::reader_wants_waking(bool is_urgent) {
  RingControl& control = *memory_.control;
  const std::uint32_t sleeps = control.reader_sleeps.load(std::memory_order_seq_cst);
  if (sleeps == 0) return false;
  if (sleeps == kDozes && !is_urgent) {
    const std::uint64_t unread = written_ - control.read.load(std::memory_order_relaxed);
    if (unread < std::min(memory_.ring_bytes / 2, kDozeBytesMost)) return false;
  }
  return control.reader_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

bool RingWriter::arm() {
  memory_.control->writer_sleeps.store(1, std::memory_order_seq_cst);
  return has_moved();
}

// ---- reader

std::span<const std::byte> RingReader::readable() {
  written_ = told();
  const std::uint64_t bytes = written_ - read_;
  broken_ |= bytes > memory_.ring_bytes;
  if (broken_) return {};
  return {memory_.bytes + (read_ & (memory_.ring_bytes - 1)), static_cast<std::size_t>(bytes)};
}

bool RingReader::release() {
  if (released_ == read_) return false;
  released_ = read_;
  memory_.control->read.store(read_, std::memory_order_seq_cst);
  if (memory_.control->writer_sleeps.load(std::memory_order_seq_cst) == 0) return false;
  const std::uint64_t used = memory_.control->written.load(std::memory_order_relaxed) - read_;
  if (used > memory_.ring_bytes / 2) return false;
  return memory_.control->writer_sleeps.exchange(0, std::memory_order_seq_cst) != 0;
}

void RingReader::freeze() {
  if (frozen_) return;
  frozen_at_ = told();
  frozen_ = true;
}

bool RingReader::arm(bool dozes) {
  memory_.control->reader_sleeps.store(dozes ? kDozes : kSleeps, std::memory_order_seq_cst);
  return has_moved();
}

}  // namespace byteps::shm
