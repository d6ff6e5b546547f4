"""What fault tests share: runs that are ended with the test, whatever happened."""

from __future__ import annotations

import random
import sys

import pytest

from tests.faults.harness import WALK, Run

if sys.platform == "win32":
    collect_ignore_glob = ["test_*.py"]  # all about POSIX signals


@pytest.fixture(scope="session")
def warm():
    """Commands in processes that have Corral loaded already."""
    from tests.faults.warm import WarmCommands  # which Windows could not import

    commands = WarmCommands()
    yield commands
    commands.close()


@pytest.fixture
def make_run(tmp_path):
    """Makes runs; their processes do not outlive the test."""
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
    """Random moments and victims, the same in every run of a test."""
    return random.Random(request.node.name)
