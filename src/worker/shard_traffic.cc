#include "worker/shard_traffic.h"

#include <optional>

#include "base/planted.h"
#include "net/wire_text.h"

namespace byteps {
namespace {

constexpr std::size_t kFramesPerTurn = 256;

}  // namespace

void ShardTraffic::begin(Pipeline& pipeline, const ShardConnections::Job& job,
                         std::vector<ShardPlace> places, TimeNs now) {
  pipeline_ = &pipeline;
  connections_.begin(job, std::move(places), now);
}

bool ShardTraffic::handle(const Event& event, TimeNs now, bool is_ending) {
  const std::optional<ShardIndex> shard = connections_.shard_of(event.peer);
  if (!shard) return false;
  switch (event.kind) {
    case Event::Kind::kUp:
      if (connections_.on_up(*shard, event.hello, now)) {
        pipeline_->flow().set_round_trip(*shard, transport_.round_trip_ns(event.peer));
        pipeline_->on_shard_up(*shard, connections_.is_successor(*shard));
      }
      break;
    case Event::Kind::kDown:
      if (connections_.on_down(*shard, event.why, now, is_ending)) pipeline_->on_shard_down(*shard);
      break;
    case Event::Kind::kSent:
      if (!PLANTED(full_for_ever) || event.token != 0) connections_.on_room(*shard);
      owner_.on_sent(event.token);
      break;
    case Event::Kind::kReceived:
      receive(*shard, event, now);
      break;
  }
  return true;
}

void ShardTraffic::receive(ShardIndex shard, const Event& event, TimeNs now) {
  if (!connections_.is_in_use(shard)) return;
  const Result<wire::Header> header = wire::header_of(event);
  const Status fine =
      header.is_ok() ? owner_.on_message(shard, header.value(), event) : header.status();
  if (fine.is_ok()) {
    // Only an answer is a step forward: the shard may ask again and again for what never arrives whole.
    if (header.value().kind == wire::Kind::kAnswer) connections_.on_answer(shard);
    return;
  }
  const auto line = quiet_.pass(
      0, now, "ending the connection to " + connections_.describe(shard) + ": " + fine.message());
  if (line) log_.write(LogLevel::kWarning, *line);
  connections_.end(shard, fine);
}

Status ShardTraffic::error_of_mismatch(ShardIndex shard, const wire::Text& text,
                                       const std::string& tensor) const {
  const Status why = error_of(text, Code::kMismatch);
  Cause cause = why.cause();
  if (!tensor.empty()) cause.detail = tensor;
  std::string message = why.message();
  // It is about that server, which does not know its name; or a relay passes it on, or a server tells a relay what
  // another has said.
  const bool has_relays =
      connections_.owner_of(shard).role == Role::kWorker || pipeline_->uplink().is_relay();
  if (why.is(Code::kSystem) && !(has_relays && cause.who.role)) {
    cause.who = connections_.owner_of(shard);
    message = connections_.describe(shard) + ": " + message;
  }
  return {why.code(), std::move(message), std::move(cause)};
}

// One frame to each shard in turn, so that those of different servers interleave on the way.
std::size_t ShardTraffic::send_frames() {
  std::size_t sent_count = 0;
  std::size_t idle_count = 0;
  const std::size_t count = connections_.count();
  for (ShardIndex shard(0); shard.value < count; ++shard.value) {
    if (const auto peer = connections_.peer_of(shard)) {
      pipeline_->flow().set_capacity(shard, transport_.capacity_bytes(*peer));
    }
  }
  while (idle_count < count && sent_count < kFramesPerTurn) {
    const bool sent = send_next(next_shard_);
    if (++next_shard_.value == count) next_shard_.value = 0;
    idle_count = sent ? 0 : idle_count + 1;
    sent_count += sent ? 1 : 0;
  }
  return sent_count;
}

void ShardTraffic::publish(TrafficCounters& counters, const PipelineCounters& beside) const {
  const auto publish = [](std::atomic<std::uint64_t>& counter, std::uint64_t value) {
    counter.store(value, std::memory_order_relaxed);
  };
  const Transport::Ways ways = transport_.outbound_ways();
  const PipelineCounters& here = pipeline_->counters();
  publish(counters.pushed_bytes, here.pushed_bytes + beside.pushed_bytes);
  publish(counters.pulled_bytes, here.pulled_bytes + beside.pulled_bytes);
  publish(counters.pushed_wire_bytes, here.pushed_wire_bytes + beside.pushed_wire_bytes);
  publish(counters.pulled_wire_bytes, here.pulled_wire_bytes + beside.pulled_wire_bytes);
  publish(counters.encode_ns, static_cast<std::uint64_t>(here.encode_ns + beside.encode_ns));
  publish(counters.decode_ns, static_cast<std::uint64_t>(here.decode_ns + beside.decode_ns));
  publish(counters.pushed_frames, here.pushed_frames + beside.pushed_frames);
  publish(counters.wanted_messages, here.wanted_messages + beside.wanted_messages);
  publish(counters.reconnects, connections_.counts().reconnects);
  publish(counters.shared_bytes, ways.shared_bytes);
  publish(counters.rdma_bytes, ways.rdma_bytes);
  publish(counters.lost_servers, connections_.counts().lost_servers);
}

bool ShardTraffic::send_next(ShardIndex shard) {
  Outgoing message;
  if (!connections_.may_send(shard) || !pipeline_->front(shard, message)) return false;
  if (!connections_.send(shard, message)) return false;
  pipeline_->pop();
  return true;
}

}  // namespace byteps
