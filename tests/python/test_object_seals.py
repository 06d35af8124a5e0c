"""Nothing that came over a server is unpickled before its seal shows that it is what that member has said in this very
call. The attacker is a member's worker process that makes the exchanges by hand, as a server or a network could change
them: what it lacks is a seal that fits."""

import ctypes
import pickle

import pytest

import byteps.torch as bps
from byteps._core import abi, collectives, objects, session

ran = []  # what unpickling has run in this process


def run(text):
    ran.append(text)
    return text


class Attack:
    """Unpickling it runs code."""

    def __reduce__(self):
        return run, ("attack",)


EVIL = pickle.dumps(Attack())


def broadcast_by_hand(unique, content, failed=0):
    """What the root sends in broadcast_object()."""
    header = (ctypes.c_int64 * 2)(len(content), failed)
    buffer = ctypes.create_string_buffer(content, len(content))
    objects._broadcast(unique + ".size", abi.INT64, header, 2, 0, ())
    objects._broadcast(unique + ".content", abi.UINT8, buffer, len(content), 0, ())


def outcome_of(call):
    """What it returned or raised, and whether it ran the attacker's code."""
    del ran[:]
    try:
        returned = call()
    except bps.MismatchError as error:
        returned = str(error)
    return returned, list(ran)


def forged_broadcast(kind):
    current = session.current()
    unique = current.unique_name("Object.forged") if bps.rank() == 0 else "-"
    if bps.rank() == 0:
        seal = {"bare": b"", "zeros": bytes(32), "short": b""}[kind]
        return broadcast_by_hand(unique, b"short" if kind == "short" else seal + EVIL)
    return outcome_of(lambda: bps.broadcast_object(None, name="forged"))


@pytest.mark.parametrize("kind", ["bare", "zeros", "short"])
def test_a_broadcast_without_a_seal_is_not_unpickled(job2, kind):
    _, (text, code_run) = job2.run(forged_broadcast, kind)
    assert code_run == []
    assert "Object.forged" in text and "rank 0" in text, text


def sealed_for_another_call(kind):
    """The root seals its object well, but for another name, call, kind or rank than the one it is sent in."""
    job, current = session.job(), session.current()
    if bps.rank() == 0:
        unique = current.unique_name("Object.moved")
        failed = 0
        if kind == "older":
            content = bytes(objects._sealed(job, unique, EVIL, False))
            broadcast_by_hand(unique, content)  # as it should be: the other rank takes it
            unique = current.unique_name("Object.moved")
        elif kind == "elsewhere":
            content = bytes(objects._sealed(job, "Object.other.0", EVIL, False))
        elif kind == "failure":
            content, failed = bytes(objects._sealed(job, unique, EVIL, False)), 1
        elif kind == "text":
            content = bytes(objects._sealed(job, unique, EVIL, True))
        return broadcast_by_hand(unique, content, failed)
    if kind == "older":
        assert outcome_of(lambda: bps.broadcast_object(None, name="moved")) == ("attack", ["attack"])
    return outcome_of(lambda: bps.broadcast_object(None, name="moved"))


@pytest.mark.parametrize("kind", ["older", "elsewhere", "failure", "text"])
def test_a_seal_fits_one_call_and_one_kind_of_content_only(job2, kind):
    _, (text, code_run) = job2.run(sealed_for_another_call, kind)
    assert code_run == []
    assert "Object.moved" in text and "rank 0" in text, text


def allgather_by_hand(content):
    job, current = session.job(), session.current()
    unique = current.unique_name("Objects.rows")
    table = collectives.run(job, collectives.tables(job, unique + ".size", [len(content), 0], once=True))
    buffer = ctypes.create_string_buffer(content, len(content))
    gathered = []

    def allocate(count):
        gathered.append(ctypes.create_string_buffer(count))
        return ctypes.addressof(gathered[0])

    rows = collectives.Rows(abi.UINT8, ctypes.addressof(buffer), len(content), ())
    sizes = [size for size, _ in table]
    plan = collectives.allgather(job, unique + ".content", rows, allocate, (), sizes, once=True)
    collectives.run(job, plan, buffer)
    return gathered[0].raw


def forged_row(kind):
    """Rank 0 puts something else in the place of its row."""
    if bps.rank() == 0:
        return len(allgather_by_hand(EVIL if kind == "bare" else bytes(32) + EVIL))
    return outcome_of(lambda: bps.allgather_object("mine", name="rows"))


@pytest.mark.parametrize("kind", ["bare", "zeros"])
def test_a_row_without_a_seal_is_not_unpickled(job2, kind):
    _, (text, code_run) = job2.run(forged_row, kind)
    assert code_run == []
    assert "Objects.rows" in text and "rank 0" in text, text


def seal_of_another_rank():
    """Whether what this rank seals passes for the other's."""
    job = session.job()
    content = objects._sealed(job, "Object.whose.0", b"payload", False)
    opened = bytes(objects._opened(job, "Object.whose.0", job.rank, content, 0, len(content), False))
    other = outcome_of(
        lambda: objects._opened(job, "Object.whose.0", 1 - job.rank, content, 0, len(content), False)
    )
    return opened, other[0]


def test_a_seal_is_of_one_rank(job2):
    for rank, (opened, other) in enumerate(job2.run(seal_of_another_rank)):
        assert opened == b"payload"
        assert f"not what rank {1 - rank} has sealed" in other


def kept_seal():
    return bytes(objects._sealed(session.job(), "Object.kept.0", EVIL, False))


def opens(content):
    buffer = ctypes.create_string_buffer(content, len(content))
    return outcome_of(
        lambda: bytes(objects._opened(session.job(), "Object.kept.0", 0, buffer, 0, len(content), False))
    )[0]


def join_anew():
    bps.shutdown()
    bps.init()


def test_a_seal_is_of_one_life_of_the_job(job2):
    content = job2.run(kept_seal)[0]
    assert job2.run(opens, content) == [EVIL, EVIL]
    job2.run(join_anew)
    assert all("not what rank 0 has sealed" in text for text in job2.run(opens, content))


def honest(size):
    value = bytes(size)
    root = bps.size() - 1
    assert bps.broadcast_object(value if bps.rank() == root else None, root_rank=root) == value
    assert bps.allgather_object((bps.rank(), value)) == [(rank, value) for rank in range(bps.size())]


@pytest.mark.parametrize("size", [0, 1, 31, 32, 33, 5_000_000])
def test_objects_of_every_size_arrive(job3, size):
    job3.run(honest, size)
