"""The Game Boy on the command line, and the make targets that train on it."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from corral.cli.main import main
from corral_games.game_boy.env import MAP, ROM

pytest.importorskip("pyboy")
ROOT = Path(__file__).parents[2]
SMALL = "--n-envs 2 --n-steps 32 --batch-size 32 --n-epochs 1 --timesteps 128 --seed 1 --eval-freq 0 --backend serial"


def test_a_run_is_trained_resumed_and_played(capsys):
    arguments = ["--episode-length", "40", "--log-episodes", "--output-dir", "run"]
    assert main(["train", "game-boy", *SMALL.split(), *arguments]) == 0
    out = capsys.readouterr().out
    assert "2 environments started" in out and "| length     40 |" in out and "2 environments closed" in out
    assert main(["resume", "run", "--timesteps", "192"]) == 0
    assert main(["eval", "run", "--episodes", "2"]) == 0
    assert "rooms, at the end" in capsys.readouterr().out


def test_a_saved_clip_shows_moving_frames_in_four_shades():
    assert main(["play", "game-boy", "--save", "clip.gif", "--episode-length", "60", "--seed", "3"]) == 0
    with Image.open("clip.gif") as clip:
        assert clip.size == (320, 288)
        shades_by_frame = {}
        for i in range(clip.n_frames):
            clip.seek(i)
            shades_by_frame[clip.convert("L").tobytes()] = len(np.unique(np.asarray(clip.convert("L"))))
    assert len(shades_by_frame) > 20  # there is movement
    assert max(shades_by_frame.values()) == 4


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rom", "none.gb", "--memory-map", "map.yaml"], "none.gb"),
        (["--rom", "text.gb", "--memory-map", "map.yaml"], "text.gb' is not a Game Boy ROM"),
        (["--rom", "text.gb"], "needs a memory map"),
        (["--memory-map", "none.yaml"], "none.yaml"),
        (["--observation", "pixel"], "did you mean 'pixels'?"),
        (["--env-kwargs", "episode_lenght=3"], "game-boy has no 'episode_lenght' (did you mean 'episode_length'?)"),
        (["--episode-length", "0"], "episode_length 0 should be a whole number from 1"),
    ],
)
def test_invalid_roms_memory_maps_and_settings_are_refused_before_a_run_starts(arguments, complaint, capsys):
    Path("text.gb").write_text("not a game " * 100)
    assert main(["train", "game-boy", *SMALL.split(), *arguments, "--output-dir", "run"]) == 2
    err = capsys.readouterr().err
    assert complaint in err and "Traceback" not in err
    assert not Path("run").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
@pytest.mark.parametrize(
    ("arguments", "flags"),
    [
        ("train-20k", "--timesteps 20000 --n-envs 2 --episode-length 750 --n-epochs 6 --batch-size 128"),
        ("train-20k TRAIN_EPISODE_LENGTH=1500 TRAIN_UPDATE_EPOCHS=8", "--episode-length 1500 --n-epochs 8"),
        ("train-parallel TRAIN_ENVS=4 TRAIN_STEPS=2000", "--timesteps 2000 --n-envs 4 --episode-length 500"),
        (
            "train-pure-rl TRAIN_BATCH_SIZE=256 TRAIN_OUTPUT_DIR=out",
            '--batch-size 256 --n-steps 256 --log-episodes --output-dir "out/game-boy-2',
        ),
        ("train-parallel", "--log-episodes --backend worker"),
        (
            "train TRAIN_ENVS=4 TRAIN_EPISODE_LENGTH=1000",
            "--n-envs 4 --episode-length 1000 --n-epochs 4 --batch-size 128",
        ),
        ("train TRAIN_STEPS=5000", "--timesteps 5000 --n-envs 1 --episode-length 500 --n-epochs 4 --batch-size 128"),
        ("train TRAIN_OUTPUT_DIR=out", "--n-envs 1 --episode-length 500"),
        ("train TRAIN_ENV=game-boy TRAIN_ENVS=3", "train game-boy --n-envs 3\n"),
    ],
)
def test_make_variables_become_flags(arguments, flags):
    completed = subprocess.run(["make", "-n", *arguments.split()], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "corral train game-boy" in completed.stdout and flags in completed.stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_train_prints_the_env_and_how_to_choose_another():
    for arguments, env in (
        ([], "card-battle"),
        (["TRAIN_STEPS=9"], "game-boy"),
        (["TRAIN_ENV=CartPole-v1"], "CartPole-v1"),
    ):
        completed = subprocess.run(
            ["make", "-n", "train", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert f"corral train {env} " in completed.stdout and "with TRAIN_ENV=" in completed.stdout


def test_a_run_with_a_user_rom_can_be_resumed_from_another_directory(tmp_path, monkeypatch, capsys):
    Path("here").mkdir()
    shutil.copy(ROM, "here/my.gb")
    Path("here/my.yaml").write_text(MAP.read_text(encoding="utf-8"), encoding="utf-8")
    arguments = ["--rom", "here/my.gb", "--memory-map", "here/my.yaml", "--output-dir", "run"]
    assert main(["train", "game-boy", *SMALL.split(), *arguments]) == 0
    run = Path("run").absolute()
    monkeypatch.chdir("here")
    assert main(["resume", str(run), "--timesteps", "192"]) == 0
    assert main(["doctor", "game-boy", "--rom", "my.gb", "--memory-map", "my.yaml", "--steps", "20"]) == 0
