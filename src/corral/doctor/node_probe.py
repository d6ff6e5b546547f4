"""What ``corral doctor --cluster`` runs on every node: an actor that says what the node has and what it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cloudpickle
import psutil

from corral.core.machine import available_memory, limit_compute_threads
from corral.core.stdio import tolerate_closed_stdout
from corral.core.types import ActorSpec, Weights
from corral.envs.env_info import EnvInfo
from corral.envs.factory import EnvFactory
from corral.processes.recovery_config import RecoveryConfig
from corral.processes.worker_bootstrap import pickle_error
from corral.rollout.fingerprint import Fingerprint, gradient_hash, take_fingerprint
from corral.rollout.group_host import HostReply
from corral.vec.child_call import Heartbeat
from corral.vec.serial import SerialVectorEnv

__all__ = ["EnvTrial", "NodeDescription", "NodeProbe", "read_env_info"]


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """What a node has, and what it computes."""

    free_memory: int
    """Bytes."""
    total_memory: int
    """Bytes."""
    fingerprint: Fingerprint


@dataclass(frozen=True, slots=True)
class EnvTrial:
    """An env and a policy, with which every node collects the same short rollout."""

    factory: EnvFactory
    actor: ActorSpec
    weights: Weights

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of this machine, with the hash of a rollout."""
        return take_fingerprint(self.factory, self.actor, self.weights, RecoveryConfig(recover=True), "auto")


class NodeProbe:
    """Examines the node on which it runs. Every method returns a ``HostReply``."""

    def __init__(self) -> None:
        tolerate_closed_stdout()
        limit_compute_threads()

    def describe(self) -> HostReply:
        """Return a ``NodeDescription``."""
        total = psutil.virtual_memory().total
        return _reply(lambda: NodeDescription(available_memory(), total, Fingerprint(gradient_hash())))

    def try_env(self, pickled_trial: bytes) -> HostReply:
        """Collect a rollout as an ``EnvTrial`` says, and return the fingerprint."""
        return _reply(lambda: cloudpickle.loads(pickled_trial).fingerprint())

    def echo(self, value: Any) -> HostReply:
        """Return ``value``."""
        return HostReply(value)

    def heartbeat(self) -> HostReply:
        """Return at once, whatever else the probe does."""
        return HostReply()


def _reply(function: Callable[[], Any]) -> HostReply:
    """Return the value or the exception of a function."""
    try:
        return HostReply(function())
    except Exception as error:
        return HostReply(error=pickle_error(error))


def read_env_info(heartbeat: Heartbeat, factory: EnvFactory) -> EnvInfo:
    """Make an env, in a child process, and return its spaces and other properties."""
    with heartbeat.making_envs():
        env = SerialVectorEnv(factory, 1, seed=0, heartbeat=heartbeat.cells)
    try:
        return env.env_info
    finally:
        env.close()
