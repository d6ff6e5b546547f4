"""Every command of docs/migrating.md is typed, with a shortened budget, and does what its row says.

A few are typed in this environment. All of them are typed in a fresh clone that an unprivileged user installs, in the
deep tier.
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
"""How the commands begin that are typed in ``make test``."""
UNPRIVILEGED = "nobody"


class Row(NamedTuple):
    """A command that can be typed here, what it prints, and the files it leaves."""

    command: str
    prints: list[str]
    files: list[str]


def rows() -> list[Row]:
    found = []
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]  # a bar ends a column inside a code span too
        assert len(cells) in (0, 4), line
        if cells and re.match(r"`(python|make|corral) ", cells[1]):
            command, prints, files = (re.findall(r"`([^`]+)`", cell) for cell in cells[1:])
            found.append(Row(command[0], prints, files))
    return found


def shortened(command: str) -> list[str]:
    """The words of a command with a small budget, and without a device that this machine may lack."""
    command = re.sub(r"--device \w+", "--device cpu", command)
    command = re.sub(r"(--(?:total-)?timesteps )\d+", r"\g<1>600", command)
    command = re.sub(r"(--num-episodes )\d+", r"\g<1>8", command)
    command = re.sub(r"(--duration |DURATION=)[\d.]+", r"\g<1>0.0003", command)
    words = shlex.split(re.sub(r"(TRAIN_STEPS=)\d+", r"\g<1>3000", command))  # some episodes
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


def check(row: Row, folder: Path, environ: dict[str, str], **user: str) -> None:
    """Type a command in ``folder`` and compare what it prints and newly leaves with its row."""
    before = {path for pattern in row.files for path in folder.glob(pattern)}
    done = subprocess.run(
        shortened(row.command), cwd=folder, env=environ, capture_output=True, text=True, timeout=900, **user
    )
    told = f"{row.command}\n{done.stdout}\n{done.stderr}"
    assert done.returncode == 0, told
    assert not [words for words in row.prints if words not in done.stdout], told
    assert not [pattern for pattern in row.files if not set(folder.glob(pattern)) - before], told


@pytest.fixture
def checkout(tmp_path):
    """A directory that looks like this checkout, in which runs may be left."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "examples", "config", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    programs = Path(sys.executable).parent
    (tmp_path / ".venv").symlink_to(programs.parent)
    for extra in ("base", "gameboy", "procgen", "territory"):
        done = tmp_path / ".venv" / f".installed-{extra}"
        assert done.exists(), "run `make setup` first"
        if any(done.stat().st_mtime < (ROOT / name).stat().st_mtime for name in ("pyproject.toml", "constraints.txt")):
            pytest.skip("`make` would install into this environment again; run `make setup` first")
    return tmp_path, os.environ | {"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHON": sys.executable}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("start", QUICK)
def test_a_command_does_what_the_table_says(start, checkout):
    if start.startswith("make") and shutil.which("make") is None:
        pytest.skip("make is not installed")
    row = next(row for row in rows() if row.command.startswith(start))
    check(row, *checkout)


def test_the_table_is_read_whole():
    assert len(rows()) >= 40
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    other = ("SubprocVecEnv", "ulimit", "tensorboard", "taskset", "tail", "htop", "cd ", "tmux")
    assert len(rows()) == len([line for line in lines if not line.startswith(tuple(f"| `{word}" for word in other))])


@pytest.mark.parametrize("device", ["mps", "cuda"])
def test_a_device_that_is_missing_is_one_line(device, run_script, capsys):
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
    with tempfile.TemporaryDirectory() as folder:  # pytest's own are closed to other users
        type_everything(Path(folder))


def type_everything(folder: Path) -> None:
    clone = folder / "corral"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    home = folder / "home"
    home.mkdir()
    settings = [path for name in (".config/pip", ".pip") if (path := Path.home() / name / "pip.conf").is_file()]
    environ = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "PYTHON": _python()}
    environ |= {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    if settings:  # where packages come from on this machine
        environ["PIP_CONFIG_FILE"] = str(shutil.copy(settings[0], home / "pip.conf"))
    for path in (folder, *folder.rglob("*")):
        shutil.chown(path, UNPRIVILEGED)
    environ["PATH"] = f"{clone / '.venv' / 'bin'}{os.pathsep}{environ['PATH']}"
    first = Row("make train", ["training on card-battle", "games of the final policy"], ["runs/card-battle-*"])
    (install,) = re.findall(r"^(pip install .*?) *#", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    failed = []
    for row in (first, Row(install, [], []), *rows()):
        try:
            check(row, clone, environ, user=UNPRIVILEGED)
        except AssertionError as error:
            failed.append(str(error))
    assert not failed, "\n\n".join(failed)


def _python() -> str:
    """A Python that the unprivileged user can run."""
    for name in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")):
        words = [str(name), "-c", "import ensurepip, sys; sys.exit(sys.version_info < (3, 11))"]
        try:
            if name and subprocess.run(words, user=UNPRIVILEGED, cwd="/", capture_output=True).returncode == 0:
                return name
        except OSError:
            continue
    pytest.skip("no Python 3.11 or newer that another user can run")
