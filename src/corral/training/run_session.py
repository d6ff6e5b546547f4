"""Executes an assembled run: creates its files, trains, writes its summary, and closes everything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from corral.config.yaml_file import dump_yaml
from corral.core.errors import CheckpointError, CorralError, EnvFault, UsageError, one_line
from corral.core.files import replace_file
from corral.ppo.mlp_engine import MlpEngine
from corral.reporting.console import SilentConsole
from corral.reporting.episode_lines import env_lines
from corral.reporting.reporter import Reporter, WriterContext
from corral.storage.checkpoint import VerifiedCheckpoint
from corral.storage.fault_files import write_fault
from corral.storage.run_dir import RunDirectory
from corral.storage.summary_file import Summary
from corral.training.closing import closing_table, describe_location, summarize
from corral.training.hooks.hook import HookList
from corral.training.loop import train_loop
from corral.training.metrics_row import progress_columns
from corral.training.progress import budgets_of, exhausted_budget
from corral.training.run import Run
from corral.training.signals import Interrupted, SignalHandler

__all__ = ["MATCHES_FILE", "RunSession"]

MATCHES_FILE = "matches.json"
"""The file in a run directory with the results of games that were played after the run."""


@dataclass(frozen=True, slots=True)
class RunSession:
    """A run that is ready to train, with its directory, hooks and console."""

    run: Run
    directory: RunDirectory
    hooks: HookList
    console: SilentConsole
    resumed: VerifiedCheckpoint | None = None
    """The checkpoint from which the run was restored; None for a run that starts at step 0."""
    previous_hooks: Sequence[str] | None = None
    """The hooks in the config of a run that existed before; None for a new run."""

    def run_to_end(self) -> Summary:
        """Train, and return the summary. Envs, processes and the lock of the directory are released in any case."""
        try:
            with SignalHandler() as signals:
                reporter = self._open_files()
                self.run.set_outputs(self.directory, reporter)
                self._print_header()
                try:
                    reason = train_loop(self.run, self.hooks, signals)
                except BaseException as error:
                    reporter.close()
                    self._end_after_error(error)
                    raise
                reporter.close()
                summary = self._write_summary(reason)
                self._close_and_print_table(summary)
            self._raise_errors_of_the_end()
            signals.raise_if_received()  # a signal that arrived during the end: the run is complete, the caller stops
            return summary
        finally:
            try:
                self.run.close()
            finally:
                self.directory.unlock()

    # ---- start -----------------------------------------------------------------------------------------------

    def _open_files(self) -> Reporter:
        """Create the files of the run, or open those of a resumed run; raise a UsageError if that fails."""
        directory, console = self.directory, self.console
        if self.resumed is None:
            directory.create()
        try:
            for file_of_previous_end in (directory.summary_file, directory.path / MATCHES_FILE):
                file_of_previous_end.unlink(missing_ok=True)
            self._write_config()
            resumed_step = self.resumed.checkpoint.timesteps if self.resumed else None
            columns, tensorboard = progress_columns(self.run), self.run.config.tensorboard
            return Reporter(WriterContext(directory, columns, tensorboard, resumed_step, console.warn), console)
        except OSError as error:
            if self.previous_hooks is None:
                directory.discard()
            else:
                self._write_previous_hooks()
            file = f"/{Path(error.filename).name}" if error.filename else ""
            raise UsageError(
                f"{directory.display_path}{file} cannot be written to: {error.strerror or error}"
            ) from None

    def _write_config(self, hooks: Sequence[str] | None = None) -> None:
        """Write ``config.yaml`` with the values that ``auto`` was resolved to; ``hooks`` replace those of the run."""
        run, backend, policy = self.run, self.run.backend, self.run.learner.policy
        is_serial = backend.backend == "serial"
        resolved = run.config.model_copy(
            update={
                "backend": backend.backend,
                "num_workers": None if is_serial else backend.num_workers,
                "parallel_start_method": "auto" if is_serial else run.config.parallel_start_method,
                "device": str(run.learner.device),
                "learner": "numpy" if isinstance(run.learner.engine, MlpEngine) else "torch",
                "learner_shares": run.learner.engine.n_shards,
                "score_actions": None if policy.is_custom else policy.n_action_features > 0,
                "net_arch": None if policy.is_custom else dict(zip(("pi", "vf"), policy.net_arch, strict=True)),
                "output_dir": self.directory.display_path,
                "hooks": run.config.hooks if hooks is None else hooks,
            }
        )
        comments = {
            "backend": backend.why,
            "device": run.device_reason,
            "learner": f"rows are inferred in {run.batch_layout}",
        }
        if run.n_envs_reason:
            comments["n_envs"] = run.n_envs_reason
        replace_file(self.directory.config_file, dump_yaml(resolved, comments).encode())

    def _write_previous_hooks(self) -> None:
        """Write the hooks of the run before this session into its config, because the new hooks could not start."""
        if self.previous_hooks is None or self.previous_hooks == self.run.config.hooks:
            return
        try:
            self._write_config(self.previous_hooks)
        except OSError as error:
            self.console.warn(
                f"config.yaml cannot be written ({error.strerror or error}): it names hooks that could not start"
            )

    def _print_header(self) -> None:
        """Print what is trained, with how many envs and where, and start the progress bar."""
        run, console, config, progress = self.run, self.console, self.run.config, self.run.progress
        masks = ", actions masked by the env" if run.has_masks else ""
        envs = f"{config.n_envs} envs {describe_location(run)}{masks}"
        if self.resumed is None:
            console.note(f"training PPO on {config.env}: {envs}, seed {run.seed}")
        else:
            for complaint in self.resumed.problems:
                console.warn(f"{complaint}; using an older checkpoint")
            console.note(f"resuming {config.env} at {progress.timesteps:,} steps: {envs}")
            if run.overrides:
                settings = ", ".join(f"{name} {value:g}" for name, value in run.overrides.items())
                console.note(f"settings that a hook has changed: {settings}")
        console.note(f"backend {run.backend.backend} ({run.backend.why})")
        for line in env_lines(config.n_envs, "started") if config.log_episodes else ():
            console.note(line)
        if run.backend.advice:
            console.warn(run.backend.advice)
        console.note(f"writing to {self.directory.display_path}")
        if config.batch_size > config.rollout_size:
            console.note(
                f"batch_size {config.batch_size} is more than a rollout of {config.rollout_size}: "
                "one full batch is used"
            )
        if (budget := exhausted_budget(config, progress)) is not None:
            console.note(f"nothing to do: {budget} is already reached; give a larger --{budget.replace('_', '-')}")
        console.start(*budgets_of(config, progress)[0])

    # ---- end -------------------------------------------------------------------------------------------------

    def _write_summary(self, reason: str) -> Summary:
        """Write ``summary.json``, or warn if that fails; return the summary."""
        summary = summarize(self.run, reason)
        try:
            replace_file(self.directory.summary_file, summary.to_json().encode())
        except OSError as error:
            self.console.warn(f"summary.json cannot be written: {error}")
        return summary

    def _close_and_print_table(self, summary: Summary) -> None:
        """Close envs and processes, then print the closing table."""
        table = closing_table(self.run, self.directory, summary)  # reads the processes' CPU time: before they end
        try:
            self.run.close()
            for line in env_lines(self.run.config.n_envs, "closed") if self.run.config.log_episodes else ():
                self.console.note(line)
        finally:
            self.console.table(table.title, table.rows, table.advice)

    def _end_after_error(self, error: BaseException) -> None:
        """Write the summary of a run that an exception ended, or delete the directory of a run that did not start.

        Adds to the exception where the run is, and how an exception of an env is reproduced.
        """
        run, directory = self.run, self.directory
        self._warn_of_end_errors(self.hooks.end_errors)
        if not self.hooks.started:
            self._write_previous_hooks()
        if directory.made_here and self._never_started(error):
            directory.discard()
        elif run.recovery_point is not None:
            if isinstance(error, Interrupted):
                self._close_and_print_table(self._write_summary(error.name))
            else:
                recorded_name = error.recorded_name if isinstance(error, CorralError) else None
                self._write_summary(f"failed: {recorded_name or type(error).__name__}")
                if run.last_saved_step is not None:
                    self.console.note(
                        f"stopped: everything up to step {run.last_saved_step:,} is saved in {directory.display_path}"
                    )
        if isinstance(error, Interrupted) and directory.path.exists():
            error.run_dir = directory.path
        if isinstance(error, EnvFault) and directory.path.exists():
            replay_command = write_fault(directory, run.config, error, run.opponent_reset_options)
            error.advice = None if replay_command is None else f"To reproduce it: {replay_command}"

    def _never_started(self, error: BaseException) -> bool:
        """Return whether a usage error ended a new run that has nothing worth keeping.

        Without imitation and hooks, a checkpoint at step 0 holds only random weights.
        """
        run = self.run
        is_usage_error = getattr(error, "exit_code", 1) == 2 and run.progress.iteration == 0
        has_learned = (run.config.expert is not None or bool(run.config.hooks)) and run.last_saved_step is not None
        return is_usage_error and not has_learned

    def _raise_errors_of_the_end(self) -> None:
        """Raise a CheckpointError if the last save failed; otherwise the first exception of a hook's ``on_end``."""
        run, end_errors = self.run, self.hooks.end_errors
        if run.recovery_point is not None and run.last_saved_step != run.recovery_point.timesteps:
            self._warn_of_end_errors(end_errors)
            raise CheckpointError(
                f"the last checkpoint could not be saved in {self.directory.checkpoints}: what it held is lost"
            )
        if end_errors:
            first = min(end_errors, key=lambda error: not isinstance(error, Exception))  # SystemExit comes last
            self._warn_of_end_errors([error for error in end_errors if error is not first])
            raise first

    def _warn_of_end_errors(self, errors: Sequence[BaseException]) -> None:
        """Print exceptions of hooks' ``on_end`` that are not raised, because the run fails for another reason."""
        for error in errors:
            self.console.warn(f"{type(error).__name__}: {one_line(error)} ({', '.join(error.__notes__)})")
