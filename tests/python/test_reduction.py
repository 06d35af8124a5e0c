"""The arguments of reductions, and process sets, without a network."""

from __future__ import annotations

import pytest

from byteps._core import abi, errors, process_sets, session
from byteps._core.process_sets import ProcessSet
from byteps._core.reduction import Average, Max, ReduceOp, Sum, resolve


def test_without_arguments_it_is_the_average():
    assert resolve() == (abi.AVERAGE, 0.0)
    assert resolve(average=True) == (abi.AVERAGE, 0.0)
    assert resolve(average=False) == resolve(average=0) == (abi.SUM, 0.0)


def test_ops_are_known_by_name_and_by_constant():
    assert resolve(op="Sum") == resolve(op=Sum) == (abi.SUM, 0.0)
    assert resolve(op=ReduceOp.Min).operation == abi.MIN
    assert resolve(op=Max).operation == abi.MAX
    assert resolve(op="Product").operation == abi.PRODUCT
    assert f"{Average}" == "Average" and Average == "Average"


def test_factors_become_one_scale():
    assert resolve(op=Sum, prescale_factor=0.5, postscale_factor=3) == (abi.SUM, 1.5)
    assert resolve(prescale_factor=4, postscale_factor=0.25) == (abi.AVERAGE, 0.0)


@pytest.mark.parametrize(
    "arguments, text",
    [
        ({"op": Sum, "average": True}, "give op alone"),
        ({"average": Sum}, "give it by name, op=Sum"),
        ({"op": "sum"}, "one of Average, Sum, Min, Max, Product"),
        ({"op": "Adasum"}, "use Average"),
        ({"op": Max, "prescale_factor": 2.0}, "go with Sum and Average only"),
        ({"prescale_factor": float("nan")}, "prescale_factor is nan"),
        ({"postscale_factor": 0.0}, "postscale_factor is 0.0"),
    ],
)
def test_wrong_arguments_are_named(arguments, text):
    with pytest.raises(ValueError, match=text):
        resolve(**arguments)


@pytest.fixture
def alone(monkeypatch):
    monkeypatch.delenv("DMLC_NUM_WORKER", raising=False)
    session.init()
    yield
    session.shutdown()


def test_a_process_set_is_its_ranks(alone):
    assert ProcessSet([2, 0]).ranks == [0, 2]
    assert ProcessSet([0, 2]) == ProcessSet((2, 0)) != ProcessSet()
    assert ProcessSet([0]).rank() == 0 and ProcessSet([0]).included()
    assert ProcessSet().ranks == [0] and ProcessSet().size() == 1
    for ranks in ([], [-1], [1, 1]):
        with pytest.raises(ValueError, match="different ranks"):
            ProcessSet(ranks)


def test_who_is_not_in_a_set_cannot_use_it(alone):
    with pytest.raises(ValueError, match="rank 0 is not in the process set of ranks \\[1, 2\\]"):
        process_sets.members_of(ProcessSet([1, 2]))
    with pytest.raises(ValueError, match="has rank 4, but the job has 1 ranks"):
        process_sets.members_of(ProcessSet([0, 4]))
    with pytest.raises(ValueError, match="must be a ProcessSet"):
        process_sets.members_of([0, 1])
    assert process_sets.members_of(ProcessSet([0])) == () == process_sets.members_of(None)


def test_sets_get_numbers_and_lose_them(alone):
    added = process_sets.add_process_set([0])
    try:
        assert added.process_set_id == 1
        assert process_sets.process_set_by_id(1) is added
        assert process_sets.get_process_set_ids_and_ranks() == {0: [0], 1: [0]}
        with pytest.raises(ValueError, match="added before"):
            process_sets.add_process_set(ProcessSet([0]))
    finally:
        assert process_sets.remove_process_set(added)
    assert not process_sets.remove_process_set(added)
    assert not process_sets.remove_process_set(process_sets.global_process_set)
    with pytest.raises(ValueError, match="no process set has the number 1"):
        process_sets.process_set_by_id(1)


def test_names_of_two_sets_differ():
    assert process_sets.scoped("x", ()) == "x"
    assert process_sets.scoped("x", (0, 2)) == "x@[0,2]"
    wide = {process_sets.scoped("x", tuple(range(first, 1000))) for first in range(3)}
    assert len(wide) == 3 and max(map(len, wide)) < 60


def test_sets_before_init_say_that_init_is_missing():
    with pytest.raises(errors.NotInitializedError):
        ProcessSet([0]).rank()
