// Handshake: what the two ends of a connection say before the first frame. Pure: whole records go in,
// records to send come out.
//
// Each side learns who the other one is (its Hello), that it belongs to the same job, speaks the same
// version of the protocol, and holds the same job key (net/auth.h). The accepting side proves first; so
// who connects sends nothing of value to a stranger, and whoever is accepted was asked.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/job_key.h"
#include "base/status.h"
#include "net/auth.h"
#include "net/tcp/record.h"
#include "net/transport.h"

namespace byteps::tcp {

class Handshake {
 public:
  // `self` is what this side says; the other side must have its version and its job_id. The key must
  // outlive the handshake.
  Handshake(auth::Side side, const Hello& self, const auth::Nonce& nonce, const JobKey& key);

  // The connecting side's first words. The accepting side waits.
  const std::vector<std::byte>& own_hello() const { return own_hello_; }

  // The other side's next record, head and body. Ok: `say`, which may be empty, is to be sent. Otherwise
  // the connection must end; wants_to_refuse() says whether the other side should be told why. The text
  // names neither side.
  Status take(RecordKind kind, std::span<const std::byte> record, std::vector<std::byte>& say);

  bool is_done() const { return stage_ == Stage::kDone; }
  // The other side has named our job, which strangers cannot guess when there is a key.
  bool knows_job() const { return stage_ != Stage::kHello; }
  // After an error: not when it was the other side that refused.
  bool wants_to_refuse() const { return !was_refused_; }
  const Hello& theirs() const { return theirs_; }  // once knows_job(); proven only when is_done()

 private:
  enum class Stage { kHello, kProof, kDone };  // which record comes next

  Status take_hello(std::span<const std::byte> record, std::vector<std::byte>& say);
  Status take_proof(std::span<const std::byte> said, std::vector<std::byte>& say);
  auth::Proof proof_of(auth::Side side) const;

  const auth::Side side_;
  const Hello self_;
  const JobKey& key_;
  const std::vector<std::byte> own_hello_;  // records
  std::vector<std::byte> their_hello_;
  Hello theirs_;
  Stage stage_ = Stage::kHello;
  bool was_refused_ = false;
};

}  // namespace byteps::tcp
