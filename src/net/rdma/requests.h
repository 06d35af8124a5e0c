// Requests: what a link asks of its queue pair and what the device has not completed yet; and why nothing is asked any
// more, once the pair is of no use.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "base/check.h"
#include "base/status.h"
#include "net/rdma/queue_pair.h"

namespace byteps::rdma {

class Requests {
 public:
  // depth: requests at a time.
  Requests(QueuePair pair, std::uint32_t depth) : pair_(std::move(pair)), depth_(depth) {}

  QueuePair& pair() { return pair_; }
  const QueuePair& pair() const { return pair_; }

  // The position in the sending ring that a request writes up to, and the loans that end in it.
  struct Posted {
    std::uint64_t position;
    std::size_t loan_count;
  };
  bool takes(std::size_t count) const {
    return failure_.is_ok() && !frozen_ && posted_.size() + count <= depth_;
  }
  void post(abi::SendRequest& request, const Posted& posted) {
    if (Status status = pair_.post(request); !status.is_ok()) return fail(std::move(status));
    posted_.push_back(posted);
  }
  // The oldest is completed: they are in order.
  Posted complete() {
    CHECK(!posted_.empty());
    const Posted posted = posted_.front();
    posted_.pop_front();
    return posted;
  }

  // The first reason counts.
  void fail(Status why) {
    if (failure_.is_ok()) failure_ = std::move(why);
  }
  const Status& failure() const { return failure_; }
  // From here on nothing is asked and nothing is heard.
  void freeze() { frozen_ = true; }
  bool is_frozen() const { return frozen_; }
  // The device does nothing any more.
  void stop() {
    pair_ = QueuePair();
    freeze();
  }

 private:
  QueuePair pair_;
  const std::uint32_t depth_;
  std::deque<Posted> posted_;
  bool frozen_ = false;
  Status failure_;
};

}  // namespace byteps::rdma
