"""Start-up never waits in silence: after 5 s each process says who or what is missing, where, and how it knows."""

import re
import sys

import pytest
from evil import Listener
from place import MEMBER, free_port, wait_until

PYTHON = sys.executable


def job(**changes):
    environ = {
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "2",
        "DMLC_WORKER_ID": "0",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "BYTEPS_JOB_KEY": "a key of enough length",
        "BYTEPS_LOCAL_REDUCE": "0",  # as on machines of their own
    }
    environ.update(changes)
    return {name: value for name, value in environ.items() if value is not None}


class Cast:
    """The processes of a test, and what each has said so far."""

    def __init__(self, place):
        self.place = place
        self.files = {}

    def start(self, name, environ):
        role = re.sub(r"\d", "", name)
        command = [PYTHON, MEMBER] if role == "worker" else [self.place.executable(role)]
        self.files[name] = self.place.folder / f"{name}.err"
        with open(self.files[name], "wb") as err:
            return self.place.start(command, environ, stderr=err)

    def said(self, name):
        return self.files[name].read_text(errors="replace")

    def says(self, name, *patterns, within_s=9.0):
        """Whether it says all of these in time."""
        return wait_until(lambda: all(re.search(pattern, self.said(name)) for pattern in patterns), within_s)


@pytest.fixture
def cast(place):
    return Cast(place)


def test_scheduler_worker_and_server_say_who_is_missing_and_who_says_so(cast):
    environ = job()
    for name in ("scheduler", "server", "worker"):
        cast.start(name, environ)
    missing = r"waiting for worker 1 of 2 and server 1 of 2; here: worker 0 \([^ ]+:\d+\) since [\d.]+ s, server 0 "
    assert cast.says("scheduler", missing), cast.said("scheduler")
    told = rf"scheduler at 127.0.0.1:{environ['DMLC_PS_ROOT_PORT']} says: " + missing
    assert cast.says("worker", told, within_s=3), cast.said("worker")
    assert cast.says("server", told, within_s=3), cast.said("server")


def test_a_scheduler_alone_says_that_it_waits_for_all(cast):
    cast.start("scheduler", job())
    assert cast.says("scheduler", "waiting for workers 0 and 1 of 2 and servers 0 and 1 of 2; here: nobody")


def test_without_a_scheduler_worker_and_server_say_where_they_look_for_it_since_when_and_what_happened(cast):
    environ = job()
    for name in ("server", "worker"):
        cast.start(name, environ)
    place = f"scheduler at 127.0.0.1:{environ['DMLC_PS_ROOT_PORT']}"
    for name in ("server", "worker"):
        told = rf"{place} unreachable since [\d.]+ s: .*connection refused; is it started, and are DMLC_PS_ROOT_URI"
        assert cast.says(name, told), cast.said(name)


def test_a_scheduler_that_accepts_and_says_nothing_is_named(cast):
    with Listener() as silent:
        cast.start("worker", job(DMLC_PS_ROOT_PORT=str(silent.port)))
        assert cast.says("worker", rf"scheduler at 127.0.0.1:{silent.port} unreachable since [\d.]+ s: .*no answer")


def test_a_host_name_that_is_not_known_is_named_and_waited_for(cast):
    environ = job(DMLC_PS_ROOT_URI="scheduler.invalid", DMLC_NODE_HOST=None, BYTEPS_START_TIMEOUT_S="8")
    processes = {name: cast.start(name, environ) for name in ("server", "worker")}
    assert cast.says("worker", "scheduler at scheduler.invalid:.*cannot look up the host name")
    assert cast.says("server", "no way to the scheduler at scheduler.invalid:.*cannot look up the host name")
    for name, process in processes.items():  # and they do not wait for ever
        assert process.wait(20) != 0
    assert "gave up joining after 8 s" in cast.said("worker")
    assert "DMLC_NODE_HOST" in cast.said("server")


def test_a_worker_that_cannot_reach_a_server_names_it_its_address_and_the_error(cast):
    environ = job(BYTEPS_FAILURE_TIMEOUT_MS="20000", BYTEPS_SERVER_ENGINE_THREAD="1", DMLC_RANK="0")
    for name, changes in {
        "scheduler": {},
        "server0": {},
        "server1": {"DMLC_RANK": "1", "DMLC_NODE_HOST": "server1.invalid"},  # what it tells others about itself
        "worker0": {},
        "worker1": {"DMLC_WORKER_ID": "1"},
    }.items():
        cast.start(name, {**environ, **changes})
    for name in ("worker0", "worker1"):
        assert cast.says(
            name,
            r"all members are here, but there is no connection yet to server 1 \([^)]+\) at server1.invalid:\d+, "
            r"shard 0 since [\d.]+ s \(.*cannot look up the host name",
        ), cast.said(name)
        assert "server 0" not in cast.said(name)
