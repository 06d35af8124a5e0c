"""Real training (digits_hash.py) whose processes are killed: who is there, how far all ranks are, how long they stood.

    with Launched(folder, workers=2, servers=2, steps=500) as training:     # bpslaunch starts again who was killed
        training.wait_for_step(20)
        at_s = training.kill(training.servers()[0])
        training.stall_s(at_s)                     # until all ranks have ended the next step that began after it
        training.end()                             # its flaws: texts; none
        training.hashes                            # of the weights after each step

    Separate(folder, ...)                          # the same processes one by one, on hosts of their own if you like
    training.restart(pid)                          # nobody but you starts them again
"""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from job import Job, Process
from place import Place, wait_until
from zygote import Refused, fork_servers

from byteps.launcher import losses

WORKER = str(Path(__file__).with_name("digits_hash.py"))
STEP = re.compile(r"(?:\[worker (\d+)\] )?step (\d+) at (\S+) is (\S+)$")
PID = re.compile(r"(?:\[worker \d+\] )?pid (\d+) of rank (\d+)$")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # else imports start some: no fork
ENVIRON = {"BYTEPS_RECOVERY": "1", "BYTEPS_LOCAL_REDUCE": "0", "BYTEPS_FORCE_DISTRIBUTED": "1", **ONE_THREAD}
IMPORTED = ["torch", "sklearn.datasets", "torch._dynamo"]  # seconds of each worker's start: it is forked behind them
END_S = 120.0


class Tail:
    """The whole lines that a file has got since the last look."""

    def __init__(self, path):
        self._path, self._offset, self._rest = path, 0, ""

    def read(self):
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            data = file.read()
        self._offset += len(data)
        *lines, self._rest = (self._rest + data.decode(errors="replace")).split("\n")
        return lines


class Training:
    """What both have. `ends[rank]`: when each step ended there; `hashes[rank]`: of the weights then."""

    def __init__(self, workers, servers, steps):
        self.size, self.server_count, self.steps = workers, servers, steps
        self.ends = {rank: [] for rank in range(workers)}
        self.hashes = {rank: [] for rank in range(workers)}
        self.pids = {}  # of workers, by rank
        self.lost = set()  # ranks of workers that were killed, or taken for lost

    # ---- how far they are

    def look(self):
        for rank, tail in self.tails():
            for line in tail.read():
                self._take(line, rank)

    def _take(self, line, rank):
        found = STEP.match(line)
        if found:
            rank = int(found[1]) if found[1] else rank
            assert int(found[2]) == len(self.ends[rank]), f"worker {rank} has left a step out: {line}"
            self.ends[rank].append(float(found[3]))
            self.hashes[rank].append(found[4])
        found = PID.match(line)
        if found:
            self.pids[int(found[2])] = int(found[1])

    @property
    def ranks(self):
        return [rank for rank in range(self.size) if rank not in self.lost]

    def steps_done(self):
        """Of the rank that is least far."""
        self.look()
        return min(len(self.ends[rank]) for rank in self.ranks)

    def wait_for_step(self, step, timeout_s=120.0):
        """Whether they come there, before they end."""
        wait_until(lambda: self.steps_done() > step or self.is_over(), timeout_s)
        return self.steps_done() > step

    def stall_s(self, at_s, timeout_s=60.0):
        """From then to the end, at all ranks, of the first step that none of them had begun. None: they have ended."""

        def first_begun_after():
            self.look()
            numbers = [self._begun_after(rank, at_s) for rank in self.ranks]
            return None if None in numbers else max(numbers)

        def is_done():
            number = first_begun_after()
            return number is not None and all(len(self.ends[rank]) > number for rank in self.ranks)

        if not wait_until(lambda: is_done() or self.is_over(), timeout_s) or not is_done():
            return None
        return max(self.ends[rank][first_begun_after()] for rank in self.ranks) - at_s

    def _begun_after(self, rank, at_s):
        """The number of the first step that had not begun there; None: not even the one before it has ended."""
        ends = self.ends[rank]
        if not ends or ends[-1] < at_s:
            return None
        number = len(ends)
        while number > 0 and ends[number - 1] >= at_s:
            number -= 1
        return number + 1

    def longest_step_s(self, from_s, to_s):
        """Of those that ended in that time, at any rank."""
        longest = 0.0
        for rank in self.ranks:
            pairs = zip(self.ends[rank], self.ends[rank][1:])
            longest = max([longest, *(end - begin for begin, end in pairs if from_s <= end <= to_s)])
        return longest

    # ---- judging

    def flaws_of_hashes(self, calm=None):
        """Ranks that are left have the same weights after each step; and those of `calm`, a list, if it is given."""
        self.look()
        first = self.hashes[self.ranks[0]]
        flaws = [f"{self.steps} steps were asked for, and {len(first)} came"] if len(first) != self.steps else []
        for what, others in [*((f"worker {rank}", self.hashes[rank]) for rank in self.ranks[1:]), ("calm run", calm)]:
            if others is None:
                continue
            at = next((step for step, pair in enumerate(zip(first, others)) if pair[0] != pair[1]), None)
            if at is not None:
                flaws.append(f"worker {self.ranks[0]} and {what} have other weights from step {at} on")
            elif len(first) > len(others):
                flaws.append(f"{what} has {len(others)} steps, worker {self.ranks[0]} has {len(first)}")
        return flaws

    def kill(self, pid, number=signal.SIGKILL):
        at_s = time.monotonic()
        os.kill(pid, number)
        return at_s

    def kill_worker(self, rank):
        self.lost.add(rank)
        return self.kill(self.pids[rank])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Launched(Training):
    """By bpslaunch --local, which starts servers and the scheduler again."""

    def __init__(self, folder, workers=2, servers=2, steps=150, environ=(), options=()):
        super().__init__(workers, servers, steps)
        folder.mkdir(parents=True)
        self.place = Place(folder)
        self.log, self.flight = folder / "all.txt", folder / "flight"
        sizes = ["--local", "--workers", str(workers), "--servers", str(servers)]
        environ = {**ENVIRON, "BYTEPS_FLIGHT_DIR": str(self.flight), **dict(environ)}
        worker = worker_command(self.place, environ, steps)
        with open(self.log, "w") as log:
            both = {"stdout": log, "stderr": log, "start_new_session": True}
            self.launcher = self.place.launch(*sizes, *options, "--", *worker, environ=environ, **both)
        self._tail = Tail(self.log)

    def tails(self):
        return [(None, self._tail)]

    @property
    def text(self):
        return self.log.read_text()

    def is_over(self):
        return self.launcher.poll() is not None

    def of_role(self, role):
        return sorted(pid for pid, command in self.place.living().items() if f"byteps_{role}" in command)

    def kill_scheduler(self):
        return self.kill(self.scheduler())

    def servers(self):
        """Their process ids, when all are there."""
        wait_until(lambda: len(self.of_role("server")) == self.server_count or self.is_over())
        return self.of_role("server")

    def scheduler(self):
        found = []

        def is_there():
            found[:] = self.of_role("scheduler")
            return found or self.is_over()

        assert wait_until(is_there) and found, self.story()
        return found[0]

    def end(self, calm=None):
        """What is wrong with how it ended."""
        if not wait_until(self.is_over, END_S):
            return [f"it has not ended within {END_S:.0f} s"]
        flaws = self.flaws_of_hashes(calm)
        if self.launcher.returncode != 0:
            flaws.append(f"bpslaunch ended with {self.launcher.returncode}")
        flaws += [f"there is {word} in its output" for word in ("Traceback", "Error:") if word in self.text]
        left = [what for what in self.place.left(1.0) if "torchinductor" not in what]
        return flaws + ([f"left behind: {left}"] if left else [])

    def story(self):
        return "\n".join(line for line in self.text.splitlines() if not STEP.match(line))

    def close(self):
        self.place.close()


class Forked(Process):
    """A worker of a Job, forked where that goes."""

    def begin(self, command, environ, **options):
        home, rank = self.job.place, int(environ["DMLC_WORKER_ID"])
        full = {**home.environ, **environ}
        there = self.job.network.namespace(self.job.host("worker", rank)) if self.job.network else None
        try:
            server = fork_servers.get(sys.executable, IMPORTED, full)
            output = [options["stdout"].fileno(), options["stderr"].fileno()]
            child = server.start(command[1:], full, output=output, namespace=there)
        except Refused:
            return super().begin([*self.job.there("worker", rank), *command], environ, **options)
        home.started.append(child)
        return child


def start_worker(job, rank, steps):
    """Of a Job whose environment has ONE_THREAD, or it is not forked."""
    command = [sys.executable, WORKER, str(steps)]
    job.workers.append(Forked(job, f"worker{rank}", command, job.worker_environ(rank)))


def worker_command(place, environ, steps):
    """For bpslaunch with this environment, which has ONE_THREAD: forks a worker."""
    python = fork_servers.get_for_launcher(sys.executable, IMPORTED, {**place.environ, **environ})
    return [*python.command(), WORKER, str(steps)]


class Separate(Training):
    """Without bpslaunch: nobody starts again what was killed. `hosts`, `beside`: as in Job. `tells`: the
    scheduler hears of the end of a worker, as bpslaunch tells it."""

    def __init__(
        self, folder, workers=2, servers=2, steps=150, environ=(), hosts=(), beside=False, server_hosts=(), tells=False
    ):
        """`server_hosts`: the number of the host of each server, where that is another than Job's."""
        environ = {**ENVIRON, **({"BYTEPS_LOCAL_REDUCE": "auto"} if hosts else {}), **dict(environ)}
        self.job = Job(folder, workers, servers, environ, hosts=hosts, beside=beside)
        super().__init__(self.job.size, servers, steps)
        self.place, self.flight = self.job.place, self.job.flight
        self.slots = {}  # of servers that were started for another one's place, by process id
        self._tells = tells
        self._start_scheduler()
        for number in range(servers):
            prefix = self.job.network.on(server_hosts[number]) if server_hosts else []
            self.job.start_server(prefix=prefix, start_new_session=True)
        for rank in range(self.size):
            start_worker(self.job, rank, steps)
        self._tails = [(rank, Tail(worker.out_path)) for rank, worker in enumerate(self.job.workers)]

    def tails(self):
        return self._tails

    @property
    def text(self):
        return "".join(process.err for process in self.job.processes)

    def is_over(self):
        return all(worker.code is not None for rank, worker in enumerate(self.job.workers) if rank not in self.lost)

    def servers(self):
        return [server.pid for server in self.job.servers if server.code is None]

    def scheduler(self):
        return self.job.scheduler.pid

    def _start_scheduler(self):
        arguments, options = ([losses.TELLING], {"stdin": subprocess.PIPE}) if self._tells else ([], {})
        self.job.start_scheduler(arguments=arguments, start_new_session=True, **options)

    def kill_scheduler(self):
        """And starts it again."""
        at_s = self.kill(self.scheduler())
        self.job.scheduler.child.wait()
        self._start_scheduler()
        return at_s

    def kill_worker(self, rank):
        at_s = super().kill_worker(rank)
        if self._tells:
            self.job.workers[rank].child.wait()
            told = losses.Ear(self.job.scheduler.child)
            told.tell(losses.line(rank, "was ended by signal SIGKILL"))
        return at_s

    def restart(self, pid):
        """Starts a server in the place of this one, which was killed."""
        slot = self.slots.get(pid, next(n for n, server in enumerate(self.job.servers) if server.pid == pid))
        self.slots[self.job.start_server({"DMLC_RANK": str(slot)}, start_new_session=True).pid] = slot

    def end(self, calm=None):
        if not wait_until(self.is_over, END_S):
            return [f"it has not ended within {END_S:.0f} s"]
        flaws = self.flaws_of_hashes(calm)
        for rank in self.ranks:
            worker = self.job.workers[rank]
            flaws += [f"worker {rank} ended with {worker.code}"] if worker.code != 0 else []
            flaws += [f"there is {word} in what it said" for word in ("Traceback", "Error:") if word in worker.err]
        left = [what for what in self.place.left(10.0) if "torchinductor" not in what]
        return flaws + ([f"left behind: {left}"] if left else [])

    def story(self):
        return self.job.story("")

    def close(self):
        self.job.close()
