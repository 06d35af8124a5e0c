"""bpslaunch told by the environment alone, as upstream's, and the executables that it becomes."""

import itertools
import os
import re
import signal
import sys

import pytest
from place import BUILD, MEMBER, free_port, wait_for, wait_until

PYTHON = sys.executable
ROLES = ("worker", "server", "scheduler")


def job(**changes):
    """A job of one worker machine that uses servers; a value of None takes the variable away."""
    environ = {
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_WORKER_ID": "0",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "BYTEPS_FORCE_DISTRIBUTED": "1",
        "BYTEPS_JOB_KEY": "a key of enough length",
    }
    environ.update(changes)
    return {name: value for name, value in environ.items() if value is not None}


@pytest.mark.parametrize(
    "role, changes, text",
    [
        (
            "worker",
            {"DMLC_NUM_WORKER": None},
            "DMLC_NUM_WORKER is missing: set it to the number of worker machines",
        ),
        (
            "server",
            {"DMLC_NUM_WORKER": None},
            "DMLC_NUM_WORKER is missing: set it to the number of worker machines",
        ),
        (
            "worker",
            {"DMLC_WORKER_ID": None},
            "DMLC_WORKER_ID is missing: set it to the index of this worker machine",
        ),
        (
            "worker",
            {"DMLC_WORKER_ID": "1"},
            "DMLC_WORKER_ID='1' is not valid: it takes the index of this worker machine, 0 to 0",
        ),
        (
            "worker",
            {"DMLC_NUM_SERVER": None},
            "DMLC_NUM_SERVER is missing: set it to the number of server processes",
        ),
        (
            "scheduler",
            {"DMLC_NUM_SERVER": "0"},
            "DMLC_NUM_SERVER='0' is not valid: it takes the number of server processes, 1 to",
        ),
        ("server", {"DMLC_PS_ROOT_URI": None}, "DMLC_PS_ROOT_URI is missing: set it to the scheduler's address"),
        (
            "worker",
            {"DMLC_PS_ROOT_PORT": "http"},
            "DMLC_PS_ROOT_PORT='http' is not valid: it takes the scheduler's TCP port, 1 to 65535",
        ),
        ("server", {"DMLC_PS_ROOT_PORT": "65536"}, "DMLC_PS_ROOT_PORT='65536' is not valid"),
        ("worker", {"DMLC_NUM_WORKER": "two"}, "DMLC_NUM_WORKER='two' is not valid"),
        ("worker", {"BYTEPS_LOCAL_SIZE": "-1"}, "BYTEPS_LOCAL_SIZE='-1' is not valid"),
        (
            "worker",
            {"BYTEPS_FORCE_DISTRIBUTED": "yes"},
            "BYTEPS_FORCE_DISTRIBUTED='yes' is not valid: it takes 0 or 1",
        ),
        (
            "worker",
            {"BYTEPS_VISIBLE_CPU_CORES": "a-b"},
            "BYTEPS_VISIBLE_CPU_CORES='a-b' is not valid: it takes a list of cores",
        ),
        ("master", {}, "DMLC_ROLE='master' is not valid: it takes one of worker, server, scheduler"),
    ],
)
def test_a_wrong_variable_is_named_with_exit_code_2(place, role, changes, text):
    command = [PYTHON, MEMBER] if role == "worker" else []
    code, out, err = place.run(*command, environ=job(DMLC_ROLE=role, **changes))
    assert code == 2
    assert text in err and len(err.splitlines()) == 1


def test_without_a_role_the_message_points_to_local(place):
    code, out, err = place.run(PYTHON, MEMBER)
    assert code == 2
    assert "DMLC_ROLE is missing: set it to worker, server or scheduler; or use --local" in err


@pytest.mark.parametrize("role", ["server", "scheduler"])
def test_the_executables_themselves_name_a_wrong_variable(place, role):
    for changes, name in [
        ({"DMLC_PS_ROOT_PORT": "x"}, "DMLC_PS_ROOT_PORT"),
        ({"DMLC_NUM_SERVER": None}, "DMLC_NUM_SERVER"),
        ({"DMLC_PS_ROOT_URI": None}, "DMLC_PS_ROOT_URI"),
        ({"BYTEPS_JOB_KEY": "short"}, "BYTEPS_JOB_KEY"),
        ({"BYTEPS_JOB_KEY": None, "DMLC_PS_ROOT_URI": "10.0.0.1"}, "BYTEPS_JOB_KEY_FILE"),
    ]:
        process = place.start([place.executable(role)], job(**changes))
        out, err = process.communicate(timeout=20)
        assert process.returncode == 2, err
        assert name in err


def listening_addresses(pid):
    """Local addresses of the listening sockets of a process, as the kernel lists them (hexadecimal)."""
    own = set()
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            own.add(os.readlink(f"/proc/{pid}/fd/{descriptor}"))
        except OSError:
            pass
    found = set()
    for table in ("tcp", "tcp6"):
        for line in open(f"/proc/{pid}/net/{table}").readlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
                found.add(fields[1].split(":")[0])
    return found


def test_without_a_key_scheduler_and_server_listen_on_loopback_only(place):
    environ = job(BYTEPS_JOB_KEY=None)
    for role in ("scheduler", "server"):
        process = place.start([place.executable(role)], environ)
        wait_for("a port", lambda: listening_addresses(process.pid))
        assert listening_addresses(process.pid) == {"0100007F"}


def test_an_interface_that_leads_outside_needs_a_key(place):
    interface = next((name for name in os.listdir("/sys/class/net") if name != "lo"), None)
    if interface is None:
        pytest.skip("this machine has no network interface beside lo")
    process = place.start([place.executable("server")], job(BYTEPS_JOB_KEY=None, DMLC_INTERFACE=interface))
    out, err = process.communicate(timeout=20)
    assert process.returncode == 2
    assert f"DMLC_INTERFACE='{interface}'" in err or "has no IP address" in err


def test_a_worker_without_a_key_refuses_to_leave_this_machine(place):
    environ = job(BYTEPS_JOB_KEY=None, DMLC_PS_ROOT_URI="10.0.0.1")
    process = place.start([PYTHON, MEMBER], environ)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "openssl rand -hex 16" in err and "BYTEPS_INSECURE=1" in err


def test_insecure_is_said_once_in_the_log(place):
    environ = job(BYTEPS_JOB_KEY=None, BYTEPS_INSECURE="1")
    processes = [place.start([place.executable(role)], environ) for role in ("scheduler", "server")]
    processes.append(place.start([PYTHON, MEMBER], environ))
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert err.count("BYTEPS_INSECURE=1 and no job key") == 1


@pytest.mark.parametrize("order", list(itertools.permutations(ROLES)))
def test_the_order_of_starting_does_not_matter(place, order):
    environ = job()
    processes = {}
    for role in order:
        command = [PYTHON, MEMBER] if role == "worker" else []
        processes[role] = place.launch(*command, environ={**environ, "DMLC_ROLE": role})
        wait_until(lambda: False, timeout_s=0.3)  # the others meet an absent one, not only a slow one
    for role, process in processes.items():
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, (role, err)
        assert out == ("rank 0 of 1, sum 1\n" if role == "worker" else "")
    assert place.left() == []


def test_two_machines_with_two_workers_each(place):
    environ = job(DMLC_NUM_WORKER="2", DMLC_NUM_SERVER="2", BYTEPS_LOCAL_SIZE="2", BYTEPS_FORCE_DISTRIBUTED=None)
    processes = [
        place.launch(PYTHON, MEMBER, environ={**environ, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": machine})
        for machine in "01"
    ]
    processes += [
        place.launch(environ={**environ, "DMLC_ROLE": role}) for role in ("server", "server", "scheduler")
    ]
    lines = []
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        lines += out.splitlines()
    assert sorted(lines) == [f"rank {rank} of 4, sum 10" for rank in range(4)]
    assert place.left() == []


def test_one_machine_with_several_devices_needs_nothing_else(place):
    # As upstream's tutorial has it: the scheduler's address is given but nobody is there.
    environ = job(DMLC_ROLE="worker", BYTEPS_FORCE_DISTRIBUTED=None, NVIDIA_VISIBLE_DEVICES="0,1,2")
    code, out, err = place.run(PYTHON, MEMBER, environ=environ)
    assert code == 0, err
    assert sorted(out.splitlines()) == [f"rank {rank} of 3, sum 6" for rank in range(3)]
    for role in ("server", "scheduler"):
        code, out, err = place.run(environ={**environ, "DMLC_ROLE": role})
        assert code == 0
        assert f"DMLC_NUM_WORKER=1 needs no {role}" in err


def test_one_worker_needs_no_server_and_is_the_launched_process_itself(place):
    environ = job(DMLC_ROLE="worker", BYTEPS_FORCE_DISTRIBUTED=None, DMLC_NUM_SERVER=None, DMLC_PS_ROOT_URI=None)
    launcher = place.launch(PYTHON, "-c", "import os; print(os.getpid())", environ=environ)
    out, err = launcher.communicate(timeout=20)
    assert (launcher.returncode, out, err) == (0, f"{launcher.pid}\n", "")


def test_the_first_failing_local_rank_ends_its_siblings(place):
    program = "import os, sys, time\n" "if os.environ['BYTEPS_LOCAL_RANK'] == '1': sys.exit(9)\n" "time.sleep(1000)"
    environ = job(DMLC_ROLE="worker", NVIDIA_VISIBLE_DEVICES="0,1")
    code, out, err = place.run(PYTHON, "-c", program, environ=environ)
    assert code == 9
    assert "worker 1 (pid " in err and "failed with exit code 9; ending the others" in err
    assert place.left() == []


@pytest.mark.parametrize(
    "devices, local_size, expected",
    [
        ("0,1", None, 2),
        ("all", None, 1),
        ("", "3", 3),
        (None, "2", 2),
        ("GPU-1f,GPU-2e,GPU-3d", "1", 3),
        (None, None, 1),
    ],
)
def test_the_number_of_local_ranks(place, devices, local_size, expected):
    program = "import os; print(os.environ['BYTEPS_LOCAL_RANK'], os.environ['BYTEPS_LOCAL_SIZE'])"
    environ = job(DMLC_ROLE="worker", NVIDIA_VISIBLE_DEVICES=devices, BYTEPS_LOCAL_SIZE=local_size)
    code, out, err = place.run(PYTHON, "-c", program, environ=environ)
    assert code == 0
    assert sorted(out.splitlines()) == [f"{rank} {expected}" for rank in range(expected)]


def test_ranks_are_bound_to_the_cores_listed_for_them(place):
    core = min(os.sched_getaffinity(0))
    environ = job(DMLC_ROLE="worker", BYTEPS_LOCAL_SIZE="2", BYTEPS_VISIBLE_CPU_CORES=f"{core}:{core}")
    code, out, err = place.run(PYTHON, "-c", "import os; print(os.sched_getaffinity(0))", environ=environ)
    assert (code, out) == (0, f"{{{core}}}\n" * 2)


def test_a_service_takes_no_command(place):
    code, out, err = place.run(PYTHON, "train.py", environ=job(DMLC_ROLE="server"))
    assert code == 2
    assert "DMLC_ROLE=server takes no command" in err


def test_a_service_that_waits_ends_at_once_on_sigterm(place):
    for role in ("scheduler", "server"):
        process = place.launch(environ=job(DMLC_ROLE=role, DMLC_NUM_WORKER="2"))
        wait_for(f"the {role}", lambda: any(f"byteps_{role}" in command for command in place.living().values()))
        wait_until(lambda: False, timeout_s=0.2)  # until it listens to signals
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
        assert process.returncode in (0, 128 + signal.SIGTERM)
    assert place.left() == []


def test_who_is_missing_is_said_after_some_seconds(place):
    environ = job(DMLC_NUM_SERVER="2")
    processes = [place.launch(environ={**environ, "DMLC_ROLE": role}) for role in ("scheduler", "server")]
    processes.append(place.launch(PYTHON, MEMBER, environ={**environ, "DMLC_ROLE": "worker"}))
    said = processes[2].stderr.readline()  # after 5 s
    assert "server" in said and re.search(r"missing|waiting", said, re.IGNORECASE), said
    processes.append(place.launch(environ={**environ, "DMLC_ROLE": "server"}))
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err


def test_gdb_keeps_the_exit_code(place):
    if not any(os.access(f"{folder}/gdb", os.X_OK) for folder in os.environ["PATH"].split(":")):
        environ = job(DMLC_ROLE="worker", BYTEPS_ENABLE_GDB="1")
        code, out, err = place.run(PYTHON, "-c", "pass", environ=environ)
        assert code == 2 and "there is no gdb along PATH" in err
        return
    environ = job(DMLC_ROLE="worker", BYTEPS_FORCE_DISTRIBUTED=None, BYTEPS_ENABLE_GDB="1")
    code, out, err = place.run("/bin/sh", "-c", "exit 5", environ=environ)
    assert code == 5, out + err


def test_the_build_is_the_one_meant():
    assert (BUILD / "bin/byteps_server").exists(), "make setup builds it"
