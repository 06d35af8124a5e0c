"""byteps.keras on Keras's torch backend: jobs of 3, 2 and 1 workers with two servers."""

import keras_checks as checks
import numpy as np
import pytest
from cluster import Cluster

ENVIRON = {"KERAS_BACKEND": "torch"}


@pytest.fixture(scope="module")
def processes():
    with Cluster(3, environ=ENVIRON, layer="keras_without_tensorflow") as cluster:
        yield cluster


@pytest.fixture(scope="module", params=[3, 2, 1], ids=lambda size: f"{size}_workers")
def job(request, processes):
    processes.resize(request.param)
    return processes


three, large = (pytest.mark.parametrize("job", sizes, indirect=True) for sizes in ([3], [3, 2]))


def test_the_weights_are_those_of_one_process_with_the_whole_batch(job):
    for found in job.run(checks.differences_from_one_process, ["sgd", "nesterov", "plain", "adam"]):
        assert max(found.values()) < 1e-5, found


@large
def test_ranks_may_have_different_numbers_of_batches(job):
    results = job.run(checks.weights_after_uneven_epochs)
    for steps, is_rank, losses, weights in results:
        assert steps == 2 * 2 * job.size and is_rank
        assert losses == results[0][2]
        for got, expected in zip(weights, results[0][3]):
            np.testing.assert_array_equal(got, expected)


@three
def test_two_equal_models_in_turn_are_kept_apart(job):
    for differences in job.run(checks.differences_of_two_models_in_turn):
        assert max(differences) < 1e-5


@three
def test_predivided_gradients_come_to_the_same(job):
    for found in job.run(checks.differences_from_one_process, ["plain"], gradient_predivide_factor=4.0):
        assert found["plain"] < 1e-5


@three
@pytest.mark.parametrize("average", [False, True])
def test_gradients_of_two_passes_travel_together(job, average):
    for difference, pushed in job.run(checks.difference_with_accumulation, average):
        assert difference < 1e-5
        assert pushed == 4 * 5  # 8 passes make 4 steps; 4 variables and which of them have gradients


def test_gradients_travel_while_the_backward_pass_runs(job):
    for numbers, difference in job.run(checks.numbers_under_way):
        assert numbers == [0] + [4] * 7  # from the second step on
        assert difference < 1e-5


@large
def test_gradients_that_are_changed_after_the_backward_pass_are_averaged_as_they_are_then(job):
    for difference in job.run(checks.gradients_changed_on_one_rank):
        assert difference < 1e-6


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


def test_gradients_can_be_added_up(job):
    total = sum(range(1, job.size + 1))
    assert job.run(checks.weights_after_sum_of_gradients) == [[pytest.approx(0.5 * total)]] * job.size


@large
def test_a_gradient_that_one_rank_lacks_counts_as_zero_and_one_that_all_lack_stays_away(job):
    expected = [(job.size - 1) / job.size, 0.0, 1.0, 1.0]
    for moved in job.run(checks.gradients_missing_on_one_rank):
        assert moved == pytest.approx(expected, abs=1e-6)


@three
def test_models_that_one_rank_made_before_do_not_change_names(job):
    assert max(job.run(checks.weights_with_other_models_before)) < 1e-5


def test_all_ranks_have_the_roots_weights_and_velocities_after_the_first_batch(job):
    results = job.run(checks.weights_after_broadcast)
    for weights, variables in results:
        for got, expected in zip([*weights, *variables], [*results[0][0], *results[0][1]]):
            np.testing.assert_array_equal(got, expected)
    assert int(results[0][1][0]) == 5  # iterations of rank 0: four before, one together


def test_the_rate_warms_up_by_the_formula(job):
    size, steps = job.size, 4
    formula = [0.6 / size * ((batch + 1) / steps * (size - 1) / 2 + 1) for batch in range(2 * steps)]
    for rates, logged in job.run(checks.rates_of_warmup):
        np.testing.assert_allclose(rates, formula + [0.6] * steps, rtol=1e-6)
        np.testing.assert_allclose(logged, [formula[3], 0.6, 0.6], rtol=1e-6)


@three
def test_the_rate_follows_schedules(job):
    for rates in job.run(checks.rates_of_schedule):
        np.testing.assert_allclose(rates, [0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01], rtol=1e-6)


@three
@pytest.mark.parametrize("correct", [True, False])
def test_velocities_follow_the_rate(job, correct):
    for weights, formula in job.run(checks.momentum_correction, correct):
        np.testing.assert_allclose(weights, formula, atol=1e-6)


def test_logs_are_averages(job):
    results = job.run(checks.averaged_logs)
    for seen, history in results:
        assert seen["own"] == (job.size - 1) / 2
        assert seen["loss"] == results[0][0]["loss"] == history["loss"]


def test_a_saved_model_goes_on_where_it_stopped_and_needs_no_byteps(job):
    for difference, names in job.run(checks.saved_and_loaded):
        assert difference < 1e-6
        assert names == ("Adam", "Adam", 8)


@three
def test_optimizers_of_ones_own_are_saved_as_what_they_are(job):
    assert job.run(checks.own_optimizers_saved) == [[(True, True), (True, True)]] * job.size


def test_every_dtype_in_every_shape_again_and_again(job):
    job.run(checks.sums_of_every_dtype)


def test_many_gradients_are_under_way_at_once(job):
    for errors in job.run(checks.gradients_of_many_variables):
        assert max(errors) < 1e-4, errors


def test_values(job):
    size = job.size
    mean, total = (size - 1) / 2, sum(range(size))
    for found in job.run(checks.values):
        assert found.pop("complex") == [1j * (size - 1)]
        assert found == {
            "number": mean + 1,
            "integer": mean + 1,
            "sum": [total, size],
            "tensor": [[mean + 1] * 3] * 2,
            "is tensor": True,
            "allreduce": total,
            "largest": size - 1,
            "short integers": [total, size],
            "gathered": [[rank, rank] for rank in range(size) for _ in range(rank)],
            "gathered numbers": list(range(size)),
            "empty": (0, 3),
            "bool": [True, False],
            "strided": (np.arange(6.0).reshape(2, 3).T + mean).tolist(),
            "broadcast": [7.0, 0.0],
        }


@three
def test_a_model_is_broadcast_before_it_is_trained(job):
    assert job.run(checks.broadcast_of_a_model) == [0.0] * job.size


def test_all_ranks_skip_a_step_that_overflows_on_one(job):
    for changed, scales in job.run(checks.steps_with_an_overflow_on_one_rank):
        assert changed == 0.0
        assert scales[1] == scales[0] / 2


@three
def test_a_loss_scale_around_a_distributed_optimizer_is_refused(job):
    for failure in job.failures(checks.outer_loss_scale):
        assert "ValueError" in failure.bases
        assert "DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))" in failure.text


@three
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
        "warmup": "at least 1",
    }
    for found in job.run(checks.messages_of_errors):
        assert found.keys() == parts.keys()
        for case, part in parts.items():
            assert part.split(".")[-1] in found[case], (case, found[case])


@three
def test_digits_are_learnt(job):
    for accuracy in job.run(checks.digits_accuracy):
        assert accuracy >= 0.97


@large
@pytest.mark.parametrize(
    "what, error, part",
    [
        (checks.error_of_mismatch, "MismatchError", "dense/kernel"),
        (checks.logs_with_other_names, "ValueError", "metrics have other names"),
        (checks.logs_of_other_number, "ValueError", "give all of them validation data or none"),
        (checks.broadcast_of_other_models, "ValueError", "Build the same model on all ranks"),
    ],
)
def test_ranks_that_disagree_are_told(job, what, error, part):
    for failure in job.failures(what):
        assert error in failure.bases, failure
        assert part in failure.text
