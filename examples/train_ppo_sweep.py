"""Train PPO with three sets of settings, one after the other, and tell which is best.

    python examples/train_ppo_sweep.py --timesteps 100000
    python examples/train_ppo_sweep.py --config A C --env Acrobot-v1 --seeds 3

A is a large network (512 512), B explores more (256 256, entropy 0.05), C learns ever more slowly (256 256, learning
rate 3e-4 falling to 1e-5). It is a thin layer over ``corral sweep``, which can also search; see docs/sweep.md.
"""

from __future__ import annotations

import argparse
import sys

import corral
from corral.recipes.sweep import sweep
from corral.recipes.sweep.request import PRESETS


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", nargs="+", choices=PRESETS, default=list(PRESETS), help="which to try [A B C]")
    parser.add_argument("--env", default="card-battle", help="any name that `corral train` takes [card-battle]")
    parser.add_argument("--timesteps", type=int, default=100_000, help="steps of each [100000]")
    parser.add_argument("--n-envs", type=int, default=8, help="envs side by side [8]")
    parser.add_argument("--opponent", help="for games that have opponents")
    parser.add_argument("--seed", type=int, help="the same for all [drawn]")
    parser.add_argument("--seeds", type=int, default=1, help="train with so many seeds each [1]")
    for flag in ("--save-path", "--log-path"):
        parser.add_argument(flag, help="the sweep's directory; given again, the sweep goes on")
    return parser.parse_args()


def main() -> int:
    options = parse()
    directories = {options.save_path, options.log_path} - {None}
    if len(directories) > 1:
        print(f"a sweep has one directory, but {len(directories)} were named: {sorted(directories)}", file=sys.stderr)
        return 2
    try:
        sweep(
            options.env,
            presets=options.config,
            seeds=options.seeds,
            timesteps=options.timesteps,
            n_envs=options.n_envs,
            **({"opponent": options.opponent} if options.opponent else {}),
            seed=options.seed,
            output_dir=next(iter(directories), None),
        )
    except corral.CorralError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
