"""Playing episodes to look at: frames of one env under a policy, or under random legal moves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium as gym

from corral.core.envs import EnvFactory
from corral.core.errors import MissingPackage, UsageError
from corral.core.opponents import OPPONENT
from corral.core.types import Actor
from corral.training.evaluate import Chooser, numbers_of
from corral.vec.serial import SerialVectorEnv

__all__ = ["Moment", "play_episodes"]


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
    now, choose = env.arrays, Chooser(env, actor, sample)
    try:
        if env.render_mode != render_mode:
            modes = env.metadata.get("render_modes") or "none"
            raise UsageError(f"{factory.name} does not render as {render_mode}; its render modes: {modes}")
        for episode in range(episodes):
            env.reset_arrays([choose.begin(seed, episode)], [_for_another_game(options)])
            yield Moment(episode, 0, 0.0, False, env.render()[0], {})
            reward, done, step = 0.0, False, 0
            while not done and step < max_steps:
                env.codec.decode(choose(), now.actions)
                env.send()
                info = numbers_of(env.recv())
                reward, step = reward + float(now.rewards[0]), step + 1
                done = bool(now.terminated[0] or now.truncated[0])
                over = done or step == max_steps
                frame = env.get_attr("last_frame")[0] if done else env.render()[0]
                yield Moment(episode, step, reward, over, frame, info)
    except gym.error.DependencyNotInstalled as error:
        raise MissingPackage(f"{factory.name} cannot be rendered: {error}") from None
    finally:
        env.close()


def _for_another_game(options: dict[str, Any] | None) -> dict[str, Any] | None:
    """Reset options with an opponent that remembers nothing of the last game."""
    anew = getattr((options or {}).get(OPPONENT), "anew", None)
    return options if anew is None else {**(options or {}), OPPONENT: anew()}


class _LastFrame(gym.Wrapper[Any, Any, Any, Any]):
    """Keeps what an episode looked like when it ended; by the next look, another one has begun."""

    last_frame: Any = None

    def step(self, action: Any) -> Any:
        outcome = self.env.step(action)
        if isinstance(outcome, tuple) and any(outcome[2:4]):
            self.last_frame = self.env.render()
        return outcome
