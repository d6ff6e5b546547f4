"""A cluster of Ray: starts hosts as Ray actors, and a Ray on this machine if the run has none.

Only this file imports ray, and only when a run uses it.

Ray restarts nothing by itself (``max_restarts=0``): ``rollout/group_supervisor`` decides what happens after a loss. A
Ray that is started here ends with the run. Ray listens on all network interfaces, so it is started with a secret token
without which nobody can connect.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import queue
import re
import socket
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from corral.core.deferred_signals import deferred_signals, remembered_signals
from corral.core.errors import CorralError, MissingPackage, UsageError
from corral.core.machine import available_cores
from corral.processes import orphan_reaper
from corral.processes.worker_bootstrap import pickle_error
from corral.rollout import ray_environment
from corral.rollout.group_host import GroupHost, HostReply
from corral.rollout.host_cluster import Call, HostLost, Node, missing_module
from corral.rollout.source import ClusterConfig

__all__ = ["RayCluster", "check_reachable", "drain_node"]

_INLINE_BYTES = 90_000
"""Ray sends smaller arguments with the call; it puts larger ones into its object store, for every call again."""
_LOOK_SECONDS = 2.0
"""The nodes are listed this often."""
_CONNECT_SECONDS, _KILL_SECONDS = 10.0, 3.0
_HEAD_TIMEOUT = 30.0
"""Seconds without an answer after which the head of the cluster counts as lost. Ray itself gives up after more."""
_NOT_COPIED = [".git", ".venv", ".corral", "runs", "__pycache__"]
"""What is not copied with a working directory."""
_URGENT_METHODS = ("heartbeat", "close")
"""Methods of a host that are executed at once, in another thread than the others."""
_MISSING_MODULE = re.compile(r"ModuleNotFoundError: No module named '([\w.]+)'")


class RayCluster:
    """A connection to the Ray at ``config.address``; with ``local``, one with ``cores`` cores is started."""

    def __init__(self, config: ClusterConfig, cores: int | None) -> None:
        self._variables = contextlib.ExitStack()  # of this process, until ``close``
        self._ray = _import_ray(config, self._variables)
        self._config = config
        self._processes: list[int] = []  # of a Ray that was started here, besides its actors
        self._is_ours = not self._ray.is_initialized()
        if self._is_ours:
            self._connect(cores or available_cores())
        self._actor_classes: dict[type[Any], Any] = {}
        self.own_node = self._ray.get_runtime_context().get_node_id()
        self._watch = _NodeWatch(self._ray, config.resources)
        self._to_kill: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._all_killed = threading.Event()
        threading.Thread(target=self._kill_actors, name="ray-kill", daemon=True).start()

    def _connect(self, cores: int) -> None:
        config = self._config
        if config.working_dir is not None and not Path(config.working_dir).is_dir():
            raise UsageError(f"ray_working_dir {config.working_dir!r}: there is no such directory")
        runtime_env = {} if config.working_dir is None else {"working_dir": config.working_dir, "excludes": _NOT_COPIED}
        options: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "runtime_env": runtime_env}
        is_local = config.address == "local"
        if config.address not in ("local", "auto"):
            check_reachable(config.address, "ray_address")
        before = psutil.Process().children(recursive=True)
        if is_local:
            options |= {
                "num_cpus": cores,
                "include_dashboard": False,
                "_temp_dir": str(ray_environment.private_directory() / "r"),
            }
            amounts = {name: cores * amount for name, amount in config.resources.items()}
            options |= {"num_gpus": amounts.pop("GPU", None), "resources": amounts}
        try:
            with ray_environment.environment(ray_environment.NODE if is_local else {}), remembered_signals():
                utils = self._ray._private.utils
                set_sigterm_handler, utils.set_sigterm_handler = utils.set_sigterm_handler, lambda handler: None
                try:
                    self._ray.init(address=config.address, **options)
                finally:
                    utils.set_sigterm_handler = set_sigterm_handler
        except (OSError, RuntimeError, ValueError, self._ray.exceptions.RayError) as error:
            raise UsageError(_describe_failure(config, error)) from None
        finally:
            started = [process for process in psutil.Process().children(recursive=True) if process not in before]
            self._processes = [process.pid for process in started]
            if not self._ray.is_initialized():
                for process in started:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()

        for pid in self._processes:
            orphan_reaper.watch(pid)
        self._show_messages(False)  # Ray's own about lost nodes, with pages of its log

    def _show_messages(self, shown: bool) -> None:
        """Let Ray print what nodes report, or not. There is no public setting for errors of the cluster."""
        self._ray._private.worker._worker_logs_enabled = shown

    def nodes(self, refresh: bool = False) -> list[Node]:
        """Return the nodes that are alive, the resources of which are enough for a host."""
        return self._watch.nodes(refresh)

    def start_host(self, node: Node, reserve_core: bool, pickled_spec: bytes) -> Any:
        """Begin to start an actor with a ``GroupHost`` on this node."""
        return self.start_actor(node, GroupHost, reserve_core, pickled_spec)

    def start_actor(self, node: Node, actor_class: type[Any], reserve_core: bool, *args: Any) -> Any:
        """Begin to start an actor of this class on this node. Its methods should return a ``HostReply``."""
        while self._watch.silence() > 2 * _LOOK_SECONDS:  # the start of an actor would block
            self._check_head()
            time.sleep(0.1)
        if actor_class not in self._actor_classes:
            self._actor_classes[actor_class] = self._ray.remote(concurrency_groups={"urgent": 1})(actor_class)
        reserved = self._config.resources if reserve_core else {}  # hosts without a core of their own share everything
        strategy = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node.id, soft=False)
        options = self._actor_classes[actor_class].options(
            num_cpus=1 if reserve_core else 0,
            max_restarts=0,
            max_task_retries=0,
            num_gpus=reserved.get("GPU"),
            resources={name: amount for name, amount in reserved.items() if name != "GPU"},
            scheduling_strategy=strategy,
        )
        return options.remote(*args)

    def call(self, host: Any, method: str, *args: Any) -> Call:
        """Call a method of an actor."""
        function = getattr(host, method)
        if method in _URGENT_METHODS:
            function = function.options(concurrency_group="urgent")
        reference: Call = function.remote(*args)
        return reference

    def share(self, value: Any) -> Any:
        """Return a reference to a large value in the object store, and a small value itself."""
        return self._ray.put(value) if _size(value) > _INLINE_BYTES else value

    def replies(self, calls: Collection[Call], seconds: float) -> list[tuple[Call, HostReply | HostLost]]:
        """Return the calls that are answered or whose actor is lost."""
        self._check_head()
        if not calls:
            time.sleep(seconds)
            return []
        with deferred_signals():  # Ray would replace the exception of a signal's handler by a KeyboardInterrupt
            ready, others = self._ray.wait(list(calls), num_returns=1, timeout=seconds)
            if ready and others:
                more, _ = self._ray.wait(others, num_returns=len(others), timeout=0)
                ready += more
            return [(reference, self._outcome(reference)) for reference in ready]

    def _check_head(self) -> None:
        """Raise an error if the head of the cluster is lost."""
        if (silence := self._watch.silence()) > _HEAD_TIMEOUT:
            raise CorralError(
                f"the head of the Ray cluster has not answered for {silence:.0f} s, so the run stops; "
                "`corral resume` continues it, on another cluster or with --backend worker"
            )

    def _outcome(self, reference: Any) -> HostReply | HostLost:
        exceptions = self._ray.exceptions
        try:
            reply: HostReply = self._ray.get(reference, timeout=_HEAD_TIMEOUT)
            return HostReply() if reply is None else reply
        except exceptions.ActorUnavailableError:
            return HostLost("cannot be reached", node_is_lost=True)
        except (exceptions.RayActorError, exceptions.RayTaskError, exceptions.RuntimeEnvSetupError) as error:
            if (missing := _MISSING_MODULE.search(str(error))) is not None:
                return HostReply(error=pickle_error(UsageError(missing_module(missing[1]))))
            if isinstance(error, exceptions.RayActorError) and not getattr(error, "actor_init_failed", False):
                return HostLost(*_describe_death(error))
            return HostReply(error=pickle_error(UsageError(f"a host could not be started or called: {error}")))
        except (exceptions.RayError, TimeoutError) as error:
            return HostLost(f"lost its answer ({type(error).__name__}: {_first_line(error)})")

    def kill(self, host: Any) -> None:
        """End an actor at once; its worker process ends with it."""
        self._to_kill.put(host)

    def _kill_actors(self) -> None:
        """End actors, in a thread, because Ray waits for its head to do that, and the head may be lost."""
        while (host := self._to_kill.get()) is not None:
            with contextlib.suppress(Exception):
                if self._ray.is_initialized():
                    self._ray.kill(host, no_restart=True)
        self._all_killed.set()

    def close(self) -> None:
        """Disconnect, and end a Ray that was started here."""
        self._to_kill.put(None)
        self._all_killed.wait(_KILL_SECONDS)
        self._watch.close()
        if self._is_ours and self._ray.is_initialized():
            self._ray.shutdown()
            self._show_messages(True)
        orphan_reaper.end(self._processes)
        self._variables.close()


class _NodeWatch:
    """Lists the nodes now and then in a thread, because the list never comes if the head of the cluster is lost."""

    def __init__(self, ray: Any, resources: Mapping[str, float]) -> None:
        self._ray, self._resources = ray, resources
        self._nodes: list[Node] = []
        self._answered_at = time.monotonic()
        self._asked, self._answered = threading.Event(), threading.Condition()
        self._is_closed = False
        self._answers = 0
        threading.Thread(target=self._look_again_and_again, name="ray-nodes", daemon=True).start()
        self.nodes(refresh=True, seconds=_HEAD_TIMEOUT)

    def nodes(self, refresh: bool, seconds: float = 2.0) -> list[Node]:
        if refresh:
            with self._answered:
                answers = self._answers
                self._asked.set()
                self._answered.wait_for(lambda: self._answers >= answers + 1, seconds)
        return list(self._nodes)

    def silence(self) -> float:
        """Return for how many seconds the head of the cluster has not answered."""
        return time.monotonic() - self._answered_at

    def close(self) -> None:
        self._is_closed = True
        self._asked.set()

    def _look_again_and_again(self) -> None:
        while not self._is_closed:
            self._asked.clear()
            with contextlib.suppress(Exception):  # the head does not answer: ``silence`` grows
                nodes = self._look()
                with self._answered:
                    self._nodes, self._answered_at = nodes, time.monotonic()
                    self._answers += 1
                    self._answered.notify_all()
            self._asked.wait(_LOOK_SECONDS)

    def _look(self) -> list[Node]:
        state = self._ray._private.state
        free, leaving = state.available_resources_per_node(), state.state.get_draining_nodes()
        nodes = []
        for node in self._ray.nodes():
            total, id_ = node["Resources"], node["NodeID"]
            if node["Alive"] and all(total.get(name, 0) >= amount for name, amount in self._resources.items()):
                cores, free_cores = self._places(total), self._places(free.get(id_, {}))
                nodes.append(Node(id_, node["NodeManagerAddress"], cores, free_cores, id_ in leaving))
        return nodes

    def _places(self, amounts: Mapping[str, float]) -> float:
        """Return for how many hosts, with a core and the resources of each, these amounts are enough."""
        needed = {"CPU": 1.0, **self._resources}
        return float(min(amounts.get(name, 0.0) // amount for name, amount in needed.items()))


def _import_ray(config: ClusterConfig, variables: contextlib.ExitStack) -> Any:
    """Import ray with the settings that it reads when it is imported."""
    for name in ("RAY_ENABLE_AUTO_CONNECT", "RAY_USAGE_STATS_ENABLED"):
        os.environ.setdefault(name, ray_environment.NODE[name])
    if config.address == "local":
        token = ray_environment.private_directory() / "token"
        ray_environment.make_token(token)
        variables.enter_context(ray_environment.replaced(ray_environment.token_environment(token)))
    else:
        variables.enter_context(ray_environment.replaced(ray_environment.token_environment()))
    try:
        import ray.util.scheduling_strategies

        import ray
    except ImportError as error:
        raise MissingPackage(f"backend ray needs the package ray ({error}): pip install 'corral[ray]'") from None
    return ray


def drain_node(head: str, address: str, seconds: float) -> None:
    """Tell the cluster with this head that a node will end in so many seconds, so that nothing new starts there."""
    ray: Any = importlib.import_module("ray")
    state: Any = importlib.import_module("ray._private.state").GlobalState()
    options = ray._raylet.GcsClientOptions.create(head, None, True, False)
    state._initialize_global_state(options)
    pb2: Any = importlib.import_module("ray.core.generated.autoscaler_pb2")
    reason = pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    deadline = int((time.time() + seconds) * 1000)
    client = ray._raylet.GcsClient(address=head)
    for node in state.node_table():
        if node["Alive"] and node["NodeManagerAddress"] == address:
            client.drain_node(node["NodeID"], reason, "the node was told to end", deadline)


def check_reachable(address: str, what: str) -> None:
    """Raise a UsageError if nothing listens at ``HOST:PORT``. Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{what} {address}: cannot be reached ({reason}); is it the address that "
            "`corral node --head` or `ray start --head` printed?"
        ) from None


def _describe_failure(config: ClusterConfig, error: BaseException) -> str:
    """Return what to do about an error of ``ray.init``."""
    if config.address == "local":
        return f"Ray could not be started: {_first_line(error)}"
    if "Could not find any running Ray" in str(error):
        return f"ray_address {config.address}: no Ray runs on this machine; start one with `corral node --head`"
    file = os.environ.get("RAY_AUTH_TOKEN_PATH")
    used = f"the token used is that in {file}" if file else f"there is no token in {ray_environment.TOKEN_FILE}"
    return f"ray_address {config.address}: {_first_line(error)} ({used}; is it that of the cluster's head?)"


def _describe_death(error: Any) -> tuple[str, bool]:
    """Return why an actor is lost, as the end of a sentence, and whether its node is lost."""
    node_is_lost = "node has died" in str(error).lower()
    return ("was lost with its node" if node_is_lost else "ended"), node_is_lost


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _size(value: Any) -> int:
    """Return the bytes of the arrays in nested dictionaries."""
    if isinstance(value, Mapping):
        return sum(_size(item) for item in value.values())
    return value.nbytes if isinstance(value, np.ndarray) else 0
