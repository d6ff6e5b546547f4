"""Checkpoints: safetensors and JSON in a directory that is either complete or not there. Opening one runs no code.

A save builds the directory aside, syncs every file, writes a manifest of hashes last, and renames. A load believes
nothing that the manifest does not confirm.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from corral.core.errors import CheckpointError

__all__ = [
    "Checkpoint",
    "FoundCheckpoint",
    "list_checkpoints",
    "load_checkpoint",
    "newest_checkpoint",
    "prune",
    "save_checkpoint",
    "set_aside",
]

FORMAT = 3
_STATE = "state.json"
_EXTRAS = {name: f"{name}.safetensors" for name in ("behind", "opponents", "reference")}
"""What only some runs have."""
_FILES = ("policy.safetensors", "optimizer.safetensors", "envs.safetensors", _STATE)
_PREFIX, _TEMPORARY, _ASIDE = "ckpt-", ".saving-", "set-aside-"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run at an iteration boundary."""

    policy: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]
    """Counters, normalisers, spaces: plain JSON data."""
    envs: Mapping[str, Tensor]
    """Where every env is."""
    behind: Mapping[str, Tensor] | None = None
    """With overlap: the weights of one iteration before, with which the next rollout is collected."""
    opponents: Mapping[str, Tensor] | None = None
    """Policies that play the other side."""
    reference: Mapping[str, Tensor] | None = None
    """The weights of the policy that the run stays near, if it does."""

    @property
    def timesteps(self) -> int:
        """Steps taken when it was made."""
        return int(self.state["timesteps"])


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> Path:
    """Save into ``directory/ckpt-<step>``; a CheckpointError leaves what was there before as it was."""
    for name, tensor in checkpoint.policy.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"not saved: the weights {name!r} are not finite")
    target = directory / f"{_PREFIX}{checkpoint.timesteps:012d}"
    building = directory / f"{_TEMPORARY}{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for left_over in directory.glob(f"{_TEMPORARY}*"):  # of a save that was killed: we are the only writer
            shutil.rmtree(left_over, ignore_errors=True)
        building.mkdir()
        parts = checkpoint.policy, checkpoint.optimizer, checkpoint.envs
        files = {name: safetensors.torch.save(_plain(part)) for name, part in zip(_FILES, parts, strict=False)}
        files[_STATE] = json.dumps(checkpoint.state, allow_nan=False, indent=1).encode()
        for name, file in _EXTRAS.items():
            if (extra := getattr(checkpoint, name)) is not None:
                files[file] = safetensors.torch.save(_plain(extra))
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        manifest = {"format": FORMAT, "sha256": hashes}
        for name, data in {**files, "manifest.json": json.dumps(manifest, indent=1).encode()}.items():
            _write_synced(building / name, data)
        _sync_directory(building)
        same_step = [path for path in list_checkpoints(directory) if _step_of(path) == checkpoint.timesteps]
        target = _free_name(target)  # there is never a moment without a checkpoint of this step, once there was one
        building.rename(target)
        _sync_directory(directory)
        for path in same_step:
            _delete(path)
    except OSError as error:
        shutil.rmtree(building, ignore_errors=True)
        raise CheckpointError(f"not saved to {target}: {error.strerror or error}") from error
    return target


def load_checkpoint(path: Path) -> Checkpoint:
    """Load and verify; a CheckpointError says what is wrong with it."""
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        if manifest["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {manifest['format']!r}; this version of Corral reads {FORMAT}")
        hashes, files = manifest["sha256"], {}
        if set(hashes) - set(_EXTRAS.values()) != set(_FILES):
            raise CheckpointError(f"{path} is damaged: its manifest names {', '.join(hashes)}")
        for name in hashes:
            data = (path / name).read_bytes()
            if hashlib.sha256(data).hexdigest() != hashes[name]:
                raise CheckpointError(f"{path / name} is damaged: its hash is not the one in the manifest")
            files[name] = data
        state = json.loads(files.pop(_STATE))
        policy, optimizer, envs = (safetensors.torch.load(files[name]) for name in _FILES[:3])
        extras = {name: safetensors.torch.load(files[file]) for name, file in _EXTRAS.items() if file in files}
        loaded = Checkpoint(policy, optimizer, state, envs, **extras)
        _ = loaded.timesteps  # what has none is not a checkpoint, whoever vouches for it
        return loaded
    except OSError as error:
        raise CheckpointError(f"{path} is incomplete: {error.filename or ''} {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {error}") from None


def list_checkpoints(directory: Path) -> list[Path]:
    """Checkpoint directories, oldest first."""
    return sorted(path for path in directory.glob(f"{_PREFIX}*") if path.is_dir())


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint that verified, and what was wrong with newer ones."""

    checkpoint: Checkpoint
    path: Path
    complaints: tuple[str, ...]


def newest_checkpoint(directory: Path) -> FoundCheckpoint | None:
    """The newest checkpoint that verifies; None if there is none at all, an error if all are damaged."""
    complaints: list[str] = []
    for path in reversed(list_checkpoints(directory)):
        try:
            return FoundCheckpoint(load_checkpoint(path), path, tuple(complaints))
        except CheckpointError as error:
            complaints.append(str(error))
    if complaints:
        raise CheckpointError("no checkpoint can be used: " + "; ".join(complaints))
    return None


def set_aside(directory: Path, newer_than: int) -> None:
    """Take checkpoints of a later step out of the way: a run that goes on from an earlier one will not pass them."""
    for path in list_checkpoints(directory):
        if _step_of(path) > newer_than:
            path.rename(_free_name(path.with_name(f"{_ASIDE}{path.name}")))


def _step_of(path: Path) -> int:
    step = path.name.removeprefix(_PREFIX).partition("-")[0]
    return int(step) if step.isdigit() else -1


def _delete(path: Path) -> None:
    """Take a checkpoint away, at once: half of one must never be found under its name."""
    gone = path.with_name(f"{_TEMPORARY}gone-{path.name}")
    try:
        path.rename(gone)
    except OSError:
        return
    shutil.rmtree(gone, ignore_errors=True)


def _free_name(path: Path) -> Path:
    return next(
        name for i in itertools.count() if not (name := path.with_name(f"{path.name}{f'-{i}' if i else ''}")).exists()
    )


def prune(directory: Path, keep: int) -> None:
    """Delete all but the newest ``keep``, and left-overs of saves that did not finish."""
    for path in list_checkpoints(directory)[:-keep]:
        _delete(path)
    for path in directory.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    if os.name != "posix":
        return  # directories cannot be opened on Windows; its rename is already durable enough
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
