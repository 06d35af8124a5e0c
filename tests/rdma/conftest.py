"""Tests for the guest (guest.py): tests/rdma/run boots it and runs them there, all in one boot."""

import sys
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parents[1] / "process")]

IS_GUEST = Path("/run/guest/settings").exists()


def pytest_collection_modifyitems(items):
    if not IS_GUEST:
        for item in items:
            item.add_marker(pytest.mark.skip(reason="for the guest: tests/rdma/run"))
