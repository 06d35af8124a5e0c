"""bpslaunch whose output nobody reads for a while: a pager that shows its first page, a terminal after Ctrl-S."""

import os
import signal
import sys
import time

import pytest
from place import ROOT, wait_for, wait_until

PYTHON = sys.executable
SILENCE_S = 2.0  # an agent that hears nothing for so long ends

# Read by every Python of the test: the agents' limits, only smaller.
LIMITS = f"""\
from byteps.launcher import frames
frames.SILENCE_S, frames.ALIVE_EVERY_S = {SILENCE_S}, 0.2
"""

# Says more than pipes hold, and how far it came; ends when it has said all.
CHATTER = """\
import os, sys
lines = int(sys.argv[1])
for number in range(lines):
    print("x" * 100, number, flush=True)
    os.pwrite(progress, b"%d" % number, 0) if number else (progress := os.open("progress", os.O_CREAT | os.O_RDWR))
"""


def fields_of(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return ["X", "0"]


def state_of(pid):
    return fields_of(pid)[0]


def parent_of(pid):
    return int(fields_of(pid)[1])


class Standing:
    """bpslaunch with a pipe as standard output that is read when the test says so."""

    def __init__(self, place, *arguments):
        (place.folder / "limits").mkdir()
        (place.folder / "limits/sitecustomize.py").write_text(LIMITS)
        (place.folder / "chatter.py").write_text(CHATTER)
        self.place = place
        self.output, theirs = os.pipe()
        environ = {"PYTHONPATH": os.pathsep.join([str(place.folder / "limits"), str(ROOT / "python")])}
        with open(place.folder / "errors", "w") as errors:
            self.launcher = place.launch(*arguments, environ=environ, stdout=theirs, stderr=errors)
        os.close(theirs)

    @property
    def progress(self):
        """How many lines the training has been able to write."""
        try:
            return int((self.place.folder / "progress").read_bytes() or 0)
        except FileNotFoundError:
            return 0

    def stands(self):
        """Until nothing goes on any more, and nobody wants to: the reader is what all wait for."""
        seen = []

        def is_still():
            is_idle = all(state_of(pid) == "S" for pid in self.place.living())
            seen.append(self.progress if is_idle else None)
            time.sleep(0.1)
            return self.progress > 0 and len(seen) >= 5 and set(seen[-5:]) == {self.progress}

        return wait_until(is_still, 60)

    @property
    def chatter(self):
        return [
            pid
            for pid, command in self.place.living().items()
            if command.startswith(PYTHON) and "chatter.py" in command and "launcher" not in command
        ]

    def read_all(self):
        with open(self.output, "rb") as file:
            return file.read().splitlines()

    def errors(self):
        return (self.place.folder / "errors").read_text()


def on_one_host(place, stand_in, *command):
    hostfile = place.folder / "hosts"
    hostfile.write_text("127.0.0.1 workers=1 servers=0\n")
    return ["--hosts", hostfile, "--ssh", stand_in, "--", PYTHON, "chatter.py", *command]


def locally(place, stand_in, *command):
    return ["--local", "--workers", "1", "--servers", "0", "--", PYTHON, "chatter.py", *command]


MODES = pytest.mark.parametrize("mode", [locally, on_one_host])


@MODES
def test_a_reader_that_stands_still_ends_nothing_and_misses_nothing(place, stand_in, mode):
    job = Standing(place, *mode(place, stand_in, "60000"))
    assert job.stands(), job.errors()
    (pid,) = job.chatter
    until = time.monotonic() + 2 * SILENCE_S
    while time.monotonic() < until:
        assert job.chatter == [pid], job.errors()
        time.sleep(0.1)
    assert job.progress < 50000  # what nobody reads is kept nowhere
    lines = job.read_all()
    assert job.launcher.wait(30) == 0, job.errors()
    assert len(lines) == 60000 and lines[-1].endswith(b" 59999"), job.errors()
    assert place.left(wait_s=5) == []


@MODES
def test_a_signal_ends_the_job_whose_reader_stands_still(place, stand_in, mode):
    job = Standing(place, *mode(place, stand_in, "60000"))
    assert job.stands(), job.errors()
    job.launcher.send_signal(signal.SIGINT)
    assert job.launcher.wait(30) == 128 + signal.SIGINT
    assert "SIGINT: ending the job" in job.errors()
    assert place.left(wait_s=5) == []
    os.close(job.output)


@MODES
def test_a_job_that_has_ended_waits_for_its_reader(place, stand_in, mode):
    job = Standing(place, *mode(place, stand_in, "4000"))
    assert wait_until(lambda: job.progress == 3999 and not job.chatter, 30), job.errors()
    lines = job.read_all()
    assert job.launcher.wait(30) == 0
    assert len(lines) == 4000
    assert place.left(wait_s=5) == []


def test_a_lost_connection_is_seen_while_nobody_reads(place, stand_in):
    job = Standing(place, *on_one_host(place, stand_in, "60000"))
    assert job.stands(), job.errors()
    agents = [
        pid
        for pid, command in place.living().items()
        if command.startswith(PYTHON) and "byteps.launcher.agent" in command
    ]
    (agent,) = [pid for pid in agents if parent_of(pid) not in agents]  # the other is its keeper
    os.kill(agent, signal.SIGKILL)
    assert wait_until(lambda: "worker 0 on 127.0.0.1: lost the connection" in job.errors(), 30), job.errors()
    assert len(job.read_all()) > 0
    assert job.launcher.wait(30) == 255
    assert place.left(wait_s=5) == []


def test_a_worker_that_fails_is_reported_while_nobody_reads_its_output(place):
    program = "import os, sys; os.write(1, b'y' * 60000); os.write(2, b'what went wrong\\n'); sys.exit(7)"
    output, theirs = os.pipe()
    filler = os.dup(theirs)
    os.set_blocking(filler, False)
    try:
        while True:
            os.write(filler, b"z" * 4096)
    except BlockingIOError:
        pass
    os.set_blocking(filler, True)  # of the pipe's end that bpslaunch gets, too
    errors = place.folder / "errors"
    with open(errors, "w") as file:
        launcher = place.launch(
            "--local", "--workers", "1", "--servers", "0", "--", PYTHON, "-c", program, stdout=theirs, stderr=file
        )
    os.close(theirs)
    os.close(filler)
    wait_for("the exit code", lambda: "failed with exit code 7" in errors.read_text(), 30)
    assert "what went wrong" in errors.read_text()
    with open(output, "rb") as file:
        assert b"y" * 60000 in file.read()
    assert launcher.wait(30) == 7


# The shell and the pager share these descriptors, and do not expect to be told to come back later.
def test_the_descriptors_stay_as_they_were_for_the_others(place):
    output, theirs = os.pipe()
    launcher = place.launch(
        "--local", "--workers", "1", "--servers", "0", "--", "sh", "-c", "echo begun; exec sleep 30",
        stdout=theirs, stderr=theirs,
    )  # fmt: skip
    got = b""
    while b"[worker 0] begun" not in got:
        got += os.read(output, 4096)
    assert os.get_blocking(theirs)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(30) == 128 + signal.SIGTERM
    os.close(theirs)
    os.close(output)
