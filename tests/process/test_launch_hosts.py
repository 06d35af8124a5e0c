"""bpslaunch --hosts: a job on several hosts over ssh. Two of them are this machine, as 127.0.0.1 and 127.0.0.2."""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import time
import zlib

import pytest

from byteps.recordings import first_cause, flight
from byteps.launcher import recordings
from byteps.launcher.hostfile import BadHostfile, parse_hosts
from byteps.launcher.hosts import BadHosts, forwarded, scheduler_address
from place import MARK, MEMBER, key_files, seen_by_others, wait_for, wait_until
from test_why import DIFFER

PYTHON = sys.executable
TWO_HOSTS = "127.0.0.1 workers=2 servers=1\n127.0.0.2 workers=1 servers=1\n"
SUMS = [f"[worker {rank}] rank {rank} of 3, sum 6" for rank in range(3)]


def on_hosts(place, ssh, *options, text=TWO_HOSTS):
    hostfile = place.folder / "hosts"
    hostfile.write_text(text)
    forced = ["-x", "BYTEPS_FORCE_DISTRIBUTED=1"]  # both hosts are one machine
    return ["--hosts", hostfile, "--ssh", ssh, "-x", MARK, *forced, *options, "--"]


def all_joined(place, count=3):
    return lambda: {f"joined{rank}" for rank in range(count)} <= set(os.listdir(place.folder))


# ---- over a real sshd


def test_a_job_on_two_hosts_sums_and_ends_well(place, sshd):
    code, out, err = place.run(*on_hosts(place, sshd.command), PYTHON, MEMBER)
    assert code == 0, err
    assert sorted(out.splitlines()) == SUMS
    first, last = err.splitlines()
    assert re.match(r"bpslaunch: 2 hosts, 3 workers, 2 servers, scheduler on 127.0.0.1 port \d+: python", first)
    assert "all workers ended well" in last
    assert place.left(wait_s=5) == []


PLACES = """
from byteps._core import horovod, session
session.init()
places = [session.rank(), session.local_rank(), session.local_size()]
places += [horovod.cross_rank(), horovod.cross_size(), horovod.is_homogeneous()]
print(" ".join(map(str, places)) + "\\n", end="")  # one write: ranks share a pipe
session.barrier()
"""


@pytest.mark.parametrize("workers, places", [
    # rank, local rank, local size; the machine's number among those with this local rank, their number; same counts?
    ([3, 1], ["0 0 3 0 2 False", "1 1 3 0 1 False", "2 2 3 0 1 False", "3 0 1 1 2 False"]),
    ([1, 2, 1], ["0 0 1 0 3 False", "1 0 2 1 3 False", "2 1 2 0 1 False", "3 0 1 2 3 False"]),
    ([2, 2], ["0 0 2 0 2 True", "1 1 2 0 2 True", "2 0 2 1 2 True", "3 1 2 1 2 True"]),
], ids=["3+1", "1+2+1", "2+2"])  # fmt: skip
def test_all_ranks_agree_about_the_machines_whatever_workers_each_has(place, stand_in, workers, places):
    text = "".join(f"127.0.0.{1 + i} workers={count} servers={int(i == 0)}\n" for i, count in enumerate(workers))
    code, out, err = place.run(*on_hosts(place, stand_in, "--no-prefix", text=text), PYTHON, "-c", PLACES)
    assert code == 0 and sorted(out.splitlines()) == places, out + err


def test_the_job_key_is_in_no_command_line_no_environment_and_no_output(place, sshd):
    launcher = place.launch(*on_hosts(place, sshd.command), PYTHON, MEMBER, "--sleep", "--touch", "joined")
    wait_for("all workers to join", all_joined(place), 30)
    paths = key_files(place)
    keys = {open(path, "rb").readline().strip() for path in paths}
    assert len(paths) == 2 and len(keys) == 1  # each host has its own file with the same key
    assert all(os.stat(path).st_mode & 0o077 == 0 for path in paths)
    (key,) = keys
    assert len(key) == 64
    assert key not in seen_by_others(place)
    launcher.send_signal(signal.SIGTERM)
    out, err = launcher.communicate(timeout=30)
    assert key.decode() not in out + err
    assert key not in sshd.log.read_bytes()


def test_a_key_that_is_set_here_is_the_jobs(place, sshd):
    key = "a key that was made before"
    (place.folder / "job.key").write_text(key + "\n")
    (place.folder / "job.key").chmod(0o600)
    program = "import os; print(open(os.environ['BYTEPS_JOB_KEY_FILE']).read().strip(), 'BYTEPS_JOB_KEY' in os.environ)"
    for environ in ({"BYTEPS_JOB_KEY_FILE": place.folder / "job.key"}, {"BYTEPS_JOB_KEY": key}):
        environ = {name: str(value) for name, value in environ.items()}
        code, out, err = place.run(
            *on_hosts(place, sshd.command, text="127.0.0.2 workers=1\n"), PYTHON, "-c", program, environ=environ
        )
        assert (code, out) == (0, f"[worker 0] {key} False\n"), err


def test_a_failing_worker_ends_everything_on_all_hosts(place, sshd):
    code, out, err = place.run(*on_hosts(place, sshd.command), PYTHON, MEMBER, "--only", "2", "--exit", "7")
    assert code == 7, err
    assert re.search(r"worker 2 on 127.0.0.2 \(pid \d+\) failed with exit code 7; ending the others", err)
    assert place.left(wait_s=5) == []


def test_killing_bpslaunch_leaves_nothing_on_the_hosts(place, sshd):
    launcher = place.launch(*on_hosts(place, sshd.command), PYTHON, MEMBER, "--sleep", "--touch", "joined")
    wait_for("all workers to join", all_joined(place), 30)
    agents = [command for command in place.living().values() if "byteps.launcher.agent" in command]
    assert len(agents) >= 2  # and a keeper for each
    launcher.kill()
    launcher.wait()
    assert place.left(wait_s=10) == []


def test_a_connection_that_breaks_ends_the_job_and_both_sides_of_it(place, sshd):
    launcher = place.launch(*on_hosts(place, sshd.command), PYTHON, MEMBER, "--sleep", "--touch", "joined")
    wait_for("all workers to join", all_joined(place), 30)
    for pid in sshd.sessions()[-1:]:
        os.kill(pid, signal.SIGKILL)
    out, err = launcher.communicate(timeout=30)
    assert launcher.returncode == 255, err
    assert re.search(r"on 127.0.0.[12]: lost the connection to 127.0.0.[12]: .*closed", err), err
    assert place.left(wait_s=10) == []


def test_a_signal_reaches_the_workers_on_all_hosts(place, sshd):
    launcher = place.launch(*on_hosts(place, sshd.command), PYTHON, MEMBER, "--sleep", "--touch", "joined")
    wait_for("all workers to join", all_joined(place), 30)
    launcher.send_signal(signal.SIGINT)
    out, err = launcher.communicate(timeout=30)
    assert launcher.returncode == 128 + signal.SIGINT
    assert err.count("KeyboardInterrupt") == 3, err  # each worker could clean up
    assert place.left(wait_s=5) == []


def test_a_host_without_sshd_is_named_with_ssh_s_own_words_and_a_remedy(place, sshd):
    begin_s = time.monotonic()
    code, out, err = place.run(*on_hosts(place, sshd.command, text=TWO_HOSTS + "127.0.0.3\n"), PYTHON, MEMBER)
    assert code == 255
    assert "host 127.0.0.3 cannot be reached over ssh: ssh: connect to host 127.0.0.3 port" in err
    assert "Connection refused" in err and "try by hand: ssh -p" in err
    assert time.monotonic() - begin_s < 30
    assert place.left(wait_s=5) == []


def test_a_user_key_that_the_host_does_not_know_is_said_without_asking_for_a_password(place, sshd):
    (sshd.folder / "user_key.pub").write_text("")
    code, out, err = place.run(*on_hosts(place, sshd.command), PYTHON, MEMBER)
    assert code == 255
    assert "Permission denied" in err


# ---- what flight recorders leave on the hosts


def folder_named_in(err):
    return err.rsplit("bps why ", 1)[1].split()[0]


def test_what_the_hosts_recorded_is_gathered_and_names_the_first_cause(place, sshd):
    code, out, err = place.run(*on_hosts(place, sshd.command), PYTHON, "-c", DIFFER)
    assert code == 1, err
    assert "bpslaunch: First cause: tensor " in err and " differs between ranks" in err, err
    gathered = flight.read([folder_named_in(err)])
    assert {"scheduler", "server", "worker", "launcher"} == {each.role for each in gathered}
    recorded, told = workers_in(gathered)
    assert len(recorded) >= 2 and {*recorded, *told} == {0, 1, 2}, (recorded, told)  # of both hosts
    verdict = first_cause.explain(folder_named_in(err))
    assert verdict.is_found and len(set(re.findall(r"worker [012]", verdict.cause))) == 2 and '"A"' in verdict.cause
    named = set(re.findall(r"\(events: ([^)]*)\)", err))
    assert named and all(os.path.exists(path) for path in named)  # what errors name is still there, on its host
    assert all(os.stat(each.path).st_mode & 0o077 == 0 for each in gathered)
    assert place.left(wait_s=5) == []


def test_a_kill_on_another_host_is_named(place, sshd):
    code, out, err = place.run(*on_hosts(place, sshd.command), PYTHON, MEMBER, "--only", "2", "--kill")
    assert code == 128 + signal.SIGKILL, err
    verdict = first_cause.explain(folder_named_in(err))
    assert (verdict.role, verdict.rank) == ("worker", 2) and "SIGKILL" in verdict.cause
    recorded, told = workers_in(flight.read([folder_named_in(err)]))
    assert {*recorded, *told} >= {0, 1}, (recorded, told)


def workers_in(gathered):
    """Ranks of those that have left a recording, and of those that were ended for the others' sake: who is before it
    knows that the job has failed leaves none."""
    recorded = [each.rank for each in gathered if each.role == "worker"]
    told = [e.rank for each in gathered for e in each.find("ended") if e.role == "worker" and e.fields.get("told")]
    return recorded, told


def test_a_folder_that_was_chosen_and_is_shared_has_each_recording_once(place, sshd):
    chosen = place.folder / "chosen"
    arguments = on_hosts(place, sshd.command, "-x", f"BYTEPS_FLIGHT_DIR={chosen}")
    code, out, err = place.run(*arguments, PYTHON, "-c", DIFFER)
    assert code == 1 and f"bps why {chosen}" in err, err
    gathered = flight.read([chosen])
    recorded, told = workers_in(gathered)
    assert len(recorded) == len(set(recorded)) >= 2 and {*recorded, *told} == {0, 1, 2}, (recorded, told)
    assert first_cause.explain(chosen).is_found
    assert place.recordings() == []


def test_a_job_on_hosts_that_ends_well_leaves_no_recording_and_no_folder(place, sshd):
    code, out, err = place.run(*on_hosts(place, sshd.command), PYTHON, MEMBER)
    assert code == 0, err
    default = place.temporary / f"byteps-{os.geteuid()}/flight"
    assert wait_until(lambda: list(default.glob("*")) == [], 5), list(default.glob("*"))


def test_a_host_that_is_lost_keeps_its_recordings_and_is_named(place, sshd):
    launcher = place.launch(*on_hosts(place, sshd.command), PYTHON, MEMBER, "--sleep", "--touch", "joined")
    wait_for("all workers to join", all_joined(place), 30)
    for pid in sshd.sessions()[-1:]:
        os.kill(pid, signal.SIGKILL)
    out, err = launcher.communicate(timeout=30)
    assert re.search(r"the last events of the processes of 127.0.0.[12] stay there: its connection is lost", err), err
    assert flight.read([folder_named_in(err)])  # those of the other host


def test_recordings_travel_within_bounds(tmp_path, monkeypatch):
    there, here = tmp_path / "there", tmp_path / "here"
    there.mkdir()
    packer = recordings.Recordings({"BYTEPS_FLIGHT_DIR": str(there)})
    lines = [json.dumps({"byteps_flight": flight.FORM, "role": "worker"})] + [json.dumps({"t": t}) for t in range(1000)]
    for name in ("worker-0-a-1", "scheduler-x-a-2"):
        (there / f"byteps-flight-{name}.jsonl").write_text("\n".join(lines) + "\n")
    (there / "byteps-flight-server-0-old-1.jsonl").write_text("{}\n")
    os.utime(there / "byteps-flight-server-0-old-1.jsonl", (1, 1))  # of another job
    monkeypatch.setattr(recordings, "FILE_BYTES_MAX", 1000)
    assert recordings.unpack(packer.pack(), here) == 0
    worker, scheduler = sorted(flight.read([here]), key=lambda each: each.path, reverse=True)
    assert worker.role == "worker" and worker.damaged_lines == 0
    assert worker.events[-1].t == 999 and 0 < len(worker.events) < 100  # the last ones
    monkeypatch.setattr(recordings, "HOST_BYTES_MAX", 500)
    reply = packer.pack()
    assert list(reply["files"]) == ["byteps-flight-scheduler-x-a-2.jsonl"] and reply["left_out"] == 1


@pytest.mark.parametrize(
    "files",
    [
        {"../byteps-flight-worker-0-a-1.jsonl": "eJwDAAAAAAE="},
        {"byteps-flight-../x.jsonl": "eJwDAAAAAAE="},
        {"byteps-flight-worker-0-a-1.jsonl": 7},
        {"byteps-flight-worker-0-a-1.jsonl": "no base64"},
        {"byteps-flight-worker-0-a-1.jsonl": "AAAA"},
        [],
    ],
)
def test_what_is_no_recording_does_not_leave_its_folder(tmp_path, files):
    recordings.unpack({"files": files}, tmp_path / "here")
    assert list(tmp_path.glob("**/*.jsonl")) == []


def test_a_recording_that_unpacks_to_more_than_allowed_is_cut(tmp_path, monkeypatch):
    monkeypatch.setattr(recordings, "FILE_BYTES_MAX", 1000)
    bomb = base64.b64encode(zlib.compress(bytes(1 << 20))).decode()
    recordings.unpack({"files": {"byteps-flight-worker-0-a-1.jsonl": bomb}}, tmp_path)
    assert (tmp_path / "byteps-flight-worker-0-a-1.jsonl").stat().st_size == 1000


def test_recordings_of_a_host_have_a_limit_together_in_files_and_in_bytes(tmp_path, monkeypatch):
    here, there = tmp_path / "here", tmp_path / "there"
    there.mkdir()
    files = {
        f"byteps-flight-worker-{rank}-a-1.jsonl": base64.b64encode(zlib.compress(bytes(1000))).decode()
        for rank in range(10)
    }
    monkeypatch.setattr(recordings, "HOST_FILES_MAX", 4, raising=False)
    assert recordings.unpack({"files": files, "left_out": 1}, here) == 7
    assert len(list(here.iterdir())) == 4
    monkeypatch.setattr(recordings, "HOST_FILES_MAX", 100, raising=False)
    monkeypatch.setattr(recordings, "HOST_UNPACKED_BYTES_MAX", 2500, raising=False)
    assert recordings.unpack({"files": files}, there) == 7
    assert sum(path.stat().st_size for path in there.iterdir()) == 2500
    packer = recordings.Recordings({"BYTEPS_FLIGHT_DIR": str(here)})  # of which a host sends no more
    assert len(packer.pack()["files"]) == 2 and packer.pack()["left_out"] == 2


# ---- over a stand-in


@pytest.mark.parametrize("forced", ["0", "1"])
def test_a_single_worker_uses_the_servers_of_the_file_when_told(place, stand_in, forced):
    options = ["-x", f"BYTEPS_FORCE_DISTRIBUTED={forced}"]
    text = "127.0.0.1 workers=1\n127.0.0.2 servers=2\n"
    code, out, err = place.run(*on_hosts(place, stand_in, *options, text=text), PYTHON, MEMBER)
    assert (code, out) == (0, "[worker 0] rank 0 of 1, sum 1\n"), err
    assert (err.count("2 servers are not used: a single worker") == 1) == (forced == "0")
    assert ("1 worker, 2 servers, scheduler on" in err) == (forced == "1")
    assert place.left(wait_s=5) == []


def test_output_keeps_its_bytes_and_its_descriptor(place, stand_in):
    program = "import sys; sys.stdout.write('out ü\\nno end'); sys.stdout.flush(); print('err', file=sys.stderr)"
    code, out, err = place.run(*on_hosts(place, stand_in, text="127.0.0.1 workers=1"), PYTHON, "-c", program)
    assert (code, out) == (0, "[worker 0] out ü\n[worker 0] no end\n")
    assert "[worker 0] err\n" in err


def test_much_output_of_many_ranks_arrives_whole(place, stand_in):
    program = "for i in range(20000): print(i, 'x' * 80)"
    text = "127.0.0.1 workers=3 servers=0\n127.0.0.2 servers=1"
    code, out, err = place.run(*on_hosts(place, stand_in, "--grace", "0.3", text=text), PYTHON, "-c", program)
    assert code == 0, err
    for rank in range(3):
        numbers = [int(line.split()[2]) for line in out.splitlines() if line.startswith(f"[worker {rank}]")]
        assert numbers == list(range(20000))


def test_ranks_are_given_host_by_host(place, stand_in):
    names = "BYTEPS_GLOBAL_RANK BYTEPS_LOCAL_RANK BYTEPS_LOCAL_SIZE DMLC_WORKER_ID DMLC_NODE_HOST BYTEPS_GLOBAL_SIZE"
    program = f"import os; print(*[os.environ[name] for name in {names.split()}])"
    text = "127.0.0.1 workers=1\ncpu servers=2\n127.0.0.2 slots=2 address=127.0.0.9\n"
    arguments = on_hosts(place, stand_in, "--grace", "0.3", text=text)
    code, out, err = place.run(*arguments, PYTHON, "-c", program, environ={"DMLC_PS_ROOT_URI": "10.0.0.1"})
    assert code == 0, err
    expected = ["0 0 1 0 127.0.0.1 3", "1 0 2 1 127.0.0.9 3", "2 1 2 1 127.0.0.9 3"]
    assert sorted(out.splitlines()) == [f"[worker {rank}] {line}" for rank, line in enumerate(expected)]


def test_the_environment_folder_and_named_variables_travel(place, stand_in):
    program = "import os; print(os.getcwd(), *[os.environ.get(name) for name in ('BYTEPS_LOG_LEVEL', 'COLOUR', 'A')])"
    environ = {"BYTEPS_LOG_LEVEL": "ERROR", "COLOUR": "red"}
    arguments = on_hosts(place, stand_in, "-x", "COLOUR", "-x", "A=a b", text="127.0.0.1")
    code, out, err = place.run(*arguments, PYTHON, "-c", program, environ=environ)
    assert (code, out) == (0, f"[worker 0] {place.folder} ERROR red a b\n"), err


def test_a_program_that_is_not_there_is_named_with_its_host(place, stand_in):
    code, out, err = place.run(*on_hosts(place, stand_in), "no-such-program")
    assert code == 127
    assert re.search(r"worker \d on 127.0.0.[12]: there is no program 'no-such-program'", err)
    assert place.left(wait_s=5) == []


def test_a_folder_that_is_not_there_is_named(place, stand_in):
    code, out, err = place.run(*on_hosts(place, stand_in, "--folder", "/no/such"), PYTHON, MEMBER)
    assert code == 127
    assert "the folder /no/such cannot be entered" in err
    assert place.left(wait_s=5) == []


def test_a_python_that_is_not_there_is_named_with_the_option_that_helps(place, stand_in):
    code, out, err = place.run(*on_hosts(place, stand_in, "--python", "/no/such/python"), PYTHON, MEMBER)
    assert code == 255
    assert "/no/such/python" in err and "--python PATH" in err


def test_a_host_that_answers_with_something_else_is_no_agent(place):
    code, out, err = place.run(*on_hosts(place, "echo welcome"), PYTHON, MEMBER)
    assert code == 255
    assert "host 127.0.0.1 cannot run bpslaunch's agent (exit code 0): welcome" in err


def test_what_a_login_shell_prints_first_does_no_harm(place, stand_in):
    noisy = place.folder / "noisy_ssh"
    noisy.write_text(f'#!/bin/sh\nprintf "Welcome!\\nno end of line"\nexec {stand_in} "$@"\n')
    noisy.chmod(0o755)
    code, out, err = place.run(*on_hosts(place, str(noisy)), PYTHON, MEMBER)
    assert code == 0, err
    assert sorted(out.splitlines()) == SUMS


def test_an_agent_that_hears_nothing_for_its_time_ends_what_it_started(place):
    # As when the network is cut and nobody says so. The time is a minute; here it is made short.
    program = "from byteps.launcher import agent, frames; frames.SILENCE_S = 3.0; agent.Agent().run()"
    agent = place.start([PYTHON, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    sleeper = {"role": "worker", "rank": 0, "command": ["sleep", "1000"], "environ": {MARK: place.mark}}
    order = {"folder": "/", "environ": {}, "key": "k" * 16, "processes": [sleeper]}
    agent.stdin.write(json.dumps({"start": order}) + "\n")
    agent.stdin.flush()
    wait_for("the command", lambda: any("sleep 1000" in command for command in place.living().values()))
    assert agent.wait(10) == 0  # its standard input is still open
    assert place.left(wait_s=1) == []


def test_a_host_that_stands_still_does_not_keep_bpslaunch_and_ends_all_when_it_goes_on(place, sshd):
    arguments = on_hosts(place, sshd.command, "--grace", "0.3")
    launcher = place.launch(*arguments, PYTHON, MEMBER, "--sleep", "--touch", "joined")
    wait_for("all workers to join", all_joined(place), 30)
    agents = [pid for pid, command in place.living().items() if "byteps.launcher.agent" in command]
    for pid in agents:
        os.kill(pid, signal.SIGSTOP)
    launcher.send_signal(signal.SIGINT)
    out, err = launcher.communicate(timeout=30)
    assert launcher.returncode == 128 + signal.SIGINT
    for pid in set(agents) & set(place.living()):  # the kernel may have woken them when their ssh ended
        os.kill(pid, signal.SIGCONT)
    assert place.left(wait_s=10) == []


def test_ctrl_c_while_connecting_ends_quietly(place):
    hanging = place.folder / "hanging_ssh"
    hanging.write_text("#!/bin/sh\nexec sleep 1000\n")
    hanging.chmod(0o755)
    launcher = place.launch(*on_hosts(place, str(hanging)), PYTHON, MEMBER)
    wait_for("both of ssh", lambda: sum("sleep 1000" in command for command in place.living().values()) == 2)
    launcher.send_signal(signal.SIGINT)
    out, err = launcher.communicate(timeout=20)
    assert launcher.returncode == 128 + signal.SIGINT
    assert "Traceback" not in err
    assert place.left(wait_s=5) == []


@pytest.mark.parametrize("ssh, environ, text", [
    ("ssh", {"DMLC_PS_ROOT_PORT": "http"}, "DMLC_PS_ROOT_PORT='http' is not valid: it takes the scheduler's TCP port"),
    ("ssh 'x", {}, "--ssh \"ssh 'x\" cannot be cut into words: No closing quotation"),
    ("no_such_ssh -v", {}, "there is no program 'no_such_ssh' (looked along PATH)"),
])  # fmt: skip
@pytest.mark.parametrize("command", [["byteps.launcher"], ["byteps.tools.bps", "doctor"]], ids=["bpslaunch", "doctor"])
def test_what_is_wrong_before_any_host_is_asked_is_named(place, command, ssh, environ, text):
    (place.folder / "hosts").write_text(TWO_HOSTS)
    trial = [] if "doctor" in command else ["--", "true"]
    process = place.start([PYTHON, "-m", *command, "--hosts", "hosts", "--ssh", ssh, *trial], environ)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 2 and text in err and "Traceback" not in err, err
    assert place.left(wait_s=5) == []


# ---- the hostfile, and what is told to whom


def test_a_hostfile_names_hosts_counts_users_ports_and_addresses():
    text = "# all\n\n gpu1 workers=4 # four\nadmin@10.0.0.7 servers=2 port=2222\n[2001:db8::1] slots=1\n::2 address=b\n"
    hosts = parse_hosts(text.splitlines())
    assert [(h.name, h.workers, h.servers, h.user, h.port, h.address) for h in hosts] == [
        ("gpu1", 4, 0, None, None, "gpu1"),
        ("10.0.0.7", 0, 2, "admin", 2222, "10.0.0.7"),
        ("2001:db8::1", 1, 0, None, None, "2001:db8::1"),
        ("::2", 1, 0, None, None, "b"),
    ]


@pytest.mark.parametrize(
    "text, per_host, expected",
    [
        ("a\nb", (None, None), [(1, 1), (1, 1)]),  # one worker each; without servers, one where workers are
        ("a\nb", (4, None), [(4, 1), (4, 1)]),
        ("a\nb servers=2", (4, None), [(4, 0), (0, 2)]),
        ("a\nb", (2, 1), [(2, 1), (2, 1)]),
        ("a", (None, None), [(1, 0)]),  # a job of one
        ("a workers=3", (None, None), [(3, 0)]),  # one machine
        ("a workers=3\nb servers=1", (None, None), [(3, 0), (0, 1)]),
        ("a workers=3 servers=0", (None, 0), [(3, 0)]),
        ("a workers=3", (None, None, True), [(3, 1)]),
        ("a", (None, None, True), [(1, 0)]),
        ("a workers=2 servers=0\nb workers=0 servers=1", (None, None), [(2, 0), (0, 1)]),
    ],
)
def test_counts_that_a_line_does_not_say(text, per_host, expected):
    assert [(host.workers, host.servers) for host in parse_hosts(text.splitlines(), "f", *per_host)] == expected


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "names no host"),
        ("a\na", "line 2: a is in line 1 already"),
        ("a worker=2", "line 1: 'worker=2' is not known; there are workers="),
        ("a workers=two", "workers='two' is not valid"),
        ("a port=0", "port='0' is not valid"),
        ("a workers=1 slots=2", "workers= is there twice"),
        ("-oProxyCommand=x", "is not a host"),
        ("-u@a", "is not a host"),
        ("a servers=1", "no host has workers"),
    ],
)
def test_what_is_wrong_with_a_hostfile_is_named(place, text, message):
    with pytest.raises(BadHostfile, match=re.escape(message)):
        parse_hosts(text.splitlines())
    (place.folder / "hosts").write_text(text)
    code, out, err = place.run("--hosts", place.folder / "hosts", "true")
    assert code == 2 and message in err


def test_the_first_host_must_be_reachable_by_the_others():
    hosts = parse_hosts(["localhost", "node2"])
    with pytest.raises(BadHosts, match="node2 cannot reach it at localhost"):
        scheduler_address(hosts, {})
    assert scheduler_address(hosts, {"DMLC_PS_ROOT_URI": "10.0.0.1"}) == "10.0.0.1"
    assert scheduler_address(parse_hosts(["node1 address=10.0.0.2", "node2"]), {}) == "10.0.0.2"


def test_what_is_forwarded_is_settings_and_paths_never_the_key_or_an_identity():
    environ = {"PATH": "/bin", "HOME": "/root", "BYTEPS_LOG_LEVEL": "INFO", "NCCL_DEBUG": "INFO", "SECRET": "x"}
    hidden = {"BYTEPS_JOB_KEY": "k", "BYTEPS_JOB_KEY_FILE": "f", "DMLC_ROLE": "server", "BYTEPS_GLOBAL_SIZE": "7"}
    assert set(forwarded({**environ, **hidden})) == {"PATH", "BYTEPS_LOG_LEVEL", "NCCL_DEBUG"}
    assert forwarded({**environ, "DMLC_INTERFACE": "ib0"}, [("SECRET", None), ("X", "")])["SECRET"] == "x"
    with pytest.raises(BadHosts, match="-x NONE: there is no such variable here"):
        forwarded(environ, [("NONE", None)])
