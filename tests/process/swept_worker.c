/* A worker in plain C for the sweep (test_sweep.py): what it adds depends on what it was given before, and is floats
 * whose sum depends on their order, so ranks that were once given other bits never meet again.
 *
 *   swept_worker STEPS
 *
 * Prints "joined", and "step S H" after each step, H a hash of all that it has been given so far. Exit codes: 0, 1 the
 * job failed (the error is on standard error), 2 bad arguments. */
#include <byteps/byteps.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kTensors = 4 };
static const uint64_t kElements[kTensors] = {1, 700, 20000, 3};
static const uint32_t kOperations[kTensors] = {BYTEPS_SUM, BYTEPS_AVERAGE, BYTEPS_SUM, BYTEPS_SUM};
static const uint32_t kFlags[kTensors] = {0, 0, 0, BYTEPS_ONCE};

static uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* Of very different sizes, so that every order of addition rounds in its own way. */
static float random_float(uint64_t seed) {
  const uint64_t bits = mixed(seed);
  const float whole = (float)(int64_t)(bits >> 40) - 8388608.0f;
  return whole / (float)(1u << (bits % 24));
}

static uint64_t hash_of(uint64_t hash, const void* bytes, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    hash = (hash ^ ((const unsigned char*)bytes)[i]) * 0x100000001b3u;
  }
  return hash;
}

static int push(byteps_job* job, long step, int t, float* values, byteps_handle* handle,
                byteps_error* error) {
  char name[64];
  snprintf(name, sizeof name, kFlags[t] == BYTEPS_ONCE ? "swept.%d.%ld" : "swept.%d", t, step);
  byteps_tensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.struct_bytes = sizeof tensor;
  tensor.name = name;
  tensor.dtype = BYTEPS_FLOAT32;
  tensor.operation = kOperations[t];
  tensor.flags = kFlags[t];
  tensor.input = tensor.output = values;
  tensor.element_count = kElements[t];
  return byteps_push_pull(job, &tensor, handle, error);
}

/* Values that follow from what all had before, and from who this is. */
static void fill(float* values[], uint64_t rank, long step, uint64_t hash) {
  for (int t = 0; t < kTensors; ++t) {
    for (uint64_t i = 0; i < kElements[t]; ++i) {
      const uint64_t where = (((uint64_t)step * kTensors + (uint64_t)t) << 32) + i;
      values[t][i] = random_float(hash ^ mixed(where * 64 + rank));
    }
  }
}

static int run(byteps_job* job, long steps, float* values[], byteps_error* error) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (long step = 0; step < steps; ++step) {
    byteps_handle handles[kTensors] = {0};
    fill(values, byteps_rank(job), step, hash);
    int code = BYTEPS_OK;
    for (int t = 0; t < kTensors && code == BYTEPS_OK; ++t) {
      code = push(job, step, t, values[t], &handles[t], error);
    }
    for (int t = 0; t < kTensors; ++t) {
      if (handles[t] == 0) continue;
      const int result = byteps_wait(job, handles[t], -1, code == BYTEPS_OK ? error : NULL);
      if (code == BYTEPS_OK) code = result;
    }
    if (code != BYTEPS_OK) return code;
    for (int t = 0; t < kTensors; ++t)
      hash = hash_of(hash, values[t], kElements[t] * sizeof(float));
    printf("step %ld %016llx\n", step, (unsigned long long)hash);
  }
  return byteps_barrier(job, -1, error); /* who leaves takes along what others may lack still */
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  float* values[kTensors];
  for (int t = 0; t < kTensors; ++t) values[t] = malloc(kElements[t] * sizeof(float));
  byteps_error error = {0};
  byteps_job* job = NULL;
  int code = byteps_join(NULL, &job, &error);
  if (code == BYTEPS_OK) {
    puts("joined");
    code = run(job, strtol(argv[1], NULL, 10), values, &error);
    byteps_error leaving = {0};
    const int left = byteps_leave(job, 1, &leaving);
    if (code == BYTEPS_OK && left != BYTEPS_OK) {
      code = left;
      error = leaving;
    }
  }
  for (int t = 0; t < kTensors; ++t) free(values[t]);
  if (code == BYTEPS_OK) return 0;
  fprintf(stderr, "swept_worker: %s\n", error.message);
  return 1;
}
