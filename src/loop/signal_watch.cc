#include "loop/signal_watch.h"

#include <unistd.h>

namespace byteps {

SignalWatch::SignalWatch(std::atomic<bool>& stop, Waiter& waiter) : stop_(stop), waiter_(waiter) {
  sigemptyset(&watched_);
  sigaddset(&watched_, SIGINT);
  sigaddset(&watched_, SIGTERM);
  sigaddset(&watched_, SIGUSR1);  // from the destructor: nothing more to watch
  pthread_sigmask(SIG_BLOCK, &watched_, &previous_);
  thread_ = std::thread([this] { watch(); });
}

SignalWatch::~SignalWatch() {
  done_.store(true, std::memory_order_release);
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
  pthread_sigmask(SIG_SETMASK, &previous_, nullptr);
}

void SignalWatch::watch() {
  while (!done_.load(std::memory_order_acquire)) {
    int signal_number = 0;
    if (sigwait(&watched_, &signal_number) != 0 || signal_number == SIGUSR1) continue;
    if (received_.exchange(signal_number, std::memory_order_acq_rel) != 0)
      _exit(128 + signal_number);
    stop_.store(true, std::memory_order_release);
    waiter_.wake();
  }
}

}  // namespace byteps
