"""The fake GPU for processes with the real torch: its libraries, built for the torch that is installed, and how to
start on them.

    fake_gpu.missing()                      why there can be none here, or None
    fake_gpu.run(script, FAKE_GPU_COUNT=1)  runs Python code on fake GPUs; a subprocess.CompletedProcess
    fake_gpu.environment(...)               the variables for a process of your own

`python tests/gpu/fake_gpu.py command...` runs a command so, whose scripts need not know of it. The libraries are kept
in build/gpu, by a hash of all that they are made of. libcudart and libnccl have a stub for each function that torch
wants and the fake has not; it answers "not supported" (801), and "invalid usage" (5).
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
FLAGS = "-std=c++20 -O1 -g1 -fPIC -fvisibility=hidden -pthread -Wall -Wextra -Wl,-z,defs".split()
NCCL = ["fake_nccl", "nccl_comm", "nccl_hub", "nccl_wire"]
DRIVER = ["codes", "engine", "faults", "fake_driver", "fake_gpu", "ipc", "memory", "order", "runner", "streams"]
WANTED = re.compile(r" U ((?:__)?(?:cuda[A-Z]\w*|cu[A-Z][a-z]\w*|nccl[A-Z]\w*))(?:@(\S+))?$")
# Of CUDA's other libraries, which are there.
OF_OTHERS = re.compile(r"cu(?:blas|dnn|fft|rand|solver|sparse|pti|File|Blas)")


@cache
def missing():
    """Why torch cannot run on fake GPUs here, or None."""
    if not shutil.which("g++") or not shutil.which("nm"):
        return "no g++ or nm"
    if torch_folder() is None:
        return "no torch"
    if not torch_libraries():
        return "this torch is built without CUDA"
    if cudart_name() is None:
        return "this torch brings its CUDA runtime in itself"
    if include_folder() is None:
        return "no cuda_runtime_api.h among the wheels of torch"
    return None


def torch_folder():
    spec = importlib.util.find_spec("torch")
    return Path(spec.origin).parent if spec and spec.origin else None


@cache
def torch_libraries():
    """Torch's own libraries that may call CUDA."""
    folder = torch_folder() / "lib"
    found = sorted(folder.glob("*.so"))
    return found if (folder / "libtorch_cuda.so").exists() else []


@cache
def wanted():
    """What torch's libraries want of CUDA: {symbol: version or None}."""
    symbols = {}
    for library in torch_libraries():
        for line in symbols_of(library, "-D"):
            match = WANTED.search(line)
            if match and not OF_OTHERS.match(match[1]):
                symbols[match[1]] = match[2]
    return symbols


def symbols_of(library, *flags):
    return subprocess.run(["nm", *flags, library], capture_output=True, text=True, check=True).stdout.splitlines()


def cudart_name():
    """libcudart.so.NN, the version that torch's symbols have."""
    versions = {version for version in wanted().values() if version and version.startswith("libcudart")}
    return versions.pop() if len(versions) == 1 else None


@cache
def include_folder():
    found = sorted((torch_folder().parent / "nvidia").glob("*/include/cuda_runtime_api.h"))
    return found[-1].parent if found else None


@cache
def nccl_header():
    """NCCL's header among torch's wheels, or None: torch may have NCCL in itself, or none."""
    return next(iter(sorted((torch_folder().parent / "nvidia").glob("*/include/nccl.h"))), None)


def nccl_version():
    """NCCL_VERSION_CODE of the header."""
    return re.search(r"#define NCCL_VERSION_CODE (\d+)", nccl_header().read_text())[1]


def has_nccl():
    """Does torch open libnccl.so.2?"""
    return nccl_header() is not None and "ncclAllReduce" in wanted()


def build():
    """The folder with libcuda.so.1, libcudart.so.NN, libnvidia-ml.so.1, and libnccl.so.2 where torch wants that."""
    digest = hashlib.sha256()
    sources = [HERE / f"{name}.cc" for name in (*DRIVER, *NCCL, "fake_cudart", "fake_nvml")]
    for source in [*sources, *sorted(HERE.glob("*.h")), Path(__file__)]:
        digest.update(source.name.encode() + source.read_bytes())
    # The same for each copy of this folder and each way to this torch.
    torch_is = [(path.name, path.stat().st_size, path.stat().st_mtime) for path in torch_libraries()]
    headers = [header and header.relative_to(torch_folder().parent) for header in (include_folder(), nccl_header())]
    digest.update(repr([FLAGS, headers, torch_is]).encode())
    builds = ROOT / "build" / "gpu"
    folder = builds / digest.hexdigest()[:16]
    builds.mkdir(parents=True, exist_ok=True)
    with open(builds / "lock", "w") as lock:  # tests of several processes begin at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=builds) as making:
                compile_into(Path(making))
                os.chmod(making, 0o755)
                os.rename(making, folder)
                os.mkdir(making)  # for what ends the with
    return folder


def compile_into(folder):
    compiler = ["ccache", "g++"] if shutil.which("ccache") else ["g++"]

    def run(*command):
        folders = [f"-I{ROOT}", f"-I{ROOT}/src"]
        done = subprocess.run([*compiler, *FLAGS, *folders, *map(str, command)], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stderr}")

    objects = folder / "objects"
    objects.mkdir()
    for name in DRIVER:
        run("-c", HERE / f"{name}.cc", "-o", objects / f"{name}.o")
    driver = folder / "libcuda.so.1"
    run("-shared", *(objects / f"{name}.o" for name in DRIVER), "-o", driver, "-Wl,-soname,libcuda.so.1")
    run("-isystem", include_folder(), "-c", HERE / "fake_cudart.cc", "-o", objects / "cudart.o")
    there = defined(objects / "cudart.o") | defined(driver)
    lacking = sorted(symbol for symbol in wanted() if symbol not in there)
    (folder / "stubs.cc").write_text(stubs(symbol for symbol in lacking if not symbol.startswith("nccl")))
    run("-c", folder / "stubs.cc", "-o", objects / "stubs.o")
    versions = folder / "versions"
    versions.write_text(f"{cudart_name()} {{ global: cuda*; __cuda*; cu*; local: *; }};\n")
    run("-shared", objects / "cudart.o", objects / "stubs.o", driver, "-o", folder / cudart_name(),
        f"-Wl,-soname,{cudart_name()}", f"-Wl,--version-script,{versions}")  # fmt: skip
    run("-shared", HERE / "fake_nvml.cc", "-o", folder / "libnvidia-ml.so.1", "-Wl,-soname,libnvidia-ml.so.1")
    if has_nccl():
        for name in NCCL:
            run(f"-DFAKE_NCCL_VERSION={nccl_version()}", "-c", HERE / f"{name}.cc", "-o", objects / f"{name}.o")
        there = defined(objects / "fake_nccl.o")
        lacking = [symbol for symbol in lacking if symbol.startswith("nccl") and symbol not in there]
        (folder / "nccl_stubs.cc").write_text(stubs(lacking, NCCL_NOT_SUPPORTED))
        run("-c", folder / "nccl_stubs.cc", "-o", objects / "nccl_stubs.o")
        run("-shared", *(objects / f"{name}.o" for name in (*NCCL, "nccl_stubs")), driver, "-o",
            folder / "libnccl.so.2", "-Wl,-soname,libnccl.so.2")  # fmt: skip
    shutil.rmtree(objects)


def defined(library):
    flags = ["-D"] if library.suffix != ".o" else []
    return {line.split()[-1].split("@")[0] for line in symbols_of(library, *flags, "--defined-only")}


STUB = """
__attribute__((visibility("default"))) int %s() {
  if (std::getenv("FAKE_GPU_TRACE")) std::fprintf(stderr, "fake gpu: %s is not supported\\n");
  return %d;
}
"""
NOT_SUPPORTED, NCCL_NOT_SUPPORTED = 801, 5  # cudaErrorNotSupported, ncclInvalidUsage


def stubs(symbols, result=NOT_SUPPORTED):
    head = "// What torch wants of CUDA and the fake has not.\n#include <cstdio>\n#include <cstdlib>\n"
    return head + 'extern "C" {' + "".join(STUB % (symbol, symbol, result) for symbol in symbols) + "}\n"


def variables(everywhere=False):
    """What makes torch, and who opens libcuda.so.1, run on the fake. everywhere: OnFakeGpu.everywhere() where a script
    imports torch."""
    folder = build()
    scripts = [HERE, ROOT / "python", *([HERE / "everywhere"] if everywhere else [])]
    libraries = [cudart_name(), "libcuda.so.1", *(["libnccl.so.2"] if has_nccl() else [])]
    preload = ":".join(str(folder / library) for library in libraries)
    return {
        "LD_PRELOAD": ":".join(filter(None, [preload, os.environ.get("LD_PRELOAD")])),
        "LD_LIBRARY_PATH": ":".join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")])),
        "PYTHONPATH": ":".join(filter(None, [*map(str, scripts), os.environ.get("PYTHONPATH")])),
        "BYTEPS_CUDA_LIBRARY": str(folder / "libcuda.so.1"),
        "OMP_NUM_THREADS": "1",  # small tensors, and often several processes
    }


def environment(everywhere=False, **settings):
    """os.environ with these variables, and with FAKE_GPU_* and others."""
    return {**os.environ, **variables(everywhere), **{name: str(value) for name, value in settings.items()}}


def run(script, *arguments, timeout=100, **settings):
    """Runs Python code in a process on fake GPUs; `from on_fake_gpu import OnFakeGpu` has what computes its kernels."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environ = environment(**settings)
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=timeout, cwd=ROOT)


if __name__ == "__main__":
    if missing():
        sys.exit(f"no fake GPU: {missing()}")
    os.execvpe(sys.argv[1], sys.argv[1:], environment(everywhere=True))
