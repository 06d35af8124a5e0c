#!/usr/bin/env python3
"""One worker of the benchmark of training steps: layers that sleep, as if a GPU computed (steps.py).

Usage: step_worker.py KIND RANK SIZE ADDRESS PORT INTERFACE STEPS MODEL
KIND: byteps, gloo, horovod (step_torch.py), or another framework over BytePS (step_frameworks.py).

Each line of its input is a round, and says what trains: "go" with the optimizer's hooks (gloo: torch's
DistributedDataParallel), "compute" alone, "go crossed" and others as the KIND has them. What trains is made when it is
first asked for. A round is steps.WARM steps that are not counted, then STEPS; where steps overlap it ends as it began,
amid a step. Each rank's gradient is known, and so is their average, which the weights show. Prints as
push_pull_worker.c does; instead of the first layer's end, where it is known, what one step's update takes.
"""

import sys
import time

import steps


def job_of(kind, layers, place):
    """Has what trains by word, barrier() and close()."""
    if kind in ("byteps", "gloo", "horovod"):
        import step_torch as module
    else:
        import step_frameworks as module
    return module.KINDS[kind](layers, place)


def main():
    kind, place, count, model = sys.argv[1], sys.argv[2:7], int(sys.argv[7]), sys.argv[8]
    job = job_of(kind, steps.model(model), place)
    made = {}
    print("ready", flush=True)
    for line in sys.stdin:
        word = line.strip()
        one = made[word] if word in made else made.setdefault(word, job.makers[word]())
        job.barrier()
        for _ in range(steps.WARM):
            one.step()
        cpu, start = time.process_time(), time.monotonic()
        for _ in range(count):
            one.step()
        end, cpu = time.monotonic(), time.process_time() - cpu
        one.check()
        update_s = one.take_update_s()
        is_known = word.startswith("compute") and update_s is not None
        first = start + update_s / (steps.WARM + count) if is_known else end
        print(f"{start:.9f} {end:.9f} {first:.9f} {cpu:.9f}", flush=True)
    job.close()


if __name__ == "__main__":
    main()
