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
BLOCK = re.compile(r"<!-- tested -->\s*```sh\n(.*?)```", re.DOTALL)


def pages():
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def blocks():
    for page in pages():
        for number, match in enumerate(BLOCK.finditer(page.read_text(encoding="utf-8")), start=1):
            yield pytest.param(match.group(1), id=f"{page.relative_to(ROOT)}:{number}")


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


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in pages():
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http:", "https:")) and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken, "\n".join(broken)
