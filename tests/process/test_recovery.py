"""A server or the scheduler is lost while real training goes on: nobody's step is lost, and all have the weights of a
run without it."""

import os
import re
import signal
import time

import pytest
from job import Job
from place import wait_for
from training import ONE_THREAD, start_worker, worker_command

STEPS = 150
UNSTALLED_STEPS = 3000  # where training goes on meanwhile: 10 s at least
FLAT = {"BYTEPS_LOCAL_REDUCE": "0", **ONE_THREAD}
STALL_S = 2.0  # the longest step with a loss; the median is some milliseconds


class Training:
    """bpslaunch with training workers, whose output is read while they train."""

    def __init__(self, place, workers=2, servers=2, environ=(), steps=STEPS):
        self.place, self.workers = place, workers
        self.log = place.folder / f"training-{len(place.started)}.txt"
        environ = {**FLAT, **dict(environ)}
        sizes = ["--local", "--workers", str(workers), "--servers", str(servers)]
        with open(self.log, "w") as log:
            worker = worker_command(place, environ, steps)
            self.launcher = place.launch(*sizes, "--", *worker, environ=environ, stdout=log, stderr=log)

    def text(self):
        return self.log.read_text()

    def steps_of(self, rank):
        return [float(when) for when in re.findall(rf"\[worker {rank}\] step \d+ at (\S+)", self.text())]

    def wait_for_step(self, step):
        wait_for(f"step {step}", lambda: len(self.steps_of(0)) > step or self.is_over(), 60)

    def is_over(self):
        return self.launcher.poll() is not None

    def servers(self):
        return sorted(pid for pid, command in self.place.living().items() if "byteps_server" in command)

    def scheduler(self):
        """Once it is there."""
        found = lambda: [pid for pid, command in self.place.living().items() if "byteps_scheduler" in command]
        wait_for("the scheduler", lambda: found() or self.is_over(), 20)
        return found()[0]

    def lose_scheduler(self):
        """Kills it, and waits for its like and until that knows the job again."""
        back = self.text().count("the scheduler goes on with the job")
        kill_grown(self.scheduler)
        again = lambda: self.text().count("the scheduler goes on with the job") > back or self.is_over()
        wait_for("the scheduler's like", again, 20)

    def end(self, timeout_s=90):
        assert self.launcher.wait(timeout_s) == 0, self.text()
        hashes = re.findall(r"weights (\S+)", self.text())
        assert len(hashes) == self.workers and len(set(hashes)) == 1, self.text()
        assert nothing_is_left(self.place)
        return hashes[0]

    def longest_step_s(self):
        longest = 0.0
        for rank in range(self.workers):
            ends = self.steps_of(rank)
            longest = max([longest] + [later - one for one, later in zip(ends, ends[1:])])
        return longest


def nothing_is_left(place):
    return [what for what in place.left() if "torchinductor" not in what] == []


def age_s(pid):
    with open(f"/proc/{pid}/stat", "rb") as stat, open("/proc/uptime") as uptime:
        began_ticks = int(stat.read().rpartition(b")")[2].split()[19])
        return float(uptime.read().split()[0]) - began_ticks / os.sysconf("SC_CLK_TCK")


def kill(pid):
    os.kill(pid, signal.SIGKILL)


def kill_grown(find):
    """Kills the process that this finds; bpslaunch gives up what does not live for a second three times."""

    def is_grown():
        try:
            return age_s(find()) > 1.2
        except (IndexError, FileNotFoundError):  # the one before it is just gone
            return False

    wait_for("it to have lived for a while", is_grown)
    kill(find())


@pytest.mark.timeout(240)
def test_weights_are_those_of_a_run_in_which_no_server_was_killed(place):
    calm = Training(place).end()
    training = Training(place, environ={"STEP_MS": "30"})
    for step in (20, 50, 80, 110, 130):
        training.wait_for_step(step)
        kill_grown(lambda: training.servers()[0])  # in turns, for who is started again is the last
        training.wait_for_step(step + 3)
    assert training.end() == calm
    assert training.text().count("it is started again") == 5
    assert training.text().count("takes its place") == 5
    assert "Error" not in training.text() and "Traceback" not in training.text(), training.text()
    assert training.longest_step_s() < STALL_S


@pytest.mark.timeout(120)
def test_coded_gradients_and_their_residuals_are_those_of_a_run_in_which_no_server_was_killed(place):
    coded = {"BYTEPS_COMPRESSION": "int4:error_feedback", "BYTEPS_MIN_COMPRESS_BYTES": "1024"}
    calm = Training(place, environ=coded).end()
    assert calm != Training(place).end(), "nothing was coded"
    training = Training(place, environ={**coded, "STEP_MS": "30"})
    for step in (20, 70, 120):
        training.wait_for_step(step)
        kill_grown(lambda: training.servers()[0])
        training.wait_for_step(step + 3)
    assert training.end() == calm
    assert training.text().count("takes its place") == 3
    assert "Error" not in training.text() and "Traceback" not in training.text(), training.text()


def train_on_machines(folder, kills=()):
    """Two machines of two workers, which sum first: the hash of the weights. `kills`: at which steps a server dies."""
    with Job(folder, servers=2, hosts=(2, 2), environ=ONE_THREAD) as job:
        job.start_services()
        for rank in range(job.size):
            start_worker(job, rank, STEPS)
        first, serving = job.workers[0], list(job.servers)
        for number, step in enumerate(kills):
            has_come = lambda step=step: f"step {step} at" in first.out_path.read_text() or first.code is not None
            wait_for(f"step {step}", has_come, 60)
            rank = number % 2
            serving[rank].kill()
            serving[rank] = job.start_server({"DMLC_RANK": str(rank)})
            wait_for("its successor", lambda: job.scheduler.err.count("takes its place") > number, 20)
        job.join(timeout_s=90)
        assert all(worker.code == 0 for worker in job.workers), job.story("a worker failed")
        assert job.scheduler.err.count("takes its place") == len(kills)
        assert "relays of 2 machines with 2 workers each, then 2 servers" in job.scheduler.err
        hashes = {worker.out_path.read_text().split("weights ")[1].strip() for worker in job.workers}
        assert len(hashes) == 1, job.story("ranks have different weights")
        assert nothing_is_left(job.place)
        return hashes.pop()


STEP = re.compile(r"step (\d+) at (\S+)")


class Alone:
    """The same training where nobody starts a server again: its processes are started one by one."""

    def __init__(self, folder, servers=2, steps=STEPS, environ=()):
        self.job = Job(folder, servers=servers, environ={**FLAT, **dict(environ)})
        self.job.start_services()
        for rank in range(self.job.size):
            start_worker(self.job, rank, steps)

    def steps_of(self, rank):
        return [float(when) for _, when in STEP.findall(self.job.workers[rank].out_path.read_text())]

    def wait_for_step(self, step):
        first = self.job.workers[0]
        wait_for(f"step {step}", lambda: len(self.steps_of(0)) > step or first.code is not None, 60)

    def next_step_s(self, since_s, timeout_s=20):
        """How long after that all ranks had ended another step."""
        ends = lambda rank: [when for when in self.steps_of(rank) if when > since_s + 0.02]
        wait_for("another step", lambda: all(ends(rank) for rank in range(self.job.size)), timeout_s)
        return max(ends(rank)[0] for rank in range(self.job.size)) - since_s

    def end(self):
        job = self.job
        job.join(timeout_s=90)
        assert all(worker.code == 0 for worker in job.workers), job.story("a worker failed")
        said = "".join(worker.err for worker in job.workers)
        assert "Error" not in said and "Traceback" not in said, said
        hashes = {worker.out_path.read_text().split("weights ")[1].strip() for worker in job.workers}
        assert len(hashes) == 1, job.story("ranks have different weights")
        assert nothing_is_left(job.place)
        job.close()
        return hashes.pop()


@pytest.mark.timeout(240)
def test_where_nobody_starts_a_lost_server_again_another_one_serves_its_slots_as_well(tmp_path):
    calm = Alone(tmp_path / "calm", servers=3).end()
    training = Alone(tmp_path / "losses", servers=3)
    job, stalls = training.job, []
    victim = job.servers[1]
    for step in (40, 90):
        training.wait_for_step(step)
        began_s = time.monotonic()
        victim.kill()
        stalls.append(training.next_step_s(began_s))
        # The next is the one that serves two places then.
        pid = re.findall(r"server \d \(\S+:(\d+) at \S+\) takes its place", job.scheduler.err)[-1]
        victim = next(server for server in job.servers if server.pid == int(pid))
    assert training.end() == calm
    assert victim.code == 0, "the last server has all three places"
    assert job.scheduler.err.count("takes its place") == 3, job.scheduler.err
    assert max(stalls) < STALL_S, stalls


@pytest.mark.timeout(240)
def test_a_server_that_is_told_to_stop_hands_over_and_ends_well(tmp_path):
    calm = Alone(tmp_path / "calm").end()
    training = Alone(tmp_path / "drained")
    training.wait_for_step(30)
    began_s = time.monotonic()
    first, second = training.job.servers
    first.send(signal.SIGTERM)
    wait_for("its end", lambda: first.code is not None, 20)
    drained_s = time.monotonic() - began_s
    assert first.code == 0, training.job.story("the server was told to stop")
    assert re.search(r"told to stop, and ends: server \d \(.*\) has its place", first.err), first.err
    training.next_step_s(time.monotonic())
    # The other one is alone now: it goes on, until one is there that can take both places.
    second.send(signal.SIGTERM)
    wait_for("a word about that", lambda: "nobody can take its place" in second.err, 20)
    training.next_step_s(time.monotonic())
    assert second.code is None
    third = training.job.start_server()
    wait_for("its end", lambda: second.code is not None, 20)
    assert second.code == 0, training.job.story("the second server was told to stop")
    assert training.end() == calm
    assert third.code == 0
    assert drained_s < STALL_S


@pytest.mark.timeout(120)
def test_a_server_that_is_told_twice_ends_at_once_and_is_lost(tmp_path):
    training = Alone(tmp_path, servers=1)
    training.wait_for_step(20)
    server = training.job.servers[0]
    server.send(signal.SIGTERM)
    wait_for("a word about that", lambda: "nobody can take its place" in server.err, 20)
    server.send(signal.SIGTERM)
    wait_for("its end", lambda: server.code is not None, 5)
    assert server.code == 128 + signal.SIGTERM
    training.job.start_server({"DMLC_RANK": "0"})
    training.end()


@pytest.mark.timeout(180)
@pytest.mark.parametrize("servers, policy", [(1, "fail"), (2, "fail"), (2, "continue")])
def test_bpslaunch_starts_servers_again_that_were_all_told_twice(place, servers, policy):
    training = Training(place, servers=servers, environ={"BYTEPS_ON_WORKER_LOSS": policy}, steps=1500)
    training.wait_for_step(30)
    told = training.servers()
    for pid in told:
        os.kill(pid, signal.SIGTERM)
    wait_for("a word about that", lambda: "nobody can take its place" in training.text() or training.is_over(), 20)
    for pid in set(told) & set(training.servers()):
        os.kill(pid, signal.SIGTERM)
    wait_for("their likes", lambda: "it is started again" in training.text() or training.is_over(), 20)
    training.end()
    assert "was ended by signal SIGTERM (exit code 143): it is started again" in training.text()
    assert "failed" not in training.text() and "First cause" not in training.text(), training.text()


@pytest.mark.timeout(120)
def test_bpslaunch_neither_blames_nor_starts_again_a_server_that_has_handed_over(place):
    training = Training(place, steps=250)
    training.wait_for_step(30)
    os.kill(training.servers()[0], signal.SIGTERM)
    wait_for("its end", lambda: len(training.servers()) == 1 or training.is_over(), 20)
    training.end()
    assert "is started again" not in training.text() and "failed" not in training.text(), training.text()


@pytest.mark.timeout(120)
def test_an_interrupted_job_ends_as_soon_as_ever(place):
    training = Training(place, steps=4000)
    training.wait_for_step(20)
    began_s = time.monotonic()
    training.launcher.send_signal(signal.SIGINT)
    assert training.launcher.wait(20) == 128 + signal.SIGINT
    assert time.monotonic() - began_s < 3
    assert nothing_is_left(place)


@pytest.mark.timeout(240)
def test_where_the_workers_of_a_machine_sum_first_the_weights_are_the_same_too(tmp_path):
    """Sums of two, and of two of those, have the same bits in any order."""
    calm = train_on_machines(tmp_path / "calm")
    assert train_on_machines(tmp_path / "losses", kills=(20, 50, 80, 110)) == calm


@pytest.mark.timeout(120)
def test_floats_that_are_added_in_another_order_stay_the_same_on_all_ranks(place):
    """Four workers whose sums depend on the order of arrival: a sum that one has used is not made anew."""
    training = Training(place, workers=4, servers=1, environ={"STEP_MS": "30"})
    for step in (30, 70, 110):
        training.wait_for_step(step)
        kill_grown(lambda: training.servers()[0])
        training.wait_for_step(step + 3)
    training.end()  # compares them


@pytest.mark.timeout(120)
def test_of_a_server_that_stands_still_a_spare_one_takes_the_place_and_who_wakes_up_counts_nowhere(place):
    environ = {"BYTEPS_FAILURE_TIMEOUT_MS": "1000", "BYTEPS_LOG_LEVEL": "INFO"}
    training = Training(place, environ=environ, steps=400)
    training.wait_for_step(10)
    asleep = training.servers()[0]
    scheduler = next(pid for pid, command in place.living().items() if "byteps_scheduler" in command)
    with open(f"/proc/{scheduler}/environ", "rb") as file:
        its = dict(entry.split("=", 1) for entry in file.read().decode().split("\0") if "=" in entry)
    spare = place.start([place.executable("server")], {**its, "DMLC_ROLE": "server"})
    wait_for("the spare server", lambda: f":{spare.pid} at" in training.text())
    os.kill(asleep, signal.SIGSTOP)
    wait_for("a successor", lambda: "takes its place" in training.text(), 20)
    os.kill(asleep, signal.SIGCONT)
    training.end()
    assert "another server has its place, and the job goes on" in training.text()
    spare.communicate(timeout=20)


@pytest.mark.timeout(60)
def test_without_the_setting_the_loss_of_a_server_ends_the_job_with_its_name(place):
    training = Training(place, environ={"BYTEPS_RECOVERY": "0", "BYTEPS_FAILURE_TIMEOUT_MS": "1000"})
    training.wait_for_step(10)
    kill(training.servers()[0])
    assert training.launcher.wait(30) != 0
    assert re.search(r"server \d .*failed with signal SIGKILL", training.text()), training.text()


@pytest.mark.timeout(60)
def test_a_server_that_cannot_live_is_given_up_with_the_reason(place):
    training = Training(place, environ={"BYTEPS_FAILURE_TIMEOUT_MS": "1000"})
    training.wait_for_step(10)
    for deaths in range(1, 7):  # the first of them is not so soon after its start
        kill(training.servers()[-1])
        wait_for("its end", lambda: training.text().count("it is started again") == deaths or training.is_over())
        wait_for("its like", lambda: len(training.servers()) == 2 or training.is_over())
        if training.is_over():
            break
    assert training.launcher.wait(30) != 0
    assert "is not started again: it died 3 times in a row within 1 s of its start" in training.text()


# ---- the scheduler


@pytest.mark.timeout(240)
def test_weights_are_those_of_a_run_in_which_the_scheduler_was_not_killed(place):
    calm = Training(place, steps=UNSTALLED_STEPS).end()
    training = Training(place, steps=UNSTALLED_STEPS)
    for step in (20, 60, 100):
        training.wait_for_step(step)
        training.lose_scheduler()
        training.wait_for_step(step + 3)
    assert training.end() == calm
    assert training.text().count("scheduler (pid ") == training.text().count("it is started again") == 3
    assert len(re.findall(r"4 of 4 members are back, epoch 1, term [234]", training.text())) == 3
    assert "Error" not in training.text() and "Traceback" not in training.text(), training.text()
    assert training.longest_step_s() < STALL_S


@pytest.mark.timeout(120)
def test_the_scheduler_may_be_killed_twice_in_a_row_and_together_with_a_server(place):
    calm = Training(place, steps=UNSTALLED_STEPS).end()
    training = Training(place, steps=UNSTALLED_STEPS)
    training.wait_for_step(20)
    first = training.scheduler()
    kill(first)
    wait_for("its like", lambda: training.scheduler() != first)
    kill(training.scheduler())
    training.wait_for_step(60)
    kill(training.servers()[0])
    training.lose_scheduler()
    training.wait_for_step(100)
    assert training.end() == calm
    assert training.text().count("takes its place") == 1
    assert "Error" not in training.text() and "Traceback" not in training.text(), training.text()


@pytest.mark.timeout(120)
def test_the_scheduler_may_be_killed_while_the_last_worker_is_still_to_join(place):
    calm = Training(place).end()
    late = {"LATE_S": "3", "BYTEPS_LOG_LEVEL": "INFO"}
    training = Training(place, environ=late)
    wait_for("the first worker", lambda: re.search(r"worker 0 \(.*is here", training.text()), 30)
    kill(training.scheduler())
    assert training.end() == calm
    assert training.text().count("it is started again") == 1


@pytest.mark.timeout(60)
def test_a_scheduler_that_stands_still_for_longer_than_the_failure_timeout_costs_no_step(place):
    training = Training(place, environ={"BYTEPS_FAILURE_TIMEOUT_MS": "1000"}, steps=600)
    training.wait_for_step(10)
    asleep = training.scheduler()
    os.kill(asleep, signal.SIGSTOP)
    wait_for("a notice", lambda: "the job goes on without it" in training.text(), 20)
    training.wait_for_step(len(training.steps_of(0)) + 200)
    os.kill(asleep, signal.SIGCONT)
    training.end()
    assert training.longest_step_s() < STALL_S


@pytest.mark.timeout(60)
def test_without_the_setting_the_loss_of_the_scheduler_ends_the_job_with_its_name(place):
    training = Training(place, environ={"BYTEPS_RECOVERY": "0", "BYTEPS_FAILURE_TIMEOUT_MS": "1000"})
    training.wait_for_step(10)
    kill(training.scheduler())
    assert training.launcher.wait(30) != 0
    assert re.search(r"scheduler .*failed with signal SIGKILL", training.text()), training.text()
