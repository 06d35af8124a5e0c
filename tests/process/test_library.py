"""libbyteps.so as a guest in a process of others: what it exports, what it needs, and its header in plain C."""

import ctypes
import json
import re
import shutil
import subprocess
import sys

import pytest
from place import BUILD, LIBRARY, ROOT

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


# What the compiler's libraries and headers take of a newer glibc where there is one, and libcrypto.
OF_OTHERS = {
    *("stat", "fstat", "fstat64", "lstat"),  # inline before
    *("__libc_single_threaded", "_dl_find_object", "pthread_cond_clockwait"),
    *("arc4random", "getentropy"),
}
OLDEST_GLIBC = (2, 17)  # of the wheel


def functions_since(library):
    """(name, version of glibc) of what it defines; a function that has a newer version as well is there twice."""
    found = re.findall(r" (\w+)@@?GLIBC_(\d+)\.(\d+)", output("nm", "-D", "--defined-only", library))
    return [(name, (int(major), int(minor))) for name, major, minor in found]


@pytest.mark.parametrize("file", ["lib/libbyteps.so", "bin/byteps_scheduler", "bin/byteps_server"])
def test_it_calls_nothing_that_the_wheels_glibc_lacks(file):
    libraries = re.findall(r"(/\S+)", output("ldd", BUILD / file))
    there = {name for library in libraries for name, since in functions_since(library) if since <= OLDEST_GLIBC}
    assert "pthread_create" in there
    called = re.findall(r" U (\w+)@GLIBC_", output("nm", "-D", "--undefined-only", BUILD / file))
    assert "memcpy" in called and set(called) - there <= OF_OTHERS


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
    options = "--local --workers 3 --servers 2 -x BYTEPS_FORCE_DISTRIBUTED=1 --"
    code, out, err = place.run(*options.split(), str(program))
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
    release = re.match(r"\d+\.\d+\.\d+", (ROOT / "VERSION").read_text())
    assert library.byteps_version().decode() == release.group()


# Otherwise an upgrade from the package index puts the original in its place.
def test_the_version_is_later_than_the_last_of_the_original():
    release = re.match(r"\d+\.\d+\.\d+", (ROOT / "VERSION").read_text()).group()
    assert tuple(map(int, release.split("."))) > (0, 2, 5)


def flags(build):
    commands = json.loads((build / "compile_commands.json").read_text())
    return [each.get("command", "") for each in commands if each["file"].endswith("/src/base/log.cc")]


def test_warnings_are_errors_where_byteps_is_developed_and_nowhere_else(place):
    """A newer compiler warns of more, and pip install has nobody who could mend that."""
    build = place.folder / "build"
    output("cmake", "-S", ROOT, "-B", build, "-G", "Unix Makefiles", "-DBYTEPS_TESTS=OFF", "-DBYTEPS_BENCH=OFF")
    (users,) = flags(build)
    assert "-Wall" in users and "-Werror" not in users
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    (base,) = [each for each in presets if each["name"] == "base"]
    assert base["cacheVariables"]["BYTEPS_WERROR"] == "ON"
    assert all(each.get("inherits") == "base" for each in presets if each is not base)


def test_an_older_library_is_refused_with_its_version(place):
    source, library = place.folder / "older.c", place.folder / "older.so"
    source.write_text("unsigned byteps_abi_version(void) { return 5; }\n")
    output("gcc", "-shared", "-fPIC", source, "-o", library)
    run = subprocess.run(
        [sys.executable, "-c", "from byteps._core.library import load; load()"],
        env={**place.environ, "BYTEPS_LIBRARY": str(library)},
        capture_output=True,
        text=True,
    )
    wanted = r"ImportError: .* has version 5 of the C interface, this package needs \d+"
    assert re.search(wanted, run.stderr), run.stderr
