"""Images per second on random data, printed as the original's benchmark prints them.

    bpslaunch --local --workers 2 -- python examples/tensorflow/synthetic_benchmark.py --model mlp
    python examples/tensorflow/synthetic_benchmark.py

Models: cnn and mlp (built in, small), and any of tf.keras.applications, for example ResNet50.
"""

import argparse
import timeit

import numpy as np
import tensorflow as tf

import byteps.tensorflow as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="cnn", help="model to benchmark")
parser.add_argument("--batch-size", type=int, default=32, help="input batch size")
parser.add_argument("--num-warmup-batches", type=int, default=2, help="batches that do not count")
parser.add_argument("--num-batches-per-iter", type=int, default=5, help="batches per measurement")
parser.add_argument("--num-iters", type=int, default=5, help="measurements")
parser.add_argument("--fp16-pushpull", action="store_true", help="use fp16 compression during push_pull")
parser.add_argument("--eager", action="store_true", help="without tf.function")
parser.add_argument("--jit-compile", action="store_true", help="let XLA compile the step")


def make_model(name):
    """The model, and the image size that suits it."""
    layers = tf.keras.layers
    if name == "cnn":
        stack = [layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten()]
        return tf.keras.Sequential([layers.Input((32, 32, 3)), *stack, layers.Dense(128), layers.Dense(1000)]), 32
    if name == "mlp":  # 16 million parameters and little arithmetic: the network is what counts
        stack = [layers.Dense(2048, activation="relu"), layers.Dense(4096, activation="relu"), layers.Dense(1000)]
        return tf.keras.Sequential([layers.Input((16, 16, 3)), layers.Flatten(), *stack]), 16
    return getattr(tf.keras.applications, name)(weights=None), 224


def main():
    args = parser.parse_args()
    bps.init()
    tf.random.set_seed(bps.rank())
    model, size = make_model(args.model)
    optimizer = tf.keras.optimizers.SGD(0.01)
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
    data = tf.random.uniform([args.batch_size, size, size, 3])
    target = tf.random.uniform([args.batch_size], maxval=999, dtype=tf.int64)
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def step():
        with tf.GradientTape() as tape:
            loss = loss_function(target, model(data, training=True))
        tape = bps.DistributedGradientTape(tape, compression=compression)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss

    optimizer.build(model.trainable_variables)
    bps.broadcast_variables([*model.variables, *optimizer.variables], root_rank=0)
    function = step if args.eager else tf.function(step, jit_compile=args.jit_compile)

    def benchmark_step():
        function().numpy()

    def log(line):
        if bps.rank() == bps.leader():
            print(line, flush=True)

    log(f"Model: {args.model}")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of CPUs: {bps.size()}")
    log("Running warmup...")
    timeit.timeit(benchmark_step, number=args.num_warmup_batches)

    log("Running benchmark...")
    speeds = []
    for index in range(args.num_iters):
        seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
        speeds.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"Iter #{index}: {speeds[-1]:.1f} img/sec per CPU")

    mean, spread = np.mean(speeds), 1.96 * np.std(speeds)
    log(f"Img/sec per CPU: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} CPU(s): {bps.size() * mean:.1f} +-{bps.size() * spread:.1f}")


if __name__ == "__main__":
    main()
