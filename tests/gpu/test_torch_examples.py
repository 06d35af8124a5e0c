"""The examples that take a device: on the fake GPU they end, with the figures that they have on the CPU."""

import importlib.util
import re
import shlex

import fake_gpu
import pytest
from cluster import launch
from place import ROOT

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=f"no fake GPU: {fake_gpu.missing()}")

LONG = pytest.mark.long(reason="a whole training, twice")
# Packages that are large: the examples for them are tested where they are installed.
NEEDED = {"accelerate_ddp.py": "accelerate", "hf_trainer.py": "transformers"}
EXAMPLES = [
    "fsdp_digits.py --steps 5",
    *(
        pytest.param(example, marks=LONG)
        for example in (
            "accelerate_ddp.py",
            "backend_ddp_digits.py --epochs 1",
            "ddp_comm_hook.py",
            "ddp_digits.py --epochs 1",
            "hf_trainer.py",
            "horovod_digits.py --epochs 1",
            "imagenet_half.py --epochs 1",
            "imagenet_resnet50.py --epochs 1 --checkpoint-format {folder}/{{epoch}}",
            "synthetic_benchmark.py --num-iters 1 --num-batches-per-iter 1 --batch-size 4",
            "train_digits.py --epochs 1 --plot {folder}/loss.png",
            "train_mnist.py --epochs 1",
        )
    ),
]


def figures(example, device, folder):
    folder.mkdir()
    environ = {**fake_gpu.variables(everywhere=True), "PYTHONWARNINGS": "ignore"}
    name, *arguments = shlex.split(example.format(folder=folder))
    imported = ["torch", "torch._dynamo"]
    # As if the package were installed, where torch finds the backend by itself.
    path = ROOT / "examples/torch" / name
    code = (
        f"import byteps.torch, runpy, sys; sys.path.insert(0, {str(path.parent)!r}); sys.argv[0] = {str(path)!r}; "
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    out = launch("-c", code, *arguments, "--device", device, servers=1, environ=environ, imported=imported)
    assert out.strip(), "it says nothing"
    return re.findall(r"(?:accuracy|loss)[=: ]+([0-9.]+)", out, re.IGNORECASE)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_ends_on_a_gpu_with_the_figures_of_the_cpu(example, tmp_path):
    package = NEEDED.get(example.split()[0])
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed: pip install {package}")
    on_cpu, on_gpu = (figures(example, device, tmp_path / device) for device in ("cpu", "cuda"))
    assert on_gpu == on_cpu
    assert on_cpu or example.startswith("synthetic_benchmark"), "no figures"
