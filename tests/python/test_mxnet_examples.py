"""The examples of examples/mxnet run as their first lines say, and learn."""

import re

import pytest
from cluster import MXNET_PYTHON, launch

pytestmark = pytest.mark.skipif(
    not MXNET_PYTHON.exists(), reason="there is no .venv-mxnet: `make setup` makes it where MXNet 1.9.1 runs"
)


def run(example, *options, workers=2, imported=("mxnet",)):
    return launch(f"examples/mxnet/{example}", *options, workers=workers, python=MXNET_PYTHON, imported=imported)


LONG = pytest.mark.long(reason="a whole training; train_digits.py is one")


@pytest.mark.parametrize(
    "example, options, workers",
    [("train_digits.py", ["--fp16-pushpull"], 2), pytest.param("module_digits.py", [], 3, marks=LONG)],
)
def test_digits_are_learned_to_97_percent(example, options, workers):
    imported = ["mxnet"] if workers == 2 else []  # the other one starts MXNet itself
    options = ["--epochs", "12", "--batch-size", str(48 // workers), *options]
    output = run(example, *options, workers=workers, imported=imported)
    accuracy, counted = re.findall(r"accuracy=(\S+) workers=(\d+)", output)[0]
    assert float(accuracy) >= 0.97 and int(counted) == workers


@LONG
def test_the_imagenet_script_goes_on_from_its_checkpoint_on_other_ranks_too(tmp_path):
    options = ["--save-dir", tmp_path, "--num-workers", "1", "--lr", "0.05", "--lr-decay-epoch", "4", "--no-wd"]
    smoothed = ["--label-smoothing", "0.1", "--fp16-pushpull"]
    output = run("train_imagenet.py", "--num-epochs", "2", *options, *smoothed)
    assert "from epoch 0 to 2:" in output
    output = run("train_imagenet.py", "--num-epochs", "5", *options, *smoothed)
    assert "from epoch 2 to 5:" in output and "epoch 4: rate 0.01," in output  # a tenth of 2 workers' rate
    assert float(re.findall(r"accuracy=(\S+)", output)[0]) >= 0.97


def test_the_synthetic_benchmark_counts_images():
    output = run("synthetic_benchmark.py", "--num-iters", "1", "--num-batches-per-iter", "1", "--batch-size", "4")
    assert re.search(r"Total img/sec on 2 workers: \d", output)
