"""Imitate a scripted opponent, fit the value function to its returns, then train with PPO and an entropy bonus.

    python examples/train_ppo_warmstart_v2.py --expert greedy --timesteps 200000

`corral warmstart card-battle --preset v2` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("warmstart", "--preset", "v2"))
