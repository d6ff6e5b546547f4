"""A person plays with the keyboard: real pygame, with SDL's dummy video driver."""

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest

from corral.cli.main import main

pygame = pytest.importorskip("pygame")


class Counter(gym.Env):
    """Presses the key k in its third step, releases it in the sixth, and closes the window in the second episode.

    The reward is the action.
    """

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 1000}
    observation_space = gym.spaces.Box(0, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)
    key_help = "the letter k counts"

    def __init__(self, render_mode=None):
        self.render_mode, self._episodes = render_mode, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self._steps += 1
        self._episodes += self._steps == 1
        if self._steps in (3, 6):
            pygame.event.post(pygame.event.Event(pygame.KEYDOWN if self._steps == 3 else pygame.KEYUP, key=ord("k")))
        if self._episodes == 2:
            pygame.event.post(pygame.event.Event(pygame.QUIT))
        return np.zeros(1, np.float32), float(action), self._steps == 8, False, {}

    def render(self):
        return np.full((24, 32, 3), 10 * self._steps, np.uint8)

    def get_keys_to_action(self):
        return {("k",): 1}


@pytest.fixture
def screen(monkeypatch):
    """Let pygame open windows that are not visible."""
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("DISPLAY", ":none")


def test_pressed_keys_become_actions(screen, capsys):
    assert main(["play", f"{__name__}:Counter", "--human", "--fps", "1000"]) == 0
    out = capsys.readouterr().out
    assert "the letter k counts; press Esc to end" in out
    assert "episode 1: reward 3.00 in 8 steps" in out  # one for each step while the key is pressed


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["CartPole-v1", "--human"], "CartPole-v1 cannot be played with keys: it has no method get_keys_to_action()"),
        ([f"{__name__}:Counter", "--human", "--save", "clip.gif"], "leave --save out"),
        ([f"{__name__}:Counter", "--human", "--watch"], "leave --watch out"),
        ([f"{__name__}:Counter", "--human", "--every", "2"], "leave --every out"),
        ([f"{__name__}:Counter", "--human", "--max-steps", "2000"], "leave --max-steps out"),
    ],
)
def test_human_play_refuses_envs_without_keys_and_flags_that_it_cannot_use(arguments, complaint, screen, capsys):
    assert main(["play", *arguments]) == 2
    assert complaint in capsys.readouterr().err


def test_without_a_display_human_play_is_refused(monkeypatch, capsys):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert main(["play", f"{__name__}:Counter", "--human"]) == 2
    assert "there is no display; use --watch or --save clip.gif" in capsys.readouterr().err


def test_human_play_of_a_run_directory_is_refused(screen, capsys):
    settings = "--n-envs 2 --n-steps 8 --batch-size 16 --n-epochs 1 --timesteps 16 --eval-freq 0 --output-dir run"
    assert main(["train", "CartPole-v1", *settings.split()]) == 0
    assert main(["play", "run", "--human"]) == 2
    assert "a person plays an env: corral play CartPole-v1 --human" in capsys.readouterr().err


def test_a_display_that_does_not_answer_is_refused(monkeypatch, capsys):
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":987")
    pygame.display.quit()
    assert main(["play", f"{__name__}:Counter", "--human"]) == 2
    assert "the display :987 does not answer" in capsys.readouterr().err


def test_a_person_plays_the_game_boy_until_the_window_is_closed(screen, capsys, monkeypatch):
    pytest.importorskip("pyboy")
    from corral_games.game_boy.env import GameBoy

    step, actions = GameBoy.step, []

    def close_after_an_episode(env, action):
        actions.append(action)
        if len(actions) > 50:
            pygame.event.post(pygame.event.Event(pygame.QUIT))
        return step(env, action)

    monkeypatch.setattr(GameBoy, "step", close_after_an_episode)
    assert main(["play", "game-boy", "--human", "--fps", "400", "--episode-length", "50"]) == 0
    out = capsys.readouterr().out
    assert "X is A, Z is B" in out and "episode 1: reward" in out and "in 50 steps" in out
