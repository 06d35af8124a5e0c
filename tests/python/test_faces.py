"""What others rely on is as it was: symbols, layouts, constants, variables and signatures are those in tests/faces."""

import difflib
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path

import pytest
from cluster import IMPORTED, MXNET_PYTHON, TENSORFLOW, clean_environment
from zygote import fork_servers

pytestmark = pytest.mark.timeout(600)  # frameworks are imported

ROOT = Path(__file__).resolve().parents[2]
faces = SourceFileLoader("faces", str(ROOT / "tools" / "faces")).load_module()

ENVIRONMENTS = {
    "byteps.tensorflow": TENSORFLOW,
    "byteps.tensorflow.keras": TENSORFLOW,
    "byteps.keras": {"KERAS_BACKEND": "torch"},
    "byteps.jax": {"JAX_PLATFORMS": "cpu"},
}
LAYER_OF = {"byteps.torch.parallel": "byteps.torch", "byteps.keras": "keras_without_tensorflow"}


def assert_as_kept(name, text):
    kept = (faces.KEPT / f"{name}.txt").read_text()
    changes = "\n".join(difflib.unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm="", n=0))
    assert not changes, f"{changes}\nIf that is meant: tools/faces --write {name}, and a line in CHANGELOG.md"


@pytest.mark.parametrize("name", ["c", "variables"])
def test_c_and_the_variables_are_as_they_were(name):
    assert_as_kept(name, faces.faces()[name]())


@pytest.mark.parametrize("module", faces.MODULES)
def test_the_names_and_signatures_of_a_module_are_as_they_were(module):
    python = sys.executable
    if module == "byteps.mxnet":
        if not MXNET_PYTHON.exists():
            pytest.skip(f"there is no {MXNET_PYTHON}")
        python = str(MXNET_PYTHON)
    environ = {**clean_environment(), **ENVIRONMENTS.get(module, {})}
    layer = LAYER_OF.get(module, module)
    imports = IMPORTED.get(layer, IMPORTED["byteps._core.session"])
    command = [*fork_servers.get(python, imports, environ).command(), "-c", faces.ASK, module]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_as_kept(module, faces.as_text(done.stdout))


HEADER = """
#define BYTEPS_LIMIT 7
typedef enum byteps_kind { BYTEPS_ONE = 1, BYTEPS_TWO } byteps_kind;
typedef struct byteps_pair { /* a; b */ int a; %s b; char text[3]; } byteps_pair;
"""


def test_the_layout_of_a_header_is_the_compilers():
    constants = ["BYTEPS_LIMIT = 7", "BYTEPS_ONE = 1", "BYTEPS_TWO = 2"]
    assert faces.layouts(HEADER % "int") == constants + [
        "struct byteps_pair: 12 bytes",
        "  a at 0, 4 bytes",
        "  b at 4, 4 bytes",
        "  text at 8, 3 bytes",
    ]
    assert faces.layouts(HEADER % "double")[3:] == [
        "struct byteps_pair: 24 bytes",
        "  a at 0, 4 bytes",
        "  b at 8, 8 bytes",
        "  text at 16, 3 bytes",
    ]


MODULE = """
import os
LIMIT = 1
def scale(tensor, by: float = 2.0, *, name=None) -> int: ...
class Kind:
    def __init__(self, a, b=1): ...
    def reset(self): ...
    def _hidden(self): ...
    size = property(lambda self: 1)
"""


def test_a_module_is_described_by_what_can_be_called(tmp_path):
    (tmp_path / "byteps_example.py").write_text(MODULE)
    environ = {**clean_environment(), "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", faces.ASK, "byteps_example"], env=environ, capture_output=True, text=True, check=True
    )
    assert faces.as_text(done.stdout).splitlines() == [
        "class Kind()",
        "  Kind.__init__(self, a, b=1)",
        "  Kind.reset(self)",
        "  Kind.size: property",
        "LIMIT: int",
        "scale(tensor, by=2.0, *, name=None)",
    ]
