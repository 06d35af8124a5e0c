"""bps trace: the timelines that real processes write with BYTEPS_TRACE_ON=1, and what is read from them.

A worker that is late and a server that is slow are made on purpose; bps trace top must name them.
"""

import io
import json
import statistics
import time

import pytest
from job import Job

from byteps.tools import trace

STEPS = 24
LATE_S = 0.03
STOPPED_S = 1.2


def traced(folder, first=2, last=STEPS - 2, **options):
    return Job(
        folder,
        environ={
            "BYTEPS_TRACE_ON": "1",
            "BYTEPS_TRACE_START_STEP": str(first),
            "BYTEPS_TRACE_END_STEP": str(last),
            "BYTEPS_TRACE_DIR": str(folder / "trace"),
            "BYTEPS_PARTITION_BYTES": "131072",
        },
        **options,
    )


def step(name="w", count=100_000):
    return [["push", name, "float32", count], ["wait"]]


def finish(job):
    job.join()
    for process in job.processes:
        assert process.code == 0, job.story(f"{process.name} ended with {process.code}")


@pytest.fixture(scope="module")
def calm(tmp_path_factory):
    """The traces of a job in which nobody is late: two workers, two servers, two tensors."""
    job = traced(tmp_path_factory.mktemp("calm"))
    try:
        job.start({"*": (step("a") + step("b", 1000)) * STEPS})
        finish(job)
        yield job
    finally:
        job.place.close()


def test_every_stage_of_every_part_of_every_traced_step_is_there(calm):
    folder = calm.place.folder / "trace"
    content = json.loads((folder / "0" / "comm-1.json").read_text())
    assert content["displayTimeUnit"] == "ms"
    names = {event["name"] for event in content["traceEvents"]}
    assert {"Comm.a", "Comm.a.QUEUED", "Comm.a.PUSH", "Comm.a.PULL", "Comm.b", "Comm.b.PUSH"} <= names
    assert {event["ph"] for event in content["traceEvents"]} == {"X"}
    rounds = {event["args"]["round"] for event in content["traceEvents"]}
    assert rounds == set(range(2, STEPS - 1))
    pushes = [event["tid"] for event in content["traceEvents"] if event["name"] == "Comm.a.PUSH"]
    assert {tid: pushes.count(tid) for tid in pushes} == {str(part): len(rounds) for part in range(4)}
    assert (folder / "0" / "comm.json").exists()

    processes = trace.read([str(folder)])
    assert [each.title for each in processes] == ["worker 0", "worker 1", "server 0", "server 1"]
    for worker in processes[:2]:
        assert len(worker.parts) == 5 * len(rounds) and len(worker.operations) == 2 * len(rounds)
        for part in worker.parts:
            assert part.queued <= part.first_sent <= part.last_sent <= part.last_answer
            assert part.first_sent <= part.first_answer <= part.last_answer
    assert sum(len(each.sums) for each in processes) == 5 * len(rounds)
    assert {part.server for part in processes[0].parts} == {0, 1}


def test_processes_of_one_host_find_that_their_clocks_are_the_same(calm):
    for process in trace.read([str(calm.place.folder / "trace")]):
        assert process.offset_ns is not None, f"{process.title} has asked nobody"
        # The times are those of turns, and a turn may be long where many processes share few cores.
        bound_ns = process.error_ns + 2_000_000
        assert abs(process.offset_ns) <= bound_ns and abs(process.shift_us) * 1e3 <= bound_ns


def test_a_merged_trace_is_what_perfetto_takes(calm, tmp_path):
    output, out = tmp_path / "trace.json", io.StringIO()
    assert trace.main(["merge", str(calm.place.folder / "trace"), "-o", str(output)], out) == 0
    assert "worker 0, worker 1, server 0, server 1" in out.getvalue()
    events = json.loads(output.read_text())["traceEvents"]
    named = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert [name.split(" (")[0] for name in named.values()] == ["worker 0", "worker 1", "server 0", "server 1"]
    tracks = {}
    for event in events:
        assert event["ph"] in "XM" and event["pid"] in named
        if event["ph"] == "X":
            tracks.setdefault((event["pid"], event["tid"]), []).append(event)
    assert len(tracks) >= 2 * 3 + 2 * 1
    for slices in tracks.values():
        end = 0.0
        for one in slices:
            assert one["dur"] >= 0.0
            assert one["ts"] >= end - 0.01, "slices of one track do not overlap"
            end = one["ts"] + one["dur"]


def test_nothing_is_written_when_tracing_is_off(tmp_path):
    job = Job(tmp_path, environ={"BYTEPS_TRACE_DIR": str(tmp_path / "trace")})
    try:
        job.start({"*": step() * 3})
        finish(job)
        assert not (tmp_path / "trace").exists()
    finally:
        job.place.close()


def test_a_worker_that_is_late_is_named_and_by_how_much(tmp_path):
    job = traced(tmp_path, workers=3)
    try:
        job.start({"1": [each for _ in range(STEPS) for each in [["sleep", LATE_S], *step()]], "*": step() * STEPS})
        finish(job)
        processes = trace.read([str(tmp_path / "trace")])
    finally:
        job.place.close()
    summary = trace.summarize(processes)
    told = trace.text_of(summary, processes)
    assert (summary.slowest.stage, summary.slowest.peer) == ("others", "worker 1"), told
    assert "worker 1 sends its contribution" in summary.sentence and "submits its tensors later" in summary.sentence
    late = [one.late for each in processes for one in each.sums if one.last_worker == 1]
    assert statistics.median(late) >= 0.5e6 * LATE_S, told


def test_a_server_that_stands_still_is_named(tmp_path):
    job = traced(tmp_path, first=0, last=100_000)
    try:
        job.start({"*": [["loop", 60]]})
        job.wait_for("step")
        job.servers[1].stop()
        time.sleep(STOPPED_S)
        job.servers[1].go_on()
        finish(job)
        processes = trace.read([str(tmp_path / "trace")])
    finally:
        job.place.close()
    summary = trace.summarize(processes)
    told = trace.text_of(summary, processes)
    assert (summary.slowest.stage, summary.slowest.peer) == ("server", "server 1"), told
    longest = max(part.first_answer - part.first_sent for each in processes for part in each.parts if part.server == 1)
    assert longest >= 0.8e6 * STOPPED_S, told


# ---- from traces written by hand


def write(folder, role, rank, events, offset_ns=0, wall_zero_ns=10**18, host="here", scheduler="10.0.0.9:9000", pid=1):
    place = folder / f"{role}-{rank}"
    place.mkdir(exist_ok=True)
    about = {
        "byteps_timeline": 1, "role": role, "rank": rank, "host": host, "pid": pid, "scheduler": scheduler,
        "wall_zero_ns": wall_zero_ns, "clock_error_ns": 1000,
    }  # fmt: skip
    if offset_ns is not None:
        about["clock_offset_ns"] = offset_ns
    (place / "comm.json").write_text(json.dumps({"traceEvents": events, "otherData": about}))


def event(tensor, stage, ts, dur, **args):
    args.setdefault("round", 0)
    tid = "total" if stage == "" else "0"
    name = f"Comm.{tensor}" + (f".{stage}" if stage else "")
    return {"ph": "X", "pid": f"Comm.{tensor}", "tid": tid, "name": name, "ts": ts, "dur": dur, "args": args}


def part(tensor, at, wait, pull=100.0, server=0, queued=10.0, round=0):
    """All times in microseconds; `at` is when it is sent."""
    return [
        event(tensor, "QUEUED", at - queued, queued, round=round),
        event(tensor, "PUSH", at, 10.0, round=round, server=server, first_answer=at + 10.0 + wait),
        event(tensor, "WAIT", at + 10.0, wait, round=round),
        event(tensor, "PULL", at + 10.0 + wait, pull, round=round),
        event(tensor, "", at - queued, queued + 10.0 + wait + pull, round=round, started=at - queued, bytes=400),
    ]


def total(summary, stage):
    return next(each.total_us for each in summary.stages if each.stage == stage)


def test_clocks_of_different_hosts_are_aligned_by_what_each_has_measured(tmp_path):
    write(tmp_path, "worker", 0, part("w", 1000.0, 50.0), offset_ns=0)
    write(tmp_path, "worker", 1, part("w", 501000.0, 50.0), offset_ns=-500_000_000, host="there")
    workers = trace.read([str(tmp_path)])
    assert workers[0].parts[0].first_sent == pytest.approx(workers[1].parts[0].first_sent)


def test_who_has_measured_nothing_is_aligned_by_the_time_of_day(tmp_path):
    write(tmp_path, "worker", 0, part("w", 1000.0, 50.0), offset_ns=2_000_000)
    write(tmp_path, "worker", 1, part("w", 9000.0, 50.0), offset_ns=None, host="there",
          wall_zero_ns=10**18 - 8_000_000)  # fmt: skip
    workers = trace.read([str(tmp_path)])
    assert workers[0].parts[0].first_sent == pytest.approx(3000.0)
    assert workers[1].parts[0].first_sent == pytest.approx(3000.0)


def test_processes_of_one_clock_take_the_best_estimate_of_them(tmp_path):
    write(tmp_path, "worker", 0, part("w", 1000.0, 50.0), offset_ns=900_000)
    write(tmp_path, "worker", 1, part("w", 1000.0, 50.0), offset_ns=0, pid=2)
    path = tmp_path / "worker-0" / "comm.json"
    path.write_text(path.read_text().replace('"clock_error_ns": 1000', '"clock_error_ns": 999999'))
    assert [each.shift_us for each in trace.read([str(tmp_path)])] == [0.0, 0.0]


def test_an_earlier_job_in_the_same_folder_does_not_count(tmp_path):
    write(tmp_path, "worker", 0, part("w", 1000.0, 50.0), scheduler="10.0.0.9:9001")
    write(tmp_path, "worker", 3, part("old", 1000.0, 50.0), wall_zero_ns=10**18 - 10**12)
    assert [each.rank for each in trace.read([str(tmp_path)])] == [0]


def test_without_servers_timelines_a_late_worker_is_found_from_when_the_others_sent(tmp_path):
    write(tmp_path, "worker", 0, part("w", 1000.0, 20_000.0))
    write(tmp_path, "worker", 1, part("w", 21_000.0, 100.0), pid=2)
    summary = trace.summarize(trace.read([str(tmp_path)]))
    assert (summary.slowest.stage, summary.slowest.peer) == ("others", "worker 1")
    assert total(summary, "others") == pytest.approx(20_000.0)


def test_parts_that_wait_behind_the_first_one_for_its_credit_do_not_count_twice(tmp_path):
    """Nine parts wait at the gate for as long as the one on the way does: what is slow is the way, not the gate."""
    events = []
    for number in range(10):
        at = 1000.0 + (30_000.0 if number else 0.0) + number
        events += part(f"w{number}", at, 30_000.0 if number == 0 else 10.0, queued=at - 990.0)
    write(tmp_path, "worker", 0, events)
    summary = trace.summarize(trace.read([str(tmp_path)]))
    assert summary.slowest.stage == "server"
    assert total(summary, "queued") < 50.0
    assert total(summary, "server") == pytest.approx(30_000.0, rel=0.02)


@pytest.mark.parametrize(
    "content, words",
    [(None, "BYTEPS_TRACE_ON"), ("{", "is no timeline"), ('{"traceEvents": [], "otherData": {}}', "BYTEPS_TRACE_ON")],
)
def test_what_is_no_timeline_is_said_with_the_remedy(tmp_path, capsys, content, words):
    if content is not None:
        (tmp_path / "comm.json").write_text(content)
    assert trace.main(["top", str(tmp_path)]) == 1
    assert words in capsys.readouterr().err


def test_a_folder_that_is_not_there_is_named(tmp_path, capsys):
    assert trace.main(["merge", str(tmp_path / "nowhere")]) == 1
    assert "nowhere does not exist" in capsys.readouterr().err


def test_python_asks_by_the_documented_names():
    from byteps import trace as documented

    assert documented.read is trace.read and documented.summarize is trace.summarize
