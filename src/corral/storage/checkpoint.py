"""Checkpoints: safetensors and JSON in a directory that is either complete or not there. Opening one runs no code.

A save builds the directory aside, syncs every file, writes a manifest of hashes last, and renames. A load believes
nothing that the manifest does not confirm.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from corral.core.errors import CheckpointError, one_line
from corral.core.files import parse_json, read_json, read_regular
from corral.core.machine import available_memory

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
_EXTRAS = {
    "lagged_weights": "behind.safetensors",
    "opponents": "opponents.safetensors",
    "reference": "reference.safetensors",
}
"""Attributes of a checkpoint that only some runs have, and their files."""
_FILES = ("policy.safetensors", "optimizer.safetensors", "envs.safetensors", _STATE)
_MANIFEST = "manifest.json"
_PREFIX, _TEMPORARY, _ASIDE = "ckpt-", ".saving-", "set-aside-"
_NAME = re.compile(rf"{_PREFIX}(\d{{1,18}})(-\d{{1,9}})?", re.ASCII)
MOST_JSON = 64 << 20
"""Bytes of ``state.json`` and ``manifest.json`` that are read."""
_MOST_COMPLAINTS = 3
"""Checkpoints that cannot be used and are named in a message."""
MOST_BYTES = 16 << 30
"""Bytes of a whole checkpoint that are read; half of the memory that is free, if that is less."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A run at an iteration boundary."""

    policy: Mapping[str, Tensor]
    optimizer: Mapping[str, Tensor]
    state: Mapping[str, Any]
    """Counters, normalisers, spaces: plain JSON data."""
    envs: Mapping[str, Tensor]
    """Where every env is."""
    lagged_weights: Mapping[str, Tensor] | None = None
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
    try:
        state = json.dumps(checkpoint.state, allow_nan=False, indent=1).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"not saved: {_STATE} cannot hold the run's state ({error})") from error
    if len(state) > MOST_JSON:
        raise CheckpointError(f"not saved: {_STATE} would have {len(state):,} bytes, of at most {MOST_JSON:,}")
    target = directory / f"{_PREFIX}{checkpoint.timesteps:012d}"
    building = directory / f"{_TEMPORARY}{os.getpid()}"
    try:
        _refuse_link(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for left_over in directory.glob(f"{_TEMPORARY}*"):  # of a save that was killed: we are the only writer
            _remove(left_over)
        building.mkdir()
        parts = checkpoint.policy, checkpoint.optimizer, checkpoint.envs
        files = {name: safetensors.torch.save(_plain(part)) for name, part in zip(_FILES, parts, strict=False)}
        files[_STATE] = state
        for name, file in _EXTRAS.items():
            if (extra := getattr(checkpoint, name)) is not None:
                files[file] = safetensors.torch.save(_plain(extra))
        hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        sizes = {name: len(data) for name, data in files.items()}
        manifest = {"format": FORMAT, "sha256": hashes, "bytes": sizes}
        for name, data in {**files, _MANIFEST: json.dumps(manifest, indent=1).encode()}.items():
            _write_synced(building / name, data)
        _sync_directory(building)
        same_step = [path for path in list_checkpoints(directory) if _step_of(path) == checkpoint.timesteps]
        target = _free_name(target)  # there is never a moment without a checkpoint of this step, once there was one
        building.rename(target)
        _sync_directory(directory)
        for path in same_step:
            _delete(path)
    except OSError as error:
        _remove_folder(building)
        raise CheckpointError(f"not saved to {target}: {error.strerror or error}") from error
    return target


def load_checkpoint(path: Path) -> Checkpoint:
    """Load and verify; a CheckpointError says what is wrong with it."""
    try:
        parts = _read_parts(path)
        policy, optimizer, envs, state = (parts[name] for name in _FILES)
        extras = {name: parts[file] for name, file in _EXTRAS.items() if file in parts}
        return Checkpoint(policy, optimizer, state, envs, **extras)
    except OSError as error:
        name = Path(error.filename).name if error.filename else ""
        raise CheckpointError(f"{path} is incomplete: {name}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, ArithmeticError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {one_line(error)}") from None


def _read_parts(path: Path) -> dict[str, Any]:
    """What the files of a checkpoint hold, by file name; each file must be as the manifest says that it is."""
    manifest = read_json(path / _MANIFEST, MOST_JSON)
    if manifest["format"] != FORMAT:
        given = one_line(repr(manifest["format"]), 40)
        raise CheckpointError(f"{path} has format {given}; this version of Corral reads {FORMAT}")
    hashes, sizes = manifest["sha256"], manifest.get("bytes")  # written by earlier versions: without sizes
    if set(hashes) - set(_EXTRAS.values()) != set(_FILES):
        raise CheckpointError(f"{path} is damaged: its manifest names {one_line(', '.join(hashes))}")
    parts: dict[str, Any] = {}
    room = min(MOST_BYTES, available_memory() // 2)
    for name in hashes:
        data = read_regular(path / name, min(room, MOST_JSON) if name == _STATE else room)
        room -= len(data)
        if sizes is not None and sizes[name] != len(data):
            raise CheckpointError(f"{path / name} is damaged: it has {len(data):,} bytes, not what the manifest says")
        if hashlib.sha256(data).hexdigest() != hashes[name]:
            raise CheckpointError(f"{path / name} is damaged: its hash is not the one in the manifest")
        parts[name] = _parse_state(path / _STATE, data) if name == _STATE else safetensors.torch.load(data)
        del data  # before the next file is read: tensors are copies
    return parts


def _parse_state(path: Path, data: bytes) -> Mapping[str, Any]:
    try:
        state = parse_json(data)
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {one_line(error)}") from None
    if not isinstance(state, dict) or type(state.get("timesteps")) is not int:
        raise CheckpointError(f"{path} is damaged: it has no number of timesteps")
    return state


def list_checkpoints(directory: Path) -> list[Path]:
    """Checkpoint directories, oldest first."""
    _refuse_link(directory)
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.is_dir())


def _refuse_link(directory: Path) -> None:
    """A link could lead to files that are not the run's: nothing is written or deleted behind it."""
    if directory.is_symlink():
        raise CheckpointError(f"{directory} is a link, and no link is followed there; put the directory itself there")


@dataclass(frozen=True, slots=True)
class FoundCheckpoint:
    """A checkpoint that verified, and what was wrong with newer ones."""

    checkpoint: Checkpoint
    path: Path
    complaints: tuple[str, ...]


def newest_checkpoint(directory: Path) -> FoundCheckpoint | None:
    """The newest checkpoint that verifies; None if there is none at all, an error if all are damaged."""
    complaints: list[str] = []
    paths = list_checkpoints(directory)
    for number, path in enumerate(reversed(paths)):
        try:
            checkpoint = load_checkpoint(path)
        except CheckpointError as error:
            if number < _MOST_COMPLAINTS:
                complaints.append(str(error))
        else:
            return FoundCheckpoint(checkpoint, path, tuple(_and_more(complaints, number)))
    if complaints:
        raise CheckpointError("no checkpoint can be used: " + "; ".join(_and_more(complaints, len(paths))))
    return None


def _and_more(complaints: list[str], total: int) -> list[str]:
    """The first complaints, and how many there are besides."""
    more = total - len(complaints)
    return [*complaints, f"{more:,} more cannot be used either"] if more else complaints


def set_aside(directory: Path, newer_than: int) -> None:
    """Take checkpoints of a later step out of the way: a run that goes on from an earlier one will not pass them."""
    for path in list_checkpoints(directory):
        if _step_of(path) > newer_than:
            path.rename(_free_name(path.with_name(f"{_ASIDE}{path.name}")))


def _step_of(path: Path) -> int:
    found = _NAME.fullmatch(path.name)
    return -1 if found is None else int(found[1])


def _delete(path: Path) -> None:
    """Take a checkpoint away, at once: half of one must never be found under its name."""
    gone = path.with_name(f"{_TEMPORARY}gone-{path.name}")
    try:
        path.rename(gone)
    except OSError:
        return
    _remove_folder(gone)


def _remove(path: Path) -> None:
    """Take away what lies under a name; ``rmtree`` alone would open a named pipe, and wait."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            _remove_folder(path)
        else:
            path.unlink()


def _remove_folder(path: Path) -> None:
    """Delete a folder, as far as that can be done; folders nested a thousand deep are more than Python can delete."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)


def _free_name(path: Path) -> Path:
    return next(
        name for i in itertools.count() if not (name := path.with_name(f"{path.name}{f'-{i}' if i else ''}")).exists()
    )


def prune(directory: Path, keep: int) -> None:
    """Delete all but the newest ``keep``, and left-overs of saves that did not finish."""
    with contextlib.suppress(OSError):  # without a free descriptor, for one: then the next time
        for path in list_checkpoints(directory)[:-keep]:
            _delete(path)
        for path in directory.glob(f"{_TEMPORARY}*"):
            _remove(path)


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
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
