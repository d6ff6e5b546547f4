"""Commands that Corral prints work when they are pasted into a shell."""

import os
import subprocess
import sys
from pathlib import Path

from corral.core.stdio import command

BIN = Path(sys.executable).parent


def test_a_program_on_the_path_is_called_by_its_name(monkeypatch):
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")
    assert command() == "corral" and command("tensorboard") == "tensorboard"


def test_a_program_that_is_not_on_the_path_is_called_by_its_file_path(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command() == str(BIN / "corral")
    monkeypatch.chdir(BIN.parent)
    assert command() == str(Path(BIN.name) / "corral")
    assert subprocess.run([command(), "--version"], capture_output=True, check=True).stdout.startswith(b"corral ")
    assert command("no-such-module") == f"{sys.executable} -m no-such-module"


def test_a_program_without_an_executable_is_called_with_python_m(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("corral.core.stdio.sys.executable", str(tmp_path / "python"))
    module = command("tensorboard").rpartition(" -m ")[2]
    subprocess.run([BIN / "python", "-m", module, "--version"], capture_output=True, check=True)


def test_a_program_of_another_environment_with_the_same_name_is_not_used(monkeypatch, tmp_path):
    other_program = tmp_path / "corral"
    other_program.write_text("#!/bin/sh\n")
    other_program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command() == str(BIN / "corral")
