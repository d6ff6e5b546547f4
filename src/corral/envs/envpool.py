"""EnvPool's envs: Atari, Procgen, MuJoCo and many more, in C++. The only module that knows EnvPool."""

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
_OURS = (
    *("num_envs", "batch_size", "seed", "env_seed", "env_type", "gym_reset_return_info", "max_num_players"),
    *("task", "task_name", "env_name"),
)
"""Arguments that follow from the run and the id."""
_SEVERAL = ("Cig", "Multi")
"""Beginnings of tasks for several players, of a family whose others have one."""
_COUNTS = ("stack_num", "frame_stack", "frame_skip", "img_height", "img_width", "noop_max", "num_threads")
"""Arguments with which EnvPool ends the process, or never returns, if they are not positive."""
_LIGHT = ("envpool.classic_control", "envpool.toy_text")
"""Families whose steps are shorter than it takes to wake a thread."""
_UNTOLD = ("env_id", "players", "elapsed_step", "level_seed", "prev_level_seed", "reward", "terminated")
"""What infos repeat, or say of EnvPool itself."""
_LARGEST_SEED = 2**31 - 1
_PROCGEN: dict[str, Any] = {
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
_PROCGEN_FAMILY = "envpool.procgen"
_SETTINGS = {"envpool.atari": ATARI_SETTINGS, _PROCGEN_FAMILY: _PROCGEN}
"""By family, settings that suit it better than the defaults."""


def make(
    task: str,
    num_envs: int,
    seeds: Sequence[int] | None = None,
    threads: int = 1,
    render_mode: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> VectorEnv:
    """``num_envs`` envs of a task, each with its own seed, which EnvPool cannot change later."""
    kwargs = kwargs or {}
    specs = _specs()
    if task not in specs:
        raise UsageError(
            f"EnvPool has no {task!r}{did_you_mean(task, specs)}; `corral list envpool` shows what there is"
        )
    family = specs[task][0]
    if family == "envpool.pgx" or task.startswith(_SEVERAL):
        raise UsageError(f"envpool:{task} has several players, and Corral trains one")
    _check_names(task, kwargs)
    if render_mode is not None and family.startswith("envpool.mujoco"):
        _check_drawing(task)
    settings: dict[str, Any] = {"num_threads": 1 if family in _LIGHT else max(1, min(threads, num_envs))}
    seeds = seeds or [fresh_seed() for _ in range(num_envs)]  # else EnvPool's own, which is the same every time
    settings |= {"seed": 0, "env_seed": [seed & _LARGEST_SEED for seed in seeds]}
    if render_mode is not None:
        settings["render_mode"] = render_mode
    if family == _PROCGEN_FAMILY and sys.platform == "linux":
        _load_qt(task)
    import envpool

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # Gymnasium's, of bounds that single precision rounds
            vector: Any = envpool.make(task, env_type="gymnasium", num_envs=num_envs, **{**settings, **kwargs})
            spaces = vector.single_observation_space, vector.single_action_space
    except TypeError as error:
        given = ", ".join(f"{name}={value!r}" for name, value in kwargs.items())
        raise UsageError(f"EnvPool does not take {given} for {task}: it expects other types") from error
    for space in spaces:
        if not isinstance(space, gym.Space):
            raise UsageError(f"envpool:{task} has several players or agents, and Corral trains one: {space!r:.120}")
    # It would begin an episode in the step after the last one's end. Corral asks for it before that.
    vector.metadata = {**vector.metadata, "autoreset_mode": AutoresetMode.DISABLED}
    vector.hidden_info_keys, vector.begin_some = _UNTOLD, _begin_some
    if family == "envpool.atari":
        vector.counts_lives = True
        if (frames := vector.config["stack_num"]) > 1:
            vector.frame_stacks = {"": frames}
    made: VectorEnv = vector
    return made


def _begin_some(vector: Any, which: npt.NDArray[np.int64]) -> tuple[Any, Any]:
    """What ``reset`` with a mask does, but it would ask for its whole configuration each time."""
    vector._reset(which.astype(np.int32))
    found: tuple[Any, Any] = vector.recv(reset=True)
    return found


@functools.cache
def _load_qt(task: str) -> None:
    """Load Qt 5, which Procgen draws its pictures with: the system's, or the one in the wheel ``PyQt5-Qt5``.

    The wheel lies outside the loader's search path. A library that is loaded already is found by its name.
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
    for name in ("libicudata", "libicuuc", "libicui18n", "libQt5Core", "libQt5Gui"):  # each needs those before it
        for file in libraries:
            if file.name.partition(".")[0] == name:
                try:
                    ctypes.CDLL(str(wheel.locate_file(file)), mode=ctypes.RTLD_GLOBAL)
                except OSError as error:
                    raise MissingPackage(
                        f"envpool:{task} is drawn with Qt 5, whose {file.name} cannot be loaded: {error}. Install the "
                        "system's: `apt install libqt5gui5` (Debian, Ubuntu) or `dnf install qt5-qtbase-gui` (Fedora)"
                    ) from None
    importlib.reload(importlib.import_module(_PROCGEN_FAMILY))  # EnvPool tried it without Qt, and remembers that


@functools.cache
def _check_drawing(task: str) -> None:
    """MuJoCo ends the process where it finds no OpenGL; so another one tries it."""
    code = (
        f"import envpool; e = envpool.make({task!r}, env_type='gymnasium', num_envs=1, render_mode='rgb_array'); "
        "e.reset(); e.render()"
    )
    with tempfile.TemporaryDirectory() as folder:  # where it leaves a log
        done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        why = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["without a word"]
        raise UsageError(
            f"envpool:{task} cannot be drawn here: MuJoCo finds no OpenGL that works ({why[0]}). Draw it on a machine "
            "with a graphics driver"
        )


def settings(task: str) -> dict[str, Any]:
    """Settings that suit a task better than the defaults."""
    specs = _specs()
    return _SETTINGS.get(specs[task][0], {}) if task in specs else {}


def tasks() -> list[str]:
    """The names of all envs there are."""
    return sorted(_specs())


def _specs() -> dict[str, tuple[str, str, dict[str, Any]]]:
    try:
        from envpool.registration import registry
    except ModuleNotFoundError:
        raise MissingPackage(
            '`envpool:` envs need EnvPool: pip install "corral[envpool]", or for Procgen "corral[procgen]"'
        ) from None
    found: dict[str, tuple[str, str, dict[str, Any]]] = registry.specs
    return found


def _check_names(task: str, kwargs: Mapping[str, Any]) -> None:
    import envpool

    if taken := [name for name in kwargs if name in _OURS]:
        raise UsageError(f"envpool:{task} gets {taken[0]!r} from its id or from the run; leave it out of env_kwargs")
    if not kwargs:
        return
    known = [name for name in envpool.make_spec(task)._config_keys if name not in _OURS]
    for name in kwargs:
        if name not in known:
            raise UsageError(f"envpool:{task} has no {name!r}{did_you_mean(name, known)}; it takes {', '.join(known)}")
        if name in _COUNTS and isinstance(kwargs[name], int) and kwargs[name] < 1:
            raise UsageError(f"{name} {kwargs[name]!r} for envpool:{task}: should be 1 or more")
