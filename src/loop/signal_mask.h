// The signal mask of the threads that we start.
#pragma once

#include <csignal>

#include <pthread.h>

namespace byteps {

// Signals from outside belong to the host process's own threads (Python's, the launcher's): the calling thread gets
// none of them any more. Those that an instruction of its own raises stay open: were they blocked, the kernel would end
// the process without any handler (signal(7)), and crash reporters (faulthandler) would see nothing of it.
inline void block_outside_signals() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGTRAP, SIGSYS}) {
    sigdelset(&blocked, number);
  }
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
}

}  // namespace byteps
