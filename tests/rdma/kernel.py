"""A Linux kernel with Soft-RoCE (rdma_rxe) for the guest: Debian's own package, fetched and unpacked, never installed.

What is kept, in ~/.cache/byteps/rdma-guest (or $XDG_CACHE_HOME), is the kernel and an initramfs of some MiB that loads
the modules and hands over to init.sh.
"""

import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Dict, List, Optional, Tuple

BUSYBOX = "/bin/busybox"
MODULES = (
    "virtio_pci 9p 9pnet_virtio overlay virtio_rng veth bridge crc32_generic crc32_pclmul rdma_rxe ib_uverbs".split()
)
INIT = """#!/bin/busybox sh
/bin/busybox mkdir -p /proc /sys /dev /ctl /low /rw /new
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc && mount -t sysfs sys /sys && mount -t devtmpfs dev /dev
for module in $(cat /modules/order); do insmod /modules/$module || echo "no module $module"; done
mount -t 9p -o trans=virtio,version=9p2000.L,cache=none ctl /ctl
. /ctl/init.sh
"""


class CannotHave(Exception):
    """Why there is no kernel here."""


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "byteps/rdma-guest"


def prepare() -> Tuple[Path, Path]:
    """Kernel and initramfs. The first call fetches 70 MB and takes a minute. CannotHave: no package, no network."""
    recipe = hashlib.sha256(" ".join([INIT, *MODULES]).encode()).hexdigest()[:8]
    made = sorted(cache_folder().glob(f"*-{recipe}"))
    folder = made[-1] if made else _make(recipe)
    return folder / "kernel", folder / "initramfs"


def _make(recipe: str) -> Path:
    package = _package()
    cache_folder().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_folder()) as temporary:
        work = Path(temporary)
        _fetch(package, work)
        kept = work / "kept"
        kept.mkdir()
        (kept / "kernel").write_bytes(_plain_kernel(next(work.glob("boot/vmlinuz-*")).read_bytes()))
        (kept / "initramfs").write_bytes(_initramfs(work / "lib/modules"))
        folder = cache_folder() / f"{package}-{recipe}"
        try:
            os.rename(kept, folder)
        except OSError:  # somebody else was faster
            if not folder.exists():
                raise
    return folder


def _package() -> str:
    """The kernel package that Debian's linux-image-amd64 stands for now."""
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise CannotHave("the guest's kernel is a Debian package, and there is no apt-get here")
    for command in (["true"], ["apt-get", "-qq", "update"]):  # a fresh container has no lists
        subprocess.run(command, capture_output=True)
        listed = subprocess.run(["apt-cache", "depends", "linux-image-amd64"], capture_output=True, text=True)
        found = re.search(r"Depends: (linux-image-[0-9]\S+-amd64)\b", listed.stdout)
        if found is not None:
            return found[1]
    raise CannotHave("apt knows no linux-image-amd64, Debian's (as root: apt-get update)")


def _fetch(package: str, work: Path) -> None:
    """Below `work`: boot/vmlinuz-* and the modules."""
    command = ["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", package]
    fetched = subprocess.run(command, cwd=work, capture_output=True, text=True)
    if fetched.returncode != 0:
        said = fetched.stderr.strip().splitlines() or [f"exit code {fetched.returncode}"]
        raise CannotHave(f"apt-get download {package}: {said[-1]}")
    (archive,) = work.glob("*.deb")
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", archive], stdout=subprocess.PIPE) as unpacked:
        with tarfile.open(fileobj=unpacked.stdout, mode="r|") as tar:
            for member in tar:
                name = member.name.lstrip("./").replace("usr/lib/", "lib/", 1)
                if member.isfile() and re.match(r"boot/vmlinuz-|lib/modules/.*\.ko(\.xz)?$", name):
                    path = work / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(tar.extractfile(member).read())


def _plain_kernel(image: bytes) -> bytes:
    """The ELF file inside: unpacking it in the guest would take seconds."""
    begin = image.find(b"\xfd7zXZ\0")
    return lzma.LZMADecompressor().decompress(image[begin:]) if begin >= 0 else image


def _initramfs(modules: Path) -> bytes:
    paths = {path.name.partition(".")[0]: path for path in modules.rglob("*.ko*")}
    contents: Dict[str, bytes] = {}  # in the order of loading

    def need(name: str) -> None:
        path: Optional[Path] = paths.get(name)
        if path is None or name in contents:  # what is not there is built in
            return
        data = path.read_bytes()
        data = lzma.decompress(data) if path.suffix == ".xz" else data
        for dependency in filter(None, re.search(rb"\0depends=([^\0]*)\0", data)[1].decode().split(",")):
            need(dependency)
        contents[name] = data

    for name in MODULES:
        need(name)
    if "rdma_rxe" not in contents:
        raise CannotHave("this Debian kernel has no rdma_rxe")
    files = [("init", INIT.encode()), ("bin/busybox", Path(BUSYBOX).read_bytes())]
    files += [(f"modules/{name}", data) for name, data in contents.items()]
    files.append(("modules/order", "\n".join(contents).encode()))
    return _cpio(["bin", "modules"], files)


def _cpio(folders: List[str], files: List[Tuple[str, bytes]]) -> bytes:
    """The format "newc" of the kernel's Documentation/driver-api/early-userspace/buffer-format.rst."""

    def entry(number: int, name: str, mode: int, data: bytes) -> bytes:
        fields = [number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name) + 1, 0]
        head = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        return b"".join(part + bytes(-len(part) % 4) for part in (head, data))

    entries = [(name, 0o040755, b"") for name in folders] + [(name, 0o100755, data) for name, data in files]
    packed = [entry(number, *each) for number, each in enumerate(entries, 1)]
    return b"".join(packed) + entry(0, "TRAILER!!!", 0, b"")
