"""Plays an episode again until the env raises what it raised in training."""

from __future__ import annotations

import base64
import os
import traceback
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from corral.config.schema import parse_env_kwargs
from corral.core.actions import ActionCodec
from corral.core.errors import UsageError
from corral.envs.factory import resolve_env
from corral.storage.fault_files import read_fault
from corral.storage.named_code import without_directory

__all__ = ["replay_fault"]


def replay_fault(path: str | os.PathLike[str], env: str | Callable[..., gym.Env[Any, Any]]) -> str | None:
    """Play the episode of a fault file (``RUN/faults/…json``) again, in this process.

    ``env`` is given, because a file is not trusted to name code. Returns the env's own traceback, or None if it did not
    raise this time; an env that ends the process ends this one.
    """
    told = read_fault(os.fspath(path))
    named = env if isinstance(env, str) else None
    if named is not None and without_directory(named) != without_directory(str(told.get("env", named))):
        raise UsageError(f"{path} is of another env: {told['env']}")
    made = resolve_env(env, parse_env_kwargs(told.get("env_kwargs", {})))()
    try:
        layout = ActionCodec(made.action_space).layout
        if set(told["actions"]) != set(layout.paths):
            raise UsageError(f"{path} has actions {sorted(told['actions'])}, but the env has {sorted(layout.paths)}")
        try:
            actions = {
                leaf.path: np.asarray(told["actions"][leaf.path], leaf.dtype).reshape(-1, *leaf.shape)
                for leaf in layout.leaves
            }
        except (ValueError, TypeError, OverflowError) as error:
            raise UsageError(f"{path} has actions that do not fit the env: {error}") from None
        read = layout.reader(actions)
        return _play(made, told, [read(row) for row in range(len(next(iter(actions.values()))))])
    finally:
        made.close()


def _play(env: gym.Env[Any, Any], told: dict[str, Any], actions: list[Any]) -> str | None:
    masks = env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else lambda: None
    try:
        env.reset(seed=told["seed"], options=told.get("options"))
        masks()
        if told.get("state") is not None:
            env.get_wrapper_attr("set_state")(base64.b64decode(told["state"]))
        for action in actions:
            env.step(action)
            masks()
    except (Exception, SystemExit) as error:
        frames = error.__traceback__.tb_next if error.__traceback__ is not None else None
        return "".join(traceback.format_exception(type(error), error, frames))
    return None
