"""bpslaunch --local: a whole job on this machine."""

import os
import pty
import re
import signal
import sys
import time

import pytest
from place import BUILD, MEMBER, key_files, seen_by_others, wait_for

from byteps.launcher import plan
from byteps.launcher.main import local_counts, parse

PYTHON = sys.executable
USED_SERVERS = ["--servers", "2", "-x", "BYTEPS_FORCE_DISTRIBUTED=1"]


def both_joined(place):
    return lambda: {"joined0", "joined1"} <= set(os.listdir(place.folder))


def test_workers_sum_and_each_line_says_whose_it_is(place):
    code, out, err = place.run("--local", "--workers", "2", *USED_SERVERS, "--", PYTHON, MEMBER)
    assert code == 0, err
    assert sorted(out.splitlines()) == ["[worker 0] rank 0 of 2, sum 3", "[worker 1] rank 1 of 2, sum 3"]
    first, last = err.splitlines()  # quiet: one line at the start, one at the end
    assert first.startswith("bpslaunch: 2 workers, 2 servers, scheduler on 127.0.0.1 port ")
    assert re.fullmatch(r"bpslaunch: all workers ended well after [0-9.]+ s", last)
    assert place.left() == []


def test_a_failing_rank_ends_the_job_with_its_exit_code_and_name(place):
    code, out, err = place.run("--local", "--", PYTHON, MEMBER, "--only", "1", "--exit", "7")
    assert code == 7, err
    assert "worker 1 (pid " in err and "failed with exit code 7; ending the others" in err
    assert place.left() == []


def test_ending_is_quick_and_says_nothing_of_servers(place):
    begin = time.monotonic()
    code, out, err = place.run(
        "--local", *USED_SERVERS, "--grace", "50", "--", PYTHON, MEMBER, "--only", "1", "--exit", "7"
    )
    assert code == 7
    assert time.monotonic() - begin < 40, "it has waited for the grace period"
    assert "[server" not in err and "[scheduler]" not in err


def test_a_worker_for_each_gpu_that_is_visible(place):
    fake = {"BYTEPS_CUDA_LIBRARY": str(BUILD / "lib/fake_gpu/libcuda.so.1"), "FAKE_GPU_COUNT": "3"}
    program = "import os; print(os.environ['BYTEPS_LOCAL_RANK'], os.environ['BYTEPS_LOCAL_SIZE'])"
    code, out, err = place.run("--local", "--workers", "gpu", "--", PYTHON, "-c", program, environ=fake)
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"[worker {rank}] {rank} 3" for rank in range(3)]


def test_without_a_gpu_a_worker_for_each_is_refused_with_the_reason(place):
    nowhere = {"BYTEPS_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    code, out, err = place.run("--local", "--workers", "gpu", "--", PYTHON, MEMBER, environ=nowhere)
    assert code == 127 and out == ""
    assert "no GPU was found for --workers gpu: no CUDA driver: /nowhere/libcuda.so.1" in err


def test_the_last_lines_of_a_failing_rank_are_repeated(place):
    program = "import sys; print('what went wrong', file=sys.stderr); sys.exit(3)"
    code, out, err = place.run("--local", "--workers", "1", "--", PYTHON, "-c", program)
    assert code == 3
    assert "[worker 0] what went wrong" in err
    assert "bpslaunch: its last lines:\nbpslaunch:   | what went wrong\n" in err


def test_a_killed_rank_ends_the_job_with_128_and_its_signal(place):
    code, out, err = place.run("--local", "--", PYTHON, MEMBER, "--only", "0", "--kill")
    assert code == 128 + signal.SIGKILL
    assert "worker 0 (pid " in err and "failed with signal SIGKILL (exit code 137)" in err
    assert place.left() == []


def test_a_killed_server_ends_the_job_and_is_named(place):
    command = ["--local", *USED_SERVERS, "-x", "BYTEPS_RECOVERY=0", "--", PYTHON, MEMBER, "--sleep"]
    launcher = place.launch(*command, "--touch", "joined")
    wait_for("both workers to join", both_joined(place))
    server = next(pid for pid, command in place.living().items() if "byteps_server" in command)
    os.kill(server, signal.SIGKILL)
    out, err = launcher.communicate(timeout=30)
    assert launcher.returncode == 128 + signal.SIGKILL
    assert f"(pid {server}) failed with signal SIGKILL" in err
    assert place.left() == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_reaches_the_workers_and_everything_ends(place, number):
    launcher = place.launch("--local", "--", PYTHON, MEMBER, "--sleep", "--touch", "joined")
    wait_for("both workers to join", both_joined(place))
    launcher.send_signal(number)
    out, err = launcher.communicate(timeout=30)
    assert launcher.returncode == 128 + number
    assert f"bpslaunch: {number.name}: ending the job" in err
    if number == signal.SIGINT:
        assert err.count("KeyboardInterrupt") == 2  # each worker could clean up
    assert place.left() == []


def test_workers_that_ignore_signals_are_killed_after_the_grace(place):
    program = (
        "import signal, time, pathlib, os\n"
        "for number in (signal.SIGINT, signal.SIGTERM): signal.signal(number, signal.SIG_IGN)\n"
        "pathlib.Path('joined' + os.environ['BYTEPS_LOCAL_RANK']).touch()\n"
        "time.sleep(1000)"
    )
    launcher = place.launch("--local", "--grace", "0.3", "--", PYTHON, "-c", program)
    wait_for("both workers to join", both_joined(place))
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=20)
    assert launcher.returncode == 128 + signal.SIGINT
    assert place.left() == []


def test_a_second_interrupt_kills_at_once(place):
    program = (
        "import signal, time, pathlib, os\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "pathlib.Path('joined' + os.environ['BYTEPS_LOCAL_RANK']).touch()\n"
        "time.sleep(1000)"
    )
    launcher = place.launch("--local", "--grace", "600", "--", PYTHON, "-c", program)
    wait_for("both workers to join", both_joined(place))
    launcher.send_signal(signal.SIGINT)
    assert launcher.stderr.readline()  # the start
    assert "SIGINT: ending the job" in launcher.stderr.readline()
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=20)
    assert launcher.returncode == 128 + signal.SIGINT
    assert place.left() == []


def test_killing_bpslaunch_itself_leaves_no_orphan(place):
    launcher = place.launch("--local", *USED_SERVERS, "--", PYTHON, MEMBER, "--sleep", "--touch", "joined")
    wait_for("both workers to join", both_joined(place))
    assert len(place.living()) >= 6  # bpslaunch, its keeper, scheduler, servers, workers
    launcher.kill()
    launcher.wait()
    assert place.left(wait_s=10) == []


def test_killing_bpslaunch_also_ends_stubborn_grandchildren(place):
    program = "trap '' TERM INT; touch joined$BYTEPS_LOCAL_RANK; while :; do sleep 1000; done"
    launcher = place.launch("--local", "--", "bash", "-c", f'bash -c "{program}"; echo not reached')
    wait_for("both workers to join", both_joined(place))
    launcher.kill()
    launcher.wait()
    assert place.left(wait_s=10) == []


def test_a_child_is_ended_with_bpslaunch_before_that_has_told_the_keeper_of_it(place):
    program = (
        "import os, signal, subprocess\n"
        "from byteps.launcher.keeper import Keeper\n"
        "keeper = Keeper()\n"
        "stubborn = ['bash', '-c', \"trap '' TERM; touch up; while :; do sleep 1000; done\"]\n"
        "subprocess.Popen(stubborn, start_new_session=True, preexec_fn=keeper.watch_self)\n"
        "while not os.path.exists('up'): pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert place.start([PYTHON, "-c", program]).wait(20) == -signal.SIGKILL
    assert place.left(wait_s=10) == []


def test_what_a_worker_leaves_running_is_ended(place):
    code, out, err = place.run("--local", "--grace", "0.3", "--", "bash", "-c", "sleep 1000 & exit 0")
    assert code == 0
    assert "something that worker 0 started still runs after the workers have ended: SIGTERM" in err
    assert place.left() == []


def test_workers_that_never_join_are_a_success_of_their_own(place):
    code, out, err = place.run("--local", "--grace", "0.3", "--", PYTHON, "-c", "print('alone')")
    assert code == 0
    assert sorted(out.splitlines()) == ["[worker 0] alone", "[worker 1] alone"]
    assert place.left() == []


def test_one_worker_needs_no_servers(place):
    code, out, err = place.run("--local", "--workers", "1", "--", PYTHON, MEMBER)
    assert (code, out) == (0, "[worker 0] rank 0 of 1, sum 1\n")
    assert "1 worker, 0 servers: " in err


def test_one_worker_uses_servers_when_told(place):
    code, out, err = place.run("--local", "--workers", "1", *USED_SERVERS, "--", PYTHON, MEMBER)
    assert (code, out) == (0, "[worker 0] rank 0 of 1, sum 1\n")
    assert "1 worker, 2 servers, scheduler on " in err


@pytest.mark.parametrize("workers, who, why", [
    (2, "[scheduler] [byteps WARNING scheduler]", "all workers are on one machine, and sum there themselves"),
    (1, "bpslaunch:", "a single worker has nobody to sum with"),
])  # fmt: skip
def test_servers_that_are_not_used_are_one_line_with_the_variable_that_uses_them(place, workers, who, why):
    code, out, err = place.run("--local", "--workers", str(workers), "--servers", "2", "--", PYTHON, MEMBER)
    assert code == 0 and len(out.splitlines()) == workers, err
    _, line, _ = err.splitlines()
    assert line == f"{who} 2 servers are not used: {why} (BYTEPS_FORCE_DISTRIBUTED=1 uses servers all the same)"
    assert place.left() == []


def test_workers_that_may_not_sum_among_themselves_get_a_server(place):
    code, out, err = place.run("--local", "-x", "BYTEPS_LOCAL_REDUCE=0", "--", PYTHON, MEMBER)
    assert code == 0, err
    assert "2 workers, 1 server, " in err and "not used" not in err


@pytest.mark.parametrize("options, environ, counts", [
    ("", {}, (2, 0)),
    ("--workers 4", {}, (4, 0)),
    ("--workers 4 --servers 3", {}, (4, 3)),
    ("--workers 4 --shards 2", {}, (4, 1)),
    ("--workers 4", {"BYTEPS_FORCE_DISTRIBUTED": "1"}, (4, 1)),
    ("--workers 4 --servers 0", {"BYTEPS_FORCE_DISTRIBUTED": "1"}, (4, 0)),
    ("--workers 1", {"BYTEPS_FORCE_DISTRIBUTED": "1"}, (1, 0)),
    ("--workers 4", {"BYTEPS_LOCAL_REDUCE": "0"}, (4, 1)),
])  # fmt: skip
def test_there_are_no_servers_on_one_machine_unless_asked_for(options, environ, counts):
    assert local_counts(parse(["--local", *options.split(), "true"]), environ) == counts


@pytest.mark.parametrize("counts, roles, said", [
    ((3, 0), ["scheduler", "worker", "worker", "worker"], ("0", None)),
    ((2, 1), ["scheduler", "server", "worker", "worker"], ("1", None)),
    ((2, 1, "1"), ["scheduler", "server", "worker", "worker"], ("1", "1")),
    ((2, 0, "1"), ["scheduler", "worker", "worker"], ("0", None)),
    ((1, 1, "1"), ["scheduler", "server", "worker"], ("1", "1")),
    ((1, 1), ["worker"], (None, None)),
    ((1, 0), ["worker"], (None, None)),
])  # fmt: skip
def test_workers_without_servers_have_a_scheduler_and_one_without_has_none(monkeypatch, counts, roles, said):
    monkeypatch.setattr(plan, "find_executable", lambda role, environ: role)
    workers, servers, *forced = counts
    environ = {"DMLC_NUM_SERVER": "7", "BYTEPS_FORCE_DISTRIBUTED": "".join(forced)}
    job = plan.whole_job(workers, servers, ["true"], environ)
    for held in job.held:
        held.close()
    assert [process.role for process in job.processes] == roles
    for process in job.processes:
        told = (process.environ.get("DMLC_NUM_SERVER"), process.environ.get("BYTEPS_FORCE_DISTRIBUTED") or None)
        assert told == said


def test_several_jobs_at_the_same_time_do_not_meet(place):
    jobs = [place.launch("--local", "--workers", str(n), "--", PYTHON, MEMBER) for n in (2, 3, 2)]
    sums = []
    for job in jobs:
        out, err = job.communicate(timeout=60)
        assert job.returncode == 0, err
        sums.append(sorted(out.splitlines())[0])
    assert sums == [
        "[worker 0] rank 0 of 2, sum 3",
        "[worker 0] rank 0 of 3, sum 6",
        "[worker 0] rank 0 of 2, sum 3",
    ]
    assert place.left() == []


def test_the_job_key_is_fresh_and_in_no_command_line_no_environment_and_no_output(place):
    keys = set()
    for _ in range(2):
        launcher = place.launch("--local", "--", PYTHON, MEMBER, "--sleep", "--touch", "joined")
        wait_for("both workers to join", both_joined(place))
        paths = key_files(place)
        assert len(paths) == 1  # all have the same one
        (path,) = paths
        assert os.stat(path).st_mode & 0o077 == 0
        key = open(path, "rb").readline().strip()
        assert len(key) == 64
        keys.add(key)
        assert key not in seen_by_others(place)
        launcher.send_signal(signal.SIGTERM)
        assert key.decode() not in "".join(launcher.communicate(timeout=30))
        for name in ("joined0", "joined1"):
            os.unlink(place.folder / name)
    assert len(keys) == 2
    assert place.left() == []


def test_a_variable_of_another_job_does_not_leak_in(place):
    environ = {
        "DMLC_ROLE": "server",
        "DMLC_PS_ROOT_URI": "10.1.2.3",
        "BYTEPS_GLOBAL_RANK": "5",
        "DMLC_NODE_HOST": "10.9.9.9",
    }
    code, out, err = place.run("--local", "--", PYTHON, MEMBER, environ=environ)
    assert code == 0, err


def test_env_sets_variables_for_all(place):
    program = "import os; print(os.environ['COLOUR'], os.environ['EMPTY'] == '')"
    code, out, err = place.run(
        "--local", "--workers", "1", "--env", "COLOUR=a=b c", "--env", "EMPTY=", "--", PYTHON, "-c", program
    )
    assert (code, out) == (0, "[worker 0] a=b c True\n")


# ---- the command


def test_quoting_is_preserved(place):
    words = ["a b", "", "$HOME", "'", '"', "*", "--local", "--", "ü"]
    code, out, err = place.run("--local", "--workers", "1", PYTHON, "-c", "import sys; print(sys.argv[1:])", *words)
    assert (code, out) == (0, f"[worker 0] {words!r}\n")


def test_one_string_is_cut_as_a_shell_would(place):
    code, out, err = place.run(
        "--local", "--workers", "1", f"{PYTHON} -c 'import sys; print(sys.argv[1:])' 'a b' c"
    )
    assert (code, out) == (0, "[worker 0] ['a b', 'c']\n")


@pytest.mark.parametrize(
    "arguments, code, text",
    [
        (["--local"], 2, "there is no command"),
        (["--local", "--workers", "0", "x"], 2, "'0' is not a number from 1 to 4096"),
        (["--local", "--env", "COLOUR", "true"], 2, "'COLOUR' is not of the form NAME=value"),
        (["--workers", "2", "true"], 2, "--workers needs --local"),
        (["--local", "cd /tmp && ls"], 2, "'&&', which needs a shell"),
        (["--local", "--", "no_such_program"], 127, "there is no program 'no_such_program'"),
        (["--hosts", "", "true"], 2, "--hosts: it is empty"),
        (["--hosts", "x", "--ssh", "", "true"], 2, "--ssh: it is empty"),
        (["--local", "--workers", "1", "--ssh", "ssh", "true"], 2, "--ssh needs --hosts"),
    ],
)
def test_a_wrong_command_line_is_named(place, arguments, code, text):
    got, out, err = place.run(*arguments)
    assert got == code
    assert text in err
    assert place.left() == []


@pytest.mark.parametrize("name", ["./train.sh", "train.sh", "."])
def test_what_is_there_but_not_executable_is_told_from_what_is_missing(place, name):
    (place.folder / "train.sh").write_text("#!/bin/sh\n")
    code, out, err = place.run("--local", "--", name, environ={"PATH": f"/nowhere:{place.folder}"})
    assert code == 126
    assert f"{name}' is not executable" in err and "no program" not in err


def test_missing_executables_are_named(place):
    code, out, err = place.run("--local", "--", "true", environ={"BYTEPS_BIN": "/nowhere"})
    assert code == 127
    assert "byteps_scheduler was not found in /nowhere" in err


def test_help_explains_the_roles_with_an_example(place):
    code, out, err = place.run("--help")
    assert code == 0
    for text in (
        "worker ",
        "server ",
        "scheduler ",
        "bpslaunch --local --workers 2 -- python train.py",
    ):
        assert text in out


def test_version(place):
    code, out, err = place.run("--version")
    assert (code, out) == (0, "bpslaunch " + (place.root / "VERSION").read_text().strip() + "\n")


# ---- output


def test_standard_output_and_error_stay_apart(place):
    program = "import sys; print('to out'); print('to err', file=sys.stderr)"
    code, out, err = place.run("--local", "--workers", "1", "--", PYTHON, "-c", program)
    assert out == "[worker 0] to out\n"
    assert "[worker 0] to err\n" in err


def test_a_line_without_an_end_and_bytes_that_are_no_text_arrive(place):
    program = "import sys; sys.stdout.buffer.write(b'\\xff\\xfe ' + b'x' * 300000 + b'\\nlast')"
    launcher = place.launch("--local", "--workers", "1", "--", PYTHON, "-c", program)
    raw = launcher.stdout.buffer.read()
    assert launcher.wait(timeout=20) == 0
    assert raw.replace(b"\n[worker 0] x", b"x").count(b"x") == 300000
    assert raw.startswith(b"[worker 0] \xff\xfe x") and raw.endswith(b"[worker 0] last\n")


def test_who_is_missing_is_said_once(place):
    program = (
        "import os, runpy, sys, time\n"
        "while os.environ['BYTEPS_LOCAL_RANK'] == '1' and not os.path.exists('missed'): time.sleep(0.01)\n"
        f"sys.argv = [{MEMBER!r}]; runpy.run_path({MEMBER!r}, run_name='__main__')"
    )
    errors = place.folder / "errors"
    with open(errors, "w") as file:
        launcher = place.launch("--local", *USED_SERVERS, "--", PYTHON, "-c", program, stderr=file)
    wait_for("a notice", lambda: "waiting for" in errors.read_text())
    (place.folder / "missed").touch()
    launcher.communicate(timeout=60)
    err = errors.read_text()
    assert launcher.returncode == 0, err
    notices = [line for line in err.splitlines() if "waiting for" in line]
    assert len(notices) == 1 and notices[0].startswith("[scheduler] ")
    assert "waiting for worker 1 of 2; here: worker 0" in notices[0]


def test_no_prefix_leaves_the_output_as_it_is(place):
    code, out, err = place.run("--local", "--workers", "1", "--no-prefix", "--", PYTHON, "-c", "print('plain')")
    assert (code, out) == (0, "plain\n")


def test_a_progress_bar_in_a_file_leaves_its_first_and_its_last_state(place):
    program = (
        "import sys\n"
        "for step in range(101): sys.stdout.write(f'\\r{step}%'); sys.stdout.flush()\n"
        "sys.stdout.write('\\n'); print('done')"
    )
    code, out, err = place.run("--local", "--workers", "1", "--", PYTHON, "-c", program)
    lines = out.splitlines()
    assert lines[-2:] == ["[worker 0] 100%", "[worker 0] done"]
    assert len(lines) <= 3


def test_a_progress_bar_on_a_terminal_draws_over_itself(place):
    program = (
        "import os, sys, time\n"
        "for step in range(3):\n"
        "    sys.stdout.write(f'\\rstep {step}'); sys.stdout.flush()\n"
        "    while step < 2 and not os.path.exists(f'seen{step}'): time.sleep(0.01)\n"
        "sys.stdout.write('\\n')"
    )
    ours, theirs = pty.openpty()
    launcher = place.launch(
        "--local",
        "--workers",
        "1",
        "--",
        PYTHON,
        "-c",
        program,
        stdout=theirs,
        stderr=theirs,
        environ={"NO_COLOR": "1"},
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        seen += data
        for step in range(2):
            if b"step %d" % step in seen:
                (place.folder / f"seen{step}").touch()
    os.close(ours)
    assert launcher.wait(timeout=20) == 0
    assert b"[worker 0] step 0\r\x1b[K[worker 0] step 1\r\x1b[K" in seen
    assert b"[worker 0] step 2\r\n" in seen


def test_everything_ends_when_nobody_reads_the_output(place):
    program = "import time\nwhile True: print('line'); time.sleep(0.01)"
    launcher = place.launch("--local", "--grace", "1", "--", PYTHON, "-c", program)
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(timeout=20) == 128 + signal.SIGPIPE
    launcher.stderr.close()
    assert place.left() == []


@pytest.mark.parametrize("package", ["byteps.launcher.link", "byteps.recordings.flight"])
def test_ctrl_c_before_anything_has_begun_ends_quietly(place, package):
    """An interrupt while modules are loaded; here one of them sends it itself."""
    first = "import os, signal, sys\n"
    first += "class Finder:\n"
    first += f"    def find_spec(self, name, *_): name == {package!r} and os.kill(os.getpid(), signal.SIGINT)\n"
    first += "sys.meta_path.insert(0, Finder())\n"
    (place.folder / "sitecustomize.py").write_text(first)
    path = os.pathsep.join([str(place.folder), place.environ["PYTHONPATH"]])
    code, out, err = place.run("--local", "--", "true", environ={"PYTHONPATH": path})
    assert (code, out, err) == (128 + signal.SIGINT, "", "")


@pytest.mark.parametrize("closed", [(0, 1, 2), (1,)])
def test_closed_standard_descriptors_are_no_trouble(place, closed):
    program = "import os; open(os.environ['LOCAL_RANK'], 'w').write('ran')"
    shut = "".join(f" {fd}>&-" for fd in closed)
    run = f'exec "$0" "$@"{shut}'
    launcher = [PYTHON, "-m", "byteps.launcher", "--local", "--workers", "1", "--", PYTHON, "-c", program]
    assert place.start(["sh", "-c", run, *launcher]).wait(30) == 0
    assert (place.folder / "0").read_text() == "ran"
    service = place.start(["sh", "-c", run, PYTHON, "-m", "byteps.launcher"], {"DMLC_ROLE": "server"})
    assert service.wait(30) == 2  # its settings are missing
