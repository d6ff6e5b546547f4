"""Train with a curriculum of three stages: a weak opponent, a mix of both, a strong opponent.

    python examples/train_curriculum_v2.py --n-envs 10 --quick

`corral curriculum card-battle --preset v2` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("curriculum", "--preset", "v2"))
