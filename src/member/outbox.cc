#include "member/outbox.h"

#include <utility>

namespace byteps {

Status Outbox::hand_over(PeerId peer, Message& message) {
  const SendToken token = kTokenBit | ++sent_count_;
  SharedBytes& payload = lent_[token];
  payload = std::move(message.payload);
  const Status sent = transport_.send(peer, Outgoing{.header = message.header,
                                                     .payload = payload,
                                                     .payload_crc = payload.crc(),
                                                     .token = token});
  if (sent.is_ok()) return sent;
  message.payload = std::move(payload);
  lent_.erase(token);
  return sent;
}

Status Outbox::send(PeerId peer, const wire::Header& header, SharedBytes payload) {
  Message message{wire::encode(header), std::move(payload)};
  const auto waiting = waiting_.find(peer);
  if (waiting == waiting_.end()) {
    const Status sent = hand_over(peer, message);
    if (sent.is_ok() || !sent.is(Code::kAgain)) return sent;
    waiting_[peer].push_back(std::move(message));
    return Status::ok();
  }
  if (waiting->second.size() >= kControlWaitingMax) {
    return {Code::kAgain,
            "it does not read: " + std::to_string(kControlWaitingMax) + " messages wait for it"};
  }
  waiting->second.push_back(std::move(message));
  return Status::ok();
}

void Outbox::on_sent(PeerId peer, SendToken token) {
  CHECK_EQ(lent_.erase(token), 1U) << "a payload came back that was not lent";
  const auto waiting = waiting_.find(peer);
  if (waiting == waiting_.end()) return;
  std::deque<Message>& messages = waiting->second;
  while (!messages.empty()) {
    const Status sent = hand_over(peer, messages.front());
    if (sent.is(Code::kAgain)) return;
    messages.pop_front();  // sent, or the connection is gone and its kDown is on the way
  }
  waiting_.erase(waiting);
}

void Outbox::on_down(PeerId peer) {
  waiting_.erase(peer);
}

}  // namespace byteps
