// Outbox: the messages of one connection that were accepted by send() and whose kSent has not been given
// yet.
//
// A ring of slots in the order sent. Three marks divide it:
//
//     reported_              sent_                   end_
//        | the kernel has all  |  still to be written  |
//
// A slot holds the frame's head (prefix and header, copied); the payload stays with its lender.
//
// A payload's checksum is of what was sent. Its memory may change between two calls of gather() (an answer may
// be written where a repeated push is read from), but not between gather(), sendmsg(2) and advance(), which follow
// each other on one thread. Unless its lender keeps it (Outgoing::payload_crc), gather() computes it when the
// end of the payload is among what it gives out, and advance() keeps that of what the kernel took when it
// stopped inside a payload.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "net/frame/frame.h"
#include "net/transport.h"

namespace byteps::frame {

class Outbox {
 public:
  // Bytes that go before all messages: a record of the handshake. May be called again before the first push().
  void put_record(std::span<const std::byte> record);

  // What a message counts against the window from push() to pop_sent(): its payload and its slot.
  static std::size_t charge_bytes(const Outgoing& message) {
    return message.payload.size() + sizeof(Slot);
  }
  std::size_t charged_bytes() const { return charged_bytes_; }
  void push(const Outgoing& message);
  // What the transport itself says, in its turn; at most kHeaderBytesMax. It has no kSent.
  void push_aside(std::span<const std::byte> content);

  // What is still to be written.
  std::size_t unsent_bytes() const { return unsent_bytes_; }
  // The next frames, as many whole ones as it takes to have so much, or all.
  std::size_t whole_frames(std::size_t bytes_min) const;
  // Fills `out` with what comes next, at most bytes_max of it; returns how many entries. `bytes` is their
  // sum.
  // `advance` must follow, before anything else is done.
  std::size_t gather(std::span<iovec> out, std::size_t bytes_max, std::size_t& bytes);
  // The kernel took so many of the bytes.
  void advance(std::size_t bytes);

  // What is pushed from now on is not for gather(), but goes another way: once all before it is the kernel's, it is
  // given out here, one after the other.
  void end_stream() { stream_end_ = end_; }
  bool has_stream_end() const { return stream_end_ != std::numeric_limits<std::uint64_t>::max(); }
  bool is_past_stream() const { return sent_ >= stream_end_; }
  struct Frame {
    std::span<const std::byte> head;  // prefix and header; valid until the next push()
    std::span<const std::byte> payload;
  };
  bool has_unstreamed() const { return is_past_stream() && sent_ + passed_count_ != end_; }
  std::optional<Frame> unstreamed() const;
  // It was taken; its payload may still be needed.
  void unstreamed_is_passed();
  // The payloads of the first so many that were passed are not needed any more: they count as sent.
  void passed_are_sent(std::size_t count);

  // Messages that the kernel has, or that give_up() ended.
  bool has_sent() const { return reported_ != sent_; }
  SendToken pop_sent();
  // The connection is over: what was not written never will be, and counts as sent.
  void give_up();

 private:
  struct Slot {
    std::array<std::byte, kFrameHeadBytesMax> head;
    std::uint16_t head_bytes;
    SendToken token;
    std::span<const std::byte> payload;
    std::array<std::byte, kTrailerBytes> trailer;
    bool trailer_is_known;  // from push() on
    bool is_aside;
    std::size_t bytes() const {
      return head_bytes + payload.size() + (payload.empty() ? 0 : kTrailerBytes);
    }
  };
  // Pieces of messages on their way into one system call.
  struct Gathering {
    std::span<iovec> out;
    std::size_t bytes_max = 0;
    std::size_t count = 0;
    std::size_t bytes = 0;
    bool full() const { return count == out.size() || bytes == bytes_max; }
    // How much of `piece` found room.
    std::size_t add(std::span<const std::byte> piece);
  };
  void gather_slot(Slot& slot, std::size_t sent_bytes, std::uint32_t sent_crc, Gathering& into);
  void advance_within(const Slot& slot, std::size_t bytes);
  Slot& slot(std::uint64_t number) { return slots_[number & (slots_.size() - 1)]; }
  const Slot& slot(std::uint64_t number) const { return slots_[number & (slots_.size() - 1)]; }
  void push(const Outgoing& message, bool is_aside);
  void pass_asides();
  void grow();

  std::vector<std::byte> record_;
  std::size_t record_sent_bytes_ = 0;
  std::vector<Slot> slots_;  // a power of two
  std::uint64_t reported_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t end_ = 0;
  std::uint64_t stream_end_ = std::numeric_limits<std::uint64_t>::max();  // gather() stops there
  std::size_t passed_count_ =
      0;  // from sent_ on: given out by unstreamed(), and their payloads still needed
  std::size_t slot_sent_bytes_ = 0;  // of slot sent_
  std::uint32_t slot_sent_crc_ = 0;  // of that part of it that is payload
  std::size_t unsent_bytes_ = 0;
  std::size_t charged_bytes_ = 0;
};

}  // namespace byteps::frame
