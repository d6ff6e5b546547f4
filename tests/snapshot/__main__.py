"""Train small runs with another commit and with this tree, and compare what they leave.

``python -m tests.snapshot --base COMMIT`` makes a git worktree of the commit, uses this Python with its packages for
both, and exits with 1 if a run differs. Nothing recorded is needed, so this works on any machine.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.snapshot.cases import CASES, RUN, Case
from tests.snapshot.contents import contents_of, differences

ROOT = Path(__file__).parents[2]
MAX_LINES = 12
"""The largest number of differences of a run that are printed."""


def main(argv: list[str] | None = None) -> int:
    """Compare all runs; return 0 if every run is equal, or 1."""
    parser = argparse.ArgumentParser(prog="python -m tests.snapshot", description=__doc__)
    parser.add_argument("--base", required=True, metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--short", action="store_true", help="only the runs that cover most")
    parser.add_argument("--only", metavar="TEXT", help="runs whose name has this in it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time [one per core]")
    options = parser.parse_args(argv)
    cases = [
        case
        for case in CASES
        if (case.short or not options.short) and (options.only is None or options.only in case.name)
    ]
    directory = Path(tempfile.mkdtemp(prefix="snapshot-"))
    with (
        worktree(options.base, directory / "base") as base,
        concurrent.futures.ThreadPoolExecutor(options.jobs) as pool,
    ):
        print(f"{len(cases)} runs with {options.base} and with {ROOT}", flush=True)
        outcomes = [pool.submit(compare, case, base, directory) for case in cases]
        equal = [report(case, outcome.result()) for case, outcome in zip(cases, outcomes, strict=True)]
    if all(equal):
        shutil.rmtree(directory)
        print(f"all {len(cases)} runs are equal")
        return 0
    print(f"{equal.count(False)} of {len(cases)} runs differ; their files are in {directory}")
    return 1


@contextmanager
def worktree(commit: str, path: Path) -> Iterator[Path]:
    """Yield the path of a git worktree of ``commit``, which is removed at the end."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
    try:
        yield path
    finally:
        subprocess.run([*git, "remove", "--force", str(path)], check=True)


def compare(case: Case, base: Path, directory: Path) -> list[str]:
    """Return the differences between the run of the base and that of this tree, a line each."""
    contents = []
    for tree, side in ((base, "before"), (ROOT, "now")):
        run = directory / side / case.name.replace(" ", "-")
        try:
            train(case, tree, run)
        except subprocess.CalledProcessError as error:
            return [
                f"{' '.join(map(str, error.cmd[2:]))} ({side}) failed with {error.returncode}: {error.stderr[-2000:]}"
            ]
        contents.append(contents_of(run))
    return differences(*contents)


def train(case: Case, tree: Path, run: Path) -> None:
    """Run the command lines of a case with the code of one tree."""
    run.parent.mkdir(parents=True, exist_ok=True)
    environ = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    find_package = [sys.executable, "-c", "import corral; print(corral.__file__)"]
    package_file = subprocess.run(
        find_package, cwd=run.parent, env=environ, check=True, capture_output=True, text=True
    ).stdout
    assert Path(package_file.strip()).is_relative_to(tree), f"{package_file.strip()} is not in {tree}"
    if case.copy_of is not None:
        shutil.copytree(case.copy_of, run)
    for command in case.commands:
        arguments = [word.replace(RUN, str(run)) for word in command]
        subprocess.run(
            [sys.executable, "-m", "corral", *arguments],
            cwd=run.parent,
            env=environ,
            check=True,
            capture_output=True,
            text=True,
        )


def report(case: Case, lines: list[str]) -> bool:
    """Print whether a run is equal, or its differences; return whether it is equal."""
    print(f"{'differs' if lines else 'equal  '}  {case.name}", flush=True)
    for line in lines[:MAX_LINES]:
        print(f"    {line}", flush=True)
    if len(lines) > MAX_LINES:
        print(f"    and {len(lines) - MAX_LINES} more", flush=True)
    return not lines


if __name__ == "__main__":
    sys.exit(main())
