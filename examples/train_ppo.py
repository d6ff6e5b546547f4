"""Train PPO on any env, by steps, by episodes or for a time.

    python examples/train_ppo.py --n-envs 8 --timesteps 100000
    python examples/train_ppo.py --env CartPole-v1 --n-envs 4 --num-episodes 300 --parallel-start-method spawn

`corral train card-battle` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("train"))
