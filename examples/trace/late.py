"""Training steps without the training; worker 1 computes 20 ms longer. For docs/timeline.md; needs no framework."""

import ctypes
import time

from byteps._core.client import Job

job = Job.join()
layers = [(ctypes.c_float * 100_000)() for _ in range(3)]
for step in range(12):
    time.sleep(0.005 + (0.02 if job.rank == 1 else 0.0))
    handles = []
    for number, layer in enumerate(layers):
        address = ctypes.addressof(layer)
        handles.append(
            job.push_pull(
                f"layer.{number}", dtype=0, input=address, output=address, element_count=len(layer), operation=0
            )
        )
    for handle in handles:
        job.wait(handle)
job.leave()
