/* A worker in plain C, for checks that Python would blur: valgrind, the sanitizers, memory over a long run.
 *
 *   checked_worker CYCLES ROUNDS ENDING [PAUSE_MS]
 *
 * Joins and leaves CYCLES times. In between two threads sum tensors of their own, ROUNDS times each (0: until all
 * of them have agreed to stop, which any rank proposes when it gets SIGTERM), and check every element. One tensor of
 * every fourth round has a name that is never used again (BYTEPS_ONCE). After a round a thread pauses PAUSE_MS.
 *
 *   ENDING leave  leaves, exit code 0
 *          exit   calls exit(0) in the last cycle with operations under way, without leaving
 *          fail   expects that the job fails: leaves, exit code 0; a job that ends well is exit code 5
 *
 * With BYTEPS_ON_WORKER_LOSS=continue a sum may lack other ranks, and who is missing in one round is missing in all
 * that follow.
 *
 * Exit codes otherwise: 1 the job failed (the error is on standard error), 2 bad arguments, 4 a wrong sum. Standard
 * output has "rank R joined" for each cycle, and about each second "rank R of S round N", where bit r of S says that
 * rank r is in all sums of the last round. */
#include <byteps/byteps.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 2, kTensors = 4, kOnce = 1 };
enum { kFailed = 1, kBadArguments = 2, kWrongSum = 4, kUnexpectedlyWell = 5 };

static const uint64_t kElements[kTensors] = {1, 1000, 65537, 262144};

static volatile sig_atomic_t terminated = 0;
static int loses_ranks = 0; /* BYTEPS_ON_WORKER_LOSS=continue */

typedef struct Submitter {
  pthread_t thread;
  byteps_job* job;
  int index;
  long cycle;
  long pause_ms;
  long rounds;      /* 0: until all agree to stop */
  uint32_t present; /* bit r: rank r is in all sums of the last round; at first all */
  atomic_long done;
  atomic_uint told; /* `present` for others */
  atomic_int ended;
  int code; /* what the process should end with */
} Submitter;

static void on_sigterm(int number) {
  (void)number;
  terminated = 1;
}

/* Small whole numbers: their sum is exact in float32. */
static float value_of(long round, uint64_t i) {
  return (float)(1 + ((uint64_t)round * 31 + i) % 89);
}

/* Tensor t of this round; t = kTensors is the wish to stop. */
static int push(const Submitter* self, long round, int t, float* values, byteps_handle* handle,
                byteps_error* error) {
  const int once = t == kOnce && round % 4 == 0;
  char name[96];
  if (once) {
    snprintf(name, sizeof name, "checked.%d.once.%ld.%ld", self->index, self->cycle, round);
  } else {
    snprintf(name, sizeof name, "checked.%d.%d", self->index, t);
  }
  byteps_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_bytes = sizeof tensor;
  tensor.name = name;
  tensor.dtype = BYTEPS_FLOAT32;
  tensor.operation = BYTEPS_SUM;
  tensor.input = tensor.output = values;
  tensor.element_count = t == kTensors ? 1 : kElements[t];
  tensor.flags = once ? BYTEPS_ONCE : 0;
  return byteps_push_pull(self->job, &tensor, handle, error);
}

/* Who is in a sum that should be 2^rank times `value` of each; 0: nobody can be. */
static uint32_t ranks_in(float sum, float value) {
  const float ranks = sum / value;
  if (!(ranks >= 1 && ranks < (float)(1u << 24)) || (float)(uint32_t)ranks * value != sum) return 0;
  return (uint32_t)ranks;
}

/* What all sums of this round have to have in them are all that were in the last, or where ranks may be lost some of
 * these, and this rank. */
static int check(Submitter* self, float* const values[], long round) {
  const uint32_t before = self->present;
  const uint32_t own = 1u << byteps_rank(self->job);
  for (int t = 0; t < kTensors; ++t) {
    uint32_t ranks = self->present;
    for (uint64_t i = 0; i < kElements[t]; ++i) {
      const float value = value_of(round, i);
      if (values[t][i] == (float)ranks * value) continue;
      ranks = ranks_in(values[t][i], value);
      if (loses_ranks && (ranks & own) != 0 && (ranks & ~before) == 0) {
        self->present &= ranks;
        continue;
      }
      fprintf(stderr,
              "checked_worker: rank %u, thread %d, round %ld, tensor %d: ", byteps_rank(self->job),
              self->index, round, t);
      fprintf(stderr, "element %llu is %g, not %g\n", (unsigned long long)i, (double)values[t][i],
              (double)((float)before * value));
      return kWrongSum;
    }
  }
  atomic_store(&self->told, self->present);
  return 0;
}

/* One sum of each tensor. values[kTensors]: how many ranks wish to stop. */
static int one_round(Submitter* self, float* const values[], long round) {
  const float weight = (float)(1u << byteps_rank(self->job));
  for (int t = 0; t < kTensors; ++t) {
    for (uint64_t i = 0; i < kElements[t]; ++i) values[t][i] = weight * value_of(round, i);
  }
  values[kTensors][0] = terminated ? 1.0f : 0.0f;

  byteps_handle handles[kTensors + 1] = {0};
  byteps_error error = {0};
  int code = BYTEPS_OK;
  for (int t = 0; t <= kTensors && code == BYTEPS_OK; ++t) {
    code = push(self, round, t, values[t], &handles[t], &error);
  }
  /* Each handle, also after a failure: until then the memory is the job's. */
  for (int t = 0; t <= kTensors; ++t) {
    if (handles[t] == 0) continue;
    const int result = byteps_wait(self->job, handles[t], -1, code == BYTEPS_OK ? &error : NULL);
    if (code == BYTEPS_OK) code = result;
  }
  if (code == BYTEPS_OK) return check(self, values, round);
  fprintf(stderr, "checked_worker: %s\n", error.message);
  return kFailed;
}

static void pause_for(long milliseconds) {
  const struct timespec pause = {milliseconds / 1000, milliseconds % 1000 * 1000000};
  nanosleep(&pause, NULL);
}

static void* submit(void* argument) {
  Submitter* self = argument;
  float* values[kTensors + 1];
  for (int t = 0; t <= kTensors; ++t) {
    values[t] = malloc((t == kTensors ? 1 : kElements[t]) * sizeof(float));
  }
  values[kTensors][0] = 0;
  for (long round = 0; self->rounds == 0 || round < self->rounds; ++round) {
    self->code = one_round(self, values, round);
    if (self->code != 0 || values[kTensors][0] > 0) break;
    atomic_store(&self->done, round + 1);
    pause_for(self->pause_ms);
  }
  for (int t = 0; t <= kTensors; ++t) free(values[t]);
  atomic_store(&self->ended, 1);
  return NULL;
}

/* Tells of progress until the first thread has ended; with exit_in_between, ends the process after its first round. */
static void watch(Submitter* first, uint32_t rank, int exit_in_between) {
  time_t last_s = time(NULL);
  while (!atomic_load(&first->ended)) {
    const long done = atomic_load(&first->done);
    if (exit_in_between && done > 0) exit(0);
    if (time(NULL) != last_s) {
      last_s = time(NULL);
      printf("rank %u of %u round %ld\n", rank, atomic_load(&first->told), done);
    }
    pause_for(20);
  }
}

/* What the arguments say. */
typedef struct Plan {
  long cycles;
  long rounds;
  int exits;
  int fails;
  long pause_ms;
} Plan;

/* Joins, sums, leaves. Returns the code for the process. */
static int run_cycle(const Plan* plan, long number) {
  const int last = number == plan->cycles - 1;
  byteps_error error = {0};
  byteps_job* job = NULL;
  if (byteps_join(NULL, &job, &error) != BYTEPS_OK) {
    fprintf(stderr, "checked_worker: %s\n", error.message);
    return kFailed;
  }
  const uint32_t rank = byteps_rank(job);
  printf("rank %u joined\n", rank);
  Submitter submitters[kThreads];
  memset(submitters, 0, sizeof submitters);
  for (int i = 0; i < kThreads; ++i) {
    submitters[i].job = job;
    submitters[i].index = i;
    submitters[i].cycle = number;
    submitters[i].pause_ms = plan->pause_ms;
    submitters[i].rounds = plan->rounds;
    submitters[i].present = (1u << byteps_size(job)) - 1;
    pthread_create(&submitters[i].thread, NULL, submit, &submitters[i]);
  }
  watch(&submitters[0], rank, last && plan->exits);
  int code = 0;
  for (int i = 0; i < kThreads; ++i) {
    pthread_join(submitters[i].thread, NULL);
    if (submitters[i].code > code) code = submitters[i].code;
  }
  if (byteps_leave(job, last, &error) != BYTEPS_OK) {
    fprintf(stderr, "checked_worker: %s\n", error.message);
    if (code == 0) code = kFailed;
  }
  return code;
}

int main(int argc, char** argv) {
  if (argc < 4 || argc > 5) return kBadArguments;
  Plan plan;
  plan.cycles = strtol(argv[1], NULL, 10);
  plan.rounds = strtol(argv[2], NULL, 10);
  plan.exits = strcmp(argv[3], "exit") == 0;
  plan.fails = strcmp(argv[3], "fail") == 0;
  plan.pause_ms = argc == 5 ? strtol(argv[4], NULL, 10) : 0;
  if (plan.cycles < 1) return kBadArguments;
  if (!plan.exits && !plan.fails && strcmp(argv[3], "leave") != 0) return kBadArguments;
  const char* on_loss = getenv("BYTEPS_ON_WORKER_LOSS");
  loses_ranks = on_loss != NULL && strcmp(on_loss, "continue") == 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_sigterm;
  sigaction(SIGTERM, &action, NULL);

  int code = 0;
  for (long i = 0; i < plan.cycles && code == 0; ++i) code = run_cycle(&plan, i);
  if (!plan.fails) return code;
  return code == kFailed ? 0 : code == 0 ? kUnexpectedlyWell : code;
}
