"""Step a ``gymnasium.vector.VectorEnv``, with the behaviour that a ``Stepper`` of the same number of single envs has.

Where an episode ends, the next one begins in the same step, in that env alone. Each env has its own seed, so that
results do not depend on the number of workers. Envs that can be seeded only when they are made (EnvPool's) get the seed
of their episode 0; their later episodes follow from it.

A vector env cannot be restored to the position of another one. Whenever that would be needed (in a new worker, after a
resume, after an exception) the episodes of all its envs are truncated and counted as ``inexact``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from corral.core.errors import CorralError, EnvFault, EnvLocation, UsageError
from corral.core.seeding import episode_seeds, fresh_seed
from corral.core.types import LIFE_LOST, Leaves
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import ENV_EXCEPTIONS, close_env, describe_error
from corral.envs.vector_adapter import SubEnvView, VectorEnv, autoresets_in_same_step, batched_mask_method, sub_env_info
from corral.vec.api import EnvReport, InfoRow, OpponentSampler, StepArrays
from corral.vec.env_stepper import CURRENT_ENV, OTHER_CALLS, STEPS_STARTED
from corral.vec.episode_ledger import MAX_FAULTY_EPISODES, EpisodeLedger, VectorInfoSums
from corral.vec.replay_log import EnvPosition
from corral.vec.stepper_options import StepperOptions
from corral.vec.validation import MASK, InvalidRow, RowWriter, describe_value, public_info

__all__ = ["BatchStepper"]

Infos = Mapping[str, Any]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _NewEpisodes:
    """What a vector env returned for K envs whose episodes begin."""

    envs: Indices  # [K]
    observations: Leaves  # each [N, ...], or [K, ...] if the vector env returned only these envs
    infos: Infos
    rows: Indices  # [K] the row of each env in ``observations`` and ``infos``

    def row_by_env(self) -> dict[int, int]:
        """Return the row of each env in ``observations`` and ``infos``."""
        return dict(zip(self.envs.tolist(), self.rows.tolist(), strict=True))


class BatchStepper:
    """Steps a vector env of N envs; its env ``i`` writes row ``i`` of ``arrays``."""

    def __init__(self, vector: VectorEnv, arrays: StepArrays, options: StepperOptions) -> None:
        assert isinstance(options.factory, EnvFactory)
        self.vector, self.arrays, self.first_env, self.info_mode = vector, arrays, options.first_env, options.infos
        self.heartbeat: Any = [0, 0, 0] if options.heartbeat is None else options.heartbeat
        self.opponent_sampler: OpponentSampler | None = None  # set by callers of any stepper; vector envs do not use it
        self._factory, self._seed, self._may_recover = options.factory, options.seed, options.recover
        self._n = n = len(arrays.rewards)
        self._ledger = EpisodeLedger(arrays, np.zeros(n, np.int64), options)
        self._construction_seeds = episode_seeds(options.seed, options.first_env, [0] * n)  # None after the first reset
        self._seeds: Sequence[int | None] = self._construction_seeds or [None] * n  # what each env was seeded with last
        self._call_mask_methods = batched_mask_method(vector)
        self.row_writer = RowWriter(vector.single_observation_space, vector.single_action_space, arrays)
        self._action_layout = self.row_writer.codec.layout
        self._lives = np.zeros(n, np.int64) if getattr(vector, "counts_lives", False) else None  # after the last step
        self._hidden_info_keys = getattr(vector, "corral_hidden_info_keys", ())
        self._faults_without_progress = 0
        self._fault_step = 0  # the step of the longest episode at the last fault
        self._ended = np.zeros(n, np.bool_)  # envs that ended an episode since all began one together
        self._info_sums = VectorInfoSums(n, (*self._hidden_info_keys, LIFE_LOST))

    @property
    def envs(self) -> list[gym.Env[Any, Any]]:
        """A view of each env, with the attributes and methods that a vector env has for its envs."""
        return [SubEnvView(self.vector, i) for i in range(self._n)]

    @property
    def has_masks(self) -> bool | None:
        """Whether the envs mask their actions; None before the first reset."""
        return self.row_writer.has_masks

    def reset(
        self,
        seeds: Sequence[int | None],
        options: Sequence[dict[str, Any] | None],
        reset_mask: Sequence[bool] | None = None,
    ) -> list[InfoRow]:
        """Begin a new episode in every env, or where ``reset_mask`` is true, and return the infos.

        Where ``seeds`` has None, the seed of the episode follows from the root seed.
        """
        if any(options):
            raise UsageError(f"the envs of {self._factory.name} take no reset options; {options[0]} were given")
        if reset_mask is not None and not all(reset_mask):
            return self._reset_some(reset_mask, seeds) if any(reset_mask) else []
        self.arrays.episode[...] += 1
        infos = self._reset_all(seeds)
        return [] if self.info_mode == "summed" else [InfoRow(i, self._public_info(infos, i)) for i in range(self._n)]

    def _reset_some(self, reset_mask: Sequence[bool], seeds: Sequence[int | None]) -> list[InfoRow]:
        """Begin a new episode in the envs where ``reset_mask`` is true, and return their infos."""
        envs = np.flatnonzero(reset_mask)
        has_seeds = any(seeds[i] is not None for i in envs.tolist())
        is_gymnasium = isinstance(self.vector.unwrapped, SyncVectorEnv | AsyncVectorEnv)
        if autoresets_in_same_step(self.vector) and not is_gymnasium:
            raise UsageError(f"the envs of {self._factory.name} can only be reset all together; pass no reset_mask")
        if self._factory.seeded_at_construction and has_seeds:
            raise UsageError(f"the envs of {self._factory.name} can only be seeded all together; pass no seeds here")
        try:
            new_episodes = self._reset_envs(envs, list(seeds) if has_seeds else None)
            self._write_first_observations(new_episodes)
            self._write_masks(None, new_episodes)
        except InvalidRow as invalid:
            self._raise_invalid_data(invalid)
        except ENV_EXCEPTIONS as error:
            raise self._make_fault(error) from error
        self._seeds = [seeds[i] if reset_mask[i] else self._seeds[i] for i in range(self._n)]
        if self.info_mode == "summed":
            return []
        rows = new_episodes.row_by_env()
        return [InfoRow(i, self._public_info(new_episodes.infos, row)) for i, row in rows.items()]

    def step(self) -> list[InfoRow]:
        """Step every env with its row of ``arrays.actions`` and return the infos; reset envs whose episode ended."""
        self.heartbeat[STEPS_STARTED] += 1
        self.heartbeat[CURRENT_ENV] = 0
        self._ledger.steps += 1
        if self._ledger.unrestored_envs:
            return self._truncate_all_episodes()
        longest = int(self._ledger.steps.max()) if self._faults_without_progress else 0
        try:
            outcome: Any = self.vector.step(self._action_layout.batch(self.arrays.actions))
            if not isinstance(outcome, tuple) or len(outcome) != 5:
                raise InvalidRow(
                    f"step returned {describe_value(outcome)}, expected (obs, rewards, terminated, truncated, infos)"
                )
            rows = self._write_outcome(*outcome)
        except InvalidRow as invalid:
            self._raise_invalid_data(invalid)
        except ENV_EXCEPTIONS as error:
            self._handle_exception(error)
            return self._truncate_all_episodes()
        self._ledger.completed_first_step = True
        if self._faults_without_progress and (longest > self._fault_step or self._ended.all()):
            self._faults_without_progress = 0
        return rows

    def take_report(self) -> EnvReport:
        """Return the sums of infos, the fault counts and the faults since the last call."""
        return self._ledger.take_report(self._info_sums.take())

    def restore(
        self, positions: Sequence[EnvPosition], has_masks: bool, already_there: Collection[int] = ()
    ) -> list[int]:
        """Write what every env showed at its position, and return the envs that could not be restored.

        These are all envs, because no env of a vector env can be brought into the middle of an episode. Only if no
        position has an observation, so that no episode has begun, all envs are reset, and none is returned.
        """
        self.row_writer.has_masks, self._ledger.completed_first_step = has_masks, True
        for i, position in enumerate(positions):
            self._ledger.write_position(i, position)
        if not any(position.observation for position in positions):
            self._reset_all([None] * self._n)
            return []
        self._ledger.mark_unrestored_envs(range(self._n))
        return list(range(self._n))

    def close(self) -> None:
        """Close the vector env."""
        close_env(self.vector, self.first_env)

    # ---- the outcome of a step -------------------------------------------------------------------------------

    def _write_outcome(
        self, observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Infos
    ) -> list[InfoRow]:
        """Check and write what ``vector.step`` returned, begin new episodes where one ended, and return the infos."""
        arrays, leaves = self.arrays, self._leaves(observations)
        self.row_writer.write_observations(leaves)
        _copy_checked("rewards", rewards, arrays.rewards, "biuf")
        _copy_checked("terminated", terminated, arrays.terminated)
        _copy_checked("truncated", truncated, arrays.truncated)
        self._write_life_lost(infos)
        ended = arrays.terminated | arrays.truncated  # [N]
        if ended.any():
            arrays.life_lost[ended] = False
            return self._begin_next_episodes(ended, leaves, infos)
        self.row_writer.check_all_finite()
        self._write_masks(infos)
        if self.info_mode == "summed":
            self._info_sums.add(infos)
            return []
        return [InfoRow(i, self._public_info(infos, i)) for i in range(self._n)]

    def _write_life_lost(self, infos: Infos) -> None:
        """Write which envs lost a life, from ``lives`` in the infos of Atari games or from ``life_lost`` in infos."""
        life_lost = self.arrays.life_lost
        life_lost[...] = False
        if self._lives is not None:
            np.logical_and(infos["lives"] < self._lives, infos["lives"] > 0, out=life_lost)
            self._lives[...] = infos["lives"]
        elif LIFE_LOST in infos:
            given = np.asarray(infos[LIFE_LOST])
            _copy_checked(LIFE_LOST, given.astype(np.bool_) if given.dtype == object else given, life_lost)

    def _begin_next_episodes(self, ended: npt.NDArray[np.bool_], leaves: Leaves, infos: Infos) -> list[InfoRow]:
        """Keep the final observations of the envs whose episodes ``ended`` [N], begin their next, and return the infos.

        ``leaves`` and ``infos`` are what the step returned.
        """
        envs = np.flatnonzero(ended)  # [K]
        if autoresets_in_same_step(self.vector):
            # ``leaves`` and ``infos`` are those of the next episodes; ``infos`` has the final ones as entries.
            for i in envs.tolist():
                _write_row(i, self.row_writer.write_observation, infos["final_obs"][i])
            self._keep_final_observations(envs)
            final_infos, new_episodes = infos.get("final_info", {}), _NewEpisodes(envs, leaves, infos, rows=envs)
        else:
            self._keep_final_observations(envs)
            final_infos, new_episodes = infos, self._reset_envs(envs)
        self._write_first_observations(new_episodes)
        self._ended[envs] = True
        self._write_masks(infos, new_episodes)
        if self.info_mode == "full":
            return self._info_rows(infos, final_infos, new_episodes)
        if final_infos is infos:
            self._info_sums.add(infos)
        else:
            self._info_sums.add(infos, ~ended)
            self._info_sums.add(final_infos, ended)
        return []

    def _keep_final_observations(self, envs: Indices) -> None:
        """Copy the observations of these envs into ``arrays.final_observations``."""
        self.row_writer.check_all_finite()
        for path, final in self.arrays.final_observations.items():
            final[envs] = self.arrays.observations[path][envs]

    def _info_rows(self, infos: Infos, final_infos: Infos, new_episodes: _NewEpisodes) -> list[InfoRow]:
        """Return the info of each env: of its step, or of its final step and of the reset that followed."""
        reset_rows, rows = new_episodes.row_by_env(), list[InfoRow]()
        for i in range(self._n):
            if i in reset_rows:
                first = self._public_info(new_episodes.infos, reset_rows[i])
                rows.append(InfoRow(i, first, sub_env_info(final_infos, i, self._hidden_info_keys)))
            else:
                rows.append(InfoRow(i, self._public_info(infos, i)))
        return rows

    def _reset_envs(self, envs: Indices, seeds: Any = None) -> _NewEpisodes:
        """Begin new episodes in some envs [K]; ``seeds`` has an entry for each of the N envs."""
        # Faster than a reset with a mask, where there is one.
        reset_some = getattr(self.vector, "corral_reset_envs", None)
        if reset_some is None:
            options = {"reset_mask": np.isin(np.arange(self._n), envs)}
            observations, infos = self.vector.reset(seed=seeds, options=options)
        else:
            observations, infos = reset_some(self.vector, envs)
        leaves = self._leaves(observations)
        returned = len(next(iter(leaves.values())))  # EnvPool returns only the envs that were reset
        rows = np.arange(envs.size) if returned == envs.size else envs
        return _NewEpisodes(envs, leaves, infos, rows)

    def _write_first_observations(self, new_episodes: _NewEpisodes) -> None:
        """Write the first observations of new episodes, and begin to count their steps."""
        envs, rows = new_episodes.envs, new_episodes.rows
        self.row_writer.write_observations({path: leaf[rows] for path, leaf in new_episodes.observations.items()}, envs)
        self.row_writer.check_all_finite()
        self.arrays.episode[envs] += 1
        self._ledger.steps[envs] = 0
        if self._lives is not None:
            self._lives[envs] = 0  # a game may begin with fewer lives than the last one had

    # ---- all envs together -----------------------------------------------------------------------------------

    def _truncate_all_episodes(self) -> list[InfoRow]:
        """End every episode as truncated at its last observation, with reward 0; begin the next ones in new envs."""
        arrays = self.arrays
        arrays.rewards[...], arrays.terminated[...], arrays.truncated[...] = 0.0, False, True
        arrays.life_lost[...] = False
        for path, final in arrays.final_observations.items():
            final[...] = arrays.observations[path]
        arrays.episode[...] += 1
        self._reset_all([None] * self._n, make_new=True)
        return [] if self.info_mode == "summed" else [InfoRow(i, {}, {}) for i in range(self._n)]

    def _reset_all(self, seeds: Sequence[int | None], make_new: bool = False) -> Infos:
        """Begin a new episode in every env and return the infos; ``make_new``: in a new vector env."""
        derived: Any = episode_seeds(self._seed, self.first_env, self.arrays.episode.tolist()) or [None] * self._n
        seeds = [given if given is not None else seed for given, seed in zip(seeds, derived, strict=True)]
        self.heartbeat[OTHER_CALLS] += 1
        try:
            observations, infos = self._seed_and_reset(seeds, make_new)
            self._ledger.steps[...], self._ended[...] = 0, False
            self._ledger.unrestored_envs.clear()
            if self._lives is not None:
                self._lives[...] = 0
            self.row_writer.detect_masks(self._call_mask_methods is not None, infos)
            self.row_writer.write_observations(self._leaves(observations))
            self._write_masks(infos)
            self.arrays.rewards[...] = 0.0  # ``check_all_finite`` checks them too
            self.row_writer.check_all_finite()
        except InvalidRow as invalid:
            self._raise_invalid_data(invalid)
        except ENV_EXCEPTIONS as error:
            if isinstance(error, CorralError):
                raise
            raise self._make_fault(error) from error
        return infos

    def _seed_and_reset(self, seeds: Sequence[int | None], make_new: bool) -> tuple[Any, Infos]:
        """Reset the vector env with these seeds; make a new one first, if ``make_new`` or if only that seeds it."""
        at_construction = self._factory.seeded_at_construction
        has_seeds = any(seed is not None for seed in seeds)
        if make_new or (at_construction and has_seeds and seeds != self._construction_seeds):
            self.close()
            self.vector = self._factory.make_vector(self._n, _complete(seeds))
            self._call_mask_methods = batched_mask_method(self.vector)
        self._construction_seeds, self._seeds = None, seeds
        reset_seeds: Any = None if at_construction else seeds  # Gymnasium's annotations do not allow lists
        return self.vector.reset(seed=reset_seeds)

    # ---- observations, masks and infos -----------------------------------------------------------------------

    def _leaves(self, observations: Any) -> Leaves:
        """Return the arrays of a batch of observations, one for each leaf of the observation space."""
        try:
            return self.row_writer.layout.unbatch(observations)
        except ValueError as error:
            raise InvalidRow(f"the observations have {error}") from None

    def _write_masks(self, infos: Infos | None, new_episodes: _NewEpisodes | None = None) -> None:
        """Write the envs' action masks, if they have any, from the infos of a step and of new episodes.

        Without ``infos``, the masks of envs that begin no new episode stay as they are.
        """
        rows = {} if new_episodes is None else new_episodes.row_by_env()
        if self._call_mask_methods is not None:
            masks = dict(enumerate(self._call_mask_methods()))
        elif self.has_masks or MASK in (infos or ()):
            masks = {} if infos is None else {i: _mask_in(infos, i) for i in range(self._n) if i not in rows}
            if new_episodes is not None:
                masks |= {i: _mask_in(new_episodes.infos, row) for i, row in rows.items()}
        else:
            return
        for i, mask in masks.items():
            _write_row(i, self.row_writer.write_mask, mask)

    def _public_info(self, infos: Infos, row: int) -> dict[str, Any]:
        """Return the info in a row of ``infos``, without the action mask and hidden entries."""
        return public_info(sub_env_info(infos, row, self._hidden_info_keys))

    # ---- errors ----------------------------------------------------------------------------------------------

    def _handle_exception(self, error: BaseException) -> None:
        """Count an exception of the vector env and mark all envs as not restored; raise if recovery is impossible."""
        for i in range(self._n):
            action = self._action_layout.read(self.arrays.actions, i)
            self.row_writer.check_action(self.first_env + i, action, describe_error(error))
        fault = self._make_fault(error)
        self._faults_without_progress += 1
        self._fault_step = int(self._ledger.steps.max())
        may_recover = self._may_recover and self._ledger.completed_first_step and not isinstance(error, CorralError)
        if not may_recover or self._faults_without_progress >= MAX_FAULTY_EPISODES:
            raise fault from error
        self._ledger.count(env_faults=1)
        self._ledger.keep_fault(fault, "the vector env was replaced by a new one")
        self._ledger.mark_unrestored_envs(range(self._n))

    def _raise_invalid_data(self, invalid: InvalidRow) -> NoReturn:
        self._ledger.raise_invalid_data(invalid, self._location(invalid.row or 0))

    def _make_fault(self, error: BaseException) -> EnvFault:
        envs = "" if self._n == 1 else f" of envs {self.first_env} to {self.first_env + self._n - 1}"
        return self._ledger.make_fault(f"the vector env{envs} raised {describe_error(error)}", self._location(0), error)

    def _location(self, i: int) -> EnvLocation:
        action = self._action_layout.read(self.arrays.actions, i) if self._ledger.steps[i] else None
        return self._ledger.location(i, self._seeds[i], action)


def _complete(seeds: Sequence[int | None]) -> list[int] | None:
    """Return the seeds with a fresh one in each gap; None if there is no seed at all."""
    if all(seed is None for seed in seeds):
        return None
    return [fresh_seed() if seed is None else seed for seed in seeds]


def _copy_checked(name: str, given: Any, target: npt.NDArray[Any], kinds: str = "biu") -> None:
    """Copy values into an array; raise ``InvalidRow`` if their shape or kind of dtype is not the expected one."""
    values = np.asarray(given)
    if values.shape != target.shape or values.dtype.kind not in kinds:
        raise InvalidRow(f"{name} are {values.shape} {values.dtype}, expected {target.shape} {target.dtype}")
    target[...] = values


def _write_row(i: int, write: Callable[[int, Any], None], value: Any) -> None:
    """Write a value of env ``i``; if it is invalid, say in the error that it is from this env."""
    try:
        write(i, value)
    except InvalidRow as invalid:
        raise InvalidRow(str(invalid), i) from None


def _mask_in(infos: Infos, row: int) -> Any:
    """Return the action mask in a row of ``infos``; None if there are no masks."""
    return infos[MASK][row] if MASK in infos else None
