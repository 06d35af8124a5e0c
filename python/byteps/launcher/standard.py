"""How a command begins and ends where its standard descriptors are not as usual, and when it is interrupted.

Imports next to nothing: until run() is reached, Ctrl-C gives a traceback.
"""

from __future__ import annotations

import os
import sys
from typing import Callable

SIGINT, SIGPIPE = 2, 13


def run(main: Callable[[], int]) -> int:
    """The exit code of main(), or what a shell would say of a signal: after Ctrl-C at any time, and when the
    reader of our output is gone, as with "| head"."""
    open_closed()
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 128 + SIGINT
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        for fd in (1, 2):
            os.dup2(null, fd)  # Python writes what is left when it ends
        return 128 + SIGPIPE


def open_closed() -> None:
    """A standard descriptor that is closed becomes /dev/null. Otherwise the next file or socket would get its number,
    and what is meant for the user; Python has no sys.stdout then."""
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(fd)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest that is free
            setattr(sys, name, open(fd, "w" if fd else "r", encoding="utf-8", closefd=False))
