#include "tests/gpu/nccl_comm.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <utility>

#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tests/gpu/faults.h"
#include "tests/gpu/nccl_hub.h"
#include "tests/gpu/tsan.h"

namespace fake_nccl {

namespace {

constexpr int kPoison = 0xCB;  // what a result is until it is there, and after an abort

std::int64_t now_s() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// ---- called by threads of the user

void Communicator::start() {
  const fake_gpu::Unseen unseen;
  news_ = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([self = shared_from_this()] { self->run(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

NcclResult Communicator::state() {
  const fake_gpu::Unseen unseen;
  const std::lock_guard guard(mutex_);
  return state_;
}

std::string Communicator::error() {
  const fake_gpu::Unseen unseen;
  const std::lock_guard guard(mutex_);
  return error_;
}

NcclResult Communicator::wait() {
  const fake_gpu::Unseen unseen;
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return state_ != kNcclInProgress; });
  return state_;
}

void Communicator::finalize() {
  const fake_gpu::Unseen unseen;
  const std::lock_guard guard(mutex_);
  if (state_ != kNcclSuccess || finalizes_) return;
  finalizes_ = true;
  state_ = kNcclInProgress;
  tell();
}

void Communicator::abort() {
  const fake_gpu::Unseen unseen;
  {
    const std::lock_guard guard(mutex_);
    aborts_ = true;
    tell();
  }
  join();
}

void Communicator::join() {
  const fake_gpu::Unseen unseen;
  if (!thread_.joinable()) return;
  thread_.join();
  ::close(news_);
  news_ = -1;
}

void Communicator::tell() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(news_, &one, sizeof one);
}

fake_gpu::Code Communicator::issue(fake_gpu::Engine& engine, IssueRef issue, void* handle) {
  fake_gpu::Device& device = *place_.device;
  if (const fake_gpu::Code code = engine.retain(device, true); code != fake_gpu::kSuccess)
    return code;
  engine.push(&device.primary);  // the default stream is that of the communicator's device
  issue->stream = engine.stream(handle, issue->what);
  fake_gpu::Context* popped = nullptr;
  engine.pop(&popped);
  if (issue->stream == nullptr) return fake_gpu::kInvalidHandle;
  if (issue->stream->context != &device.primary) {
    fake_gpu::violation("a communicator's streams are of its device",
                        "%s on a stream of device %d, with a "
                        "communicator of device %d",
                        issue->what, issue->stream->context->device->number, device.number);
    return fake_gpu::kInvalidHandle;
  }
  fake_gpu::Kernel kernel;
  kernel.what = issue->what;
  kernel.duration_ns = std::max<fake_gpu::TimeNs>(engine.settings().latency_ns, 1);
  kernel.is_held = true;
  if (last_.stream != nullptr) kernel.after.push_back(last_);
  const auto add = [](const void* at, std::size_t bytes, auto* begins, auto* sizes) {
    if (at == nullptr || bytes == 0) return;
    begins->push_back(at);
    sizes->push_back(bytes);
  };
  for (Part& part : issue->parts) {
    const auto* const to = static_cast<const char*>(part.to);
    const bool is_in_place = to != nullptr && part.from >= to && part.from < to + part.to_bytes;
    if (!is_in_place) add(part.from, part.from_bytes, &kernel.reads, &kernel.read_bytes);
    add(part.to, part.to_bytes, &kernel.writes, &kernel.write_bytes);
    const auto& own = operators;
    if (part.call.reduction < kNcclOwn) continue;
    const OwnOperator& op = own[part.call.reduction - kNcclOwn];
    part.call.reduction = kNcclOwn;
    part.factor = op.host_scalar;
    if (op.device_scalar != nullptr)
      add(op.device_scalar, bytes_of(op.type), &kernel.reads, &kernel.read_bytes);
    if (op.device_scalar != nullptr) part.factor_at = static_cast<const char*>(op.device_scalar);
  }
  const auto alias = [&](const void* at) -> char* {
    const auto block = engine.block_at(at);
    return block == nullptr ? nullptr
                            : block->alias + (static_cast<const char*>(at) - block->address);
  };
  kernel.compute = [self = shared_from_this(), issue](const auto&, const auto&) {
    self->posted(issue);
  };
  for (Part& part : issue->parts) {
    part.from_at = alias(part.from);
    part.to_at = alias(part.to);
    if (part.factor_at != nullptr) part.factor_at = alias(part.factor_at);
  }
  const std::uint64_t submitted = issue->stream->submitted;
  const fake_gpu::Code code = engine.launch(std::move(kernel), issue->stream, &issue->work);
  if (code != fake_gpu::kSuccess || issue->stream->submitted == submitted)
    return code;  // or it was captured
  last_ =
      fake_gpu::Dependency{issue->stream, issue->stream->submitted, issue->stream->strand.tag()};
  for (Part& part : issue->parts) {
    if (part.call.op < Op::kSend) part.number = next_collective_++;
  }
  const std::lock_guard guard(mutex_);
  ++issued_;
  return code;
}

// The turn of a kernel has come. In the engine's thread.
void Communicator::posted(const IssueRef& issue) {
  {
    const std::lock_guard guard(mutex_);
    if (!is_over_) {
      posted_.push_back(issue);
      return tell();
    }
  }
  end_kernel(*issue);
}

// ---- the thread

void Communicator::set_state(NcclResult state, const std::string& error) {
  const std::lock_guard guard(mutex_);
  state_ = state;
  if (!error.empty()) error_ = error;
  changed_.notify_all();
}

void Communicator::run() {
  const fake_gpu::Unseen unseen;
  pthread_setname_np(pthread_self(), "fake-nccl");
  const bool has_met = meet();
  bool is_over = false;
  while (!is_over) {
    if (has_met) {
      turn();
    } else {
      pollfd news{news_, POLLIN, 0};
      ::poll(&news, 1, 100);
    }
    const std::lock_guard guard(mutex_);
    is_over = aborts_ || (finalizes_ && state_ == kNcclSuccess);
  }
  std::vector<IssueRef> left;
  {
    const std::lock_guard guard(mutex_);
    is_over_ = true;
    left = std::exchange(posted_, {});
  }
  running_.insert(running_.end(), left.begin(), left.end());
  line_ = nullptr;
  for (const IssueRef& issue : running_) {
    for (Part& part : issue->parts) {
      if (part.to_at != nullptr && !part.is_done) std::memset(part.to_at, kPoison, part.to_bytes);
    }
    end_kernel(*issue);
  }
  running_.clear();
}

// True when all ranks are there.
bool Communicator::meet() {
  if (place_.rank == 0 && !start_hub(place_.name, place_.ranks)) {
    set_state(kNcclInvalidUsage,
              "there is a communicator of this ncclUniqueId, with a rank 0 of its own");
    return false;
  }
  const int socket = call_hub(place_.name, aborts_);
  if (socket < 0) {
    set_state(kNcclRemoteError, "rank 0 has not come");
    return false;
  }
  line_ = std::make_unique<Line>(socket);
  Frame hello{.kind = Kind::kHello,
              .rank = place_.rank,
              .device = place_.device->physical,
              .ranks = place_.ranks};
  line_->say(hello, Bytes());
  const std::int64_t until_s = now_s() + wait_s();
  Frame frame;
  Bytes bytes;
  while (!aborts_ && now_s() <= until_s) {
    const bool is_there = line_->move();
    if (line_->next(&frame, &bytes)) {
      set_state(static_cast<NcclResult>(frame.result), std::string(bytes.begin(), bytes.end()));
      return frame.result == kNcclSuccess;
    }
    if (!is_there) break;
    std::array<pollfd, 2> both{pollfd{socket, POLLIN, 0}, pollfd{news_, POLLIN, 0}};
    ::poll(both.data(), both.size(), 100);
  }
  set_state(kNcclRemoteError, "not all ranks have come");
  return false;
}

void Communicator::turn() {
  constexpr int kTurnMs = 100;
  std::array<pollfd, 2> both{pollfd{news_, POLLIN, 0}, pollfd{-1, POLLIN, 0}};
  if (line_ != nullptr) both[1].fd = line_->socket();
  if (line_ != nullptr && line_->has_unsaid()) both[1].events |= POLLOUT;
  ::poll(both.data(), both.size(), kTurnMs);
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = ::read(news_, &count, sizeof count);
  std::vector<IssueRef> begun;
  bool says_bye = false;
  {
    const std::lock_guard guard(mutex_);
    begun = std::exchange(posted_, {});
    says_bye = finalizes_ && issued_ == ended_ && !has_said_bye_;
  }
  if (aborts_) {
    running_.insert(running_.end(), begun.begin(), begun.end());
    return;
  }
  for (const IssueRef& issue : begun) begin(issue);
  if (line_ == nullptr) return;
  if (says_bye) {
    has_said_bye_ = true;
    line_->say(Frame{.kind = Kind::kBye}, Bytes());
  }
  const bool is_there = line_->move();
  Frame frame;
  Bytes bytes;
  while (line_ != nullptr && line_->next(&frame, &bytes)) hear(frame, std::move(bytes));
  deliver();
  check_waits();
  if (is_there || line_ == nullptr) return;
  line_ = nullptr;
  if (state() != kNcclRemoteError) set_state(kNcclRemoteError, "rank 0 is gone");
}

void Communicator::hear(const Frame& frame, Bytes bytes) {
  if (frame.kind == Kind::kTransfer) {
    arrived_[frame.rank].emplace_back(frame.call, std::move(bytes));
  } else if (frame.kind == Kind::kLost) {
    set_state(kNcclRemoteError, std::string(bytes.begin(), bytes.end()));
  } else if (frame.kind == Kind::kClosed) {
    line_ = nullptr;
    set_state(kNcclSuccess, "");
  } else if (frame.kind == Kind::kResult) {
    for (const IssueRef& issue : running_) {
      for (Part& part : issue->parts) {
        if (part.call.op < Op::kSend && part.number == frame.number) end_part(part, bytes);
      }
    }
    end_issues(false);
  }
}

void Communicator::begin(const IssueRef& issue) {
  issue->began_s = now_s();
  running_.push_back(issue);
  for (Part& part : issue->parts) {
    const Bytes mine(part.from_at, part.from_at + (part.from_at == nullptr ? 0 : part.from_bytes));
    if (part.call.op < Op::kSend) {
      begin_collective(part);
    } else if (part.call.op == Op::kSend && line_ != nullptr) {
      line_->say(Frame{.kind = Kind::kTransfer, .rank = place_.rank, .call = part.call}, mine);
      part.is_done = true;
    }
  }
  end_issues(false);
}

void Communicator::begin_collective(Part& part) {
  const Call& call = part.call;
  Bytes mine;
  if (part.from_at != nullptr) mine.assign(part.from_at, part.from_at + part.from_bytes);
  const std::size_t count = mine.size() / bytes_of(call.type);
  if (call.reduction == kNcclAvg) scale_before_average(call.type, mine.data(), count, place_.ranks);
  if (call.reduction == kNcclOwn) {
    scale(call.type, mine.data(), part.factor_at != nullptr ? part.factor_at : part.factor.data(),
          count);
  }
  if (part.to_at != nullptr) std::memset(part.to_at, kPoison, part.to_bytes);
  Frame frame{.kind = Kind::kCollective, .rank = place_.rank, .call = call};
  frame.number = part.number;
  if (line_ != nullptr) line_->say(frame, mine);
}

void Communicator::end_part(Part& part, const Bytes& bytes) {
  if (part.to_at != nullptr)
    std::memcpy(part.to_at, bytes.data(), std::min(bytes.size(), part.to_bytes));
  part.is_done = true;
}

// What has arrived goes to who receives it, in the order of both.
void Communicator::deliver() {
  for (const IssueRef& issue : running_) {
    for (Part& part : issue->parts) {
      if (part.call.op != Op::kReceive || part.is_done) continue;
      auto& from = arrived_[part.peer];
      if (from.empty()) continue;
      const auto [call, bytes] = std::move(from.front());
      from.pop_front();
      if (call.count != part.call.count || call.type != part.call.type) {
        fake_gpu::violation("a send and its receive have the same count and type",
                            "rank %d receives %s, rank %d sends %s", place_.rank,
                            text_of(part.call).c_str(), part.peer, text_of(call).c_str());
      }
      end_part(part, bytes);
    }
  }
  end_issues(false);
}

void Communicator::end_issues(bool all) {
  std::erase_if(running_, [&](const IssueRef& issue) {
    const bool is_done = std::all_of(issue->parts.begin(), issue->parts.end(),
                                     [](const Part& one) { return one.is_done; });
    if (!is_done && !all) return false;
    end_kernel(*issue);
    return true;
  });
}

void Communicator::end_kernel(Issue& issue) {
  fake_gpu::Engine::of_process().call({"fake_nccl_end", false, fake_gpu::Engine::Needs::kNothing},
                                      [&](fake_gpu::Engine& engine, fake_gpu::Engine::Lock&) {
                                        engine.end_kernel(issue.stream, *issue.work);
                                        return fake_gpu::kSuccess;
                                      });
  issue.work = nullptr;  // which has the issue
  const std::lock_guard guard(mutex_);
  ++ended_;
  tell();
}

// What would hang.
void Communicator::check_waits() {
  if (running_.empty() || state() == kNcclRemoteError ||
      now_s() - running_.front()->began_s <= wait_s())
    return;
  const Part& part = running_.front()->parts.front();
  fake_gpu::violation("all ranks of a communicator issue the same collectives in the same order",
                      "rank %d has waited %d s in %s for others", place_.rank, wait_s(),
                      text_of(part.call).c_str());
  set_state(kNcclRemoteError, "other ranks have not come");
}

}  // namespace fake_nccl
