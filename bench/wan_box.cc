// A long line between the hosts of a laboratory (bench/netlab.py), which needs no netem of the kernel: a switch in user
// space that holds each frame for a while and loses some by chance.
//
// One packet socket reads and writes at all ports, network interfaces with one host behind each, many frames a call. A
// frame goes where its destination last sent from, and to everybody if that is not known. All have the same delay, so
// they leave in the order in which they came, and one queue does. The hosts' cards may leave checksums to be computed
// by whoever sends on: what is said of that (PACKET_VNET_HDR) travels with the frame. Otherwise TCP would see wrong
// checksums and be silent.
//
// Time. A turn reads what has come, sends what is due, and rests for kRestNs, so that at a high rate it is not woken by
// every frame. A frame is late by at most two rests and what the kernel takes to run this process, never early.
#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/prng.h"
#include "base/time.h"

namespace byteps {
namespace {

constexpr const char* kUsage =
    "usage: wan_box [--delay-ms D] [--loss P] [--seed N] [--frames N] PORT PORT...\n"
    "\n"
    "A switch between network interfaces that holds each frame and loses some: a long line for a\n"
    "laboratory. Needs CAP_NET_RAW in the network namespace of its ports.\n"
    "\n"
    "  --delay-ms D  holds each frame so long, 0 to 10000; default 0\n"
    "  --loss P      loses each with this probability, 0 to 1; default 0\n"
    "  --seed N      of the loss: of what a port receives, the same places in each run; default 1\n"
    "  --frames N    holds so many and drops what comes beyond, 1 to 262144; default 65536\n"
    "\n"
    "Says \"ready\", and at each SIGUSR1 a line with what each port has received, lost by chance,\n"
    "dropped for want of room, found too long for a frame, sent, and had refused by its queue; "
    "and\n"
    "how many frames of all came while this process did not run, more than there was room for.\n"
    "At SIGTERM, and when its parent ends, it says that line once more and ends.\n";

constexpr std::size_t kSlotBytes = 2048;  // Ethernet has 1518, and the header below comes before it
constexpr std::size_t kHeadBytes = 10;    // virtio_net_hdr, linux/virtio_net.h, which is no C++
constexpr std::size_t kBatch = 64;        // frames of a system call
constexpr int kBatchesPerTurn = 64;       // read before what is due leaves
constexpr std::size_t kPortsMax = 64;
constexpr std::size_t kFramesMax = 1 << 18;
constexpr int kReceiveBytes = 64 << 20;  // what may wait while this process does not run
constexpr int kSendBytes = 64 << 20;     // what fits is for the ports' queues to decide
constexpr TimeNs kRestNs = 100 * kMicrosecond;
constexpr TimeNs kWaitMostNs = kSecond;
constexpr double kDelayMsMost = 10'000;

struct Options {
  TimeNs delay_ns = 0;
  double loss = 0;
  std::uint64_t seed = 1;
  std::size_t frames_max = 1 << 16;
  std::vector<std::string> ports;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "wan_box: %s\n", what.c_str());
  std::exit(1);
}

[[noreturn]] void fail_with_errno(const std::string& what) {
  const int error_number = errno;
  const char* const advice = error_number == EPERM ? " (it needs CAP_NET_RAW)" : "";
  fail(what + ": " + std::strerror(error_number) + advice);
}

TimeNs clock_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kSecond + now.tv_nsec;
}

timespec timespec_of(TimeNs duration_ns) {
  return {.tv_sec = duration_ns / kSecond, .tv_nsec = duration_ns % kSecond};
}

// ---- memory for frames

using Slot = std::uint32_t;

// Places for so many frames. What was given back last is taken first, so that only what is needed at once is touched.
class Slots {
 public:
  explicit Slots(std::size_t count)
      : count_(count), memory_(std::make_unique_for_overwrite<std::byte[]>(count * kSlotBytes)) {}

  std::optional<Slot> take() {
    if (!free_.empty()) {
      const Slot slot = free_.back();
      free_.pop_back();
      return slot;
    }
    if (used_ == count_) return std::nullopt;
    return static_cast<Slot>(used_++);
  }
  void give_back(Slot slot) { free_.push_back(slot); }
  std::byte* at(Slot slot) { return &memory_[slot * kSlotBytes]; }

 private:
  const std::size_t count_;
  const std::unique_ptr<std::byte[]> memory_;
  std::size_t used_ = 0;  // ever
  std::vector<Slot> free_;
};

// Frames of one system call, in either direction.
class Batch {
 public:
  void clear() { count_ = 0; }
  std::size_t count() const { return count_; }
  // `interface`: where it is to leave.
  void add(std::byte* place, std::size_t bytes, int interface = 0) {
    entries_[count_] = {.iov_base = place, .iov_len = bytes};
    addresses_[count_] = {};
    addresses_[count_].sll_family = AF_PACKET;
    addresses_[count_].sll_ifindex = interface;
    messages_[count_] = {};
    messages_[count_].msg_hdr.msg_name = &addresses_[count_];
    messages_[count_].msg_hdr.msg_namelen = sizeof addresses_[count_];
    messages_[count_].msg_hdr.msg_iov = &entries_[count_];
    messages_[count_].msg_hdr.msg_iovlen = 1;
    ++count_;
  }
  bool is_full() const { return count_ == kBatch; }
  // Where it came from, or is to leave.
  int interface(std::size_t index) const { return addresses_[index].sll_ifindex; }
  mmsghdr* from(std::size_t index) { return &messages_[index]; }
  std::size_t bytes(std::size_t index) const { return messages_[index].msg_len; }
  bool is_cut(std::size_t index) const {
    return (messages_[index].msg_hdr.msg_flags & MSG_TRUNC) != 0;
  }

 private:
  std::array<mmsghdr, kBatch> messages_{};
  std::array<iovec, kBatch> entries_{};
  std::array<sockaddr_ll, kBatch> addresses_{};
  std::size_t count_ = 0;
};

// ---- ports

using Mac = std::array<std::byte, ETH_ALEN>;

struct Counters {
  std::uint64_t received = 0;
  std::uint64_t lost = 0;      // by chance
  std::uint64_t dropped = 0;   // no room
  std::uint64_t too_long = 0;  // a card that hands over several frames at once
  std::uint64_t sent = 0;
  std::uint64_t refused = 0;  // by the port's own queue, which is full
};

struct Port {
  std::string name;
  int interface = 0;
  Prng chance;             // its own: what other ports receive does not change what is lost here
  std::optional<Mac> mac;  // of the host behind it
  Counters counters;
};

void set_option(int descriptor, int level, int option, int value, const std::string& what) {
  if (::setsockopt(descriptor, level, option, &value, sizeof value) != 0) fail_with_errno(what);
}

int open_socket() {
  // Without a protocol it receives nothing before it is bound.
  const int descriptor = ::socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) fail_with_errno("a packet socket");
  set_option(descriptor, SOL_PACKET, PACKET_VNET_HDR, 1, "PACKET_VNET_HDR");
  set_option(descriptor, SOL_PACKET, PACKET_IGNORE_OUTGOING, 1, "PACKET_IGNORE_OUTGOING");
  set_option(descriptor, SOL_SOCKET, SO_RCVBUFFORCE, kReceiveBytes, "SO_RCVBUFFORCE");
  set_option(descriptor, SOL_SOCKET, SO_SNDBUFFORCE, kSendBytes, "SO_SNDBUFFORCE");
  sockaddr_ll everywhere{};
  everywhere.sll_family = AF_PACKET;
  everywhere.sll_protocol = htons(ETH_P_ALL);
  const auto* const address = reinterpret_cast<const sockaddr*>(&everywhere);
  if (::bind(descriptor, address, sizeof everywhere) != 0) fail_with_errno("bind");
  return descriptor;
}

int interface_of(const std::string& name) {
  const unsigned index = ::if_nametoindex(name.c_str());
  if (index == 0) fail_with_errno(name);
  return static_cast<int>(index);
}

// ---- the box

class Box {
 public:
  explicit Box(const Options& options) : options_(options), slots_(options.frames_max + kBatch) {
    Prng chance(options.seed);
    for (const std::string& name : options.ports) {
      ports_.push_back({.name = name,
                        .interface = interface_of(name),
                        .chance = chance.split(),
                        .mac = std::nullopt,
                        .counters = {}});
    }
    for (Slot& slot : reading_) slot = *slots_.take();
    descriptor_ = open_socket();
  }
  ~Box() { ::close(descriptor_); }
  Box(const Box&) = delete;
  Box& operator=(const Box&) = delete;

  // Until a signal ends it; `signals` gives those that are blocked.
  void run(int signals);

 private:
  static constexpr std::size_t kEverybody = kPortsMax;
  struct Flight {
    TimeNs due_ns = 0;
    Slot slot = 0;
    std::size_t bytes = 0;
    std::size_t from = 0;
    std::size_t to = 0;
    bool goes_to(std::size_t port) const {
      return port != from && (to == port || to == kEverybody);
    }
  };

  TimeNs until_next() const;
  bool heed_signals(int signals);
  void receive();
  void accept(std::size_t index, TimeNs now);
  std::size_t find_port(int interface) const;
  std::size_t find_host(const Mac& mac) const;
  void deliver(TimeNs now);
  void flush();
  void tell();

  const Options options_;
  Slots slots_;
  std::vector<Port> ports_;
  int descriptor_ = -1;
  std::array<Slot, kBatch> reading_{};  // where the next frames are read to
  Batch batch_;
  std::deque<Flight> flights_;  // the first to leave in front
  std::vector<Slot> left_;      // of those that are in batch_ for the last time
  std::uint64_t overflow_ = 0;  // frames that the socket had no room for
};

void Box::run(int signals) {
  std::array<pollfd, 2> watched{{{.fd = signals, .events = POLLIN, .revents = 0},
                                 {.fd = descriptor_, .events = POLLIN, .revents = 0}}};
  std::printf("ready\n");
  std::fflush(stdout);
  const timespec rest = timespec_of(kRestNs);
  for (bool goes_on = true; goes_on;) {
    const timespec timeout = timespec_of(until_next());
    if (::ppoll(watched.data(), watched.size(), &timeout, nullptr) < 0) fail_with_errno("ppoll");
    if (watched[1].revents != 0) receive();
    deliver(clock_ns());
    if (watched[0].revents != 0) goes_on = heed_signals(signals);
    ::clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, nullptr);
  }
}

// So long nothing is due.
TimeNs Box::until_next() const {
  if (flights_.empty()) return kWaitMostNs;
  return std::clamp<TimeNs>(flights_.front().due_ns - clock_ns(), 0, kWaitMostNs);
}

// False: it is to end.
bool Box::heed_signals(int signals) {
  signalfd_siginfo info{};
  if (::read(signals, &info, sizeof info) != sizeof info) return true;
  tell();
  return info.ssi_signo == SIGUSR1;
}

void Box::receive() {
  for (int call = 0; call < kBatchesPerTurn; ++call) {
    batch_.clear();
    for (const Slot slot : reading_) batch_.add(slots_.at(slot), kSlotBytes);
    const int count = ::recvmmsg(descriptor_, batch_.from(0), kBatch, MSG_DONTWAIT, nullptr);
    const TimeNs now = clock_ns();  // behind the call: none of them came later
    for (int index = 0; index < count; ++index) accept(static_cast<std::size_t>(index), now);
    if (count < static_cast<int>(kBatch)) return;
  }
}

void Box::accept(std::size_t index, TimeNs now) {
  const std::size_t from = find_port(batch_.interface(index));
  if (from == ports_.size()) return;
  Port& port = ports_[from];
  ++port.counters.received;
  const std::size_t bytes = batch_.bytes(index);
  if (batch_.is_cut(index) || bytes < kHeadBytes + sizeof(ethhdr)) {
    ++port.counters.too_long;
    return;
  }
  if (port.chance.chance(options_.loss)) {
    ++port.counters.lost;
    return;
  }
  const std::optional<Slot> next = slots_.take();
  if (!next) {
    ++port.counters.dropped;
    return;
  }
  const Slot slot = std::exchange(reading_[index], *next);
  Mac destination;
  Mac source;
  std::memcpy(destination.data(), slots_.at(slot) + kHeadBytes, ETH_ALEN);
  std::memcpy(source.data(), slots_.at(slot) + kHeadBytes + ETH_ALEN, ETH_ALEN);
  port.mac = source;
  flights_.push_back({.due_ns = now + options_.delay_ns,
                      .slot = slot,
                      .bytes = bytes,
                      .from = from,
                      .to = find_host(destination)});
}

// None: as many as there are.
std::size_t Box::find_port(int interface) const {
  const auto found = std::find_if(ports_.begin(), ports_.end(), [interface](const Port& port) {
    return port.interface == interface;
  });
  return static_cast<std::size_t>(found - ports_.begin());
}

std::size_t Box::find_host(const Mac& mac) const {
  const auto found = std::find_if(ports_.begin(), ports_.end(),
                                  [&mac](const Port& port) { return port.mac == mac; });
  return found == ports_.end() ? kEverybody : static_cast<std::size_t>(found - ports_.begin());
}

void Box::deliver(TimeNs now) {
  batch_.clear();
  while (!flights_.empty() && flights_.front().due_ns <= now) {
    const Flight flight = flights_.front();
    flights_.pop_front();
    for (std::size_t to = 0; to < ports_.size(); ++to) {
      if (!flight.goes_to(to)) continue;
      if (batch_.is_full()) flush();
      batch_.add(slots_.at(flight.slot), flight.bytes, ports_[to].interface);
    }
    left_.push_back(flight.slot);
  }
  flush();
}

// Sends the batch. Slots of frames that have left it all are free then.
void Box::flush() {
  for (std::size_t done = 0; done < batch_.count(); ++done) {
    const auto left = static_cast<unsigned>(batch_.count() - done);
    const int sent = ::sendmmsg(descriptor_, batch_.from(done), left, MSG_DONTWAIT);
    for (int i = 0; i < sent; ++i) ++ports_[find_port(batch_.interface(done++))].counters.sent;
    // It stops at one that is refused.
    if (done < batch_.count()) ++ports_[find_port(batch_.interface(done))].counters.refused;
  }
  batch_.clear();
  for (const Slot slot : left_) slots_.give_back(slot);
  left_.clear();
}

// {"port0": {"received": 10, ...}, "port1": ..., "overflow": 0}
void Box::tell() {
  const auto number = [](std::uint64_t value) { return static_cast<unsigned long long>(value); };
  std::printf("{");
  for (const Port& port : ports_) {
    const Counters& counters = port.counters;
    std::printf(
        "\"%s\": {\"received\": %llu, \"lost\": %llu, \"dropped\": %llu, \"too_long\": %llu, "
        "\"sent\": %llu, \"refused\": %llu}, ",
        port.name.c_str(), number(counters.received), number(counters.lost),
        number(counters.dropped), number(counters.too_long), number(counters.sent),
        number(counters.refused));
  }
  tpacket_stats stats{};  // since it was last asked
  socklen_t bytes = sizeof stats;
  if (::getsockopt(descriptor_, SOL_PACKET, PACKET_STATISTICS, &stats, &bytes) == 0) {
    overflow_ += stats.tp_drops;
  }
  std::printf("\"overflow\": %llu}\n", number(overflow_));
  std::fflush(stdout);
}

// ---- arguments

double number_of(std::string_view name, const char* text, double least, double most) {
  char* end = nullptr;
  const double value = std::strtod(text, &end);
  if (end == text || *end != '\0' || !(value >= least && value <= most)) {
    fail(std::string(name) + " " + text + ": not a number in its range; see --help");
  }
  return value;
}

Options parse(std::span<char*> words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string_view word = words[i];
    if (word == "--help") {
      std::fputs(kUsage, stdout);
      std::exit(0);
    }
    if (!word.starts_with("--")) {
      options.ports.emplace_back(word);
      continue;
    }
    if (i + 1 == words.size()) fail(std::string(word) + ": an option without its value");
    const char* const value = words[++i];
    if (word == "--delay-ms") {
      const double delay_ms = number_of(word, value, 0, kDelayMsMost);
      options.delay_ns = static_cast<TimeNs>(delay_ms * static_cast<double>(kMillisecond));
    } else if (word == "--loss") {
      options.loss = number_of(word, value, 0, 1);
    } else if (word == "--seed") {
      options.seed = static_cast<std::uint64_t>(number_of(word, value, 0, 0x1p53));
    } else if (word == "--frames") {
      options.frames_max = static_cast<std::size_t>(number_of(word, value, 1, kFramesMax));
    } else {
      fail(std::string(word) + ": no such option; see --help");
    }
  }
  if (options.ports.size() < 2 || options.ports.size() > kPortsMax) {
    fail("two ports at least, and " + std::to_string(kPortsMax) + " at most; see --help");
  }
  return options;
}

// A descriptor that gives those signals that are heeded.
int open_signals() {
  sigset_t heeded;
  ::sigemptyset(&heeded);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) ::sigaddset(&heeded, number);
  ::sigprocmask(SIG_BLOCK, &heeded, nullptr);
  const int descriptor = ::signalfd(-1, &heeded, SFD_NONBLOCK | SFD_CLOEXEC);
  if (descriptor < 0) fail_with_errno("signalfd");
  return descriptor;
}

// A cable does not wait for a processor. Where it may not run before all others, it is as exact as they let it be.
void run_before_others() {
  const sched_param first{.sched_priority = 1};
  (void)::sched_setscheduler(0, SCHED_FIFO, &first);
  (void)::prctl(PR_SET_TIMERSLACK, 1UL);
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  const pid_t parent = ::getppid();
  const byteps::Options options =
      byteps::parse(std::span(argv, static_cast<std::size_t>(argc)).subspan(1));
  const int signals = byteps::open_signals();
  (void)::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) return 1;  // it has ended before
  byteps::run_before_others();
  byteps::Box box(options);
  box.run(signals);
  return 0;
}
