"""``corral play ENV --human``: a person plays in a window, with the keys that the env defines."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from corral.core.errors import MissingPackage, UsageError
from corral.envs.factory import EnvFactory

__all__ = ["has_window", "play_as_human"]

_WINDOW_WIDTH = 640


def has_window() -> bool:
    """Return whether there is a display that can show a window."""
    return sys.platform in ("win32", "darwin") or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ


def play_as_human(factory: EnvFactory, seed: int, fps: int | None) -> None:
    """Let a person play until the window is closed, and print the result of each episode.

    Gymnasium's ``utils.play`` shows the window and reads the keyboard. The env's ``get_keys_to_action`` maps keys to
    actions; action 0 is taken while no key is pressed.
    """
    if not has_window():
        raise UsageError("--human needs a window, but there is no display; use --watch or --save clip.gif instead")
    env = factory("rgb_array")
    try:
        if not env.has_wrapper_attr("get_keys_to_action"):
            raise UsageError(f"{factory.name} cannot be played with keys: it has no method get_keys_to_action()")
        if env.render_mode != "rgb_array":
            raise UsageError(f"{factory.name} cannot be shown in a window: it has no render mode rgb_array")
        play = _gymnasium_play()
        _check_window()
        keys = env.get_wrapper_attr("get_keys_to_action")()
        env.reset(seed=seed)
        frame: Any = env.render()
        key_help = getattr(env.unwrapped, "key_help", None)
        print(f"playing {factory.name}{f': {key_help}' if key_help else ''}; press Esc to end")
        episode_printer = _EpisodePrinter()
        play(
            env,
            keys_to_action=keys,
            seed=seed,
            fps=fps,
            zoom=max(1, round(_WINDOW_WIDTH / frame.shape[1])),
            callback=episode_printer.step,
        )
    finally:
        env.close()


def _check_window() -> None:
    """Raise a UsageError if SDL cannot open a visible window, because no display server answers.

    SDL then fails, or uses a driver whose windows are invisible, unless ``SDL_VIDEODRIVER`` asks for that.
    """
    import pygame

    try:
        pygame.display.init()
        is_visible = pygame.display.get_driver() not in ("offscreen", "dummy") or "SDL_VIDEODRIVER" in os.environ
    except pygame.error:
        is_visible = False
    if not is_visible:
        raise UsageError(f"--human needs a window, but the display {os.environ.get('DISPLAY', '')} does not answer")


class _EpisodePrinter:
    """Prints the reward and the length of each finished episode."""

    def __init__(self) -> None:
        self._number, self._steps, self._reward = 1, 0, 0.0

    def step(
        self, obs: Any, next_obs: Any, action: Any, reward: float, terminated: bool, truncated: bool, info: Any
    ) -> None:
        """Count a step; the signature is that of the callback of Gymnasium's ``play``."""
        self._steps += 1
        self._reward += float(reward)
        if terminated or truncated:
            print(f"episode {self._number}: reward {self._reward:.2f} in {self._steps} steps")
            self._number, self._steps, self._reward = self._number + 1, 0, 0.0


def _gymnasium_play() -> Any:
    """Return Gymnasium's ``play``; raise a MissingPackage if pygame is not installed."""
    import gymnasium as gym

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the module warns if matplotlib's Tk backend is missing
            from gymnasium.utils.play import play
    except gym.error.DependencyNotInstalled:
        raise MissingPackage("--human needs a window: pip install 'corral[video]'") from None
    return play
