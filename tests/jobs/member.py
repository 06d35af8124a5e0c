"""A worker for the tests: joins the job over the C interface, sums, and then does what its arguments say.

    member.py [--only RANK] [--exit CODE | --kill | --sleep] [--touch FILE]

--only: the others sum once more, which they cannot without that rank. --touch: made when the rank has joined.
"""

import argparse
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

OPERATION_SUM, FLOAT32 = 0, 0


class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int32), ("message", ctypes.c_char * 2044)]


class Tensor(ctypes.Structure):
    _fields_ = [
        ("struct_bytes", ctypes.c_uint32), ("dtype", ctypes.c_uint32), ("name", ctypes.c_char_p),
        ("input", ctypes.c_void_p), ("output", ctypes.c_void_p), ("element_count", ctypes.c_uint64),
        ("operation", ctypes.c_uint32), ("root", ctypes.c_uint32), ("priority", ctypes.c_int32),
        ("flags", ctypes.c_uint32),
    ]  # fmt: skip


library = ctypes.CDLL(os.environ["BYTEPS_LIBRARY"])
error = Error()


def need(code):
    if code != 0:
        print(f"member: {error.message.decode()}", file=sys.stderr)
        sys.exit(1)


def total(job, number):
    values = (ctypes.c_float * 1000)(*[number] * 1000)
    tensor = Tensor(
        ctypes.sizeof(Tensor), FLOAT32, b"tensor", ctypes.addressof(values), ctypes.addressof(values), 1000
    )
    handle = ctypes.c_int64()
    need(library.byteps_push_pull(job, ctypes.byref(tensor), ctypes.byref(handle), ctypes.byref(error)))
    need(library.byteps_wait(job, handle, ctypes.c_int64(-1), ctypes.byref(error)))
    return values[999]


parser = argparse.ArgumentParser()
parser.add_argument("--only", type=int)
parser.add_argument("--exit", type=int)
parser.add_argument("--kill", action="store_true")
parser.add_argument("--sleep", action="store_true")
parser.add_argument("--touch")
options = parser.parse_args()

job = ctypes.c_void_p()
need(library.byteps_join(None, ctypes.byref(job), ctypes.byref(error)))
rank = library.byteps_rank(job)
print(f"rank {rank} of {library.byteps_size(job)}, sum {total(job, rank + 1):.0f}")
if options.touch:
    Path(f"{options.touch}{rank}").touch()
if options.only is not None and options.only != rank:
    total(job, 1.0)
elif options.exit is not None:
    os._exit(options.exit)
elif options.kill:
    os.kill(os.getpid(), signal.SIGKILL)
elif options.sleep:
    time.sleep(1000)
need(library.byteps_leave(job, 1, ctypes.byref(error)))
