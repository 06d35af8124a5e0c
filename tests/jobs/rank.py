"""A worker for the failure tests, without any framework: runs the steps of its rank and tells what came of each.

    rank.py '{"0": [["push", "A", "float32", 1000, "sum"], ["wait"]], "*": [["loop"]]}'

Each line of standard output is a JSON object with "event" and "t", the time of the machine's monotonic clock, which is
the same for all processes here. An operation that has ended: "end" with its name, code and message. When one has
failed, the process waits for all that are pending, skips its other steps and exits with 1. A wrong sum: exit code 9.

Steps
  push NAME [DTYPE COUNT OPERATION ROOT VALUE]   begins an exchange; with VALUE, "sum" tells the result's last element
  wait                                     for all that are pending; "wait_in_c": in one call without slices
  poll                                     the same without blocking
  barrier
  loop [STEPS]                             until something fails; 1 MiB a step, something is pending nearly always
  handed_over                              tells when all that was pushed, once each until then, is with the kernel
  metrics                                  tells the job's counters, once they rest
  sleep SECONDS                            computes
  await_file PATH   until it is there
  push_from_a_thread NAME SECONDS          another thread, which has pushed something, computes and then pushes NAME
  rejoin                                   leaves and joins again, also after a failure
  again NAME ...                           push, also after a failure
  exit CODE                                at once, without leaving
  quit CODE                                sys.exit: leaves on the way
  raise
  hold                                     does nothing more
"""

import atexit
import ctypes
import json
import os
import sys
import threading
import time

from byteps._core import abi, errors
from byteps._core.client import Job

DTYPES = {
    "float32": (abi.FLOAT32, ctypes.c_float),
    "float64": (abi.FLOAT64, ctypes.c_double),
    "int32": (abi.INT32, ctypes.c_int32),
}
OPERATIONS = {"sum": abi.SUM, "average": abi.AVERAGE, "broadcast": abi.BROADCAST}
LOOP_TENSORS = 4
LOOP_COUNT = 65536  # float32: 256 KiB
LOOP_PAUSE_S = 0.02
WRONG_SUM = 9


def say(event, **facts):
    print(json.dumps({"event": event, "t": time.monotonic(), **facts}), flush=True)


class Rank:
    def __init__(self):
        self.pending = []  # (name, handle, values)
        self.threads = []
        self.failed = False
        self.steps_done = 0
        self.told = set()  # names of which the result is told
        self.join()

    def join(self):
        say("start", pid=os.getpid())
        try:
            self.job = Job.join()
        except errors.BytePSError as error:
            say("refused", code=error.code, message=str(error))
            sys.exit(2 if error.code == abi.INVALID_ARGUMENT else 1)
        say("joined", rank=self.job.rank, size=self.job.size)

    def note(self, name, error=None):
        self.failed = self.failed or error is not None
        say("end", name=name, code=error.code if error else 0, message=str(error or ""))

    def push(self, name, dtype="float32", count=1000, operation="sum", root=0, value=None, shape=()):
        number, kind = DTYPES[dtype]
        values = (kind * count)()
        if count:
            values[0] = values[count - 1] = self.job.rank + 1 if value is None else value
        address = ctypes.addressof(values)
        try:
            handle = self.job.push_pull(name, number, address, address, count, OPERATIONS[operation], root, shape=shape)
        except errors.BytePSError as error:
            return self.note(name, error)
        self.pending.append((name, handle, values))
        if value is not None:
            self.told.add(name)

    def again(self, *arguments):
        self.failed = False
        self.push(*arguments)

    def wait(self, quiet=False):
        """Waits for all that is pending; returns their last elements."""
        last = []
        for name, handle, values in self.pending:
            try:
                self.job.wait(handle)
                if not quiet:
                    self.note(name)
                    if name in self.told:
                        say("sum", name=name, last=values[len(values) - 1])
            except errors.BytePSError as error:
                self.note(name, error)
            last.append(values[len(values) - 1] if len(values) else 0)
        self.pending = []
        return last

    def wait_in_c(self):
        library = ctypes.CDLL(os.environ["BYTEPS_LIBRARY"])
        abi.declare(library)
        for name, handle, _ in self.pending:
            error = abi.Error()
            code = library.byteps_wait(self.job._pointer, handle, -1, ctypes.byref(error))
            self.note(name, errors.from_code(code, error.text()) if code else None)
        self.pending = []

    def poll(self):
        while not all(self.job.poll(handle) for _, handle, _ in self.pending):
            time.sleep(0.01)
        self.wait()

    def loop(self, steps=-1):
        while steps != 0 and not self.failed:
            for index in range(LOOP_TENSORS):
                self.push(f"loop{index}", count=LOOP_COUNT, value=self.job.rank + self.steps_done + index)
            time.sleep(LOOP_PAUSE_S)
            sums = self.wait(quiet=True)
            size = self.job.size
            expected = [size * (size - 1) // 2 + size * (self.steps_done + index) for index in range(LOOP_TENSORS)]
            if not self.failed and sums != expected:
                say("wrong", step=self.steps_done, sums=sums, expected=expected)
                os._exit(WRONG_SUM)
            self.steps_done += 1
            steps -= 1
            if self.steps_done % 10 == 0:
                say("step")
            if self.steps_done == 3:
                say("looping")

    def barrier(self):
        try:
            self.job.barrier()
            self.note("barrier")
        except errors.BytePSError as error:
            self.note("barrier", error)

    def push_from_a_thread(self, name, seconds):
        computes = threading.Event()

        def run():
            self.wait_for(self.begin("first"))
            computes.set()
            time.sleep(seconds)
            self.wait_for(self.begin(name))

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()
        computes.wait()

    def begin(self, name):
        values = (ctypes.c_float * 1000)()
        address = ctypes.addressof(values)
        return name, self.job.push_pull(name, abi.FLOAT32, address, address, 1000, abi.SUM), values

    def wait_for(self, operation):
        name, handle, _ = operation
        try:
            self.job.wait(handle)
            self.note(name)
        except errors.BytePSError as error:
            self.note(name, error)

    def handed_over(self):
        pushed_bytes = sum(ctypes.sizeof(values) for _, _, values in self.pending)

        def handed_bytes():  # to the servers or to the relays of this machine, as the job is
            metrics = self.job.metrics()
            return metrics.local_pushed_bytes or metrics.pushed_bytes

        while handed_bytes() < pushed_bytes:
            time.sleep(0.01)
        say("handed over")

    def metrics(self):
        before, now = None, self.job.metrics()
        while now != before:
            time.sleep(0.2)
            before, now = now, self.job.metrics()
        say("metrics", **now._asdict())

    def sleep(self, seconds):
        time.sleep(seconds)

    def await_file(self, path):
        while not os.path.exists(path):
            time.sleep(0.02)

    def rejoin(self):
        self.job.leave(final=False)
        self.failed = False
        self.join()

    def exit(self, code):
        say("exit")
        os._exit(code)

    def quit(self, code):
        say("exit")
        sys.exit(code)

    def hold(self):
        say("hold")
        time.sleep(1000)

    def run(self, steps):
        for action, *arguments in steps:
            if self.failed and action not in ("again", "rejoin", "hold"):
                continue
            if action == "raise":
                raise RuntimeError("a user's mistake")
            getattr(self, action)(*arguments)
        self.wait()
        for thread in self.threads:
            thread.join()
        say("done", steps=self.steps_done, failed=self.failed)
        return 1 if self.failed else 0


if __name__ == "__main__":
    plan = json.loads(sys.argv[1])
    rank = Rank()
    atexit.register(lambda: rank.job.leave())
    sys.exit(rank.run(plan.get(str(rank.job.rank), plan.get("*", []))))
