// The bytes of two connections, received in any pieces, into the code that makes events of them
// (net/frame/inbox.h). The two share their staging memory, as those of a transport do.
//
// The input is a script (fuzz/script.h). Beside the sanitizers:
//  - the messages come in order, each once, whole, and as they were sent, until bytes that are no frame;
//  - what a poll gave out is still right at its end, whatever came after it on either connection;
//  - memory is taken for what came, never for a length that was announced.
#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <vector>

#include "base/check.h"
#include "kernels/crc32c.h"
#include "net/frame/frame.h"
#include "net/frame/inbox.h"
#include "tests/fuzz/script.h"

namespace byteps::fuzz {
namespace {

constexpr std::size_t kBatchBytes = 4096;

struct Message {
  std::vector<std::byte> header;
  std::vector<std::byte> payload;
  bool is_bulk = false;
};

class Stream {
 public:
  explicit Stream(std::uint32_t number) : peer_(number + 1) {}

  // ---- what the other side sends

  void add_message(Script& script) {
    Message message;
    const auto first = static_cast<std::uint8_t>(37 * ++message_count_);  // neighbours differ
    message.header = pattern(script.flag() ? 48 : script.below(kHeaderBytesMax), first);
    message.payload = pattern(payload_bytes(script), first);
    message.is_bulk = script.flag();
    append(encode_frame(message));
    if (!broken_) expected_.push_back(std::move(message));
  }
  // The other side says why it ends the connection. What follows is never read.
  void add_farewell(Script& script) {
    const std::vector<std::byte> text = script.bytes();
    append(frame::encode_farewell(
        Status(static_cast<Code>(script.below(9)),
               std::string(reinterpret_cast<const char*>(text.data()), text.size()))));
    broken_ = true;
  }
  void add_nonsense(Script& script) {
    std::vector<std::byte> frame =
        encode_frame({pattern(script.below(64), 1), pattern(script.below(64), 2)});
    script.mutate(frame);
    append(frame);
    broken_ = true;  // somewhere; nothing is claimed about what follows
  }
  // A frame that announces more than ever comes.
  void announce(Script& script) {
    frame::Prefix prefix;
    prefix.payload_bytes = script.flag() ? script.number32() : std::uint32_t{4} << 20;
    prefix.header_bytes = static_cast<std::uint16_t>(script.number());
    prefix.is_bulk = script.flag();
    std::vector<std::byte> frame(frame::kPrefixBytes);
    frame::encode(prefix, std::span<std::byte, frame::kPrefixBytes>(frame.data(), frame.size()));
    append(frame);
    broken_ = true;  // whatever comes now may be its payload
  }

  // ---- the transport

  bool has_ended() const { return ended_; }

  // Receives at most `bytes` of what was sent, as often as `reads`, into events.
  void receive(frame::Staging& staging, std::size_t bytes, std::size_t reads,
               std::vector<Event>& events, std::size_t& event_count) {
    for (; reads > 0 && !ended_; --reads) {
      const std::span<Event> free_events = std::span(events).subspan(event_count);
      frame::EventSpan out(free_events);
      if (out.full()) return;
      if (!inbox_.has_backlog()) {
        if (staging.room().size() < inbox_.room_wanted(staging)) return;
        const frame::Inbox::Places places = inbox_.places(staging, bytes);
        CHECK(places.count > 0 && places.bytes > 0) << "nowhere to receive";
        inbox_.received(fill(places, bytes), places, staging);
      }
      const Status status = inbox_.parse(peer_, staging, out);
      event_count += out.count();
      if (!status.is_ok()) {
        CHECK(broken_) << "good bytes are refused: " << status.text();
        ended_ = true;
        inbox_.clear(staging);
      }
    }
  }
  // One event of a poll that is still valid.
  void check(const Event& event) {
    if (expected_.empty()) {
      CHECK(broken_) << "a message that nobody sent";
      return;
    }
    CHECK(is_front(event)) << "not the message that was sent";
    expected_.pop_front();
  }
  bool is_dry() const { return fed_ == bytes_.size(); }
  void check_end() const {
    if (broken_) return;
    CHECK(!ended_);
    CHECK(expected_.empty()) << "a message is missing";
  }
  void clear(frame::Staging& staging) { inbox_.clear(staging); }
  std::size_t sent_bytes() const { return bytes_.size(); }
  PeerId peer() const { return peer_; }

 private:
  bool is_front(const Event& event) const {
    const Message& message = expected_.front();
    return !event.is_shared && std::ranges::equal(event.header, message.header) &&
           std::ranges::equal(event.payload, message.payload);
  }
  static std::vector<std::byte> pattern(std::size_t count, std::uint8_t first) {
    std::vector<std::byte> bytes(count);
    for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + 7 * i);
    return bytes;
  }
  static std::size_t payload_bytes(Script& script) {
    switch (script.below(4)) {
      case 0:
        return script.byte();
      case 1:
        return std::size_t{16} * script.byte();
      case 2:
        return std::size_t{64} * script.byte();
      default:
        return 0;
    }
  }
  static std::vector<std::byte> encode_frame(const Message& message) {
    frame::Prefix prefix;
    prefix.payload_bytes = static_cast<std::uint32_t>(message.payload.size());
    prefix.header_bytes = static_cast<std::uint16_t>(message.header.size());
    prefix.is_bulk = message.is_bulk;
    prefix.header_crc = crc32c(0, message.header);
    std::vector<std::byte> frame(frame::kPrefixBytes);
    frame::encode(prefix, std::span<std::byte, frame::kPrefixBytes>(frame.data(), frame.size()));
    frame.insert(frame.end(), message.header.begin(), message.header.end());
    frame.insert(frame.end(), message.payload.begin(), message.payload.end());
    if (prefix.trailer_bytes() > 0) {
      const auto trailer = frame::encode_trailer(crc32c(0, message.payload));
      frame.insert(frame.end(), trailer.begin(), trailer.end());
    }
    return frame;
  }
  void append(const std::vector<std::byte>& more) {
    bytes_.insert(bytes_.end(), more.begin(), more.end());
  }
  std::size_t fill(const frame::Inbox::Places& places, std::size_t bytes_max) {
    std::size_t count = 0;
    for (int i = 0; i < places.count; ++i) {
      const iovec& entry = places.entries[static_cast<std::size_t>(i)];
      const std::size_t piece = std::min({entry.iov_len, bytes_max - count, bytes_.size() - fed_});
      if (piece > 0) std::memcpy(entry.iov_base, bytes_.data() + fed_, piece);
      fed_ += piece;
      count += piece;
      if (piece < entry.iov_len) break;
    }
    return count;
  }
  const PeerId peer_;
  frame::Inbox inbox_;
  std::vector<std::byte> bytes_;
  std::size_t fed_ = 0;
  std::deque<Message> expected_;
  std::uint32_t message_count_ = 0;
  bool broken_ = false;
  bool ended_ = false;
};

class Target {
 public:
  explicit Target(Script script) : script_(script) {}

  void run() {
    staging_.begin_poll();
    for (int step = 0; step < 400 && !script_.done(); ++step) act();
    for (int i = 0; i < 4000; ++i) {
      poll(kBatchBytes, 8, 8);
      if (streams_[0].is_dry() && streams_[1].is_dry() && last_count_ == 0) break;
    }
    for (Stream& stream : streams_) stream.check_end();
    for (Stream& stream : streams_) stream.clear(staging_);
  }

 private:
  void act() {
    Stream& stream = streams_[script_.below(2)];
    switch (script_.below(8)) {
      case 0:
      case 1:
      case 2:
        if (stream.sent_bytes() < 100000) stream.add_message(script_);
        return;
      case 3:
        if (script_.below(8) == 0) stream.add_nonsense(script_);
        return;
      case 4:
        switch (script_.below(16)) {
          case 0:
            return stream.announce(script_);
          case 1:
            return stream.add_farewell(script_);
          default:
            return;
        }
      case 5:
        return poll(1 + script_.byte(), 1 + script_.below(4), 1 + script_.below(8));
      case 6:
        return poll(std::size_t{64} * (1 + script_.byte()), 1 + script_.below(4), 8);
      case 7:
        return poll(kBatchBytes, 4, 8);
    }
  }

  // One poll() of a transport: both connections, then what it gave out is looked at.
  void poll(std::size_t bytes, std::size_t reads, std::size_t events_max) {
    staging_.begin_poll();
    std::vector<Event> events(events_max);
    std::size_t count = 0;
    for (Stream& stream : streams_) stream.receive(staging_, bytes, reads, events, count);
    for (std::size_t i = 0; i < count; ++i) {
      streams_[events[i].peer == streams_[0].peer() ? 0 : 1].check(events[i]);
    }
    last_count_ = count;
  }

  Script script_;
  frame::Staging staging_{kBatchBytes};
  std::array<Stream, 2> streams_{Stream(0), Stream(1)};
  std::size_t last_count_ = 0;
};

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  byteps::fuzz::Target(byteps::fuzz::Script(data, size)).run();
  return 0;
}
