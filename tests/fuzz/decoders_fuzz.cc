// Any bytes, to everything that decodes bytes of the network: the first byte chooses what, the rest is the input.
//
// Beside the sanitizers: what was decoded says the same when it is encoded and decoded again; an error says what is
// wrong; texts for people are harmless whatever they were; and of handshakes between two members, with someone in
// between who changes, repeats, exchanges and invents records, one ends well only if both sides have the same key and
// heard exactly what the other one said.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/phrases.h"
#include "base/place.h"
#include "net/frame/frame.h"
#include "net/rdma/memory.h"
#include "net/rdma/queue_pair.h"
#include "net/rdma/window.h"
#include "net/tcp/handshake.h"
#include "net/tcp/record.h"
#include "net/wire.h"
#include "net/wire_text.h"
#include "tests/fuzz/script.h"
#include "topology/machine.h"
#include "topology/planner.h"

namespace byteps::fuzz {
namespace {

using Bytes = std::span<const std::byte>;

template <typename Message>
void round_trip(Result<Message> (*decode)(Bytes), Bytes bytes) {
  const Result<Message> message = decode(bytes);
  if (!message.is_ok()) {
    CHECK(!message.status().message().empty()) << "an error says what is wrong";
    return;
  }
  const auto encoded = wire::encode(message.value());
  const Result<Message> again = decode(encoded);
  CHECK(again.is_ok()) << again.status().message();
  CHECK(again.value() == message.value()) << "decoded twice, read differently";
}

bool round_trips(const wire::Text& text) {
  const Result<wire::Text> again = wire::decode_text(wire::encode(text));
  return again.is_ok() && again.value() == text;
}

// What the other side says of its RDMA, and what comes of immediate data: neither may leave its limits.
void read_rdma(Bytes bytes) {
  const Result<rdma::PeerInfo> info = rdma::decode_peer_info(bytes);
  if (info.is_ok()) {
    CHECK(rdma::is_ring_size(info.value().ring_bytes));
    CHECK(rdma::decode_peer_info(rdma::encode(info.value())).value() == info.value());
  }
  constexpr std::size_t kRingBytes = 64 << 10;
  rdma::SendWindow send(kRingBytes, 32);
  rdma::ReceiveWindow receive(kRingBytes, 32);
  send.fill(kRingBytes / 2);
  (void)send.tell(send.filled());
  for (; bytes.size() >= 4; bytes = bytes.subspan(4)) {
    std::uint32_t immediate = 0;
    std::memcpy(&immediate, bytes.data(), sizeof immediate);
    const bool taken =
        rdma::is_credit(immediate) ? send.take_credit(immediate) : receive.take(immediate);
    if (!taken) return;
    CHECK(receive.readable() <= kRingBytes && send.room() <= kRingBytes);
  }
}

void read_record(Bytes bytes) {
  if (bytes.size() < tcp::kRecordHeadBytes) return;
  const auto head = tcp::decode_record_head(bytes.first(tcp::kRecordHeadBytes));
  if (head.is_ok()) CHECK_LE(head.value().body_bytes, tcp::kHelloBodyBytesMax);
}

void read_hello_body(Bytes bytes) {
  const Result<Hello> hello = tcp::decode_hello_body(bytes);
  if (!hello.is_ok()) return;
  const auto again = tcp::decode_hello_body(
      Bytes(tcp::encode_hello_record(hello.value(), auth::Nonce{})).subspan(tcp::kRecordHeadBytes));
  CHECK(again.is_ok() && again.value() == hello.value());
}

void read_refusal(Bytes bytes) {
  const Status why = frame::decode_refusal(bytes);
  CHECK(!why.is_ok()) << "a refusal is never ok";
  for (const char c : why.message()) CHECK(c >= ' ' && c <= '~') << "a character for no log";
  CHECK(why.cause().is_of_peer && !why.cause().who.role) << "a refusal names nobody";
  CHECK(!frame::decode_farewell(bytes).is_ok()) << "nor is a farewell";
}

void read_prefix(Bytes bytes) {
  if (bytes.size() < frame::kPrefixBytes) return;
  const auto raw = bytes.first<frame::kPrefixBytes>();
  frame::Prefix prefix;
  if (!frame::decode(raw, prefix).is_ok()) return;
  CHECK_LE(prefix.payload_bytes, kPayloadBytesMax);
  CHECK_LE(prefix.header_bytes, kHeaderBytesMax);
  std::array<std::byte, frame::kPrefixBytes> encoded{};
  frame::encode(prefix, encoded);
  CHECK(std::equal(raw.begin(), raw.end(), encoded.begin())) << "encoded to other bytes";
}

void read_text(Script script) {
  const std::size_t bytes_max = script.below(64) + std::size_t{3};
  const std::uint32_t code = script.number32();
  const std::vector<std::byte> raw = script.bytes();
  const std::string text(reinterpret_cast<const char*>(raw.data()), raw.size());
  const std::string clean = printable(text, bytes_max);
  CHECK_LE(clean.size(), bytes_max);
  CHECK_EQ(printable(clean, bytes_max), clean) << "harmless only the second time";
  for (const char c : clean) CHECK(static_cast<unsigned char>(c) >= ' ') << "a control character";
  CHECK(clean.find("\xc2\x9b") == std::string::npos) << "a control character of two bytes";
  Cause cause{.detail = text};
  cause.who = {.role = Role::kWorker, .rank = code, .host = text};
  const Status why = error_of({text, code, cause}, Code::kMismatch);
  CHECK(!why.is_ok() && !why.is(Code::kAgain) && !why.message().empty());
  for (const std::string& each : {why.cause().detail, why.cause().who.host})
    CHECK_EQ(printable(each, each.size()), each) << "a cause that can move the cursor";
  CHECK(round_trips(text_of(why))) << "what is said of an error cannot be read";
}

// ---- handshakes

class Member {
 public:
  Member(auth::Side side, std::uint8_t number, std::string_view key)
      : key_(key), is_accepting_(side == auth::Side::kAccepting) {
    auth::Nonce nonce{};
    nonce[0] = std::byte{number};
    Hello self;
    self.rank = number;
    self.job_id = {};  // as if all jobs had the same: then only the keys differ
    handshake_.emplace(side, self, nonce, key_);
    if (!is_accepting_) said_.push_back(handshake_->own_hello());
  }

  // A record arrives, or what looks like one.
  void take(const std::vector<std::byte>& record) {
    if (ended_ || record.size() < tcp::kRecordHeadBytes) return;
    const auto head = tcp::decode_record_head(Bytes(record).first(tcp::kRecordHeadBytes));
    if (!head.is_ok()) return end();
    if (head.value().body_bytes != record.size() - tcp::kRecordHeadBytes) return;  // not all here
    const bool knew_job = handshake_->knows_job();
    std::vector<std::byte> say;
    const Status status = handshake_->take(head.value().kind, record, say);
    if (!status.is_ok()) {
      CHECK(!status.message().empty());
      return end();
    }
    if (!knew_job && handshake_->knows_job()) heard_ = record;
    split(say);
    ended_ = handshake_->is_done();
  }
  bool is_done() const { return handshake_->is_done() && !failed_; }
  // Each heard what the other one said, and the keys are equal.
  bool fits(const Member& other) const {
    return heard_ == other.handshake_->own_hello() && is_accepting_ != other.is_accepting_ &&
           std::equal(key_.secret().begin(), key_.secret().end(), other.key_.secret().begin(),
                      other.key_.secret().end()) &&
           other.heard_ == handshake_->own_hello();
  }
  std::deque<std::vector<std::byte>>& said() { return said_; }

 private:
  void end() {
    ended_ = true;
    failed_ = true;
  }
  void split(Bytes say) {
    while (!say.empty()) {
      const auto head = tcp::decode_record_head(say.first(tcp::kRecordHeadBytes));
      const std::size_t bytes = tcp::kRecordHeadBytes + head.value().body_bytes;
      said_.emplace_back(say.begin(), say.begin() + static_cast<std::ptrdiff_t>(bytes));
      say = say.subspan(bytes);
    }
  }

  const JobKey key_;
  const bool is_accepting_;
  std::optional<tcp::Handshake> handshake_;
  std::vector<std::byte> heard_;             // the Hello that it took
  std::deque<std::vector<std::byte>> said_;  // records
  bool ended_ = false;
  bool failed_ = false;
};

// Two connections between members of a job, and one of a stranger, all through someone who does as the script says.
void shake_hands(Script script) {
  static constexpr const char* kKeys[] = {"the key", "the key", "the key", "the key", "no key", ""};
  std::deque<Member> members;
  for (std::uint8_t i = 0; i < 6; ++i) {
    members.emplace_back(i % 2 == 0 ? auth::Side::kConnecting : auth::Side::kAccepting, i,
                         kKeys[i]);
  }
  for (int step = 0; step < 60 && !script.done(); ++step) {
    Member& from = members[script.below(6)];
    Member& to = members[script.below(6)];
    if (from.said().empty()) continue;
    std::vector<std::byte> record = from.said()[script.below(
        static_cast<std::uint32_t>(from.said().size()))];  // also one that was delivered before
    const std::uint32_t what = script.below(8);
    if (what == 0) script.mutate(record);
    if (what == 1) record = script.bytes();
    to.take(record);
  }
  for (const Member& member : members) {
    if (!member.is_done()) continue;
    CHECK(std::any_of(members.begin(), members.end(), [&](const Member& other) {
      return &other != &member && member.fits(other);
    })) << "a handshake ended well without the one that it was with";
  }
}

// A place has one encoding, and none of another makes a machine that breaks something.
void read_place(Bytes bytes) {
  const std::optional<topology::Place> place = topology::decode(bytes);
  if (!place) return;
  const std::vector<std::byte> encoded = topology::encode(*place);
  CHECK(std::equal(encoded.begin(), encoded.end(), bytes.begin(), bytes.end()));
  const topology::Machine machine = topology::machine_of({*place, *place, topology::Place()});
  CHECK(topology::plan_of(machine).rate_mbps > 0);
}

void decode(std::uint8_t what, const std::uint8_t* data, std::size_t size) {
  const Bytes bytes = std::as_bytes(std::span(data, size));
  switch (what) {
    case 0:
      return round_trip(wire::decode_header, bytes);
    case 1:
      return round_trip(wire::decode_declare, bytes);
    case 2:
      return round_trip(wire::decode_text, bytes);
    case 3:
      return round_trip(wire::decode_join, bytes);
    case 4:
      return round_trip(wire::decode_roster, bytes);
    case 5:
      return round_trip(wire::decode_leave, bytes);
    case 6:
      return round_trip(wire::decode_barrier, bytes);
    case 7:
      return round_trip(wire::decode_hello, bytes);
    case 8:
      return read_record(bytes);
    case 9:
      return read_hello_body(bytes);
    case 10:
      return read_refusal(bytes);
    case 11:
      return read_prefix(bytes);
    case 12:
      return read_text(Script(data, size));
    case 13:
      return shake_hands(Script(data, size));
    case 14:
      return round_trip(wire::decode_stalled, bytes);
    case 15:
      return round_trip(wire::decode_heartbeat, bytes);
    case 16:
      return read_rdma(bytes);
    case 17:
      return round_trip(wire::decode_missing, bytes);
    case 18:
      return round_trip(wire::decode_adopt, bytes);
    case 19:
      return read_place(bytes);
  }
}

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size > 0)
    byteps::fuzz::decode(data[0] >= 16 && data[0] <= 19 ? data[0] : data[0] % 16, data + 1,
                         size - 1);
  return 0;
}
