"""A worker process of cluster.py: reads pickled calls from a pipe, answers with results, ends when the pipe closes.

usage: python -m cluster_worker PIPE LAYER INIT       PIPE: a descriptor; INIT: 1 when LAYER.init() is to be called
"""

from __future__ import annotations

import atexit
import faulthandler
import importlib
import os
import signal
import sys
import threading
import traceback
from multiprocessing.connection import Connection

import cloudpickle


def main() -> None:
    faulthandler.enable()  # a crash says where
    faulthandler.register(signal.SIGUSR1)
    pipe = Connection(int(sys.argv[1]))
    layer = importlib.import_module(sys.argv[2])
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    if sys.argv[3] == "1":
        layer.init()
    pipe.send_bytes(cloudpickle.dumps(("ok", None)))
    while True:
        try:
            request = pipe.recv_bytes()
        except EOFError:
            return
        try:
            function, args, kwargs = cloudpickle.loads(request)
            answer = ("ok", function(*args, **kwargs))
            encoded = cloudpickle.dumps(answer)
        except BaseException as error:  # everything is told, also SystemExit and KeyboardInterrupt
            bases = [kind.__name__ for kind in type(error).__mro__]
            encoded = cloudpickle.dumps(("error", (type(error).__name__, bases, str(error), traceback.format_exc())))
        pipe.send_bytes(encoded)


def end() -> None:
    """As Python ends, but without taking modules down: for a framework's that takes up to a second. Programs of
    launch() end for real."""
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


main()
end()
