"""Imitate a bot first, then go on with PPO.

    python examples/train_ppo_warmstart.py --expert greedy --timesteps 200000

The same as `corral warmstart card-battle`; see `recipe_script.py` for the other flags.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("warmstart"))
