"""Images per second on random data, printed as the original's benchmark prints them.

    bpslaunch --local --workers 2 -- python examples/torch/synthetic_benchmark.py --model mlp
    bpslaunch --local --workers 2 -- python examples/torch/synthetic_benchmark.py --way cross-barrier
    python examples/torch/synthetic_benchmark.py

Ways: a DistributedOptimizer; a cross barrier, where each layer of the next forward pass waits for its own gradients
only; DistributedDataParallel.
Models: cnn and mlp (built in, small), and any of torchvision's when that is installed, for example resnet50.
"""

import argparse
import timeit

import torch
import torch.nn.functional as F
from torch import nn, optim

import byteps.torch as bps
from byteps.torch.cross_barrier import CrossBarrier
from byteps.torch.parallel import DistributedDataParallel

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("--model", default="cnn", help="model to benchmark")
parser.add_argument("--way", default="optimizer", choices=["optimizer", "cross-barrier", "ddp"])
parser.add_argument("--batch-size", type=int, default=32, help="input batch size")
parser.add_argument("--image-size", type=int, default=0, help="pixels; default 32, or 224 for torchvision's models")
parser.add_argument("--num-warmup-batches", type=int, default=2, help="batches that do not count")
parser.add_argument("--num-batches-per-iter", type=int, default=5, help="batches per measurement")
parser.add_argument("--num-iters", type=int, default=5, help="measurements")
parser.add_argument("--fp16-pushpull", action="store_true", help="use fp16 compression during push_pull")
parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda" if torch.cuda.is_available() else "cpu")


def make_cnn():
    return nn.Sequential(
        *[nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)],
        *[nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(8)],
        *[nn.Flatten(), nn.Linear(64 * 64, 256), nn.ReLU(), nn.Linear(256, 1000)],
    )


def make_mlp():
    """16 million parameters and little arithmetic: the network is what counts."""
    return nn.Sequential(
        *[nn.AdaptiveAvgPool2d(16), nn.Flatten()],
        *[nn.Linear(768, 2048), nn.ReLU(), nn.Linear(2048, 4096), nn.ReLU(), nn.Linear(4096, 1000)],
    )


def make_model(name):
    """The model, and the image size that suits it."""
    if name in ("cnn", "mlp"):
        return {"cnn": make_cnn, "mlp": make_mlp}[name](), 32
    try:
        from torchvision import models
    except ImportError:
        parser.error(f"--model {name} needs torchvision, which is not installed; without it there are cnn and mlp")
    return getattr(models, name)(), 224


def main():
    args = parser.parse_args()
    bps.init()
    if args.device == "cuda":
        torch.cuda.set_device(bps.local_rank())  # one process for each GPU
    torch.manual_seed(bps.rank())
    torch.set_num_threads(1)

    model, image_size = make_model(args.model)
    model = model.to(args.device)
    optimizer = optim.SGD(model.parameters(), lr=0.01)
    compression = bps.Compression.fp16 if args.fp16_pushpull else bps.Compression.none
    if args.way == "optimizer":
        optimizer = bps.DistributedOptimizer(
            optimizer, named_parameters=model.named_parameters(), compression=compression
        )
    elif args.way == "cross-barrier":
        steps = args.num_warmup_batches + args.num_iters * args.num_batches_per_iter
        optimizer = CrossBarrier(
            model, optimizer, model.named_parameters(), compression=compression, num_steps=steps
        )
    else:
        model = DistributedDataParallel(model, compression=compression)
    bps.broadcast_parameters(model.state_dict(), root_rank=0)
    bps.broadcast_optimizer_state(optimizer, root_rank=0)

    size = args.image_size or image_size
    data = torch.randn(args.batch_size, 3, size, size, device=args.device)
    target = torch.randint(0, 1000, (args.batch_size,), device=args.device)
    unit = {"cpu": "CPU", "cuda": "GPU"}[args.device]

    def benchmark_step():
        optimizer.zero_grad()
        F.cross_entropy(model(data), target).backward()
        optimizer.step()
        if args.device == "cuda":
            torch.cuda.synchronize()

    def log(line):
        if bps.rank() == bps.leader():
            print(line, flush=True)

    log(f"Model: {args.model}")
    log(f"Batch size: {args.batch_size}")
    log(f"Number of {unit}s: {bps.size()}")
    log("Running warmup...")
    timeit.timeit(benchmark_step, number=args.num_warmup_batches)

    log("Running benchmark...")
    speeds = []
    for index in range(args.num_iters):
        seconds = timeit.timeit(benchmark_step, number=args.num_batches_per_iter)
        speeds.append(args.batch_size * args.num_batches_per_iter / seconds)
        log(f"Iter #{index}: {speeds[-1]:.1f} img/sec per {unit}")

    speeds = torch.tensor(speeds)
    mean, spread = speeds.mean().item(), 1.96 * speeds.std(unbiased=False).item()
    log(f"Img/sec per {unit}: {mean:.1f} +-{spread:.1f}")
    log(f"Total img/sec on {bps.size()} {unit}(s): {bps.size() * mean:.1f} +-{bps.size() * spread:.1f}")


if __name__ == "__main__":
    main()
