#include "net/shm/doorway.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "net/auth.h"

namespace byteps::shm {
namespace {

constexpr int kBacklog = 16;
constexpr int kSocketKind = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;

struct Address {
  sockaddr_un storage{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Abstract: the name begins with a zero byte.
Address address_of(const Invitation& invitation) {
  Address address;
  address.storage.sun_family = AF_UNIX;
  std::memcpy(address.storage.sun_path + 1, invitation.name.data(), invitation.name.size());
  address.bytes =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + invitation.name.size());
  return address;
}

bool is_own_user(int socket) {
  ucred other{};
  socklen_t bytes = sizeof other;
  return ::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0 &&
         other.uid == ::geteuid();
}

void append_hex(std::string& to, std::span<const std::byte> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  for (const std::byte byte : bytes) {
    to += kDigits[std::to_integer<unsigned>(byte) >> 4];
    to += kDigits[std::to_integer<unsigned>(byte) & 15];
  }
}

// Room for one descriptor; the kernel closes what else may come.
union Control {
  cmsghdr head;
  std::byte bytes[CMSG_SPACE(sizeof(int))];
};

Status hand_in(int socket, const Token& token, int descriptor) {
  iovec piece{const_cast<std::byte*>(token.data()), token.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  control.head.cmsg_level = SOL_SOCKET;
  control.head.cmsg_type = SCM_RIGHTS;
  control.head.cmsg_len = CMSG_LEN(sizeof descriptor);
  std::memcpy(CMSG_DATA(&control.head), &descriptor, sizeof descriptor);
  const ssize_t sent = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent == static_cast<ssize_t>(token.size())) return Status::ok();
  if (sent < 0 && (errno == EPIPE || errno == ECONNRESET)) {
    return {Code::kUnsupported, "the other side has gone"};  // nothing to be mended here
  }
  return system_error("cannot pass on shared memory", sent < 0 ? errno : EAGAIN);
}

Descriptor passed_descriptor(const msghdr& message) {
  const cmsghdr* const head = CMSG_FIRSTHDR(&message);
  if (head == nullptr || head->cmsg_level != SOL_SOCKET || head->cmsg_type != SCM_RIGHTS ||
      head->cmsg_len < CMSG_LEN(sizeof(int))) {
    return Descriptor();
  }
  int number = -1;
  std::memcpy(&number, CMSG_DATA(head), sizeof number);
  return Descriptor(number);
}

}  // namespace

// ---- descriptors

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor::~Descriptor() {
  if (number_ >= 0) ::close(number_);
}

int Descriptor::release() {
  return std::exchange(number_, -1);
}

// ---- invitations

std::array<std::byte, Invitation::kBytes> encode(const Invitation& invitation) {
  std::array<std::byte, Invitation::kBytes> bytes;
  std::memcpy(bytes.data(), invitation.name.data(), Invitation::kNameBytes);
  std::memcpy(bytes.data() + Invitation::kNameBytes, invitation.token.data(), sizeof(Token));
  return bytes;
}

Invitation decode_invitation(std::span<const std::byte, Invitation::kBytes> bytes) {
  Invitation invitation;
  std::memcpy(invitation.name.data(), bytes.data(), Invitation::kNameBytes);
  std::memcpy(invitation.token.data(), bytes.data() + Invitation::kNameBytes, sizeof(Token));
  return invitation;
}

// ---- the side that invites

Result<Doorway> Doorway::open(std::span<const std::byte> job_id) {
  const Result<auth::Nonce> random_name = auth::fresh_nonce();
  if (!random_name.is_ok()) return random_name.status();
  const Result<auth::Nonce> token = auth::fresh_nonce();
  if (!token.is_ok()) return token.status();
  std::string name = "byteps-";
  append_hex(name, job_id.first(std::min<std::size_t>(job_id.size(), 4)));
  name += '-';
  append_hex(name, std::span(random_name.value()).first(16));
  Invitation invitation{.name = {}, .token = token.value()};
  std::copy_n(name.begin(), std::min(name.size(), invitation.name.size()), invitation.name.begin());

  Descriptor listener(::socket(AF_UNIX, kSocketKind, 0));
  const Address address = address_of(invitation);
  if (!listener || ::bind(listener.get(), address.get(), address.bytes) != 0 ||
      ::listen(listener.get(), kBacklog) != 0) {
    return system_error("no Unix socket", errno);
  }
  return Doorway(std::move(listener), invitation);
}

Result<Meeting> Doorway::take() {
  Status why(Code::kDisconnected, "it says that it has handed in shared memory, but has not");
  for (int i = 0; i <= kBacklog + 1; ++i) {
    Descriptor visitor(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!visitor) {
      if (errno == EMFILE || errno == ENFILE) why = system_error("accept4", errno);
      break;
    }
    Result<Meeting> meeting = look_at(std::move(visitor));
    if (meeting.is_ok()) return meeting;
    if (!meeting.status().is(Code::kUnsupported)) why = meeting.status();
  }
  return why;
}

// kUnsupported: a stranger.
Result<Meeting> Doorway::look_at(Descriptor visitor) const {
  const Status stranger(Code::kUnsupported, "a stranger");
  if (!is_own_user(visitor.get())) return stranger;
  Token token{};
  iovec piece{token.data(), token.size()};
  Control control{};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_LEN(sizeof(int));  // CMSG_SPACE would have room for a second one
  const ssize_t count = ::recvmsg(visitor.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (count < 0) return stranger;
  Descriptor memory = passed_descriptor(message);
  if (static_cast<std::size_t>(count) != token.size() || !memory ||
      !auth::is_equal(invitation_.token, token)) {
    return stranger;
  }
  Result<Segment> segment = Segment::open(memory.release());
  if (!segment.is_ok()) return segment.status();
  return Meeting{std::move(segment).value(), std::move(visitor)};
}

// ---- the side that is invited

Result<Meeting> answer(const Invitation& invitation, std::size_t ring_bytes) {
  Descriptor socket(::socket(AF_UNIX, kSocketKind, 0));
  if (!socket) return system_error("no Unix socket", errno);
  const Address address = address_of(invitation);
  if (::connect(socket.get(), address.get(), address.bytes) != 0) {
    if (errno == ECONNREFUSED) return Status(Code::kUnsupported, "not on this host");
    return system_error("cannot reach it through a Unix socket", errno);
  }
  if (!is_own_user(socket.get())) return Status(Code::kMismatch, "it belongs to another user");
  Result<Segment> segment = Segment::create(ring_bytes);
  if (!segment.is_ok()) return segment.status();
  const Status status = hand_in(socket.get(), invitation.token, segment.value().descriptor());
  if (!status.is_ok()) return status;
  return Meeting{std::move(segment).value(), std::move(socket)};
}

}  // namespace byteps::shm
