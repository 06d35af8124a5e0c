// Outbox: control messages on their way. It owns their payloads until the transport gives them
// back, and holds what the transport has no room for. One Actor's; its limit is kControlWaitingMax
// messages per connection.
#pragma once

#include <cstdint>
#include <deque>
#include <map>

#include "base/limits.h"
#include "member/shared_bytes.h"
#include "net/transport.h"
#include "net/wire.h"

namespace byteps {

class Outbox {
 public:
  static constexpr SendToken kTokenBit = SendToken{1} << 63;

  // Whether a token was given by an Outbox. Others on the same Transport leave the top bit clear.
  static bool owns(SendToken token) { return (token & kTokenBit) != 0; }

  explicit Outbox(Transport& transport) : transport_(transport) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;

  // Sends in order per peer. kAgain: kControlWaitingMax messages wait already, the peer does not read; the
  // message is dropped. kDisconnected: no such connection; dropped.
  Status send(PeerId peer, const wire::Header& header, SharedBytes payload);

  // Hand in every kSent whose token it owns(), and every kDown.
  void on_sent(PeerId peer, SendToken token);
  void on_down(PeerId peer);

  // No payload is lent.
  bool empty() const { return lent_.empty(); }

 private:
  struct Message {
    wire::HeaderBytes header;
    SharedBytes payload;
  };
  Status hand_over(PeerId peer, Message& message);

  Transport& transport_;
  std::uint64_t sent_count_ = 0;
  std::map<SendToken, SharedBytes> lent_;
  std::map<PeerId, std::deque<Message>> waiting_;
};

}  // namespace byteps
