"""Broadcasts 32 MiB of weights so often, then exchanges 32 MiB of gradients so often, coded by dithering."""

import sys

import torch

import byteps.torch as bps

LAYER = 4 << 20  # float32: 16 MiB

bps.init()
weights = [torch.ones(LAYER) for _ in range(2)]
for _ in range(int(sys.argv[1])):
    for number, weight in enumerate(weights):
        bps.broadcast_(weight, root_rank=0, name=f"weight.{number}")
gradients = [torch.randn(LAYER) for _ in range(2)]
dithering = bps.Compression.dithering(k=4, seed=7)
for _ in range(int(sys.argv[2])):
    for number, gradient in enumerate(gradients):
        bps.push_pull(gradient, name=f"gradient.{number}", compression=dithering)
bps.shutdown()
