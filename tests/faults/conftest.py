"""Fixtures for fault tests: runs whose processes end with the test, even if it fails."""

from __future__ import annotations

import random
import sys

import pytest

from tests.faults.harness import WALK, Run

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]  # these tests need POSIX signals


@pytest.fixture(scope="session")
def forked_commands():
    """Run ``corral`` commands in forks of a process that has imported Corral already."""
    from tests.faults.forked_commands import ForkedCommands  # cannot be imported on Windows

    commands = ForkedCommands()
    yield commands
    commands.close()


@pytest.fixture
def make_run(tmp_path):
    """Return a function that makes runs, whose processes are killed after the test."""
    runs = []

    def make(env=WALK, **settings):
        runs.append(Run(tmp_path / f"run{len(runs)}", env, **settings))
        return runs[-1]

    yield make
    for run in runs:
        for trainer in run.trainers:
            trainer.kill_all()


@pytest.fixture
def rng(request):
    """Return a random generator for moments and workers, the same in every run of a test."""
    return random.Random(request.node.name)
