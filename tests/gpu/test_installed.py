"""`make test-gpu` as on a machine of somebody else's: a checkout that nobody has built, an installed byteps, and a
Python that has torch and pytest and little else. On no GPU, and on the one that is played."""

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import fake_gpu
import pytest
from place import BUILD, ROOT, clean_environment

pytestmark = pytest.mark.skipif(fake_gpu.missing() is not None, reason=f"no fake GPU: {fake_gpu.missing()}")

# Beside torch: what it needs, pytest, and what carries functions to workers.
PACKAGES = """
    torch torchgen functorch nvidia triton numpy numpy.libs sympy mpmath networkx jinja2 markupsafe filelock fsspec
    typing_extensions.py pytest _pytest py.py exceptiongroup tomli pluggy iniconfig packaging pygments cloudpickle
"""
COPIED = "Makefile VERSION pyproject.toml bench examples include python src tests tools".split()


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory):
    """The folder of the copy; `venv` beside it has the Python."""
    folder = tmp_path_factory.mktemp("elsewhere")
    copy, venv, packages = folder / "copy", folder / "venv", folder / "packages"
    copy.mkdir()
    for name in COPIED:
        tree = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        tree(ROOT / name, copy / name)
    (copy / "build").mkdir()
    (copy / "build/gpu").symlink_to(fake_gpu.build().parent)  # takes long to make
    with open(copy / "python/byteps/__init__.py", "a") as file:
        file.write("\nraise ImportError('this byteps is the checkout\\'s')\n")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    packages.mkdir()
    for name in PACKAGES.split():
        found = Path(sysconfig.get_paths()["purelib"], name)
        if found.exists():
            (packages / name).symlink_to(found)
    (site,) = venv.glob("lib/python3*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    installed = site / "byteps"
    shutil.copytree(ROOT / "python/byteps", installed, ignore=shutil.ignore_patterns("__pycache__", "lib", "bin"))
    (installed / "lib").mkdir()
    (installed / "bin").mkdir()
    for file in ["lib/libbyteps.so", "bin/byteps_scheduler", "bin/byteps_server"]:
        shutil.copy(BUILD / file, installed / file)
    return copy


def run(copy, *command, **variables):
    environ = {name: value for name, value in clean_environment().items() if not name.startswith(("BYTEPS_", "PYTHON"))}
    environ.update(variables)
    done = subprocess.run(command, cwd=copy, env=environ, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def python_of(copy):
    return str(copy.parent / "venv/bin/python")


def test_without_a_gpu_all_are_skipped_with_the_reason(elsewhere):
    said = run(elsewhere, "make", "test-gpu", f"PYTHON={python_of(elsewhere)}", CUDA_VISIBLE_DEVICES="")
    assert "no GPU: there is none here, or this torch has no CUDA" in said
    assert " skipped, " in said and "passed" not in said, said


def test_an_installed_byteps_sums_on_the_gpu_that_is_played(elsewhere):
    files = ["tests/python/test_push_pull.py", "tests/python/test_cuda.py"]
    command = [python_of(elsewhere), "-m", "pytest", "-q", "-p", "no:cacheprovider", *files]
    chosen = "any_text or several_parts or counted or two_kinds"
    said = run(elsewhere, *command, "-k", chosen, BYTEPS_TEST_DEVICE="cuda")
    assert "4 passed" in said, said
