#include "scheduler/outputs.h"

#include "net/wire_text.h"

namespace byteps {

void Speaker::send(PeerId peer, wire::Kind kind, WorkerRank worker, SharedBytes payload,
                   KeeperOutputs& out) const {
  KeeperOutput::Send output{.peer = peer, .header = {}, .payload = std::move(payload)};
  output.header.kind = kind;
  output.header.epoch = epoch_;
  output.header.round = Round(term_);
  output.header.worker = worker;
  out.emplace_back(std::move(output));
}

void Speaker::close(PeerId peer, Status reason, KeeperOutputs& out) const {
  Connection& connection = seats_.connection(peer);
  connection.refused = true;
  connection.closed = true;
  out.emplace_back(KeeperOutput::Close{peer, std::move(reason)});
}

void Speaker::drop(Seat& seat, const Status& why, KeeperOutputs& out) const {
  const PeerId peer = *seat.peer;
  seats_.connection(peer).seat.reset();
  seat.peer.reset();
  seat.lost_why = why;
  close(peer, why, out);
}

void Speaker::notice(LogLevel level, std::string text, KeeperOutputs& out,
                     KeeperOutput::Sort sort) {
  out.emplace_back(KeeperOutput::Notice{level, std::move(text), sort});
}

void Speaker::news(const char* kind, const Seat& seat, const std::string& text, KeeperOutputs& out,
                   Status why) {
  notice(LogLevel::kInfo, seat.text() + text, out);
  out.emplace_back(KeeperOutput::News{kind, seat.participant(), std::move(why)});
}

std::vector<std::byte> encode_status(const Status& why) {
  return wire::encode(text_of(why));
}

}  // namespace byteps
