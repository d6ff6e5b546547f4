"""Evaluation: one env, the same episodes every time."""

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
from corral.training.signals import Interrupts
from corral.vec.api import CorralVectorEnv, InfoRow
from corral.vec.validation import NUMBER

__all__ = ["ActionSelector", "EvaluationResult", "evaluate_actor", "evaluate_run", "numbers_of"]


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Rewards and lengths of the evaluation episodes."""

    rewards: tuple[float, ...]
    lengths: tuple[int, ...]
    cut_off: int
    """Episodes that were still going on after ``max_steps``."""
    infos: Mapping[str, tuple[float, ...]]
    """The numbers that every episode's last info had, by name; none, if the env does not pass infos on."""

    @property
    def mean_reward(self) -> float:
        """Mean over the episodes."""
        return float(np.mean(self.rewards))

    @property
    def std_reward(self) -> float:
        """Standard deviation over the episodes."""
        return float(np.std(self.rewards))

    @property
    def mean_length(self) -> float:
        """Mean over the episodes."""
        return float(np.mean(self.lengths))


def evaluate_actor(
    env: CorralVectorEnv,
    actor: Actor | None,
    episodes: int,
    seed: int,
    max_steps: int,
    on_episode: Callable[[], object] = lambda: None,
    options: dict[str, Any] | None = None,
    sample: bool = False,
) -> EvaluationResult:
    """Play ``episodes`` episodes, the k-th always with the same seed, each for at most ``max_steps``.

    ``options`` are given to every reset; for ``sample`` and without an actor see ``ActionSelector``.
    """
    assert env.num_envs == 1
    now, rewards, lengths, cut_off = env.arrays, [], [], 0
    infos: list[dict[str, float]] = []
    choose = ActionSelector(env, actor, sample)
    for episode in range(episodes):
        env.reset_arrays([choose.begin(seed, episode)], [options])
        reward, length, done = 0.0, 0, False
        told: dict[str, float] = {}
        while not done and length < max_steps:
            env.codec.decode(choose(), now.actions)
            env.send()
            told = numbers_of(env.recv())
            reward += float(now.rewards[0])
            length += 1
            done = bool(now.terminated[0] or now.truncated[0])
        rewards.append(reward)
        lengths.append(length)
        infos.append(told)
        cut_off += not done
        on_episode()
    names = [name for name in infos[0] if all(name in told for told in infos)]
    last = {name: tuple(told[name] for told in infos) for name in names}
    return EvaluationResult(tuple(rewards), tuple(lengths), cut_off, last)


class ActionSelector:
    """Chooses for one env: the most likely action, or one drawn (``sample``); without an actor, a random legal one.

    What is drawn in an episode follows from its seed.
    """

    def __init__(self, env: CorralVectorEnv, actor: Actor | None, sample: bool) -> None:
        self._env, self._actor, self._sample = env, actor, sample
        self._states: npt.NDArray[np.float32] | None = None
        self._generator = np.random.default_rng(0)

    def begin(self, seed: int, episode: int) -> int:
        """The seed of an episode, which begins now."""
        own = episode_seed(seed, EVALUATION, episode)
        self._generator = np.random.default_rng([own, 2])
        self._states = np.zeros((1, self._actor.n_state), np.float32) if self._actor and self._actor.n_state else None
        return own

    def __call__(self) -> npt.NDArray[Any]:
        """The action for what the env shows now, a row [1, D] for its codec."""
        env, seen = self._env, self._env.arrays.observations
        if self._actor is None:
            return env.codec.random(env.masks, 1, self._generator)
        if self._sample:
            acts = self._actor.act(seen, env.masks, noise_row(self._generator, env.codec.gaussian), self._states)
            self._states = acts.states
            return acts.actions
        actions, self._states = self._actor.act_greedy(seen, env.masks, self._states)
        return actions


def numbers_of(rows: Sequence[InfoRow]) -> dict[str, float]:
    """The numbers in the info of a step of one env; where it ended an episode, of that step and not of the reset."""
    if not rows:
        return {}
    info = rows[0].info if rows[0].final is None else rows[0].final
    return {name: float(value) for name, value in info.items() if isinstance(value, NUMBER)}


def evaluate_run(run: Run, signals: Interrupts) -> Metrics:
    """Evaluate a run's policy, and keep it in ``best/`` if none was better."""
    config, progress, console = run.config, run.progress, run.reporter.console
    started = time.perf_counter()
    with signals.allowed():
        if run.eval_env is None:
            run.eval_env = run.single_env(None)
        if (warning := check_replay(run)) is not None:
            console.warn(warning)
        run.actor.load(run.learner.policy.state_dict())
        result = evaluate_actor(
            run.eval_env,
            run.actor,
            config.eval_episodes,
            run.seed,
            config.eval_max_steps,
            options=None if run.opponents is None else run.opponents.eval_options,
            sample=config.eval_sample,
        )
        report = run.eval_env.drain()
    progress.recovery_counts += report.recovery_counts
    run.log_faults(report.faults)
    seconds = time.perf_counter() - started
    progress.eval_seconds += seconds
    progress.last_eval_reward = result.mean_reward
    is_best = progress.best_reward is None or result.mean_reward > progress.best_reward
    if is_best:
        progress.best_reward = result.mean_reward
    run.take_recovery_point()  # with what evaluation added to the counters
    if is_best:
        run.save_best()
    cut = f", {result.cut_off} cut off after {config.eval_max_steps} steps" if result.cut_off else ""
    console.note(
        f"evaluation at {progress.timesteps:,} steps: reward {result.mean_reward:,.2f} "
        f"(deviation {result.std_reward:,.2f}, {config.eval_episodes} episodes{cut})"
    )
    return {
        "eval/mean_reward": result.mean_reward,
        "eval/std_reward": result.std_reward,
        "eval/mean_ep_length": result.mean_length,
        "eval/seconds": seconds,
    }
