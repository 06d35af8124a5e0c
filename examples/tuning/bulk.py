"""Exchanges so many MB of gradients, as fast as they go; says how fast. For docs/tuning.md; needs no framework."""

import ctypes
import sys
import time

from byteps._core.client import Job

LAYERS = 8
COUNT = 1 << 20  # float32: 4 MiB a layer

job = Job.join()
layers = [(ctypes.c_float * COUNT)() for _ in range(LAYERS)]
step_mb = LAYERS * COUNT * 4 / 1e6
steps = max(1, round(float(sys.argv[1]) / step_mb))
start = time.monotonic()
for step in range(steps):
    handles = []
    for number, layer in enumerate(layers):
        address = ctypes.addressof(layer)
        handles.append(
            job.push_pull(f"layer.{number}", dtype=0, input=address, output=address, element_count=COUNT, operation=0)
        )
    for handle in handles:
        job.wait(handle)
print(f"worker {job.rank}: {steps * step_mb / (time.monotonic() - start):.0f} MB/s", flush=True)
job.leave()
