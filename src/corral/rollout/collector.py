"""The one loop that acts, steps and stores. It imports no torch and does not know where its envs or its arrays live.

``source_local`` hosts it in this process; ``worker`` hosts it where the envs are, on their columns of the arrays. A
step is complete once ``watch`` hears of it: whatever happens after, it need not be collected again.
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
from corral.core.types import Actor, EpisodeRecord, RecoveryCounts, Rollout, Seconds
from corral.vec.api import CorralVectorEnv, EnvReport, merge_sums

__all__ = ["Collector", "Segment", "join"]


@dataclass(frozen=True, slots=True)
class Segment:
    """What there is to say about some envs' part of a rollout, besides the arrays."""

    report: EnvReport
    seconds: Seconds = field(default_factory=Seconds)
    finished: bool = True


class Collector:
    """Collects rollouts of ``n_steps`` from a vector env whose first env is number ``first_env`` of the run."""

    def __init__(self, env: CorralVectorEnv, actor: Actor, n_steps: int, seed: int, first_env: int = 0) -> None:
        self.env = env
        self.actor = actor
        self.n_steps = n_steps
        self.seed = seed
        self.first_env = first_env
        self._envs = np.arange(first_env, first_env + env.num_envs)

    def restart(self) -> None:
        """Begin every env's first episode anew: now it is known against whom."""
        self.env.arrays.episode.fill(-1)
        self.env.reset_arrays()

    def collect(
        self,
        iteration: int,
        out: Rollout,
        first_step: int = 0,
        watch: Callable[[int, bool], None] = lambda done, ended: None,
    ) -> Segment:
        """Play ``n_steps`` steps in every env, into the env's columns of the rollout.

        ``first_step``: so many are there already, and the envs are where those left them. ``watch(done, ended)`` is
        called after each step: how many are done, and whether an episode ended. What it raises ends the rollout early.
        """
        env, now, clock = self.env, self.env.arrays, time.perf_counter
        noise = self._noise(iteration)  # [T, N, D]
        shown = [
            ColumnWriter(path, leaf, out.observations[path], out.last_observations[path], out.stacks.get(path, 1))
            for path, leaf in now.observations.items()
        ]
        if out.masks is not None and out.last_masks is not None:
            shown.append(ColumnWriter("masks", now.masks, out.masks, out.last_masks))
        out.final_values[first_step:] = 0.0
        if first_step == 0:
            for column in shown:
                column.first(begun=iteration == 0)
        states = out.states  # [T, N, S] the first row was there before us: what is remembered from the last rollout
        acting = stepping = 0.0

        for t in range(first_step, self.n_steps):
            started = clock()
            acts = self.actor.act(now.observations, env.masks, noise[t], None if states is None else states[t])
            out.actions[t] = acts.actions
            out.log_probs[t] = acts.log_probs
            if acts.values is not None:
                out.values[t] = acts.values

            env.codec.decode(acts.actions, now.actions)
            acted = clock()
            env.send()
            env.recv()
            stepped = clock()
            acting += acted - started
            stepping += stepped - acted
            out.rewards[t] = now.rewards
            out.terminated[t] = now.terminated
            out.truncated[t] = now.truncated
            out.life_lost[t] = now.life_lost

            ends = now.terminated | now.truncated
            ended = bool(ends.any())
            if ended:
                out.next_episode[t] = now.episode
                out.next_opponent[t] = now.opponent
                cut = np.flatnonzero(now.truncated & ~now.terminated)
                if cut.size:
                    finals = {path: leaf[cut] for path, leaf in now.final_observations.items()}
                    after = None if acts.states is None else acts.states[cut]
                    out.final_values[t, cut] = self.actor.values(finals, self._envs[cut], after)
            if states is not None and out.last_states is not None:
                following = states[t + 1] if t + 1 < self.n_steps else out.last_states
                following[...] = acts.states
                if ended:
                    following[ends] = 0.0
            for column in shown:
                if t + 1 < self.n_steps:
                    column.write(t + 1, ends if ended else None)
                else:
                    column.last()
            watch(t + 1, ended)

        started = clock()
        if self.actor.defers_values:
            seen = ObservationView(out, self.actor.value_leaves).all()
            out.values[...] = self.actor.values(seen, np.tile(self._envs, self.n_steps)).reshape(out.values.shape)
        out.last_values[...] = self.actor.values(out.last_observations, self._envs, out.last_states)
        acting += clock() - started
        return Segment(env.drain(), Seconds(acting, stepping))

    def _noise(self, iteration: int) -> npt.NDArray[np.float32]:
        return action_noise(self.seed, self._envs, iteration, self.n_steps, self.env.codec.gaussian)


def join(
    written: Rollout, segments: list[Segment], episodes: tuple[EpisodeRecord, ...], recovery_counts: RecoveryCounts
) -> Rollout:
    """A rollout whose arrays are written, with what each collector of them said, in env order."""
    for segment in segments:
        recovery_counts += segment.report.recovery_counts
    return dataclasses.replace(
        written,
        episodes=episodes,
        infos=merge_sums([env for segment in segments for env in segment.report.infos]),
        collectors=sum(1 for segment in segments if segment.report.infos and segment.finished),
        seconds=Seconds(max(s.seconds.act for s in segments), max(s.seconds.step for s in segments)),
        recovery_counts=recovery_counts,
        faults=tuple(fault for segment in segments for fault in segment.report.faults),
    )
