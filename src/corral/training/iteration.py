"""What hooks see: a run that starts, an iteration that is complete, a run that ends."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from corral.config.schema import TrainConfig
from corral.core.errors import UsageError
from corral.core.metrics import INFO_PREFIX, METRICS
from corral.core.schedules import is_due
from corral.core.seeding import hook_generator
from corral.core.suggestions import short_repr
from corral.core.types import Rollout
from corral.ppo.learner import UpdateSettings, UpdateStats, check_adjustable
from corral.training.evaluate import evaluate_run
from corral.training.metrics_row import Metrics
from corral.training.model import Model
from corral.training.run import Counters, Run
from corral.training.signals import Interrupts

__all__ = ["End", "Iteration", "Start", "TrainingState"]

_LONGEST_REASON = _LONGEST_NAME = 200
_OWN_PREFIXES = (INFO_PREFIX, "opponents/", "system/")
"""How names of metrics begin of which there is one for each opponent, process or number that envs report."""


@dataclass(slots=True)
class Start:
    """A run before its first rollout, new or resumed. Whatever changes the weights belongs here."""

    run: Run
    signals: Interrupts
    resumed: bool
    stop_reason: str | None = None

    @property
    def config(self) -> TrainConfig:
        """The run's config."""
        return self.run.config

    @property
    def run_dir(self) -> Path:
        """Where the run's files are."""
        return self.run.directory.path

    def stop(self, reason: str) -> None:
        """Train no further: for what a hook knows from its state. The first reason that is given counts."""
        self.stop_reason = self.stop_reason or _checked_reason(reason)

    def interruptible(self) -> AbstractContextManager[Any]:
        """In this block Ctrl-C takes effect at once; else it waits for the first rollout."""
        return self.signals.allowed()


@dataclass(slots=True)
class End:
    """A run after its last checkpoint; ``reason`` is None if something was raised."""

    run: Run
    reason: str | None

    @property
    def run_dir(self) -> Path:
        """Where the run's files are."""
        return self.run.directory.path


class Iteration:
    """One rollout that was collected and learned from, and what a hook may do about it."""

    def __init__(
        self,
        run: Run,
        signals: Interrupts,
        *,
        before: Counters,
        rollout: Rollout,
        update: UpdateStats,
        settings: UpdateSettings,
        metrics: Metrics,
        stage_ended: str | None,
        stop_reason: str | None,
    ) -> None:
        self.run, self._signals = run, signals
        self.iteration = run.progress.iteration
        """How many iterations are complete."""
        self.timesteps = run.progress.timesteps
        """Steps taken so far, all envs together."""
        self.episodes = run.progress.episodes
        """Episodes that ended so far."""
        self.before = before
        """The run's counters before this rollout."""
        self.rollout = rollout
        """Its arrays are used again after the call: copy what is kept."""
        self.update, self.settings = update, settings
        self.metrics = metrics
        """The row of this iteration."""
        self.n_measured = len(metrics)
        """How many of its numbers are there in every iteration."""
        self.stage_ended = stage_ended
        """What to say if a stage ended with this rollout."""
        self._stop_reason = stop_reason
        self._checkpoint_requested = False

    @property
    def run_dir(self) -> Path:
        """Where the run's files are."""
        return self.run.directory.path

    @property
    def config(self) -> TrainConfig:
        """The run's config."""
        return self.run.config

    def log(self, name: str, value: float) -> None:
        """Add a number to this iteration's row of metrics."""
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
            raise UsageError(f"log({short_repr(name)}, ...): should be a name such as 'mine/number'")
        if name in METRICS or name.startswith(_OWN_PREFIXES):
            raise UsageError(f"log({name!r}, ...): this is a metric of Corral's own; choose another name")
        self.metrics[name] = float(value)

    def stop(self, reason: str = "callback") -> None:
        """End the run after this iteration, with a checkpoint. The first reason that is given counts."""
        self._stop_reason = self._stop_reason or _checked_reason(reason)

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends after this iteration, if it does."""
        return self._stop_reason

    def evaluate(self) -> Metrics:
        """Evaluate the policy now, and keep it in ``best/`` if none was better; return the ``eval/`` numbers."""
        measured = evaluate_run(self.run, self._signals)
        self.metrics |= measured
        return measured

    def save_checkpoint(self) -> None:
        """Save the run at the end of this iteration, when all hooks were called and the row of metrics is on disk."""
        self._checkpoint_requested = True

    @property
    def checkpoint_due(self) -> bool:
        """Whether the run is saved at the end of this iteration."""
        due = is_due(self.config.checkpoint_freq, self.before.timesteps, self.timesteps)
        return due or self._checkpoint_requested

    def model(self) -> Model:
        """Return a copy of the policy that can be asked for actions."""
        assert self.run.recovery_point is not None
        return Model(self.run.config, self.run.recovery_point, self.run.network)

    def set(self, name: str, value: float) -> None:
        """Change ``learning_rate``, ``clip_range`` or ``ent_coef`` from the next update on; saved with the run."""
        check_adjustable(name, value)
        self.run.overrides[name] = float(value)

    def generator(self, name: str) -> np.random.Generator:
        """Return a generator that depends on the run's seed, ``name`` and the iteration alone."""
        return hook_generator(self.run.seed, name, self.iteration)

    def interruptible(self) -> AbstractContextManager[Any]:
        """In this block Ctrl-C takes effect at once; else at the next evaluation or after the hooks."""
        return self._signals.allowed()


def _checked_reason(reason: str) -> str:
    """Return a reason that ``summary.json`` can keep as ``exit_reason``."""
    if not isinstance(reason, str) or not reason.isprintable() or not 0 < len(reason) <= _LONGEST_REASON:
        raise UsageError(f"stop({short_repr(reason)}): should be a few words that say why")
    return reason


TrainingState = Iteration
"""The name that callbacks know it by."""
