"""All the parts of a training run, put together from a config, and what of them a checkpoint holds."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy.typing as npt
import torch
from torch import Tensor

from corral.autotune.choose_backend import BackendChoice
from corral.config.schema import TrainConfig
from corral.core.errors import CheckpointError, one_line
from corral.core.types import Actor, RolloutSource
from corral.envs.factory import EnvFactory
from corral.opponents.league import Opponents
from corral.policy.factory import check_encoding
from corral.policy.observation_encoder import ENCODING
from corral.ppo.learner import Learner
from corral.ppo.normalization import ReturnScaler, RunningMoments
from corral.processes.supervision import Care
from corral.reporting.process_meter import ProcessMeter
from corral.rollout.env_positions import Positions
from corral.rollout.state_trial import try_states
from corral.storage.checkpoint import Checkpoint
from corral.training.checkpoint_checks import check_envs, check_tensors
from corral.training.progress import Progress
from corral.vec import CorralVectorEnv

__all__ = ["Run", "capture", "restore", "weights_hash"]


class Stateful(Protocol):
    """Something whose state belongs into checkpoints, as plain JSON data."""

    def state(self) -> dict[str, Any]:
        """What it is now."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        ...


@dataclass(slots=True)
class Run:
    """Everything that trains, with nothing on disk yet."""

    config: TrainConfig
    factory: EnvFactory
    care: Care
    seed: int
    backend: BackendChoice
    why_device: str
    placement: str
    """How rows lie in inference batches, so that their results do not depend on the number of workers."""
    source: RolloutSource
    actor: Actor
    learner: Learner
    eval_env: CorralVectorEnv | None
    single_env: Callable[[int | None], CorralVectorEnv]
    """Makes an env beside those of the rollouts; given the run's seed, as env 0 was made."""
    return_scaler: ReturnScaler | None
    moments: dict[str, RunningMoments]
    spaces: dict[str, Any]
    masked: bool
    env_opponents: Sequence[str]
    """Names of the env's own opponents."""
    render_modes: Sequence[str]
    progress: Progress
    opponents: Opponents | None
    """Who plays the other side, where that is for Corral to say."""
    meter: ProcessMeter
    """Processor time and memory of the trainer and its workers."""
    why_envs: str | None = None
    """Why ``auto`` chose so many envs."""
    safe: Checkpoint | None = None
    """The last whole iteration."""
    faults_told: int = 0
    replayed: bool = False
    """Whether it was tried if the env repeats itself."""
    saved_at: int | None = None
    """The step of the last checkpoint; None if the last save failed."""

    @property
    def parts(self) -> dict[str, Stateful]:
        """What has a state that is saved and restored, by name."""
        parts: dict[str, Stateful] = {f"moments/{path}": moments for path, moments in self.moments.items()}
        return parts if self.return_scaler is None else {**parts, "return_scaler": self.return_scaler}

    @property
    def own_options(self) -> list[Mapping[str, Any]]:
        """What the env is reset with to give each of its opponents, by number, if the run chooses among them."""
        return [] if self.opponents is None else [options for _, options in self.opponents.lineup.setup.own]

    def close(self) -> None:
        """Release envs and processes."""
        try:
            self.source.close()
        finally:
            if self.eval_env is not None:
                self.eval_env.close()
            if self.opponents is not None:
                self.opponents.close()


def capture(run: Run) -> Checkpoint:
    """A copy of everything that decides how the run goes on. Cheap enough to take in every iteration."""
    weights, optimizer = run.learner.engine.copies()
    buffers = {name: buffer.clone() for name, buffer in run.learner.policy.named_buffers()}
    behind = None
    if run.config.overlap and run.safe is not None:
        moved_on = run.progress.iteration > int(run.safe.state["iteration"])
        behind = run.safe.policy if moved_on else run.safe.behind
    return Checkpoint(
        policy={**weights, **buffers},
        optimizer=optimizer,
        state={
            **run.progress.state(),
            "seed": run.seed,
            "n_updates": run.learner.n_updates,
            "parts": {name: part.state() for name, part in run.parts.items()},
            "opponents": None if run.opponents is None else run.opponents.state(),
            "spaces": run.spaces,
            "masked": run.masked,
            "encoding": ENCODING,
        },
        envs=_tensors(run.source.whereabouts()),
        behind=behind,
        opponents=None if run.opponents is None else _tensors(run.opponents.weights()),
        reference=run.learner.reference,
    )


def _tensors(arrays: Mapping[str, npt.NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def restore(run: Run, checkpoint: Checkpoint) -> None:
    """Continue from a checkpoint of the same config."""
    state = checkpoint.state
    policy = run.learner.policy
    if state["spaces"] != run.spaces:
        given, recorded = one_line(run.spaces), one_line(state["spaces"])
        raise CheckpointError(f"the env has spaces {given}, but the run was made with {recorded}")
    check_encoding(state, policy)
    for name in ("policy", "behind", "reference"):
        if (weights := getattr(checkpoint, name)) is not None:
            check_tensors(name, weights, policy.state_dict())
    check_envs(checkpoint.envs, run.config.n_envs, policy.layout, policy.codec, run.masked, policy.n_state)
    policy.load_state_dict(dict(checkpoint.policy))
    run.learner.engine.restore(checkpoint.optimizer)
    if checkpoint.reference is not None:
        run.learner.set_reference(checkpoint.reference)
    run.learner.n_updates = int(state["n_updates"])
    run.progress = Progress.from_state(state)
    for name, part in run.parts.items():
        part.restore(state["parts"][name])
    if run.opponents is not None:
        weights = {name: tensor.numpy() for name, tensor in (checkpoint.opponents or {}).items()}
        run.opponents.restore(state["opponents"], weights)
    numbers = checkpoint.envs["opponent"].tolist() if "opponent" in checkpoint.envs else []
    if strangers := [n for n in numbers if n != -1 and (run.opponents is None or not run.opponents.has(n))]:
        raise CheckpointError(f"the checkpoint does not fit this run's config: there is no opponent {strangers[0]}")
    whereabouts = {name: tensor.numpy() for name, tensor in checkpoint.envs.items()}
    if run.backend.backend == "serial":
        positions = Positions(run.seed, run.config.n_envs, policy.codec)
        positions.restore(whereabouts)
        at = positions.of(range(run.config.n_envs))
        try_states(run.factory, at, run.seed, run.care, run.config.parallel_start_method)
    run.source.restore(whereabouts)
    run.safe = checkpoint


def weights_hash(weights: Mapping[str, Tensor]) -> str:
    """A fingerprint of the weights: equal hashes mean bit-identical policies."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        digest.update(name.encode())
        digest.update(weights[name].detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()
