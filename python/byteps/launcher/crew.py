"""Runs a plan: starts its processes, watches them, ends them. No process survives it.

One loop waits for output, for signals and for the next deadline; there are no threads. How it ends:
- all workers ended with 0: servers and scheduler end by themselves within `grace_s`, or are told to. Result 0.
- a process failed: all others get SIGTERM, and SIGKILL after `grace_s`. Result: its exit code, or 128 + its signal.
- SIGINT, SIGTERM or SIGHUP to bpslaunch: the workers get it; when they are gone, or after `grace_s`, all get SIGTERM,
  and SIGKILL after another `grace_s`. A second one: SIGKILL to all at once. Result: 128 + the signal.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from typing import Deque, List, Optional, Tuple

from byteps.launcher import sessions
from byteps.launcher.keeper import Keeper
from byteps.launcher.plan import Plan, Process
from byteps.launcher.screen import Cutter, Label, Screen

SETTLE_S = 0.5  # a server that says "the job failed" waits so long for a worker that says why
LAST_LINES = 10
READ_BYTES = 64 << 10
JOB_FAILED = 1  # exit code of server and scheduler when it was not their fault


class Member:
    """A process of the crew, from its start to the end of all it started."""

    def __init__(self, process: Process, index: int):
        self.process = process
        self.label = Label(process.title, index)
        self.child: Optional[subprocess.Popen] = None
        self.streams: List[Tuple[int, int, Cutter]] = []  # pipe, our descriptor, cutter; open ones
        self.last_lines: Deque[bytes] = deque(maxlen=LAST_LINES)
        self.exit_code: Optional[int] = None  # 128 + n for signal n; None while it runs
        self.ended_s = 0.0
        self.session_lives = True  # it or something it started

    @property
    def is_worker(self) -> bool:
        return self.process.role == "worker"

    @property
    def is_running(self) -> bool:
        return self.exit_code is None


class Crew:
    def __init__(self, plan: Plan, screen: Screen, grace_s: float, has_prefix: bool):
        self._members = [Member(process, index) for index, process in enumerate(plan.processes)]
        self._screen = screen
        self._grace_s = grace_s
        self._has_prefix = has_prefix  # else the processes write to our descriptors themselves
        self._selector = selectors.DefaultSelector()
        self._result: Optional[int] = None  # decided: everything is being ended
        self._steps: List[Tuple[float, int, bool]] = []  # to come: when, signal, to workers only
        self._signal_in, self._signal_out = socket.socketpair()

    def run(self) -> int:
        """Returns the exit code. The calling thread must be the main one."""
        begin_s = time.monotonic()
        keeper = Keeper()
        self._catch_signals()
        try:
            for member in self._members:
                self._start(member, keeper)
            while any(member.session_lives for member in self._members):
                self._wait()
                self._collect(keeper)
                self._decide(time.monotonic())
            if self._result is None:
                self._result = 0
            if self._result == 0:
                self._say(f"all workers ended well after {time.monotonic() - begin_s:.1f} s")
            return self._result
        finally:
            keeper.dismiss()

    # ---- starting

    def _catch_signals(self) -> None:
        self._signal_in.setblocking(False)
        self._signal_out.setblocking(False)
        self._selector.register(self._signal_in, selectors.EVENT_READ, None)
        signal.set_wakeup_fd(self._signal_out.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup stays nohup
                signal.signal(number, lambda *_: None)

    def _start(self, member: Member, keeper: Keeper) -> None:
        process, parent = member.process, os.getpid()

        def before_exec() -> None:
            sessions.die_with_parent(parent)
            if process.cores:
                os.sched_setaffinity(0, process.cores)

        environ = dict(process.environ)
        if self._has_prefix and self._screen.is_terminal():  # progress bars fit behind the prefix
            environ.setdefault("COLUMNS", str(max(20, self._screen.columns() - len(member.label.plain))))
            environ.setdefault("LINES", "24")
        member.child = subprocess.Popen(
            process.command,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if self._has_prefix else None,
            stderr=subprocess.PIPE if self._has_prefix else None,
            start_new_session=True,
            preexec_fn=before_exec,
        )
        keeper.watch(member.child.pid)
        for file, own in ((member.child.stdout, 1), (member.child.stderr, 2)):
            if file is not None:
                os.set_blocking(file.fileno(), False)
                member.streams.append((file.fileno(), own, Cutter()))
                self._selector.register(file.fileno(), selectors.EVENT_READ, member)

    # ---- watching

    def _wait(self) -> None:
        """Until output, a signal, or something is due."""
        now = time.monotonic()
        due = [when for when, _, _ in self._steps]
        for member in self._members:
            if member.exit_code == JOB_FAILED and not member.is_worker and self._result is None:
                due.append(member.ended_s + SETTLE_S)
            if not member.is_running and member.session_lives:
                due.append(now + 0.05)
        timeout_s = max(0.0, min(due) - now) if due else None
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._take_signals()
            else:
                self._pump(key.data, key.fd)

    def _take_signals(self) -> None:
        try:
            numbers = self._signal_in.recv(256)
        except BlockingIOError:
            return
        for number in numbers:
            if number != signal.SIGCHLD:
                self._interrupt(signal.Signals(number))

    def _pump(self, member: Member, only_fd: Optional[int] = None) -> None:
        """Shows what the member has written."""
        for stream in list(member.streams):
            fd, own, cutter = stream
            if only_fd is not None and fd != only_fd:
                continue
            try:
                data = os.read(fd, READ_BYTES)
            except BlockingIOError:
                continue
            for piece in cutter.feed(data) if data else cutter.finish():
                self._show(member, own, piece)
            if not data:
                self._selector.unregister(fd)
                member.streams.remove(stream)

    def _show(self, member: Member, own: int, piece) -> None:
        if not piece.is_progress:
            member.last_lines.append(piece.text)
        try:
            self._screen.show(own, member.label, piece)
        except BrokenPipeError:  # our reader is gone, as with "| head"
            self._finish(128 + signal.SIGPIPE, signal.SIGTERM, workers_first=False)

    def _collect(self, keeper: Keeper) -> None:
        """Who has ended, and whose session is empty."""
        for member in self._members:
            if member.is_running and member.child.poll() is not None:
                code = member.child.returncode
                member.exit_code = code if code >= 0 else 128 - code
                member.ended_s = time.monotonic()
                self._drain(member)
        ended = [m for m in self._members if m.session_lives and not m.is_running]
        alive = sessions.members(m.child.pid for m in ended)
        for member in ended:
            if member.child.pid not in alive:
                member.session_lives = False
                self._drain(member)
                for fd, own, cutter in member.streams:  # held open by a process that left the session
                    self._selector.unregister(fd)
                    for piece in cutter.finish():
                        self._show(member, own, piece)
                member.streams.clear()
                self._screen.release(member.label)
                keeper.forget(member.child.pid)

    def _drain(self, member: Member) -> None:
        """All that is in the pipes now; a pipe holds at most a megabyte, so this ends even if someone goes on writing."""
        for _ in range((1 << 20) // READ_BYTES):
            self._pump(member)

    # ---- deciding

    def _decide(self, now: float) -> None:
        if self._result is None:
            failed = self._failed(now)
            if failed is not None:
                self._report(failed)
                self._finish(failed.exit_code, signal.SIGTERM, workers_first=False)
            elif not any(m.is_running for m in self._members if m.is_worker):
                self._finish(0, None, workers_first=False)
        workers_run = any(m.is_running for m in self._members if m.is_worker)
        while self._steps:
            when, number, workers_only = self._steps[0]
            if when > now and not (number == signal.SIGTERM and not workers_run and self._result != 0):
                break
            self._steps.pop(0)
            targets = [m.child.pid for m in self._members if m.session_lives and (m.is_worker or not workers_only)]
            if self._result == 0:
                self._note_leftovers(number)
            sessions.send(number, targets)
            if not self._steps and number == signal.SIGKILL:
                self._steps.append((now + 0.1, signal.SIGKILL, False))  # a fork may slip through one look

    def _failed(self, now: float) -> Optional[Member]:
        """Whom to blame: the first to fail, but a worker rather than a server that ended because the job failed."""
        failed = [m for m in self._members if m.exit_code]
        if not any(m.is_running for m in self._members if m.is_worker) and not any(m.is_worker for m in failed):
            return None  # all workers ended well: what servers say no longer matters
        own_fault = [m for m in failed if m.is_worker or m.exit_code != JOB_FAILED]
        if own_fault:
            return min(own_fault, key=lambda m: m.ended_s)
        settled = [m for m in failed if now >= m.ended_s + SETTLE_S]
        return min(settled, key=lambda m: m.ended_s) if settled else None

    def _interrupt(self, number: signal.Signals) -> None:
        if self._result is not None and self._result != 0:
            self._say(f"{number.name}: killing what is left")
            self._steps = [(0.0, signal.SIGKILL, False)]
            return
        self._say(f"{number.name}: ending the job")
        self._finish(128 + number, number, workers_first=True)

    def _finish(self, result: int, number: Optional[int], workers_first: bool) -> None:
        """Everything ends with this result. number: what the processes get first; None: they end by themselves."""
        if self._result is not None and result == 128 + signal.SIGPIPE:
            return
        self._result = result
        now = time.monotonic()
        if number is None:
            self._steps = [
                (now + self._grace_s, signal.SIGTERM, False),
                (now + 2 * self._grace_s, signal.SIGKILL, False),
            ]
        elif workers_first:
            self._steps = [
                (now, number, True),
                (now + self._grace_s, signal.SIGTERM, False),
                (now + 2 * self._grace_s, signal.SIGKILL, False),
            ]
        else:
            self._steps = [(now, number, False), (now + self._grace_s, signal.SIGKILL, False)]

    # ---- saying

    def _report(self, member: Member) -> None:
        code = member.exit_code
        how = f"exit code {code}"
        if member.child.returncode < 0:
            how = f"signal {_signal_name(-member.child.returncode)} (exit code {code})"
        self._say(f"{member.process.title} (pid {member.child.pid}) failed with {how}; ending the others")
        if self._has_prefix and member.last_lines:
            self._say("its last lines:")
            for line in member.last_lines:
                self._say("  | " + line.decode(errors="replace"))

    def _note_leftovers(self, number: int) -> None:
        for member in self._members:
            if member.session_lives:
                what = member.process.title if member.is_running else f"something that {member.process.title} started"
                self._say(f"{what} still runs after the workers have ended: {_signal_name(number)}")

    def _say(self, text: str) -> None:
        try:
            self._screen.say(text)
        except OSError:
            pass  # nobody reads standard error any more


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)
