"""From what a user calls an env to a factory that any process can run.

A name is a built-in game, a Gymnasium id (``CartPole-v1``, ``module:Id-v0``; Atari games are ``ALE/Pong-v5``),
``envpool:ID``, ``package.module:callable`` or ``file.py:callable``; a callable is taken as it is and travels by
cloudpickle, so lambdas and local classes work. A callable that takes ``num_envs`` returns a
``gymnasium.vector.VectorEnv``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import gymnasium as gym

from corral.core.entry_points import absolute_spec, import_callable, import_module, import_own, pickle_code, python_name
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
    """Makes envs. Picklable by construction: code is held as a name or as cloudpickle bytes, never as an object."""

    name: str
    """What the user called it; for a callable, ``python:`` and its qualified name."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    pickled: bytes | None = None
    """A cloudpickled callable or Gymnasium ``EnvSpec``; None if ``name`` says it all."""
    local_callable: Any = field(default=None, compare=False)
    """The same as an object, where it never left the process; it is not sent."""
    processes: int = field(default=1, compare=False)
    """How many make envs at the same time: envs with threads of their own share the cores among them."""
    spec: str | None = None
    """``name`` with the absolute path of its file, for an env may change the working directory."""

    def __reduce__(self) -> tuple[Any, ...]:
        sent = {
            part.name: getattr(self, part.name) for part in dataclasses.fields(self) if part.name != "local_callable"
        }
        return functools.partial(type(self), **sent), ()

    @property
    def is_vector(self) -> bool:
        """Whether it makes many envs at a time, as a ``gymnasium.vector.VectorEnv``."""
        if self.seeded_at_construction:
            return True
        maker = self._maker()
        return not isinstance(maker, gym.envs.registration.EnvSpec) and "num_envs" in _parameters(maker)

    @property
    def seeded_at_construction(self) -> bool:
        """Whether such envs take their seeds when they are made, and never again."""
        return self.name.startswith(ENVPOOL)

    def for_processes(self, processes: int) -> EnvFactory:
        """The same, for one of so many processes."""
        return dataclasses.replace(self, processes=processes)

    def make_vector(self, n: int, seeds: Sequence[int] | None = None, render_mode: str | None = None) -> VectorEnv:
        """Make ``n`` envs as a vector env; ``seeds`` are for those that are born seeded."""
        kwargs, maker = dict(self.kwargs), self._maker()
        if "num_envs" in kwargs:
            raise UsageError(f"{self.name} gets num_envs from the run (n_envs); leave it out of env_kwargs")
        if self.seeded_at_construction:
            threads = max(1, available_cores() // self.processes)
            vector = maker(self.name.removeprefix(ENVPOOL), n, seeds, threads, render_mode, kwargs)
        else:
            if render_mode is not None and _accepts(maker, "render_mode"):
                kwargs["render_mode"] = render_mode
            vector = maker(num_envs=n, **kwargs)
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
            return self._one(render_mode)
        except TypeError as error:
            if render_mode is None or "'render_mode'" not in str(error):
                raise
            return self._one(None)  # the env does not take it, though its registration or a function around it does

    def _one(self, render_mode: str | None) -> Env:
        kwargs, maker = dict(self.kwargs), self._maker()
        registered = isinstance(maker, gym.envs.registration.EnvSpec)
        if render_mode is not None and (registered or _accepts(maker, "render_mode")):
            kwargs["render_mode"] = render_mode
        if registered:
            # The stepper checks every value that matters, on every step; Gymnasium's checker would do so once, slowly.
            return gym.make(maker, disable_env_checker=True, **kwargs)
        if self.name in BUILT_IN:
            _check_names(self.name, maker, kwargs)
        env = maker(**kwargs)
        if isinstance(env, gym.vector.VectorEnv):
            raise UsageError(f"{self.name} returned a vector env: let it take num_envs, and make that many envs")
        if not isinstance(env, gym.Env):
            kind = "None" if env is None else f"{type(env).__module__}.{type(env).__qualname__}"
            raise UsageError(f"{self.name} returned {kind}, expected a gymnasium.Env{_how_to_wrap(env)}")
        return env

    def _maker(self) -> Any:
        if self.local_callable is not None:
            return self.local_callable
        if is_atari(self.name):
            return functools.partial(import_own(f"{ATARI_MODULE}:make"), self.name)
        if self.seeded_at_construction:
            return import_own(f"{ENVPOOL_MODULE}:make")
        if self.name in BUILT_IN:
            return import_own(BUILT_IN[self.name])
        if self.pickled is None:
            return import_callable(self.spec or self.name, "env")
        return _unpickle(self.pickled)


@functools.lru_cache(maxsize=32)
def _unpickle(data: bytes) -> Any:
    """Once for each process: envs that share state through their class or closure do so within a worker."""
    return cloudpickle.loads(data)


def resolve_env(env: str | Callable[..., Env] | EnvFactory, kwargs: Mapping[str, Any] | None = None) -> EnvFactory:
    """The factory behind a name or a callable; a UsageError if there is none."""
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
        import_own(f"{ATARI_MODULE}:register")()
        _gym_spec(env)
        return EnvFactory(env, kwargs)
    if _GYM_ID.match(env) or env in gym.registry:
        spec = _gym_spec(env)
        return EnvFactory(env, kwargs, pickle_code(spec, "env"), spec)
    if ":" in env:
        source, _, plain = env.rpartition(":")
        if source.endswith(".py"):
            import_callable(env, "env")
            return EnvFactory(env, kwargs, spec=absolute_spec(env))
        if (registered := _registered_by(source, plain)) is not None:
            spec = _gym_spec(registered)
            return EnvFactory(env, kwargs, pickle_code(spec, "env"), spec)
        import_callable(env, "env")
        return EnvFactory(env, kwargs)
    if env.endswith(".py"):
        raise UsageError(f"which callable of {env}? Say {env}:name, with the name of a class or function in it")
    raise UsageError(f"unknown env {env!r}{_nearest(env)}; `corral list` shows what there is")


def make_env(name: str | Callable[..., Env], render_mode: str | None = None, **kwargs: Any) -> Env:
    """One env, as the command line's ``ENV`` resolves it."""
    return resolve_env(name, kwargs)(render_mode)


def _registered_by(module: str, name: str) -> str | None:
    """The id that a module registers when it is imported; without a version it is the latest, as in ``gym.make``."""
    if not module or "" in module.split("."):
        return None
    imported = import_module(module, f"env {module}:{name}")
    if name in gym.registry:
        return name
    if hasattr(imported, name.partition(".")[0]):
        return None
    known = [spec for spec in gym.registry.values() if spec.id.rpartition("-v")[0] == name]
    versions = [spec.version for spec in known if spec.version is not None]
    return f"{name}-v{max(versions)}" if versions else None


def _how_to_wrap(made: Any) -> str:
    """What to do with an object that is no env of Gymnasium's."""
    if made is None:
        return "; did you forget `return`?"
    packages = {kind.__module__.partition(".")[0] for kind in type(made).__mro__}
    if "pettingzoo" in packages:
        return (
            ": this is a PettingZoo env of several agents. Wrap it in an env of one agent, whose step plays the others "
            "too; docs/opponents.md shows how an env has opponents"
        )
    return "; an old `gym` env can be wrapped with shimmy.GymV26CompatibilityV0" if "gym" in packages else ""


def _gym_spec(name: str) -> Any:
    module, _, plain = name.rpartition(":")
    if module:
        import_module(module, f"env {name!r}")  # which registers it
    try:
        return gym.spec(plain)
    except gym.error.Error as error:
        hint = _nearest(name) or f": {str(error).splitlines()[0]}"
        raise UsageError(f"unknown env {name!r}{hint}") from None


def _nearest(name: str) -> str:
    """A hint at the env that was meant, which may lack no more than its prefix."""
    known = [*BUILT_IN, *gym.registry]
    with contextlib.suppress(MissingPackage):
        known += [f"{ENVPOOL}{task}" for task in import_own(f"{ENVPOOL_MODULE}:tasks")()]
    with contextlib.suppress(MissingPackage):
        import_own(f"{ATARI_MODULE}:register")()
        known += [game for game in gym.registry if is_atari(game)]
    whole = [other for other in known if other.endswith((f"/{name}", f":{name}"))]
    return did_you_mean(name, whole) or did_you_mean(name, known)


def _check_names(name: str, maker: Callable[..., Any], kwargs: Mapping[str, Any]) -> None:
    known = [argument for argument in inspect.signature(maker).parameters if argument != "render_mode"]
    for given in kwargs:
        if not _accepts(maker, given):
            raise UsageError(f"{name} has no {given!r}{did_you_mean(given, known)}; it takes {', '.join(known)}")


def _accepts(maker: Callable[..., Any], name: str) -> bool:
    parameters = _parameters(maker)
    return name in parameters or any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def _parameters(maker: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(maker).parameters
    except (TypeError, ValueError):
        return {}
