"""Training with byteps.mxnet: trainer, optimizer and kvstore against the same training in one process."""

import os
import pickle

import numpy as np
import pytest
from cluster import without_servers

try:
    import mxnet as mx
    from mxnet import autograd, gluon

    import byteps.mxnet as bps
except ImportError:  # in the process of the tests
    mx = bps = None

STEPS, BATCH = 5, 12  # the batch of all workers together


def batch_of(step):
    generator = np.random.RandomState(step)
    return generator.randn(BATCH, 1, 8, 8).astype("float32"), generator.randint(0, 10, BATCH).astype("float32")


def net_of(seed, deferred=False):
    net = gluon.nn.HybridSequential()
    channels, units = (0, 0) if deferred else (1, 4 * 36)
    net.add(gluon.nn.Conv2D(4, 3, activation="relu", in_channels=channels), gluon.nn.Dense(10, in_units=units))
    mx.random.seed(seed)
    net.initialize(mx.init.Xavier())
    return net


def parameters_of(net):
    return [parameter.data().asnumpy() for parameter in net.collect_params().values()]


def train(net, trainer, rank, size):
    """Each step on this rank's share of the batch; the loss is a sum, so that gradients of shares add up."""
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    for step in range(STEPS):
        images, labels = (mx.nd.array(part[rank::size]) for part in batch_of(step))
        with autograd.record():
            loss = loss_of(net(images), labels)
        loss.backward()
        trainer.step(len(labels))
    return parameters_of(net)


def alone(seed, optimizer="sgd", options=None):
    net = net_of(seed)
    options = options or {"learning_rate": 0.1, "momentum": 0.9}
    return train(net, gluon.Trainer(net.collect_params(), optimizer, options, kvstore=None), 0, 1)


def check(parameters, wanted, tolerance=2e-5):
    for mine, theirs in zip(parameters, wanted):
        np.testing.assert_allclose(mine, theirs, rtol=tolerance, atol=tolerance)


def trainers():
    rank, size = bps.rank(), bps.size()
    options = {"learning_rate": 0.1, "momentum": 0.9}
    wanted = alone(seed=1)
    for deferred in (False, True):  # other parameters on each rank until the trainer broadcasts the last rank's
        net = net_of(seed=1 if rank == size - 1 else 100 + rank, deferred=deferred)
        net.hybridize()
        trainer = bps.DistributedTrainer(net.collect_params(), "sgd", dict(options), root_rank=size - 1)
        check(train(net, trainer, rank, size), wanted)
    for params in (lambda net: dict(net.collect_params().items()), lambda net: list(net.collect_params().values())):
        net = net_of(seed=2 + rank)
        bps.DistributedTrainer(params(net), "adam", {"learning_rate": 0.01})
        check(parameters_of(net), parameters_of(net_of(seed=2)))
    net = net_of(seed=1)
    halved = bps.DistributedTrainer(net.collect_params(), "sgd", dict(options), compression_params={"fp16": True})
    check(train(net, halved, rank, size), wanted, tolerance=5e-3)


def a_checkpoint_of_the_root():
    """Values that only the root has loaded after the trainer was made reach all in the first step."""
    net = net_of(seed=0)
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    if bps.rank() == 0:
        for parameter in net.collect_params().values():
            parameter.set_data(mx.nd.ones(parameter.shape))
    train(net, trainer, bps.rank(), bps.size())
    every = bps.allgather_object(parameters_of(net))
    for other in every:
        check(parameters_of(net), other, tolerance=0)


def clipped():
    """allreduce_grads() and update() apart: between them the gradients are averages, the same on all ranks."""
    net = net_of(seed=3)
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1})
    images, labels = batch_of(0)
    with autograd.record():
        loss = gluon.loss.SoftmaxCrossEntropyLoss()(net(mx.nd.array(images) * bps.rank()), mx.nd.array(labels))
    loss.backward()
    trainer.allreduce_grads()
    gradients = [parameter.grad() for parameter in net.collect_params().values()]
    gluon.utils.clip_global_norm(gradients, 1.0)
    trainer.update(BATCH)
    every = bps.allgather_object([gradient.asnumpy() for gradient in gradients])
    for other in every:
        check([gradient.asnumpy() for gradient in gradients], other, tolerance=0)


def optimizers():
    rank, size = bps.rank(), bps.size()
    for name, options in [
        ("sgd", {"learning_rate": 0.1, "momentum": 0.9}),
        ("adam", {"learning_rate": 0.01}),
        ("sgd", {"learning_rate": 0.1, "momentum": 0.9, "multi_precision": True}),
    ]:
        net = net_of(seed=4 if rank == 0 else 50)
        bps.broadcast_parameters(net.collect_params())
        plain = mx.optimizer.create(name, **options)
        optimizer = bps.DistributedOptimizer(plain)
        assert isinstance(optimizer, type(plain)) and isinstance(optimizer, bps.DistributedOptimizer)
        trainer = gluon.Trainer(net.collect_params(), optimizer, kvstore=None)
        check(train(net, trainer, rank, size), alone(4, name, options))
        plain.set_learning_rate(0.5)
        assert optimizer.learning_rate == trainer.learning_rate == 0.5
        copy = pickle.loads(pickle.dumps(optimizer))
        assert type(copy) is type(optimizer) and copy.learning_rate == 0.5
    for wrong in (optimizer, "sgd"):
        with pytest.raises(ValueError, match="wrap it once|expected an mx.optimizer.Optimizer"):
            bps.DistributedOptimizer(wrong)
    with pytest.raises(ValueError, match="give it the plain optimizer"):
        bps.DistributedTrainer(net_of(0).collect_params(), optimizer)


def two_at_once():
    """A trainer, an optimizer and a kvstore twice each, of equal shapes. Rank 1 computes a long time in between, and so
    starts them in another order than rank 0."""
    rank, size = bps.rank(), bps.size()
    owners = []
    for kind in (0, 1):
        weight = gluon.Parameter(f"weight{kind}", shape=(300,), init="zeros")
        weight.initialize()
        plain = mx.optimizer.create("sgd", learning_rate=1.0)
        owners.append((weight, bps.DistributedTrainer([weight], "sgd", {"learning_rate": 1.0})))
        owners.append((weight, gluon.Trainer([weight], bps.DistributedOptimizer(plain), kvstore=None)))
        owners.append((weight, gluon.Trainer([weight], "sgd", {"learning_rate": 1.0}, kvstore="byteps")))
    for step in range(3):
        for first in range(3):
            slow = mx.nd.ones((400, 400))
            gradients = []
            for kind in (0, 1):
                factor = mx.nd.ones((1,))
                if kind == rank % 2:
                    for _ in range(20):
                        slow = mx.nd.dot(slow, slow) * 1e-3
                    factor = factor + 0 * slow[0][:1]
                gradients.append(factor * (10.0**kind * (rank + 1)))
            for kind in (0, 1):
                weight, trainer = owners[3 * kind + first]
                with autograd.record():
                    loss = (weight.data() * gradients[kind]).sum()
                loss.backward()
                trainer.step(1)
    total = size * (size + 1) / 2
    for kind in (0, 1):
        wanted = -(10.0**kind) * 3 * (2 * total / size + total)
        np.testing.assert_allclose(owners[3 * kind][0].data().asnumpy(), [wanted] * 300, rtol=1e-5)


def in_a_process_set():
    """Ranks 0 and 2 train together, rank 1 alone."""
    pair = bps.ProcessSet([0, 2])
    options = {"gradient_predivide_factor": 2.0, "num_groups": 1, "process_set": pair}
    for seed in (7, 8):
        net = net_of(seed=seed if bps.rank() else 70)
        if seed == 7:
            trainer = bps.DistributedTrainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, 2, **options)
        else:
            if pair.included():
                bps.broadcast_parameters(net.collect_params(), root_rank=2, process_set=pair)
            plain = mx.optimizer.create("sgd", learning_rate=0.1)
            trainer = gluon.Trainer(net.collect_params(), bps.DistributedOptimizer(plain, **options), kvstore=None)
        place = (pair.rank(), 2) if pair.included() else (0, 1)
        check(train(net, trainer, *place), alone(seed, options={"learning_rate": 0.1}))
    for wrong, why in (
        ({"gradient_predivide_factor": 0}, "gradient_predivide_factor is 0"),
        ({"num_groups": -1}, "num_groups is -1"),
        ({"compression": "fp16"}, "compression is 'fp16'"),
    ):
        with pytest.raises(ValueError, match=why):
            bps.DistributedOptimizer(plain, **wrong)
    with pytest.raises(ValueError, match="root_rank is 1"):
        bps.DistributedTrainer(net.collect_params(), "sgd", root_rank=1, process_set=pair)


class Rows:
    """What this rank has of all steps, read in forked processes: image, label, and the process's id, or -1 when an
    exchange is not refused there."""

    def __init__(self, rank, size):
        steps = [[part[rank::size] for part in batch_of(step)] for step in range(STEPS)]
        self.images, self.labels = (np.concatenate(parts) for parts in zip(*steps))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        process = -1
        try:
            bps.byteps_push_pull(mx.nd.ones((1,)), name="of a child")
        except ValueError as error:
            process = os.getpid() if "forked" in str(error) else -1
        return mx.nd.array(self.images[index]) * 1, self.labels[index], process  # MXNet computes there


def with_forked_loaders():
    """Each epoch a DataLoader with two processes, which are forked while exchanges are under way, and end while others
    are."""
    rank, size = bps.rank(), bps.size()
    options = {"learning_rate": 0.1, "momentum": 0.9}
    net = net_of(seed=11 if rank == 0 else 60)
    trainer = bps.DistributedTrainer(net.collect_params(), "sgd", options)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    under_way = [mx.nd.ones((200000,)) for _ in range(4)]
    for epoch in range(2):
        bps.byteps_push_pull(under_way[2 * epoch], name=f"begin.{epoch}", is_average=False)
        loader = gluon.data.DataLoader(Rows(rank, size), BATCH // size, num_workers=2, thread_pool=False)
        for images, labels, processes in loader:
            found = set(processes.asnumpy().tolist())
            assert len(found) == 1 and -1 not in found and os.getpid() not in found, found
            with autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(len(labels))
        bps.byteps_push_pull(under_way[2 * epoch + 1], name=f"end.{epoch}", is_average=False)
        del loader  # ends its processes
    assert all((array.asnumpy() == size).all() for array in under_way)
    reference = net_of(seed=11)
    plain = gluon.Trainer(reference.collect_params(), "sgd", options, kvstore=None)
    train(reference, plain, 0, 1)
    check(parameters_of(net), train(reference, plain, 0, 1))


def refused_trainers():
    embedding = gluon.nn.Embedding(10, 3, sparse_grad=True)
    embedding.initialize()
    with pytest.raises(ValueError, match="weight.*sparse_grad=False"):
        bps.DistributedTrainer(embedding.collect_params(), "sgd")
    net = net_of(0)
    with pytest.raises(ValueError, match="compressor is '2bit': it must be 'onebit' or"):
        bps.DistributedTrainer(net.collect_params(), "sgd", compression_params={"compressor": "2bit"})
    nesterov = {"compressor": "onebit", "momentum": "nesterov"}
    with pytest.raises(ValueError, match="no 'momentum_mu': give the momentum, as 0.9; MXNet's trainer takes it from"):
        bps.DistributedTrainer(net.collect_params(), "sgd", compression_params=nesterov)
    with pytest.raises(ValueError, match="give one of them, as gradients have momentum once"):
        both = {**nesterov, "momentum_mu": 0.9}
        bps.DistributedTrainer(net.collect_params(), "sgd", {"momentum": 0.9}, compression_params=both)
    with pytest.raises(ValueError, match="SGD has momentum=0.9: momentum adds up"):
        feedback = {"compressor": "topk", "k": 0.1, "ef": "vanilla"}
        bps.DistributedTrainer(net.collect_params(), "sgd", {"momentum": 0.9}, compression_params=feedback)
    with pytest.raises(ValueError, match="root_rank is 9"):
        bps.DistributedTrainer(net.collect_params(), "sgd", root_rank=9)


def broadcast_of_parameters():
    rank, size = bps.rank(), bps.size()
    root = size - 1
    arrays = {f"p{i}": mx.nd.ones((i + 1,)) * (rank + i) for i in range(20)}
    bps.broadcast_parameters(arrays, root_rank=root)
    assert all((arrays[f"p{i}"].asnumpy() == root + i).all() for i in range(20))
    listed = [mx.nd.ones((2,)) * rank, mx.nd.ones((3,)) * (float("nan") if rank != root else 5)]
    bps.broadcast_parameters(listed, root_rank=root)
    assert listed[0].asnumpy().tolist() == [root] * 2 and listed[1].asnumpy().tolist() == [5] * 3
    net = net_of(seed=10 + rank)
    net(mx.nd.ones((1, 1, 8, 8))).wait_to_read()  # leaves the weights of convolutions in another layout
    bps.broadcast_parameters(net.collect_params(), root_rank=root)
    check(parameters_of(net), parameters_of(net_of(seed=10 + root)))
    net = net_of(seed=20 + rank, deferred=True)
    bps.broadcast_parameters(net.collect_params(), root_rank=root)
    net(mx.nd.ones((1, 1, 8, 8)))
    for other in bps.allgather_object(parameters_of(net)):
        check(parameters_of(net), other, tolerance=0)
    for wrong in ("abc", [3], mx.nd.ones((1,)), {"a": None}):
        with pytest.raises(ValueError, match="invalid params|is a int|is a NoneType"):
            bps.broadcast_parameters(wrong)
    with pytest.raises(ValueError, match="duplicates: a"):
        bps.broadcast_parameters([("a", mx.nd.ones((1,)))] * 2)


def loaded_by_the_root(path):
    """Rank 0 alone has loaded the parameters, elsewhere they are initialized in the first forward pass: nobody waits
    for that in a call, and what comes before it may need all ranks."""
    net = net_of(seed=7)
    bps.broadcast_parameters(net.collect_params())
    nets = [net_of(seed=30 + bps.rank(), deferred=True) for _ in range(2)]
    if bps.rank() == 0:
        net.save_parameters(path)
        for one in nets:
            one.load_parameters(path)
    for one in nets:
        bps.broadcast_parameters(one.collect_params())
    trainer = bps.DistributedTrainer(nets[0].collect_params(), "sgd", {"learning_rate": 0.1})
    bps.broadcast_parameters([mx.nd.ones((2,))])
    assert bps.broadcast_object("epoch 3") == "epoch 3"
    nets[1](mx.nd.ones((1, 1, 8, 8)))
    check(parameters_of(nets[1]), parameters_of(net), tolerance=0)
    train(nets[0], trainer, bps.rank(), bps.size())
    for other in bps.allgather_object(parameters_of(nets[0])):
        check(parameters_of(nets[0]), other, tolerance=0)


def other_names():
    bps.broadcast_parameters({"a": mx.nd.ones((1,)), "b" if bps.rank() else "c": mx.nd.ones((1,))})


def more_parameters():
    net = net_of(seed=0)
    parameters = list(net.collect_params().values())
    bps.DistributedTrainer(parameters[bps.rank() :], "sgd")


def gluon_with_a_kvstore():
    rank, size = bps.rank(), bps.size()
    for kvstore in ("byteps", "dist_byteps", mx.kv.create("byteps")):
        net = net_of(seed=5)
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=kvstore)
        loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
        for step in range(STEPS):
            images, labels = (mx.nd.array(part[rank::size]) for part in batch_of(step))
            with autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(BATCH)  # kvstores sum
        check(parameters_of(net), alone(seed=5))
    kv = mx.kv.create("byteps")
    assert (kv.type, kv.rank, kv.num_workers) == ("byteps", rank, size)
    on_devices = [mx.nd.ones((3,), ctx=mx.cpu(device)) * (rank + device) for device in (0, 1)]
    kv.pushpull("devices", on_devices)
    wanted = sum(r + device for r in range(size) for device in (0, 1))
    assert [array.asnumpy().tolist() for array in on_devices] == [[wanted] * 3] * 2
    first, second = mx.nd.ones((2,)) * rank, mx.nd.zeros((2,))
    kv.pushpull(["k1", "k2"], [first, first * 2], out=[second, first])
    assert second.asnumpy()[0] == sum(range(size)) and first.asnumpy()[0] == 2 * sum(range(size))
    values = mx.nd.ones((2,)) * (rank + 1)
    kv.broadcast("b", values, [second, first])
    assert second.asnumpy()[0] == first.asnumpy()[0] == 1 and values.asnumpy()[0] == rank + 1
    for call in (kv.push, kv.pull, kv.set_optimizer, kv.save_optimizer_states):
        with pytest.raises(NotImplementedError, match="kvstore 'byteps' has no"):
            call(*[None] * (2 if call == kv.push else 1))
    with pytest.raises(ValueError, match="no gradient compression"):
        kv.set_gradient_compression({"type": "2bit"})


def module_with_a_kvstore(kvstore):
    """Module.fit on shares of each batch; rank 0's first parameters. Returns what it learned."""
    rank, size = bps.rank(), bps.size()
    symbol = mx.sym.FullyConnected(mx.sym.flatten(mx.sym.var("data")), num_hidden=10, name="fc")
    symbol = mx.sym.SoftmaxOutput(symbol, name="softmax")
    share = BATCH // size if kvstore else BATCH
    batches = [batch_of(step) for step in range(STEPS)]
    if kvstore:
        batches = [(images[rank::size], labels[rank::size]) for images, labels in batches]
    images, labels = (np.concatenate(parts) for parts in zip(*batches))
    module = mx.mod.Module(symbol)
    mx.random.seed(6 if rank == 0 or not kvstore else 60)
    module.fit(
        mx.io.NDArrayIter(images, labels, batch_size=share),
        num_epoch=2,
        kvstore=kvstore,
        optimizer_params={"learning_rate": 0.1, "momentum": 0.9},
        initializer=mx.init.Xavier(),
    )
    return [module.get_params()[0][name].asnumpy() for name in ("fc_weight", "fc_bias")]


def modules():
    wanted = module_with_a_kvstore(None)
    for kvstore in ("byteps", mx.kv.create("byteps"), "dist_byteps"):
        check(module_with_a_kvstore(kvstore), wanted)


def test_a_trainer_makes_the_same_parameters_as_one_process(mxnet_job):
    mxnet_job.run(trainers)


def test_a_trainer_needs_no_servers(mxnet_job2):
    mxnet_job2.run(without_servers, trainers)


def test_two_trainers_optimizers_and_kvstores_of_equal_shapes_are_kept_apart(mxnet_job2):
    mxnet_job2.run(two_at_once)


def test_trainers_and_optimizers_of_a_process_set(mxnet_clusters):
    mxnet_clusters.get(3).run(in_a_process_set)


def test_forked_loaders_feed_a_training_and_do_not_take_part_in_it(mxnet_job):
    mxnet_job.run(with_forked_loaders)


def test_values_that_the_root_alone_has_loaded_reach_all(mxnet_job2):
    mxnet_job2.run(a_checkpoint_of_the_root)


def test_gradients_can_be_clipped_when_they_are_averaged(mxnet_job2):
    mxnet_job2.run(clipped)


def test_a_distributed_optimizer_makes_the_same_parameters_as_one_process(mxnet_job):
    mxnet_job.run(optimizers)


def test_what_a_trainer_cannot_do_is_refused(mxnet_job2):
    mxnet_job2.run(refused_trainers)


def test_parameters_in_dicts_lists_and_networks_are_broadcast_deferred_ones_too(mxnet_job):
    mxnet_job.run(broadcast_of_parameters)


def test_what_the_root_has_loaded_waits_for_no_first_forward_pass(mxnet_job2, tmp_path):
    mxnet_job2.run(loaded_by_the_root, str(tmp_path / "net.params"))


def test_ranks_with_other_parameters_are_all_told(mxnet_job2):
    for function, lacking in ((other_names, "c"), (more_parameters, "parameter 3")):
        failures = mxnet_job2.failures(function)
        assert [failure.kind for failure in failures] == ["ValueError"] * 2
        assert f"parameters differ on rank 1 from those of root rank 0. Here lacking: {lacking}" in failures[1].text


def test_gluon_with_the_kvstore_makes_the_same_parameters_as_one_process(mxnet_job):
    mxnet_job.run(gluon_with_a_kvstore)


def test_module_with_the_kvstore_makes_the_same_parameters_as_one_process(mxnet_job):
    mxnet_job.run(modules)
