/* One worker of the benchmarks (bench/run.py starts several): sums tensors again and again, in place, over the C ABI.
 *
 *   push_pull_worker --bytes N [--tensors T]    T tensors of N/T bytes of fp32
 *   push_pull_worker --list FILE                one tensor per line: NAME ELEMENTS, the first layer first
 *     --operations K     a round is so many operations, one after the other (latency); default 1
 *     --priorities 0|1   1 (default): the first layer first; 0: all alike
 *     --forward          pushes the first layer first; without it the last, as backward produces gradients
 *     --late-ms L        starts each round so much later than the others
 *     --stagger          each rank begins at another tensor, so that no two push in the same order
 *
 * Says "ready" when it has joined. Each line it reads is one round ("go fifo": the tensor pushed first has the
 * highest priority; "go int8", or another of `formats`: what travels is coded so); for it, it prints
 *     START END FIRST CPU PUSHED FRAMES WANTED
 * seconds of CLOCK_MONOTONIC (which network namespaces share): when it began, when all sums were there, when the first
 * layer's was; the CPU seconds it used in between; the bytes, as they travelled, and the frames it pushed, and how
 * often it was asked for some because others waited. Every sum is checked. Leaves at the end of its input. */
#include <byteps/byteps.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* By byteps_format. */
static const char* const formats[] = {"plain", "float16", "bfloat16", "int8", "int4"};

typedef struct options {
  const char* list;
  size_t bytes;
  size_t tensors;
  int operations;
  int priorities;
  int forward;
  int stagger;
  int late_ms;
  /* In this round: */
  int fifo;
  uint32_t format;
} options;

typedef struct tensors {
  size_t count;
  size_t elements; /* of all */
  char (*names)[256];
  size_t* offset; /* elements before each */
  size_t* length;
  byteps_handle* handles;
} tensors;

static double seconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void fail(const char* message) {
  fprintf(stderr, "push_pull_worker: %s\n", message);
  exit(1);
}

static void check(int code, const byteps_error* error) {
  if (code != BYTEPS_OK) fail(error->message);
}

static void* memory(size_t bytes) {
  void* found = malloc(bytes);
  if (found == NULL) fail("no memory");
  return found;
}

static options parse(int argc, char** argv) {
  options out = {.tensors = 1, .operations = 1, .priorities = 1};
  for (int i = 1; i < argc; ++i) {
    const char* name = argv[i];
    if (strcmp(name, "--forward") == 0) {
      out.forward = 1;
      continue;
    }
    if (strcmp(name, "--stagger") == 0) {
      out.stagger = 1;
      continue;
    }
    if (i + 1 == argc)
      fail("an option without its value, or unknown; the source says which there are");
    const char* value = argv[++i];
    if (strcmp(name, "--list") == 0) {
      out.list = value;
    } else if (strcmp(name, "--bytes") == 0) {
      out.bytes = strtoull(value, NULL, 10);
    } else if (strcmp(name, "--tensors") == 0) {
      out.tensors = strtoull(value, NULL, 10);
    } else if (strcmp(name, "--operations") == 0) {
      out.operations = atoi(value);
    } else if (strcmp(name, "--priorities") == 0) {
      out.priorities = atoi(value);
    } else if (strcmp(name, "--late-ms") == 0) {
      out.late_ms = atoi(value);
    } else {
      fail("unknown option; the source says which there are");
    }
  }
  if (out.tensors == 0 || out.operations <= 0) fail("at least one tensor and one operation");
  if (out.list == NULL && out.bytes / out.tensors < sizeof(float)) fail("--list FILE or --bytes N");
  return out;
}

static void reserve(tensors* all, size_t count) {
  all->names = memory(count * sizeof *all->names);
  all->offset = memory(count * sizeof *all->offset);
  all->length = memory(count * sizeof *all->length);
  all->handles = memory(count * sizeof *all->handles);
}

static tensors read_list(const char* path) {
  FILE* file = fopen(path, "r");
  if (file == NULL) fail("the list cannot be opened");
  size_t lines = 0;
  for (int c = getc(file); c != EOF; c = getc(file)) lines += c == '\n';
  rewind(file);
  tensors all = {0};
  reserve(&all, lines);
  while (all.count < lines &&
         fscanf(file, "%255s %zu", all.names[all.count], &all.length[all.count]) == 2) {
    all.offset[all.count] = all.elements;
    all.elements += all.length[all.count++];
  }
  fclose(file);
  if (all.count != lines || lines == 0) fail("a line of the list is not NAME ELEMENTS");
  return all;
}

static tensors equal_tensors(size_t bytes, size_t count) {
  tensors all = {0};
  reserve(&all, count);
  for (; all.count < count; ++all.count) {
    snprintf(all.names[all.count], sizeof all.names[0], "bench.%zu", all.count);
    all.length[all.count] = bytes / count / sizeof(float);
    all.offset[all.count] = all.elements;
    all.elements += all.length[all.count];
  }
  return all;
}

static void push_one(byteps_job* job, tensors* all, size_t index, float* values,
                     const options* how) {
  byteps_error error = {0};
  byteps_tensor tensor = {0};
  char coded[sizeof all->names[0] + 16]; /* a name keeps its format */
  if (how->format != BYTEPS_FORMAT_PLAIN) {
    snprintf(coded, sizeof coded, "%s.%s", all->names[index], formats[how->format]);
  }
  tensor.struct_bytes = sizeof tensor;
  tensor.name = how->format != BYTEPS_FORMAT_PLAIN ? coded : all->names[index];
  tensor.format = how->format;
  tensor.dtype = BYTEPS_FLOAT32;
  tensor.operation = BYTEPS_SUM;
  tensor.input = tensor.output = values + all->offset[index];
  tensor.element_count = all->length[index];
  tensor.priority = how->priorities ? (how->fifo ? (int32_t)index : -(int32_t)index) : 0;
  check(byteps_push_pull(job, &tensor, &all->handles[index], &error), &error);
}

/* Pushes all, waits for all, the first layer first; returns when its sum was there. */
static double operate(byteps_job* job, tensors* all, float* values, const options* how) {
  byteps_error error = {0};
  const size_t from = how->stagger ? all->count * byteps_rank(job) / byteps_size(job) : 0;
  for (size_t i = 0; i < all->count; ++i) {
    const size_t at = (i + from) % all->count;
    push_one(job, all, how->forward ? at : all->count - 1 - at, values, how);
  }
  double first = 0;
  for (size_t i = 0; i < all->count; ++i) {
    check(byteps_wait(job, all->handles[i], -1, &error), &error);
    if (i == 0) first = seconds(CLOCK_MONOTONIC);
  }
  return first;
}

static byteps_metrics metrics_of(const byteps_job* job) {
  byteps_metrics metrics = {.struct_bytes = sizeof metrics};
  byteps_get_metrics(job, &metrics);
  return metrics;
}

/* What a round is to be, of its line. */
static void hear(options* how, const char* line) {
  char word[16] = "";
  sscanf(line, "go %15s", word);
  how->fifo = strcmp(word, "fifo") == 0;
  how->format = BYTEPS_FORMAT_PLAIN;
  for (uint32_t i = 1; i < sizeof formats / sizeof *formats; ++i) {
    if (strcmp(word, formats[i]) == 0) how->format = i;
  }
}

static void check_sums(const float* values, size_t count, float wanted, uint32_t format) {
  const float off = format == BYTEPS_FORMAT_PLAIN ? 0 : 0.02f * wanted; /* int4: 1/128, twice */
  for (size_t i = 0; i < count; ++i) {
    if (!(values[i] >= wanted - off && values[i] <= wanted + off)) fail("a wrong sum");
  }
}

static void run_round(byteps_job* job, tensors* all, float* values, const options* how) {
  byteps_error error = {0};
  const size_t count = all->elements * (size_t)how->operations;
  const float size = (float)byteps_size(job);
  const float own = (float)(byteps_rank(job) + 1);
  for (size_t i = 0; i < count; ++i) values[i] = own;
  check(byteps_barrier(job, -1, &error), &error);
  if (how->late_ms > 0) {
    const struct timespec late = {how->late_ms / 1000, how->late_ms % 1000 * 1000000L};
    nanosleep(&late, NULL);
  }
  const byteps_metrics before = metrics_of(job);
  const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
  const double start = seconds(CLOCK_MONOTONIC);
  double first = 0;
  for (int i = 0; i < how->operations; ++i) {
    first = operate(job, all, values + (size_t)i * all->elements, how);
  }
  const double end = seconds(CLOCK_MONOTONIC);
  const double used = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
  /* Checking costs processor time, which others that are still measured need. */
  check(byteps_barrier(job, -1, &error), &error);
  check_sums(values, count, size * (size + 1) / 2, how->format);
  const byteps_metrics after = metrics_of(job);
  printf("%.9f %.9f %.9f %.9f %llu %llu %llu\n", start, end, first, used,
         (unsigned long long)(after.pushed_wire_bytes - before.pushed_wire_bytes),
         (unsigned long long)(after.pushed_frames - before.pushed_frames),
         (unsigned long long)(after.wanted_messages - before.wanted_messages));
  fflush(stdout);
}

int main(int argc, char** argv) {
  options how = parse(argc, argv);
  tensors all = how.list != NULL ? read_list(how.list) : equal_tensors(how.bytes, how.tensors);
  float* values = memory(all.elements * (size_t)how.operations * sizeof *values);
  byteps_error error = {0};
  byteps_job* job = NULL;
  check(byteps_join(NULL, &job, &error), &error);
  puts("ready");
  fflush(stdout);
  char line[64];
  while (fgets(line, sizeof line, stdin) != NULL) {
    hear(&how, line);
    run_round(job, &all, values, &how);
  }
  check(byteps_leave(job, 1, &error), &error);
  return 0;
}
