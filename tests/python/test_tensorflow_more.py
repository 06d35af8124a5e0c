"""byteps.tensorflow: gathers, Horovod's names, tf.distribute, the examples. Functions run in the workers,
which have TensorFlow."""

import os
import re
import signal
import sys

import interrupted
import numpy as np
import pytest
from cluster import TENSORFLOW, Cluster, launch, without_servers
from forked import heard_in_child

if "tensorflow" in sys.modules:
    import tensorflow as tf

    import byteps.tensorflow as bps

    v1 = tf.compat.v1


def check_allgather(mode):
    mine = tf.reshape(tf.range(2.0 * (bps.rank() + 1)), [bps.rank() + 1, 2])

    def body(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            gathered = bps.allgather(x)
            loss = tf.reduce_sum(gathered) * (bps.rank() + 1.0)
        return gathered, tape.gradient(loss, x), bps.allgather(tf.constant(bps.rank()))

    gathered, gradient, ranks = (body if mode == "eager" else tf.function(body))(mine)
    np.testing.assert_array_equal(gathered, [[0, 1], [0, 1], [2, 3]])
    np.testing.assert_array_equal(gradient, np.full(mine.shape, 3.0))
    np.testing.assert_array_equal(ranks, [0, 1])


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_rows_of_all_ranks_are_gathered_in_their_order(tf_job2, mode):
    tf_job2.run(check_allgather, mode)


def check_scatters(mode):
    rank = bps.rank()
    mine = tf.reshape(tf.range(6.0), [3, 2]) * (rank + 1)
    pair = bps.ProcessSet([0, 1])

    def body(x):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            sent, received = bps.alltoall(x, splits=[1, 2])
            part = bps.reducescatter(x, op=bps.Sum, process_set=pair)
            losses = tf.reduce_sum(sent) * (rank + 1.0), tf.reduce_sum(part) * (rank + 1.0)
        return sent, received, part, [tape.gradient(loss, x) for loss in losses]

    sent, received, part, gradients = (body if mode == "eager" else tf.function(body))(mine)
    base = np.arange(6.0).reshape(3, 2)
    rows = base[:1] if rank == 0 else base[1:]
    np.testing.assert_array_equal(sent, np.concatenate([rows, rows * 2]))
    np.testing.assert_array_equal(received, [rank + 1] * 2)
    np.testing.assert_array_equal(part, base[:2] * 3 if rank == 0 else base[2:] * 3)
    for gradient, expected in zip(gradients, ([1, 2, 2], [1, 1, 2])):
        np.testing.assert_array_equal(gradient, np.repeat(np.array(expected)[:, None], 2, axis=1))


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_alltoall_and_reducescatter_with_their_gradients(tf_job2, mode):
    tf_job2.run(check_scatters, mode)


def check_dtypes_of_reducescatter(mode):
    rank = bps.rank()

    def body():
        rows = tf.reshape(tf.range(6), [3, 2])
        integers = rows * (rank + 1)
        numbers = [tf.cast(integers, dtype) * tf.constant(1 + 2j, dtype) for dtype in (tf.complex64, tf.complex128)]
        results = bps.reducescatter(integers), bps.reducescatter(integers, op=bps.Sum, prescale_factor=2.0)
        return results, [bps.reducescatter(x) for x in numbers], bps.push_pull(integers)

    (average, doubled), numbers, whole = (body if mode == "eager" else tf.function(body))()
    mine = slice(0, 2) if rank == 0 else slice(2, 3)
    wanted = np.arange(6.0).reshape(3, 2)[mine] * 1.5
    np.testing.assert_allclose(average, wanted)
    assert average.dtype == whole.dtype == tf.float64
    np.testing.assert_array_equal(doubled, wanted * 4)
    for x, dtype in zip(numbers, (tf.complex64, tf.complex128)):
        assert x.dtype == dtype
        np.testing.assert_allclose(x, wanted * (1 + 2j))
    for wrong, op in ((tf.constant([True]), bps.Average), (tf.constant([1j]), bps.Min)):
        with pytest.raises(ValueError, match="bool|op=Sum and op=Average"):
            bps.reducescatter(wrong, op=op)
    with pytest.raises(ValueError, match="float8_e5m2 is not supported"):
        bps.reducescatter(tf.cast(tf.ones([2]), tf.dtypes.experimental.float8_e5m2), op=bps.Sum)


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_reducescatter_reduces_what_push_pull_does_and_refuses_the_rest(tf_job2, mode):
    tf_job2.run(check_dtypes_of_reducescatter, mode)


def check_groups(mode):
    rank = bps.rank()
    floats, integers = tf.fill([rank + 1, 2], 1.0 + rank), tf.range(rank + 2)

    def body(floats):
        with tf.GradientTape() as tape:
            tape.watch(floats)
            rows, numbers = bps.grouped_allgather([floats, integers], name="group")
            shares = bps.grouped_reducescatter([rows, numbers], op=bps.Sum)
            loss = tf.reduce_sum(shares[0]) * (rank + 1.0)
        return rows, numbers, *shares, tape.gradient(loss, floats)

    traced = tf.function(body)
    if mode == "graph":
        kinds = [op.type for op in traced.get_concrete_function(floats).graph.get_operations()]
        assert sum(kind in ("PyFunc", "EagerPyFunc") for kind in kinds) == 3, "one for each group, one for its gradient"
    rows, numbers, *shares, gradient = (body if mode == "eager" else traced)(floats)
    np.testing.assert_array_equal(rows, [[1, 1], [2, 2], [2, 2]])
    np.testing.assert_array_equal(numbers, [0, 1, 0, 1, 2])
    np.testing.assert_array_equal(shares[0], [[2, 2], [4, 4]] if rank == 0 else [[4, 4]])
    np.testing.assert_array_equal(shares[1], [0, 2, 0] if rank == 0 else [2, 4])
    np.testing.assert_array_equal(gradient, [[2, 2]] if rank == 0 else [[2, 2], [4, 4]])
    assert bps.grouped_allgather([]) == bps.grouped_reducescatter([]) == []


@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_what_is_grouped_travels_at_once(tf_job2, mode):
    tf_job2.run(check_groups, mode)


def check_v1_gathers():
    with tf.Graph().as_default():
        gathers = [bps.allgather(tf.fill([bps.rank() + 1], float(i))) for i in range(6)]
        with v1.Session() as session:
            for i, gathered in enumerate(session.run(gathers)):
                np.testing.assert_array_equal(gathered, [i] * 3)


def test_gathers_of_a_v1_graph_wait_in_one_order_on_all_ranks(tf_job2):
    tf_job2.run(check_v1_gathers)


def check_horovods_names():
    x = tf.constant([1.0, 2.0]) * (bps.rank() + 1)
    np.testing.assert_allclose(bps.allreduce(x, name="hvd"), [1.5, 3.0])
    np.testing.assert_allclose(bps.allreduce(x, average=False), [3.0, 6.0])
    for result, factor in zip(bps.grouped_allreduce([x, 2 * x], op=bps.Sum), (1, 2)):
        np.testing.assert_allclose(result, np.array([3.0, 6.0]) * factor)
    asked = tf.function(lambda: (bps.size_op(), bps.rank_op(), bps.process_set_included_op()))()
    assert [int(answer) for answer in asked] == [2, bps.rank(), 1]
    assert bps.is_initialized() and not bps.mpi_built() and bps.cross_size() * bps.local_size() == bps.size()
    variable = tf.Variable([float(bps.rank())])
    bps.broadcast_([variable], 1)
    assert variable.numpy() == [1.0]
    assert bps.broadcast_object_fn(root_rank=np.int64(1), name="fn")({"rank": bps.rank()}) == {"rank": 1}
    missing = [name for name in bps.__all__ if not hasattr(bps, name)]
    assert not missing, missing


def test_horovods_names_do_what_they_say(tf_job2):
    tf_job2.run(check_horovods_names)


def check_join(function):
    """Rank r has 2 r + 1 batches; after its first ones, calls without names have other numbers than elsewhere."""
    weight = tf.Variable([0.0, 0.0], name="uneven")

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * x)
        tape = bps.DistributedGradientTape(tape)
        weight.assign_sub(tape.gradient(loss, weight))
        bps.push_pull(x)

    step = tf.function(step) if function else step
    for _ in range(2 * bps.rank() + 1):
        step(tf.ones([2]) * 2.0)
        bps.push_pull(tf.ones([3]))
    if bps.rank() == 1:
        rows = bps.push_pull(tf.IndexedSlices(tf.ones([1, 2]), tf.constant([4]), tf.constant([5, 2])))
        assert rows.indices.numpy().tolist() == [4], "those of rank 0 are none"
    last = tf.function(bps.join)() if function else bps.join()
    assert int(last) == 1 and last.dtype == tf.int32
    np.testing.assert_array_equal(weight, [-2.0] * 2 if bps.rank() == 0 else [-4.0] * 2)  # -2, and twice -2 / 2
    bps.broadcast_variables([weight], int(last))
    np.testing.assert_array_equal(weight, [-4.0] * 2)
    step(tf.ones([2]))
    np.testing.assert_array_equal(bps.push_pull(tf.ones([1]), op=bps.Sum), [2.0])
    np.testing.assert_array_equal(bps.allgather(tf.constant([bps.rank()])), [0, 1])
    return weight.numpy().tolist()


@pytest.mark.parametrize("function", [False, True], ids=["eager", "function"])
def test_a_rank_without_more_batches_is_not_waited_for(tf_job2, function):
    assert tf_job2.run(check_join, function) == [[-5.0, -5.0]] * 2


def scatter_much():
    return bps.reducescatter(tf.ones([interrupted.ELEMENTS]), op=bps.Sum)


def test_ctrl_c_in_a_gather_frees_nothing_that_is_still_written_to(tf_job2):
    interrupted.check(tf_job2, scatter_much)


def check_forked_child():
    """The op itself: Python's part of the layer, which would refuse before, is not asked."""
    from byteps._core import abi
    from byteps._core.exchange import Exchange
    from byteps.tensorflow import native

    x = tf.ones([3])
    bps.push_pull(x, name="before")
    op, packed = native._loaded().byteps_push_pull, native._packed(Exchange(abi.SUM), 0)
    heard = heard_in_child(lambda: op(tensors=[x], tensor_names=["byteps.child"], exchanges=[packed], key=0))
    assert "this process was forked from a member of a job and is none itself" in heard, heard
    np.testing.assert_array_equal(bps.push_pull(x, name="after", op=bps.Sum), [bps.size()] * 3)


def test_the_op_is_refused_in_a_forked_child(tf_job2):
    tf_job2.run(check_forked_child)


def check_strategy():
    from byteps.tensorflow.distribute import MirroredStrategy

    strategy = MirroredStrategy(["/cpu:0"])
    assert strategy.num_replicas_in_sync == 2
    with strategy.scope():
        variable = tf.Variable(10.0 * (bps.rank() + 1))
    assert variable.numpy() == 10.0  # rank 0's
    sum_, mean = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN

    @tf.function
    def step():
        def replica():
            context = tf.distribute.get_replica_context()
            x = tf.constant([1.0, 2.0]) * (bps.rank() + 1)
            total, count = context.all_reduce(sum_, [x, tf.constant(1)])
            return total, count, context.all_reduce(mean, x), context.replica_id_in_sync_group, x

        return strategy.run(replica)

    total, count, average, replica_id, x = step()
    np.testing.assert_allclose(total, [3.0, 6.0])
    np.testing.assert_allclose(average, [1.5, 3.0])
    assert int(count) == 2 and int(replica_id) == bps.rank()
    np.testing.assert_allclose(strategy.reduce(mean, x, axis=None), [1.5, 3.0])
    dataset = tf.data.Dataset.range(8).batch(4)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = strategy.experimental_distribute_dataset(dataset.with_options(options))
    seen = [value for part in dataset for value in np.ravel(part)]
    assert sorted(sum(bps.allgather_object(seen), [])) == list(range(8)) and len(seen) == 4


def test_a_mirrored_strategy_counts_the_replicas_of_all_workers(tf_job2):
    tf_job2.run(check_strategy)
    tf_job2.run(without_servers, check_strategy)


def die_or_wait(dies):
    if dies:
        os.kill(os.getpid(), signal.SIGKILL)
    function = tf.function(lambda x: bps.push_pull(x, name="alone"))
    try:
        function(tf.ones([4]))
    except tf.errors.OpError as error:
        return type(error).__name__, str(error)
    return None


def test_a_peer_that_dies_is_an_aborted_error_that_names_it():
    environ = dict(TENSORFLOW, BYTEPS_FAILURE_TIMEOUT_MS="2000")
    cluster = Cluster(2, environ=environ, layer="byteps.tensorflow")
    cluster.__enter__()
    try:
        for rank, worker in enumerate(cluster.workers):
            worker.tell(die_or_wait, (rank == 1,), {})
        tag, value = cluster.workers[0].receive(float("inf"))
    finally:
        cluster.close()

    assert tag == "ok" and value[0] in ("AbortedError",), value
    assert "worker 1" in value[1] or "rank 1" in value[1], value


def test_the_digits_example_reaches_its_accuracy_and_is_the_same_training():
    output = launch("examples/tensorflow/train_digits.py", "--epochs", 15, environ=TENSORFLOW)
    accuracy, difference = map(float, re.search(r"accuracy=(\S+) max_relative_difference=(\S+)", output).groups())
    assert accuracy >= 0.97 and difference < 1e-12
