"""Train by self-play, against past versions of the policy, the current policy and the scripted opponents of the game.

    python examples/train_selfplay.py --timesteps 250000 --n-envs 8 --checkpoint-freq 25000

`corral selfplay card-battle` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("selfplay"))
