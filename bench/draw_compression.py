#!/usr/bin/env python3
"""The two pictures of docs/compression.md: what a step takes by the rate of the line, of the laboratory's rows
coded-mlp (the last of each in history.jsonl), and what is learned by what is sent, of the page's own table.

    .venv/bin/python bench/draw_compression.py        # docs/pictures/compression-*.svg

Each says in its description which figures it shows; tests/tools/test_bench.py compares them with the present ones.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PICTURES = ROOT / "docs" / "pictures"
ROWS = {"coded-mlp": 1000, "coded-mlp-100m": 100}  # Mbit/s
SERIES = {
    "none": ("byteps", "#4878cf"),
    "fp16": ("byteps fp16", "#6acc65"),
    "int8": ("byteps int8", "#d65f5f"),
    "int4, error feedback": ("byteps int4:error_feedback", "#b47cc7"),
    "powersgd(rank=4)": ("byteps powersgd", "#c4ad66"),
    "DDP over gloo": ("gloo", "#9a9a9a"),
    "DDP, its fp16 hook": ("gloo fp16", "#9a9a9a"),
    "DDP, its PowerSGD hook": ("gloo powersgd", "#9a9a9a"),
    "computing alone": ("byteps compute", "#000000"),
}


def steps():
    """{label: {Mbit/s: ms of a step, the median}}."""
    found = {}
    for line in (ROOT / "bench" / "history.jsonl").read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record.get("bench") in ROWS:
            found[ROWS[record["bench"]]] = record["figures"]
    return {
        label: {str(rate): round(1000 * figures[name]["median_s"]) for rate, figures in sorted(found.items())}
        for label, (name, _) in SERIES.items()
    }


def accuracies():
    """{compression: [accuracy in percent, the mean of all seeds, that of the worst, of the best, MB sent]}."""
    page = (ROOT / "docs" / "compression.md").read_text(encoding="utf-8")
    table = re.search(r"^compression +accuracy .*\n((?:.+\n)+?)```", page, re.MULTILINE)
    rows = re.findall(r"^(\S.*?) +([\d.]+)% +([\d.]+)% +([\d.]+)% +[-+\d.]+ +([\d.]+)$", table[1], re.MULTILINE)
    return {name: [float(each) for each in found] for name, *found in rows}


def draw_steps(axes, figures):
    styles = {"DDP over gloo": "-", "DDP, its fp16 hook": "--", "DDP, its PowerSGD hook": "-.", "computing alone": ":"}
    for label, by_rate in figures.items():
        rates = [int(rate) for rate in by_rate]
        axes.plot(
            rates, list(by_rate.values()), styles.get(label, "-"), marker="o", markersize=4, label=label,
            color=SERIES[label][1],
        )  # fmt: skip
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks([100, 1000], ["100 Mbit/s", "1 Gbit/s"])
    axes.set_xticks([], minor=True)
    axes.set_yticks([200, 500, 1000, 2000, 5000, 10000], ["200", "500", "1000", "2000", "5000", "10000"])
    axes.set_yticks([], minor=True)
    axes.grid(axis="y", linewidth=0.4)
    axes.set_xlabel("the line of each worker and server", fontsize=9)
    axes.set_ylabel("ms a step", fontsize=9)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))


def draw_accuracies(axes, figures):
    names = sorted(figures, key=lambda name: figures[name][-1])  # of equal bytes as on the page
    for row, name in enumerate(names):
        mean, lowest, highest, _ = figures[name]
        axes.errorbar(mean, row, xerr=[[mean - lowest], [highest - mean]], fmt="o", color="#4878cf", linewidth=0.8)
    axes.set_yticks(range(len(names)), [f"{name}: {figures[name][-1]:.1f} MB" for name in names])
    axes.set_xlim(96, 99)
    axes.grid(linewidth=0.4)
    axes.set_xlabel("digits that are recognised, percent: the mean of the seeds, the worst and the best", fontsize=9)
    axes.set_ylabel("what a worker sent", fontsize=9)


DRAWN = {"compression-steps": (steps, draw_steps), "compression-accuracy": (accuracies, draw_accuracies)}


def main():
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "byteps"  # equal input, equal file
    from matplotlib import pyplot

    for name, (figures_of, draw) in DRAWN.items():
        figures = figures_of()
        if not figures or not all(figures.values()):
            sys.exit(f"draw_compression: there are no figures for {name}")
        figure, axes = pyplot.subplots(figsize=(8, 3.6))
        draw(axes, figures)
        axes.tick_params(labelsize=8)
        figure.tight_layout()
        path = PICTURES / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None, "Description": json.dumps(figures)})
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    main()
