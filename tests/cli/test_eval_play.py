"""``corral eval`` and ``corral play``: opponents, sampled actions, rendered frames, and what is refused."""

import os
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import corral
from corral.cli.main import main
from corral.rendering.terminal_screen import Screen, half_blocks
from tests.toy_envs import Counter

ENV = "tests.toy_envs:HighCard"
CORRAL_FILES = str(Path(corral.__file__).parent)
SMALL = "--n-envs 2 --n-steps 32 --batch-size 32 --n-epochs 1 --timesteps 64 --seed 1 --eval-freq 0 --eval-games 0"


def train(env, directory, *arguments):
    """Train a short run, whose files are in ``directory``."""
    assert main(["train", env, *SMALL.split(), "--output-dir", directory, *arguments]) == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ("--games 10", "--games is for games against --opponent or --vs"),
        ("--opponent miser --episodes 3", "--episodes is for episodes, not for games against"),
        ("--vs run --max-steps 3", "--max-steps is for episodes, not for games against"),
        ("--opponent miser --sample", "--sample is for episodes, not for games against"),
        ("--episodes 0", "--episodes 0: should be at least 1"),
        ("--opponent miser --games 0", "--games 0: should be at least 1"),
    ],
)
def test_eval_refuses_flags_that_it_would_ignore(arguments, complaint, capsys):
    assert main(["eval", "run", *arguments.split()]) == 2
    assert complaint in capsys.readouterr().err


def test_unknown_opponents_and_runs_with_other_spaces_are_refused(capsys):
    train("toy-maze", "maze")
    for run_or_env in ("maze", "toy-maze"):
        assert main(["play", run_or_env, "--opponent", "greedy"]) == 2
        assert "toy-maze has no opponents: --opponent means nothing for it" in capsys.readouterr().err
    train(ENV, "small", "--env-kwargs", "cards=8")
    train(ENV, "large", "--env-kwargs", "cards=9")
    for arguments in (["play", "small", "--opponent"], ["eval", "small", "--vs"]):
        assert main([*arguments, "large", "--env", ENV]) == 2
        assert "large was trained on other observations or actions" in capsys.readouterr().err
    assert main(["play", "small", "--env", ENV, "--opponent", "nobody"]) == 2
    assert "should be one of random, miser, or a run directory" in capsys.readouterr().err


def test_runs_play_against_each_other_only_with_the_built_in_or_the_same_network(capsys):
    for name in ("net", "other"):
        Path(f"{name}.py").write_text("from tests.training.test_runs import Tiny as network\n")
    train(ENV, "one", "--policy", "net.py:network")
    train(ENV, "two", "--policy", "net.py:network")
    train(ENV, "another", "--policy", "other.py:network")
    train(ENV, "plain")
    arguments = ["eval", "one", "--env", ENV, "--policy", "net.py:network", "--games", "4", "--vs"]
    assert main([*arguments, "two", "plain"]) == 0
    out = capsys.readouterr().out
    assert "two" in out and "plain" in out
    assert main([*arguments, "another"]) == 2
    assert "it can only play against runs with the same network, not net.py:network" in capsys.readouterr().err
    assert main(["eval", "plain", "--env", ENV, "--games", "4", "--vs", "one"]) == 2
    assert "it can only play against runs with the same network, not the built-in one" in capsys.readouterr().err


def test_an_env_whose_close_raises_is_evaluated(capsys):
    Path("sticky.py").write_text(
        "from tests.toy_envs import HighCard\n\n\n"
        "class Sticky(HighCard):\n    def close(self):\n        raise OSError('will not close')\n"
    )
    with pytest.warns(UserWarning, match="closing env 0 raised OSError: will not close"):
        train("sticky.py:Sticky", "run", "--backend", "serial")
        assert main(["eval", "run", "--env", "sticky.py:Sticky", "--opponent", "miser", "--games", "2"]) == 0
    assert "miser" in capsys.readouterr().out


def test_eval_prints_the_last_infos_and_evaluates_random_actions_if_given_an_env(capsys):
    train("tests.toy_envs:Leveled", "run")
    assert main(["eval", "run", "--env", "tests.toy_envs:Leveled", "--episodes", "3"]) == 0
    assert "level, at the end │ 2 ± 0" in " ".join(capsys.readouterr().out.split())
    arguments = ["--episodes", "2", "--env-kwargs", "level=7"]
    assert main(["eval", "run", "--env", "tests.toy_envs:Leveled", *arguments]) == 0
    assert "level, at the end │ 7 ± 0" in " ".join(capsys.readouterr().out.split())
    assert main(["eval", "tests.toy_envs:Leveled", *arguments]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "random legal moves" in out and "mean reward │ 105.00 ± 0.00" in out
    assert main(["eval", "tests.toy_envs:Leveled", "--opponent", "x"]) == 2
    assert "there is no policy to play against others" in capsys.readouterr().err
    train(ENV, "cards")
    assert main(["eval", "cards", "--env", ENV, "--env-kwargs", "cards=9"]) == 2
    assert "other observations or actions than the run was trained on" in capsys.readouterr().err


def test_eval_samples_actions_with_sample_or_if_the_run_had_eval_sample(capsys):
    train("tests.toy_envs:Coins", "plain")
    train("tests.toy_envs:Coins", "sampled", "--eval-sample", "--eval-freq", "32")

    def mean_reward_line(run, *arguments):
        assert main(["eval", run, "--env", "tests.toy_envs:Coins", "--episodes", "6", *arguments]) == 0
        return next(line for line in capsys.readouterr().out.splitlines() if "mean reward" in line)

    capsys.readouterr()
    most_likely, sampled = mean_reward_line("plain"), mean_reward_line("plain", "--sample")
    assert mean_reward_line("sampled", "--no-sample") == most_likely != sampled == mean_reward_line("sampled")
    assert main(["eval", "tests.toy_envs:Coins", "--sample"]) == 2
    assert "random moves are drawn anyway" in capsys.readouterr().err


def test_a_run_with_stages_is_evaluated_with_the_options_of_its_last_stage(capsys):
    Path("stages.yaml").write_text(
        "stages: [{name: a, options: {level: 3}, timesteps: 32}, {name: b, options: {level: 4}}]\n"
    )
    train("tests.toy_envs:Leveled", "run", "--config", "stages.yaml")
    for arguments, level in (([], 4), (["--env-kwargs", "level=1"], 1), (["--env-kwargs", "length=3"], 4)):
        assert main(["eval", "run", "--env", "tests.toy_envs:Leveled", "--episodes", "2", *arguments]) == 0
        assert f"level, at the end │ {level} ± 0" in " ".join(capsys.readouterr().out.split())


def test_an_episode_is_saved_as_an_image_or_a_clip_and_watched_in_the_terminal(capsys):
    from PIL import Image

    pytest.importorskip("pygame")
    assert main(["play", "CartPole-v1", "--save", "episode.png", "--episodes", "2"]) == 0
    for name in ("episode.png", "episode-2.png"):
        with Image.open(name) as image:
            assert image.width > image.height > 300
    assert main(["play", "CartPole-v1", "--save", "clip.gif", "--every", "5"]) == 0
    out = capsys.readouterr().out
    steps = int(out.split("steps")[-2].split()[-1])
    with Image.open("clip.gif") as clip:
        assert clip.n_frames == len({*range(0, steps + 1, 5), steps})
    assert main(["play", "CartPole-v1", "--watch", "--max-steps", "1"]) == 0
    assert capsys.readouterr().out.count("▀") > 500
    for arguments in (["--watch", "--save", "clip.gif"], ["--every", "2"]):
        assert main(["play", "CartPole-v1", *arguments]) == 2


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ("Plain-v0", "does not render as rgb_array; its render modes: none"),
        ("takes_any_kwargs", "does not render as rgb_array; its render modes: none"),
        ("ignores_render_mode", "ignores render_mode rgb_array"),
        ("RenderRaises", "render() raised ZeroDivisionError"),
        ("renders_none", "render() returned None in render_mode rgb_array, expected a picture"),
        ("renders_text", "render() returned str in render_mode rgb_array, expected a picture"),
        ("renders_one_axis", "render() returned an array of shape (5,) in render_mode rgb_array"),
        ("renders_ragged_list", "render() returned list in render_mode rgb_array, expected a picture"),
        ("renders_channels_first", "render() returned an array of shape (3, 5, 5) in render_mode rgb_array"),
        ("renders_none_later", "render() returned None in render_mode rgb_array, expected a picture"),
    ],
)
def test_play_says_why_an_env_cannot_be_rendered(env, complaint, capsys):
    code = main(["play", f"tests.cli.test_eval_play:{env}", "--save", "clip.gif", "--max-steps", "3"])
    error = capsys.readouterr().err
    assert code == (1 if "raised" in complaint else 2) and complaint in error
    assert CORRAL_FILES not in error and error.count("Traceback") == ("raised" in complaint)


class RenderRaises(Counter):
    def __init__(self, render_mode=None):
        super().__init__(2)
        self.metadata, self.render_mode = {"render_modes": ["rgb_array"]}, render_mode

    def render(self):
        return 1 // 0


def takes_any_kwargs(**kwargs):
    return Counter(**kwargs)


def ignores_render_mode():
    return RenderRaises()


def env_that_renders(*frames):
    """Return a factory of envs whose ``render`` returns these frames by step, and then the last one again."""

    class RendersFrames(RenderRaises):
        def render(self):
            return frames[min(self.step_count, len(frames) - 1)]

    return lambda render_mode=None: RendersFrames(render_mode)


renders_none = env_that_renders(None)
renders_text = env_that_renders("text")
renders_one_axis = env_that_renders(np.zeros(5))
renders_ragged_list = env_that_renders([[1], [2, 3]])
renders_channels_first = env_that_renders(np.zeros((3, 5, 5)))
renders_none_later = env_that_renders(np.zeros((4, 4, 3)), np.zeros((4, 4, 3)), None)
red = np.full((16, 16, 3), (255, 0, 0), np.uint8)
renders_rgba = env_that_renders(np.dstack([red, np.full((16, 16), 255, np.uint8)]))
renders_floats = env_that_renders(red / 254.9999)
renders_int64 = env_that_renders(red.astype(np.int64))
renders_grey = env_that_renders(np.full((16, 16), 255, np.uint8))
renders_grey_channel = env_that_renders(np.full((16, 16, 1), 255, np.uint8))
gym.register("Plain-v0", "tests.toy_envs:Counter")


@pytest.mark.parametrize(
    ("name", "colour"),
    [
        *((name, (255, 0, 0)) for name in ("renders_rgba", "renders_floats", "renders_int64")),
        *((name, (255, 255, 255)) for name in ("renders_grey", "renders_grey_channel")),
    ],
)
def test_frames_of_any_usual_shape_and_dtype_are_shown_in_their_colours(name, colour, capsys):
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
    assert np.abs(pixels[8, 8].astype(int) - colour).max() < 16, "H.264 is lossy"
    assert main([*play, "--watch"]) == 0
    assert f"38;2;{';'.join(map(str, colour))};" in capsys.readouterr().out


def test_each_frame_in_a_terminal_replaces_the_one_before(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((20, 6)))
    screen = Screen(1000)
    screen.show("long line\n" * 9, "one")
    screen.show("short", "two")
    first, second = capsys.readouterr().out.split("\x1b[H")[1:]
    assert first.count("long line\x1b[K\n") == 4, "a frame has as many lines as fit above the caption"
    assert second == "short\x1b[K\n\x1b[0mtwo\x1b[K\n\x1b[J"


def test_half_blocks_keep_colours_and_aspect_ratio():
    frame = np.zeros((40, 80, 3), np.uint8)
    frame[:20] = 255, 0, 0
    lines = half_blocks(frame, 20, 100).split("\n")
    assert len(lines) == 5 and all(line.count("▀") == 20 for line in lines)
    assert lines[0].startswith("\x1b[38;2;255;0;0;48;2;255;0;0m▀") and "38;2;255;0;0;48;2;0;0;0m" in lines[2]
    assert half_blocks(frame, 500, 10).count("\n") == 9, "a frame has at most as many lines as the terminal"


def test_flags_of_a_built_in_env_are_refused_elsewhere(capsys):
    assert main(["train", "CartPole-v1", "--num-bots", "5"]) == 2
    assert (
        "--num-bots is a flag of territory, not of CartPole-v1; CartPole-v1 may take it as --env-kwargs"
        in capsys.readouterr().err
    )
