"""A curriculum of two opponents, each until it is beaten often enough.

    python examples/train_curriculum.py --fast

The same as `corral curriculum card-battle`; see `recipe_script.py` for the other flags.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("curriculum"))
