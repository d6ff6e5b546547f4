"""Evaluation of a policy in one env, on the same episodes every time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from corral.core.seeding import EVALUATION, episode_seed, noise_row
from corral.core.types import Actor
from corral.training.metrics_row import Metrics
from corral.training.replay_check import check_replay
from corral.training.run import Run
from corral.training.signals import SignalHandler
from corral.vec.api import CorralVectorEnv, InfoRow
from corral.vec.validation import NUMBER_TYPES

__all__ = ["ActionSelector", "EpisodePlan", "EvaluationResult", "evaluate_actor", "evaluate_run", "numeric_info"]


@dataclass(frozen=True, slots=True)
class EpisodePlan:
    """Which episodes to play, and whether actions are sampled in them."""

    episodes: int
    seed: int
    """Decides the seed of every episode: the k-th episode of two equal plans is the same."""
    max_steps: int
    """The number of steps after which an episode is stopped."""
    options: dict[str, Any] | None = None
    """The options of every ``env.reset``."""
    sample: bool = False
    """Whether actions are sampled; otherwise the most likely action is taken."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Rewards and lengths of the evaluation episodes."""

    rewards: tuple[float, ...]
    lengths: tuple[int, ...]
    cut_off: int
    """The number of episodes that had not ended after ``max_steps``."""
    infos: Mapping[str, tuple[float, ...]]
    """The numbers in the last ``info`` of each episode, by name; only names that all episodes have."""

    @property
    def mean_reward(self) -> float:
        """Mean reward of the episodes."""
        return float(np.mean(self.rewards))

    @property
    def std_reward(self) -> float:
        """Standard deviation of the episodes' rewards."""
        return float(np.std(self.rewards))

    @property
    def mean_length(self) -> float:
        """Mean length of the episodes in steps."""
        return float(np.mean(self.lengths))


def evaluate_actor(
    env: CorralVectorEnv, actor: Actor | None, plan: EpisodePlan, on_episode: Callable[[], object] = lambda: None
) -> EvaluationResult:
    """Play the episodes of a plan in a single env; without an actor, with random legal actions.

    ``on_episode`` is called after each episode.
    """
    assert env.num_envs == 1
    arrays, rewards, lengths, cut_off = env.arrays, [], [], 0
    last_infos: list[dict[str, float]] = []
    select_action = ActionSelector(env, actor, plan.sample)
    for episode in range(plan.episodes):
        env.reset_arrays([select_action.begin_episode(plan.seed, episode)], [plan.options])
        reward, length, done = 0.0, 0, False
        info: dict[str, float] = {}
        while not done and length < plan.max_steps:
            env.codec.decode(select_action(), arrays.actions)
            env.send()
            info = numeric_info(env.recv())
            reward += float(arrays.rewards[0])
            length += 1
            done = bool(arrays.terminated[0] or arrays.truncated[0])
        rewards.append(reward)
        lengths.append(length)
        last_infos.append(info)
        cut_off += not done
        on_episode()
    names = [name for name in last_infos[0] if all(name in info for info in last_infos)]
    infos = {name: tuple(info[name] for info in last_infos) for name in names}
    return EvaluationResult(tuple(rewards), tuple(lengths), cut_off, infos)


class ActionSelector:
    """Selects the actions of one env: the most likely ones, sampled ones, or without an actor random legal ones.

    The seed of an episode decides what is sampled in it.
    """

    def __init__(self, env: CorralVectorEnv, actor: Actor | None, sample: bool) -> None:
        self._env, self._actor, self._sample = env, actor, sample
        self._states: npt.NDArray[np.float32] | None = None  # [1, S]
        self._generator = np.random.default_rng(0)

    def begin_episode(self, seed: int, episode: int) -> int:
        """Prepare for the episode of this number; return the seed to reset the env with."""
        reset_seed = episode_seed(seed, EVALUATION, episode)
        self._generator = np.random.default_rng([reset_seed, 2])
        self._states = np.zeros((1, self._actor.n_state), np.float32) if self._actor and self._actor.n_state else None
        return reset_seed

    def __call__(self) -> npt.NDArray[Any]:
        """Return the action for the env's current observation, as a row [1, D] that the env's codec decodes."""
        env, observations = self._env, self._env.arrays.observations
        if self._actor is None:
            return env.codec.random(env.masks, 1, self._generator)
        if self._sample:
            noise = noise_row(self._generator, env.codec.gaussian)
            sampled = self._actor.act(observations, env.masks, noise, self._states)
            self._states = sampled.states
            return sampled.actions
        actions, self._states = self._actor.act_greedy(observations, env.masks, self._states)
        return actions


def numeric_info(rows: Sequence[InfoRow]) -> dict[str, float]:
    """Return the numbers in the ``info`` of one env's step; of the final info if the step ended an episode."""
    if not rows:
        return {}
    info = rows[0].info if rows[0].final is None else rows[0].final
    return {name: float(value) for name, value in info.items() if isinstance(value, NUMBER_TYPES)}


def evaluate_run(run: Run, signals: SignalHandler) -> Metrics:
    """Evaluate the policy of a run, save it in ``best/`` if it is the best so far, and return the ``eval/`` metrics."""
    progress = run.progress
    start = time.perf_counter()
    with signals.interruptible():
        result = _play_evaluation(run)
        assert run.eval_env is not None
        report = run.eval_env.take_report()
    progress.fault_counts += report.fault_counts
    run.log_faults(report.faults)
    seconds = time.perf_counter() - start
    progress.eval_seconds += seconds
    progress.last_eval_reward = result.mean_reward
    is_best = progress.best_reward is None or result.mean_reward > progress.best_reward
    if is_best:
        progress.best_reward = result.mean_reward
    run.take_recovery_point()  # with the counters that the evaluation changed
    if is_best:
        run.save_best()
    config = run.config
    cut_off = f", {result.cut_off} cut off after {config.eval_max_steps} steps" if result.cut_off else ""
    run.reporter.console.note(
        f"evaluation at {progress.timesteps:,} steps: reward {result.mean_reward:,.2f} "
        f"(deviation {result.std_reward:,.2f}, {config.eval_episodes} episodes{cut_off})"
    )
    return {
        "eval/mean_reward": result.mean_reward,
        "eval/std_reward": result.std_reward,
        "eval/mean_ep_length": result.mean_length,
        "eval/seconds": seconds,
    }


def _play_evaluation(run: Run) -> EvaluationResult:
    """Play the evaluation episodes of a run with its current weights."""
    config = run.config
    if run.eval_env is None:
        run.eval_env = run.make_single_env(None)
    if (warning := check_replay(run)) is not None:
        run.reporter.console.warn(warning)
    run.actor.load(run.learner.policy.state_dict())
    plan = EpisodePlan(
        config.eval_episodes,
        run.seed,
        config.eval_max_steps,
        options=None if run.opponents is None else run.opponents.eval_options,
        sample=config.eval_sample,
    )
    return evaluate_actor(run.eval_env, run.actor, plan)
