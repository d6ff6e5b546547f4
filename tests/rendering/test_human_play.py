"""A person at the keyboard: real pygame, on a screen that nobody sees."""

from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest

from corral.cli.main import main

pygame = pytest.importorskip("pygame")


class Counter(gym.Env):
    """Presses a key at its third step and lets go of it at the sixth; closes the window in the second episode."""

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
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("DISPLAY", ":none")


def test_keys_become_actions(screen, capsys):
    assert main(["play", f"{__name__}:Counter", "--human", "--fps", "1000"]) == 0
    out = capsys.readouterr().out
    assert "the letter k counts; press Esc to end" in out
    assert "episode 1: reward 3.00 in 8 steps" in out  # the steps after the key was seen until it was let go


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["CartPole-v1", "--human"], "CartPole-v1 cannot be played with keys: it has no method get_keys_to_action()"),
        ([f"{__name__}:Counter", "--human", "--save", "clip.gif"], "leave --save out"),
        ([f"{__name__}:Counter", "--human", "--watch"], "leave --watch out"),
        ([f"{__name__}:Counter", "--human", "--every", "2"], "leave --every out"),
        ([f"{__name__}:Counter", "--human", "--max-steps", "2000"], "leave --max-steps out"),
    ],
)
def test_what_cannot_be_played_by_hand_is_refused(words, complaint, screen, capsys):
    assert main(["play", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_without_a_screen_it_says_so(monkeypatch, capsys):
    for name in ("DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert main(["play", f"{__name__}:Counter", "--human"]) == 2
    assert "there is no display; use --watch or --save clip.gif" in capsys.readouterr().err


def test_a_run_is_not_played_by_hand(screen, capsys):
    small = "--n-envs 2 --n-steps 8 --batch-size 16 --n-epochs 1 --timesteps 16 --eval-freq 0 --output-dir run"
    assert main(["train", "CartPole-v1", *small.split()]) == 0
    assert main(["play", "run", "--human"]) == 2
    assert "a person plays an env: corral play CartPole-v1 --human" in capsys.readouterr().err


def test_a_screen_that_does_not_answer_is_not_a_window(monkeypatch, capsys):
    monkeypatch.delenv("SDL_VIDEODRIVER", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setenv("DISPLAY", ":987")
    pygame.display.quit()
    assert main(["play", f"{__name__}:Counter", "--human"]) == 2
    assert "the display :987 does not answer" in capsys.readouterr().err


def test_a_game_boy_runs_until_the_window_is_closed(screen, capsys, monkeypatch):
    pytest.importorskip("pyboy")
    from corral_games.game_boy.env import GameBoy

    play, steps = GameBoy.step, []

    def close_after_an_episode(env, action):
        steps.append(action)
        if len(steps) > 50:
            pygame.event.post(pygame.event.Event(pygame.QUIT))
        return play(env, action)

    monkeypatch.setattr(GameBoy, "step", close_after_an_episode)
    assert main(["play", "game-boy", "--human", "--fps", "400", "--episode-length", "50"]) == 0
    out = capsys.readouterr().out
    assert "X is A, Z is B" in out and "episode 1: reward" in out and "in 50 steps" in out
