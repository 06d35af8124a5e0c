/* For LD_PRELOAD: ends the process when one of its loops calls something that may block. Built by test_blocking.py.

   A loop is a thread of BytePS that has waited with epoll_wait(2): each Runner with a transport, and the main threads
   of the executables, until these join another thread, which is the beginning of their end. Trapped are look-ups of
   host names, opening files and asking about them, every other way to wait, and reading and writing anything but
   sockets that do not block and eventfds. What a loop may call though it looks like one of these is in docs/threads.md.

   NO_BLOCKING_REPORT: a file that gets the name of the call and a backtrace. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static __thread int in_loop;

static int is_main(void) { return getpid() == (int)syscall(SYS_gettid); }

static void trap(const char* call, const char* about) {
  if (!in_loop) return;
  in_loop = 0; /* what follows is the trap's own */
  char thread[16] = "";
  prctl(PR_GET_NAME, thread);
  char line[512];
  const int bytes = snprintf(line, sizeof line, "BLOCKING %s(%s) on the loop %s\n", call, about, thread);
  const char* path = getenv("NO_BLOCKING_REPORT");
  const int file = path == NULL ? 2 : (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0600);
  syscall(SYS_write, file, line, (size_t)bytes);
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), file);
  abort();
}

/* Sockets that do not block, and eventfds: anything else may. */
static void trap_descriptor(const char* call, int descriptor) {
  if (!in_loop) return;
  struct stat facts;
  char path[64], target[128] = "";
  if (syscall(SYS_fstat, descriptor, &facts) == 0 && S_ISSOCK(facts.st_mode)) {
    if ((syscall(SYS_fcntl, descriptor, F_GETFL) & O_NONBLOCK) == 0) trap(call, "a socket that blocks");
    return;
  }
  snprintf(path, sizeof path, "/proc/self/fd/%d", descriptor);
  syscall(SYS_readlinkat, AT_FDCWD, path, target, sizeof target - 1);
  if (strcmp(target, "anon_inode:[eventfd]") != 0) trap(call, target);
}

static int may_open(const char* path) { return strcmp(path, "/dev/null") == 0; }

#define REAL(name) __typeof__(name)* real = (__typeof__(name)*)dlsym(RTLD_NEXT, #name)

/* ---- who is a loop */

int epoll_wait(int epoll, struct epoll_event* events, int count, int timeout_ms) {
  REAL(epoll_wait);
  if (!in_loop) {
    char thread[16] = "";
    prctl(PR_GET_NAME, thread);
    in_loop = strncmp(thread, "byteps", 6) == 0;
  }
  return real(epoll, events, count, timeout_ms);
}

/* ---- waits */

int getaddrinfo(const char* node, const char* service, const struct addrinfo* hints, struct addrinfo** found) {
  REAL(getaddrinfo);
  if (node != NULL && (hints == NULL || (hints->ai_flags & AI_NUMERICHOST) == 0)) trap("getaddrinfo", node);
  return real(node, service, hints, found);
}
int poll(struct pollfd* fds, nfds_t count, int timeout_ms) {
  REAL(poll);
  if (timeout_ms != 0) trap("poll", "");
  return real(fds, count, timeout_ms);
}
int ppoll(struct pollfd* fds, nfds_t count, const struct timespec* timeout, const sigset_t* mask) {
  REAL(ppoll);
  trap("ppoll", "");
  return real(fds, count, timeout, mask);
}
int select(int count, fd_set* in, fd_set* out, fd_set* except, struct timeval* timeout) {
  REAL(select);
  trap("select", "");
  return real(count, in, out, except, timeout);
}
int nanosleep(const struct timespec* time, struct timespec* rest) {
  REAL(nanosleep);
  trap("nanosleep", "");
  return real(time, rest);
}
int clock_nanosleep(clockid_t clock, int flags, const struct timespec* time, struct timespec* rest) {
  REAL(clock_nanosleep);
  trap("clock_nanosleep", "");
  return real(clock, flags, time, rest);
}
int usleep(useconds_t time) {
  REAL(usleep);
  trap("usleep", "");
  return real(time);
}
unsigned sleep(unsigned time) {
  REAL(sleep);
  trap("sleep", "");
  return real(time);
}
static void wait_for_thread(const char* call) {
  if (in_loop && is_main()) in_loop = 0; /* its loop is over */
  trap(call, "");
}
int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  REAL(pthread_cond_wait);
  wait_for_thread("pthread_cond_wait");
  return real(condition, mutex);
}
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const struct timespec* until) {
  REAL(pthread_cond_timedwait);
  wait_for_thread("pthread_cond_timedwait");
  return real(condition, mutex, until);
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  int (*real)(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*) =
      dlsym(RTLD_NEXT, "pthread_cond_clockwait");
  wait_for_thread("pthread_cond_clockwait");
  return real(condition, mutex, clock, until);
}
int pthread_join(pthread_t thread, void** result) {
  REAL(pthread_join);
  wait_for_thread("pthread_join");
  return real(thread, result);
}

/* ---- files */

static mode_t mode_of(int flags, va_list arguments) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(arguments, mode_t) : 0;
}
#define OPENS(name)                                      \
  int name(const char* path, int flags, ...) {           \
    int (*real)(const char*, int, ...) = dlsym(RTLD_NEXT, #name); \
    va_list arguments;                                   \
    va_start(arguments, flags);                          \
    const mode_t mode = mode_of(flags, arguments);       \
    va_end(arguments);                                   \
    if (!may_open(path)) trap(#name, path);              \
    return real(path, flags, mode);                      \
  }
OPENS(open)
OPENS(open64)
#define OPENS_AT(name)                                   \
  int name(int folder, const char* path, int flags, ...) { \
    int (*real)(int, const char*, int, ...) = dlsym(RTLD_NEXT, #name); \
    va_list arguments;                                   \
    va_start(arguments, flags);                          \
    const mode_t mode = mode_of(flags, arguments);       \
    va_end(arguments);                                   \
    if (!may_open(path)) trap(#name, path);              \
    return real(folder, path, flags, mode);              \
  }
OPENS_AT(openat)
OPENS_AT(openat64)
#define TAKES_PATH(result, name, parameters, arguments) \
  result name parameters {                             \
    REAL(name);                                        \
    trap(#name, path);                                 \
    return real arguments;                             \
  }
TAKES_PATH(FILE*, fopen, (const char* path, const char* mode), (path, mode))
TAKES_PATH(FILE*, fopen64, (const char* path, const char* mode), (path, mode))
TAKES_PATH(DIR*, opendir, (const char* path), (path))
TAKES_PATH(int, access, (const char* path, int mode), (path, mode))
TAKES_PATH(int, stat, (const char* path, struct stat* facts), (path, facts))
TAKES_PATH(int, lstat, (const char* path, struct stat* facts), (path, facts))
TAKES_PATH(int, mkdir, (const char* path, mode_t mode), (path, mode))
TAKES_PATH(int, unlink, (const char* path), (path))
TAKES_PATH(int, rename, (const char* path, const char* to), (path, to))
int fsync(int descriptor) {
  REAL(fsync);
  trap("fsync", "");
  return real(descriptor);
}

/* ---- reading and writing */

#define TRANSFERS(result, name, parameters, arguments) \
  result name parameters {                            \
    REAL(name);                                       \
    trap_descriptor(#name, descriptor);               \
    return real arguments;                            \
  }
#define SENDS(result, name, parameters, arguments)                        \
  result name parameters {                                                \
    REAL(name);                                                           \
    if ((flags & MSG_DONTWAIT) == 0) trap_descriptor(#name, descriptor); \
    return real arguments;                                                \
  }
TRANSFERS(ssize_t, read, (int descriptor, void* bytes, size_t count), (descriptor, bytes, count))
TRANSFERS(ssize_t, write, (int descriptor, const void* bytes, size_t count), (descriptor, bytes, count))
TRANSFERS(ssize_t, readv, (int descriptor, const struct iovec* places, int count), (descriptor, places, count))
TRANSFERS(ssize_t, writev, (int descriptor, const struct iovec* places, int count), (descriptor, places, count))
SENDS(ssize_t, recv, (int descriptor, void* bytes, size_t count, int flags), (descriptor, bytes, count, flags))
SENDS(ssize_t, send, (int descriptor, const void* bytes, size_t count, int flags),
          (descriptor, bytes, count, flags))
SENDS(ssize_t, recvmsg, (int descriptor, struct msghdr* message, int flags), (descriptor, message, flags))
SENDS(ssize_t, sendmsg, (int descriptor, const struct msghdr* message, int flags), (descriptor, message, flags))
TRANSFERS(int, connect, (int descriptor, const struct sockaddr* address, socklen_t bytes),
          (descriptor, address, bytes))
