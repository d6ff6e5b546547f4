"""Corral: parallel PPO training that uses every core.

Each public name is imported when it is first used, so that ``import corral`` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from corral import sb3 as sb3
    from corral.config.schema import TrainConfig as TrainConfig
    from corral.core.errors import CorralError as CorralError
    from corral.envs.factory import make_env as make_env
    from corral.policy.policy import n_action_params as n_action_params
    from corral.recipes.curriculum import curriculum as curriculum
    from corral.recipes.hybrid import hybrid as hybrid
    from corral.recipes.selfplay import selfplay as selfplay
    from corral.recipes.warmstart import warmstart as warmstart
    from corral.sweeps.api import sweep as sweep
    from corral.training.api import TrainResult as TrainResult
    from corral.training.api import resume as resume
    from corral.training.api import train as train
    from corral.training.hooks.hook import Hook as Hook
    from corral.training.iteration import End as End
    from corral.training.iteration import Iteration as Iteration
    from corral.training.iteration import Start as Start
    from corral.training.iteration import TrainingState as TrainingState
    from corral.training.model import Model as Model
    from corral.training.model import load as load
    from corral.vec.make_vec import make_parallel_env as make_parallel_env

__version__ = "0.1.0"

_MODULES = {
    "CorralError": "corral.core.errors",
    "End": "corral.training.iteration",
    "Hook": "corral.training.hooks.hook",
    "Iteration": "corral.training.iteration",
    "Model": "corral.training.model",
    "Start": "corral.training.iteration",
    "TrainConfig": "corral.config.schema",
    "TrainResult": "corral.training.api",
    "TrainingState": "corral.training.iteration",
    "curriculum": "corral.recipes.curriculum",
    "hybrid": "corral.recipes.hybrid",
    "load": "corral.training.model",
    "make_env": "corral.envs.factory",
    "make_parallel_env": "corral.vec.make_vec",
    "n_action_params": "corral.policy.policy",
    "replay_fault": "corral.doctor.replay",
    "resume": "corral.training.api",
    "selfplay": "corral.recipes.selfplay",
    "sweep": "corral.sweeps.api",
    "train": "corral.training.api",
    "warmstart": "corral.recipes.warmstart",
}
"""The module of each public name."""
__all__ = [
    "CorralError",
    "End",
    "Hook",
    "Iteration",
    "Model",
    "Start",
    "TrainConfig",
    "TrainResult",
    "TrainingState",
    "__version__",
    "curriculum",
    "hybrid",
    "load",
    "make_env",
    "make_parallel_env",
    "n_action_params",
    "replay_fault",
    "resume",
    "selfplay",
    "sweep",
    "train",
    "warmstart",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    if name == "sb3":
        return importlib.import_module("corral.sb3")
    raise AttributeError(f"module 'corral' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "sb3"]
