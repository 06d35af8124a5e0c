// How the two ends of a connection prove to each other that they hold the job key, without showing it.
//
// Each says a nonce (32 random bytes that were never used before) in its Hello. Then each proves:
//
//   proof = HMAC-SHA256(job key, label of its side | the connecting side's Hello | the accepting side's Hello)
//
// where a Hello is the whole record with its nonce (net/frame/frame.h), which says its own length. So a proof
// fits this one conversation only: another nonce, version, job, incarnation, role, rank or epoch on either side makes
// another proof (no replay), and one side's proof is not the other's (no reflection). Without a job key the
// key is empty and the exchange is the same; it then proves nothing.
//
// The same key seals what one member says to others through a server, where whoever receives it must know whose it
// is before it looks inside (a pickle runs code):
//
//   seal = HMAC-SHA256(job key, its label | epoch u32 | rank u32 | bytes of the name u32 | name | payload)
//
// numbers little-endian. So it fits one payload of one rank under one name in one life of the job. Members give each
// payload a name of its own, with a number that counts up: an older one then fits nothing that is asked for.
//
// What it does not do: the frames that follow are not encrypted, and whoever can change packets on the way
// can change them. docs/design/0004-authentication.md.
#pragma once

#include <array>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <string_view>

#include "base/ids.h"
#include "base/job_key.h"
#include "base/status.h"

namespace byteps::auth {

using Nonce = std::array<std::byte, 32>;
using Proof = std::array<std::byte, 32>;
using JobId = std::array<std::byte, 16>;

enum class Side { kConnecting, kAccepting };

// What Hellos call the job: equal for equal keys, and useless for finding the key. Zero without a key.
JobId job_id_of(const JobKey& key);

// From the kernel's generator; at most 256 bytes. kSystem: it has none.
Status fill_random(std::span<std::byte> bytes);
Result<Nonce> fresh_nonce();

// The proof of that side. The Hellos are whole records.
Proof prove(const JobKey& key, Side side, std::span<const std::byte> connecting_hello,
            std::span<const std::byte> accepting_hello);

// What a seal is bound to beside the payload.
struct SealedFor {
  Epoch epoch;
  WorkerRank rank;  // who has sealed it
  std::string_view name;
  Incarnation incarnation{};  // of the job
};

Proof seal(const JobKey& key, const SealedFor& bound, std::span<const std::byte> payload);

// Takes as long for wrong proofs as for right ones, whereever they differ.
bool is_equal(const Proof& expected, std::span<const std::byte> said);

// HMAC-SHA256 of the pieces in a row, RFC 2104.
Proof hmac_sha256(std::span<const std::byte> key,
                  std::initializer_list<std::span<const std::byte>> pieces);

}  // namespace byteps::auth
