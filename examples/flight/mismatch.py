"""Fails on purpose: the ranks give one tensor different sizes. For docs/flight.md; needs no framework."""

import ctypes

from byteps._core.client import Job

job = Job.join()
values = (ctypes.c_float * (10 + job.rank))()
address = ctypes.addressof(values)
job.wait(job.push_pull("gradient", dtype=0, input=address, output=address, element_count=len(values), operation=0))
