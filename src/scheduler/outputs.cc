#include "scheduler/outputs.h"

#include "base/phrases.h"

namespace byteps {

void Speaker::send(PeerId peer, wire::Kind kind, WorkerRank worker, SharedBytes payload,
                   KeeperOutputs& out) const {
  KeeperOutput output;
  output.kind = KeeperOutput::Kind::kSend;
  output.peer = peer;
  output.header.kind = kind;
  output.header.epoch = epoch_;
  output.header.worker = worker;
  output.payload = std::move(payload);
  out.push_back(std::move(output));
}

void Speaker::close(PeerId peer, Status reason, KeeperOutputs& out) const {
  Connection& connection = seats_.connection(peer);
  connection.refused = true;
  connection.closed = true;
  KeeperOutput output;
  output.kind = KeeperOutput::Kind::kClose;
  output.peer = peer;
  output.reason = std::move(reason);
  out.push_back(std::move(output));
}

void Speaker::notice(LogLevel level, std::string text, KeeperOutputs& out,
                     KeeperOutput::Cause cause) {
  KeeperOutput output;
  output.level = level;
  output.text = std::move(text);
  output.cause = cause;
  out.push_back(std::move(output));
}

std::vector<std::byte> encode_status(const Status& why) {
  return wire::encode(
      wire::Text{printable(why.message(), kTextBytesMax), static_cast<std::uint32_t>(why.code())});
}

}  // namespace byteps
