"""bps: one command for people who look after jobs. Each subcommand is a module with main(arguments) -> exit code."""

import importlib
import sys
from typing import Sequence

from byteps.launcher import standard

SUBCOMMANDS = {
    "doctor": ("byteps.tools.doctor", "check hosts, ports, limits and keys before a job runs"),
    "trace": ("byteps.tools.trace", "say where the time goes, from timelines (BYTEPS_TRACE_ON)"),
    "why": ("byteps.tools.why", "name the first cause of a job that failed"),
}


def main() -> int:
    return standard.run(lambda: run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    name, *rest = arguments
    if name not in SUBCOMMANDS:
        print(f"bps: there is no subcommand {name!r}\n\n{usage()}", file=sys.stderr)
        return 2
    return int(importlib.import_module(SUBCOMMANDS[name][0]).main(rest))


def usage() -> str:
    lines = ["usage: bps SUBCOMMAND [...]; `bps SUBCOMMAND --help` says more", ""]
    lines += [f"  {name:8} {what}" for name, (_, what) in SUBCOMMANDS.items()]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
