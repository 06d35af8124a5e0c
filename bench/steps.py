"""Training steps whose computation takes time and no processor, as on a GPU: the models, and what a step ideally takes.

A model is a list of layers, first to last: (elements of each of its parameters, its share of the time of a pass).
Ideal is one line that carries what is ready, the first layer's gradient first, and costs nothing else (the scheduling
of Peng et al., "A generic communication scheduler for distributed DNN training acceleration", SOSP 2019).

The simulator trains the same models (tests/sim/step_figures_test.cc): `python bench/steps.py` writes them for it.
"""

from __future__ import annotations

import dataclasses
import heapq
import math
from pathlib import Path

import models

FORWARD_S, BACKWARD_S = 0.2, 0.4
WARM = 2  # steps of a round before those that count
SIZE = 64 << 20  # bytes of gradients; ResNet-50 has its own
ELEMENT_BYTES = 4
LEARNING_RATE = 2.0**-10  # exact, for many steps
PASSES = 2  # of a step that accumulates gradients


def _of_shares(shares, size=SIZE):
    """[(share of the bytes, share of the time)] -> layers of one parameter."""
    return [((max(1, int(share * size / ELEMENT_BYTES)),), time) for share, time in shares]


def uniform():
    return _of_shares([(1 / 16, 1 / 16)] * 16)


def embedding():
    """A quarter of the bytes is in front, and its gradient comes last."""
    return _of_shares([(0.25, 0.01)] + [(0.75 / 24, 0.99 / 24)] * 24)


def vgg():
    """VGG-16: 13 convolutions compute, the 3 dense layers behind them have nine tenths of the parameters (millions)."""
    convolutions = [0.0018, 0.037, 0.074, 0.148, 0.295, 0.59, 0.59, 1.18, 2.36, 2.36, 2.36, 2.36, 2.36]
    dense = [102.8, 16.8, 4.1]
    total = sum(convolutions) + sum(dense)
    return _of_shares([(each / total, 0.97 / 13) for each in convolutions] + [(each / total, 0.01) for each in dense])


def resnet50():
    """A layer is a convolution with the norm behind it; its time is by multiplications, of images of 224 x 224."""
    found = []
    for name, shape in models.resnet50():
        if name.endswith("norm.weight") or len(shape) == 1:  # a norm, or a bias
            found[-1][0].append(math.prod(shape))
        else:
            found.append(([math.prod(shape)], math.prod(shape) * _positions(name)))
    whole = sum(work for _, work in found)  # 4.1 G, as is known of it
    return [(tuple(elements), work / whole) for elements, work in found]


def _positions(name):
    """Of the image that a convolution of ResNet-50 makes."""
    if name.startswith("conv1"):
        return 112**2
    if name.startswith("fc"):
        return 1
    layer, block, what = name.split(".")[:3]
    side = 112 >> int(layer.removeprefix("layer"))
    is_before_stride = block == "0" and what == "conv1" and layer != "layer1"
    return (2 * side if is_before_stride else side) ** 2


MODELS = {"uniform": uniform, "embedding": embedding, "vgg": vgg, "resnet50": resnet50}

# The same where everything takes so many times as long: computing here, the lines by their rate. What is lost on the
# way to processors that are busy with other processes then is that part of what it was; what the protocol loses stays.
PACE = 4
_SLOWER = " at a quarter of the speed"


def slower(model):
    return model + _SLOWER


def model(name):
    layers = MODELS[name.removesuffix(_SLOWER)]()
    return [(elements, PACE * time) for elements, time in layers] if name.endswith(_SLOWER) else layers


def bytes_of(layers):
    return ELEMENT_BYTES * sum(sum(elements) for elements, _ in layers)


def buckets(layers):
    """Of torch's DistributedDataParallel: [(layer whose gradient completes it, bytes)], in the order of the backward
    pass."""
    parameters = [(index, elements) for index, layer in enumerate(layers) for elements in layer[0]][::-1]
    filled = models.ddp_buckets([ELEMENT_BYTES * elements for _, elements in parameters])
    return [(parameters[last][0], size) for last, size in filled]


@dataclasses.dataclass(frozen=True)
class Alone:
    """What a step takes by itself, with all that the framework adds to its layers' sleep."""

    step_s: float
    update_s: float = 0.0  # of it, the optimizer's behind the backward pass; the rest comes where gradients are made

    def slower(self, layers, passes):
        """[(forward, backward, update)] of each layer, seconds. What is added goes by the bytes of gradients."""
        slept = passes * (FORWARD_S + BACKWARD_S) * sum(time for _, time in layers)
        added = max(0.0, self.step_s - self.update_s - slept) / passes
        shares = [bytes_of([layer]) / bytes_of(layers) for layer in layers]
        return [
            (FORWARD_S * time, BACKWARD_S * time + added * share, self.update_s * share)
            for (_, time), share in zip(layers, shares)
        ]


NOT_MEASURED = Alone(0.0)


def ideal(layers, rate, crossed=False, sent=None, passes=1, alone=NOT_MEASURED):
    """Seconds of a step. `rate`: bytes per second of gradients. `crossed`: a layer's forward waits for its own gradient
    only, and for its own update, not for all. `sent`: [(layer after whose backward it goes, bytes)]; without it each
    layer goes by itself. `passes`: forward and backward of a step; gradients travel in the last one."""
    if sent is None:
        sent = [(index, bytes_of(layers[index : index + 1])) for index in range(len(layers))]
    by_layer = {}
    for index, size in sent:
        by_layer[index] = by_layer.get(index, 0) + size
    steps, ends = 12, []
    there = {index: 0.0 for index in by_layer}  # when the sum of the step before is there
    times = alone.slower(layers, passes)
    pass_s, update_s = sum(f + b for f, b, _ in times), sum(update for _, _, update in times)
    now = line_free = 0.0
    for _ in range(steps):
        for index, (forward_s, _, layers_update_s) in enumerate(times):
            now = max(now, there.get(index, 0.0)) + forward_s + (layers_update_s if crossed else 0.0)
        now += (passes - 1) * pass_s
        ready = []
        for index in reversed(range(len(layers))):
            now += times[index][1]
            if index in by_layer:
                ready.append((now, index))
        there = _carried(ready, by_layer, rate, line_free)
        line_free = max(there.values())
        if not crossed:
            now = max(now, line_free) + update_s
        ends.append(now)
    return (ends[-1] - ends[-5]) / 4


def sharded(layers, rate, members, servers=True, alone=NOT_MEASURED):
    """At least so many seconds has a step of FSDP2, which keeps a member's share of the weights on each rank. `rate`:
    bytes per second of a card. What a card receives: for the forward pass what the others have of the weights, again
    for the backward pass, and the member's share of the sums; without `servers`, which sum, what each of the others has
    of that share. All may come while layers compute, but for the weights of the first layer, which come before, and the
    sums of its gradients, which come after."""
    others, share = (members - 1) / members, 1 / members
    sums = share if servers else others
    computing = max(FORWARD_S + BACKWARD_S, alone.step_s - alone.update_s) + alone.update_s * share
    first = bytes_of(layers[:1]) * (others + sums) / rate
    return max(computing + first, bytes_of(layers) * (2 * others + sums) / rate)


def weight_of(rank, size):
    """By what a rank's gradients differ from those of one that trains alone: 1 on average."""
    return 1.0 + rank - (size - 1) / 2


def check(name, some, is_right, wanted):
    """AssertionError when weights are not what they should be."""
    if not is_right:
        raise AssertionError(f"{name} is {some}..., and should be {wanted}")


def _carried(ready, sizes, rate, line_free):
    """When each is there, on a line that is free from `line_free` on: the first layer first, whatever is on its way."""
    there, waiting, upcoming = {}, [], sorted(ready)
    now = max(line_free, upcoming[0][0])
    while upcoming or waiting:
        while upcoming and upcoming[0][0] <= now + 1e-12:
            _, index = upcoming.pop(0)
            heapq.heappush(waiting, (index, sizes[index] / rate))
        if not waiting:
            now = upcoming[0][0]
            continue
        index, need = heapq.heappop(waiting)
        until = upcoming[0][0] if upcoming else math.inf
        if now + need <= until:
            now += need
            there[index] = now
        else:
            heapq.heappush(waiting, (index, need - (until - now)))
            now = until
    return there


SIMULATED = Path(__file__).resolve().parent.parent / "tests/sim/step_models.inc"
SIMULATED_RATES = (125_000_000, 62_500_000)  # bytes per second, of 1 Gbit/s and of 500 Mbit/s


def as_cpp():
    """The models, with what a step of each ideally takes on each rate, for the simulator's figures."""
    lines = ["// Written by bench/steps.py."]
    for name, made in MODELS.items():
        layers = made()
        lines += ["", f"StepModel {name}() {{", "  return {{"]
        for elements, time in layers:
            sizes = ", ".join(str(ELEMENT_BYTES * count) for count in elements)
            lines.append(f"    {{{{{sizes}}}, {time!r}}},")
        lines.append("  }, {")
        for rate in SIMULATED_RATES:
            seconds = [ideal(layers, rate, crossed) for crossed in (False, True)]
            lines.append(f"    {{{rate}, {seconds[0]:.6f}, {seconds[1]:.6f}}},")
        lines += ["  }};", "}"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    SIMULATED.write_text(as_cpp(), encoding="ascii")
