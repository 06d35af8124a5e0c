"""The native shims of frameworks (src/bridge/bridge.h): loaded on demand, given the job while there is one.

A shim lies beside libbyteps.so, and is linked to it: the one that is loaded already, wherever that came from.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_uint64, c_void_p
from pathlib import Path
from typing import Dict

from byteps._core import abi, client, errors, session

_bridges: Dict[str, "Bridge"] = {}


def load(framework: str) -> "Bridge":
    """The shim libbyteps_<framework>.so; the same object each time. It serves the job of this process from now on, also
    one that is joined later. ImportError: it is missing or cannot be loaded."""
    if framework not in _bridges:
        bridge = Bridge(framework)
        session.attach(bridge)
        _bridges[framework] = bridge
    return _bridges[framework]


class Bridge:
    """A loaded shim: `path`, and `library` for calls of its own functions, which release Python's lock."""

    def __init__(self, framework: str) -> None:
        main = Path(client.library().path)
        path = main.with_name(f"libbyteps_{framework}.so")
        if not path.is_file():
            raise ImportError(
                f"{path} was not found: the byteps package was built without its part for {framework}; reinstall it, "
                "or build the source tree with 'make'"
            )
        try:
            self.library = ctypes.CDLL(str(path))
        except OSError as error:
            raise ImportError(f"{path} cannot be loaded: {error}") from error
        self.path = str(path)
        self._submits_when_it_likes = framework == "mxnet"  # its engine runs behind the caller's back
        self.library.byteps_bridge_attach.restype = c_int
        self.library.byteps_bridge_attach.argtypes = [c_void_p, POINTER(abi.Error)]
        self.library.byteps_bridge_detach.restype = None
        self.library.byteps_bridge_finish.restype = None
        self.library.byteps_bridge_residual.restype = c_void_p
        self.library.byteps_bridge_residual.argtypes = [c_char_p, c_uint64]
        self.library.byteps_bridge_residual_elements.restype = c_uint64
        self.library.byteps_bridge_residual_elements.argtypes = [c_char_p]
        self.library.byteps_bridge_drop_residual.restype = None
        self.library.byteps_bridge_drop_residual.argtypes = [c_char_p]

    def attach(self, job: client.Job) -> None:
        error = abi.Error()
        codes = []
        job.call_with_pointer(lambda pointer: codes.append(self.library.byteps_bridge_attach(pointer, byref(error))))
        if codes[0] != abi.OK:
            raise errors.from_code(codes[0], error.text())
        job.has_native_work |= self._submits_when_it_likes

    def detach(self) -> None:
        self.library.byteps_bridge_detach()

    def finish(self) -> None:
        self.library.byteps_bridge_finish()
