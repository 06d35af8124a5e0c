"""Joining, leaving, joining again; signals; forks."""

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
import torch
from cluster import Cluster, clean_environment
from forked import heard_in_child
from place import ROOT, wait_for
from torch.utils.data import DataLoader, Dataset

import byteps
import byteps.torch as bps
from byteps._core import session
from byteps.torch import ops


def run_script(script, timeout_s=60, **environ):
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**clean_environment(), **environ},
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


# ---- before and after


def test_every_call_before_init_says_that_init_is_missing():
    model = torch.nn.Linear(1, 1)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    calls = [
        bps.size,
        bps.rank,
        bps.local_size,
        bps.local_rank,
        bps.barrier,
        bps.metrics,
        bps.get_pushpull_speed,
        lambda: bps.push_pull(torch.ones(1), name="x"),
        lambda: bps.push_pull(torch.ones(1)),
        lambda: bps.push_pull_async(torch.ones(1)),
        lambda: bps.byteps_push_pull(torch.ones(1)),
        lambda: ops.push_pull_group_sync_inplace(torch.ones(1)),
        lambda: bps.poll(1),
        lambda: bps.synchronize(1),
        lambda: bps.declare("x"),
        lambda: bps.broadcast_parameters(model.state_dict(), 0),
        lambda: bps.broadcast_optimizer_state(sgd, 0),
        lambda: bps.broadcast_object(1),
        lambda: bps.DistributedOptimizer(sgd, model.named_parameters()),
    ]
    for call in calls:
        with pytest.raises(ValueError) as caught:
            call()
        assert str(caught.value) == "BytePS has not been initialized; use bps.init()."
    bps.shutdown()  # harmless
    bps.suspend()


def test_without_any_environment_the_job_has_one_member(alone):
    bps.init()  # again: no effect
    assert (bps.size(), bps.rank(), bps.local_size(), bps.local_rank()) == (1, 0, 1, 0)
    bps.barrier()
    assert bps.declare("tensor") == 0
    assert bps.get_pushpull_speed() == (0, -5.0)


def test_speed_is_a_point_every_ten_seconds(alone, monkeypatch):
    bps.push_pull(torch.ones(250_000), name="megabyte")
    session.current()._speed_time_s -= 10
    milliseconds, speed = bps.get_pushpull_speed()
    assert abs(milliseconds / 1000 - time.time()) < 5
    assert speed == pytest.approx(0.1, rel=0.3)  # 1 MB in 10 s
    assert bps.get_pushpull_speed() == (0, -5.0)
    session.current()._speed_time_s -= 10
    monkeypatch.setenv("BYTEPS_TELEMETRY_ON", "0")
    assert bps.get_pushpull_speed() == (0, -5.0)


def test_old_handles_are_unknown_after_shutdown(alone):
    old = bps.push_pull_async(torch.ones(2))
    bps.shutdown()
    bps.init()
    new = bps.push_pull_async(torch.ones(2))
    with pytest.raises(ValueError, match="not known"):
        bps.synchronize(old)
    assert new > old and torch.equal(bps.synchronize(new), torch.ones(2))


def test_wrong_settings_raise_and_name_the_variable(monkeypatch):
    monkeypatch.setenv("DMLC_NUM_WORKER", "many")
    with pytest.raises(ValueError, match="DMLC_NUM_WORKER='many'"):
        bps.init()
    monkeypatch.setenv("DMLC_NUM_WORKER", "2")
    with pytest.raises(ValueError, match="DMLC_WORKER_ID is missing"):
        bps.init()
    monkeypatch.delenv("DMLC_NUM_WORKER")
    monkeypatch.setenv("BYTEPS_ENABLE_ASYNC", "1")
    with pytest.raises(bps.BytePSError, match="BYTEPS_ENABLE_ASYNC=1: asynchronous training is not in this version"):
        bps.init()


def test_the_version_is_that_of_the_source_tree():
    assert byteps.__version__ == (ROOT / "VERSION").read_text().strip()


def test_importing_byteps_imports_no_framework_and_needs_no_library():
    done = run_script(
        "import byteps, byteps._core.session, sys; print(byteps.__version__, 'torch' in sys.modules)",
        BYTEPS_LIBRARY="/nowhere/libbyteps.so",
    )
    assert done.stdout.split() == [byteps.__version__, "False"], done.stderr


def test_a_missing_library_is_an_import_error_that_says_where_it_was_looked_for():
    done = run_script("import byteps.torch as bps; bps.init()", BYTEPS_LIBRARY="/nowhere/libbyteps.so")
    assert "ImportError: libbyteps.so was not found (looked at /nowhere/libbyteps.so)" in done.stderr


# ---- again and again, in other sizes


def join_leave_join():
    sums = []
    for turn in range(3):
        if turn > 0:
            bps.init()
        sums.append(bps.push_pull(torch.ones(1000 + turn) * (bps.rank() + 1), average=False, name="same")[0].item())
        unnamed = bps.push_pull(torch.ones(turn + 1), average=False)
        assert torch.equal(unnamed, torch.full((turn + 1,), float(bps.size())))
        pending = bps.push_pull_async(torch.ones(3), name=f"never.{bps.rank()}")  # no other rank pushes it
        bps.barrier()
        bps.shutdown()
        with pytest.raises(ValueError, match="has not been initialized"):
            bps.synchronize(pending)
    return sums


def test_init_after_shutdown_joins_again_with_all_names_forgotten():
    with Cluster(2, environ={"BYTEPS_FAILURE_TIMEOUT_MS": "3000"}, forked=False) as cluster:
        assert cluster.run(join_leave_join) == [[3.0, 3.0, 3.0]] * 2


def suspend_now():
    bps.push_pull(torch.ones(2), average=False, name="before")
    bps.suspend()


def resume_as(size, rank):
    bps.resume(size, 2, rank)
    result = bps.push_pull(torch.full((2,), float(rank)), average=False, name="before")
    return bps.size(), bps.rank(), result[0].item()


def test_resume_changes_ranks_and_size():
    environ = {"BYTEPS_FAILURE_TIMEOUT_MS": "5000", "BYTEPS_GLOBAL_SIZE": "3"}  # as bpslaunch --hosts says it
    with Cluster(3, environ=environ) as cluster:
        cluster.run(suspend_now)
        outcomes = cluster.run_each([(resume_as, (3, 2 - rank), {}) for rank in range(3)])  # other ranks
        assert outcomes == [(3, 2, 3.0), (3, 1, 3.0), (3, 0, 3.0)]
        cluster.run(suspend_now)
        # Rank 2 goes home; the other two go on, with the same servers.
        outcomes = cluster.run_each([(resume_as, (2, 0), {}), (resume_as, (2, 1), {}), (lambda: None, (), {})])
        assert outcomes[:2] == [(2, 0, 1.0), (2, 1, 1.0)]


def swap_ranks_without_waiting(times, scheduler_says):
    """`scheduler_says`: the file of its log, where each worker's coming has a line."""

    def comings():
        return len(re.findall(r"worker \d .* is here", scheduler_says.read_text()))

    results = []
    for turn in range(times):
        rank = bps.rank()
        results.append(bps.push_pull(torch.tensor([float(rank)]), average=False, name="swapped")[0].item())
        if rank == 0:  # it leaves when the other one has left and is back
            wait_for("the other rank to come back", lambda: comings() == 2 * turn + 3, 60)
        bps.suspend()
        bps.resume(2, 2, 1 - rank)
        assert bps.rank() == 1 - rank
    return results


def test_workers_that_swap_their_ranks_need_not_wait_for_each_other():
    with Cluster(2, environ={"BYTEPS_FAILURE_TIMEOUT_MS": "5000", "BYTEPS_LOG_LEVEL": "INFO"}) as cluster:
        assert cluster.run(swap_ranks_without_waiting, 5, cluster.scheduler.err_path) == [[1.0] * 5] * 2


def test_resume_without_suspend_is_an_error(alone):
    with pytest.raises(ValueError, match="suspend"):
        bps.resume(1, 0, 0)


def test_a_job_of_one_resumes_without_servers(alone, monkeypatch):
    for name in session.RESUMED:
        monkeypatch.setenv(name, "1")  # so that they are as before after the test
        monkeypatch.delenv(name)
    for _ in range(2):
        bps.suspend()
        bps.resume(1, 0, 0)
        assert (bps.size(), bps.rank()) == (1, 0)
        assert bps.push_pull(torch.ones(1), False).item() == 1.0
    bps.shutdown()
    bps.init()  # the environment is one that init() takes


@pytest.mark.parametrize("numbers, why", [((2, 0, 0), "DMLC_PS_ROOT_URI"), ((-1, 1, 0), "DMLC_NUM_WORKER")])
def test_a_resume_that_fails_leaves_the_environment_as_it_was(monkeypatch, numbers, why):
    for name in session.RESUMED:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DMLC_NUM_WORKER", "1")
    before = dict(os.environ)
    with pytest.raises(ValueError, match=why):
        bps.resume(*numbers)
    assert dict(os.environ) == before
    bps.init()
    bps.shutdown()


def rank_and_sum():
    return bps.rank(), bps.push_pull(torch.ones(1), average=False).item()


def test_workers_of_one_machine_resume_without_servers():
    environ = {"BYTEPS_LOCAL_REDUCE": "auto", "BYTEPS_FORCE_DISTRIBUTED": "0"}
    with Cluster(2, 0, environ=environ) as cluster:
        for first in (0, 1):
            assert cluster.run(rank_and_sum) == [(first, 2), (1 - first, 2)]
            cluster.run(bps.suspend)
            cluster.run_each([(bps.resume, (2, 0, rank), {}) for rank in (1 - first, first)])


def waits_for_the_job(thread):
    """Whether it is in Job.wait() of byteps._core."""
    frame = sys._current_frames().get(thread.ident)
    while frame is not None:
        if frame.f_code.co_name == "wait" and isinstance(frame.f_locals.get("self"), type(session.job())):
            return True
        frame = frame.f_back
    return False


def leave_while_others_wait():
    outcomes = []

    def work():
        try:
            bps.push_pull(torch.ones(1), name=f"never.{bps.rank()}")
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for("the threads to wait", lambda: all(waits_for_the_job(thread) for thread in threads), 60)
    bps.shutdown()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert [type(error).__name__ for error in outcomes] == ["CancelledError"] * 3, outcomes
    bps.init()


def test_shutdown_ends_the_waits_of_other_threads():
    with Cluster(2) as cluster:
        cluster.run(leave_while_others_wait)


# ---- signals


def interrupted_wait():
    if bps.rank() == 1:
        bps.barrier()
        return torch.equal(bps.push_pull(torch.ones(4), name="interrupted"), torch.ones(4))
    handle = bps.push_pull_async(torch.ones(4), name="interrupted")
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        bps.synchronize(handle)
    assert time.monotonic() - begin < 5
    bps.barrier()
    return torch.equal(bps.synchronize(handle), torch.ones(4))  # the operation was not lost


def test_ctrl_c_ends_a_wait_soon_and_the_handle_stays_valid(job2):
    assert job2.run(interrupted_wait) == [True, True]


def test_ctrl_c_ends_init_while_it_waits_for_others():
    environ = dict(
        clean_environment(),
        DMLC_NUM_WORKER="2",
        DMLC_NUM_SERVER="1",
        DMLC_WORKER_ID="0",
        DMLC_PS_ROOT_URI="127.0.0.1",
        DMLC_PS_ROOT_PORT="1",
    )
    script = "import byteps._core.session as s; print('up', flush=True); s.init()"
    process = subprocess.Popen([sys.executable, "-c", script], env=environ, stdout=-1, stderr=-1, text=True)
    try:
        assert process.stdout.readline() == "up\n"
        wait_for("the core to begin to join", lambda: len(os.listdir(f"/proc/{process.pid}/task")) > 1, 60)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
        assert "KeyboardInterrupt" in errors and process.returncode == -signal.SIGINT
    finally:
        process.kill()
        process.wait()


def handler_that_leaves():
    signal.signal(signal.SIGUSR2, lambda *_: bps.shutdown())
    bps.barrier()
    threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR2)).start()
    try:
        bps.push_pull(torch.ones(1), name=f"never.{bps.rank()}")
    except bps.BytePSError as error:
        return type(error).__name__
    finally:
        bps.init()


def test_a_signal_handler_may_leave_amid_a_wait():
    with Cluster(2) as cluster:
        assert cluster.run(handler_that_leaves) == ["CancelledError"] * 2


def push_alone(begun):
    handle = bps.push_pull_async(torch.ones(1), name="alone")
    begun.touch()
    bps.synchronize(handle)


def test_a_rank_that_fails_ends_the_waits_of_the_others(tmp_path):
    with Cluster(2, environ={"BYTEPS_FAILURE_TIMEOUT_MS": "2000"}) as cluster:
        cluster.workers[0].tell(push_alone, (tmp_path / "begun",), {})
        wait_for("rank 0 to push", (tmp_path / "begun").exists, 60)
        cluster.workers[1].kill()
        tag, failure = cluster.workers[0].receive(time.monotonic() + 60)
        assert tag == "error" and "BytePSError" in failure.bases
        cluster.broken = True  # what is left is ended by force


class FinishesLate:
    """Native code that uses the job: finish() would never return while the job goes on."""

    def __init__(self):
        self.finished_live = []

    def attach(self, job):
        self.job = job

    def detach(self):
        pass

    def finish(self):
        self.finished_live.append(self.job.is_live)


def leave_amid_which_a_signal_raises():
    job, native = session.job(), FinishesLate()
    session.attach(native)
    wait = job._quiet.wait

    def interrupted_wait(*arguments):  # as if a signal handler had run in it
        job._quiet.wait = wait
        del job._blocked[0]
        raise KeyboardInterrupt

    job._blocked[0] = 1  # another thread in a wait
    job._quiet.wait = interrupted_wait
    try:
        session.shutdown()
        interrupted = False
    except KeyboardInterrupt:
        interrupted = True
    was_live = job.is_live
    session.shutdown()
    names = [open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")]
    return interrupted, was_live, job.is_live, native.finished_live, "byteps-worker" in names


def test_a_leave_that_a_signal_has_interrupted_can_be_repeated():
    with Cluster(2, 1, {"BYTEPS_FAILURE_TIMEOUT_MS": "5000"}, layer="byteps._core.session") as job:
        assert job.run(leave_amid_which_a_signal_raises) == [(True, True, False, [False], False)] * 2


# ---- forks


class Numbers(Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, index):
        return torch.tensor(float(index))


def load_with_forked_workers():
    loader = DataLoader(Numbers(), batch_size=3, num_workers=2, multiprocessing_context="fork")
    total = 0.0
    for batch in loader:
        total += bps.push_pull(batch, average=False, name="batch").sum().item()
    return total


@pytest.mark.host(reason="CUDA forbids a forked child to use a GPU")
def test_data_loaders_fork_amid_a_job(job2):
    assert job2.run(load_with_forked_workers) == [2 * sum(range(12))] * 2


def forked_child_calls():
    pending = bps.push_pull_async(torch.ones(2), name=f"pending.{os.getpid()}")
    gathered = bps.allgather_async(torch.ones(2), name=f"gathered.{os.getpid()}")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        seen = []
        for call in (
            lambda: bps.push_pull(torch.ones(1), name="child"),
            lambda: bps.poll(pending),
            lambda: bps.synchronize(pending),
            lambda: bps.poll(gathered),
            lambda: bps.synchronize(gathered),
            lambda: bps.allgather_async(torch.ones(1), name="child"),
            bps.barrier,
            bps.init,
            bps.rank,  # for samplers in a data loader's workers
            bps.size,
            bps.shutdown,
        ):
            try:
                call()
                seen.append("ok")
            except BaseException as error:
                seen.append(type(error).__name__)
        os.write(writer, " ".join(seen).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(pid, 0)
    return os.read(reader, 1000).decode()


@pytest.mark.host(reason="CUDA forbids a forked child to use a GPU")
def test_a_forked_child_is_no_member_and_does_no_harm(job2):
    assert job2.run(forked_child_calls) == [" ".join(["InvalidArgumentError"] * 8 + ["ok"] * 3)] * 2
    assert job2.run(lambda: bps.push_pull(torch.ones(1), False, "after.fork").item()) == [2.0, 2.0]


def test_alone_too_a_forked_child_is_no_member(alone):
    assert forked_child_calls() == " ".join(["InvalidArgumentError"] * 8 + ["ok"] * 3)


def sum_in_a_child_that_joins_anew():
    def join_anew():
        bps.shutdown()
        bps.init()
        return bps.push_pull(torch.full((1,), 3.0), average=False, name="child").item()

    return heard_in_child(join_anew), bps.push_pull(torch.ones(1), average=False, name="parent").item()


def test_a_forked_child_may_join_a_job_of_its_own_but_not_take_its_parent_s_place(job2, alone):
    assert sum_in_a_child_that_joins_anew() == ("returned 3.0", 1.0)
    for rank, (heard, total) in enumerate(job2.run(sum_in_a_child_that_joins_anew)):
        assert f"two processes claim to be worker {rank}" in heard and total == 2.0, heard
