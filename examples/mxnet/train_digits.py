"""Trains a small convolutional network of gluon on scikit-learn's handwritten digits, and checks that all workers have
the same parameters.

    bpslaunch --local --workers 2 -- python examples/mxnet/train_digits.py
    python examples/mxnet/train_digits.py                                      # a job of one
"""

import argparse

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import byteps.mxnet as bps


def load():
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8).astype("float32") / 16
    return train_test_split(images, labels.astype("float32"), test_size=0.2, random_state=0, stratify=labels)


def make_net():
    net = gluon.nn.HybridSequential()
    net.add(
        gluon.nn.Conv2D(16, 3, padding=1, activation="relu"),
        gluon.nn.Conv2D(32, 3, padding=1, activation="relu"),
        gluon.nn.MaxPool2D(2),
        gluon.nn.Dense(64, activation="relu"),
        gluon.nn.Dense(10),
    )
    net.initialize(mx.init.Xavier())
    net.hybridize()
    return net


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--fp16-pushpull", action="store_true", help="gradients travel in 16 bits")
    args = parser.parse_args()

    bps.init()
    train_x, test_x, train_y, test_y = load()
    mx.random.seed(bps.rank())  # other values on each rank, until the trainer gives all those of rank 0
    net = make_net()
    trainer = bps.DistributedTrainer(
        net.collect_params(),
        "sgd",
        {"learning_rate": args.lr, "momentum": 0.9},
        compression_params={"fp16": args.fp16_pushpull},
    )
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()

    for epoch in range(args.epochs):
        order = np.random.RandomState(epoch).permutation(len(train_x))
        share = args.batch_size * bps.size()
        for begin in range(0, len(order) - share + 1, share):
            mine = order[begin : begin + share][bps.rank() :: bps.size()]
            images, labels = mx.nd.array(train_x[mine]), mx.nd.array(train_y[mine])
            with autograd.record():
                loss = loss_of(net(images), labels)
            loss.backward()
            trainer.step(len(mine))  # nothing waits here: the engine orders averages and updates
        mean_loss = bps.allreduce(loss.mean(), name="loss").asscalar()
        if bps.rank() == bps.leader():
            print(f"epoch {epoch}: loss {mean_loss:.4f}", flush=True)

    accuracy = float((net(mx.nd.array(test_x)).argmax(axis=1).asnumpy() == test_y).mean())
    sums = [float(param.data().sum().asscalar()) for param in net.collect_params().values()]
    for other in bps.allgather_object(sums):
        assert other == sums, "the workers have different parameters"
    if bps.rank() == bps.leader():
        print(f"accuracy={accuracy:.4f} workers={bps.size()}", flush=True)


if __name__ == "__main__":
    main()
