"""The loop that collects rollouts: choose actions, step the envs, store the outcome.

A ``Collector`` runs this loop for a group of envs. With the backends ``serial`` and ``process`` there is one collector
for all envs, in the training process; with ``process``, worker processes only step the envs. With the backend
``worker`` the worker processes also choose the actions: each has its own envs, actor and collector, and writes its part
of a rollout into shared memory. The code is the same for all backends. It imports no torch, because the actor of the
built-in MLP needs only NumPy: a worker process without torch needs 10 MB of memory of its own instead of 200.

Shapes: ``T`` steps of a rollout, ``N`` envs of this collector, ``D`` numbers in an action (1 for ``Discrete``), ``S``
numbers in the state of a recurrent policy. Observations are dicts of arrays: one per leaf of the observation space, by
its path in the space (see ``core.types.Leaves``). A leaf may be a frame stack: the newest few frames in one array.

*Final* is said of an episode, *last* of the rollout: ``final_values[t]`` are values of the final observations of the
episodes that were truncated at step ``t``; ``last_values`` are those of the observations after step ``T - 1``.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from corral.core.frame_stacks import ObservationView, ObservationWriter
from corral.core.seeding import action_noise
from corral.core.types import ActionSample, Actor, CollectSeconds, EpisodeRecord, FaultCounts, Rollout
from corral.vec.api import CorralVectorEnv, EnvReport, merge_sums

__all__ = ["Collector", "CollectorReport", "merge_reports"]


@dataclass(frozen=True, slots=True)
class CollectorReport:
    """What one collector reports about a rollout, besides the arrays that it wrote."""

    env_report: EnvReport
    """From the envs: sums of the numbers in infos, the exceptions after which an env was replaced, their counts, and
    states of envs from ``get_state``, from which a restarted worker can continue."""
    seconds: CollectSeconds = field(default_factory=CollectSeconds)
    """Time spent choosing actions and stepping envs."""
    finished: bool = True
    """Whether all T steps are collected: always true in what ``collect`` returns. A worker that uses too much memory
    leaves ``collect`` early (its ``on_step`` raises), makes a report itself that is not finished and has no times, and
    ends. The process that takes its place collects the remaining steps and makes another report."""


class Collector:
    """Collects rollouts of T = ``n_steps`` steps from the N envs of one vector env.

    ``actor`` computes actions and values with the policy's weights. ``first_env`` is the index in the run of the first
    of these envs. An env's action noise depends only on its index in the run, the run's ``seed``, the iteration and
    the step. So a rollout is the same, bit for bit, however the envs of a run are divided among collectors.

    ``env.arrays`` holds the latest step of the vector env: the actions that it takes, and the observations, rewards and
    ends of episodes that it returns. Every step overwrites these arrays, so the collector copies them into the rollout.
    """

    def __init__(self, env: CorralVectorEnv, actor: Actor, n_steps: int, seed: int, first_env: int = 0) -> None:
        self.env = env
        self.actor = actor
        self.n_steps = n_steps
        self.seed = seed
        self.first_env = first_env
        # Indices in the run [N]. The last bits of a row of a matrix product can depend on the row's place in the batch
        # and on the batch's size. So the actor computes in batches of a fixed size, in which each env has a fixed place
        # by its index (``rollout/batch_layout``): results are the same however envs are divided among collectors.
        # ``act`` always gets all N envs, so the actor was made with their indices. ``values`` may get fewer envs, so
        # it has the indices as an argument.
        self._env_indices = np.arange(first_env, first_env + env.num_envs)

    def reset_envs(self) -> None:
        """Reset every env, so that its episode 0 begins again.

        Runs that choose an opponent (a player inside the env) for each episode need this: the envs were reset when they
        were made, to find out whether they have action masks, and no opponents had been chosen by then.
        """
        self.env.arrays.episode.fill(-1)  # because the reset adds 1
        self.env.reset_arrays()  # resets the envs, and writes their observations into the arrays

    def collect(
        self,
        iteration: int,
        rollout: Rollout,
        first_step: int = 0,
        on_step: Callable[[int, bool], None] = lambda steps_done, any_episode_ended: None,
    ) -> CollectorReport:
        """Step every env until ``rollout`` holds T steps, and write them into its arrays.

        ``first_step`` is more than 0 only in a worker that was restarted during this rollout: ``rollout`` holds that
        many steps already, and the caller has restored the envs to where these steps ended. For a recurrent policy, the
        caller has written the states before step 0 to ``rollout.states[0]``.

        ``on_step(steps_done, any_episode_ended)`` is called when a step of all envs is stored (except values, if the
        actor ``defers_values``): another process could continue from there. An exception that it raises ends the
        collection.
        """
        env, clock = self.env, time.perf_counter
        noise = self._noise(iteration)  # [T, N, D]
        writers = self._observation_writers(rollout)
        rollout.final_values[first_step:] = 0.0  # stays 0 except where an episode is truncated
        if first_step == 0:
            for writer in writers:  # store the observation before step 0
                # With ``was_reset``, the writer checks that all frames of a stack are equal, as they are after a reset.
                # In iteration 0 every env was just reset; later resets were checked when they were written.
                writer.write_first(was_reset=iteration == 0)
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
        self._store_remaining_values(rollout)
        seconds_acting += clock() - started
        env_report = env.take_report()  # of the envs since the last call
        return CollectorReport(env_report, CollectSeconds(seconds_acting, seconds_stepping))

    def _noise(self, iteration: int) -> npt.NDArray[np.float32]:
        """Return the random numbers from which the actor samples all actions of a rollout, [T, N, D].

        ``codec.gaussian`` has a boolean for each of the D numbers: continuous actions need a standard normal number,
        discrete ones a uniform number, with which the actor inverts the cumulative distribution.
        """
        return action_noise(self.seed, self._env_indices, iteration, self.n_steps, self.env.codec.gaussian)

    def _observation_writers(self, rollout: Rollout) -> list[ObservationWriter]:
        """Return the objects that copy observations and action masks from ``env.arrays`` into ``rollout``.

        ``rollout.stacks`` has the number of frames of each leaf that is a frame stack. Consecutive stacks share all
        frames but one, so a writer stores each frame once.
        """
        arrays = self.env.arrays
        writers = [
            ObservationWriter(
                path, leaf, rollout.observations[path], rollout.last_observations[path], rollout.stacks.get(path, 1)
            )
            for path, leaf in arrays.observations.items()
        ]
        if rollout.masks is not None and rollout.last_masks is not None:
            writers.append(ObservationWriter("masks", arrays.masks, rollout.masks, rollout.last_masks))
        return writers

    def _act(self, t: int, noise: npt.NDArray[np.float32], rollout: Rollout) -> ActionSample:
        """Choose the actions of step ``t`` for the current observations, store them, and give them to the envs.

        They are stored before the envs step: if a worker process dies in the step, the error can name the action.
        """
        env = self.env
        states = None if rollout.states is None else rollout.states[t]  # [N, S]
        # ``env.masks`` is ``env.arrays.masks``, or None if the envs have no action masks.
        sample = self.actor.act(env.arrays.observations, env.masks, noise, states)
        rollout.actions[t] = sample.actions  # [N, D] not clipped to bounds, because log_probs belong to these
        rollout.log_probs[t] = sample.log_probs  # [N]
        if sample.values is not None:  # otherwise ``_store_remaining_values`` computes them
            rollout.values[t] = sample.values  # [N]
        env.codec.decode(sample.actions, env.arrays.actions)  # clips to bounds, and converts to the action space
        return sample

    def _store_outcome(self, t: int, sample: ActionSample, rollout: Rollout) -> npt.NDArray[np.bool_] | None:
        """Store the outcome of step ``t``. Return where episodes ended, as booleans [N], or None if none ended."""
        outcome = self.env.arrays
        rollout.rewards[t] = outcome.rewards  # [N], like all arrays of this step below
        rollout.terminated[t] = outcome.terminated
        rollout.truncated[t] = outcome.truncated
        rollout.life_lost[t] = outcome.life_lost  # the return ends here, but the episode continues
        ended: npt.NDArray[np.bool_] = outcome.terminated | outcome.truncated
        if not ended.any():
            return None

        # Indices of the episodes that begin after this step, and numbers of their opponents (-1: none, or chosen by the
        # env). Only entries where ``ended`` is true are read.
        rollout.next_episode[t] = outcome.episode
        rollout.next_opponent[t] = outcome.opponent
        # Without truncation, for example by a time limit, more rewards would have followed. So the return bootstraps
        # from the value of the episode's final observation (Pardo et al. 2018, Time Limits in RL, arXiv:1712.00378).
        cut_off = np.flatnonzero(outcome.truncated & ~outcome.terminated)  # [K] envs, from 0 to N - 1
        if cut_off.size:
            final_observations = {path: leaf[cut_off] for path, leaf in outcome.final_observations.items()}
            states = None if sample.states is None else sample.states[cut_off]  # [K, S]
            rollout.final_values[t, cut_off] = self.actor.values(final_observations, self._env_indices[cut_off], states)
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

    def _store_remaining_values(self, rollout: Rollout) -> None:
        """Store the values of the observations after the last step and, if the actor defers them, those of all T steps.

        An actor that ``defers_values`` computes them in one large batch, because that is faster. Such an actor is not
        recurrent. Its values depend only on the leaves ``value_leaves`` of observations (None: all).
        """
        if self.actor.defers_values:
            observations = ObservationView(rollout, self.actor.value_leaves).all()  # each [T * N, ...]
            values = self.actor.values(observations, np.tile(self._env_indices, self.n_steps))  # [T * N]
            rollout.values[...] = values.reshape(rollout.values.shape)  # [T, N]
        rollout.last_values[...] = self.actor.values(  # [N]
            rollout.last_observations, self._env_indices, rollout.last_states
        )


def merge_reports(
    rollout: Rollout,
    reports: list[CollectorReport],
    episodes: tuple[EpisodeRecord, ...],
    fault_counts: FaultCounts,
) -> Rollout:
    """Return ``rollout``, whose arrays are written, with what its collectors reported.

    ``reports`` are in the order of their envs: floats are then added in the same order for any number of collectors.
    ``fault_counts`` has what no report counts: restarts of the workers in which collectors run.
    """
    for report in reports:
        fault_counts += report.env_report.fault_counts
    # Count the collectors that have envs and finished. A worker may have no envs, and so no ``infos``, if the setting
    # ``adaptive`` moved them all to other workers. One that was restarted for memory has several reports, of which only
    # the last is finished.
    n_collectors = sum(1 for report in reports if report.env_report.infos and report.finished)
    return dataclasses.replace(
        rollout,
        episodes=episodes,
        infos=merge_sums([env_infos for report in reports for env_infos in report.env_report.infos]),
        collectors=n_collectors,
        seconds=CollectSeconds(  # the longest in any report: collectors run in parallel
            max(report.seconds.act for report in reports), max(report.seconds.step for report in reports)
        ),
        fault_counts=fault_counts,
        faults=tuple(fault for report in reports for fault in report.env_report.faults),
    )
