/* What sockets cost by themselves: the same bytes over the same connections as a push_pull, with nothing else.
 *
 *   socket_worker server PORT WORKERS BYTES         BYTES of each worker come in, and go out to each
 *   socket_worker worker BYTES ADDRESS PORT ...     BYTES to and from each of the servers
 *   socket_worker copier BYTES                      no sockets: on "go", copies BYTES into 256 KiB, and out of it
 *
 * Says "ready"; then for each line it reads does one thing and prints START END END CPU, as push_pull_worker.c:
 * "push" workers send, servers receive into 256 KiB; "pull" servers send, workers receive in place; "add" servers do
 * the additions of one round, frame by frame, and nothing else. One thread, poll(2), sends of up to 128 KiB. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PEERS_MAX 64
#define RECV_BYTES (256u << 10)
#define SEND_BYTES (128u << 10)
#define FRAME_BYTES (32u << 10)

static int peers[PEERS_MAX];
static size_t peer_count;
static size_t peer_bytes;
static char* memory; /* a server: its sums; a worker: what it sends and receives, by server */
static char* staging;
static int is_server;

static double seconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void require(int good, const char* what) {
  if (good) return;
  fprintf(stderr, "socket_worker: %s: %s\n", what, strerror(errno));
  exit(1);
}

static void join_peer(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  require(peer_count < PEERS_MAX, "at most 64 peers");
  peers[peer_count++] = fd;
}

static void listen_for(int port, size_t count) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  require(bind(fd, (struct sockaddr*)&address, sizeof address) == 0, "bind");
  require(listen(fd, PEERS_MAX) == 0, "listen");
  while (peer_count < count) {
    const int peer = accept(fd, NULL, NULL);
    require(peer >= 0, "accept");
    join_peer(peer);
  }
  close(fd);
}

static void connect_to(const char* host, int port) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((unsigned short)port)};
  require(inet_pton(AF_INET, host, &address.sin_addr) == 1, "address");
  for (int attempt = 0;; ++attempt) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (struct sockaddr*)&address, sizeof address) == 0) {
      join_peer(fd);
      return;
    }
    close(fd);
    require(attempt < 600, "connect");
    const struct timespec pause = {0, 100000000L};
    nanosleep(&pause, NULL);
  }
}

/* One socket call for a peer that is ready; the bytes it moved. */
static size_t move(size_t peer, size_t done, int sending) {
  char* at = memory + (is_server ? 0 : peer * peer_bytes) + done;
  const size_t left = peer_bytes - done;
  ssize_t count = 0;
  if (sending) {
    count =
        send(peers[peer], at, left < SEND_BYTES ? left : SEND_BYTES, MSG_DONTWAIT | MSG_NOSIGNAL);
  } else if (is_server) {
    count = recv(peers[peer], staging, left < RECV_BYTES ? left : RECV_BYTES, MSG_DONTWAIT);
  } else {
    count = recv(peers[peer], at, left < RECV_BYTES ? left : RECV_BYTES, MSG_DONTWAIT);
  }
  if (count < 0 && errno == EAGAIN) return 0;
  require(count > 0, sending ? "send" : "recv");
  return (size_t)count;
}

static void move_all(int sending) {
  size_t done[PEERS_MAX] = {0};
  struct pollfd waits[PEERS_MAX];
  size_t unfinished = peer_count;
  for (size_t i = 0; i < peer_count; ++i) {
    waits[i].fd = peers[i];
    waits[i].events = sending ? POLLOUT : POLLIN;
  }
  while (unfinished > 0) {
    require(poll(waits, peer_count, -1) > 0, "poll");
    for (size_t i = 0; i < peer_count; ++i) {
      if (waits[i].fd < 0 || waits[i].revents == 0) continue;
      done[i] += move(i, done[i], sending);
      if (done[i] == peer_bytes) {
        waits[i].fd = -1;
        --unfinished;
      }
    }
  }
}

__attribute__((target_clones("avx512f", "avx2", "default"))) static void add(float* sum,
                                                                             const float* input,
                                                                             size_t count) {
  for (size_t i = 0; i < count; ++i) sum[i] += input[i];
}

static void add_all(void) {
  size_t from = 0;
  for (size_t at = 0; at < peer_bytes; at += FRAME_BYTES) {
    const size_t bytes = peer_bytes - at < FRAME_BYTES ? peer_bytes - at : FRAME_BYTES;
    for (size_t peer = 0; peer < peer_count; ++peer) {
      const char* input = staging + from;
      from = (from + FRAME_BYTES) % RECV_BYTES;
      if (peer == 0) {
        memcpy(memory + at, input, bytes);
      } else {
        add((float*)(void*)(memory + at), (const float*)(const void*)input, bytes / sizeof(float));
      }
    }
  }
}

/* What one end of a shared memory must at least do: copies in what it sends, and out what it receives. */
static void copy_all(void) {
  for (size_t at = 0; at < peer_bytes; at += FRAME_BYTES) {
    const size_t bytes = peer_bytes - at < FRAME_BYTES ? peer_bytes - at : FRAME_BYTES;
    char* ring = staging + at % RECV_BYTES;
    memcpy(ring, memory + at, bytes);
    __asm__ volatile("" : : "r"(ring) : "memory"); /* so that both copies are made */
    memcpy(memory + at, ring, bytes);
  }
}

int main(int argc, char** argv) {
  require(argc >= 3, "usage: see the source");
  is_server = strcmp(argv[1], "server") == 0;
  peer_bytes = strtoull(argv[is_server ? 4 : 2], NULL, 10);
  if (is_server) {
    listen_for(atoi(argv[2]), strtoull(argv[3], NULL, 10));
  } else {
    for (int i = 3; i + 1 < argc; i += 2) connect_to(argv[i], atoi(argv[i + 1]));
  }
  const size_t bytes = peer_bytes * (is_server || peer_count == 0 ? 1 : peer_count);
  memory = malloc(bytes);
  staging = malloc(RECV_BYTES);
  require(memory != NULL && staging != NULL, "memory");
  memset(memory, 0, bytes);
  memset(staging, 0, RECV_BYTES);
  puts("ready");
  fflush(stdout);
  char line[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double start = seconds(CLOCK_MONOTONIC);
    if (strcmp(line, "go\n") == 0) copy_all();
    if (strcmp(line, "push\n") == 0) move_all(!is_server);
    if (strcmp(line, "pull\n") == 0) move_all(is_server);
    if (strcmp(line, "add\n") == 0 && is_server) add_all();
    const double end = seconds(CLOCK_MONOTONIC);
    printf("%.9f %.9f %.9f %.9f\n", start, end, end, seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu);
    fflush(stdout);
  }
  return 0;
}
