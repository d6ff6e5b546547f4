"""Train PPO on any env, with a budget of steps, episodes or hours.

    python examples/train_ppo.py --n-envs 8 --timesteps 100000
    python examples/train_ppo.py --env CartPole-v1 --n-envs 4 --num-episodes 300 --parallel-start-method spawn

`corral train card-battle` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("train"))
