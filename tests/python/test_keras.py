"""byteps.keras on Keras's torch, jax and tensorflow backends, and byteps.tensorflow.keras with tf_keras ("keras2"), in
jobs of 3, 2 and 1 workers with two servers. What a worker does is in keras_checks.py and its neighbours.

Each test says where it runs. What does not depend on the backend runs in jobs of all sizes on torch, which starts
fastest, and in one of two workers elsewhere.
"""

import interrupted
import keras_callback_checks as callbacks
import keras_checks as checks
import keras_value_checks as values
import numpy as np
import pytest
from cluster import JAX, TENSORFLOW, Cluster, without_servers

KINDS = {
    "torch": dict(environ={"KERAS_BACKEND": "torch"}, layer="keras_without_tensorflow"),
    "jax": dict(environ={**JAX, "KERAS_BACKEND": "jax"}, layer="keras_without_tensorflow"),
    "tensorflow": dict(environ={**TENSORFLOW, "KERAS_BACKEND": "tensorflow"}, layer="byteps.keras"),
    "keras2": dict(environ={**TENSORFLOW, "TF_USE_LEGACY_KERAS": "1"}, layer="byteps.tensorflow.keras"),
}
ALL = [3, 2, 1]


def on(**sizes):
    """The kinds of jobs that a test runs in, and their sizes."""
    jobs = [(kind, size) for kind in KINDS for size in sizes.get(kind, [])]
    return pytest.mark.parametrize("job", jobs, indirect=True, ids=[f"{kind}-{size}" for kind, size in jobs])


everywhere = on(torch=ALL, jax=ALL, tensorflow=ALL, keras2=ALL)
backends = on(torch=[3], jax=[3], tensorflow=[3])  # of Keras 3
torch_all, torch_large, torch_3 = (on(torch=sizes) for sizes in (ALL, [3, 2], [3]))


class Job(Cluster):
    """Three processes of a kind, of which a smaller job has the first: their ranks must have the same history, because
    Keras numbers optimizers."""

    def __init__(self, kind):
        super().__init__(3, **KINDS[kind])
        self.kind = kind


@pytest.fixture(scope="module")
def jobs():
    """The only one that runs, if any; pytest puts tests of one kind together, and of one size, as in `everywhere`."""
    running = []
    yield running
    for job in running:
        job.__exit__(None, None, None)


@pytest.fixture(scope="module")
def job(request, jobs):
    kind, size = request.param
    if jobs and (jobs[0].kind != kind or jobs[0].size < size or jobs[0].broken):
        jobs.pop().__exit__(None, None, None)
    if not jobs:
        jobs.append(Job(kind).__enter__())
    jobs[0].resize(size)
    return jobs[0]


# ---- the same training as in one process


@everywhere
def test_the_weights_are_those_of_one_process_with_the_whole_batch(job):
    kinds = {"torch": ["sgd", "nesterov", "plain", "adam"], "keras2": ["sgd", "adam", "legacy"]}.get(job.kind)
    kinds = kinds or ["sgd", "adam"]
    if job.kind != "torch" and job.size != 2:
        kinds = ["adam"]
    options = {"jit_compile": False} if job.kind == "tensorflow" else {}
    for found in job.run(checks.differences_from_one_process, kinds, compile_options=options):
        assert max(found.values()) < 1e-5, found


@torch_3
def test_the_weights_are_the_same_without_servers(job):
    for found in job.run(without_servers, checks.differences_from_one_process, ["plain"]):
        assert found["plain"] < 1e-5, found


@on(tensorflow=ALL)
def test_within_xla_the_weights_are_the_same(job):
    for found in job.run(checks.differences_from_one_process, ["plain"], compile_options={"jit_compile": True}):
        assert found["plain"] < 1e-5


@on(torch=[3], jax=[2], tensorflow=[2])
def test_predivided_gradients_come_to_the_same_in_eager_steps_too(job):
    options = {"compile_options": {"run_eagerly": True}, "gradient_predivide_factor": 2.0}
    for found in job.run(checks.differences_from_one_process, ["plain"], epochs=1, **options):
        assert found["plain"] < 1e-5


@everywhere
def test_every_dtype_in_every_shape_again_and_again(job):
    job.run(values.sums_of_every_dtype)


@everywhere
def test_many_gradients_are_under_way_at_once(job):
    for errors in job.run(checks.gradients_of_many_variables):
        assert max(errors) < 1e-4, errors


@backends
def test_gradients_that_travel_in_16_bits_train_almost_alike(job):
    for found in job.run(checks.differences_with_compression):
        assert all(0 < difference < 0.02 for difference in found), found


@backends
def test_a_process_set_trains_by_itself(job):
    differences = job.run(checks.difference_in_a_process_set, [0, 2])
    assert max(differences) < 1e-5, differences


@on(torch=[2], jax=[2], tensorflow=[2], keras2=[2])
def test_gradients_of_a_local_layer_do_not_travel(job):
    assert job.run(checks.weights_with_a_local_layer) == [[1 - 0.5, 1 - 1.5], [1 - 1.0, 1 - 1.5]]


@backends
def test_mixed_precision_trains_as_in_one_process(job):
    for scaled, difference in job.run(checks.mixed_float16_training):
        assert scaled and difference < 0.01


@on(torch=[3], jax=[2], tensorflow=[2])
@pytest.mark.parametrize("average", [False, True])
def test_gradients_of_two_passes_travel_together(job, average):
    tensors = 5 if job.kind == "torch" else 4  # 4 variables, and on torch which of them have gradients
    for difference, pushed in job.run(checks.difference_with_accumulation, average):
        assert difference < 1e-5
        assert pushed == tensors


@on(keras2=[2])
def test_keras_2_gradients_of_two_passes_travel_together(job):
    for found in job.run(checks.differences_of_two_passes_in_keras_2):
        assert max(found) < 1e-5


@on(tensorflow=[2])
@pytest.mark.parametrize("as_dense", [False, True])
def test_gradients_of_embeddings_are_gathered_or_made_dense(job, as_dense):
    for difference in job.run(checks.difference_with_embedding, as_dense):
        assert difference < 1e-6


@on(torch=[3, 2], jax=[2], tensorflow=[2])
def test_ranks_may_have_different_numbers_of_batches(job):
    results = job.run(callbacks.weights_after_uneven_epochs)
    for steps, is_rank, losses, weights in results:
        assert steps == 2 * 2 * job.size and is_rank
        assert losses == results[0][2]
        for got, expected in zip(weights, results[0][3]):
            np.testing.assert_array_equal(got, expected)


@on(torch=[3], tensorflow=[2])
def test_two_equal_models_in_turn_are_kept_apart(job):
    for differences in job.run(checks.differences_of_two_models_in_turn):
        assert max(differences) < 1e-5


@torch_all
def test_gradients_can_be_added_up(job):
    total = sum(range(1, job.size + 1))
    assert job.run(checks.weights_after_sum_of_gradients) == [[pytest.approx(0.5 * total)]] * job.size


@torch_3
def test_models_that_one_rank_made_before_do_not_change_names(job):
    assert max(job.run(checks.weights_with_other_models_before)) < 1e-5


@on(torch=[3])
def test_digits_are_learnt(job):
    for accuracy in job.run(checks.digits_accuracy):
        assert accuracy >= 0.97


@pytest.mark.long(reason="whole trainings, as above")
@on(jax=[2], tensorflow=[2], keras2=[2])
def test_digits_are_learnt_on_other_backends_too(job):
    for accuracy in job.run(checks.digits_accuracy):
        assert accuracy >= 0.97


# ---- the backward pass of torch


@torch_all
def test_gradients_travel_while_the_backward_pass_runs(job):
    for numbers, difference in job.run(checks.numbers_under_way):
        assert numbers == [0] + [4] * 7  # from the second step on
        assert difference < 1e-5


@torch_large
def test_gradients_that_are_changed_after_the_backward_pass_are_averaged_as_they_are_then(job):
    for difference in job.run(checks.gradients_changed_on_one_rank):
        assert difference < 1e-6


@torch_large
def test_a_gradient_that_one_rank_lacks_counts_as_zero_and_one_that_all_lack_stays_away(job):
    expected = [(job.size - 1) / job.size, 0.0, 1.0, 1.0]
    for moved in job.run(checks.gradients_missing_on_one_rank):
        assert moved == pytest.approx(expected, abs=1e-6)


# ---- callbacks


@on(torch=ALL, jax=[2], tensorflow=[2], keras2=[2])
def test_all_ranks_have_the_roots_weights_and_velocities_after_the_first_batch(job):
    results = job.run(callbacks.weights_after_broadcast)
    for weights, variables in results:
        for got, expected in zip([*weights, *variables], [*results[0][0], *results[0][1]]):
            np.testing.assert_array_equal(got, expected)
    if job.kind != "keras2":  # where they are not the first
        assert int(results[0][1][0]) == 5  # iterations of rank 0: four before, one together


@on(torch=[2], jax=[2], tensorflow=[2], keras2=[2])
def test_local_variables_stay_each_ranks_own(job):
    ours, theirs = zip(*job.run(callbacks.weights_with_local_ones))
    assert [own for own, _ in ours] == [True, True] and [same for _, same in ours] == [True, False]
    assert theirs == (0.0, 0.0)


@on(torch=ALL, jax=[2], tensorflow=[2], keras2=[2])
def test_the_rate_warms_up_by_the_formula(job):
    size, steps = job.size, 4
    formula = [0.6 / size * ((batch + 1) / steps * (size - 1) / 2 + 1) for batch in range(2 * steps)]
    for rates, logged in job.run(callbacks.rates_of_warmup):
        np.testing.assert_allclose(rates, formula + [0.6] * steps, rtol=1e-6)
        np.testing.assert_allclose(logged, [formula[3], 0.6, 0.6], rtol=1e-6)


@torch_3
def test_the_rate_follows_schedules(job):
    for rates in job.run(callbacks.rates_of_schedule):
        np.testing.assert_allclose(rates, [0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01], rtol=1e-6)


@on(torch=[3], jax=[2], tensorflow=[2], keras2=[2])
def test_velocities_follow_the_rate(job):
    for weights, formula in job.run(callbacks.momentum_correction, True):
        np.testing.assert_allclose(weights, formula, atol=1e-6)


@torch_3
def test_velocities_stay_when_they_are_not_to_follow_the_rate(job):
    for weights, formula in job.run(callbacks.momentum_correction, False):
        np.testing.assert_allclose(weights, formula, atol=1e-6)


@on(torch=ALL, jax=[2], keras2=[2])
def test_logs_are_averages(job):
    results = job.run(callbacks.averaged_logs)
    for seen, history in results:
        assert seen["own"] == (job.size - 1) / 2
        assert seen["loss"] == results[0][0]["loss"] == history["loss"]


# ---- saving, values, the loss scale


@on(torch=ALL, jax=[2], tensorflow=[2], keras2=[2])
def test_a_saved_model_goes_on_where_it_stopped_and_needs_no_byteps(job):
    for difference, names in job.run(callbacks.saved_and_loaded):
        assert difference < 1e-6
        assert names == ("Adam", "Adam", 8)


@torch_3
def test_optimizers_of_ones_own_are_saved_as_what_they_are(job):
    assert job.run(callbacks.own_optimizers_saved) == [[(True, True), (True, True)]] * job.size


@on(torch=ALL, jax=[2], tensorflow=[2])
def test_values(job):
    size = job.size
    mean, total = (size - 1) / 2, sum(range(size))
    for found in job.run(values.values):
        assert found.pop("complex") == [1j * (size - 1)]
        assert found == {
            "number": mean + 1,
            "integer": mean + 1,
            "sum": [total, size],
            "tensor": [[mean + 1] * 3] * 2,
            "is tensor": True,
            "allreduce": total,
            "largest": size - 1,
            "scaled": [2.0 * total, 2.0 * size],
            "half": [float(np.float32(np.float16(1 / 3)))],
            "brain": [0.333984375],
            "short integers": [total, size],
            "gathered": [[rank, rank] for rank in range(size) for _ in range(rank)],
            "gathered numbers": list(range(size)),
            "empty": (0, 3),
            "bool": [True, False],
            "strided": (np.arange(6.0).reshape(2, 3).T + mean).tolist(),
            "broadcast": [7.0, 0.0],
            "on a GPU": total,
        }


@torch_3
def test_a_model_is_broadcast_before_it_is_trained(job):
    assert job.run(values.broadcast_of_a_model) == [0.0] * job.size


@on(torch=ALL, jax=[2], tensorflow=[2])
def test_all_ranks_skip_a_step_that_overflows_on_one(job):
    for changed, scales in job.run(checks.steps_with_an_overflow_on_one_rank):
        assert changed == 0.0
        assert scales[1] == scales[0] / 2


# ---- what is refused


@torch_3
def test_a_loss_scale_around_a_distributed_optimizer_is_refused(job):
    for failure in job.failures(checks.outer_loss_scale):
        assert "ValueError" in failure.bases
        assert "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))" in failure.text


@torch_3
def test_wrong_arguments_say_what_to_do(job):
    parts = {
        "twice": "wrap it once",
        "no optimizer": "got str",
        "adasum": "use Average",
        "passes": "backward_passes_per_step is 0",
        "two accumulations": "gradient_accumulation_steps=2: give one of them",
        "predivide": "scale the loss",
        "compression": "Compression.fp16",
        "root": f"it must be a rank, 0 to {job.size - 1}",
        "text": "expected numbers",
        "option": "unknown option unknown",
        "compressor": "Compression.none",
        "warmup": "at least 1",
    }
    for found in job.run(values.messages_of_errors):
        assert found.keys() == parts.keys()
        for case, part in parts.items():
            assert part.split(".")[-1] in found[case], (case, found[case])


@on(jax=[2])
@pytest.mark.parametrize("call", [values.sum_of_much, values.broadcast_of_much])
def test_ctrl_c_frees_nothing_that_is_still_written_to(job, call):
    interrupted.check(job, call)


@on(torch=[3, 2], jax=[3, 2], tensorflow=[3, 2], keras2=[3, 2])
def test_ranks_with_other_models_are_told_by_an_exception_of_the_backend(job):
    kinds, part = {
        "torch": ({"MismatchError"}, "dense/kernel"),
        "jax": ({"JaxRuntimeError", "XlaRuntimeError"}, "dense/kernel"),
    }.get(job.kind, ({"InvalidArgumentError"}, "Gradient.mismatch"))
    for failure in job.failures(checks.error_of_mismatch):
        assert kinds & set(failure.bases), failure
        assert part in failure.text and "differs between ranks" in failure.text


@torch_large
@pytest.mark.parametrize(
    "what, part",
    [
        (callbacks.logs_with_other_names, "metrics have other names"),
        (callbacks.logs_of_other_number, "give all of them validation data or none"),
        (values.broadcast_of_other_models, "Build the same model on all ranks"),
    ],
)
def test_ranks_with_other_metrics_or_variables_are_told(job, what, part):
    for failure in job.failures(what):
        assert "ValueError" in failure.bases
        assert part in failure.text
