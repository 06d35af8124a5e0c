"""How many GPUs the processes of this machine see."""

from __future__ import annotations

import subprocess
from typing import Mapping

from byteps.launcher import plan

CHECK_S = 30


def count(environ: Mapping[str, str]) -> int:
    """By the driver's word, which heeds CUDA_VISIBLE_DEVICES. CannotStart: there is none, with the driver's reason."""
    check = [plan.find_executable("server", environ), "--check"]
    try:
        run = subprocess.run(check, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, timeout=CHECK_S)
    except subprocess.TimeoutExpired:
        reason = f"the driver of GPUs has not answered for {CHECK_S} s: give --workers a number"
        raise plan.CannotStart(reason) from None
    for line in run.stdout.decode(errors="replace").splitlines():
        word, _, text = line.partition(" ")
        if word != "devices":
            continue
        number, _, reason = text.partition(":")
        if number.isdecimal():
            return int(number)
        raise plan.CannotStart(f"no GPU was found for --workers gpu: {reason.strip()}")
    raise plan.CannotStart(f"'{' '.join(check)}' says nothing of GPUs; reinstall the byteps package")
