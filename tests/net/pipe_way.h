// PipeWay: a way that exists only in tests: pipes in the memory of one process, between transports that are turned by
// one thread. It is what src/net/way/way.h asks for and nothing more; net/tcp has never heard of it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sys/eventfd.h>
#include <unistd.h>

#include "base/buffer.h"
#include "net/way/way.h"

namespace byteps {

// One direction. Written from the front to the end of its memory, then from the front again once all of it is read.
struct PipeMemory {
  explicit PipeMemory(std::size_t capacity) : bytes(capacity) {}
  Buffer bytes;
  std::size_t written = 0;
  std::size_t read = 0;
  std::size_t released = 0;
  std::uint64_t begin = 0;  // the position of bytes[0]
};

// What two ends share.
struct Pipe {
  explicit Pipe(std::size_t capacity) : memory{PipeMemory(capacity), PipeMemory(capacity)} {
    for (int& bell : bells) bell = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  }
  ~Pipe() {
    for (const int bell : bells) ::close(bell);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;

  std::array<PipeMemory, 2> memory;  // by the end that writes it
  std::array<int, 2> bells;          // by the end that is woken
};

class PipeLink final : private way::RingOut, private way::RingIn, public way::Link {
 public:
  PipeLink(std::shared_ptr<Pipe> pipe, std::size_t end)
      : way::Link(static_cast<way::RingOut&>(*this), static_cast<way::RingIn&>(*this)),
        pipe_(std::move(pipe)),
        end_(end) {}

  std::string text() const override { return "a pipe"; }
  std::size_t ring_bytes() const override { return out().bytes.span().size(); }
  std::uint64_t& share_of(Transport::Ways& ways) const override { return ways.shared_bytes; }
  int wake_descriptor() const override { return pipe_->bells[end_]; }
  void flush() override {
    if (std::exchange(has_written_, false)) wake_other();
  }
  void freeze() override { frozen_at_ = told(); }
  bool arm(const frame::Outbox& outbox, bool /*is_patient*/) override {
    const bool can_write = outbox.has_unstreamed() && out().released == out().written;
    return (reads() && (has_moved() || is_paused())) || can_write;
  }
  void drain_wakes() override {
    std::uint64_t count = 0;
    (void)!::read(pipe_->bells[end_], &count, sizeof count);
  }

 private:
  std::size_t room() override {
    PipeMemory& to = out();
    if (to.released == to.written) {
      to.begin += to.written;
      to.written = to.read = to.released = 0;
    }
    return to.bytes.span().size() - to.written;
  }
  std::byte* place() override { return out().bytes.span().data() + out().written; }
  void publish(std::size_t bytes) override {
    out().written += bytes;
    has_written_ = true;
  }
  std::size_t writable_whole_bytes_max() const override { return out().bytes.span().size() / 2; }

  std::span<const std::byte> readable() override {
    seen_ = told();
    return in().bytes.span().subspan(in().read, seen_ - std::min(seen_, position()));
  }
  std::size_t readable_whole_bytes_max() const override { return in().bytes.span().size() / 2; }
  std::uint64_t position() const override { return in().begin + in().read; }
  void skip(std::size_t bytes) override { in().read += bytes; }
  void release() override {
    if (std::exchange(in().released, in().read) != in().read) wake_other();
  }
  bool has_moved() const override { return told() != seen_; }
  bool is_broken() const override { return false; }

  void wake_other() const {
    const std::uint64_t one = 1;
    (void)!::write(pipe_->bells[1 - end_], &one, sizeof one);
  }
  // The position behind what may be read.
  std::uint64_t told() const { return frozen_at_.value_or(in().begin + in().written); }
  PipeMemory& out() const { return pipe_->memory[end_]; }
  PipeMemory& in() const { return pipe_->memory[1 - end_]; }

  const std::shared_ptr<Pipe> pipe_;
  const std::size_t end_;
  bool has_written_ = false;  // since flush()
  std::optional<std::uint64_t> frozen_at_;
  std::uint64_t seen_ = 0;  // position up to which readable() has looked
};

// Where the ends of pipes meet.
struct PipeDepot {
  std::map<std::uint64_t, std::shared_ptr<Pipe>> waiting;
  std::uint64_t last_number = 0;
};

class PipeWay final : public way::Way {
 public:
  static constexpr auto kOpening = static_cast<way::Aside>(70);
  static constexpr auto kAnswer = static_cast<way::Aside>(71);

  PipeWay(std::shared_ptr<PipeDepot> depot, std::size_t capacity)
      : depot_(std::move(depot)), capacity_(capacity) {}

  std::string_view name() const override { return "a pipe"; }
  bool is_wanted() const override { return true; }
  way::Aside opening() const override { return kOpening; }
  way::Aside answering() const override { return kAnswer; }

  way::Step open(const way::Site& /*site*/) override {
    const std::uint64_t number = ++depot_->last_number;
    auto pipe = std::make_shared<Pipe>(capacity_);
    depot_->waiting[number] = pipe;
    way::Step step;
    step.say = {.kind = kOpening, .content = std::vector<std::byte>(sizeof number)};
    std::memcpy(step.say->content.data(), &number, sizeof number);
    step.attempt = std::make_unique<Opened>(std::move(pipe));
    return step;
  }
  Result<way::Step> answer(const way::Site& /*site*/, std::span<const std::byte> content) override {
    std::uint64_t number = 0;
    if (content.size() != sizeof number) return way::out_of_turn();
    std::memcpy(&number, content.data(), sizeof number);
    const auto found = depot_->waiting.extract(number);
    way::Step step;
    if (found.empty()) {
      step.failed = {Code::kUnsupported, "no such pipe"};
      return step;
    }
    step.link = std::make_unique<PipeLink>(found.mapped(), 1);
    step.say = {.kind = kAnswer, .content = {}};
    return step;
  }
  void taken(const way::Site& /*site*/, const way::Link& /*link*/) override {}
  Status go_without(const way::Site& /*site*/, const Status& /*why*/, bool /*must_link*/,
                    bool /*by_them*/) override {
    return Status::ok();
  }

 private:
  class Opened final : public way::Attempt {
   public:
    explicit Opened(std::shared_ptr<Pipe> pipe) : pipe_(std::move(pipe)) {}
    Result<way::Step> heed(const way::Site& /*site*/, way::Aside /*kind*/,
                           std::span<const std::byte> /*content*/) override {
      way::Step step;
      step.link = std::make_unique<PipeLink>(pipe_, 0);
      return step;
    }

   private:
    const std::shared_ptr<Pipe> pipe_;
  };

  const std::shared_ptr<PipeDepot> depot_;
  const std::size_t capacity_;
};

}  // namespace byteps
