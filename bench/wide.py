#!/usr/bin/env python3
"""What several loops of one process move together, on a machine that has not a core for each.

    .venv/bin/python bench/wide.py --share 0              # one loop on a core of its own
    sudo .venv/bin/python bench/wide.py                   # 1 to 3 loops, each held to a quarter of a core
    ... bench/wide.py --congestion-control reno           # on a loopback of its own, where the host has another
    ... bench/wide.py --softirq-core 1                    # the kernel receives on the servers' core

This process joins as many jobs as there are loops, each of one worker, one server and a loop of its own, and cuts each
tensor into a piece for each job. Loops are held by groups of cgroup v1's controller `cpu`, which takes single threads.
All loops are pinned to one core, all servers to another. Beside k loops of a share stands one loop of k shares: what
it moves more is what the split costs. All take turns; every sum is compared with what it has to be.

A row: MB/s in each direction, the median with quartiles; CPU seconds per GiB (that goes out and comes back) of the
loops and of the servers; how much of their core the servers used; and, from turn to turn, the ratio to k times what one
loop of a share moves, and to what one loop of k shares does. docs/design/0011-several-loops.md has figures.
"""

import argparse
import contextlib
import ctypes
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

import contenders
import netlab

ROOT = pathlib.Path(__file__).resolve().parent.parent
MIB, GIB = 1 << 20, 1 << 30
CONTROLLER = pathlib.Path("/sys/fs/cgroup/cpu")
PERIOD_US = 10_000
# Namespaces of our own, which end with us. A file system that is mounted in one shows what is of it.
APART = """set -e; ip link set lo up; mount -t sysfs sysfs "$1"
[ -z "$2" ] || printf %x $((1 << $2)) > "$1/class/net/lo/queues/rx-0/rps_cpus"
umount "$1"; rmdir "$1"; [ -z "$3" ] || sysctl -qw "net.ipv4.tcp_congestion_control=$3"
[ -z "$4" ] || ip link set lo gso_max_size "$4" gro_max_size "$4"; shift 4; exec "$@" """


def arguments():
    cores = sorted(os.sched_getaffinity(0))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loops", type=int, default=3, help="at most (default 3)")
    parser.add_argument("--share", type=float, default=0.25, help="of a core, from 0.1 (default 0.25); 0: not held")
    parser.add_argument("--bytes", type=int, default=64 * MIB, help="of all tensors together (default 64 MiB)")
    parser.add_argument("--tensors", type=int, default=16)
    parser.add_argument("--operations", type=int, default=8, help="on all tensors, in a turn (default 8)")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--loops-core", type=int, default=cores[0], help="default: the first")
    parser.add_argument("--servers-core", type=int, default=cores[-1], help="default: the last")
    parser.add_argument("--address", default="127.0.0.1", help="of all processes; or ::1")
    parser.add_argument("--softirq-core", default="", help="in a network namespace of its own (root), as the next two")
    parser.add_argument("--congestion-control", default="", help="for example reno")
    parser.add_argument("--packet-bytes", default="", help="at most; above 64 KiB with ::1 only")
    parser.add_argument("--shared-memory", action="store_true", help="instead of TCP")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    return parser.parse_args()


def own_group():
    """This process's group of the controller `cpu`."""
    lines = pathlib.Path("/proc/self/cgroup").read_text().splitlines()
    fields = [line.split(":", 2) for line in lines]
    return CONTROLLER / next((path.lstrip("/") for _, names, path in fields if "cpu" in names.split(",")), "none")


class Hold:
    """A group of the kernel's for one thread, within ours."""

    def __init__(self, name, thread):
        self._folder = own_group() / f"byteps-wide-{os.getpid()}-{name}"
        self._folder.mkdir()
        (self._folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (self._folder / "tasks").write_text(str(thread))

    def to(self, share):
        """Of a core; 0: without a limit."""
        (self._folder / "cpu.cfs_quota_us").write_text(str(int(share * PERIOD_US) or -1))

    def remove(self):
        """When its thread has ended."""
        self._folder.rmdir()


class Loop:
    """A job of this process, with the thread that is its loop."""

    def __init__(self, number, lab, args):
        from byteps._core.client import Job

        settings = {
            "DMLC_PS_ROOT_URI": args.address,
            "DMLC_PS_ROOT_PORT": str(contenders.free_port()),
            "DMLC_NUM_WORKER": "1",
            "DMLC_NUM_SERVER": "1",
            "DMLC_WORKER_ID": "0",
            "BYTEPS_JOB_KEY": "the key of a benchmark",
            "BYTEPS_FORCE_DISTRIBUTED": "1",
            "BYTEPS_SERVER_ENGINE_THREAD": "1",
            "BYTEPS_ENABLE_IPC": str(int(args.shared_memory)),
            **{name: value for name, value in os.environ.items() if name.startswith("BYTEPS_")},
        }
        pin = ["taskset", "-c", args.servers_core]
        lab.start(0, [*pin, args.build / "bin/byteps_scheduler"], settings)
        self.server = lab.start(0, [*pin, args.build / "bin/byteps_server"], settings)
        before = loop_threads()
        self.job = Job.join(settings)
        (self._thread,) = loop_threads() - before
        os.sched_setaffinity(self._thread, {args.loops_core})
        self._hold = Hold(number, self._thread) if args.share else None

    def cpu_s(self):
        return int(pathlib.Path(f"/proc/self/task/{self._thread}/schedstat").read_text().split()[0]) * 1e-9

    def hold_to(self, share):
        if self._hold is not None:
            self._hold.to(share)

    def leave(self):
        self.hold_to(0)
        self.job.leave()
        if self._hold is not None:
            self._hold.remove()


def loop_threads():
    found = set()
    for task in pathlib.Path("/proc/self/task").iterdir():
        if (task / "comm").read_text().strip() == "byteps-worker":
            found.add(int(task.name))
    return found


class Tensors:
    """Floats in one piece of memory, summed in place. With one worker the sum is what was given, in its place."""

    def __init__(self, size, count):
        pattern = bytearray(os.urandom(65521 * 4))  # of a length by which no two frames are alike
        for at in range(3, len(pattern), 4):  # no NaN, no infinity: their bits need not stay
            pattern[at] &= 0x3F
        self._expected = pattern * (size // len(pattern) + 1)
        del self._expected[size:]
        self._values = bytearray(self._expected)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._values))
        self._each, self._count = size // count, count

    def exchange(self, jobs):
        """All of them once, a piece of each by each job."""
        from byteps._core import abi

        pieces = len(jobs)
        cuts = [self._each * i // pieces // 4 * 4 for i in range(pieces)] + [self._each]
        handles = []
        for tensor in range(self._count):
            for job, start, end in zip(jobs, cuts, cuts[1:]):
                name = f"t{tensor}.{pieces}"  # another size is another tensor
                at = self._address + tensor * self._each + start
                what = {"priority": -tensor}
                handles.append((job, job.push_pull(name, abi.FLOAT32, at, at, (end - start) // 4, abi.SUM, **what)))
        for job, handle in handles:
            job.wait(handle)

    def check(self):
        if self._values != self._expected:
            sys.exit("wide: a wrong sum")


def turn(tensors, loops, operations, size):
    """MB/s each way, and CPU seconds per GiB of loops and servers, and of their core."""
    loops_s = sum(loop.cpu_s() for loop in loops)
    servers_s = sum(loop.server.cpu_seconds() for loop in loops)
    start = time.monotonic()
    for _ in range(operations):
        tensors.exchange([loop.job for loop in loops])
    passed_s = time.monotonic() - start
    loops_s = sum(loop.cpu_s() for loop in loops) - loops_s
    servers_s = sum(loop.server.cpu_seconds() for loop in loops) - servers_s
    tensors.check()
    moved = size * operations
    return moved / passed_s / 1e6, loops_s / moved * GIB, servers_s / moved * GIB, servers_s / passed_s


def rows_of(args):
    """How many loops, and the share of each."""
    if not args.share:
        return [(loops, 0.0) for loops in range(1, args.loops + 1)]
    apart = [(loops, args.share) for loops in range(1, args.loops + 1)]
    return apart + [(1, args.share * loops) for loops in range(2, args.loops + 1)]


def measure(args):
    rows = rows_of(args)
    found = {row: [] for row in rows}
    tensors = Tensors(args.bytes, args.tensors)
    with netlab.Loopback() as lab, contextlib.ExitStack() as ends:
        loops = []
        for number in range(args.loops):
            loops.append(Loop(number, lab, args))
            ends.callback(loops[-1].leave)
        for repeat in range(-1, args.repeats):  # the first time does not count
            for count, share in rows:
                used = loops[:count]
                for loop in used:
                    loop.hold_to(share)
                result = turn(tensors, used, args.operations if repeat >= 0 else 1, args.bytes)
                if repeat >= 0:
                    found[count, share].append(result)
    return found


def spread(values):
    """The median, with quartiles."""
    if len(values) == 1:
        return f"{values[0]:.3g}"
    digits = 0 if values[0] > 100 else 3
    low, middle, high = (f"{value:.{digits}f}" for value in statistics.quantiles(values, n=4))
    return f"{middle} ({low} to {high})"


def tell(found, args):
    costs = ["loops' CPU s/GiB", "servers'", "of their core"]
    print(f"| {' | '.join(['loops', 'of a core each', 'MB/s each way', *costs, '/ k x one', '/ one of k shares'])} |")
    print("|---|---|---|---|---|---|---|---|")
    ones = [turn[0] for turn in found[1, args.share]]
    for (count, share), turns in found.items():
        speeds, *costs = zip(*turns)
        shares = count * (share / args.share if args.share else 1)
        # Of the same turn: what the machine does meanwhile meets both.
        to_ones = spread([speed / one / shares for speed, one in zip(speeds, ones)])
        wide = found.get((1, share * count), []) if count > 1 else []
        to_wide = spread([speed / other[0] for speed, other in zip(speeds, wide)]) if wide else ""
        middles = [f"{statistics.median(cost):.3f}" for cost in costs]
        print(f"| {' | '.join([str(count), str(share or 'not held'), spread(speeds), *middles, to_ones, to_wide])} |")


def main():
    args = arguments()
    apart = [args.softirq_core, args.congestion_control, args.packet_bytes]
    if any(apart) and "WIDE_APART" not in os.environ:
        words = ["sh", "-c", APART, "sh", tempfile.mkdtemp(), *apart, sys.executable, *sys.argv]
        os.execvpe("unshare", ["unshare", "--net", "--mount", *words], {**os.environ, "WIDE_APART": "1"})
    if shutil.which("taskset") is None:
        sys.exit("wide: needs taskset")
    if args.share and not (own_group() / "tasks").exists():
        sys.exit("wide: there is no controller cpu of cgroup v1, so nothing is held; --share 0 measures without")
    os.environ["BYTEPS_LIBRARY"] = str(args.build / "lib" / "libbyteps.so")
    sys.path.insert(0, str(ROOT / "python"))
    load = os.getloadavg()[0]
    found = measure(args)
    tell(found, args)
    print(f"\nload {load:.1f} before, {os.getloadavg()[0]:.1f} after; {args.repeats} turns of {args.operations} x "
          f"{args.bytes / MIB:.0f} MiB")  # fmt: skip


if __name__ == "__main__":
    main()
