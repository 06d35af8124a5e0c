// Gathering: the times of a job that waits for its members: before the first epoch, and between two.
#pragma once

#include <string>

#include "base/config.h"
#include "base/ids.h"
#include "base/status.h"
#include "base/time.h"
#include "scheduler/seats.h"

namespace byteps {

class Gathering {
 public:
  explicit Gathering(const TimeoutConfig& timeout) : timeout_(timeout) {}

  void begin(TimeNs now) {
    began_ns_ = now;
    next_notice_ns_ = now + timeout_.first_notice_ns;
    idle_until_ns_ = kNever;
    last_refusal_.clear();
  }
  // All are here.
  void end() { idle_until_ns_ = kNever; }
  TimeNs give_up_ns() const { return began_ns_ + timeout_.start_ns; }

  // After the first epoch, a job without any worker lives on for a while only.
  void note_absence(Epoch epoch, const Seats& seats, TimeNs now) {
    if (epoch == Epoch(0) || is_idle() || seats.anyone_waits()) return;
    idle_until_ns_ = now + 2 * timeout_.failure_ns;
  }
  bool is_idle() const { return idle_until_ns_ != kNever; }
  TimeNs idle_until_ns() const { return idle_until_ns_; }

  // Whether it is time to say who is missing; then the next time is later.
  bool wants_notice(TimeNs now) {
    if (now < next_notice_ns_) return false;
    next_notice_ns_ = now + timeout_.notice_every_ns;
    return true;
  }
  TimeNs next_notice_ns() const { return next_notice_ns_; }

  void note_refusal(const Status& why) { last_refusal_ = why.message(); }
  const std::string& last_refusal() const { return last_refusal_; }  // empty: none

 private:
  const TimeoutConfig& timeout_;
  TimeNs began_ns_ = 0;
  TimeNs next_notice_ns_ = kNever;
  TimeNs idle_until_ns_ = kNever;  // no worker is left; the job ends then
  std::string last_refusal_;
};

}  // namespace byteps
