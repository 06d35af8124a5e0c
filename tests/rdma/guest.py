#!/usr/bin/env python3
"""Three hosts with RDMA on a machine that has none: a QEMU guest (emulation, no KVM) whose kernel has Soft-RoCE.

    tests/rdma/guest.py [--timeout S] [--memory MIB] [--verbose] -- CMD [ARG...]

CMD runs in the guest as root, in this folder and with this environment. The guest sees this machine's files at the same
paths; what it writes is lost, apart from what it says: both outputs come as one, as they are written. The exit code is
CMD's; 124: it took too long; 125: the guest broke; 77: there can be no guest here, and why.

The network inside is described in hosts.sh. It proves that the calls are right, their order, and what happens when
something fails; about speed it proves nothing. Needs (Debian): qemu-system-x86 busybox-static iproute2 procps
util-linux, and ibverbs-providers for what runs inside. First use fetches a kernel (kernel.py).
"""

import argparse
import ctypes
import mmap
import os
import platform
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Dict, List, Sequence

import kernel

HERE = Path(__file__).resolve().parent
HOSTS = 3
CODE_MISSING, CODE_TIMEOUT, CODE_BROKEN = 77, 124, 125
BOOT_S = 120  # 8 alone on two cores
BOOTS = 3
LOOK_EVERY_S = 0.1
VERBS_LIBRARY = "libibverbs.so.1"
KERNEL_LINE = (
    "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check random.trust_cpu=on init_on_alloc=0 audit=0 "
    "cryptomgr.notests rcupdate.rcu_expedited=1"
)


def missing() -> str:
    """Why there can be no guest here; empty when there can."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return "the guest is of x86-64 Linux"
    for program, package in (("qemu-system-x86_64", "qemu-system-x86"), ("ip", "iproute2"), ("rdma", "iproute2")):
        if shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin") is None:
            return f"there is no {program}: apt-get install {package}"
    if not Path(kernel.BUSYBOX).exists():
        return f"there is no {kernel.BUSYBOX}: apt-get install busybox-static"
    try:
        ctypes.CDLL(VERBS_LIBRARY)
    except OSError:
        return f"there is no {VERBS_LIBRARY}: apt-get install ibverbs-providers"
    return ""


def run(command: Sequence[str], timeout_s: int, memory_mib: int, environ: Dict[str, str], verbose: bool = False) -> int:
    """Exit code of the command, or one of ours. kernel.CannotHave: no kernel."""
    image, initramfs = kernel.prepare()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # which still ends the guest and removes the folder
    with tempfile.TemporaryDirectory(prefix="rdma-guest-") as folder:
        ctl = Path(folder)
        for script in ("init.sh", "hosts.sh"):
            shutil.copy(HERE / script, ctl)
        (ctl / "settings").write_text(f"HOSTS={HOSTS} LIMIT_S={timeout_s}\n")
        exports = "".join(f"export {name}={shlex.quote(environ[name])}\n" for name in environ if name.isidentifier())
        (ctl / "command").write_text(f"{exports}cd {shlex.quote(os.getcwd())} || exit 125\nexec {_join(command)}\n")
        (ctl / "output").touch()
        for boot in range(1, BOOTS + 1):
            machine = _start(image, initramfs, ctl, memory_mib)
            try:
                was_ready = _follow(machine, ctl, timeout_s)
            finally:
                machine.kill()
                machine.wait()
            if was_ready:
                break
            # Emulated cores have been seen to hang before the kernel's first word, where the machine was busy.
            print(f"guest: boot {boot} of {BOOTS} was not ready, in at most {BOOT_S} s", file=sys.stderr)
        texts = {name: _text(ctl / name) for name in ("code", "ready", "setup.log", "console", "kernel.log")}
    if verbose or not texts["code"].strip():
        for name in ("setup.log", "console", "kernel.log"):
            print(f"---- {name}\n{texts[name]}", file=sys.stderr)
    if verbose:
        print(f"guest: ready after {texts['ready'].strip()} s of its own time", file=sys.stderr)
    return int(texts["code"]) if texts["code"].strip() else CODE_BROKEN


def _start(image: Path, initramfs: Path, ctl: Path, memory_mib: int) -> subprocess.Popen:
    def shared(tag: str, path: str, options: str = "") -> List[str]:
        tree = f"local,id={tag},path={path},security_model=none,multidevs=remap{options}"
        return ["-fsdev", tree, "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag}"]

    command = ["qemu-system-x86_64", "-nodefaults", "-no-user-config", "-nographic", "-no-reboot"]
    command += ["-machine", "pc,usb=off,hpet=off", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max"]
    command += ["-smp", str(min(2, len(os.sched_getaffinity(0)))), "-m", str(memory_mib)]
    command += ["-kernel", str(image), "-initrd", str(initramfs)]
    command += ["-append", f"{KERNEL_LINE} tsc=reliable tsc_early_khz={_counter_khz()}"]
    command += ["-serial", f"file:{ctl / 'console'}", "-device", "virtio-rng-pci"]
    command += shared("root", "/", ",readonly=on") + shared("ctl", str(ctl))

    def die_with_parent() -> None:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG

    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=die_with_parent)


def _follow(machine: subprocess.Popen, ctl: Path, timeout_s: float) -> bool:
    """Shows what the command says until the machine is off, or has had its time. False: it was not ready in time."""
    deadline_s = time.monotonic() + BOOT_S
    is_on, is_ready = True, False
    with open(ctl / "output", "rb") as file:
        while is_on and time.monotonic() < deadline_s:
            is_on = machine.poll() is None  # before reading: what comes last is read as well
            if not is_ready and (ctl / "ready").exists():
                is_ready, deadline_s = True, time.monotonic() + timeout_s + BOOT_S
            said = file.read()
            if said:
                sys.stdout.buffer.write(said)
                sys.stdout.flush()
            else:
                time.sleep(LOOK_EVERY_S)
    return is_ready


def _counter_khz() -> int:
    """Rate of the processor's time stamp counter. The guest sees the same one; it would measure the rate itself, and,
    where others keep the machine busy, so badly that its clock runs twice too fast and its timeouts end early."""
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("0f31 48c1e220 4809d0 c3"))  # rdtsc; shl rdx, 32; or rax, rdx; ret
    counter = ctypes.CFUNCTYPE(ctypes.c_uint64)(ctypes.addressof(ctypes.c_char.from_buffer(code)))

    def look():
        """(time, counter), of some looks the one during which least time passed."""
        looks = []
        for _ in range(50):
            begin_ns, ticks = time.monotonic_ns(), counter()
            looks.append((time.monotonic_ns() - begin_ns, begin_ns, ticks))
        return min(looks)[1:]

    (begin_ns, begin_ticks), _, (end_ns, end_ticks) = look(), time.sleep(0.05), look()
    return (end_ticks - begin_ticks) * 10**6 // (end_ns - begin_ns)


def _join(command: Sequence[str]) -> str:
    return " ".join(shlex.quote(word) for word in command)


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--timeout", type=int, default=120, metavar="S", help="for the command (120)")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="of the guest (2048)")
    parser.add_argument("--verbose", action="store_true", help="what guest and kernel say, on the error output")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- CMD")
    options = parser.parse_args()
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command:
        parser.error("no command")
    try:
        why_not = missing()
        if not why_not:
            return run(command, options.timeout, options.memory, dict(os.environ), options.verbose)
    except kernel.CannotHave as error:
        why_not = str(error)
    print(f"no guest: {why_not}", file=sys.stderr)
    return CODE_MISSING


if __name__ == "__main__":
    sys.exit(main())
