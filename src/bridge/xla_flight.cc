#include "bridge/xla_flight.h"

#include <system_error>
#include <thread>
#include <utility>

namespace byteps::bridge {

bool Flight::begin(const std::string& name) {
  const std::lock_guard lock(mutex_);
  if (one_at_a_time_ && under_way_.contains(name)) return false;
  under_way_.insert(name);
  ++begun_;
  return true;
}

void Flight::end(const std::string& name) {
  const std::lock_guard lock(mutex_);
  under_way_.erase(under_way_.find(name));
}

void Flight::fail_later(xla::ffi::Promise promise, xla::ffi::Error error) {
  auto shared = std::make_shared<xla::ffi::Promise>(std::move(promise));
  fail_later([shared, error] { shared->SetError(error); });
}

void Flight::fail_later(std::function<void()> tell) {
  std::unique_lock lock(mutex_);
  failures_.push_back(std::move(tell));
  if (failures_.size() > 1) return;  // the thread is there
  try {
    std::thread([this] { fail_when_quiet(); }).detach();
  } catch (const std::system_error&) {
    const std::function<void()> now = std::move(failures_.back());
    failures_.pop_back();
    lock.unlock();
    now();
  }
}

void Flight::fail_when_quiet() {
  std::unique_lock lock(mutex_);
  for (uint64_t seen = begun_ - 1; seen != begun_ || !under_way_.empty();) {
    seen = begun_;
    never_.wait_for(lock, quiet_, [] { return false; });
  }
  const std::vector<std::function<void()>> failures = std::exchange(failures_, {});
  lock.unlock();
  for (const std::function<void()>& tell : failures) tell();
}

void Flight::set_one_at_a_time(bool value) {
  const std::lock_guard lock(mutex_);
  one_at_a_time_ = value;
}

Flight& flight() {
  // Never destroyed: at the exit of a process its threads may still be there.
  static Flight* const kFlight = new Flight(std::chrono::seconds(1));
  return *kFlight;
}

}  // namespace byteps::bridge
