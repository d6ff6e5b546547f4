"""Whether what a checkpoint holds fits what it is loaded into: a run directory may come from anywhere.

Every check comes before the first use, and an error is one line that names what does not fit.
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
from corral.core.types import RECOVERY_KEYS
from corral.policy.factory import build_policy
from corral.ppo.learner import check_adjustable
from corral.storage.checkpoint import Checkpoint
from corral.training.progress import RECENT
from corral.vec.replay_log import REPLAY_LIMIT

__all__ = ["check_checkpoint", "check_envs", "check_state", "check_tensors", "spaces_of"]

Array = npt.NDArray[Any]
_MOST = 2**53
"""Steps or episodes that can be counted: more than any run takes, with room to count on from there."""
_Count = Annotated[int, Field(ge=0, le=_MOST)]
_Number = Annotated[float, Field(allow_inf_nan=False)]
_Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_MISFIT = "the envs' positions do not fit this run's config"
_Pair = Annotated[list[_Number], Field(min_length=2, max_length=2)]


class _Spaces(BaseModel):
    model_config = ConfigDict(strict=True)
    observation: dict[str, Any]
    action: dict[str, Any]


class _State(BaseModel):
    """What ``state.json`` must hold, as plain data; what it means is checked by whoever restores it."""

    model_config = ConfigDict(strict=True)
    iteration: _Count
    timesteps: _Count
    episodes: _Count
    seconds: _Seconds
    eval_seconds: _Seconds
    discarded_seconds: _Seconds = 0.0
    recent: Annotated[list[_Pair], Field(max_length=RECENT)]
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
    """Refuse a ``state.json`` with other keys or values than a run writes."""
    try:
        told = _State.model_validate(state)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "/".join(map(str, first["loc"]))
        raise CheckpointError(f"state.json does not fit: {one_line(place)}: {one_line(first['msg'])}") from None
    if any(length < 0 or length != int(length) for _, length in told.recent):
        raise CheckpointError("state.json does not fit: recent has an episode whose length is no number of steps")
    for name, value in told.overrides.items():
        try:
            check_adjustable(name, value)
        except UsageError as error:
            raise CheckpointError(f"state.json does not fit: {one_line(error)}") from None
    if strangers := told.mishaps.keys() - {*RECOVERY_KEYS.values()}:
        raise CheckpointError(f"state.json does not fit: mishaps counts {one_line(sorted(strangers)[0])!r}")


def spaces_of(state: Mapping[str, Any]) -> tuple[gym.Space[Any], gym.Space[Any]]:
    """The spaces of the env that a run was made with: of observations and of actions."""
    try:
        observation, action = (space_from_data(state["spaces"][name]) for name in ("observation", "action"))
        Layout(observation)
        ActionCodec(action)
    except CorralError as error:
        raise CheckpointError(f"state.json does not fit: {one_line(error)}") from None
    except Exception as error:  # whatever Gymnasium and numpy raise for numbers that make no space
        raise CheckpointError(f"state.json does not fit: its spaces are none ({one_line(error)})") from None
    return observation, action


def check_tensors(what: str, given: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors whose names, shapes or types are not the expected ones, or whose numbers are not finite."""
    for name in [*(expected.keys() - given.keys()), *(given.keys() - expected.keys())]:
        problem = "has no" if name in expected else "has an unknown"
        raise CheckpointError(f"the {what} does not fit this run's config: it {problem} {one_line(name, 80)!r}")
    for name, tensor in given.items():
        wanted = expected[name]
        if is_lazy(wanted):
            continue  # of a network of the user's own, which takes the shape that it is given
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            raise CheckpointError(
                f"the {what} does not fit this run's config: {name} is {tensor.dtype} of shape {tuple(tensor.shape)}, "
                f"expected {wanted.dtype} of shape {tuple(wanted.shape)}"
            )
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(f"the {what} does not fit this run's config: {name} is not finite")


def check_checkpoint(config: TrainConfig, checkpoint: Checkpoint) -> None:
    """Refuse a checkpoint that cannot be of a run with this config, before anything of its size is made."""
    state = checkpoint.state
    check_state(state)
    if state["timesteps"] != state["iteration"] * config.rollout_size:
        raise CheckpointError(
            f"the checkpoint does not fit this run's config: {state['iteration']:,} iterations of n_steps "
            f"{config.n_steps} x n_envs {config.n_envs} are not {state['timesteps']:,} steps"
        )
    spaces = spaces_of(checkpoint.state)
    if config.policy is None:  # the built-in network, whose size is what the config says
        try:
            with torch.device("meta"):  # shapes without memory
                expected = build_policy(config, *spaces, None).state_dict()
        except CorralError:
            raise
        except Exception as error:  # sizes that overflow
            raise CheckpointError(f"the network does not fit into memory: {one_line(error)}") from None
        check_tensors("policy", checkpoint.policy, expected)


def check_envs(
    given: Mapping[str, Tensor], n_envs: int, layout: Layout, codec: ActionCodec, masked: bool, n_state: int
) -> None:
    """Refuse positions of envs that these envs cannot be in."""
    columns: dict[str, tuple[npt.DTypeLike, tuple[int, ...]]] = {
        "episode": (np.int64, (n_envs,)),
        "length": (np.int64, (n_envs,)),
        "reward": (np.float64, (n_envs,)),
        "opponent": (np.int64, (n_envs,)),
        **{f"observation/{leaf.path}": (leaf.dtype, (n_envs, *leaf.shape)) for leaf in layout.leaves},
        **({"masks": (np.bool_, (n_envs, codec.n_mask))} if masked else {}),
        **({"memory": (np.float32, (n_envs, n_state))} if n_state else {}),
    }
    arrays = {name: tensor.numpy() for name, tensor in given.items()}
    for name, (dtype, shape) in columns.items():
        if name in arrays and (arrays[name].dtype != dtype or arrays[name].shape != shape):
            raise CheckpointError(f"{_MISFIT}: {one_line(name, 80)} should be {np.dtype(dtype)} of shape {shape}")
    shown = [name in arrays for name in columns if name.startswith("observation/")]
    if not {"episode", "length", "reward"} <= arrays.keys() or any(shown) != all(shown):
        raise CheckpointError(f"{_MISFIT}: some of them are missing")
    if (arrays["episode"] < 0).any() or (arrays["length"] < 0).any():
        raise CheckpointError(f"{_MISFIT}: an episode or its length is negative")
    if (arrays["episode"] > _MOST).any() or (arrays["length"] > _MOST).any():
        raise CheckpointError(f"{_MISFIT}: an episode or its length is more than 2**53")
    for name, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"{_MISFIT}: {one_line(name, 80)} is not finite")
    rest = {name: array for name, array in arrays.items() if name not in columns}
    for i in range(n_envs):
        _check_played(rest.pop(f"actions/{i}", None), rest.pop(f"state/{i}", None), int(arrays["length"][i]), codec)
    for name in rest:
        raise CheckpointError(f"{_MISFIT}: {one_line(name, 80)!r} is none of theirs")


def _check_played(rows: Array | None, state: Array | None, length: int, codec: ActionCodec) -> None:
    """Refuse actions [L, D] that no policy plays, and a number of them that is not the episode's length."""
    if state is not None and (state.dtype != np.uint8 or state.ndim != 1):
        raise CheckpointError(f"{_MISFIT}: a state should be bytes")
    if rows is None:
        return
    if rows.dtype != codec.dtype or rows.ndim != 2 or rows.shape[1] != codec.n_actions or len(rows) > REPLAY_LIMIT:
        raise CheckpointError(f"{_MISFIT}: actions should be {codec.dtype} of shape (steps, {codec.n_actions})")
    if len(rows) != length and (state is None or len(rows) > length):
        raise CheckpointError(f"{_MISFIT}: {len(rows):,} actions in an episode of {length:,} steps")
    for head in codec.heads:
        played, choices = rows[:, head.actions], head.size if head.kind == "categorical" else 2
        if head.kind != "gaussian" and not ((played >= 0) & (played < choices) & (played == np.rint(played))).all():
            raise CheckpointError(f"{_MISFIT}: an action is not among the {choices:,} that there are")
