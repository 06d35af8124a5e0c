#include "sim/device.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <utility>

#include "base/check.h"

namespace byteps::sim {
namespace {

constexpr int kRubbish = 0xa5;

bool overlap(const std::byte* a, std::size_t a_bytes, std::span<const std::byte> b) {
  const std::less<const std::byte*> before;
  return a_bytes > 0 && !b.empty() && before(a, b.data() + b.size()) &&
         before(b.data(), a + a_bytes);
}

device::abi::Event event_of(std::uint64_t number) {
  return reinterpret_cast<device::abi::Event>(static_cast<std::uintptr_t>(number));
}

std::uint64_t number_of(device::abi::Event event) {
  return reinterpret_cast<std::uintptr_t>(event);
}

}  // namespace

// ---- its user's side

std::uint64_t SimDevice::launch(std::uint64_t stream, TimeNs takes_ns, std::function<void()> work) {
  Line& line = streams_[stream];
  line.free_ns = std::max({line.free_ns, now_(), stands_until_ns_}) + takes_ns;
  line.waiting.push_back({.ends_ns = line.free_ns, .kernel = std::move(work)});
  return line.last();
}

void SimDevice::cancel(std::uint64_t stream, std::uint64_t number) {
  Line& line = streams_[stream];
  if (number > line.done) line.waiting[number - line.done - 1].kernel = [] {};
}

device::Event SimDevice::record(std::uint64_t stream) {
  return mark(streams_[stream]);
}

std::string SimDevice::claim_on(std::span<const std::byte> memory) const {
  if (has_failed_) return {};
  for (const Line* const line : {&out_, &in_}) {
    for (const Work& copy : line->waiting) {
      if (overlap(copy.to, copy.bytes, memory)) return name_ + " still copies to it";
      if (overlap(copy.from, copy.bytes, memory)) return name_ + " still copies from it";
    }
  }
  return {};
}

// ---- what happens to it

void SimDevice::stand_still(TimeNs until) {
  const TimeNs lasts = std::max<TimeNs>(0, until - std::max(now_(), stands_until_ns_));
  stands_until_ns_ = std::max(stands_until_ns_, until);
  const auto delay = [&](Line& line) {
    for (Work& work : line.waiting) work.ends_ns += lasts;
    line.free_ns = std::max(line.free_ns + lasts, until);
  };
  delay(out_);
  delay(in_);
  for (auto& [stream, line] : streams_) delay(line);
}

void SimDevice::fail_at(std::uint64_t call, std::function<void()> failed) {
  calls_left_ = call;
  failed_ = std::move(failed);
}

Status SimDevice::called(const char* call) {
  if (calls_left_ > 0 && --calls_left_ == 0) {
    has_failed_ = true;
    failed_();
  }
  if (!has_failed_) return Status::ok();
  return {Code::kSystem, name_ + ": " + call + ": it has failed"};
}

// ---- copies and events

std::byte* SimDevice::near(device::abi::DeviceAddress address) {
  CHECK((address & kFar) != 0) << "host memory is said to be a device's";
  return reinterpret_cast<std::byte*>(address & ~kFar);
}

device::Event SimDevice::mark(Line& line) {
  events_[++last_event_] = {&line, line.last()};
  return {*this, event_of(last_event_)};
}

Result<device::Event> SimDevice::copy(Line& engine, std::byte* to, const std::byte* from,
                                      std::size_t bytes, const char* call) {
  if (Status fine = called(call); !fine.is_ok()) return fine;
  TimeNs takes_ns = 0;
  if (bytes_per_second_ > 0) {
    __extension__ using Wide = unsigned __int128;
    takes_ns = static_cast<TimeNs>(Wide{bytes} * kSecond / bytes_per_second_);
  }
  const TimeNs begins_ns = std::max(now_(), stands_until_ns_) + options_.latency_ns;
  engine.free_ns = std::max(engine.free_ns, begins_ns) + takes_ns;
  engine.waiting.push_back({engine.free_ns, {}, to, from, bytes});
  std::memset(to, kRubbish, bytes);
  return mark(engine);
}

Result<device::Event> SimDevice::copy_out(std::byte* to, device::abi::DeviceAddress from,
                                          std::size_t bytes) {
  return copy(out_, to, near(from), bytes, "copy_out");
}

Result<device::Event> SimDevice::copy_in(device::abi::DeviceAddress to, const std::byte* from,
                                         std::size_t bytes) {
  return copy(in_, near(to), from, bytes, "copy_in");
}

Result<device::Event> SimDevice::copy_within(device::abi::DeviceAddress to,
                                             device::abi::DeviceAddress from, std::size_t bytes) {
  return copy(in_, near(to), near(from), bytes, "copy_within");
}

Result<bool> SimDevice::has_happened(const device::Event& event) {
  if (Status fine = called("has_happened"); !fine.is_ok()) return fine;
  const Mark& mark = events_.at(number_of(event.get()));
  Line& line = *mark.line;
  while (line.done < mark.number && line.waiting.front().ends_ns <= now_()) {
    const Work work = std::move(line.waiting.front());
    line.waiting.pop_front();
    ++line.done;
    if (work.kernel) {
      work.kernel();
    } else {
      std::memcpy(work.to, work.from, work.bytes);
    }
  }
  return line.done >= mark.number;
}

void SimDevice::give_back(device::abi::Event event) {
  events_.erase(number_of(event));
}

}  // namespace byteps::sim
