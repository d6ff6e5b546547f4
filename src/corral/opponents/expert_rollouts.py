"""Expert rollouts: games that one of an env's own opponents plays in the agent's place, for a policy to imitate.

A wrapper offers the expert's action as the only legal one. So the vector env that training uses can also collect these
games, with workers that are replaced when they die. The mask of what was really legal is part of the observation.
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
from corral.core.types import FaultCounts, Leaves
from corral.envs.factory import EnvFactory, resolve_env
from corral.envs.lifecycle import build_envs, close_env
from corral.envs.opponent_protocol import outcome
from corral.processes.pool import StartMethod
from corral.processes.recovery_config import RecoveryConfig
from corral.vec.api import CorralVectorEnv
from corral.vec.make_vec import make_vector_env

__all__ = ["ExpertGames", "collect_expert_games"]

_OBSERVATION, _LEGAL = "seen", "legal"
"""Keys of ``ExpertView``'s observations."""


@dataclass(frozen=True, slots=True)
class ExpertGames:
    """Complete episodes that an expert played, M steps in all, one episode after the other."""

    observations: Leaves  # each [M, ...]
    masks: npt.NDArray[np.bool_]  # [M, A] the legal actions
    actions: npt.NDArray[np.int64]  # [M, 1] the expert's actions
    returns: npt.NDArray[np.float32]  # [M] discounted, to the end of the episode
    games: int
    win_rate: float
    fault_counts: FaultCounts
    """Recoveries that happened while the games were collected."""


class ExpertView(gym.Wrapper[Any, Any, Any, Any]):
    """Offers the expert's action as the only legal one, and the real mask as a part of the observation."""

    frame_stacks: ClassVar[dict[str, int]] = {}  # hides those of the env, whose observations have other paths

    def __init__(self, env: gym.Env[Any, Any], expert: str, options: Mapping[str, Any] | None) -> None:
        super().__init__(env)
        self._expert, self._options = expert, None if options is None else dict(options)
        self._advise: Callable[[str], Any] = env.get_wrapper_attr("advise")
        self._legal_actions: Callable[[], Any] = env.get_wrapper_attr("action_masks")
        assert isinstance(env.action_space, spaces.Discrete)
        self._first_action, n_actions = int(env.action_space.start), int(env.action_space.n)
        self.observation_space = spaces.Dict(
            {_OBSERVATION: env.observation_space, _LEGAL: spaces.MultiBinary(n_actions)}
        )
        self._expert_mask = np.zeros(n_actions, np.bool_)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a game with this wrapper's options, and get the expert's first action."""
        observation, _ = self.env.reset(seed=seed, options=self._options)
        return self._observe(observation, is_over=False), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take the expert's action, and get its next one."""
        observation, reward, terminated, truncated, _ = self.env.step(action)
        is_over = bool(terminated or truncated)
        return self._observe(observation, is_over), reward, terminated, truncated, {}

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return a mask [A] in which only the expert's action is legal."""
        return self._expert_mask

    def _observe(self, observation: Any, is_over: bool) -> dict[str, Any]:
        """Get the expert's action, unless the game is over, and return the observation with the real mask."""
        legal = np.zeros(len(self._expert_mask), np.int8)
        if not is_over:
            legal[...] = self._legal_actions()
            self._expert_mask = np.zeros(len(legal), np.bool_)
            self._expert_mask[int(self._advise(self._expert)) - self._first_action] = True
        return {_OBSERVATION: observation, _LEGAL: legal}


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
    """Let ``expert`` play about ``steps`` steps in parallel, and return the games that ended within them.

    A seed gives the same games for every number of workers. ``options`` are the reset options of each game.
    ``on_steps`` is called with the number of steps after each step of all envs.
    """
    _check_expert(factory, expert)
    env = make_vector_env(
        resolve_env(lambda: ExpertView(factory(), expert, options)),
        n_envs,
        backend="serial" if num_workers == 1 else "process",
        num_workers=None if num_workers == 1 else num_workers,
        start_method=start_method,
        seed=seed,
        infos="summed",
        recovery=recovery,
    )
    try:
        recorded = _record_steps(env, -(-steps // n_envs), on_steps)
    finally:
        env.close()
    return _complete_games(recorded, gamma)


@dataclass(frozen=True, slots=True)
class _RecordedSteps:
    """T steps of N envs in which an expert plays."""

    observations: dict[str, npt.NDArray[Any]]  # each [T, N, ...], of ``ExpertView``
    actions: npt.NDArray[np.int64]  # [T, N]
    rewards: npt.NDArray[np.float64]  # [T, N]
    terminated: npt.NDArray[np.bool_]  # [T, N]
    truncated: npt.NDArray[np.bool_]  # [T, N]
    fault_counts: FaultCounts


def _record_steps(env: CorralVectorEnv, n_steps: int, on_steps: Callable[[int], object]) -> _RecordedSteps:
    """Reset all envs, take ``n_steps`` steps with the only legal actions, and return what happened."""
    env.reset_arrays()
    arrays, n_envs = env.arrays, env.num_envs
    observations = {path: np.empty((n_steps, *leaf.shape), leaf.dtype) for path, leaf in arrays.observations.items()}
    actions = np.empty((n_steps, n_envs), np.int64)
    rewards = np.empty((n_steps, n_envs))
    terminated, truncated = np.empty((2, n_steps, n_envs), np.bool_)
    for t in range(n_steps):
        for path, leaf in arrays.observations.items():
            observations[path][t] = leaf
        actions[t] = arrays.masks.argmax(1)
        env.codec.decode(actions[t][:, None], arrays.actions)
        env.send()
        env.recv()
        rewards[t], terminated[t], truncated[t] = arrays.rewards, arrays.terminated, arrays.truncated
        on_steps(n_envs)
    return _RecordedSteps(observations, actions, rewards, terminated, truncated, env.take_report().fault_counts)


def _complete_games(recorded: _RecordedSteps, gamma: float) -> ExpertGames:
    """Return the games that came to an end; raise a UsageError if there is none."""
    rewards = recorded.rewards
    ended = recorded.terminated | recorded.truncated  # [T, N]
    in_complete_game = np.maximum.accumulate(ended[::-1])[::-1]  # [T, N] an end follows, or is here
    env, t = np.nonzero(in_complete_game.T)  # [M] each, env by env
    if not env.size:
        raise UsageError(f"no game of the expert came to an end within {rewards.size} steps; increase expert_steps")
    last_steps = zip(rewards[ended], recorded.terminated[ended], strict=True)
    outcomes = [outcome(float(reward), bool(terminated)) for reward, terminated in last_steps]
    leaves = recorded.observations  # emptied below, so that no leaf is in memory twice for long
    legal = leaves.pop(_LEGAL)[t, env].astype(np.bool_)
    return ExpertGames(
        observations={
            path.removeprefix(_OBSERVATION).removeprefix("/"): leaves.pop(path)[t, env] for path in list(leaves)
        },
        masks=legal,
        actions=recorded.actions[t, env][:, None],
        returns=_discounted_returns(rewards, ended, gamma)[t, env].astype(np.float32),
        games=len(outcomes),
        win_rate=float(np.mean(outcomes)),
        fault_counts=recorded.fault_counts,
    )


def _discounted_returns(
    rewards: npt.NDArray[np.float64], ended: npt.NDArray[np.bool_], gamma: float
) -> npt.NDArray[np.float64]:
    """Return the discounted return [T, N] from each step to the end of its episode."""
    returns, following = np.zeros_like(rewards), np.zeros(rewards.shape[1])
    for t in range(len(rewards) - 1, -1, -1):
        following = rewards[t] + gamma * np.where(ended[t], 0.0, following)
        returns[t] = following
    return returns


def _check_expert(factory: EnvFactory, expert: str) -> None:
    """Raise a UsageError if the env has no such expert, or if its actions cannot be imitated."""
    env = build_envs(factory, 0, 1)[0]
    try:
        if not env.has_wrapper_attr("advise") or not env.has_wrapper_attr("action_masks"):
            raise UsageError(
                f"{factory.name} has no expert to imitate: the env needs the methods `advise(name)` and "
                "`action_masks()` (see docs/opponents.md)"
            )
        experts = tuple(env.get_wrapper_attr("opponents"))
        if expert not in experts:
            raise UsageError(f"unknown expert {expert!r}; there are: {', '.join(experts)}")
        if not isinstance(env.action_space, spaces.Discrete):
            raise UsageError(f"an expert can be imitated only in a Discrete action space, not in {env.action_space}")
    finally:
        close_env(env, 0)
