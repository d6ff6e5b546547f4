"""Self-play: past selves, the policy itself, and the game's own opponents.

    python examples/train_selfplay.py --timesteps 250000 --n-envs 8 --checkpoint-freq 25000

The same as `corral selfplay card-battle`; see `recipe_script.py` for the other flags.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("selfplay"))
