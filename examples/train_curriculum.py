"""Train with a curriculum of two opponents; a stage ends when the policy wins often enough, or with its budget.

    python examples/train_curriculum.py --fast

`corral curriculum card-battle` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("curriculum"))
