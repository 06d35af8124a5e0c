// Link: the frames of one connection that go through shared memory, once both sides have it. See net/way/link.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/status.h"
#include "net/frame/outbox.h"
#include "net/shm/doorway.h"
#include "net/shm/ring.h"
#include "net/way/link.h"

namespace byteps::shm {

class Link final : private way::RingOut, private way::RingIn, public way::Link {
 public:
  enum class Side { kMaker, kOpener };  // of the memory
  Link(Meeting meeting, Side side);

  std::string text() const override;
  std::size_t ring_bytes() const override { return segment_.ring_bytes(); }
  std::uint64_t& share_of(Transport::Ways& ways) const override { return ways.shared_bytes; }
  int wake_descriptor() const override { return socket_.get(); }
  // The other side has opened what we made. See Segment.
  Status confirm() override {
    return side_ == Side::kMaker ? segment_.seal_checked() : Status::ok();
  }

  void flush() override;
  void freeze() override { reader_.freeze(); }
  // A byte on the socket wakes.
  bool arm(const frame::Outbox& outbox, bool is_patient) override;
  void disarm() override;
  void drain_wakes() override;

 private:
  std::size_t room() override { return writer_.room(); }
  bool has_room(std::size_t bytes) override { return writer_.has_room(bytes); }
  std::byte* place() override { return writer_.place(); }
  void publish(std::size_t bytes) override;
  std::size_t writable_whole_bytes_max() const override { return segment_.ring_bytes() / 2; }
  std::span<const std::byte> readable() override { return reader_.readable(); }
  std::size_t readable_whole_bytes_max() const override { return segment_.ring_bytes() / 2; }
  std::uint64_t position() const override { return reader_.position(); }
  void skip(std::size_t bytes) override { reader_.skip(bytes); }
  void release() override;
  bool has_moved() const override { return reader_.has_moved(); }
  bool is_broken() const override { return reader_.is_broken() || writer_.is_broken(); }
  void wake_other();

  Segment segment_;
  Descriptor socket_;
  const Side side_;
  RingWriter writer_;
  RingReader reader_;
  // Published since flush().
  std::size_t unwoken_bytes_ = 0;
  bool unwoken_is_small_ = false;  // some of it
};

}  // namespace byteps::shm
