"""``corral.train`` and ``corral.resume``: from settings to a finished run."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from corral.autotune.choose_backend import EnvsChoice, choose_n_envs
from corral.autotune.choose_device import device_for
from corral.autotune.measure_costs import Costs, measure_costs
from corral.autotune.rollout_length import fit_n_steps
from corral.config.schema import CLUSTER, RECOVERY, RESUMABLE, TrainConfig, parse_config, parse_env_kwargs
from corral.config.yaml_file import load_yaml
from corral.core.entry_points import import_callable, python_name
from corral.core.errors import CheckpointError, CorralError, UsageError, one_line
from corral.core.machine import limit_compute_threads
from corral.core.seeding import fresh_seed
from corral.core.suggestions import did_you_mean, short_repr
from corral.envs.factory import EnvFactory, resolve_env
from corral.envs.registry import recommended_settings
from corral.policy.policy import NetworkFactory
from corral.reporting.console import RunConsole, SilentConsole
from corral.storage.checkpoint import VerifiedCheckpoint, list_checkpoints, newest_checkpoint, set_aside
from corral.storage.named_code import require_same_cluster, require_same_code
from corral.storage.run_dir import RunDirectory, find_run, plan_run
from corral.storage.summary_file import Summary
from corral.training.assemble import assemble
from corral.training.hooks.callback import Callback
from corral.training.hooks.hook import Hook, load_hooks, restore_hooks
from corral.training.hooks.hook_order import order_hooks
from corral.training.run import Run, restore
from corral.training.run_session import MATCHES_FILE, RunSession
from corral.training.untrusted_checkpoint import check_checkpoint

__all__ = ["MATCHES_FILE", "Summary", "TrainResult", "recorded_name", "resolve_network", "resume", "train"]


@dataclass(frozen=True, slots=True)
class TrainResult:
    """The result of a run: its directory and its summary."""

    run_dir: Path
    summary: Summary
    env_opponents: tuple[str, ...] = ()
    """Names of the opponents that the env itself offers."""


def train(
    env: str | Callable[..., gym.Env[Any, Any]],
    *,
    config: str | os.PathLike[str] | None = None,
    hooks: Sequence[str | Hook] | None = None,
    callback: Callback | None = None,
    policy: str | NetworkFactory | None = None,
    quiet: bool = False,
    **settings: Any,
) -> TrainResult:
    """Train PPO on ``env`` (a name, or a callable that makes one) and return when a budget is used up.

    ``settings`` are the command line's flags with underscores: ``timesteps=100_000, n_envs=8, seed=1``. ``config`` is
    a YAML file with settings, which ``settings`` override. ``hooks`` are objects whose methods are called around each
    iteration. ``callback`` is a function that is called after each iteration with a ``TrainingState``.
    ``policy`` is a function ``(observation_space, action_space) -> torch.nn.Module``, or its ``module:name``.
    """
    values = {**(load_yaml(config) if config is not None else {}), **settings}
    factory = resolve_env(env, parse_env_kwargs(values.get("env_kwargs", {})))
    if policy is not None:
        values["policy"] = recorded_name(policy)
    hooks = values.get("hooks", ()) if hooks is None else hooks
    values["hooks"] = hook_names(hooks)
    loaded_hooks = load_hooks(hooks)
    console = SilentConsole() if quiet else RunConsole()
    user_gave_n_steps = "n_steps" in values
    env_settings = recommended_settings(factory.name, values)
    if env_settings:
        listed = ", ".join(f"{name} {value}" for name, value in env_settings.items())
        console.note(f"settings of {factory.name}: {listed}")
    values = {**env_settings, **values}
    network = resolve_network(values.get("policy"), policy)
    values, envs_choice = _resolve_n_envs({**values, "env": factory.name}, factory, network, console)
    parsed = parse_config(values) if user_gave_n_steps else fit_n_steps(values, console.note)
    directory = plan_run(parsed.output_dir, parsed.env)  # before an env can change the working directory
    seed = fresh_seed() if parsed.seed is None else parsed.seed
    parsed = parsed.model_copy(update={"seed": seed})
    run = assemble(parsed, seed, factory, network, console, envs_choice)
    return _train_to_end(RunSession(run, directory, order_hooks(parsed, loaded_hooks, callback), console))


def resume(
    run: str | os.PathLike[str],
    *,
    env: str | Callable[..., gym.Env[Any, Any]] | None = None,
    policy: str | NetworkFactory | None = None,
    hooks: Sequence[str | Hook] | None = None,
    callback: Callback | None = None,
    quiet: bool = False,
    **settings: Any,
) -> TrainResult:
    """Continue a run from its newest valid checkpoint, with the config in its directory.

    ``settings`` may change the budget, the workers and the backend. ``env``, ``policy`` and ``hooks`` must be given
    again where they name code, because code that a run directory names is never imported by itself.
    """
    directory = find_run(run)
    directory.lock()
    try:
        recorded = directory.read_config()
        names = hook_names(hooks or ())
        config = _changed_config(recorded, settings, names)
        require_same_cluster(config, settings)
        require_same_code(recorded, recorded_name(env), recorded_name(policy), names)
        loaded_hooks = load_hooks(hooks or ())
        factory = resolve_env(recorded.env if env is None else env, recorded.env_kwargs)
        newest = _find_checkpoint(directory, recorded)
        console = SilentConsole() if quiet else RunConsole()
        network = resolve_network(recorded.policy, policy)
        seed, env_known_to_work = int(recorded.seed or 0), False
        if newest is not None:
            _check_newest(config, newest)
            seed = int(newest.checkpoint.state["seed"])
            env_known_to_work = newest.checkpoint.timesteps > 0  # at step 0 the env may never have taken a step
        assembled = assemble(config, seed, factory, network, console, env_known_to_work=env_known_to_work)
        if newest is None:
            console.warn(f"{directory.display_path} ended before its first checkpoint was saved; starting at step 0")
        else:
            _restore_run(assembled, newest, loaded_hooks, directory, console)
            if not {"backend", "num_workers", "num_envs_per_worker"} & settings.keys():
                assembled.backend = dataclasses.replace(assembled.backend, why="as before")
        ordered_hooks = order_hooks(config, loaded_hooks, callback)
    except BaseException:
        directory.unlock()
        raise
    return _train_to_end(RunSession(assembled, directory, ordered_hooks, console, newest, recorded.hooks))


def _train_to_end(session: RunSession) -> TrainResult:
    """Train, and return the result."""
    summary = session.run_to_end()
    return TrainResult(session.directory.path, summary, tuple(session.run.env_opponents))


def _find_checkpoint(directory: RunDirectory, recorded: TrainConfig) -> VerifiedCheckpoint | None:
    """Return the newest valid checkpoint; None if the run ended before it saved one, so that it can start again."""
    newest = newest_checkpoint(directory.checkpoints)
    if newest is None and (recorded.seed is None or directory.has_metrics()):
        raise CheckpointError(f"{directory.display_path} has no checkpoint to continue from; delete it and train again")
    return newest


def _check_newest(config: TrainConfig, newest: VerifiedCheckpoint) -> None:
    """Raise a CheckpointError if the checkpoint is not of a run with this config."""
    check_checkpoint(config, newest.checkpoint)
    episodes = newest.checkpoint.envs.get("episode")
    n_envs = 0 if episodes is None else episodes.numel()  # its shape is checked when the run is restored
    if n_envs != config.n_envs:
        raise CheckpointError(f"{newest.path} does not fit this run's config: it has {n_envs} envs")


def _restore_run(
    run: Run, newest: VerifiedCheckpoint, hooks: Sequence[Hook], directory: RunDirectory, console: SilentConsole
) -> None:
    """Restore a run and its hooks from a checkpoint, and set newer files aside; close the run if that fails."""
    try:
        restore(run, newest.checkpoint)
        restore_hooks(hooks, newest.checkpoint.state.get("hooks", {}), console.warn)
        for folder in (directory.checkpoints, directory.best):
            set_aside(folder, newer_than=newest.checkpoint.timesteps)
        if not list_checkpoints(directory.best):  # the best policy was newer than the checkpoint
            run.progress.best_reward = None
    except BaseException as error:
        run.close()
        if isinstance(error, CorralError) or not isinstance(error, Exception):
            raise
        raised = f"{type(error).__name__}: {one_line(error)}"
        raise CheckpointError(f"{newest.path} does not fit this run's config: {raised}") from None


def recorded_name(given: Any) -> str | None:
    """Return the name under which a config records an env or a policy that the caller gives."""
    if isinstance(given, EnvFactory):
        return given.name
    return given if given is None or isinstance(given, str) else python_name(given)


def hook_names(hooks: Sequence[str | Hook]) -> tuple[str, ...]:
    """Return the names under which a config records the hooks that the caller gives."""
    given = (hooks,) if isinstance(hooks, str) else hooks
    if not isinstance(given, Sequence):
        raise UsageError(f"hooks {short_repr(given)}: should be a list of hooks, as in hooks=[MyHook()]")
    return tuple(hook if isinstance(hook, str) else python_name(type(hook)) for hook in given)


def resolve_network(spec: str | None, given: str | NetworkFactory | None) -> NetworkFactory | None:
    """Return the function that makes the network: ``given``, or what the config names; None for the built-in ones."""
    if spec is None:
        return None
    if given is None or isinstance(given, str):
        return import_callable(given or spec, "policy")
    if not callable(given):
        raise UsageError(
            f"policy {short_repr(given)}: should be the name of a callable that makes a network, or one itself"
        )
    return given


def _resolve_n_envs(
    values: dict[str, Any], factory: EnvFactory, network: NetworkFactory | None, console: SilentConsole
) -> tuple[dict[str, Any], EnvsChoice | None]:
    """Replace ``n_envs: auto`` by a number; return the settings, and how the number was chosen."""
    if values.get("n_envs") != "auto":
        return values, None
    device = device_for(str(values.get("device", "auto")), str(values.get("cnn", "auto")), factory, network).device

    def costs(config: TrainConfig) -> Costs:
        limit_compute_threads()
        torch.set_num_threads(1)
        return measure_costs(config, factory, network, device, console.note, console.warn, memory=True)

    other_values = {name: value for name, value in values.items() if name != "n_envs"}
    choice = choose_n_envs(other_values, costs, on_accelerator=device.type != "cpu")
    console.note(
        f"n_envs {choice.n_envs} ({choice.why}); to repeat this run: --n-envs {choice.n_envs} with the same seed"
    )
    return {**values, "n_envs": choice.n_envs}, choice


def _changed_config(recorded: TrainConfig, settings: Mapping[str, Any], hooks: Sequence[str]) -> TrainConfig:
    """Return the config of a run with these settings and hooks.

    Settings form groups, such as the three budgets. A new value for one of them removes the old values of its group.
    """
    for name in settings:
        if name not in TrainConfig.model_fields:
            raise UsageError(f"unknown setting {name!r}{did_you_mean(name, RESUMABLE)}")
        if name not in RESUMABLE:
            raise UsageError(f"{name} belongs to the run and cannot change on resume; {', '.join(RESUMABLE)} can")
    workers_of_ray = {"num_workers", "num_envs_per_worker", *CLUSTER}
    if recorded.backend == "ray" and settings.keys() & workers_of_ray and "backend" not in settings:
        settings = {"backend": "ray", **settings}  # with other workers or machines
    budgets = {"timesteps", "num_episodes", "duration"}
    workers = {"backend", "num_workers", "num_envs_per_worker", "parallel_start_method", "adaptive"}
    learner, cluster = {"device", "learner", "learner_shares"}, {*CLUSTER}
    if settings.get("backend") == "serial":
        workers |= {*RECOVERY}
    removed: set[str] = set() if settings.get("backend", "ray") == "ray" else cluster
    if recorded.backend == "serial" and settings.keys() & {*RECOVERY} and "backend" not in settings:
        removed |= workers  # the new settings are about workers, so the run must have workers
    for group in (budgets, workers, learner):
        if group & settings.keys():
            removed |= group
    values = {name: value for name, value in recorded.model_dump().items() if name not in removed}
    return parse_config({**values, **settings, "hooks": hooks})
