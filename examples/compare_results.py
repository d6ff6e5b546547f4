"""Compare a sequential run with a parallel one: print a table, write comparison.png and comparison_report.txt.

    python examples/compare_results.py --sequential runs/sequential --parallel runs/parallel

The script is meant for runs of train_timed.py and train_parallel_timed.py, but compares any two runs.
`corral compare A B` does the same.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from corral.bench.compare import compare_runs
from corral.cli.main import guarded


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sequential", metavar="DIR", required=True, help="run directory of the sequential run")
    parser.add_argument("--parallel", metavar="DIR", required=True, help="run directory of the parallel run")
    parser.add_argument("--output", metavar="DIR", help="where the files go [a new directory beside the first run]")
    return parser.parse_args()


def main() -> int:
    options = parse()
    result = compare_runs(options.sequential, options.parallel, options.output, names=("sequential", "parallel"))
    print(f"{result.as_text()}\npicture: {result.picture}\nreport:  {result.report}")
    return 0


if __name__ == "__main__":
    sys.exit(guarded(Path(__file__).name, sys.argv[1:], main))
