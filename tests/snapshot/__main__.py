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
"""Differences of a run that are printed."""


def main(argv: list[str] | None = None) -> int:
    """Return 0 if every run is equal."""
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
    place = Path(tempfile.mkdtemp(prefix="snapshot-"))
    with worktree(options.base, place / "base") as base, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        print(f"{len(cases)} runs with {options.base} and with {ROOT}", flush=True)
        outcomes = [pool.submit(compare, case, base, place) for case in cases]
        equal = [report(case, outcome.result()) for case, outcome in zip(cases, outcomes, strict=True)]
    if all(equal):
        shutil.rmtree(place)
        print(f"all {len(cases)} runs are equal")
        return 0
    print(f"{equal.count(False)} of {len(cases)} runs differ; their files are in {place}")
    return 1


@contextmanager
def worktree(commit: str, path: Path) -> Iterator[Path]:
    """Yield the path of a checkout of ``commit``, which is removed at the end."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(path), commit], check=True)
    try:
        yield path
    finally:
        subprocess.run([*git, "remove", "--force", str(path)], check=True)


def compare(case: Case, base: Path, place: Path) -> list[str]:
    """Return how the run of this tree differs from that of the base, a line each."""
    contents = []
    for tree, side in ((base, "before"), (ROOT, "now")):
        run = place / side / case.name.replace(" ", "-")
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
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    which = [sys.executable, "-c", "import corral; print(corral.__file__)"]
    found = subprocess.run(which, cwd=run.parent, env=environment, check=True, capture_output=True, text=True).stdout
    assert Path(found.strip()).is_relative_to(tree), f"{found.strip()} is not of {tree}"
    if case.copy_of is not None:
        shutil.copytree(case.copy_of, run)
    for command in case.commands:
        words = [word.replace(RUN, str(run)) for word in command]
        subprocess.run(
            [sys.executable, "-m", "corral", *words],
            cwd=run.parent,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
        )


def report(case: Case, lines: list[str]) -> bool:
    """Print whether a run is equal, and how it is not."""
    print(f"{'differs' if lines else 'equal  '}  {case.name}", flush=True)
    for line in lines[:MAX_LINES]:
        print(f"    {line}", flush=True)
    if len(lines) > MAX_LINES:
        print(f"    and {len(lines) - MAX_LINES} more", flush=True)
    return not lines


if __name__ == "__main__":
    sys.exit(main())
