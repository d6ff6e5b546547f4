"""Keeps the positions of all envs of a ``ProcessVectorEnv`` in the parent process, which outlives its workers."""

from __future__ import annotations

from corral.core.spaces import Layout
from corral.vec.api import StepArrays
from corral.vec.replay_log import EnvPosition, ReplayLog
from corral.vec.supervisor import CrashSite

__all__ = ["PositionTracker"]


class PositionTracker:
    """A replay log of all envs, and the observations from before the step under way."""

    def __init__(self, arrays: StepArrays, seed: int | None) -> None:
        self.replay_log = ReplayLog(arrays.actions, 0, seed)
        self._arrays = arrays
        self._observations_before = {path: leaf.copy() for path, leaf in arrays.observations.items()}
        self._masks_before = arrays.masks.copy()
        self._copies = [(self._observations_before[path], leaf) for path, leaf in arrays.observations.items()]
        self._copies += [(self._masks_before, arrays.masks)] * bool(self._masks_before.size)

    def save_observations(self) -> None:
        """Copy the current observations and masks, because a worker that dies may have overwritten some of them."""
        for saved, current in self._copies:
            saved[...] = current

    def begin_next_episodes(self, envs: range) -> None:
        """Begin a new episode in the replay log for each of these envs whose episode ended in the last step."""
        arrays = self._arrays
        for i in envs:
            if arrays.terminated[i] or arrays.truncated[i]:
                self.replay_log.begin(i, int(arrays.episode[i]), None, arrays.opponent_options(i))

    def position(self, i: int, masked: bool, before_step: bool = False, saved: bool = False) -> EnvPosition:
        """Return the position of env ``i``.

        ``before_step``: before the step under way. ``saved``: with the observation that ``save_observations`` copied.
        """
        observations = self._observations_before if saved else self._arrays.observations
        masks = self._masks_before if saved else self._arrays.masks
        observation = {path: leaf[i].copy() for path, leaf in observations.items()}
        return self.replay_log.position(i, observation, masks[i].copy() if masked else None, before_step)

    def crash_site(self, env: int, masked: bool, actions: Layout) -> CrashSite:
        """Return the step of ``env`` that is under way; ``actions`` is the layout of the action space."""
        row = {path: leaf[env].copy() for path, leaf in self._arrays.actions.items()}
        action = actions.read(self._arrays.actions, env)
        return CrashSite(env, self.position(env, masked, before_step=True, saved=True), action, row)
