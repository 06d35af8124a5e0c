"""tools/kill_campaign in small: five kills of each kind cost nobody a step, and what is silent is given up in time."""

import re
import signal
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader

import pytest
from place import ROOT

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def campaign(monkeypatch):
    loader = SourceFileLoader("kill_campaign", str(ROOT / "tools/kill_campaign"))
    module = module_from_spec(spec_from_loader("kill_campaign", loader))
    loader.exec_module(module)
    monkeypatch.setattr(module.fork_servers, "end", lambda: None)  # they are this process's
    before = signal.getsignal(signal.SIGTERM)
    yield module
    signal.signal(signal.SIGTERM, before)


def run(campaign, tmp_path, capsys, *arguments):
    code = campaign.main([*arguments, "--seed", "3", "--output", str(tmp_path / "campaign")])
    out = capsys.readouterr().out
    assert code == 0 and "violations 0\n" in out, out
    assert (tmp_path / "campaign" / arguments[0] / "stalls.csv").is_file()
    return out


def test_five_kills_of_servers_in_one_job(campaign, tmp_path, capsys):
    out = run(campaign, tmp_path, capsys, "server", "--jobs", "1", "--kills", "5", "--steps", "1000")
    assert re.search(r"^  [45] after a kill: .*p100 [01]\.", out, re.M), out


def test_kills_of_the_scheduler_while_a_worker_joins_once_and_twice_in_a_row(campaign, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(campaign, "WINDOW_S", 0.7)
    steps = ["--steps", "100", "--step-ms", "100"]
    out = run(campaign, tmp_path, capsys, "scheduler", "--jobs", "1", "--kills", "4", *steps)
    assert "  4 after a kill: " in out and "  4 without one: " in out, out


def give_up(campaign, tmp_path, capsys, jobs):
    steps = ["--steps", "250", "--step-ms", "20", "--failure-ms", "1500"]
    out = run(campaign, tmp_path, capsys, "silence", "--jobs", str(jobs), "--deterministic", *steps)
    assert re.search(rf"^  {jobs} jobs were compared with their replay$", out, re.M), out


def test_a_host_that_is_cut_off_is_given_up_in_time_and_counts_nowhere(campaign, tmp_path, capsys, monkeypatch):
    kind = "cut a worker's and a server's host"
    monkeypatch.setitem(campaign.SILENT, (), {kind: campaign.SILENT[()][kind]})
    give_up(campaign, tmp_path, capsys, 1)


@pytest.mark.long(reason="waits for timeouts; the quick one has the host of both")
@pytest.mark.timeout(600)
def test_who_is_stopped_or_cut_off_is_given_up_in_time_and_counts_nowhere(campaign, tmp_path, capsys):
    give_up(campaign, tmp_path, capsys, len(campaign.SILENT[()]))


@pytest.mark.parametrize(
    "options, said",
    [
        (["silence", "--hosts", "2,1"], "`silence` takes no other --hosts than 2,2"),
        (["scheduler", "--successor", "adoption"], "--successor adoption goes with `server` alone"),
        (["server", "--successor", "adoption", "--servers", "1"], "needs another server"),
    ],
)
def test_options_that_it_cannot_serve_are_refused(campaign, capsys, options, said):
    with pytest.raises(SystemExit) as ended:
        campaign.main(options)
    assert ended.value.code == 2 and said in capsys.readouterr().err
