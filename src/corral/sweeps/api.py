"""``sweep`` and ``resume_sweep``: from what is asked to a directory of runs with the best settings in it.

Whatever ends a sweep, its directory says how far it got. Trials that are done stay; one that was under way is a run
directory like any other and goes on from its checkpoint.
"""

from __future__ import annotations

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
from corral.sweeps.presets import Entry, Plan, PresetPlan
from corral.sweeps.request import SweepRequest, check_no_hooks, choose_presets, make_request
from corral.sweeps.results import SweepResult, best_of, read_results, write_results
from corral.sweeps.search_space import as_setting
from corral.sweeps.trial import Outcome, TrialRequest, run_trial
from corral.sweeps.trial_processes import Event, Iteration, Job, ProcessExited
from corral.training.api import name_of, network_of
from corral.training.signals import Interrupts

__all__ = ["REQUEST", "resume_sweep", "sweep"]

REQUEST, TRIALS, JOURNAL = "sweep.yaml", "trials", "journal.log"
_FAILURES = 3
"""So many trials in a row, with none before them that worked, and the sweep is over."""
_LOOK_SECONDS, _DRAW_SECONDS = 0.5, 20.0
_SAVE_SECONDS = 10.0
"""That a job has to save its trial, before it is killed."""


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
    """Train ``env`` with different settings and tell which are best.

    ``presets``: names of built-in ones, or a mapping of names to settings. ``search``: settings to where their values
    lie, as in ``{"learning_rate": "log:1e-5:1e-3", "n_epochs": "3,5,10"}``, for ``trials`` trials; without it, a space
    that suits most envs. Everything else is as for ``corral.train``. An ``output_dir`` that holds this very sweep is
    gone on with.
    """
    values = {**(load_yaml(config) if config is not None else {}), **settings}
    check_no_hooks(values)
    values.pop("env", None)
    if policy is not None:
        values["policy"] = name_of(policy)
    network_of(values.get("policy"), policy)  # tried out before anything is written
    network = values.get("policy") if policy is None else policy
    factory = resolve_env(env, parse_env_kwargs(values.get("env_kwargs", {})))
    if presets is not None and not isinstance(presets, Mapping):
        presets = choose_presets(presets, None)
    request = make_request(factory.name, values, presets, search, trials, seeds, jobs, prune)
    directory = _plan_directory(values.get("output_dir"), factory.name)
    earlier = None
    if (directory.path / REQUEST).exists():
        directory.lock()
        try:
            earlier = SweepRequest.read(directory.path / REQUEST)
            request = request if values.get("seed") is not None else request.with_seed(earlier.seed)
            request.continues(earlier)
        except BaseException:
            directory.unlock()
            raise
    return _Sweep(request, directory, factory, network, quiet, new=earlier is None).run_trial()


def resume_sweep(
    path: str | os.PathLike[str],
    *,
    env: str | Callable[..., gym.Env[Any, Any]] | None = None,
    policy: str | NetworkFactory | None = None,
    quiet: bool = False,
) -> SweepResult:
    """Go on with the sweep in a directory; ``env`` and ``policy`` must be given again where they name code."""
    directory = RunDirectory(Path(path))
    if not is_file(directory.path / REQUEST):
        raise UsageError(f"{str(path)!r} is not a sweep's directory: it has no {REQUEST}")
    directory.lock()
    try:
        request = SweepRequest.read(directory.path / REQUEST)
        recorded = request.any_config
        require_same_code(recorded, name_of(env), name_of(policy))
        factory = resolve_env(recorded.env if env is None else env, recorded.env_kwargs)
        network_of(recorded.policy, policy)
        network = recorded.policy if policy is None else policy
    except BaseException:
        directory.unlock()
        raise
    return _Sweep(request, directory, factory, network, quiet, new=False).run_trial()


class _Sweep:
    """A sweep under way; closes all that it was given."""

    def __init__(
        self,
        request: SweepRequest,
        directory: RunDirectory,
        factory: EnvFactory,
        network: NetworkFactory | str | None,
        quiet: bool,
        new: bool,
    ) -> None:
        self.request, self.directory, self.new = request, directory, new
        self.factory, self.network = factory, network
        self.trials = directory.path / TRIALS
        self.quiet = quiet
        self.worked, self.failures, self.draw_at = False, 0, 0.0

    def run_trial(self) -> SweepResult:
        """Everything from an empty directory, or where an earlier process stopped, to the results."""
        make_plan = self._plan_maker()
        self.directory.create()
        try:
            with Interrupts() as interrupts:
                try:
                    self.request.write(self.directory.path / REQUEST)
                    self.plan = make_plan()
                    self.console = SweepConsole(self.quiet, self.plan.total)
                    try:
                        return self._try_all(interrupts)
                    except KeyboardInterrupt:
                        self._say_how_to_go_on()
                        raise
                    except UsageError:
                        if self.new and not list(self.trials.glob("*")):
                            self.directory.discard()  # it never began
                        raise
                    finally:
                        self.console.stop()
                except OSError as error:
                    raise UsageError(
                        f"{self.directory.display_path} cannot be used: {error.strerror or error}"
                    ) from None
        finally:
            self.directory.unlock()

    def _plan_maker(self) -> Callable[[], Plan]:
        if self.request.presets is not None:
            return lambda: PresetPlan(self.request, self.trials)
        from corral.sweeps.optuna_search import SearchPlan

        return lambda: SearchPlan(self.request, self.directory.path / JOURNAL)

    def _try_all(self, interrupts: Interrupts) -> SweepResult:
        before = [entry for entry in self.plan.entries() if entry.state != "begun"]
        self.worked = any(entry.state != "failed" for entry in before)
        self._print_header(len(before))
        if self.request.jobs == 1:
            self._one_by_one(interrupts)
        else:
            self._side_by_side(interrupts)
        result = self._results(last=True)
        if result.best is None:
            raise CorralError(
                f"none of {len(result.results)} trials came to an end that can be judged; see {self.directory.display_path}"
            )
        self.console.table(self.request, result.results, result.best, Path(self.directory.display_path))
        return result

    def _one_by_one(self, interrupts: Interrupts) -> None:
        while (entry := self.plan.next()) is not None:
            order = self._begin(entry)

            def listener(index: int, share: float, reward: float | None, label: str = entry.label) -> bool:
                return self._on_progress(label, Iteration(index, share, reward))

            with interrupts.allowed():
                outcome = run_trial(order, listener)
            self._end(entry.label, outcome)

    def _side_by_side(self, interrupts: Interrupts) -> None:
        events: queue.Queue[tuple[Job, Event]] = queue.Queue()
        jobs: list[Job] = []
        share = max(1, available_cores() // self.request.jobs)
        try:
            while True:
                while sum(job.label is not None for job in jobs) < self.request.jobs:
                    entry = self.plan.next()
                    if entry is None:
                        break
                    idle = next((job for job in jobs if job.label is None), None)
                    if idle is None:
                        idle = Job(share, self.directory.path / "jobs.log", events)
                        jobs.append(idle)
                    idle.begin(self._begin(entry))
                if all(job.label is None for job in jobs):
                    return
                with interrupts.allowed():
                    job, event = _wait(events)
                self._handle(job, event, jobs)
        finally:
            _stop_jobs(jobs, events)

    def _handle(self, job: Job, event: Event, jobs: list[Job]) -> None:
        label = job.label
        if isinstance(event, Iteration):
            assert label is not None
            job.answer(self._on_progress(label, event))
            return
        if isinstance(event, ProcessExited):
            jobs.remove(job)
            event = Outcome("failed", error=f"its process ended without a word, with code {event.exit_code}")
        job.label = None
        if label is not None:
            self._end(label, event)

    def _begin(self, entry: Entry) -> TrialRequest:
        path = self.trials / entry.label
        self.console.begin(entry, again=path.exists())
        varied = {name: as_setting(name, value) for name, value in entry.varied.items()}
        settings = {**self.request.settings, **varied, "env": self.request.env}
        return TrialRequest(entry.label, path, settings, self.request.all_seeds, self.factory, self.network)

    def _on_progress(self, label: str, news: Iteration) -> bool:
        overall = (news.seed_index + min(news.share, 1.0)) / self.request.seeds
        self.console.update(label, overall, news.reward)
        return self.plan.report(label, news.seed_index, news.share, news.reward)

    def _end(self, label: str, outcome: Outcome) -> None:
        """Write down what came of a trial; a sweep in which nothing works ends here."""
        if outcome.exit_code == 2 and outcome.state == "failed" and not self.worked:
            raise UsageError(f"trial {label}: {outcome.error}")
        self.plan.tell(label, outcome)
        result = self._results()
        this = next(found for found in result.results if found.label == label)
        self.console.end(this, result.best, result.objective_name)
        self.worked = self.worked or outcome.state != "failed"
        self.failures = self.failures + 1 if outcome.state == "failed" else 0
        if not self.worked and self.failures >= _FAILURES:
            raise CorralError(f"{self.failures} trials failed and none worked; the last: {outcome.error}")

    def _results(self, last: bool = False) -> SweepResult:
        """What is known so far, written down; the picture is drawn now and then, and at the end."""
        picture = last or time.monotonic() > self.draw_at
        if picture:
            self.draw_at = time.monotonic() + _DRAW_SECONDS
        results = read_results(self.request, self.plan.entries(), self.trials)
        try:
            write_results(self.directory.path, self.request, results, picture)
        except OSError as error:
            self.console.warn(f"results cannot be written: {error}")
        return SweepResult(self.directory.path, self.request.objective_name, results, best_of(results))

    def _print_header(self, done: int) -> None:
        request, cores = self.request, available_cores()
        what = "presets" if request.presets is not None else "trials"
        seeds = f" with {request.seeds} seeds each" if request.seeds > 1 else ""
        before = f", {done} of them done before" if done else ""
        self.console.note(f"sweeping {request.env}: {self.plan.total} {what}{seeds}{before}, seed {request.seed}")
        for name, text in (request.search or {}).items():
            self.console.note(f"  {name}: {text}")
        if request.jobs > 1:
            share = max(1, cores // request.jobs)
            self.console.note(f"{request.jobs} at a time, each on {share} of {cores} cores")
            if request.jobs > cores:
                self.console.warn(f"jobs {request.jobs} is more than the {cores} cores there are: no faster")
        self.console.note(f"writing to {self.directory.display_path}")
        self.console.start(done)

    def _say_how_to_go_on(self) -> None:
        self._results(last=True)
        self.console.stop()
        done = sum(entry.state != "begun" for entry in self.plan.entries())
        code = code_flags(self.request.any_config)
        how = f"{command()} resume {shlex.quote(self.directory.display_path)} {code}".rstrip()
        self.console.note(f"interrupted after {done} of {self.plan.total} trials; go on with: {how}")


def _wait(events: queue.Queue[tuple[Job, Event]]) -> tuple[Job, Event]:
    while True:
        try:
            return events.get(timeout=_LOOK_SECONDS)  # without an end, Ctrl-C would not be heard on Windows
        except queue.Empty:
            continue


def _stop_jobs(jobs: list[Job], events: queue.Queue[tuple[Job, Event]]) -> None:
    """End all jobs. What those under way still say is heard out: one that waits for an answer could not save.

    One that hangs is not waited for: its trial goes on from its last checkpoint.
    """
    busy = {job for job in jobs if job.label is not None}
    for job in busy:
        job.interrupt()
    deadline = time.monotonic() + _SAVE_SECONDS
    while busy and time.monotonic() < deadline:
        try:
            job, event = events.get(timeout=_LOOK_SECONDS)
        except queue.Empty:
            continue
        if isinstance(event, Iteration):
            job.answer(False)
        else:
            busy.discard(job)
    for job in busy:
        job.kill()
    for job in jobs:
        job.close()


def _plan_directory(output_dir: str | None, env: str) -> RunDirectory:
    """Where the sweep will be; nothing is written yet. A directory that holds anything but a sweep is refused."""
    if output_dir is not None and exists(Path(output_dir) / REQUEST):
        return RunDirectory(Path(output_dir))
    if output_dir is not None:
        return plan_run(output_dir, env)
    usual = Path(plan_run(None, env).display_path)
    names = (usual.with_name(f"sweep-{usual.name}{end}") for end in ("", *(f"-{i}" for i in range(2, 100))))
    return RunDirectory(next(path for path in names if not path.exists()))
