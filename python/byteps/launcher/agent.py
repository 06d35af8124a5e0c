"""python -m byteps.launcher.agent: what bpslaunch --hosts runs on each host, over ssh. bps doctor runs one that answers
questions of its own as well (byteps/tools/doctor_agent.py).

It does what it is told on its standard input, one JSON message a line, and ends all that it started when that input
ends: when bpslaunch ends, when it is killed, when the connection breaks, or when nothing is said for a minute
(frames.py). The job key comes this way too, so it is in no command line and in no environment.

Messages: "start" (at most once), "again", "signal", "tell" (a line for a scheduler's standard input), "ask", "forget"
(what flight recorders left: the job ended well), "alive".
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional

from byteps.launcher import cores, frames, losses, plan, sessions
from byteps.launcher.environment import BadEnvironment
from byteps.launcher.frames import Kind
from byteps.launcher.keeper import Keeper
from byteps.launcher.key import JobKey
from byteps.launcher.recordings import Recordings

READ_BYTES = 64 << 10
BACKLOG_BYTES_MAX = 1 << 20  # of output that bpslaunch has not taken; then processes wait
LINE_BYTES_MAX = 16 << 20
EXIT_USAGE, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 2, 126, 127

Questions = Mapping[str, Callable[..., Any]]  # what an "ask" may name; each returns plain data


class Runner:
    """One process that was started here."""

    def __init__(self, number: int, child: "subprocess.Popen[bytes]"):
        self.number = number
        self.child = child
        self.stdout, self.stderr = sessions.outputs(child)
        self.open_files: List[int] = []
        self.is_running = True


class Agent:
    """questions: what it is asked beside its own, by who starts it."""

    def __init__(self, questions: Optional[Questions] = None) -> None:
        self._keeper = Keeper()  # first: it must hold none of what follows
        self._questions: Dict[str, Callable[..., Any]] = {"port": self._hold_port, "recordings": self._pack_recordings}
        self._questions.update(questions or {})
        self._selector = selectors.DefaultSelector()
        self._input = bytearray()
        self._output = bytearray(frames.BANNER)
        self._runners: List[Runner] = []
        self._key: Optional[JobKey] = None
        self._held: Optional[socket.socket] = None
        self._recordings: Optional[Recordings] = None
        self._heard_s = time.monotonic()
        self._is_ended = False
        self._paused = False
        self._processes: List[plan.Process] = []  # by number
        self._ears: Dict[int, losses.Ear] = {}  # likewise, of those that hear

    def run(self) -> None:
        for descriptor in (0, 1):
            os.set_blocking(descriptor, False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        self._selector.register(0, selectors.EVENT_READ, None)
        self._say_json(Kind.HELLO, 0, hello())
        try:
            while not self._is_ended:
                self._turn()
        finally:
            self._keeper.dismiss()  # ends what still runs
            if self._recordings is not None:
                self._recordings.forget_if_empty()

    def _on_signal(self, *_: Any) -> None:
        self._is_ended = True

    def _turn(self) -> None:
        self._flush()
        timeout_s = 0.05 if any(not runner.is_running for runner in self._runners) else 0.5
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._take_input()
            elif key.data != "output":
                self._relay(key.data, key.fd)
        self._collect()
        self._keeper.tend()
        for ear in self._ears.values():
            ear.flush()
        if time.monotonic() > self._heard_s + frames.SILENCE_S:
            self._is_ended = True

    # ---- to and from bpslaunch

    def _take_input(self) -> None:
        try:
            data = os.read(0, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._is_ended = True
            return
        self._heard_s = time.monotonic()
        self._input += data
        while b"\n" in self._input:
            line, _, rest = bytes(self._input).partition(b"\n")
            self._input = bytearray(rest)
            self._obey(json.loads(line))
        if len(self._input) > LINE_BYTES_MAX:
            self._is_ended = True

    def _obey(self, message: Dict[str, Any]) -> None:
        if "start" in message:
            self._start_all(message["start"])
        elif "again" in message:
            self._start_again(message["again"], message["attempt"])
        elif "signal" in message:
            chosen = set(message["to"])
            sessions.send(message["signal"], [r.child.pid for r in self._runners if r.number in chosen])
        elif "tell" in message:
            if message["tell"] in self._ears:  # or it could not be started
                self._ears[message["tell"]].tell(message["line"])
        elif "forget" in message and self._recordings is not None:
            self._recordings.forget()
        elif "ask" in message:
            self._say_json(Kind.REPLY, 0, self._questions[message["ask"]](**message.get("with", {})))

    def _hold_port(self) -> int:
        self._held = plan.hold_free_port("")
        return int(self._held.getsockname()[1])

    def _pack_recordings(self) -> Dict[str, Any]:
        return self._recordings.pack() if self._recordings is not None else {"files": {}}

    def _say(self, kind: Kind, process: int, body: bytes = b"") -> None:
        self._output += frames.encode(kind, process, body)

    def _say_json(self, kind: Kind, process: int, value: Any) -> None:
        self._output += frames.encode_json(kind, process, value)

    def _flush(self) -> None:
        while self._output:
            try:
                written = os.write(1, self._output[:READ_BYTES])
            except BlockingIOError:
                break
            except OSError:
                self._is_ended = True
                return
            del self._output[:written]
        waits = 1 in self._selector.get_map()
        if self._output and not waits:
            self._selector.register(1, selectors.EVENT_WRITE, "output")
        elif not self._output and waits:
            self._selector.unregister(1)
        self._pause(len(self._output) > BACKLOG_BYTES_MAX)

    def _pause(self, pause: bool) -> None:
        """Leaves the output of processes where it is while bpslaunch does not take it."""
        if pause == self._paused:
            return
        self._paused = pause
        for runner in self._runners:
            for fd in runner.open_files:
                if pause:
                    self._selector.unregister(fd)
                else:
                    self._selector.register(fd, selectors.EVENT_READ, runner)

    # ---- processes

    def _start_all(self, job: Dict[str, Any]) -> None:
        try:
            os.chdir(job["folder"])
        except OSError as error:
            return self._refuse(0, EXIT_NOT_FOUND, f"the folder {job['folder']} cannot be entered: {error.strerror}")
        base = {name: value for name, value in os.environ.items() if name not in plan.IDENTITY}
        base.update(job["environ"])
        self._key = JobKey(job["key"])
        base.update(BYTEPS_JOB_KEY_FILE=self._key.path, PYTHONUNBUFFERED="1")
        self._recordings = Recordings({**base, **job["processes"][0]["environ"]})
        if self._recordings.folder is not None:
            base.setdefault("BYTEPS_FLIGHT_DIR", str(self._recordings.folder))
        processes: List[plan.Process] = []
        try:
            for process in prepare(job["processes"], base):
                processes.append(process)
        except BadEnvironment as error:
            return self._refuse(len(processes), EXIT_USAGE, str(error))
        except plan.NotExecutable as error:
            return self._refuse(len(processes), EXIT_NOT_EXECUTABLE, str(error))
        except plan.CannotStart as error:
            return self._refuse(len(processes), EXIT_NOT_FOUND, str(error))
        self._processes = processes
        for number, process in enumerate(processes):
            try:
                self._start(number, process)
            except OSError as error:
                return self._refuse(number, EXIT_NOT_EXECUTABLE, f"cannot start {process.command[0]}: {error}")

    def _start_again(self, former: int, attempt: int) -> None:
        """What was ended by a signal, under the next number."""
        process = self._processes[former].again(attempt)
        number = len(self._processes)
        self._processes.append(process)
        try:
            self._start(number, process)
        except OSError as error:
            self._refuse(number, EXIT_NOT_EXECUTABLE, f"cannot start {process.command[0]}: {error}")

    def _refuse(self, number: int, code: int, text: str) -> None:
        self._say_json(Kind.CANNOT_START, number, {"code": code, "text": text})

    def _start(self, number: int, process: plan.Process) -> None:
        parent = os.getpid()

        def before_exec() -> None:
            self._keeper.watch_self()
            sessions.die_with_parent(parent)
            if process.cores:
                os.sched_setaffinity(0, process.cores)

        child = subprocess.Popen(
            process.command,
            env=process.environ,
            stdin=losses.input_for(process.hears_losses),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=before_exec,
        )
        self._keeper.watch(child.pid)
        runner = Runner(number, child)
        for file in (runner.stdout, runner.stderr):
            os.set_blocking(file.fileno(), False)
            runner.open_files.append(file.fileno())
            self._selector.register(file.fileno(), selectors.EVENT_READ, runner)
        self._runners.append(runner)
        if process.hears_losses:
            self._ears[number] = losses.Ear(child)
        self._say_json(Kind.STARTED, number, {"pid": child.pid})

    def _relay(self, runner: Runner, fd: int) -> bool:
        """Whether there was something."""
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return False
        if data:
            own = 1 if fd == runner.stdout.fileno() else 2
            self._say(Kind.OUTPUT, runner.number, bytes([own]) + data)
            return True
        self._close_file(runner, fd)
        return False

    def _close_file(self, runner: Runner, fd: int) -> None:
        runner.open_files.remove(fd)
        if not self._paused:
            self._selector.unregister(fd)

    def _collect(self) -> None:
        for runner in self._runners:
            if runner.is_running and runner.child.poll() is not None:
                runner.is_running = False
                self._drain(runner)
                self._say_json(Kind.EXIT, runner.number, {"code": runner.child.returncode})
        ended = [runner for runner in self._runners if not runner.is_running]
        alive = sessions.members(runner.child.pid for runner in ended)
        for runner in [each for each in ended if each.child.pid not in alive]:
            self._drain(runner)
            for fd in list(runner.open_files):  # held open by a process that left the session
                self._close_file(runner, fd)
            self._keeper.forget(runner.child.pid)
            self._runners.remove(runner)
            self._say(Kind.GONE, runner.number)

    def _drain(self, runner: Runner) -> None:
        """All that is in the pipes now: at most a megabyte each, so this ends even if someone goes on writing."""
        for fd in list(runner.open_files):
            for _ in range((1 << 20) // READ_BYTES):
                if not self._relay(runner, fd):
                    break


def hello() -> Dict[str, Any]:
    from byteps import __version__

    return {"version": __version__, "pid": os.getpid(), "host": socket.gethostname()}


def prepare(wanted: List[Mapping[str, Any]], base: Mapping[str, str]) -> Iterator[plan.Process]:
    """One by one what bpslaunch wants to run here, with the programs and cores that this host has."""
    core_count = len(os.sched_getaffinity(0))
    worker_count = sum(process["role"] == "worker" for process in wanted)
    server_count = sum(process["role"] == "server" for process in wanted)
    common = {**base, **wanted[0]["environ"]} if wanted else base
    bound = cores.bind(worker_count, server_count, common)
    free = {"worker": iter(bound.workers), "server": iter(bound.servers)}
    for process in wanted:
        environ = {**base, **process["environ"]}
        chosen = next(free[process["role"]]) if process["role"] in free else None
        if process["role"] == "worker":
            environ.setdefault("OMP_NUM_THREADS", str(bound.worker_threads(core_count)))
            command = plan.find_command(process["command"], environ)
        else:
            if process["role"] == "server":
                environ.setdefault("BYTEPS_SERVER_ENGINE_THREAD", str(bound.server_loops(core_count)))
            command = [plan.find_executable(process["role"], environ)]
        hears_losses = bool(process.get("hears_losses"))
        if hears_losses:
            command = plan.scheduler_command(command[0], hears_losses)
        command = plan.with_gdb(command, environ)
        yield plan.Process(process["role"], process["rank"], command, environ, chosen, hears_losses=hears_losses)


def main(questions: Optional[Questions] = None) -> int:
    if os.isatty(0):
        print("this agent is started by bpslaunch --hosts or bps doctor --hosts", file=sys.stderr)
        return EXIT_USAGE
    Agent(questions).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
