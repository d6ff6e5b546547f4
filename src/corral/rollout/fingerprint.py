"""What a machine computes: compared before a run starts, because its result must not depend on who collects what.

Machines with different processors or versions of libraries may return results that differ in the last bits. A
fingerprint contains hashes of a short rollout of the run's env with the run's network, and of a gradient, and what can
explain a difference: processor features and versions.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from corral.core.actions import Head
from corral.core.types import ActorSpec, Weights
from corral.envs.factory import EnvFactory
from corral.policy.mlp import MlpShape
from corral.ppo.shares import Shares, ShareSetup
from corral.processes.recovery_config import RecoveryConfig
from corral.processes.start_methods import StartMethod
from corral.rollout import worker
from corral.rollout.buffers import allocate_rollout, rollout_columns
from corral.rollout.collector import Collector
from corral.vec.child_call import Heartbeat, call_in_child
from corral.vec.serial import SerialVectorEnv

__all__ = ["Fingerprint", "differences", "gradient_hash", "take_fingerprint"]

_STEPS, _ROWS = 32, 64
_PACKAGES = ("corral", "numpy", "torch", "gymnasium", "scipy", "numba", "envpool", "ale-py", "pyboy")
"""Packages whose versions may explain a difference."""


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What a machine computes, and what may explain it."""

    gradient: str
    """Hash of the gradient of a fixed minibatch."""
    rollout: str | None = None
    """Hash of a short rollout of the run's env; None if there was no env to step."""
    processor: str = field(default_factory=lambda: f"{platform.machine()} ({', '.join(_cpu_features())})")
    """Architecture, and the features of the processor that numpy uses."""
    versions: tuple[str, ...] = field(default_factory=lambda: tuple(_versions()))
    """Python and the installed packages, as ``name version``."""


def take_fingerprint(
    factory: EnvFactory, actor: ActorSpec, weights: Weights, recovery: RecoveryConfig, start_method: StartMethod
) -> Fingerprint:
    """Return the fingerprint of this machine; the env and the network run in a child process."""
    function = functools.partial(_trace, factory=factory, actor=actor, weights=weights)
    rollout = call_in_child(function, f"trying out {factory.name}", recovery, start_method, worker.__name__)
    return Fingerprint(gradient_hash(), rollout)


def differences(one: Fingerprint, other: Fingerprint) -> list[str]:
    """Return in which respects two fingerprints differ, as text; empty if the machines compute the same."""
    found = []
    if one.rollout != other.rollout:
        found.append("a rollout of the env has other numbers")
    if one.gradient != other.gradient:
        found.append("a gradient has other numbers")
    if one.processor != other.processor:
        found.append(f"processor {one.processor} and {other.processor}")
    ours, others = (dict(line.rsplit(" ", 1) for line in versions) for versions in (one.versions, other.versions))
    for name in sorted(ours.keys() | others.keys()):
        if ours.get(name) != others.get(name):
            found.append(f"{name} {ours.get(name, 'missing')} and {others.get(name, 'missing')}")
    return found


def _trace(heartbeat: Heartbeat, factory: EnvFactory, actor: ActorSpec, weights: Weights) -> str:
    """Collect a short rollout of one env, in a child process, and return its hash."""
    with heartbeat.making_envs():
        env = SerialVectorEnv(factory, 1, seed=0, infos="summed", recover=True, heartbeat=heartbeat.cells)
    try:
        with heartbeat.making_envs():
            env.reset_arrays()
        built = actor.build(0, 1)
        built.load(weights)
        shape = _STEPS, 1, bool(env.has_masks), env.env_info.stacks, built.n_state
        rollout = allocate_rollout(env.layout, env.codec, *shape)
        if rollout.states is not None:
            rollout.states[0] = 0.0
        Collector(env, built, _STEPS, seed=0).collect(0, rollout)
        columns = rollout_columns(rollout)
        undefined = ("next_episode", "next_opponent")  # where no episode ended
        return _hash(columns[name] for name in sorted(columns) if name not in undefined)
    finally:
        env.close()


def gradient_hash() -> str:
    """Return the hash of the gradient of a fixed minibatch, with a network of the built-in kind."""
    shape = MlpShape(n_features=12, n_params=5, pi=(64, 64), vf=(64, 64), activation="tanh")
    head = Head("categorical", 5, params=slice(0, 5), actions=slice(0, 1), mask=slice(0, 5))
    setup = ShareSetup(
        shape=shape,
        heads=(head,),
        n_actions=1,
        n_mask=0,
        n_reference=0,
        n_rows=_ROWS,
        minibatch=_ROWS,
        n_epochs=1,
        shares=1,
        clip_range=0.2,
        clip_range_vf=None,
        ent_coef=0.01,
        vf_coef=0.5,
    )
    shares, rng = Shares.here(setup), np.random.default_rng(0)
    shares.arrays["weights"][...] = rng.standard_normal(shape.size, np.float32) / 4
    shares.arrays["order"][...] = np.arange(_ROWS)
    shares.arrays["advantages"][...] = rng.standard_normal((1, _ROWS), np.float32)
    shares.arrays["terms"][:] = 0.0, 0.0, setup.clip_range, setup.ent_coef
    shares.features[...] = rng.standard_normal((_ROWS, 12), np.float32)
    numbers = rng.standard_normal((3, _ROWS), np.float32)
    shares.fill(rng.integers(0, 5, (_ROWS, 1)), numbers[0] - 2, numbers[1], numbers[2])
    shares.compute(0, 0)
    return _hash([shares.arrays["gradients"]])


def _cpu_features() -> list[str]:
    """Return the features of the processor for which numpy has faster code."""
    simd: Any = np.show_config(mode="dicts")["SIMD Extensions"]
    return sorted([*simd["baseline"], *simd["found"]])


def _versions() -> Iterable[str]:
    yield f"python {'.'.join(platform.python_version_tuple()[:2])}"
    for name in _PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name).partition('+')[0]}"
        except importlib.metadata.PackageNotFoundError:
            continue


def _hash(arrays: Iterable[Any]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
