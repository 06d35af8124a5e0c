#!/usr/bin/env python3
"""The laboratory: BytePS and its rivals on shaped networks, in turns, beside what the cards allow.

    sudo .venv/bin/python bench/run.py                          # everything; minutes
    sudo .venv/bin/python bench/run.py --quick                  # under four minutes
    sudo .venv/bin/python bench/run.py --only n4k4 --repeats 9  # one scenario; --list names them
    ... --only n4k4 --variant BYTEPS_FRAME_BYTES=16384          # a second group of ours with this set, in turns
    ... --only n4k4 --build build/release --build build/other   # two builds, in turns

A figure is the median over the repeats, with quartiles. The ratio to the limit is limit / median: 1 is what the cards
allow. Load is the machine's load average before the scenario; drops are packets that shapers refused, and
retransmissions what TCP sent again, in all the repeats together: a burst that is dropped can cost 0.2 s.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import contenders
import netlab
import scenarios

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST_PORT = 9100


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME[,NAME]", help="these scenarios")
    parser.add_argument("--quick", action="store_true", help="the few scenarios of bench-quick, 3 repeats")
    parser.add_argument("--list", action="store_true", help="names the scenarios and ends")
    parser.add_argument("--repeats", type=int, help="turns of each group (default 7; --quick: 3)")
    parser.add_argument("--build", action="append", default=[], metavar="DIR", help="build(s) to measure")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for our processes")
    parser.add_argument("--variant", action="append", default=[], metavar="'NAME=VALUE ...'",
                        help="one more group of ours, with these set besides")  # fmt: skip
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--nice", type=int, default=-10, help="of all that is measured (default -10)")
    parser.add_argument("--congestion-control", default="reno", help="default reno")
    parser.add_argument("--no-record", action="store_true", help="no line in bench/history.jsonl")
    args = parser.parse_args()
    args.repeats = args.repeats or (3 if args.quick else 7)
    args.build = [(ROOT / build).resolve() for build in args.build or ["build/release"]]
    args.env = dict(word.split("=", 1) for word in args.env)
    args.only = [name for word in args.only for name in word.split(",")]
    return args


def selected(args):
    names = {scenario.name for scenario in scenarios.ALL}
    for name in args.only:
        if name not in names:
            sys.exit(f"run: no scenario {name!r}; there are: {', '.join(sorted(names))}")
    if args.only:
        return [scenario for scenario in scenarios.ALL if scenario.name in args.only]
    return [scenario for scenario in scenarios.ALL if scenario.quick or not args.quick]


def our_groups(args, port):
    """A group per build, and one per variant of the first build."""
    groups = []
    variants = [{}] + [dict(word.split("=", 1) for word in text.split()) for text in args.variant]
    for build in args.build:
        for variant in variants if build == args.build[0] else [{}]:
            label = "byteps" + (f" {build.name}" if len(args.build) > 1 else "")
            label += "".join(f" {name.removeprefix('BYTEPS_')}={value}" for name, value in variant.items())
            ours = contenders.BytePS(label, build, args.build[0], {**args.env, **variant}, port and port + len(groups))
            groups.append(ours)
    return groups


def make_lab(args, scenario):
    if scenario.rate is None:
        return netlab.Loopback(args.nice)
    hosts = scenario.workers + scenario.extra + 1  # the last is the scheduler's
    rates = [scenario.rate] * hosts
    for server, rate in scenario.slow_servers:
        rates[scenario.workers + server] = rate
    return netlab.Lab(hosts, rates, congestion_control=args.congestion_control, nice=args.nice)


def machine_busy_s():
    """CPU seconds that the machine has spent on anything."""
    with open("/proc/stat", encoding="ascii") as file:
        words = [int(word) for word in file.readline().split()[1:9]]
    return (sum(words) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK")


def take_turns(lab, groups, scenario, repeats):
    """Repeats of each group, interleaved, after one that warms up. By label: the list of turns."""
    turns = {group.label: [] for group in groups}
    timeout_s = 30 + 40 * scenario.operations * (scenario.limit() or scenario.size / 1e8)
    for repeat in range(repeats + 1):
        for group in groups:
            before, busy, began = lab.counters(), machine_busy_s(), time.monotonic()
            turn = group.turn(timeout_s)
            after = lab.counters()
            turn["busy_share"] = (machine_busy_s() - busy) / (time.monotonic() - began) / os.cpu_count()
            turn.update({name: after[name] - before[name] for name in before})
            if repeat > 0:
                turns[group.label].append(turn)
    return turns


def summarize(turns, scenario, limit_s):
    """The figures of one group."""
    seconds = sorted(turn["seconds"] / scenario.operations for turn in turns)
    quartiles = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    out = {
        "seconds": seconds,
        "median_s": quartiles[1],
        "quartiles_s": [quartiles[0], quartiles[2]],
        "limit_s": limit_s,
        "ratio": limit_s / quartiles[1] if limit_s else None,
    }
    for name in ("first_s", "from_last_start_s", "worker_cpu_s", "server_cpu_s", "busy_share"):
        out[name] = statistics.median(turn[name] for turn in turns)
    for name in ("drops_out", "drops_in", "retransmissions", "timeouts"):
        if name in turns[0]:
            out[name] = sum(turn[name] for turn in turns)
    return out


def measure(args, scenario):
    load = os.getloadavg()[0]
    networked = scenario.rate is not None
    groups = our_groups(args, FIRST_PORT if networked else 0)
    refused = []
    if not args.no_rivals:
        found, refused = contenders.rivals(scenario, FIRST_PORT + 50 if networked else 0)
        groups += found
    with make_lab(args, scenario) as lab:
        for group in groups:
            group.start(lab, scenario)
        for group in groups:
            group.await_ready()
        turns = take_turns(lab, groups, scenario, args.repeats)
        for group in groups:
            group.stop()
    figures = {}
    for group in groups:
        limit = scenario.ring_limit() if group.rival else scenario.limit()
        figures[group.label] = summarize(turns[group.label], scenario, limit)
    return {
        "bench": scenario.name,
        "title": scenario.title,
        "time": int(time.time()),
        "commit": commit(),
        "load": round(load, 2),
        "cores": os.cpu_count(),
        "congestion_control": args.congestion_control if networked else None,
        "repeats": args.repeats,
        "env": args.env,
        "refused": refused,
        "limit_s": scenario.limit(),
        "ring_limit_s": scenario.ring_limit(),
        "target": scenario.target,
        "size": scenario.size,
        "operations": scenario.operations,
        "figures": figures,
    }


def commit():
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, text=True, capture_output=True).stdout.strip()


def milliseconds(seconds):
    return f"{1e3 * seconds:.4g}"


def show(result):
    """A line per group."""
    figures = result["figures"]
    ours = next(iter(figures.values()))
    print(f"{result['bench']}: {result['title']}   load {result['load']:.1f}")
    for line in result["refused"]:
        print(f"  {line}")
    width = max(len(label) for label in figures)
    for label, one in figures.items():
        low, high = one["quartiles_s"]
        text = f"  {label:{width}s} {milliseconds(one['median_s']):>7s} ms ({milliseconds(low)} to {milliseconds(high)})"
        if one["limit_s"]:
            text += f"  limit {milliseconds(one['limit_s'])}  ratio {one['ratio']:.3f}"
        if one is not ours:
            text += f"  {one['median_s'] / ours['median_s']:.2f} x ours"
        if "drops_out" in one:
            text += f"  drops {one['drops_out']}+{one['drops_in']} retr {one['retransmissions']}"
        text += f"  CPU s {one['server_cpu_s']:.2f}+{one['worker_cpu_s']:.2f}"
        print(text, flush=True)


def save(result, record):
    folder = ROOT / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{result['bench']}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if not record:
        return
    line = {name: value for name, value in result.items() if name not in ("title", "refused")}
    with open(ROOT / "bench" / "history.jsonl", "a", encoding="utf-8") as history:
        history.write(json.dumps(line) + "\n")


def main():
    args = arguments()
    if args.list:
        for scenario in scenarios.ALL:
            print(f"{scenario.name:12s} {scenario.title}{'   (quick)' if scenario.quick else ''}")
        return 0
    chosen = selected(args)
    for build in args.build:
        if not (build / "bin" / "byteps_server").exists():
            sys.exit(f"run: no byteps_server in {build}/bin: build it (make setup), or name a build with --build")
    if any(scenario.rate for scenario in chosen) and netlab.missing():
        sys.exit(f"run: {netlab.missing()}. Scenarios on loopback need none of this: see --list.")
    failed = 0
    for scenario in chosen:
        try:
            result = measure(args, scenario)
        except (contenders.ContenderError, netlab.LabError) as error:
            print(f"{scenario.name}: FAILED: {error}", file=sys.stderr)
            failed += 1
            continue
        show(result)
        save(result, not args.no_record)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that labs are taken down
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
