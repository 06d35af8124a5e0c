"""What bench/ makes of its options and of what it has measured."""

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from byteps.launcher import hosts
from byteps.launcher.hostfile import Host

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import contenders
import netlab
import reasons
import report
import run
import scenarios
from burners import Burners
from group import ContenderError, Group
from place import BUILD

WITH_TORCH = next(scenario for scenario in scenarios.ALL if scenario.name == "with-torch")


@pytest.mark.parametrize(
    "paths, names",
    [
        (["/main/build/release"], [""]),
        (["/main/build/release", "/main/build/other"], ["release", "other"]),
        (["/a/build/release", "/b/build/release"], ["a", "b"]),
        (["/a/build/old", "/a/build/new", "/b/build/old"], ["a/build/old", "a/build/new", "b/build/old"]),
        (["/a/build", "/a/build/old"], ["build", "build/old"]),
    ],
)
def test_builds_are_named_by_what_tells_their_paths_apart(paths, names):
    assert run.build_names([Path(path) for path in paths]) == names


def test_a_link_to_a_build_is_a_build_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "--build", "build/release", "--build", "build/../build/same"])
    assert [build.name for build in run.arguments().build] == ["release", "same"]


def test_one_build_named_twice_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--build", "build/release", "--build", "build/../build/release"])
    with pytest.raises(SystemExit):
        run.arguments()
    assert "--build names one folder twice" in capsys.readouterr().err


def test_where_horovod_is_missing_the_bench_says_so_and_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(contenders, "HOROVOD_PYTHON", tmp_path / "bin/python")
    found, refused = contenders.rivals(WITH_TORCH, ROOT / "build/release", 0)
    assert [group.label for group in found] == ["gloo"]
    assert refused == ["Horovod is left out: it is not in .venv-horovod (make setup-horovod)"]


def test_where_horovod_is_installed_it_also_trains_alone(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    (tmp_path / "lib/python3.11/site-packages/horovod").mkdir(parents=True)
    monkeypatch.setattr(contenders, "HOROVOD_PYTHON", tmp_path / "bin/python")
    found, refused = contenders.rivals(WITH_TORCH, ROOT / "build/release", 0)
    words = {group.label: [word for word, _ in group.words(WITH_TORCH)] for group in found}
    assert words == {"gloo": ["go", "communicate", "small"], "horovod": ["go", "compute", "communicate", "small"]}
    assert refused == []


def test_what_a_rival_hides_is_judged_by_its_own_computation_where_that_was_measured():
    seconds = {"byteps compute": 1.0, "gloo": 1.5, "gloo communicate": 1.0}
    seconds.update({"horovod": 2.5, "horovod compute": 2.0, "horovod communicate": 1.0})
    result = {"figures": {label: {"median_s": one} for label, one in seconds.items()}}
    assert report.hidden_share(result, "gloo") == pytest.approx(0.5)
    assert report.hidden_share(result, "horovod") == pytest.approx(0.5)
    assert report.hidden_share(result, "byteps") is None


def test_submitting_is_told_per_tensor_and_only_where_it_is_apart_from_waiting():
    ours, theirs = {"own_first_s": 0.0016, "median_s": 0.01}, {"own_first_s": 1.0, "median_s": 1.0}
    result = {"figures": {"byteps small": ours, "gloo small": theirs}}
    assert report.submit_us(result, "byteps") == pytest.approx(10.0)
    assert report.submit_us(result, "gloo") is None
    assert report.submit_us(result, "horovod") is None


class Listing(netlab.Loopback):
    """Starts nothing, and keeps what was to be started."""

    def start(self, host, argv, env=None):
        self.processes.append(SimpleNamespace(host=host, argv=argv, env={k: str(v) for k, v in (env or {}).items()}))
        return self.processes[-1]

    def __exit__(self, *_):
        pass


def scenario_of(ranks, servers, **more):
    return scenarios.Scenario("x", "", "", sum(ranks), servers, hosts=ranks, **more)


def started(group, scenario):
    group.start(Listing(), scenario)
    return group


def ours(env=None):
    build = ROOT / "build/release"
    return contenders.BytePS("byteps", build, build, env or {}, 9100)


@pytest.mark.parametrize("ranks, servers", [((4, 4), 2), ((1, 2, 4), 3), ((4,), 1)])
def test_ranks_of_one_host_are_told_their_place_as_the_launcher_tells_it(ranks, servers):
    links = [SimpleNamespace(host=Host(str(number), "127.0.0.1", workers=count)) for number, count in enumerate(ranks)]
    links += [SimpleNamespace(host=Host(f"server {number}", "127.0.0.1", servers=1)) for number in range(servers)]
    forced = {"BYTEPS_FORCE_DISTRIBUTED": "1"}  # servers are what is measured, on one host as well
    plan = hosts.job_plan(links, "127.0.0.1", 9100, ["train"], forced).processes
    group = started(ours(), scenario_of(ranks, servers))
    told = [process.environ for process in plan if process.role == "worker"]
    places = ("DMLC_WORKER_ID", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE", "BYTEPS_GLOBAL_RANK")
    job = ("DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "BYTEPS_GLOBAL_SIZE", "BYTEPS_FORCE_DISTRIBUTED")
    assert [[one.env[name] for name in places + job] for one in group.workers] == [
        [env[name] for name in places + job] for env in told
    ]
    assert all([one.env[name] for name in job] == [told[0][name] for name in job] for one in group.others)
    assert [one.host for one in group.workers] == [int(env["DMLC_WORKER_ID"]) for env in told]


def test_servers_have_hosts_behind_those_of_several_ranks_or_are_beside_them():
    alone, beside = scenario_of((4, 4), 2), scenario_of((4, 4), 0, colocated=True)
    assert [one.host for one in started(ours(), alone).others] == [4, 2, 3]  # the scheduler's is the last
    assert [one.host for one in started(ours(), beside).others] == [2, 0, 1]


def test_a_worker_with_a_host_of_its_own_is_told_no_more_than_its_number():
    group = started(ours(), scenarios.Scenario("x", "", "", 2, 2))
    assert [one.env["DMLC_WORKER_ID"] for one in group.workers] == ["0", "1"]
    assert not any(name.startswith(("BYTEPS_LOCAL", "BYTEPS_GLOBAL")) for one in group.workers for name in one.env)


def test_the_ring_of_gloo_goes_from_host_to_host_and_back_once():
    group = started(contenders.Gloo(9150), scenario_of((1, 2, 4), 3))
    assert [one.host for one in group.workers] == [0, 1, 1, 2, 2, 2, 2]
    assert [one.argv[2] for one in group.workers] == list(range(7))


def test_a_group_without_servers_starts_none_and_may_be_unable_to():
    group = started(ours({"DMLC_NUM_SERVER": "0"}), scenario_of((4,), 1))
    assert len(group.workers) == 4 and len(group.others) == 1  # the scheduler
    assert group.optional and not ours().optional


class Unable(Group):
    rival = False

    def start(self, lab, scenario):
        raise ContenderError("unable ended with exit code 2\nprogram\n    zero is too few")


def test_what_a_build_is_unable_to_is_left_out_with_the_reason_and_anything_else_fails():
    able, unable = Group("able"), Unable("unable")
    able.start = lambda lab, scenario: None
    unable.optional = True
    assert run.start_all(None, None, [able, unable]) == ([able], ["unable is left out: zero is too few"])
    unable.optional = False
    with pytest.raises(ContenderError):
        run.start_all(None, None, [able, unable])


def test_burners_burn_in_their_turn_only():
    with netlab.Loopback() as lab:
        burners = Burners(lab, 1)
        time.sleep(0.3)
        before = lab.processes[0].cpu_seconds()
        time.sleep(0.3)
        assert lab.processes[0].cpu_seconds() == before
        with burners.burning(1):
            time.sleep(1.0)
        used = lab.processes[0].cpu_seconds() - before
        assert used > 0.1
        stopped = lab.processes[0].cpu_seconds()
        with burners.burning(0):
            time.sleep(0.3)
        assert lab.processes[0].cpu_seconds() - stopped < 0.1


def test_what_busy_cores_cost_us_is_told_beside_what_they_cost_gloo():
    def took(seconds):
        return {"median_s": seconds}

    figures = {"byteps": took(1), "byteps, 1 core busy": took(2), "byteps, 2 cores busy": took(4)}
    figures |= {"gloo": took(1.5), "gloo, 1 core busy": took(2.7), "gloo, 2 cores busy": took(6)}
    checks = list(report._busy_checks({"figures": figures}))
    assert [(round(value, 2), reached) for _, value, _, reached in checks] == [(0.9, False), (1.0, True)]
    assert checks[0][0] == "gloo / ours, 1 core busy, / the same without"
    assert not list(report._busy_checks({"figures": {"byteps": took(1), "gloo": took(2)}}))


def test_bytes_of_cards_and_ranks_are_counted_in_sizes_of_an_operation():
    scenario = scenario_of((2,), 1, size=1000, operations=2)
    turns = [
        {"card_bytes": [[2000 * more, 2200], [4000, 4000], [7, 7]], "pushed_bytes": (2000.0, 1000.0)}
        for more in (1, 3, 2)
    ]
    assert run.copies(turns, scenario) == {"cards": [[2.0, 1.1], [2.0, 2.0]], "pushed": [1.0, 0.5]}


STEP = next(scenario for scenario in scenarios.ALL if scenario.name == "step-vgg-n4")
STEP_JAX = next(scenario for scenario in scenarios.ALL if scenario.name == "step-jax-n2")


def test_horovod_is_a_rival_of_training_steps_also_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(contenders, "HOROVOD_PYTHON", tmp_path / "bin/python")
    found, refused = contenders.rivals(STEP, ROOT / "build/release", 0)
    assert [group.label for group in found] == ["gloo"] and "make setup-horovod" in refused[0]
    group = started(contenders.Horovod(9150), STEP)
    assert group.words(STEP) == [("go", "horovod"), ("compute", "horovod compute")]
    command = group.workers[3].argv
    assert command[command.index(tmp_path / "bin/python") + 1 :] == [
        ROOT / "bench/step_worker.py", "horovod", 3, 4, "127.0.0.1", 9150, "lo", 4, "vgg",
    ]  # fmt: skip


def test_a_framework_is_one_more_group_of_ours_beside_torch(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py"])
    monkeypatch.setattr(contenders, "why_no_framework", lambda name: "")
    (group,), refused = run.framework_groups(run.arguments(), STEP_JAX, 0)
    assert (group.label, group.kind, refused) == ("byteps jax", "jax", [])
    assert group.words(STEP_JAX) == [("go", "byteps jax"), ("compute", "byteps jax compute")]
    workers = started(group, STEP_JAX).workers
    assert [one.argv[2] for one in workers] == ["jax", "jax"]
    assert [one.argv[2] for one in started(ours(), STEP_JAX).workers] == ["byteps", "byteps"]


def test_mxnet_has_an_interpreter_of_its_own_and_who_has_none_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(contenders, "MXNET_PYTHON", tmp_path / "python")
    assert contenders.why_no_framework("mxnet") == "mxnet is left out: it is not installed (make setup)"
    assert contenders.why_no_framework("no_such_framework").startswith("no_such_framework is left out")
    (tmp_path / "python").touch()
    assert contenders.why_no_framework("mxnet") == ""
    build = ROOT / "build/release"
    scenario = next(scenario for scenario in scenarios.ALL if scenario.name == "step-mxnet-n2")
    group = started(contenders.BytePS("byteps mxnet", build, build, {}, 9100, "mxnet"), scenario)
    command = [tmp_path / "python", ROOT / "bench/step_worker.py", "mxnet"]
    assert [one.argv[:3] for one in group.workers] == [command, command]


@pytest.mark.parametrize(
    "label, alone",
    [
        ("byteps", "byteps compute"),
        ("byteps crossed", "byteps compute"),
        ("byteps clipped", "byteps compute clipped"),
        ("byteps compute clipped", "byteps compute clipped"),
        ("byteps jax", "byteps jax compute"),
        ("byteps flat crossed", "byteps flat compute"),
        ("gloo", "byteps compute"),
        ("gloo clipped", "byteps compute clipped"),
        ("horovod", "horovod compute"),
    ],
)
def test_a_step_is_judged_by_what_its_own_computing_takes(label, alone):
    labels = ["byteps compute", "byteps compute clipped", "byteps jax compute", "byteps flat compute"]
    assert report.label_alone(label, [*labels, "horovod compute"]) == alone


def test_what_computing_takes_by_itself_is_in_the_limit():
    """The line has 561 ms to carry, behind the forward pass and the last layer's backward, in front of the update."""
    scenario = next(scenario for scenario in scenarios.ALL if scenario.name == "step-uniform-n4")
    words = {"byteps": "go", "byteps crossed": "go crossed", "byteps compute": "compute", "horovod compute": "compute"}
    meanings = {label: (word, label.split()[0]) for label, word in words.items()}
    figures = {label: {"median_s": 1.0} for label in words}
    figures["byteps compute"] = {"median_s": 0.66, "own_first_s": 0.02}
    figures["horovod compute"] = {"median_s": 0.5, "own_first_s": 0.5}
    run.add_own_compute(figures, meanings, scenario)
    assert figures["byteps"]["limit_s"] == pytest.approx(0.2 + 0.44 / 16 + 0.5613 + 0.02, abs=0.001)
    assert figures["byteps"]["ratio"] == pytest.approx(figures["byteps"]["limit_s"])
    assert 0.66 <= figures["byteps crossed"]["limit_s"] < 0.7  # the update of a layer waits for its sum
    assert figures["byteps compute"]["ratio"] == pytest.approx(1.0)
    assert figures["horovod compute"]["limit_s"] == pytest.approx(0.6)  # it is never less


def test_results_of_two_builds_of_a_framework_are_told_without_a_judgement_by_hooks():
    assert list(report.checks(of_steps("step-jax-n4", byteps_a=0.8, byteps_b=0.9, byteps_jax=0.9))) == []


def test_a_framework_that_waits_for_nothing_is_judged_by_its_own_ideal():
    result = of_steps("step-mxnet-n4", byteps=1, byteps_mxnet=1)
    checks = {what: reached for what, _, _, reached in report.checks(result)}
    assert checks == {
        "ideal / time, byteps": False,
        "mxnet / torch's hooks": True,
        "ideal / time, byteps mxnet": False,
    }


def of_steps(name, **seconds):
    """A result whose limit is 0.8 s for all."""
    figures = {
        label.replace("_", " "): {
            "median_s": each, "quartiles_s": [each] * 2, "limit_s": 0.8, "ratio": 0.8 / each, "first_s": each,
            "server_cpu_s": 0.4, "worker_cpu_s": 1.2,
        }
        for label, each in seconds.items()
    }  # fmt: skip
    told = {"bench": name, "title": "uniform", "section": "s", "cores": 2, "operations": 4, "load": 0.0, "commit": "x"}
    return {**told, "size": 64 << 20, "figures": figures}


def test_each_kind_of_step_is_judged_by_its_ideal_and_a_framework_by_torchs_hooks():
    result = of_steps("step-jax-n4", byteps=0.8, byteps_crossed=0.9, byteps_clipped=0.81, byteps_jax=0.85)
    checks = {what: (value, reached) for what, value, _, reached in report.checks(result)}
    assert checks["ideal / time, byteps"] == (pytest.approx(1.0), True)
    assert checks["ideal / time, byteps crossed"] == (pytest.approx(0.8 / 0.9), False)
    assert checks["ideal / time, byteps clipped"] == (pytest.approx(0.8 / 0.81), True)
    assert checks["jax / torch's hooks"] == (pytest.approx(1.0625), False)
    assert len(checks) == 4


def test_a_row_of_steps_says_how_rivals_compare_and_which_share_of_the_cores_is_used():
    result = of_steps("step-x", byteps=1.0, byteps_crossed=0.8, byteps_fsdp=2.0, gloo=1.2, gloo_fsdp=3.0, horovod=1.3)
    lines = report.verdicts(result)
    assert "gloo / ours: byteps 1.20, byteps crossed 1.50, byteps fsdp 1.50" in lines
    assert "horovod / ours: byteps 1.30, byteps crossed 1.62" in lines
    row = report._row(result, "byteps", result["figures"]["byteps"], result["figures"]["byteps"])
    assert "| 0.40 / 1.20, 20% |" in row
    assert "CPU s 0.40+1.20, 20% of the cores" in run.describe(
        result, "byteps", result["figures"]["byteps"], result["figures"]["byteps"]
    )


# A model of three small layers that hardly sleep, in a job of one.
SMALL = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import steps, step_worker
steps.FORWARD_S = steps.BACKWARD_S = 0.01
steps.MODELS["small"] = lambda: [((4, 12), 0.25), ((16,), 0.25), ((32,), 0.5)]
step_worker.main()
"""


def small_steps(kind, *words, python=sys.executable):
    command = [python, "-c", SMALL, ROOT / "bench", kind, "0", "1", "-", "-", "-", "2", "small"]
    for start, end, _, cpu in in_a_job_of_one(command, words):
        assert end - start >= 0.02 * (0.5 + 0.75) and cpu > 0  # of two steps each may leave out another layer


def in_a_job_of_one(command, words):
    """What a worker says to each of these words."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "python"), "BYTEPS_LIBRARY": str(BUILD / "lib/libbyteps.so")}
    env.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(contenders.free_port()))
    done = subprocess.run(
        list(map(str, command)), input="\n".join(words), capture_output=True, text=True, env=env, timeout=100
    )
    assert done.returncode == 0, done.stderr
    ready, *rounds = done.stdout.splitlines()
    assert ready == "ready" and len(rounds) == len(words)
    return [list(map(float, line.split())) for line in rounds]


def test_each_kind_of_step_with_torch_knows_its_weights():
    done = [f"go {how}".strip() for how in (*scenarios.HOWS, "crossed", "fsdp")]
    alone = [f"compute {how}".strip() for how in scenarios.HOWS if how != "ddp"]
    small_steps("byteps", *done, *alone, *done)


def test_the_mlp_trains_in_each_way_that_a_row_asks_for():
    words = {word for row in scenarios.ALL if row.program == "train" for word in row.words}
    place = ["0", "1", "-", "-", "-"]
    command = [sys.executable, ROOT / "bench/train_worker.py", "byteps", *place, "2", "64-16-16-10"]
    assert {"go int4:error_feedback", "go ddp powersgd", "communicate"} < words
    in_a_job_of_one(command, [*sorted(words), *sorted(words)])


@pytest.mark.long(reason="imports of the frameworks; they train in other tests")
@pytest.mark.parametrize("framework", scenarios.STEP_FRAMEWORKS)
def test_each_framework_knows_its_weights(framework):
    if contenders.why_no_framework(framework):
        pytest.skip(contenders.why_no_framework(framework))
    python = contenders.MXNET_PYTHON if framework == "mxnet" else sys.executable
    small_steps(framework, "go", "compute", "go", python=python)


def of_hosts():
    """A result whose flat group takes four times as long."""

    def figure(seconds, cards, cpu):
        return {
            "median_s": seconds, "quartiles_s": [seconds] * 2, "limit_s": 0.56, "ratio": 0.56 / seconds, "first_s": 1.0,
            "server_cpu_s": cpu, "worker_cpu_s": cpu, "cards": cards, "pushed": [0.25, 0.26],
        }  # fmt: skip

    figures = {
        "byteps": figure(0.6, [[1.01, 1.0], [1.0, 1.0], [1.0, 1.02]], 0.2),
        "byteps flat": figure(2.4, [[4.0, 4.0]] * 3, 0.4),
        "gloo": figure(0.9, [[1.75, 1.75], [1.75, 1.75], [0.0, 0.0]], 0.3),
    }
    targets = {"flat_target": 3.6, "cpu_target": 0.65, "card_target": 1.06, "gloo_target": 1.6, "target": 0.93}
    told = {"bench": "x", "title": "two hosts", "section": "Several ranks on a host", "hosts": [4, 4], "size": 64 << 20}
    return {**told, **targets, "figures": figures}


def test_ranks_that_share_a_host_are_judged_by_each_for_itself():
    checks = {what: (value, reached) for what, value, _, reached in report.checks(of_hosts())}
    assert checks["flat / ours"] == (pytest.approx(4.0), True)
    assert checks["CPU / flat's CPU"] == (pytest.approx(0.5), True)
    assert checks["most bytes over a card / M"] == (1.02, True)
    assert checks["gloo / ours"] == (pytest.approx(1.5), False)


def test_a_small_tensor_may_take_little_longer_than_with_each_rank_for_itself():
    result = {**of_hosts(), "size": 4096}
    result["figures"]["byteps"]["median_s"], result["figures"]["byteps flat"]["median_s"] = 400e-6, 330e-6
    checks = {what: (value, reached) for what, value, _, reached in report.checks(result)}
    assert checks["us more than flat"] == (pytest.approx(70), False)


def test_the_report_says_what_crossed_each_card():
    rows = report._hosts([of_hosts()]).splitlines()
    assert len({row.count("|") for row in rows}) == 1
    assert rows[2] == "| two hosts, byteps | 1.01 / 1.00; 1.00 / 1.00 | 1.00 / 1.02 | 0.25 to 0.26 | 0.40 |"
    assert "| two hosts, gloo | 1.75 / 1.75; 1.75 / 1.75 |  |" in rows[4]


def of_codes(bench, **seconds):
    """A result whose bytes over a card are as its seconds."""
    figures = {
        label.replace("_", " "): {"median_s": one, "ratio": 0.95, "cards": [[one, one]], "server_cpu_s": one}
        for label, one in seconds.items()
    }
    return {"bench": bench, "size": 64 << 20, "figures": figures}


def test_a_coded_exchange_is_judged_by_its_bytes_its_time_and_its_servers():
    checks = list(report.checks(of_codes("coded-n4", byteps=1.0, byteps_int8=0.25, byteps_int4=0.16)))
    assert [(what, value, reached) for what, value, _, reached in checks] == [
        ("int8, times fewer bytes over a card", pytest.approx(4.0), True),
        ("int8, limit / time", 0.95, True),
        ("int4, times fewer bytes over a card", pytest.approx(6.25), False),
        ("int4, limit / time", 0.95, True),
        ("int8, servers' CPU / plain", pytest.approx(0.25), True),
    ]


def test_training_with_codes_is_judged_beside_plain_training_and_the_hooks_of_ddp():
    seconds = {"byteps": 9.0, "byteps_int8": 2.5, "gloo": 13.0, "gloo_fp16": 5.0, "byteps_powersgd": 0.5}
    checks = list(report.checks(of_codes("coded-mlp-100m", **seconds, gloo_powersgd=0.6)))
    assert [(what, value, reached) for what, value, _, reached in checks] == [
        ("byteps / byteps int8", pytest.approx(3.6), True),
        ("gloo fp16 / byteps int8", pytest.approx(2.0), False),
        ("gloo powersgd / byteps powersgd", pytest.approx(1.2), True),
    ]


class Counting:
    """A group whose n-th turn takes n seconds."""

    def __init__(self):
        self.turns = 0

    def words(self, _scenario):
        return [("go", "byteps")]

    def turn(self, _timeout_s, _word):
        self.turns += 1
        return {"seconds": float(self.turns)}


@pytest.mark.parametrize("from_first, counted", [(True, [1, 2]), (False, [2, 3])])
def test_the_first_turn_counts_where_a_row_is_of_new_connections(from_first, counted):
    scenario = dataclasses.replace(scenarios.ALL[0], from_first=from_first)
    with netlab.Loopback() as lab:
        turns = run.take_turns(lab, [Counting()], scenario, 2)
    assert [turn["seconds"] for turn in turns["byteps"]] == counted


def test_on_a_long_line_the_first_exchange_is_judged_as_the_median_is():
    ours = {"median_s": 12.0, "limit_s": 11.2, "ratio": 0.93, "first_turn_s": 14.0}
    checks = report.checks({"bench": "wan", "target": 0.9, "figures": {"byteps": ours}})
    assert {what: reached for what, _, _, reached in checks} == {"limit / time": True, "limit / time, first": False}


def test_a_target_that_is_missed_has_one_in_its_place_and_a_reason():
    """In what docs/performance.md is generated from."""
    said = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert "NOT reached" not in said
    names = {scenario.name for scenario in scenarios.ALL} | {"grow"}
    assert {bench for bench, _ in reasons.INSTEAD} <= names
    result = {**of_hosts(), "bench": "n4c-k3", "target": 0.96}
    result["figures"]["byteps"]["ratio"] = 0.92
    assert "limit / time: 0.92, target 0.96: missed, 0.91 in its place" in report.verdicts(result)
    assert any(reasons.OWN_ANSWERS in line for line in report._whys([result]))
    result["figures"]["byteps"]["ratio"] = 0.9
    assert "limit / time: 0.9, target 0.96: missed, 0.91 in its place: NOT reached" in report.verdicts(result)
