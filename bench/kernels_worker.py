"""One core's turns at bench/kernels.py: adds with a kernel, a plain loop or torch, always in the same memory.

Usage: kernels_worker.py LIBRARY BYTES

LIBRARY: kernels_rows of the build. BYTES: the largest working set. Says in one line of JSON what it has; then for each
line "ROW WORKING_SET_BYTES PASSES" it writes GB/s of the contribution.
"""

import ctypes
import json
import mmap
import sys
import time

try:
    import torch
except ImportError:
    torch = None

TORCH_ROW = "torch add_"
OFFSET = 64  # where a large block of malloc begins in its page


def load(path):
    library = ctypes.CDLL(path)
    library.kernels_target.restype = ctypes.c_char_p
    library.kernels_row_name.restype = ctypes.c_char_p
    library.kernels_row_name.argtypes = [ctypes.c_size_t]
    library.kernels_row_array_bytes.restype = ctypes.c_size_t
    library.kernels_row_array_bytes.argtypes = [ctypes.c_size_t] * 2
    library.kernels_row_run.restype = ctypes.c_double
    library.kernels_row_run.argtypes = [ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]
    return library


def row_names(library):
    names = []
    while library.kernels_row_name(len(names)):
        names.append(library.kernels_row_name(len(names)).decode())
    return names


def torch_seconds(memory, working_set, passes):
    """As kernels_row_run, by torch, with one thread."""
    count = working_set // 2 // 4
    sums = torch.frombuffer(memory, dtype=torch.float32, count=count, offset=OFFSET)
    elements = torch.frombuffer(memory, dtype=torch.float32, count=count, offset=OFFSET + working_set // 2)
    began = time.perf_counter()
    for _ in range(passes):
        sums.add_(elements)
    return time.perf_counter() - began


def main():
    library, largest = load(sys.argv[1]), int(sys.argv[2])
    names = row_names(library)
    memory = mmap.mmap(-1, largest + mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ctypes.memset(address, 0, len(memory))  # pages never written would all be one page of zeros
    if torch:
        torch.set_num_threads(1)
    rows = names + [TORCH_ROW] * (torch is not None)
    print(json.dumps({"target": library.kernels_target().decode(), "rows": rows}), flush=True)

    def seconds(row, working_set, passes):
        if rows[row] == TORCH_ROW:
            return torch_seconds(memory, working_set, passes)
        return library.kernels_row_run(row, address + OFFSET, working_set, passes)

    for line in sys.stdin:
        row, working_set, passes = map(int, line.split())
        if passes > 1:
            seconds(row, working_set, 1)  # into the caches
        array = library.kernels_row_array_bytes(row if row < len(names) else names.index("memcpy"), working_set)
        print(passes * array / seconds(row, working_set, passes) / 1e9, flush=True)


if __name__ == "__main__":
    main()
