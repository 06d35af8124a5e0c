"""bpslaunch where the loss of a worker does not end the job, and what the death of bpslaunch itself, of an agent and
of a link does. The workers here never join a job, and its scheduler only says what it hears: whole jobs that go on are
in test_worker_loss.py."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from byteps._core import abi, session
from byteps.launcher import losses
from byteps.launcher.environment import BadEnvironment
from place import MARK, wait_for

PYTHON = sys.executable
GOES_ON = ["--on-worker-loss", "continue"]
THREE = ["--local", "--workers", "3", "--servers", "1", "--grace", "0.3"]
TWO_HOSTS = "127.0.0.1 workers=1 servers=1\n127.0.0.2 workers=2 servers=1\n"


SERVICES = {
    "scheduler": 'while read -r line; do echo "heard $line"; done; exec sleep 999',
    "server": "exec sleep 999",
}


@pytest.fixture(autouse=True)
def services(request):
    """Played ones."""
    if "place" not in request.fixturenames:
        return
    place = request.getfixturevalue("place")
    folder = place.folder / "services"
    folder.mkdir()
    for role, does in SERVICES.items():
        (folder / f"byteps_{role}").write_text(f"#!/bin/bash\n{does}\n")
        (folder / f"byteps_{role}").chmod(0o755)
    place.environ["BYTEPS_BIN"] = str(folder)


def program(rank, does, others="until [ -e go ]; do sleep 0.02; done"):
    """A worker that waits for a file "go", but for one rank. Each says that it is there by a file."""
    own = "${BYTEPS_GLOBAL_RANK:-$BYTEPS_LOCAL_RANK}"
    return ["bash", "-c", f"touch here{own}; if [ {own} = {rank} ]; then {does}; else {others}; fi"]


def go(place):
    (place.folder / "go").touch()


def all_here(place, count=3):
    return lambda: {f"here{rank}" for rank in range(count)} <= set(os.listdir(place.folder))


class Run:
    """bpslaunch whose output is read while it runs: `err` is what it said and its processes wrote."""

    def __init__(self, place, *arguments, environ=()):
        self.path = place.folder / "both"
        with open(self.path, "w") as both:
            self.launcher = place.launch(*arguments, environ=environ, stdout=both, stderr=both)

    @property
    def err(self):
        return self.path.read_text()

    def wait_for(self, text, times=1):
        wait_for(text, lambda: len(re.findall(text, self.err)) >= times or self.launcher.poll() is not None, 30)
        assert len(re.findall(text, self.err)) >= times, self.err

    def end(self):
        code = self.launcher.wait(30)
        return code, self.err.splitlines()


def pid_of(place, role):
    (pid,) = [pid for pid, command in place.living().items() if f"byteps_{role}" in command]
    return pid


# ---- on one machine


def test_a_worker_that_is_killed_is_a_loss_and_the_scheduler_hears_of_it_at_once(place):
    run = Run(place, *THREE, *GOES_ON, "--", *program(1, "kill -9 $$"))
    run.wait_for(r"worker 1 \(pid \d+\) was lost: ended by signal SIGKILL; the job goes on without it")
    run.wait_for(r"\[scheduler\] heard worker 1 was ended by signal SIGKILL\n")
    go(place)
    code, lines = run.end()
    assert code == 0, run.err
    assert re.match(r"bpslaunch: all other workers ended well after \d", lines[-2])
    assert re.fullmatch(
        r"bpslaunch: worker 1 \(pid \d+\) was lost: ended by signal SIGKILL; the job went on without it", lines[-1]
    )
    assert place.left() == [] and place.recordings() == []


def test_the_exit_code_is_that_of_a_survivor_that_fails(place):
    run = Run(place, *THREE, *GOES_ON, "--", *program(1, "kill -9 $$", "sleep 1; exit $((BYTEPS_LOCAL_RANK * 3))"))
    code, lines = run.end()
    assert code == 6, run.err
    assert any("worker 2 (pid " in line and "failed with exit code 6; ending the others" in line for line in lines)
    said = next(line for line in reversed(lines) if "worker 1" in line)
    assert said.endswith("was lost: ended by signal SIGKILL")  # perhaps the others failed for that
    assert not any("First cause: worker 1" in line for line in lines), run.err
    assert place.left() == []


def test_a_worker_that_exits_with_an_error_of_its_own_fails_the_job(place):
    code, out, err = place.run(*THREE, *GOES_ON, "--", *program(1, "exit 7"))
    assert code == 7 and "worker 1 (pid " in err and "failed with exit code 7; ending the others" in err
    assert "was lost" not in err and place.left() == []


def test_the_exit_code_of_who_was_replaced_is_a_loss_where_the_job_goes_on(place):
    run = Run(place, *THREE, *GOES_ON, "--", *program(1, f"exit {losses.EXIT_REPLACED}"))
    run.wait_for("worker 1 .* was lost: away for too long, and ended with exit code 86; the job goes on without it")
    go(place)
    assert run.end()[0] == 0, run.err
    code, out, err = place.run(*THREE, "--on-worker-loss", "fail", "--", *program(1, f"exit {losses.EXIT_REPLACED}"))
    assert code == losses.EXIT_REPLACED and "worker 1 (pid " in err and "failed with exit code 86" in err


def test_without_any_worker_the_job_has_failed(place):
    code, out, err = place.run(*THREE, *GOES_ON, "--", "bash", "-c", "kill -9 $$")
    assert code == 128 + signal.SIGKILL, err
    assert "bpslaunch: no worker is left: the job has failed" in err and "went on" not in err
    assert all(f"worker {rank} (pid " in err for rank in range(3))
    assert place.left() == []


def test_a_worker_that_is_lost_when_the_others_have_ended_well_is_a_loss(place):
    run = Run(place, *THREE, *GOES_ON, "--", *program(1, "until [ -e go ]; do sleep 0.02; done; kill -9 $$", "true"))
    wait_for("all workers", all_here(place))
    go(place)
    code, lines = run.end()
    assert code == 0 and "the job went on without it" in lines[-1], run.err


@pytest.mark.parametrize("arguments, environ", [
    ([], {}), ([], {"BYTEPS_ON_WORKER_LOSS": "fail"}),
    (["--on-worker-loss", "fail"], {"BYTEPS_ON_WORKER_LOSS": "continue"}),
], ids=["nothing", "variable", "option"])  # fmt: skip
def test_without_it_the_loss_of_a_worker_ends_the_job(place, arguments, environ):
    code, out, err = place.run(*THREE, *arguments, "--", *program(1, "kill -9 $$"), environ=environ)
    assert code == 128 + signal.SIGKILL
    assert "worker 1 (pid " in err and "failed with signal SIGKILL (exit code 137); ending the others" in err
    assert place.left() == []


def test_the_variable_does_what_the_option_does(place):
    run = Run(place, *THREE, "--", *program(1, "kill -9 $$"), environ={"BYTEPS_ON_WORKER_LOSS": "continue"})
    run.wait_for("worker 1 .* was lost: .* goes on without it")
    go(place)
    assert run.end()[0] == 0, run.err


def test_a_scheduler_that_is_started_anew_is_told_again_of_all(place):
    run = Run(place, *THREE, *GOES_ON, "--", *program(1, "kill -9 $$"))
    run.wait_for(r"\[scheduler\] heard worker 1 was ended by signal SIGKILL\n")
    os.kill(pid_of(place, "scheduler"), signal.SIGKILL)
    run.wait_for(r"\[scheduler\] heard worker 1 was ended by signal SIGKILL\n", times=2)
    go(place)
    assert run.end()[0] == 0, run.err
    assert place.left() == []


def test_what_a_lost_worker_has_started_is_ended_at_once(place):
    run = Run(place, *THREE, *GOES_ON, "--", *program(1, "sleep 1000 & kill -9 $$"))
    run.wait_for("worker 1 .* was lost")
    is_there = lambda: any(command.startswith("sleep 1000") for command in place.living().values())
    wait_for("its child to end", lambda: not is_there())
    go(place)
    assert run.end()[0] == 0, run.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_job_after_a_loss_as_before_one(place, number):
    run = Run(place, *THREE, *GOES_ON, "--", *program(1, "kill -9 $$"))
    wait_for("all workers", all_here(place))
    run.wait_for("worker 1 .* was lost")
    run.launcher.send_signal(number)
    code, lines = run.end()
    assert code == 128 + number and f"bpslaunch: {number.name}: ending the job" in lines, run.err
    assert run.err.count("went on without it") == 1  # who is ended with the job is not lost
    assert place.left() == []


def test_the_death_of_bpslaunch_takes_the_job_with_it(place):
    run = Run(place, *THREE, *GOES_ON, "--", *program(1, "kill -9 $$"))
    run.wait_for("worker 1 .* was lost")
    run.launcher.kill()
    run.launcher.wait()
    assert place.left(wait_s=10) == []


def test_processes_know_the_policy_and_the_first_start_has_no_attempt(place):
    names = ["BYTEPS_ON_WORKER_LOSS", "BYTEPS_RECOVERY", "BYTEPS_ATTEMPT"]
    prints = f"import os; print(*[os.environ.get(name) for name in {names}])"
    code, out, err = place.run(
        *THREE, *GOES_ON, "--no-prefix", "--", PYTHON, "-c", prints, environ={"BYTEPS_ATTEMPT": "5"}
    )
    assert code == 0 and out == "continue None None\n" * 3, err


@pytest.mark.parametrize("arguments, environ, text", [
    (["--local", "--workers", "3", "--servers", "0", *GOES_ON], {"BYTEPS_LOCAL_REDUCE": "0"},
     "needs at least one server: BYTEPS_LOCAL_REDUCE=0"),
    (["--local", "--workers", "1", *GOES_ON], {}, "needs several workers"),
    (["--local", "--workers", "1", "--servers", "1", *GOES_ON], {}, "needs several workers"),
    (["--hosts", "hosts", "--servers-per-host", "0", *GOES_ON], {}, "servers=N behind a host"),
    ([*THREE, *GOES_ON], {"BYTEPS_RECOVERY": "0"},
     "--on-worker-loss continue (BYTEPS_ON_WORKER_LOSS=continue) and BYTEPS_RECOVERY=0 exclude each other"),
    (THREE, {"BYTEPS_ON_WORKER_LOSS": "continue", "BYTEPS_RECOVERY": "0"}, "and BYTEPS_RECOVERY=0 exclude each other"),
    (THREE, {"BYTEPS_ON_WORKER_LOSS": "stop"}, "BYTEPS_ON_WORKER_LOSS='stop' is not valid: it takes fail or continue"),
    ([*THREE, "--on-worker-loss", "stop"], {}, "invalid choice: 'stop'"),
    (GOES_ON, {}, "--on-worker-loss needs --local or --hosts"),
])  # fmt: skip
def test_what_cannot_go_on_is_refused_with_the_reason(place, arguments, environ, text):
    (place.folder / "hosts").write_text("127.0.0.1\n127.0.0.2\n")
    code, out, err = place.run(*arguments, "--", "true", environ=environ)
    assert code == 2 and text in err and "Traceback" not in err, err
    assert place.left() == []


def test_the_option_wins_over_the_variable():
    for environ, wanted, goes_on in [
        ({}, None, False),
        ({}, "fail", False),
        ({}, "continue", True),
        ({"BYTEPS_ON_WORKER_LOSS": "continue"}, None, True),
        ({"BYTEPS_ON_WORKER_LOSS": "fail"}, "continue", True),
        ({"BYTEPS_ON_WORKER_LOSS": "continue", "BYTEPS_RECOVERY": "0"}, "fail", False),
    ]:
        losses.settle(environ, wanted)
        assert losses.goes_on(environ) == goes_on
    with pytest.raises(BadEnvironment, match="exclude each other"):
        losses.settle({"BYTEPS_RECOVERY": "0"}, "continue")


def test_all_that_are_lost_at_once_are_named_at_the_end(place):
    does = "until [ -e at_once ]; do sleep 0.02; done; [ $BYTEPS_LOCAL_RANK = 4 ] || kill -9 $$"
    run = Run(place, *THREE, "--workers", "5", *GOES_ON, "--", *program("none", "true", does + "; sleep 2"))
    wait_for("all workers", all_here(place, 5))
    (place.folder / "at_once").touch()
    code, lines = run.end()
    assert code == 0 and "all other workers ended well" in lines[-5], run.err
    for rank, line in enumerate(lines[-4:]):
        assert re.fullmatch(rf"bpslaunch: worker {rank} .* was lost: ended by .*; the job went on without it", line)


# ---- exit codes of services


def play(place, role, first):
    """What the first process of this role does; one that is started again does as ever."""
    path = place.folder / f"services/byteps_{role}"
    path.write_text(path.read_text().replace("\n", f'\n[ -n "$BYTEPS_ATTEMPT" ] || {{ {first}; }}\n', 1))


@pytest.mark.parametrize("policy", ["fail", "continue"])
@pytest.mark.parametrize("role, code, name", [
    ("server", 143, "SIGTERM"), ("server", 137, "SIGKILL"), ("server", 139, "SIGSEGV"), ("scheduler", 134, "SIGABRT"),
])  # fmt: skip
def test_a_service_that_exits_with_the_code_of_a_signal_is_started_again(place, policy, role, code, name):
    play(place, role, f"exit {code}")
    run = Run(place, *THREE, "--on-worker-loss", policy, "--", *program("none", "true"))
    run.wait_for(rf"{role}.* \(pid \d+\) was ended by signal {name} \(exit code {code}\): it is started again")
    go(place)
    code, lines = run.end()
    assert code == 0 and "all workers ended well" in lines[-1], run.err
    assert "failed" not in run.err and place.left() == []


@pytest.mark.parametrize("policy", ["fail", "continue"])
@pytest.mark.parametrize("role, code", [("server", 130), ("scheduler", 130), ("scheduler", 143), ("server", 7)])
def test_a_service_that_has_ended_the_job_with_its_exit_is_not_started_again(place, policy, role, code):
    play(place, role, f"exit {code}")
    got, out, err = place.run(*THREE, "--on-worker-loss", policy, "--", *program("none", "true"))
    assert got == code and re.search(rf"{role}.* \(pid \d+\) failed with exit code {code}; ending the others", err), err
    assert "started again" not in err and place.left() == []


def test_a_service_that_always_exits_with_the_code_of_a_signal_is_given_up(place):
    (place.folder / "services/byteps_server").write_text("#!/bin/bash\nexit 143\n")
    code, out, err = place.run(*THREE, "--", *program("none", "true"))
    assert code == 143 and err.count("it is started again") == 2, err
    assert "server 0 is not started again: it died 3 times in a row within 1 s of its start" in err


def test_a_service_that_cannot_be_started_again_fails_the_job_with_the_reason(place):
    run = Run(place, *THREE, "--", *program("none", "true"))
    wait_for("all workers", all_here(place))
    (place.folder / "services/byteps_server").chmod(0o644)
    os.kill(server_pid(place), signal.SIGKILL)
    code, lines = run.end()
    assert code == 126, run.err
    assert "bpslaunch: server 0: cannot be started again: Permission denied; ending the others" in lines, run.err
    assert place.left() == []


def server_pid(place):
    """Of the played one, once it sleeps."""
    found = lambda: [pid for pid, what in place.living().items() if what == "sleep 999 " and is_server(pid)]
    wait_for("a server", found)
    return found()[0]


def is_server(pid):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return b"DMLC_ROLE=server" in file.read().split(b"\0")
    except OSError:
        return False


# ---- a keeper is killed


def keeper_of(place, parent_pid):
    """The child that has its parent's command line, for it was forked."""
    found = lambda: [pid for pid, what in place.living().items()
                     if what == place.living().get(parent_pid) and parent(pid) == parent_pid]  # fmt: skip
    wait_for("a keeper", found)
    (pid,) = found()
    return pid


@pytest.mark.parametrize("policy", ["fail", "continue"])
def test_the_death_of_the_keeper_costs_the_job_nothing(place, policy):
    run = Run(place, *THREE, "--on-worker-loss", policy, "--", *program("none", "true"))
    wait_for("all workers", all_here(place))
    os.kill(keeper_of(place, run.launcher.pid), signal.SIGKILL)
    run.wait_for(r"the keeper \(pid \d+\), .*, has ended with signal SIGKILL: another one is started")
    os.kill(server_pid(place), signal.SIGKILL)
    run.wait_for("server 0 .*: it is started again")
    os.kill(keeper_of(place, run.launcher.pid), signal.SIGKILL)
    go(place)
    code, lines = run.end()
    assert code == 0 and "all workers ended well" in lines[-1], run.err
    assert place.left() == []


def test_the_next_keeper_ends_what_the_first_one_was_told_of(place):
    stubborn = "trap '' TERM INT; while :; do sleep 1000; done"
    run = Run(place, *THREE, "--", *program("none", "true", f'bash -c "{stubborn}"; echo not reached'))
    wait_for("all workers", all_here(place))
    os.kill(keeper_of(place, run.launcher.pid), signal.SIGKILL)
    run.wait_for("another one is started")
    run.launcher.kill()
    run.launcher.wait()
    assert place.left(wait_s=10) == []


def test_a_keeper_that_is_killed_again_and_again_is_gone_without_at_last(place):
    run = Run(place, *THREE, "--", *program("none", "true"))
    wait_for("all workers", all_here(place))
    for times in range(1, 11):
        os.kill(keeper_of(place, run.launcher.pid), signal.SIGKILL)
        run.wait_for("the keeper .* has ended", times=times)
    assert run.err.count("another one is started") == 9
    assert "has ended with signal SIGKILL, as 9 before it: the job goes on without one" in run.err
    go(place)
    assert run.end()[0] == 0, run.err
    assert place.left() == []


# ---- what the scheduler is told


def test_a_line_for_the_scheduler_is_one_line_and_short():
    assert losses.line(3, "was ended by signal SIGKILL") == "worker 3 was ended by signal SIGKILL"
    assert losses.line(3, "was lost: a\nb\x1b[2J\tc") == "worker 3 was lost: a b [2J c"
    for each in ("x", "é", "€"):
        long = losses.line(4095, each * 10_000).encode()
        assert 512 < len(long) <= 512 + len("worker 4095 ")
    assert losses.line(0, "\udcff").encode() == b"worker 0 ?" or losses.line(0, "\udcff").isprintable()


def test_who_tells_never_waits_for_a_scheduler_that_does_not_read():
    child = subprocess.Popen(["sleep", "1000"], stdin=subprocess.PIPE)
    try:
        ear = losses.Ear(child)
        begin_s = time.monotonic()
        for rank in range(4000):
            ear.tell(losses.line(rank, "x" * 100))
        assert ear.waits and time.monotonic() - begin_s < 10
        child.kill()
        child.wait()
        ear.tell("worker 1 died")  # nobody hears it any more
        assert not ear.waits
    finally:
        child.kill()
        child.wait()
        child.stdin.close()


def test_a_scheduler_that_reads_again_gets_what_waited():
    child = subprocess.Popen(["bash", "-c", "read -r; wc -l"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    os.kill(child.pid, signal.SIGSTOP)
    ear = losses.Ear(child)
    for rank in range(4001):
        ear.tell(losses.line(rank, "x" * 100))
    assert ear.waits
    os.kill(child.pid, signal.SIGCONT)
    while ear.waits:
        ear.flush()
        time.sleep(0.01)
    child.stdin.close()
    assert child.stdout.read().strip() == b"4000"
    child.stdout.close()
    child.wait()


# ---- who was replaced says so with its exit code


def test_the_exit_code_is_the_same_wherever_it_is_written():
    assert losses.EXIT_REPLACED == abi.EXIT_REPLACED


@pytest.mark.parametrize("policy, is_replaced, is_left, code", [
    ("continue", True, False, 86), ("continue", True, True, 86),
    ("continue", False, False, 1), ("fail", True, False, 1),
])  # fmt: skip
def test_an_exception_nobody_caught_says_that_the_job_goes_on_without_this_process(
    place, policy, is_replaced, is_left, code
):
    text = f"""
import atexit
from byteps._core import session
class Played:
    is_live, is_replaced = True, {is_replaced}
    def check_not_forked(self): pass
    def leave(self, final): self.is_live = False
session.Job.join = classmethod(lambda cls, settings=None: Played())
session.init()
atexit.register(lambda: print("ended as it does"))
if {is_left}:
    session.shutdown()
raise RuntimeError("what failed")
"""
    environ = {"BYTEPS_ON_WORKER_LOSS": policy}
    process = place.start([PYTHON, "-c", text], environ)
    out, err = process.communicate(timeout=30)
    assert process.returncode == code and out == "ended as it does\n", err
    assert err.count("RuntimeError: what failed") == 1 and "SystemExit" not in err


def test_without_the_policy_nothing_is_hooked():
    assert session._former_hook is None and sys.excepthook is not session._on_uncaught


# ---- on several hosts


def on_hosts(place, ssh, *options, text=TWO_HOSTS):
    hostfile = place.folder / "hosts"
    hostfile.write_text(text)
    variables = ["--grace", "0.3", "-x", MARK, "-x", "BYTEPS_FORCE_DISTRIBUTED=1"]
    return ["--hosts", hostfile, "--ssh", ssh, *variables, *options, "--"]


def worker_pid(place, rank):
    leaders = [pid for pid, command in place.living().items() if "bash -c touch" in command and os.getsid(pid) == pid]
    for pid in leaders:
        with open(f"/proc/{pid}/environ", "rb") as file:
            if f"BYTEPS_GLOBAL_RANK={rank}".encode() in file.read().split(b"\0"):
                return pid
    raise AssertionError(f"there is no worker {rank}")


def parent(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])


WAITING = program("none", "true")


def test_a_worker_that_is_killed_on_another_host_is_a_loss(place, stand_in):
    run = Run(place, *on_hosts(place, stand_in, *GOES_ON), *program(2, "kill -9 $$"))
    run.wait_for(r"worker 2 on 127.0.0.2 \(pid \d+\) was lost: ended by signal SIGKILL; the job goes on without it")
    run.wait_for(r"\[scheduler\] heard worker 2 was ended by signal SIGKILL\n")
    os.kill(pid_of(place, "scheduler"), signal.SIGKILL)  # the agent there tells the next one
    run.wait_for(r"\[scheduler\] heard worker 2 was ended by signal SIGKILL\n", times=2)
    go(place)
    code, lines = run.end()
    assert code == 0 and "worker 2 on 127.0.0.2 (pid " in lines[-1], run.err
    assert place.left(wait_s=5) == []


def lose_host(place, ssh, how):
    """A job that goes on, and loses the second of two hosts: its lines, for its exit code 0."""
    run = Run(place, *on_hosts(place, ssh, *GOES_ON), *WAITING)
    wait_for("all workers", all_here(place), 30)
    how()
    run.wait_for(r"host 127.0.0.2 was lost with server 1 and worker 1 and worker 2: .*; the job goes on without it")
    for rank in (1, 2):
        run.wait_for(rf"\[scheduler\] heard worker {rank} was lost with its host 127.0.0.2: ")
    go(place)
    code, lines = run.end()
    assert code == 0, run.err
    assert "host 127.0.0.2 was lost with server 1 and worker 1 and worker 2: " in lines[-1], run.err
    assert "all other workers ended well" in lines[-2] and lines[-1].endswith("the job went on without it")
    assert place.left(wait_s=10) == []


def test_the_death_of_an_agent_is_the_loss_of_its_host(place, stand_in):
    lose_host(place, stand_in, lambda: os.kill(parent(worker_pid(place, 1)), signal.SIGKILL))


def test_the_death_of_an_agent_s_keeper_costs_nothing(place, stand_in):
    run = Run(place, *on_hosts(place, stand_in), *WAITING)
    wait_for("all workers", all_here(place), 30)
    agent = parent(worker_pid(place, 1))
    first = keeper_of(place, agent)
    os.kill(first, signal.SIGKILL)
    wait_for("the next one", lambda: first not in place.living() and keeper_of(place, agent) != first)
    go(place)
    code, lines = run.end()
    assert code == 0 and "all workers ended well" in lines[-1], run.err
    assert place.left(wait_s=10) == []


def test_the_end_of_an_agent_is_the_loss_of_its_host(place, stand_in):
    lose_host(place, stand_in, lambda: os.kill(parent(worker_pid(place, 1)), signal.SIGTERM))


def test_the_death_of_a_link_is_the_loss_of_its_host(place, sshd):
    def kill_ssh():
        agents = {parent(worker_pid(place, 1))}
        sessions = [pid for pid in sshd.sessions() if agents & descendants(pid)]
        assert len(sessions) == 1
        os.kill(sessions[0], signal.SIGKILL)

    lose_host(place, sshd.command, kill_ssh)


def descendants(pid):
    found, new = set(), {pid}
    while new:
        found |= new
        parents = {}
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                parents[int(entry)] = parent(entry)
            except OSError:
                continue
        new = {child for child, of in parents.items() if of in found} - found
    return found


@pytest.mark.parametrize("text, rank", [(TWO_HOSTS, 1), (TWO_HOSTS, 0)], ids=["any", "scheduler's"])
def test_the_loss_of_a_host_ends_a_job_that_does_not_go_on_by_its_name(place, stand_in, text, rank):
    run = Run(place, *on_hosts(place, stand_in, text=text), *WAITING)
    wait_for("all workers", all_here(place), 30)
    os.kill(parent(worker_pid(place, rank)), signal.SIGKILL)
    code, lines = run.end()
    host = f"127.0.0.{1 + rank}"
    assert code == 255 and re.search(rf"on {host}: lost the connection to {host}: .*; ending the others", run.err)
    assert place.left(wait_s=10) == []


def test_no_job_goes_on_without_the_host_of_its_scheduler(place, stand_in):
    run = Run(place, *on_hosts(place, stand_in, *GOES_ON), *WAITING)
    wait_for("all workers", all_here(place), 30)
    os.kill(parent(worker_pid(place, 0)), signal.SIGKILL)
    code, lines = run.end()
    assert code == 255, run.err
    assert re.search(r"scheduler on 127.0.0.1: lost the connection to 127.0.0.1: .*; ending the others", run.err)
    assert "without it" not in run.err
    assert place.left(wait_s=10) == []


def test_the_death_of_bpslaunch_takes_a_job_on_hosts_with_it(place, stand_in):
    run = Run(place, *on_hosts(place, stand_in, *GOES_ON), *program(2, "kill -9 $$"))
    run.wait_for("worker 2 .* was lost")
    run.launcher.kill()
    run.launcher.wait()
    assert place.left(wait_s=10) == []
