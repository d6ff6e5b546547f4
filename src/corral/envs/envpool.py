"""Envs of EnvPool, which steps batches of Atari, Procgen, MuJoCo and many other envs in C++ (arXiv:2206.10558).

This is the only module that imports EnvPool.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.metadata
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium.vector import AutoresetMode

from corral.core.errors import MissingPackage, UsageError
from corral.core.seeding import fresh_seed
from corral.core.suggestions import did_you_mean
from corral.envs.atari import ATARI_SETTINGS

__all__ = ["make", "settings", "tasks"]

VectorEnv = gym.vector.VectorEnv[Any, Any, Any]
_ARGUMENTS_OF_THE_RUN = (
    *("num_envs", "batch_size", "seed", "env_seed", "env_type", "gym_reset_return_info", "max_num_players"),
    *("task", "task_name", "env_name"),
)
"""Arguments of EnvPool that follow from the run or the task, so that the user cannot give them."""
_MULTIPLAYER_PREFIXES = ("Cig", "Multi")
"""Prefixes of multiplayer tasks in families whose other tasks have one player."""
_POSITIVE_ARGUMENTS = ("stack_num", "frame_stack", "frame_skip", "img_height", "img_width", "noop_max", "num_threads")
"""Arguments that must be positive: with other values EnvPool kills the process, or never returns."""
_FAST_FAMILIES = ("envpool.classic_control", "envpool.toy_text")
"""Families whose steps take less time than waking a thread."""
_HIDDEN_INFO_KEYS = ("env_id", "players", "elapsed_step", "level_seed", "prev_level_seed", "reward", "terminated")
"""Info keys that repeat what ``step`` returns or concern only EnvPool."""
_MAX_SEED = 2**31 - 1
_ATARI_FAMILY, _PROCGEN_FAMILY = "envpool.atari", "envpool.procgen"
_PROCGEN_SETTINGS: dict[str, Any] = {
    "timesteps": 1_000_000,
    "n_steps": 256,
    "batch_size": 512,
    "n_epochs": 3,
    "learning_rate": 5e-4,
    "gamma": 0.999,
    "ent_coef": 0.01,
    "eval_freq": 250_000,
    "eval_sample": True,
}
_SETTINGS = {_ATARI_FAMILY: ATARI_SETTINGS, _PROCGEN_FAMILY: _PROCGEN_SETTINGS}
"""Recommended settings by family, where the defaults do worse."""


def make(
    task: str,
    num_envs: int,
    seeds: Sequence[int] | None = None,
    threads: int = 1,
    render_mode: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> VectorEnv:
    """Return a vector env of ``num_envs`` envs of a task. EnvPool takes their seeds only here."""
    kwargs = kwargs or {}
    family = _check_task(task)
    _check_kwargs(task, kwargs)
    if render_mode is not None and family.startswith("envpool.mujoco"):
        _check_rendering(task)
    # Without env_seed, EnvPool would use the same seed in every run.
    seeds = seeds or [fresh_seed() for _ in range(num_envs)]
    arguments: dict[str, Any] = {
        "num_threads": 1 if family in _FAST_FAMILIES else max(1, min(threads, num_envs)),
        "seed": 0,
        "env_seed": [seed & _MAX_SEED for seed in seeds],
    }
    if render_mode is not None:
        arguments["render_mode"] = render_mode
    if family == _PROCGEN_FAMILY and sys.platform == "linux":
        _load_qt(task)
    vector = _construct(task, num_envs, arguments, kwargs)
    # EnvPool would begin the next episode in the step after the end of one; Corral resets the env before that step.
    vector.metadata = {**vector.metadata, "autoreset_mode": AutoresetMode.DISABLED}
    vector.corral_hidden_info_keys, vector.corral_reset_envs = _HIDDEN_INFO_KEYS, _reset_envs
    if family == _ATARI_FAMILY:
        vector.counts_lives = True
        if (frames := vector.config["stack_num"]) > 1:
            vector.frame_stacks = {"": frames}
    made: VectorEnv = vector
    return made


def _check_task(task: str) -> str:
    """Return the family of a task; raise a UsageError if it is unknown or has several players."""
    specs = _specs()
    if task not in specs:
        raise UsageError(f"EnvPool has no {task!r}{did_you_mean(task, specs)}; `corral list envpool` lists its tasks")
    family = specs[task][0]
    if family == "envpool.pgx" or task.startswith(_MULTIPLAYER_PREFIXES):
        raise UsageError(f"envpool:{task} has several players, and Corral trains one")
    return family


def _construct(task: str, num_envs: int, arguments: Mapping[str, Any], user_kwargs: Mapping[str, Any]) -> Any:
    """Return EnvPool's vector env; raise a UsageError if EnvPool refuses an argument or the env has several agents."""
    import envpool

    try:
        with warnings.catch_warnings():
            # Gymnasium warns of bounds that single precision rounds.
            warnings.simplefilter("ignore", UserWarning)
            vector = envpool.make(task, env_type="gymnasium", num_envs=num_envs, **{**arguments, **user_kwargs})
            spaces = vector.single_observation_space, vector.single_action_space
    except TypeError as error:
        given = ", ".join(f"{name}={value!r}" for name, value in user_kwargs.items())
        raise UsageError(f"EnvPool does not take {given} for {task}: it expects other types") from error
    for space in spaces:
        if not isinstance(space, gym.Space):
            raise UsageError(f"envpool:{task} has several players or agents, and Corral trains one: {space!r:.120}")
    return vector


def _reset_envs(vector: Any, indices: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    """Reset some envs and return their observations and infos.

    EnvPool's ``reset`` with a mask does the same, but reads the whole configuration each time, which is slower.
    """
    vector._reset(indices.astype(np.int32))
    observations, infos = vector.recv(reset=True)
    return observations, infos


@functools.cache
def _load_qt(task: str) -> None:
    """Load Qt 5, with which Procgen draws its frames: the system's, or the one in the wheel ``PyQt5-Qt5``.

    The wheel lies outside the search path of the dynamic loader, but the loader finds libraries by name once they are
    loaded.
    """
    try:
        ctypes.CDLL("libQt5Gui.so.5")
        return
    except OSError:
        pass
    install = "pip install 'corral[procgen]'"
    try:
        wheel = importlib.metadata.distribution("PyQt5-Qt5")
    except importlib.metadata.PackageNotFoundError:
        raise MissingPackage(f"envpool:{task} is drawn with Qt 5, which is not installed: {install}") from None
    libraries = [file for file in wheel.files or () if ".so" in file.name and file.parent.name == "lib"]
    for name in ("libicudata", "libicuuc", "libicui18n", "libQt5Core", "libQt5Gui"):  # each depends on those before it
        for file in libraries:
            if file.name.partition(".")[0] == name:
                try:
                    ctypes.CDLL(str(wheel.locate_file(file)), mode=ctypes.RTLD_GLOBAL)
                except OSError as error:
                    raise MissingPackage(
                        f"envpool:{task} is drawn with Qt 5, whose {file.name} cannot be loaded: {error}. Install the "
                        "system's: `apt install libqt5gui5` (Debian, Ubuntu) or `dnf install qt5-qtbase-gui` (Fedora)"
                    ) from None
    importlib.reload(importlib.import_module(_PROCGEN_FAMILY))  # EnvPool's first import failed without Qt


@functools.cache
def _check_rendering(task: str) -> None:
    """Raise a UsageError if MuJoCo cannot render here.

    Without OpenGL, MuJoCo kills the process, so this tries it in another process.
    """
    code = (
        f"import envpool; e = envpool.make({task!r}, env_type='gymnasium', num_envs=1, render_mode='rgb_array'); "
        "e.reset(); e.render()"
    )
    with tempfile.TemporaryDirectory() as folder:  # MuJoCo writes a log into the working directory
        result = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    if result.returncode:
        last_line = (result.stderr or result.stdout).strip().splitlines()[-1:] or ["no error message"]
        raise UsageError(
            f"envpool:{task} cannot be rendered here: MuJoCo finds no OpenGL that works ({last_line[0]}). Render it on "
            "a machine with a graphics driver"
        )


def settings(task: str) -> dict[str, Any]:
    """Return the recommended settings of a task; none for an unknown task."""
    specs = _specs()
    return _SETTINGS.get(specs[task][0], {}) if task in specs else {}


def tasks() -> list[str]:
    """Return the names of all tasks of EnvPool."""
    return sorted(_specs())


def _specs() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Return EnvPool's registry, which maps each task to its family, its class and its default arguments."""
    try:
        from envpool.registration import registry
    except ModuleNotFoundError:
        raise MissingPackage(
            '`envpool:` envs need EnvPool: pip install "corral[envpool]", or for Procgen "corral[procgen]"'
        ) from None
    specs: dict[str, tuple[str, str, dict[str, Any]]] = registry.specs
    return specs


def _check_kwargs(task: str, kwargs: Mapping[str, Any]) -> None:
    """Raise a UsageError for arguments that the task does not have, or that would kill the process."""
    import envpool

    if refused := [name for name in kwargs if name in _ARGUMENTS_OF_THE_RUN]:
        raise UsageError(f"envpool:{task} gets {refused[0]!r} from its id or from the run; leave it out of env_kwargs")
    if not kwargs:
        return
    accepted = [name for name in envpool.make_spec(task)._config_keys if name not in _ARGUMENTS_OF_THE_RUN]
    for name in kwargs:
        if name not in accepted:
            raise UsageError(
                f"envpool:{task} has no {name!r}{did_you_mean(name, accepted)}; it takes {', '.join(accepted)}"
            )
        if name in _POSITIVE_ARGUMENTS and isinstance(kwargs[name], int) and kwargs[name] < 1:
            raise UsageError(f"{name} {kwargs[name]!r} for envpool:{task}: should be 1 or more")
