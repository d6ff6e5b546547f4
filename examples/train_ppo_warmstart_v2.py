"""The same, with a value function that is fitted too, and more entropy.

    python examples/train_ppo_warmstart_v2.py --expert greedy --timesteps 200000

`corral warmstart card-battle --preset v2` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("warmstart", "--preset", "v2"))
