"""A job on loopback for tests: its processes are started one by one, so that a test can stop, kill or cut off any.

    with Job(folder, workers=2, servers=1) as job:
        job.start({"*": [["loop"]]})          # the plan of rank.py
        job.wait_for("looping")
        job.servers[0].kill()
        job.join()                            # all that lives has ended
        job.workers[0].ends                   # [{"name": ..., "code": ..., "message": ..., "t": ...}]

    Job(folder, servers=1, hosts=(2, 1))      # three workers: ranks 0 and 1 on one host, 2 on another (hosts.py)

All that a process writes goes to files below `folder`.
"""

import json
import os
import secrets
import signal
import sys
import time
from pathlib import Path

from hosts import Network, places
from place import BUILD, Place, hold_port, wait_until

RANK = str(Path(__file__).with_name("rank.py"))
FAILURE_S = 3.0  # BYTEPS_FAILURE_TIMEOUT_MS's default
BOUND_S = 2 * FAILURE_S
JOIN_S = 40.0
# Who sums in a job of several workers, which are all on this machine: servers, as if each worker had a machine of its
# own; their relays first; or these alone, without the servers. "mixed": three and more are on two machines in turn.
SUMMING = {"servers": ("0", "1"), "relays": ("auto", "1"), "alone": ("auto", "0"), "mixed": ("auto", "1")}
MODE = os.environ.get("BYTEPS_TEST_SUMMING", "servers")
LOCAL_REDUCE, FORCED = SUMMING[MODE]


class Process:
    """One process of the job."""

    def __init__(self, job, name, command, environ, prefix=(), **options):
        self.name, self.job = name, job
        self.out_path = job.place.folder / f"{name}.out"
        self.err_path = job.place.folder / f"{name}.err"
        with open(self.out_path, "w") as out, open(self.err_path, "w") as err:
            self.child = self.begin([*prefix, *command], environ, **{"stdout": out, "stderr": err, **options})
        self.pid = self.child.pid

    def begin(self, command, environ, **options):
        return self.job.place.start(command, environ, **options)

    @property
    def events(self):
        lines = [line for line in self.out_path.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [json.loads(line) for line in lines if line.startswith("{")]

    def heard(self, event):
        return [each for each in self.events if each["event"] == event]

    @property
    def ends(self):
        return self.heard("end")

    @property
    def failures(self):
        return [end for end in self.ends if end["code"] != 0]

    @property
    def err(self):
        return self.err_path.read_text()

    @property
    def code(self):
        """None while it runs; negative: ended by that signal."""
        return self.child.poll()

    def kill(self):
        return self.send(signal.SIGKILL)

    def stop(self):
        return self.send(signal.SIGSTOP)

    def go_on(self):
        return self.send(signal.SIGCONT)

    def send(self, number):
        """Returns when, on the monotonic clock."""
        now = time.monotonic()
        self.child.send_signal(number)
        return now


class Job:
    """`hosts`: for each host of workers how many there are, or which: (2, 1) or ((0, 2), [1]). The scheduler and the
    servers have another host, unless `beside` is true: then the scheduler is on host 0, and server i beside worker i.
    `places` has the host of each rank. What is on hosts sums as it does by itself, without hosts as SUMMING says."""

    def __init__(self, folder, workers=2, servers=2, environ=(), port=None, hosts=(), beside=False):
        if MODE == "mixed" and workers > 2 and not hosts:
            hosts = (range(0, workers, 2), range(1, workers, 2))
        self.places, self._beside = places(hosts), beside
        workers = len(self.places) or workers
        self.network = Network(len(hosts) + (0 if beside else 1)) if hosts else None
        folder.mkdir(parents=True, exist_ok=True)
        self.place = Place(folder)
        self.size, self.server_count = workers, servers
        self.flight = folder / "flight"
        self.flight.mkdir()
        self._held = hold_port() if port is None else None
        self.port = port or self._held.getsockname()[1]
        self.environ = {
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_PS_ROOT_URI": self.network.address(self._scheduler_host) if self.network else "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(self.port),
            "BYTEPS_JOB_KEY": secrets.token_hex(16),
            "BYTEPS_SERVER_ENGINE_THREAD": "1",
            "BYTEPS_FORCE_DISTRIBUTED": "1" if workers == 1 else FORCED,
            "BYTEPS_LOCAL_REDUCE": "auto" if hosts else LOCAL_REDUCE,
            "BYTEPS_FLIGHT_DIR": str(self.flight),
            "BYTEPS_LOG_LEVEL": "INFO",
            **dict(environ),
        }
        self.scheduler = None
        self.servers, self.workers = [], []

    @property
    def launch_environ(self):
        """For bpslaunch, which says itself where the scheduler is and who is who."""
        return {name: value for name, value in self.environ.items() if not name.startswith("DMLC_")}

    # ---- where

    @property
    def _scheduler_host(self):
        return 0 if self._beside else max(self.places) + 1

    def host(self, role, rank):
        """The number of the host that it is on, where there are hosts."""
        if role == "worker" or (role == "server" and self._beside):
            return self.places[rank % len(self.places)]
        return self._scheduler_host

    def there(self, role, rank=0):
        """What is put before its command to run it on its host."""
        if not self.network:
            return []
        self.network.make()
        return self.network.on(self.host(role, rank))

    # ---- starting

    def start(self, plan):
        self.start_services()
        for rank in range(self.size):
            self.start_worker(rank, plan)
        return self

    def start_services(self, **options):
        self.start_scheduler(**options)
        for _ in range(self.server_count):
            self.start_server(**options)

    def start_scheduler(self, environ=(), prefix=(), arguments=(), **options):
        full = {**self.environ, **dict(environ)}
        prefix = [*self.there("scheduler"), *prefix]
        command = [self.place.executable("scheduler"), *arguments]
        self.scheduler = Process(self, "scheduler", command, full, prefix, **options)
        return self.scheduler

    def start_server(self, environ=(), prefix=(), **options):
        name = f"server{len(self.servers)}"
        full = {**self.environ, "DMLC_RANK": str(len(self.servers)), **dict(environ)}
        prefix = [*self.there("server", len(self.servers)), *prefix]
        self.servers.append(Process(self, name, [self.place.executable("server")], full, prefix, **options))
        return self.servers[-1]

    def start_worker(self, rank, plan, environ=(), prefix=(), **options):
        return self.start_program(rank, [sys.executable, RANK, json.dumps(plan)], environ, prefix, **options)

    def start_checked(self, rank, *arguments, environ=(), prefix=(), **options):
        """A plain C worker that checks every element of every sum (checked_worker.c)."""
        command = [BUILD / "bin/checked_worker", *arguments]
        return self.start_program(rank, command, environ, prefix, **options)

    def start_program(self, rank, command, environ=(), prefix=(), **options):
        """A worker that is this command."""
        full = {**self.worker_environ(rank), **dict(environ)}
        prefix = [*self.there("worker", rank), *prefix]
        self.workers.append(Process(self, f"worker{len(self.workers)}", command, full, prefix, **options))
        return self.workers[-1]

    def worker_environ(self, rank):
        return {**self.environ, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": str(rank)}

    # ---- waiting

    @property
    def processes(self):
        return [p for p in (self.scheduler, *self.servers, *self.workers) if p is not None]

    def wait_for(self, event, workers=None, timeout_s=JOIN_S):
        workers = self.workers if workers is None else workers

        def all_heard():
            for worker in workers:
                assert worker.code is None or worker.heard(event), self.story(f"{worker.name} ended before {event!r}")
            return all(worker.heard(event) for worker in workers)

        assert wait_until(all_heard, timeout_s), self.story(f"no {event!r}")

    def wait_for_steps(self, after_s, timeout_s=JOIN_S):
        """Until every worker's loop has come to a step after that time, in sums with all others: they go on."""

        def all_went_on():
            for process in self.processes:
                assert process.code is None, self.story(f"{process.name} has ended")
            return all(any(step["t"] > after_s for step in worker.heard("step")) for worker in self.workers)

        assert wait_until(all_went_on, timeout_s), self.story("the job does not go on")

    def join(self, but=(), timeout_s=JOIN_S):
        """Waits until all have ended, apart from those in `but`."""
        waited = [p for p in self.processes if p not in but]
        assert wait_until(lambda: all(p.code is not None for p in waited), timeout_s), self.story("not all have ended")

    # ---- judging

    def check_end(self, began_s, workers, words, bound_s=BOUND_S):
        """Every handle that was pending on these workers ended in time, with an error that has one of the texts of
        `words` (a text is a list of words that must all be there); the process ended with 1."""
        for worker in workers:
            assert worker.failures, self.story(f"{worker.name} has no error")
            for end in worker.failures:
                late_s = end["t"] - began_s
                assert late_s <= bound_s, self.story(f"{worker.name}: {end['name']} ended after {late_s:.1f} s")
                assert any(all(word in end["message"] for word in text) for text in words), self.story(
                    f"{worker.name}: {end['message']!r} has none of {words}"
                )
            assert worker.code == 1, self.story(f"{worker.name} ended with {worker.code}")

    def check_cause(self, role, rank, *words):
        """`bps why` names this process, with these words, from what the processes have left. `rank`: or a set, and one
        of those."""
        # Not above: in workers of a Cluster tests say when byteps is imported.
        from byteps.recordings import first_cause

        verdict = first_cause.explain(self.flight)
        told = self.story("\n".join(["bps why:", *first_cause.summary(verdict), *verdict.evidence]))
        assert verdict.is_found and verdict.role == role, told
        assert verdict.rank in (rank if isinstance(rank, set) else {rank}), told
        for word in words:
            assert word in verdict.cause, told

    def check_nothing_is_left(self, wait_s=1.0):
        left = self.place.left(wait_s)
        assert left == [], self.story(f"left: {left}")

    def story(self, text):
        """`text` and what all processes wrote, for the message of a failed assertion."""
        parts = [text]
        for process in self.processes:
            parts.append(f"---- {process.name} (pid {process.pid}): exit code {process.code}")
            parts.append("\n".join(process.out_path.read_text().splitlines()[-30:]))
            parts.append("\n".join(process.err.splitlines()[-30:]))
        return "\n".join(parts)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
        for name in os.listdir(self.place.temporary):
            print(f"left behind: {name}", file=sys.stderr)

    def close(self):
        """Ends what still runs, by force."""
        if self._held is not None:
            self._held.close()
        for process in self.processes:
            if process.code is None:
                process.go_on()
        self.place.close()
        if self.network:
            self.network.remove()
