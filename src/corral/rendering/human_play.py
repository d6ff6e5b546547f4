"""``corral play ENV --human``: a person plays, in a window, with the keys that the env names."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Any

from corral.core.errors import MissingPackage, UsageError
from corral.envs.factory import EnvFactory

__all__ = ["has_window", "play_as_human"]

_WIDTH = 640


def has_window() -> bool:
    """Whether there is a screen that a window could be on."""
    return sys.platform in ("win32", "darwin") or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ


def play_as_human(factory: EnvFactory, seed: int, fps: int | None) -> None:
    """Let a person play until the window is closed, and say how each episode went.

    The window and the keyboard are Gymnasium's ``utils.play``; the env says with ``get_keys_to_action`` which keys do
    what, and its action 0 is what happens without any.
    """
    if not has_window():
        raise UsageError("--human needs a window, and there is no screen here; see it with --watch or --save clip.gif")
    env = factory("rgb_array")
    try:
        if not env.has_wrapper_attr("get_keys_to_action"):
            raise UsageError(f"{factory.name} does not say which keys do what: it has no get_keys_to_action()")
        if env.render_mode != "rgb_array":
            raise UsageError(f"{factory.name} draws no pictures (render mode rgb_array), so there is nothing to see")
        play = _gymnasium_play()
        _check_window()
        keys = env.get_wrapper_attr("get_keys_to_action")()
        env.reset(seed=seed)
        shown: Any = env.render()
        told = getattr(env.unwrapped, "key_help", None)
        print(f"playing {factory.name} by hand{f': {told}' if told else ''}; Esc ends it")
        counted = _Episodes()
        play(
            env,
            keys_to_action=keys,
            seed=seed,
            fps=fps,
            zoom=max(1, round(_WIDTH / shown.shape[1])),
            callback=counted.step,
        )
    finally:
        env.close()


def _check_window() -> None:
    """SDL gives up, or makes windows that nobody sees, where the screen that is named does not answer."""
    import pygame

    try:
        pygame.display.init()
        seen = pygame.display.get_driver() not in ("offscreen", "dummy") or "SDL_VIDEODRIVER" in os.environ
    except pygame.error:
        seen = False
    if not seen:
        raise UsageError(f"--human needs a window, and the screen {os.environ.get('DISPLAY', '')} does not answer")


class _Episodes:
    """Adds rewards up."""

    def __init__(self) -> None:
        self._number, self._steps, self._reward = 1, 0, 0.0

    def step(self, before: Any, after: Any, action: Any, reward: float, ended: bool, cut: bool, info: Any) -> None:
        self._steps += 1
        self._reward += float(reward)
        if ended or cut:
            print(f"episode {self._number}: reward {self._reward:.2f} in {self._steps} steps")
            self._number, self._steps, self._reward = self._number + 1, 0, 0.0


def _gymnasium_play() -> Any:
    import gymnasium as gym

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it would rather draw plots with Tk
            from gymnasium.utils.play import play
    except gym.error.DependencyNotInstalled:
        raise MissingPackage("--human needs a window: pip install 'corral[video]'") from None
    return play
