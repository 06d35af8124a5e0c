"""bench/: the limits are the arithmetic of cards, the lists of parameters are those of the models, the table is sound,
and a small run on loopback leaves what the report needs."""

import dataclasses
import html
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get("BYTEPS_TEST_BUILD", "build/release")
sys.path.insert(0, str(ROOT / "bench"))

import draw_compression
import kernels
import limits
import models
import report
import run
import scenarios
import steps

RUN = [sys.executable, str(ROOT / "bench" / "run.py")]
GIGABIT = 1e9 / 8 * limits.PAYLOAD


@pytest.mark.parametrize(
    "model, count",
    [("resnet50", 25_557_032), ("vgg16", 138_357_544), ("bert_large", 335_141_888), ("gpt2_medium", 354_823_168)],
)
def test_a_list_has_the_known_number_of_parameters_and_no_name_twice(model, count):
    names = [name for name, _ in models.MODELS[model]()]
    assert models.parameter_count(model) == count
    assert len(set(names)) == len(names)


def test_resnet50_has_the_161_parameters_of_torchvision():
    shapes = dict(models.resnet50())
    assert len(shapes) == 161
    assert shapes["layer4.0.downsample.0.weight"] == (2048, 1024, 1, 1)
    assert shapes["layer3.5.conv2.weight"] == (256, 256, 3, 3)


def test_vgg16_places_its_layers_as_torchvision_does():
    shapes = dict(models.vgg16())
    assert len(shapes) == 32
    assert shapes["features.28.weight"] == (512, 512, 3, 3)


@pytest.mark.parametrize("model", models.MODELS)
def test_buckets_hold_every_gradient_once_and_start_small(model):
    buckets = models.bucket_bytes(model)
    assert sum(buckets) == 4 * models.parameter_count(model)
    assert all(bucket >= models.DDP_BUCKET for bucket in buckets[1:-1])
    assert buckets[0] < models.DDP_BUCKET or len(models.MODELS[model]()) < 40


def test_a_written_list_is_what_the_worker_reads(tmp_path):
    models.write_list("vgg16", tmp_path / "list.txt")
    lines = (tmp_path / "list.txt").read_text().splitlines()
    assert lines[0] == "features.0.weight 1728"
    assert sum(int(line.split()[1]) for line in lines) == 138_357_544


@pytest.mark.parametrize(
    "workers, extra, colocated, seconds",
    # 64 MiB at 1 Gbit/s
    [(4, 4, False, 0.561), (8, 8, False, 0.561), (4, 2, False, 1.123), (4, 0, True, 0.842), (4, 1, True, 0.748),
     (4, 2, True, 0.674), (8, 4, True, 0.714)],
)  # fmt: skip
def test_the_limit_with_servers(workers, extra, colocated, seconds):
    assert limits.servers(workers, extra, colocated, 64 << 20, GIGABIT) == pytest.approx(seconds, abs=0.0006)


@pytest.mark.parametrize("workers", [2, 4, 8, 32])
def test_servers_beside_the_workers_alone_are_as_fast_as_a_ring(workers):
    ring = limits.ring(workers, 1e9, GIGABIT)
    assert limits.servers(workers, 0, True, 1e9, GIGABIT) == pytest.approx(ring)


def test_an_unequal_server_gets_a_share_like_its_card():
    half = limits.unequal_servers(4, 64 << 20, GIGABIT, [GIGABIT / 2] + [GIGABIT] * 3)
    assert half == pytest.approx(0.5613 * 4 / 3.5, abs=0.0006)
    more = limits.unequal_servers(2, 64 << 20, GIGABIT, [GIGABIT] * 4)
    assert more == pytest.approx(0.5613, abs=0.0006)  # then the workers' cards decide


@pytest.mark.parametrize(
    "name, seconds, ring_s",
    [("h2l4k2", 0.561, 0.982), ("h2l4c", 0.561, 0.982), ("h4l2k4", 0.561, 0.982), ("h4l4k4-500m", 1.123, 2.105),
     ("uneven", 0.561, 0.962)],
)  # fmt: skip
def test_a_host_of_several_ranks_is_one_machine_to_servers_and_each_of_them_counts_in_a_ring(name, seconds, ring_s):
    scenario = next(scenario for scenario in scenarios.ALL if scenario.name == name)
    assert scenario.limit() == pytest.approx(seconds, abs=0.0006)
    assert scenario.ring_limit() == pytest.approx(ring_s, abs=0.0006)


def test_scenarios_have_names_of_their_own_and_limits_that_can_be_reached():
    names = [scenario.name for scenario in scenarios.ALL]
    assert len(set(names)) == len(names)
    for scenario in scenarios.ALL:
        if scenario.limit() is not None:
            assert scenario.limit() >= scenario.size / scenario.byte_rate() * (1 - 1e-9)
        if scenario.program == "step":
            assert steps.model(scenario.model)
        else:
            assert scenario.model in ("", *models.MODELS)
        assert sum(scenario.ranks()) == scenario.workers
        assert not scenario.hosts or set(scenario.rivals) <= {"gloo"}  # the others have a host for each rank


def test_workers_on_loopback_stand_for_machines_where_no_host_is_said_to_have_several():
    many = [scenario for scenario in scenarios.ALL if scenario.rate is None and scenario.workers > 1]
    for scenario in many:
        assert bool(scenario.hosts) != (("BYTEPS_LOCAL_REDUCE", "0") in scenario.env)
    assert len(many) > 10


def test_the_mlp_has_24_8_million_parameters():
    assert scenarios.MLP_BYTES / 4 == pytest.approx(24.8e6, rel=0.002)


@pytest.mark.parametrize("model", steps.MODELS)
def test_a_step_is_at_least_its_computation_and_its_bytes(model):
    layers = steps.MODELS[model]()
    size = steps.bytes_of(layers)
    assert sum(share for _, share in layers) == pytest.approx(1)
    assert sum(bytes_ for _, bytes_ in steps.buckets(layers)) == size
    for crossed in (False, True):
        assert steps.ideal(layers, 1e15, crossed) == pytest.approx(steps.FORWARD_S + steps.BACKWARD_S)
        assert steps.ideal(layers, GIGABIT / 4, crossed) >= size / (GIGABIT / 4)
    assert steps.ideal(layers, GIGABIT, crossed=True) <= steps.ideal(layers, GIGABIT)
    assert steps.ideal(layers, GIGABIT) <= steps.ideal(layers, GIGABIT, sent=steps.buckets(layers)) + 1e-9


def test_the_line_is_busy_from_the_first_gradient_to_the_last_where_layers_are_equal():
    first_s = steps.FORWARD_S + steps.BACKWARD_S / 16
    assert steps.ideal(steps.uniform(), GIGABIT) == pytest.approx(first_s + steps.SIZE / GIGABIT)


def test_what_is_late_and_needed_first_is_not_hidden():
    layers = [((1 << 20,), 0.5), ((1 << 20,), 0.5)]  # 4 MiB each, in 0.1 s each
    rate = (4 << 20) / 0.1
    assert steps.ideal(layers, rate) == pytest.approx(0.6 + 0.1)
    assert steps.ideal(layers, rate, crossed=True) == pytest.approx(0.6 + 0.1)  # of the first layer
    assert steps.ideal(layers, rate / 2) == pytest.approx(0.6 + 0.2)
    assert steps.ideal(layers, rate, sent=[(0, 8 << 20)]) == pytest.approx(0.6 + 0.2)


def test_a_step_of_two_passes_takes_one_more_that_sends_nothing():
    layers, whole_s = steps.uniform(), steps.FORWARD_S + steps.BACKWARD_S
    assert steps.ideal(layers, GIGABIT, passes=2) == pytest.approx(steps.ideal(layers, GIGABIT) + whole_s)
    assert steps.ideal(layers, GIGABIT / 4, crossed=True, passes=2) >= steps.SIZE / (GIGABIT / 4)
    assert steps.ideal(layers, 1e15, crossed=True, passes=2) == pytest.approx(2 * whole_s)


def test_a_rank_of_fsdp2_receives_what_others_have_twice_and_its_share_of_the_sums():
    layers = steps.uniform()
    assert steps.sharded(layers, GIGABIT, 4) == pytest.approx((2 * 3 / 4 + 1 / 4) * 0.5613, abs=0.0006)
    assert steps.sharded(layers, 1e15, 4) == pytest.approx(steps.FORWARD_S + steps.BACKWARD_S)


def test_what_a_framework_adds_is_hidden_where_it_can_be():
    layers, line_s = steps.uniform(), steps.SIZE / GIGABIT
    alone = steps.Alone(step_s=0.66, update_s=0.02)  # 40 ms are added where gradients are made
    first_s = steps.FORWARD_S + (steps.BACKWARD_S + 0.04) / 16
    assert steps.ideal(layers, GIGABIT, alone=alone) == pytest.approx(first_s + line_s + 0.02)
    assert steps.ideal(layers, 1e15, alone=alone) == pytest.approx(0.66)
    assert steps.ideal(layers, 1e15, crossed=True, alone=alone) == pytest.approx(0.66)
    line_bound_s = 2 * line_s + 0.66 / 16  # the last layer waits for its sum, and the line for its gradient
    assert steps.ideal(layers, GIGABIT / 2, crossed=True, alone=alone) == pytest.approx(line_bound_s)
    assert steps.ideal(layers, 1e15, passes=2, alone=steps.Alone(1.3, 0.02)) == pytest.approx(1.3)
    assert steps.sharded(layers, 1e15, 4, alone=alone) == pytest.approx(0.645)  # a fourth of the update


@pytest.mark.parametrize(
    "name, word, kind, seconds",
    [
        ("step-uniform-n4", "go", "byteps", 0.225 + 0.5613),
        ("step-uniform-n4", "compute", "byteps", 0.6),
        ("step-uniform-n4", "go", "horovod", 0.225 + 0.842),  # each gradient for itself, in a ring
        ("step-uniform-n4", "go", "gloo", 0.4 + 0.842 * 15 / 16),  # the line waits for the second bucket
        ("step-uniform-n4", "go crossed", "byteps", steps.ideal(steps.uniform(), GIGABIT, crossed=True)),
        ("step-mxnet-n4", "go", "mxnet", steps.ideal(steps.uniform(), GIGABIT, crossed=True)),
        ("step-jax-n4", "go", "jax", 0.225 + 0.5613),
        ("step-torch-n4", "go clipped", "byteps", 0.225 + 0.5613),
        ("step-torch-n4", "go accumulated", "byteps", 0.6 + 0.225 + 0.5613),
        ("step-torch-n4", "compute accumulated", "byteps", 1.2),
        ("step-torch-n4", "go unused", "byteps", 0.2 * 15 / 16 + 0.025 + 0.5613 * 15 / 16),
        ("step-torch-n4", "go unused", "gloo", 0.2 * 15 / 16 + 0.2 + 0.842 * 15 / 16),  # its buckets go whole
        ("step-torch-n4", "go ddp4", "byteps", 0.225 + 0.5613),  # a bucket for each layer
        ("step-torch-n4", "go ddp4", "gloo", 0.225 + 0.842),
        ("step-torch-n4", "compute unused", "byteps", 0.6 * 15 / 16),
        ("step-fsdp-n4", "go fsdp", "byteps", (2 * 3 / 4 + 1 / 4) * 0.5613),
        ("step-fsdp-n4", "go fsdp", "gloo", 3 * 3 / 4 * 0.5613),  # nobody sums for it
        ("n4k4", "go", "sockets", 0.5613),
        ("n4k4", "go", "mpi ring", 0.842),
        ("coded-n4", "go float16", "byteps", 0.5613 / 2),
        ("coded-n4", "go int8", "byteps", 0.5613 / 3.938),
        ("coded-mlp", "go", "byteps", 0.8288),
        ("coded-mlp", "go int4:error_feedback", "byteps", 0.8288 / 7.111),
        ("coded-mlp", "go fp16", "gloo", 1.2431 / 2),
        ("coded-mlp", "go ddp powersgd", "byteps", 0.8288 / 261),
    ],
)  # fmt: skip
def test_the_limit_of_a_figure_is_of_what_its_workers_do(name, word, kind, seconds):
    scenario = next(scenario for scenario in scenarios.ALL if scenario.name == name)
    assert scenario.limit_of(word, kind) == pytest.approx(seconds, abs=0.0012)


def test_the_time_of_resnet50s_layers_is_by_its_4_1_billion_multiplications():
    work = sum(math.prod(shape) * steps._positions(name) for name, shape in models.resnet50() if len(shape) > 1)
    assert work == pytest.approx(4.09e9, rel=0.002)
    assert steps.bytes_of(steps.resnet50()) == 4 * models.parameter_count("resnet50")


def test_the_simulator_trains_the_models_of_the_benchmark():
    assert steps.SIMULATED.read_text(encoding="ascii") == steps.as_cpp(), "python bench/steps.py writes it"


def test_drops_are_added_and_times_are_per_operation():
    scenario = scenarios.Scenario("x", "", "", 2, 2, operations=10)
    turns = [
        {"seconds": s, "first_s": s, "worker_cpu_s": 1.0, "server_cpu_s": 2.0, "busy_share": 0.5, "drops_out": 3}
        for s in (1.0, 3.0, 2.0, 5.0, 4.0)
    ]
    figure = run.summarize(turns, scenario, 0.15)
    assert figure["median_s"] == pytest.approx(0.3)
    assert figure["quartiles_s"] == pytest.approx([0.2, 0.4])
    assert figure["ratio"] == pytest.approx(0.5)
    assert figure["drops_out"] == 15


def test_what_is_counted_around_a_round_is_of_its_warm_operations_too():
    scenario = scenarios.Scenario("x", "", "", 2, 2, hosts=(1, 1), size=1000, operations=4, warm=2)
    turn = {"seconds": 4.0, "server_cpu_s": 6.0, "worker_cpu_s": 4.0, "card_bytes": [[6000, 6000], [0, 0]]}
    figure = run.summarize([turn], scenario, 1.0)
    assert (figure["median_s"], figure["server_cpu_s"], figure["worker_cpu_s"]) == (1.0, 4.0, 4.0)
    assert figure["cards"] == [[1.0, 1.0]]


def test_an_unknown_scenario_is_refused_with_the_names_there_are():
    done = subprocess.run([*RUN, "--only", "n5k7"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "n5k7" in done.stderr and "n4k4" in done.stderr


def test_a_build_without_binaries_is_refused_with_the_remedy(tmp_path):
    done = subprocess.run([*RUN, "--only", "10k", "--build", str(tmp_path)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "--build" in done.stderr


@pytest.fixture(scope="module")
def small_run(tmp_path_factory):
    """One round of 100 tensors on loopback, two groups of ours in turns."""
    if not (BUILD / "bin" / "push_pull_worker").exists():
        pytest.skip(f"no push_pull_worker in {BUILD}: build with BYTEPS_BENCH=ON")
    folder = tmp_path_factory.mktemp("bench")
    options = ["--repeats", "2", "--no-record", "--no-rivals", "--output", str(folder), "--build", str(BUILD)]
    variant = ["--variant", "BYTEPS_FRAME_BYTES=65536"]
    command = [*RUN, "--only", "grow-t100", *options, *variant]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder, done.stdout


def test_a_small_run_measures_each_group_and_keeps_the_result(small_run):
    folder, _ = small_run
    result = json.loads((folder / "grow-t100.json").read_text())
    assert list(result["figures"]) == ["byteps", "byteps tcp", "byteps FRAME_BYTES=65536"]
    for figure in result["figures"].values():
        assert len(figure["seconds"]) == 2
        assert 0 < figure["first_s"] <= figure["seconds"][-1]
        assert figure["server_cpu_s"] > 0 and figure["worker_cpu_s"] > 0
    assert result["server_memory_growth"] < 64 << 20  # it gives sums back
    assert math.isclose(result["worker_memory_growth"], 64 << 20, rel_tol=0.5)


def test_the_report_has_a_row_for_each_group(small_run):
    folder, output = small_run
    written = report.text(folder)
    rows = [line for line in written.splitlines() if line.startswith("| 64 MiB in 100 tensors")]
    assert len(rows) == 4  # the time, and what growth is about for each group
    assert "byteps FRAME_BYTES=65536" in written
    assert "tensors/s" in output


def test_a_coded_exchange_sends_fewer_bytes_and_its_sums_are_right(monkeypatch, tmp_path):
    if not (BUILD / "bin" / "push_pull_worker").exists():
        pytest.skip(f"no push_pull_worker in {BUILD}: build with BYTEPS_BENCH=ON")
    options = ["--repeats", "1", "--no-rivals", "--nice", "0", "--output", str(tmp_path), "--build", str(BUILD)]
    monkeypatch.setattr(sys, "argv", ["run.py", *options])
    coded = next(scenario for scenario in scenarios.ALL if scenario.name == "coded-n4")
    small = {"workers": 2, "extra": 1, "hosts": (1, 1), "rate": None, "size": 1 << 20, "env": scenarios.FLAT}
    figures = run.measure(run.arguments(), dataclasses.replace(coded, **small))["figures"]
    pushed = {label.removeprefix("byteps").strip(): figure["pushed"] for label, figure in figures.items()}
    bits = {"": 32, "float16": 16, "bfloat16": 16, "int8": 8.125, "int4": 4.5}
    assert pushed == {how: [pytest.approx(count / 32, abs=1e-3)] * 2 for how, count in bits.items()}


def figures_of_kernels(**rates):
    medians = {"plain loop": 30.0, "plain loop avx2": 50.0, "torch add_": 40.0, **rates}
    return {row: {"median": rate, "quartiles": [rate - 1, rate + 3]} for row, rate in medians.items()}


def test_the_bound_of_a_kernel_is_the_traffic_of_the_best_plain_loop():
    one = figures_of_kernels(float32=50, float16=30, bfloat16=15, int8=25)
    assert kernels.ratios(one) == pytest.approx({"float32": 1, "float16": 1, "bfloat16": 0.5, "int8": 0.5})
    assert kernels.cell(one, "float16") == "30.0 ± 2.0 (1.00)"


def test_a_table_of_kernels_names_the_targets_that_were_missed_and_no_others():
    reached = figures_of_kernels(float32=48, float16=26, bfloat16=26, int8=43)
    missed = figures_of_kernels(float32=39, float16=26, bfloat16=25, int8=43)
    figures = {"8 MiB, 1 thread": reached, "512 MiB, 2 threads": missed}
    written = kernels.table({"target": "avx2", "load": 0.1, "commit": "0" * 7, "figures": figures})
    first, second = written.splitlines()[-2:]
    assert first.startswith("| 8 MiB, 1 thread |") and first.endswith("| 50.0 ± 2.0 avx2 | 5 targets reached |")
    assert "float32 / bytes bound 0.78, target 0.95: NOT reached; bfloat16 / bytes bound 0.83" in second
    assert "float32 / torch 0.97, target 1.0: NOT reached" in second
    assert "float16 /" not in second.replace("bfloat16", "") and "int8 /" not in second


def test_kernels_and_plain_loops_take_turns_on_one_memory(monkeypatch):
    if not (BUILD / "lib" / "libkernels_rows.so").exists():
        pytest.skip(f"no libkernels_rows.so in {BUILD}: build with BYTEPS_BENCH=ON")
    for name, value in (("SIZES", {"64 KiB": 64 << 10}), ("TURN_BYTES", 1e5), ("TURNS", 3)):
        monkeypatch.setattr(kernels, name, value)
    _, figures = kernels.measure(BUILD, quick=True)
    (one,) = figures.values()
    assert {"memcpy", "plain loop", *kernels.TRAFFIC} <= set(one)
    assert all(0 < figure["median"] < 1e4 for figure in one.values())
    assert len(list(kernels.checks(one))) == len(kernels.TRAFFIC) + ("torch add_" in one)


def test_a_library_that_does_not_load_is_told(tmp_path, monkeypatch, capfd):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libkernels_rows.so").write_text("no library")
    monkeypatch.setattr(kernels, "SIZES", {"64 KiB": 64 << 10})
    assert kernels.run(tmp_path, tmp_path, "0" * 7, record=False, quick=True) == 1
    assert "kernels_worker.py" in capfd.readouterr().err


def test_one_process_joins_several_jobs_and_a_row_is_told_for_each_number_of_loops():
    if not (BUILD / "bin" / "byteps_server").exists():
        pytest.skip(f"no byteps_server in {BUILD}")
    small = ["--share", "0", "--loops", "3", "--bytes", str(3 << 20), "--tensors", "5", "--repeats", "2"]
    command = [sys.executable, str(ROOT / "bench" / "wide.py"), *small, "--operations", "2", "--build", str(BUILD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines() if "not held" in line]
    assert [int(row[1]) for row in rows] == [1, 2, 3]
    assert all(float(row[3].split()[0]) > 0 and float(row[4]) > 0 for row in rows)


def test_loops_are_held_to_their_share():
    if os.geteuid() != 0 or not os.access("/sys/fs/cgroup/cpu/tasks", os.W_OK):
        pytest.skip("needs root, and cgroup v1's controller cpu")
    small = ["--share", "0.1", "--loops", "2", "--bytes", str(32 << 20), "--repeats", "2", "--operations", "2"]
    command = [sys.executable, str(ROOT / "bench" / "wide.py"), *small, "--build", str(BUILD)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [line.split("|") for line in done.stdout.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert [(int(row[1]), float(row[2])) for row in rows] == [(1, 0.1), (2, 0.1), (1, 0.2)]
    for row in rows:
        cores = float(row[3].split()[0]) * 1e6 / (1 << 30) * float(row[4])
        assert cores < 1.5 * int(row[1]) * float(row[2])
    assert not list(Path("/sys/fs/cgroup/cpu").glob("byteps-wide-*"))


@pytest.mark.parametrize("name", draw_compression.DRAWN)
def test_pictures_of_compression_show_the_present_figures(name):
    figures_of, _ = draw_compression.DRAWN[name]
    svg = (draw_compression.PICTURES / f"{name}.svg").read_text(encoding="utf-8")
    told = html.unescape(svg.partition("<dc:description>")[2].partition("</dc:description>")[0])
    assert json.loads(told) == figures_of(), "draw them anew: bench/draw_compression.py"


def test_the_table_of_compression_has_the_figures_of_the_laboratory():
    page = (ROOT / "docs/compression.md").read_text(encoding="utf-8")
    named = {"`powersgd(rank=4)`": "powersgd(rank=4)", "`int4`, error feedback": "int4, error feedback"}
    named |= {f"`{name}`": name for name in ("none", "fp16", "int8")}
    named["DDP, its PowerSGD hook of rank 4"] = "DDP, its PowerSGD hook"
    found = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        for at in (0, 3):
            if len(cells) == 6 and cells[at + 1].isdigit():
                found[named.get(cells[at], cells[at])] = {"1000": int(cells[at + 1]), "100": int(cells[at + 2])}
    computing = {"1000": int(page.partition("computing alone takes ")[2].partition(")")[0])}
    figures = draw_compression.steps()
    assert figures.pop("computing alone")["1000"] == computing["1000"]
    assert found == figures
