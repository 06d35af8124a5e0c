"""Module.fit on scikit-learn's handwritten digits with the kvstore "byteps".

    bpslaunch --local --workers 2 -- python examples/mxnet/module_digits.py
    python examples/mxnet/module_digits.py                                     # a job of one
"""

import argparse

import mxnet as mx
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import byteps.mxnet  # noqa: F401 - makes the kvstore known


def make_symbol():
    layer = mx.sym.Convolution(mx.sym.var("data"), num_filter=16, kernel=(3, 3), pad=(1, 1))
    layer = mx.sym.Convolution(mx.sym.Activation(layer, act_type="relu"), num_filter=32, kernel=(3, 3), pad=(1, 1))
    layer = mx.sym.Pooling(mx.sym.Activation(layer, act_type="relu"), kernel=(2, 2), stride=(2, 2), pool_type="max")
    layer = mx.sym.Activation(mx.sym.FullyConnected(layer, num_hidden=64), act_type="relu")
    return mx.sym.SoftmaxOutput(mx.sym.FullyConnected(layer, num_hidden=10), name="softmax")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch-size", type=int, default=32, help="of each worker")
    args = parser.parse_args()

    kv = mx.kv.create("byteps")  # joins the job
    np.random.seed(kv.rank)  # NDArrayIter shuffles by it
    mx.random.seed(kv.rank)  # other values on each rank, until fit() gives all those of rank 0
    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 1, 8, 8).astype("float32") / 16
    train_x, test_x, train_y, test_y = train_test_split(
        images, labels.astype("float32"), test_size=0.2, random_state=0, stratify=labels
    )
    even = len(train_x) // kv.num_workers * kv.num_workers  # all workers make as many steps
    mine = slice(kv.rank, even, kv.num_workers)
    train = mx.io.NDArrayIter(
        train_x[mine], train_y[mine], args.batch_size, shuffle=True, last_batch_handle="discard"
    )
    module = mx.mod.Module(make_symbol())
    module.fit(
        train,
        num_epoch=args.epochs,
        kvstore=kv,
        optimizer="sgd",
        optimizer_params={"learning_rate": 0.05, "momentum": 0.9},
        initializer=mx.init.Xavier(),
    )
    accuracy = module.score(mx.io.NDArrayIter(test_x, test_y, batch_size=len(test_x)), "acc")[0][1]
    if kv.rank == 0:
        print(f"accuracy={accuracy:.4f} workers={kv.num_workers}", flush=True)


if __name__ == "__main__":
    main()
