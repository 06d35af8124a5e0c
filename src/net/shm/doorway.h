// Doorway: how the two ends of an authenticated connection come to share memory, when they are on one host.
//
// They meet at an abstract Unix socket (unix(7)). Its name belongs to a network namespace and to no file system, so who
// can connect to it is on the same host and in the same namespace, and it is gone with its last descriptor.
//
//   one side                                                      the other
//   opens a doorway: a listening socket with a name of its own
//   invites, over the connection: name, token ..................→
//                                       connects to that name, makes a Segment,
//                                       and hands it in with the token
//   ←............................ ready, over the connection: it lies there
//   takes it in, maps it
//
// The token is 32 fresh random bytes that only the two ends of the connection know: whoever hands it in is that
// connection's other side. Both also want the other's user to be their own (SO_PEERCRED).
//
// Strangers. Nobody is let in before the other side has said that its things lie there; then all who wait are looked
// at once, and all but the right one are sent away. So a stranger gets nothing to be parsed but 32 bytes that are
// compared, and waits in the kernel's queue of a few, never in ours. Should they fill that queue, the connection goes
// on as it is.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>

#include "base/status.h"
#include "net/shm/segment.h"

namespace byteps::shm {

using Token = std::array<std::byte, 32>;

// A descriptor that is closed with its owner.
class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(other.release()) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return number_; }
  int release();
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

// What is said over the connection. The name is "byteps-", the beginning of the job's id, and 128 random bits.
struct Invitation {
  static constexpr std::size_t kNameBytes = 48;
  static constexpr std::size_t kBytes = kNameBytes + sizeof(Token);
  std::array<char, kNameBytes> name{};
  Token token{};
};
std::array<std::byte, Invitation::kBytes> encode(const Invitation& invitation);
Invitation decode_invitation(std::span<const std::byte, Invitation::kBytes> bytes);

// The memory, and the socket that remains between the two: a byte on it wakes the other side.
struct Meeting {
  Segment segment;
  Descriptor socket;
};

class Doorway {
 public:
  // kSystem: no descriptor, no randomness, no abstract sockets.
  static Result<Doorway> open(std::span<const std::byte> job_id);
  const Invitation& invitation() const { return invitation_; }
  // Once the other side is ready. kDisconnected: nobody with the token waits, or what it handed in is not usable.
  Result<Meeting> take();

 private:
  Doorway(Descriptor listener, const Invitation& invitation)
      : listener_(std::move(listener)), invitation_(invitation) {}
  Result<Meeting> look_at(Descriptor visitor) const;

  Descriptor listener_;
  Invitation invitation_;
};

// The other side: makes the memory and hands it in. kUnsupported: that place is not on this host. kMismatch: it is
// another user's. kSystem: there is no memory, or no descriptor.
Result<Meeting> answer(const Invitation& invitation, std::size_t ring_bytes);

}  // namespace byteps::shm
