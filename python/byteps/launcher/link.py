"""A link: one ssh connection and the agent at its other end.

ssh asks for no password and gives up by itself when the host does not answer. What ends a link, for whatever reason,
ends what the agent started.
"""

from __future__ import annotations

import json
import os
import select
import selectors
import shlex
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Deque, Dict, List, Mapping, Optional, Sequence

from byteps.launcher import frames, sessions
from byteps.launcher.frames import BadFrame, Frame, FrameReader, Kind
from byteps.launcher.hostfile import Host
from byteps.launcher.keeper import Keeper

READ_BYTES = 64 << 10
OPTIONS = ["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5"]
OPTIONS += ["-o", "ServerAliveCountMax=3"]
HELLO_WITHIN_S = 30.0
LAST_LINES = 5
SSH_FAILED = 255  # exit code of ssh when the connection is at fault
AGENT = "byteps.launcher.agent"


class Unreachable(Exception):
    """A host or its agent; the text names it, says what ssh said, and what to do."""


class Link:
    def __init__(self, host: Host, ssh: Sequence[str], python: str, keeper: Keeper, agent: str = AGENT):
        """Begins to connect. `ssh` may have options, which win over ours. `agent`: the module that runs one there."""
        self.host = host
        self.hello: Dict[str, Any] = {}  # once the agent is there
        self.lost: Optional[str] = None  # why the link ended; None while it is there
        self.heard_s = time.monotonic()
        self.replies: Deque[Any] = deque()
        self._reader = FrameReader()
        self._outgoing = bytearray()
        self._said: Deque[str] = deque(maxlen=LAST_LINES)
        self._rest = b""  # of ssh's standard error
        self._alive_s = time.monotonic()
        self._selector: Optional[selectors.BaseSelector] = None
        self._command = command_for(host, ssh, python, agent)
        parent = os.getpid()
        self.child = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={name: value for name, value in os.environ.items() if not name.startswith("BYTEPS_JOB_KEY")},
            start_new_session=True,
            preexec_fn=lambda: sessions.die_with_parent(parent),
        )
        assert self.child.stdin is not None
        self._stdin = self.child.stdin
        self._stdout, self._stderr = sessions.outputs(self.child)
        keeper.watch(self.child.pid)
        for file in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(file.fileno(), False)

    def register(self, selector: selectors.BaseSelector) -> None:
        """Its descriptors, with this link as data: call serve() when one is ready, and tick() now and then."""
        self._selector = selector
        for file in (self._stdout, self._stderr):
            selector.register(file.fileno(), selectors.EVENT_READ, self)

    def pause(self, pause: bool) -> None:
        """Leaves what the agent says where it is; the agent then lets its processes wait. Other things go on."""
        if self._selector is None or self.lost is not None:
            return
        fd = self._stdout.fileno()
        is_registered = fd in self._selector.get_map()
        if pause and is_registered:
            self._selector.unregister(fd)
        elif not pause and not is_registered:
            self._selector.register(fd, selectors.EVENT_READ, self)

    def is_cut_off(self) -> bool:
        """Whether nothing will come any more but what is in the pipe: ssh has ended."""
        if self.lost is not None:
            return True
        poll = select.poll()
        poll.register(self._stdout, 0)  # its end is reported unasked
        return bool(poll.poll(0))

    def unregister(self) -> None:
        """Its selector may then be closed."""
        if self._selector is None:
            return
        for file in (self._stdin, self._stdout, self._stderr):
            if not file.closed and file.fileno() in self._selector.get_map():
                self._selector.unregister(file.fileno())
        self._selector = None

    # ---- saying

    def send(self, message: Dict[str, Any]) -> None:
        if self.lost is None:
            self._outgoing += json.dumps(message).encode() + b"\n"
            self.tick()

    def ask(self, question: str, **details: Any) -> None:
        """The answer comes in `replies`."""
        self.send({"ask": question, "with": details})

    def tick(self) -> None:
        """Says that we are here, and writes what waits."""
        now = time.monotonic()
        if now >= self._alive_s + frames.ALIVE_EVERY_S and self.hello:
            self._alive_s = now
            self._outgoing += b'{"alive": true}\n'
        if not self._outgoing or self.lost is not None:
            return
        fd = self._stdin.fileno()
        try:
            del self._outgoing[: os.write(fd, self._outgoing[:READ_BYTES])]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()  # reading tells why
        if self._selector is None:
            return
        waits = fd in self._selector.get_map()
        if self._outgoing and not waits:
            self._selector.register(fd, selectors.EVENT_WRITE, self)
        elif not self._outgoing and waits:
            self._selector.unregister(fd)

    # ---- hearing

    def serve(self, fd: int) -> List[Frame]:
        if self.lost is not None:
            return []
        if fd == self._stdin.fileno():
            self.tick()
            return []
        try:
            data = os.read(fd, READ_BYTES)
        except BlockingIOError:
            return []
        if fd == self._stderr.fileno():
            self._hear_ssh(data)
            return []
        self.heard_s = time.monotonic()
        try:
            received = self._reader.feed(data)
        except BadFrame as error:
            self.end(str(error))
            return []
        if not data:
            self._end_of_output()
        passed = []
        for frame in received:
            if frame.kind == Kind.HELLO:
                self.hello = frame.json()
            elif frame.kind == Kind.REPLY:
                self.replies.append(frame.json())
            else:
                passed.append(frame)
        return passed

    def _hear_ssh(self, data: bytes) -> None:
        if not data:
            if self._selector is not None:
                self._selector.unregister(self._stderr.fileno())
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-4096:]
        self._said += [line.decode(errors="replace").strip() for line in lines if line.strip()]

    def _end_of_output(self) -> None:
        try:
            code = self.child.wait(2)
        except subprocess.TimeoutExpired:
            code = SSH_FAILED
        try:
            while True:
                data = os.read(self._stderr.fileno(), READ_BYTES)
                if not data:
                    break
                self._hear_ssh(data)
        except OSError:
            pass
        said = "; ".join([*self._said, self._rest.decode(errors="replace").strip()]).strip("; ")
        noise = self._reader.noise.decode(errors="replace").strip()
        self.end(said or noise or f"ssh ended with exit code {code}", code)

    def end(self, reason: str, code: int = SSH_FAILED) -> None:
        """Ends the link if it is not ended: the agent then ends what it started."""
        if self.lost is not None:
            return
        self.lost = reason
        self.code = code
        self.unregister()
        self._stdin.close()
        if not self.hello:  # nothing was started there, and ssh may take its time
            self.child.terminate()

    def join(self, keeper: Keeper, timeout_s: float) -> None:
        """After end(): waits for ssh, and kills it when it takes too long."""
        try:
            self.child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self._stdout.close()
        self._stderr.close()
        keeper.forget(self.child.pid)

    def command_by_hand(self) -> str:
        """The ssh command for a person, who may be asked for something."""
        return shlex.join([word for word in self._command[:-1] if word not in OPTIONS])

    def why_unreachable(self) -> str:
        """After the link was lost before the agent was there: what happened, and a command to find out more."""
        name = self.host.name
        if self.code == SSH_FAILED:
            by_hand = self.command_by_hand()
            return f"host {name} cannot be reached over ssh: {self.lost}; try by hand: {by_hand} true"
        if self.lost is not None and "No module named" in self.lost:
            return (
                f"host {name} has no byteps where this one has it ({self.lost}): install the same version there, or "
                "name a Python that has it: --python PATH"
            )
        return (
            f"host {name} cannot run bpslaunch's agent (exit code {self.code}): {self.lost}; the Python of this host "
            "must be there under the same path, or name another: --python PATH"
        )


def command_for(host: Host, ssh: Sequence[str], python: str, agent: str) -> List[str]:
    package_folder = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [package_folder, os.environ.get("PYTHONPATH", "")]))
    there = shlex.join(["env", f"PYTHONPATH={path}", python, "-m", agent])
    place = ["-p", str(host.port)] if host.port else []
    return [*ssh, *OPTIONS, *place, f"{host.user}@{host.name}" if host.user else host.name, there]


def connect(links: Sequence[Link], selector: selectors.BaseSelector, timeout_s: float = HELLO_WITHIN_S) -> List[Link]:
    """Waits until every agent is there or its link is lost, and returns the links that are there."""
    for link in links:
        link.register(selector)
    deadline_s = time.monotonic() + timeout_s
    while any(not link.hello and link.lost is None for link in links):
        if time.monotonic() > deadline_s:
            for link in links:
                if not link.hello:
                    link.end(f"no answer within {timeout_s:.0f} s")
            break
        wait(links, selector, 0.2)
    return [link for link in links if link.lost is None]


def wait(links: Sequence[Link], selector: selectors.BaseSelector, timeout_s: float) -> None:
    """Serves links from which only replies are expected."""
    for key, _ in selector.select(timeout_s):
        key.data.serve(key.fd)
    for link in links:
        link.tick()


def ask_all(
    links: Sequence[Link], selector: selectors.BaseSelector, timeout_s: float, question: str, **details: Any
) -> List[Any]:
    """One answer per link; None from one that is lost or does not answer in time."""
    return ask_each(links, selector, timeout_s, question, [details] * len(links))


def ask_each(
    links: Sequence[Link],
    selector: selectors.BaseSelector,
    timeout_s: float,
    question: str,
    details: Sequence[Mapping[str, Any]],
) -> List[Any]:
    """The same, with details of its own for each."""
    for link, own in zip(links, details):
        link.replies.clear()
        link.ask(question, **own)
    deadline_s = time.monotonic() + timeout_s
    while any(not link.replies and link.lost is None for link in links) and time.monotonic() < deadline_s:
        wait(links, selector, 0.2)
    return [link.replies.popleft() if link.replies else None for link in links]


def ask_once(links: Sequence[Link], timeout_s: float, question: str, **details: Any) -> List[Any]:
    """As ask_all(), for links that nobody serves at this time."""
    with selectors.DefaultSelector() as selector:
        for link in links:
            link.register(selector)
        answers = ask_all(links, selector, timeout_s, question, **details)
        for link in links:
            link.unregister()
    return answers


def check_versions(links: Sequence[Link], own_version: str) -> None:
    for link in links:
        if link.hello["version"] != own_version:
            raise Unreachable(
                f"host {link.host.name} has byteps {link.hello['version']}, this one has {own_version}: install the "
                "same version on all hosts"
            )


def default_python() -> str:
    return sys.executable
