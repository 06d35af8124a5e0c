"""include/byteps/byteps.h as ctypes. The header is the manual."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_char, c_char_p, c_double, c_int, c_int32, c_int64, c_uint32, c_uint64, c_void_p

ABI_VERSION = 13

# byteps_code
OK = 0
INVALID_ARGUMENT = 1
AGAIN = 2
CANCELLED = 8

# byteps_dtype
FLOAT32 = 0
FLOAT64 = 1
FLOAT16 = 2
UINT8 = 3
INT32 = 4
INT8 = 5
INT64 = 6
BFLOAT16 = 7
BOOL = 8
INT16 = 9
UINT16 = 10
UINT32 = 11
UINT64 = 12

# byteps_operation
SUM = 0
AVERAGE = 1
BROADCAST = 2
MIN = 3
MAX = 4
PRODUCT = 5

# byteps_format
FORMAT_PLAIN = 0
FORMAT_FLOAT16 = 1
FORMAT_BFLOAT16 = 2
FORMAT_INT8 = 3
FORMAT_INT4 = 4
FORMAT_ONEBIT = 5
FORMAT_TOPK = 6
FORMAT_RANDOMK = 7
FORMAT_DITHERING = 8
FORMAT_FLOAT32 = 9

# byteps_codec.flags
CODEC_SEEDED = 1
CODEC_SCALING = 2
CODEC_NATURAL = 4
CODEC_L2 = 8
CODEC_ERROR_FEEDBACK = 16

# byteps_tensor.flags
ONCE = 1
ROOT_ONLY = 2
CODED_WHERE_FIT = 4

# byteps_memory
HOST_MEMORY = 0
CUDA_MEMORY = 1

# byteps_record's `failed`
INTERRUPTED = 4804180

SEAL_BYTES = 32

EXIT_REPLACED = 86


class Error(Structure):
    _fields_ = [("code", c_int32), ("message", c_char * 2044)]

    def text(self) -> str:
        return bytes(self.message).decode("utf-8", "replace")


class Codec(Structure):
    _fields_ = [("k", c_double), ("seed", c_uint64), ("flags", c_uint32), ("reserved", c_uint32)]


class Tensor(Structure):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("dtype", c_uint32),
        ("name", c_char_p),
        ("input", c_void_p),
        ("output", c_void_p),
        ("element_count", c_uint64),
        ("operation", c_uint32),
        ("root", c_uint32),
        ("priority", c_int32),
        ("flags", c_uint32),
        ("shape", POINTER(c_uint64)),
        ("dimension_count", c_uint32),
        ("reserved", c_uint32),
        ("scale", c_double),
        ("members", POINTER(c_uint32)),
        ("member_count", c_uint32),
        ("reserved2", c_uint32),
        ("queue", c_void_p),
        ("tag", c_uint64),
        ("memory", c_uint32),
        ("device", c_int32),
        ("stream", c_void_p),
        ("format", c_uint32),
        ("reserved3", c_uint32),
        ("residual", c_void_p),
        ("codec", POINTER(Codec)),
        ("momentum", c_void_p),
        ("momentum_mu", c_double),
        ("residual_ratio", c_double),
    ]


class Ended(Structure):
    _fields_ = [("handle", c_int64), ("tag", c_uint64), ("code", c_int32), ("reserved", c_uint32)]


class Metrics(Structure):
    _fields_ = [
        ("struct_bytes", c_uint32),
        ("reserved", c_uint32),
        ("pushed_bytes", c_uint64),
        ("pulled_bytes", c_uint64),
        ("finished_operations", c_uint64),
        ("finished_bytes", c_uint64),
        ("failed_operations", c_uint64),
        ("reconnects", c_uint64),
        ("shared_bytes", c_uint64),
        ("rdma_bytes", c_uint64),
        ("local_pushed_bytes", c_uint64),
        ("local_pulled_bytes", c_uint64),
        ("local_shared_bytes", c_uint64),
        ("device_out_bytes", c_uint64),
        ("device_in_bytes", c_uint64),
        ("pushed_frames", c_uint64),
        ("wanted_messages", c_uint64),
        ("lost_servers", c_uint64),
        ("lost_schedulers", c_uint64),
        ("lost_workers", c_uint64),
        ("pushed_wire_bytes", c_uint64),
        ("pulled_wire_bytes", c_uint64),
        ("encode_ns", c_uint64),
        ("decode_ns", c_uint64),
    ]


TENSOR_BYTES = ctypes.sizeof(Tensor)
METRICS_BYTES = ctypes.sizeof(Metrics)

_JOB = c_void_p
_ERROR = POINTER(Error)

_PROTOTYPES = {
    "byteps_abi_version": (c_uint32, []),
    "byteps_version": (c_char_p, []),
    "byteps_join_start": (c_int, [c_char_p, POINTER(_JOB), _ERROR]),
    "byteps_join_finish": (c_int, [POINTER(_JOB), c_int64, _ERROR]),
    "byteps_leave": (c_int, [_JOB, c_int, _ERROR]),
    "byteps_rank": (c_uint32, [_JOB]),
    "byteps_size": (c_uint32, [_JOB]),
    "byteps_leader": (c_uint32, [_JOB]),
    "byteps_local_rank": (c_uint32, [_JOB]),
    "byteps_local_size": (c_uint32, [_JOB]),
    "byteps_server_count": (c_uint32, [_JOB]),
    "byteps_machines": (c_uint32, [_JOB, POINTER(c_uint32), c_uint32]),
    "byteps_use_device": (c_int, [_JOB, c_uint32, c_int32, _ERROR]),
    "byteps_push_pull": (c_int, [_JOB, POINTER(Tensor), POINTER(c_int64), _ERROR]),
    "byteps_poll": (c_int, [_JOB, c_int64]),
    "byteps_wait": (c_int, [_JOB, c_int64, c_int64, _ERROR]),
    "byteps_queue_create": (c_int, [_JOB, POINTER(c_void_p), _ERROR]),
    "byteps_queue_wait": (c_int, [c_void_p, POINTER(Ended), c_uint32, POINTER(c_uint32), c_int64, _ERROR]),
    "byteps_queue_destroy": (None, [c_void_p]),
    "byteps_barrier": (c_int, [_JOB, c_int64, _ERROR]),
    "byteps_finish_inputs": (c_int, [_JOB, c_int64, POINTER(c_uint32), _ERROR]),
    "byteps_progress": (c_uint64, [_JOB]),
    "byteps_all_wait": (c_int, [_JOB, c_uint64, c_uint32]),
    "byteps_get_metrics": (c_int, [_JOB, POINTER(Metrics)]),
    "byteps_seal": (c_int, [_JOB, c_char_p, c_void_p, c_uint64, c_void_p, _ERROR]),
    "byteps_check_seal": (c_int, [_JOB, c_uint32, c_char_p, c_void_p, c_uint64, c_void_p, _ERROR]),
    "byteps_record": (c_int, [_JOB, c_char_p, c_int, _ERROR]),
    "byteps_is_replaced": (c_int, [_JOB]),
    "byteps_environment_reference": (c_char_p, []),
}


def declare(library: ctypes.CDLL) -> None:
    """Gives every function its types; AttributeError when the library lacks one."""
    for name, (result, arguments) in _PROTOTYPES.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
