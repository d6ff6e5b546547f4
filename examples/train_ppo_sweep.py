"""Train PPO with three sets of settings, one after the other, and compare them.

    python examples/train_ppo_sweep.py --timesteps 100000
    python examples/train_ppo_sweep.py --config A C --env Acrobot-v1 --seeds 3

A is a large network (512 512), B explores more (256 256, entropy 0.05), C lowers its learning rate (256 256, from 3e-4
to 1e-5). `corral sweep card-battle --preset A B C` does the same, and can also search; see docs/sweep.md.
"""

import sys

from recipe_script import run

if __name__ == "__main__":
    chosen = {"--config", "--preset", "--trials", "--search"} & {word.partition("=")[0] for word in sys.argv}
    raise SystemExit(run("sweep", "--timesteps", "100000", *(() if chosen else ("--preset", "A", "B", "C"))))
