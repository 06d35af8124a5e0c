"""Images per second on random data, printed as the original's benchmark prints them.

    bpslaunch --local --workers 2 -- python examples/jax/synthetic_benchmark.py --model mlp
    python examples/jax/synthetic_benchmark.py
"""

import argparse
import timeit

import jax
import jax.numpy as jnp
import numpy as np
import optax

import byteps.jax as bps

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="cnn", choices=("cnn", "mlp"), help="model to benchmark")
parser.add_argument("--batch-size", type=int, default=32, help="input batch size")
parser.add_argument("--num-warmup-batches", type=int, default=2, help="batches that do not count")
parser.add_argument("--num-batches-per-iter", type=int, default=5, help="batches per measurement")
parser.add_argument("--num-iters", type=int, default=5, help="measurements")
parser.add_argument("--fp16-pushpull", action="store_true", help="use fp16 compression during push_pull")

KERNELS = {"cnn": [(3, 3, 3, 32), (3, 3, 32, 64)], "mlp": []}
LAYERS = {"cnn": [(4096, 256), (256, 1000)], "mlp": [(768, 2048), (2048, 4096), (4096, 1000)]}


def make_params(model, key):
    shapes = KERNELS[model] + LAYERS[model]
    return [
        {"w": jax.random.normal(one, shape) * 0.01, "b": jnp.zeros(shape[-1])}
        for one, shape in zip(jax.random.split(key, len(shapes)), shapes)
    ]


def pooled(images, window):
    shape = (1, window, window, 1)
    return jax.lax.reduce_window(images, 0.0, jax.lax.add, shape, shape, "VALID") / window**2


def predict(model, params, images):
    if model == "mlp":
        images = pooled(images, 2)
    for layer in params[: len(KERNELS[model])]:
        convolved = jax.lax.conv_general_dilated(
            images, layer["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        images = pooled(jax.nn.relu(convolved + layer["b"]), 2)
    outputs = images.reshape(len(images), -1)
    for layer in params[len(KERNELS[model]) : -1]:
        outputs = jax.nn.relu(outputs @ layer["w"] + layer["b"])
    return outputs @ params[-1]["w"] + params[-1]["b"]


def main():
    args = parser.parse_args()
    bps.init()
    params = bps.broadcast_parameters(make_params(args.model, jax.random.key(bps.rank())), root_rank=0)
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
    optimizer = bps.distributed(optax.sgd(0.01), compression=compression)
    state = optimizer.init(params)
    generator = np.random.default_rng(bps.rank())
    images = generator.standard_normal((args.batch_size, 32, 32, 3), np.float32)
    labels = generator.integers(0, 1000, args.batch_size)

    @jax.jit
    def step(params, state):
        def loss(params):
            outputs = predict(args.model, params, images)
            return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()

        updates, state = optimizer.update(jax.grad(loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    def benchmark_step():
        nonlocal params, state
        params, state = jax.block_until_ready(step(params, state))

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
