#include "tests/gpu/nccl_hub.h"

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/gpu/faults.h"
#include "tests/gpu/tsan.h"

namespace fake_nccl {

namespace {

using std::chrono::steady_clock;

// A name that no file has, and that is gone with its process.
socklen_t address_of(const std::string& name, sockaddr_un* address) {
  *address = sockaddr_un{};
  address->sun_family = AF_UNIX;
  std::memcpy(address->sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

class Hub {
 public:
  Hub(int listener, int ranks) : listener_(listener), lines_(static_cast<std::size_t>(ranks)) {}
  ~Hub() { ::close(listener_); }
  Hub(const Hub&) = delete;
  Hub& operator=(const Hub&) = delete;

  void run() {
    const auto until = steady_clock::now() + std::chrono::seconds(wait_s());
    while (!is_welcomed_ && steady_clock::now() < until) turn();
    while (is_welcomed_ && !is_empty()) turn();
  }

 private:
  struct Gathered {
    Call call;
    int first = 0;
    std::map<int, Bytes> bytes;  // by rank
  };

  int ranks() const { return static_cast<int>(lines_.size()); }
  bool is_empty() const {
    for (const auto& line : lines_) {
      if (line != nullptr) return false;
    }
    return true;
  }

  void turn() {
    constexpr int kTurnMs = 100;
    std::vector<pollfd> all;
    if (!is_welcomed_) all.push_back({listener_, POLLIN, 0});
    for (const auto& line : arriving_) all.push_back({line->socket(), POLLIN, 0});
    for (const auto& line : lines_) {
      if (line == nullptr) continue;
      all.push_back(
          {line->socket(), static_cast<short>(line->has_unsaid() ? POLLIN | POLLOUT : POLLIN), 0});
    }
    ::poll(all.data(), all.size(), kTurnMs);
    accept_one();
    hear_hellos();
    for (int rank = 0; rank < ranks(); ++rank) hear(rank);
  }

  void accept_one() {
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (socket >= 0) arriving_.push_back(std::make_unique<Line>(socket));
  }

  void hear_hellos() {
    for (auto& line : arriving_) {
      Frame frame;
      Bytes bytes;
      const bool is_there = line->move();
      if (line->next(&frame, &bytes)) {
        greet(frame, std::move(line));
      } else if (!is_there) {
        line = nullptr;
      }
    }
    std::erase(arriving_, nullptr);
    if (greeted_ == ranks() && !is_welcomed_) welcome();
  }

  void greet(const Frame& frame, std::unique_ptr<Line> line) {
    ++greeted_;
    if (frame.ranks != ranks()) {
      refuse("rank " + std::to_string(frame.rank) + " says that there are " +
             std::to_string(frame.ranks) + " ranks");
    }
    for (const auto& [rank, device] : devices_) {
      if (rank == frame.rank) refuse("there are two of rank " + std::to_string(rank));
      if (device != frame.device) continue;
      refuse("Duplicate GPU detected : rank " + std::to_string(frame.rank) + " and rank " +
             std::to_string(rank) + " both on CUDA device " + std::to_string(device + 1) + "000");
    }
    devices_[frame.rank] = frame.device;
    auto& place = lines_[static_cast<std::size_t>(frame.rank) % lines_.size()];
    if (place == nullptr) {
      place = std::move(line);
    } else {
      refused_.push_back(std::move(line));
    }
  }

  void refuse(std::string why) {
    if (refusal_.empty()) refusal_ = std::move(why);
  }

  void welcome() {
    is_welcomed_ = true;
    Frame frame{.kind = Kind::kWelcome};
    frame.result = refusal_.empty() ? kNcclSuccess : kNcclInvalidUsage;
    for (auto& line : refused_) {
      line->say(frame, refusal_);
      line->move();
    }
    for (auto& line : lines_) {
      if (line == nullptr) continue;
      line->say(frame, refusal_);
    }
  }

  void hear(int rank) {
    auto& line = lines_[static_cast<std::size_t>(rank)];
    if (line == nullptr) return;
    const bool is_there = line->move();
    Frame frame;
    Bytes bytes;
    while (line->next(&frame, &bytes)) act(rank, frame, std::move(bytes));
    if (is_there) return;
    line = nullptr;
    if (is_closed_ || !refusal_.empty()) return;
    lose("rank " + std::to_string(rank) + " is gone");
  }

  void act(int rank, const Frame& frame, Bytes bytes) {
    if (frame.kind == Kind::kCollective) return gather(rank, frame, std::move(bytes));
    if (frame.kind == Kind::kTransfer) return tell(frame.call.root, frame, bytes);
    if (frame.kind != Kind::kBye || ++byes_ < ranks()) return;
    is_closed_ = true;
    for (int one = ranks() - 1; one >= 0; --one) {  // rank 0 last: the hub may end with its process
      tell(one, Frame{.kind = Kind::kClosed}, {});
      if (one != rank && lines_[static_cast<std::size_t>(one)] != nullptr)
        lines_[static_cast<std::size_t>(one)]->move();
    }
  }

  void tell(int rank, const Frame& frame, const Bytes& bytes) {
    const auto& line = lines_[static_cast<std::size_t>(rank)];
    if (line != nullptr) line->say(frame, bytes);
  }

  void lose(const std::string& why) {
    for (const auto& line : lines_) {
      if (line != nullptr) line->say(Frame{.kind = Kind::kLost}, why);
    }
  }

  void gather(int rank, const Frame& frame, Bytes bytes) {
    Gathered& all = gathered_[frame.number];
    if (all.bytes.empty()) {
      all.call = frame.call;
      all.first = rank;
    }
    if (!(frame.call == all.call)) {
      fake_gpu::violation(
          "all ranks of a communicator issue the same collectives in the same order",
          "collective %llu of rank %d is %s, and of rank %d %s",
          static_cast<unsigned long long>(frame.number), rank, text_of(frame.call).c_str(),
          all.first, text_of(all.call).c_str());
      gathered_.erase(frame.number);
      return lose("ranks have issued different collectives");
    }
    all.bytes[rank] = std::move(bytes);
    if (static_cast<int>(all.bytes.size()) < ranks()) return;
    finish(frame.number, all);
    gathered_.erase(frame.number);
  }

  void finish(std::uint64_t number, Gathered& all) {
    Frame frame{.kind = Kind::kResult, .call = all.call};
    frame.number = number;
    const std::size_t size = bytes_of(all.call.type) * all.call.count;
    Bytes whole;  // what ranks get a share of, or all
    switch (all.call.op) {
      case Op::kBroadcast:
        whole = std::move(all.bytes[all.call.root]);
        break;
      case Op::kAllGather:
        for (const auto& [rank, bytes] : all.bytes)
          whole.insert(whole.end(), bytes.begin(), bytes.end());
        break;
      case Op::kAllToAll:
        break;
      default:
        whole = reduced(all);
    }
    for (int rank = 0; rank < ranks(); ++rank) {
      const auto begin = static_cast<std::ptrdiff_t>(size) * rank;
      const auto share = [&](const Bytes& of) {
        return Bytes(of.begin() + begin, of.begin() + begin + static_cast<std::ptrdiff_t>(size));
      };
      if (all.call.op == Op::kReduceScatter) {
        tell(rank, frame, share(whole));
      } else if (all.call.op == Op::kAllToAll) {
        Bytes mine;
        for (const auto& [from, bytes] : all.bytes) {
          const Bytes one = share(bytes);
          mine.insert(mine.end(), one.begin(), one.end());
        }
        tell(rank, frame, mine);
      } else {
        tell(rank, frame, all.call.op == Op::kReduce && rank != all.call.root ? Bytes() : whole);
      }
    }
  }

  Bytes reduced(Gathered& all) const {
    Bytes sum = std::move(all.bytes[0]);
    const std::size_t count = sum.size() / bytes_of(all.call.type);
    for (int rank = 1; rank < ranks(); ++rank) {
      reduce(all.call.type, all.call.reduction, sum.data(), all.bytes[rank].data(), count);
    }
    if (all.call.reduction == kNcclAvg)
      divide_after_average(all.call.type, sum.data(), count, ranks());
    return sum;
  }

  const int listener_;
  std::vector<std::unique_ptr<Line>> lines_;  // by rank; null: not yet, or not any more
  std::vector<std::unique_ptr<Line>> arriving_, refused_;
  std::map<int, int> devices_;  // of ranks
  std::map<std::uint64_t, Gathered> gathered_;
  std::string refusal_;
  int greeted_ = 0;
  int byes_ = 0;
  bool is_welcomed_ = false;
  bool is_closed_ = false;
};

}  // namespace

int wait_s() {
  constexpr int kDefault = 60;
  const char* const text = std::getenv("FAKE_NCCL_WAIT_S");
  return text == nullptr || *text == '\0' ? kDefault : std::atoi(text);
}

bool start_hub(const std::string& name, int ranks) {
  sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (listener < 0) return false;
  if (::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener, ranks) != 0) {
    ::close(listener);
    return false;
  }
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread([listener, ranks] {
    const fake_gpu::Unseen unseen;
    Hub(listener, ranks).run();
  }).detach();
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return true;
}

int call_hub(const std::string& name, const std::atomic<bool>& gives_up) {
  sockaddr_un address;
  const socklen_t size = address_of(name, &address);
  const auto until = steady_clock::now() + std::chrono::seconds(wait_s());
  while (!gives_up && steady_clock::now() < until) {
    const int line = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (line < 0) return -1;
    if (::connect(line, reinterpret_cast<sockaddr*>(&address), size) == 0) return line;
    ::close(line);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return -1;
}

}  // namespace fake_nccl
