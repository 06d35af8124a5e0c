"""A tensor beyond 4 GiB through real processes: 64-bit lengths and offsets everywhere."""

import pathlib

import pytest
from job import Job
from place import BUILD

GIB = 1 << 30
TENSOR_BYTES = 5 * GIB + 4096 + 7  # not a multiple of parts, frames or pages


def available_bytes():
    for line in pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no MemAvailable in /proc/meminfo")


@pytest.mark.long(reason="tens of GiB are written; the simulator has a tensor of 4 GiB")
@pytest.mark.timeout(300)
def test_a_tensor_of_five_gib_is_summed_byte_for_byte(tmp_path):
    # Each worker holds it once, the servers once together; a third of a GiB for what is on the way.
    workers = min(2, int((available_bytes() - 2 * GIB) / TENSOR_BYTES) - 1)
    if workers < 1:
        pytest.skip(
            f"needs {2 * TENSOR_BYTES / GIB + 2:.0f} GiB of free memory, {available_bytes() / GIB:.0f} are there"
        )
    environ = {
        "BYTEPS_FRAME_BYTES": "262144",
        "BYTEPS_CREDIT_BYTES": str(16 << 20),
        "BYTEPS_FAILURE_TIMEOUT_MS": "20000",
        "BYTEPS_SERVER_ENGINE_THREAD": "0",
    }
    with Job(tmp_path, workers, servers=2, environ=environ) as job:
        job.start_services()
        for rank in range(workers):
            job.start_program(rank, [BUILD / "bin/large_tensor_worker", TENSOR_BYTES])
        job.join(timeout_s=260)
        assert {process.code for process in job.processes} == {0}, job.story("not all ended well")
        for rank, worker in enumerate(job.workers):
            assert worker.out_path.read_text() == f"rank {rank}: {TENSOR_BYTES} bytes are right\n"
