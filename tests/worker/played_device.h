// PlayedDevice: a device for a Staging, in ordinary memory and one thread. What is ordered happens when it is told to,
// in the order of each direction; streams get ready in any order. Until a copy happens its target holds rubbish, and
// its source is read no earlier than then: whoever uses memory too early or gives it back too soon is found by the
// sums.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "base/prng.h"
#include "device/orders.h"
#include "worker/staging.h"

namespace byteps {

class PlayedDevice {
 public:
  PlayedDevice(std::uint64_t pool_bytes, std::uint64_t seed)
      : pool_(pool_bytes + device::kSlabAlignment), chance_(seed), staging_(pool(), kChunkBytes) {}

  Staging& staging() { return staging_; }

  // The call becomes one on this device, whose stream gets ready by `make_ready`.
  void take(PipelineCall& call, std::function<void()> make_ready) {
    staging_.take(call);
    readies_.emplace(staging_.orders().back().operation, std::move(make_ready));
  }

  // One thing happens. False: there is nothing to do.
  bool step() {
    collect();
    std::vector<std::deque<device::Order>*> open;
    for (auto* const queue : {&awaits_, &outs_, &ins_}) {
      if (!queue->empty()) open.push_back(queue);
    }
    if (open.empty()) return false;
    std::deque<device::Order>& queue = *open[chance_.below(open.size())];
    const std::size_t at = &queue == &awaits_ ? chance_.below(queue.size()) : 0;
    const device::Order order = std::move(queue[at]);
    queue.erase(queue.begin() + static_cast<std::ptrdiff_t>(at));
    perform(order);
    staging_.on_report({order.kind, order.operation, order.part, order.chunk, Status::ok()});
    return true;
  }

  std::size_t copies() const { return copies_; }
  bool is_idle() const {
    return awaits_.empty() && outs_.empty() && ins_.empty() && !staging_.waits_for_device();
  }

 private:
  static constexpr std::size_t kChunkBytes = 128;  // two frames of the model's

  std::span<std::byte> pool() {
    void* first = pool_.data();
    std::size_t space = pool_.size();
    return {static_cast<std::byte*>(std::align(device::kSlabAlignment, 1, first, space)),
            pool_.size() - device::kSlabAlignment};
  }

  void collect() {
    std::deque<device::Order>& orders = staging_.orders();
    for (; !orders.empty(); orders.pop_front()) {
      device::Order& order = orders.front();
      using Kind = device::Order::Kind;
      if (order.kind == Kind::kOut) std::memset(order.host, 0xa5, order.bytes);
      if (order.kind == Kind::kIn) std::memset(memory(order.address), 0xb6, order.bytes);
      (order.kind == Kind::kAwait ? awaits_
       : order.kind == Kind::kOut ? outs_
                                  : ins_)
          .push_back(std::move(order));
    }
  }

  static void* memory(device::abi::DeviceAddress address) {
    return reinterpret_cast<void*>(address);
  }

  void perform(const device::Order& order) {
    using Kind = device::Order::Kind;
    if (order.kind == Kind::kAwait) {
      const auto found = readies_.find(order.operation);
      found->second();
      readies_.erase(found);
      return;
    }
    ++copies_;
    if (order.kind == Kind::kOut) std::memcpy(order.host, memory(order.address), order.bytes);
    if (order.kind == Kind::kIn) std::memcpy(memory(order.address), order.host, order.bytes);
    if (order.kind == Kind::kWithin) {
      std::memcpy(memory(order.address), memory(order.source), order.bytes);
    }
  }

  std::vector<std::byte> pool_;
  Prng chance_;
  Staging staging_;
  std::map<std::uint64_t, std::function<void()>> readies_;
  std::deque<device::Order> awaits_;
  std::deque<device::Order> outs_;
  std::deque<device::Order> ins_;
  std::size_t copies_ = 0;
};

}  // namespace byteps
