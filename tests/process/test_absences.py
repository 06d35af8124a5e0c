"""Which sums a lost worker is not in: who sums says so in files of absences, byteps.recordings.absences reads them, and
with them the training can be done again, bit for bit."""

import json
import subprocess
import sys

import pytest
from place import ROOT
from training import Launched, Separate

from byteps.recordings import absences

HEADER = {"byteps_absences": 1, "scheduler": "10.0.0.1:9000", "wall_ns": 5}
LINE = {"epoch": 1, "tensor": "w", "first": 0, "count": 16, "worker": 2, "round": 131}


def write(path, *lines):
    path.write_text("".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines))


def test_of_all_that_is_said_of_an_element_the_earliest_round_counts(tmp_path):
    write(tmp_path / "byteps-absences-a-1.jsonl", HEADER, LINE, {**LINE, "first": 16, "round": 132})
    write(tmp_path / "byteps-absences-a-2.jsonl", HEADER, {**LINE, "round": 140}, {**LINE, "worker": 0, "round": 135})
    found = absences.read([tmp_path])
    assert found.absent("w", 130) == [] and found.absent("v", 200) == []
    assert found.absent("w", 131) == [(0, 16, {2})]
    assert found.absent("w", 132) == [(0, 16, {2}), (16, 32, {2})]
    assert found.absent("w", 135) == [(0, 16, {0, 2}), (16, 32, {2})]
    assert found.summary() == [
        "sums without worker 0: 1 pieces of 1 tensor, from round 135 on",
        "sums without worker 2: 2 pieces of 1 tensor, from rounds 131 to 132 on",
    ]


def test_what_is_damaged_of_another_job_or_of_an_earlier_epoch_does_not_count(tmp_path):
    older = {**HEADER, "scheduler": "10.0.0.1:9001", "wall_ns": 4}
    write(tmp_path / "byteps-absences-a-1.jsonl", older, {**LINE, "round": 1})
    damaged = [{**LINE, "worker": "2"}, "[1]\n", '{"epoch":1,"ten']
    write(tmp_path / "byteps-absences-a-2.jsonl", HEADER, {**LINE, "round": 1}, {**LINE, "epoch": 2}, *damaged)
    assert absences.read([tmp_path]).since == {("w", 0, 16, 2): 131}
    assert absences.read([tmp_path], "10.0.0.1:9001").since == {("w", 0, 16, 2): 1}
    assert absences.read([tmp_path / "none"]).since == {}


def test_a_list_that_was_full_is_said_to_be(tmp_path):
    write(tmp_path / "byteps-absences-a-1.jsonl", HEADER, LINE, {"full": 1})
    assert absences.read([tmp_path]).summary()[-1] == "a list of such sums was full, and says no more"


@pytest.mark.timeout(240)
def test_those_that_are_left_have_the_weights_of_the_training_once_more_with_the_recorded_sets(tmp_path):
    """Four workers, of which two are killed, rank 0 first; and a server, whose successor goes on with the record."""
    from replay import replay  # it imports torch

    options = ["--on-worker-loss", "continue"]
    environ = {"BYTEPS_DETERMINISTIC": "1", "BYTEPS_PARTITION_BYTES": "8192", "STEP_MS": "10"}
    with Launched(tmp_path / "job", workers=4, servers=2, steps=60, environ=environ, options=options) as training:
        for step, blow in enumerate(
            [
                lambda: training.kill_worker(0),
                lambda: training.kill(training.servers()[0]),
                lambda: training.kill_worker(2),
            ]
        ):
            assert training.wait_for_step(5 + 10 * step), training.story()
            assert training.stall_s(blow()) is not None, training.story()
        assert training.end() == [], training.story()
        recorded = absences.read([training.flight])
        assert recorded.workers() == [0, 2]
        assert training.hashes[1] == training.hashes[3] == replay(4, 60, recorded)
        command = [sys.executable, "-m", "byteps.tools.bps", "why", str(training.flight)]
        told = subprocess.run(command, env={"PYTHONPATH": str(ROOT / "python")}, capture_output=True, text=True)
        assert "  sums without worker 0: " in told.stdout and "  sums without worker 2: " in told.stdout, told


CONTINUES = {"BYTEPS_RECOVERY": "1", "BYTEPS_ON_WORKER_LOSS": "continue", "BYTEPS_DETERMINISTIC": "1"}


@pytest.mark.timeout(240)
def test_the_record_holds_where_the_workers_of_a_machine_sum_first(tmp_path):
    """Two machines of two: a worker of each is killed. A relay speaks for two ranks, servers record which are in."""
    from replay import replay

    environ = {**CONTINUES, "BYTEPS_PARTITION_BYTES": "8192", "STEP_MS": "10"}
    with Separate(tmp_path / "job", servers=2, steps=60, environ=environ, hosts=(2, 2)) as training:
        for step, rank in ((5, 1), (25, 2)):
            assert training.wait_for_step(step), training.story()
            assert training.stall_s(training.kill_worker(rank)) is not None, training.story()
        assert training.end() == [], training.story()
        assert "relays of 2 machines with 2 workers each, then 2 servers" in training.text
        recorded = absences.read([training.flight])
        assert recorded.workers() == [1, 2]
        assert training.hashes[0] == training.hashes[3] == replay(4, 60, recorded, machines=[[0, 1], [2, 3]])


@pytest.mark.timeout(240)
def test_relays_that_sum_alone_keep_the_record_themselves(tmp_path):
    from replay import replay

    environ = {**CONTINUES, "BYTEPS_LOCAL_REDUCE": "auto", "BYTEPS_FORCE_DISTRIBUTED": "0", "STEP_MS": "10"}
    options = ["--on-worker-loss", "continue"]
    with Launched(tmp_path / "job", workers=4, servers=0, steps=60, environ=environ, options=options) as training:
        for step, rank in ((5, 0), (25, 2)):
            assert training.wait_for_step(step), training.story()
            assert training.stall_s(training.kill_worker(rank)) is not None, training.story()
        assert training.end() == [], training.story()
        recorded = absences.read([training.flight])
        assert recorded.workers() == [0, 2]
        assert training.hashes[1] == training.hashes[3] == replay(4, 60, recorded)
