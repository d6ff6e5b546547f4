"""Commands that are printed work when they are pasted."""

import os
import subprocess
import sys
from pathlib import Path

from corral.core.stdio import command

PROGRAMS = Path(sys.executable).parent


def test_a_program_on_the_path_goes_by_its_name(monkeypatch):
    monkeypatch.setenv("PATH", f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}")
    assert command() == "corral" and command("tensorboard") == "tensorboard"


def test_another_goes_by_its_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command() == str(PROGRAMS / "corral")
    monkeypatch.chdir(PROGRAMS.parent)
    assert command() == str(Path(PROGRAMS.name) / "corral")
    assert subprocess.run([command(), "--version"], capture_output=True, check=True).stdout.startswith(b"corral ")
    assert command("no-such-module") == f"{sys.executable} -m no-such-module"


def test_a_program_without_a_path_goes_by_its_module(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("corral.core.stdio.sys.executable", str(tmp_path / "python"))
    module = command("tensorboard").rpartition(" -m ")[2]
    subprocess.run([PROGRAMS / "python", "-m", module, "--version"], capture_output=True, check=True)


def test_a_program_of_the_same_name_is_not_taken_for_ours(monkeypatch, tmp_path):
    other = tmp_path / "corral"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command() == str(PROGRAMS / "corral")
