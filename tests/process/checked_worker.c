/* A worker in plain C, for checks that Python would blur: valgrind, the sanitizers, memory over a long run.
 *
 *   checked_worker CYCLES ROUNDS ENDING
 *
 * Joins and leaves CYCLES times. In between two threads sum tensors of their own, ROUNDS times each (0: until all
 * of them have agreed to stop, which any rank proposes when it gets SIGTERM), and check every element.
 *
 *   ENDING leave  leaves, exit code 0
 *          exit   calls exit(0) in the last cycle with operations under way, without leaving
 *          fail   expects that the job fails: leaves, exit code 0; a job that ends well is exit code 5
 *
 * Exit codes otherwise: 1 the job failed (the error is on standard error), 2 bad arguments, 4 a wrong sum. Standard
 * output has "rank R joined" for each cycle, and about each second "rank R round N". */
#include <byteps/byteps.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { kThreads = 2, kTensors = 4, kElementsMax = 262144 };
enum { kFailed = 1, kBadArguments = 2, kWrongSum = 4, kUnexpectedlyWell = 5 };

static const uint64_t kElements[kTensors] = {1, 1000, 65537, kElementsMax};

static volatile sig_atomic_t terminated = 0;

typedef struct Submitter {
  pthread_t thread;
  byteps_job* job;
  int index;
  long rounds; /* 0: until all agree to stop */
  atomic_long done;
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

static int push(byteps_job* job, const char* name, float* values, uint64_t count,
                byteps_handle* handle, byteps_error* error) {
  byteps_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_bytes = sizeof tensor;
  tensor.name = name;
  tensor.dtype = BYTEPS_FLOAT32;
  tensor.operation = BYTEPS_SUM;
  tensor.input = tensor.output = values;
  tensor.element_count = count;
  return byteps_push_pull(job, &tensor, handle, error);
}

/* One sum of each tensor, and of the wish to stop. */
static int one_round(Submitter* self, float* const values[kTensors], long round, int* stop) {
  const float weight = (float)(byteps_rank(self->job) + 1);
  byteps_handle handles[kTensors + 1] = {0};
  byteps_error error = {0};
  float wish = terminated ? 1.0f : 0.0f;
  char name[64];
  int code = BYTEPS_OK;
  for (int t = 0; t < kTensors && code == BYTEPS_OK; ++t) {
    for (uint64_t i = 0; i < kElements[t]; ++i) values[t][i] = weight * value_of(round, i);
    snprintf(name, sizeof name, "checked.%d.%d", self->index, t);
    code = push(self->job, name, values[t], kElements[t], &handles[t], &error);
  }
  if (code == BYTEPS_OK) {
    snprintf(name, sizeof name, "checked.%d.stop", self->index);
    code = push(self->job, name, &wish, 1, &handles[kTensors], &error);
  }
  for (int t = 0; t <= kTensors;
       ++t) { /* each handle, also after a failure: the memory is theirs until then */
    if (handles[t] == 0) continue;
    const int result = byteps_wait(self->job, handles[t], -1, code == BYTEPS_OK ? &error : NULL);
    if (code == BYTEPS_OK) code = result;
  }
  if (code != BYTEPS_OK) {
    fprintf(stderr, "checked_worker: %s\n", error.message);
    return kFailed;
  }
  const float size = (float)byteps_size(self->job);
  for (int t = 0; t < kTensors; ++t) {
    for (uint64_t i = 0; i < kElements[t]; ++i) {
      const float expected = size * (size + 1) / 2 * value_of(round, i);
      if (values[t][i] == expected) continue;
      fprintf(
          stderr,
          "checked_worker: rank %u, thread %d, round %ld, tensor %d: element %llu is %g, not %g\n",
          byteps_rank(self->job), self->index, round, t, (unsigned long long)i,
          (double)values[t][i], (double)expected);
      return kWrongSum;
    }
  }
  *stop = wish > 0;
  return 0;
}

static void* submit(void* argument) {
  Submitter* self = argument;
  float* values[kTensors];
  for (int t = 0; t < kTensors; ++t) values[t] = malloc(kElements[t] * sizeof(float));
  int stop = 0;
  for (long round = 0; !stop && (self->rounds == 0 || round < self->rounds); ++round) {
    self->code = one_round(self, values, round, &stop);
    if (self->code != 0) break;
    atomic_store(&self->done, round + 1);
  }
  for (int t = 0; t < kTensors; ++t) free(values[t]);
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
      printf("rank %u round %ld\n", rank, done);
    }
    const struct timespec pause = {0, 20 * 1000000};
    nanosleep(&pause, NULL);
  }
}

/* Joins, sums, leaves (final: for good). Returns the code for the process. */
static int cycle(long rounds, int final, int exit_in_between) {
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
    submitters[i].rounds = rounds;
    pthread_create(&submitters[i].thread, NULL, submit, &submitters[i]);
  }
  watch(&submitters[0], rank, exit_in_between);
  int code = 0;
  for (int i = 0; i < kThreads; ++i) {
    pthread_join(submitters[i].thread, NULL);
    if (submitters[i].code > code) code = submitters[i].code;
  }
  if (byteps_leave(job, final, &error) != BYTEPS_OK) {
    fprintf(stderr, "checked_worker: %s\n", error.message);
    if (code == 0) code = kFailed;
  }
  return code;
}

int main(int argc, char** argv) {
  if (argc != 4) return kBadArguments;
  const long cycles = strtol(argv[1], NULL, 10);
  const long rounds = strtol(argv[2], NULL, 10);
  const int exits = strcmp(argv[3], "exit") == 0;
  const int fails = strcmp(argv[3], "fail") == 0;
  if (cycles < 1 || (!exits && !fails && strcmp(argv[3], "leave") != 0)) return kBadArguments;
  setvbuf(stdout, NULL, _IOLBF, 0);
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_handler = on_sigterm;
  sigaction(SIGTERM, &action, NULL);

  int code = 0;
  for (long i = 0; i < cycles && code == 0; ++i) {
    code = cycle(rounds, i == cycles - 1, exits && i == cycles - 1);
  }
  if (!fails) return code;
  return code == kFailed ? 0 : code == 0 ? kUnexpectedlyWell : code;
}
