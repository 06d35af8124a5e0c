"""tools/lint_python finds what it is there for, in a checkout of its own."""

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# Rule and a file that breaks it; the comments must not stand here in one piece.
FILES = {
    "no-untyped-def": "def double(number):\n    return 2 * number\n",
    "arg-type": 'def double(number: int) -> int:\n    return 2 * number\n\n\ndouble("2")\n',
    "unused-ignore": "ONE: int = 1  # type: " "ignore[assignment]\n",
    "F401": "import os\n",
    "RUF100": "ONE = 1  # no" "qa: F401\n",
    "": "import numpy as np\nimport torch\n\n\ndef f(x: torch.Tensor) -> float:\n    return float(np.new(x).what)\n",
}


def test_what_is_planted_is_found_and_what_frameworks_have_is_not_asked(tmp_path):
    for folder in ("python/byteps", "bench", "examples", "tests", "tools"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("pyproject.toml", "tools/lint_python"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    (tmp_path / "python/byteps/__init__.py").write_text("")
    paths = {rule: f"python/byteps/file_{number}.py" for number, rule in enumerate(FILES)}
    for rule, path in paths.items():
        (tmp_path / path).write_text(FILES[rule])
    done = subprocess.run([tmp_path / "tools/lint_python"], capture_output=True, text=True)
    assert done.returncode == 1
    said = done.stdout + done.stderr
    named = {rule for rule in FILES if rule and re.search(rf"\b{re.escape(rule)}\b", said)}
    assert named == set(FILES) - {""}, said
    assert {path for path in paths.values() if path in said} == set(paths.values()) - {paths[""]}, said
