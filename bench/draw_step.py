#!/usr/bin/env python3
"""A picture of training steps, from timelines of the laboratory: one row per layer, one panel per folder.

    sudo .venv/bin/python bench/run.py --only step-vgg-n4 --no-rivals --repeats 1 --no-record \\
      --env BYTEPS_TRACE_ON=1 --env BYTEPS_TRACE_DIR=/tmp/new \\
      --env BYTEPS_TRACE_START_STEP=3 --env BYTEPS_TRACE_END_STEP=6
    .venv/bin/python bench/draw_step.py before=/tmp/old after=/tmp/new -o docs/pictures/step.svg

The bench runs several kinds of training in turn, which name their tensors alike; a suffix tells them apart in the
timeline. --suffix picks one: "" is that of the first kind, the hooks.
"""

import argparse
import json
import pathlib
import re
import sys

COLORS = {"waits for its turn": "#c8c8c8", "is sent": "#4878cf", "comes back": "#6acc65"}


def steps_of(folder, suffix):
    """[{layer: (submitted, first byte out, first answer, end)}], in milliseconds, of each step of worker 0."""
    path = pathlib.Path(folder) / "0" / "comm-0.json"
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    pattern = re.compile(rf"Comm\.byteps\.Gradient\.(\d+)\.weight0{re.escape(suffix)}")
    rounds = {}
    for event in events:
        found = pattern.fullmatch(event["pid"])
        if not found:
            continue
        layer, args = int(found[1]), event["args"]
        times = rounds.setdefault(args["round"], {}).setdefault(layer, {})
        start, end = event["ts"] / 1e3, (event["ts"] + event["dur"]) / 1e3
        if event["tid"] == "total":
            times["submitted"], times["end"] = start, end
        elif event["name"].endswith(".PUSH"):
            times["out"] = min(start, times.get("out", start))
            answer = args["first_answer"] / 1e3
            times["answer"] = min(answer, times.get("answer", answer))
    whole = [rounds[number] for number in sorted(rounds)]
    keys = ("submitted", "out", "answer", "end")
    return [
        {layer: tuple(times[key] for key in keys) for layer, times in step.items()}
        for step in whole
        if all(len(times) == len(keys) for times in step.values())
    ]


def median_step(steps):
    """The step whose time from the first submission to the last end is the median."""
    if not steps:
        sys.exit("draw_step: no whole step in the timeline: is --suffix right, and BYTEPS_TRACE_END_STEP large enough?")
    return sorted(steps, key=lambda step: span(step)[1] - span(step)[0])[len(steps) // 2]


def span(step):
    return min(times[0] for times in step.values()), max(times[3] for times in step.values())


def draw(axes, title, step):
    begin, end = span(step)
    for layer, times in step.items():
        points = [time - begin for time in times]
        for label, left, right in zip(COLORS, points, points[1:]):
            axes.barh(layer, right - left, left=left, height=0.8, color=COLORS[label], label=label)
    last = max(times[0] for times in step.values()) - begin
    axes.axvline(last, color="black", linewidth=0.8, linestyle="--")
    axes.set_title(f"{title}: all sums are there after {end - begin:.0f} ms", fontsize=10)
    axes.set_ylabel("layer, first to last", fontsize=9)
    axes.invert_yaxis()
    axes.annotate("the backward pass ends", (last, -0.2), fontsize=7, xytext=(4, 0), textcoords="offset points")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", metavar="TITLE=FOLDER", help="what BYTEPS_TRACE_DIR was")
    parser.add_argument("--suffix", default="", help="of the tensors' names")
    parser.add_argument("-o", "--output", type=pathlib.Path, required=True, help="an .svg or .png")
    args = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "byteps"  # equal input, equal file
    from matplotlib import pyplot

    chosen = [folder.partition("=") for folder in args.folders]
    drawn = [(title, median_step(steps_of(folder, args.suffix))) for title, _, folder in chosen]
    figure, rows = pyplot.subplots(len(drawn), 1, figsize=(8, 2.6 * len(drawn)), sharex=True, squeeze=False)
    for (axes,), (title, step) in zip(rows, drawn):
        draw(axes, title, step)
    rows[-1][0].set_xlabel("ms since the last layer's gradient", fontsize=9)
    named = dict(zip(*rows[0][0].get_legend_handles_labels()[::-1]))
    rows[0][0].legend(named.values(), named.keys(), fontsize=7, loc="lower right")
    figure.tight_layout()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.output, metadata={"Date": None} if args.output.suffix == ".svg" else None)
    print(args.output)


if __name__ == "__main__":
    main()
