"""The examples of examples/mxnet run as their first lines say, and learn."""

import re
import subprocess

import pytest
from cluster import MXNET_PYTHON, ROOT, clean_environment

pytestmark = pytest.mark.skipif(
    not MXNET_PYTHON.exists(), reason="there is no .venv-mxnet: `make setup` makes it where MXNet 1.9.1 runs"
)


def run(example, *options, workers=2):
    launch = [MXNET_PYTHON, "-m", "byteps.launcher", "--local", "--workers", str(workers), "--servers", "2", "--"]
    done = subprocess.run(
        [*launch, MXNET_PYTHON, f"examples/mxnet/{example}", *options],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    "example, options, workers", [("train_digits.py", ["--fp16-pushpull"], 2), ("module_digits.py", [], 3)]
)
def test_digits_are_learned_to_97_percent(example, options, workers):
    output = run(example, "--epochs", "12", "--batch-size", str(48 // workers), *options, workers=workers)
    accuracy, counted = re.findall(r"accuracy=(\S+) workers=(\d+)", output)[0]
    assert float(accuracy) >= 0.97 and int(counted) == workers


def test_the_synthetic_benchmark_counts_images():
    output = run("synthetic_benchmark.py", "--num-iters", "1", "--num-batches-per-iter", "1", "--batch-size", "4")
    assert re.search(r"Total img/sec on 2 workers: \d", output)
