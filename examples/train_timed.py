"""Train PPO for a given time in one process, and write benchmark_metrics.json for comparisons.

    python examples/train_timed.py --duration 0.017 --n-envs 8 --output-dir runs/sequential
    python examples/train_timed.py --env Acrobot-v1 --n-envs 16 --duration 0.5 --seed 1

The env is Procgen's coinrun, or another --env. Settings come from config/ppo_parallel.yaml, or another --config; flags
override it, and where there are fewer cores than its workers there are fewer workers. This script steps their envs
without them: the same work as train_parallel_timed.py, in one process.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import corral
from corral.bench.timed import timed_settings, write_benchmark_metrics

CONFIG = Path(__file__).resolve().parents[1] / "config" / "ppo_parallel.yaml"
DEFAULTS = {"env": "envpool:CoinrunEasy-v0", "duration": 0.017}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", metavar="FILE", help="YAML file with settings [config/ppo_parallel.yaml]")
    parser.add_argument("--env", help="any name that `corral train` takes [envpool:CoinrunEasy-v0]")
    parser.add_argument("--duration", metavar="HOURS", type=float, help="how long to train [0.017: one minute]")
    parser.add_argument("--output-dir", metavar="DIR", help="the run directory [runs/<env>-<date>-<time>]")
    parser.add_argument("--n-envs", metavar="N", type=int, help="envs side by side [those of all the file's workers]")
    parser.add_argument("--n-steps", metavar="N", type=int, help="steps of each env in a rollout [the file's]")
    parser.add_argument("--batch-size", metavar="N", type=int, help="steps that one gradient step sees [the file's]")
    parser.add_argument("--seed", metavar="N", type=int, help="root of every random number [drawn]")
    return parser.parse_args()


def main() -> int:
    options = vars(parse())
    config = options.pop("config") or (CONFIG if CONFIG.exists() else None)
    flags = {name: value for name, value in options.items() if value is not None}
    try:
        settings = {**DEFAULTS, **timed_settings(config, flags, sequential=True)}
        result = corral.train(settings.pop("env"), **settings)
        print(f"metrics of this run: {write_benchmark_metrics(result.run_dir)}")
    except corral.CorralError as error:
        print(f"{Path(__file__).name}: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
