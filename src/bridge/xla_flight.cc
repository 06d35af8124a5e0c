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
  std::unique_lock lock(mutex_);
  failures_.push_back({std::move(promise), std::move(error)});
  if (failures_.size() > 1) return;  // the thread is there
  try {
    std::thread([this] { fail_when_quiet(); }).detach();
  } catch (const std::system_error&) {
    Failure failure = std::move(failures_.back());
    failures_.pop_back();
    lock.unlock();
    failure.promise.SetError(std::move(failure.error));
  }
}

void Flight::fail_when_quiet() {
  std::unique_lock lock(mutex_);
  for (uint64_t seen = begun_ - 1; seen != begun_ || !under_way_.empty();) {
    seen = begun_;
    never_.wait_for(lock, quiet_, [] { return false; });
  }
  std::vector<Failure> failures = std::exchange(failures_, {});
  lock.unlock();
  for (Failure& failure : failures) failure.promise.SetError(std::move(failure.error));
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
