"""The arguments of hooks: a run that starts, a completed iteration, and a run that ends."""

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
from corral.training.signals import SignalHandler

__all__ = ["End", "Iteration", "IterationResult", "Start", "TrainingState"]

_MAX_NAME_LENGTH = _MAX_REASON_LENGTH = 200
_RESERVED_PREFIXES = (INFO_PREFIX, "opponents/", "system/")
"""How the names of metrics begin that Corral writes for each opponent, process or number in ``info``."""


@dataclass(slots=True)
class Start:
    """A new or resumed run before its first rollout. Hooks that change the weights must do it here."""

    run: Run
    signals: SignalHandler
    resumed: bool
    stop_reason: str | None = None

    @property
    def config(self) -> TrainConfig:
        """The run's config."""
        return self.run.config

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.run.directory.path

    def stop(self, reason: str) -> None:
        """End the run before its first rollout, because of the hook's state, for example. The first reason counts."""
        self.stop_reason = self.stop_reason or _checked_reason(reason)

    def interruptible(self) -> AbstractContextManager[Any]:
        """Let Ctrl-C interrupt this block at once; elsewhere it waits for the first rollout."""
        return self.signals.interruptible()


@dataclass(slots=True)
class End:
    """A run after its last checkpoint; ``reason`` is None if an exception ended it."""

    run: Run
    reason: str | None

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.run.directory.path


@dataclass(frozen=True, slots=True)
class IterationResult:
    """A rollout and the update that learned from it."""

    before: Counters
    """The run's counters before the rollout."""
    rollout: Rollout
    mean_clipped_ratio: float | None
    """With ``overlap``, the mean importance weight of the rollout (see ``RolloutPipeline.mean_clipped_ratio``)."""
    settings: UpdateSettings
    update: UpdateStats
    stage_end_message: str | None
    """A line for the console if a stage of opponents ended with the rollout."""


class Iteration:
    """A completed iteration (one rollout, one update): its results, and the actions that a hook may take."""

    def __init__(
        self, run: Run, signals: SignalHandler, result: IterationResult, metrics: Metrics, stop_reason: str | None
    ) -> None:
        self.run, self._signals = run, signals
        self.iteration = run.progress.iteration
        """The number of completed iterations."""
        self.timesteps = run.progress.timesteps
        """Steps taken so far, all envs together."""
        self.episodes = run.progress.episodes
        """Episodes that have ended so far."""
        self.before = result.before
        """The run's counters before this rollout."""
        self.rollout = result.rollout
        """The rollout. Its arrays are reused after the call: copy what you keep."""
        self.update, self.settings = result.update, result.settings
        self.metrics = metrics
        """The row of metrics of this iteration."""
        self.n_common_metrics = len(metrics)
        """The number of metrics before evaluations and hooks added theirs."""
        self.stage_end_message = result.stage_end_message
        """A line for the console if a stage of opponents ended with this rollout."""
        self._stop_reason = stop_reason
        self._checkpoint_requested = False

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.run.directory.path

    @property
    def config(self) -> TrainConfig:
        """The run's config."""
        return self.run.config

    def log(self, name: str, value: float) -> None:
        """Add a number to this iteration's row of metrics."""
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MAX_NAME_LENGTH:
            raise UsageError(f"log({short_repr(name)}, ...): should be a name such as 'mine/number'")
        if name in METRICS or name.startswith(_RESERVED_PREFIXES):
            raise UsageError(f"log({name!r}, ...): this is a metric that Corral writes; choose another name")
        self.metrics[name] = float(value)

    def stop(self, reason: str = "callback") -> None:
        """End the run after this iteration, with a checkpoint. The first reason that is given counts."""
        self._stop_reason = self._stop_reason or _checked_reason(reason)

    @property
    def stop_reason(self) -> str | None:
        """Why the run ends after this iteration; None if it continues."""
        return self._stop_reason

    def evaluate(self) -> Metrics:
        """Evaluate the policy, save it in ``best/`` if it is the best so far, and return the ``eval/`` metrics."""
        eval_metrics = evaluate_run(self.run, self._signals)
        self.metrics |= eval_metrics
        return eval_metrics

    @property
    def is_evaluated(self) -> bool:
        """Whether the policy was evaluated in this iteration."""
        return "eval/mean_reward" in self.metrics

    def save_checkpoint(self) -> None:
        """Request a checkpoint at the end of this iteration, after all hooks and the row of metrics."""
        self._checkpoint_requested = True

    @property
    def checkpoint_due(self) -> bool:
        """Whether a checkpoint is saved at the end of this iteration."""
        due = is_due(self.config.checkpoint_freq, self.before.timesteps, self.timesteps)
        return due or self._checkpoint_requested

    def model(self) -> Model:
        """Return a copy of the policy that predicts actions, as ``corral.load`` does."""
        assert self.run.recovery_point is not None
        return Model(self.run.config, self.run.recovery_point, self.run.network)

    def set(self, name: str, value: float) -> None:
        """Change ``learning_rate``, ``clip_range`` or ``ent_coef`` from the next update on; saved with the run."""
        check_adjustable(name, value)
        self.run.overrides[name] = float(value)

    def generator(self, name: str) -> np.random.Generator:
        """Return a random generator that depends only on the run's seed, ``name`` and the number of the iteration."""
        return hook_generator(self.run.seed, name, self.iteration)

    def interruptible(self) -> AbstractContextManager[Any]:
        """Let Ctrl-C interrupt this block at once; elsewhere it waits for the next evaluation or rollout."""
        return self._signals.interruptible()


def _checked_reason(reason: str) -> str:
    """Return the reason if ``summary.json`` can hold it as ``exit_reason``; otherwise raise a UsageError."""
    if not isinstance(reason, str) or not reason.isprintable() or not 0 < len(reason) <= _MAX_REASON_LENGTH:
        raise UsageError(f"stop({short_repr(reason)}): should be a few words that say why")
    return reason


TrainingState = Iteration
"""The name of ``Iteration`` in the signatures of callbacks."""
