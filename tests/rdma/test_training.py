"""A training with torch over RDMA, with a data loader that forks while registered memory is in use."""

import json
import sys
from pathlib import Path

import pytest
from lab import HOSTS, LabJob, sent_packets, user

TRAIN = str(Path(__file__).with_name("train.py"))
LONG_S = 300  # to import torch takes half a minute there, and more where others use the machine


@pytest.mark.long(reason="torch's import alone takes half a minute of the emulated processors")
@pytest.mark.timeout(LONG_S + 60)
def test_a_training_over_rdma_with_a_forking_data_loader_is_the_one_of_a_single_process(tmp_path):
    before = sent_packets()
    environ = {"BYTEPS_FAILURE_TIMEOUT_MS": "30000", "OMP_NUM_THREADS": "1"}
    with LabJob(tmp_path / "job", environ=environ) as job:
        job.start_services(server_hosts=(3, 3))
        command = [sys.executable, TRAIN, str(user(1)), str(user(2))]
        # Data loaders make Unix sockets in TMPDIR, whose paths may have 108 bytes; the test's folder is too deep.
        job.start_program(0, command, {"TMPDIR": "/tmp"})
        job.check_ended_well(LONG_S)
        said = json.loads(job.workers[0].out_path.read_text())
    assert said["difference"] < 1e-9, said
    assert said["losses"][-1] < said["losses"][0] / 3, said
    sent = {host: count - before[host] for host, count in sent_packets().items()}
    assert all(sent[host] > 1000 for host in HOSTS), sent  # 20 steps of 304 KB, and the first weights
