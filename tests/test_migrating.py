"""Every command of docs/migrating.md, with a smaller budget, prints and writes what its row of the table says.

A few commands run in this environment. The deep tier runs all of them in a fresh clone that an unprivileged user
installs.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "migrating.md"
QUICK = (
    "python examples/train_ppo.py --timesteps 500000",
    "python examples/train_ppo.py --n-envs 4 --parallel-start-method spawn",
    "python examples/train_ppo.py --n-envs 8 --num-episodes 1000 --device mps",
    "python examples/train_curriculum_v2.py",
    "python examples/train_ppo_sweep.py",
    "python examples/train_hybrid_selfplay.py",
    "python examples/train_timed.py",
    "python examples/train_parallel_timed.py --duration 0.017",
    "make train TRAIN_STEPS=20000 TRAIN_OUTPUT_DIR=training_runs",
    "make train-20k TRAIN_EPISODE_LENGTH",
    "python examples/train_territory.py --device mps --n-envs 1",
)
"""The beginnings of the commands that ``make test`` runs."""
UNPRIVILEGED = "nobody"


class Row(NamedTuple):
    """A command, the text that it prints and the files that it writes."""

    command: str
    prints: list[str]
    files: list[str]


def table_rows() -> list[Row]:
    """Return the rows of the page whose command can run here."""
    parsed = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]  # a bar inside a code span ends the column, too
        assert len(cells) in (0, 4), line
        if cells and re.match(r"`(python|make|corral) ", cells[1]):
            command, prints, files = (re.findall(r"`([^`]+)`", cell) for cell in cells[1:])
            parsed.append(Row(command[0], prints, files))
    return parsed


def shorten(command: str) -> list[str]:
    """Return the words of a command with a small budget, and without a device that this machine may lack."""
    command = re.sub(r"--device \w+", "--device cpu", command)
    command = re.sub(r"(--(?:total-)?timesteps )\d+", r"\g<1>600", command)
    command = re.sub(r"(--num-episodes )\d+", r"\g<1>8", command)
    command = re.sub(r"(--duration |DURATION=)[\d.]+", r"\g<1>0.0003", command)
    words = shlex.split(re.sub(r"(TRAIN_STEPS=)\d+", r"\g<1>3000", command))  # enough for several episodes
    if words[0] == "pip":
        return words
    flags = []
    budget = re.search(r"timesteps|episodes|duration|DURATION|--fast", command)
    if "compare_results" not in command and words[0] != "corral" and budget is None:
        flags += ["--timesteps", "3000" if "20k" in command else "600"]
    if re.search(r"train_(ppo|selfplay|hybrid|curriculum)(?!_sweep)", command):
        flags += ["--eval-games", "2"]
    if "warmstart" in command:
        flags += ["--expert-steps", "256", "--expert-epochs", "1"]
    if words[0] == "make" and words[1] == "compare":
        return [*words, "DURATION=0.0003"]
    if "--fast" in words:
        flags += ["--timesteps", "600"]
    if words[0] == "corral":
        return [*words, *(["--seconds", "0.2", "--repeats", "1"] if words[1] == "tune" else [])]
    return [*words, f"TRAIN_FLAGS={shlex.join(flags)}"] if words[0] == "make" and flags else [*words, *flags]


def check_command(row: Row, folder: Path, environ: dict[str, str], **user: str) -> None:
    """Run a command in ``folder`` and compare its output and its new files with its row of the table."""
    before = {path for pattern in row.files for path in folder.glob(pattern)}
    completed = subprocess.run(
        shorten(row.command), cwd=folder, env=environ, capture_output=True, text=True, timeout=900, **user
    )
    output = f"{row.command}\n{completed.stdout}\n{completed.stderr}"
    assert completed.returncode == 0, output
    assert not [text for text in row.prints if text not in completed.stdout], output
    assert not [pattern for pattern in row.files if not set(folder.glob(pattern)) - before], output


@pytest.fixture
def checkout(tmp_path):
    """Return a directory with links to this checkout, in which runs may be written, and its environment variables."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "examples", "config", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    bin_directory = Path(sys.executable).parent
    (tmp_path / ".venv").symlink_to(bin_directory.parent)
    for extra in ("base", "gameboy", "procgen", "territory"):
        installed = tmp_path / ".venv" / f".installed-{extra}"
        assert installed.exists(), "run `make setup` first"
        if any(
            installed.stat().st_mtime < (ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt")
        ):
            pytest.skip("`make` would install into this environment again; run `make setup` first")
    return tmp_path, os.environ | {"PATH": f"{bin_directory}{os.pathsep}{os.environ['PATH']}", "PYTHON": sys.executable}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("start", QUICK)
def test_a_command_does_what_the_table_says(start, checkout):
    if start.startswith("make") and shutil.which("make") is None:
        pytest.skip("make is not installed")
    row = next(row for row in table_rows() if row.command.startswith(start))
    check_command(row, *checkout)


def test_every_row_of_the_table_is_read():
    assert len(table_rows()) >= 40
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    not_run_here = ("SubprocVecEnv", "ulimit", "tensorboard", "taskset", "tail", "htop", "cd ", "tmux")
    assert len(table_rows()) == len(
        [line for line in lines if not line.startswith(tuple(f"| `{word}" for word in not_run_here))]
    )


@pytest.mark.parametrize("device", ["mps", "cuda"])
def test_a_missing_device_is_refused_in_one_line(device, run_script, capsys):
    import torch

    if torch.cuda.is_available() if device == "cuda" else torch.backends.mps.is_available():
        pytest.skip(f"this machine has {device}")
    assert run_script("train_territory", "--device", device, "--n-envs", "1") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and err.startswith(f"train_territory.py: device {device!r}") and "--device cpu" in err


@pytest.mark.deep
@pytest.mark.timeout(7200)
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can become another user")
def test_every_command_works_in_a_fresh_clone_without_root():
    with tempfile.TemporaryDirectory() as folder:  # other users cannot read pytest's temporary directories
        run_all_commands(Path(folder))


def run_all_commands(folder: Path) -> None:
    """Clone this repository, install it as an unprivileged user and check every command."""
    clone = folder / "corral"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    home = folder / "home"
    home.mkdir()
    pip_configs = [path for name in (".config/pip", ".pip") if (path := Path.home() / name / "pip.conf").is_file()]
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "PYTHON": _find_python()}
    environ |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    if pip_configs:  # it names the package index of this machine
        environ["PIP_CONFIG_FILE"] = str(shutil.copy(pip_configs[0], home / "pip.conf"))
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, UNPRIVILEGED)
    environ["PATH"] = f"{clone / '.venv' / 'bin'}{os.pathsep}{environ['PATH']}"
    first_row = Row("make train", ["training on card-battle", "games of the final policy"], ["runs/card-battle-*"])
    (install,) = re.findall(r"^(pip install .*?) *#", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    failures = []
    for row in (first_row, Row(install, [], []), *table_rows()):
        try:
            check_command(row, clone, environ, user=UNPRIVILEGED)
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n\n".join(failures)


def _find_python() -> str:
    """Return a Python that the unprivileged user can run; skip the test if there is none."""
    for name in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        command = [str(name), "-c", "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if name and subprocess.run(command, user=UNPRIVILEGED, cwd="/", capture_output=True).returncode == 0:
                return name
        except OSError:
            continue
    pytest.skip("no Python 3.11 or newer that another user can run")
