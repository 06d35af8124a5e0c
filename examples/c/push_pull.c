/* The smallest BytePS program: every worker contributes its rank + 1 and gets the sum.
 *
 *   cc examples/c/push_pull.c -Iinclude -Lbuild/release/lib -lbyteps -o build/push_pull
 *   LD_LIBRARY_PATH=build/release/lib build/push_pull                      # a job of one
 *   .venv/bin/bpslaunch --local --workers 3 -- env LD_LIBRARY_PATH=build/release/lib build/push_pull
 */
#include <byteps/byteps.h>
#include <stdio.h>
#include <stdlib.h>

enum { kCount = 1000000 };

static void check(int code, const byteps_error* error) {
  if (code == BYTEPS_OK) return;
  fprintf(stderr, "push_pull: %s\n", error->message);
  exit(1);
}

int main(void) {
  byteps_error error = {0};
  byteps_job* job = NULL;
  check(byteps_join(NULL, &job, &error), &error);

  float* values = malloc(kCount * sizeof *values);
  if (values == NULL) return 1;
  for (size_t i = 0; i < kCount; ++i) values[i] = (float)(byteps_rank(job) + 1);

  byteps_tensor tensor = {0};
  tensor.struct_bytes = sizeof tensor;
  tensor.name = "example.values";
  tensor.dtype = BYTEPS_FLOAT32;
  tensor.operation = BYTEPS_SUM;
  tensor.input = values;
  tensor.output = values; /* in place */
  tensor.element_count = kCount;

  byteps_handle handle = 0;
  check(byteps_push_pull(job, &tensor, &handle, &error), &error);
  /* ... compute something else here: the exchange runs in the background ... */
  check(byteps_wait(job, handle, -1, &error), &error);

  const float size = (float)byteps_size(job);
  const float expected = size * (size + 1) / 2;
  for (size_t i = 0; i < kCount; ++i) {
    if (values[i] != expected) {
      fprintf(stderr, "push_pull: element %zu is %g instead of %g\n", i, (double)values[i],
              (double)expected);
      return 1;
    }
  }
  printf("rank %u of %u: the sum is %g\n", byteps_rank(job), byteps_size(job), (double)values[0]);
  free(values);
  check(byteps_leave(job, 1, &error), &error);
  return 0;
}
