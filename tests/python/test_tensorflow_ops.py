"""byteps.tensorflow: push_pull and broadcast against numpy, eager, in a tf.function and under XLA, with 1, 2 and 3
workers and two servers. Functions run in the workers, which have TensorFlow; this process has not."""

import sys

import numpy as np
import pytest

if "tensorflow" in sys.modules:
    import tensorflow as tf

    import byteps.tensorflow as bps

FLOATS = ["float32", "float64", "float16", "bfloat16"]
INTEGERS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
OTHERS = ["bool", "complex64", "complex128"]
SHAPES = [(), (5,), (0, 3), (2, 3), (2, 1, 3), (2, 2, 1, 3)]
MODES = ["eager", "graph", "xla"]


def compiled(function, mode):
    """`function` as it is run in the mode."""
    return function if mode == "eager" else tf.function(function, jit_compile=mode == "xla")


def values(rank, shape, dtype):
    """Small numbers that every dtype has, other ones on each rank."""
    count = int(np.prod(shape))
    array = (np.arange(count) % 5 + rank + 1).reshape(shape)
    return (array % 2 == 0) if dtype == "bool" else array


def check_dtypes(dtypes, mode):
    """All of them in one function: they are under way together."""
    cases = [(dtype, shape) for dtype in dtypes for shape in SHAPES]
    everyone = [[values(rank, shape, dtype) for rank in range(bps.size())] for dtype, shape in cases]
    tensors = [tf.cast(arrays[bps.rank()], dtype) for arrays, (dtype, _) in zip(everyone, cases)]

    def body():
        sums = [bps.push_pull(t, op=bps.Sum, name=f"{mode}.sum.{i}") for i, t in enumerate(tensors)]
        roots = [bps.broadcast(t, bps.size() - 1, name=f"{mode}.root.{i}") for i, t in enumerate(tensors)]
        averages = [t if t.dtype == tf.bool else bps.push_pull(t, scope=f"{mode}.") for t in tensors]
        return sums, roots, averages

    results = zip(everyone, cases, tensors, *compiled(body, mode)())
    for arrays, (dtype, shape), tensor, summed, root, average in results:
        total = np.any(arrays, axis=0) if dtype == "bool" else np.sum(arrays, axis=0)
        assert summed.dtype == dtype and summed.shape == shape
        np.testing.assert_array_equal(np.asarray(summed.numpy()).astype(total.dtype), total)
        np.testing.assert_array_equal(np.asarray(root.numpy()).astype(total.dtype), arrays[-1])
        if dtype == "bool":
            continue
        assert average.dtype == (tf.math.truediv(tensor, tensor).dtype if dtype in INTEGERS else dtype)
        tolerance = {"float16": 1e-3, "bfloat16": 1e-2}.get(dtype, 1e-6)
        np.testing.assert_allclose(np.asarray(average.numpy()).astype(complex), total / bps.size(), rtol=tolerance)


@pytest.mark.parametrize("mode", MODES)
def test_sum_average_and_broadcast_are_numpys_for_every_dtype_and_rank(tf_job, mode):
    tf_job.run(check_dtypes, FLOATS + INTEGERS + OTHERS, mode)


def check_gradients(mode):
    x = tf.constant([1.0, 2.0, 3.0]) * (bps.rank() + 1)

    def body():
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            average = tf.reduce_sum(bps.push_pull(x, name=f"{mode}.g.average") * (bps.rank() + 1.0))
            total = tf.reduce_sum(bps.push_pull(x, op=bps.Sum, name=f"{mode}.g.sum") * (bps.rank() + 1.0))
            root = tf.reduce_sum(bps.broadcast(x, 1, name=f"{mode}.g.root") * (bps.rank() + 1.0))
        return tape.gradient(average, x), tape.gradient(total, x), tape.gradient(root, x)

    average, total, root = compiled(body, mode)()
    np.testing.assert_allclose(average, np.full(3, 1.5))  # the average of ranks' factors 1 and 2
    np.testing.assert_allclose(total, np.full(3, 3.0))
    np.testing.assert_allclose(root, np.full(3, 3.0 if bps.rank() == 1 else 0.0))


def test_the_gradient_of_a_sum_is_the_sum_of_the_gradients(tf_job2):
    for mode in MODES:
        tf_job2.run(check_gradients, mode)


def check_many(count, mode):
    tensors = [tf.fill([i % 7 + 1, 3], float(bps.rank() + i)) for i in range(count)]

    def body(*given):
        return [bps.push_pull(t, op=bps.Sum, name=f"{mode}.many.{i}", priority=-i) for i, t in enumerate(given)]

    function = compiled(body, mode)
    for _ in range(3):  # the same names again
        for i, result in enumerate(function(*tensors)):
            expected = sum(rank + i for rank in range(bps.size()))
            np.testing.assert_array_equal(result, np.full([i % 7 + 1, 3], expected))


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_hundred_tensors_in_flight_three_times(tf_job, mode):
    tf_job.run(check_many, 100, mode)


def check_nan_stays_away(mode):
    mine = tf.constant([1.0, 2.0]) if bps.rank() == 0 else tf.constant([float("nan"), float("inf")])
    got = compiled(lambda: bps.broadcast(mine, 0, name=f"{mode}.nan"), mode)()
    np.testing.assert_array_equal(got, [1.0, 2.0])


def test_what_a_non_root_had_does_not_survive_a_broadcast(tf_job2):
    for mode in MODES:
        tf_job2.run(check_nan_stays_away, mode)


def check_changing_shapes():
    """Without a name, in eager code and in a function with an unknown dimension."""

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def in_graph(x):
        return bps.push_pull(x, op=bps.Sum)

    for rows in (3, 1, 4):
        for function in (in_graph, lambda x: bps.push_pull(x, op=bps.Sum)):
            np.testing.assert_array_equal(function(tf.ones([rows, 2])), np.full([rows, 2], bps.size()))


def test_an_unnamed_tensor_may_have_another_shape_each_time(tf_job2):
    tf_job2.run(check_changing_shapes)


def mismatched_beside_another(mode):
    """Ranks disagree about one tensor; rank 1 takes a while to compute another, about which they agree."""

    def body(x, count):
        (other,) = tf.while_loop(lambda y: y[0, 0] < count, lambda y: (tf.matmul(x, y) * 0.0 + y[0, 0] + 1.0,), (x,))
        wrong = bps.push_pull(tf.ones([bps.rank() + 1]), name=f"beside.wrong.{mode}")
        right = bps.push_pull(other, name=f"beside.right.{mode}")
        return tf.reduce_sum(wrong) + tf.reduce_sum(right)

    return tf.function(body, jit_compile=mode == "xla")(tf.ones([500, 500]), tf.constant(12.0 * bps.rank()))


@pytest.mark.parametrize("mode", ["graph", "xla"])
def test_a_rank_does_not_wait_for_what_another_did_not_start_after_a_mismatch(tf_job2, mode):
    for failure in tf_job2.failures(mismatched_beside_another, mode):
        assert "OpError" in failure.bases and f"beside.wrong.{mode}" in failure.text


def mismatched(mode):
    x = tf.ones([bps.rank() + 2])
    return compiled(lambda: bps.push_pull(x, name=f"{mode}.mismatch"), mode)()


@pytest.mark.parametrize("mode", MODES)
def test_ranks_that_disagree_get_an_invalid_argument_error_that_names_the_tensor(tf_job2, mode):
    failures = tf_job2.failures(mismatched, mode)

    for failure in failures:
        assert failure is not None and failure.kind == "InvalidArgumentError", failure
        assert f"{mode}.mismatch" in failure.text and "rank" in failure.text


def complex_on_one_rank():
    x = tf.ones([4], tf.complex64) if bps.rank() else tf.ones([4, 2])
    return bps.push_pull(x, name="complex.mismatch")


def test_complex_numbers_are_told_from_pairs_of_real_ones(tf_job2):
    for failure in tf_job2.failures(complex_on_one_rank):
        assert failure is not None and "complex64 as float32" in failure.text, failure


def names_of_equal_ends():
    """TensorFlow shortens the attributes of eager ops when it looks for an op that it has made before. The tensors of
    each name have a size of their own."""
    for size, middle in enumerate(("one", "two"), 1):
        name, tensor = f"{'begin' * 20}.{middle}.{'end' * 20}", tf.fill([size], 1.0 + bps.rank())
        sums = bps.grouped_allreduce([tensor] * 70, name=name, op=bps.Sum)
        for result in (bps.push_pull(tensor, name=name, op=bps.Sum), *sums):
            np.testing.assert_array_equal(result.numpy(), [3.0] * size)


def test_long_names_that_begin_and_end_alike_are_told_apart(tf_job2):
    tf_job2.run(names_of_equal_ends)


def wrong_arguments():
    x = tf.ones([2])
    refused = []
    for call in (
        lambda: bps.push_pull(x, op=bps.Sum, average=True),
        lambda: bps.push_pull(x, op="Mean"),
        lambda: bps.push_pull(x, op=bps.Adasum),
        lambda: bps.push_pull(tf.constant(["text"])),
        lambda: bps.push_pull(tf.constant([True])),
        lambda: bps.push_pull(x, name="a\0b"),
        lambda: bps.broadcast(x, 7),
        lambda: bps.push_pull(x, process_set=bps.ProcessSet([1 - bps.rank()])),
    ):
        with pytest.raises(ValueError) as info:
            call()
        refused.append(str(info.value))
    return refused


def test_wrong_arguments_are_value_errors_on_the_spot(tf_job2):
    for texts in tf_job2.run(wrong_arguments):
        assert "op and average" in texts[0]
        assert "op is 'Mean'" in texts[1]
        assert "string is not supported" in texts[3]
        assert "logical or" in texts[4]
        assert "root_rank is 7" in texts[6]


class OnGpu:
    """As an eager tensor on a GPU presents itself."""

    device = "/job:localhost/replica:0/task:0/device:GPU:0"
    dtype = tf.float32 if "tensorflow" in sys.modules else None


def tensors_on_a_gpu():
    from byteps.tensorflow import exchange, gather, native

    before = bps.metrics().finished_operations
    for call in (
        lambda: exchange.exchange([tf.ones([2]), OnGpu()], ["cpu", "gpu"], native.Exchange(0)),
        lambda: gather._run(lambda *arrays: [], [OnGpu()], "rows", [tf.float32]),
    ):
        with pytest.raises(ValueError, match=r"device:GPU:0'.*tf\.device\('/CPU:0'\).*CUDA_VISIBLE_DEVICES=''"):
            call()
    variable = type("Variable", (OnGpu,), {"shape": [2], "name": "v:0"})()
    original, tf.convert_to_tensor = tf.convert_to_tensor, lambda value: value
    try:
        with pytest.raises(ValueError, match="device:GPU:0"):
            bps.broadcast_variables([variable], 0)
    finally:
        tf.convert_to_tensor = original
    assert bps.metrics().finished_operations == before
    # Here is no GPU, so TensorFlow computes on the CPU what was meant for one.
    with tf.device("/GPU:0"):
        result = tf.function(lambda: bps.push_pull(tf.ones([2]), op=bps.Sum, name="meant for a GPU"))()
    assert result.numpy().tolist() == [bps.size()] * 2


def test_a_tensor_on_a_gpu_is_refused_before_anything_travels(tf_job2):
    tf_job2.run(tensors_on_a_gpu)


def check_compression():
    x = tf.constant([1.0 + 2**-9, 3.0]) * (bps.rank() + 1)
    half = bps.push_pull(x, compression=bps.Compression.fp16, op=bps.Sum)
    brain = bps.push_pull(x, compression=bps.Compression.bf16, op=bps.Sum)
    assert half.dtype == brain.dtype == tf.float32
    np.testing.assert_allclose(half, np.array([1.0 + 2**-9, 3.0]) * 3, rtol=1e-3)
    np.testing.assert_allclose(brain, [3.0, 9.0], rtol=1e-2)


def test_compression_gives_the_dtype_back(tf_job2):
    tf_job2.run(check_compression)


def check_unused():
    """Only rank 0 uses what it gets; the others must push all the same."""

    @tf.function
    def function(x):
        summed = bps.push_pull(x, op=bps.Sum, name="unused")
        return summed if bps.rank() == 0 else x

    np.testing.assert_array_equal(function(tf.ones([2])), [bps.size() if bps.rank() == 0 else 1] * 2)


def test_an_exchange_whose_result_only_one_rank_uses_takes_place(tf_job2):
    tf_job2.run(check_unused)


def retraced(batches):
    """Each rank gets batches of its own sizes, so each traces the function at its own times."""
    weight = tf.Variable(tf.ones([3]))

    @tf.function
    def gradient(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.linalg.matvec(x, weight))
        return bps.DistributedGradientTape(tape).gradient(loss, weight)

    return [gradient(tf.fill([size, 3], float(size))).numpy().tolist() for size in batches]


def test_ranks_may_trace_a_function_at_different_times(tf_job2):
    results = tf_job2.run_each([(retraced, ([4, 4, 2],), {}), (retraced, ([4, 3, 3],), {})])

    assert results[0] == results[1] == [[4.0] * 3, [3.5] * 3, [2.5] * 3]


def check_min_max_product(mode):
    tensor = tf.constant([1.0, 5.0 - bps.rank(), 2.0])
    ops = {"Min": np.min, "Max": np.max, "Product": np.prod}
    results = compiled(lambda: [bps.push_pull(tensor, op=op, name=f"{mode}.{op}") for op in ops], mode)()
    everyone = np.array([[1.0, 5.0 - rank, 2.0] for rank in range(bps.size())])
    for result, reduce in zip(results, ops.values()):
        np.testing.assert_array_equal(result, reduce(everyone, axis=0))
    scaled = bps.push_pull(tensor, op=bps.Sum, prescale_factor=0.5, postscale_factor=3.0)
    np.testing.assert_allclose(scaled, everyone.sum(axis=0) * 1.5)
    check_scaled_integers(mode)


def check_scaled_integers(mode):
    """As with Horovod: on each rank, towards zero. Averages are floats."""
    size = bps.size()
    tensor, half = tf.constant([5, -5, 3, -1]), np.array([2.0, -2.0, 1.0, 0.0])

    def body():
        options = {"prescale_factor": 0.5, "postscale_factor": 3.0}
        total = bps.push_pull(tensor, op=bps.Sum, name=f"{mode}.scaled", **options)
        mean = bps.push_pull(tensor, name=f"{mode}.scaled.mean", **options)
        both = bps.grouped_allreduce([tensor, tf.cast(tensor, tf.float32)], op=bps.Sum, prescale_factor=0.5)
        return total, mean, *both

    total, mean, integers, floats = compiled(body, mode)()
    np.testing.assert_array_equal(total, half * size * 3)
    np.testing.assert_allclose(mean, half * 3)
    np.testing.assert_array_equal(integers, half * size)
    np.testing.assert_allclose(floats, np.array([2.5, -2.5, 1.5, -0.5]) * size)
    if mode == "eager":
        share = bps.reducescatter(tf.fill([size], 5), op=bps.Sum, prescale_factor=0.5)
        np.testing.assert_array_equal(share, [2 * size])


def test_minimum_maximum_product_and_scaled_sums(tf_job3):
    for mode in MODES:
        tf_job3.run(check_min_max_product, mode)


def check_process_set(mode):
    pair = bps.ProcessSet([0, 2])
    if not pair.included():
        return
    x = tf.constant([1.0, 2.0]) * (bps.rank() + 1)
    body = compiled(
        lambda: (bps.push_pull(x, name=f"{mode}.set", process_set=pair), bps.broadcast(x, 2, process_set=pair)), mode
    )
    average, root = body()
    np.testing.assert_allclose(average, [2.0, 4.0])
    np.testing.assert_allclose(root, [3.0, 6.0])


def test_a_process_set_is_among_its_ranks(tf_job3):
    for mode in MODES:
        tf_job3.run(check_process_set, mode)
