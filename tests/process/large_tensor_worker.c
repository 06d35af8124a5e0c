/* One worker of test_large_tensor.py: sums one int8 tensor of argv[1] bytes in place and checks every byte.
 * The contents depend on the whole 64-bit position, so an offset that lost its upper bits is noticed. */
#include <byteps/byteps.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kBlock = 512 };

static uint8_t value_of_block(uint64_t block, uint32_t rank) {
  return (uint8_t)(((block + 1) * 0x9e3779b97f4a7c15ULL >> 56) + rank * 3);
}

static uint64_t min(uint64_t a, uint64_t b) {
  return a < b ? a : b;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const uint64_t bytes = strtoull(argv[1], NULL, 10);
  byteps_error error = {0};
  byteps_job* job = NULL;
  if (byteps_join(NULL, &job, &error) != BYTEPS_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  uint8_t* values = malloc(bytes);
  if (values == NULL) return 3;
  for (uint64_t i = 0; i < bytes; i += kBlock) {
    memset(values + i, value_of_block(i / kBlock, byteps_rank(job)), min(kBlock, bytes - i));
  }

  byteps_tensor tensor = {0};
  tensor.struct_bytes = sizeof tensor;
  tensor.name = "large";
  tensor.dtype = BYTEPS_INT8;
  tensor.input = tensor.output = values;
  tensor.element_count = bytes;
  byteps_handle handle = 0;
  int code = byteps_push_pull(job, &tensor, &handle, &error);
  if (code == BYTEPS_OK) code = byteps_wait(job, handle, -1, &error);
  if (code != BYTEPS_OK) {
    fprintf(stderr, "%s\n", error.message);
    return 1;
  }
  for (uint64_t i = 0; i < bytes; i += kBlock) {
    uint8_t sum = 0;
    for (uint32_t rank = 0; rank < byteps_size(job); ++rank) {
      sum = (uint8_t)(sum + value_of_block(i / kBlock, rank));
    }
    uint8_t expected[kBlock];
    memset(expected, sum, kBlock);
    if (memcmp(values + i, expected, min(kBlock, bytes - i)) != 0) {
      fprintf(stderr, "a byte after %llu is not %u\n", (unsigned long long)i, sum);
      return 1;
    }
  }
  free(values);
  printf("rank %u: %llu bytes are right\n", byteps_rank(job), (unsigned long long)bytes);
  return byteps_leave(job, 1, &error) == BYTEPS_OK ? 0 : 1;
}
