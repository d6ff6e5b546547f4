"""``sweep`` and ``resume_sweep``, which run all trials of a sweep and write its results into a directory.

However a sweep ends, its directory holds the results so far. Completed trials are not run again. A trial that was
interrupted is an ordinary run directory and is resumed from its checkpoint.
"""

from __future__ import annotations

import functools
import os
import queue
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym

from corral.config.schema import parse_env_kwargs
from corral.config.yaml_file import load_yaml
from corral.core.errors import CorralError, UsageError
from corral.core.files import exists, is_file
from corral.core.machine import available_cores
from corral.core.stdio import command
from corral.envs.factory import EnvFactory, resolve_env
from corral.policy.policy import NetworkFactory
from corral.storage.named_code import code_flags, require_same_code
from corral.storage.run_dir import RunDirectory, plan_run
from corral.sweeps.console import SweepConsole
from corral.sweeps.presets import Plan, PresetPlan, TrialEntry
from corral.sweeps.request import SweepRequest, check_no_hooks, choose_presets, make_request
from corral.sweeps.results import SweepResult, best_of, read_results, write_results
from corral.sweeps.search_space import as_setting
from corral.sweeps.trial import Outcome, TrialProgress, TrialRequest, run_trial
from corral.sweeps.trial_processes import Event, Job, ProcessExited
from corral.training.api import recorded_name, resolve_network
from corral.training.signals import SignalHandler

__all__ = ["REQUEST", "resume_sweep", "sweep"]

REQUEST, TRIALS, JOURNAL = "sweep.yaml", "trials", "journal.log"
"""Names of files in a sweep's directory."""
_MAX_FIRST_FAILURES = 3
"""The sweep ends if so many trials fail before any succeeds."""
_WAIT_SECONDS, _PLOT_SECONDS = 0.5, 20.0
"""Longest wait for an event of a job, and shortest time between two plots."""
_SAVE_SECONDS = 10.0
"""Time that a job has to save its trial before it is killed."""


def sweep(
    env: str | Callable[..., gym.Env[Any, Any]],
    *,
    presets: Sequence[str] | Mapping[str, Mapping[str, Any]] | None = None,
    search: Mapping[str, str] | None = None,
    trials: int | None = None,
    seeds: int = 1,
    jobs: int = 1,
    prune: bool = True,
    config: str | os.PathLike[str] | None = None,
    policy: str | NetworkFactory | None = None,
    quiet: bool = False,
    **settings: Any,
) -> SweepResult:
    """Train ``env`` with different settings, and return all results and the best.

    ``presets``: names of built-in presets, or a mapping of names to settings. ``search``: the range or the values of
    each searched setting, as in ``{"learning_rate": "log:1e-5:1e-3", "n_epochs": "3,5,10"}``, for ``trials`` trials;
    without it, a default space that suits most envs is searched. Everything else is as for ``corral.train``. If
    ``output_dir`` holds this very sweep, it is continued.
    """
    values = {**(load_yaml(config) if config is not None else {}), **settings}
    check_no_hooks(values)
    values.pop("env", None)
    if policy is not None:
        values["policy"] = recorded_name(policy)
    resolve_network(values.get("policy"), policy)  # raises, before anything is written, if there is no such network
    network = values.get("policy") if policy is None else policy
    factory = resolve_env(env, parse_env_kwargs(values.get("env_kwargs", {})))
    if presets is not None and not isinstance(presets, Mapping):
        presets = choose_presets(presets, None)
    request = make_request(
        factory.name, values, presets, search=search, trials=trials, seeds=seeds, jobs=jobs, prune=prune
    )
    directory = _plan_directory(values.get("output_dir"), factory.name)
    is_new = not (directory.path / REQUEST).exists()
    if not is_new:
        directory.lock()
        try:
            earlier = SweepRequest.read(directory.path / REQUEST)
            request = request if values.get("seed") is not None else request.with_seed(earlier.seed)
            request.check_continues(earlier)
        except BaseException:
            directory.unlock()
            raise
    return _Sweep(request, directory, factory, network, quiet=quiet, is_new=is_new).run()


def resume_sweep(
    path: str | os.PathLike[str],
    *,
    env: str | Callable[..., gym.Env[Any, Any]] | None = None,
    policy: str | NetworkFactory | None = None,
    quiet: bool = False,
) -> SweepResult:
    """Continue the sweep in a directory; ``env`` and ``policy`` must be given again if they name code."""
    directory = RunDirectory(Path(path))
    if not is_file(directory.path / REQUEST):
        raise UsageError(f"{str(path)!r} is not a sweep's directory: it has no {REQUEST}")
    directory.lock()
    try:
        request = SweepRequest.read(directory.path / REQUEST)
        recorded = request.any_config
        require_same_code(recorded, recorded_name(env), recorded_name(policy))
        factory = resolve_env(recorded.env if env is None else env, recorded.env_kwargs)
        resolve_network(recorded.policy, policy)
        network = recorded.policy if policy is None else policy
    except BaseException:
        directory.unlock()
        raise
    return _Sweep(request, directory, factory, network, quiet=quiet, is_new=False).run()


class _Sweep:
    """A running sweep. It unlocks the directory when it ends."""

    plan: Plan
    console: SweepConsole

    def __init__(
        self,
        request: SweepRequest,
        directory: RunDirectory,
        factory: EnvFactory,
        network: NetworkFactory | str | None,
        quiet: bool,
        is_new: bool,
    ) -> None:
        self.request, self.directory, self.is_new = request, directory, is_new
        self.factory, self.network = factory, network
        self.trials = directory.path / TRIALS
        self.quiet = quiet
        self.any_succeeded, self.failures_in_a_row = False, 0
        self.next_plot = 0.0

    def run(self) -> SweepResult:
        """Run all trials that are left, and return the results."""
        make_plan = self._plan_maker()
        self.directory.create()
        try:
            with SignalHandler() as interrupts:
                self.request.write(self.directory.path / REQUEST)
                self.plan = make_plan()
                return self._run_plan(interrupts)
        except OSError as error:
            raise UsageError(f"{self.directory.display_path} cannot be used: {error.strerror or error}") from None
        finally:
            self.directory.unlock()

    def _plan_maker(self) -> Callable[[], Plan]:
        """Return a function that makes the plan; raise a MissingPackage if a search lacks Optuna."""
        if self.request.presets is not None:
            return lambda: PresetPlan(self.request, self.trials)
        from corral.sweeps.optuna_search import SearchPlan

        return lambda: SearchPlan(self.request, self.directory.path / JOURNAL)

    def _run_plan(self, interrupts: SignalHandler) -> SweepResult:
        """Run the trials of the plan; on an interrupt, print how to resume."""
        self.console = SweepConsole(self.quiet, self.plan.total)
        try:
            return self._run_trials(interrupts)
        except KeyboardInterrupt:
            self._print_how_to_resume()
            raise
        except UsageError:
            if self.is_new and not list(self.trials.glob("*")):
                self.directory.discard()  # no trial has begun
            raise
        finally:
            self.console.stop()

    def _run_trials(self, interrupts: SignalHandler) -> SweepResult:
        ended_before = [entry for entry in self.plan.entries() if entry.state != "begun"]
        self.any_succeeded = any(entry.state != "failed" for entry in ended_before)
        self._print_header(len(ended_before))
        if self.request.jobs == 1:
            self._run_serially(interrupts)
        else:
            self._run_jobs(interrupts)
        result = self._write_results(is_final=True)
        if result.best is None:
            n_trials, path = len(result.results), self.directory.display_path
            raise CorralError(
                f"none of {n_trials} trials completed with a result ({result.objective_name}); see {path}"
            )
        self.console.table(self.request, result.results, result.best, Path(self.directory.display_path))
        return result

    def _run_serially(self, interrupts: SignalHandler) -> None:
        """Run the trials one after the other in this process."""
        while (entry := self.plan.next()) is not None:
            trial = self._begin_trial(entry)
            with interrupts.interruptible():
                outcome = run_trial(trial, functools.partial(self._on_progress, entry.label))
            self._end_trial(entry.label, outcome)

    def _run_jobs(self, interrupts: SignalHandler) -> None:
        """Run the trials in several processes at a time."""
        events: queue.Queue[tuple[Job, Event]] = queue.Queue()
        jobs: list[Job] = []
        try:
            while True:
                self._begin_trials_in_jobs(jobs, events)
                if all(job.label is None for job in jobs):
                    return
                with interrupts.interruptible():
                    job, event = _wait(events)
                self._handle_event(job, event, jobs)
        finally:
            _stop_jobs(jobs, events)

    def _begin_trials_in_jobs(self, jobs: list[Job], events: queue.Queue[tuple[Job, Event]]) -> None:
        """Begin trials until all jobs are busy or no trial is left; start processes where there are too few."""
        while sum(job.label is not None for job in jobs) < self.request.jobs:
            entry = self.plan.next()
            if entry is None:
                return
            idle = next((job for job in jobs if job.label is None), None)
            if idle is None:
                idle = Job(self._cores_per_job(), self.directory.path / "jobs.log", events)
                jobs.append(idle)
            idle.begin(self._begin_trial(entry))

    def _cores_per_job(self) -> int:
        return max(1, available_cores() // self.request.jobs)

    def _handle_event(self, job: Job, event: Event, jobs: list[Job]) -> None:
        """Answer a job that reports progress; otherwise end its trial."""
        label = job.label
        if isinstance(event, TrialProgress):
            assert label is not None
            job.answer(self._on_progress(label, event))
            return
        if isinstance(event, ProcessExited):
            jobs.remove(job)
            event = Outcome("failed", error=f"its process exited with code {event.exit_code} and without a result")
        job.label = None
        if label is not None:
            self._end_trial(label, event)

    def _begin_trial(self, entry: TrialEntry) -> TrialRequest:
        """Show that a trial begins, and return the request to run it."""
        path = self.trials / entry.label
        self.console.begin(entry, resumed=path.exists())
        varied = {name: as_setting(name, value) for name, value in entry.varied.items()}
        return TrialRequest(
            label=entry.label,
            path=path,
            settings={**self.request.settings, **varied, "env": self.request.env},
            seeds=self.request.all_seeds,
            factory=self.factory,
            network=self.network,
        )

    def _on_progress(self, label: str, progress: TrialProgress) -> bool:
        """Show the progress of a trial, and return whether to prune it."""
        share_of_trial = (progress.seed_index + min(progress.share, 1.0)) / self.request.seeds
        self.console.update(label, share_of_trial, progress.reward)
        return self.plan.report(label, progress.seed_index, progress.share, progress.reward)

    def _end_trial(self, label: str, outcome: Outcome) -> None:
        """Record the outcome of a trial; raise if no trial has succeeded and there is no use in trying more."""
        failed = outcome.state == "failed"
        if failed and outcome.exit_code == 2 and not self.any_succeeded:
            raise UsageError(f"trial {label}: {outcome.error}")
        self.plan.record(label, outcome)
        result = self._write_results()
        trial_result = next(trial for trial in result.results if trial.label == label)
        self.console.end(trial_result, result.best, result.objective_name)
        self.any_succeeded = self.any_succeeded or not failed
        self.failures_in_a_row = self.failures_in_a_row + 1 if failed else 0
        if not self.any_succeeded and self.failures_in_a_row >= _MAX_FIRST_FAILURES:
            raise CorralError(f"{self.failures_in_a_row} trials failed and none worked; the last: {outcome.error}")

    def _write_results(self, is_final: bool = False) -> SweepResult:
        """Write and return the results so far; the plot is drawn at intervals and at the end."""
        with_plot = is_final or time.monotonic() > self.next_plot
        if with_plot:
            self.next_plot = time.monotonic() + _PLOT_SECONDS
        results = read_results(self.request, self.plan.entries(), self.trials)
        try:
            write_results(self.directory.path, self.request, results, with_plot)
        except OSError as error:
            self.console.warn(f"results cannot be written: {error}")
        return SweepResult(self.directory.path, self.request.objective_name, results, best_of(results))

    def _print_header(self, n_ended: int) -> None:
        """Print what the sweep will do, and start the progress bars; ``n_ended`` trials have ended before."""
        request, cores = self.request, available_cores()
        unit = "presets" if request.presets is not None else "trials"
        seeds = f" with {request.seeds} seeds each" if request.seeds > 1 else ""
        ended = f", {n_ended} of them done before" if n_ended else ""
        self.console.note(f"sweeping {request.env}: {self.plan.total} {unit}{seeds}{ended}, seed {request.seed}")
        for name, text in (request.search or {}).items():
            self.console.note(f"  {name}: {text}")
        if request.jobs > 1:
            self.console.note(f"{request.jobs} at a time, each on {self._cores_per_job()} of {cores} cores")
            if request.jobs > cores:
                self.console.warn(f"jobs {request.jobs} is more than the {cores} available cores, which is no faster")
        self.console.note(f"writing to {self.directory.display_path}")
        self.console.start(n_ended)

    def _print_how_to_resume(self) -> None:
        """Write the results so far, and print the command that continues the sweep."""
        self._write_results(is_final=True)
        self.console.stop()
        n_ended = sum(entry.state != "begun" for entry in self.plan.entries())
        code = code_flags(self.request.any_config)
        resume = f"{command()} resume {shlex.quote(self.directory.display_path)} {code}".rstrip()
        self.console.note(f"interrupted after {n_ended} of {self.plan.total} trials; resume with: {resume}")


def _wait(events: queue.Queue[tuple[Job, Event]]) -> tuple[Job, Event]:
    """Return the next event; wait with a timeout, because without one Windows does not deliver Ctrl-C."""
    while True:
        try:
            return events.get(timeout=_WAIT_SECONDS)
        except queue.Empty:
            continue


def _stop_jobs(jobs: list[Job], events: queue.Queue[tuple[Job, Event]]) -> None:
    """End all jobs; busy ones have some seconds to save their trials.

    Their events are still answered, because a job that waits for an answer cannot save. A job that hangs is killed: its
    trial can be resumed from its last checkpoint.
    """
    busy = {job for job in jobs if job.label is not None}
    for job in busy:
        job.interrupt()
    deadline = time.monotonic() + _SAVE_SECONDS
    while busy and time.monotonic() < deadline:
        try:
            job, event = events.get(timeout=_WAIT_SECONDS)
        except queue.Empty:
            continue
        if isinstance(event, TrialProgress):
            job.answer(False)
        else:
            busy.discard(job)
    for job in busy:
        job.kill()
    for job in jobs:
        job.close()


def _plan_directory(output_dir: str | None, env: str) -> RunDirectory:
    """Return the sweep's directory without writing anything; raise a UsageError if it holds anything but a sweep."""
    if output_dir is not None and exists(Path(output_dir) / REQUEST):
        return RunDirectory(Path(output_dir))
    if output_dir is not None:
        return plan_run(output_dir, env)
    run_path = Path(plan_run(None, env).display_path)
    suffixes = ("", *(f"-{i}" for i in range(2, 100)))
    paths = (run_path.with_name(f"sweep-{run_path.name}{suffix}") for suffix in suffixes)
    return RunDirectory(next(path for path in paths if not path.exists()))
