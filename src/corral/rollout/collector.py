"""The loop that collects rollouts: choose actions, step the envs, store the outcome.

There is one such loop. With the backends ``serial`` and ``process`` a single collector runs in the training process.
With the backend ``worker`` each worker process runs one for its envs, and writes to the columns of these envs in arrays
that all processes share. A collector does not know where its envs and arrays live, and imports no torch.

Shapes: ``T`` steps of a rollout, ``N`` envs of this collector, ``D`` numbers in an action, ``A`` entries of an action
mask, ``S`` numbers in the state of a recurrent policy. An observation is a dict with one array per leaf of its space.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from corral.core.frame_stacks import ColumnWriter, ObservationView
from corral.core.seeding import action_noise
from corral.core.types import ActionSample, Actor, CollectSeconds, EpisodeRecord, RecoveryCounts, Rollout
from corral.vec.api import CorralVectorEnv, EnvReport, merge_sums

__all__ = ["Collector", "Segment", "merge_segments"]


@dataclass(frozen=True, slots=True)
class Segment:
    """What a collector returns besides the arrays that it wrote."""

    report: EnvReport
    """From the envs: sums of the numbers in infos, exceptions that were raised, and saved states."""
    seconds: CollectSeconds = field(default_factory=CollectSeconds)
    """Time spent choosing actions and stepping envs."""
    finished: bool = True
    """False if the collector stopped before step T; a new worker process then collects the remaining steps."""


class Collector:
    """Collects rollouts of T = ``n_steps`` steps from the N envs of one vector env.

    ``first_env`` is the number that the first of these envs has in the whole run. An env's action noise depends on its
    number in the run, the run's ``seed``, the iteration and the step. So a rollout is the same, bit for bit, however
    the envs of a run are divided among collectors.

    ``env.arrays`` holds the latest step of the vector env: the actions that it takes, and the observations, rewards and
    ends of episodes that it returns. Every step overwrites these arrays.
    """

    def __init__(self, env: CorralVectorEnv, actor: Actor, n_steps: int, seed: int, first_env: int = 0) -> None:
        self.env = env
        self.actor = actor
        self.n_steps = n_steps
        self.seed = seed
        self.first_env = first_env
        self._env_numbers = np.arange(first_env, first_env + env.num_envs)  # [N]

    def restart(self) -> None:
        """Reset every env and begin its episode 0 again.

        The envs were reset once before, to find out whether they mask actions. The run could not choose opponents then.
        """
        self.env.arrays.episode.fill(-1)
        self.env.reset_arrays()

    def collect(
        self,
        iteration: int,
        rollout: Rollout,
        first_step: int = 0,
        on_step: Callable[[int, bool], None] = lambda steps_done, episode_ended: None,
    ) -> Segment:
        """Step every env until ``rollout`` holds T steps, and write them into its arrays.

        A worker that replaces a dead one passes ``first_step``, the number of steps that ``rollout`` holds already. Its
        envs have to be where those steps left them.

        ``on_step(steps_done, episode_ended)`` is called when a step is completely stored: another process could
        continue from there. An exception that it raises ends the collection.
        """
        env, clock = self.env, time.perf_counter
        noise = self._noise(iteration)  # [T, N, D]
        writers = self._column_writers(rollout)
        rollout.final_values[first_step:] = 0.0
        if first_step == 0:
            for writer in writers:
                writer.write_first(was_reset=iteration == 0)  # in iteration 0 every env has just been reset
        seconds_acting = seconds_stepping = 0.0

        for t in range(first_step, self.n_steps):
            started = clock()
            sample = self._act(t, noise[t], rollout)
            acted = clock()
            env.send()  # begins a step with the actions in ``env.arrays.actions``
            env.recv()  # waits for it; where an episode ended, the env has been reset
            stepped = clock()
            seconds_acting += acted - started
            seconds_stepping += stepped - acted

            ended = self._store_outcome(t, sample, rollout)  # [N], or None
            self._store_next_states(t, sample, ended, rollout)
            for writer in writers:
                if t + 1 < self.n_steps:
                    writer.write(t + 1, ended)
                else:
                    writer.write_last()
            on_step(t + 1, ended is not None)

        started = clock()
        self._store_values(rollout)
        seconds_acting += clock() - started
        report = env.drain()  # what the envs reported since the last rollout
        return Segment(report, CollectSeconds(seconds_acting, seconds_stepping))

    def _noise(self, iteration: int) -> npt.NDArray[np.float32]:
        """Return all random numbers of a rollout's actions, [T, N, D]."""
        return action_noise(self.seed, self._env_numbers, iteration, self.n_steps, self.env.codec.gaussian)

    def _column_writers(self, rollout: Rollout) -> list[ColumnWriter]:
        """Return the objects that copy what the envs show, observations and masks, into ``rollout`` step by step.

        A writer stores each frame of a stack of frames once, although consecutive observations share most of them.
        """
        arrays = self.env.arrays
        writers = [
            ColumnWriter(
                path, leaf, rollout.observations[path], rollout.last_observations[path], rollout.stacks.get(path, 1)
            )
            for path, leaf in arrays.observations.items()
        ]
        if rollout.masks is not None and rollout.last_masks is not None:
            writers.append(ColumnWriter("masks", arrays.masks, rollout.masks, rollout.last_masks))
        return writers

    def _act(self, t: int, noise: npt.NDArray[np.float32], rollout: Rollout) -> ActionSample:
        """Choose the actions of step ``t`` for the current observations, store them, and give them to the envs.

        They are stored before the envs step: if a worker process dies in the step, the error can name the action.
        """
        env = self.env
        states = None if rollout.states is None else rollout.states[t]  # [N, S]
        sample = self.actor.act(env.arrays.observations, env.masks, noise, states)
        rollout.actions[t] = sample.actions  # [N, D] unclipped, as the learner needs them
        rollout.log_probs[t] = sample.log_probs  # [N]
        if sample.values is not None:
            rollout.values[t] = sample.values  # [N]
        env.codec.decode(sample.actions, env.arrays.actions)  # [N, D] to the form of the action space
        return sample

    def _store_outcome(self, t: int, sample: ActionSample, rollout: Rollout) -> npt.NDArray[np.bool_] | None:
        """Store what step ``t`` gave. Return where episodes ended, as booleans [N], or None if none ended."""
        outcome = self.env.arrays
        rollout.rewards[t] = outcome.rewards  # [N], as the following
        rollout.terminated[t] = outcome.terminated
        rollout.truncated[t] = outcome.truncated
        rollout.life_lost[t] = outcome.life_lost  # the return ends here, but the episode continues
        ended: npt.NDArray[np.bool_] = outcome.terminated | outcome.truncated
        if not ended.any():
            return None

        rollout.next_episode[t] = outcome.episode  # the number of the episode that begins
        rollout.next_opponent[t] = outcome.opponent  # the number of its opponent; -1 if the env chooses it
        # Truncation, for example by a time limit, is not an outcome of the task. The return then continues with the
        # value of the episode's final observation (Pardo et al. 2018, Time Limits in RL, arXiv:1712.00378).
        cut_off = np.flatnonzero(outcome.truncated & ~outcome.terminated)  # [K] columns of such envs
        if cut_off.size:
            final_observations = {path: leaf[cut_off] for path, leaf in outcome.final_observations.items()}
            states = None if sample.states is None else sample.states[cut_off]  # [K, S]
            rollout.final_values[t, cut_off] = self.actor.values(final_observations, self._env_numbers[cut_off], states)
        return ended

    def _store_next_states(
        self, t: int, sample: ActionSample, ended: npt.NDArray[np.bool_] | None, rollout: Rollout
    ) -> None:
        """Store the recurrent policy's states for step ``t + 1``, [N, S]; they are zero where an episode begins."""
        if rollout.states is None or rollout.last_states is None:
            return
        next_states = rollout.states[t + 1] if t + 1 < self.n_steps else rollout.last_states
        next_states[...] = sample.states
        if ended is not None:
            next_states[ended] = 0.0

    def _store_values(self, rollout: Rollout) -> None:
        """Store the values that remain when all steps are done.

        These are the values of the observations after the last step and, if the actor leaves them out of ``act``
        because one large batch is cheaper, those of all T steps.
        """
        if self.actor.defers_values:
            observations = ObservationView(rollout, self.actor.value_leaves).all()  # each [T * N, ...]
            values = self.actor.values(observations, np.tile(self._env_numbers, self.n_steps))  # [T * N]
            rollout.values[...] = values.reshape(rollout.values.shape)  # [T, N]
        rollout.last_values[...] = self.actor.values(  # [N]
            rollout.last_observations, self._env_numbers, rollout.last_states
        )


def merge_segments(
    rollout: Rollout, segments: list[Segment], episodes: tuple[EpisodeRecord, ...], recovery_counts: RecoveryCounts
) -> Rollout:
    """Return ``rollout``, whose arrays are written, with the summary of its segments.

    ``segments`` are in the order of their envs, so that sums round the same for any number of collectors.
    ``recovery_counts`` counts the workers that were replaced; what was repaired inside of workers is in the segments.
    """
    for segment in segments:
        recovery_counts += segment.report.recovery_counts
    return dataclasses.replace(
        rollout,
        episodes=episodes,
        infos=merge_sums([env_infos for segment in segments for env_infos in segment.report.infos]),
        collectors=sum(1 for segment in segments if segment.report.infos and segment.finished),
        seconds=CollectSeconds(
            max(segment.seconds.act for segment in segments), max(segment.seconds.step for segment in segments)
        ),
        recovery_counts=recovery_counts,
        faults=tuple(fault for segment in segments for fault in segment.report.faults),
    )
