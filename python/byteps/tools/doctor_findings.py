"""What bps doctor makes of what the hosts said. Pure: facts in, findings out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from byteps.launcher.bounds import Bound

OK, WARNING, PROBLEM = "ok", "warning", "problem"
# Why there is no connection, as doctor_checks.py says it.
UNKNOWN_NAME, STRANGER, NO_ANSWER, NO_ROUTE, REFUSED, UNREACHABLE = (
    "unknown name", "stranger", "no answer", "no route", "refused", "unreachable",
)  # fmt: skip

GIB = float(1 << 30)
SHARED_MEMORY_MIN_BYTES = 512 << 20
SOCKET_BUFFER_MIN_BYTES = 4 << 20
SPARE_FILES = 64  # what a process has open beside its connections
CLOCK_TOLERANCE_S = 0.1
CARDS_DIFFER = 0.1  # by no more than this share of their rate where one is as good as the other


@dataclass(frozen=True)
class Finding:
    host: str
    check: str
    level: str
    text: str
    fix: str = ""  # a command, or what to change

    def as_json(self) -> Dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class JobSize:
    """The connections that processes of this job hold."""

    workers: int = 1
    servers: int = 0
    shards: int = 1  # per server

    def open_files(self, role: str) -> int:
        if role == "scheduler":
            return self.workers + self.servers + SPARE_FILES
        if role == "server":  # each shard has a connection to every worker, and three descriptors of its own
            return self.shards * (self.workers + 3) + SPARE_FILES
        return self.servers * self.shards + 2 * SPARE_FILES  # a training program opens files, too


def of_host(host: str, facts: Mapping[str, Any], roles: Mapping[str, int], size: JobSize) -> List[Finding]:
    """roles: how many processes of each role this host runs."""
    found = settings(host, facts["settings"])
    found += codecs(host, facts.get("codecs", {}))
    found += machine(host, facts["machine"])
    found += [own_address(host, facts, "server" in roles)]
    found += [shared_memory(host, facts["shared_memory"])]
    found += [open_files(host, facts["open_files"], roles, size)]
    found += [cores(host, facts, roles)]
    found += sockets(host, facts["sysctls"], size)
    return found


def settings(host: str, said: Mapping[str, Any]) -> List[Finding]:
    if "missing" in said:
        fix = "python -m pip install --force-reinstall .   # in the sources of byteps, or its wheel"
        return [Finding(host, "byteps", PROBLEM, said["missing"], fix)]
    text = f"{said['byteps']}, protocol {said['protocol']}"
    found = [Finding(host, "byteps", OK, text)]
    kernels = said["kernels"]
    if kernels == "scalar":
        fix = "rebuild with libhwy-dev: apt-get install libhwy-dev && pip install ."
        found.append(Finding(host, "CPU kernels", WARNING, "scalar: sums use no vector instructions", fix))
    else:
        found.append(Finding(host, "CPU kernels", OK, kernels))
    devices = said.get("devices", "none: not told")
    kind, _, reason = devices.partition(": ")
    found.append(Finding(host, "GPUs", OK, f"tensors of the CPU only: {reason}" if kind == "none" else devices))
    if "error" in said:
        found.append(Finding(host, "variables", PROBLEM, said["error"]["text"], _fix_of_setting(said["error"])))
    for warning in said["warnings"]:
        found.append(Finding(host, "variables", WARNING, warning["text"], _fix_of_setting(warning)))
    if "error" not in said and not said["warnings"]:
        found.append(Finding(host, "variables", OK, "well formed"))
    return found


def codecs(host: str, rates: Mapping[str, Mapping[str, float]]) -> List[Finding]:
    """rates: of each format in GB/s of float32, and what of a byte travels."""
    told = []
    for name, each in rates.items():
        fed_back = f", with error feedback {each['encode_with_residual']:.1f}" if each["encode_with_residual"] else ""
        told.append(
            f"{name} codes {each['encode']:.1f}{fed_back}, adds {each['decode_add']:.1f}, pays up to "
            f"{_pays_up_to(each):.0f} Gbit/s"
        )
    return [Finding(host, "codecs", OK, "GB/s of float32 a core: " + "; ".join(told))] if told else []


def _pays_up_to(rates: Mapping[str, float]) -> float:
    """The line, in Gbit/s, on which what coding saves takes as long as coding and decoding do."""
    encode = rates["encode_with_residual"] or rates["encode"]
    return 8 * (1 - rates["payload"]) / (1 / encode + 1 / rates["decode_add"])


def machine(host: str, told: Mapping[str, Sequence[str]]) -> List[Finding]:
    """The tree of GPUs and cards, and the plan for them. Nothing is said of machines without GPUs."""
    if not told["plan"]:
        return []
    found = [Finding(host, "machine", OK, "\n".join([*told["plan"], *told["tree"]]))]
    for remark in told["remark"]:
        variable = remark.split(" ")[0].split("=")[0]
        found.append(Finding(host, "machine", WARNING, remark, f"unset {variable}"))
    return found


def _fix_of_setting(told: Mapping[str, str]) -> str:
    """told: an error (src/base/cause.h has its kinds) or a warning (src/app/env.h) of byteps_server --check."""
    kind, about = told["kind"], told["about"]
    if kind == "readable_key":
        return f"chmod 600 {about}"
    if kind == "job_key":
        return "(umask 077; openssl rand -hex 16 >job.key); export BYTEPS_JOB_KEY_FILE=$PWD/job.key"
    if kind == "unknown":
        return f"unset {about}"
    if kind == "setting_missing" and about:
        return f"export {about}=..."
    if about:
        return f"unset {about}   # or export {about}=... with what it takes"
    return "byteps_server --check   # says it again, with the variables that are set then"


def own_address(host: str, facts: Mapping[str, Any], is_server: bool) -> Finding:
    check = "address"
    others = facts["interfaces"]
    listed = ", ".join(_interface(each) for each in others) or "none but loopback"
    chosen = facts["settings"].get("own_address")
    if not is_server or chosen is None:
        return Finding(host, check, OK, f"interfaces: {listed}")
    own = next((each for each in others if each["address"] == chosen), None)
    text = f"others are told {chosen}" + (f" ({own['name']})" if own else "")
    further = [each for each in others if each["address"] in facts["settings"].get("further_addresses", [])]
    text += "".join(f" and {each['address']} ({each['name']})" for each in further)
    rest = [each for each in others if each is not own and each not in further]
    if not rest:
        return Finding(host, check, OK, text)
    text += "; there are also " + ", ".join(_interface(each) for each in rest)
    faster = [each for each in rest if own and (each["mbit_per_s"] or 0) > (own["mbit_per_s"] or 1 << 31)]
    if faster:
        best = max(faster, key=lambda each: each["mbit_per_s"])
        return Finding(host, check, WARNING, text, f"export DMLC_INTERFACE={best['name']}   # it is faster")
    if further:
        return Finding(host, check, OK, text)
    text += f"; DMLC_INTERFACE={rest[0]['name']} would choose that one"
    alike = [own, *_alike(own, rest)] if own else []
    if len(alike) > 1:
        names = ",".join(each["name"] for each in alike)
        text += f", DMLC_INTERFACE={names} would use {'both' if len(alike) == 2 else 'all of these'} (docs/topology.md)"
    return Finding(host, check, OK, text)


def _alike(own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
    """Those about as fast as `own`, where that is known."""
    rate = own["mbit_per_s"]
    return [each for each in others if rate and abs((each["mbit_per_s"] or 0) - rate) <= CARDS_DIFFER * rate]


def _interface(each: Mapping[str, Any]) -> str:
    speed = f", {each['mbit_per_s'] / 1000:g} Gbit/s" if each["mbit_per_s"] else ""
    return f"{each['name']} {each['address']}{speed}"


def shared_memory(host: str, sizes: Optional[Sequence[int]]) -> Finding:
    check = "/dev/shm"
    if sizes is None:
        return Finding(host, check, PROBLEM, "is not there", "mount -t tmpfs -o size=8G tmpfs /dev/shm")
    text = f"{sizes[0] / GIB:.2f} GiB, {sizes[1] / GIB:.2f} free"
    fix = "mount -o remount,size=8G /dev/shm   # in docker: docker run --shm-size=8g"
    if sizes[0] < SHARED_MEMORY_MIN_BYTES:
        return Finding(host, check, WARNING, text + ": data loaders and shared memory need more", fix)
    if sizes[1] < SHARED_MEMORY_MIN_BYTES // 4:
        return Finding(host, check, WARNING, text + ": something fills it", "ls -lS /dev/shm")
    return Finding(host, check, OK, text)


def open_files(host: str, limits: Sequence[int], roles: Mapping[str, int], size: JobSize) -> Finding:
    soft, hard = (limit if limit >= 0 else 1 << 30 for limit in limits)
    needed, role = max((size.open_files(role), role) for role in (roles or {"worker": 1}))
    text = f"{soft} may be open; a {role} of this job needs about {needed}"
    if soft >= needed:
        return Finding(host, "open files", OK, text)
    if hard >= needed:
        return Finding(host, "open files", PROBLEM, text, f"ulimit -n {hard}")
    line = f"'* - nofile {max(65536, 2 * needed)}'"
    fix = f"echo {line} >/etc/security/limits.d/byteps.conf   # as root, then log in again"
    return Finding(host, "open files", PROBLEM, f"{text}; no process may have more than {hard}", fix)


def cores(host: str, facts: Mapping[str, Any], roles: Mapping[str, int]) -> Finding:
    count, load = facts["cores"], facts["load"]
    wanted = sum(number for role, number in roles.items() if role != "scheduler")
    text = f"{count}, load {load:.1f}"
    if wanted > count:
        return Finding(host, "cores", WARNING, f"{text}; {wanted} workers and servers share them", "use fewer per host")
    if load > 0.75 * count + 1:
        return Finding(host, "cores", WARNING, text + ": something else runs here", "top -b -n 1 | head -20")
    return Finding(host, "cores", OK, text)


def sockets(host: str, values: Mapping[str, str], size: JobSize) -> List[Finding]:
    found = []
    small = []
    for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"):
        words = values[name].split()
        if len(words) == 3 and int(words[2]) < SOCKET_BUFFER_MIN_BYTES:
            small.append((name, words))
    if small:
        text = ", ".join(f"{name} may grow to {words[2]} bytes only" for name, words in small)
        commands = [f'sysctl -w {name}="{words[0]} {words[1]} {16 << 20}"' for name, words in small]
        found.append(Finding(host, "TCP", WARNING, text + ": slow over long or fast lines", " && ".join(commands)))
    else:
        text = f"congestion control {values['net.ipv4.tcp_congestion_control'] or 'unknown'}"
        largest = [values[name].split()[-1] for name in ("net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem") if values[name]]
        if len(largest) == 2:
            text += f", buffers to {int(largest[0]) >> 20} and {int(largest[1]) >> 20} MiB"
        found.append(Finding(host, "TCP", OK, text))
    backlog = values["net.core.somaxconn"]
    if backlog.isdigit() and int(backlog) < size.workers:
        text = f"net.core.somaxconn is {backlog}: {size.workers} workers that begin at once are partly turned away"
        found.append(Finding(host, "TCP", WARNING, text, f"sysctl -w net.core.somaxconn={max(4096, 2 * size.workers)}"))
    return found


# ---- between hosts


def versions(facts: Mapping[str, Mapping[str, Any]]) -> List[Finding]:
    found = []
    for check in ("byteps", "Python"):
        by_value: Dict[str, List[str]] = {}
        for host, each in facts.items():
            version = each["settings"].get("byteps") if check == "byteps" else each["python"]
            by_value.setdefault(version or "none", []).append(host)
        if len(by_value) == 1:
            if check == "Python":
                found.append(Finding("all", check, OK, next(iter(by_value))))
            continue
        usual = max(by_value, key=lambda version: len(by_value[version]))
        level = PROBLEM if check == "byteps" else WARNING
        for version, hosts in by_value.items():
            if version != usual:
                fix = f"--python PATH   # of a Python {usual}"
                if check == "byteps":
                    fix = f"pip install .   # in the sources of byteps {usual}, or its wheel"
                found += [Finding(host, check, level, f"{version}, others have {usual}", fix) for host in hosts]
    return found


def key_files(path: str, facts: Mapping[str, Mapping[str, Any]]) -> List[Finding]:
    """A key file that the environment names: is it the same one everywhere."""
    check = "job key"
    here = {host: each["key_file"] for host, each in facts.items() if each.get("key_file") is not None}
    if not here:
        return []
    prints: Dict[str, List[str]] = {}
    for host, file in here.items():
        if "error" not in file:
            prints.setdefault(file["fingerprint"], []).append(host)
    usual = next(iter(prints.values()), [])
    found = []
    for host, file in here.items():
        if "error" in file:
            text = f"{path}: {file['error'].lower()}"
            copy = f"scp -p {usual[0] + ':' if usual else ''}{path} {host}:{path}"
            fix = copy + "   # not needed with bpslaunch --hosts, which carries the key"
            found.append(Finding(host, check, WARNING if usual else PROBLEM, text, fix))
        elif host not in usual:
            text = f"{path} is another key than that of {usual[0]}"
            found.append(Finding(host, check, PROBLEM, text, f"scp -p {usual[0]}:{path} {host}:{path}"))
        elif file["bytes"] < 16:
            fix = f"(umask 077; openssl rand -hex 16 >{path})"
            found.append(Finding(host, check, PROBLEM, f"{path} is shorter than 16 bytes", fix))
        elif file["mode"] & 0o077:
            found.append(Finding(host, check, WARNING, f"others may read {path}", f"chmod 600 {path}"))
        else:
            found.append(Finding(host, check, OK, f"{path}, fingerprint {file['fingerprint']}"))
    return found


def pair(source: str, target: str, place: str, said: Mapping[str, Any], is_needed: bool) -> Finding:
    """Whether `source` reaches `target` at `place`."""
    check = f"reaches {target}"
    if "ms" in said:
        return Finding(source, check, OK, f"{place} from {said['via']} in {said['ms']:.1f} ms")
    address = said.get("address", "")
    where = place if address in ("", place.rpartition(":")[0].strip("[]")) else f"{place} ({address})"
    level = PROBLEM if is_needed else WARNING
    text = f"{where}: {said['error']}"
    if not is_needed:
        text += " (this job does not need it)"
    return Finding(source, check, level, text, _fix_of_connection(said["kind"], source, target, place, address))


def _fix_of_connection(kind: str, source: str, target: str, place: str, address: str) -> str:
    """kind: UNKNOWN_NAME or another."""
    host, _, port = place.rpartition(":")
    if kind == UNKNOWN_NAME:
        return f"echo 'ADDRESS {host}' >>/etc/hosts   # or write address=A behind {target} in the hostfile"
    if address.startswith("127.") and not host.startswith("127."):
        elsewhere = f"or address=A behind {target} in the hostfile"
        return f"grep -n {host} /etc/hosts   # {host} must not mean {address}; {elsewhere}"
    if kind in (NO_ANSWER, NO_ROUTE):
        return f"iptables -I INPUT -p tcp --dport 1024:65535 -s {source} -j ACCEPT   # on {target}; or address=A"
    if kind == STRANGER:
        return f"write address=A behind {target} in the hostfile: {host} is another machine for this one"
    if kind == REFUSED:
        return f"ss -ltn 'sport = :{port}'   # on {target}: does a firewall or proxy answer in its place?"
    return f"ip route get {address or host}"


def servers(found: Bound) -> Finding:
    """Whether their cards are what the job waits for."""
    check = "servers"
    if not found.is_worse:
        return Finding("all", check, OK, found.text())
    return Finding("all", check, WARNING, found.text(), f"servers=1 behind {', '.join(found.beside)} in the hostfile")


def card_rate(facts: Mapping[str, Any]) -> Optional[float]:
    """Mbit/s of the card of the host's connections, where the kernel knows it. A host that has no server does not say
    which card that is; its cards may be alike."""
    chosen = facts["settings"].get("own_address")
    cards = [each for each in facts["interfaces"] if each["address"] == chosen] or facts["interfaces"]
    rates = {each["mbit_per_s"] for each in cards}
    return rates.pop() if len(rates) == 1 else None


def clock(host: str, offset_s: float, error_s: float) -> Finding:
    text = f"{offset_s * 1e3:+.1f} ms against this machine, known to {error_s * 1e3:.1f} ms"
    if abs(offset_s) - error_s > CLOCK_TOLERANCE_S:
        return Finding(host, "clock", WARNING, text + ": logs will not fit together", "timedatectl set-ntp true")
    return Finding(host, "clock", OK, text)


def scheduler_port(host: str, port: int, trouble: str) -> Finding:
    if not trouble:
        return Finding(host, "scheduler port", OK, f"{port} is free")
    text = f"DMLC_PS_ROOT_PORT={port}: {trouble.lower()}"
    fix = f"ss -ltnp 'sport = :{port}'   # who has it; or choose another port"
    return Finding(host, "scheduler port", PROBLEM, text, fix)


def in_groups(findings: Sequence[Finding], hosts: Sequence[str]) -> List[Tuple[str, Finding]]:
    """What several hosts have in common is said once: (hosts, finding)."""
    groups: Dict[Tuple[str, str, str, str], List[str]] = {}
    for each in findings:
        groups.setdefault((each.check, each.level, each.text, each.fix), []).append(each.host)
    rows = []
    for (check, level, text, fix), where in groups.items():
        title = "all" if len(where) == len(hosts) > 1 else ", ".join(where)
        rows.append((title, Finding(title, check, level, text, fix)))
    return rows
