"""``corral.train`` and ``corral.resume``: a run from start to summary."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch

from corral.autotune.choose_backend import EnvsChoice, choose_n_envs
from corral.autotune.choose_device import device_for
from corral.autotune.measure_costs import Costs, measure_costs
from corral.autotune.rollout_length import fit_n_steps
from corral.config.schema import RECOVERY, RESUMABLE, TrainConfig, parse_config, parse_env_kwargs
from corral.config.yaml_file import dump_yaml, load_yaml
from corral.core.entry_points import import_callable, python_name
from corral.core.errors import CheckpointError, CorralError, EnvFault, UsageError, one_line
from corral.core.files import replace_file
from corral.core.machine import limit_compute_threads
from corral.core.seeding import fresh_seed
from corral.core.suggestions import did_you_mean, short_repr
from corral.envs.factory import EnvFactory, resolve_env
from corral.envs.registry import settings_of
from corral.policy.policy import NetworkFactory
from corral.ppo.mlp_engine import MlpEngine
from corral.reporting.console import RunConsole, SilentConsole
from corral.reporting.episode_lines import env_lines
from corral.reporting.reporter import Reporter, RowFiles
from corral.storage.checkpoint import FoundCheckpoint, list_checkpoints, newest_checkpoint, set_aside
from corral.storage.fault_files import keep_fault
from corral.storage.named_code import require_same_code
from corral.storage.run_dir import RunDirectory, find_run, plan_run
from corral.storage.summary_file import Summary
from corral.training.assemble import assemble
from corral.training.checkpoint_checks import check_checkpoint
from corral.training.closing import closing_table, summarize, where
from corral.training.hooks.callback import Callback
from corral.training.hooks.hook import Hook, HookList, load_hooks, restore_hooks
from corral.training.hooks.hook_order import order_hooks
from corral.training.loop import train_loop
from corral.training.metrics_row import progress_columns
from corral.training.progress import budgets_of, ended_by
from corral.training.run import Run, restore
from corral.training.signals import Interrupted, Interrupts

__all__ = ["MATCHES", "Summary", "TrainResult", "name_of", "network_of", "resume", "train"]

MATCHES = "matches.json"
"""In a run directory: games that were played after the run."""


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Where a run's files are, and how it ended."""

    run_dir: Path
    summary: Summary
    env_opponents: tuple[str, ...] = ()
    """Names of the env's own opponents."""


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

    ``settings`` are the command line's flags with underscores: ``timesteps=100_000, n_envs=8, seed=1``. ``config``
    names a YAML file to start from. ``hooks`` act around iterations; ``callback``, their short form, is called after
    every iteration with a ``TrainingState``.
    ``policy`` is a function ``(observation_space, action_space) -> torch.nn.Module``, or its ``module:name``.
    """
    values = {**(load_yaml(config) if config is not None else {}), **settings}
    factory = resolve_env(env, parse_env_kwargs(values.get("env_kwargs", {})))
    if policy is not None:
        values["policy"] = name_of(policy)
    hooks = values.get("hooks", ()) if hooks is None else hooks
    values["hooks"] = hook_names(hooks)
    loaded = load_hooks(hooks)
    console = SilentConsole() if quiet else RunConsole()
    own = settings_of(factory.name, values)
    if own:
        console.note(f"settings of {factory.name}: {', '.join(f'{name} {value}' for name, value in own.items())}")
    typed, values = {*values}, {**own, **values}
    network = network_of(values.get("policy"), policy)
    values, envs = _settle_n_envs({**values, "env": factory.name}, factory, network, console)
    checked = parse_config(values) if "n_steps" in typed else fit_n_steps(values, console.note)
    directory = plan_run(checked.output_dir, checked.env)  # now, before an env can change the working directory
    seed = fresh_seed() if checked.seed is None else checked.seed
    checked = checked.model_copy(update={"seed": seed})
    run = assemble(checked, seed, factory, network, console.note, envs, console.warn)
    return _run_to_end(run, directory, order_hooks(checked, loaded, callback), console)


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
    """Go on with a run from its newest valid checkpoint, with its own config.

    ``settings`` may change the budget, the workers and the backend. ``env``, ``policy`` and ``hooks`` must be given
    again where they name code: what a run directory says is data and is never imported on its own.
    """
    directory = find_run(run)
    directory.lock()
    try:
        recorded = directory.read_config()
        names = hook_names(hooks or ())
        config = _with_changes(recorded, settings, names)
        require_same_code(recorded, name_of(env), name_of(policy), names)
        loaded = load_hooks(hooks or ())
        factory = resolve_env(recorded.env if env is None else env, recorded.env_kwargs)
        found = newest_checkpoint(directory.checkpoints)
        if found is None and (recorded.seed is None or directory.has_metrics()):
            raise CheckpointError(
                f"{directory.display_path} has no checkpoint to go on from; delete it and start again"
            )
        console = SilentConsole() if quiet else RunConsole()
        network = network_of(recorded.policy, policy)
        seed = int(recorded.seed or 0)
        if found is not None:
            check_checkpoint(config, found.checkpoint)
            episodes = found.checkpoint.envs.get("episode")
            if (n := 0 if episodes is None else episodes.numel()) != config.n_envs:  # of any shape, until restored
                raise CheckpointError(f"{found.path} does not fit this run's config: it has {n} envs")
            seed = int(found.checkpoint.state["seed"])
        known_to_work = (
            found is not None and found.checkpoint.timesteps > 0
        )  # at step 0 the env may never have taken one
        assembled = assemble(
            config, seed, factory, network, console.note, warn=console.warn, known_to_work=known_to_work
        )
        if found is None:
            console.warn(f"{directory.display_path} ended before anything was saved; beginning at step 0")
            ordered = order_hooks(config, loaded, callback)
            return _run_to_end(assembled, directory, ordered, console, earlier_hooks=recorded.hooks)
        try:
            restore(assembled, found.checkpoint)
            restore_hooks(loaded, found.checkpoint.state.get("hooks", {}), console.warn)
            for folder in (directory.checkpoints, directory.best):
                set_aside(folder, newer_than=found.checkpoint.timesteps)
            if not list_checkpoints(directory.best):  # the best came later, and is lost
                assembled.progress.best_reward = None
            if not {"backend", "num_workers", "num_envs_per_worker"} & settings.keys():
                assembled.backend = dataclasses.replace(assembled.backend, why="as before")
        except BaseException as error:
            assembled.close()
            if isinstance(error, CorralError) or not isinstance(error, Exception):
                raise
            what = f"{type(error).__name__}: {one_line(error)}"
            raise CheckpointError(f"{found.path} does not fit this run's config: {what}") from None
    except BaseException:
        directory.unlock()
        raise
    ordered = order_hooks(config, loaded, callback)
    return _run_to_end(assembled, directory, ordered, console, found, earlier_hooks=recorded.hooks)


def _run_to_end(
    run: Run,
    directory: RunDirectory,
    hooks: HookList,
    console: SilentConsole,
    resumed: FoundCheckpoint | None = None,
    earlier_hooks: Sequence[str] | None = None,
) -> TrainResult:
    """Everything between a run that is ready and its summary; closes all that it was given.

    ``earlier_hooks`` are those of a run that was there before. It keeps them if hooks that are given now cannot start.
    """
    config = run.config
    try:
        with Interrupts() as interrupts:
            if resumed is None:
                directory.create()
            try:
                for of_an_earlier_end in (directory.summary_file, directory.path / MATCHES):
                    of_an_earlier_end.unlink(missing_ok=True)
                _write_config(run, directory)
                from_step = resumed.checkpoint.timesteps if resumed else None
                files = RowFiles(directory, progress_columns(run), config.tensorboard, from_step, console.warn)
                reporter = Reporter(files, console)
            except OSError as error:
                if earlier_hooks is None:
                    directory.discard()
                else:
                    _keep_hooks(run, directory, earlier_hooks, console)
                file = f"/{Path(error.filename).name}" if error.filename else ""
                raise UsageError(
                    f"{directory.display_path}{file} cannot be written to: {error.strerror or error}"
                ) from None
            run.open(directory, reporter)
            _print_header(console, run, directory, resumed)
            try:
                reason = train_loop(run, hooks, interrupts)
            except BaseException as error:
                reporter.close()
                _warn_of(hooks.end_errors, console)
                refused = getattr(error, "exit_code", 1) == 2 and run.progress.iteration == 0
                learned = (config.expert is not None or bool(config.hooks)) and run.last_saved_step is not None
                if not hooks.started and earlier_hooks is not None:
                    _keep_hooks(run, directory, earlier_hooks, console)
                if refused and directory.made_here and not learned:
                    directory.discard()  # it never began: there is at most a checkpoint of the first random weights
                elif run.recovery_point is not None:
                    _finish(console, run, directory, _why(error), failed=not isinstance(error, Interrupted))
                if isinstance(error, Interrupted) and directory.path.exists():
                    error.run_dir = directory.path
                if isinstance(error, EnvFault) and directory.path.exists():
                    again = keep_fault(directory, config, error, run.opponent_reset_options)
                    error.advice = None if again is None else f"To see it again: {again}"
                raise
            reporter.close()
            summary = _finish(console, run, directory, reason)
        if run.recovery_point is not None and run.last_saved_step != run.recovery_point.timesteps:
            _warn_of(hooks.end_errors, console)
            raise CheckpointError(
                f"the last checkpoint could not be saved in {directory.checkpoints}: what it held is lost"
            )
        if hooks.end_errors:
            first = min(hooks.end_errors, key=lambda error: not isinstance(error, Exception))  # sys.exit() comes last
            _warn_of([error for error in hooks.end_errors if error is not first], console)
            raise first
        interrupts.raise_if_received()  # it came while the end was written: the run is whole, but nothing follows
        return TrainResult(directory.path, summary, tuple(run.env_opponents))
    finally:
        try:
            run.close()
        finally:
            directory.unlock()


def _keep_hooks(run: Run, directory: RunDirectory, hooks: Sequence[str], console: SilentConsole) -> None:
    """Let the config name the hooks that a run had before others were added, which could not start."""
    if hooks == run.config.hooks:
        return
    try:
        _write_config(run, directory, hooks)
    except OSError as error:
        console.warn(f"config.yaml cannot be written ({error.strerror or error}): it names hooks that could not start")


def _warn_of(errors: Sequence[BaseException], console: SilentConsole) -> None:
    """Report what hooks raised at the end of a run that fails for another reason."""
    for error in errors:
        console.warn(f"{type(error).__name__}: {one_line(error)} ({', '.join(error.__notes__)})")


def _why(error: BaseException) -> str:
    return error.name if isinstance(error, Interrupted) else f"failed: {type(error).__name__}"


def _print_header(console: SilentConsole, run: Run, directory: RunDirectory, resumed: FoundCheckpoint | None) -> None:
    config, choice, progress = run.config, run.backend, run.progress
    masked = ", actions masked by the env" if run.masked else ""
    envs = f"{config.n_envs} envs {where(run)}{masked}"
    if resumed is None:
        console.note(f"training PPO on {config.env}: {envs}, seed {run.seed}")
    else:
        for complaint in resumed.complaints:
            console.warn(f"{complaint}; using an older checkpoint")
        console.note(f"resuming {config.env} at {progress.timesteps:,} steps: {envs}")
        if run.overrides:
            told = ", ".join(f"{name} {value:g}" for name, value in run.overrides.items())
            console.note(f"settings that a hook has changed: {told}")
    console.note(f"backend {choice.backend} ({choice.why})")
    for line in env_lines(config.n_envs, "started") if config.log_episodes else ():
        console.note(line)
    if choice.advice:
        console.warn(choice.advice)
    console.note(f"writing to {directory.display_path}")
    if config.batch_size > config.rollout_size:
        console.note(
            f"batch_size {config.batch_size} is more than a rollout of {config.rollout_size}: one full batch is used"
        )
    if (over := ended_by(config, progress)) is not None:
        console.note(f"nothing to do: {over} is already reached; give a larger --{over.replace('_', '-')}")
    console.start(*budgets_of(config, progress)[0])


def _finish(console: SilentConsole, run: Run, directory: RunDirectory, reason: str, failed: bool = False) -> Summary:
    summary = summarize(run, reason)
    try:
        replace_file(directory.summary_file, summary.to_json().encode())
    except OSError as error:
        console.warn(f"summary.json cannot be written: {error}")
    if failed:  # the error itself follows
        if run.last_saved_step is not None:
            console.note(f"stopped: everything up to step {run.last_saved_step:,} is saved in {directory.display_path}")
        return summary
    closing = closing_table(run, directory, summary)
    try:
        run.close()
        for line in env_lines(run.config.n_envs, "closed") if run.config.log_episodes else ():
            console.note(line)
    finally:
        console.table(*closing)
    return summary


def name_of(given: Any) -> str | None:
    """How a config names an env or a policy that a caller gives."""
    if isinstance(given, EnvFactory):
        return given.name
    return given if given is None or isinstance(given, str) else python_name(given)


def hook_names(hooks: Sequence[str | Hook]) -> tuple[str, ...]:
    """How a config names the hooks that a caller gives."""
    given = (hooks,) if isinstance(hooks, str) else hooks
    if not isinstance(given, Sequence):
        raise UsageError(f"hooks {short_repr(given)}: should be a list of hooks, as in hooks=[MyHook()]")
    return tuple(hook if isinstance(hook, str) else python_name(type(hook)) for hook in given)


def network_of(spec: str | None, given: str | NetworkFactory | None) -> NetworkFactory | None:
    """The network that a config names, if it is not the built-in one; what the caller gives for it comes first."""
    if spec is None:
        return None
    if given is None or isinstance(given, str):
        return import_callable(given or spec, "policy")
    if not callable(given):
        raise UsageError(
            f"policy {short_repr(given)}: should be the name of a callable that makes a network, or one itself"
        )
    return given


def _settle_n_envs(
    values: dict[str, Any], factory: EnvFactory, network: NetworkFactory | None, console: SilentConsole
) -> tuple[dict[str, Any], EnvsChoice | None]:
    """``n_envs: auto`` as a number, and how it was found."""
    if values.get("n_envs") != "auto":
        return values, None

    def costs(config: TrainConfig) -> Costs:
        limit_compute_threads()
        torch.set_num_threads(1)
        return measure_costs(config, factory, network, device, console.note, console.warn, memory=True)

    asked = str(values.get("device", "auto")), str(values.get("cnn", "auto"))
    device = device_for(*asked, factory, network).device
    central = device.type != "cpu"
    choice = choose_n_envs({name: value for name, value in values.items() if name != "n_envs"}, costs, central)
    console.note(
        f"n_envs {choice.n_envs} ({choice.why}); to have it again: --n-envs {choice.n_envs} with the same seed"
    )
    return {**values, "n_envs": choice.n_envs}, choice


def _with_changes(recorded: TrainConfig, settings: dict[str, Any], hooks: Sequence[str]) -> TrainConfig:
    """Return the run's config with these settings and hooks; a new budget or way to run replaces the old one whole."""
    for name in settings:
        if name not in TrainConfig.model_fields:
            raise UsageError(f"unknown setting {name!r}{did_you_mean(name, RESUMABLE)}")
        if name not in RESUMABLE:
            raise UsageError(f"{name} belongs to the run and cannot change on resume; {', '.join(RESUMABLE)} can")
    values = recorded.model_dump()
    ways = {"backend", "num_workers", "num_envs_per_worker", "parallel_start_method", "adaptive"}
    if settings.get("backend") == "serial":
        ways |= {*RECOVERY}
    if recorded.backend == "serial" and settings.keys() & {*RECOVERY} and "backend" not in settings:
        values = {name: value for name, value in values.items() if name not in ways}  # only workers can honour them
    for together in ({"timesteps", "num_episodes", "duration"}, ways, {"device", "learner", "learner_shares"}):
        if together & settings.keys():
            values = {name: value for name, value in values.items() if name not in together}
    return parse_config({**values, **settings, "hooks": hooks})


def _write_config(run: Run, directory: RunDirectory, hooks: Sequence[str] | None = None) -> None:
    choice, policy = run.backend, run.learner.policy
    decided = run.config.model_copy(
        update={
            "backend": choice.backend,
            "num_workers": choice.num_workers if choice.backend != "serial" else None,
            "parallel_start_method": run.config.parallel_start_method if choice.backend != "serial" else "auto",
            "device": str(run.learner.device),
            "learner": "numpy" if isinstance(run.learner.engine, MlpEngine) else "torch",
            "learner_shares": run.learner.engine.n_shares,
            "score_actions": None if policy.custom else policy.n_action_features > 0,
            "net_arch": None if policy.custom else dict(zip(("pi", "vf"), policy.net_arch, strict=True)),
            "output_dir": directory.display_path,
            "hooks": run.config.hooks if hooks is None else hooks,
        }
    )
    notes = {"backend": choice.why, "device": run.why_device, "learner": f"rows are inferred in {run.batch_layout}"}
    if run.why_envs:
        notes["n_envs"] = run.why_envs
    replace_file(directory.config_file, dump_yaml(decided, notes).encode())
