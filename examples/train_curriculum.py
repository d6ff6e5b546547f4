"""A curriculum of two opponents, each until it is beaten often enough.

    python examples/train_curriculum.py --fast

`corral curriculum card-battle` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("curriculum"))
