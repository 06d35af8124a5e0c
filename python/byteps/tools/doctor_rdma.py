"""What bps doctor looks at for RDMA (docs/rdma.md): look() runs on the host, findings() judges what it said.

Read are the kernel's files and libibverbs' own list of devices; no device is opened, and nothing is sent.
"""

from __future__ import annotations

import ctypes
import ipaddress
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from byteps.launcher.environment import parse_number
from byteps.tools.doctor_findings import GIB, OK, PROBLEM, WARNING, Finding, JobSize

LIBRARY = "libibverbs.so.1"
CAP_IPC_LOCK = 14  # linux/capability.h
RING_BYTES = 2 << 20
ROCE_V2 = "RoCE v2"
REQUIRED, AUTO, OFF = "required", "auto", "off"
POLICIES = {"ibverbs": REQUIRED, "1": REQUIRED, "auto": AUTO, "ucx": AUTO, "multivan": AUTO}
HEADER_BYTES = 96  # of a RoCE v2 packet around its payload, generously
KERNEL_COPIES_PINNED_PAGES = (5, 12)  # at fork
INSTALL = "apt-get install libibverbs1 ibverbs-providers   # elsewhere: rdma-core"


# ---- on the host


def look(environ: Mapping[str, str], system: str = "/sys", devices: str = "/dev/infiniband") -> Dict[str, Any]:
    """environ: of a process of the job. The folders are the kernel's; tests have others."""
    library, known = _known_to_the_library()
    nodes = sorted(Path(devices).glob("uverbs*"))
    return {
        "policy": POLICIES.get(environ.get("DMLC_ENABLE_RDMA", ""), OFF),
        "only": [name for name in environ.get("BYTEPS_RDMA_DEVICE", "").split(",") if name],
        "gid_index": parse_number(environ.get("BYTEPS_RDMA_GID_INDEX", "")),
        "ring_bytes": parse_number(environ.get("BYTEPS_RDMA_RING_BYTES", "")) or RING_BYTES,
        "library": library,
        "known": known,
        "ports": ports(Path(system)),
        "closed": [str(node) for node in nodes if not os.access(node, os.R_OK | os.W_OK)],
        "may_lock": may_lock(),
        "kernel": platform.release(),
    }


def _known_to_the_library() -> Tuple[str, List[str]]:
    """Why libibverbs cannot be used, or empty; and the devices for which it has a driver."""
    try:
        verbs = ctypes.CDLL(LIBRARY)
    except OSError as error:
        return str(error), []
    verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_get_device_name.argtypes = [ctypes.c_void_p]
    count = ctypes.c_int()
    found = verbs.ibv_get_device_list(ctypes.byref(count))
    if not found:
        return "", []
    names = [verbs.ibv_get_device_name(found[index]).decode() for index in range(count.value)]
    verbs.ibv_free_device_list(found)
    return "", sorted(names)


def ports(system: Path) -> List[Dict[str, Any]]:
    """Of all RDMA devices."""
    found = []
    for folder in sorted(system.glob("class/infiniband/*/ports/*")):
        gids = _gids(folder)
        interface = next((gid["interface"] for gid in gids if gid["interface"]), "") or _ipoib(system, folder)
        found.append(
            {
                "device": folder.parts[-3],
                "port": int(folder.name),
                "state": _read(folder / "state").partition(": ")[2],
                "link": _read(folder / "link_layer"),
                "rate": _read(folder / "rate"),
                "gids": gids,
                "interface": interface,
                "mtu": parse_number(_read(system / "class/net" / interface / "mtu")) if interface else None,
                "pfc": _pfc(interface),
                "ecn": _ecn(system / "class/net" / interface) if interface else None,
                "trust": _read(system / "class/net" / interface / "qos/trust") if interface else "",
            }
        )
    return found


def _gids(port: Path) -> List[Dict[str, Any]]:
    """The entries of the table that are in use."""
    found = []
    for path in sorted((port / "gids").glob("*"), key=lambda path: int(path.name)):
        gid = _read(path)
        if gid and set(gid) - set("0:"):
            about = port / "gid_attrs"
            kind, interface = _read(about / "types" / path.name), _read(about / "ndevs" / path.name)
            found.append({"index": int(path.name), "gid": gid, "type": kind, "interface": interface})
    return found


def _ipoib(system: Path, port: Path) -> str:
    """The IP interface of an InfiniBand port."""
    for path in sorted(system.glob(f"class/net/*/device/infiniband/{port.parts[-3]}")):
        interface = path.parents[2]
        number = _read(interface / "dev_port")
        if not number or int(number) + 1 == int(port.name):
            return interface.name
    return ""


def _pfc(interface: str) -> Optional[List[int]]:
    """Priorities with flow control, as the card's driver tells; None: it does not."""
    dcb = shutil.which("dcb", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if not interface or dcb is None:
        return None
    try:
        run = subprocess.run([dcb, "pfc", "show", "dev", interface, "prio-pfc"], capture_output=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = re.findall(r"(\d):(on|off)", run.stdout.decode(errors="replace"))
    return [int(priority) for priority, state in said if state == "on"] if said and run.returncode == 0 else None


def _ecn(interface: Path) -> Optional[List[int]]:
    """Priorities for which the card answers marked packets; None: its driver does not tell (only NVIDIA's own does)."""
    files = sorted((interface / "ecn/roce_np/enable").glob("[0-7]"))
    return [int(path.name) for path in files if _read(path) == "1"] if files else None


def may_lock() -> bool:
    """Whether limits on locked memory do not count for this process."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", _read(Path("/proc/self/status")), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> CAP_IPC_LOCK & 1)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return ""  # an unused entry of a GID table cannot be read


# ---- what it means


def findings(host: str, facts: Mapping[str, Any], roles: Mapping[str, int], size: JobSize) -> List[Finding]:
    said = facts["rdma"]
    locked = locked_memory(host, facts["locked_bytes"], said, roles, size)
    if said["policy"] == OFF:
        return [locked, Finding(host, "RDMA", OK, _what_there_is(said))]
    found = [locked, *devices(host, said)]
    usable = [port for port in _chosen(said) if port["state"] == "ACTIVE"]
    if usable and not any(each.level == PROBLEM for each in found):
        found.append(addresses(host, usable, said, _addresses_of(facts)))
        found += [each for port in usable for each in network(host, port)]
        found.append(fork(host, said["kernel"]))
    return found


def _what_there_is(said: Mapping[str, Any]) -> str:
    listed = ", ".join(_port(port) for port in said["ports"])
    if not listed:
        return "off, and this machine has no RDMA device"
    if said["library"]:
        return f"off; there is {listed}, without {LIBRARY}"
    return f"off; DMLC_ENABLE_RDMA=auto would use {listed} where both ends can"


def _port(port: Mapping[str, Any]) -> str:
    interface = f", {port['interface']}" if port["interface"] else ""
    return f"{port['device']} port {port['port']} ({port['state']}, {port['link']}, {port['rate']}{interface})"


def _chosen(said: Mapping[str, Any]) -> List[Mapping[str, Any]]:
    usable = [port for port in said["ports"] if port["device"] in said["known"]]
    return [port for port in usable if not said["only"] or port["device"] in said["only"]]


def devices(host: str, said: Mapping[str, Any]) -> List[Finding]:
    """Library, devices, ports and whether this user may use them. Without RDMA `auto` stays on TCP: no problem."""
    check, level = "RDMA", PROBLEM if said["policy"] == REQUIRED else WARNING
    names = sorted({port["device"] for port in said["ports"]})
    if not names:
        text = "this machine has no RDMA device"
        fix = "rdma link; lspci | grep -i -e mellanox -e infiniband   # in a container: pass on /dev/infiniband"
        if said["policy"] == AUTO:
            return [Finding(host, check, OK, text + ": tensors go over TCP")]
        return [Finding(host, check, level, text, fix + "; or DMLC_ENABLE_RDMA=0")]
    if said["library"]:
        return [Finding(host, check, level, f"{', '.join(names)} cannot be used: {said['library']}", INSTALL)]
    if not set(names) & set(said["known"]):
        text = f"libibverbs has no driver for {', '.join(names)}, or this process does not see /dev/infiniband"
        return [Finding(host, check, level, text, INSTALL)]
    missing = [name for name in said["only"] if name not in names]
    if missing:
        text = f"BYTEPS_RDMA_DEVICE names {', '.join(missing)}; there is {', '.join(names)}"
        return [Finding(host, check, level, text, f"export BYTEPS_RDMA_DEVICE={names[0]}")]
    if said["closed"]:
        text = f"this user may not use {', '.join(said['closed'])}"
        return [Finding(host, check, level, text, f"chmod 666 {' '.join(said['closed'])}   # as root; udev does so")]
    found = []
    is_one_up = any(port["state"] == "ACTIVE" for port in _chosen(said))
    for port in _chosen(said):
        if port["state"] == "ACTIVE":
            found.append(Finding(host, check, OK, _port(port)))
        else:
            fix = f"ip link set {port['interface']} up   # and look at the cable" if port["interface"] else "ibstat"
            found.append(Finding(host, check, WARNING if is_one_up else level, f"{_port(port)} is not up", fix))
    return found


def _addresses_of(facts: Mapping[str, Any]) -> List[str]:
    """Those that connections of this host may have: the one that others are told, or all."""
    told = facts["settings"].get("own_address")
    return [told] if told else [each["address"] for each in facts["interfaces"]]


def addresses(
    host: str, usable: Sequence[Mapping[str, Any]], said: Mapping[str, Any], own: Sequence[str]
) -> Finding:
    """Whether connections find a GID, which on RoCE is one of the interface's own addresses."""
    check, level = "RDMA address", PROBLEM if said["policy"] == REQUIRED else WARNING
    index = said["gid_index"]
    if index is not None:
        for port in usable:
            for gid in port["gids"]:
                if gid["index"] == index:
                    kind = gid["type"] or port["link"]
                    return Finding(host, check, OK, f"{port['device']}: {gid['gid']} ({kind}), index {index} as told")
        fix = "unset BYTEPS_RDMA_GID_INDEX   # it is found by itself"
        return Finding(host, check, level, f"BYTEPS_RDMA_GID_INDEX={index}: there is no such entry", fix)
    infiniband = [port for port in usable if port["link"] == "InfiniBand"]
    if infiniband:
        where = infiniband[0]["interface"]
        if where:
            return Finding(host, check, OK, f"{infiniband[0]['device']}, by the addresses of {where}")
        fix = f"export BYTEPS_RDMA_DEVICE={infiniband[0]['device']}   # or set up IPoIB on it"
        return Finding(host, check, level, f"{infiniband[0]['device']} has no IP interface (IPoIB)", fix)
    for port in usable:
        for gid in port["gids"]:
            address = _ip(gid["gid"])
            if gid["type"] == ROCE_V2 and address in own:
                return Finding(host, check, OK, f"{address} is {port['device']}'s {ROCE_V2} GID {gid['index']}")
    interfaces = [port["interface"] for port in usable if port["interface"]]
    text = f"no {ROCE_V2} GID of {', '.join(port['device'] for port in usable)} is {' or '.join(own) or 'an address'}"
    fix = f"export DMLC_INTERFACE={interfaces[0]}   # " if interfaces else ""
    return Finding(host, check, level, text, f"{fix}so that others are told an address of the RDMA network")


def _ip(gid: str) -> str:
    address = ipaddress.IPv6Address(gid)
    return str(address.ipv4_mapped or address)


def network(host: str, port: Mapping[str, Any]) -> List[Finding]:
    """Packet size, and what can be seen from here of a lossless network."""
    if port["link"] != "Ethernet":
        return []
    found = []
    mtu = port["mtu"]
    if mtu is not None:
        packet = max((size for size in (256, 512, 1024, 2048, 4096) if size + HEADER_BYTES <= mtu), default=256)
        text = f"{port['interface']} has {mtu}: packets of {packet} bytes"
        fix = f"ip link set {port['interface']} mtu 4200   # or more; the switch's ports and all other hosts as well"
        found.append(Finding(host, "RDMA MTU", *((OK, text) if packet == 4096 else (WARNING, text + " at most", fix))))
    seen = []
    if port["pfc"] is not None:
        seen.append(f"PFC on priorities {_numbers(port['pfc'])}")
    if port["ecn"] is not None:
        seen.append(f"ECN on priorities {_numbers(port['ecn'])}")
    if port["trust"]:
        seen.append(f"priorities by {port['trust'].upper()}")
    text = f"{port['interface'] or port['device']}: {', '.join(seen) or 'its driver tells nothing of PFC and ECN'}"
    if port["pfc"] == []:
        fix = f"dcb pfc set dev {port['interface']} prio-pfc 3:on   # and on the switch: docs/rdma.md"
        text += ": packets may be lost where senders meet"
        found.append(Finding(host, "RDMA network", WARNING, text, fix))
    else:
        found.append(Finding(host, "RDMA network", OK, text + "; the switches cannot be seen from here"))
    return found


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(str(value) for value in values) or "none"


def fork(host: str, kernel: str) -> Finding:
    numbers = [int(number) for number in re.findall(r"\d+", kernel)[:2]]
    if tuple(numbers) >= KERNEL_COPIES_PINNED_PAGES:
        return Finding(host, "RDMA and fork", OK, f"safe: Linux {kernel} copies registered memory for children")
    return Finding(host, "RDMA and fork", OK, f"safe by ibv_fork_init: Linux {kernel} is older than 5.12")


def locked_memory(
    host: str, limits: Sequence[int], said: Mapping[str, Any], roles: Mapping[str, int], size: JobSize
) -> Finding:
    soft, hard = (limit if 0 <= limit < 1 << 62 else 1 << 62 for limit in limits)
    text = "unlimited" if soft == 1 << 62 else f"{soft / 1024:.0f} KiB"
    check = "locked memory"
    if said["policy"] == OFF:
        return Finding(host, check, OK, text + "; TCP needs none")
    by_role = {"server": size.shards * size.workers, "worker": size.servers * size.shards}
    connections = max([1, *(by_role.get(role, 0) for role in roles)])
    needed = 2 * connections * said["ring_bytes"]
    text += f"; RDMA needs {needed / GIB:.2f} GiB for the rings of {connections} connections"
    if said["may_lock"]:
        return Finding(host, check, OK, text + "; this process may lock more (CAP_IPC_LOCK)")
    if soft > needed + needed // 8:  # queues need a little, too
        spare = "" if soft == 1 << 62 else "; where it is unlimited, servers copy less"
        return Finding(host, check, OK, text + spare)
    level = PROBLEM if said["policy"] == REQUIRED else WARNING
    fix = "echo '* - memlock unlimited' >/etc/security/limits.d/byteps.conf   # as root, then log in again"
    if hard == 1 << 62:
        fix = "ulimit -l unlimited"
    return Finding(host, check, level, text, fix + "; docker: --ulimit memlock=-1; Kubernetes: capability IPC_LOCK")
