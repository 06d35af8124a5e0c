"""A tensor beyond 4 GiB through real processes: 64-bit lengths and offsets everywhere."""

import os
import pathlib
import subprocess

import pytest
from conftest import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = ROOT / "build" / "release" / "bin"
GIB = 1 << 30
TENSOR_BYTES = 5 * GIB + 4096 + 7  # not a multiple of parts, frames or pages


def available_bytes():
    for line in pathlib.Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no MemAvailable in /proc/meminfo")


@pytest.mark.long(reason="tens of GiB are written; the simulator has a tensor of 4 GiB")
@pytest.mark.timeout(300)
def test_a_tensor_of_five_gib_is_summed_byte_for_byte():
    # Each worker holds it once, the servers once together; a third of a GiB for what is on the way.
    workers = min(2, int((available_bytes() - 2 * GIB) / TENSOR_BYTES) - 1)
    if workers < 1:
        pytest.skip(
            f"needs {2 * TENSOR_BYTES / GIB + 2:.0f} GiB of free memory, {available_bytes() / GIB:.0f} are there"
        )
    env = {
        **os.environ,
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NUM_WORKER": str(workers),
        "DMLC_NUM_SERVER": "2",
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_FRAME_BYTES": "262144",
        "BYTEPS_CREDIT_BYTES": str(16 << 20),
        "BYTEPS_FAILURE_TIMEOUT_MS": "20000",
    }
    processes = [subprocess.Popen([BIN / "byteps_scheduler"], env=env)]
    try:
        processes += [subprocess.Popen([BIN / "byteps_server"], env=env) for _ in range(2)]
        running = [
            subprocess.Popen(
                [BIN / "large_tensor_worker", str(TENSOR_BYTES)],
                env={**env, "DMLC_WORKER_ID": str(i)},
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(workers)
        ]
        processes += running
        for rank, worker in enumerate(running):
            output, _ = worker.communicate(timeout=240)
            assert worker.returncode == 0
            assert output == f"rank {rank}: {TENSOR_BYTES} bytes are right\n"
        for process in processes[:3]:
            assert process.wait(timeout=20) == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()
