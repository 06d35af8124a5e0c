"""bps doctor: checks this machine, or the hosts of a job, before the job runs. What it finds: docs/doctor.md."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import selectors
import sys
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from byteps.launcher import bounds, link
from byteps.launcher import hosts as job_hosts
from byteps.launcher.environment import BadEnvironment, parse_number, read_port, wants_servers_anyway
from byteps.launcher.hostfile import BadHostfile, Host, read_hosts
from byteps.launcher.hosts import BadHosts
from byteps.launcher.keeper import Keeper
from byteps.launcher.key import given_key
from byteps.launcher.link import Link
from byteps.tools import doctor_checks, doctor_findings, doctor_rdma
from byteps.tools.doctor_findings import OK, PROBLEM, WARNING, Finding, JobSize

EXIT_PROBLEM, EXIT_USAGE = 1, 2
ANSWER_WITHIN_S = 40.0
CLOCK_ROUNDS = 5
AGENT = "byteps.tools.doctor_agent"
HERE = "this machine"
COLOURS = {OK: 32, WARNING: 33, PROBLEM: 31}

EPILOG = """\
Without --hosts it checks this machine: what the variables say, its addresses, limits, and whether it reaches the
scheduler that DMLC_PS_ROOT_URI names. With --hosts FILE (the file of bpslaunch) it also checks every pair of hosts by
real connections, keys, versions and clocks.

Exit code: 0 when there is no problem (warnings may be), 1 when there is, 2 when it was called in a wrong way.
"""


def main(arguments: Sequence[str]) -> int:
    options = parse(arguments)
    environ = dict(os.environ)
    progress = Progress(not options.json)
    try:
        if options.hosts is not None:
            names, findings = check_hosts(options, environ, progress)
        else:
            names, findings = [HERE], check_here(environ, progress, options.sys)
    except (BadEnvironment, BadHostfile, BadHosts) as error:
        print(f"bps doctor: {error}", file=sys.stderr)
        return EXIT_USAGE
    progress.clear()
    if options.json:
        print(json.dumps([each.as_json() for each in findings], indent=1))
    else:
        show(names, findings)
    return EXIT_PROBLEM if any(each.level == PROBLEM for each in findings) else 0


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="bps doctor",
        description="Checks this machine, or the hosts of a job, before the job runs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--hosts", type=job_hosts.given, metavar="FILE", help="the hosts of a job, as for bpslaunch --hosts"
    )
    parser.add_argument("--json", action="store_true", help="findings as JSON on standard output, nothing else")
    parser.add_argument(
        "--sys", metavar="FOLDER", default="/sys", help="draw the machine whose /sys has been copied to this folder"
    )
    job_hosts.add_options(parser)
    options = parser.parse_args(list(arguments))
    if options.hosts is not None and options.sys != "/sys":
        parser.error("--sys is of one machine: leave out --hosts")
    for name in ("ssh", "python"):
        if options.hosts is None and getattr(options, name) is not None:
            parser.error(f"--{name} needs --hosts")
    return options


class Progress:
    """One line on a terminal, or one line per step elsewhere, on standard error."""

    def __init__(self, is_wanted: bool):
        self._is_wanted = is_wanted
        self._is_terminal = sys.stderr.isatty()

    def say(self, text: str) -> None:
        if self._is_wanted:
            begin, end = ("\r\x1b[K", "") if self._is_terminal else ("", "\n")
            print(f"{begin}bps doctor: {text} ...", end=end, file=sys.stderr, flush=True)

    def clear(self) -> None:
        if self._is_wanted and self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


# ---- this machine


def check_here(environ: Mapping[str, str], progress: Progress, sys_folder: str = "/sys") -> List[Finding]:
    progress.say("looking at this machine")
    facts = doctor_checks.facts(environ, key_path(environ), secrets.token_hex(8), sys_folder)
    role = environ.get("DMLC_ROLE", "worker")
    size = size_from(environ)
    findings = of_host(HERE, facts, {role: 1}, size)
    findings.append(Finding(HERE, "Python", OK, facts["python"]))
    findings += doctor_findings.key_files(key_path(environ), {HERE: facts})
    host, port = environ.get("DMLC_PS_ROOT_URI", ""), parse_number(environ.get("DMLC_PS_ROOT_PORT", ""))
    if role == "scheduler" and port:
        trouble = doctor_checks.is_port_free(port)
        findings.append(doctor_findings.scheduler_port(HERE, port, trouble))
    elif host and port:
        progress.say(f"connecting to {host} port {port}")
        findings.append(reaches_scheduler(host, port))
    return findings


def of_host(host: str, facts: Mapping[str, Any], roles: Mapping[str, int], size: JobSize) -> List[Finding]:
    """roles: how many processes of each role this host runs."""
    return doctor_findings.of_host(host, facts, roles, size) + doctor_rdma.findings(host, facts, roles, size)


def reaches_scheduler(host: str, port: int) -> Finding:
    said = doctor_checks.connect(host, port, "")
    place = at(host, port)
    if "ms" in said or said.get("is_open"):
        return Finding(HERE, "reaches the scheduler", OK, f"{place}: something listens there")
    if said["kind"] == doctor_findings.REFUSED:
        return Finding(HERE, "reaches the scheduler", OK, f"{place}: the host answers, no scheduler runs there yet")
    return doctor_findings.pair(HERE, "the scheduler", place, said, True)


def size_from(environ: Mapping[str, str]) -> JobSize:
    def number(name: str, default: int) -> int:
        return parse_number(environ.get(name, "")) or default

    workers = number("BYTEPS_GLOBAL_SIZE", number("DMLC_NUM_WORKER", 1) * number("BYTEPS_LOCAL_SIZE", 1))
    shards = number("BYTEPS_SERVER_ENGINE_THREAD", max(1, (os.cpu_count() or 1) // 2))
    return JobSize(workers, number("DMLC_NUM_SERVER", 0), shards)


# ---- the hosts of a job


def check_hosts(
    options: argparse.Namespace, environ: Mapping[str, str], progress: Progress
) -> Tuple[List[str], List[Finding]]:
    listed = read_hosts(options.hosts, wants_servers=wants_servers_anyway(environ))
    address = job_hosts.scheduler_address(listed, environ)
    common = job_hosts.forwarded(environ)
    given_key(environ)  # an unreadable one is an error at once
    port = read_port(environ)
    ssh = job_hosts.ssh_words(options.ssh)
    names = [host.name for host in listed]
    keeper = Keeper()
    links: List[Link] = []
    try:
        progress.say(f"connecting to {len(listed)} hosts over ssh")
        python = options.python or link.default_python()
        links = [Link(host, ssh, python, keeper, AGENT) for host in listed]
        with selectors.DefaultSelector() as selector:
            there = link.connect(links, selector)
            findings = [
                Finding(each.host.name, "ssh", PROBLEM, each.why_unreachable(), by_hand(each))
                for each in links
                if each.lost is not None
            ]
            findings += [Finding(each.host.name, "ssh", OK, "the agent answers") for each in there]
            if there:
                findings += Ward(there, links, selector, progress).findings(address, port, common, environ)
            job_hosts.release(links, keeper)
    finally:
        keeper.dismiss()
    return names, findings


def by_hand(lost: Link) -> str:
    return f"{lost.command_by_hand()} true"


class Ward:
    """The hosts that answer, and what they are asked."""

    def __init__(self, there: List[Link], all_links: List[Link], selector: selectors.BaseSelector, progress: Progress):
        self._there = there
        self._all = all_links
        self._selector = selector
        self._progress = progress
        self._key = secrets.token_hex(32)  # of this examination

    def _ask(self, links: Sequence[Link], question: str, details: Sequence[Mapping[str, Any]]) -> List[Any]:
        return link.ask_each(links, self._selector, ANSWER_WITHIN_S, question, details)

    def findings(
        self, address: str, port: Optional[int], common: Mapping[str, str], environ: Mapping[str, str]
    ) -> List[Finding]:
        first = self._all[0]
        facts = self._facts(address, port or 1, common, environ)
        findings: List[Finding] = []
        for each in self._there:
            if each.host.name in facts:
                size = self._size(facts[each.host.name]["cores"], common)
                mine = facts[each.host.name]
                findings += of_host(each.host.name, mine, roles_of(each.host, each is first), size)
            else:
                text = each.lost or "does not answer"
                findings.append(Finding(each.host.name, "agent", PROBLEM, text, by_hand(each)))
        findings += doctor_findings.versions(facts)
        findings += self._servers(common, facts)
        findings += self._keys(environ, facts)
        if port and first in self._there:
            (trouble,) = self._ask([first], "port free", [{"port": port}])
            findings.append(doctor_findings.scheduler_port(first.host.name, port, trouble or ""))
        findings += self._pairs(address)
        findings += self._clocks()
        return findings

    def _facts(
        self, address: str, port: int, common: Mapping[str, str], environ: Mapping[str, str]
    ) -> Dict[str, Dict[str, Any]]:
        self._progress.say("looking at each host")
        nonce = secrets.token_hex(8)
        planned = job_hosts.job_plan(self._all, address, port, ["true"], common)
        details = []
        for each in self._there:
            mine = [process for process in planned.processes if process.link is each]
            chosen = next((process for process in mine if process.role == "server"), mine[0] if mine else None)
            own = dict(chosen.environ) if chosen else dict(common)
            own["BYTEPS_JOB_KEY"] = self._key  # as bpslaunch --hosts gives one
            details.append({"environ": own, "key_path": key_path(environ), "nonce": nonce})
        replies = self._ask(self._there, "facts", details)
        return {each.host.name: reply for each, reply in zip(self._there, replies) if reply is not None}

    def _size(self, core_count: int, common: Mapping[str, str]) -> JobSize:
        workers = sum(each.host.workers for each in self._all)
        servers = sum(each.host.servers for each in self._all)
        shards = parse_number(common.get("BYTEPS_SERVER_ENGINE_THREAD", "")) or max(1, core_count // 2)
        return JobSize(workers, servers, shards)

    def _servers(self, common: Mapping[str, str], facts: Mapping[str, Mapping[str, Any]]) -> List[Finding]:
        rates = {name: doctor_findings.card_rate(each) or 0.0 for name, each in facts.items()}
        if common.get("BYTEPS_NIC_MBPS"):  # what is set for all
            rates = {}
        found = bounds.of_hosts([each.host for each in self._all], common, rates)
        return [doctor_findings.servers(found)] if found is not None else []

    def _keys(self, environ: Mapping[str, str], facts: Mapping[str, Mapping[str, Any]]) -> List[Finding]:
        if environ.get("BYTEPS_JOB_KEY_FILE"):
            return doctor_findings.key_files(key_path(environ), facts)
        whose = "BYTEPS_JOB_KEY is set" if environ.get("BYTEPS_JOB_KEY") else "bpslaunch --hosts makes one for each job"
        return [Finding("all", "job key", OK, whose)]

    def _pairs(self, address: str) -> List[Finding]:
        """Every ordered pair, by a connection in which both sides prove that they belong to this examination."""
        count = len(self._there) ** 2
        self._progress.say(f"connecting {count} pairs of hosts" if count > 1 else "connecting the host to itself")
        opened = self._ask(self._there, "listen", [{"ports": [0], "key": self._key}] * len(self._there))
        findings = []
        places: List[Tuple[Link, str, int]] = []  # who, at which address and port
        for each, ports in zip(self._there, opened):
            if ports and isinstance(ports[0], int):
                places.append((each, each.host.address, ports[0]))
                if each is self._all[0] and address != each.host.address:
                    places.append((each, address, ports[0]))
            else:
                said = str(ports[0] if ports else "no answer").lower()
                findings.append(Finding(each.host.name, "ports", PROBLEM, f"cannot listen at any: {said}", "ss -s"))
        targets = [(at_address, port) for _, at_address, port in places]
        results = self._ask(self._there, "reach", [{"places": targets, "key": self._key}] * len(self._there))
        self._ask(self._there, "end listening", [{}] * len(self._there))
        for source, said in zip(self._there, results):
            for (target, at_address, port), one in zip(places, said or []):
                # All go to the scheduler, workers to servers.
                is_needed = at_address == address if target is self._all[0] else False
                is_needed = is_needed or (source.host.workers > 0 and target.host.servers > 0)
                findings.append(
                    doctor_findings.pair(source.host.name, target.host.name, at(at_address, port), one, is_needed)
                )
        return findings

    def _clocks(self) -> List[Finding]:
        self._progress.say("comparing clocks")
        best: Dict[Link, Tuple[float, float]] = {}
        for _ in range(CLOCK_ROUNDS):
            for each in self._there:
                before_s = doctor_checks.now()
                (theirs,) = self._ask([each], "now", [{}])
                after_s = doctor_checks.now()
                error_s = (after_s - before_s) / 2
                if theirs is not None and (each not in best or error_s < best[each][1]):
                    best[each] = (theirs - (before_s + after_s) / 2, error_s)
        return [doctor_findings.clock(each.host.name, *value) for each, value in best.items()]


def key_path(environ: Mapping[str, str]) -> str:
    path = environ.get("BYTEPS_JOB_KEY_FILE", "")
    return os.path.abspath(path) if path else ""


def roles_of(host: Host, has_scheduler: bool) -> Dict[str, int]:
    roles = {"worker": host.workers, "server": host.servers, "scheduler": int(has_scheduler)}
    return {role: number for role, number in roles.items() if number > 0}


def at(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# ---- showing


def show(names: Sequence[str], findings: Sequence[Finding]) -> None:
    rows = doctor_findings.in_groups(findings, names)
    order = {OK: 0, WARNING: 1, PROBLEM: 2}
    rows.sort(key=lambda row: order[row[1].level])  # what needs work stands last, where it is seen
    widths = [max([len(title) for title, _ in rows] + [4]), max([len(each.check) for _, each in rows] + [5])]
    widths[0] = min(widths[0], 32)
    is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ
    indent = " " * (widths[0] + widths[1] + 4)
    for title, each in rows:
        level = f"\x1b[{COLOURS[each.level]}m{each.level:7}\x1b[0m" if is_coloured else f"{each.level:7}"
        text = each.text.replace("\n", "\n" + indent + " " * 7)
        print(f"{title:{widths[0]}}  {each.check:{widths[1]}}  {level}  {text}")
        if each.fix:
            print(f"{indent}   fix:  {each.fix}")
    counts = {level: sum(each.level == level for each in findings) for level in (PROBLEM, WARNING, OK)}
    print("\n" + ", ".join(f"{number} {plural(level, number)}" for level, number in counts.items()))


def plural(level: str, number: int) -> str:
    return level if level == OK or number == 1 else level + "s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
