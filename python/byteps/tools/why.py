"""bps why: says the first cause of a job that failed, with the evidence and what happened then (docs/flight.md).

byteps/recordings finds it.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import List, Optional, Sequence

from byteps.recordings import absences, flight
from byteps.recordings.first_cause import TIMELINE_EVENTS, Verdict, analyse, summary
from byteps.recordings.flight import Recording, title


def report(verdict: Verdict, recordings: List[Recording], without: Sequence[str] = ()) -> str:
    survived = [*verdict.survived, *without]
    lines = ["Survived:"] + [f"  {each}" for each in survived] + [""] if survived else []
    lines += summary(verdict)
    if verdict.evidence:
        lines += ["", "Evidence:"] + [f"  {each}" for each in verdict.evidence]
    if verdict.timeline:
        lines += ["", "What happened then:"] + [f"  {each}" for each in verdict.timeline]
    damaged = sum(each.damaged_lines for each in recordings)
    if recordings:
        lines += ["", f"From {len(recordings)} recordings" + (f"; {damaged} damaged lines" if damaged else "")]
    absent = without_recording(recordings)
    if absent:
        lines.append(f"Without one, so killed or ended well: {', '.join(absent[:16])}")
    return "\n".join(lines)


def without_recording(recordings: List[Recording]) -> List[str]:
    """Processes that others knew and that left nothing."""
    here = {each.host for each in recordings}
    peers = {(peer.role, peer.rank, peer.host) for each in recordings for peer in each.peers if peer.host}
    return sorted(title(*peer) for peer in peers if peer[2] not in here)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bps why",
        description="Names the first cause of a job that failed, from the files of its processes (docs/flight.md).",
        epilog="Exit code: 0 when a cause was found, 1 when not.",
    )
    parser.add_argument(
        "places",
        nargs="*",
        metavar="DIR",
        help="folders (or files) with byteps-flight-*.jsonl, gathered from all hosts; "
        f"default: {flight.default_folder()}",
    )
    parser.add_argument(
        "--events", type=int, default=TIMELINE_EVENTS, metavar="N", help="length of the timeline (default 20)"
    )
    parser.add_argument("--json", action="store_true", help="for programs")
    options = parser.parse_args(arguments)
    places = options.places or [flight.default_folder()]
    recordings = flight.newest_job(flight.read(places))
    verdict = analyse(recordings, max(0, options.events))
    if options.json:
        print(json.dumps(verdict.__dict__, indent=2))
    else:
        its = next((each.scheduler for each in recordings if each.scheduler), "")
        print(report(verdict, recordings, absences.read(places, its).summary()))
    return 0 if verdict.is_found else 1


if __name__ == "__main__":
    sys.exit(main())
