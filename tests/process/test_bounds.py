"""Whether servers' cards hold a job back: the arithmetic at its borders, and what bpslaunch and bps doctor say."""

import sys

import pytest
from place import ROOT
from test_doctor import doctor, found, the

from byteps.launcher import bounds
from byteps.launcher.bounds import Machine
from byteps.launcher.hostfile import parse_hosts
from byteps.tools import doctor_findings
from byteps.tools.doctor_findings import OK, WARNING

PYTHON = sys.executable
TWO_SERVERS = [*(f"gpu{i} workers=4" for i in range(1, 5)), "cpu1 servers=2", "cpu2 servers=2"]
LINE = (
    "4 machines of workers with 2 of servers need 2.00 x M/B (M bytes of gradients, cards of B bytes a second), a ring "
    "would need 1.50: the servers' cards hold the job back. With 1 more machine of servers it is 1.33, with servers=1 "
    "behind gpu1 1.50"
)


def machines(n, c, k, rates=()):
    """n of workers, servers beside them on c, and k that only sum."""
    names = [("w", i, True, i < c) for i in range(n)] + [("s", i, False, True) for i in range(k)]
    given = [*rates, *[1.0] * (n + k - len(rates))]
    return [Machine(f"{kind}{i}", workers, servers, rate) for (kind, i, workers, servers), rate in zip(names, given)]


def bound(n, c, k, rates=()):
    return bounds.bound(machines(n, c, k, rates))


@pytest.mark.parametrize("n", range(2, 20))
def test_times_are_those_of_the_formula(n):
    for c in range(n + 1):
        for k in range(2 * n):
            if c + k > 0:
                formula = n * (n - 2 + c) / (n * c + k * (n - 2)) if n * c + k * (n - 2) > 0 else n / k
                assert bound(n, c, k).servers_time == pytest.approx(max(1.0, formula)), (n, c, k)
    assert bound(n, n, 0).servers_time == pytest.approx(bound(n, n, 0).ring_time)


@pytest.mark.parametrize("n, c, k, is_worse", [
    (2, 0, 1, True), (2, 0, 2, False), (2, 1, 0, False),
    (3, 0, 2, True), (3, 0, 3, False),  # 1.50 and 1.00 against 1.33
    (4, 0, 2, True), (4, 0, 3, False),  # 2.00 and 1.33 against 1.50
    (4, 3, 0, True), (4, 4, 0, False),  # 1.67 and 1.50
    (4, 1, 2, False), (4, 1, 1, True),  # 1.50 and 2.00
    (8, 0, 4, True), (8, 0, 5, False),  # 2.00 and 1.60 against 1.75
])  # fmt: skip
def test_it_is_worse_than_a_ring_from_one_server_to_the_next(n, c, k, is_worse):
    assert bound(n, c, k).is_worse == is_worse


@pytest.mark.parametrize("n", range(2, 12))
def test_remedies_are_enough_and_one_less_is_not(n):
    for c in range(n + 1):
        for k in range(n + 1):
            found = bound(n, c, k)
            if found is None or not found.is_worse:
                continue
            assert not bound(n, c, k + found.more).is_worse and bound(n, c, k + found.more - 1).is_worse
            beside = len(found.beside)
            assert not bound(n, c + beside, k).is_worse and bound(n, c + beside - 1, k).is_worse
            assert found.beside == [f"w{i}" for i in range(c, c + beside)]
            assert found.more_time == bound(n, c, k + found.more).servers_time
            assert found.beside_time == bound(n, c + beside, k).servers_time


def test_cards_of_known_rates_count_as_they_are():
    assert not bound(4, 0, 2, [10, 10, 10, 10, 40, 40]).is_worse  # servers' cards are four times as fast
    assert bound(4, 0, 4, [10, 10, 10, 10, 5, 5, 5, 5]).servers_time == pytest.approx(2.0)
    slow = bound(4, 0, 4, [10, 10, 10, 10, 5, 5, 5, 5])
    assert slow.is_worse and slow.more == 1 and slow.more_time == pytest.approx(4 / 3)  # one such card as the workers'
    assert bound(4, 0, 2, [10, 20, 10, 10, 10, 10]).beside == ["w1"]  # the fastest first


@pytest.mark.parametrize("lines, environ", [
    (["gpu1 workers=4", "cpu1 servers=1"], {}),  # one machine needs no server
    (["127.0.0.1 workers=1", "127.0.0.2 workers=1", "127.0.0.3 servers=1"], {}),  # all of them are this machine
    (TWO_SERVERS, {"BYTEPS_LOCAL_REDUCE": "0"}),  # four copies for each machine: another sum
])  # fmt: skip
def test_nothing_is_said_where_the_figures_do_not_hold(lines, environ):
    assert bounds.of_hosts(parse_hosts(lines), environ) is None


def test_without_servers_in_the_file_each_machine_has_one_and_that_is_fine():
    assert not bounds.of_hosts(parse_hosts(["a workers=4", "b workers=4", "c workers=4"]), {}).is_worse


def test_one_line_has_the_figures_and_the_remedies_and_the_page_shows_it():
    assert bounds.of_hosts(parse_hosts(TWO_SERVERS), {}).text() == LINE
    assert LINE in (ROOT / "docs/local.md").read_text()


def test_many_remedies_are_counted_rather_than_named():
    lines = [*(f"w{i} workers=1" for i in range(16)), "s servers=1"]
    found = bounds.of_hosts(parse_hosts(lines), {})
    assert len(found.beside) > 4 and f"behind {len(found.beside)} hosts of workers" in found.text()


def test_rates_count_where_every_host_has_one():
    hosts = parse_hosts(TWO_SERVERS)
    rates = {host.name: 40.0 if host.servers else 10.0 for host in hosts}
    assert not bounds.of_hosts(hosts, {}, rates).is_worse
    assert bounds.of_hosts(hosts, {}, {**rates, "cpu2": 0.0}).is_worse


def test_the_rate_of_a_host_is_that_of_its_connections_or_of_all_its_cards():
    def facts(own, *rates):
        cards = [{"address": f"10.0.0.{i}", "mbit_per_s": rate} for i, rate in enumerate(rates)]
        return {"settings": {"own_address": own} if own else {}, "interfaces": cards}

    assert doctor_findings.card_rate(facts("10.0.0.1", 1000, 25000)) == 25000
    assert doctor_findings.card_rate(facts("", 25000, 25000)) == 25000
    assert doctor_findings.card_rate(facts("", 1000, 25000)) is None
    assert doctor_findings.card_rate(facts("10.0.0.0", None)) is None


# ---- whole commands, over a stand-in for ssh

FEW = "".join(f"{line}\n" for line in ["gpu1 workers=1", "gpu2 workers=1", "cpu1 servers=1"])
ENOUGH = FEW + "cpu2 servers=1\n"


def hostfile(place, text):
    (place.folder / "hosts").write_text(text)
    return ["--hosts", str(place.folder / "hosts"), "--ssh"]


@pytest.mark.parametrize("text, is_worse", [(FEW, True), (ENOUGH, False)])
def test_bpslaunch_warns_once_at_the_start(place, stand_in, text, is_worse):
    options = [*hostfile(place, text), stand_in, "--grace", "0.3", "--", PYTHON, "-c", ""]
    code, out, err = place.run(*options, environ={"DMLC_PS_ROOT_URI": "10.0.0.1"})
    assert code == 0, err
    said = [line for line in err.splitlines() if "x M/B" in line]
    assert len(said) == int(is_worse)
    if is_worse:
        assert err.splitlines()[1] == said[0]
        assert said[0].startswith("bpslaunch: 2 machines of workers with 1 of servers need 2.00 x M/B ")
        assert said[0].endswith("With 1 more machine of servers it is 1.00, with servers=1 behind gpu1 1.00")


@pytest.mark.parametrize("text, level", [(FEW, WARNING), (ENOUGH, OK)])
def test_bps_doctor_has_a_finding_about_servers(place, stand_in, text, level):
    _, findings = doctor(place, *hostfile(place, text), stand_in, environ={"DMLC_PS_ROOT_URI": "10.0.0.1"})
    finding = the(findings, "servers")
    assert finding["level"] == level and "x M/B" in finding["text"]
    assert finding["fix"] == ("servers=1 behind gpu1 in the hostfile" if level == WARNING else "")


def test_bps_doctor_says_nothing_of_servers_on_one_host(place, stand_in):
    _, findings = doctor(place, *hostfile(place, "127.0.0.1 workers=2 servers=1\n"), stand_in)
    assert found(findings, "servers") == []
