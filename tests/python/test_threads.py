"""What the kernel says of threads: whether one of them might go on by itself."""

import subprocess
import sys
import textwrap

import pytest

from byteps._core import threads

BEGIN = """
import multiprocessing, os, threading, time
from byteps._core import threads

def begin(wait):
    begun = threading.Event()
    thread = threading.Thread(target=lambda: (begun.set(), wait()), daemon=True)
    thread.start()
    begun.wait()
    return thread

def until_asleep():
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s:
        found = threads.asleep({})
        if found is not None:
            return found
        time.sleep(0.01)

def is_never_asleep():
    # For a moment, whoever computes may wait for the interpreter's lock: not the same then in the next look.
    looks = [threads.asleep({}) for _ in range(20) if not time.sleep(0.01)]
    return all(first is None or first != second for first, second in zip(looks, looks[1:]))

lock = threading.Lock()
lock.acquire()
"""
pytestmark = pytest.mark.skipif(threads.FUTEX is None, reason="system calls of this architecture are not known")


def run(script):
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_thread_that_waits_for_a_lock_is_asleep_and_the_same_until_it_has_gone_on():
    run(
        """
        assert threads.asleep({}) == {}  # nobody else is here
        thread = begin(lambda: [lock.acquire() for _ in range(2)])
        first = until_asleep()
        assert list(first) == [thread.native_id] and threads.asleep({}) == first
        lock.release()
        while threads.asleep({}) in (None, first):
            time.sleep(0.01)
        assert list(until_asleep()) == [thread.native_id]
        """
    )


@pytest.mark.parametrize(
    "wait",
    [
        "lock.acquire(timeout=100)",
        "time.sleep(100)",
        "os.read(os.pipe()[0], 1)",
        "[None for _ in iter(int, 1)]",
        "[shared.acquire() for _ in range(2)]",
    ],
    ids=["a limit", "a sleep", "a pipe", "computing", "a lock of other processes"],
)
def test_a_thread_that_the_clock_or_another_process_may_wake_is_not_asleep(wait):
    run(
        f"""
        shared = multiprocessing.Lock()
        begin(lambda: {wait})
        assert is_never_asleep()
        """
    )


def test_threads_in_waits_of_ours_and_those_that_serve_others_do_not_count():
    run(
        """
        thread = begin(lambda: lock.acquire(timeout=100))
        assert is_never_asleep()
        assert threads.asleep({thread.ident: None}) == {}
        assert threads.asleep({thread.ident: lambda: False}) == {}
        assert threads.asleep({thread.ident: lambda: True}) is None  # it is about to go on
        threads.Watch(lambda: None, 1000)
        assert threads.asleep({thread.ident: None}) == {}
        """
    )


def test_a_program_with_a_name_like_ours_is_seen():
    run(
        """
        with open("/proc/self/comm", "w") as file:
            file.write("byteps-train")  # threads have it from the one that starts them
        begin(lambda: time.sleep(100))
        assert is_never_asleep()
        with open("/proc/self/comm", "w") as file:
            file.write("byteps-worker")
        seen = []
        looking = threading.Thread(target=lambda: seen.append(is_never_asleep()))
        looking.start()
        looking.join()
        assert seen == [True]
        """
    )
