"""What bench/ makes of its options and of what it has measured."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))

import run  # noqa: E402


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
