// byteps_server_dying: byteps_server that is killed, as by kill -9, at its n-th call of a transport (test_sweep.py).
//
// The linker puts the function below in the place of TransportMaker::make (--wrap in tests/CMakeLists.txt), and nothing
// else differs. Counted is, over all connections and threads, what others can see the effect of: connect(), send(),
// close(), and a poll() that has something. It dies before the call has an effect; at a poll(), when it has taken from
// the network what nobody has looked at.
//
//   DYING_AT     the number of that call, from 1; without it the process lives
//   DYING_COUNT  a file that has, at the end of a process that lives, how many calls there were
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "app/process.h"
#include "net/transport.h"

namespace byteps {
namespace {

class Count {
 public:
  Count() {
    const char* at = std::getenv("DYING_AT");
    at_ = at == nullptr ? 0 : std::strtoul(at, nullptr, 10);
  }
  ~Count() {
    const char* path = std::getenv("DYING_COUNT");
    std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "w");
    if (file == nullptr) return;
    std::fprintf(file, "%lu\n", calls_.load());
    std::fclose(file);
  }
  Count(const Count&) = delete;
  Count& operator=(const Count&) = delete;

  void add() {
    if (calls_.fetch_add(1) + 1 == at_) std::raise(SIGKILL);
  }

 private:
  std::atomic<unsigned long> calls_{0};
  unsigned long at_ = 0;
};

Count calls;

class CountedTransport final : public ProcessTransport {
 public:
  explicit CountedTransport(std::unique_ptr<ProcessTransport> inner) : inner_(std::move(inner)) {}

  Result<PeerId> connect(const Endpoint& to, const Hello& self) override {
    calls.add();
    return inner_->connect(to, self);
  }
  Status send(PeerId peer, const Outgoing& message) override {
    calls.add();
    return inner_->send(peer, message);
  }
  void close(PeerId peer, Status reason) override {
    calls.add();
    inner_->close(peer, std::move(reason));
  }
  std::size_t poll(TimeNs now, std::span<Event> events) override {
    const std::size_t count = inner_->poll(now, events);
    if (count > 0) calls.add();
    return count;
  }

  bool is_naming(PeerId peer) const override { return inner_->is_naming(peer); }
  std::size_t capacity_bytes(PeerId peer) const override { return inner_->capacity_bytes(peer); }
  TimeNs round_trip_ns(PeerId peer) const override { return inner_->round_trip_ns(peer); }
  Ways ways() const override { return inner_->ways(); }
  Ways outbound_ways() const override { return inner_->outbound_ways(); }
  std::shared_ptr<BufferSource> payload_source() override { return inner_->payload_source(); }
  TimeNs next_deadline() const override { return inner_->next_deadline(); }
  void set_self(const Hello& self) override { inner_->set_self(self); }
  void expect_peers(std::size_t count) override { inner_->expect_peers(count); }
  Waiter& waiter() override { return inner_->waiter(); }
  std::vector<Endpoint> listening() const override { return inner_->listening(); }

 private:
  const std::unique_ptr<ProcessTransport> inner_;
};

}  // namespace

using Made = Result<std::unique_ptr<ProcessTransport>>;

// A member's `this` is passed as a first argument.
Made real_make(const TransportMaker* self, std::vector<Endpoint> listen, bool tells_ways) asm(
    "__real__ZNK6byteps14TransportMaker4makeESt6vectorINS_8EndpointESaIS2_EEb");
Made counted_make(const TransportMaker* self, std::vector<Endpoint> listen, bool tells_ways) asm(
    "__wrap__ZNK6byteps14TransportMaker4makeESt6vectorINS_8EndpointESaIS2_EEb");

Made counted_make(const TransportMaker* self, std::vector<Endpoint> listen, bool tells_ways) {
  Made made = real_make(self, std::move(listen), tells_ways);
  if (!made.is_ok()) return made;
  return std::unique_ptr<ProcessTransport>(
      std::make_unique<CountedTransport>(std::move(made).value()));
}

}  // namespace byteps
