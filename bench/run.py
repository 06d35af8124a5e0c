#!/usr/bin/env python3
"""The laboratory: BytePS and its rivals on shaped networks, in turns, beside what the cards allow.

    sudo .venv/bin/python bench/run.py                          # everything; minutes
    sudo .venv/bin/python bench/run.py --quick                  # under four minutes
    sudo .venv/bin/python bench/run.py --only n4k4 --repeats 9  # one scenario; --list names them
    ... --only n4k4 --variant BYTEPS_FRAME_BYTES=16384          # a second group of ours with this set, in turns
    ... --only n4k4 --build build/release --build build/other   # two builds, in turns

Results go to build/bench (one JSON per scenario, plots) and, a line each, to bench/history.jsonl.

A figure is the median over the repeats, with quartiles. The ratio to the limit is limit / median: 1 is what the cards
allow. Load is the machine's load average before the scenario; drops are packets that shapers refused, and
retransmissions what TCP sent again, in all the repeats together: a burst that is dropped can cost 0.2 s.
"""

import argparse
import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import contenders
import kernels
import netlab
import report
import scenarios
import steps
from burners import Burners
from group import ContenderError

ROOT = pathlib.Path(__file__).resolve().parent.parent
FIRST_PORT = 9100


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], metavar="NAME[,NAME]", help="these scenarios")
    parser.add_argument("--quick", action="store_true", help="the few scenarios of bench-quick, 3 repeats")
    parser.add_argument("--list", action="store_true", help="names the scenarios and ends")
    parser.add_argument("--repeats", type=int, help="turns of each group (default mostly 7; --quick: 3)")
    parser.add_argument("--build", action="append", default=[], metavar="DIR", help="build(s) to measure")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="for our processes")
    parser.add_argument("--variant", action="append", default=[], metavar="'NAME=VALUE ...'",
                        help="one more group of ours, with these set besides")  # fmt: skip
    parser.add_argument("--no-rivals", action="store_true")
    parser.add_argument("--nice", type=int, default=-10, help="of all that is measured (default -10)")
    parser.add_argument("--congestion-control", default="reno", help="default reno")
    parser.add_argument("--no-record", action="store_true", help="no line in bench/history.jsonl")
    parser.add_argument("--output", type=pathlib.Path, default=contenders.OUTPUT, help="for results and plots")
    args = parser.parse_args()
    # A link stays what it is called: that may be what tells two builds apart.
    args.build = [pathlib.Path(os.path.normpath(ROOT / build)) for build in args.build or ["build/release"]]
    if len(set(args.build)) < len(args.build):
        parser.error("--build names one folder twice; a symbolic link to it would be another name")
    args.env = dict(word.split("=", 1) for word in args.env)
    args.only = [name for word in args.only for name in word.split(",")]
    return args


def selected(args):
    names = {*(scenario.name for scenario in scenarios.ALL), "kernels"}
    for name in args.only:
        if name not in names:
            sys.exit(f"run: no scenario {name!r}; there are: {', '.join(sorted(names))}")
    if args.only:
        return [scenario for scenario in scenarios.ALL if scenario.name in args.only]
    return [scenario for scenario in scenarios.ALL if scenario.quick or not args.quick]


def repeats_of(args, scenario):
    return args.repeats or (3 if args.quick else scenario.repeats)


def settings(text):
    """'A=1 B=2' -> {"A": "1", "B": "2"}"""
    return dict(word.split("=", 1) for word in text.split())


def build_names(builds):
    """Each path without what all of them begin and end with: /a/main/build and /a/other/build are "main" and "other".
    One alone needs no name: ""."""
    paths = [list(build.parts) for build in builds]
    for end in (0, -1):
        while len({path[end] for path in paths}) == 1 and all(len(path) > 1 for path in paths):
            for path in paths:
                del path[end]
    return ["/".join(path) for path in paths] if len(builds) > 1 else [""]


def our_groups(args, scenario, port):
    """A group per build, named by what tells its path from the others'; and for the first build one per variant, the
    scenario's and those asked for."""
    variants = [("", {})] + [(label, dict(pairs)) for label, pairs in scenario.variants]
    variants += [(text.replace("BYTEPS_", ""), settings(text)) for text in args.variant]
    groups = []
    for build, its_name in zip(args.build, build_names(args.build)):
        for label, variant in variants if build == args.build[0] else variants[:1]:
            name = " ".join(filter(None, ["byteps", its_name, label]))
            env = {**args.env, **variant}
            groups.append(contenders.BytePS(name, build, args.build[0], env, port and port + len(groups)))
    return groups


def framework_groups(args, scenario, port):
    """More groups of ours, whose workers train with other frameworks; and a line for each that is not here."""
    why = {name: contenders.why_no_framework(name) for name in scenario.frameworks}
    here = [name for name in why if not why[name]]
    groups = [
        contenders.BytePS(f"byteps {name}", args.build[0], args.build[0], args.env, port and port + place, name)
        for place, name in enumerate(here)
    ]
    return groups, [line for line in why.values() if line]


def make_lab(args, scenario):
    if scenario.rate is None:
        return netlab.Loopback(args.nice)
    first_server = len(scenario.ranks())
    hosts = first_server + scenario.extra + 1  # the last is the scheduler's
    rates = [scenario.rate] * hosts
    for server, rate in scenario.slow_servers:
        rates[first_server + server] = rate
    line = {"delay_ms": scenario.delay_ms, "loss": scenario.loss, "box": args.build[0] / "bin" / "wan_box"}
    cards = {"cards": scenario.cards, "one_subnet": scenario.one_subnet}
    return netlab.Lab(hosts, rates, congestion_control=args.congestion_control, nice=args.nice, **line, **cards)


def machine_busy_s():
    """CPU seconds that the machine has spent on anything."""
    with open("/proc/stat", encoding="ascii") as file:
        words = [int(word) for word in file.readline().split()[1:9]]
    return (sum(words) - words[3] - words[4]) / os.sysconf("SC_CLK_TCK")


def one_turn(lab, group, word, timeout_s, with_cards=False):
    """A group's turn, with what happened meanwhile to network and machine."""
    cards = lab.card_bytes() if with_cards else []
    before, busy, began = lab.counters(), machine_busy_s(), time.monotonic()
    turn = group.turn(timeout_s, word)
    after = lab.counters()
    turn["busy_share"] = (machine_busy_s() - busy) / (time.monotonic() - began) / os.cpu_count()
    turn.update({name: after[name] - before[name] for name in before})
    if cards:
        turn["card_bytes"] = [[new - old for new, old in zip(*both)] for both in zip(lab.card_bytes(), cards)]
    return turn


def take_turns(lab, groups, scenario, repeats):
    """Repeats of each group, interleaved, mostly after one that warms up. By label: the list of turns."""
    turns = {}
    timeout_s = 60 + 40 * scenario.operations * (scenario.limit() or scenario.size / 1e7)
    burners = Burners(lab, max(scenario.busy))
    warm = 0 if scenario.from_first else 1
    for repeat in range(warm + repeats):
        for group, busy in itertools.product(groups, scenario.busy):
            for word, label in group.words(scenario):
                with burners.burning(busy):
                    turn = one_turn(lab, group, word, timeout_s, with_cards=bool(scenario.hosts))
                if repeat >= warm:
                    turns.setdefault(burners.label(label, busy), []).append(turn)
    return turns


def summarize(turns, scenario, limit_s):
    """The figures of one label."""
    which = "from_last_start_s" if scenario.from_last_start else "seconds"
    seconds = sorted(turn[which] / scenario.operations for turn in turns)
    quartiles = statistics.quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    out = {
        "seconds": seconds,
        "median_s": quartiles[1],
        "quartiles_s": [quartiles[0], quartiles[2]],
        "limit_s": limit_s,
        "ratio": limit_s / quartiles[1] if limit_s else None,
    }
    if scenario.from_first:
        out["first_turn_s"] = turns[0][which] / scenario.operations
    for name in ("first_s", "own_first_s", "worker_cpu_s", "server_cpu_s", "busy_share", "push_s", "pull_s", "add_s"):
        if name in turns[0]:
            out[name] = statistics.median(turn[name] for turn in turns)
    if scenario.warm:  # servers are looked at before and after the whole round
        out["server_cpu_s"] *= scenario.operations / (scenario.operations + scenario.warm)
    for name in ("drops_out", "drops_in", "retransmissions", "timeouts", "lost", "line_drops"):
        if name in turns[0]:
            out[name] = sum(turn[name] for turn in turns)
    if sum(map(sum, (turn.get("pushed_frames", ()) for turn in turns))):
        out["wanted_share"] = statistics.median(sum(t["wanted_messages"]) / sum(t["pushed_frames"]) for t in turns)
    return {**out, **copies(turns, scenario)} if scenario.hosts else out


def copies(turns, scenario):
    """How many times its size an operation sends over the card of each host and receives, and each rank pushes: of
    workers' hosts first, then of servers'."""
    bytes_ = scenario.size * (scenario.operations + scenario.warm)
    out = {}
    if "card_bytes" in turns[0]:
        cards = list(zip(*(turn["card_bytes"] for turn in turns)))[:-1]  # the last is the scheduler's
        out["cards"] = [[round(statistics.median(way) / bytes_, 4) for way in zip(*card)] for card in cards]
    if "pushed_bytes" in turns[0]:
        pushed = zip(*(turn["pushed_bytes"] for turn in turns))
        out["pushed"] = [round(statistics.median(rank) / bytes_, 4) for rank in pushed]
    return out


def other_figures(groups, scenario):
    """Of our first group: how its memory has grown and, when the scenario asks, what it uses in rest."""
    ours = groups[0]
    out = {
        "server_memory_growth": ours.memory_growth(ours.servers()),
        "worker_memory_growth": ours.memory_growth(ours.workers),
    }
    if scenario.idle_s:
        out["idle_share"] = ours.idle_share(scenario.idle_s)
    return out


def start(lab, scenario, group):
    """One group after the other: two mpiruns that start at once get into each other's way. Open MPI's daemons sometimes
    do not find each other even so: a rival has a second try."""
    for is_last in (not group.rival, True):
        try:
            group.start(lab, scenario)
            return group.await_ready()
        except ContenderError:
            if is_last:
                raise
            for process in group.others:
                process.stop(0)
            group.workers, group.others = [], []


def start_all(lab, scenario, groups):
    """The groups that run then, and a line for each that its build is unable to run."""
    running, refused = [], []
    for group in groups:
        try:
            start(lab, scenario, group)
            running.append(group)
        except ContenderError as error:
            if not group.optional:
                raise
            for process in group.workers + group.others:
                process.stop(0)
            refused.append(f"{group.label} is left out: {str(error).splitlines()[-1].strip()}")
    return running, refused


def run_groups(args, scenario, groups):
    """Turns of all groups that run, what else there is to say of ours, and a line for each group that does not."""
    with make_lab(args, scenario) as lab:
        groups, refused = start_all(lab, scenario, groups)
        for group in groups:
            group.note_memory()
        turns = take_turns(lab, groups, scenario, repeats_of(args, scenario))
        others = other_figures(groups, scenario)
        for group in groups:
            group.stop()
    return turns, others, refused


def measure(args, scenario):
    load = os.getloadavg()[0]
    port = FIRST_PORT if scenario.rate is not None else 0
    groups = our_groups(args, scenario, port)
    found, refused = framework_groups(args, scenario, port and port + len(groups))
    groups += found
    if not args.no_rivals:
        found, more = contenders.rivals(scenario, args.build[0], port and port + 50, args.env)
        groups, refused = groups + found, refused + more
    turns, others, unable = run_groups(args, scenario, groups)
    figures, meanings = {}, {}
    for group in groups:
        for (word, name), busy in itertools.product(group.words(scenario), scenario.busy):
            label = Burners.label(name, busy)
            if label in turns:
                meanings[label] = word, group.kind
                figures[label] = summarize(turns[label], scenario, scenario.limit_of(word, group.kind))
    if scenario.program == "step":
        add_own_compute(figures, meanings, scenario)
    told = ("title", "section", "workers", "extra", "colocated", "rate", "size", "tensors", "operations", "target")
    told += ("hosts", "flat_target", "cpu_target", "card_target", "cards", "cards_target") if scenario.hosts else ()
    told += ("delay_ms", "loss") if scenario.delay_ms or scenario.loss else ()
    return {
        "bench": scenario.name,
        **{name: getattr(scenario, name) for name in (*told, "gloo_target", "time_target_s", "wanted_target")},
        "time": int(time.time()),
        "commit": commit(),
        "load": round(load, 2),
        "cores": os.cpu_count(),
        "congestion_control": args.congestion_control if port else None,
        "repeats": repeats_of(args, scenario),
        "env": {**dict(scenario.env), **args.env},
        "refused": refused + unable,
        "limit_s": scenario.limit(),
        "ring_limit_s": scenario.ring_limit(),
        **others,
        "figures": figures,
    }


def add_own_compute(figures, meanings, scenario):
    """What a framework and its optimizer take by themselves, as it was measured, is part of each ideal. `meanings`: the
    word and the kind of each label."""
    alone = {
        label: steps.Alone(one["median_s"], report.update_s(label, one) or 0.0)
        for label, one in figures.items()
        if "compute" in label.split()
    }
    for label, one in figures.items():
        one["limit_s"] = scenario.limit_of(*meanings[label], alone[report.label_alone(label, alone)])
        if one["limit_s"]:
            one["ratio"] = one["limit_s"] / one["median_s"]


def commit():
    def git(*words):
        return subprocess.run(["git", *words], cwd=ROOT, text=True, capture_output=True).stdout.strip()

    history = ":(exclude)bench/history.jsonl"  # every run adds to it
    return git("describe", "--always") + ("-dirty" if git("diff", "--name-only", "HEAD", "--", history) else "")


def describe(result, label, one, ours):
    """The rest of a figure's line."""
    low, high = one["quartiles_s"]
    text = f"{report.milliseconds(one['median_s']):>7s} ms ({report.milliseconds(low)} to {report.milliseconds(high)})"
    if one["limit_s"]:
        text += f"  limit {report.milliseconds(one['limit_s'])}, ratio {one['ratio']:.3f}"
    if one is not ours:
        text += f"  {one['median_s'] / ours['median_s']:.2f} x ours"
    update_s = report.update_s(label, one)
    if update_s is not None:
        text += f"  update {report.milliseconds(update_s)}"
    elif one["first_s"] < 0.9 * one["median_s"]:
        what = "submitted in" if label.endswith("small") else "first layer"
        text += f"  {what} {report.milliseconds(one['first_s'])}"
    if "drops_out" in one:
        text += f"  drops {one['drops_out']}+{one['drops_in']}, again {one['retransmissions']}"
    if "lost" in one:
        text += f"  lost on the line {one['lost']}"
    text += f"  CPU s {one['server_cpu_s']:.2f}+{one['worker_cpu_s']:.2f}"
    text += f", {report.cores_share(result, one):.0%} of the cores" if report.is_step(result) else ""
    if one.get("wanted_share", 0) >= 0.0005:
        text += f"  wanted {one['wanted_share']:.3f} a frame"
    return text + (f"  most over a card {report.busiest_card(one):.2f} M" if "cards" in one else "")


def show(result):
    """A line per group."""
    figures = result["figures"]
    ours = next(iter(figures.values()))
    for line in result["refused"]:
        print(f"  {line}")
    width = max(len(label) for label in figures)
    for label, one in figures.items():
        print(f"  {label:{width}s} {describe(result, label, one, ours)}")
    for line in report.verdicts(result):
        print(f"  {line}")
    sys.stdout.flush()


def save(result, folder, record):
    (folder / f"{result['bench']}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if not record:
        return
    line = {name: value for name, value in result.items() if name not in ("title", "section", "refused")}
    with open(ROOT / "bench" / "history.jsonl", "a", encoding="utf-8") as history:
        history.write(json.dumps(line) + "\n")


def expected_s(args, scenario):
    """About how long a scenario takes: starting everything, then the turns."""
    groups = len(args.build) + len(args.variant) + len(scenario.variants) + len(scenario.frameworks)
    groups += 0 if args.no_rivals else len(scenario.rivals)
    one = (scenario.limit() or scenario.size * scenario.workers / 1e9) * scenario.operations * 1.4 + 0.3
    turns = (repeats_of(args, scenario) + 1) * groups * len(scenario.words) * len(scenario.busy)
    return 4 + 1.5 * scenario.workers + turns * one


def no_room(scenario):
    """Why the scenario cannot run in this machine's memory; empty when it can."""
    with open("/proc/meminfo", encoding="ascii") as lines:
        free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    need = scenario.memory_bytes()
    return f"needs about {need >> 20} MiB of memory, and {free >> 20} are free" if need > 0.9 * free else ""


def run_one(args, scenario):
    """Measures, shows and keeps one scenario; 1 when it failed."""
    why = no_room(scenario)
    if why:
        print(f"  left out: {why}")
        return 0
    try:
        result = measure(args, scenario)
    except (ContenderError, netlab.LabError) as error:
        print(f"  FAILED: {error}", file=sys.stderr)
        return 1
    save(result, args.output, not args.no_record)
    show(result)
    return 0


def run_all(args, chosen):
    contenders.OUTPUT.mkdir(parents=True, exist_ok=True)
    args.output.mkdir(parents=True, exist_ok=True)
    began, planned, done, failed = time.monotonic(), sum(expected_s(args, s) for s in chosen), 0.0, 0
    for number, scenario in enumerate(chosen, 1):
        pace = (time.monotonic() - began) / done if done else 1.0
        left = (planned - done) * pace
        when = f"{left / 60:.0f} min left" if left > 90 else f"{left:.0f} s left"
        print(f"[{number}/{len(chosen)}] {scenario.name}: {scenario.title}   (load {os.getloadavg()[0]:.1f}, {when})",
              flush=True)  # fmt: skip
        failed += run_one(args, scenario)
        done += expected_s(args, scenario)
    return failed


def main():
    args = arguments()
    if args.list:
        for scenario in scenarios.ALL:
            print(f"{scenario.name:22s} {scenario.title}{'   (quick)' if scenario.quick else ''}")
        print(f"{'kernels':22s} the summation kernels beside plain loops and torch's add_   (quick)")
        return 0
    chosen = selected(args)
    for build in args.build:
        if not (build / "bin" / "byteps_server").exists():
            sys.exit(f"run: no byteps_server in {build}/bin: build it (make setup), or name a build with --build")
    if any(scenario.rate for scenario in chosen) and netlab.missing():
        sys.exit(f"run: {netlab.missing()}. Scenarios on loopback (10k, grow-*) need none of this: --only 10k.")
    failed = run_all(args, chosen)
    if not args.only or "kernels" in args.only:
        failed += kernels.run(args.build[0], args.output, commit(), not args.no_record, args.quick)
    report.plot(args.output)
    return 1 if failed else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that labs are taken down
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        print("run: interrupted; nothing is left running", file=sys.stderr)
        sys.exit(130)
