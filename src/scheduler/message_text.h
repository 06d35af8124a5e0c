// MessageText: what a control message says, in a line for the flight recorder.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "net/wire.h"

namespace byteps {

const char* message_name(wire::Kind kind);

// What the payload says: the text of a Fail, who a Join is from, ... Strangers' text is made harmless. "" when there is
// nothing to say, "malformed" when it cannot be decoded.
std::string message_text(const wire::Header& header, std::span<const std::byte> payload);

// The same in two steps, for payloads that go to many: what all of them hear, and a roster's with what one hears.
std::string payload_text(const wire::Header& header, std::span<const std::byte> payload);
std::string roster_text(const wire::Header& header, const std::string& payload);

}  // namespace byteps
