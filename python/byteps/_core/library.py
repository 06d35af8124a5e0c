"""Finds and loads libbyteps.so.

It is looked for, in this order, at $BYTEPS_LIBRARY, in the installed package (byteps/lib), and in the release build of
the source tree that this file is part of. The variable decides alone when it is set.
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import List, NamedTuple

from byteps._core import abi

FILE_NAME = "libbyteps.so"


class Library(NamedTuple):
    """The same library twice: through `nonblocking` calls keep Python's lock (for calls that never block: cheaper),
    through `blocking` they release it."""

    nonblocking: ctypes.PyDLL
    blocking: ctypes.CDLL
    path: str


def candidates() -> List[Path]:
    if os.environ.get("BYTEPS_LIBRARY"):
        return [Path(os.environ["BYTEPS_LIBRARY"])]
    package = Path(__file__).resolve().parents[1]
    paths = [package / "lib" / FILE_NAME]
    root = package.parents[1]
    if (root / "include/byteps/byteps.h").is_file():  # a source tree
        paths.append(root / "build/release/lib" / FILE_NAME)
    return paths


def load() -> Library:
    paths = candidates()
    found = next((path for path in paths if path.is_file()), None)
    if found is None:
        looked = ", ".join(str(path) for path in paths)
        raise ImportError(
            f"{FILE_NAME} was not found (looked at {looked}): reinstall the byteps package, "
            "or build the source tree with 'make', or set BYTEPS_LIBRARY"
        )
    try:
        library = Library(ctypes.PyDLL(str(found)), ctypes.CDLL(str(found)), str(found))
    except OSError as error:
        raise ImportError(f"{found} cannot be loaded: {error}") from error
    version = library.nonblocking.byteps_abi_version()  # first: an older one lacks functions
    if version < abi.ABI_VERSION:
        raise ImportError(
            f"{found} has version {version} of the C interface, this package needs {abi.ABI_VERSION}: "
            "library and Python files come from different builds; reinstall or rebuild"
        )
    abi.declare(library.nonblocking)
    abi.declare(library.blocking)
    return library
