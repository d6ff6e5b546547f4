"""Replays the episode of a fault file, to make an env raise what it raised in training."""

from __future__ import annotations

import base64
import os
import traceback
from collections.abc import Callable, Mapping
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
    """Replay the episode of a fault file (``RUN/faults/…json``) in this process.

    Return the env's traceback, or None if the env did not raise this time. An env that ends its process ends this one.
    ``env`` is an argument, because a file must not choose what code runs.
    """
    fault = read_fault(os.fspath(path))
    if isinstance(env, str) and without_directory(env) != without_directory(str(fault.get("env", env))):
        raise UsageError(f"{path} is of another env: {fault['env']}")
    instance = resolve_env(env, parse_env_kwargs(fault.get("env_kwargs", {})))()
    try:
        return _replay_episode(instance, fault, _read_actions(path, fault, instance))
    finally:
        instance.close()


def _read_actions(path: str | os.PathLike[str], fault: Mapping[str, Any], env: gym.Env[Any, Any]) -> list[Any]:
    """Return the actions of a fault file as the env takes them; raise UsageError if they do not fit its space."""
    layout = ActionCodec(env.action_space).layout
    if set(fault["actions"]) != set(layout.paths):
        raise UsageError(f"{path} has actions {sorted(fault['actions'])}, but the env has {sorted(layout.paths)}")
    try:
        columns = {
            leaf.path: np.asarray(fault["actions"][leaf.path], leaf.dtype).reshape(-1, *leaf.shape)
            for leaf in layout.leaves
        }
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{path} has actions that do not fit the env: {error}") from None
    read = layout.reader(columns)
    return [read(row) for row in range(len(next(iter(columns.values()))))]


def _replay_episode(env: gym.Env[Any, Any], fault: Mapping[str, Any], actions: list[Any]) -> str | None:
    """Reset the env and take the actions, calling the env as a stepper does; return its traceback if it raises."""
    action_masks = env.get_wrapper_attr("action_masks") if env.has_wrapper_attr("action_masks") else lambda: None
    try:
        env.reset(seed=fault["seed"], options=fault.get("options"))
        action_masks()
        if fault.get("state") is not None:
            env.get_wrapper_attr("set_state")(base64.b64decode(fault["state"]))
        for action in actions:
            env.step(action)
            action_masks()
    except (Exception, SystemExit) as error:
        frames = None if error.__traceback__ is None else error.__traceback__.tb_next  # without this function
        return "".join(traceback.format_exception(type(error), error, frames))
    return None
