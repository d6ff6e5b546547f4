"""Checkpoints: directories of safetensors and JSON files that exist completely or not at all. Loading one runs no code.

A save writes the files into a temporary directory and syncs them to disk, then writes a manifest with their hashes, and
finally renames the directory. A load accepts only files that match the hashes in the manifest.
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
    "VerifiedCheckpoint",
    "list_checkpoints",
    "load_checkpoint",
    "newest_checkpoint",
    "prune",
    "save_checkpoint",
    "set_aside",
]

FORMAT = 3
_TENSOR_FILES = {
    "policy": "policy.safetensors",
    "optimizer": "optimizer.safetensors",
    "envs": "envs.safetensors",
}
"""The file of each attribute of a checkpoint that holds tensors."""
_OPTIONAL_TENSOR_FILES = {
    "lagged_weights": "behind.safetensors",
    "opponents": "opponents.safetensors",
    "reference": "reference.safetensors",
}
"""The files of the attributes that only some runs have."""
_STATE, _MANIFEST = "state.json", "manifest.json"
_REQUIRED_FILES = {*_TENSOR_FILES.values(), _STATE}
_PREFIX, _TEMPORARY_PREFIX, _SET_ASIDE_PREFIX = "ckpt-", ".saving-", "set-aside-"
_NAME = re.compile(rf"{_PREFIX}(\d{{1,18}})(-\d{{1,9}})?", re.ASCII)
MAX_JSON_BYTES = 64 << 20
"""Size of the largest ``state.json`` or ``manifest.json`` that is read."""
MAX_BYTES = 16 << 30
"""Size of the largest checkpoint that is read; half of the free memory, if that is less."""
_MAX_PROBLEMS = 3
"""Number of damaged checkpoints that a message names."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The complete state of a run between two iterations."""

    policy: Mapping[str, Tensor]
    """The weights of the policy."""
    optimizer: Mapping[str, Tensor]
    """The state of the optimizer."""
    state: Mapping[str, Any]
    """Counters, normalizers and spaces, as plain JSON data."""
    envs: Mapping[str, Tensor]
    """The position of every env in its episode."""
    lagged_weights: Mapping[str, Tensor] | None = None
    """With overlap: the weights of the iteration before, with which the next rollout is collected."""
    opponents: Mapping[str, Tensor] | None = None
    """The weights of the policies that are opponents."""
    reference: Mapping[str, Tensor] | None = None
    """The weights of the reference policy of the KL penalty."""

    @property
    def timesteps(self) -> int:
        """Steps of the run when the checkpoint was saved."""
        return int(self.state["timesteps"])


def save_checkpoint(directory: Path, checkpoint: Checkpoint) -> Path:
    """Save a checkpoint as ``directory/ckpt-<step>`` and return the path.

    Raise a CheckpointError if that fails; earlier checkpoints then stay as they were.
    """
    _check_weights(checkpoint.policy)
    state = _encode_state(checkpoint.state)
    target = directory / f"{_PREFIX}{checkpoint.timesteps:012d}"
    temporary = directory / f"{_TEMPORARY_PREFIX}{os.getpid()}"
    try:
        _refuse_symlink(directory)
        directory.mkdir(parents=True, exist_ok=True)
        for left_over in directory.glob(f"{_TEMPORARY_PREFIX}*"):  # of a killed save: a run has only one writer
            _remove_entry(left_over)
        temporary.mkdir()
        for name, data in _encode_files(checkpoint, state).items():
            _write_synced(temporary / name, data)
        _sync_directory(temporary)
        same_step = [path for path in list_checkpoints(directory) if _step_of(path) == checkpoint.timesteps]
        # An earlier checkpoint of this step is deleted only afterwards, so the new one needs another name.
        target = _unused_path(target)
        temporary.rename(target)
        _sync_directory(directory)
        for path in same_step:
            _delete_checkpoint(path)
    except OSError as error:
        _remove_directory(temporary)
        raise CheckpointError(f"not saved to {target}: {error.strerror or error}") from error
    return target


def _check_weights(weights: Mapping[str, Tensor]) -> None:
    """Raise a CheckpointError if a weight is NaN or infinite."""
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"not saved: the weights {name!r} are not finite")


def _encode_state(state: Mapping[str, Any]) -> bytes:
    """Return the content of ``state.json``; raise a CheckpointError if the state is not plain data or too large."""
    try:
        data = json.dumps(state, allow_nan=False, indent=1).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"not saved: {_STATE} cannot hold the run's state ({error})") from error
    if len(data) > MAX_JSON_BYTES:
        raise CheckpointError(f"not saved: {_STATE} would have {len(data):,} bytes, of at most {MAX_JSON_BYTES:,}")
    return data


def _encode_files(checkpoint: Checkpoint, state: bytes) -> dict[str, bytes]:
    """Return the contents of the files of a checkpoint by name, the manifest last."""
    files = {file: _encode_tensors(getattr(checkpoint, attribute)) for attribute, file in _TENSOR_FILES.items()}
    files[_STATE] = state
    for attribute, file in _OPTIONAL_TENSOR_FILES.items():
        if (tensors := getattr(checkpoint, attribute)) is not None:
            files[file] = _encode_tensors(tensors)
    manifest = {
        "format": FORMAT,
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in files.items()},
        "bytes": {name: len(data) for name, data in files.items()},
    }
    files[_MANIFEST] = json.dumps(manifest, indent=1).encode()
    return files


def _encode_tensors(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors in the safetensors format."""
    return safetensors.torch.save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def load_checkpoint(path: Path) -> Checkpoint:
    """Return a verified checkpoint; raise a CheckpointError that says what is wrong with it."""
    try:
        contents = _read_files(path)
        tensor_files = {**_TENSOR_FILES, **_OPTIONAL_TENSOR_FILES}
        tensors = {attribute: contents[file] for attribute, file in tensor_files.items() if file in contents}
        return Checkpoint(state=contents[_STATE], **tensors)
    except OSError as error:
        name = Path(error.filename).name if error.filename else ""
        raise CheckpointError(f"{path} is incomplete: {name}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, ArithmeticError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{path} is damaged: {type(error).__name__}: {one_line(error)}") from None


def _read_files(path: Path) -> dict[str, Any]:
    """Return the parsed contents of the files of a checkpoint by name. Each file must match the manifest."""
    manifest = read_json(path / _MANIFEST, MAX_JSON_BYTES)
    if manifest["format"] != FORMAT:
        given = one_line(repr(manifest["format"]), 40)
        raise CheckpointError(f"{path} has format {given}; this version of Corral reads {FORMAT}")
    hashes, sizes = manifest["sha256"], manifest.get("bytes")  # earlier versions wrote no sizes
    if set(hashes) - set(_OPTIONAL_TENSOR_FILES.values()) != _REQUIRED_FILES:
        raise CheckpointError(f"{path} is damaged: its manifest names {one_line(', '.join(hashes))}")
    contents: dict[str, Any] = {}
    bytes_left = min(MAX_BYTES, available_memory() // 2)
    for name in hashes:
        data = read_regular(path / name, min(bytes_left, MAX_JSON_BYTES) if name == _STATE else bytes_left)
        bytes_left -= len(data)
        if sizes is not None and sizes[name] != len(data):
            raise CheckpointError(f"{path / name} is damaged: it has {len(data):,} bytes, not what the manifest says")
        if hashlib.sha256(data).hexdigest() != hashes[name]:
            raise CheckpointError(f"{path / name} is damaged: its hash is not the one in the manifest")
        contents[name] = _parse_state(path / _STATE, data) if name == _STATE else safetensors.torch.load(data)
        del data  # frees the bytes before the next file is read: the tensors are copies
    return contents


def _parse_state(path: Path, data: bytes) -> Mapping[str, Any]:
    """Return the data of a ``state.json``, which must hold the number of timesteps."""
    try:
        state = parse_json(data)
    except ValueError as error:
        raise CheckpointError(f"{path} is damaged: {one_line(error)}") from None
    if not isinstance(state, dict) or type(state.get("timesteps")) is not int:
        raise CheckpointError(f"{path} is damaged: it has no number of timesteps")
    return state


def list_checkpoints(directory: Path) -> list[Path]:
    """Return the checkpoint directories, oldest first."""
    _refuse_symlink(directory)
    if not directory.is_dir():
        return []
    return sorted(path for path in directory.iterdir() if _NAME.fullmatch(path.name) and path.is_dir())


def _refuse_symlink(directory: Path) -> None:
    """Raise a CheckpointError for a symbolic link, which could make Corral write or delete files outside of the run."""
    if directory.is_symlink():
        raise CheckpointError(f"{directory} is a link, and no link is followed there; put the directory itself there")


@dataclass(frozen=True, slots=True)
class VerifiedCheckpoint:
    """The newest checkpoint that could be verified."""

    checkpoint: Checkpoint
    path: Path
    problems: tuple[str, ...]
    """What is wrong with newer checkpoints, which were skipped."""


def newest_checkpoint(directory: Path) -> VerifiedCheckpoint | None:
    """Return the newest checkpoint that can be verified; None if there are no checkpoints.

    Raise a CheckpointError if all checkpoints are damaged.
    """
    problems: list[str] = []
    paths = list_checkpoints(directory)
    for skipped, path in enumerate(reversed(paths)):
        try:
            checkpoint = load_checkpoint(path)
        except CheckpointError as error:
            if skipped < _MAX_PROBLEMS:
                problems.append(str(error))
        else:
            return VerifiedCheckpoint(checkpoint, path, tuple(_with_remainder(problems, skipped)))
    if problems:
        raise CheckpointError("no checkpoint can be used: " + "; ".join(_with_remainder(problems, len(paths))))
    return None


def _with_remainder(problems: list[str], total: int) -> list[str]:
    """Return the problems, and a last line with the number of those that are not among them."""
    remainder = total - len(problems)
    return [*problems, f"{remainder:,} more cannot be used either"] if remainder else problems


def set_aside(directory: Path, newer_than: int) -> None:
    """Rename checkpoints of later steps, because a run that resumes from an earlier one will not reach their state."""
    for path in list_checkpoints(directory):
        if _step_of(path) > newer_than:
            path.rename(_unused_path(path.with_name(f"{_SET_ASIDE_PREFIX}{path.name}")))


def _step_of(path: Path) -> int:
    """Return the step in the name of a checkpoint; -1 for other names."""
    match = _NAME.fullmatch(path.name)
    return -1 if match is None else int(match[1])


def _delete_checkpoint(path: Path) -> None:
    """Delete a checkpoint. It is renamed first, so that half of a checkpoint never has the name of one."""
    renamed = path.with_name(f"{_TEMPORARY_PREFIX}gone-{path.name}")
    try:
        path.rename(renamed)
    except OSError:
        return
    _remove_directory(renamed)


def _remove_entry(path: Path) -> None:
    """Delete a file or a directory; ``rmtree`` alone would open a named pipe and block."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            _remove_directory(path)
        else:
            path.unlink()


def _remove_directory(path: Path) -> None:
    """Delete as much of a directory as possible; Python cannot delete directories that are nested a thousand deep."""
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)


def _unused_path(path: Path) -> Path:
    """Return a path that does not exist: this one, or with a number at its end."""
    numbered = (path.with_name(f"{path.name}{f'-{i}' if i else ''}") for i in itertools.count())
    return next(candidate for candidate in numbered if not candidate.exists())


def prune(directory: Path, keep: int) -> None:
    """Delete all checkpoints but the newest ``keep``, and what unfinished saves left."""
    with contextlib.suppress(OSError):  # for example without a free file descriptor: the next call deletes them
        for path in list_checkpoints(directory)[:-keep]:
            _delete_checkpoint(path)
        for path in directory.glob(f"{_TEMPORARY_PREFIX}*"):
            _remove_entry(path)


def _write_synced(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    """Wait until the entries of a directory are on the disk."""
    if os.name != "posix":
        return  # Windows cannot open directories, and its rename is durable enough
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
