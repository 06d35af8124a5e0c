"""Hostile peers against running jobs whose workers check every sum (checked_worker.c).

Strangers cannot disturb a job: nobody crashes, sums stay right, memory and log lines stay bounded. Who has the job key
may end the job, but only with an error that names what happened; there is no hang and no crash.
"""

import functools
import re
import resource
import signal
import socket
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import wire
from place import wait_until
from evil import (
    ADDRESS,
    STRANGERS,
    WORDS,
    crowd,
    drip,
    listening_ports,
    plug,
    resident_bytes,
    still_open,
)
from job import Job

MIB = 1 << 20
HANDSHAKE_S = 5.0  # what a stranger gets
CROWD = 1500  # connections to each port; fewer where descriptors are few
NO_REPORT = ("ThreadSanitizer", "AddressSanitizer", "LeakSanitizer", "runtime error", "CHECK")

pytestmark = pytest.mark.timeout(180)


def raise_descriptor_limit():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


PAUSE_MS = 50  # between rounds, so that a job leaves the cores to others


class CheckedJob(Job):
    """Two plain C workers who check every sum, two servers, one scheduler. Runs until told to stop."""

    def __enter__(self):
        self.key = self.environ["BYTEPS_JOB_KEY"].encode()
        self.began_s = time.monotonic()
        self.start_services()
        assert wait_until(lambda: len(self.ports) == 1 + self.server_count), self.story("not all listen")
        return super().__enter__()

    def start_workers(self):
        for rank in range(self.size):
            self.start_checked(rank, 1, 0, "leave", PAUSE_MS)
        self.goes_on()
        return self

    @property
    def services(self):
        return [self.scheduler, *self.servers]

    @property
    def ports(self):
        return [port for process in self.services for port in listening_ports(process.pid)]

    def round_of(self, worker):
        rounds = re.findall(r"round (\d+)", worker.out_path.read_text())
        return int(rounds[-1]) if rounds else -1

    def goes_on(self, timeout_s=30.0):
        """Waits until every worker has finished some rounds more."""
        before = [self.round_of(worker) for worker in self.workers]

        def further():
            for process in self.processes:
                assert process.code is None, self.story(f"{process.name} ended with {process.code}")
            return all(self.round_of(worker) > round + 1 for worker, round in zip(self.workers, before))

        assert wait_until(further, timeout_s), self.story(f"the job stands still at {before}")

    def ends_well(self):
        for worker in self.workers:
            worker.send(signal.SIGTERM)
        self.join(timeout_s=60)
        self.check_codes({"worker": [0], "server": [0], "scheduler": [0]})

    def host_of_server(self):
        """What server 0 calls itself: "host:pid"."""
        return re.search(r"server \((\S+) at", self.scheduler.err).group(1)

    def check_codes(self, codes):
        for process in self.processes:
            assert not any(word in process.err for word in NO_REPORT), self.story(f"{process.name} has a finding")
            assert process.code in codes[process.name.rstrip("0123456789")], self.story(
                f"{process.name} ended with {process.code}"
            )
        self.check_nothing_is_left()


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """One job for all strangers, one after the other."""
    raise_descriptor_limit()
    with CheckedJob(tmp_path_factory.mktemp("strangers"), workers=2, servers=2) as job:
        yield job.start_workers()


# ---- strangers


def test_workers_listen_nowhere(job):
    for worker in job.workers:
        assert listening_ports(worker.pid) == []
    assert len(job.ports) == 3


@pytest.mark.parametrize("attack", STRANGERS)
def test_a_stranger_is_closed_and_the_job_goes_on(job, attack):
    for port in job.ports:
        STRANGERS[attack](port)
    job.goes_on()


def test_a_slow_stranger_is_closed_in_time(job):
    hello = wire.record(wire.HELLO, bytes(wire.NONCE_BYTES) + wire.hello(wire.WORKER, 0, 1))

    def slow(port):
        with plug(port) as peer:
            return drip(peer, hello, 0.1, 4 * HANDSHAKE_S)

    with ThreadPoolExecutor() as pool:
        for took_s, sent in pool.map(slow, job.ports):
            assert took_s < HANDSHAKE_S + 3, f"it waited {took_s:.1f} s"
            assert sent < len(hello)
    job.goes_on()


def test_half_open_connections_are_closed_in_time(job):
    held = [plug(port) for port in job.ports + job.ports]
    for peer in held[: len(held) // 2]:
        peer.shutdown(socket.SHUT_WR)
    assert wait_until(lambda: still_open(held) == 0, HANDSHAKE_S + 3), "some are kept"
    job.goes_on()


def test_the_right_job_without_the_right_key_is_refused(job):
    """The job's id is no secret: who has seen it still cannot prove the key."""
    for port in job.ports:
        with wire.Connection(ADDRESS, port) as peer:
            peer.shake_hands(wire.hello(wire.WORKER, 0, 1, job.key), b"guess")
            assert peer.is_closed_within(5), "served without the key"
        with pytest.raises((wire.Refused, ConnectionError), match="job key"):
            with wire.Connection(ADDRESS, port) as peer:
                peer.shake_hands(wire.hello(wire.WORKER, 0, 1, b"guess"), b"guess")
    job.goes_on()


def test_a_recorded_handshake_opens_nothing(job):
    """Replay: what a member said is said again, word for word; reflection: the other side's own proof is said to it."""
    for port in job.ports:
        own = wire.record(wire.HELLO, bytes(wire.NONCE_BYTES) + wire.hello(wire.SERVER, 7, 0, job.key))
        with wire.Connection(ADDRESS, port) as member:
            said, proof = member.open_by_hand(own, job.key)
            member.socket.sendall(proof)
        for words in (proof, wire.record(wire.PROOF, said)):
            with wire.Connection(ADDRESS, port) as thief:
                thief.open_by_hand(own, b"")
                thief.socket.sendall(words)
                assert thief.is_closed_within(5), "a recorded proof was taken"
    job.goes_on()


@pytest.mark.parametrize("words", WORDS)
def test_thousands_of_strangers_cost_little_and_the_job_goes_on(job, words):
    count = min(CROWD, raise_descriptor_limit() // 4)
    before = [resident_bytes(process.pid) for process in job.services]
    held = [crowd(port, count, WORDS[words]) for port in job.ports]
    after = [resident_bytes(process.pid) for process in job.services]
    job.goes_on()
    for process, grown, peers in zip(job.services, (b - a for a, b in zip(before, after)), held):
        assert grown / len(peers) < MIB / 16, f"{process.name} holds {grown / len(peers):,.0f} bytes for each"
    everyone = [peer for peers in held for peer in peers]
    assert wait_until(lambda: still_open(everyone) == 0, HANDSHAKE_S + 5), f"{still_open(everyone)} are kept"
    for peer in everyone:
        peer.close()
    job.goes_on()


def test_a_crowd_of_strangers_does_not_keep_members_out(tmp_path):
    """All places are taken by strangers before the job has begun; its members come nevertheless."""
    count = min(6000, raise_descriptor_limit() // 2)
    with CheckedJob(tmp_path, workers=2, servers=1) as job:
        held = [crowd(port, count) for port in job.ports]
        job.start_workers()
        for peers in held:
            for peer in peers:
                peer.close()
        job.ends_well()


def test_after_all_strangers_the_job_has_ended_well_and_the_log_is_short(job):
    """The last of those with the module's job."""
    job.ends_well()
    for process in job.services:
        warnings = [line for line in process.err.splitlines() if "WARNING" in line or "ERROR" in line]
        minutes = 1 + int((time.monotonic() - job.began_s) / 60)
        assert len(warnings) <= 8 * minutes, job.story(f"{process.name} wrote {len(warnings)} lines")
        same = Counter(re.sub(r"\(and \d+ more.*|\d+(\.\d+)*(:\d+)?", "", line) for line in warnings)
        assert max(same.values(), default=0) <= minutes, job.story(f"more than one of a kind in a minute: {same}")


# ---- a member with the key, who keeps the protocol now and then


def test_python_speaks_the_protocol(tmp_path):
    """The encoder of these tests is right: a worker in Python and one in C++ sum together."""
    with CheckedJob(tmp_path, workers=2, servers=2) as job:
        job.start_worker(0, {"*": [["push", "w", "float32", 1000, "sum"], ["wait"], ["barrier"]]})
        member = wire.Member(job.port, 1, job.key, workers=2, servers=2)
        assert member.sum("w", [2.0] + [0.0] * 998 + [2.0]) == [3.0] + [0.0] * 998 + [3.0]
        member.scheduler.send(member.header(wire.BARRIER), wire.barrier(0))
        job.wait_for("done")
        assert [end["code"] for end in job.workers[0].ends] == [0, 0]
        member.leave()
        job.join()
        job.check_codes({"worker": [0], "server": [0], "scheduler": [0]})


class Trio:
    """Two honest workers who sum "w" again and again, and worker 2, who says what a test wants in between."""

    ROUNDS = 80

    def __init__(self, job):
        self.job = job
        for rank in range(2):
            job.start_worker(rank, {"*": [["push", "w", "float32", 1000, "sum"], ["wait"]] * self.ROUNDS})
        self.member = wire.Member(job.port, 2, job.key, workers=3, servers=1)
        self.goes_on()

    def goes_on(self):
        """The next sum is right: 1 and 2 from the honest ones, 3 from worker 2."""
        assert self.member.sum("w", [3.0] + [0.0] * 998 + [3.0]) == [6.0] + [0.0] * 998 + [6.0]

    def end(self):
        while self.member.rounds["w"] < self.ROUNDS:
            self.goes_on()
        self.member.leave()
        self.job.join()
        self.job.check_codes({"worker": [0], "server": [0], "scheduler": [0]})
        for worker in self.job.workers:
            assert [end["code"] for end in worker.ends] == [0] * self.ROUNDS
            assert "lost" not in worker.err, self.job.story("an honest worker lost a connection")


@pytest.fixture(scope="module")
def trio(tmp_path_factory):
    with CheckedJob(tmp_path_factory.mktemp("trio"), workers=3, servers=1) as job:
        trio = Trio(job)
        yield trio
        trio.end()


def send_all(peer, words):
    for head, payload in words:
        try:
            peer.send(head, payload)
        except OSError:
            return


@pytest.mark.parametrize(
    "role, rank, epoch",
    [(wire.WORKER, 3, 1), (wire.WORKER, wire.NO_RANK, 1), (wire.WORKER, 2, 0), (wire.WORKER, 2, 2),
     (wire.WORKER, 2, 0xFFFFFFFF), (wire.SERVER, 0, 1), (wire.SCHEDULER, 0, 1)],
)  # fmt: skip
def test_a_shard_serves_workers_of_its_epoch_only(trio, role, rank, epoch):
    with wire.Connection(*trio.member.places[0]) as peer:
        hello = wire.hello(role, rank, epoch, trio.job.key, incarnation=trio.member.incarnation)
        peer.shake_hands(hello, trio.job.key)
        assert peer.is_closed_within(5)
    trio.goes_on()


@pytest.mark.parametrize("incarnation", [bytes(16), b"\xff" * 16])
def test_a_shard_serves_workers_of_its_incarnation_only(trio, incarnation):
    """Key, rank, epoch and port are right: a worker that another job has left behind."""
    with wire.Connection(*trio.member.places[0]) as peer:
        peer.shake_hands(wire.hello(wire.WORKER, 0, 1, trio.job.key, incarnation=incarnation), trio.job.key)
        assert peer.is_closed_within(5)
    trio.goes_on()
    assert not any("newer connection" in worker.err for worker in trio.job.workers), "it took a worker's place"


def nonsense_for_shards():
    key = wire.key_of("evil")
    mine = {"epoch": 1, "worker": 2, "key": key}
    declare = (wire.header(wire.DECLARE, **mine), wire.declare("evil", wire.FLOAT32, 400))
    enormous = (wire.header(wire.DECLARE, **mine), wire.declare("evil", wire.FLOAT32, (1 << 63) - 4))
    frame = bytes(400)
    return {
        "a push of an undeclared key": [(wire.header(wire.PUSH, **{**mine, "key": 77}), frame)],
        "another rank's number": [(wire.header(wire.DECLARE, **{**mine, "worker": 1}), declare[1])],
        "a rank that is not there": [(wire.header(wire.DECLARE, **{**mine, "worker": 77}), declare[1])],
        "a wrong size": [declare, (wire.header(wire.PUSH, **mine), frame[4:])],
        "no payload": [declare, (wire.header(wire.PUSH, **mine), b"")],
        "wrong flags": [declare, (wire.header(wire.PUSH, flags=255, **mine), frame)],
        "a part that is not there": [declare, (wire.header(wire.PUSH, part=9, **mine), frame)],
        "an offset within a frame": [declare, (wire.header(wire.PUSH, offset=4, **mine), frame)],
        "an offset at the end of 64 bits": [declare, (wire.header(wire.PUSH, offset=(1 << 64) - 64, **mine), frame)],
        "a round far ahead": [declare, (wire.header(wire.PUSH, round=1000, **mine), frame)],
        "an epoch far ahead": [(wire.header(wire.DECLARE, **{**mine, "epoch": 1 << 30}), declare[1])],
        "another key than the name's": [(wire.header(wire.DECLARE, **{**mine, "key": key + 1}), declare[1])],
        "a tensor of 2^63 bytes": [enormous],
        "bytes that are no elements": [(declare[0], wire.declare("evil", wire.FLOAT32, 401))],
        "an unknown type": [(declare[0], wire.declare("evil", 99, 400))],
        "an unknown operation": [(declare[0], wire.declare("evil", wire.FLOAT32, 400, 99))],
        "a root that is not there": [(declare[0], wire.declare("evil", wire.FLOAT32, 400, wire.BROADCAST, 3))],
        "a name of 4 KiB": [(wire.header(wire.DECLARE, **{**mine, "key": wire.key_of("n" * 4096)}),
                             wire.declare("n" * 4096, wire.FLOAT32, 400))],
        "an unknown kind": [(b"\xff" + wire.header(wire.PUSH, **mine)[1:], b"")],
        "no header": [(b"", b"")],
        "a declaration that is none": [(declare[0], b"\x01\x02\xff\xff\xff\xff")],
        "a message for schedulers": [(wire.header(wire.JOIN, epoch=1, worker=2), wire.join(wire.WORKER, 2))],
        "an answer": [(wire.header(wire.ANSWER, **mine), frame)],
    }  # fmt: skip


@pytest.mark.parametrize("name", nonsense_for_shards())
def test_nonsense_at_a_shard_ends_that_connection_only(trio, name):
    with trio.member.connect(0) as peer:
        send_all(peer, nonsense_for_shards()[name])
        assert peer.is_closed_within(5), "it is still served"
    trio.goes_on()


def frames_that_are_none():
    push = wire.header(wire.PUSH, epoch=1, worker=2)
    return {
        "a payload of 4 GiB": wire.prefix(0xFFFFFFFF, len(push), push) + bytes(100000),
        "a header of 64 KiB": wire.prefix(0, 0xFFFF) + bytes(100000),
        "ones": b"\xff" * 100000,
        "text": b"GET / HTTP/1.1\r\n\r\n" * 1000,
    }


@pytest.mark.parametrize("name", frames_that_are_none())
def test_bytes_that_are_no_frames_end_that_connection_only(trio, name):
    for peer in (trio.member.connect(0), trio.member.scheduler):
        with peer:
            try:
                peer.socket.sendall(frames_that_are_none()[name])
            except OSError:
                pass
            assert peer.is_closed_within(5), "it is still served"
    trio.member.join_again()
    trio.goes_on()


def test_a_frame_that_never_ends_costs_what_came_of_it(trio):
    pid = trio.job.servers[0].pid
    before = resident_bytes(pid)
    head = wire.header(wire.PUSH, epoch=1, worker=2)
    held = []
    for _ in range(50):  # each replaces the one before, at the shard; at most one is served
        held.append(trio.member.connect(0))
        held[-1].socket.sendall(wire.prefix(4 * MIB, len(head), head) + bytes(1000))
    assert resident_bytes(pid) - before < 16 * MIB
    for peer in held:
        peer.socket.close()
    trio.goes_on()


def test_an_enormous_tensor_costs_what_was_pushed_of_it(trio):
    pid = trio.job.servers[0].pid
    before = resident_bytes(pid)
    key, pushed = wire.key_of("enormous"), 100
    with trio.member.connect(0) as peer:
        peer.send(trio.member.header(wire.DECLARE, key=key), wire.declare("enormous", wire.FLOAT32, 1 << 43))
        for part in range(pushed):
            peer.send(trio.member.header(wire.PUSH, key=key, part=part * 1000), bytes(trio.member.frame_bytes))
        trio.goes_on()  # so the pushes have been read: by another connection, which ends this one
        grown = resident_bytes(pid) - before
    assert grown < 4 * pushed * trio.member.frame_bytes + 4 * MIB, f"grew by {grown:,} bytes"


def test_a_flood_of_declarations_and_forgets_does_not_stop_the_job(trio):
    pid = trio.job.servers[0].pid
    before = resident_bytes(pid)
    count = 20000
    with trio.member.connect(0) as peer:
        for index in range(count):
            name = f"flood{index}"
            peer.send(trio.member.header(wire.DECLARE, key=wire.key_of(name)), wire.declare(name, wire.FLOAT32, 400))
            peer.send(trio.member.header(wire.FORGET, key=wire.key_of(name)))
        trio.goes_on()
    grown = resident_bytes(pid) - before
    assert grown < count * 2048, f"grew by {grown:,} bytes"


def test_a_worker_that_never_reads_is_cut_off_and_costs_little(trio):
    """It has the old sum sent to it again and again."""
    pid = trio.job.servers[0].pid
    before = resident_bytes(pid)
    member, name = trio.member, "w"
    with member.connect(0) as peer:
        peer.send(member.header(wire.DECLARE, key=wire.key_of(name)), wire.declare(name, wire.FLOAT32, 4000))
        again = wire.frame(member.header(wire.PUSH, key=wire.key_of(name), round=member.rounds[name] - 1), bytes(4000))
        peer.socket.settimeout(1)
        try:
            for _ in range(20000):
                peer.socket.sendall(again)
        except OSError:
            pass
        grown = resident_bytes(pid) - before
        trio.goes_on()
    assert grown < 256 * MIB, f"grew by {grown:,} bytes"


def nonsense_for_the_scheduler():
    mine = {"epoch": 1, "worker": 2}
    return {
        "a second Join": [(wire.header(wire.JOIN, **mine), wire.join(wire.WORKER, 2, 3, 1, "python:1"))],
        "a barrier far ahead": [(wire.header(wire.BARRIER, **mine), wire.barrier(1 << 60))],
        "a Roster": [(wire.header(wire.ROSTER, **mine), b"")],
        "a BarrierDone": [(wire.header(wire.BARRIER_DONE, **mine), wire.barrier(0))],
        "a push": [(wire.header(wire.PUSH, **mine), bytes(400))],
        "a Barrier that is none": [(wire.header(wire.BARRIER, **mine), b"\x01\x09")],
        "an unknown kind": [(b"\x63" + wire.header(wire.JOIN, **mine)[1:], b"")],
        "no header": [(b"", b"")],
    }


@pytest.mark.parametrize("name", nonsense_for_the_scheduler())
def test_nonsense_at_the_scheduler_ends_that_connection_only(trio, name):
    send_all(trio.member.scheduler, nonsense_for_the_scheduler()[name])
    assert trio.member.scheduler.is_closed_within(5), "it is still served"
    trio.member.join_again()
    trio.goes_on()


def test_a_flood_of_heartbeats_and_old_messages_does_not_stop_the_job(trio):
    member = trio.member
    words = b"".join(
        wire.frame(head, payload)
        for head, payload in [
            (member.header(wire.HEARTBEAT), b""),
            (member.header(wire.HEARTBEAT, epoch=77), b""),
            (member.header(wire.BARRIER, epoch=0), wire.barrier(0)),
        ]
    )
    with member._lock:
        for _ in range(1000):
            member.scheduler.socket.sendall(words * 10)
    trio.goes_on()


# ---- with the key, but no member


def nonsense_before_join():
    claim = functools.partial(wire.join, wire.WORKER, 0, 3, 1, "thief:1", life=1 << 62)
    join = claim()
    return {
        "a second worker 0": [(wire.header(wire.JOIN), join)],
        "a worker that is not expected": [(wire.header(wire.JOIN), wire.join(wire.WORKER, 9, 3, 1, "thief:1"))],
        "a job of another size": [(wire.header(wire.JOIN), wire.join(wire.WORKER, 0, 4000, 1000, "thief:1"))],
        "a server without a place": [(wire.header(wire.JOIN), wire.join(wire.SERVER))],
        "a server at no place": [(wire.header(wire.JOIN), wire.join(wire.SERVER, endpoints=(("", 0),)))],
        "a Fail": [(wire.header(wire.FAIL), wire.text("the end is near", 3))],
        "a thousand Barriers": [(wire.header(wire.BARRIER, epoch=1), wire.barrier(0))] * 1000,
        "a thousand heartbeats": [(wire.header(wire.HEARTBEAT, epoch=1), b"")] * 1000,
        "a thousand Leaves in another's name": [(wire.header(wire.LEAVE, epoch=1, worker=1), wire.leave())] * 1000,
        "a Roster": [(wire.header(wire.ROSTER, epoch=9), b"")],
        "an old epoch": [(wire.header(wire.JOIN, epoch=77), join)],
        "a place that is none": [(wire.header(wire.JOIN), claim(place=wire.place(5) + b"\0"))],
        "a place of too many bytes": [(wire.header(wire.JOIN), claim(place=bytes(513)))],
        "a link beyond all rates": [(wire.header(wire.JOIN), claim(place=wire.place(5, 1 << 31)))],
        "a Join that is none": [(wire.header(wire.JOIN), b"\x06\x02\xff\xff\xff\x7f")],
        "nothing": [],
    }


def test_who_has_the_key_but_no_place_is_closed(trio):
    """All at once, for some are closed only after the failure timeout: they wait for an answer to a refusal."""
    held = {}
    for name, words in nonsense_before_join().items():
        rank = 9 if "not expected" in name else 0
        role = wire.SERVER if "server" in name else wire.WORKER
        peer = held[name] = wire.Connection(ADDRESS, trio.job.port)
        peer.shake_hands(wire.hello(role, rank if role == wire.WORKER else wire.NO_RANK, 0, trio.job.key), trio.job.key)
        send_all(peer, words)
    for name, peer in held.items():
        assert peer.is_closed_within(10), f"{name}: it is still served"
        peer.socket.close()
    trio.goes_on()


def test_a_flood_of_joins_is_refused_and_the_log_is_short(trio):
    job = trio.job
    for index in range(300):
        with wire.Connection(ADDRESS, job.port) as peer:
            peer.shake_hands(wire.hello(wire.WORKER, index % 2, 0, job.key), job.key)
            peer.send(wire.header(wire.JOIN), wire.join(wire.WORKER, index % 2, 3, 1, f"thief{index}:1"))
    trio.goes_on()
    for process in job.services:
        warnings = [line for line in process.err.splitlines() if "WARNING" in line]
        minutes = 1 + (time.monotonic() - job.began_s) / 60
        assert len(warnings) <= 8 * minutes, job.story(f"{process.name} wrote {len(warnings)} lines")


def test_a_thief_of_a_workers_place_at_a_shard_harms_no_sum(tmp_path):
    """The worker comes back and repeats what was lost."""
    with CheckedJob(tmp_path, workers=2, servers=1) as job:
        job.start_workers()
        (port,) = listening_ports(job.servers[0].pid)
        with wire.Connection(ADDRESS, job.port) as peer:
            incarnation = peer.shake_hands(wire.hello(wire.WORKER, 0, 0, job.key), job.key)[6]
        for _ in range(5):
            with wire.Connection(ADDRESS, port) as peer:
                peer.shake_hands(wire.hello(wire.WORKER, 0, 1, job.key, incarnation=incarnation), job.key)
                assert peer.is_closed_within(5), "the worker did not take its place again"
        job.goes_on()
        job.ends_well()


# ---- what a member may do: end the job, by name


def test_another_meaning_of_a_name_ends_the_job_with_its_name(tmp_path):
    with CheckedJob(tmp_path, workers=3, servers=1) as job:
        for rank in range(2):
            job.start_worker(rank, {"*": [["push", "w", "float32", 1000, "sum"], ["wait"]]})
        member = wire.Member(job.port, 2, job.key, workers=3, servers=1)
        with member.connect(0) as peer:
            peer.send(member.header(wire.DECLARE, key=wire.key_of("w")), wire.declare("w", wire.INT8, 123))
            for worker in job.workers:
                assert wait_until(lambda: worker.code == 1, 30), job.story(f"{worker.name} did not end")
                (end,) = worker.failures
                for word in ('"w"', "worker 2", "int8", "123 bytes"):
                    assert word in end["message"], job.story(f"{worker.name} does not say {word}")
        member.leave()
        job.join()
        job.check_codes({"worker": [1], "server": [0], "scheduler": [0]})


def ends_with(job, *words):
    job.join()
    job.check_codes({"worker": [1], "server": [1], "scheduler": [1]})
    for worker in job.workers:
        errors = worker.failures + worker.heard("refused")
        assert errors, job.story(f"{worker.name} has no error")
        for end in errors:
            assert all(word in end["message"] for word in words), job.story(f"{worker.name} does not say {words}")


def test_a_member_that_fails_is_named_by_all(tmp_path):
    with CheckedJob(tmp_path, workers=2, servers=1) as job:
        job.start_worker(0, {"*": [["loop"]]})
        member = wire.Member(job.port, 1, job.key, workers=2, servers=1)
        member.scheduler.send(member.header(wire.FAIL), wire.text("I am\x1b[31m evil", 2))
        ends_with(job, "worker 1", "python:1", "I am?[31m evil")
        member.fall_silent()


def test_a_member_that_says_nothing_more_is_named_by_all(tmp_path):
    with CheckedJob(tmp_path, workers=2, servers=1) as job:
        job.start_worker(0, {"*": [["loop"]]})
        member = wire.Member(job.port, 1, job.key, workers=2, servers=1)
        member.fall_silent()
        ends_with(job, "worker 1", "python:1", "has said nothing for")


def test_a_second_server_in_a_servers_name_is_refused_and_the_job_goes_on(tmp_path):
    """Whoever has the key may say that a server was started anew, its sums lost. That is not believed while the server
    lives."""
    with CheckedJob(tmp_path, workers=1, servers=1) as job:
        job.start_workers()
        (port,) = listening_ports(job.servers[0].pid)
        claim = wire.join(
            wire.SERVER, 0, host=job.host_of_server(), endpoints=((ADDRESS, port),), life=1 << 62
        )

        def answer():
            """What a claimant is told; empty: its connection is closed."""
            with wire.Connection(ADDRESS, job.port) as peer:
                peer.shake_hands(wire.hello(wire.SERVER, 0, 0, job.key), job.key)
                peer.send(wire.header(wire.JOIN), claim)
                try:
                    return peer.receive_kind(wire.FAIL).payload
                except ConnectionError:
                    return b""

        assert answer() == b"", "the server may be about to end"
        assert wait_until(lambda: b"two servers claim to be at" in answer()), job.story("it is not refused")
        job.goes_on()
        job.ends_well()
