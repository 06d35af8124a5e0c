"""Runs a plan: starts its processes, here or on other hosts, watches them, ends them. No process survives it.

One loop waits for output, for signals and for the next deadline; there are no threads. How it ends:
- all workers ended with 0: servers and scheduler end by themselves within `grace_s`, or are told to. Result 0.
- a server or the scheduler was killed, and the job survives that (BYTEPS_RECOVERY): it is started again (restarts.py).
- our keeper was killed: another one is started (keeper.py).
- a worker was lost, and the job goes on without it (losses.py): the scheduler is told at once. Result: that of the
  others. What else was lost with a host is not missed either, but for the scheduler. No worker is left: a failure.
- another process failed: the workers get SIGTERM. Result: the exit code of who failed, or 128 + its signal.
- SIGINT, SIGTERM or SIGHUP to bpslaunch: the workers get it. Result: 128 + the signal. A second one: SIGKILL to all.
In both cases all get SIGTERM when the workers are gone, or after `grace_s`, and SIGKILL after another `grace_s`.
A host whose link is lost counts as the failure, or the loss, of all that ran there; its agent ends them.
While nobody reads our own output (a pager, Ctrl-S), we go on: with signals, with ends, and with saying to other hosts
that we are here. Only the output of the processes is left where it is once OUTPUT_BYTES_MAX wait, so that they wait for
the reader as they would without us. Once a job is being ended that has failed, everything is read; of that, what is
above LAST_OUTPUT_BYTES_MAX is not shown.
The scheduler is told last, because a server that is told to stop takes leave of it. (Where the job survives the loss of
a server, servers get SIGINT, which means that the job is over; after SIGTERM they would wait until others have their
places.) What servers and scheduler say
once the result is decided is not shown: the loss of the others is no news then.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from typing import Any, Callable, Deque, Dict, FrozenSet, List, NamedTuple, Optional, Sequence, Tuple

from byteps.launcher import losses, sessions
from byteps.launcher.frames import Frame, Kind
from byteps.launcher.keeper import Keeper
from byteps.launcher.link import SSH_FAILED, Link
from byteps.launcher.losses import Ear
from byteps.launcher.outlet import Outlet
from byteps.launcher.plan import Plan, Process
from byteps.launcher.restarts import Restarts, signal_in
from byteps.launcher.screen import Cutter, Label, Piece, Screen

SETTLE_S = 0.5  # a server that says "the job failed" waits so long for a worker that says why
LAST_LINES = 10
READ_BYTES = 64 << 10
OUTPUT_BYTES_MAX = 1 << 20  # that waits for our reader; then we read no more
LAST_OUTPUT_BYTES_MAX = 4 << 20  # the same once a failed job is being ended, when we must read; lines are left out
KILLED_WITHIN_S = 5.0  # another host has so long to say that what it was to kill is gone
LINK_TICK_S = 1.0
EAR_TICK_S = 0.05
NOT_STARTED = 126  # exit code where the system refuses to start a process once more
JOB_FAILED = 1  # exit code of server and scheduler when it was not their fault
REPLACED = 4  # of a server or a scheduler that was lost for a while: another one has, or had, its place


WORKERS = frozenset(["worker"])
SERVERS = frozenset(["server"])
HELD_BY_SCHEDULER = frozenset(["worker", "server"])
ALL = frozenset(["worker", "server", "scheduler"])


Order = Tuple[Link, Dict[str, Any]]  # what the agent at the other end is told to start


class Step(NamedTuple):
    """A signal to come, on the way to the end."""

    when_s: float
    number: int
    roles: FrozenSet[str]
    after: FrozenSet[str] = frozenset()  # due early when no process of these roles runs any more


class Member:
    """A process of the crew, from its start to the end of all it started."""

    def __init__(self, process: Process, index: int, has_prefix: bool):
        self.process = process
        self.index = index  # of its color
        self.label = Label(process.title if has_prefix or not self.is_worker else "", index)
        self.child: "Optional[subprocess.Popen[bytes]]" = None  # here
        self.streams: List[Tuple[int, int, Cutter]] = []  # pipe, our descriptor, cutter; open ones
        self.cutters = {1: Cutter(), 2: Cutter()}  # on another host: by descriptor
        self.pid = 0  # on the host that runs it
        self.number = 0  # on another host: its place in what that host was told to start
        self.trouble = ""  # on another host: why it could not start or is out of sight
        self.end_kind = ""  # how it ended; see end()
        self.last_lines: Deque[bytes] = deque(maxlen=LAST_LINES)
        self.signal_number = 0  # that ended it
        self.exit_code: Optional[int] = None  # 128 + n for signal n; None while it runs
        self.started_s = time.monotonic()
        self.ended_s = 0.0
        self.told_s = 0.0  # when we first sent it a signal
        self.is_replaced = False  # another was started in its place
        self.is_given_up = False  # it is not started again
        self.is_missed = False  # lost, and the job goes on without it
        self.ear: Optional[Ear] = None  # here
        self.session_lives = True  # it or something it started

    def end(self, code: int, trouble: str = "", kind: str = "") -> None:
        """code: as subprocess has it, negative for a signal. kind: "exited" or "killed" if it is not given; with
        trouble "host_lost" or "not_started"."""
        self.trouble = trouble
        self.signal_number = max(0, -code) if code < 0 or kind else signal_in(self.process.role, code)
        self.end_kind = kind or ("killed" if self.signal_number else "exited")
        self.exit_code = code if code >= 0 else 128 - code
        self.ended_s = time.monotonic()

    @property
    def title(self) -> str:
        link = self.process.link
        return self.process.title + (f" on {link.host.name}" if link else "")

    @property
    def is_worker(self) -> bool:
        return self.process.role == "worker"

    @property
    def is_lost(self) -> bool:
        """It has not ended by its own fault, and its like may go on."""
        is_behind = not self.is_worker and self.exit_code == REPLACED
        return not self.is_given_up and (self.end_kind == "killed" or is_behind)

    @property
    def is_running(self) -> bool:
        return self.exit_code is None

    @property
    def may_be_missed(self) -> bool:
        """It has ended, and in a way that a job survives which goes on without workers that are lost."""
        if self.is_running or self.process.role == "scheduler":
            return False
        is_loss = self.is_worker and (self.end_kind == "killed" or self.exit_code == losses.EXIT_REPLACED)
        return is_loss or self.end_kind == "host_lost"

    @property
    def how_lost(self) -> str:
        """Behind its name. For one that is_missed."""
        if self.signal_number:
            return f"was ended by signal {sessions.signal_name(self.signal_number)}"
        if self.process.link is not None and self.end_kind == "host_lost":
            return f"was lost with its host {self.process.link.host.name}: {self.process.link.lost}"
        return f"was away for too long, and ended with exit code {self.exit_code}"


class Crew:
    def __init__(self, plan: Plan, screen: Screen, grace_s: float, has_prefix: bool):
        self._members = [Member(process, index, has_prefix) for index, process in enumerate(plan.processes)]
        self._remote: Dict[Link, List[Member]] = {}
        for member in self._members:
            if member.process.link is not None:
                there = self._remote.setdefault(member.process.link, [])
                member.number = len(there)
                there.append(member)
        self._kill_s: Optional[float] = None  # when SIGKILL was first sent
        self._screen = screen
        self._grace_s = grace_s
        self._selector = selectors.DefaultSelector()
        self._result: Optional[int] = None  # decided: everything is being ended
        self._decided_s = 0.0  # when
        self.interrupted_by: Optional[signal.Signals] = None
        self._steps: List[Step] = []
        self._services_are_muted = False
        self._is_paused = False  # the output of processes is not read
        self._left_out = 0  # lines that nobody read in time
        self._has_prefix = has_prefix
        self._restarts = Restarts()
        self._goes_on = any(losses.goes_on(process.environ) for process in plan.processes)
        self._told: List[str] = []  # what schedulers were told of losses
        self._signal_in, self._signal_out = socket.socketpair()

    def run(self, keeper: Optional[Keeper] = None, orders: Sequence[Order] = ()) -> int:
        """Returns the exit code. The calling thread must be the main one. orders: what the agents are told to start."""
        begin_s = time.monotonic()
        is_own_keeper = keeper is None
        keeper = keeper or Keeper()
        self._catch_signals()
        try:
            for link, order in orders:
                link.register(self._selector)
                link.send(order)
            for member in self._members:
                if member.process.link is None:
                    self._start(member, keeper)
            while any(member.session_lives for member in self._members):
                self._wait()
                self._collect(keeper)
                self._tend(keeper)
                self._note_losses()
                self._restart(keeper)
                self._decide(time.monotonic())
            if self._result is None:
                self._result = 0
            if self._left_out:
                self._say(f"{self._left_out} lines of output are left out above: nobody read them in time")
            if self._result == 0:
                who = "all other workers" if self._lost() else "all workers"
                self._say(f"{who} ended well after {time.monotonic() - begin_s:.1f} s")
            has_gone_on = self._result == 0 or self.interrupted_by is not None
            self._say_lost(self._lost(), "the job went on without it" if has_gone_on else "")
            return self._result
        finally:
            signal.set_wakeup_fd(-1)
            if is_own_keeper:
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
            keeper.watch_self()
            sessions.die_with_parent(parent)
            if process.cores:
                os.sched_setaffinity(0, process.cores)

        environ = dict(process.environ)
        if self._screen.is_terminal():  # progress bars fit behind the prefix
            environ.setdefault("COLUMNS", str(max(20, self._screen.columns() - len(member.label.plain))))
            environ.setdefault("LINES", "24")
        member.child = subprocess.Popen(
            process.command,
            env=environ,
            stdin=losses.input_for(process.hears_losses),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=before_exec,
        )
        member.pid = member.child.pid
        if process.hears_losses:
            member.ear = Ear(member.child)
        keeper.watch(member.pid)
        for own, file in enumerate(sessions.outputs(member.child), 1):
            os.set_blocking(file.fileno(), False)
            member.streams.append((file.fileno(), own, Cutter()))
            self._selector.register(file.fileno(), selectors.EVENT_READ, member)

    def _tend(self, keeper: Keeper) -> None:
        said = keeper.tend()
        if said:
            self._say(said)

    def _restart(self, keeper: Keeper) -> None:
        """Starts again what was killed and is to be there."""
        for member in list(self._members):
            process = member.process
            is_lost = member.is_lost and not member.is_replaced
            if not is_lost or self._result is not None or not Restarts.are_wanted(process.role, process.environ):
                continue
            name = (process.role, process.rank)
            attempt = self._restarts.attempt(name, member.started_s, member.ended_s)
            if attempt == 0:
                self._say(f"{member.title} is not started again: {self._restarts.why_not(name)}")
                member.is_given_up = True  # as any other failure
                continue
            how = "was ended by" if member.signal_number else "was replaced and ended with"
            self._say(f"{member.title} (pid {member.pid}) {how} {_how(member)}: it is started again")
            member.is_replaced = True
            fresh = Member(process.again(attempt), member.index, self._has_prefix)
            self._members.append(fresh)
            if process.link is None:
                self._start_again(fresh, keeper)
            else:
                there = self._remote[process.link]
                fresh.number = len(there)
                there.append(fresh)
                process.link.send({"again": member.number, "attempt": attempt})
            for line in self._told:
                self._tell(fresh, line)

    def _start_again(self, member: Member, keeper: Keeper) -> None:
        try:
            self._start(member, keeper)
        except OSError as error:  # no more processes, no memory: a failure as on another host
            member.end(NOT_STARTED, f"cannot be started again: {error.strerror}", "not_started")
            member.session_lives = False

    # ---- losses

    def _note_losses(self) -> None:
        """Who was lost, where the job goes on."""
        if not self._goes_on or self._result is not None:
            return
        if any(m.process.role == "scheduler" and m.end_kind == "host_lost" for m in self._members):
            return  # none can be started at its address: all that was there has failed
        fresh = [m for m in self._members if m.may_be_missed and not (m.is_missed or m.is_replaced)]
        for member in fresh:
            member.is_missed = True
            if member.is_worker and member.process.rank is not None:
                self._told.append(losses.line(member.process.rank, member.how_lost))
                for each in self._members:
                    if each.is_running:
                        self._tell(each, self._told[-1])
        self._send(signal.SIGKILL, [member for member in fresh if member.session_lives])  # what it has started
        if self._runs(WORKERS):
            self._say_lost(fresh, "the job goes on without it")

    def _tell(self, scheduler: Member, line: str) -> None:
        process = scheduler.process
        if not process.hears_losses:
            return
        if process.link is not None:
            process.link.send({"tell": scheduler.number, "line": line})
        elif scheduler.ear is not None:
            scheduler.ear.tell(line)

    def _lost(self) -> List[Member]:
        return [member for member in self._members if member.is_missed]

    def _has_survivors(self) -> bool:
        return any(member.is_worker and not member.is_missed for member in self._members)

    def _say_lost(self, lost: Sequence[Member], outcome: str) -> None:
        """A line for each, and one for all that was lost with a host."""
        ending = f"; {outcome}" if outcome else ""
        by_host: Dict[Link, List[Member]] = {}
        for member in lost:
            link = member.process.link
            if link is not None and member.end_kind == "host_lost":
                by_host.setdefault(link, []).append(member)
            else:
                how = member.how_lost.replace("was ", "", 1)
                self._say(f"{member.title} (pid {member.pid}) was lost: {how}{ending}")
        for link, members in by_host.items():
            who = " and ".join(member.process.title for member in members)
            self._say(f"host {link.host.name} was lost with {who}: {link.lost}{ending}")

    # ---- watching

    def _wait(self) -> None:
        """Until output, a signal, or something is due."""
        self._heed_reader()
        now = time.monotonic()
        due = [step.when_s for step in self._steps]
        for member in self._members:
            if member.exit_code == JOB_FAILED and not member.is_worker and self._result is None:
                due.append(member.ended_s + SETTLE_S)
            if not member.is_running and member.session_lives:
                due.append(now + 0.05)
        if self._remote:
            due.append(now + LINK_TICK_S)
        for member in self._members:
            if member.ear is not None and member.ear.waits:
                due.append(now + EAR_TICK_S)
        timeout_s = max(0.0, min(due) - now) if due else None
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                self._take_signals()
            elif isinstance(key.data, Outlet):
                self._put(key.data.flush)
            elif isinstance(key.data, Link):
                for frame in key.data.serve(key.fd):
                    self._hear(key.data, frame)
            else:
                self._pump(key.data, key.fd)
        for link in self._remote:
            link.tick()
        for member in self._members:
            if member.ear is not None:
                member.ear.flush()

    def _heed_reader(self) -> None:
        """Writes when our reader takes something, and pauses when it takes too little."""
        watched = self._selector.get_map()
        for outlet in self._screen.outlets:
            waits = outlet.fileno() in watched
            if outlet.waiting_bytes > 0 and not waits:
                self._selector.register(outlet, selectors.EVENT_WRITE, outlet)
            elif outlet.waiting_bytes == 0 and waits:
                self._selector.unregister(outlet)
        limit = OUTPUT_BYTES_MAX // 2 if self._is_paused else OUTPUT_BYTES_MAX
        pause = self._result is None and self._screen.waiting_bytes > limit
        if pause != self._is_paused:
            self._is_paused = pause
            for member in self._members:
                for fd, _, _ in member.streams:
                    self._heed(fd, not pause, member)
        for link in self._remote:
            link.pause(pause and not link.is_cut_off())  # that is seen all the same

    def _heed(self, fd: int, heed: bool, member: Optional[Member] = None) -> None:
        is_heeded = fd in self._selector.get_map()
        if heed and not is_heeded:
            self._selector.register(fd, selectors.EVENT_READ, member)
        elif is_heeded and not heed:
            self._selector.unregister(fd)

    def _take_signals(self) -> None:
        try:
            numbers = self._signal_in.recv(256)
        except BlockingIOError:
            return
        for number in numbers:
            if number != signal.SIGCHLD:
                self._interrupt(signal.Signals(number))

    def _hear(self, link: Link, frame: Frame) -> None:
        """What an agent says of a process."""
        if frame.process >= len(self._remote[link]):
            return link.end(f"its agent speaks of process {frame.process}, which it was not told to start")
        member = self._remote[link][frame.process]
        if frame.kind == Kind.OUTPUT:
            own = 1 if frame.body[:1] == b"\1" else 2
            for piece in member.cutters[own].feed(frame.body[1:]):
                self._show(member, own, piece)
        elif frame.kind == Kind.STARTED:
            member.pid = frame.json()["pid"]
        elif frame.kind == Kind.EXIT:
            member.end(frame.json()["code"])
        elif frame.kind == Kind.GONE:
            self._release(member)
        elif frame.kind == Kind.CANNOT_START:
            trouble = frame.json()
            member.end(trouble["code"], trouble["text"], "not_started")
            for each in self._remote[link]:  # those that were started before it are ended with the rest
                if each.pid == 0:
                    each.session_lives = False
                    if each.is_running:
                        each.end(trouble["code"], kind="not_started")

    def _lose(self, link: Link) -> None:
        """What ran behind a link that is lost is out of sight; its agent ends it."""
        for member in self._remote[link]:
            if member.is_running:
                member.end(SSH_FAILED, f"lost the connection to {link.host.name}: {link.lost}", "host_lost")
            if member.session_lives:
                self._release(member)

    def _release(self, member: Member) -> None:
        member.session_lives = False
        for own, cutter in member.cutters.items():
            for piece in cutter.finish():
                self._show(member, own, piece)
        self._screen.release(member.label)

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
                self._heed(fd, False)
                member.streams.remove(stream)

    def _show(self, member: Member, own: int, piece: Piece) -> None:
        if not piece.is_progress:
            member.last_lines.append(piece.text)
        if self._services_are_muted and not member.is_worker:
            return
        if self._result and self._screen.waiting_bytes > LAST_OUTPUT_BYTES_MAX:
            self._left_out += 1
            return
        self._put(lambda: self._screen.show(own, member.label, piece))

    def _put(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BrokenPipeError:  # our reader is gone, as with "| head"
            if self._result is None:
                self._finish(128 + signal.SIGPIPE, signal.SIGTERM)

    def _collect(self, keeper: Keeper) -> None:
        """Who has ended, and whose session is empty."""
        for link in self._remote:
            if link.lost is not None:
                self._lose(link)
        here = [m for m in self._members if m.process.link is None]
        for member in here:
            code = member.child.poll() if member.is_running and member.child is not None else None
            if code is not None:
                member.end(code)
                self._drain(member)
        ended = [m for m in here if m.session_lives and not m.is_running]
        alive = sessions.members(m.pid for m in ended)
        for member in ended:
            if member.pid not in alive:
                self._drain(member)
                for fd, own, cutter in member.streams:  # held open by a process that left the session
                    self._heed(fd, False)
                    for piece in cutter.finish():
                        self._show(member, own, piece)
                member.streams.clear()
                self._release(member)
                keeper.forget(member.pid)

    def _drain(self, member: Member) -> None:
        """All that is in the pipes now: at most a megabyte each, so this ends even if someone goes on writing."""
        for _ in range((1 << 20) // READ_BYTES):
            self._pump(member)

    # ---- deciding

    def _decide(self, now: float) -> None:
        if self._result is None:
            failed = self._failed(now)
            if failed is not None and failed.exit_code is not None:
                self._report(failed)
                self._finish(failed.exit_code, signal.SIGTERM)
            elif not self._runs(WORKERS):
                self._finish(*self._end_of_workers())
        while self._steps and self._is_due(self._steps[0], now):
            self._take(self._steps.pop(0), now)

    def _end_of_workers(self) -> Tuple[int, Optional[int]]:
        """Result, and the signal to the workers, when no worker runs any more and none has failed."""
        if self._has_survivors() or not self._goes_on:
            return 0, None
        self._say("no worker is left: the job has failed")
        last = max((m for m in self._members if m.is_worker), key=lambda member: member.ended_s)
        return last.exit_code or JOB_FAILED, signal.SIGTERM

    def _runs(self, roles: FrozenSet[str]) -> bool:
        return any(m.is_running for m in self._members if m.process.role in roles)

    def _is_due(self, step: Step, now: float) -> bool:
        return now >= step.when_s or (bool(step.after) and not self._runs(step.after))

    def _take(self, step: Step, now: float) -> None:
        targets = [m for m in self._members if m.session_lives and m.process.role in step.roles]
        for member in targets:
            member.told_s = member.told_s or now
            if self._result == 0:
                self._note_leftover(member, step.number)
        self._send(step.number, targets)
        if step.number == signal.SIGKILL:  # again and again: a fork may slip through one look
            self._kill_s = self._kill_s or now
            if now > self._kill_s + KILLED_WITHIN_S:
                for link in self._remote:
                    link.end("it does not say that what it was told to kill is gone")
            self._steps.append(Step(now + 0.1, signal.SIGKILL, ALL))

    def _send(self, number: int, targets: Sequence[Member]) -> None:
        sessions.send(number, [m.pid for m in targets if m.process.link is None])
        for link in {m.process.link for m in targets}:
            if link is not None:
                link.send({"signal": int(number), "to": [m.number for m in targets if m.process.link is link]})

    def _failed(self, now: float) -> Optional[Member]:
        """Whom to blame: the first to fail, but a worker rather than a server that ended because the job failed."""
        failed = [m for m in self._members if m.exit_code and not (m.is_replaced or m.is_missed)]
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
            self._steps = [Step(0.0, signal.SIGKILL, ALL)]
            return
        self._say(f"{number.name}: ending the job")
        self.interrupted_by = number
        self._finish(128 + number, number)

    def _finish(self, result: int, number: Optional[int]) -> None:
        """Everything ends with this result. number: what the workers get now; None: all end by themselves."""
        self._result = result
        self._services_are_muted = True
        now = self._decided_s = time.monotonic()
        late, last = now + self._grace_s, now + 2 * self._grace_s
        after = WORKERS if number is not None else frozenset()
        recovers = any(Restarts.are_wanted(m.process.role, m.process.environ) for m in self._members)
        self._steps = [Step(now, number, WORKERS)] if number is not None else []
        self._steps += [
            Step(late, signal.SIGTERM, WORKERS, after=after),
            Step(late, signal.SIGINT if recovers else signal.SIGTERM, SERVERS, after=after),
            Step(last, signal.SIGTERM, frozenset(["scheduler"]), after=HELD_BY_SCHEDULER),
            Step(last, signal.SIGKILL, ALL),
        ]

    # ---- saying

    def story(self) -> List[Dict[str, Any]]:
        """What was seen, as events of a recording: who ended how, and who by himself (not "told")."""
        events: List[Dict[str, Any]] = []
        if self.interrupted_by is not None:
            events.append({"t": int(self._decided_s * 1e9), "kind": "signal", "name": self.interrupted_by.name})
        for member in self._members:
            if member.is_running:
                continue
            event: Dict[str, Any] = {"t": int(member.ended_s * 1e9), "kind": "ended", "role": member.process.role}
            event.update(number=member.pid, code=member.exit_code, signal=member.signal_number)
            event.update(cause=member.end_kind, detail=member.trouble, text=_how(member))
            if member.process.rank is not None:
                event["rank"] = member.process.rank
            if member.process.link is not None:
                event["host"] = member.process.link.hello.get("host", "")
            if self._result != 0 and member.ended_s > self._decided_s:
                event["told"] = 1
            if member.told_s:
                event["told_t"] = int(member.told_s * 1e9)
            if member.is_replaced:
                event["replaced"] = 1
            if member.is_missed and self._has_survivors():
                event["missed"] = 1
            events.append(event)
        return events

    def _report(self, member: Member) -> None:
        if member.trouble:
            return self._say(f"{member.title}: {member.trouble}; ending the others")
        self._say(f"{member.title} (pid {member.pid}) failed with {_how(member)}; ending the others")
        if member.last_lines:
            self._say("its last lines:")
            for line in member.last_lines:
                self._say("  | " + line.decode(errors="replace"))

    def _note_leftover(self, member: Member, number: int) -> None:
        what = member.title if member.is_running else f"something that {member.title} started"
        self._say(f"{what} still runs after the workers have ended: {sessions.signal_name(number)}")

    def _say(self, text: str) -> None:
        try:
            self._screen.say(text)
        except OSError:
            pass  # nobody reads standard error any more


def _how(member: Member) -> str:
    if member.signal_number:
        return f"signal {sessions.signal_name(member.signal_number)} (exit code {member.exit_code})"
    return f"exit code {member.exit_code}"
