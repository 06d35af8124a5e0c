// What messages say, in words: for the flight recorder, for a simulated run's trace, and as errors.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "net/wire.h"

namespace byteps {

// "Push", "Answer", ...; "unknown".
const char* message_name(wire::Kind kind);

// The header's facts: "Push, epoch 1, key 1a2b, part 0, round 7, offset 0, tag 3, count 2"; of a key its first 16 bits.
std::string header_text(const wire::Header& header);

// What is said of `why`, harmless for terminals and within the limits of a message.
wire::Text text_of(const Status& why);

// The error that a peer's Text says, at most `bytes_max` bytes of it. Never Ok or kAgain, whatever the peer says: those
// would mean that there is none. Its code is `otherwise` if the peer gave no error's.
Status error_of(const wire::Text& text, Code otherwise, std::size_t bytes_max = kTextBytesMax);

// What the payload says: the text of a Fail, who a Join is from, ... Strangers' text is made harmless. "" when there is
// nothing to say, "malformed" when it cannot be decoded.
std::string message_text(const wire::Header& header, std::span<const std::byte> payload);

// The same in two steps, for payloads that go to many: what all of them hear, and a roster's with what one hears.
std::string payload_text(const wire::Header& header, std::span<const std::byte> payload);
std::string roster_text(const wire::Header& header, const std::string& payload);

}  // namespace byteps
