// The two ends of a TCP test: a TcpTransport that is turned, and a bare socket that says whatever it likes.
#pragma once

#include <cerrno>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "kernels/crc32c.h"
#include "net/address.h"
#include "net/frame/frame.h"
#include "net/tcp/handshake.h"
#include "net/tcp/record.h"
#include "net/wire.h"
#include "tests/net/peer_options.h"

namespace byteps {

using Bytes = std::vector<std::byte>;

inline Hello hello_of(Role role, std::uint32_t rank) {
  Hello hello;
  hello.role = role;
  hello.rank = rank;
  hello.job_id.fill(std::byte{7});
  return hello;
}

inline PeerOptions loopback_options() {
  PeerOptions options;
  options.listen = {Endpoint{"127.0.0.1", 0}};
  options.self = hello_of(Role::kServer, 0);
  return options;
}

// Time is the test's own: it moves only by at() and with each turn that brought nothing.
class TurnedTcp {
 public:
  struct Seen {
    Event::Kind kind;
    PeerId peer;
    Hello hello;
    Bytes header;
    Bytes payload;
    bool is_shared;
    SendToken token;
    Status why;
  };

  explicit TurnedTcp(PeerOptions options = loopback_options())
      : transport_(make_transport(std::move(options), Log("test", LogLevel::kDebug,
                                                          [this](std::string_view line) {
                                                            log_.append(line).push_back('\n');
                                                          }))
                       .value()) {}

  TcpTransport& transport() { return *transport_; }
  Endpoint address() { return transport_->listening().at(0); }
  const std::vector<Seen>& seen() const { return seen_; }
  const std::string& log() const { return log_; }
  void advance(TimeNs by) { now_ += by; }
  TimeNs now() const { return now_; }

  std::size_t poll() {
    const std::size_t count = transport_->poll(now_, events_);
    for (std::size_t i = 0; i < count; ++i) {
      const Event& e = events_[i];
      seen_.push_back({e.kind,
                       e.peer,
                       e.hello,
                       {e.header.begin(), e.header.end()},
                       {e.payload.begin(), e.payload.end()},
                       e.is_shared,
                       e.token,
                       e.why});
    }
    return count;
  }

  bool until(const std::function<bool()>& done) {
    for (int i = 0; i < 5'000; ++i) {
      if (done()) return true;
      if (poll() == 0) transport_->waiter().wait(kMillisecond);
    }
    return done();
  }
  // Lets everything that is under way on loopback be seen.
  void settle() {
    for (int i = 0; i < 10; ++i) {
      if (poll() == 0) transport_->waiter().wait(kMillisecond);
    }
  }

  std::size_t count(Event::Kind kind) const {
    std::size_t found = 0;
    for (const Seen& event : seen_) found += event.kind == kind ? 1 : 0;
    return found;
  }

 private:
  std::string log_;
  std::unique_ptr<TcpTransport> transport_;
  TimeNs now_ = kSecond;
  std::vector<Event> events_ = std::vector<Event>(32);
  std::vector<Seen> seen_;
};

// A blocking socket.
class BareSocket {
 public:
  explicit BareSocket(const Endpoint& to) {
    const SocketAddress address = resolve(to).value().at(0);
    descriptor_ = ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    (void)::setsockopt(descriptor_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    EXPECT_EQ(::connect(descriptor_, address.get(), address.bytes), 0);
  }
  ~BareSocket() { close(); }
  BareSocket(const BareSocket&) = delete;
  BareSocket& operator=(const BareSocket&) = delete;

  bool write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes = bytes.subspan(static_cast<std::size_t>(sent));
    }
    return true;
  }
  // What is there now; empty when nothing.
  Bytes read_some() {
    Bytes bytes(65536);
    const ssize_t count = ::recv(descriptor_, bytes.data(), bytes.size(), MSG_DONTWAIT);
    bytes.resize(count > 0 ? static_cast<std::size_t>(count) : 0);
    return bytes;
  }
  // Turns `other` until so many bytes are here. Empty when they do not come.
  Bytes read_exactly(std::size_t bytes_wanted, TurnedTcp& other) {
    Bytes bytes;
    other.until([&] {
      Bytes more(bytes_wanted - bytes.size());
      const ssize_t count = ::recv(descriptor_, more.data(), more.size(), MSG_DONTWAIT);
      if (count > 0) bytes.insert(bytes.end(), more.begin(), more.begin() + count);
      return bytes.size() == bytes_wanted || count == 0;
    });
    if (bytes.size() != bytes_wanted) bytes.clear();
    return bytes;
  }
  // True once the other side has ended the connection, orderly or not. Throws away what comes before.
  bool has_ended() {
    std::byte scratch[4096];
    while (true) {
      const ssize_t count = ::recv(descriptor_, scratch, sizeof scratch, MSG_DONTWAIT);
      if (count == 0) return true;
      if (count < 0) return errno != EAGAIN && errno != EWOULDBLOCK;
    }
  }
  void close() {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
  }

 private:
  int descriptor_ = -1;
};

// A member of the job by hand: says who it is and proves it, while `other` is turned. False when `other`
// does not want it.
inline bool shake_hands(BareSocket& socket, TurnedTcp& other, const Hello& self,
                        const JobKey& key = {}) {
  tcp::Handshake handshake(auth::Side::kConnecting, self, auth::fresh_nonce().value(), key);
  if (!socket.write(handshake.own_hello())) return false;
  Bytes say;
  while (!handshake.is_done()) {
    const Bytes head = socket.read_exactly(tcp::kRecordHeadBytes, other);
    if (head.empty()) return false;
    const auto decoded = tcp::decode_record_head(head);
    if (!decoded.is_ok()) return false;
    Bytes record = head;
    const Bytes body = socket.read_exactly(decoded.value().body_bytes, other);
    record.insert(record.end(), body.begin(), body.end());
    if (!handshake.take(decoded.value().kind, record, say).is_ok()) return false;
  }
  return socket.write(say);
}

inline void append(Bytes& to, std::span<const std::byte> bytes) {
  to.insert(to.end(), bytes.begin(), bytes.end());
}

inline Bytes numbered(std::size_t bytes, std::size_t first = 0) {
  Bytes out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = static_cast<std::byte>((first + i) * 131 >> 3);
  return out;
}

// The start of a frame that says so much of itself, with a good checksum.
inline Bytes prefix_of(std::uint32_t payload_bytes, std::uint16_t header_bytes,
                       bool is_bulk = false) {
  Bytes out(frame::kPrefixBytes);
  frame::encode({.payload_bytes = payload_bytes, .header_bytes = header_bytes, .is_bulk = is_bulk},
                std::span(out).first<frame::kPrefixBytes>());
  return out;
}

// A whole frame.
inline Bytes frame_of(const Bytes& header, const Bytes& payload) {
  Bytes out(frame::kPrefixBytes);
  frame::encode({.payload_bytes = static_cast<std::uint32_t>(payload.size()),
                 .header_bytes = static_cast<std::uint16_t>(header.size()),
                 .header_crc = crc32c(0, header)},
                std::span(out).first<frame::kPrefixBytes>());
  append(out, header);
  append(out, payload);
  if (!payload.empty()) append(out, frame::encode_trailer(crc32c(0, payload)));
  return out;
}

// One whose header and payload are numbered from `first` in a row.
inline Bytes numbered_frame(std::size_t payload_bytes, std::size_t header_bytes,
                            std::size_t first = 0) {
  return frame_of(numbered(header_bytes, first), numbered(payload_bytes, first + header_bytes));
}

}  // namespace byteps
