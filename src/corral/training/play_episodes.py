"""Playing episodes to look at: frames of one env under a policy, or under random legal moves."""

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
from corral.envs.lifecycle import ENV_EXCEPTIONS, named
from corral.envs.opponent_protocol import OPPONENT
from corral.training.evaluate import ActionSelector, numbers_of
from corral.vec.serial import SerialVectorEnv
from corral.vec.validation import shape_of

__all__ = ["Moment", "play_episodes"]

_ABOUT_ONE = 1.01
"""The most that rounding makes of a picture whose numbers are 0 to 1."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One step as it looked."""

    episode: int
    step: int
    reward: float
    """Reward of the episode so far."""
    done: bool
    frame: Any
    """What ``render`` gave: an RGB array, or text."""
    info: Mapping[str, float]
    """The numbers in the step's info."""


def play_episodes(
    factory: EnvFactory,
    actor: Actor | None,
    *,
    render_mode: str,
    episodes: int,
    seed: int,
    max_steps: int,
    options: dict[str, Any] | None = None,
    sample: bool = False,
) -> Iterator[Moment]:
    """Play and yield every moment; as ``evaluate_actor`` does."""
    env = SerialVectorEnv(lambda: _LastFrame(factory(render_mode)), 1)
    now, choose = env.arrays, ActionSelector(env, actor, sample)
    try:
        if env.render_mode != render_mode:
            modes = env.metadata.get("render_modes") or ()
            why = f"does not render as {render_mode}; its render modes: {modes or 'none'}"
            if render_mode in modes:
                why = f"ignores render_mode {render_mode}, which the env has: let the factory take it and pass it on"
            raise UsageError(f"{factory.name} {why}")
        for episode in range(episodes):
            env.reset_arrays([choose.begin(seed, episode)], [_for_another_game(options)])
            yield Moment(episode, 0, 0.0, False, _checked(env.render()[0], render_mode, factory), {})
            reward, done, step = 0.0, False, 0
            while not done and step < max_steps:
                env.codec.decode(choose(), now.actions)
                env.send()
                info = numbers_of(env.recv())
                reward, step = reward + float(now.rewards[0]), step + 1
                done = bool(now.terminated[0] or now.truncated[0])
                over = done or step == max_steps
                frame = env.get_attr("last_frame")[0] if done else env.render()[0]
                if isinstance(frame, BaseException):
                    raise frame
                yield Moment(episode, step, reward, over, _checked(frame, render_mode, factory), info)
    except gym.error.DependencyNotInstalled as error:
        raise MissingPackage(f"{factory.name} cannot be rendered: {error}") from None
    finally:
        env.close()


def _checked(frame: Any, render_mode: str, factory: EnvFactory) -> Any:
    """The frame; where it should be a picture, it must be one."""
    if render_mode != "rgb_array":
        return frame
    try:
        picture = np.asarray(frame)
    except (TypeError, ValueError):  # lists of different lengths, for example
        picture = np.empty(0)
    channels = picture.shape[2] if picture.ndim == 3 else 1 if picture.ndim == 2 else 0
    if channels not in (1, 3, 4) or 0 in picture.shape or picture.dtype.kind not in "buif":
        raise UsageError(
            f"{factory.name}: render() returned {None if frame is None else shape_of(frame)} in render_mode "
            f"{render_mode}, expected a picture: an array of height x width x 3"
        )
    return _rgb(picture)


def _rgb(picture: Any) -> Any:
    """A picture as bytes [H, W, 3]: 0 to 1 is scaled to 0 to 255, grey is repeated, transparency is left out."""
    if picture.dtype.kind in "bf":
        picture = np.nan_to_num(picture.astype(np.float32), posinf=1.0, neginf=0.0)
        picture = picture * 255 if picture.max() <= _ABOUT_ONE else picture
    picture = np.clip(picture, 0, 255).astype(np.uint8)
    if picture.ndim == 2:
        picture = picture[..., None]
    return np.repeat(picture, 3, axis=2) if picture.shape[2] == 1 else picture[..., :3]


def _for_another_game(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Reset options with an opponent that remembers nothing of the last game."""
    for_new_game = getattr((options or {}).get(OPPONENT), "for_new_game", None)
    return options if for_new_game is None else {**(options or {}), OPPONENT: for_new_game()}


class _LastFrame(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps what an episode looked like when it ended, because by the next look another one has begun.

    What ``render`` raises is passed on with the env's own traceback.
    """

    last_frame: Any = None

    def step(self, action: Any) -> Any:
        outcome = self.env.step(action)
        if isinstance(outcome, tuple) and any(outcome[2:4]):
            try:
                self.last_frame = self.render()
            except Exception as error:  # whoever asks for the frame raises it: the step itself went well
                self.last_frame = error
        return outcome

    def render(self) -> Any:
        try:
            return self.env.render()
        except gym.error.DependencyNotInstalled:
            raise
        except ENV_EXCEPTIONS as error:
            frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
            own = "".join(traceback.format_exception(type(error), error, frames))
            location = EnvLocation(0, episode=-1, seed=None, step=0)
            raise EnvFault(f"render() raised {named(error)}", location, own) from None
