"""byteps.keras on Keras's jax backend: jobs of 3, 2 and 1 workers with two servers. fit() runs in jit. What does
not depend on the backend is tested in test_keras_torch.py."""

import interrupted
import keras_checks as checks
import numpy as np
import pytest
from cluster import Cluster

ENVIRON = {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}


@pytest.fixture(scope="module")
def processes():
    with Cluster(3, environ=ENVIRON, layer="keras_without_tensorflow") as cluster:
        yield cluster


@pytest.fixture(scope="module", params=[3, 2, 1], ids=lambda size: f"{size}_workers")
def job(request, processes):
    processes.resize(request.param)
    return processes


three, two, large = (pytest.mark.parametrize("job", sizes, indirect=True) for sizes in ([3], [2], [3, 2]))


def test_the_weights_are_those_of_one_process_with_the_whole_batch(job):
    for found in job.run(checks.differences_from_one_process, ["sgd", "adam"] if job.size == 2 else ["adam"]):
        assert max(found.values()) < 1e-5, found


def test_every_dtype_in_every_shape_again_and_again(job):
    job.run(checks.sums_of_every_dtype)


def test_many_gradients_are_under_way_at_once(job):
    for errors in job.run(checks.gradients_of_many_variables):
        assert max(errors) < 1e-4, errors


@three
def test_gradients_that_travel_in_16_bits_train_almost_alike(job):
    for found in job.run(checks.differences_with_compression):
        assert all(0 < difference < 0.02 for difference in found), found


@three
def test_a_process_set_trains_by_itself(job):
    first, second, third = job.run(checks.difference_in_a_process_set, [0, 2])
    assert first < 1e-5 and third < 1e-5 and second is None


@three
def test_mixed_precision_trains_as_in_one_process(job):
    for scaled, difference in job.run(checks.mixed_float16_training):
        assert scaled and difference < 0.01


@two
def test_eager_steps_come_to_the_same(job):
    options = {"compile_options": {"run_eagerly": True}, "gradient_predivide_factor": 2.0}
    for found in job.run(checks.differences_from_one_process, ["plain"], epochs=1, **options):
        assert found["plain"] < 1e-5


@two
@pytest.mark.parametrize("average", [False, True])
def test_gradients_of_two_passes_travel_together(job, average):
    for difference, pushed in job.run(checks.difference_with_accumulation, average):
        assert difference < 1e-5
        assert pushed == 4 * 4  # 8 passes make 4 steps, of 4 variables


@two
def test_all_ranks_have_the_roots_weights_and_velocities_after_the_first_batch(job):
    results = job.run(checks.weights_after_broadcast)
    for weights, variables in results:
        for got, expected in zip([*weights, *variables], [*results[0][0], *results[0][1]]):
            np.testing.assert_array_equal(got, expected)
    assert int(results[0][1][0]) == 5


@two
def test_ranks_may_have_different_numbers_of_batches(job):
    results = job.run(checks.weights_after_uneven_epochs)
    for steps, is_rank, losses, weights in results:
        assert steps == 2 * 2 * job.size and is_rank
        assert losses == results[0][2]
        for got, expected in zip(weights, results[0][3]):
            np.testing.assert_array_equal(got, expected)


@two
@pytest.mark.parametrize("call", [checks.sum_of_much, checks.broadcast_of_much])
def test_ctrl_c_frees_nothing_that_is_still_written_to(job, call):
    interrupted.check(job, call)


@two
def test_the_rate_warms_up_by_the_formula(job):
    formula = [0.3 * ((batch + 1) / 8 + 1) for batch in range(8)]
    for rates, _ in job.run(checks.rates_of_warmup):
        np.testing.assert_allclose(rates, formula + [0.6] * 4, rtol=1e-6)


@two
def test_velocities_follow_the_rate(job):
    for weights, formula in job.run(checks.momentum_correction, True):
        np.testing.assert_allclose(weights, formula, atol=1e-6)


@two
def test_logs_are_averages(job):
    results = job.run(checks.averaged_logs)
    assert results[0] == results[1]


@two
def test_a_saved_model_goes_on_where_it_stopped_and_needs_no_byteps(job):
    for difference, names in job.run(checks.saved_and_loaded):
        assert difference < 1e-6
        assert names == ("Adam", "Adam", 8)


@two
def test_tensors_are_values_too(job):
    for found in job.run(checks.values):
        assert found["tensor"] == [[1.5] * 3] * 2
        assert found["is tensor"]


@two
def test_all_ranks_skip_a_step_that_overflows_on_one(job):
    for changed, scales in job.run(checks.steps_with_an_overflow_on_one_rank):
        assert changed == 0.0
        assert scales[1] == scales[0] / 2


@two
def test_digits_are_learnt(job):
    for accuracy in job.run(checks.digits_accuracy):
        assert accuracy >= 0.97


@large
def test_ranks_that_disagree_are_told_by_an_exception_of_jax(job):
    for failure in job.failures(checks.error_of_mismatch):
        assert "JaxRuntimeError" in failure.bases or "XlaRuntimeError" in failure.bases, failure
        assert "dense/kernel" in failure.text
