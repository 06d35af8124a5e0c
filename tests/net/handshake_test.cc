// Goal: only who holds the job key, in this very conversation, gets through. Method: two Handshakes talk to each
// other in memory, and an attacker that sees all of it changes, repeats or reflects records.
#include "net/tcp/handshake.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "net/wire.h"

namespace byteps::tcp {
namespace {

using auth::Side;
using Bytes = std::vector<std::byte>;

Hello hello_of(Role role, std::uint32_t rank, const JobKey& key, std::uint32_t epoch = 1,
               std::byte incarnation = {}) {
  Hello hello;
  hello.role = role;
  hello.rank = rank;
  hello.epoch = Epoch(epoch);
  hello.job_id = auth::job_id_of(key);
  hello.incarnation[0] = incarnation;
  return hello;
}

// One end, fed with bytes as they come from a stream.
class End {
 public:
  End(Side side, const Hello& self, const JobKey& key)
      : key_(key), handshake_(side, self, auth::fresh_nonce().value(), key_) {
    if (side == Side::kConnecting) say_ = handshake_.own_hello();
  }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  // What it has to say, once.
  Bytes say() { return std::exchange(say_, {}); }
  // The records in a row. Stops at the first that it does not like.
  Status hear(std::span<const std::byte> stream) {
    while (!stream.empty()) {
      const auto head = decode_record_head(stream.first(kRecordHeadBytes));
      if (!head.is_ok()) return head.status();
      const std::size_t bytes = kRecordHeadBytes + head.value().body_bytes;
      Bytes answer;
      const Status status = handshake_.take(head.value().kind, stream.first(bytes), answer);
      if (!status.is_ok()) return status;
      say_.insert(say_.end(), answer.begin(), answer.end());
      stream = stream.subspan(bytes);
    }
    return Status::ok();
  }
  const Handshake& handshake() const { return handshake_; }
  bool is_done() const { return handshake_.is_done(); }

 private:
  const JobKey key_;
  Handshake handshake_;
  Bytes say_;
};

const JobKey kKey("a key of the job, long enough");
const JobKey kOtherKey("a key of another job, as long");

class TwoEnds : public testing::Test {
 protected:
  static std::unique_ptr<End> worker(std::uint32_t rank = 3, const JobKey& key = kKey) {
    return std::make_unique<End>(Side::kConnecting, hello_of(Role::kWorker, rank, key), key);
  }
  static std::unique_ptr<End> server(std::uint32_t rank = 1, const JobKey& key = kKey) {
    return std::make_unique<End>(Side::kAccepting, hello_of(Role::kServer, rank, key), key);
  }
};

TEST_F(TwoEnds, with_the_same_key_learn_who_the_other_is_in_three_steps) {
  for (const JobKey& key : {kKey, JobKey()}) {
    const auto connecting = worker(3, key);
    const auto accepting = server(1, key);
    EXPECT_TRUE(accepting->say().empty()) << "who accepts waits";
    ASSERT_TRUE(accepting->hear(connecting->say()).is_ok());
    EXPECT_FALSE(accepting->is_done());
    ASSERT_TRUE(connecting->hear(accepting->say()).is_ok());
    EXPECT_TRUE(connecting->is_done());
    ASSERT_TRUE(accepting->hear(connecting->say()).is_ok());
    EXPECT_TRUE(accepting->is_done());
    EXPECT_EQ(connecting->handshake().theirs(), hello_of(Role::kServer, 1, key));
    EXPECT_EQ(accepting->handshake().theirs(), hello_of(Role::kWorker, 3, key));
  }
}

TEST_F(TwoEnds, with_different_keys_are_refused_with_the_variables_to_look_at) {
  const std::vector<std::pair<JobKey, JobKey>> pairs = {
      {kKey, kOtherKey}, {JobKey(), kKey}, {kKey, JobKey()}};
  for (const auto& [one, other] : pairs) {
    const auto connecting = worker(3, one);
    const auto accepting = server(1, other);
    const Status refused = accepting->hear(connecting->say());
    EXPECT_TRUE(refused.is(Code::kMismatch));
    EXPECT_EQ(refused.message(),
              "job keys differ: BYTEPS_JOB_KEY / BYTEPS_JOB_KEY_FILE must be the same for all "
              "processes of a job; if they are, bytes were damaged on the way");
    EXPECT_TRUE(accepting->handshake().wants_to_refuse());
    const Status told = connecting->hear(encode_refusal_record(refused));
    EXPECT_TRUE(told.is(Code::kMismatch));
    EXPECT_NE(told.message().find("BYTEPS_JOB_KEY_FILE"), std::string::npos);
    EXPECT_FALSE(connecting->handshake().wants_to_refuse()) << "a refusal is not answered";
    EXPECT_TRUE(refused.is_because_of(CauseKind::kKeysDiffer));
    EXPECT_TRUE(told.is_because_of(CauseKind::kKeysDiffer)) << "on both sides";
    EXPECT_TRUE(told.cause().is_of_peer && !refused.cause().is_of_peer);
  }
}

TEST_F(TwoEnds, who_forges_the_job_id_fails_at_the_proof_on_either_side) {
  const Hello forged = hello_of(Role::kWorker, 3, kKey);
  End liar(Side::kConnecting, forged, kOtherKey);
  const auto accepting = server();
  ASSERT_TRUE(accepting->hear(liar.say()).is_ok());
  const Status at_connecting = liar.hear(accepting->say());
  EXPECT_NE(at_connecting.message().find("the proof of the job key is wrong"), std::string::npos);
  // It goes on in spite of that, with a proof of its own making.
  EXPECT_FALSE(accepting->hear(encode_proof_record(auth::Proof{})).is_ok());
  EXPECT_FALSE(accepting->is_done());

  End impostor(Side::kAccepting, hello_of(Role::kServer, 1, kKey), kOtherKey);
  const auto connecting = worker();
  ASSERT_TRUE(impostor.hear(connecting->say()).is_ok());
  EXPECT_FALSE(connecting->hear(impostor.say()).is_ok());
  EXPECT_FALSE(connecting->is_done());
  EXPECT_TRUE(connecting->say().empty()) << "nothing is proved to one who has not";
}

TEST_F(TwoEnds, damage_on_the_way_is_never_called_a_wrong_key_alone) {
  // Each byte of the first Hello in turn, with and without a key.
  int keys_blamed = 0;
  for (const JobKey& key : {kKey, JobKey()}) {
    const std::vector<std::byte> hello = worker(3, key)->say();
    for (std::size_t at = kRecordHeadBytes; at < hello.size(); ++at) {
      const auto connecting = worker(3, key);
      const auto accepting = server(1, key);
      std::vector<std::byte> damaged = connecting->say();
      damaged[at] ^= std::byte{0x10};
      Status status = accepting->hear(damaged);
      if (status.is_ok()) status = connecting->hear(accepting->say());
      ASSERT_FALSE(status.is_ok()) << "byte " << at;
      const std::string& text = status.message();
      const bool blames_the_key = text.find("job key") != std::string::npos;
      EXPECT_EQ(blames_the_key, text.find("damaged on the way") != std::string::npos)
          << "byte " << at << ": " << text;
      keys_blamed += blames_the_key ? 1 : 0;
    }
  }
  EXPECT_GT(keys_blamed, 0);
}

TEST_F(TwoEnds, another_version_is_named_with_both_numbers) {
  Hello other = hello_of(Role::kWorker, 3, kKey);
  other.version = 13;
  End connecting(Side::kConnecting, other, kKey);
  const Status refused = server()->hear(connecting.say());
  EXPECT_TRUE(refused.is(Code::kMismatch));
  EXPECT_NE(refused.message().find("protocol version 13 cannot talk to version 12"),
            std::string::npos);
  EXPECT_TRUE(refused.is_because_of(CauseKind::kVersionsDiffer));
  other.version = 9;  // the last one that knows of no format
  End older(Side::kConnecting, other, kKey);
  const Status too_old = server()->hear(older.say());
  EXPECT_NE(too_old.message().find("protocol version 9 cannot talk to version 12"),
            std::string::npos);
}

// It reads the four bytes before the text as one number, and takes what it does not know for kMismatch.
TEST_F(TwoEnds, a_refusal_has_its_code_where_it_was_before_and_a_kind_behind_it) {
  const Bytes plain = encode_refusal_record({Code::kMismatch, "x"});
  EXPECT_EQ(Bytes(plain.begin() + kRecordHeadBytes, plain.end()),
            (Bytes{std::byte{7}, std::byte{0}, std::byte{0}, std::byte{0}, std::byte{'x'}}));
  const Bytes kind =
      encode_refusal_record({Code::kMismatch, "x", {.kind = CauseKind::kVersionsDiffer}});
  EXPECT_EQ(Bytes(kind.begin() + kRecordHeadBytes, kind.end()),
            (Bytes{std::byte{7}, std::byte{0}, std::byte{19}, std::byte{0}, std::byte{'x'}}));
}

// The Hello of worker 3 in epoch 1 of a job without a key, as version 2 of the protocol said it.
Bytes hello_record_of_version_2(Role role) {
  constexpr std::array<unsigned char, 62> kFields = {
      1, 1, 2,  0, 0, 0, 0, 0, 0, 0,  // version 2
      2, 1, 2,  0, 0, 0, 0, 0, 0, 0,  // role
      3, 1, 3,  0, 0, 0, 0, 0, 0, 0,  // rank 3
      4, 1, 1,  0, 0, 0, 0, 0, 0, 0,  // epoch 1
      5, 2, 16, 0, 0, 0,              // job_id, 16 bytes; behind it the end
  };
  Bytes record = {std::byte{'B'}, std::byte{'P'}, std::byte{'S'}, std::byte{'1'},
                  std::byte{1},   std::byte{0},   std::byte{94},  std::byte{0}};
  record.resize(kRecordHeadBytes + sizeof(auth::Nonce), std::byte{0x5a});
  for (const unsigned char byte : kFields) record.push_back(static_cast<std::byte>(byte));
  record[kRecordHeadBytes + sizeof(auth::Nonce) + 12] = static_cast<std::byte>(role);
  return record;
}

TEST_F(TwoEnds, bytes_of_version_2_are_refused_with_both_versions_on_both_sides) {
  const std::string words = "protocol version 2 cannot talk to version 12";
  // Who connects is of version 2: it reads the reason in a refusal, whose bytes are as they were then.
  const auto accepting = server(1, JobKey());
  const Status refused = accepting->hear(hello_record_of_version_2(Role::kWorker));
  EXPECT_TRUE(refused.is(Code::kMismatch));
  EXPECT_NE(refused.message().find(words), std::string::npos) << refused.message();
  EXPECT_TRUE(accepting->handshake().wants_to_refuse());
  EXPECT_TRUE(accepting->say().empty()) << "nothing is proved to it";
  const Bytes told = encode_refusal_record(refused);
  const std::string text(reinterpret_cast<const char*>(told.data()) + kRecordHeadBytes + 4,
                         told.size() - kRecordHeadBytes - 4);
  EXPECT_EQ(told[4], std::byte{2}) << "a refusal";
  EXPECT_NE(text.find(words), std::string::npos) << text;
  // Who accepts is of version 2.
  const auto connecting = worker(3, JobKey());
  const Status met = connecting->hear(hello_record_of_version_2(Role::kServer));
  EXPECT_TRUE(met.is(Code::kMismatch));
  EXPECT_NE(met.message().find(words), std::string::npos) << met.message();
}

TEST_F(TwoEnds, a_recorded_conversation_is_worth_nothing_the_next_time) {
  const auto connecting = worker();
  const auto accepting = server();
  const Bytes first = connecting->say();
  ASSERT_TRUE(accepting->hear(first).is_ok());
  const Bytes second = accepting->say();
  ASSERT_TRUE(connecting->hear(second).is_ok());
  const Bytes third = connecting->say();
  ASSERT_TRUE(accepting->hear(third).is_ok());
  // To a server: the same Hello is welcome, the same proof is not.
  const auto server_again = server();
  ASSERT_TRUE(server_again->hear(first).is_ok());
  EXPECT_FALSE(server_again->hear(third).is_ok());
  EXPECT_FALSE(server_again->is_done());
  // To a worker: likewise.
  const auto worker_again = worker();
  EXPECT_FALSE(worker_again->hear(second).is_ok());
  EXPECT_FALSE(worker_again->is_done());
}

TEST_F(TwoEnds, what_one_side_says_does_not_serve_as_the_others_answer) {
  // Back to who connected: its own Hello, and then its own words again.
  const auto connecting = worker();
  const Bytes hello = connecting->say();
  ASSERT_TRUE(connecting->hear(hello).is_ok()) << "as if from a worker of the same job";
  auth::Proof own = auth::prove(kKey, Side::kConnecting, hello, hello);
  EXPECT_FALSE(connecting->hear(encode_proof_record(own)).is_ok());

  // Back to who accepted: its own proof.
  const auto accepting = server();
  const auto other = worker();
  ASSERT_TRUE(accepting->hear(other->say()).is_ok());
  const Bytes said = accepting->say();
  EXPECT_FALSE(accepting->hear(std::span(said).last(kProofRecordBytes)).is_ok());
  EXPECT_FALSE(accepting->is_done());
}

TEST_F(TwoEnds, a_byte_changed_anywhere_on_the_way_ends_it) {
  Prng prng(4);
  const std::size_t hello_bytes = worker()->say().size();
  // Either side's Hello or proof, every byte of it.
  for (int direction = 0; direction < 2; ++direction) {
    for (std::size_t at = 0; at < hello_bytes + kProofRecordBytes; ++at) {
      const auto connecting = worker();
      const auto accepting = server();
      const auto change = static_cast<std::byte>(1 + prng.below(255));
      Bytes first = connecting->say();
      const bool lengths = at % hello_bytes == 6 || at % hello_bytes == 7;
      if (lengths)
        continue;  // then the stream is cut at other places; the transport's tests do that
      if (direction == 0 && at < hello_bytes) first[at] ^= change;
      if (!accepting->hear(first).is_ok()) continue;
      Bytes second = accepting->say();
      if (direction == 1 && at < second.size()) second[at] ^= change;
      if (!connecting->hear(second).is_ok()) continue;
      Bytes third = connecting->say();
      if (direction == 0 && at >= hello_bytes) third[at - hello_bytes] ^= change;
      EXPECT_FALSE(accepting->hear(third).is_ok() && accepting->is_done())
          << "direction " << direction << ", byte " << at;
    }
  }
}

TEST_F(TwoEnds, role_rank_epoch_and_incarnation_cannot_be_changed_on_the_way) {
  const auto replaced = [&](const Hello& other, auth::Nonce nonce) {
    return encode_hello_record(other, nonce);
  };
  const std::vector<Hello> others = {
      hello_of(Role::kScheduler, 3, kKey), hello_of(Role::kServer, 3, kKey),
      hello_of(Role::kWorker, 2, kKey), hello_of(Role::kWorker, 3, kKey, 2),
      hello_of(Role::kWorker, 3, kKey, 1, std::byte{1})};
  for (const Hello& other : others) {
    const auto connecting = worker();
    const auto accepting = server();
    const Bytes hello = connecting->say();
    auth::Nonce nonce;
    std::copy_n(hello.begin() + kRecordHeadBytes, nonce.size(), nonce.begin());
    ASSERT_TRUE(accepting->hear(replaced(other, nonce)).is_ok());
    EXPECT_FALSE(connecting->hear(accepting->say()).is_ok()) << other.text();
  }
}

TEST_F(TwoEnds, records_out_of_turn_end_it) {
  EXPECT_FALSE(server()->hear(encode_proof_record(auth::Proof{})).is_ok());
  EXPECT_FALSE(worker()->hear(encode_proof_record(auth::Proof{})).is_ok());
  const auto accepting = server();
  const Bytes hello = worker()->say();
  ASSERT_TRUE(accepting->hear(hello).is_ok());
  EXPECT_FALSE(accepting->hear(hello).is_ok()) << "a second Hello";
}

TEST_F(TwoEnds, nonces_never_repeat_and_the_key_is_in_nothing_that_is_said) {
  const auto one = worker();
  const auto two = worker();
  EXPECT_NE(one->say(), two->say());
  const auto connecting = worker();
  const auto accepting = server();
  Bytes all = connecting->say();
  ASSERT_TRUE(accepting->hear(all).is_ok());
  for (const std::byte byte : accepting->say()) all.push_back(byte);
  const auto secret = kKey.secret();
  EXPECT_EQ(std::search(all.begin(), all.end(), secret.begin(), secret.begin() + 8), all.end());
}

TEST(Record, has_no_more_room_than_its_kind_needs_and_all_of_them_together_4_kib) {
  const auto decoded = [](std::uint16_t kind, std::size_t body_bytes) {
    Bytes head = encode_proof_record({});
    head.resize(kRecordHeadBytes);
    head[4] = static_cast<std::byte>(kind);
    head[6] = static_cast<std::byte>(body_bytes);
    head[7] = static_cast<std::byte>(body_bytes >> 8);
    return decode_record_head(head);
  };
  const auto longest = [&](std::uint16_t kind) {
    std::size_t bytes = 0;
    for (std::size_t body_bytes = 0; body_bytes < 65536; ++body_bytes) {
      if (decoded(kind, body_bytes).is_ok()) bytes = kRecordHeadBytes + body_bytes;
    }
    return bytes;
  };
  EXPECT_EQ(longest(3), kProofRecordBytes);
  EXPECT_FALSE(decoded(3, 31).is_ok());
  EXPECT_EQ(longest(1) + std::max(longest(2), longest(3)), kRecordsBytesMax);
  EXPECT_EQ(longest(0) + longest(4), 0U) << "unknown kinds";
}

TEST(Refusal, is_cut_to_a_line_and_made_printable) {
  const std::string text = "\x1b[31m" + std::string(2000, 'x');
  const Bytes record = encode_refusal_record({Code::kMismatch, text});
  EXPECT_LE(record.size(), kRecordHeadBytes + 4 + frame::kRefusalTextBytesMax);
  Bytes long_body(4 + 3000, std::byte{'y'});
  const Status why = frame::decode_refusal(long_body);
  EXPECT_LE(why.message().size(), frame::kRefusalTextBytesMax + 20);
  EXPECT_EQ(
      frame::decode_refusal(std::span(record).subspan(kRecordHeadBytes)).message().find('\x1b'),
      std::string::npos);
}

TEST(Refusal, has_only_kinds_that_a_connection_may_end_for) {
  for (std::uint64_t number = 0; const auto kind = cause_kind_of(number); ++number) {
    const Bytes record = encode_refusal_record({Code::kSystem, "x", {.kind = *kind}});
    const Status why = frame::decode_refusal(std::span(record).subspan(kRecordHeadBytes));
    const bool may_be = *kind == CauseKind::kDamaged || *kind == CauseKind::kNoDescriptors ||
                        *kind == CauseKind::kNoMemory || *kind == CauseKind::kKeysDiffer ||
                        *kind == CauseKind::kVersionsDiffer;
    EXPECT_TRUE(why.is_because_of(may_be ? *kind : CauseKind::kOther)) << name(*kind);
    EXPECT_TRUE(why.is(Code::kSystem));
  }
  Bytes unknown(8, std::byte{0xff});
  unknown[0] = std::byte{6};
  unknown[1] = std::byte{0};
  EXPECT_TRUE(frame::decode_refusal(unknown).is_because_of(CauseKind::kOther));
  EXPECT_TRUE(frame::decode_refusal(unknown).is(Code::kSystem));
  EXPECT_TRUE(frame::decode_refusal(Bytes(3)).is_because_of(CauseKind::kOther));
}

}  // namespace
}  // namespace byteps::tcp
