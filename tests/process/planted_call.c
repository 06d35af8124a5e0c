/* For LD_PRELOAD behind no_blocking.so: a call that blocks, planted into every loop, to see that the trap catches it.
   PLANTED_CALL: which one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

int epoll_ctl(int epoll, int what, int descriptor, struct epoll_event* event) {
  int (*real)(int, int, int, struct epoll_event*) = dlsym(RTLD_NEXT, "epoll_ctl");
  const char* call = getenv("PLANTED_CALL");
  if (call == NULL) call = "";
  if (strcmp(call, "usleep") == 0) usleep(1);
  if (strcmp(call, "write") == 0) (void)!write(2, "", 0);
  if (strcmp(call, "open") == 0) close(open("/etc/hosts", O_RDONLY));
  if (strcmp(call, "getaddrinfo") == 0) {
    struct addrinfo* found = NULL;
    if (getaddrinfo("localhost", NULL, NULL, &found) == 0) freeaddrinfo(found);
  }
  return real(epoll, what, descriptor, event);
}
