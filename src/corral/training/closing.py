"""How a run ended: as data, and as the table that closes it."""

from __future__ import annotations

import shlex
import signal

from corral.core.stdio import command
from corral.core.types import RecoveryCounts
from corral.reporting.process_meter import ProcessUse
from corral.storage.named_code import code_flags, needs_python, resume_command
from corral.storage.run_dir import RunDirectory
from corral.storage.summary_file import Summary
from corral.training.run import Run, weights_hash

__all__ = ["closing_table", "summarize", "where"]


def where(run: Run) -> str:
    """Where a run's envs live."""
    workers = run.backend.num_workers
    if run.backend.backend == "serial":
        return "in this process"
    return f"in {workers} worker process{'es' if workers > 1 else ''}"


def summarize(run: Run, reason: str) -> Summary:
    """What is known of a run at its end."""
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
        restarts=progress.recovery_counts.restarts,
        recycled=progress.recovery_counts.recycled,
        retries=progress.recovery_counts.retries,
        env_faults=progress.recovery_counts.env_faults,
        inexact=progress.recovery_counts.inexact,
        seed=run.seed,
        weights_sha256=weights_hash(run.recovery_point.policy),
        exit_reason=reason,
        win_rates={} if run.opponents is None else run.opponents.win_rates(),
        stages=[] if run.opponents is None else [stage.to_data() for stage in run.opponents.results()],
    )


def _uses(processes: list[ProcessUse]) -> list[tuple[str, str]]:
    """Processor time and memory: of the trainer, and of its workers one by one, or together if they are many."""

    def told(uses: list[ProcessUse]) -> str:
        words = [f"{use.cpu:.0%} of a core, {use.memory_mb:,.0f} MB" for use in uses]
        if len(words) <= 4:
            return "; ".join(words)
        cpu, memory = sum(use.cpu for use in uses) / len(uses), sum(use.memory_mb for use in uses)
        return f"{len(uses)} of them, {cpu:.0%} of a core each, {memory:,.0f} MB together"

    trainer, workers = processes[:1], processes[1:]
    return [("trainer used", told(trainer)), *([("workers used", told(workers))] if workers else [])]


def _mended(recovery_counts: RecoveryCounts) -> str:
    """What went wrong and was put right."""
    words = {
        "restarts": ("worker", "replaced"),
        "recycled": ("worker", "replaced because of memory"),
        "retries": ("step", "tried again"),
        "env_faults": ("episode", "cut off where the env raises"),
        "inexact": ("episode", "cut off because the env could not be brought back"),
    }
    counts = {name: count for name, count in recovery_counts.counts().items() if count}
    told = [f"{n:,} {words[name][0]}{'s' if n > 1 else ''} {words[name][1]}" for name, n in counts.items()]
    return ", ".join(told) or "nothing"


def _games(run: Run) -> list[tuple[str, str]]:
    """How the games went: against each kind of opponent, and stage by stage."""
    if run.opponents is None:
        return []
    rates = run.opponents.win_rates()
    rows = [
        ("won in training, last 100 games", ", ".join(f"{rate:.0%} against {kind}" for kind, rate in rates.items()))
    ]
    if len(run.opponents.stages) > 1:
        words = {True: "PASS", False: "FAIL", None: "done"}
        for stage in run.opponents.results():
            target = "" if stage.target is None else f", target {stage.target:.0%}"
            rows.append((f"stage {stage.name}", f"{words[stage.passed]}: {stage.told}{target}, {stage.steps:,} steps"))
    return rows if rates else rows[1:]


def closing_table(run: Run, directory: RunDirectory, summary: Summary) -> tuple[str, list[tuple[str, str]], list[str]]:
    """Title, rows and advice: what a person sees at the end."""

    def number(value: float | None) -> str:
        return "none" if value is None else f"{value:,.2f}"

    rows = [
        ("ended by", summary.exit_reason),
        ("steps", f"{summary.steps:,}"),
        ("episodes", f"{summary.episodes:,}"),
        ("seconds", f"{summary.seconds:,.1f} (learning included)"),
        ("steps per second", f"{summary.fps:,.0f}"),
        ("episodes per second", f"{summary.episodes / summary.seconds if summary.seconds else 0:,.2f}"),
        ("mean reward, last 100 episodes", number(summary.mean_reward)),
        ("evaluation reward, last / best", f"{number(summary.eval_reward)} / {number(summary.best_eval_reward)}"),
        *_games(run),
        ("envs", f"{summary.n_envs}, {where(run)}"),
        ("mended on the way", _mended(run.progress.recovery_counts)),
        *_uses(run.meter.totals()),
    ]
    path, code = shlex.quote(directory.display_path), code_flags(run.config)
    advice = [f"results in {path}", f"  curves:   {command('tensorboard')} --logdir {path}"]
    if not needs_python(run.config):  # no command could name it
        words = f"{path} {code}".rstrip()
        more = None if summary.exit_reason in signal.Signals.__members__ else 2 * summary.steps
        advice += [
            f"  evaluate: {command()} eval {words}",
            f"  watch:    {command()} play {words}{' --save clip.gif' if 'rgb_array' in run.render_modes else ''}",
            f"  go on:    {resume_command(directory.display_path, run.config, more)}",
        ]
    return run.config.env, rows, advice
