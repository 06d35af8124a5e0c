#include "net/tcp/handshake.h"

#include <string>

namespace byteps::tcp {
namespace {

constexpr const char* kKeysDiffer =
    "job keys differ: BYTEPS_JOB_KEY / BYTEPS_JOB_KEY_FILE must be the same for all processes of a "
    "job; if they are, bytes were damaged on the way";
// Both named the same job, which is an image of the key.
constexpr const char* kNoProof =
    "the proof of the job key is wrong, though the job is the same: bytes were damaged on the way, "
    "or changed by someone, or the other side only claims to have the key";

auth::Side other(auth::Side side) {
  return side == auth::Side::kConnecting ? auth::Side::kAccepting : auth::Side::kConnecting;
}

Status check(const Hello& theirs, const Hello& ours) {
  if (theirs.version != ours.version) {
    return {Code::kMismatch,
            "protocol version " + std::to_string(theirs.version) + " cannot talk to version " +
                std::to_string(ours.version) +
                ": all processes of a job need the same version of byteps",
            {.kind = CauseKind::kVersionsDiffer}};
  }
  if (theirs.job_id != ours.job_id)
    return {Code::kMismatch, kKeysDiffer, {.kind = CauseKind::kKeysDiffer}};
  return Status::ok();
}

}  // namespace

Handshake::Handshake(auth::Side side, const Hello& self, const auth::Nonce& nonce,
                     const JobKey& key)
    : side_(side), self_(self), key_(key), own_hello_(encode_hello_record(self, nonce)) {}

Status Handshake::take(RecordKind kind, std::span<const std::byte> record,
                       std::vector<std::byte>& say) {
  say.clear();
  if (kind == RecordKind::kRefusal) {
    was_refused_ = true;
    return frame::decode_refusal(record.subspan(kRecordHeadBytes));
  }
  if (kind == RecordKind::kHello && stage_ == Stage::kHello) return take_hello(record, say);
  if (kind == RecordKind::kProof && stage_ == Stage::kProof) {
    return take_proof(record.subspan(kRecordHeadBytes), say);
  }
  return {Code::kMismatch, "it began with records in the wrong order"};
}

Status Handshake::take_hello(std::span<const std::byte> record, std::vector<std::byte>& say) {
  const Result<Hello> hello = decode_hello_body(record.subspan(kRecordHeadBytes));
  if (!hello.is_ok()) return hello.status();
  if (Status status = check(hello.value(), self_); !status.is_ok()) return status;
  theirs_ = hello.value();
  their_hello_.assign(record.begin(), record.end());
  stage_ = Stage::kProof;
  if (side_ == auth::Side::kConnecting) return Status::ok();
  say = own_hello_;
  const std::vector<std::byte> proof = encode_proof_record(proof_of(side_));
  say.insert(say.end(), proof.begin(), proof.end());
  return Status::ok();
}

Status Handshake::take_proof(std::span<const std::byte> said, std::vector<std::byte>& say) {
  if (!auth::is_equal(proof_of(other(side_)), said)) {
    return {Code::kMismatch, kNoProof, {.kind = CauseKind::kKeysDiffer}};
  }
  stage_ = Stage::kDone;
  if (side_ == auth::Side::kConnecting) say = encode_proof_record(proof_of(side_));
  return Status::ok();
}

auth::Proof Handshake::proof_of(auth::Side side) const {
  return side_ == auth::Side::kConnecting ? auth::prove(key_, side, own_hello_, their_hello_)
                                          : auth::prove(key_, side, their_hello_, own_hello_);
}

}  // namespace byteps::tcp
