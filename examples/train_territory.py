"""Train on Territory in three stages with 10, 25 and 50 bots, for 100,000, 300,000 and 500,000 steps.

    python examples/train_territory.py --n-envs 12
    python examples/train_territory.py --no-curriculum --num-bots 5 --total-timesteps 10000 --n-envs 4

`corral curriculum territory` does the same. Without `--no-curriculum`, `--total-timesteps` are divided among the stages
in the ratio 1 : 3 : 5. With `--num-bots`, there is one stage with that many bots.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("curriculum", env="territory"))
