"""The ranks' output: whole lines, each with the name of its rank in front.

A carriage return is a progress bar drawing over itself. On a terminal the last line shows one rank's bar, drawn anew
below the lines that pass; elsewhere (a file, a log) a bar leaves a line every ten seconds and its last state.
"""

from __future__ import annotations

import os
import re
import select
import shutil
import time
from typing import List, NamedTuple, Optional, Tuple

from byteps.launcher import outlet
from byteps.launcher.outlet import Outlet

LINE_BYTES_MAX = 64 << 10  # a longer one is cut
PROGRESS_EVERY_S = 10.0  # where output is not a terminal
COLOURS = (36, 33, 35, 32, 34, 31, 96, 93, 95, 92, 94, 91)
CLEAR_LINE = b"\r\x1b[K"

_END = re.compile(rb"\r\n|\n|\r(?!\n|\Z)")


class Piece(NamedTuple):
    is_progress: bool  # else a whole line
    text: bytes


class Cutter:
    """Cuts one stream into lines and progress."""

    def __init__(self) -> None:
        self._pending = b""
        self._bar: Optional[bytes] = None  # what a terminal would show before what is pending; None: no bar

    def feed(self, data: bytes) -> List[Piece]:
        pieces = []
        data = self._pending + data
        begin = 0
        for end in _END.finditer(data):
            text = data[begin : end.start()] or self._bar or b""
            is_return = end.group() == b"\r"
            if text or not is_return:
                pieces.append(Piece(is_return, text))
            self._bar = text if is_return else None
            begin = end.end()
        self._pending = data[begin:]
        if len(self._pending) > LINE_BYTES_MAX:
            pieces.append(Piece(False, self._pending))
            self._pending = b""
        elif self._bar is not None and self._pending.strip(b"\r"):
            pieces.append(Piece(True, self._pending.strip(b"\r")))  # shown, and still pending
        return pieces

    def finish(self) -> List[Piece]:
        """At the end of the stream: what had no end of line."""
        rest = self._pending.strip(b"\r") or self._bar or b""
        self._pending, self._bar = b"", None
        return [Piece(False, rest)] if rest.strip() else []


class Label:
    """A rank's name on the screen, and when it last showed progress in a file."""

    def __init__(self, title: str, index: int):
        """An empty title gives lines as they are."""
        self.plain = f"[{title}] ".encode() if title else b""
        self.coloured = b"\x1b[%dm[%s]\x1b[0m " % (COLOURS[index % len(COLOURS)], title.encode()) if title else b""
        self.progress_s = 0.0


class Screen:
    """Our own standard output and error. Never waits for their reader: what is not taken yet waits in `outlets`. Raises
    BrokenPipeError when the reader is gone."""

    def __init__(self, is_coloured: bool = "NO_COLOR" not in os.environ):
        self._outlets = outlet.standard()
        self._terminals = {fd: os.isatty(fd) for fd in (1, 2)}
        self._is_coloured = is_coloured
        self._bar: Optional[Tuple[int, Label, bytes]] = None  # descriptor, rank, what it shows

    @property
    def outlets(self) -> List[Outlet]:
        """Who owns the loop flushes those that have something waiting when they can be written to."""
        return list(dict.fromkeys(self._outlets.values()))

    @property
    def waiting_bytes(self) -> int:
        return sum(each.waiting_bytes for each in self.outlets)

    def finish(self, patience_s: Optional[float] = None) -> None:
        """At the end: waits for the reader, without limit or for so long after it took something last."""
        for each in self.outlets:
            poll = select.poll()
            poll.register(each, select.POLLOUT)
            while each.waiting_bytes > 0:
                if not poll.poll(None if patience_s is None else patience_s * 1000):
                    break
                try:
                    each.flush()
                except OSError:
                    pass

    def is_terminal(self) -> bool:
        return self._terminals[2]

    def columns(self) -> int:
        return shutil.get_terminal_size().columns

    def show(self, fd: int, label: Label, piece: Piece) -> None:
        if not self._terminals[fd]:
            self._show_in_file(fd, label, piece)
        elif not piece.is_progress:
            if self._bar is not None and self._bar[:2] == (fd, label):
                self._erase()
                self._bar = None
            self._write_line(fd, label.coloured if self._is_coloured else label.plain, piece.text)
        elif self._bar == (fd, label, piece.text):
            pass
        elif self._bar is None or self._bar[:2] == (fd, label):  # the bar belongs to whoever began first
            self._erase()
            self._bar = (fd, label, piece.text) if piece.text.strip() else None
            self._draw()

    def say(self, text: str) -> None:
        """A line of bpslaunch's own, on standard error."""
        for line in text.splitlines():
            self._write_line(2, b"", f"bpslaunch: {line}".encode(errors="replace"))

    def release(self, label: Label) -> None:
        """The rank has ended: its bar goes."""
        if self._bar is not None and self._bar[1] is label:
            self._erase()
            self._bar = None

    def _show_in_file(self, fd: int, label: Label, piece: Piece) -> None:
        if piece.is_progress:
            now = time.monotonic()
            if not piece.text.strip() or now - label.progress_s < PROGRESS_EVERY_S:
                return
            label.progress_s = now
        self._outlets[fd].write(label.plain + piece.text + b"\n")

    def _write_line(self, fd: int, prefix: bytes, text: bytes) -> None:
        self._erase()
        self._outlets[fd].write(prefix + text + b"\n")
        self._draw()

    def _erase(self) -> None:
        if self._bar is not None:
            self._outlets[self._bar[0]].write(CLEAR_LINE)

    def _draw(self) -> None:
        if self._bar is None:
            return
        fd, label, text = self._bar
        room = max(1, self.columns() - len(label.plain) - 1)
        prefix = label.coloured if self._is_coloured else label.plain
        self._outlets[fd].write(prefix + text.decode(errors="replace")[:room].encode())

