"""Train against the greedy opponent first (warm-up), then by self-play.

    python examples/train_hybrid_selfplay.py --timesteps 1000000 --net-arch 256 256

`corral hybrid card-battle` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("hybrid"))
