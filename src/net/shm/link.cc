#include "net/shm/link.h"

#include <utility>

#include <sys/socket.h>

namespace byteps::shm {
namespace {

constexpr std::size_t kWakesPerRead = 256;
constexpr std::size_t kSmallBytes = 32 << 10;  // words, and tensors that somebody waits for

}  // namespace

Link::Link(Meeting meeting, Side side)
    : way::Link(static_cast<way::RingOut&>(*this), static_cast<way::RingIn&>(*this)),
      segment_(std::move(meeting.segment)),
      socket_(std::move(meeting.socket)),
      side_(side),
      writer_(segment_.ring(side == Side::kMaker ? 0 : 1)),
      reader_(segment_.ring(side == Side::kMaker ? 1 : 0)) {}

std::string Link::text() const {
  return "shared memory, two rings of " + std::to_string(ring_bytes() >> 10) + " KiB";
}

void Link::publish(std::size_t bytes) {
  writer_.publish(bytes);
  unwoken_bytes_ += bytes;
  unwoken_is_small_ |= bytes < kSmallBytes;
  if (unwoken_bytes_ >= writable_whole_bytes_max() / 4) flush();
}

void Link::flush() {
  const bool is_small = std::exchange(unwoken_is_small_, false);
  if (std::exchange(unwoken_bytes_, 0) > 0 && writer_.reader_wants_waking(is_small)) wake_other();
}

void Link::release() {
  if (reader_.release()) wake_other();
}

// ---- sleeping

bool Link::arm(const frame::Outbox& outbox, bool is_patient) {
  const bool can_read = reads() && (reader_.arm(is_patient) || is_paused());
  const bool can_write = outbox.has_unstreamed() && writer_.arm();
  return can_read || can_write;
}

void Link::disarm() {
  reader_.disarm();
  writer_.disarm();
}

// Never waits, whatever the other side does to its end. Full: then it has wake-ups enough to read.
void Link::wake_other() {
  const std::byte wake{1};
  (void)!::send(socket_.get(), &wake, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void Link::drain_wakes() {
  std::byte wakes[kWakesPerRead];
  (void)!::recv(socket_.get(), wakes, sizeof wakes, MSG_DONTWAIT);
}

}  // namespace byteps::shm
