"""The end of a run: its summary as data, and the table that the console shows."""

from __future__ import annotations

import dataclasses
import shlex
import signal
from typing import NamedTuple

from corral.core.stdio import command
from corral.core.types import FaultCounts
from corral.reporting.process_meter import ProcessUse
from corral.storage.named_code import code_flags, needs_python, resume_command
from corral.storage.run_dir import RunDirectory
from corral.storage.summary_file import Summary
from corral.training.run import Run, weights_hash

__all__ = ["ClosingTable", "closing_table", "describe_location", "summarize"]


class ClosingTable(NamedTuple):
    """The table that the console shows at the end of a run, and lines of advice below it."""

    title: str
    rows: list[tuple[str, str]]
    advice: list[str]


def describe_location(run: Run) -> str:
    """Return as text in which processes the envs of a run are."""
    n_workers = run.backend.num_workers
    if run.backend.backend == "serial":
        return "in this process"
    if by_node := run.source.node_use():
        n_nodes = len(by_node)
        return f"in {n_workers} worker{'s' if n_workers > 1 else ''} on {n_nodes} node{'s' if n_nodes > 1 else ''}"
    return f"in {n_workers} worker process{'es' if n_workers > 1 else ''}"


def summarize(run: Run, reason: str) -> Summary:
    """Return the summary of a run that ended for this reason."""
    progress, choice = run.progress, run.backend
    assert run.recovery_point is not None
    return Summary(
        steps=progress.timesteps,
        episodes=progress.episodes,
        seconds=round(progress.seconds, 3),
        fps=round(progress.fps, 1),
        mean_reward=progress.mean_reward,
        eval_reward=progress.last_eval_reward,
        best_eval_reward=progress.best_reward,
        n_envs=run.config.n_envs,
        backend=choice.backend,
        num_workers=choice.num_workers,
        restarts=progress.fault_counts.restarts,
        recycled=progress.fault_counts.recycled,
        retries=progress.fault_counts.retries,
        env_faults=progress.fault_counts.env_faults,
        inexact=progress.fault_counts.inexact,
        seed=run.seed,
        weights_sha256=weights_hash(run.recovery_point.policy),
        exit_reason=reason,
        win_rates={} if run.opponents is None else run.opponents.win_rates(),
        stages=[] if run.opponents is None else [stage.to_data() for stage in run.opponents.results()],
        nodes={address: dataclasses.asdict(use) for address, use in run.source.node_use().items()},
    )


def _process_rows(processes: list[ProcessUse]) -> list[tuple[str, str]]:
    """Return a row with CPU time and memory of the trainer, and one for its workers if there are any."""
    trainer, workers = processes[:1], processes[1:]
    worker_rows = [("workers used", _describe_use(workers))] if workers else []
    return [("trainer used", _describe_use(trainer)), *worker_rows]


def _describe_use(uses: list[ProcessUse]) -> str:
    """Return CPU time and memory as text: of each process, or of all together if there are more than four."""
    if len(uses) <= 4:
        return "; ".join(f"{use.cpu:.0%} of a core, {use.memory_mb:,.0f} MB" for use in uses)
    cpu, memory = sum(use.cpu for use in uses) / len(uses), sum(use.memory_mb for use in uses)
    return f"{len(uses)} of them, {cpu:.0%} of a core each, {memory:,.0f} MB together"


def _describe_recoveries(fault_counts: FaultCounts) -> str:
    """Return as text how many faults the run recovered from, by kind."""
    descriptions = {
        "restarts": ("worker", "replaced"),
        "recycled": ("worker", "replaced because of memory"),
        "retries": ("step", "retried"),
        "env_faults": ("episode", "truncated where the env raises"),
        "inexact": ("episode", "truncated because the env could not be restored"),
    }
    parts = []
    for name, count in fault_counts.counts().items():
        if count:
            noun, event = descriptions[name]
            parts.append(f"{count:,} {noun}{'s' if count > 1 else ''} {event}")
    return ", ".join(parts) or "nothing"


def _node_rows(run: Run) -> list[tuple[str, str]]:
    """Return a row for each machine of the cluster: how much of the rollouts it collected, and what went wrong."""
    by_node = run.source.node_use()
    total = sum(use.rollouts for use in by_node.values()) or 1
    rows = []
    for address, use in by_node.items():
        counts = {"lost": use.lost, "silent": use.silent, "slow": use.slow, "moved away": use.moved}
        events = "".join(f", {count:,} {what}" for what, count in counts.items() if count)
        rows.append((f"node {address}", f"{use.rollouts / total:.0%} of the steps{events}"))
    return rows


def _game_rows(run: Run) -> list[tuple[str, str]]:
    """Return rows about the games: win rates against each kind of opponent, and the result of each stage."""
    if run.opponents is None:
        return []
    win_rates = run.opponents.win_rates()
    by_kind = ", ".join(f"{rate:.0%} against {kind}" for kind, rate in win_rates.items())
    rows = [("won in training, last 100 games", by_kind)] if win_rates else []
    if len(run.opponents.stages) > 1:
        verdicts = {True: "PASS", False: "FAIL", None: "done"}
        for stage in run.opponents.results():
            target = "" if stage.target is None else f", target {stage.target:.0%}"
            result = f"{verdicts[stage.passed]}: {stage.description}{target}, {stage.steps:,} steps"
            rows.append((f"stage {stage.name}", result))
    return rows


def closing_table(run: Run, directory: RunDirectory, summary: Summary) -> ClosingTable:
    """Return the table and the commands that are printed at the end of a run."""
    rows = [
        ("ended by", summary.exit_reason),
        ("steps", f"{summary.steps:,}"),
        ("episodes", f"{summary.episodes:,}"),
        ("seconds", f"{summary.seconds:,.1f} (learning included)"),
        ("steps per second", f"{summary.fps:,.0f}"),
        ("episodes per second", f"{summary.episodes / summary.seconds if summary.seconds else 0:,.2f}"),
        ("mean reward, last 100 episodes", _format(summary.mean_reward)),
        ("evaluation reward, last / best", f"{_format(summary.eval_reward)} / {_format(summary.best_eval_reward)}"),
        *_game_rows(run),
        ("envs", f"{summary.n_envs}, {describe_location(run)}"),
        ("recovered from", _describe_recoveries(run.progress.fault_counts)),
        *_node_rows(run),
        *_process_rows(run.meter.totals()),
    ]
    return ClosingTable(run.config.env, rows, _next_commands(run, directory, summary))


def _format(value: float | None) -> str:
    return "none" if value is None else f"{value:,.2f}"


def _next_commands(run: Run, directory: RunDirectory, summary: Summary) -> list[str]:
    """Return lines with commands that show, evaluate or continue the run."""
    path = shlex.quote(directory.display_path)
    lines = [f"results in {path}", f"  curves:   {command('tensorboard')} --logdir {path}"]
    if needs_python(run.config):  # no command can name the env or the policy
        return lines
    arguments = f"{path} {code_flags(run.config)}".rstrip()
    timesteps = None if summary.exit_reason in signal.Signals.__members__ else 2 * summary.steps  # as before, or more
    return [
        *lines,
        f"  evaluate: {command()} eval {arguments}",
        f"  watch:    {command()} play {arguments}{' --save clip.gif' if 'rgb_array' in run.render_modes else ''}",
        f"  continue: {resume_command(directory.display_path, run.config, timesteps)}",
    ]
