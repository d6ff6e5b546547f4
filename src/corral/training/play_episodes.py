"""Plays episodes in one env, with a policy or random legal actions, and yields the rendered frame of every step."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from corral.core.errors import EnvFault, EnvLocation, MissingPackage, UsageError
from corral.core.types import Actor
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import ENV_EXCEPTIONS, describe_error
from corral.envs.opponent_protocol import OPPONENT
from corral.training.evaluate import ActionSelector, EpisodePlan, numeric_info
from corral.vec.serial import SerialVectorEnv
from corral.vec.validation import describe_value

__all__ = ["RenderedStep", "play_episodes"]

_MAX_UNIT_VALUE = 1.01
"""The largest value of a picture with the range 0 to 1, with room for rounding errors."""


@dataclass(frozen=True, slots=True)
class RenderedStep:
    """One step of an episode and how it was rendered; step 0 is the reset."""

    episode: int
    step: int
    reward: float
    """Sum of the episode's rewards so far."""
    done: bool
    """Whether this is the last step of the episode that is played."""
    frame: Any
    """What ``render`` returned: an RGB array or text."""
    info: Mapping[str, float]
    """The numbers in the step's ``info``."""


def play_episodes(
    factory: EnvFactory, actor: Actor | None, plan: EpisodePlan, *, render_mode: str
) -> Iterator[RenderedStep]:
    """Play the same episodes as ``evaluate_actor`` and yield every step with its frame."""
    env = SerialVectorEnv(lambda: _LastFrame(factory(render_mode)), 1)
    arrays, select_action = env.arrays, ActionSelector(env, actor, plan.sample)
    try:
        _check_render_mode(env, render_mode, factory.name)
        for episode in range(plan.episodes):
            env.reset_arrays([select_action.begin_episode(plan.seed, episode)], [_for_new_game(plan.options)])
            yield RenderedStep(episode, 0, 0.0, False, _checked_frame(env.render()[0], render_mode, factory.name), {})
            reward, done, step = 0.0, False, 0
            while not done and step < plan.max_steps:
                env.codec.decode(select_action(), arrays.actions)
                env.send()
                info = numeric_info(env.recv())
                reward, step = reward + float(arrays.rewards[0]), step + 1
                done = bool(arrays.terminated[0] or arrays.truncated[0])
                is_last = done or step == plan.max_steps
                frame = env.get_attr("last_frame")[0] if done else env.render()[0]
                if isinstance(frame, BaseException):
                    raise frame
                yield RenderedStep(
                    episode, step, reward, is_last, _checked_frame(frame, render_mode, factory.name), info
                )
    except gym.error.DependencyNotInstalled as error:
        raise MissingPackage(f"{factory.name} cannot be rendered: {error}") from None
    finally:
        env.close()


def _check_render_mode(env: SerialVectorEnv, render_mode: str, name: str) -> None:
    """Raise a UsageError if the env was not made with this render mode."""
    if env.render_mode == render_mode:
        return
    modes = env.metadata.get("render_modes") or ()
    problem = f"does not render as {render_mode}; its render modes: {modes or 'none'}"
    if render_mode in modes:
        problem = f"ignores render_mode {render_mode}, which the env has: let the factory take it and pass it on"
    raise UsageError(f"{name} {problem}")


def _checked_frame(frame: Any, render_mode: str, name: str) -> Any:
    """Return the frame; in render mode ``rgb_array`` as bytes [H, W, 3], or raise a UsageError if it is no picture."""
    if render_mode != "rgb_array":
        return frame
    try:
        picture = np.asarray(frame)
    except (TypeError, ValueError):  # lists of different lengths, for example
        picture = np.empty(0)
    channels = picture.shape[2] if picture.ndim == 3 else 1 if picture.ndim == 2 else 0
    if channels not in (1, 3, 4) or 0 in picture.shape or picture.dtype.kind not in "buif":
        raise UsageError(
            f"{name}: render() returned {None if frame is None else describe_value(frame)} in render_mode "
            f"{render_mode}, expected a picture: an array of height x width x 3"
        )
    return _to_rgb(picture)


def _to_rgb(picture: Any) -> Any:
    """Return a picture as bytes [H, W, 3]: scale the range 0 to 1 to 0 to 255, repeat grey, leave out transparency."""
    if picture.dtype.kind in "bf":
        picture = np.nan_to_num(picture.astype(np.float32), posinf=1.0, neginf=0.0)
        picture = picture * 255 if picture.max() <= _MAX_UNIT_VALUE else picture
    picture = np.clip(picture, 0, 255).astype(np.uint8)
    if picture.ndim == 2:
        picture = picture[..., None]  # [H, W, 1]
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture[..., :3]


def _for_new_game(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return reset options in which a recurrent opponent begins with an empty state."""
    for_new_game = getattr((options or {}).get(OPPONENT), "for_new_game", None)
    return options if for_new_game is None else {**(options or {}), OPPONENT: for_new_game()}


class _LastFrame(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps the frame of an episode's last step, because the vector env resets the env before it can be rendered.

    An exception in ``render`` is raised as an EnvFault with the env's own traceback.
    """

    last_frame: Any = None

    def step(self, action: Any) -> Any:
        outcome = self.env.step(action)
        if isinstance(outcome, tuple) and any(outcome[2:4]):
            try:
                self.last_frame = self.render()
            except Exception as error:  # raised by the reader of the frame, because the step itself did not fail
                self.last_frame = error
        return outcome

    def render(self) -> Any:
        try:
            return self.env.render()
        except gym.error.DependencyNotInstalled:
            raise
        except ENV_EXCEPTIONS as error:
            env_frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
            env_traceback = "".join(traceback.format_exception(type(error), error, env_frames))
            location = EnvLocation(0, episode=-1, seed=None, step=0)
            raise EnvFault(f"render() raised {describe_error(error)}", location, env_traceback) from None
