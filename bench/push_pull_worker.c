/* One worker of the push_pull benchmark (bench/push_pull.py starts several): sums one tensor again and again, in place,
 * and prints each round's seconds. Usage: push_pull_worker BYTES ROUNDS TENSORS */
#include <byteps/byteps.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void check(int code, const byteps_error* error) {
  if (code == BYTEPS_OK) return;
  fprintf(stderr, "push_pull_worker: %s\n", error->message);
  exit(1);
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: %s BYTES ROUNDS TENSORS\n", argv[0]);
    return 2;
  }
  const size_t bytes = strtoull(argv[1], NULL, 10);
  const int rounds = atoi(argv[2]);
  const size_t tensors = strtoull(argv[3], NULL, 10);
  const size_t count = bytes / tensors / sizeof(float);
  byteps_error error = {0};
  byteps_job* job = NULL;
  check(byteps_join(NULL, &job, &error), &error);

  float* values = malloc(tensors * count * sizeof *values);
  byteps_handle* handles = malloc(tensors * sizeof *handles);
  char(*names)[32] = malloc(tensors * sizeof *names);
  if (values == NULL || handles == NULL || names == NULL) return 1;
  for (size_t i = 0; i < tensors; ++i) snprintf(names[i], sizeof names[i], "bench.%zu", i);

  const float size = (float)byteps_size(job);
  for (int round = 0; round <= rounds; ++round) { /* round 0 warms up */
    for (size_t i = 0; i < tensors * count; ++i) values[i] = (float)(byteps_rank(job) + 1);
    check(byteps_barrier(job, -1, &error), &error);
    const double start = seconds();
    for (size_t i = 0; i < tensors; ++i) {
      byteps_tensor tensor = {0};
      tensor.struct_bytes = sizeof tensor;
      tensor.name = names[i];
      tensor.dtype = BYTEPS_FLOAT32;
      tensor.operation = BYTEPS_SUM;
      tensor.input = tensor.output = values + i * count;
      tensor.element_count = count;
      tensor.priority = -(int32_t)i;
      check(byteps_push_pull(job, &tensor, &handles[i], &error), &error);
    }
    for (size_t i = 0; i < tensors; ++i) check(byteps_wait(job, handles[i], -1, &error), &error);
    const double end = seconds();
    for (size_t i = 0; i < tensors * count; ++i) {
      if (values[i] != size * (size + 1) / 2) {
        fprintf(stderr, "push_pull_worker: wrong sum %g\n", (double)values[i]);
        return 1;
      }
    }
    if (round > 0) printf("%.9f %.9f\n", start, end);
  }
  fflush(stdout);
  check(byteps_leave(job, 1, &error), &error);
  return 0;
}
