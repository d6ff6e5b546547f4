"""Train PPO with three sets of settings, one after the other, and compare them.

    python examples/train_ppo_sweep.py --timesteps 100000
    python examples/train_ppo_sweep.py --config A C --env Acrobot-v1 --seeds 3

A has a large network (512 512). B has a network of 256 256 and explores more (ent_coef 0.05). C has a network of
256 256 and lowers its learning rate from 3e-4 to 1e-5. `corral sweep card-battle --preset A B C` does the same. That
command can also search for good settings; see docs/sweep.md.
"""

import sys

from recipe_script import run

if __name__ == "__main__":
    chosen = {"--config", "--preset", "--trials", "--search"} & {word.partition("=")[0] for word in sys.argv}
    raise SystemExit(run("sweep", "--timesteps", "100000", *(() if chosen else ("--preset", "A", "B", "C"))))
