// Shared memory under a connection: that it is used, and that nothing the other side or a stranger does to it has worse
// effects than the end of one connection. The conformance suite holds it to the transport's contract.
#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/prng.h"
#include "net/auth.h"
#include "net/shm/doorway.h"
#include "net/shm/link.h"
#include "net/shm/ring.h"
#include "net/shm/segment.h"
#include "tests/net/tcp_peer.h"

namespace byteps {
namespace {

constexpr std::size_t kRingBytes = 256 << 10;

PeerOptions sharing(PeerOptions options = {}) {
  options.shared_ring_bytes = kRingBytes;
  return options;
}

// Two transports on one host, turned in step.
class Pair {
 public:
  explicit Pair(PeerOptions server_options = sharing(loopback_options()),
                PeerOptions client_options = sharing())
      : server(std::move(server_options)), client(std::move(client_options)) {
    out = client.transport().connect(server.address(), hello_of(Role::kWorker, 0)).value();
    EXPECT_TRUE(until([&] {
      return server.count(Event::Kind::kUp) == 1 && client.count(Event::Kind::kUp) == 1;
    }));
    if (!server.seen().empty()) in = server.seen().at(0).peer;
  }

  bool until(const std::function<bool()>& done) {
    for (int i = 0; i < 5'000; ++i) {
      if (done()) return true;
      const bool quiet = server.poll() + client.poll() == 0;
      if (quiet) client.transport().waiter().wait(kMillisecond);
    }
    return done();
  }
  void settle() {
    for (int i = 0; i < 20; ++i) {
      if (server.poll() + client.poll() == 0) client.transport().waiter().wait(kMillisecond);
    }
  }
  // A message from the client arrives whole; which way it takes is told by ways().
  bool passes(std::size_t bytes, bool bulk = true) {
    const Bytes payload = numbered(bytes, ++sent_);
    const std::size_t before = server.count(Event::Kind::kReceived);
    if (!client.transport()
             .send(out, {.header = {}, .payload = payload, .bulk = bulk, .token = sent_})
             .is_ok()) {
      return false;
    }
    return until([&] { return server.count(Event::Kind::kReceived) == before + 1; }) &&
           server.seen().back().payload == payload;
  }

  TurnedTcp server;
  TurnedTcp client;
  PeerId out;
  PeerId in;

 private:
  std::size_t sent_ = 0;
};

std::size_t descriptor_count() {
  std::size_t count = 0;
  for (int number = 0; number < 1024; ++number) count += ::fcntl(number, F_GETFD) >= 0 ? 1 : 0;
  return count;
}

// ---- that it is used

TEST(SharedMemory, two_ends_on_one_host_use_it_and_say_so) {
  Pair pair;
  pair.settle();
  ASSERT_TRUE(pair.passes(100'000));
  EXPECT_EQ(pair.client.transport().ways().shared_bytes, 100'000U);
  EXPECT_EQ(pair.server.transport().ways().shared_bytes, 100'000U);
  EXPECT_EQ(pair.client.transport().outbound_ways().shared_bytes, 100'000U);
  EXPECT_EQ(pair.server.transport().outbound_ways().shared_bytes, 0U) << "it was connected to";
  EXPECT_NE(pair.client.log().find("goes on through shared memory"), std::string::npos);
  EXPECT_NE(pair.server.log().find("goes on through shared memory"), std::string::npos);
}

TEST(SharedMemory, what_the_way_holds_is_told_from_when_it_is_used_until_its_end) {
  Pair pair;
  pair.settle();
  EXPECT_EQ(pair.client.transport().capacity_bytes(pair.out), kRingBytes);
  EXPECT_EQ(pair.server.transport().capacity_bytes(pair.in), kRingBytes);
  pair.client.transport().close(pair.out, {Code::kCancelled, "leaving"});
  EXPECT_EQ(pair.client.transport().capacity_bytes(pair.out), 0U);
  EXPECT_EQ(pair.client.transport().capacity_bytes(PeerId(77)), 0U) << "nobody";
  Pair over_tcp(loopback_options(), PeerOptions());
  over_tcp.settle();
  EXPECT_EQ(over_tcp.client.transport().capacity_bytes(over_tcp.out), 0U);
}

TEST(SharedMemory, tensor_bytes_are_given_out_where_they_lie_and_words_are_copied) {
  Pair pair;
  pair.settle();
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, kPrivateBytesMax}) {
    ASSERT_TRUE(pair.passes(bytes, true));
    EXPECT_TRUE(pair.server.seen().back().is_shared) << bytes;
    ASSERT_TRUE(pair.passes(bytes, false));
    EXPECT_FALSE(pair.server.seen().back().is_shared) << bytes;
  }
  ASSERT_TRUE(pair.passes(2 * kPrivateBytesMax, true));
  EXPECT_TRUE(pair.server.seen().back().is_shared);
  ASSERT_TRUE(pair.passes(0, true));
  EXPECT_FALSE(pair.server.seen().back().is_shared) << "there is nothing to change";
  EXPECT_EQ(pair.server.transport().ways().shared_bytes, 2 * (1 + 4096) + 4 * kPrivateBytesMax);
}

TEST(SharedMemory, messages_before_and_behind_the_switch_keep_their_order) {
  Pair pair;
  std::vector<Bytes> payloads;
  for (std::size_t i = 0; i < 200; ++i) payloads.push_back(numbered(1 + i * 37, i));
  std::size_t sent = 0;
  ASSERT_TRUE(pair.until([&] {
    if (sent < payloads.size() &&
        pair.client.transport()
            .send(pair.out, {.header = {}, .payload = payloads[sent], .bulk = true, .token = sent})
            .is_ok()) {
      ++sent;
    }
    return pair.server.count(Event::Kind::kReceived) == payloads.size();
  }));
  std::size_t number = 0;
  for (const auto& event : pair.server.seen()) {
    if (event.kind != Event::Kind::kReceived) continue;
    EXPECT_TRUE(event.payload == payloads[number]) << "message " << number;
    ++number;
  }
  EXPECT_GT(pair.client.transport().ways().shared_bytes, 0U);
}

TEST(SharedMemory, either_side_that_does_not_want_it_leaves_the_connection_on_tcp) {
  for (const bool server_wants : {false, true}) {
    Pair pair(server_wants ? sharing(loopback_options()) : loopback_options(),
              server_wants ? PeerOptions() : sharing());
    pair.settle();
    EXPECT_TRUE(pair.passes(50'000));
    EXPECT_EQ(
        pair.client.transport().ways().shared_bytes + pair.server.transport().ways().shared_bytes,
        0U);
    EXPECT_EQ(pair.client.log() + pair.server.log(), "");
  }
}

TEST(SharedMemory, a_ring_of_no_possible_size_is_an_invalid_argument) {
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{100'000}, std::size_t{1} << 30}) {
    PeerOptions options;
    options.shared_ring_bytes = bytes;
    EXPECT_TRUE(make_transport(options, Log("test", LogLevel::kSilent, {}))
                    .status()
                    .is(Code::kInvalidArgument))
        << bytes;
  }
}

TEST(SharedMemory, a_doze_ends_with_patience_and_with_a_small_message) {
  Pair pair;
  ASSERT_TRUE(pair.passes(100));
  pair.settle();
  Waiter& waiter = pair.server.transport().waiter();
  waiter.doze(kNever, kMillisecond);  // returns
  bool has_ended = false;
  std::thread dozing([&] {
    waiter.doze(kNever, 100 * kSecond);
    has_ended = true;
  });
  const Bytes payload = numbered(100, 1);
  ASSERT_TRUE(pair.client.transport()
                  .send(pair.out, {.header = {}, .payload = payload, .bulk = true, .token = 99})
                  .is_ok());
  pair.client.poll();
  dozing.join();
  EXPECT_TRUE(has_ended);
  EXPECT_TRUE(pair.until([&] { return pair.server.count(Event::Kind::kReceived) == 2; }));
}

TEST(SharedMemory, nothing_is_left_when_connections_have_ended) {
  TurnedTcp server(sharing(loopback_options()));
  const std::size_t before = descriptor_count();
  for (int i = 0; i < 3; ++i) {
    TurnedTcp client(sharing());
    const PeerId peer =
        client.transport().connect(server.address(), hello_of(Role::kWorker, 0)).value();
    for (int turn = 0; turn < 2'000 && client.log().find("goes on") == std::string::npos; ++turn) {
      if (server.poll() + client.poll() == 0) client.transport().waiter().wait(kMillisecond);
    }
    client.transport().close(peer, {Code::kCancelled, "enough"});
    ASSERT_TRUE(server.until([&] {
      client.poll();
      return server.count(Event::Kind::kDown) == static_cast<std::size_t>(i) + 1;
    }));
  }
  server.settle();
  EXPECT_EQ(descriptor_count(), before);
  EXPECT_EQ(server.transport().ways().shared_bytes, 0U);
}

// A forked child inherits neither the memory nor a way to keep it.
// Whether this process has memory of a memfd.
bool maps_memory_file() {
  std::ifstream maps("/proc/self/maps");
  const std::string text((std::istreambuf_iterator<char>(maps)), std::istreambuf_iterator<char>());
  return text.find("memfd:") != std::string::npos;
}

TEST(SharedMemory, a_forked_child_has_no_copy_of_it) {
  shm::Segment segment = std::move(shm::Segment::create(kRingBytes)).value();
  ASSERT_TRUE(maps_memory_file());
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(maps_memory_file() ? 1 : 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

// ---- when it cannot be had

// Restores the limit; a file of that size would be refused, and SIGXFSZ sent.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    (void)::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileSizeLimit() { (void)::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(SharedMemory, without_memory_the_connection_goes_on_over_tcp_with_one_warning) {
  const FileSizeLimit limit(100'000);
  Pair pair;
  pair.settle();
  EXPECT_TRUE(pair.passes(50'000));
  EXPECT_EQ(pair.server.transport().ways().shared_bytes, 0U);
  const std::string& log = pair.server.log();
  const std::size_t at = log.find("goes on over TCP");
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find("goes on over TCP", at + 1), std::string::npos) << log;
  EXPECT_NE(log.find("File too large"), std::string::npos) << log;
  EXPECT_NE(log.find("BYTEPS_ENABLE_IPC=0"), std::string::npos) << log;
  EXPECT_EQ(pair.client.log(), "");
}

TEST(SharedMemory, another_connection_tries_again) {
  TurnedTcp server(sharing(loopback_options()));
  {
    const FileSizeLimit limit(100'000);
    TurnedTcp client(sharing());
    (void)client.transport().connect(server.address(), hello_of(Role::kWorker, 0)).value();
    ASSERT_TRUE(server.until([&] {
      client.poll();
      return server.log().find("goes on over TCP") != std::string::npos;
    }));
  }
  TurnedTcp client(sharing());
  (void)client.transport().connect(server.address(), hello_of(Role::kWorker, 0)).value();
  EXPECT_TRUE(server.until([&] {
    client.poll();
    return server.log().find("goes on through shared memory") != std::string::npos;
  }));
}

// ---- the memory that the other side hands in

int memory_of(std::size_t bytes, int seals) {
  const int descriptor = ::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(::ftruncate(descriptor, static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(::fcntl(descriptor, F_ADD_SEALS, seals), 0);
  return descriptor;
}

TEST(Segment, only_memory_that_cannot_be_taken_away_is_opened) {
  constexpr std::size_t kRight = shm::Segment::kControlBytes + 2 * kRingBytes;
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_TRUE(shm::Segment::open(memory_of(kRight, kSeals)).is_ok());
  EXPECT_FALSE(shm::Segment::open(memory_of(kRight, F_SEAL_GROW)).is_ok()) << "it may shrink";
  EXPECT_FALSE(shm::Segment::open(memory_of(kRight, kSeals | F_SEAL_SEAL)).is_ok())
      << "holes may be made";
  EXPECT_FALSE(shm::Segment::open(memory_of(kRight + 4096, kSeals)).is_ok());
  EXPECT_FALSE(shm::Segment::open(memory_of(kRight / 2, kSeals)).is_ok());
  EXPECT_FALSE(shm::Segment::open(memory_of(0, kSeals)).is_ok());
  EXPECT_FALSE(shm::Segment::open(::open("/dev/zero", O_RDWR | O_CLOEXEC)).is_ok());
  EXPECT_FALSE(shm::Segment::open(::dup(0)).is_ok());
}

TEST(Segment, who_made_it_does_not_believe_that_it_is_sealed) {
  shm::Segment segment = std::move(shm::Segment::create(kRingBytes)).value();
  EXPECT_FALSE(segment.seal_checked().is_ok());
  const int passed = ::dup(segment.descriptor());
  const shm::Segment opened = std::move(shm::Segment::open(passed)).value();
  const int other = ::dup(segment.descriptor());
  EXPECT_TRUE(segment.seal_checked().is_ok());
  EXPECT_EQ(segment.descriptor(), -1);
  // What could make a page vanish.
  EXPECT_NE(::ftruncate(other, 0), 0);
  EXPECT_NE(::fallocate(other, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
  EXPECT_EQ(::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0), MAP_FAILED);
  EXPECT_NE(::madvise(opened.ring(0).bytes, 4096, MADV_REMOVE), 0);
  ::close(other);
}

TEST(Ring, what_is_written_in_pieces_comes_out_in_order_around_the_end) {
  shm::Segment segment = std::move(shm::Segment::create(shm::Segment::kRingBytesMin)).value();
  shm::RingWriter writer(segment.ring(0));
  shm::RingReader reader(segment.ring(0));
  Prng prng(3);
  std::size_t written = 0;
  std::size_t read = 0;
  const Bytes all = numbered(1 << 20);
  while (read < all.size()) {
    const std::size_t wish = std::min<std::size_t>(1 + prng.below(30'000), all.size() - written);
    if (wish > 0 && writer.has_room(wish)) {
      std::memcpy(writer.place(), all.data() + written, wish);
      writer.publish(wish);
      written += wish;
    }
    const auto readable = reader.readable();
    const std::size_t taken = std::min<std::size_t>(readable.size(), prng.below(30'000));
    ASSERT_TRUE(std::equal(readable.begin(), readable.begin() + static_cast<std::ptrdiff_t>(taken),
                           all.begin() + static_cast<std::ptrdiff_t>(read)));
    reader.skip(taken);
    (void)reader.release();
    read += taken;
  }
  EXPECT_FALSE(reader.is_broken() || writer.is_broken());
}

TEST(Ring, who_dozes_is_woken_for_what_is_urgent_and_when_much_is_there) {
  shm::Segment segment = std::move(shm::Segment::create(1 << 20)).value();
  shm::RingWriter writer(segment.ring(0));
  shm::RingReader reader(segment.ring(0));
  ASSERT_TRUE(writer.has_room(kDozeBytesMost));
  writer.publish(64);
  EXPECT_TRUE(reader.arm(true)) << "there is something already";
  EXPECT_EQ(reader.readable().size(), 64U);
  EXPECT_FALSE(reader.arm(true));
  writer.publish(kDozeBytesMost - 128);
  EXPECT_FALSE(writer.reader_wants_waking(false));
  EXPECT_TRUE(writer.reader_wants_waking(true));
  EXPECT_TRUE(reader.arm(true));
  writer.publish(64);
  EXPECT_TRUE(writer.reader_wants_waking(false));
  EXPECT_FALSE(writer.reader_wants_waking(true)) << "woken once";

  // What has been read counts no more, and half of a small ring is much.
  reader.skip(kDozeBytesMost);
  EXPECT_FALSE(reader.release());
  (void)reader.readable();
  EXPECT_FALSE(reader.arm(true));
  ASSERT_TRUE(writer.has_room(64));
  writer.publish(64);
  EXPECT_FALSE(writer.reader_wants_waking(false));
  shm::Segment small = std::move(shm::Segment::create(shm::Segment::kRingBytesMin)).value();
  shm::RingWriter into(small.ring(0));
  shm::RingReader out_of(small.ring(0));
  EXPECT_FALSE(out_of.arm(true));
  ASSERT_TRUE(into.has_room(shm::Segment::kRingBytesMin));
  into.publish(shm::Segment::kRingBytesMin / 2);
  EXPECT_TRUE(into.reader_wants_waking(false));
}

TEST(Ring, who_sleeps_is_woken_once_and_who_does_not_is_left_alone) {
  shm::Segment segment = std::move(shm::Segment::create(shm::Segment::kRingBytesMin)).value();
  shm::RingWriter writer(segment.ring(0));
  shm::RingReader reader(segment.ring(0));
  EXPECT_TRUE(writer.has_room(64));
  writer.publish(64);
  EXPECT_FALSE(writer.reader_wants_waking(true));
  EXPECT_TRUE(reader.arm()) << "there is something already";
  EXPECT_EQ(reader.readable().size(), 64U);
  EXPECT_FALSE(reader.arm());
  writer.publish(64);
  EXPECT_TRUE(writer.reader_wants_waking(false));
  EXPECT_FALSE(writer.reader_wants_waking(true));

  while (writer.has_room(64)) writer.publish(64);
  EXPECT_FALSE(writer.arm()) << "nothing has been read since";
  reader.skip(64);
  EXPECT_FALSE(reader.release()) << "not half of it is free";
  reader.skip(shm::Segment::kRingBytesMin / 2);
  EXPECT_TRUE(reader.release());
  reader.skip(64);
  EXPECT_FALSE(reader.release()) << "woken once";
}

TEST(Ring, positions_that_make_no_sense_break_it_and_move_nothing) {
  shm::Segment segment = std::move(shm::Segment::create(shm::Segment::kRingBytesMin)).value();
  const shm::RingMemory memory = segment.ring(0);
  for (const std::uint64_t written : {std::uint64_t{1} << 20, ~std::uint64_t{0}}) {
    shm::RingReader reader(memory);
    memory.control->written.store(written);
    EXPECT_TRUE(reader.readable().empty());
    EXPECT_TRUE(reader.is_broken());
  }
  for (const std::uint64_t read : {std::uint64_t{65}, ~std::uint64_t{0}}) {
    shm::RingWriter writer(memory);
    ASSERT_TRUE(writer.has_room(64));
    writer.publish(64);
    memory.control->read.store(read);
    EXPECT_FALSE(writer.has_room(memory.ring_bytes - 32));
    EXPECT_TRUE(writer.is_broken());
    EXPECT_FALSE(writer.has_room(1));
  }
}

// ---- the doorway

sockaddr_un address_of(const shm::Invitation& invitation, socklen_t& bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, invitation.name.data(), invitation.name.size());
  bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + invitation.name.size());
  return address;
}

class Stranger {
 public:
  explicit Stranger(const shm::Invitation& invitation)
      : descriptor_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    socklen_t bytes = 0;
    const sockaddr_un address = address_of(invitation, bytes);
    is_connected = ::connect(descriptor_, reinterpret_cast<const sockaddr*>(&address), bytes) == 0;
  }
  ~Stranger() { ::close(descriptor_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;
  void say(std::span<const std::byte> bytes) const {
    (void)!::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // 32 bytes and these descriptors.
  void hand_in(const shm::Token& token, const std::vector<int>& descriptors) const {
    iovec piece{const_cast<std::byte*>(token.data()), token.size()};
    std::vector<std::byte> control(CMSG_SPACE(descriptors.size() * sizeof(int)));
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* const head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(head), descriptors.data(), descriptors.size() * sizeof(int));
    EXPECT_EQ(::sendmsg(descriptor_, &message, MSG_NOSIGNAL), 32);
  }
  bool was_sent_away() const {
    std::byte byte;
    return ::recv(descriptor_, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  }
  bool is_connected = false;

 private:
  const int descriptor_;
};

TEST(Doorway, who_knows_the_token_comes_in_past_strangers_and_they_are_sent_away) {
  const Bytes job(16, std::byte{0xab});
  shm::Doorway doorway = std::move(shm::Doorway::open(job)).value();
  const Stranger silent(doorway.invitation());
  const Stranger talking(doorway.invitation());
  talking.say(numbered(5000));
  const Stranger wrong(doorway.invitation());
  wrong.hand_in({}, {0});
  auto answered = shm::answer(doorway.invitation(), kRingBytes);
  ASSERT_TRUE(answered.is_ok()) << answered.status().text();
  const Stranger late(doorway.invitation());

  const std::size_t before = descriptor_count();
  auto taken = doorway.take();
  ASSERT_TRUE(taken.is_ok()) << taken.status().text();
  EXPECT_EQ(taken.value().segment.ring_bytes(), kRingBytes);
  EXPECT_EQ(descriptor_count(), before + 1) << "the socket; the memory is mapped";
  EXPECT_TRUE(silent.was_sent_away() && talking.was_sent_away() && wrong.was_sent_away());
  EXPECT_FALSE(late.was_sent_away());
  doorway = std::move(shm::Doorway::open(job)).value();  // the old one is closed
  EXPECT_TRUE(late.was_sent_away());
}

TEST(Doorway, a_name_carries_the_job_and_is_never_the_same) {
  const Bytes job(16, std::byte{0xab});
  std::set<std::string> names;
  std::set<shm::Token> tokens;
  for (int i = 0; i < 10; ++i) {
    const shm::Doorway doorway = std::move(shm::Doorway::open(job)).value();
    const shm::Invitation& invitation = doorway.invitation();
    const std::string name(invitation.name.begin(), invitation.name.end());
    EXPECT_EQ(name.substr(0, 16), "byteps-abababab-");
    EXPECT_TRUE(names.insert(name).second);
    EXPECT_TRUE(tokens.insert(invitation.token).second);
    const auto again = shm::decode_invitation(shm::encode(invitation));
    EXPECT_TRUE(again.name == invitation.name && again.token == invitation.token);
  }
}

TEST(Doorway, a_wrong_token_unusable_memory_or_nobody_is_an_error_that_leaves_nothing) {
  const std::size_t before = descriptor_count();
  {
    shm::Doorway doorway = std::move(shm::Doorway::open({})).value();
    EXPECT_FALSE(doorway.take().is_ok()) << "nobody";

    shm::Invitation wrong = doorway.invitation();
    wrong.token[31] ^= std::byte{1};
    EXPECT_TRUE(shm::answer(wrong, kRingBytes).is_ok()) << "it does not know yet";
    EXPECT_FALSE(doorway.take().is_ok());

    const Stranger without(doorway.invitation());
    without.say(doorway.invitation().token);
    EXPECT_FALSE(doorway.take().is_ok()) << "the token, but no memory";

    const Stranger other(doorway.invitation());
    other.hand_in(doorway.invitation().token, {0});
    EXPECT_FALSE(doorway.take().is_ok()) << "memory that is none";

    const Stranger many(doorway.invitation());
    many.hand_in(doorway.invitation().token, {0, 1, 2, 0, 1, 2, 0, 1});
    EXPECT_FALSE(doorway.take().is_ok());
  }
  EXPECT_EQ(descriptor_count(), before);
}

TEST(Doorway, a_crowd_of_strangers_keeps_the_connection_on_tcp_and_no_more) {
  shm::Doorway doorway = std::move(shm::Doorway::open({})).value();
  std::vector<std::unique_ptr<Stranger>> crowd;
  do {
    crowd.push_back(std::make_unique<Stranger>(doorway.invitation()));
    ASSERT_LT(crowd.size(), 100U) << "the kernel's queue has no end";
  } while (crowd.back()->is_connected);
  const auto refused = shm::answer(doorway.invitation(), kRingBytes);
  EXPECT_TRUE(refused.status().is(Code::kSystem));
  EXPECT_NE(refused.status().message().find("Unix socket"), std::string::npos);
  EXPECT_FALSE(doorway.take().is_ok());
  EXPECT_TRUE(shm::answer(doorway.invitation(), kRingBytes).is_ok()) << "all were sent away";
}

TEST(Doorway, an_invitation_from_another_host_is_not_followed) {
  shm::Invitation invitation;
  invitation.name.fill('x');
  EXPECT_TRUE(shm::answer(invitation, kRingBytes).status().is(Code::kUnsupported));
}

// ---- hostile ends of a connection

// A member of the job that has shaken hands by hand and says frames and asides as it likes.
class HostileClient {
 public:
  explicit HostileClient(TurnedTcp& to) : server(to), socket(to.address()) {
    EXPECT_TRUE(shake_hands(socket, server, hello_of(Role::kWorker, 0)));
    EXPECT_TRUE(server.until([&] { return server.count(Event::Kind::kUp) > 0; }));
  }

  void say_aside(std::uint8_t kind, std::span<const std::byte> content = {}) {
    Bytes header{std::byte{kind}};
    append(header, content);
    Bytes frame(frame::kPrefixBytes);
    frame::encode({.header_bytes = static_cast<std::uint16_t>(header.size()),
                   .is_aside = true,
                   .header_crc = crc32c(0, header)},
                  std::span(frame).first<frame::kPrefixBytes>());
    append(frame, header);
    EXPECT_TRUE(socket.write(frame));
  }

  // Through all of it; afterwards the server reads from ring 1.
  void share() {
    shm::Doorway doorway = std::move(shm::Doorway::open({})).value();
    say_aside(1, shm::encode(doorway.invitation()));
    ASSERT_FALSE(socket.read_exactly(frame::kPrefixBytes + 1, server).empty());
    meeting = std::make_unique<shm::Meeting>(std::move(doorway.take()).value());
    say_aside(3);
    ASSERT_FALSE(socket.read_exactly(frame::kPrefixBytes + 1, server).empty());
  }

  bool ends_badly() {
    return server.until([&] { return server.count(Event::Kind::kDown) == 1; });
  }

  TurnedTcp& server;
  BareSocket socket;
  std::unique_ptr<shm::Meeting> meeting;
};

TEST(HostileSharer, asides_out_of_turn_end_the_connection) {
  const Bytes content(shm::Invitation::kBytes, std::byte{'x'});
  const std::vector<std::function<void(HostileClient&)>> tries = {
      [](auto& client) { client.say_aside(0); },
      [](auto& client) { client.say_aside(5); },
      [](auto& client) { client.say_aside(2); },
      [](auto& client) { client.say_aside(3); },
      [](auto& client) { client.say_aside(4); },
      [&](auto& client) { client.say_aside(1, std::span(content).first(10)); },
      [&](auto& client) {
        client.say_aside(1, content);
        client.say_aside(1, content);
      },
      [](auto& client) {
        client.share();
        client.say_aside(3);
      },
      [](auto& client) {
        client.share();
        client.say_aside(4);
      },
      [](auto& client) {
        client.share();
        client.socket.write(numbered_frame(100, 10));  // a message, where none may come any more
      },
  };
  for (std::size_t i = 0; i < tries.size(); ++i) {
    TurnedTcp server(sharing(loopback_options()));
    HostileClient client(server);
    tries[i](client);
    EXPECT_TRUE(client.ends_badly()) << "try " << i;
    EXPECT_EQ(server.count(Event::Kind::kReceived), 0U) << "try " << i;
  }
}

TEST(HostileSharer, an_aside_to_who_shares_nothing_does_no_harm) {
  TurnedTcp server;
  HostileClient client(server);
  client.say_aside(1, Bytes(shm::Invitation::kBytes, std::byte{'x'}));
  EXPECT_TRUE(client.socket.write(numbered_frame(100, 10)));
  EXPECT_TRUE(server.until([&] { return server.count(Event::Kind::kReceived) == 1; }));
}

TEST(HostileSharer, memory_that_was_never_sealed_is_not_read) {
  TurnedTcp server(sharing(loopback_options()));
  HostileClient client(server);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  shm::Invitation invitation;
  invitation.name.fill('y');
  socklen_t bytes = 0;
  const sockaddr_un address = address_of(invitation, bytes);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(::listen(listener, 1), 0);
  client.say_aside(1, shm::encode(invitation));
  ASSERT_FALSE(client.socket.read_exactly(frame::kPrefixBytes + 1, server).empty()) << "ready";
  client.say_aside(3);  // without having opened it
  EXPECT_TRUE(client.ends_badly());
  EXPECT_NE(server.log().find("not sealed"), std::string::npos) << server.log();
  ::close(listener);
}

TEST(HostileSharer, broken_positions_end_the_connection_of_reader_and_writer) {
  for (const bool breaks_reader : {true, false}) {
    TurnedTcp server(sharing(loopback_options()));
    HostileClient client(server);
    client.share();
    const shm::Segment& segment = client.meeting->segment;
    if (breaks_reader) {
      segment.ring(1).control->written.store(std::uint64_t{1} << 40);
    } else {
      segment.ring(0).control->read.store(std::uint64_t{1} << 40);
      const Bytes payload(kRingBytes);
      (void)server.transport().send(server.seen().at(0).peer,
                                    {.header = {}, .payload = payload, .bulk = true, .token = 1});
    }
    EXPECT_TRUE(client.ends_badly()) << breaks_reader;
    EXPECT_NE(server.log().find("makes no sense"), std::string::npos) << server.log();
    EXPECT_EQ(server.count(Event::Kind::kSent), breaks_reader ? 0U : 1U);
  }
}

TEST(HostileSharer, words_that_are_too_long_to_be_copied_end_the_connection) {
  TurnedTcp server(sharing(loopback_options()));
  HostileClient client(server);
  client.share();
  shm::RingWriter writer(client.meeting->segment.ring(1));
  const Bytes head = prefix_of(kPrivateBytesMax + 1, 0);
  std::ranges::copy(head, writer.place());
  writer.publish(64);  // what follows is not waited for
  EXPECT_TRUE(client.ends_badly());
  EXPECT_EQ(server.count(Event::Kind::kReceived), 0U);
  EXPECT_NE(server.log().find("makes no sense"), std::string::npos) << server.log();
}

TEST(HostileSharer, half_a_frame_is_waited_for_without_spinning) {
  TurnedTcp server(sharing(loopback_options()));
  HostileClient client(server);
  client.share();
  const shm::RingMemory ring = client.meeting->segment.ring(1);
  const Bytes whole = numbered_frame(1000, 0);
  std::memcpy(ring.bytes, whole.data(), 64);
  ring.control->written.store(64);
  server.settle();
  EXPECT_EQ(server.poll(), 0U);
  EXPECT_EQ(server.count(Event::Kind::kReceived) + server.count(Event::Kind::kDown), 0U);
  // It sleeps: it has told so in the ring.
  server.transport().waiter().wait(0);
  EXPECT_EQ(ring.control->reader_sleeps.load(), 0U) << "taken back afterwards";
  client.socket.close();
  EXPECT_TRUE(client.ends_badly());
}

TEST(HostileSharer, whatever_is_written_into_the_memory_the_worst_is_the_end_of_the_connection) {
  int downs = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    Prng prng(seed);
    TurnedTcp server(sharing(loopback_options()));
    HostileClient client(server);
    client.share();
    const PeerId peer = server.seen().at(0).peer;
    const Bytes payload(100'000);
    const shm::RingMemory ring = client.meeting->segment.ring(1);
    // Good frames, small and large, of words and of tensor bytes; then bits over all of it, positions included.
    shm::RingWriter writer(ring);
    for (int i = 0; i < 8; ++i) {
      const std::size_t bytes = prng.chance(0.3) ? prng.below(90'000) : prng.below(9'000);
      const Bytes head = prefix_of(static_cast<std::uint32_t>(bytes), 0, prng.chance(0.7));
      const Bytes tensor = numbered(bytes);
      const std::size_t filled = 64 + (bytes + 63) / 64 * 64;
      if (!writer.has_room(filled)) break;
      std::ranges::copy(head, writer.place());
      std::ranges::copy(tensor, writer.place() + 64);
      for (std::uint64_t flips = prng.below(4); flips > 0; --flips) {
        const std::size_t at = prng.chance(0.7) ? prng.below(64) : prng.below(filled);
        writer.place()[at] ^= static_cast<std::byte>(1U << prng.below(8));
      }
      writer.publish(filled);
      server.poll();
    }
    if (prng.chance(0.5)) ring.control->written.store(prng.next() >> prng.below(64));
    if (prng.chance(0.3)) client.meeting->segment.ring(0).control->read.store(prng.next());
    (void)server.transport().send(peer,
                                  {.header = {}, .payload = payload, .bulk = true, .token = 1});
    server.settle();
    downs += server.count(Event::Kind::kDown) == 1 ? 1 : 0;
    // The process lives, and serves others.
    TurnedTcp other(sharing());
    (void)other.transport().connect(server.address(), hello_of(Role::kWorker, 1)).value();
    EXPECT_TRUE(server.until([&] {
      other.poll();
      return other.count(Event::Kind::kUp) == 1;
    })) << "seed "
        << seed;
  }
  EXPECT_GT(downs, 75) << "damage is noticed in most cases";
}

// ---- a side that vanishes

TEST(SharedMemory, what_lay_there_when_the_other_side_ended_is_still_received) {
  Pair pair;
  pair.settle();
  const Bytes payload = numbered(30'000);
  for (SendToken token = 1; token <= 5; ++token) {
    ASSERT_TRUE(
        pair.client.transport()
            .send(pair.out, {.header = {}, .payload = payload, .bulk = true, .token = token})
            .is_ok());
  }
  pair.client.transport().close(pair.out, {Code::kCancelled, "leaving"});
  ASSERT_TRUE(pair.until([&] { return pair.server.count(Event::Kind::kDown) == 1; }));
  EXPECT_EQ(pair.server.count(Event::Kind::kReceived), 5U);
  EXPECT_EQ(pair.server.seen().back().kind, Event::Kind::kDown);
}

TEST(SharedMemory, a_writer_that_waits_for_room_gets_everything_back_when_the_reader_is_gone) {
  TurnedTcp server(sharing(loopback_options()));
  HostileClient client(server);
  client.share();
  const PeerId peer = server.seen().at(0).peer;
  const Bytes payload(100'000);
  std::size_t accepted = 0;
  while (server.transport()
             .send(peer, {.header = {}, .payload = payload, .bulk = true, .token = accepted})
             .is_ok()) {
    ++accepted;
  }
  server.settle();
  const std::size_t written = server.count(Event::Kind::kSent);
  EXPECT_GT(written, 0U);
  EXPECT_LT(written, accepted) << "nobody reads";
  client.socket.close();
  ASSERT_TRUE(server.until([&] { return server.count(Event::Kind::kDown) == 1; }));
  EXPECT_EQ(server.count(Event::Kind::kSent), accepted);
}

}  // namespace
}  // namespace byteps
