"""Steps a ``gymnasium.vector.VectorEnv``, and behaves as a ``Stepper`` of as many envs would.

Where an episode ends, the next one begins in the same step, in that env alone. Seeds belong to envs, not to workers: of
envs that are born with theirs (EnvPool's), episode 0 tells the seed, and what follows is that env's own business.

Such an env cannot be brought to where another one was. Whenever that would be needed (in a new worker, after a resume,
after an exception) all envs of the vector end their episodes as truncated, and are counted as inexact.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, MutableSequence, Sequence
from typing import Any, NoReturn

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from corral.core.errors import CorralError, EnvFault, EnvLocation, UsageError
from corral.core.seeding import episode_seeds, fresh_seed
from corral.core.spaces import Leaf, limits_of
from corral.core.types import LIFE_LOST, Leaves
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import ENV_EXCEPTIONS, close_env, named
from corral.envs.vector_adapter import SubEnvView, VectorEnv, autoresets_in_same_step, info_of, mask_methods
from corral.vec.api import EnvReport, InfoMode, InfoRow, OpponentSampler, StepArrays
from corral.vec.env_stepper import CURRENT_ENV, OTHER_CALLS, STEPS_STARTED
from corral.vec.episode_ledger import MAX_FAULTY_EPISODES, EpisodeLedger, VectorInfoSums
from corral.vec.replay_log import EnvPosition
from corral.vec.validation import MASK, InvalidRow, RowWriter, public_info, shape_of

__all__ = ["BatchStepper"]

Flags = npt.NDArray[np.bool_]


class BatchStepper:
    """A vector env, and the rows of the arrays its envs write to."""

    def __init__(
        self,
        vector: VectorEnv,
        arrays: StepArrays,
        factory: EnvFactory,
        first_env: int = 0,
        seed: int | None = None,
        infos: InfoMode = "full",
        heal: bool = False,
        known_to_work: bool = False,
        heartbeat: MutableSequence[int] | None = None,
    ) -> None:
        self.vector, self.arrays, self.first_env, self.infos = vector, arrays, first_env, infos
        self.heartbeat: Any = [0, 0, 0] if heartbeat is None else heartbeat
        self.opponent_sampler: OpponentSampler | None = None  # nobody plays the other side of these
        self._factory, self._seed, self._heal = factory, seed, heal
        self._n = len(arrays.rewards)
        self._ledger = EpisodeLedger(arrays, np.zeros(self._n, np.int64), first_env, infos, known_to_work)
        self._born_with = episode_seeds(seed, first_env, [0] * self._n)  # of envs that were not used yet
        self._seeds: Sequence[int | None] = self._born_with or [None] * self._n  # that the envs were given last
        self._ask_masks = mask_methods(vector)
        self.row_writer = self._rows = RowWriter(vector.single_observation_space, vector.single_action_space, arrays)
        self._seen, self._acted = self._rows.layout, self._rows.codec.layout
        limits = ((leaf.path, limits_of(leaf.space)) for leaf in self._seen.leaves)
        self._limits = {path: limit for path, limit in limits if limit is not None}
        self._lives = np.zeros(self._n, np.int64) if getattr(vector, "counts_lives", False) else None  # before a step
        self._hidden_info_keys = getattr(vector, "hidden_info_keys", ())
        self._faulty = 0  # exceptions without progress between them
        self._faulty_step = 0  # how long the longest episode was at the last one
        self._ended = np.zeros(self._n, np.bool_)  # envs of which an episode ended since all began together
        self._sums = VectorInfoSums(self._n, (*self._hidden_info_keys, LIFE_LOST))

    @property
    def envs(self) -> list[gym.Env[Any, Any]]:
        """The envs, as far as they can be had one by one."""
        return [SubEnvView(self.vector, i) for i in range(self._n)]

    @property
    def has_masks(self) -> bool | None:
        """Whether the envs mask their actions; known after the first reset."""
        return self._rows.has_masks

    def reset(
        self,
        seeds: Sequence[int | None],
        options: Sequence[dict[str, Any] | None],
        chosen: Sequence[bool] | None = None,
    ) -> list[InfoRow]:
        """Begin a new episode in every env, or in the ``chosen``; a seed that is None is what the root seed says."""
        if any(options):
            raise UsageError(f"the envs of {self._factory.name} take no reset options; {options[0]} were given")
        if chosen is not None and not all(chosen):
            return self._reset_some(chosen, seeds) if any(chosen) else []
        self.arrays.episode[...] += 1
        infos = self._begin_all(seeds)
        return [] if self.infos == "summed" else [InfoRow(i, self._told(infos, i)) for i in range(self._n)]

    def _reset_some(self, chosen: Sequence[bool], seeds: Sequence[int | None]) -> list[InfoRow]:
        """Begin an episode in some of the envs."""
        which = np.flatnonzero(chosen)
        given = any(seeds[i] is not None for i in which.tolist())
        if autoresets_in_same_step(self.vector) and not isinstance(
            self.vector.unwrapped, SyncVectorEnv | AsyncVectorEnv
        ):
            raise UsageError(f"the envs of {self._factory.name} begin only together; reset without reset_mask")
        if self._factory.seeded_at_construction and given:
            raise UsageError(f"the envs of {self._factory.name} are seeded only together; reset some without seeds")
        try:
            leaves, infos, at = self._begin_some(which, list(seeds) if given else None)
            places = self._show_first(which, leaves, at)
            self._write_masks(None, infos, places)
        except InvalidRow as refused:
            self._bad(refused)
        except ENV_EXCEPTIONS as error:
            raise self._fault(error) from error
        self._seeds = [seeds[i] if chosen[i] else self._seeds[i] for i in range(self._n)]
        return [] if self.infos == "summed" else [InfoRow(i, self._told(infos, k)) for i, k in places.items()]

    def step(self) -> list[InfoRow]:
        """Step every env with its row of ``arrays.actions``; where an episode ends, begin the next."""
        self.heartbeat[STEPS_STARTED] += 1
        self.heartbeat[CURRENT_ENV] = 0
        self._ledger.steps += 1
        if self._ledger.lost:
            return self._truncate_episode()
        furthest = int(self._ledger.steps.max()) if self._faulty else 0
        try:
            outcome: Any = self.vector.step(self._acted.batch(self.arrays.actions))
            if not isinstance(outcome, tuple) or len(outcome) != 5:
                raise InvalidRow(
                    f"step returned {shape_of(outcome)}, expected (obs, rewards, terminated, truncated, infos)"
                )
            rows = self._write_outcome(*outcome)
        except InvalidRow as refused:
            self._bad(refused)
        except ENV_EXCEPTIONS as error:
            self._truncate_all(error)
            return self._truncate_episode()
        self._ledger.completed_first_step = True
        if self._faulty and (furthest > self._faulty_step or self._ended.all()):
            self._faulty = 0
        return rows

    def drain(self) -> EnvReport:
        """What there is to say since the last call."""
        return self._ledger.drain(self._sums.drain())

    def restore(self, positions: Sequence[EnvPosition], masked: bool, there: Collection[int] = ()) -> list[int]:
        """Show what every env showed at its position. None of them gets there, unless all are still to begin."""
        self._rows.has_masks, self._ledger.completed_first_step = masked, True
        for i, position in enumerate(positions):
            self._ledger.write_position(i, position)
        if not any(position.observation for position in positions):
            self._begin_all([None] * self._n)
            return []
        self._ledger.mark_lost(range(self._n))
        return list(range(self._n))

    def close(self) -> None:
        """Close the vector env."""
        close_env(self.vector, self.first_env)

    # ---- a step ----------------------------------------------------------------------------------------------

    def _write_outcome(
        self, seen: Any, rewards: Any, terminated: Any, truncated: Any, infos: Mapping[str, Any]
    ) -> list[InfoRow]:
        """Write what a step returned."""
        a, leaves = self.arrays, self._leaves(seen)
        self._write(leaves)
        _copy("rewards", rewards, a.rewards, "biuf")
        _copy("terminated", terminated, a.terminated)
        _copy("truncated", truncated, a.truncated)
        a.life_lost[...] = False
        if self._lives is not None:
            np.logical_and(infos["lives"] < self._lives, infos["lives"] > 0, out=a.life_lost)
            self._lives[...] = infos["lives"]
        elif LIFE_LOST in infos:
            lost = np.asarray(infos[LIFE_LOST])
            _copy(LIFE_LOST, lost.astype(np.bool_) if lost.dtype == object else lost, a.life_lost)
        ended = a.terminated | a.truncated
        if ended.any():
            a.life_lost[ended] = False
            return self._begin_next(ended, leaves, infos)
        self._rows.all_finite()
        self._write_masks(infos)
        if self.infos == "summed":
            self._sums.add(infos)
            return []
        return [InfoRow(i, self._told(infos, i)) for i in range(self._n)]

    def _begin_next(self, ended: Flags, leaves: Leaves, infos: Mapping[str, Any]) -> list[InfoRow]:
        """Keep what the envs showed whose episodes ended, and begin their next."""
        a, itself, which = self.arrays, autoresets_in_same_step(self.vector), np.flatnonzero(ended)
        last, first, at = infos, infos, which  # what is said of the last step and of the next episodes, and where in it
        if itself:
            last = infos.get("final_info", {})
            for i in which.tolist():
                _at(i, self._rows.observation, infos["final_obs"][i])
        self._rows.all_finite()
        for path, final in a.final_observations.items():
            final[which] = a.observations[path][which]
        if not itself:
            leaves, first, at = self._begin_some(which)
        places = self._show_first(which, leaves, at)
        self._ended[which] = True
        self._write_masks(infos, first, places)
        if self.infos == "summed":
            self._sums.add(infos, ~ended if itself else None)
            if itself:
                self._sums.add(last, ended)
            return []
        return [
            InfoRow(i, self._told(first, places[i]), info_of(last, i, self._hidden_info_keys))
            if i in places
            else InfoRow(i, self._told(infos, i))
            for i in range(self._n)
        ]

    def _begin_some(
        self, which: npt.NDArray[np.int64], seeds: Any = None
    ) -> tuple[Leaves, Mapping[str, Any], npt.NDArray[np.int64]]:
        """Begin episodes in some envs: what is shown, what is said, and where in both each of them is."""
        quicker = getattr(self.vector, "begin_some", None)
        if quicker is None:
            options = {"reset_mask": np.isin(np.arange(self._n), which)}
            seen, first = self.vector.reset(seed=seeds, options=options)
        else:
            seen, first = quicker(self.vector, which)
        leaves = self._leaves(seen)
        alone = len(next(iter(leaves.values()))) == which.size  # EnvPool shows those that begin, and no others
        return leaves, first, np.arange(which.size) if alone else which

    def _show_first(self, which: npt.NDArray[np.int64], leaves: Leaves, at: npt.NDArray[np.int64]) -> dict[int, int]:
        """Write what some envs show when their episodes begin; where each of them is in it."""
        self._write({path: leaf[at] for path, leaf in leaves.items()}, which)
        self._rows.all_finite()
        self.arrays.episode[which] += 1
        self._ledger.steps[which] = 0
        if self._lives is not None:
            self._lives[which] = 0  # a game may begin with fewer than the last one had
        return dict(zip(which.tolist(), at.tolist(), strict=True))

    def _truncate_episode(self) -> list[InfoRow]:
        """End every episode as truncated at what its env showed last; begin the next ones in new envs."""
        a = self.arrays
        a.rewards[...], a.terminated[...], a.truncated[...] = 0.0, False, True
        a.life_lost[...] = False
        for path, final in a.final_observations.items():
            final[...] = a.observations[path]
        a.episode[...] += 1
        self._begin_all([None] * self._n, anew=True)
        return [] if self.infos == "summed" else [InfoRow(i, {}, {}) for i in range(self._n)]

    def _begin_all(self, seeds: Sequence[int | None], anew: bool = False) -> Mapping[str, Any]:
        """Begin an episode in every env, if need be in new ones."""
        own: Any = episode_seeds(self._seed, self.first_env, self.arrays.episode.tolist()) or [None] * self._n
        wanted: list[int | None] = [seed if seed is not None else other for seed, other in zip(seeds, own, strict=True)]
        born = self._factory.seeded_at_construction
        self.heartbeat[OTHER_CALLS] += 1
        try:
            if anew or (born and any(seed is not None for seed in wanted) and wanted != self._born_with):
                self.close()
                self.vector = self._factory.make_vector(self._n, _whole(wanted))
                self._ask_masks = mask_methods(self.vector)
            self._born_with, self._seeds = None, wanted
            seeds_now: Any = None if born else wanted  # Gymnasium's types do not know of lists
            seen, infos = self.vector.reset(seed=seeds_now)
            self._ledger.steps[...], self._ended[...] = 0, False
            self._ledger.lost.clear()
            if self._lives is not None:
                self._lives[...] = 0
            self._rows.learn_masks(self._ask_masks is not None, infos)
            self._write(self._leaves(seen))
            self._write_masks(infos)
            self.arrays.rewards[...] = 0.0  # so that they are finite too
            self._rows.all_finite()
        except InvalidRow as refused:
            self._bad(refused)
        except ENV_EXCEPTIONS as error:
            if isinstance(error, CorralError):
                raise
            raise self._fault(error) from error
        return infos

    def _leaves(self, seen: Any) -> Leaves:
        try:
            return self._seen.unbatch(seen)
        except ValueError as error:
            raise InvalidRow(f"the observations have {error}") from None

    def _write(self, leaves: Leaves, which: npt.NDArray[np.int64] | None = None) -> None:
        """Copy observations into the rows of some envs, or of all."""
        n = self._n if which is None else len(which)
        for leaf in self._seen.leaves:
            value = leaves[leaf.path]
            if value.shape != (n, *leaf.shape) or not np.can_cast(value.dtype, leaf.dtype, "same_kind"):
                at = f" at {leaf.path!r}" if leaf.path else ""
                expected = f"{(n, *leaf.shape)} {leaf.dtype}"
                raise InvalidRow(f"the observations{at} are {value.shape} {value.dtype}, expected {expected}")
            rows = slice(None) if which is None else which
            self.arrays.observations[leaf.path][rows] = value
            if not leaf.is_float:
                self._check_whole(leaf, value, self.arrays.observations[leaf.path][rows])

    def _write_masks(
        self,
        infos: Mapping[str, Any] | None,
        first: Mapping[str, Any] | None = None,
        places: Mapping[int, int] | None = None,
    ) -> None:
        """Write the envs' masks, if they have any; of those in ``places`` it is in ``first``, at that place.

        Without ``infos``, the masks of the other envs stay as they are.
        """
        places = places or {}
        if self._ask_masks is not None:
            masks = dict(enumerate(self._ask_masks()))
        elif self.has_masks or MASK in (infos or ()):
            masks = {} if infos is None else {i: _row(infos, i) for i in range(self._n) if i not in places}
            masks |= {i: _row(first or {}, location) for i, location in places.items()}
        else:
            return
        for i, mask in masks.items():
            _at(i, self._rows.mask, mask)

    def _check_whole(self, leaf: Leaf, given: npt.NDArray[Any], written: npt.NDArray[Any]) -> None:
        """Refuse whole numbers that the space cannot hold."""
        if given.dtype != written.dtype and not np.array_equal(given, written):
            raise InvalidRow(
                f"the observations have values {given.min()} to {given.max()}, which {leaf.dtype} cannot hold"
            )
        if leaf.path in self._limits:
            low, high = self._limits[leaf.path]
            if ((written < low) | (written > high)).any():
                raise InvalidRow(
                    f"the observations have values {given.min()} to {given.max()}, not all in {leaf.space}"
                )

    def _told(self, infos: Mapping[str, Any], i: int) -> dict[str, Any]:
        """What infos say of an env to those who ask for it."""
        return public_info(info_of(infos, i, self._hidden_info_keys))

    # ---- what goes wrong -------------------------------------------------------------------------------------

    def _truncate_all(self, error: BaseException) -> None:
        """The vector env raised: its episodes end here, unless nobody heals or it does nothing else."""
        for i in range(self._n):
            self._rows.check_action(self.first_env + i, self._acted.read(self.arrays.actions, i), named(error))
        fault = self._fault(error)
        self._faulty, self._faulty_step = self._faulty + 1, int(self._ledger.steps.max())
        accident = self._heal and self._ledger.completed_first_step and not isinstance(error, CorralError)
        if not accident or self._faulty >= MAX_FAULTY_EPISODES:
            raise fault from error
        self._ledger.count(env_faults=1)
        self._ledger.keep_fault(fault, "the envs were made again")
        self._ledger.mark_lost(range(self._n))

    def _bad(self, refused: InvalidRow) -> NoReturn:
        self._ledger.refuse(refused, self._place(refused.row or 0))

    def _fault(self, error: BaseException) -> EnvFault:
        whose = "" if self._n == 1 else f" of envs {self.first_env} to {self.first_env + self._n - 1}"
        return self._ledger.fault(f"the vector env{whose} raised {named(error)}", self._place(0), error)

    def _place(self, i: int) -> EnvLocation:
        action = self._acted.read(self.arrays.actions, i) if self._ledger.steps[i] else None
        return self._ledger.location(i, self._seeds[i], action)


def _whole(seeds: Sequence[int | None]) -> list[int] | None:
    """Seeds for all, if there are any."""
    if all(seed is None for seed in seeds):
        return None
    return [fresh_seed() if seed is None else seed for seed in seeds]


def _copy(name: str, given: Any, target: npt.NDArray[Any], kinds: str = "biu") -> None:
    values = np.asarray(given)
    if values.shape != target.shape or values.dtype.kind not in kinds:
        raise InvalidRow(f"{name} are {values.shape} {values.dtype}, expected {target.shape} {target.dtype}")
    target[...] = values


def _at(i: int, write: Callable[[int, Any], None], value: Any) -> None:
    """Write a value of one env; what is wrong with it is that env's."""
    try:
        write(i, value)
    except InvalidRow as refused:
        raise InvalidRow(str(refused), i) from None


def _row(infos: Mapping[str, Any], i: int) -> Any:
    """The mask of one env, if there is one."""
    return infos[MASK][i] if MASK in infos else None
