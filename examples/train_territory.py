"""Territory in phases of 10, 25 and 50 bots, for 100,000, 300,000 and 500,000 steps.

    python examples/train_territory.py --n-envs 12
    python examples/train_territory.py --no-curriculum --num-bots 5 --total-timesteps 10000 --n-envs 4

`corral curriculum territory` does the same. `--total-timesteps` alone is shared out among the phases, 1 : 3 : 5;
`--num-bots` alone means one phase with that many.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("curriculum", env="territory"))
