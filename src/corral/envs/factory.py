"""Resolves the name or callable of an env to an ``EnvFactory``, which any process can unpickle and call.

A name is a built-in game, a Gymnasium id (``CartPole-v1``, ``module:Id-v0``; Atari games are ``ALE/Pong-v5``),
``envpool:ID``, ``package.module:callable`` or ``file.py:callable``. A callable is sent to workers with cloudpickle, so
lambdas and local classes work. A callable that takes ``num_envs`` returns a ``gymnasium.vector.VectorEnv``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cloudpickle
import gymnasium as gym

from corral.core.entry_points import (
    absolute_spec,
    import_callable,
    import_internal,
    import_module,
    pickle_code,
    python_name,
)
from corral.core.errors import MissingPackage, UsageError
from corral.core.machine import available_cores
from corral.core.suggestions import did_you_mean, short_repr
from corral.envs.atari import is_atari
from corral.envs.registry import ATARI_MODULE, BUILT_IN, ENVPOOL, ENVPOOL_MODULE
from corral.envs.vector_adapter import SingleEnvAdapter, VectorEnv

__all__ = ["EnvFactory", "make_env", "resolve_env"]

Env = gym.Env[Any, Any]


_GYM_ID = re.compile(r"^(?:[\w.\-]+:)?(?:[\w.\-]+/)?[\w.\-]+-v\d+$")


@dataclass(frozen=True, slots=True)
class EnvFactory:
    """A picklable callable that makes envs. It holds code as a name or as cloudpickle bytes."""

    name: str
    """The name that the user gave; for a callable, ``python:`` and its qualified name."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the env's constructor."""
    pickled: bytes | None = None
    """A cloudpickled callable or Gymnasium ``EnvSpec``; None if ``name`` is enough to import it."""
    local_callable: Any = field(default=None, compare=False)
    """The object behind ``pickled``, in the process that resolved it. It is not pickled."""
    processes: int = field(default=1, compare=False)
    """Number of processes that make envs at the same time. Envs that start threads divide the cores by it."""
    spec: str | None = None
    """``name`` with the absolute path of its file, because an env may change the working directory."""
    content: bytes | None = field(default=None, compare=False, repr=False)
    """The content of that file, for processes on other machines."""

    def __reduce__(self) -> tuple[Any, ...]:
        attributes = {
            attribute.name: getattr(self, attribute.name)
            for attribute in dataclasses.fields(self)
            if attribute.name != "local_callable"
        }
        return functools.partial(type(self), **attributes), ()

    @property
    def is_vector(self) -> bool:
        """Whether the factory makes many envs at a time, as a ``gymnasium.vector.VectorEnv``."""
        if self.seeded_at_construction:
            return True
        entry_point = self._load_entry_point()
        return not isinstance(entry_point, gym.envs.registration.EnvSpec) and "num_envs" in _parameters(entry_point)

    @property
    def seeded_at_construction(self) -> bool:
        """Whether the envs take their seeds only when they are constructed."""
        return self.name.startswith(ENVPOOL)

    def for_processes(self, processes: int) -> EnvFactory:
        """Return a copy for use in each of ``processes`` processes that make envs at the same time."""
        return dataclasses.replace(self, processes=processes)

    def make_vector(self, n: int, seeds: Sequence[int] | None = None, render_mode: str | None = None) -> VectorEnv:
        """Make ``n`` envs as a vector env. Only envs that are ``seeded_at_construction`` use ``seeds``."""
        kwargs, entry_point = dict(self.kwargs), self._load_entry_point()
        if "num_envs" in kwargs:
            raise UsageError(f"{self.name} gets num_envs from the run (n_envs); leave it out of env_kwargs")
        if self.seeded_at_construction:
            threads = max(1, available_cores() // self.processes)
            vector = entry_point(self.name.removeprefix(ENVPOOL), n, seeds, threads, render_mode, kwargs)
        else:
            if render_mode is not None and _accepts_argument(entry_point, "render_mode"):
                kwargs["render_mode"] = render_mode
            vector = entry_point(num_envs=n, **kwargs)
        if not isinstance(vector, gym.vector.VectorEnv) or vector.num_envs != n:
            raise UsageError(
                f"{self.name} takes num_envs, so that with num_envs={n} it should return a gymnasium.vector.VectorEnv "
                f"of {n} envs; it returned {vector!r:.80}. A function that makes single envs should not take num_envs"
            )
        return vector

    def __call__(self, render_mode: str | None = None) -> Env:
        """Make one env."""
        if self.is_vector:
            return SingleEnvAdapter(lambda seeds: self.make_vector(1, seeds, render_mode), self.seeded_at_construction)
        try:
            return self._make_single(render_mode)
        except TypeError as error:
            if render_mode is None or "'render_mode'" not in str(error):
                raise
            # The registration or a function around the env takes render_mode, but the env does not.
            return self._make_single(None)

    def _make_single(self, render_mode: str | None) -> Env:
        """Make one env that is not part of a vector env; raise a UsageError if the callable returns anything else."""
        kwargs, entry_point = dict(self.kwargs), self._load_entry_point()
        is_registered = isinstance(entry_point, gym.envs.registration.EnvSpec)
        if render_mode is not None and (is_registered or _accepts_argument(entry_point, "render_mode")):
            kwargs["render_mode"] = render_mode
        if is_registered:
            # Corral's stepper validates every step. Gymnasium's checker would be slow and check only the first one.
            return gym.make(entry_point, disable_env_checker=True, **kwargs)
        if self.name in BUILT_IN:
            _check_kwargs(self.name, entry_point, kwargs)
        env = entry_point(**kwargs)
        if isinstance(env, gym.vector.VectorEnv):
            raise UsageError(f"{self.name} returned a vector env: let it take num_envs, and make that many envs")
        if not isinstance(env, gym.Env):
            kind = "None" if env is None else f"{type(env).__module__}.{type(env).__qualname__}"
            raise UsageError(f"{self.name} returned {kind}, expected a gymnasium.Env{_wrapping_advice(env)}")
        return env

    def _load_entry_point(self) -> Any:
        """Return the callable or Gymnasium ``EnvSpec`` that makes the env."""
        if self.local_callable is not None:
            return self.local_callable
        if is_atari(self.name):
            return functools.partial(import_internal(f"{ATARI_MODULE}:make"), self.name)
        if self.seeded_at_construction:
            return import_internal(f"{ENVPOOL_MODULE}:make")
        if self.name in BUILT_IN:
            return import_internal(BUILT_IN[self.name])
        if self.pickled is None:
            return import_callable(self.spec or self.name, "env", self.content)
        return _unpickle(self.pickled)


@functools.lru_cache(maxsize=32)
def _unpickle(data: bytes) -> Any:
    """Unpickle a callable once in each process, so that the envs of a worker share its class and closure."""
    return cloudpickle.loads(data)


def resolve_env(env: str | Callable[..., Env] | EnvFactory, kwargs: Mapping[str, Any] | None = None) -> EnvFactory:
    """Return the factory for a name or a callable; raise a UsageError if there is no such env."""
    kwargs = dict(kwargs or {})
    if isinstance(env, EnvFactory):
        return env
    if callable(env):
        return EnvFactory(python_name(env), kwargs, pickle_code(env, "env factory"), env)
    if not isinstance(env, str):
        raise UsageError(f"env {short_repr(env)}: should be the name of an env, or a callable that makes one")
    if env in BUILT_IN or env.startswith(ENVPOOL):
        return EnvFactory(env, kwargs)
    if is_atari(env):
        import_internal(f"{ATARI_MODULE}:register")()
        _gym_spec(env)  # raises if there is no such game
        return EnvFactory(env, kwargs)
    if _GYM_ID.match(env) or env in gym.registry:
        return _registered_factory(env, env, kwargs)
    if ":" in env:
        return _imported_factory(env, kwargs)
    if env.endswith(".py"):
        raise UsageError(f"which callable of {env}? Say {env}:name, with the name of a class or function in it")
    raise UsageError(f"unknown env {env!r}{_suggest_env(env)}; `corral list` lists the envs")


def _registered_factory(name: str, gym_id: str, kwargs: Mapping[str, Any]) -> EnvFactory:
    """Return the factory of a Gymnasium id that the user calls ``name``."""
    spec = _gym_spec(gym_id)
    return EnvFactory(name, kwargs, pickle_code(spec, "env"), spec)


def _imported_factory(env: str, kwargs: Mapping[str, Any]) -> EnvFactory:
    """Return the factory of ``file.py:callable``, ``module:callable`` or ``module:Id``, which this imports."""
    source, _, attribute = env.rpartition(":")
    if source.endswith(".py"):
        import_callable(env, "env")
        return EnvFactory(env, kwargs, spec=absolute_spec(env), content=Path(source).read_bytes())
    if (gym_id := _id_registered_by(source, attribute)) is not None:
        return _registered_factory(env, gym_id, kwargs)
    import_callable(env, "env")
    return EnvFactory(env, kwargs)


def make_env(name: str | Callable[..., Env], render_mode: str | None = None, **kwargs: Any) -> Env:
    """Make one env from a name, as the command line's ``ENV`` resolves it, or from a callable."""
    return resolve_env(name, kwargs)(render_mode)


def _id_registered_by(module: str, name: str) -> str | None:
    """Return the Gymnasium id that importing ``module`` registers for ``name``; None if ``name`` is no id.

    A name without a version stands for the latest version, as in ``gym.make``.
    """
    if not module or "" in module.split("."):
        return None
    imported = import_module(module, f"env {module}:{name}")
    if name in gym.registry:
        return name
    if hasattr(imported, name.partition(".")[0]):
        return None
    specs = [spec for spec in gym.registry.values() if spec.id.rpartition("-v")[0] == name]
    versions = [spec.version for spec in specs if spec.version is not None]
    return f"{name}-v{max(versions)}" if versions else None


def _wrapping_advice(env: Any) -> str:
    """Return the end of an error message: what to do with an object that is not a Gymnasium env."""
    if env is None:
        return "; did you forget `return`?"
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    if "pettingzoo" in packages:
        return (
            ": this is a PettingZoo env of several agents. Wrap it in an env of one agent, whose step plays the others "
            "too; docs/opponents.md shows how an env has opponents"
        )
    return "; an old `gym` env can be wrapped with shimmy.GymV26CompatibilityV0" if "gym" in packages else ""


def _gym_spec(name: str) -> Any:
    """Return Gymnasium's ``EnvSpec`` of an id; of ``module:Id``, import the module first, which registers the id."""
    module, _, gym_id = name.rpartition(":")
    if module:
        import_module(module, f"env {name!r}")
    try:
        return gym.spec(gym_id)
    except gym.error.Error as error:
        hint = _suggest_env(name) or f": {str(error).splitlines()[0]}"
        raise UsageError(f"unknown env {name!r}{hint}") from None


def _suggest_env(name: str) -> str:
    """Return a hint at the env with the most similar name; envs that only lack a prefix come first."""
    names = [*BUILT_IN, *gym.registry]
    with contextlib.suppress(MissingPackage):
        names += [f"{ENVPOOL}{task}" for task in import_internal(f"{ENVPOOL_MODULE}:tasks")()]
    with contextlib.suppress(MissingPackage):
        import_internal(f"{ATARI_MODULE}:register")()
        names += [game for game in gym.registry if is_atari(game)]
    prefixed = [candidate for candidate in names if candidate.endswith((f"/{name}", f":{name}"))]
    return did_you_mean(name, prefixed) or did_you_mean(name, names)


def _check_kwargs(name: str, entry_point: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    """Raise a UsageError if a built-in env has no parameter of a given name."""
    accepted = [parameter for parameter in inspect.signature(entry_point).parameters if parameter != "render_mode"]
    for argument in kwargs:
        if not _accepts_argument(entry_point, argument):
            raise UsageError(
                f"{name} has no {argument!r}{did_you_mean(argument, accepted)}; it takes {', '.join(accepted)}"
            )


def _accepts_argument(entry_point: Callable[..., Any], name: str) -> bool:
    parameters = _parameters(entry_point)
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _parameters(entry_point: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """Return the parameters of a callable; none if Python cannot tell, as for some classes written in C."""
    try:
        return inspect.signature(entry_point).parameters
    except (TypeError, ValueError):
        return {}
