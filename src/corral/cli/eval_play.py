"""``corral eval`` and ``corral play``."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import Progress

from corral.cli.flags import own_kwargs
from corral.cli.recipes import play_matches
from corral.config.schema import parse_env_kwargs
from corral.core.entry_points import import_callable
from corral.core.errors import UsageError
from corral.core.files import exists, is_file
from corral.core.suggestions import did_you_mean
from corral.envs.factory import EnvFactory, resolve_env
from corral.envs.lifecycle import probe_env
from corral.envs.opponent_protocol import OPPONENT
from corral.envs.registry import BY_HAND
from corral.opponents.frozen_policy import FrozenPolicy
from corral.rendering.contact_sheet import ContactSheet
from corral.rendering.human_play import has_window, play_as_human
from corral.rendering.terminal_screen import Screen
from corral.rendering.video import check_video, save_video
from corral.reporting.console import print_table
from corral.storage.named_code import require_same_code, without_directory
from corral.storage.run_dir import find_run
from corral.training.evaluate import evaluate_actor
from corral.training.model import Model, load
from corral.training.play_episodes import Moment, play_episodes
from corral.vec import make_vector_env

__all__ = ["run_eval", "run_play"]

_SMALL = 320
"""A clip is at least about so wide."""


def run_eval(options: argparse.Namespace) -> int:
    """Evaluate a run's policy on one env, or against opponents."""
    against = bool(options.opponent or options.vs)
    for name in ("episodes", "max_steps", "sample") if against else ("games",):
        if getattr(options, name) is not None:
            flag, others = f"--{name.replace('_', '-')}", "games against --opponent or --vs"
            raise UsageError(f"{flag} is for {'episodes, not for ' if against else ''}{others}; leave it out")
    for name, usual in (("episodes", 20), ("max_steps", 10_000), ("games", 200)):
        setattr(options, name, usual if getattr(options, name) is None else getattr(options, name))
    _positive(options, "episodes", "max_steps", "games")
    model, factory, given, run = _subject(options)
    if against:
        if model is None:
            raise UsageError(f"{options.run} is an env, not a run: there is no policy to play against others")
        return _eval_games(options, model, factory, run)
    env = make_vector_env(factory, 1, backend="serial", infos="full")
    actor = None if model is None else model.actor
    try:
        with Progress(transient=True) as bar:
            task = bar.add_task("episodes", total=options.episodes)
            how = options.episodes, options.seed, options.max_steps
            result = evaluate_actor(env, actor, *how, lambda: bar.advance(task), given, _samples(options, model))
    finally:
        env.close()
    rewards = result.rewards
    drawn = "actions as likely as in training" if _samples(options, model) else "most likely actions"
    moves = "random legal moves" if model is None else drawn
    rows = [
        ("episodes", f"{len(rewards)}, {moves}, seed {options.seed}{_told(given)}"),
        ("mean reward", f"{result.mean_reward:.2f} ± {_interval(rewards):.2f} (95% interval)"),
        ("deviation, lowest, highest", f"{result.std_reward:.2f}, {min(rewards):.2f}, {max(rewards):.2f}"),
        ("mean length", f"{result.mean_length:.1f}"),
        *((f"{name}, at the end", f"{np.mean(v):.4g} ± {_interval(v):.2g}") for name, v in result.infos.items()),
    ]
    if model is not None:
        rows.insert(0, ("policy", f"{run} ({options.checkpoint}, {model.timesteps:,} steps)"))
    if result.cut_off:
        rows.append(("cut off", f"{result.cut_off} episodes after {options.max_steps} steps"))
    print_table(Console(highlight=False, emoji=False), factory.name, rows)
    return 0


def _eval_games(options: argparse.Namespace, model: Model, factory: EnvFactory, run: str) -> int:
    known = probe_env(factory).opponents
    if not known:
        raise UsageError(f"{factory.name} has no opponents: --opponent and --vs mean nothing for it")
    for name in options.opponent:
        if name not in known:
            raise UsageError(f"unknown opponent {name!r}{did_you_mean(name, known)}; there are: {', '.join(known)}")
    spaces = model.observation_space, model.action_space
    others: list[str | FrozenPolicy] = [*options.opponent, *(_rival(run, spaces, model) for run in options.vs)]
    shown = f"{run} ({options.checkpoint}, {model.timesteps:,} steps), most likely moves"
    play_matches(factory, model.frozen(options.run), others, options.games, options.seed, shown)
    return 0


def _rival(run: str, spaces: tuple[Any, Any], model: Model | None) -> FrozenPolicy:
    """The policy of another run, to play against; a network of its own is taken only from ``model``, which has it."""
    directory = find_run(run)
    named = directory.read_config().policy
    known = None if model is None else model.config.policy
    if named is not None and (known is None or without_directory(named) != without_directory(known)):
        raise UsageError(
            f"{run} has a network of its own, {named}, so it can only meet runs with the same network, not "
            f"{'random play' if model is None else known or 'the built-in one'}"
        )
    other = load(directory.path, policy=None if named is None or model is None else model.network)
    if (other.observation_space, other.action_space) != spaces:
        raise UsageError(f"{run} was trained on other observations or actions, so the two cannot meet")
    return other.frozen(run)


def run_play(options: argparse.Namespace) -> int:
    """Show episodes in the terminal, in a window, or in a file."""
    if options.human:
        return _play_by_hand(options)
    options.episodes = 1 if options.episodes is None else options.episodes
    options.max_steps = 2000 if options.max_steps is None else options.max_steps
    _positive(options, "episodes", "max_steps", "every", *(["fps"] if options.fps is not None else []))
    save = Path(options.save) if options.save else None
    if save is not None:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame need not look for a screen
        check_video(save)
    if options.every != 1 and (save is None or save.suffix == ".png"):
        raise UsageError("--every is about the frames of a clip; name one, .gif or .mp4, with --save")
    if options.fps is not None and save is not None and save.suffix == ".png":
        raise UsageError("--fps is about clips, but --save names a picture; leave it out")
    if save is not None and options.watch:
        raise UsageError("--watch shows it in the terminal, --save in a file; leave one of them out")
    model, factory, given, _ = _subject(options)
    if model is None:
        print(f"{options.run} is an env, not a run: playing random legal moves")
    given = {**(given or {}), **_seated(options.opponent, factory, model)} or None
    mode = "rgb_array" if save else _watch_mode(factory, options.watch)
    moments = play_episodes(
        factory,
        None if model is None else model.actor,
        render_mode=mode,
        episodes=options.episodes,
        seed=options.seed,
        max_steps=options.max_steps,
        options=given,
        sample=_samples(options, model),
    )
    if save is None:
        _watch(moments, options, factory)
    elif save.suffix == ".png":
        _save_sheet(save, moments, f"{options.run}{_told(given)}")
    else:
        frames = (_enlarged(m.frame) for m in _announced(moments) if m.done or m.step % options.every == 0)
        save_video(save, frames, options.fps or resolve_fps(factory))
        print(f"saved to {save}")
    return 0


def _play_by_hand(options: argparse.Namespace) -> int:
    unused = {"save": None, "watch": False, "opponent": None, "every": 1, "episodes": None, "max_steps": None}
    for name, usual in unused.items():
        if getattr(options, name) != usual:
            flag = name.replace("_", "-")
            raise UsageError(f"--human is for a person who plays in a window until it is closed; leave --{flag} out")
    _positive(options, *(["fps"] if options.fps is not None else []))
    model, factory, _, _ = _subject(options)
    if model is not None:
        raise UsageError(f"{options.run} is a run; a person plays an env: corral play {factory.name} --human")
    kwargs = {**BY_HAND.get(factory.name, {}), **factory.kwargs}
    play_as_human(resolve_env(factory.name, kwargs) if kwargs else factory, options.seed, options.fps)
    return 0


def _enlarged(frame: Any) -> npt.NDArray[np.uint8]:
    """A small picture as many times larger as it takes to be seen well."""
    picture = np.asarray(frame, np.uint8)
    times = max(1, _SMALL // picture.shape[1])
    return picture.repeat(times, 0).repeat(times, 1)


def _announced(moments: Iterable[Moment]) -> Iterator[Moment]:
    """Every moment, with a line at the end of each episode."""
    for moment in moments:
        yield moment
        if moment.done:
            print(f"episode {moment.episode + 1}: reward {moment.reward:.2f} in {moment.step} steps")


def _watch(moments: Iterable[Moment], options: argparse.Namespace, factory: EnvFactory) -> None:
    """In the terminal; a window shows itself."""
    screen = Screen(options.fps or resolve_fps(factory)) if options.watch else None
    for moment in _announced(moments):
        if not isinstance(moment.frame, str | np.ndarray):
            continue
        caption = f"step {moment.step}, reward {moment.reward:.2f}"
        if screen is not None:
            screen.show(moment.frame, caption)
        else:
            print(f"{moment.frame}\n{caption}\n", flush=True)
            time.sleep(1 / options.fps if options.fps else 0)


def _save_sheet(path: Path, moments: Iterable[Moment], title: str) -> None:
    """One picture of each episode; the first has the name that was given."""
    sheet, count = ContactSheet(), 0
    for moment in _announced(moments):
        numbers = {"reward": moment.reward, **moment.info} if moment.step else {}
        sheet.add(moment.step, np.asarray(moment.frame, np.uint8), numbers)
        if moment.done:
            count += 1
            here = path if count == 1 else path.with_stem(f"{path.stem}-{count}")
            sheet.save(here, title)
            print(f"saved to {here}")
            sheet = ContactSheet()


def _seated(opponent: str | None, factory: EnvFactory, model: Model | None) -> dict[str, Any]:
    """The reset options that seat an opponent: one of the env's own, or the policy of a run."""
    if opponent is None:
        return {}
    env_info = probe_env(factory)
    if not env_info.opponents:
        raise UsageError(f"{factory.name} has no opponents: --opponent means nothing for it")
    if opponent in env_info.opponents:
        return {OPPONENT: opponent}
    if not is_file(Path(opponent) / "config.yaml"):
        raise UsageError(f"--opponent {opponent}: should be one of {', '.join(env_info.opponents)}, or a run directory")
    return {OPPONENT: _rival(opponent, (env_info.observation_space, env_info.action_space), model).player()}


def resolve_fps(factory: EnvFactory) -> int:
    """The env's own frame rate, or 30."""
    return int(probe_env(factory).metadata.get("render_fps") or 30)


def _watch_mode(factory: EnvFactory, in_terminal: bool) -> str:
    modes = probe_env(factory).metadata.get("render_modes") or []
    if "ansi" in modes:
        return "ansi"
    if in_terminal and "rgb_array" in modes:
        return "rgb_array"
    if "human" in modes and has_window():
        return "human"
    if "rgb_array" in modes:
        raise UsageError("there is no screen for a window here; see it with --watch, or save it with --save clip.gif")
    raise UsageError(f"{factory.name} renders neither text nor pictures (its render modes: {modes or 'none'})")


class _Subject(NamedTuple):
    """What is to be shown: a run's policy and its env, or an env alone."""

    model: Model | None
    factory: EnvFactory
    options: dict[str, Any] | None
    """What the env is reset with."""
    run: str
    """The run directory or the env, as a person calls it."""


def _subject(options: argparse.Namespace) -> _Subject:
    """The run or env that was named.

    A run through stages is shown as its last stage plays, except for what ``--env-kwargs`` change.
    """
    if options.run == "latest" or exists(Path(options.run) / "config.yaml"):
        return _load(options)
    if exists(options.run) or options.run.startswith(("runs/", "./", "/")):
        raise UsageError(f"{options.run!r} is not a run directory: it has no config.yaml")
    if options.sample is not None:
        raise UsageError(f"{options.run} is an env, not a run: random moves are drawn anyway; leave --sample out")
    if options.env or options.policy or options.checkpoint != "best":
        raise UsageError(f"{options.run} is an env, not a run: --env, --policy and --checkpoint mean nothing for it")
    kwargs = parse_env_kwargs(own_kwargs(options, options.run, options.env_kwargs))
    try:
        return _Subject(None, resolve_env(options.run, kwargs), None, options.run)
    except UsageError as error:
        raise UsageError(f"{options.run!r} is not a run directory, and no env either: {error}") from None


def _load(options: argparse.Namespace) -> _Subject:
    directory = find_run(options.run)
    config = directory.read_config()
    require_same_code(config, options.env, options.policy)
    changed = parse_env_kwargs(own_kwargs(options, config.env, options.env_kwargs))
    factory = resolve_env(options.env or config.env, {**config.env_kwargs, **changed})
    named = options.policy or config.policy
    network = import_callable(named, "policy") if named is not None else None
    model = load(directory.path, checkpoint=options.checkpoint, policy=network)
    env_info = probe_env(factory)
    if (env_info.observation_space, env_info.action_space) != (model.observation_space, model.action_space):
        env = f"with {changed} the env" if changed else factory.name
        raise UsageError(f"{env} has other observations or actions than the run was trained on")
    last = config.stages[-1].options if config.stages else {}
    given = {name: value for name, value in last.items() if name not in changed} or None
    return _Subject(model, factory, given, directory.display_path)


def _samples(options: argparse.Namespace, model: Model | None) -> bool:
    """Whether actions are drawn: as asked, or as the run was evaluated."""
    if options.sample is not None:
        return bool(options.sample)
    return model is not None and model.config.eval_sample


def _told(options: Mapping[str, Any] | None) -> str:
    return "".join(f", {name} {value}" for name, value in (options or {}).items() if isinstance(value, str | int))


def _positive(options: argparse.Namespace, *names: str) -> None:
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}: should be at least 0")
    for name in names:
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(options, name)}: should be at least 1")


def _interval(rewards: tuple[float, ...]) -> float:
    return 1.96 * float(np.std(rewards, ddof=1)) / len(rewards) ** 0.5 if len(rewards) > 1 else float("nan")
