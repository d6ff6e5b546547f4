"""Games of an expert to learn from: an env's own opponent, asked what it would do in the agent's place.

The env shows the expert's choice as the only legal action, so that the vector env that trains also collects, with
workers that heal. What was really legal travels in the observation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.core.types import Leaves, RecoveryCounts
from corral.envs.factory import EnvFactory, resolve_env
from corral.envs.lifecycle import build_envs, close_env
from corral.envs.opponent_protocol import outcome
from corral.processes.pool import StartMethod
from corral.processes.supervision import RecoveryConfig
from corral.vec.make_vec import make_vector_env

__all__ = ["ExpertGames", "collect_expert_games"]

_SEEN, _LEGAL = "seen", "legal"


@dataclass(frozen=True, slots=True)
class ExpertGames:
    """Whole episodes that an expert played, M steps of them."""

    observations: Leaves  # each [M, ...]
    masks: npt.NDArray[np.bool_]  # [M, A] what was legal
    actions: npt.NDArray[np.int64]  # [M, 1] what the expert did
    returns: npt.NDArray[np.float32]  # [M] discounted, to the end of the episode
    games: int
    win_rate: float
    recovery_counts: RecoveryCounts
    """On the way to them."""


class ExpertView(gym.Wrapper[Any, Any, Any, Any]):
    """Lets only the expert's choice be played."""

    frame_stacks: ClassVar[dict[str, int]] = {}  # these observations are others

    def __init__(self, env: gym.Env[Any, Any], expert: str, options: Mapping[str, Any] | None) -> None:
        super().__init__(env)
        self._expert, self._options = expert, None if options is None else dict(options)
        self._advise: Callable[[str], Any] = env.get_wrapper_attr("advise")
        self._masks: Callable[[], Any] = env.get_wrapper_attr("action_masks")
        assert isinstance(env.action_space, spaces.Discrete)
        self._first, n = int(env.action_space.start), int(env.action_space.n)
        self.observation_space = spaces.Dict({_SEEN: env.observation_space, _LEGAL: spaces.MultiBinary(n)})
        self._choice = np.zeros(n, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game, and ask."""
        observation, _ = self.env.reset(seed=seed, options=self._options)
        return self._shown(observation, over=False), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Play what the expert chose, and ask again."""
        observation, reward, terminated, truncated, _ = self.env.step(action)
        return self._shown(observation, bool(terminated or truncated)), reward, terminated, truncated, {}

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """The expert's choice."""
        return self._choice

    def _shown(self, observation: Any, over: bool) -> dict[str, Any]:
        legal = np.zeros(len(self._choice), np.int8)
        if not over:
            legal[...] = self._masks()
            self._choice = np.zeros(len(legal), np.bool_)
            self._choice[int(self._advise(self._expert)) - self._first] = True
        return {_SEEN: observation, _LEGAL: legal}


def collect_expert_games(
    factory: EnvFactory,
    expert: str,
    options: Mapping[str, Any] | None,
    steps: int,
    *,
    n_envs: int,
    num_workers: int,
    start_method: StartMethod,
    seed: int,
    gamma: float,
    recovery: RecoveryConfig,
    on_steps: Callable[[int], object] = lambda n: None,
) -> ExpertGames:
    """Let ``expert`` play about ``steps`` steps in parallel; only whole games count. The same games for a seed."""
    _check(factory, expert)
    view = resolve_env(lambda: ExpertView(factory(), expert, options))
    env = make_vector_env(
        view,
        n_envs,
        backend="serial" if num_workers == 1 else "process",
        num_workers=None if num_workers == 1 else num_workers,
        start_method=start_method,
        seed=seed,
        infos="summed",
        recovery=recovery,
    )
    length = -(-steps // n_envs)
    try:
        env.reset_arrays()
        now = env.arrays
        seen = {path: np.empty((length, *leaf.shape), leaf.dtype) for path, leaf in now.observations.items()}
        choices = np.empty((length, n_envs), np.int64)
        rewards = np.empty((length, n_envs))
        terminated, truncated = np.empty((2, length, n_envs), np.bool_)
        for t in range(length):
            for path, leaf in now.observations.items():
                seen[path][t] = leaf
            choices[t] = now.masks.argmax(1)
            env.codec.decode(choices[t][:, None], now.actions)
            env.send()
            env.recv()
            rewards[t], terminated[t], truncated[t] = now.rewards, now.terminated, now.truncated
            on_steps(n_envs)
        recovery_counts = env.drain().recovery_counts
    finally:
        env.close()
    ended = terminated | truncated
    finished = np.maximum.accumulate(ended[::-1])[::-1]  # the game that this step is in comes to an end
    n, of = np.nonzero(finished.T)  # env by env
    if not n.size:
        raise UsageError(f"no game of the expert came to an end within {rewards.size} steps; give more expert_steps")
    last = zip(rewards[ended], terminated[ended], strict=True)
    outcomes = [outcome(float(reward), bool(flag)) for reward, flag in last]
    legal = seen.pop(_LEGAL)[of, n].astype(np.bool_)
    return ExpertGames(
        observations={path.removeprefix(_SEEN).removeprefix("/"): seen.pop(path)[of, n] for path in list(seen)},
        masks=legal,
        actions=choices[of, n][:, None],
        returns=_returns(rewards, ended, gamma)[of, n].astype(np.float32),
        games=len(outcomes),
        win_rate=float(np.mean(outcomes)),
        recovery_counts=recovery_counts,
    )


def _returns(rewards: npt.NDArray[np.float64], ended: npt.NDArray[np.bool_], gamma: float) -> npt.NDArray[np.float64]:
    """Discounted returns [T, N], to the end of each episode."""
    returns, after = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        after = rewards[t] + gamma * np.where(ended[t], 0.0, after)
        returns[t] = after
    return returns


def _check(factory: EnvFactory, expert: str) -> None:
    env = build_envs(factory, 0, 1)[0]
    try:
        if not env.has_wrapper_attr("advise") or not env.has_wrapper_attr("action_masks"):
            raise UsageError(
                f"{factory.name} has nobody to learn from: an expert needs `advise(name)`, and masked actions "
                "(see docs/opponents.md)"
            )
        known = tuple(env.get_wrapper_attr("opponents"))
        if expert not in known:
            raise UsageError(f"unknown expert {expert!r}; there are: {', '.join(known)}")
        if not isinstance(env.action_space, spaces.Discrete):
            raise UsageError(
                f"an expert can be imitated where actions are Discrete, but here they are {env.action_space}"
            )
    finally:
        close_env(env, 0)
