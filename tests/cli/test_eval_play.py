"""What eval and play do with opponents, and what they refuse."""

import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from corral.cli.main import main
from corral.rendering.terminal_screen import Screen, half_blocks
from tests.toy_envs import Counter

ENV = "tests.toy_envs:HighCard"
SMALL = "--n-envs 2 --n-steps 32 --batch-size 32 --n-epochs 1 --timesteps 64 --seed 1 --eval-freq 0 --eval-games 0"


def train(env, directory, *words):
    assert main(["train", env, *SMALL.split(), "--output-dir", directory, *words]) == 0


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("--games 10", "--games is for games against --opponent or --vs"),
        ("--opponent miser --episodes 3", "--episodes is for episodes, not for games against"),
        ("--vs run --max-steps 3", "--max-steps is for episodes, not for games against"),
        ("--opponent miser --sample", "--sample is for episodes, not for games against"),
        ("--episodes 0", "--episodes 0: should be at least 1"),
        ("--opponent miser --games 0", "--games 0: should be at least 1"),
    ],
)
def test_eval_refuses_what_it_would_ignore(words, complaint, capsys):
    assert main(["eval", "run", *words.split()]) == 2
    assert complaint in capsys.readouterr().err


def test_play_refuses_opponents_that_cannot_be_met(capsys):
    train("toy-maze", "maze")
    for who in ("maze", "toy-maze"):
        assert main(["play", who, "--opponent", "greedy"]) == 2
        assert "toy-maze has no opponents: --opponent means nothing for it" in capsys.readouterr().err
    train(ENV, "small", "--env-kwargs", "cards=8")
    train(ENV, "large", "--env-kwargs", "cards=9")
    for words in (["play", "small", "--opponent"], ["eval", "small", "--vs"]):
        assert main([*words, "large", "--env", ENV]) == 2
        assert "large was trained on other observations or actions" in capsys.readouterr().err
    assert main(["play", "small", "--env", ENV, "--opponent", "nobody"]) == 2
    assert "should be one of random, miser, or a run directory" in capsys.readouterr().err


def test_runs_with_the_same_network_of_their_own_can_meet(capsys):
    for name in ("net", "other"):
        Path(f"{name}.py").write_text("from tests.training.test_runs import Tiny as network\n")
    train(ENV, "one", "--policy", "net.py:network")
    train(ENV, "two", "--policy", "net.py:network")
    train(ENV, "another", "--policy", "other.py:network")
    train(ENV, "plain")
    words = ["eval", "one", "--env", ENV, "--policy", "net.py:network", "--games", "4", "--vs"]
    assert main([*words, "two", "plain"]) == 0
    out = capsys.readouterr().out
    assert "two" in out and "plain" in out
    assert main([*words, "another"]) == 2
    assert "it can only play against runs with the same network, not net.py:network" in capsys.readouterr().err
    assert main(["eval", "plain", "--env", ENV, "--games", "4", "--vs", "one"]) == 2
    assert "it can only play against runs with the same network, not the built-in one" in capsys.readouterr().err


def test_an_env_that_cannot_be_closed_is_shown_all_the_same(capsys):
    Path("sticky.py").write_text(
        "from tests.toy_envs import HighCard\n\n\n"
        "class Sticky(HighCard):\n    def close(self):\n        raise OSError('will not close')\n"
    )
    with pytest.warns(UserWarning, match="closing env 0 raised OSError: will not close"):
        train("sticky.py:Sticky", "run", "--backend", "serial")
        assert main(["eval", "run", "--env", "sticky.py:Sticky", "--opponent", "miser", "--games", "2"]) == 0
    assert "miser" in capsys.readouterr().out


def test_eval_tells_what_infos_say_at_the_end_and_takes_an_env_for_random_moves(capsys):
    train("tests.toy_envs:Leveled", "run")
    assert main(["eval", "run", "--env", "tests.toy_envs:Leveled", "--episodes", "3"]) == 0
    assert "level, at the end │ 2 ± 0" in " ".join(capsys.readouterr().out.split())
    words = ["--episodes", "2", "--env-kwargs", "level=7"]
    assert main(["eval", "run", "--env", "tests.toy_envs:Leveled", *words]) == 0
    assert "level, at the end │ 7 ± 0" in " ".join(capsys.readouterr().out.split())
    assert main(["eval", "tests.toy_envs:Leveled", *words]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "random legal moves" in out and "mean reward │ 105.00 ± 0.00" in out
    assert main(["eval", "tests.toy_envs:Leveled", "--opponent", "x"]) == 2
    assert "there is no policy to play against others" in capsys.readouterr().err
    train(ENV, "cards")
    assert main(["eval", "cards", "--env", ENV, "--env-kwargs", "cards=9"]) == 2
    assert "other observations or actions than the run was trained on" in capsys.readouterr().err


def test_actions_are_drawn_where_that_is_asked_or_how_the_run_was_evaluated(capsys):
    train("tests.toy_envs:Coins", "plain")
    train("tests.toy_envs:Coins", "drawn", "--eval-sample", "--eval-freq", "32")

    def told(run, *words):
        assert main(["eval", run, "--env", "tests.toy_envs:Coins", "--episodes", "6", *words]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if "mean reward" in line)

    capsys.readouterr()
    assert told("plain") == told("drawn", "--no-sample") != told("plain", "--sample") == told("drawn")
    assert main(["eval", "tests.toy_envs:Coins", "--sample"]) == 2
    assert "random moves are drawn anyway" in capsys.readouterr().err


def test_a_run_through_stages_is_shown_as_its_last_one_plays(capsys):
    Path("stages.yaml").write_text(
        "stages: [{name: a, options: {level: 3}, timesteps: 32}, {name: b, options: {level: 4}}]\n"
    )
    train("tests.toy_envs:Leveled", "run", "--config", "stages.yaml")
    for words, level in (([], 4), (["--env-kwargs", "level=1"], 1), (["--env-kwargs", "length=3"], 4)):
        assert main(["eval", "run", "--env", "tests.toy_envs:Leveled", "--episodes", "2", *words]) == 0
        assert f"level, at the end │ {level} ± 0" in " ".join(capsys.readouterr().out.split())


def test_an_episode_can_be_saved_as_one_picture_and_watched_in_the_terminal(capsys):
    from PIL import Image

    pytest.importorskip("pygame")
    assert main(["play", "CartPole-v1", "--save", "episode.png", "--episodes", "2"]) == 0
    for name in ("episode.png", "episode-2.png"):
        with Image.open(name) as picture:
            assert picture.width > picture.height > 300
    assert main(["play", "CartPole-v1", "--save", "clip.gif", "--every", "5"]) == 0
    out = capsys.readouterr().out
    steps = int(out.split("steps")[-2].split()[-1])
    with Image.open("clip.gif") as clip:
        assert clip.n_frames == len({*range(0, steps + 1, 5), steps})
    assert main(["play", "CartPole-v1", "--watch", "--max-steps", "1"]) == 0
    assert capsys.readouterr().out.count("▀") > 500
    for words in (["--watch", "--save", "clip.gif"], ["--every", "2"]):
        assert main(["play", "CartPole-v1", *words]) == 2


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ("tests.cli.test_eval_play:Plain-v0", "does not render as rgb_array; its render modes: none"),
        ("tests.cli.test_eval_play:anything", "does not render as rgb_array; its render modes: none"),
        ("tests.cli.test_eval_play:ignorant", "ignores render_mode rgb_array"),
        ("tests.cli.test_eval_play:Smudged", "render() raised ZeroDivisionError"),
        ("tests.cli.test_eval_play:nothing", "render() returned None in render_mode rgb_array, expected a picture"),
        ("tests.cli.test_eval_play:text", "render() returned str in render_mode rgb_array, expected a picture"),
        ("tests.cli.test_eval_play:line", "render() returned an array of shape (5,) in render_mode rgb_array"),
        ("tests.cli.test_eval_play:ragged", "render() returned list in render_mode rgb_array, expected a picture"),
        ("tests.cli.test_eval_play:channels", "render() returned an array of shape (3, 5, 5) in render_mode rgb_array"),
        ("tests.cli.test_eval_play:late", "render() returned None in render_mode rgb_array, expected a picture"),
    ],
)
def test_play_says_why_an_env_cannot_be_shown(env, complaint, capsys):
    code = main(["play", env, "--save", "clip.gif", "--max-steps", "3"])
    said = capsys.readouterr().err
    assert code == (1 if "raised" in complaint else 2) and complaint in said
    assert "/corral/" not in said and said.count("Traceback") == ("raised" in complaint)


class Smudged(Counter):
    def __init__(self, render_mode=None):
        super().__init__(2)
        self.metadata, self.render_mode = {"render_modes": ["rgb_array"]}, render_mode

    def render(self):
        return 1 // 0


def anything(**kwargs):
    return Counter(**kwargs)


def ignorant():
    return Smudged()


def drawing(*frames):
    """A factory of envs whose ``render`` returns these, the last one again and again."""

    class Drawing(Smudged):
        def render(self):
            return frames[min(self.step_count, len(frames) - 1)]

    return lambda render_mode=None: Drawing(render_mode)


nothing, text, line, ragged = drawing(None), drawing("text"), drawing(np.zeros(5)), drawing([[1], [2, 3]])
channels = drawing(np.zeros((3, 5, 5)))
late = drawing(np.zeros((4, 4, 3)), np.zeros((4, 4, 3)), None)
red = np.full((16, 16, 3), (255, 0, 0), np.uint8)
clear = drawing(np.dstack([red, np.full((16, 16), 255, np.uint8)]))
white, wide = drawing(np.full((16, 16), 255, np.uint8)), drawing(red.astype(np.int64))
grey, shares = drawing(np.full((16, 16, 1), 255, np.uint8)), drawing(red / 254.9999)
gym.register("Plain-v0", "tests.toy_envs:Counter")


@pytest.mark.parametrize(
    ("name", "colour"),
    [
        *((name, (255, 0, 0)) for name in ("clear", "shares", "wide")),
        *((name, (255, 255, 255)) for name in ("white", "grey")),
    ],
)
def test_pictures_of_any_usual_form_are_shown_in_their_colours(name, colour, capsys):
    from PIL import Image

    imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg")
    play = ["play", f"tests.cli.test_eval_play:{name}", "--max-steps", "2"]
    for kind in ("gif", "png", "mp4"):
        assert main([*play, "--save", f"clip.{kind}"]) == 0
    with Image.open("clip.gif") as clip:
        assert clip.convert("RGB").getpixel((8, 8)) == colour
    frames = imageio_ffmpeg.read_frames("clip.mp4")
    width, height = next(frames)["size"]
    pixels = np.frombuffer(next(frames), np.uint8).reshape(height, width, 3)
    assert np.abs(pixels[8, 8].astype(int) - colour).max() < 16, "H.264 loses a little"
    assert main([*play, "--watch"]) == 0
    assert f"38;2;{';'.join(map(str, colour))};" in capsys.readouterr().out


def test_frames_on_a_terminal_take_each_others_place(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((20, 6)))
    screen = Screen(1000)
    screen.show("long line\n" * 9, "one")
    screen.show("short", "two")
    first, second = capsys.readouterr().out.split("\x1b[H")[1:]
    assert first.count("long line\x1b[K\n") == 4, "as many lines as there is room for, and the caption"
    assert second == "short\x1b[K\n\x1b[0mtwo\x1b[K\n\x1b[J"


def test_half_blocks_keep_colours_and_proportions():
    frame = np.zeros((40, 80, 3), np.uint8)
    frame[:20] = 255, 0, 0
    lines = half_blocks(frame, 20, 100).split("\n")
    assert len(lines) == 5 and all(line.count("▀") == 20 for line in lines)
    assert lines[0].startswith("\x1b[38;2;255;0;0;48;2;255;0;0m▀") and "38;2;255;0;0;48;2;0;0;0m" in lines[2]
    assert half_blocks(frame, 500, 10).count("\n") == 9, "no more lines than there are"


def test_flags_of_a_built_in_env_are_refused_elsewhere(capsys):
    assert main(["train", "CartPole-v1", "--num-bots", "5"]) == 2
    assert (
        "--num-bots is a flag of territory, not of CartPole-v1; CartPole-v1 may take it as --env-kwargs"
        in capsys.readouterr().err
    )
