/* byteps.h: the C interface of BytePS.
 *
 * A process joins a job and gets a byteps_job; it sums tensors with the other workers of the job through the
 * job's summation servers; it leaves. Everything is reached through handles: there is no global state, several jobs
 * may live in one process, and joining again after leaving works.
 *
 * Errors. Functions that can fail return a byteps_code (0 is success) and fill *error when it is not NULL; the
 * message names the tensor, rank, address or variable, and the remedy. Nothing here aborts the process because of a
 * caller, a peer or the network.
 * Threads. Every function may be called from any thread, except that byteps_leave must be the last call on its job.
 * Fork. A child's copy of a job is inert: every call on it returns BYTEPS_INVALID_ARGUMENT, byteps_leave included.
 * Memory. Tensor memory belongs to the caller; it must stay valid and untouched from byteps_push_pull until byteps_wait
 * has returned for its handle (with any result). All pointers are to host memory, but for a tensor's input and output
 * where it says that they are device memory (byteps_memory).
 */
#ifndef BYTEPS_BYTEPS_H_
#define BYTEPS_BYTEPS_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define BYTEPS_API __attribute__((visibility("default")))
#else
#define BYTEPS_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows when something is added; a change that breaks callers changes the library's soname. */
#define BYTEPS_ABI_VERSION 13

typedef struct byteps_job byteps_job;
typedef struct byteps_queue byteps_queue;

typedef enum byteps_code {
  BYTEPS_OK = 0,
  BYTEPS_INVALID_ARGUMENT = 1, /* fix the call */
  BYTEPS_AGAIN = 2,            /* not finished yet */
  BYTEPS_TIMEOUT = 3,          /* the time allowed is over */
  BYTEPS_DISCONNECTED = 4,     /* a member of the job is gone */
  BYTEPS_UNSUPPORTED = 5,
  BYTEPS_SYSTEM = 6,           /* the operating system refused */
  BYTEPS_MISMATCH = 7,         /* ranks disagree about a tensor */
  BYTEPS_CANCELLED = 8         /* ended by byteps_leave, or because another part of the job failed */
} byteps_code;

typedef struct byteps_error {
  int32_t code;
  char message[2044]; /* UTF-8, always terminated */
} byteps_error;

typedef enum byteps_dtype {
  BYTEPS_FLOAT32 = 0,
  BYTEPS_FLOAT64 = 1,
  BYTEPS_FLOAT16 = 2,
  BYTEPS_UINT8 = 3,
  BYTEPS_INT32 = 4,
  BYTEPS_INT8 = 5,
  BYTEPS_INT64 = 6,
  BYTEPS_BFLOAT16 = 7,
  BYTEPS_BOOL = 8,
  /* Since version 4. */
  BYTEPS_INT16 = 9,
  BYTEPS_UINT16 = 10,
  BYTEPS_UINT32 = 11,
  BYTEPS_UINT64 = 12
} byteps_dtype;

/* What elements are to a framework where they travel as others, with one dimension more: complex numbers as pairs of
 * floats, 8-bit floats as bytes. byteps_tensor.dtype is then byteps_dtype | byteps_logical_type << 8. Ranks must agree
 * about it, and errors name it; nothing else comes of it. Since version 6. */
typedef enum byteps_logical_type {
  BYTEPS_LOGICAL_SAME = 0,
  BYTEPS_LOGICAL_COMPLEX32 = 1,
  BYTEPS_LOGICAL_COMPLEX64 = 2,
  BYTEPS_LOGICAL_COMPLEX128 = 3,
  BYTEPS_LOGICAL_FLOAT8_E4M3FN = 4,
  BYTEPS_LOGICAL_FLOAT8_E5M2 = 5,
  BYTEPS_LOGICAL_FLOAT8_E4M3FNUZ = 6,
  BYTEPS_LOGICAL_FLOAT8_E5M2FNUZ = 7,
  BYTEPS_LOGICAL_FLOAT8_E8M0FNU = 8,
  BYTEPS_LOGICAL_FLOAT8_E4M3 = 9,
  BYTEPS_LOGICAL_FLOAT8_E3M4 = 10,
  BYTEPS_LOGICAL_FLOAT8_E4M3B11FNUZ = 11,
  BYTEPS_LOGICAL_FLOAT4_E2M1FN_X2 = 12
} byteps_logical_type;

typedef enum byteps_operation {
  BYTEPS_SUM = 0,      /* bool: logical or */
  BYTEPS_AVERAGE = 1,  /* the sum divided once by the number of members; integers towards zero; not for bool */
  BYTEPS_BROADCAST = 2, /* root's values to all */
  /* Since version 4. */
  BYTEPS_MIN = 3,    /* NaN if any is NaN; bool: logical and */
  BYTEPS_MAX = 4,    /* NaN if any is NaN; bool: logical or */
  BYTEPS_PRODUCT = 5 /* integers wrap, as sums do; bool: logical and */
} byteps_operation;

/* Where a tensor's input and output are, both in the same. Since version 9. */
typedef enum byteps_memory {
  BYTEPS_HOST_MEMORY = 0,
  BYTEPS_CUDA_MEMORY = 1 /* of an NVIDIA GPU; the driver, libcuda.so.1, is loaded at the first use */
} byteps_memory;

/* How the elements of a sum or an average of BYTEPS_FLOAT32 travel between machines and are kept at servers, which add
 * what the codes say in float32 and code the sum once (docs/compression.md). All ranks get the same elements, bit for
 * bit. Nothing is coded between the workers of a machine that sum first, and in a tensor of one member. Since version
 * 11. */
typedef enum byteps_format {
  BYTEPS_FORMAT_PLAIN = 0,
  BYTEPS_FORMAT_FLOAT16 = 1,
  BYTEPS_FORMAT_BFLOAT16 = 2,
  BYTEPS_FORMAT_INT8 = 3, /* a code of a byte each, and a float32 scale for 256 elements */
  BYTEPS_FORMAT_INT4 = 4, /* a code of half a byte each, and a bfloat16 scale for 32 elements */
  /* Since version 13: the original's compressors, with what byteps_codec says. Each codes together the elements of a
   * part: BYTEPS_PARTITION_BYTES of them, 4 MiB at most. */
  BYTEPS_FORMAT_ONEBIT = 5,    /* the signs; with BYTEPS_CODEC_SCALING the mean magnitude */
  BYTEPS_FORMAT_TOPK = 6,      /* k elements of the largest magnitude, with their indices */
  BYTEPS_FORMAT_RANDOMK = 7,   /* k elements at places that all ranks draw alike */
  BYTEPS_FORMAT_DITHERING = 8, /* one of k levels for each, up or down by chance */
  BYTEPS_FORMAT_FLOAT32 = 9    /* as they are, after momentum */
} byteps_format;

/* What those of version 13 are to be. Ranks must agree about all of it. */
typedef struct byteps_codec {
  double k;          /* TOPK, RANDOMK: below 1 the share of a part's elements that travels, rounded down, at least
                        one; else how many of each part. TOPK: at most half of them. DITHERING: how many levels, at
                        most 2^23; with BYTEPS_CODEC_NATURAL 24. ONEBIT, FLOAT32: 0 */
  uint64_t seed;     /* with BYTEPS_CODEC_SEEDED, of RANDOMK and DITHERING: each part begins xorshift128+ with it */
  uint32_t flags;    /* BYTEPS_CODEC_... */
  uint32_t reserved; /* 0 */
} byteps_codec;

/* Without, numbers follow from name, part and round, and with DITHERING from the rank. */
#define BYTEPS_CODEC_SEEDED 1u
/* ONEBIT: decoded as plus and minus the mean magnitude; without, plus and minus one. */
#define BYTEPS_CODEC_SCALING 2u
/* DITHERING: levels are powers of two; without, they are evenly spaced. */
#define BYTEPS_CODEC_NATURAL 4u
/* DITHERING: scaled by the root of the sum of squares; without, by the largest magnitude. */
#define BYTEPS_CODEC_L2 8u
/* Not FLOAT32. byteps_tensor.residual is given, and servers keep one of the sum that they code (not with RANDOMK, which
 * they do not code again). Without it there is no residual. */
#define BYTEPS_CODEC_ERROR_FEEDBACK 16u

/* One tensor of one call. Zero the struct, set struct_bytes = sizeof(byteps_tensor), then the rest. Ranks must agree
 * about name, shape, dtype, operation, root, scale, members, format, codec and momentum_mu; a name keeps them from its
 * first use on. Different sets of members need different names. */
typedef struct byteps_tensor {
  uint32_t struct_bytes;
  uint32_t dtype;         /* byteps_dtype, or with a byteps_logical_type */
  const char* name;       /* 1 to 1024 bytes of UTF-8; the same on all ranks for what belongs together */
  const void* input;      /* host or device memory, see `memory`: element_count elements; not needed (may be NULL) on
                             non-roots of a broadcast */
  void* output;           /* host or device memory, as input: element_count elements; may be input: the result lands in
                             place. Non-roots of BYTEPS_ROOT_ONLY: not touched, may be NULL */
  uint64_t element_count; /* may be 0 */
  uint32_t operation;     /* byteps_operation */
  uint32_t root;          /* broadcast: rank whose values all get. BYTEPS_ROOT_ONLY: rank that gets the result */
  int32_t priority;       /* larger passes earlier; equal on all ranks is best */
  uint32_t flags;         /* BYTEPS_ONCE, BYTEPS_ROOT_ONLY, BYTEPS_CODED_WHERE_FIT */
  /* Since version 3. A struct_bytes that ends before them is taken as one dimension. */
  const uint64_t* shape;    /* the dimensions; read before byteps_push_pull returns. NULL: one dimension */
  uint32_t dimension_count; /* at most BYTEPS_DIMENSIONS_MAX; 0: one dimension. Their product is element_count */
  uint32_t reserved;        /* 0 */
  /* Since version 4. */
  double scale;            /* a sum or average is multiplied by it at the servers; 0: not. Integers: in double, then
                              towards 0 */
  const uint32_t* members; /* ascending ranks that take part, the caller's among them; read at once. NULL: all */
  uint32_t member_count;   /* how many those are. One alone: its input is copied at once; on a device, in its turn */
  uint32_t reserved2;      /* 0 */
  byteps_queue* queue;     /* where its end is reported, instead of to byteps_wait; NULL: nowhere */
  uint64_t tag;            /* repeated there */
  /* Since version 9. */
  uint32_t memory; /* byteps_memory: where input and output are. It is no matter between ranks: one may have the tensor
                      on a device, another in host memory */
  int32_t device;  /* device memory: the number of its device in this process, as CUDA counts them; both are there */
  void* stream;    /* device memory: a CUstream (cudaStream_t is the same) of that device; NULL: its default stream. The
                      input is read, and the output written, when all work has ended that was put on the stream before
                      this call: an event is recorded on it, and nothing waits in this call. A stream that a CUDA graph
                      is captured from is refused with BYTEPS_INVALID_ARGUMENT. When the operation has ended, so have
                      all copies: work that is put on any stream afterwards finds the result. (Only when
                      a job ends and a device does not end its copies for the failure timeout are they left behind.) */
  /* Since version 11. */
  uint32_t format;    /* byteps_format */
  uint32_t reserved3; /* 0 */
  float* residual;    /* BYTEPS_FORMAT_INT8 and BYTEPS_FORMAT_INT4: error feedback; NULL: none. The formats of version
                         13: given with BYTEPS_CODEC_ERROR_FEEDBACK, and only then. Host memory,
                         element_count elements, zeros before the first round: what the codes of one round left of the
                         elements, which is added to those of the next before they are coded. Written while the
                         operation is under way, and the caller's to keep between two, with a checkpoint as well; a
                         rank's own matter. An operation that fails may have written a part of it. Where the workers of
                         a machine sum first, the sum of theirs is coded, and its residual is with who leads the part
                         (docs/local.md) */
  /* Since version 13, for the formats of that version alone. */
  const byteps_codec* codec; /* read before byteps_push_pull returns. NULL: as one of zeros */
  float* momentum;           /* Nesterov's momentum before error feedback and code: m = mu * m + g, g += mu * m.
                                Memory for m as `residual` has it; NULL: none. Where tensors have it, the optimizer has
                                none of its own */
  double momentum_mu;        /* with `momentum`: mu, at least 0 and below 1; without: 0 */
  double residual_ratio;     /* the residual is multiplied by it when it is added: the last learning rate by this one.
                                0: as 1. A rank's own matter */
} byteps_tensor;

#define BYTEPS_DIMENSIONS_MAX 64u

/* This name is never used again: the servers forget it when all ranks have the result. */
#define BYTEPS_ONCE 1u

/* Only `root` gets the result; not for a broadcast. Since version 4. */
#define BYTEPS_ROOT_ONLY 2u

/* The format is for sums and averages of at least BYTEPS_MIN_COMPRESS_BYTES of BYTEPS_FLOAT32; any other tensor travels
 * plain, and its residual is not touched; sums and averages of BYTEPS_FLOAT32 that are too small, but have momentum,
 * as BYTEPS_FORMAT_FLOAT32. Without it a format that cannot be is an error. Since version 11. */
#define BYTEPS_CODED_WHERE_FIT 4u

/* A push_pull under way. 0 is never a handle. */
typedef int64_t byteps_handle;

typedef struct byteps_metrics {
  uint32_t struct_bytes; /* set by the caller */
  uint32_t reserved;
  uint64_t pushed_bytes;         /* tensor bytes sent to servers since byteps_join, by this worker or by its relay */
  uint64_t pulled_bytes;         /* tensor bytes received from servers, likewise */
  uint64_t finished_operations;
  uint64_t finished_bytes;       /* bytes of tensors whose push_pull has finished */
  uint64_t failed_operations;
  uint64_t reconnects;
  /* Since version 5; not filled in where struct_bytes ends before them. Of the bytes pushed and pulled those that did
   * not go by the network's sockets: through memory shared with a server of this host, and by RDMA. */
  uint64_t shared_bytes;
  uint64_t rdma_bytes;
  /* Since version 8. Where the workers of a machine sum first: tensor bytes sent to the relays of this machine and
   * received from them; of both, those that went through shared memory. */
  uint64_t local_pushed_bytes;
  uint64_t local_pulled_bytes;
  uint64_t local_shared_bytes;
  /* Since version 9. Tensor bytes copied from devices of this process to the host, and to them, for sums with
   * others. */
  uint64_t device_out_bytes;
  uint64_t device_in_bytes;
  /* Since version 9. Frames (pieces of tensors) sent to servers and to relays of this machine, repeats included, and
   * how often these have asked this worker or its relay for some that others were waiting for. */
  uint64_t pushed_frames;
  uint64_t wanted_messages;
  /* Since version 10. Losses that the job has survived since byteps_join, where it recovers (docs/recovery.md): servers
   * whose place another has taken (lost, or told to stop), schedulers whose like was started anew and has the job, as
   * this worker has heard of them; and how many ranks of workers are vacant now. */
  uint64_t lost_servers;
  uint64_t lost_schedulers;
  uint64_t lost_workers;
  /* Since version 11. pushed_bytes and pulled_bytes as they travelled: fewer where tensors are coded. */
  uint64_t pushed_wire_bytes;
  uint64_t pulled_wire_bytes;
  /* Since version 12. Nanoseconds of this worker's threads, its relay's among them, that coding what is pushed has
   * taken, and decoding answers. */
  uint64_t encode_ns;
  uint64_t decode_ns;
} byteps_metrics;

BYTEPS_API uint32_t byteps_abi_version(void);
BYTEPS_API const char* byteps_version(void);

/* Joins the job that the environment describes (docs/env.md). Without DMLC_* variables, and with one worker, it
 * is a job of one: no network, every push_pull copies. Blocks until all members are there; says on standard error
 * who is missing after 5 s and then every 10 s.
 * settings: NULL, or "NAME=value" lines separated by newlines that override the environment. */
BYTEPS_API int byteps_join(const char* settings, byteps_job** job, byteps_error* error);

/* The same in two halves: start returns soon (it asks the machine where its GPU is, which may take 2 s), finish waits
 * up to timeout_ns (BYTEPS_AGAIN: not yet; call again) so that a caller can look for signals in between. After any
 * other error the job is gone and *job is NULL. */
BYTEPS_API int byteps_join_start(const char* settings, byteps_job** job, byteps_error* error);
BYTEPS_API int byteps_join_finish(byteps_job** job, int64_t timeout_ns, byteps_error* error);

/* Leaves and frees the job. Pending operations end with BYTEPS_CANCELLED. final != 0: this process will not join again,
 * so servers and scheduler may end when all workers have left. */
BYTEPS_API int byteps_leave(byteps_job* job, int final, byteps_error* error);

/* Constant while the job lives. */
BYTEPS_API uint32_t byteps_rank(const byteps_job* job);
BYTEPS_API uint32_t byteps_size(const byteps_job* job);
BYTEPS_API uint32_t byteps_local_rank(const byteps_job* job);
BYTEPS_API uint32_t byteps_local_size(const byteps_job* job);
BYTEPS_API uint32_t byteps_server_count(const byteps_job* job);

/* The lowest rank whose worker was not lost: 0, unless the job goes on without that one
 * (BYTEPS_ON_WORKER_LOSS=continue). Ask it for what one worker does for all, as to save checkpoints. May change at any
 * time, and ranks hear of a loss at slightly different times: for a moment two of them, or none, may take themselves
 * for it. Since version 10. */
BYTEPS_API uint32_t byteps_leader(const byteps_job* job);

/* Which machine each worker is on, by rank: on each of them local ranks begin at 0. A launcher that says local ranks
 * (BYTEPS_LOCAL_RANK, BYTEPS_LOCAL_SIZE) counts machines itself (DMLC_WORKER_ID); where it says none, machines are what
 * the kernel says, in the order of their first ranks. Fills in up to `capacity` of them; returns how many there are.
 * Since version 6. */
BYTEPS_API uint32_t byteps_machines(const byteps_job* job, uint32_t* machines, uint32_t capacity);

/* Starts one exchange; never blocks. Any number may be in flight, in any order on each rank; the same name again queues
 * behind its earlier use. */
BYTEPS_API int byteps_push_pull(byteps_job* job, const byteps_tensor* tensor, byteps_handle* handle,
                                byteps_error* error);

/* Makes a device ready for tensors: the driver is loaded, a context retained, host memory pinned (docs/gpu.md). The
 * first tensor on it does the same, if this was not called. BYTEPS_UNSUPPORTED: there is no such driver or device; the
 * message says what was looked for. Since version 9. */
BYTEPS_API int byteps_use_device(byteps_job* job, uint32_t memory, int32_t device, byteps_error* error);

/* 1 finished (well or not; byteps_wait will not block), 0 not yet, -1 no such handle. */
BYTEPS_API int byteps_poll(byteps_job* job, byteps_handle handle);

/* Waits up to timeout_ns (negative: without limit). BYTEPS_AGAIN: not yet, the handle stays valid. Anything else is the
 * operation's result, and the handle is used up. */
BYTEPS_API int byteps_wait(byteps_job* job, byteps_handle handle, int64_t timeout_ns, byteps_error* error);

/* The end of an operation that named a queue. */
typedef struct byteps_ended {
  byteps_handle handle; /* used up */
  uint64_t tag;         /* the byteps_tensor's */
  int32_t code;         /* byteps_code: the operation's result */
  uint32_t reserved;
} byteps_ended;

/* A queue that reports the ends of operations in batches, for callers that complete somebody else's promises: a
 * byteps_tensor names it, and then nobody may wait for the handle. Since version 4, as the next two. */
BYTEPS_API int byteps_queue_create(byteps_job* job, byteps_queue** queue, byteps_error* error);

/* Waits up to timeout_ns (negative: without limit) until something has ended. BYTEPS_OK: *count entries of `ended` (1
 * to capacity) are filled; an operation that failed comes alone, and *error has its message. BYTEPS_AGAIN: nothing in
 * that time. BYTEPS_CANCELLED: the job was left, and all ends have been reported. May be called, and go on, after
 * byteps_leave. */
BYTEPS_API int byteps_queue_wait(byteps_queue* queue, byteps_ended* ended, uint32_t capacity, uint32_t* count,
                                 int64_t timeout_ns, byteps_error* error);

/* Frees it; nobody may be in byteps_queue_wait. Operations that still name it go on, and their ends are told nobody. */
BYTEPS_API void byteps_queue_destroy(byteps_queue* queue);

/* All workers meet here. BYTEPS_AGAIN at the timeout: call again to go on waiting. Several threads may be in it: each
 * is in a barrier of its own, and others meet it as often. */
BYTEPS_API int byteps_barrier(byteps_job* job, int64_t timeout_ns, byteps_error* error);

/* This worker has no more inputs (Horovod's join): what it has submitted ends, and from then on the tensors of others
 * do not wait for it; it contributes nothing to them, though an average still divides by all members. Returns when all
 * workers have called it; *last_rank (if not NULL) is then on all of them the rank that did so last, and all go on with
 * the names as they were. BYTEPS_AGAIN at the timeout: call again to go on waiting. Until it has returned nothing may
 * be submitted. A broadcast whose root has no more inputs is an error for the others. Since version 4. */
BYTEPS_API int byteps_finish_inputs(byteps_job* job, int64_t timeout_ns, uint32_t* last_rank, byteps_error* error);

/* For language bindings, which know what all threads of the process do. When all workers wait for each other, so that
 * none can go on, the job is ended with the names of who waits for what; but only when that is proven, and a worker can
 * prove it when nobody in its process can submit anything before an operation ends. Where all threads of the process
 * are in byteps_wait without limit it finds that by itself. Where they wait in slices, or in means of their own, or
 * where there are threads that never submit, the binding says so with byteps_all_wait: `seen` is what byteps_progress
 * was before it looked at the threads, `inside` how many of them are inside a wait of this interface for something
 * pending (byteps_queue_wait without limit does not count), or BYTEPS_NOT_COUNTED. BYTEPS_AGAIN: something has changed
 * meanwhile, so nothing is said. Otherwise it holds until something is submitted or ends, or this is called again.
 * Since version 6. */
#define BYTEPS_NOT_COUNTED UINT32_MAX
BYTEPS_API uint64_t byteps_progress(const byteps_job* job);
BYTEPS_API int byteps_all_wait(byteps_job* job, uint64_t seen, uint32_t inside);

BYTEPS_API int byteps_get_metrics(const byteps_job* job, byteps_metrics* metrics);

/* A seal shows that a payload comes from that rank of this job, sealed under that name since this membership began; it
 * hides nothing. What another rank has said may be changed on its way through servers and networks, so look at the seal
 * before you do with it what must not be done with a stranger's bytes, such as unpickling. The seal travels beside the
 * payload as the caller likes. Use no name twice (let it count): an older payload of the same name would pass for the
 * new one. Without a job key anyone can make seals. Since version 6, as the next. */
#define BYTEPS_SEAL_BYTES 32u
BYTEPS_API int byteps_seal(byteps_job* job, const char* name, const void* payload, uint64_t payload_bytes,
                           uint8_t seal[BYTEPS_SEAL_BYTES], byteps_error* error);

/* BYTEPS_OK: rank `rank` has sealed this payload under this name. BYTEPS_MISMATCH: it has not. */
BYTEPS_API int byteps_check_seal(byteps_job* job, uint32_t rank, const char* name, const void* payload,
                                 uint64_t payload_bytes, const uint8_t seal[BYTEPS_SEAL_BYTES], byteps_error* error);

/* Adds a line to the job's flight recorder, which keeps the last events (docs/flight.md). failed != 0: this process
 * ends badly because of what `text` says, so the events are written to a file; BYTEPS_INTERRUPTED: because a person
 * interrupted it, whatever the text says. No exit code is that number. Since version 2;
 * BYTEPS_INTERRUPTED since version 7. */
#define BYTEPS_INTERRUPTED 4804180
BYTEPS_API int byteps_record(byteps_job* job, const char* text, int failed, byteps_error* error);

/* 1: the job goes on without this process, which was away from it for too long (it stood still, or was cut off), where
 * the loss of a worker does not end a job (BYTEPS_ON_WORKER_LOSS=continue): what fails here fails because of that. Else
 * 0. A process that ends for this reason with exit code BYTEPS_EXIT_REPLACED has not failed, says that to bpslaunch;
 * with any other but 0 it has. Ask before byteps_leave. Since version 10. */
#define BYTEPS_EXIT_REPLACED 86
BYTEPS_API int byteps_is_replaced(const byteps_job* job);

/* The table of all environment variables as Markdown (docs/env.md); valid for ever. */
BYTEPS_API const char* byteps_environment_reference(void);

#ifdef __cplusplus
}
#endif

#endif /* BYTEPS_BYTEPS_H_ */
