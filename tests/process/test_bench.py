"""What bench/ makes of its options and of what it has measured."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import contenders
import report
import run
import scenarios

WITH_TORCH = next(scenario for scenario in scenarios.ALL if scenario.name == "with-torch")


@pytest.mark.parametrize(
    "paths, names",
    [
        (["/main/build/release"], [""]),
        (["/main/build/release", "/main/build/other"], ["release", "other"]),
        (["/a/build/release", "/b/build/release"], ["a", "b"]),
        (["/a/build/old", "/a/build/new", "/b/build/old"], ["a/build/old", "a/build/new", "b/build/old"]),
        (["/a/build", "/a/build/old"], ["build", "build/old"]),
    ],
)
def test_builds_are_named_by_what_tells_their_paths_apart(paths, names):
    assert run.build_names([Path(path) for path in paths]) == names


def test_a_link_to_a_build_is_a_build_of_its_own(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["run.py", "--build", "build/release", "--build", "build/../build/same"])
    assert [build.name for build in run.arguments().build] == ["release", "same"]


def test_one_build_named_twice_is_refused(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--build", "build/release", "--build", "build/../build/release"])
    with pytest.raises(SystemExit):
        run.arguments()
    assert "--build names one folder twice" in capsys.readouterr().err


def test_where_horovod_is_missing_the_bench_says_so_and_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setattr(contenders, "HOROVOD_PYTHON", tmp_path / "bin/python")
    found, refused = contenders.rivals(WITH_TORCH, ROOT / "build/release", 0)
    assert [group.label for group in found] == ["gloo"]
    assert refused == ["Horovod is left out: it is not in .venv-horovod (make setup-horovod)"]


def test_where_horovod_is_installed_it_also_trains_alone(monkeypatch, tmp_path):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").touch()
    (tmp_path / "lib/python3.11/site-packages/horovod").mkdir(parents=True)
    monkeypatch.setattr(contenders, "HOROVOD_PYTHON", tmp_path / "bin/python")
    found, refused = contenders.rivals(WITH_TORCH, ROOT / "build/release", 0)
    words = {group.label: [word for word, _ in group.words(WITH_TORCH)] for group in found}
    assert words == {"gloo": ["go", "communicate", "small"], "horovod": ["go", "compute", "communicate", "small"]}
    assert refused == []


def test_what_a_rival_hides_is_judged_by_its_own_computation_where_that_was_measured():
    seconds = {"byteps compute": 1.0, "gloo": 1.5, "gloo communicate": 1.0}
    seconds.update({"horovod": 2.5, "horovod compute": 2.0, "horovod communicate": 1.0})
    result = {"figures": {label: {"median_s": one} for label, one in seconds.items()}}
    assert report.hidden_share(result, "gloo") == pytest.approx(0.5)
    assert report.hidden_share(result, "horovod") == pytest.approx(0.5)
    assert report.hidden_share(result, "byteps") is None


def test_submitting_is_told_per_tensor_and_only_where_it_is_apart_from_waiting():
    ours, theirs = {"own_first_s": 0.0016, "median_s": 0.01}, {"own_first_s": 1.0, "median_s": 1.0}
    result = {"figures": {"byteps small": ours, "gloo small": theirs}}
    assert report.submit_us(result, "byteps") == pytest.approx(10.0)
    assert report.submit_us(result, "gloo") is None
    assert report.submit_us(result, "horovod") is None
