"""libbyteps.so as a guest in a process of others: what it exports, what it needs, and its header in plain C."""

import ctypes
import re
import shutil
import subprocess

import pytest
from conftest import BUILD, LIBRARY, ROOT

HEADER = ROOT / "include/byteps/byteps.h"
C_LIBRARY = {
    "libc.so.6",
    "libm.so.6",
    "libpthread.so.0",
    "libdl.so.2",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
    "libgcc_s.so.1",
}


def output(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def test_it_exports_what_the_header_declares_and_nothing_else():
    exported = {
        line.split()[-1].partition("@")[0] for line in output("nm", "-D", "--defined-only", LIBRARY).splitlines()
    }
    declared = set(re.findall(r"^BYTEPS_API .*?(byteps_\w+)\(", HEADER.read_text(), re.MULTILINE))
    assert exported == declared
    assert len(declared) > 10


@pytest.mark.parametrize("file", ["lib/libbyteps.so", "bin/byteps_scheduler", "bin/byteps_server"])
def test_it_needs_the_c_library_only(file):
    needed = set(re.findall(r"NEEDED.*\[(.+)\]", output("readelf", "-d", BUILD / file)))
    assert needed <= C_LIBRARY


def test_loading_it_starts_no_thread():
    program = f"import ctypes, os; ctypes.CDLL({str(LIBRARY)!r}); print(len(os.listdir('/proc/self/task')))"
    assert output(shutil.which("python3"), "-c", program).strip() == "1"


@pytest.mark.parametrize("compiler", ["cc", "clang"])
def test_the_plain_c_example_compiles_and_sums(place, compiler):
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} here")
    program = place.folder / "push_pull"
    output(
        compiler,
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Wpedantic",
        "-Werror",
        f"-I{ROOT}/include",
        ROOT / "examples/c/push_pull.c",
        f"-L{LIBRARY.parent}",
        "-lbyteps",
        f"-Wl,-rpath,{LIBRARY.parent}",
        "-o",
        program,
    )
    code, out, err = place.run("--local", "--workers", "3", "--servers", "2", "--", str(program))
    assert code == 0, err
    assert len(out.splitlines()) == 3 and all("the sum is" in line for line in out.splitlines())


@pytest.mark.parametrize("language", [("c", "c99"), ("c", "c17"), ("c++", "c++98"), ("c++", "c++20")])
def test_the_header_is_valid_in_every_dialect(place, language):
    source = place.folder / "header_only"
    source.write_text('#include "byteps/byteps.h"\n')
    output(
        "g++",
        "-x",
        language[0],
        f"-std={language[1]}",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-fsyntax-only",
        f"-I{ROOT}/include",
        source,
    )


def test_the_environment_reference_is_the_one_in_docs():
    library = ctypes.CDLL(str(LIBRARY))
    library.byteps_environment_reference.restype = ctypes.c_char_p
    assert (ROOT / "docs/env.md").read_bytes() == library.byteps_environment_reference(), "run: make docs"


def test_version_is_that_of_the_version_file():
    library = ctypes.CDLL(str(LIBRARY))
    library.byteps_version.restype = ctypes.c_char_p
    assert library.byteps_version().decode() == (ROOT / "VERSION").read_text().strip()
