// Cause: what ended a job or an operation, or why somebody was refused, as facts.
//
// It stands beside the sentence of a Status (status.h), travels with it (wire::Text), and is written into flight
// recordings (flight.h). People read the sentence; programs go by the facts: none takes a sentence apart. A kind says
// what happened and, with it, what can be done; it is the root, not what followed from it: a server that cannot be
// reached because this process may open no more files is kNoDescriptors.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/ids.h"
#include "base/time.h"

namespace byteps {

// Numbers are part of the protocol, names of the recordings: neither is given a new meaning. docs/flight.md has them.
enum class CauseKind : std::uint8_t {
  kOther = 0,  // what has no kind of its own: the sentence says it
  // What became of a process, as others see it.
  kGone = 1,         // its connection ended, and it did not come back
  kSilent = 2,       // its connection is open, and it says nothing
  kUnreachable = 3,  // no connection to it comes about
  kStartedAnew = 4,  // another life of it answers in its place
  kLeft = 5,         // it left while others needed it
  kDamaged = 6,      // what came from it was damaged on the way
  // What a process cannot go on for.
  kToldToStop = 7,     // a signal
  kStandsStill = 8,    // one of its threads neither works nor answers
  kNoDescriptors = 9,  // it may open no more files
  kNoMemory = 10,
  // What the ranks do.
  kTensorDiffers = 11,  // they disagree about a tensor
  kStalled = 12,        // all wait, and none can go on
  kStallTimeout = 13,   // nothing has moved for as long as the user wants to wait
  // Why a job does not begin.
  kIncomplete = 14,   // somebody did not come
  kSizesDiffer = 15,  // workers disagree about how many they are
  kTurnedAway = 16,   // the scheduler has no place for it: a rank claimed twice, or beyond the job
  kRefused = 17,      // whoever is there does not want to talk to it
  kKeysDiffer = 18,
  kVersionsDiffer = 19,
  // What is wrong with a process's settings.
  kSettingMissing = 20,
  kSettingInvalid = 21,
  kJobKey = 22,  // there is none where one is needed, or it is unfit
  kCannotListen = 23,
  // The program on a rank.
  kRaised = 24,       // ended with an exception
  kInterrupted = 25,  // Ctrl-C
  // What became of a server that was lost for a while.
  kReplaced = 26,  // another one has its place
};
inline constexpr auto kCauseKindLast = CauseKind::kReplaced;

// "gone", "no_descriptors".
const char* name(CauseKind kind);
// None: no kind has this number.
std::optional<CauseKind> cause_kind_of(std::uint64_t number);

// A process of the job, as far as it is known.
struct Participant {
  std::optional<Role> role{};  // none: nobody is meant
  std::uint32_t rank = kNoRank;
  std::string host{};  // "host:pid"
  bool operator==(const Participant&) const = default;
};

struct Cause {
  CauseKind kind = CauseKind::kOther;
  Participant who{};      // whose fate or fault it is; nobody: of whoever says it
  Participant told_by{};  // who found it, where another one passes it on
  TimeNs for_ns = 0;      // it had been so for this long when it was found; 0: does not say
  // What, or why: a tensor's name, a variable's, the words of the network, or of the member that tells it.
  std::string detail{};
  // Of the end of a connection: it is so at the other end, not here. Whose end that is the connection's owner knows,
  // and says in `who`; so this does not travel.
  bool is_of_peer = false;
  // kIncomplete: the ranks of those who did not come, ascending.
  std::vector<std::uint32_t> missing_workers{};
  std::vector<std::uint32_t> missing_servers{};
  bool operator==(const Cause&) const = default;
};

}  // namespace byteps
