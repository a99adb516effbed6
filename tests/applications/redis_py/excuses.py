"""Leaves out of redis-py's tests what excused.txt names; with TARN_REDIS_PY_GAPS=run, for a server without them, not the gaps."""

import os
import pathlib

import pytest

LIST = pathlib.Path(__file__).with_name("excused.txt")


def excused():
    """The reason for each name."""
    reasons, reason = {}, None
    for line in LIST.read_text().splitlines():
        if line.startswith("["):
            reason = line.strip("[]")
        elif line and not line.startswith("#"):
            reasons[line] = reason
    return reasons


def pytest_collection_modifyitems(config, items):
    reasons, left = excused(), os.environ.get("TARN_REDIS_PY_GAPS") != "run"
    met, files = set(), set()
    for item in items:
        name = item.nodeid.split("[")[0].removeprefix("tests/")
        files.add(name.split("::")[0])
        reason = reasons.get(name)
        met.add(name)
        if reason and (left or not reason.startswith("Gap")):
            item.add_marker(pytest.mark.skip(reason=f"excused: {reason}"))
    unknown = [name for name in reasons if name.split("::")[0] in files and name not in met]
    if unknown:
        raise pytest.UsageError(f"{LIST.name} names tests that are not there: {unknown}")
