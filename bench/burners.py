"""What else computes while a turn is measured: a process on each of the first cores, of the same nice value."""

import contextlib
import os
import signal
import sys
import time

BURN = "while True: pass"
BURN_S = 0.2  # before a turn begins


class Burners:
    """They exist in the lab from the start, and stand still unless it is their turn."""

    def __init__(self, lab, count):
        if count > os.cpu_count():
            raise ValueError(f"{count} busy cores of {os.cpu_count()}")
        cores = sorted(os.sched_getaffinity(0))[:count]
        self._burners = [lab.start(0, ["taskset", "-c", core, sys.executable, "-c", BURN]) for core in cores]
        self._tell(self._burners, signal.SIGSTOP)

    @staticmethod
    def label(name, busy):
        """Of a figure that was measured with so many busy cores."""
        return name if busy == 0 else f"{name}, {busy} core{'s' if busy > 1 else ''} busy"

    @contextlib.contextmanager
    def burning(self, count):
        some = self._burners[:count]
        self._tell(some, signal.SIGCONT)
        try:
            if some:
                time.sleep(BURN_S)
            yield
        finally:
            self._tell(some, signal.SIGSTOP)

    @staticmethod
    def _tell(burners, what):
        for burner in burners:
            os.kill(burner.pid, what)
