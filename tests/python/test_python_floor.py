"""The package is for Python 3.9 and newer: a file that needs more would fail at its import only there. `make wheel`
runs it on the Pythons it finds."""

import ast

import pytest
from place import ROOT

FILES = sorted((ROOT / "python").rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "python")))
def test_a_file_of_the_package_is_python_3_9(path):
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=(3, 9))
    bars = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    annotated = any(isinstance(node, (ast.AnnAssign, ast.arg)) for node in ast.walk(tree))
    lazily = "from __future__ import annotations" in path.read_text(encoding="utf-8")
    assert lazily or not (bars and annotated), f"`X | Y` in an annotation is evaluated without the import: {bars}"
