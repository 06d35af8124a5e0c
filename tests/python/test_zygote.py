"""A worker that is forked is what a started one is, to those who asked for it and to itself."""

import os
import signal
import subprocess
import sys
import time

import pytest
import zygote

ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith(zygote.LATE_PREFIXES)}
SLEEP = ["-c", "import time; print(flush=True); time.sleep(1000)"]


@pytest.fixture(scope="module")
def server():
    servers = zygote.Servers()
    yield servers.get(sys.executable, ["fractions"], ENVIRON)
    servers.end()


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def wait_for_end(pid, timeout_s=20):
    deadline_s = time.monotonic() + timeout_s
    while is_alive(pid):
        assert time.monotonic() < deadline_s, f"{pid} still runs"
        time.sleep(0.01)


def output(server, *args, **variables):
    """What a worker writes to a pipe, and its exit code."""
    reader, writer = os.pipe()
    worker = server.start(args, {**ENVIRON, **variables}, [writer])
    os.close(writer)
    with open(reader) as file:
        return file.read(), worker.wait(20)


def test_it_has_its_arguments_and_environment_and_what_was_imported(server):
    code = (
        "import os, sys; imported = 'fractions' in sys.modules; import fractions, __main__; "
        "os.write(int(sys.argv[1]), repr([imported, sys.argv[2:], __main__.__name__, os.environ['BYTEPS_X']]).encode())"
    )
    text, code = output(server, "-c", code, "@0", "@9", "word", BYTEPS_X="mine")
    assert (text, code) == (repr([True, ["@9", "word"], "__main__", "mine"]), 0)


def test_random_numbers_differ(server):
    code = "import os, random, sys; os.write(int(sys.argv[1]), str(random.random()).encode())"
    assert len({output(server, "-c", code, "@0") for _ in range(3)}) == 3


@pytest.mark.parametrize(
    "code, status",
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("import sys; sys.stderr = None; 1 / 0", 1),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os._exit(5)", 5),
    ],
)
def test_its_end_is_told(server, code, status):
    assert server.start(["-c", code], ENVIRON).wait(20) == status


def test_functions_for_its_end_are_called(server):
    code = "import atexit, os, sys; atexit.register(os.write, int(sys.argv[1]), b'bye')"
    assert output(server, "-c", code, "@0") == ("bye", 0)


def test_it_is_waited_for_and_ended_by_signals(server):
    for number in (signal.SIGTERM, signal.SIGKILL):
        worker = server.start(SLEEP, ENVIRON)
        assert worker.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            worker.wait(0.01)
        worker.send_signal(number)
        assert worker.wait(20) == -number == worker.poll()
        assert not os.path.exists(f"/proc/{worker.pid}"), "no zombie is left"
        worker.kill()  # no effect, and not on a process that has got the number since


def test_a_variable_that_imports_may_read_is_refused(server):
    with pytest.raises(zygote.Refused):
        server.start(["-c", "pass"], {**ENVIRON, "OMP_NUM_THREADS": "17"})


def test_imports_that_fail_or_start_threads_are_refused(tmp_path):
    (tmp_path / "with_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    servers = zygote.Servers()
    environ = {**ENVIRON, "PYTHONPATH": str(tmp_path)}
    for imports in (["no_such_module"], ["with_thread"]):
        with pytest.raises(zygote.Refused):
            servers.get(sys.executable, imports, environ).start(["-c", "pass"], environ)
    servers.end()


def test_a_command_is_python_with_its_output_and_exit_code_forked_or_not(server):
    code = "import sys; print('fractions' in sys.modules, input()); sys.exit(3)"
    for environ, forked in ((ENVIRON, True), ({**ENVIRON, "OMP_NUM_THREADS": "17"}, False)):
        done = subprocess.run([*server.command(), "-c", code], env=environ, input="in", text=True, capture_output=True)
        assert (done.stdout, done.returncode, done.stderr) == (f"{forked} in\n", 3, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_worker_ends_with_its_command(server, number):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(1000)"
    command = subprocess.Popen([*server.command(), "-c", code], env=ENVIRON, stdout=subprocess.PIPE)
    worker = int(command.stdout.readline())
    command.send_signal(number)
    assert command.wait(20) == -number
    wait_for_end(worker)
    command.stdout.close()


def test_nothing_is_left_when_who_asked_is_killed():
    script = (
        "import os, sys, zygote; environ = dict(os.environ); "
        "server = zygote.Servers().get(sys.executable, [], environ); "
        "worker = server.start(['-c', 'import time; time.sleep(1000)'], environ); "
        "print(worker.pid, server._process.pid, flush=True); input()"
    )
    environ = {**ENVIRON, "PYTHONPATH": os.path.dirname(zygote.__file__)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    asker = subprocess.Popen([sys.executable, "-c", script], env=environ, **pipes)
    pids = list(map(int, asker.stdout.readline().split()))
    assert len(pids) == 2 and all(map(is_alive, pids))
    asker.kill()
    asker.communicate()
    for pid in pids:
        wait_for_end(pid)
