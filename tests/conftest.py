"""For all tests in Python: Ctrl-C and hang-ups work as in a terminal; a run ends with its slowest tests and with a line
`time: wall 123.4 s, cpu 98.7 s, idle 60 %`, where cpu is that of this process and of all that it has waited for."""

import os
import resource
import signal
import time

import pytest
import zygote

# A shell without job control starts what runs in the background with SIGINT ignored, nohup ignores SIGHUP, and children
# inherit that. Tests that press Ctrl-C or hang up need both.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

SLOWEST = 25
SLOW_S = 1.0
BEGIN_S = time.monotonic()


def pytest_configure(config):
    if config.option.durations is None:
        config.option.durations = SLOWEST
        config.option.durations_min = SLOW_S


def pytest_sessionfinish():
    zygote.fork_servers.end()


@pytest.hookimpl(trylast=True)  # pytest's own list of the slowest comes first
def pytest_terminal_summary(terminalreporter):
    wall_s = time.monotonic() - BEGIN_S
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(usage.ru_utime + usage.ru_stime for usage in used)
    idle = max(0.0, 1 - cpu_s / (wall_s * len(os.sched_getaffinity(0))))
    terminalreporter.write_line(f"time: wall {wall_s:.1f} s, cpu {cpu_s:.1f} s, idle {100 * idle:.0f} %")
