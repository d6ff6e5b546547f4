"""Imitate a scripted opponent first, then train with PPO.

    python examples/train_ppo_warmstart.py --expert greedy --timesteps 200000

`corral warmstart card-battle` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("warmstart"))
