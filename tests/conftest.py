"""What every test may use, and what every test is checked for: no process of ours may be left behind."""

from __future__ import annotations

import multiprocessing
import runpy
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).parents[1]

settings.register_profile(
    "corral",
    max_examples=60,
    deadline=None,
    derandomize=True,  # the same examples in every run: a red run means a change
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("corral")


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path, monkeypatch):
    """Runs land in a directory of the test's own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_process_left_behind():
    """A test that leaves a worker running fails."""
    yield
    deadline = time.monotonic() + 30
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    left = multiprocessing.active_children()
    assert not left, f"worker processes left behind: {left}"


@pytest.fixture
def run_script(monkeypatch):
    """Run an example in this process, as if it were started from the shell; returns its exit code."""
    monkeypatch.syspath_prepend(ROOT / "examples")

    def run(name, *words):
        monkeypatch.setattr(sys, "argv", [f"examples/{name}.py", *words])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        return end.value.code

    return run
