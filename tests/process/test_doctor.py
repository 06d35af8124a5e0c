"""bps doctor: each finding is provoked for real where this machine lets us, and comes with a command that fixes it."""

import json
import os
import resource
import signal
import subprocess
import sys

import pytest
from byteps.tools import doctor_checks, doctor_findings
from byteps.tools.doctor_findings import OK, PROBLEM, WARNING, JobSize
from evil import Listener, crowd, drip, parrot, plug
from place import BUILD, free_port

PYTHON = sys.executable
TWO_HOSTS = "127.0.0.1 workers=1 servers=1\n127.0.0.2 workers=1 servers=1\n"
SERVER = {
    "DMLC_ROLE": "server",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_PS_ROOT_URI": "127.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
    "BYTEPS_JOB_KEY": "a key of enough length",
}
may_unshare = pytest.mark.skipif(
    subprocess.run(["unshare", "-m", "-n", "true"], capture_output=True).returncode != 0,
    reason="this user may not make namespaces (run as root)",
)


def doctor(place, *arguments, environ=(), before=(), **options):
    """Exit code and findings; `before`: a command that runs it."""
    command = [*before, PYTHON, "-m", "byteps.tools.bps", "doctor", "--json", *arguments]
    process = place.start(command, environ, **options)
    out, err = process.communicate(timeout=90)
    assert out, err
    findings = json.loads(out)
    for each in findings:
        assert each["level"] == OK or each["fix"], f"nothing is said that would fix it: {each}"
    return process.returncode, findings


def found(findings, check, host=None):
    return [each for each in findings if each["check"] == check and host in (None, each["host"])]


def the(findings, check, host=None):
    (one,) = found(findings, check, host)
    return one


def on_hosts(place, ssh, text=TWO_HOSTS):
    (place.folder / "hosts").write_text(text)
    return ["--hosts", str(place.folder / "hosts"), "--ssh", ssh]


# ---- this machine


def test_this_machine_is_looked_at_without_any_settings(place):
    code, findings = doctor(place)
    assert code == 0, findings
    checks = {each["check"] for each in findings}
    expected = {"byteps", "CPU kernels", "GPUs", "variables", "address", "/dev/shm", "open files", "locked memory"}
    assert checks >= {*expected, "TCP"}
    assert the(findings, "variables")["level"] == OK
    assert place.left() == []


def devices_line(environ):
    """What byteps_server --check says of GPUs, in one of its lines."""
    done = subprocess.run([BUILD / "bin/byteps_server", "--check"], env=environ, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["byteps", "protocol", "kernels", "devices"], done.stdout
    return lines[3]


def test_without_a_driver_one_line_says_what_was_looked_for(place):
    environ = {"BYTEPS_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}
    why = "no CUDA driver: /nowhere/libcuda.so.1: cannot open shared object file: No such file or directory; install "
    assert devices_line(environ).startswith(f"devices none: {why}")
    code, findings = doctor(place, environ=environ)
    told = the(findings, "GPUs")
    assert code == 0 and told["level"] == OK
    assert told["text"].startswith(f"tensors of the CPU only: {why}") and "\n" not in told["text"]


def test_gpus_are_told_with_the_drivers_version(place):
    environ = {"BYTEPS_CUDA_LIBRARY": str(BUILD / "lib/fake_gpu/libcuda.so.1"), "FAKE_GPU_COUNT": "1"}
    told = "1: Fake GPU (0000:01:00.0); the driver is for CUDA 13.0"
    assert devices_line(environ) == f"devices {told}"
    code, findings = doctor(place, environ=environ)
    assert code == 0 and the(findings, "GPUs")["text"] == told


def test_the_rates_of_codecs_are_measured_here(place):
    code, findings = doctor(place)
    told = the(findings, "codecs")
    assert code == 0 and told["level"] == OK
    for name in ("float16", "bfloat16", "int8", "int4"):
        assert f"{name} codes " in told["text"], told
    assert told["text"].count("with error feedback") == 2 and told["text"].count("pays up to") == 4, told
    assert doctor_checks.codecs({"BYTEPS_BIN": "/nowhere"}) == {}


def test_a_codec_pays_where_the_line_would_take_longer_for_what_it_saves():
    rates = {"encode": 9.0, "encode_with_residual": 2.0, "decode_add": 2.0, "payload": 0.25}
    (told,) = doctor_findings.codecs("a", {"int8": rates})
    text = "GB/s of float32 a core: int8 codes 9.0, with error feedback 2.0, adds 2.0, pays up to 6 Gbit/s"
    assert (told.check, told.text) == ("codecs", text)
    assert doctor_findings.codecs("a", {}) == []


def plant(sys_folder, address, kind, speed="16.0", name=None):
    """A PCI function with this path of addresses in a folder that looks like /sys; of a card, its interface's name."""
    folder = sys_folder.joinpath("devices", "pci0000:00", *address)
    folder.mkdir(parents=True, exist_ok=True)
    files = {"class": kind, "vendor": "0x10de", "numa_node": "0", "max_link_speed": f"{speed} GT/s PCIe"}
    for file, text in {**files, "current_link_width": "16"}.items():
        (folder / file).write_text(text + "\n")
    (sys_folder / "bus/pci/devices").mkdir(parents=True, exist_ok=True)
    (sys_folder / "bus/pci/devices" / address[-1]).symlink_to(folder)
    if name:
        (folder / "net" / name).mkdir(parents=True)
        (folder / "net" / name / "device").symlink_to(folder)
        (folder / "net" / name / "speed").write_text("100000\n")
        (sys_folder / "class/net").mkdir(parents=True)
        (sys_folder / "class/net" / name).symlink_to(folder / "net" / name)


def machine_of_two_gpus(sys_folder):
    plant(sys_folder, ["0000:00:01.0"], "0x060400")
    plant(sys_folder, ["0000:00:01.0", "0000:01:00.0"], "0x020000", name="eth7")
    switch = ["0000:00:02.0", "0000:02:00.0"]
    for depth in (1, 2):
        plant(sys_folder, switch[:depth], "0x060400")
    for number in (4, 5):
        plant(sys_folder, [*switch, f"0000:03:0{number}.0"], "0x060400")
        plant(sys_folder, [*switch, f"0000:03:0{number}.0", f"0000:0{number}:00.0"], "0x030200")
    return ["--sys", str(sys_folder)]


def test_a_machine_with_gpus_is_drawn_with_the_plan_for_them(place):
    options = machine_of_two_gpus(place.folder / "sys")
    code, findings = doctor(place, *options)
    assert code == 0
    assert the(findings, "machine")["text"].splitlines() == [
        "1 switch x 2 GPUs, card at the root: NCCL over all, all lead; 100 Gbit/s expected",
        "node 0",
        "  card eth7 0000:01:00.0, 100 Gbit/s, wire of 252 Gbit/s",
        "  switch 0000:02:00.0, wire of 252 Gbit/s",
        "    GPU 0 0000:04:00.0, wire of 252 Gbit/s",
        "    GPU 1 0000:05:00.0, wire of 252 Gbit/s",
    ]
    process = place.start([PYTHON, "-m", "byteps.tools.bps", "doctor", *options], {})
    lines = process.communicate(timeout=60)[0].splitlines()
    first = next(number for number, line in enumerate(lines) if "1 switch x 2 GPUs" in line)
    assert [line.strip() for line in lines[first + 1 : first + 3]] == [
        "node 0",
        "card eth7 0000:01:00.0, 100 Gbit/s, wire of 252 Gbit/s",
    ]


def test_a_wish_for_the_plan_that_cannot_be_followed_is_a_warning(place):
    options = machine_of_two_gpus(place.folder / "sys")
    code, findings = doctor(place, *options, environ={"BYTEPS_REDUCE_ROOTS": "7"})
    plan, remark = found(findings, "machine")
    assert code == 0 and plan["level"] == OK and remark["level"] == WARNING
    assert (
        remark["text"].startswith("BYTEPS_REDUCE_ROOTS has no effect") and remark["fix"] == "unset BYTEPS_REDUCE_ROOTS"
    )


def test_of_a_machine_without_gpus_nothing_is_drawn(place):
    (place.folder / "sys").mkdir()
    assert found(doctor(place, "--sys", str(place.folder / "sys"))[1], "machine") == []


def test_for_people_it_is_a_table_with_the_worst_last(place):
    command = [PYTHON, "-m", "byteps.tools.bps", "doctor"]
    process = place.start(command, {"BYTEPS_LOG_LEVEL": "LOUD"})
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = out.splitlines()
    assert lines[-1].startswith("1 problem, ")
    assert "problem" in lines[-4] and "BYTEPS_LOG_LEVEL='LOUD' is not valid: it takes TRACE" in lines[-4]
    assert lines[-3].strip().startswith("fix:  unset BYTEPS_LOG_LEVEL")
    assert "bps doctor: looking at this machine ..." in err


@pytest.mark.parametrize(
    "environ, level, text, fix",
    [
        ({"BYTEPS_FAILURE_TIMEOUT_MS": "3s"}, PROBLEM, "BYTEPS_FAILURE_TIMEOUT_MS='3s'", "BYTEPS_FAILURE_TIMEOUT_MS"),
        ({"BYTEPS_LOGLEVEL": "INFO"}, WARNING, "did you mean BYTEPS_LOG_LEVEL", "unset BYTEPS_LOGLEVEL"),
        ({"BYTEPS_SPIN_US": "openssl, chmod; X is missing"}, PROBLEM, "is not valid", "unset BYTEPS_SPIN_US "),
        ({"PS_VERBOSE": "unknown variable"}, WARNING, "PS_VERBOSE has no effect", "unset PS_VERBOSE "),
        ({**SERVER, "DMLC_NUM_SERVER": ""}, PROBLEM, "DMLC_NUM_SERVER is missing", "export DMLC_NUM_SERVER="),
        (
            {**SERVER, "BYTEPS_JOB_KEY": "", "DMLC_PS_ROOT_URI": "10.0.0.1"},
            PROBLEM,
            "the job has no key",
            "openssl rand -hex 16",
        ),
        (
            {**SERVER, "DMLC_INTERFACE": "none0"},
            PROBLEM,
            "interface 'none0' does not exist; there are",
            "unset DMLC_INTERFACE",
        ),
    ],
)
def test_a_wrong_variable_is_found_by_the_check_of_the_executables(place, environ, level, text, fix):
    code, findings = doctor(place, environ=environ)
    (variables,) = [each for each in found(findings, "variables") if text in each["text"]]
    assert variables["level"] == level and fix in variables["fix"]
    assert code == (1 if level == PROBLEM else 0)


@pytest.mark.parametrize("hard, fix", [(4096, "ulimit -n 4096"), (100, "/etc/security/limits.d/byteps.conf")])
def test_too_few_open_files_for_a_job_of_this_size(place, hard, fix):
    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
    environ = {**SERVER, "DMLC_NUM_WORKER": "512", "BYTEPS_SERVER_ENGINE_THREAD": "2"}
    code, findings = doctor(place, environ=environ, preexec_fn=limit)
    files = the(findings, "open files")
    assert (code, files["level"]) == (1, PROBLEM)
    assert "100 may be open; a server of this job needs about 1094" in files["text"] and fix in files["fix"]


@may_unshare
def test_a_small_shared_memory(place):
    small = "mount -t tmpfs -o size=16m tmpfs /dev/shm && exec \"$@\""
    code, findings = doctor(place, before=["unshare", "-m", "sh", "-c", small, "sh"])
    shared = the(findings, "/dev/shm")
    assert shared["level"] == WARNING and "0.02 GiB" in shared["text"] and "remount,size=" in shared["fix"]


@may_unshare
def test_small_socket_buffers(place):
    small = 'echo "4096 65536 1000000" >/proc/sys/net/ipv4/tcp_rmem && exec "$@"'
    code, findings = doctor(place, before=["unshare", "-n", "sh", "-c", small, "sh"])
    tcp = the(findings, "TCP")
    assert tcp["level"] == WARNING and "net.ipv4.tcp_rmem may grow to 1000000 bytes" in tcp["text"]
    assert tcp["fix"] == 'sysctl -w net.ipv4.tcp_rmem="4096 65536 16777216"'


@may_unshare
def test_the_chosen_address_is_told_and_how_to_choose_another(place):
    two = "ip link add a0 type veth peer name a1 && ip link add b0 type veth peer name b1 && "
    two += "ip addr add 10.9.0.1/24 dev a0 && ip addr add 10.8.0.1/24 dev b0 && "
    two += 'for i in lo a0 a1 b0 b1; do ip link set $i up; done && exec "$@"'
    if subprocess.run(["unshare", "-n", "sh", "-c", two, "sh", "true"], capture_output=True).returncode != 0:
        pytest.skip("no veth interfaces here")
    code, findings = doctor(
        place,
        environ={**SERVER, "DMLC_PS_ROOT_URI": "10.9.0.7"},
        before=["unshare", "-n", "sh", "-c", two, "sh"],
    )
    address = the(findings, "address")
    assert address["text"].startswith("others are told 10.9.0.1 (a0); there are also b0 10.8.0.1"), address
    assert "DMLC_INTERFACE=b0 would choose that one" in address["text"]
    scheduler = the(findings, "reaches the scheduler")  # nobody is there
    assert scheduler["level"] == PROBLEM and "10.9.0.7:9000" in scheduler["text"] and scheduler["fix"], scheduler


@may_unshare
def test_a_scheduler_without_a_way_to_it_is_a_problem(place):
    environ = {**SERVER, "DMLC_PS_ROOT_URI": "10.9.0.7"}
    code, findings = doctor(place, environ=environ, before=["unshare", "-n"])
    scheduler = the(findings, "reaches the scheduler")
    assert code == 1 and scheduler["level"] == PROBLEM and scheduler["fix"] == "ip route get 10.9.0.7", scheduler
    assert "10.9.0.7:9000" in scheduler["text"] and "unreachable" in scheduler["text"], scheduler


def test_a_scheduler_port_that_is_taken(place):
    with Listener(host="") as taken:
        port = taken.port
        code, findings = doctor(place, environ={**SERVER, "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_PORT": str(port)})
    trouble = the(findings, "scheduler port")
    assert (code, trouble["level"]) == (1, PROBLEM)
    assert f"DMLC_PS_ROOT_PORT={port}: address already in use" in trouble["text"] and "ss -ltnp" in trouble["fix"]
    code, findings = doctor(place, environ={**SERVER, "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_PORT": str(port)})
    assert (code, the(findings, "scheduler port")["level"]) == (0, OK)


def test_a_scheduler_that_is_not_started_yet_is_no_problem_but_an_unknown_name_is(place):
    code, findings = doctor(place, environ={**SERVER, "DMLC_PS_ROOT_PORT": str(free_port())})
    assert code == 0 and "no scheduler runs there yet" in the(findings, "reaches the scheduler")["text"]
    environ = {**SERVER, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0", "DMLC_PS_ROOT_URI": "scheduler.invalid"}
    code, findings = doctor(place, environ=environ)
    assert code == 1 and "scheduler.invalid cannot be looked up" in the(findings, "reaches the scheduler")["text"]


@pytest.mark.parametrize(
    "content, mode, level, text, fix",
    [
        ("a key of enough length", 0o600, OK, "fingerprint", ""),
        ("a key of enough length", 0o644, WARNING, "others may read", "chmod 600"),
        ("tiny k", 0o600, PROBLEM, "shorter than 16 bytes", "openssl rand -hex 16"),
        (None, 0, PROBLEM, "no such file", ""),
    ],
)
def test_the_key_file(place, content, mode, level, text, fix):
    file = place.folder / "job.key"
    if content is not None:
        file.write_text(content + "\n")
        file.chmod(mode)
    code, findings = doctor(place, environ={"BYTEPS_JOB_KEY_FILE": str(file)})
    key = the(findings, "job key")
    assert key["level"] == level and text in key["text"] and fix in key["fix"]
    assert code == (1 if level == PROBLEM else 0)
    if content is not None:
        assert content not in json.dumps(findings)


# ---- the hosts of a job


def test_two_hosts_over_ssh_are_checked_and_nothing_is_left(place, sshd):
    code, findings = doctor(place, *on_hosts(place, sshd.command))
    assert code == 0, findings
    for source in ("127.0.0.1", "127.0.0.2"):
        assert the(findings, "ssh", source)["level"] == OK
        assert the(findings, "address", source)["text"].startswith(f"others are told {source}")
        for target in ("127.0.0.1", "127.0.0.2"):
            assert the(findings, f"reaches {target}", source)["level"] == OK
        assert the(findings, "clock", source)["level"] == OK
    assert place.left(wait_s=5) == []


def test_a_host_that_cannot_be_reached_over_ssh_does_not_hide_the_others(place, stand_in):
    (place.folder / "gone").write_text("127.0.0.2\n")
    code, findings = doctor(place, *on_hosts(place, stand_in))
    assert code == 1
    gone = the(findings, "ssh", "127.0.0.2")
    assert gone["level"] == PROBLEM and "No route to host" in gone["text"] and gone["fix"].endswith("127.0.0.2 true")
    assert the(findings, "reaches 127.0.0.1", "127.0.0.1")["level"] == OK


@may_unshare
def test_a_pair_that_cannot_connect_is_a_problem_in_each_direction(place, stand_in):
    cut_off = place.folder / "cut_off_ssh"  # the second host is in a network of its own, where nothing is up
    cut_off.write_text(
        f'#!/bin/sh\ncase "$*" in *127.0.0.2*) exec unshare -n {stand_in} "$@";; esac\nexec {stand_in} "$@"\n'
    )
    cut_off.chmod(0o755)
    code, findings = doctor(place, *on_hosts(place, str(cut_off)))
    assert code == 1
    there, back = the(findings, "reaches 127.0.0.2", "127.0.0.1"), the(findings, "reaches 127.0.0.1", "127.0.0.2")
    assert there["level"] == PROBLEM and "refused" in there["text"] and there["fix"]
    assert back["level"] == PROBLEM and "unreachable" in back["text"]
    assert back["fix"].startswith("ip route get 127.0.0.1")
    assert the(findings, "reaches 127.0.0.1", "127.0.0.1")["level"] == OK


def test_a_pair_that_the_job_does_not_use_is_a_warning(place, stand_in):
    text = "127.0.0.1 workers=1\n127.0.0.2 workers=1 address=127.0.0.256\n127.0.0.3 servers=1\n"
    code, findings = doctor(place, *on_hosts(place, stand_in, text))
    assert code == 0, findings
    unused = the(findings, "reaches 127.0.0.2", "127.0.0.1")
    assert unused["level"] == WARNING and "127.0.0.256 cannot be looked up" in unused["text"]
    assert "this job does not need it" in unused["text"] and "/etc/hosts" in unused["fix"]


def test_a_scheduler_port_that_is_taken_on_the_first_host(place, stand_in):
    with Listener(host="") as taken:
        port = taken.port
        code, findings = doctor(place, *on_hosts(place, stand_in), environ={"DMLC_PS_ROOT_PORT": str(port)})
    assert code == 1
    assert the(findings, "scheduler port", "127.0.0.1")["level"] == PROBLEM


@may_unshare
def test_keys_that_differ_between_hosts_are_found_and_not_shown(place, stand_in):
    for name, text in (("job.key", "a key of enough length"), ("other.key", "another key of this length")):
        (place.folder / name).write_text(text + "\n")
        (place.folder / name).chmod(0o600)
    differing = place.folder / "differing_ssh"
    other = f"mount --bind {place.folder}/other.key {place.folder}/job.key && exec {stand_in} \"$@\""
    differing.write_text(
        "#!/bin/sh\n"
        f"case \"$*\" in *127.0.0.2*) exec unshare -m sh -c '{other}' sh \"$@\";; esac\nexec {stand_in} \"$@\"\n"
    )
    differing.chmod(0o755)
    environ = {"BYTEPS_JOB_KEY_FILE": "job.key"}  # the same file on each host: the path is made absolute here
    code, findings = doctor(place, *on_hosts(place, str(differing)), environ=environ)
    assert code == 1
    assert the(findings, "job key", "127.0.0.1")["level"] == OK
    differs = the(findings, "job key", "127.0.0.2")
    assert differs["level"] == PROBLEM and "is another key than that of 127.0.0.1" in differs["text"]
    assert differs["fix"].startswith("scp -p 127.0.0.1:")
    assert "enough length" not in json.dumps(findings) and "of this length" not in json.dumps(findings)
    code, findings = doctor(place, *on_hosts(place, stand_in), environ=environ)
    assert code == 0 and len({each["text"] for each in found(findings, "job key")}) == 1


def test_a_malformed_variable_is_found_on_every_host_that_gets_it(place, stand_in):
    code, findings = doctor(place, *on_hosts(place, stand_in), environ={"BYTEPS_PARTITION_BYTES": "4MB"})
    assert code == 1
    bad = found(findings, "variables")
    assert {each["host"] for each in bad} == {"127.0.0.1", "127.0.0.2"}
    assert all("BYTEPS_PARTITION_BYTES='4MB' is not valid" in each["text"] for each in bad)


def test_a_bad_hostfile_is_a_usage_error(place):
    process = place.start([PYTHON, "-m", "byteps.tools.bps", "doctor", "--hosts", "/no/such"])
    out, err = process.communicate(timeout=30)
    assert process.returncode == 2 and "the hostfile '/no/such' cannot be read" in err


# ---- what cannot be provoked here


@pytest.mark.parametrize("arguments, text", [
    (["--hosts", ""], "argument --hosts: it is empty"),
    (["--ssh", "no_such_ssh"], "--ssh needs --hosts"),
    (["--python", "python3"], "--python needs --hosts"),
])  # fmt: skip
def test_an_option_that_would_have_no_effect_is_refused(place, arguments, text):
    process = place.start([PYTHON, "-m", "byteps.tools.bps", "doctor", *arguments])
    out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (2, "") and text in err


@pytest.mark.parametrize("arguments", [["doctor"], ["doctor", "--help"], ["why", "."], []])
def test_a_reader_that_goes_away_ends_it_without_a_traceback(place, arguments):
    ours, theirs = os.pipe()
    os.close(ours)
    environ = {"PYTHONUNBUFFERED": ""}  # with it argparse itself passes over this
    process = place.start([PYTHON, "-m", "byteps.tools.bps", *arguments], environ, stdout=theirs)
    os.close(theirs)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGPIPE
    assert "Traceback" not in err and "BrokenPipe" not in err, err



def test_somebody_else_at_an_address_is_not_taken_for_the_host():
    key = "k" * 32
    (port,) = doctor_checks.listen([0], key)
    try:
        assert doctor_checks.connect("127.0.0.1", port, key)["ms"] >= 0
        assert doctor_checks.connect("127.0.0.1", port, "another")["error"] == "somebody else answers there"
    finally:
        doctor_checks.end_listening()
    with parrot(16, bytes(32)) as somebody:
        said = doctor_checks.connect("127.0.0.1", somebody.port, key)
    assert said["error"] == "somebody else answers there"
    finding = doctor_findings.pair("a", "b", "10.0.0.2:9000", said, True)
    assert finding.level == PROBLEM and "address=A behind b" in finding.fix


def open_descriptors():
    return len(os.listdir("/proc/self/fd"))


def test_a_crowd_that_says_nothing_takes_few_descriptors_and_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr(doctor_checks, "STRANGERS_MAX", 16, raising=False)
    key = "k" * 32
    (port,) = doctor_checks.listen([0], key)
    before = open_descriptors()
    strangers = crowd(port, 100)
    assert len(strangers) == 100
    try:
        assert "error" not in doctor_checks.connect("127.0.0.1", port, key)
        assert open_descriptors() <= before + len(strangers) + 16 + 2  # that last connection, and the selector
        assert strangers[-1].send(bytes(doctor_checks.NONCE_BYTES)) == doctor_checks.NONCE_BYTES
        strangers[-1].settimeout(30)
        assert len(strangers[-1].recv(1)) == 1  # the newest are still heard
    finally:
        doctor_checks.end_listening()
        for each in strangers:
            each.close()


def test_who_says_a_byte_at_a_time_is_not_waited_for_longer_than_another(monkeypatch):
    monkeypatch.setattr(doctor_checks, "CONNECT_WITHIN_S", 0.5)
    (port,) = doctor_checks.listen([0], "k" * 32)
    try:
        with plug(port) as there:
            _, taken = drip(there, bytes(200), 0.05, 10)
            assert taken < doctor_checks.NONCE_BYTES + doctor_checks.PROOF_BYTES
    finally:
        doctor_checks.end_listening()
    with Listener(lambda peer: drip(peer, bytes(200), 0.05, 10)) as slow:
        said = doctor_checks.connect("127.0.0.1", slow.port, "k" * 32)
    assert (said["error"], said["kind"]) == ("no answer within 0 s", doctor_checks.NO_ANSWER)


def test_versions_that_differ_are_told_against_the_usual_one():
    facts = {
        host: {"settings": {"byteps": version}, "python": python}
        for host, version, python in (("a", "0.1.0", "3.11.7"), ("b", "0.2.0", "3.11.7"), ("c", "0.1.0", "3.9.2"))
    }
    byteps, python = doctor_findings.versions(facts)
    assert (byteps.host, byteps.level, byteps.fix) == (
        "b",
        PROBLEM,
        "pip install .   # in the sources of byteps 0.1.0, or its wheel",
    )
    assert (python.host, python.level) == ("c", WARNING) and "3.9.2, others have 3.11.7" in python.text


def test_clocks_are_compared_with_their_error():
    assert doctor_findings.clock("a", 0.15, 0.1).level == OK  # it may be 50 ms only
    late = doctor_findings.clock("a", -2.0, 0.001)
    assert late.level == WARNING and "-2000.0 ms against this machine, known to 1.0 ms" in late.text
    assert late.fix == "timedatectl set-ntp true"


def test_the_open_files_that_a_role_needs_grow_with_the_job():
    size = JobSize(workers=64, servers=8, shards=16)
    assert size.open_files("server") > 16 * 64
    assert size.open_files("worker") > 8 * 16
    assert size.open_files("scheduler") > 72


def test_scalar_kernels_and_a_faster_interface_are_warnings():
    said = {"byteps": "0.1.0", "protocol": "1", "kernels": "scalar", "warnings": []}
    assert [each.level for each in doctor_findings.settings("a", said) if each.check == "CPU kernels"] == [WARNING]
    facts = {
        "settings": {"own_address": "10.0.0.1"},
        "interfaces": [
            {"name": "eth0", "address": "10.0.0.1", "mbit_per_s": 1000},
            {"name": "ib0", "address": "10.1.0.1", "mbit_per_s": 100000},
        ],
    }
    slow = doctor_findings.own_address("a", facts, True)
    assert slow.level == WARNING and slow.fix.startswith("export DMLC_INTERFACE=ib0")


def test_several_cards_of_one_rate_are_recommended_together():
    cards = [
        {"name": f"eth{number}", "address": f"10.{number}.0.1", "mbit_per_s": rate}
        for number, rate in enumerate([10000, 10000, 9500, 1000, None])
    ]
    facts = {"settings": {"own_address": "10.0.0.1"}, "interfaces": cards}
    told = doctor_findings.own_address("a", facts, True)
    assert told.level == OK and "DMLC_INTERFACE=eth0,eth1,eth2 would use all of these" in told.text
    facts["interfaces"] = [cards[0], cards[3]]
    assert "would use" not in doctor_findings.own_address("a", facts, True).text
    facts["interfaces"] = [{**cards[0], "mbit_per_s": None}, cards[4]]
    assert "would use" not in doctor_findings.own_address("a", facts, True).text
    facts = {"settings": {"own_address": "10.0.0.1", "further_addresses": ["10.1.0.1"]}, "interfaces": cards[:2]}
    assert doctor_findings.own_address("a", facts, True).text == "others are told 10.0.0.1 (eth0) and 10.1.0.1 (eth1)"


def test_a_name_that_means_loopback_on_another_host_is_explained():
    said = {"error": "connection refused", "kind": doctor_checks.REFUSED, "address": "127.0.1.1"}
    finding = doctor_findings.pair("a", "node2", "node2:9000", said, True)
    assert "node2:9000 (127.0.1.1)" in finding.text and "/etc/hosts" in finding.fix


def test_what_hosts_have_in_common_is_said_once():
    same = [doctor_findings.Finding(host, "x", OK, "y") for host in ("a", "b")]
    other = doctor_findings.Finding("a", "z", OK, "y")
    assert [title for title, _ in doctor_findings.in_groups([*same, other], ["a", "b"])] == ["all", "a"]
