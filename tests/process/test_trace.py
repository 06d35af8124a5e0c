"""bps trace: the timelines that real processes write with BYTEPS_TRACE_ON=1, and what is read from them.

A worker that is late and a server that is slow are made on purpose; bps trace top must name them, also where the
workers sum first at relays.
"""

import io
import json
import statistics
import time

import pytest
from job import SUMMING, Job

from byteps.tools import trace

STEPS = 24
LATE_S = 0.03
STOPPED_S = 1.2
CLOCKS_US = 5000.0  # so far may the times of two processes be apart, where many share few cores


def traced(folder, first=2, last=STEPS - 2, summing="servers", **options):
    local_reduce, forced = SUMMING[summing]
    return Job(
        folder,
        environ={
            "BYTEPS_TRACE_ON": "1",
            "BYTEPS_TRACE_START_STEP": str(first),
            "BYTEPS_TRACE_END_STEP": str(last),
            "BYTEPS_TRACE_DIR": str(folder / "trace"),
            "BYTEPS_PARTITION_BYTES": "131072",
            "BYTEPS_LOCAL_REDUCE": local_reduce,
            "BYTEPS_FORCE_DISTRIBUTED": forced,
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
        job.close()


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
        job.close()


def test_a_worker_that_is_late_is_named_and_by_how_much(tmp_path):
    job = traced(tmp_path, workers=3)
    try:
        job.start({"1": [each for _ in range(STEPS) for each in [["sleep", LATE_S], *step()]], "*": step() * STEPS})
        finish(job)
        processes = trace.read([str(tmp_path / "trace")])
    finally:
        job.close()
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
        job.close()
    summary = trace.summarize(processes)
    told = trace.text_of(summary, processes)
    # It may have been stopped between two frames of an answer, which is then one that is slow to arrive.
    assert (summary.slowest.stage, summary.slowest.peer) in (("server", "server 1"), ("transfer", "server 1")), told
    longest = max(part.last_answer - part.first_sent for each in processes for part in each.parts if part.server == 1)
    assert longest >= 0.8e6 * STOPPED_S, told


# ---- workers that sum first


@pytest.fixture(scope="module", params=["relays", "alone"])
def relayed(request, tmp_path_factory):
    """The traces of a job in which nobody is late, and whether servers take part."""
    job = traced(tmp_path_factory.mktemp(request.param), summing=request.param)
    try:
        job.start({"*": (step("a") + step("b", 1000)) * STEPS})
        finish(job)
        yield job.place.folder / "trace", request.param == "relays"
    finally:
        job.close()


def by_place(records):
    return {(one.tensor, one.part, one.round): one for one in records}


def in_order(*times):
    """Each no earlier than the one before; (time, slack): by other processes."""
    before = float("-inf")
    for each in times:
        time_us, slack_us = each if isinstance(each, tuple) else (each, 0.01)
        assert time_us >= before - slack_us, times
        before = max(before, time_us)


def test_a_relay_writes_a_timeline_of_its_own_and_workers_name_the_relays_they_exchange_with(relayed):
    folder, has_servers = relayed
    stages = {"REDUCE", *(("QUEUED", "PUSH", "PULL", "SPREAD") if has_servers else ())}
    for rank in (0, 1):
        content = json.loads((folder / f"relay-{rank}" / "comm.json").read_text())
        assert (content["otherData"]["role"], content["otherData"]["rank"]) == ("relay", rank)
        names = {event["name"] for event in content["traceEvents"]}
        assert {f"Comm.a.{stage}" for stage in stages} <= names
        assert has_servers == any("server" in event["args"] for event in content["traceEvents"])
        pushes = [event["args"] for event in json.loads((folder / "0" / f"comm-{rank}.json").read_text())["traceEvents"]
                  if event["name"] == "Comm.a.PUSH"]  # fmt: skip
        assert {args["relay"] for args in pushes} == {0, 1}
        assert not any("server" in args for args in pushes)
    titles = ["worker 0", "worker 1", "relay 0", "relay 1", *(["server 0", "server 1"] if has_servers else [])]
    assert [each.title for each in trace.read([str(folder)])] == titles


def test_each_part_passes_its_relay_the_server_and_the_relay_again(relayed):
    folder, has_servers = relayed
    processes = trace.read([str(folder)])
    relays = {each.rank: each for each in processes if each.role == "relay"}
    summed = by_place(one for each in processes if each.role == "server" for one in each.sums)
    reduced = {rank: by_place(relay.sums) for rank, relay in relays.items()}
    carried = {rank: by_place(relay.parts) for rank, relay in relays.items()}
    spread = {rank: by_place(relay.spreads) for rank, relay in relays.items()}
    rounds = STEPS - 3
    assert sum(len(each) for each in reduced.values()) == 5 * rounds
    assert all(sum(map(len, each.values())) == (5 * rounds if has_servers else 0) for each in (carried, spread))
    for worker in processes[:2]:
        assert len(worker.parts) == 5 * rounds
        for part in worker.parts:
            here = reduced[part.relay][part.place]
            in_order(here.first_came, here.last_came, here.first_frame, here.done, (part.last_answer, CLOCKS_US))
            in_order(part.queued, (here.last_came, CLOCKS_US))
            assert {here.first_worker, here.last_worker} == {0, 1}
            if not has_servers:
                continue
            up, down, there = carried[part.relay][part.place], spread[part.relay][part.place], summed[part.place]
            assert there.last_worker == part.relay
            in_order(here.first_frame, up.queued, up.first_sent, up.last_sent, up.last_answer)
            in_order(here.done, up.last_sent)
            in_order(up.queued, (there.first_came, CLOCKS_US), (there.first_frame, 0.01), (down.began, CLOCKS_US),
                     up.first_answer, up.last_answer)  # fmt: skip
            in_order(there.done, (down.ended, CLOCKS_US), (part.last_answer, CLOCKS_US))
            in_order(down.began, down.ended, up.last_answer)


def told_by_top(*arguments):
    out = io.StringIO()
    assert trace.main(["top", *arguments], out) == 0
    return out.getvalue()


def test_what_a_job_with_relays_waited_for_is_split_into_their_stages(relayed):
    folder, has_servers = relayed
    said = json.loads(told_by_top(str(folder), "--json"))
    stages = ["queued", "reduce", *(["push", "server", "pull"] if has_servers else []), "spread"]
    assert sorted(each["stage"] for each in said["stages"]) == sorted(stages)
    assert all(each["total_us"] > 0.0 for each in said["stages"])
    assert sum(each["share"] for each in said["stages"]) == pytest.approx(1.0)
    assert sorted(each["tensor"] for each in said["tensors"]) == ["a", "b"]
    for each in said["tensors"]:
        assert list(each["shares"]) == stages and sum(each["shares"].values()) == pytest.approx(1.0)
    text = told_by_top(str(folder))
    assert ("2 workers, 2 relays and 2 servers" if has_servers else "2 workers and 2 relays") in text
    assert "timeline is here" not in text


def test_a_merged_trace_has_a_row_for_each_relay(relayed):
    folder, has_servers = relayed
    events = trace.merge(trace.read([str(folder)]))["traceEvents"]
    rows = {event["pid"]: event["args"]["name"].split(" (")[0] for event in events if event["name"] == "process_name"}
    tracks = {(rows[event["pid"]], event["args"]["name"]) for event in events if event["name"] == "thread_name"}
    assert {("worker 0", "relay 1: on the way"), ("relay 0", "reduce")} <= tracks
    both = {("relay 0", "server 0: on the way"), ("relay 0", "spread")}
    assert tracks & both == (both if has_servers else set())


@pytest.mark.parametrize("summing", ["relays", "alone"])
def test_a_worker_that_is_late_at_its_relays_is_named(tmp_path, summing):
    job = traced(tmp_path, workers=3, summing=summing)
    try:
        job.start({"1": [each for _ in range(STEPS) for each in [["sleep", LATE_S], *step()]], "*": step() * STEPS})
        finish(job)
        told = told_by_top(str(tmp_path / "trace"))
        processes = trace.read([str(tmp_path / "trace")])
    finally:
        job.close()
    summary = trace.summarize(processes)
    assert (summary.slowest.stage, summary.slowest.peer) == ("reduce", "worker 1"), told
    assert summary.slowest.share > 0.5, told
    assert [(each.tensor, each.last) for each in summary.tensors] == [("w", "worker 1")], told
    assert "worker 1 sends its contribution" in told and "submits its tensors later" in told
    late = [one.late for each in processes if each.role == "relay" for one in each.sums if one.last_worker == 1]
    assert statistics.median(late) >= 0.5e6 * LATE_S, told


def test_a_worker_that_is_late_is_named_by_its_neighbour_and_by_those_on_another_machine(tmp_path):
    late_s, steps = 10 * LATE_S, 9  # as long in all: what network namespaces cost on few cores is less
    job = traced(tmp_path, last=steps - 2, summing="relays", hosts=(2, 2))
    try:
        job.start({"3": [each for _ in range(steps) for each in [["sleep", late_s], *step()]], "*": step() * steps})
        finish(job)
        told = told_by_top(str(tmp_path / "trace"))
        summary = trace.summarize(trace.read([str(tmp_path / "trace")]))
    finally:
        job.close()
    peers = {each.stage: each.peer for each in summary.stages}
    assert (peers["reduce"], peers["server"]) == ("worker 3", "worker 3"), told
    assert total(summary, "server") > total(summary, "reduce") > 0.5e6 * late_s * (steps - 3), told
    assert [each.last for each in summary.tensors] == ["worker 3"], told


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


def part(tensor, at, wait, pull=100.0, server=0, queued=10.0, round=0, relay=None):
    """All times in microseconds; `at` is when it is sent."""
    peer = {"server": server} if relay is None else {"relay": relay}
    return [
        event(tensor, "QUEUED", at - queued, queued, round=round),
        event(tensor, "PUSH", at, 10.0, round=round, **peer, first_answer=at + 10.0 + wait),
        event(tensor, "WAIT", at + 10.0, wait, round=round),
        event(tensor, "PULL", at + 10.0 + wait, pull, round=round),
        event(tensor, "", at - queued, queued + 10.0 + wait + pull, round=round, started=at - queued, bytes=400),
    ]


def on_gpu(tensor, at, stream=100.0, slab=100.0, out=100.0, queued=100.0, way=100.0, copy_in=100.0, server=0):
    """The same of a part of a tensor on a GPU, whose round begins `at` and whose stages follow each other."""
    lent = at + stream + slab
    sent = lent + out + queued
    answered = sent + 20.0 + way
    return [
        event(tensor, "STREAM", at, stream),
        event(tensor, "SLAB", at + stream, slab),
        event(tensor, "COPY_OUT", lent, out + 5.0, first_chunk=lent + out, bytes=400),
        *part(tensor, sent, way, pull=10.0, queued=queued, server=server),
        event(tensor, "COPY_IN", answered - 5.0, copy_in + 5.0, bytes=400),
    ]


class TwoMachines:
    """Ten tensors of one part: ranks 0 and 1 sum at relay 0, ranks 2 and 3 at relay 2, these at one of two servers.
    Each step takes 100 us, but for what a test makes slower: `slow[step, rank]`."""

    STEP_US = 100.0

    def __init__(self, folder):
        self.folder, self.slow = folder, {}

    def ends(self, number, rank):
        """When each step of this tensor has ended for this worker, or for its relay."""

        def submitted(each):
            return number * 1e6 + 1000.0 + self.slow.get(("submit", each), 0.0)

        def after(at, step, each):
            return at + self.STEP_US + self.slow.get((step, each), 0.0)

        reduced = {relay: after(max(submitted(relay), submitted(relay + 1)), "reduce", relay) for relay in (0, 2)}
        pushed = {relay: after(reduced[relay], "push", relay) for relay in (0, 2)}
        summed = after(max(pushed.values()), "sum", number % 2)
        relay = rank // 2 * 2
        pulled = after(summed, "pull", relay)
        return {"submit": submitted(rank), "reduce": reduced[relay], "push": pushed[relay], "sum": summed,
                "pull": pulled, "spread": after(pulled, "spread", rank)}  # fmt: skip

    def write(self, relays=True, servers=True):
        def each(make, rank):
            return [one for number in range(10) for one in make(number, rank)]

        for rank in range(4):
            write(self.folder, "worker", rank, each(self.worker, rank), host=f"h{rank // 2}", pid=rank + 1)
        for rank in (0, 2) if relays else ():
            write(self.folder, "relay", rank, each(self.relay, rank), host=f"h{rank // 2}", pid=rank + 1)
        for rank in (0, 1) if servers else ():
            write(self.folder, "server", rank, each(self.server, rank), host=f"s{rank}")
        return trace.summarize(trace.read([str(self.folder)]))

    def worker(self, number, rank):
        ends = self.ends(number, rank)
        lasts = ends["spread"] - ends["submit"]
        return part(f"w{number}", ends["submit"], lasts - 10.0, 0.0, server=None, relay=rank // 2 * 2)

    def came(self, number, step, ranks):
        """Who came first and last there, and when the last did: of an event from the first to `until`."""
        (began, first), (last_came, last) = sorted((self.ends(number, each)[step], each) for each in ranks)
        return began, last_came, {"first_worker": first, "last_worker": last, "late": last_came - began}

    def relay(self, number, rank):
        """Its part has one frame, which is on its way from when it is summed, and takes a while to be sent."""
        tensor, ends = f"w{number}", self.ends(number, rank)
        began, last_came, who = self.came(number, "submit", (rank, rank + 1))
        reduced, pushed, pulled = (ends[step] for step in ("reduce", "push", "pull"))
        sums = {"busy": 10.0, "bytes": 400, "first_frame": reduced}
        return [
            event(tensor, "REDUCE", began, reduced - began, last_came=last_came, **who, **sums),
            event(tensor, "QUEUED", reduced, 0.0),
            event(tensor, "PUSH", reduced, pushed - reduced, server=number % 2, first_answer=pulled),
            event(tensor, "PULL", pulled, 0.0),
            event(tensor, "SPREAD", pulled, 10.0, bytes=400),
        ]

    def server(self, number, rank):
        if number % 2 != rank:
            return []
        tensor, summed = f"w{number}", self.ends(number, 0)["sum"]
        began, last_came, who = self.came(number, "reduce", (0, 2))
        return [
            event(tensor, "GATHER", began, last_came - began, **who),
            event(tensor, "SUM", last_came, summed - last_came, busy=10.0, first_frame=summed, bytes=400),
        ]


@pytest.mark.parametrize(
    "slow, waits",
    [
        (("reduce", 0), {"reduce": 20, "server": 20}),  # the other machine waits at the server
        (("push", 0), {"push": 20, "server": 20}),
        (("sum", 1), {"server": 20}),
        (("pull", 2), {"pull": 20}),
        (("spread", 3), {"spread": 10}),
    ],
)
def test_time_on_two_levels_goes_to_the_stage_that_took_it(tmp_path, slow, waits):
    job = TwoMachines(tmp_path)
    calm = {each.stage: each.total_us for each in job.write().stages}
    assert list(trace.RELAYED) == list(trace.summarize(trace.read([str(tmp_path)])).titles)
    assert all(calm[stage] > 0.0 for stage in calm)
    job.slow[slow] = 20_000.0
    more = {each.stage: each.total_us - calm[each.stage] for each in job.write().stages}
    # What is sent while another machine is waited for costs nothing: 100 us of two workers in ten parts.
    assert more == pytest.approx({stage: waits.get(stage, 0) * 20_000.0 for stage in calm}, abs=2001.0)


def test_the_server_that_is_slow_behind_relays_is_named(tmp_path):
    job = TwoMachines(tmp_path)
    job.slow[("sum", 1)] = 20_000.0
    summary = job.write()
    assert (summary.slowest.stage, summary.slowest.peer) == ("server", "server 1")
    assert "server 1 answers 20.3 ms after the last contribution was sent" in summary.sentence
    assert {each.tensor: each.last for each in summary.tensors[:5]} == {f"w{n}": "server 1" for n in range(1, 10, 2)}


def test_workers_of_another_machine_wait_at_the_server_for_who_is_late_on_its_own(tmp_path):
    job = TwoMachines(tmp_path)
    job.slow[("submit", 3)] = 20_000.0
    summary = job.write()
    assert (summary.slowest.stage, summary.slowest.peer) == ("server", "worker 3")
    assert total(summary, "reduce") == pytest.approx(10 * 20_000.0, rel=0.05), "worker 2"
    assert total(summary, "server") == pytest.approx(2 * 10 * 20_000.0, rel=0.05), "workers 0 and 1"
    assert "worker 3 sends its contribution 20.0 ms after the others" in summary.sentence
    assert "100% of the parts" in summary.sentence and "submits its tensors later" in summary.sentence
    assert {each.last for each in summary.tensors} == {"worker 3"}


def test_a_machine_that_has_all_of_its_workers_and_sends_late_is_named_by_its_leader(tmp_path):
    job = TwoMachines(tmp_path)
    job.slow[("reduce", 2)] = 20_000.0
    summary = job.write()
    assert {each.stage: each.peer for each in summary.stages}["server"] == "worker 2"


def test_without_relays_timelines_top_says_what_is_missing(tmp_path):
    job = TwoMachines(tmp_path)
    job.slow[("submit", 1)] = 20_000.0
    summary = job.write(relays=False)
    text = trace.text_of(summary, trace.read([str(tmp_path)]))
    assert "No relay's timeline is here" in text
    assert {each.stage: each.peer for each in summary.stages}["reduce"] == "worker 1"


def test_without_servers_timelines_a_late_machine_is_found_from_when_its_relay_sent(tmp_path):
    job = TwoMachines(tmp_path)
    job.slow[("submit", 3)] = 20_000.0
    summary = job.write(servers=False)
    assert (summary.slowest.stage, summary.slowest.peer) == ("server", "worker 3")


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


def test_what_a_part_waits_for_at_its_gpu_is_told_stage_by_stage(tmp_path):
    waits = {"stream": 7000.0, "slab": 6000.0, "out": 5000.0, "queued": 4000.0, "way": 3000.0, "copy_in": 2000.0}
    write(tmp_path, "worker", 0, on_gpu("w", 1000.0, **waits))
    write(tmp_path, "worker", 1, on_gpu("w", 1000.0), pid=2)
    summary = trace.summarize(trace.read([str(tmp_path)]))
    assert list(summary.titles) == [*trace.BEFORE, *trace.STAGES, *trace.BEHIND]
    found = {each.stage: (each.total_us, each.peer) for each in summary.stages}
    for stage, name in {"stream": "stream", "slab": "slab", "copy_out": "out", "copy_in": "copy_in"}.items():
        assert found[stage] == (pytest.approx(waits[name] + 100.0), "worker 0"), stage
    assert found["queued"][0] == pytest.approx(4100.0)
    assert "Slowest: stream (the GPU's work before it)" in summary.sentence
    assert "most of it at worker 0" in summary.sentence


def test_stages_of_a_gpu_count_while_nothing_is_on_the_way(tmp_path):
    """The second waits for memory while the first is on the way, then while that is copied back, then alone."""
    first = on_gpu("a", 0.0, way=10_000.0, copy_in=3000.0)  # on the way from 400 to 10420
    second = on_gpu("b", 0.0, slab=15_000.0)  # has its memory at 15100
    write(tmp_path, "worker", 0, first + second)
    summary = trace.summarize(trace.read([str(tmp_path)]))
    assert total(summary, "stream") == pytest.approx(100.0)
    assert total(summary, "copy_in") == pytest.approx(3000.0 + 100.0)
    assert total(summary, "slab") == pytest.approx(100.0 + 15_100.0 - 13_420.0)
    assert total(summary, "copy_out") == total(summary, "queued") == pytest.approx(200.0)


@pytest.mark.parametrize("relay", [None, 0])
def test_a_part_that_is_on_the_way_while_it_is_copied_waits_for_its_copy(tmp_path, relay):
    """Its first chunk is sent at 400 and answered at 510, its last comes at 10000, and is answered at 10100."""
    events = [
        event("w", "STREAM", 0.0, 100.0),
        event("w", "SLAB", 100.0, 100.0),
        event("w", "COPY_OUT", 200.0, 9800.0, first_chunk=300.0, bytes=400),
        *part("w", 400.0, 100.0, pull=9590.0, queued=100.0, relay=relay, server=0),
    ]
    write(tmp_path, "worker", 0, events)
    summary = trace.summarize(trace.read([str(tmp_path)]))
    before = 110.0 if relay is None else 0.0  # without a relay's file nothing tells when it had a frame
    assert total(summary, "copy_out") == pytest.approx(100.0 + 9600.0 - before)
    assert summary.slowest.stage == "copy_out"


def test_a_merged_trace_has_rows_for_copies(tmp_path):
    write(tmp_path, "worker", 0, on_gpu("w", 500.0) + part("host", 5000.0, 50.0))
    events = trace.merge(trace.read([str(tmp_path)]))["traceEvents"]
    rows = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    slices = {}
    for each in events:
        if each["ph"] == "X":
            slices.setdefault(rows[each["tid"]], []).append((each["name"], each["ts"], each["dur"]))
    out = [("stream w", 0.0, 100.0), ("slab w", 100.0, 100.0), ("copy out w", 200.0, 105.0)]
    assert slices["GPU: to the host"] == out
    assert slices["GPU: back"] == [("copy in w", 515.0, 105.0)]
    write(tmp_path, "worker", 0, part("host", 5000.0, 50.0))
    events = trace.merge(trace.read([str(tmp_path)]))["traceEvents"]
    assert not any("GPU" in str(each) for each in events)
    assert "stream" not in trace.summarize(trace.read([str(tmp_path)])).titles


def test_coding_has_rows_of_its_own_and_a_line_of_what_it_took(tmp_path):
    """From 490 to 710; 44 of these coded."""
    events = [
        event("w", "ENCODE", 480.0, 40.0, busy=33.0),
        event("w", "DECODE", 650.0, 50.0, busy=11.0),
        *part("w", 500.0, 100.0),
    ]
    write(tmp_path, "worker", 0, events)
    processes = trace.read([str(tmp_path)])
    merged = trace.merge(processes)["traceEvents"]
    rows = {each["tid"]: each["args"]["name"] for each in merged if each["name"] == "thread_name"}
    slices = {rows[each["tid"]]: each for each in merged if each["ph"] == "X"}
    assert (slices["encode"]["name"], slices["encode"]["dur"]) == ("encode w", 40.0)
    assert slices["decode"]["ts"] - slices["encode"]["ts"] == 170.0 and slices["decode"]["args"]["busy_us"] == 11.0
    assert min(each["ts"] for each in slices.values()) == 0.0
    summary = trace.summarize(processes)
    (coding,) = summary.codings
    assert (coding.process, coding.encode_us, coding.decode_us) == ("worker 0", 33.0, 11.0)
    assert coding.share == pytest.approx(44.0 / 220.0)
    assert "Coding, most of it at worker 0: 0.0 ms for what it pushed" in trace.text_of(summary, processes)
    write(tmp_path, "worker", 0, part("w", 500.0, 100.0))
    plain = trace.read([str(tmp_path)])
    assert not trace.summarize(plain).codings and "Coding" not in trace.text_of(trace.summarize(plain), plain)


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
