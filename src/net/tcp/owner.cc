#include "net/tcp/owner.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <unistd.h>

namespace byteps::tcp {
namespace {

constexpr std::size_t kAnswerBytes = 4096;
constexpr int kLineBytes = 512;

// An address and port as the kernel's interfaces have them: words in the order of the network, IPv4 in the first.
struct Place {
  int family = AF_UNSPEC;
  std::array<std::uint32_t, 4> address{};
  in_port_t port = 0;  // in the order of the network

  bool operator==(const Place&) const = default;
};

Place place_of(const SocketAddress& from) {
  Place place;
  place.family = from.family();
  if (place.family == AF_INET) {
    sockaddr_in v4{};
    std::memcpy(&v4, &from.storage, sizeof v4);
    place.address[0] = v4.sin_addr.s_addr;
    place.port = v4.sin_port;
    return place;
  }
  sockaddr_in6 v6{};
  std::memcpy(&v6, &from.storage, sizeof v6);
  place.port = v6.sin6_port;
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {  // the other end may be a socket of IPv4
    place.family = AF_INET;
    std::memcpy(place.address.data(), v6.sin6_addr.s6_addr + 12, 4);
  } else {
    std::memcpy(place.address.data(), v6.sin6_addr.s6_addr, 16);
  }
  return place;
}

Status no_netlink(int error_number) {
  return {Code::kUnsupported, system_error("sock_diag", error_number).message()};
}

Status nobody_has_it() {
  return {Code::kDisconnected, "the other end was closed"};
}

struct Question {
  nlmsghdr head{};
  inet_diag_req_v2 body{};
};

Question question_of(const Place& theirs, const Place& ours) {
  Question question;
  question.head.nlmsg_len = sizeof question;
  question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.head.nlmsg_flags = NLM_F_REQUEST;
  inet_diag_req_v2& body = question.body;
  body.sdiag_family = static_cast<std::uint8_t>(theirs.family);
  body.sdiag_protocol = IPPROTO_TCP;
  body.idiag_states = ~0U;
  body.id.idiag_sport = theirs.port;
  body.id.idiag_dport = ours.port;
  std::memcpy(body.id.idiag_src, theirs.address.data(), sizeof body.id.idiag_src);
  std::memcpy(body.id.idiag_dst, ours.address.data(), sizeof body.id.idiag_dst);
  body.id.idiag_cookie[0] = INET_DIAG_NOCOOKIE;
  body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  return question;
}

Result<uid_t> read_answer(std::span<const std::byte> answer, const Question& question) {
  nlmsghdr head{};
  if (answer.size() < sizeof head) return nobody_has_it();
  std::memcpy(&head, answer.data(), sizeof head);
  if (head.nlmsg_type == NLMSG_ERROR) {
    int code = 0;  // nlmsgerr begins with it
    if (answer.size() < sizeof head + sizeof code) return nobody_has_it();
    std::memcpy(&code, answer.data() + sizeof head, sizeof code);
    return no_netlink(-code);  // ENOENT also when the kernel's module for TCP is missing
  }
  inet_diag_msg found{};
  if (answer.size() < sizeof head + sizeof found) return nobody_has_it();
  std::memcpy(&found, answer.data() + sizeof head, sizeof found);
  // Where the connection is gone the kernel answers with whoever listens there; of a socket without a process it says
  // that it is root's.
  if (found.id.idiag_dport != question.body.id.idiag_dport || found.idiag_inode == 0) {
    return nobody_has_it();
  }
  return found.idiag_uid;
}

// A line of /proc/net/tcp or tcp6: words of an address in the order of this machine, ports as numbers.
bool parse_line(const char* line, int family, Place& local, Place& remote, unsigned& uid,
                unsigned long& inode) {
  std::array<char, 33> from{};
  std::array<char, 33> to{};
  unsigned from_port = 0;
  unsigned to_port = 0;
  const int count =
      std::sscanf(line, "%*u: %32[0-9A-F]:%x %32[0-9A-F]:%x %*x %*s %*s %*s %u %*u %lu",
                  from.data(), &from_port, to.data(), &to_port, &uid, &inode);
  if (count != 6) return false;
  const auto fill = [&](const char* text, unsigned port, Place& place) {
    place = {.family = family, .address = {}, .port = htons(static_cast<std::uint16_t>(port))};
    const int words = family == AF_INET ? 1 : 4;
    for (int i = 0; i < words; ++i) {
      if (std::sscanf(text + 8 * i, "%8" SCNx32, &place.address[static_cast<std::size_t>(i)]) != 1)
        return false;
    }
    // IPv4 through a socket of IPv6.
    if (family == AF_INET6 && place.address[0] == 0 && place.address[1] == 0 &&
        place.address[2] == htonl(0xffff)) {
      place = {.family = AF_INET, .address = {place.address[3]}, .port = place.port};
    }
    return true;
  };
  return fill(from.data(), from_port, local) && fill(to.data(), to_port, remote);
}

}  // namespace

Result<uid_t> owner_by_netlink(const SocketAddress& remote, const SocketAddress& local) {
  const int descriptor = ::socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (descriptor < 0) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
      return system_error("whose connection it is cannot be asked", errno);
    return no_netlink(errno);
  }
  const Question question = question_of(place_of(remote), place_of(local));
  std::array<std::byte, kAnswerBytes> answer;
  ssize_t bytes = ::send(descriptor, &question, sizeof question, MSG_DONTWAIT);
  // The kernel has answered before send() returns.
  if (bytes >= 0) bytes = ::recv(descriptor, answer.data(), answer.size(), MSG_DONTWAIT);
  const int why = errno;
  ::close(descriptor);
  if (bytes < 0) return no_netlink(why);
  return read_answer(std::span(answer).first(static_cast<std::size_t>(bytes)), question);
}

Result<uid_t> owner_by_tables(const SocketAddress& remote, const SocketAddress& local) {
  const Place theirs = place_of(remote);
  const Place ours = place_of(local);
  bool has_table = false;
  for (const int family : {AF_INET, AF_INET6}) {
    const char* const path = family == AF_INET ? "/proc/net/tcp" : "/proc/net/tcp6";
    const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path, "re"), std::fclose);
    if (!file) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) return system_error(path, errno);
      continue;
    }
    has_table = true;
    std::array<char, kLineBytes> line;
    while (std::fgets(line.data(), kLineBytes, file.get()) != nullptr) {
      Place from;
      Place to;
      unsigned uid = 0;
      unsigned long inode = 0;
      if (!parse_line(line.data(), family, from, to, uid, inode)) continue;
      if (from == theirs && to == ours && inode != 0) return uid_t{uid};
    }
  }
  if (!has_table) return Status(Code::kUnsupported, "neither sock_diag nor /proc/net/tcp is here");
  return nobody_has_it();
}

Result<uid_t> owner_of(const SocketAddress& remote, const SocketAddress& local) {
  Result<uid_t> owner = owner_by_netlink(remote, local);
  if (owner.is_ok() || !owner.status().is(Code::kUnsupported)) return owner;
  return owner_by_tables(remote, local);
}

Status check_owner(int descriptor) {
  SocketAddress remote;
  SocketAddress local;
  remote.bytes = local.bytes = sizeof remote.storage;
  // Of a connection that was reset there is no other end; so nobody makes us read tables by resetting theirs.
  if (::getpeername(descriptor, remote.get(), &remote.bytes) != 0 ||
      ::getsockname(descriptor, local.get(), &local.bytes) != 0) {
    return nobody_has_it();
  }
  const Result<uid_t> owner = owner_of(remote, local);
  if (owner.is_ok() && owner.value() == ::geteuid()) return Status::ok();
  constexpr const char* kRemedy =
      "; a job without a job key is for one user: set BYTEPS_JOB_KEY_FILE for all its processes "
      "(bpslaunch does), or BYTEPS_INSECURE=1";
  if (owner.is_ok()) {
    return {Code::kMismatch, "it belongs to another user of this machine (uid " +
                                 std::to_string(owner.value()) + ", not " +
                                 std::to_string(::geteuid()) + ")" + kRemedy};
  }
  if (!owner.status().is(Code::kUnsupported)) return owner.status();
  return {Code::kMismatch,
          "nobody can tell which user it belongs to (" + owner.status().message() + ")" + kRemedy};
}

}  // namespace byteps::tcp
