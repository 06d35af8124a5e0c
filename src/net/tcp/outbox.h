// Outbox: the messages of one connection that were accepted by send() and whose kSent has not been given
// yet.
//
// A ring of slots in the order sent. Three marks divide it:
//
//     reported_              sent_                   end_
//        | the kernel has all  |  still to be written  |
//
// A slot holds the frame's head (prefix and header, copied); the payload stays with its lender.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <sys/uio.h>

#include "net/tcp/frame.h"
#include "net/transport.h"

namespace byteps::tcp {

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

  // What is still to be written.
  std::size_t unsent_bytes() const { return unsent_bytes_; }
  // Fills `out` with what comes next, at most bytes_max of it; returns how many entries. `bytes` is their
  // sum.
  std::size_t gather(std::span<iovec> out, std::size_t bytes_max, std::size_t& bytes);
  // The kernel took so many of the bytes.
  void advance(std::size_t bytes);

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
    std::size_t bytes() const { return head_bytes + payload.size(); }
  };
  Slot& slot(std::uint64_t number) { return slots_[number & (slots_.size() - 1)]; }
  void grow();

  std::vector<std::byte> record_;
  std::size_t record_sent_bytes_ = 0;
  std::vector<Slot> slots_;  // a power of two
  std::uint64_t reported_ = 0;
  std::uint64_t sent_ = 0;
  std::uint64_t end_ = 0;
  std::size_t slot_sent_bytes_ = 0;  // of slot sent_
  std::size_t unsent_bytes_ = 0;
  std::size_t charged_bytes_ = 0;
};

}  // namespace byteps::tcp
