"""What the environment says about the process to start, with the meaning it has in upstream.

A variable that is missing or malformed raises BadEnvironment, whose text names it and the accepted
form; bpslaunch then ends with exit code 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping, Optional

# Of a job (src/base/limits.h).
WORKERS_MAX = 4096
SERVERS_MAX = 1024
SHARDS_MAX = 256  # of a server
PORT_MEANING = "the scheduler's TCP port"
ROLES = ("worker", "server", "scheduler")


class BadEnvironment(Exception):
    """The text names the variable, what it holds and what it takes."""


@dataclass(frozen=True)
class Job:
    """One machine's view of the job."""

    role: str
    machine_count: int  # DMLC_NUM_WORKER: worker machines, not processes
    machine_index: int  # DMLC_WORKER_ID; 0 unless role is worker
    local_size: int  # workers on each machine
    forced: bool  # BYTEPS_FORCE_DISTRIBUTED: use servers whatever the size

    @property
    def has_remote_servers(self) -> bool:
        """Several machines, or told so. Otherwise the job fits on this machine alone."""
        return self.machine_count > 1 or self.forced


def read_job(environ: Mapping[str, str]) -> Job:
    role = _text(environ, "DMLC_ROLE", "one of " + ", ".join(ROLES))
    if role not in ROLES:
        raise BadEnvironment(f"DMLC_ROLE='{role}' is not valid: it takes one of {', '.join(ROLES)}")
    machine_count = _number(environ, "DMLC_NUM_WORKER", 1, WORKERS_MAX, "the number of worker machines")
    forced = is_forced(environ)
    machine_index = 0
    local_size = 1
    if role == "worker":
        machine_index = _number(environ, "DMLC_WORKER_ID", 0, machine_count - 1, "the index of this worker machine")
        local_size = read_local_size(environ)
    job = Job(role, machine_count, machine_index, local_size, forced)
    if job.has_remote_servers:
        _number(environ, "DMLC_NUM_SERVER", 1, SERVERS_MAX, "the number of server processes")
        _text(environ, "DMLC_PS_ROOT_URI", "the scheduler's address, for example 10.0.0.1")
        port_min = 0 if role == "scheduler" else 1
        _number(environ, "DMLC_PS_ROOT_PORT", port_min, 65535, PORT_MEANING)
    return job


def read_local_size(environ: Mapping[str, str]) -> int:
    """How many workers this machine gets: the devices listed in NVIDIA_VISIBLE_DEVICES, as in upstream;
    when that lists none ('all', 'none', 'void', empty), BYTEPS_LOCAL_SIZE; else one."""
    devices = environ.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if devices not in ("", "all", "none", "void"):
        return devices.count(",") + 1
    if not environ.get("BYTEPS_LOCAL_SIZE"):
        return 1
    return _number(environ, "BYTEPS_LOCAL_SIZE", 1, WORKERS_MAX, "the number of workers on this machine")


def read_port(environ: Mapping[str, str]) -> Optional[int]:
    """The scheduler's; None when it is not chosen."""
    if not environ.get("DMLC_PS_ROOT_PORT"):
        return None
    return _number(environ, "DMLC_PS_ROOT_PORT", 1, 65535, PORT_MEANING)


def is_forced(environ: Mapping[str, str]) -> bool:
    """Servers are used also where a job can do without: on one machine, or by a single worker."""
    return _switch(environ, "BYTEPS_FORCE_DISTRIBUTED", default=False)


def wants_servers_anyway(environ: Mapping[str, str]) -> bool:
    """Several workers on one machine want servers: forced, or because they may not sum among themselves."""
    return is_forced(environ) or environ.get("BYTEPS_LOCAL_REDUCE") == "0"


def read_switch(environ: Mapping[str, str], name: str, default: bool) -> bool:
    return _switch(environ, name, default)


def _text(environ: Mapping[str, str], name: str, form: str) -> str:
    value = environ.get(name, "")
    if not value:
        raise BadEnvironment(f"{name} is missing: set it to {form}")
    return value


def _number(environ: Mapping[str, str], name: str, low: int, high: int, meaning: str) -> int:
    form = f"{meaning}, {low} to {high}"
    value = _text(environ, name, form)
    number = parse_number(value)
    if number is None or not low <= number <= high:
        raise BadEnvironment(f"{name}='{value}' is not valid: it takes {form}")
    return number


def parse_number(text: str) -> Optional[int]:
    """Decimal digits only: int() would also take '1_000', ' 1' and other alphabets."""
    return int(text) if text.isascii() and text.isdigit() else None


def _switch(environ: Mapping[str, str], name: str, default: bool) -> bool:
    value = environ.get(name, "")
    if value not in ("", "0", "1"):
        raise BadEnvironment(f"{name}='{value}' is not valid: it takes 0 or 1")
    return default if value == "" else value == "1"
