"""What the documentation tells people to type works: blocks marked <!-- tested --> are run as they are written.

A marked block is a fence of ```sh. Each runs in a shell of its own in the repository's folder, with .venv/bin first
in PATH, as after `source .venv/bin/activate`.
"""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TRAINING = re.compile(r"examples/(torch|tensorflow|tensorflow_keras|keras|jax|mxnet)/")
LONG = pytest.mark.long(reason="whole trainings; tests/python runs most of these examples")
BLOCK = re.compile(r"<!-- tested -->\s*```sh\n(.*?)```", re.DOTALL)


def pages():
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks():
    for page in pages():
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), start=1):
            marks = [LONG] if TRAINING.search(match.group(1)) else []
            yield pytest.param(match.group(1), id=f"{page.relative_to(ROOT)}:{number}", marks=marks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("commands", list(blocks()))
def test_a_documented_command_runs_as_written(commands):
    env = {**os.environ, "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    run = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        cwd=ROOT,
        env=env,
        text=True,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        timeout=280,
    )
    assert run.returncode == 0, f"{commands}\n{run.stdout[-3000:]}\n{run.stderr[-3000:]}"


def test_some_commands_are_documented():
    assert len(list(blocks())) >= 5


def test_every_make_target_that_is_named_exists():
    places = [*pages(), *ROOT.glob("bench/*.py")]
    texts = [place.read_text() for place in places]
    named = {name for text in texts for name in re.findall(r"\bmake (setup[a-z-]*|test-[a-z]+|bench-[a-z]+)", text)}
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert "setup-horovod" in named and named <= targets


def test_what_is_installed_from_the_package_index_is_not_said_to_be_ours():
    """There the name is the original's."""
    wrong = r"pip install (-\S+ )*['\"]?byteps['\"\[=\s]"
    said = [
        f"{page.name}: {line}" for page in pages() for line in page.read_text().splitlines() if re.search(wrong, line)
    ]
    assert [line for line in said if "original" not in line] == []


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in pages():
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")) and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken, "\n".join(broken)
