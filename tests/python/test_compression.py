"""Coded sums: what they are, bit for bit, in which calls, on how many machines, and what error feedback carries on."""

import copy
import os
import re
import warnings
import zlib

import numpy as np
import pytest
from cluster import Cluster, launch
from place import BUILD

from byteps._core import errors

try:
    import torch
    from torch import nn

    import byteps.torch as bps
except ImportError:
    torch = nn = bps = None  # in a worker with MXNet

BLOCKS = {"int8": 256, "int4": 32}
LARGE = 3 * 65536 // 4 + 77  # elements, above BYTEPS_MIN_COMPRESS_BYTES, and no whole number of blocks


@pytest.fixture(scope="module")
def apart():
    """Two workers, each on a machine of its own."""
    with Cluster(hosts=(1, 1)) as job:
        yield job


@pytest.fixture(scope="module")
def two_and_two():
    with Cluster(hosts=(2, 2)) as job:
        yield job


# ---- a dull model of src/kernels/coding.h


def bfloat16_up(scales):
    """The least bfloat16 that is not less."""
    bits = scales.view(np.uint32)
    return ((bits + np.uint32(0xFFFF)) & np.uint32(0xFFFF0000)).view(np.float32)


def coded(values, format):
    """What is left of float32 values when they have been codes."""
    block = BLOCKS[format]
    padded = np.zeros(-(-values.size // block) * block, np.float32)
    padded[: values.size] = values
    rows = padded.reshape(-1, block)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if format == "int8":
        scale, inverse = largest / np.float32(127), np.float32(127) / np.maximum(largest, np.float32(1e-30))
        limit = 127
    else:
        scale = bfloat16_up(np.ascontiguousarray(largest / np.float32(7)))
        inverse, limit = np.float32(1) / np.maximum(scale, np.float32(1e-30)), 7
    codes = np.clip(np.rint(rows * inverse), -limit, limit).astype(np.float32)
    return (np.where(largest < 1e-30, np.float32(0), codes * scale)).reshape(-1)[: values.size]


def averaged(contributions, format):
    total = contributions[0].copy()
    for each in contributions[1:]:
        total += each
    return coded(total / np.float32(len(contributions)), format)


def values_of(rank, seed=0, count=LARGE):
    generator = np.random.default_rng(100 * seed + rank)
    return (generator.standard_normal(count) * 10.0 ** generator.integers(-3, 2, count)).astype(np.float32)


# ---- calls


def one_call(format):
    values = torch.from_numpy(values_of(bps.rank()))
    given = values.clone()
    before = bps.metrics()
    result = bps.push_pull(values, name=f"call.{format}", compression=getattr(bps.Compression, format))
    assert torch.equal(values, given)
    after = bps.metrics()
    assert 0 < after.encode_ns - before.encode_ns < 1e9 and 0 < after.decode_ns - before.decode_ns < 1e9
    reduced = bps.allreduce(values, name=f"reduce.{format}", compression=getattr(bps.Compression, format))
    assert torch.equal(reduced, result)
    return result.numpy(), after.pushed_bytes - before.pushed_bytes, after.pushed_wire_bytes - before.pushed_wire_bytes


@pytest.mark.parametrize("format", ["int8", "int4"])
def test_a_coded_average_is_that_of_the_model_bit_for_bit_and_of_fewer_bytes(apart, format):
    results = apart.run(one_call, format)
    expected = averaged([coded(values_of(rank), format) for rank in (0, 1)], format)
    for result, pushed, on_wire in results:
        np.testing.assert_array_equal(result, expected)
        assert pushed >= 4 * LARGE
        assert pushed / on_wire > {"int8": 3.9, "int4": 7.0}[format]
    plain = np.mean([values_of(rank) for rank in (0, 1)], axis=0)
    assert 0 < np.abs(expected - plain).max() < np.abs(plain).max() / 5


def test_where_a_machine_sums_first_its_sum_is_coded_once_if_servers_are_used_all_the_same():
    """BYTEPS_FORCE_DISTRIBUTED=1, with several ranks on one host."""
    with Cluster(environ={"BYTEPS_LOCAL_REDUCE": "auto", "BYTEPS_FORCE_DISTRIBUTED": "1"}) as job:
        results = job.run(one_call, "int8")
    total = values_of(0) + values_of(1)
    expected = coded(coded(total, "int8") / np.float32(2), "int8")
    for result, _, _ in results:
        np.testing.assert_array_equal(result, expected)
    assert sum(pushed for _, pushed, _ in results) / sum(on_wire for _, _, on_wire in results) > 3.9


def what_is_not_coded():
    small = torch.from_numpy(values_of(bps.rank(), count=16383))
    wide = torch.from_numpy(values_of(bps.rank())).double()
    whole = torch.arange(LARGE, dtype=torch.int32)
    before = bps.metrics()
    for index, tensor in enumerate((small, wide, whole)):
        coded_one = bps.push_pull(tensor, average=False, name=f"small.{index}", compression=bps.Compression.int4)
        plain_one = bps.push_pull(tensor, average=False, name=f"plain.{index}")
        assert torch.equal(coded_one, plain_one)
    after = bps.metrics()
    return after.pushed_bytes - before.pushed_bytes, after.pushed_wire_bytes - before.pushed_wire_bytes


def test_small_tensors_and_other_dtypes_travel_as_they_are(apart):
    for pushed, on_wire in apart.run(what_is_not_coded):
        assert pushed == on_wire > 0


def refused_calls():
    values = torch.zeros(LARGE)
    with pytest.raises(ValueError, match="error feedback is kept by an optimizer"):
        bps.push_pull(values, name="x", compression=bps.Compression.int8(error_feedback=True))
    with pytest.raises(ValueError, match=re.escape("Compression.int4: reducescatter() codes nothing")):
        bps.reducescatter(values, compression=bps.Compression.int4)


def test_what_cannot_be_is_an_error_that_says_what_to_do(alone):
    refused_calls()
    assert repr(bps.Compression.int8(error_feedback=True)) == "Compression.int8(error_feedback=True)"
    assert bps.Compression.int8(error_feedback=False) == bps.Compression.int8


def disagreeing():
    compression = bps.Compression.int8 if bps.rank() == 0 else bps.Compression.int4
    with pytest.raises(errors.MismatchError) as raised:
        bps.push_pull(torch.zeros(LARGE), name="disagreed", compression=compression)
    return str(raised.value)


def test_ranks_that_disagree_about_the_format_are_told_both(apart):
    for text in apart.run(disagreeing):
        assert '"byteps.disagreed"' in text and "coded as int8" in text and "coded as int4" in text, text


# Of the same script on all ranks, which says nothing of compression: worker 1 alone has the variable.
OF_ONE_RANK = """
import os, sys
variable, value = sys.argv[1].split("=")
if os.environ["BYTEPS_LOCAL_RANK"] == "1":
    os.environ[variable] = value
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[2], sys.argv[3]])
exec(sys.argv[2])
"""
TRAINING = """
import sys, torch, byteps.torch as bps
bps.init()
model = torch.nn.Linear(200, int(sys.argv[-1]), bias=False)
optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
try:
    model(torch.ones(8, 200)).sum().backward()
    optimizer.step()
    print("no error")
except bps.MismatchError as error:
    print(f"told: {error}")
"""


@pytest.mark.parametrize(
    "environ, setting, size, words",
    [
        ({}, "BYTEPS_COMPRESSION=int8", 200, "worker 1 (float32, shape 200x200, 160000 bytes, average, coded as int8)"),
        ({}, "BYTEPS_COMPRESSION=fp16", 10, "worker 1 (float16, shape 10x200, 4000 bytes, average)"),
        ({"BYTEPS_COMPRESSION": "int4"}, "BYTEPS_MIN_COMPRESS_BYTES=200000", 200, "coded as int4"),
    ],
    ids=["coded", "cast", "bound"],
)
def test_ranks_of_which_one_has_a_variable_of_its_own_are_told_its_name(environ, setting, size, words):
    output = launch("-c", OF_ONE_RANK, setting, TRAINING, str(size), environ=environ)
    told = [line for line in output.splitlines() if "told: " in line]
    assert len(told) == 2 and "no error" not in output, output
    for line in told:
        assert words in line and '"byteps.Gradient.weight" differs between ranks' in line, line
        assert "set BYTEPS_COMPRESSION and BYTEPS_MIN_COMPRESS_BYTES alike" in line, line


TRACED = """
import torch, byteps.torch as bps
bps.init()
values = torch.randn(50000)
for _ in range(5):
    bps.push_pull(values, name="traced", compression=bps.Compression.int8)
    bps.push_pull(values, name="plain")
metrics = bps.metrics()
print("coded:", bps.rank(), metrics.encode_ns, metrics.decode_ns)
"""


def test_the_timeline_of_a_coded_job_says_what_coding_took(tmp_path):
    from byteps.tools import trace

    environ = {
        "BYTEPS_TRACE_ON": "1",
        "BYTEPS_TRACE_START_STEP": "1",
        "BYTEPS_TRACE_END_STEP": "3",
        "BYTEPS_TRACE_DIR": str(tmp_path),
        "BYTEPS_LOCAL_REDUCE": "0",
    }

    took = {}
    for line in launch("-c", TRACED, environ=environ).splitlines():
        rank, *times = line.split("coded: ")[-1].split()
        took[int(rank)] = [int(each) / 1e3 for each in times]
    processes = [each for each in trace.read([str(tmp_path)]) if each.role == "worker"]
    assert len(processes) == 2
    for process in processes:
        encode_us, decode_us = took[process.rank]
        coded = [each for each in process.codings if each.tensor.endswith("traced")]
        parts = {each.place: each for each in process.parts}
        assert {each.round for each in coded} == {1, 2, 3} and coded == process.codings
        for each in coded:
            part = parts[(each.tensor, each.part, each.round)]
            assert part.queued <= each.encode.end <= part.last_sent and each.encode.begin < each.encode.end
            assert each.decode.begin >= each.encode.begin and each.decode.end <= part.last_answer
            for one in (each.encode, each.decode):
                assert 0 < one.busy <= one.end - one.begin + 0.01
        assert 0 < sum(each.encode.busy for each in coded) < encode_us
        assert 0 < sum(each.decode.busy for each in coded) < decode_us
    assert "Coding, most of it at worker" in trace.text_of(trace.summarize(processes), processes)


# ---- the optimizer


def model_of(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, 10))


def trained(compression, steps, optimizer_of=None, load=None):
    """After `steps` of the digits: (parameters, residuals by name, the optimizer's state)."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    model = model_of()
    optimizer_of = optimizer_of or (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9))
    optimizer = bps.DistributedOptimizer(
        optimizer_of(model.parameters()), model.named_parameters(), compression, name=f"{compression}"
    )
    first = 0
    if load is not None:
        model.load_state_dict(load[0])
        optimizer.load_state_dict(load[1])
        first = load[2]
    generator = torch.Generator().manual_seed(7)
    for step in range(first + steps):
        batch = torch.randint(0, len(images), (32 * bps.size(),), generator=generator)[bps.rank() :: bps.size()]
        if step < first:
            continue
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
        optimizer.step()
    accuracy = (model(images).argmax(1) == labels).float().mean().item()
    state = copy.deepcopy((model.state_dict(), optimizer.state_dict(), first + steps))
    residuals = {name: each.clone() for name, each in optimizer._gradients.residuals.tensors.items()}
    return state, residuals, accuracy


@pytest.mark.parametrize("feeds_back", [False, True])
@pytest.mark.parametrize("format", ["int8", "int4"])
def test_digits_are_learned_with_codes_and_all_ranks_have_the_same_parameters(apart, format, feeds_back):
    def train():
        compression = getattr(bps.Compression, format)(error_feedback=feeds_back)
        before = bps.metrics()
        state, residuals, accuracy = trained(compression, 150)
        after = bps.metrics()
        ratio = (after.pushed_bytes - before.pushed_bytes) / (after.pushed_wire_bytes - before.pushed_wire_bytes)
        coded = {name for name, each in residuals.items() if each.abs().max() > 0}
        assert coded == ({f"Gradient.{compression}.{at}.weight" for at in (0, 2)} if feeds_back else set())
        return state[0], accuracy, ratio

    (first, accuracy, ratio), (second, _, _) = apart.run(train)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert accuracy > 0.95
    assert ratio > {"int8": 3.4, "int4": 5.5}[format]


def test_on_two_machines_of_two_workers_the_sum_of_each_machine_is_coded_once(two_and_two):
    def train():
        state, residuals, accuracy = trained(bps.Compression.int4(error_feedback=True), 60)
        return state[0], residuals, accuracy

    results = two_and_two.run(train)
    for parameters, residuals, accuracy in results[1:]:
        assert all(torch.equal(results[0][0][name], parameters[name]) for name in parameters)
        assert accuracy > 0.9 and residuals.keys() == results[0][1].keys()
    for machine in (results[:2], results[2:]):  # who leads a part has its residual, nobody else
        for name in machine[0][1]:
            mine, its = (residuals[name] != 0 for _, residuals, _ in machine)
            assert not (mine & its).any()
            assert (mine | its).float().mean() > 0.5 or mine.numel() * 4 < 65536


def test_training_goes_on_from_a_checkpoint_as_if_nothing_had_been(apart):
    def train():
        compression = bps.Compression.int8(error_feedback=True)
        whole, _, _ = trained(compression, 20)
        half, _, _ = trained(compression, 10)
        rest, _, _ = trained(compression, 10, load=half)
        without = copy.deepcopy(half)
        del without[1]["byteps"]
        with pytest.warns(UserWarning, match="error feedback begins with zeros: what is loaded has none"):
            other, _, _ = trained(compression, 10, load=without)
        return whole[0], rest[0], other[0]

    for whole, rest, other in apart.run(train):
        assert all(torch.equal(whole[name], rest[name]) for name in whole)
        assert any(not torch.equal(whole[name], other[name]) for name in whole)


def test_residuals_of_another_rank_are_not_loaded(apart):
    def train():
        compression = bps.Compression.int8(error_feedback=True)
        state, residuals, _ = trained(compression, 2)
        of_root = bps.broadcast_object(state[1], root_rank=0)
        model = model_of()
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), model.named_parameters(), compression, name="o"
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.load_state_dict(of_root)
        kept = optimizer._gradients.residuals.tensors
        if bps.rank() == 0:
            assert not caught and all(torch.equal(kept[name], residuals[name]) for name in residuals)
        else:
            assert not kept
            assert "has that of rank 0 of 2 on 2 machines, and this is rank 1" in str(caught[0].message)

    apart.run(train)


def test_the_norm_of_what_is_carried_on_is_that_of_all_residuals(apart, tmp_path):
    def train(store):
        from torch_group import ensure_group

        from byteps.torch.cross_barrier import CrossBarrier
        from byteps.torch.parallel import DistributedDataParallel

        def optimizing(compression):
            model = model_of()
            optimizer = bps.DistributedOptimizer(
                torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), compression
            )
            return model, optimizer, optimizer

        def crossing(compression):
            model = model_of()
            optimizer = CrossBarrier(model, torch.optim.SGD(model.parameters(), lr=0.1), compression=compression)
            return model, optimizer, optimizer

        def parallel(compression):
            model = DistributedDataParallel(model_of(), compression=compression)
            return model, None, model

        def hooked(compression):
            ensure_group(store)
            model, state = torch.nn.parallel.DistributedDataParallel(model_of()), bps.DDPHookState(compression)
            model.register_comm_hook(state, bps.ddp_comm_hook)
            return model, None, state

        def norms(make, compression):
            model, optimizer, which = make(compression)
            before = which.residual_norm()
            for _ in range(2):
                model.zero_grad()
                model(torch.ones(8, 64) * (1 + bps.rank())).square().sum().backward()
                if optimizer is not None:
                    optimizer.step()
            norm = which.residual_norm()
            kept = which._residuals if hasattr(which, "_residuals") else which._gradients.residuals
            flat = torch.cat([torch.zeros(1), *kept.tensors.values()]).double()
            assert before == 0.0 and norm == pytest.approx(flat.norm().item(), rel=1e-12)
            return norm

        fed_back = bps.Compression.int4(error_feedback=True)
        assert all(norms(make, fed_back) > 0 for make in (optimizing, crossing, parallel, hooked))
        assert norms(optimizing, bps.Compression.powersgd(rank=2)) > 0
        assert norms(optimizing, bps.Compression.int4) == 0

    apart.run(train, str(tmp_path / "store"))


def test_adam_takes_its_state_as_ever(apart):
    def train():
        optimizer_of = lambda parameters: torch.optim.Adam(parameters, lr=0.01)
        state, _, accuracy = trained(bps.Compression.int8(error_feedback=True), 60, optimizer_of)
        assert set(state[1]) == {"state", "param_groups", "byteps"}
        return accuracy

    assert all(accuracy > 0.9 for accuracy in apart.run(train))


def ratio_by_variable(value, **options):
    """How many times fewer bytes a step's gradients were."""
    os.environ["BYTEPS_COMPRESSION"] = value
    try:
        model = model_of()
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), name=f"by {value}", **options
        )
    finally:
        del os.environ["BYTEPS_COMPRESSION"]
    before = bps.metrics()
    model(torch.randn(8, 64)).square().sum().backward()
    optimizer.step()
    after = bps.metrics()
    pushed, on_wire = after.pushed_bytes - before.pushed_bytes, after.pushed_wire_bytes - before.pushed_wire_bytes
    return round(pushed / on_wire, 1), optimizer._gradients.keeps_something


def test_where_a_script_chooses_nothing_the_variable_does(apart):
    def train():
        assert ratio_by_variable("none") == (1.0, False)
        assert ratio_by_variable("int8")[0] > 3.4
        assert ratio_by_variable("int4:error_feedback")[0] > 5.5
        assert ratio_by_variable("int4:error_feedback")[1]
        assert ratio_by_variable("int4", compression=bps.Compression.int8)[0] < 4
        for wrong in ("int9", "fp16:error_feedback", "int8:feedback", "topk"):
            with pytest.raises(ValueError, match=f"BYTEPS_COMPRESSION is '{wrong}': it must be none, fp16"):
                ratio_by_variable(wrong)

    apart.run(train)


# It codes 1 GiB, as much as is judged at a time.
MUCH_CODED = """
import os, torch, byteps.torch as bps
os.dup2(1, 2)  # the log
bps.init()
values = torch.ones(1 << 24)
for _ in range(2):
    bps.broadcast_parameters({"weights": values}, root_rank=0)
for _ in range(18):
    bps.push_pull(values, name="gradient", compression=bps.Compression.int8)
print("coded", bps.metrics().encode_ns)
"""
SLOW_CODING = BUILD / "lib/slow_coding/libbyteps.so"  # kernels that are not optimized: int8 takes 30 times as long


@pytest.mark.parametrize("is_slow", [False, True], ids=["fast", "slow"])
def test_one_warning_says_that_coding_takes_longer_than_the_memory_on_the_way(is_slow):
    environ = {"BYTEPS_LOCAL_REDUCE": "0"}
    if not SLOW_CODING.is_file() or "release" not in BUILD.name:
        pytest.skip("this build has no slow kernels, or none that are fast")
    if is_slow:
        environ["BYTEPS_LIBRARY"] = str(SLOW_CODING)
    output = launch("-c", MUCH_CODED, environ=environ)
    told = [line for line in output.splitlines() if "compression makes exchanges slower" in line]
    assert "WARNING worker 0" in "".join(told) if is_slow else not told, output
    assert len(told) == is_slow and output.count("coded ") >= 2, output


# ---- PowerSGD


def dull_powersgd(gradients, residuals, right):
    """One step of it, in numpy: (average, residuals, Q)."""
    matrices = [gradient + residual for gradient, residual in zip(gradients, residuals)]
    left, _ = np.linalg.qr(np.mean([matrix @ right for matrix in matrices], axis=0))
    right = np.mean([matrix.T @ left for matrix in matrices], axis=0)
    return left @ right.T, [matrix - left @ right.T for matrix in matrices], right


def test_powersgd_is_that_of_a_dull_model(apart):
    def gradient(rank, step):
        return np.random.default_rng(10 * step + rank).standard_normal((96, 4, 5, 6)).astype(np.float32)

    def average():
        parameter = nn.Parameter(torch.zeros(96, 4, 5, 6))
        bias = nn.Parameter(torch.zeros(96))
        compression = bps.Compression.powersgd(rank=3)
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD([parameter, bias], lr=1.0), [("conv", parameter), ("bias", bias)], compression, name="low"
        )
        results = []
        for step in range(3):
            optimizer.zero_grad()
            given = torch.from_numpy(gradient(bps.rank(), step))
            before = bps.metrics().pushed_bytes
            ((parameter * given).sum() + bias.sum() * bps.rank()).backward()
            optimizer.step()
            results.append(parameter.grad.clone().numpy())
            assert torch.equal(bias.grad, torch.full((96,), 0.5))
            assert bps.metrics().pushed_bytes - before < 4 * 3 * (96 + 120) + 4 * 96 + 1000
        right = optimizer.state_dict()["byteps"]["residuals"]
        return results, {name.split("low.")[1]: each.numpy() for name, each in right.items()}

    (first, kept), (second, _) = apart.run(average)
    generator = torch.Generator().manual_seed(zlib.crc32(b"Gradient.low.conv"))
    right = torch.randn(120, 3, generator=generator).numpy()
    residuals = [np.zeros((96, 120), np.float32) for _ in (0, 1)]
    for step, (ours, others) in enumerate(zip(first, second)):
        np.testing.assert_array_equal(ours, others)
        given = [gradient(rank, step).reshape(96, 120) for rank in (0, 1)]
        expected, residuals, right = dull_powersgd(given, residuals, right)
        np.testing.assert_allclose(ours.reshape(96, 120), expected, rtol=0, atol=2e-5)
    assert kept.keys() == {"conv"}
    np.testing.assert_allclose(kept["conv"].reshape(96, 120), residuals[0], rtol=0, atol=2e-5)


def test_digits_are_learned_with_powersgd_also_where_all_load_what_one_rank_has_saved(apart):
    def train():
        compression = bps.Compression.powersgd(rank=4)
        before = bps.metrics()
        state, _, accuracy = trained(compression, 200)
        after = bps.metrics()
        half, _, _ = trained(compression, 100)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # residuals of another rank
            rest, _, later = trained(compression, 100, load=bps.broadcast_object(half, root_rank=0))
        return state[0], rest[0], accuracy, later, 200 * 4 * 68938 / (after.pushed_bytes - before.pushed_bytes)

    results = apart.run(train)
    for whole, rest, accuracy, later, ratio in results:
        assert all(torch.equal(results[0][0][name], whole[name]) for name in whole)
        assert all(torch.equal(results[0][1][name], rest[name]) for name in rest)
        assert min(accuracy, later) > 0.95
        assert ratio > 9


def test_powersgd_goes_on_after_gradients_that_are_not_finite_and_one_that_a_rank_has_changed(apart):
    def train():
        parameter = nn.Parameter(torch.zeros(64, 64))
        compression = bps.Compression.powersgd(rank=2)
        optimizer = bps.DistributedOptimizer(
            torch.optim.SGD([parameter], lr=1.0), [("x", parameter)], compression, name="spoilt"
        )
        generator = torch.Generator().manual_seed(bps.rank())
        results = []
        for step in range(6):
            optimizer.zero_grad()
            given = torch.randn(64, 64, generator=generator)
            if step == 1 and bps.rank() == 1:
                given[3, 5] = float("inf")
            (parameter * given).sum().backward()
            if step == 3 and bps.rank() == 0:
                parameter.grad.mul_(2)
                with pytest.raises(RuntimeError, match="was changed or replaced"):
                    optimizer.synchronize()
            else:
                optimizer.synchronize()
                results.append((step, parameter.grad.clone()))
        return results

    first, second = (dict(each) for each in apart.run(train))
    assert first.keys() == {0, 1, 2, 4, 5} and first[1].isnan().any() and second[1].isnan().any()
    for step in (0, 2, 4, 5):
        assert torch.equal(first[step], second[step]) and first[step].isfinite().all()
        assert torch.linalg.matrix_rank(first[step]) == 2


def test_powersgd_is_for_optimizers(alone):
    for wrong in (0, 1.5, True, "4"):
        with pytest.raises(ValueError, match="it must be a number of at least 1"):
            bps.Compression.powersgd(rank=wrong)
    with pytest.raises(ValueError, match=re.escape("Compression.powersgd(rank=4): it is for optimizers")):
        bps.push_pull(torch.zeros(64, 64), compression=bps.Compression.powersgd())
    with pytest.raises(ValueError, match="torch has a hook of its own for it, powerSGD_hook"):
        bps.DDPHookState(bps.Compression.powersgd())
    model = model_of()
    with pytest.raises(ValueError, match="it cannot be used with op=Sum"):
        bps.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), compression=bps.Compression.powersgd(), op=bps.Sum
        )


# ---- torch's own DistributedDataParallel


def test_buckets_of_ddp_are_coded_by_the_hook(apart, tmp_path):
    def train(store):
        from torch_group import ensure_group

        ensure_group(store)
        model = torch.nn.parallel.DistributedDataParallel(model_of())
        state = bps.DDPHookState(bps.Compression.int8(error_feedback=True))
        model.register_comm_hook(state, bps.ddp_comm_hook)
        torch.manual_seed(bps.rank())
        before = bps.metrics()
        for _ in range(4):
            model.zero_grad()
            model(torch.randn(16, 64)).square().sum().backward()
        after = bps.metrics()
        assert any(each.abs().max() > 0 for each in state._residuals.tensors.values())
        ratio = (after.pushed_bytes - before.pushed_bytes) / (after.pushed_wire_bytes - before.pushed_wire_bytes)
        return {name: each.grad.clone() for name, each in model.named_parameters()}, ratio

    (first, ratio), (second, _) = apart.run(train, str(tmp_path / "store"))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert ratio > 3


# ---- the same bytes from every framework


def by_torch(format):
    mine = torch.from_numpy(values_of(bps.rank(), seed=3))
    return bps.push_pull(mine, name=f"layers.{format}", compression=getattr(bps.Compression, format)).numpy()


def by_jax(format):
    import jax

    import byteps.jax as layer

    compression = getattr(layer.Compression, format)
    mine = values_of(layer.rank(), seed=3)
    call = lambda x: layer.push_pull(x, name=f"layers.{format}", compression=compression)
    result = np.asarray(call(mine))
    np.testing.assert_array_equal(result, jax.jit(call)(mine))
    return result


def by_tensorflow(format):
    import tensorflow as tf

    import byteps.tensorflow as layer

    compression = getattr(layer.Compression, format)
    mine = tf.constant(values_of(layer.rank(), seed=3))
    result = layer.push_pull(mine, name=f"layers.{format}", compression=compression)
    again = tf.function(lambda: layer.push_pull(mine, name=f"layers.{format}", compression=compression))()
    np.testing.assert_array_equal(result, again)
    return result.numpy()


def by_keras(format):
    import byteps.keras as layer

    compression = getattr(layer.Compression, format)
    return layer.allreduce(values_of(layer.rank(), seed=3), name=f"layers.{format}", compression=compression)


def by_mxnet(format):
    import mxnet as mx

    import byteps.mxnet as layer

    mine = mx.nd.array(values_of(layer.rank(), seed=3))
    return layer.push_pull(mine, name=f"layers.{format}", compression=getattr(layer.Compression, format)).asnumpy()


LAYERS = {
    "torch": (by_torch, "job2"),
    "jax": (by_jax, "job2"),
    "tensorflow": (by_tensorflow, "tf_job2"),
    "keras": (by_keras, "tf_job2"),  # whose backend it runs on
    "mxnet": (by_mxnet, "mxnet_job2"),
}


@pytest.mark.parametrize("format", ["int8", "int4"])
@pytest.mark.parametrize("layer", LAYERS)
def test_every_framework_gets_the_same_bytes(layer, format, request):
    call, fixture = LAYERS[layer]
    if fixture != "mxnet_job2":
        pytest.importorskip(layer)
    values = [values_of(rank, seed=3) for rank in (0, 1)]
    expected = averaged([coded(each, format) for each in values], format)
    for result in request.getfixturevalue(fixture).run(call, format):
        np.testing.assert_array_equal(result, expected)


# ---- error feedback in every framework


def fed_back(rounds, format, first=0, residuals=None):
    """The averages of rounds with error feedback, two ranks, and what is left of each."""
    residuals = residuals or [np.zeros(LARGE, np.float32) for _ in (0, 1)]
    results = []
    for seed in range(first, first + rounds):
        pushed = []
        for rank in (0, 1):
            wanted = values_of(rank, seed=seed) + residuals[rank]
            pushed.append(coded(wanted, format))
            residuals[rank] = wanted - pushed[rank]
        results.append(averaged(pushed, format))
    return results, residuals


def calls_of_jax():
    import jax

    import byteps.jax as layer

    def call(compression):
        run = lambda x: layer.push_pull(x, name=f"fed.{compression}", compression=compression)
        compiled = jax.jit(run)
        return lambda index, x: np.asarray((compiled if index % 2 else run)(x))

    return layer, call


def calls_of_tensorflow():
    import tensorflow as tf

    import byteps.tensorflow as layer

    def call(compression):
        run = lambda x: layer.push_pull(x, name=f"fed.{compression}", compression=compression)
        graph, compiled = tf.function(run), tf.function(run, jit_compile=True)
        return lambda index, x: (run, graph, compiled)[index % 3](tf.constant(x)).numpy()

    return layer, call


def calls_of_keras():
    import keras

    import byteps.keras as layer

    def call(compression):
        sgd = keras.optimizers.SGD(1.0)
        optimizer = layer.DistributedOptimizer(sgd, name=f"fed.{compression}", compression=compression)
        variable = keras.Variable(np.zeros(LARGE, np.float32), name="v")

        def one(index, x):
            del index
            variable.assign(np.zeros(LARGE, np.float32))
            optimizer.apply([keras.ops.convert_to_tensor(x)], [variable])
            return -keras.ops.convert_to_numpy(variable.value)

        return one

    return layer, call


def calls_of_mxnet():
    import mxnet as mx

    import byteps.mxnet as layer

    def call(compression):
        optimizer = layer.DistributedOptimizer(mx.optimizer.SGD(learning_rate=1.0), compression=compression)

        def one(index, x):
            del index
            weight = mx.nd.zeros(LARGE)
            optimizer.update(0, weight, mx.nd.array(x), None)
            return -weight.asnumpy()

        return one

    return layer, call


def feeding_back(calls, format):
    """Four rounds; and from a checkpoint after two of them, in another compressor and in the same one, the others."""
    layer, call = calls()
    compression = getattr(layer.Compression, format)(error_feedback=True)
    run = call(compression)
    rounds = [run(seed, values_of(layer.rank(), seed=seed)) for seed in (0, 1)]
    saved = copy.deepcopy(compression.state())
    flat = np.concatenate([each.ravel() for each in saved["residuals"].values()]).astype(np.float64)
    assert compression.residual_norm() == pytest.approx(np.linalg.norm(flat), rel=1e-12) and flat.any()
    rounds += [run(seed, values_of(layer.rank(), seed=seed)) for seed in (2, 3)]
    compression.load_state(saved)  # of programs that are compiled already
    again = [run(seed, values_of(layer.rank(), seed=seed)) for seed in (2, 3)]
    other = getattr(layer.Compression, format)(error_feedback=True)
    other.load_state(saved)
    assert other.residual_norm() == pytest.approx(np.linalg.norm(flat), rel=1e-12)
    assert all(np.array_equal(saved["residuals"][name], each) for name, each in other.state()["residuals"].items())
    with pytest.warns(UserWarning, match="error feedback begins with zeros: what is loaded has none"):
        compression.load_state(None)
    anew = run(0, values_of(layer.rank(), seed=0))
    return rounds, again, anew, [each for each in saved["residuals"].values()]


FED_BACK = {
    "jax": (calls_of_jax, "job2"),
    "tensorflow": (calls_of_tensorflow, "tf_job2"),
    "keras": (calls_of_keras, "tf_job2"),
    "mxnet": (calls_of_mxnet, "mxnet_job2"),
}


@pytest.mark.parametrize("format", ["int8", "int4"])
@pytest.mark.parametrize("layer", FED_BACK)
def test_error_feedback_is_that_of_the_model_in_every_framework(layer, format, request):
    calls, fixture = FED_BACK[layer]
    if fixture != "mxnet_job2":
        pytest.importorskip(layer)
    expected, _ = fed_back(4, format)
    _, residuals = fed_back(2, format)
    results = request.getfixturevalue(fixture).run(feeding_back, calls, format)
    for rank, (rounds, again, anew, saved) in enumerate(results):
        for result, wanted in zip(rounds, expected):
            np.testing.assert_array_equal(result, wanted)
        for result, wanted in zip(again, expected[2:]):
            np.testing.assert_array_equal(result, wanted)
        np.testing.assert_array_equal(anew, expected[0])
        assert len(saved) == 1
        np.testing.assert_array_equal(saved[0], residuals[rank])


def unnamed_with_feedback(module):
    import importlib

    layer = importlib.import_module(f"byteps.{module}")
    with pytest.raises(ValueError, match="give the tensor a name"):
        layer.push_pull(values_of(0), compression=layer.Compression.int8(error_feedback=True))
    for asked in (layer.Compression.int8.state, layer.Compression.int8.residual_norm):
        with pytest.raises(ValueError, match="Compression.int8 has no residuals"):
            asked()
    assert layer.Compression.int8(error_feedback=True).residual_norm() == 0


@pytest.mark.parametrize("module", ["jax"])
def test_what_has_no_name_has_no_residual(alone, module):
    unnamed_with_feedback(module)
