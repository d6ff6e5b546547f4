"""Checks that a checkpoint fits the run that loads it.

A run directory may come from an untrusted source. Every value is checked before its first use. An error is one line
that names what does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict, Field, StrictBool, ValidationError
from torch import Tensor
from torch.nn.parameter import is_lazy

from corral.config.schema import TrainConfig
from corral.core.actions import ActionCodec
from corral.core.errors import CheckpointError, CorralError, UsageError, one_line
from corral.core.spaces import Layout, space_from_data
from corral.core.types import FAULT_KEYS
from corral.policy.factory import build_policy
from corral.ppo.learner import check_adjustable
from corral.storage.checkpoint import Checkpoint
from corral.training.progress import RECENT_EPISODES
from corral.vec.replay_log import REPLAY_LIMIT

__all__ = ["check_checkpoint", "check_envs", "check_state", "check_tensors", "spaces_of"]

Array = npt.NDArray[Any]
_MAX_COUNT = 2**53
"""The largest accepted number of steps or episodes: more than any run reaches, and far from an overflow of int64."""
_Count = Annotated[int, Field(ge=0, le=_MAX_COUNT)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_MISFIT = "the envs' positions do not fit this run's config"
_Pair = Annotated[list[_Number], Field(min_length=2, max_length=2)]


class _Spaces(BaseModel):
    model_config = ConfigDict(strict=True)
    observation: dict[str, Any]
    action: dict[str, Any]


class _State(BaseModel):
    """The keys and types of ``state.json``. What ``parts``, ``opponents`` and ``hooks`` contain is checked later."""

    model_config = ConfigDict(strict=True)
    iteration: _Count
    timesteps: _Count
    episodes: _Count
    seconds: _Seconds
    eval_seconds: _Seconds
    discarded_seconds: _Seconds = 0.0
    recent: Annotated[list[_Pair], Field(max_length=RECENT_EPISODES)]
    best_reward: _Number | None
    last_eval_reward: _Number | None
    mishaps: dict[str, _Count]
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    n_updates: _Count
    parts: dict[str, dict[str, Any]]
    opponents: dict[str, Any] | None
    spaces: _Spaces
    masked: StrictBool
    hooks: dict[str, dict[str, Any]] = {}
    overrides: dict[str, _Number] = {}


def check_state(state: Mapping[str, Any]) -> None:
    """Raise a CheckpointError if ``state.json`` has values that no run writes, or lacks a key."""
    try:
        checked = _State.model_validate(state)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = "/".join(map(str, first["loc"]))
        raise CheckpointError(f"state.json does not fit: {one_line(key)}: {one_line(first['msg'])}") from None
    if any(length < 0 or length != int(length) for _, length in checked.recent):
        raise CheckpointError("state.json does not fit: recent has an episode whose length is no number of steps")
    for name, value in checked.overrides.items():
        try:
            check_adjustable(name, value)
        except UsageError as error:
            raise CheckpointError(f"state.json does not fit: {one_line(error)}") from None
    if unknown := checked.mishaps.keys() - {*FAULT_KEYS.values()}:
        raise CheckpointError(f"state.json does not fit: mishaps has an unknown key {one_line(min(unknown))!r}")


def spaces_of(state: Mapping[str, Any]) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """Return the observation space and the action space that the run was made with."""
    try:
        observation, action = (space_from_data(state["spaces"][name]) for name in ("observation", "action"))
        Layout(observation)
        ActionCodec(action)
    except CorralError as error:
        raise CheckpointError(f"state.json does not fit: {one_line(error)}") from None
    except Exception as error:  # what Gymnasium and numpy raise for impossible sizes and bounds
        raise CheckpointError(f"state.json does not fit: its spaces are invalid ({one_line(error)})") from None
    return observation, action


def check_tensors(what: str, tensors: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Raise a CheckpointError if names, shapes or types are not the expected ones, or if a number is not finite."""
    misfit = f"the {what} does not fit this run's config"
    for name in [*(expected.keys() - tensors.keys()), *(tensors.keys() - expected.keys())]:
        problem = "has no" if name in expected else "has an unknown"
        raise CheckpointError(f"{misfit}: it {problem} {one_line(name, 80)!r}")
    for name, tensor in tensors.items():
        like = expected[name]
        if is_lazy(like):
            continue  # a parameter of the user's network that takes the shape of what is loaded
        if tensor.shape != like.shape or tensor.dtype != like.dtype:
            raise CheckpointError(
                f"{misfit}: {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                f"expected {like.dtype} of shape {tuple(like.shape)}"
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"{misfit}: {name} is not finite")


def check_checkpoint(config: TrainConfig, checkpoint: Checkpoint) -> None:
    """Raise a CheckpointError if no run with this config writes this checkpoint. Allocates no memory of its size."""
    state = checkpoint.state
    check_state(state)
    if state["timesteps"] != state["iteration"] * config.rollout_size:
        raise CheckpointError(
            f"the checkpoint does not fit this run's config: {state['iteration']:,} iterations of n_steps "
            f"{config.n_steps} x n_envs {config.n_envs} are not {state['timesteps']:,} steps"
        )
    observation_space, action_space = spaces_of(checkpoint.state)
    if config.policy is None:  # a built-in network, whose size the config decides
        try:
            with torch.device("meta"):  # tensors with a shape but without memory
                expected = build_policy(config, observation_space, action_space, None).state_dict()
        except CorralError:
            raise
        except Exception as error:  # what torch raises for sizes that overflow
            raise CheckpointError(f"the network does not fit into memory: {one_line(error)}") from None
        check_tensors("policy", checkpoint.policy, expected)


def check_envs(
    envs: Mapping[str, Tensor], n_envs: int, layout: Layout, codec: ActionCodec, has_masks: bool, n_state: int
) -> None:
    """Raise a CheckpointError if the saved positions of the envs are impossible for these envs."""
    columns: dict[str, tuple[npt.DTypeLike, tuple[int, ...]]] = {
        "episode": (np.int64, (n_envs,)),
        "length": (np.int64, (n_envs,)),
        "reward": (np.float64, (n_envs,)),
        "opponent": (np.int64, (n_envs,)),
        **{f"observation/{leaf.path}": (leaf.dtype, (n_envs, *leaf.shape)) for leaf in layout.leaves},
        **({"masks": (np.bool_, (n_envs, codec.n_mask))} if has_masks else {}),
        **({"memory": (np.float32, (n_envs, n_state))} if n_state else {}),
    }
    arrays = {name: tensor.numpy() for name, tensor in envs.items()}
    for name, (dtype, shape) in columns.items():
        if name in arrays and (arrays[name].dtype != dtype or arrays[name].shape != shape):
            raise CheckpointError(f"{_MISFIT}: {one_line(name, 80)} should be {np.dtype(dtype)} of shape {shape}")
    has_observation = [name in arrays for name in columns if name.startswith("observation/")]
    if not {"episode", "length", "reward"} <= arrays.keys() or any(has_observation) != all(has_observation):
        raise CheckpointError(f"{_MISFIT}: some of them are missing")
    _check_numbers(arrays)
    by_env = {name: array for name, array in arrays.items() if name not in columns}
    for i in range(n_envs):
        actions, state = by_env.pop(f"actions/{i}", None), by_env.pop(f"state/{i}", None)
        _check_replay_data(actions, state, int(arrays["length"][i]), codec)
    for name in by_env:
        raise CheckpointError(f"{_MISFIT}: {one_line(name, 80)!r} is unknown")


def _check_numbers(arrays: Mapping[str, Array]) -> None:
    """Raise a CheckpointError if the number or length of an episode is impossible, or a float is not finite."""
    if (arrays["episode"] < 0).any() or (arrays["length"] < 0).any():
        raise CheckpointError(f"{_MISFIT}: an episode or its length is negative")
    if (arrays["episode"] > _MAX_COUNT).any() or (arrays["length"] > _MAX_COUNT).any():
        raise CheckpointError(f"{_MISFIT}: an episode or its length is more than 2**53")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"{_MISFIT}: {one_line(name, 80)} is not finite")


def _check_replay_data(actions: Array | None, state: Array | None, length: int, codec: ActionCodec) -> None:
    """Raise a CheckpointError if an env cannot be restored from these actions [L, D] and this state (bytes).

    Without a state, there must be an action for each of the ``length`` steps of the episode. With one, there are only
    the actions since it was taken.
    """
    if state is not None and (state.dtype != np.uint8 or state.ndim != 1):
        raise CheckpointError(f"{_MISFIT}: a state should be bytes")
    if actions is None:
        return
    if actions.ndim != 2 or actions.shape[1] != codec.n_actions or actions.dtype != codec.dtype:
        raise CheckpointError(f"{_MISFIT}: actions should be {codec.dtype} of shape (steps, {codec.n_actions})")
    n_steps = len(actions)
    if n_steps > REPLAY_LIMIT:
        raise CheckpointError(f"{_MISFIT}: {n_steps:,} actions of an env are more than {REPLAY_LIMIT:,}")
    if n_steps != length and (state is None or n_steps > length):
        raise CheckpointError(f"{_MISFIT}: {n_steps:,} actions in an episode of {length:,} steps")
    for head in codec.heads:
        chosen, choices = actions[:, head.actions], head.size if head.kind == "categorical" else 2
        if head.kind != "gaussian" and not ((chosen >= 0) & (chosen < choices) & (chosen == np.rint(chosen))).all():
            raise CheckpointError(f"{_MISFIT}: an action is not one of the {choices:,} choices")
