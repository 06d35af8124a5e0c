// Executor: threads for what blocks, or may: a name look-up, a write to a file or to standard error. An Actor posts a
// job and goes on; what the job found comes back by a Mailbox.
//
// A job may hang for ever (a name server, a file system over the network, a pipe that nobody reads). So the Executor
// does not wait for it at its own end: it leaves that thread to itself. Hence a job owns all that it uses
// (shared_ptr), and asks whether it is still wanted before it touches anything else.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "base/time.h"

namespace byteps {

class Executor {
 public:
  using Job = std::function<void()>;

  // Threads are started when there is work for them, at most threads_max; with one, jobs run in the order posted.
  // waiting_max: how many jobs may wait for a thread.
  Executor(std::string thread_name, std::size_t waiting_max, std::size_t threads_max = 1);
  // Drops what waits. Waits a moment for what runs, at most kLeaveNs, and then leaves it to itself.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Any thread; never blocks. kAgain: waiting_max wait already. kSystem: no thread could be started. A job that
  // runs out of memory is lost.
  Status post(Job job);

  // Waits until nothing waits or runs, at most so long; false when that was not enough. Any thread but its own.
  bool settle(TimeNs at_most_ns);

  static constexpr TimeNs kLeaveNs = 100 * kMillisecond;

 private:
  struct State;

  const std::string thread_name_;
  const std::size_t waiting_max_;
  const std::size_t threads_max_;
  const std::shared_ptr<State> state_;  // with the threads, which may outlive this object
  std::vector<std::thread> threads_;    // by post(), which the state's lock guards
};

}  // namespace byteps
