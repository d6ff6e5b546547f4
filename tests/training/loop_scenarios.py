"""Scenarios for the training loop, and fakes for everything that computes; each fake logs the calls that it gets.

The weights are a version number that an update raises by 1. Time passes only where a fake advances the fake clock.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import random
import signal
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from corral.config.schema import TrainConfig
from corral.core.errors import DeadlinePassed, EnvFault
from corral.core.types import EpisodeRecord, FaultCounts, Rollout
from corral.ppo.learner import UpdateStats
from corral.ppo.normalization import ReturnScaler, RunningMoments
from corral.storage.checkpoint import Checkpoint
from corral.training.evaluate import EpisodePlan, EvaluationResult
from corral.training.hooks.hook import Hook
from corral.training.progress import Progress
from corral.training.run import Run, capture
from corral.training.signals import Interrupted, SignalHandler

T, N = 2, 2
SIZE = T * N
SIGNAL_AT = 2
"""The signal arrives in the second rollout, update or commit; an evaluation or warm start gets it the first time."""
CALLBACK_AT = 3
"""The iteration in which a callback stops the run or raises. No evaluation is due in it."""


class Scenario(NamedTuple):
    """One combination of features, settings and disturbances of a run; ``VALUES`` lists the values of each field."""

    overlap: bool
    expert: bool
    resumed: bool
    kl_reference: bool
    stages: str
    log_episodes: bool
    evaluation: bool
    checkpoints: bool
    callback: str
    hook: bool
    signal: str
    faults: bool
    budget: str


OFF_OR_ON = (False, True)
VALUES: dict[str, tuple[Any, ...]] = {
    "overlap": OFF_OR_ON,
    "expert": OFF_OR_ON,
    "resumed": OFF_OR_ON,
    "kl_reference": OFF_OR_ON,
    "stages": ("none", "one ends", "last ends"),
    "log_episodes": OFF_OR_ON,
    "evaluation": OFF_OR_ON,
    "checkpoints": OFF_OR_ON,
    "callback": ("none", "logs", "stops", "raises"),
    "hook": OFF_OR_ON,
    "signal": ("none", "collect", "update", "commit", "evaluation", "warm start"),
    "faults": OFF_OR_ON,
    "budget": ("timesteps", "num_episodes", "duration"),
}
SIMPLEST_SCENARIO = Scenario(*(values[0] for values in VALUES.values()))


def is_possible(scenario: Scenario) -> bool:
    """Whether the run has the phase in which the scenario's signal should arrive."""
    if scenario.signal == "warm start":
        return scenario.expert and not scenario.resumed
    return scenario.evaluation or scenario.signal != "evaluation"


@functools.cache
def all_scenarios() -> list[Scenario]:
    """Every possible combination of values."""
    return [scenario for values in itertools.product(*VALUES.values()) if is_possible(scenario := Scenario(*values))]


def pairs_in(scenarios: list[Scenario]) -> set[tuple[tuple[int, Any], tuple[int, Any]]]:
    """All pairs of field values, with the fields' indices, that occur together in one of the scenarios."""
    return {pair for scenario in scenarios for pair in itertools.combinations(enumerate(scenario), 2)}


def sample_scenarios(n: int) -> list[Scenario]:
    """Return the same ``n`` scenarios every time."""
    return random.Random(1).sample(all_scenarios(), n)


@functools.cache
def config_of(scenario: Scenario) -> TrainConfig:
    """The config of a scenario; rates and loss terms change with every rollout."""
    budgets: dict[str, dict[str, Any]] = {
        "timesteps": {"timesteps": 5 * SIZE, "learning_rate_end": 1e-5},
        "num_episodes": {"num_episodes": 6},
        "duration": {"duration": 16.5 / 3600},
    }
    return TrainConfig(
        env="stand-in",
        n_envs=N,
        n_steps=T,
        batch_size=SIZE,
        n_epochs=2,
        critic_warmup=SIZE,
        overlap=scenario.overlap,
        expert="teacher" if scenario.expert else None,
        log_episodes=scenario.log_episodes,
        eval_freq=2 * SIZE * scenario.evaluation,
        checkpoint_freq=2 * SIZE * scenario.checkpoints,
        **({"kl_ref_coef": 0.5, "kl_ref_steps": 7 * SIZE} if scenario.kl_reference else {}),
        **budgets[scenario.budget],
    )


def tensor_values(tensors: Any) -> dict[str, Any]:
    """Convert named tensors or arrays to lists of numbers, which can be printed and compared."""
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def content_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The complete content of a checkpoint as values that can be printed and compared."""
    parts = {field.name: getattr(checkpoint, field.name) for field in dataclasses.fields(checkpoint)}
    return {name: part if part is None or name == "state" else tensor_values(part) for name, part in parts.items()}


class FakeClock:
    """Replaces the module ``time``."""

    seconds = 0.0

    def perf_counter(self) -> float:
        return self.seconds


CLOCK = FakeClock()


class SimulatedRun:
    """One run of a scenario: a real ``Run`` that is made of fakes, and the events that they log."""

    def __init__(self, scenario: Scenario, warm_start_seconds: float = 0.0) -> None:
        self.scenario, self.warm_start_seconds = scenario, warm_start_seconds
        self.events: list[str] = []
        self.rows: list[str] = []
        """The metrics rows written so far."""
        self.signals = SignalHandler()
        self._phase_counts: dict[str, int] = {}
        CLOCK.seconds = 1000.0
        self.hooks: list[Hook] = [UserHook(self)] if scenario.hook else []
        self.callback = None if scenario.callback == "none" else self._callback
        self.run = self._make_run()
        if scenario.resumed:
            self._resume()

    def log_event(self, event: str, *details: Any) -> None:
        """Append an event; its details are converted to text now, because they may change later."""
        self.events.append(f"{event}: {', '.join(map(str, details))}")

    def signal_if_due(self, phase: str, nth: int = 1) -> None:
        """Deliver the scenario's signal if it belongs to this phase and this is the ``nth`` call for the phase."""
        self._phase_counts[phase] = self._phase_counts.get(phase, 0) + 1
        if self.scenario.signal == phase and self._phase_counts[phase] == nth:
            self.log_event("signal", phase)
            self.signals._handle(signal.SIGTERM, None)

    def _make_run(self) -> Run:
        scenario, config = self.scenario, config_of(self.scenario)
        learner = FakeLearner(self)
        run = Run(
            config=config,
            factory=None,
            recovery=None,
            seed=1,
            backend=None,
            device_reason="",
            batch_layout="",
            source=FakeSource(self),
            actor=FakeActor(),
            learner=learner,
            eval_env=FakeEvalEnv(self) if scenario.evaluation else None,
            make_single_env=lambda seed: None,
            return_scaler=ReturnScaler(N, config.gamma),
            observation_moments={"": RunningMoments((1,))},
            spaces={},
            has_masks=False,
            env_opponents=(),
            render_modes=(),
            progress=Progress(),
            opponents=None if scenario.stages == "none" else FakeLeague(self),
            meter=SimpleNamespace(sample=lambda: {"system/trainer_mb": 1.0}),
        )
        run.set_outputs(FakeDirectory(self, "run"), FakeReporter(self))
        return run

    def _resume(self) -> None:
        """Set the state after two iterations, as ``restore`` does from a checkpoint."""
        run = self.run
        recent = deque([(1.0, 2), (2.0, 2)], maxlen=100)
        run.progress = Progress(2, 2 * SIZE, 2, 10.0, recent=recent, best_reward=-2.0)
        run.learner.policy.version += 2
        run.learner.n_gradient_steps = 4
        run.observation_moments[""].merge(np.ones((2 * SIZE, 1)))
        if self.scenario.kl_reference:
            run.learner.reference = {"version": torch.tensor([0.5])}
        run.overrides = {"ent_coef": 0.01} if self.hooks else {}
        point = capture(run)
        for hook in self.hooks:
            hook.load_state_dict({"seen": 2})
            point = dataclasses.replace(point, state={**point.state, "hooks": {hook.name: {"seen": 2}}})
        if self.scenario.overlap:
            point = dataclasses.replace(
                point, lagged_weights={"version": torch.tensor([1.0]), "mean": torch.tensor([0.0])}
            )
        run.recovery_point = point
        run.set_outputs(run.directory, run.reporter)

    def _callback(self, state: Any) -> None:
        CLOCK.seconds += 1
        behaviour = self.scenario.callback
        self.log_event("callback", state.iteration, state.timesteps, state.episodes, state.metrics)
        state.log("callback/iteration", state.iteration)
        if state.iteration == CALLBACK_AT:
            if "stops" in behaviour:
                state.stop("enough")
            if "raises" in behaviour:
                raise RuntimeError("callback")


def train_and_log_events(sim: SimulatedRun, train: Callable[[SimulatedRun], str]) -> list[str]:
    """Train with ``train`` and return all events, ending with how the run ended and what it left."""
    run = sim.run
    try:
        sim.log_event("ended", train(sim))
    except (Interrupted, RuntimeError) as error:
        sim.log_event("raised", repr(error))
    assert run.recovery_point is not None
    sim.log_event("recovery point", content_of(run.recovery_point))
    sim.log_event("left behind", run.last_saved_step, run.n_faults_logged, run.overrides, run.progress.state())
    return sim.events


# ---- fakes -----------------------------------------------------------------------------------------------------------


class FakePolicy:
    """A policy whose weights are a version number, with a buffer of observation statistics."""

    log_std = torch.zeros(0)

    def __init__(self, sim: SimulatedRun) -> None:
        self._sim, self.normalizer = sim, self
        self.version, self.mean = torch.tensor([0.0]), torch.tensor([0.0])

    def set(self, path: str, mean: Any, deviation: Any) -> None:
        """Set observation statistics, which is the first thing that a commit does."""
        self._sim.signal_if_due("commit", SIGNAL_AT)
        self.mean = torch.tensor(mean.tolist())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"version": self.version, "mean": self.mean}

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        return [("mean", self.mean)]


class FakeLearner:
    """A learner that is also its own engine."""

    def __init__(self, sim: SimulatedRun) -> None:
        self._sim, self.engine, self.policy = sim, self, FakePolicy(sim)
        self.n_gradient_steps = 0
        self.reference: dict[str, torch.Tensor] | None = None

    def set_reference(self, weights: Any) -> None:
        self._sim.log_event("reference", tensor_values(weights))
        self.reference = {name: weight.clone() for name, weight in weights.items()}

    def update(self, rollout: Rollout, targets: Any, settings: Any) -> UpdateStats:
        version = self.policy.version.item()
        self._sim.log_event("update", version, rollout.actions.tolist(), targets.returns.tolist(), settings)
        self.policy.version = self.policy.version + 0.5
        CLOCK.seconds += 3
        self._sim.signal_if_due("update", SIGNAL_AT)
        self.policy.version = self.policy.version + 0.5
        self.n_gradient_steps += 2
        return UpdateStats(*(version + i for i in range(8)), kl_ref=version if settings.terms.kl_ref_coef else None)

    def checkpoint_tensors(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        return {"version": self.policy.version.clone()}, {"moments": self.policy.version * 2}

    def log_probs_and_values(self, rollout: Rollout, every: int) -> tuple[Any, None]:
        return np.full((T, N), -0.1 * self.policy.version.item(), np.float32)[::every], None


class FakeSource:
    """A rollout source whose actions contain the iteration, the weights' version and the opponent of the rollout."""

    def __init__(self, sim: SimulatedRun) -> None:
        self._sim, self._deadline = sim, float("inf")
        self._published: Any = None
        self._begun: Any = None
        self._collected = 0
        self.counts_taken = False

    def node_use(self) -> dict[str, Any]:
        return {}

    def publish(self, weights: Any, version: int) -> None:
        self._published = weights["version"].item()
        self._sim.log_event("publish", tensor_values(weights), version)

    def begin(self, iteration: int) -> None:
        assert self._begun is None, "a rollout is in progress already"
        league: Any = self._sim.run.opponents
        self._begun = iteration, self._published, 0 if league is None else league.current["drawn"]
        self._sim.log_event("begin", self._begun)

    def collect(self) -> Rollout:
        (iteration, version, opponent), self._begun = self._begun, None
        CLOCK.seconds += 2
        self._sim.signal_if_due("collect", SIGNAL_AT)
        if CLOCK.seconds > self._deadline:
            self._sim.log_event("deadline passed")
            raise DeadlinePassed
        self._collected += 1
        self._sim.log_event("collect", iteration)
        n_episodes = 1 + iteration % 2
        faults = tuple(EnvFault(f"fault {i} of rollout {iteration}", "env 0") for i in range(2))
        no_flags, floats = np.zeros((T, N), np.bool_), np.zeros((T, N), np.float32)
        return Rollout(
            observations={"": np.full((T, N, 1), iteration, np.float32)},
            actions=np.array([iteration, version, opponent]),
            log_probs=floats - np.float32(0.1 * version),
            values=floats,
            rewards=np.full((T, N), iteration + 1.0),
            terminated=no_flags,
            truncated=no_flags,
            life_lost=no_flags,
            final_values=floats,
            next_episode=no_flags.astype(np.int64),
            next_opponent=no_flags.astype(np.int64),
            last_values=floats[0],
            last_observations={},
            episodes=tuple(EpisodeRecord(env, iteration + 0.5, 3, False, row=1) for env in range(n_episodes)),
            fault_counts=FaultCounts(env_faults=2) if self._sim.scenario.faults else FaultCounts(),
            faults=faults if self._sim.scenario.faults else (),
        )

    def set_deadline(self, deadline: float) -> None:
        self._deadline = deadline

    def opponents(self) -> Any:
        return np.full(N, self._collected)

    def env_positions(self) -> dict[str, Any]:
        return {"collected": np.array([self._collected])}

    def take_fault_counts(self) -> FaultCounts:
        self.counts_taken = True
        self._sim.log_event("take fault counts")
        return FaultCounts(restarts=1)


class FakeLeague:
    """Opponents in two stages. ``state`` is what it was before the rollout in progress was prepared."""

    def __init__(self, sim: SimulatedRun) -> None:
        self._sim = sim
        self._ends_at = {"one ends": 3 * SIZE, "last ends": 4 * SIZE}[sim.scenario.stages]
        self.stages = [SimpleNamespace(name="first"), SimpleNamespace(name="second")]
        self.opponent_table = SimpleNamespace(spec=SimpleNamespace(env_reset_options=[]))
        self.eval_options = {"opponent": "strongest"}
        self.last_counted_stage = int(sim.scenario.stages == "last ends")
        self.current = {"stage": self.last_counted_stage, "games": 0, "drawn": 0}
        self._before: dict[str, int] | None = None
        self.finished = False

    def prepare(self, weights: Any, timesteps: int, playing: Any) -> None:
        self._sim.log_event("prepare opponents", tensor_values(weights), timesteps, playing.tolist(), self.current)
        self._before = dict(self.current)
        self.current["drawn"] = (
            100 * self.current["stage"] + 10 * self.current["games"] + int(weights["version"].item())
        )

    def record_games(self, episodes: Any, timesteps: int) -> str | None:
        self._sim.log_event("record games", len(episodes), timesteps)
        self._before, self.last_counted_stage = None, self.current["stage"]
        self.current["games"] += len(episodes)
        if timesteps != self._ends_at:
            return None
        self.finished = self.current["stage"] == 1
        self.current["stage"] = 1
        return f"stage {self.last_counted_stage} ended"

    def metrics(self) -> dict[str, float]:
        return {"opponents/stage": float(self.last_counted_stage)}

    def state(self) -> dict[str, int]:
        return dict(self._before or self.current)

    def weights(self) -> dict[str, Any]:
        return {}


class UserHook(Hook):
    """A user's hook that has a state, logs, changes settings and requests a checkpoint."""

    def __init__(self, sim: SimulatedRun) -> None:
        self._sim, self._seen, self.end = sim, 0, None

    def on_start(self, start: Any) -> None:
        self._sim.log_event("hook starts", start.resumed, self._seen)

    def after_iteration(self, iteration: Any) -> None:
        CLOCK.seconds += 1
        self._seen += 1
        self._sim.log_event("hook", iteration.iteration, iteration.timesteps, iteration.stop_reason, iteration.metrics)
        if iteration.iteration % 2:
            iteration.log("hook/seen", self._seen)
            iteration.set("learning_rate", 0.1 * self._seen)
        if iteration.iteration == 4:
            iteration.save_checkpoint()

    def on_end(self, end: Any) -> None:
        self.end = end
        self._sim.log_event("hook ends", self._seen)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen}

    def load_state_dict(self, state: Any) -> None:
        self._seen = state["seen"]


class FakeActor:
    """An actor that keeps only the version of the weights."""

    def load(self, weights: Any) -> None:
        self.version = weights["version"].item()


class FakeEvalEnv:
    """An evaluation env that reports a fault if the scenario has faults."""

    def __init__(self, sim: SimulatedRun) -> None:
        self.sim = sim

    def take_report(self) -> Any:
        faults = (EnvFault("fault in evaluation", "env 0"),) if self.sim.scenario.faults else ()
        return SimpleNamespace(fault_counts=FaultCounts(retries=1), faults=faults)


class FakeReporter:
    """A reporter that is also its own console; it logs metrics rows and console lines."""

    def __init__(self, sim: SimulatedRun) -> None:
        self.sim, self.console = sim, self

    def write(self, row: dict[str, float], done: float, keep: bool = True) -> None:
        self.sim.rows.append(str(row))
        self.sim.log_event("row", row, done, keep)

    def flush(self) -> None:
        self.sim.log_event("flush")

    def note(self, line: str) -> None:
        self.sim.log_event("console", line)

    def warn(self, line: str) -> None:
        self.sim.log_event("console, warning", line)


class FakeDirectory:
    """A directory that is only a name."""

    def __init__(self, sim: SimulatedRun, name: str) -> None:
        self.sim, self.name = sim, name

    def __truediv__(self, name: str) -> FakeDirectory:
        return FakeDirectory(self.sim, f"{self.name}/{name}")

    def __getattr__(self, name: str) -> FakeDirectory:
        """Return any path of a run directory: ``checkpoints``, ``best``, ``path``, ``metrics_file``."""
        return self / name

    def mkdir(self, parents: bool, exist_ok: bool) -> None:
        self.sim.log_event("make directory", self.name)


def _save_checkpoint(directory: FakeDirectory, checkpoint: Checkpoint) -> None:
    directory.sim.log_event("save", directory.name, content_of(checkpoint))


def _prune(directory: FakeDirectory, keep: int) -> None:
    directory.sim.log_event("prune", directory.name, keep)


def _write_stage_rows(metrics: FakeDirectory, path: FakeDirectory, stage: int, columns: Any) -> None:
    path.sim.log_event("rows of stage", path.name, stage, path.sim.rows)


def _write_fault(directory: FakeDirectory, config: TrainConfig, fault: EnvFault, env_reset_options: Any) -> None:
    directory.sim.log_event("fault file", fault.summary)


def _check_replay(run: Any) -> None:
    run.reporter.sim.log_event("check replay")


def _evaluate_actor(env: FakeEvalEnv, actor: FakeActor, plan: EpisodePlan) -> EvaluationResult:
    env.sim.log_event("evaluate", actor.version, plan)
    CLOCK.seconds += 5
    env.sim.signal_if_due("evaluation")
    return EvaluationResult((-abs(actor.version - 2.5),), (7,), 0, {})


def warm_start(run: Any, console: FakeReporter) -> None:
    """Replace the imitation of an expert: change the weights in two halves, with the signal between them."""
    console.note("warm start")
    CLOCK.seconds += console.sim.warm_start_seconds
    run.learner.policy.version = run.learner.policy.version + 0.125
    console.sim.signal_if_due("warm start")
    run.learner.policy.version = run.learner.policy.version + 0.125


def install_fakes() -> Iterator[pytest.MonkeyPatch]:
    """Replace functions that the loop and its hooks call by fakes, until the generator is closed."""
    replaced: dict[str, Any] = {
        "progress.time": CLOCK,
        "pipeline.time": CLOCK,
        "evaluate.time": CLOCK,
        "evaluate.evaluate_actor": _evaluate_actor,
        "evaluate.check_replay": _check_replay,
        "run.save_checkpoint": _save_checkpoint,
        "run.prune": _prune,
        "run.write_fault": _write_fault,
        "hooks.warm_start.warm_start": warm_start,
        "hooks.stage_files.save_checkpoint": _save_checkpoint,
        "hooks.stage_files.prune": _prune,
        "hooks.stage_files.progress_columns": lambda run: (),
        "hooks.stage_files._write_rows": _write_stage_rows,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, fake in replaced.items():
            patch.setattr(f"corral.training.{name}", fake)
        yield patch
