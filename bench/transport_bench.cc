// How close TcpTransport comes to bare sockets, and with shared memory to memcpy: bytes per second and CPU seconds per
// GiB of each side, over loopback, one thread per side.
// usage: transport_bench [GiB per case, 4] [frame KiB, 32] [ring KiB, 1024]
//
// The bare loops are the yardstick: send(2) of one frame or of 128 KiB at a time, recv(2) of one frame
// into the memory it belongs in, or of 256 KiB into one buffer. On loopback much of the receiver's kernel
// work is done in the sender's calls, so compare rows, not columns.
//
// What memcpy bounds: two threads that copy as many bytes at the same time, one from memory larger than its caches
// into a block of a ring's size, the other from such a block to such memory. They do not wait for each other, and
// neither sees a line that the other has just written: no exchange by copies through a ring can be faster.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <sys/socket.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/log.h"
#include "loop/clock.h"
#include "net/address.h"
#include "net/shm/way.h"
#include "net/tcp/tcp_transport.h"

namespace byteps {
namespace {

constexpr std::size_t kMemoryBytes = 64 << 20;  // of each side: more than its caches
constexpr std::size_t kHeaderBytes = 48;

struct Load {
  std::uint64_t frame_count = 0;
  std::size_t frame_bytes = 0;
  double gibibytes() const {
    return static_cast<double>(frame_count) * static_cast<double>(frame_bytes) / (1 << 30);
  }
};

struct Cost {
  double wall_s = 0;
  double sender_cpu_s = 0;
  double receiver_cpu_s = 0;
};

double seconds(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// Runs the two sides on a thread each; the receiver's end is the end.
Cost measure(const std::function<void()>& sender, const std::function<void()>& receiver) {
  Cost cost;
  const double start = seconds(CLOCK_MONOTONIC);
  std::thread other([&] {
    sender();
    cost.sender_cpu_s = seconds(CLOCK_THREAD_CPUTIME_ID);
  });
  const double cpu_start = seconds(CLOCK_THREAD_CPUTIME_ID);
  receiver();
  cost.receiver_cpu_s = seconds(CLOCK_THREAD_CPUTIME_ID) - cpu_start;
  cost.wall_s = seconds(CLOCK_MONOTONIC) - start;
  other.join();
  return cost;
}

void print(const char* name, const Load& load, const Cost& cost) {
  const double gibibytes = load.gibibytes();
  std::printf("%-44s %7.2f GiB/s   sender %.3f   receiver %.3f   both %.3f CPU s/GiB\n", name,
              gibibytes / cost.wall_s, cost.sender_cpu_s / gibibytes,
              cost.receiver_cpu_s / gibibytes,
              (cost.sender_cpu_s + cost.receiver_cpu_s) / gibibytes);
  std::fflush(stdout);
}

// ---- bare sockets

struct SocketPair {
  int sender = -1;
  int receiver = -1;
};

SocketPair connected_pair() {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  SocketAddress address = resolve({"127.0.0.1", 1}).value().at(0);
  address.set_port(0);
  CHECK(::bind(listener, address.get(), address.bytes) == 0 && ::listen(listener, 1) == 0);
  CHECK(::getsockname(listener, address.get(), &address.bytes) == 0);
  SocketPair pair;
  pair.sender = ::socket(AF_INET, SOCK_STREAM, 0);
  CHECK(::connect(pair.sender, address.get(), address.bytes) == 0);
  pair.receiver = ::accept(listener, nullptr, nullptr);
  ::close(listener);
  return pair;
}

Cost bare(const Load& load, std::size_t send_bytes, std::size_t recv_bytes, bool in_place) {
  const SocketPair pair = connected_pair();
  const std::size_t total = load.frame_count * load.frame_bytes;
  Buffer from(kMemoryBytes);
  Buffer to(kMemoryBytes);
  std::fill(from.span().begin(), from.span().end(), std::byte{1});
  std::fill(to.span().begin(), to.span().end(), std::byte{2});
  const Cost cost = measure(
      [&] {
        for (std::size_t sent = 0; sent < total;) {
          const std::size_t at = sent % kMemoryBytes;
          const std::size_t bytes = std::min({send_bytes, total - sent, kMemoryBytes - at});
          const ssize_t count = ::send(pair.sender, from.span().data() + at, bytes, MSG_NOSIGNAL);
          CHECK_GT(count, 0);
          sent += static_cast<std::size_t>(count);
        }
      },
      [&] {
        for (std::size_t received = 0; received < total;) {
          const std::size_t at = in_place ? received % kMemoryBytes : 0;
          const std::size_t bytes =
              std::min(recv_bytes - received % recv_bytes * (in_place ? 1 : 0), kMemoryBytes - at);
          const ssize_t count = ::recv(pair.receiver, to.span().data() + at, bytes, 0);
          CHECK_GT(count, 0);
          received += static_cast<std::size_t>(count);
        }
      });
  ::close(pair.sender);
  ::close(pair.receiver);
  return cost;
}

// ---- memcpy

struct CopySide {
  explicit CopySide(std::size_t ring_bytes) : large(kMemoryBytes), ring(ring_bytes) {
    std::fill(large.span().begin(), large.span().end(), std::byte{1});
    std::fill(ring.span().begin(), ring.span().end(), std::byte{2});
  }
  Buffer large;
  Buffer ring;
};

void copy_all(const Load& load, CopySide& side, bool out_of_ring) {
  for (std::uint64_t i = 0; i < load.frame_count; ++i) {
    std::byte* const in_large = side.large.span().data() + i * load.frame_bytes % kMemoryBytes;
    std::byte* const in_ring = side.ring.span().data() + i * load.frame_bytes % side.ring.bytes();
    std::memcpy(out_of_ring ? in_large : in_ring, out_of_ring ? in_ring : in_large,
                load.frame_bytes);
    // Otherwise the compiler may leave out copies that nobody looks at.
    asm volatile("" : : "r"(in_large), "r"(in_ring) : "memory");
  }
}

Cost memcpy_bound(const Load& load, std::size_t ring_bytes) {
  CopySide sender(ring_bytes);
  CopySide receiver(ring_bytes);
  return measure([&] { copy_all(load, sender, false); }, [&] { copy_all(load, receiver, true); });
}

// ---- the transport

std::vector<std::unique_ptr<way::Way>> ways(std::size_t ring_bytes) {
  std::vector<std::unique_ptr<way::Way>> ways;
  ways.push_back(shm::Way::create({.ring_bytes = ring_bytes, .job_id = {}}).value());
  return ways;
}

struct Side {
  Side(TcpOptions options, std::size_t ring_bytes)
      : transport(TcpTransport::create(std::move(options), ways(ring_bytes),
                                       Log("bench", LogLevel::kWarning,
                                           [](std::string_view line) {
                                             std::fprintf(stderr, "%.*s\n",
                                                          static_cast<int>(line.size()),
                                                          line.data());
                                           }))
                      .value()),
        memory(kMemoryBytes) {
    std::fill(memory.span().begin(), memory.span().end(), std::byte{1});
  }
  // The new events; sleeps when there is none.
  std::span<const Event> next() {
    const std::size_t count = transport->poll(clock.now(), events);
    if (count == 0)
      transport->waiter().wait(transport->next_deadline() == kNever ? kNever : kMillisecond);
    return std::span(events).first(count);
  }
  std::unique_ptr<TcpTransport> transport;
  Buffer memory;
  MonotonicClock clock;
  std::array<Event, 256> events;
};

void send_all(Side& side, const Endpoint& to, const Load& load) {
  const PeerId peer = side.transport->connect(to, {}).value();
  const std::array<std::byte, kHeaderBytes> header{};
  bool up = false;
  std::uint64_t accepted = 0;
  std::uint64_t returned = 0;
  while (returned < load.frame_count) {
    for (const Event& event : side.next()) {
      CHECK(event.kind != Event::Kind::kDown) << event.why.text();
      up |= event.kind == Event::Kind::kUp;
      returned += event.kind == Event::Kind::kSent ? 1 : 0;
    }
    while (up && accepted < load.frame_count) {
      const std::size_t at = accepted * load.frame_bytes % kMemoryBytes;
      const Status status =
          side.transport->send(peer, {.header = header,
                                      .payload = side.memory.span().subspan(at, load.frame_bytes),
                                      .bulk = true,
                                      .token = accepted});
      if (!status.is_ok()) break;
      ++accepted;
    }
  }
}

// `copies`: to where it belongs, as a worker does with an answer.
void receive_all(Side& side, const Load& load, bool copies) {
  std::uint64_t received = 0;
  while (received < load.frame_count) {
    for (const Event& event : side.next()) {
      if (event.kind != Event::Kind::kReceived) continue;
      const std::size_t at = received++ * load.frame_bytes % kMemoryBytes;
      if (copies)
        std::memcpy(side.memory.span().data() + at, event.payload.data(), load.frame_bytes);
    }
  }
}

// ring_bytes: 0 for TCP.
Cost transport(const Load& load, bool copies, std::size_t ring_bytes) {
  TcpOptions options;
  options.listen = {Endpoint{"127.0.0.1", 0}};
  Side receiver(options, ring_bytes);
  Side sender({}, ring_bytes);
  const Endpoint address = receiver.transport->listening().at(0);
  const Cost cost = measure([&] { send_all(sender, address, load); },
                            [&] { receive_all(receiver, load, copies); });
  CHECK(ring_bytes == 0 || sender.transport->ways().shared_bytes > 0) << "it used TCP";
  return cost;
}

int run(int count, char** arguments) {
  const double gibibytes = count > 1 ? std::atof(arguments[1]) : 4;
  Load load;
  load.frame_bytes = static_cast<std::size_t>(count > 2 ? std::atoi(arguments[2]) : 32) << 10;
  const std::size_t ring_bytes =
      static_cast<std::size_t>(count > 3 ? std::atoi(arguments[3]) : 1024) << 10;
  if (gibibytes <= 0 || load.frame_bytes == 0 || kMemoryBytes % load.frame_bytes != 0) {
    std::fprintf(stderr,
                 "usage: transport_bench [GiB per case] [frame KiB] [ring KiB]; powers of two\n");
    return 2;
  }
  load.frame_count = static_cast<std::uint64_t>(gibibytes * (1 << 30)) / load.frame_bytes;
  for (int round = 0; round < 3; ++round) {
    print("bare: send frame, recv frame in place", load,
          bare(load, load.frame_bytes, load.frame_bytes, true));
    print("bare: send 128 KiB, recv frame in place", load,
          bare(load, 128 << 10, load.frame_bytes, true));
    print("transport: copied to its place", load, transport(load, true, 0));
    print("bare: send 128 KiB, recv 256 KiB", load, bare(load, 128 << 10, 256 << 10, false));
    print("transport: as views", load, transport(load, false, 0));
    print("memcpy: in and out of a ring", load, memcpy_bound(load, ring_bytes));
    print("shared memory: copied to its place", load, transport(load, true, ring_bytes));
    print("shared memory: as views", load, transport(load, false, ring_bytes));
  }
  return 0;
}

}  // namespace
}  // namespace byteps

int main(int count, char** arguments) {
  return byteps::run(count, arguments);
}
