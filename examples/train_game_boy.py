"""Train on a Game Boy game, with one emulator per env: the game that is part of Corral, or a ROM of your own.

    python examples/train_game_boy.py --timesteps 20000 --n-envs 2 --episode-length 750 --n-epochs 6
    python examples/train_game_boy.py --rom my.gb --memory-map my.yaml --observation both

`corral train game-boy --log-episodes` does the same.
"""

from recipe_script import run

if __name__ == "__main__":
    raise SystemExit(run("train", "--log-episodes", env="game-boy"))
