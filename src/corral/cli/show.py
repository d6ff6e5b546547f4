"""``corral eval`` and ``corral play``."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from corral.cli.recipes import play_matches
from corral.core.config import did_you_mean, parse_env_kwargs
from corral.core.envs import EnvFactory, import_callable, resolve_env
from corral.core.errors import UsageError
from corral.core.opponents import OPPONENT
from corral.monitor.console import print_table
from corral.monitor.video import check_video, save_video
from corral.training.evaluate import evaluate_actor
from corral.training.matches import Side
from corral.training.model import Model, load
from corral.training.play import play_episodes
from corral.training.run_directory import bare, check_named_code, find_run
from corral.vec import make_vector_env
from corral.vec.making import facts_of

__all__ = ["run_eval", "run_play"]


def run_eval(options: argparse.Namespace) -> int:
    """Evaluate a run's policy on one env, or against opponents."""
    against = bool(options.opponent or options.vs)
    for name in ("episodes", "max_steps") if against else ("games",):
        if getattr(options, name) is not None:
            flag, others = f"--{name.replace('_', '-')}", "games against --opponent or --vs"
            raise UsageError(f"{flag} is for {'episodes, not for ' if against else ''}{others}; leave it out")
    for name, usual in (("episodes", 20), ("max_steps", 10_000), ("games", 200)):
        setattr(options, name, usual if getattr(options, name) is None else getattr(options, name))
    _positive(options, "episodes", "max_steps", "games")
    model, factory = _load(options)
    if against:
        return _eval_games(options, model, factory)
    env = make_vector_env(factory, 1, backend="serial", infos="summed")
    try:
        with Progress(transient=True) as bar:
            task = bar.add_task("episodes", total=options.episodes)
            result = evaluate_actor(
                env, model.actor, options.episodes, options.seed, options.max_steps, lambda: bar.advance(task)
            )
    finally:
        env.close()
    rewards = result.rewards
    rows = [
        ("policy", f"{find_run(options.run).shown} ({options.checkpoint}, {model.timesteps:,} steps)"),
        ("episodes", f"{len(rewards)}, most likely actions, seed {options.seed}"),
        ("mean reward", f"{result.mean_reward:.2f} ± {_interval(rewards):.2f} (95% interval)"),
        ("deviation, lowest, highest", f"{result.std_reward:.2f}, {min(rewards):.2f}, {max(rewards):.2f}"),
        ("mean length", f"{result.mean_length:.1f}"),
    ]
    if result.cut_off:
        rows.append(("cut off", f"{result.cut_off} episodes after {options.max_steps} steps"))
    print_table(Console(highlight=False), model.config.env, rows)
    return 0


def _eval_games(options: argparse.Namespace, model: Model, factory: EnvFactory) -> int:
    known = facts_of(factory).opponents
    if not known:
        raise UsageError(f"{factory.name} has no opponents: --opponent and --vs mean nothing for it")
    for name in options.opponent:
        if name not in known:
            raise UsageError(f"unknown opponent {name!r}{did_you_mean(name, known)}; there are: {', '.join(known)}")
    spaces = model.observation_space, model.action_space
    others: list[str | Side] = [*options.opponent, *(_rival(run, spaces, model) for run in options.vs)]
    shown = f"{find_run(options.run).shown} ({options.checkpoint}, {model.timesteps:,} steps), most likely moves"
    play_matches(factory, Side.of(options.run, model), others, options.games, options.seed, shown)
    return 0


def _rival(run: str, spaces: tuple[Any, Any], model: Model | None) -> Side:
    """The policy of another run, to play against; a network of its own is taken only from ``model``, which has it."""
    directory = find_run(run)
    named = directory.read_config().policy
    known = None if model is None else model.config.policy
    if named is not None and (known is None or bare(named) != bare(known)):
        raise UsageError(
            f"{run} has a network of its own, {named}, so it can only meet runs with the same network, not "
            f"{'random play' if model is None else known or 'the built-in one'}"
        )
    other = load(directory.path, policy=None if named is None or model is None else model.network)
    if (other.observation_space, other.action_space) != spaces:
        raise UsageError(f"{run} was trained on other observations or actions, so the two cannot meet")
    return Side.of(run, other)


def run_play(options: argparse.Namespace) -> int:
    """Show episodes in the terminal, in a window, or in a file."""
    _positive(options, "episodes", "max_steps", *(["fps"] if options.fps is not None else []))
    save = Path(options.save) if options.save else None
    if save is not None:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame need not look for a screen
        check_video(save)
    model = None
    if options.run == "latest" or (Path(options.run) / "config.yaml").exists():
        if options.env_kwargs:
            raise UsageError("--env-kwargs is for random play on an env; a run has its own")
        model, factory = _load(options)
    else:
        if Path(options.run).exists() or options.run.startswith(("runs/", "./", "/")):
            raise UsageError(f"{options.run!r} is not a run directory: it has no config.yaml")
        if options.env or options.policy or options.checkpoint != "best":
            raise UsageError(
                f"{options.run} is an env, not a run: --env, --policy and --checkpoint mean nothing for it"
            )
        factory = resolve_env(options.run, parse_env_kwargs(options.env_kwargs))
        print(f"{options.run} is an env, not a run: playing random legal moves")
    seated = _seated(options.opponent, factory, model)
    mode = "rgb_array" if save else _watch_mode(factory)
    moments = play_episodes(
        factory,
        None if model is None else model.actor,
        render_mode=mode,
        episodes=options.episodes,
        seed=options.seed,
        max_steps=options.max_steps,
        options=seated,
    )
    frames = []
    for moment in moments:
        if save:
            frames.append(np.asarray(moment.frame, np.uint8))
        elif isinstance(moment.frame, str):
            print(f"{moment.frame}\nstep {moment.step}, reward {moment.reward:.2f}\n", flush=True)
            time.sleep(1 / options.fps if options.fps else 0)
        if moment.done:
            print(f"episode {moment.episode + 1}: reward {moment.reward:.2f} in {moment.step} steps")
    if save:
        fps = options.fps or resolve_fps(factory)
        save_video(save, frames, fps)
        print(f"saved {len(frames)} frame{'s' if len(frames) > 1 else ''} to {save}")
    return 0


def _seated(opponent: str | None, factory: EnvFactory, model: Model | None) -> dict[str, Any] | None:
    """The reset options that seat an opponent: one of the env's own, or the policy of a run."""
    if opponent is None:
        return None
    facts = facts_of(factory)
    if not facts.opponents:
        raise UsageError(f"{factory.name} has no opponents: --opponent means nothing for it")
    if opponent in facts.opponents:
        return {OPPONENT: opponent}
    if not (Path(opponent) / "config.yaml").is_file():
        raise UsageError(f"--opponent {opponent}: should be one of {', '.join(facts.opponents)}, or a run directory")
    return {OPPONENT: _rival(opponent, (facts.observation_space, facts.action_space), model).player()}


def resolve_fps(factory: EnvFactory) -> int:
    """The env's own frame rate, or 30."""
    return int(facts_of(factory).metadata.get("render_fps") or 30)


def _watch_mode(factory: EnvFactory) -> str:
    modes = facts_of(factory).metadata.get("render_modes") or []
    if "ansi" in modes:
        return "ansi"
    has_window = sys.platform in ("win32", "darwin") or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    if "human" in modes and has_window:
        return "human"
    if "rgb_array" in modes:
        raise UsageError("there is no screen for a window here; save what it shows with --save clip.gif")
    raise UsageError(f"{factory.name} renders neither text nor pictures (its render modes: {modes or 'none'})")


def _load(options: argparse.Namespace) -> tuple[Model, EnvFactory]:
    directory = find_run(options.run)
    config = directory.read_config()
    check_named_code(config, options.env, options.policy)
    factory = resolve_env(options.env or config.env, config.env_kwargs)
    named = options.policy or config.policy
    network = import_callable(named, "policy") if named is not None else None
    return load(directory.path, checkpoint=options.checkpoint, policy=network), factory


def _positive(options: argparse.Namespace, *names: str) -> None:
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}: should be at least 0")
    for name in names:
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(options, name)}: should be at least 1")


def _interval(rewards: tuple[float, ...]) -> float:
    return 1.96 * float(np.std(rewards, ddof=1)) / len(rewards) ** 0.5 if len(rewards) > 1 else float("nan")
