"""byteps.keras on Keras's tensorflow backend, and byteps.tensorflow.keras with tf_keras: jobs of 3, 2 and 1 workers
with two servers. What does not depend on the backend is tested in test_keras_torch.py."""

import keras_checks as checks
import numpy as np
import pytest
from cluster import TENSORFLOW, Cluster


@pytest.fixture(scope="module")
def processes():
    with Cluster(3, environ={**TENSORFLOW, "KERAS_BACKEND": "tensorflow"}, layer="byteps.keras") as cluster:
        yield cluster


@pytest.fixture(scope="module", params=[3, 2, 1], ids=lambda size: f"{size}_workers")
def job(request, processes):
    processes.resize(request.param)
    return processes


three, two, large = (pytest.mark.parametrize("job", sizes, indirect=True) for sizes in ([3], [2], [3, 2]))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_the_weights_are_those_of_one_process_with_the_whole_batch(job, jit_compile):
    kinds = ["plain"] if jit_compile else ["sgd", "adam"] if job.size == 2 else ["adam"]
    for found in job.run(checks.differences_from_one_process, kinds, compile_options={"jit_compile": jit_compile}):
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
@pytest.mark.parametrize("as_dense", [False, True])
def test_gradients_of_embeddings_are_gathered_or_made_dense(job, as_dense):
    for difference in job.run(checks.difference_with_embedding, as_dense):
        assert difference < 1e-6


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
def test_two_equal_models_in_turn_are_kept_apart(job):
    for differences in job.run(checks.differences_of_two_models_in_turn):
        assert max(differences) < 1e-5


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
def test_ranks_that_disagree_are_told_by_an_exception_of_tensorflow(job):
    for failure in job.failures(checks.error_of_mismatch):
        assert "InvalidArgumentError" in failure.bases, failure
        assert "Gradient.mismatch" in failure.text and "differs between ranks" in failure.text


@pytest.fixture(scope="module")
def keras2_processes():
    with Cluster(3, environ={**TENSORFLOW, "TF_USE_LEGACY_KERAS": "1"}, layer="byteps.tensorflow.keras") as cluster:
        yield cluster


@pytest.fixture(scope="module", params=[3, 2, 1], ids=lambda size: f"{size}_workers")
def keras2_job(request, keras2_processes):
    keras2_processes.resize(request.param)
    return keras2_processes


keras2_two, keras2_large = (pytest.mark.parametrize("keras2_job", sizes, indirect=True) for sizes in ([2], [3, 2]))


def test_keras_2_the_weights_are_those_of_one_process_with_the_whole_batch(keras2_job):
    kinds = ["sgd", "adam", "legacy"] if keras2_job.size == 2 else ["adam"]
    for found in keras2_job.run(checks.differences_from_one_process, kinds):
        assert max(found.values()) < 1e-5, found


@keras2_two
def test_keras_2_gradients_of_two_passes_travel_together(keras2_job):
    for found in keras2_job.run(checks.differences_of_two_passes_in_keras_2):
        assert max(found) < 1e-5


@keras2_two
def test_keras_2_all_ranks_have_the_roots_weights_and_velocities_after_the_first_batch(keras2_job):
    results = keras2_job.run(checks.weights_after_broadcast)
    for weights, variables in results:
        for got, expected in zip([*weights, *variables], [*results[0][0], *results[0][1]]):
            np.testing.assert_array_equal(got, expected)


@keras2_two
def test_keras_2_callbacks_change_the_rate_and_the_velocities(keras2_job):
    formula = [0.3 * ((batch + 1) / 8 + 1) for batch in range(8)]
    for rates, _ in keras2_job.run(checks.rates_of_warmup):
        np.testing.assert_allclose(rates, formula + [0.6] * 4, rtol=1e-6)
    for weights, theirs in keras2_job.run(checks.momentum_correction, True):
        np.testing.assert_allclose(weights, theirs, atol=1e-6)
    results = keras2_job.run(checks.averaged_logs)
    assert results[0] == results[1]


@keras2_two
def test_keras_2_a_saved_model_goes_on_where_it_stopped_and_needs_no_byteps(keras2_job):
    for difference, names in keras2_job.run(checks.saved_and_loaded):
        assert difference < 1e-6
        assert names == ("Adam", "Adam", 8)


def test_keras_2_every_dtype_in_every_shape_again_and_again(keras2_job):
    keras2_job.run(checks.sums_of_every_dtype)


def test_keras_2_many_gradients_are_under_way_at_once(keras2_job):
    for errors in keras2_job.run(checks.gradients_of_many_variables):
        assert max(errors) < 1e-4, errors


@keras2_two
def test_keras_2_digits_are_learnt(keras2_job):
    for accuracy in keras2_job.run(checks.digits_accuracy):
        assert accuracy >= 0.97


@keras2_large
def test_keras_2_ranks_that_disagree_are_told_by_an_exception_of_tensorflow(keras2_job):
    for failure in keras2_job.failures(checks.error_of_mismatch):
        assert "InvalidArgumentError" in failure.bases, failure
        assert "Gradient.mismatch" in failure.text and "differs between ranks" in failure.text
