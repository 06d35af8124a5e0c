#include "net/wire_text.h"

#include <algorithm>
#include <sstream>

#include "base/limits.h"
#include "base/phrases.h"

namespace byteps {
namespace {

// Strangers' words in it.
Cause harmless(Cause cause) {
  cause.who.host = printable(cause.who.host, kHostTextBytesMax);
  cause.told_by.host = printable(cause.told_by.host, kHostTextBytesMax);
  cause.detail = printable(cause.detail, kDetailBytesMax);
  cause.is_of_peer = false;
  return cause;
}

std::string text_of(const wire::Join& join) {
  std::string text = name(join.role);
  if (join.wanted_rank != kNoRank) text += " " + std::to_string(join.wanted_rank);
  text += " (" + printable(join.host, 128) + ") of " + std::to_string(join.worker_count) +
          " workers and " + std::to_string(join.server_count) + " servers";
  if (!join.endpoints.empty()) text += " at " + printable(join.endpoints[0].text(), 128);
  const wire::Join::Heard& heard = join.heard;
  if (heard.term == 0) return text;
  return text + ", heard of term " + std::to_string(heard.term) + ", epoch " +
         std::to_string(heard.epoch.value) + ", revision " + std::to_string(heard.revision);
}

std::string text_of(const wire::Stalled& stalled) {
  std::string text = "awaits";
  for (const wire::Awaited& each : stalled.awaited) {
    text += each.name.empty() ? " a barrier" : " '" + printable(each.name, 128) + "'";
    if (text.size() > 512) break;
  }
  return text + ", has not begun " + std::to_string(stalled.not_begun.size()) + " wanted rounds";
}

std::string text_of(const wire::Roster& roster) {  // of its payload, which is the same for all
  const auto workers =
      std::count_if(roster.members.begin(), roster.members.end(),
                    [](const wire::RosterMember& each) { return each.role == Role::kWorker; });
  const auto servers = static_cast<std::ptrdiff_t>(roster.members.size()) - workers;
  return "epoch " + std::to_string(roster.epoch.value) + ": " + std::to_string(workers) +
         " workers, " + std::to_string(servers) + " servers";
}

}  // namespace

const char* message_name(wire::Kind kind) {
  switch (kind) {
    case wire::Kind::kPush:
      return "Push";
    case wire::Kind::kAnswer:
      return "Answer";
    case wire::Kind::kDeclare:
      return "Declare";
    case wire::Kind::kWanted:
      return "Wanted";
    case wire::Kind::kForget:
      return "Forget";
    case wire::Kind::kMismatch:
      return "Mismatch";
    case wire::Kind::kMissing:
      return "Missing";
    case wire::Kind::kInputs:
      return "Inputs";
    case wire::Kind::kInputsDone:
      return "InputsDone";
    case wire::Kind::kHave:
      return "Have";
    case wire::Kind::kGive:
      return "Give";
    case wire::Kind::kAgain:
      return "Again";
    case wire::Kind::kForgotten:
      return "Forgotten";
    case wire::Kind::kAck:
      return "Ack";
    case wire::Kind::kSettled:
      return "Settled";
    case wire::Kind::kJoin:
      return "Join";
    case wire::Kind::kRoster:
      return "Roster";
    case wire::Kind::kHeartbeat:
      return "Heartbeat";
    case wire::Kind::kLeave:
      return "Leave";
    case wire::Kind::kBarrier:
      return "Barrier";
    case wire::Kind::kBarrierDone:
      return "BarrierDone";
    case wire::Kind::kFail:
      return "Fail";
    case wire::Kind::kWaiting:
      return "Waiting";
    case wire::Kind::kStalled:
      return "Stalled";
    case wire::Kind::kRecall:
      return "Recall";
    case wire::Kind::kAdopt:
      return "Adopt";
  }
  return "unknown";
}

std::string header_text(const wire::Header& header) {
  std::ostringstream text;
  text << message_name(header.kind) << ", " << header.epoch;
  if (header.kind <= wire::Kind::kSettled) {  // of a tensor
    text << ", key " << std::hex << (header.key.value >> 48) << std::dec << ", " << header.part
         << ", " << header.round << ", offset " << header.offset_bytes << ", tag " << header.tag;
    if (header.count != 0) text << ", count " << header.count;
  }
  return text.str();
}

wire::Text text_of(const Status& why) {
  return {printable(why.message(), kTextBytesMax), static_cast<std::uint32_t>(why.code()),
          harmless(why.cause())};
}

Status error_of(const wire::Text& text, Code otherwise, std::size_t bytes_max) {
  const auto code = static_cast<Code>(text.code);
  const bool is_error = text.code > 0 &&
                        text.code <= static_cast<std::uint32_t>(Code::kCancelled) &&
                        code != Code::kAgain;
  return {is_error ? code : otherwise,
          text.text.empty() ? "no reason was given" : printable(text.text, bytes_max),
          harmless(text.cause)};
}

std::string message_text(const wire::Header& header, std::span<const std::byte> payload) {
  if (header.kind != wire::Kind::kRoster) return payload_text(header, payload);
  return roster_text(header, payload_text(header, payload));
}

std::string roster_text(const wire::Header& header, const std::string& payload) {
  return payload + ", your rank " + std::to_string(header.worker.value);
}

std::string payload_text(const wire::Header& header, std::span<const std::byte> payload) {
  const auto say = [](const auto& decoded, const auto& words) {
    return decoded.is_ok() ? words(decoded.value()) : std::string("malformed");
  };
  switch (header.kind) {
    case wire::Kind::kFail:
    case wire::Kind::kWaiting:
      return say(wire::decode_text(payload),
                 [](const wire::Text& text) { return printable(text.text, wire::kTextBytesMax); });
    case wire::Kind::kJoin:
      return say(wire::decode_join(payload), [](const wire::Join& join) { return text_of(join); });
    case wire::Kind::kRoster:
      return say(wire::decode_roster(payload),
                 [](const wire::Roster& roster) { return text_of(roster); });
    case wire::Kind::kStalled:
      return say(wire::decode_stalled(payload),
                 [](const wire::Stalled& stalled) { return text_of(stalled); });
    case wire::Kind::kLeave:
      return say(wire::decode_leave(payload), [&](const wire::Leave& leave) {
        const std::vector<std::uint32_t>& who = leave.who.some();
        return "worker " + std::to_string(who.empty() ? header.worker.value : who[0]) +
               (who.size() > 1 ? " and " + std::to_string(who.size() - 1) + " more" : "") +
               (leave.final ? ", for good" : ", may come back");
      });
    case wire::Kind::kAdopt:
      return say(wire::decode_adopt(payload), [](const wire::Adopt& adopt) {
        return "the place of server " + std::to_string(adopt.rank) + " with " +
               std::to_string(adopt.shards) + (adopt.shards == 1 ? " shard" : " shards");
      });
    case wire::Kind::kBarrier:
    case wire::Kind::kBarrierDone:
      return say(wire::decode_barrier(payload), [&](const wire::Barrier& barrier) {
        const bool never = (header.flags & wire::kNeverDone) != 0;
        return "barrier " + std::to_string(barrier.number) +
               (never
                    ? " can never end: worker " + std::to_string(header.worker.value) + " has left"
                    : "");
      });
    default:
      return {};
  }
}

}  // namespace byteps
