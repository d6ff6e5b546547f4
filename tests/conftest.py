"""Fixtures for all tests. One of them fails every test that leaves a worker process running."""

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
    derandomize=True,  # the same examples in every run, so that a failure means that the code changed
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("corral")


@pytest.fixture(autouse=True)
def in_temporary_directory(tmp_path, monkeypatch):
    """Change to the temporary directory of the test, so that runs are written there."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def no_process_left_behind():
    """Fail a test that leaves a worker process running."""
    yield
    deadline = time.monotonic() + 30
    while multiprocessing.active_children() and time.monotonic() < deadline:
        time.sleep(0.05)
    remaining = multiprocessing.active_children()
    assert not remaining, f"worker processes left behind: {remaining}"


@pytest.fixture
def run_script(monkeypatch):
    """Return a function that runs an example in this process, as the shell would, and returns its exit code."""
    monkeypatch.syspath_prepend(ROOT / "examples")

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [f"examples/{name}.py", *arguments])
        with pytest.raises(SystemExit) as exit_info:
            runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
        return exit_info.value.code

    return run
