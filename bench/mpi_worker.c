/* One rank of a rival: MPI_Allreduce, in place. Compiled by bench/contenders.py with mpicc when there is one.
 *
 *   mpi_worker FOLDER OPERATIONS BYTES
 *
 * Rounds and output as in push_pull_worker.c, over the pipes FOLDER/in.RANK and FOLDER/out.RANK: mpirun gives its
 * input to one rank only. Between rounds it sleeps in a read, so it does not spin while others are measured. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double seconds(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static FILE* open_pipe(const char* folder, const char* name, int rank, const char* mode) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s.%d", folder, name, rank);
  FILE* file = fopen(path, mode);
  if (file == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  return file;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 2);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const int operations = atoi(argv[2]);
  const size_t count = strtoull(argv[3], NULL, 10) / sizeof(float);
  const size_t total = count * (size_t)operations;
  float* values = malloc(total * sizeof *values);
  if (values == NULL) MPI_Abort(MPI_COMM_WORLD, 3);
  FILE* in = open_pipe(argv[1], "in", rank, "r");
  FILE* out = open_pipe(argv[1], "out", rank, "w");
  fputs("ready\n", out);
  fflush(out);
  char line[64];
  while (fgets(line, sizeof line, in) != NULL && line[0] == 'g') {
    for (size_t i = 0; i < total; ++i) values[i] = (float)(rank + 1);
    MPI_Barrier(MPI_COMM_WORLD);
    const double cpu = seconds(CLOCK_PROCESS_CPUTIME_ID);
    const double start = seconds(CLOCK_MONOTONIC);
    for (int i = 0; i < operations; ++i) {
      MPI_Allreduce(MPI_IN_PLACE, values + (size_t)i * count, (int)count, MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    }
    const double end = seconds(CLOCK_MONOTONIC);
    const double used = seconds(CLOCK_PROCESS_CPUTIME_ID) - cpu;
    /* Checking costs processor time, which others that are still measured need. */
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < total; ++i) {
      if (values[i] != (float)size * (float)(size + 1) / 2) MPI_Abort(MPI_COMM_WORLD, 4);
    }
    fprintf(out, "%.9f %.9f %.9f %.9f\n", start, end, end, used);
    fflush(out);
  }
  MPI_Finalize();
  return 0;
}
