"""Scenarios for the training loop, and stand-ins for all that computes: each writes what happens to it in a journal.

Weights are a version number that an update raises by 1, and time passes only where a stand-in says so.
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
from corral.core.types import EpisodeRecord, RecoveryCounts, Rollout
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
"""Signals arrive in the second rollout, update or commit after the start; in the first evaluation or warm start."""
CALLBACK_AT = 3
"""The iteration in which a callback stops the run or raises: no evaluation is due in it."""


class Scenario(NamedTuple):
    """What a run is made of."""

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


BOTH = (False, True)
VALUES: dict[str, tuple[Any, ...]] = {
    "overlap": BOTH,
    "expert": BOTH,
    "resumed": BOTH,
    "kl_reference": BOTH,
    "stages": ("none", "one ends", "last ends"),
    "log_episodes": BOTH,
    "evaluation": BOTH,
    "checkpoints": BOTH,
    "callback": ("none", "logs", "stops", "raises"),
    "hook": BOTH,
    "signal": ("none", "collect", "update", "commit", "evaluation", "warm start"),
    "faults": BOTH,
    "budget": ("timesteps", "num_episodes", "duration"),
}
NO_EXTRA_TERMS = Scenario(*(values[0] for values in VALUES.values()))


def is_possible(scenario: Scenario) -> bool:
    """Whether there is something in which the signal can arrive."""
    if scenario.signal == "warm start":
        return scenario.expert and not scenario.resumed
    return scenario.evaluation or scenario.signal != "evaluation"


@functools.cache
def all_scenarios() -> list[Scenario]:
    """Every possible combination of values."""
    return [scenario for values in itertools.product(*VALUES.values()) if is_possible(scenario := Scenario(*values))]


def pairs_in(scenarios: list[Scenario]) -> set[tuple[tuple[int, Any], tuple[int, Any]]]:
    """All pairs of values, with their places, that occur together in one of the scenarios."""
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


def numbers(tensors: Any) -> dict[str, Any]:
    """Named tensors or arrays as text can show them."""
    return {name: tensor.tolist() for name, tensor in tensors.items()}


def content_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Everything that is in a checkpoint."""
    parts = {field.name: getattr(checkpoint, field.name) for field in dataclasses.fields(checkpoint)}
    return {name: part if part is None or name == "state" else numbers(part) for name, part in parts.items()}


class Clock:
    """Stands in for the module ``time``."""

    seconds = 0.0

    def perf_counter(self) -> float:
        return self.seconds


CLOCK = Clock()


class World:
    """One run of a scenario: a real ``Run`` of stand-ins, and their journal."""

    def __init__(self, scenario: Scenario, warm_start_seconds: float = 0.0) -> None:
        self.scenario, self.warm_start_seconds = scenario, warm_start_seconds
        self.journal: list[str] = []
        self.rows: list[str] = []
        """The rows of metrics that were written."""
        self.signals = SignalHandler()
        self._places: dict[str, int] = {}
        CLOCK.seconds = 1000.0
        self.hooks: list[Hook] = [UserHook(self)] if scenario.hook else []
        self.callback = None if scenario.callback == "none" else self._callback
        self.run = self._make_run()
        if scenario.resumed:
            self._resume()

    def enter(self, what: str, *details: Any) -> None:
        """Add to the journal; details are written down as they are now."""
        self.journal.append(f"{what}: {', '.join(map(str, details))}")

    def reach(self, place: str, times: int = 1) -> None:
        """Let the scenario's signal arrive if this is its place, reached so many times."""
        self._places[place] = self._places.get(place, 0) + 1
        if self.scenario.signal == place and self._places[place] == times:
            self.enter("signal", place)
            self.signals._handle(signal.SIGTERM, None)

    def _make_run(self) -> Run:
        scenario, config = self.scenario, config_of(self.scenario)
        learner = LearnerStandIn(self)
        run = Run(
            config=config,
            factory=None,
            recovery=None,
            seed=1,
            backend=None,
            device_reason="",
            batch_layout="",
            source=SourceStandIn(self),
            actor=ActorStandIn(),
            learner=learner,
            eval_env=EvalEnvStandIn(self) if scenario.evaluation else None,
            make_single_env=lambda seed: None,
            return_scaler=ReturnScaler(N, config.gamma),
            observation_moments={"": RunningMoments((1,))},
            spaces={},
            has_masks=False,
            env_opponents=(),
            render_modes=(),
            progress=Progress(),
            opponents=None if scenario.stages == "none" else LeagueStandIn(self),
            meter=SimpleNamespace(sample=lambda: {"system/trainer_mb": 1.0}),
        )
        run.set_outputs(Folder(self, "run"), ReporterStandIn(self))
        return run

    def _resume(self) -> None:
        """Bring everything to where a run of two iterations left it, as ``restore`` does."""
        run = self.run
        recent = deque([(1.0, 2), (2.0, 2)], maxlen=100)
        run.progress = Progress(2, 2 * SIZE, 2, 10.0, recent=recent, best_reward=-2.0)
        run.learner.policy.version += 2
        run.learner.n_updates = 4
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
        what = self.scenario.callback
        self.enter("callback", state.iteration, state.timesteps, state.episodes, state.metrics)
        state.log("callback/iteration", state.iteration)
        if state.iteration == CALLBACK_AT:
            if "stops" in what:
                state.stop("enough")
            if "raises" in what:
                raise RuntimeError("callback")


def journal_of(world: World, train: Callable[[World], str]) -> list[str]:
    """Train, and return the journal with how it ended."""
    run = world.run
    try:
        world.enter("ended", train(world))
    except (Interrupted, RuntimeError) as error:
        world.enter("raised", repr(error))
    assert run.recovery_point is not None
    world.enter("recovery point", content_of(run.recovery_point))
    world.enter("left behind", run.last_saved_step, run.n_faults_logged, run.overrides, run.progress.state())
    return world.journal


# ---- stand-ins -----------------------------------------------------------------------------------------------


class PolicyStandIn:
    """Weights, which are a version number, and a buffer of observation statistics."""

    log_std = torch.zeros(0)

    def __init__(self, world: World) -> None:
        self._world, self.normalizer = world, self
        self.version, self.mean = torch.tensor([0.0]), torch.tensor([0.0])

    def set(self, path: str, mean: Any, deviation: Any) -> None:
        """Take observation statistics; a commit begins with this."""
        self._world.reach("commit", SIGNAL_AT)
        self.mean = torch.tensor(mean.tolist())

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"version": self.version, "mean": self.mean}

    def named_buffers(self) -> list[tuple[str, torch.Tensor]]:
        return [("mean", self.mean)]


class LearnerStandIn:
    """A learner that is its own engine."""

    def __init__(self, world: World) -> None:
        self._world, self.engine, self.policy = world, self, PolicyStandIn(world)
        self.n_updates = 0
        self.reference: dict[str, torch.Tensor] | None = None

    def set_reference(self, weights: Any) -> None:
        self._world.enter("reference", numbers(weights))
        self.reference = {name: weight.clone() for name, weight in weights.items()}

    def update(self, rollout: Rollout, targets: Any, settings: Any) -> UpdateStats:
        version = self.policy.version.item()
        self._world.enter("update", version, rollout.actions.tolist(), targets.returns.tolist(), settings)
        self.policy.version = self.policy.version + 0.5
        CLOCK.seconds += 3
        self._world.reach("update", SIGNAL_AT)
        self.policy.version = self.policy.version + 0.5
        self.n_updates += 2
        return UpdateStats(*(version + i for i in range(8)), kl_ref=version if settings.terms.kl_ref else None)

    def checkpoint_tensors(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        return {"version": self.policy.version.clone()}, {"moments": self.policy.version * 2}

    def evaluate(self, rollout: Rollout, every: int) -> tuple[Any, None]:
        return np.full((T, N), -0.1 * self.policy.version.item(), np.float32)[::every], None


class SourceStandIn:
    """Collects rollouts that show with what and against whom they were begun."""

    def __init__(self, world: World) -> None:
        self._world, self._deadline = world, float("inf")
        self._published: Any = None
        self._begun: Any = None
        self._collected = 0
        self.drained = False

    def publish(self, weights: Any, version: int) -> None:
        self._published = weights["version"].item()
        self._world.enter("publish", numbers(weights), version)

    def begin(self, iteration: int) -> None:
        assert self._begun is None, "a rollout is under way already"
        league: Any = self._world.run.opponents
        self._begun = iteration, self._published, 0 if league is None else league.now["drawn"]
        self._world.enter("begin", self._begun)

    def collect(self) -> Rollout:
        (iteration, version, opponent), self._begun = self._begun, None
        CLOCK.seconds += 2
        self._world.reach("collect", SIGNAL_AT)
        if CLOCK.seconds > self._deadline:
            self._world.enter("deadline passed")
            raise DeadlinePassed
        self._collected += 1
        self._world.enter("collect", iteration)
        ended = 1 + iteration % 2
        faults = tuple(EnvFault(f"fault {i} of rollout {iteration}", "env 0") for i in range(2))
        nothing, floats = np.zeros((T, N), np.bool_), np.zeros((T, N), np.float32)
        return Rollout(
            observations={"": np.full((T, N, 1), iteration, np.float32)},
            actions=np.array([iteration, version, opponent]),
            log_probs=floats - np.float32(0.1 * version),
            values=floats,
            rewards=np.full((T, N), iteration + 1.0),
            terminated=nothing,
            truncated=nothing,
            life_lost=nothing,
            final_values=floats,
            next_episode=nothing.astype(np.int64),
            next_opponent=nothing.astype(np.int64),
            last_values=floats[0],
            last_observations={},
            episodes=tuple(EpisodeRecord(env, iteration + 0.5, 3, False, row=1) for env in range(ended)),
            recovery_counts=RecoveryCounts(env_faults=2) if self._world.scenario.faults else RecoveryCounts(),
            faults=faults if self._world.scenario.faults else (),
        )

    def set_deadline(self, deadline: float) -> None:
        self._deadline = deadline

    def opponents(self) -> Any:
        return np.full(N, self._collected)

    def env_positions(self) -> dict[str, Any]:
        return {"collected": np.array([self._collected])}

    def drain_recovery_counts(self) -> RecoveryCounts:
        self.drained = True
        self._world.enter("drain recovery counts")
        return RecoveryCounts(restarts=1)


class LeagueStandIn:
    """Opponents in two stages; checkpoints hold their state as it was before the rollout under way was prepared."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._ends_at = {"one ends": 3 * SIZE, "last ends": 4 * SIZE}[world.scenario.stages]
        self.stages = [SimpleNamespace(name="first"), SimpleNamespace(name="second")]
        self.opponent_table = SimpleNamespace(spec=SimpleNamespace(env_reset_options=[]))
        self.eval_options = {"opponent": "strongest"}
        self.last_counted_stage = int(world.scenario.stages == "last ends")
        self.now = {"stage": self.last_counted_stage, "games": 0, "drawn": 0}
        self._before: dict[str, int] | None = None
        self.finished = False

    def prepare(self, weights: Any, timesteps: int, playing: Any) -> None:
        self._world.enter("prepare opponents", numbers(weights), timesteps, playing.tolist(), self.now)
        self._before = dict(self.now)
        self.now["drawn"] = 100 * self.now["stage"] + 10 * self.now["games"] + int(weights["version"].item())

    def record_games(self, episodes: Any, timesteps: int) -> str | None:
        self._world.enter("note games", len(episodes), timesteps)
        self._before, self.last_counted_stage = None, self.now["stage"]
        self.now["games"] += len(episodes)
        if timesteps != self._ends_at:
            return None
        self.finished = self.now["stage"] == 1
        self.now["stage"] = 1
        return f"stage {self.last_counted_stage} ended"

    def metrics(self) -> dict[str, float]:
        return {"opponents/stage": float(self.last_counted_stage)}

    def state(self) -> dict[str, int]:
        return dict(self._before or self.now)

    def weights(self) -> dict[str, Any]:
        return {}


class UserHook(Hook):
    """Has a state, logs, changes settings and asks for a checkpoint."""

    def __init__(self, world: World) -> None:
        self._world, self._seen, self.end = world, 0, None

    def on_start(self, start: Any) -> None:
        self._world.enter("hook starts", start.resumed, self._seen)

    def after_iteration(self, iteration: Any) -> None:
        CLOCK.seconds += 1
        self._seen += 1
        self._world.enter("hook", iteration.iteration, iteration.timesteps, iteration.stop_reason, iteration.metrics)
        if iteration.iteration % 2:
            iteration.log("hook/seen", self._seen)
            iteration.set("learning_rate", 0.1 * self._seen)
        if iteration.iteration == 4:
            iteration.save_checkpoint()

    def on_end(self, end: Any) -> None:
        self.end = end
        self._world.enter("hook ends", self._seen)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self._seen}

    def load_state_dict(self, state: Any) -> None:
        self._seen = state["seen"]


class ActorStandIn:
    """Takes weights."""

    def load(self, weights: Any) -> None:
        self.version = weights["version"].item()


class EvalEnvStandIn:
    """An evaluation env, in which something goes wrong if the scenario has faults."""

    def __init__(self, world: World) -> None:
        self.world = world

    def drain(self) -> Any:
        faults = (EnvFault("fault in evaluation", "env 0"),) if self.world.scenario.faults else ()
        return SimpleNamespace(recovery_counts=RecoveryCounts(retries=1), faults=faults)


class ReporterStandIn:
    """A reporter that is its own board: rows of metrics and console lines."""

    def __init__(self, world: World) -> None:
        self.world, self.console = world, self

    def write(self, row: dict[str, float], done: float, keep: bool = True) -> None:
        self.world.rows.append(str(row))
        self.world.enter("row", row, done, keep)

    def flush(self) -> None:
        self.world.enter("flush")

    def note(self, line: str) -> None:
        self.world.enter("console", line)

    def warn(self, line: str) -> None:
        self.world.enter("console, warning", line)


class Folder:
    """A directory by its name."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name

    def __truediv__(self, name: str) -> Folder:
        return Folder(self.world, f"{self.name}/{name}")

    def __getattr__(self, name: str) -> Folder:
        """The places of a run directory: ``checkpoints``, ``best``, ``path``, ``metrics_file``."""
        return self / name

    def mkdir(self, parents: bool, exist_ok: bool) -> None:
        self.world.enter("make directory", self.name)


def _save_checkpoint(folder: Folder, checkpoint: Checkpoint) -> None:
    folder.world.enter("save", folder.name, content_of(checkpoint))


def _prune(folder: Folder, keep: int) -> None:
    folder.world.enter("prune", folder.name, keep)


def _write_stage_rows(metrics: Folder, path: Folder, stage: int, columns: Any) -> None:
    path.world.enter("rows of stage", path.name, stage, path.world.rows)


def _keep_fault(directory: Folder, config: TrainConfig, fault: EnvFault, env_reset_options: Any) -> None:
    directory.world.enter("fault file", fault.summary)


def _check_replay(run: Any) -> None:
    run.reporter.world.enter("check replay")


def _evaluate_actor(env: EvalEnvStandIn, actor: ActorStandIn, plan: EpisodePlan) -> EvaluationResult:
    env.world.enter("evaluate", actor.version, plan)
    CLOCK.seconds += 5
    env.world.reach("evaluation")
    return EvaluationResult((-abs(actor.version - 2.5),), (7,), 0, {})


def warm_start(run: Any, console: ReporterStandIn) -> None:
    """Stand in for the imitation of an expert."""
    console.note("warm start")
    CLOCK.seconds += console.world.warm_start_seconds
    run.learner.policy.version = run.learner.policy.version + 0.125
    console.world.reach("warm start")
    run.learner.policy.version = run.learner.policy.version + 0.125


def stand_ins() -> Iterator[pytest.MonkeyPatch]:
    """Put the stand-ins in the place of functions that the loop and its hooks call."""
    replaced: dict[str, Any] = {
        "progress.time": CLOCK,
        "pipeline.time": CLOCK,
        "evaluate.time": CLOCK,
        "evaluate.evaluate_actor": _evaluate_actor,
        "evaluate.check_replay": _check_replay,
        "run.save_checkpoint": _save_checkpoint,
        "run.prune": _prune,
        "run.write_fault": _keep_fault,
        "hooks.warm_start.warm_start": warm_start,
        "hooks.stage_files.save_checkpoint": _save_checkpoint,
        "hooks.stage_files.prune": _prune,
        "hooks.stage_files.progress_columns": lambda run: (),
        "hooks.stage_files._write_rows": _write_stage_rows,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, stand_in in replaced.items():
            patch.setattr(f"corral.training.{name}", stand_in)
        yield patch
