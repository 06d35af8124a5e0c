"""Images per second on random data, printed as the original's benchmark prints them.

    bpslaunch --local --workers 2 -- python examples/mxnet/synthetic_benchmark.py --model mlp
    python examples/mxnet/synthetic_benchmark.py

Models: cnn and mlp (small), and all of gluon.model_zoo.vision, for example resnet50_v1.
"""

import argparse
import time

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from mxnet.gluon import nn

import byteps.mxnet as bps


def make_net(name):
    """The network, and the image size that suits it."""
    if name not in ("cnn", "mlp"):
        return gluon.model_zoo.vision.get_model(name), 224
    net = nn.HybridSequential()
    if name == "cnn":
        net.add(nn.Conv2D(32, 3, padding=1, activation="relu"), nn.MaxPool2D(2))
        net.add(nn.Conv2D(64, 3, padding=1, activation="relu"), nn.MaxPool2D(2))
        net.add(nn.Dense(256, activation="relu"), nn.Dense(1000))
    else:  # 16 million parameters and little arithmetic: the network is what counts
        net.add(nn.Dense(2048, activation="relu"), nn.Dense(4096, activation="relu"), nn.Dense(1000))
    return net, 32 if name == "cnn" else 16


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn", help="network to benchmark")
    parser.add_argument("--batch-size", type=int, default=32, help="input batch size")
    parser.add_argument("--num-warmup-batches", type=int, default=2, help="batches that do not count")
    parser.add_argument("--num-batches-per-iter", type=int, default=5, help="batches per measurement")
    parser.add_argument("--num-iters", type=int, default=5, help="measurements")
    parser.add_argument("--fp16-pushpull", action="store_true", help="gradients travel in 16 bits")
    args = parser.parse_args()

    bps.init()
    net, pixels = make_net(args.model)
    net.initialize(mx.init.Xavier())
    net.hybridize()
    trainer = bps.DistributedTrainer(
        net.collect_params(), "sgd", {"learning_rate": 0.01}, compression_params={"fp16": args.fp16_pushpull}
    )
    data = mx.nd.random.uniform(shape=(args.batch_size, 3, pixels, pixels))
    target = mx.nd.array(np.random.randint(0, 1000, args.batch_size))
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    def run_batches(count):
        for _ in range(count):
            with autograd.record():
                loss = loss_of(net(data), target)
            loss.backward()
            trainer.step(args.batch_size)
        mx.nd.waitall()

    def log(text):
        if bps.rank() == bps.leader():
            print(text, flush=True)

    log(f"Model: {args.model}\nBatch size: {args.batch_size}\nNumber of workers: {bps.size()}")
    run_batches(args.num_warmup_batches)
    rates = []
    for index in range(args.num_iters):
        began = time.perf_counter()
        run_batches(args.num_batches_per_iter)
        rates.append(args.batch_size * args.num_batches_per_iter / (time.perf_counter() - began))
        log(f"Iter #{index}: {rates[-1]:.1f} img/sec per worker")
    mean, spread = np.mean(rates), 1.96 * np.std(rates)
    log(f"Img/sec per worker: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} workers: {bps.size() * mean:.1f} +-{bps.size() * spread:.1f}")


if __name__ == "__main__":
    main()
