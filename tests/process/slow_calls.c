/* For LD_PRELOAD: makes a name server, or a thread, stand still. Built by conftest.py.

   SLOW_NAMES    while this file is there, each look-up of a host name takes 5 s: what one lost packet costs by default
                 (resolv.conf(5)). The file gets a line for each such look-up.
   STUCK_THREAD  a thread's name, and
   STUCK_WHEN    while this file is there, that thread does not come back from its next wait. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <unistd.h>

static int is_there(const char* variable) {
  const char* path = getenv(variable);
  return path != NULL && access(path, F_OK) == 0;
}

int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints, struct addrinfo** found) {
  int (*real)(const char*, const char*, const struct addrinfo*, struct addrinfo**) = dlsym(RTLD_NEXT, "getaddrinfo");
  const int is_name = node != NULL && (hints == NULL || (hints->ai_flags & AI_NUMERICHOST) == 0);
  if (is_name && is_there("SLOW_NAMES")) {
    const int file = open(getenv("SLOW_NAMES"), O_WRONLY | O_APPEND | O_CLOEXEC);
    if (file >= 0) {
      (void)!write(file, "asked\n", 6);
      close(file);
    }
    sleep(5);
  }
  return real(node, service, hints, found);
}

int epoll_wait(int epoll, struct epoll_event* events, int count, int timeout_ms) {
  int (*real)(int, struct epoll_event*, int, int) = dlsym(RTLD_NEXT, "epoll_wait");
  const char* stuck = getenv("STUCK_THREAD");
  char name[16] = "";
  prctl(PR_GET_NAME, name);
  if (stuck != NULL && strcmp(name, stuck) == 0 && is_there("STUCK_WHEN")) {
    for (;;) pause();
  }
  return real(epoll, events, count, timeout_ms);
}
