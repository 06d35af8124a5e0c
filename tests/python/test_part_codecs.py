"""The part codecs of src/kernels against part_codecs.py: the numbers are equal, round after round, two ways."""

import itertools
import struct
import subprocess

import numpy as np
import pytest
from part_codecs import Codec
from place import BUILD

TOOL = BUILD / "bin/part_codec_tool"
if not TOOL.is_file():
    pytest.skip(f"{TOOL} is not built", allow_module_level=True)
KEY, PART, SERVER = 0x123456789ABCDEF0, 3, 0xFFFFFFFF
RATES = [0.1, 0.1, 0.05, None, 0.07]
COUNTS = [2, 31, 32, 1000, 4099]

KINDS = [dict(kind="onebit"), dict(kind="onebit", scaling=True)]
KINDS += [dict(kind="topk", k=k) for k in (0.01, 0.5, 1)]
KINDS += [dict(kind="randomk", k=k, seed=seed) for k in (0.1, 1, 2) for seed in (None, 0, 2020)]
KINDS += [
    dict(kind="dithering", k=k, natural=natural, l2=l2, seed=seed)
    for k, natural, l2, seed in itertools.product((1, 4, 24), (False, True), (False, True), (None, 0, 2020))
]
FEEDBACK = [{}, dict(ef=True), dict(mu=0.9), dict(ef=True, mu=0.9)]


def named(kind):
    words = [str(value) if name in ("kind", "k", "seed") else name * value for name, value in kind.items()]
    return "-".join(filter(None, words))


def tool(count, rounds, rank, kind="", k=0, seed=None, mu=None, **options):
    """[(payload, decoded)] of each of rounds, (learning rate, gradient)."""
    chosen = "".join(f"{name}," for name, value in options.items() if value)
    words = [kind, k, "none" if seed is None else seed, chosen or "none", "none" if mu is None else mu]
    command = [str(word) for word in (TOOL, *words, KEY, PART, rank, count)]
    sent = b"".join(struct.pack("d", rate or 0) + gradient.tobytes() for rate, gradient in rounds)
    output = subprocess.run(command, input=sent, stdout=subprocess.PIPE, check=True).stdout
    found, at = [], 0
    while at < len(output):
        (length,) = struct.unpack_from("I", output, at)
        found.append((output[at + 4 : at + 4 + length], np.frombuffer(output, np.float32, count, at + 4 + length)))
        at += 4 + length + 4 * count
    return found


def gradients(count, ranks):
    """One of each round and rank: some of few different magnitudes, some with zeros, one all of zeros."""
    random = np.random.default_rng(count)
    drawn = random.standard_normal((len(RATES), ranks, count)).astype(np.float32)
    drawn[1] = np.round(drawn[1] * 2) / 2
    drawn[2] *= random.random((ranks, count)) < 0.05
    drawn[3, 0] = 0
    return drawn


@pytest.mark.parametrize("feedback", FEEDBACK, ids=["plain", "ef", "mu", "both"])
@pytest.mark.parametrize("kind", KINDS, ids=named)
def test_numbers_are_those_of_the_formulas(kind, feedback):
    for count in COUNTS:
        rounds = list(zip(RATES, gradients(count, 1)[:, 0]))
        model = Codec(**kind, **feedback, where=(KEY, PART, 2))
        for round, (payload, decoded) in enumerate(tool(count, rounds, rank=2, **kind, **feedback)):
            rate, gradient = rounds[round]
            assert np.array_equal(decoded, model.code(gradient, rate)), f"{count} elements, round {round}"
            if kind["kind"] == "onebit":
                length = (count + 31) // 32 * 4 + 4
            if kind["kind"] == "topk":
                length = 8 * model.count(count)
            if kind["kind"] == "randomk":
                length = 4 * model.count(count)
            if kind["kind"] == "dithering":
                length = 4 + (count * (2 * kind["k"]).bit_length() + 31) // 32 * 4
            # By its length it is told from the elements.
            assert len(payload) == length + (4 if length == 4 * count else 0)


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [KINDS[1], KINDS[2], KINDS[-12], KINDS[-1]], ids=named)
def test_a_server_codes_the_sum_with_a_residual_of_its_own(kind, ranks):
    """Answers of two-way error feedback: each contribution decoded and added, the sum coded again."""
    count = 1000
    given = gradients(count, ranks)
    coded = [tool(count, list(zip(RATES, given[:, rank])), rank, ef=True, mu=0.9, **kind) for rank in range(ranks)]
    sums = np.zeros((len(RATES), count), np.float32)
    for rank, round in itertools.product(range(ranks), range(len(RATES))):
        sums[round] += coded[rank][round][1]
    answers = tool(count, list(zip(RATES, sums)), SERVER, ef=True, **kind)
    workers = [Codec(**kind, ef=True, mu=0.9, where=(KEY, PART, rank)) for rank in range(ranks)]
    server = Codec(**kind, ef=True, where=(KEY, PART, SERVER))
    for round, rate in enumerate(RATES):
        total = np.zeros(count, np.float32)
        for rank, worker in enumerate(workers):
            total = total + worker.code(given[round, rank], rate)
        assert np.array_equal(answers[round][1], server.code(total, rate)), f"round {round}"


@pytest.mark.parametrize("seed", [None, 0, 2020])
def test_all_ranks_send_the_values_of_the_same_places_so_a_server_adds_payloads(seed):
    count, kind = 1000, dict(kind="randomk", k=0.05, seed=seed)
    given = gradients(count, 3)
    coded = [tool(count, list(zip(RATES, given[:, rank])), rank, **kind) for rank in range(3)]
    models = [Codec(**kind, where=(KEY, PART, rank)) for rank in range(3)]
    for round, rate in enumerate(RATES):
        for rank, model in enumerate(models):
            model.code(given[round, rank], rate)
            payload = np.frombuffer(coded[rank][round][0], np.float32)
            assert np.array_equal(payload, model.values(given[round, rank]))
        assert models[0].places == models[1].places == models[2].places


def test_ranks_are_dithered_each_by_itself():
    gradient = gradients(1000, 1)[0, 0]
    kind = dict(kind="dithering", k=2)
    first, second = (tool(1000, [(0.1, gradient), (0.1, gradient)], rank, **kind) for rank in (0, 1))
    assert not np.array_equal(first[0][1], second[0][1])
    assert not np.array_equal(first[0][1], first[1][1])
