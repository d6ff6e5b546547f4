"""``corral eval`` and ``corral play``: evaluate a policy, or show it in a terminal, a window or a file."""

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

from corral.cli.flags import merge_env_flags
from corral.cli.recipes import play_matches
from corral.config.schema import parse_env_kwargs
from corral.core.entry_points import import_callable
from corral.core.errors import UsageError
from corral.core.files import exists, is_file
from corral.core.suggestions import did_you_mean
from corral.envs.factory import EnvFactory, resolve_env
from corral.envs.lifecycle import probe_env
from corral.envs.opponent_protocol import OPPONENT
from corral.envs.registry import HUMAN_PLAY_KWARGS
from corral.opponents.frozen_policy import FrozenPolicy
from corral.rendering.contact_sheet import ContactSheet
from corral.rendering.human_play import has_window, play_as_human
from corral.rendering.terminal_screen import Screen
from corral.rendering.video import check_video, save_video
from corral.reporting.console import print_table
from corral.storage.named_code import require_same_code, without_directory
from corral.storage.run_dir import find_run
from corral.training.evaluate import EpisodePlan, evaluate_actor
from corral.training.model import Model, load
from corral.training.play_episodes import RenderedStep, play_episodes
from corral.vec import make_vector_env

__all__ = ["run_eval", "run_play"]

_MIN_CLIP_WIDTH = 320
"""Frames that are much narrower are enlarged, to about this number of pixels."""
_EPISODE_FLAGS = {"episodes": 20, "max_steps": 10_000, "sample": None}
"""Flags of ``corral eval`` that mean nothing for games against opponents, with their defaults."""
_GAME_FLAGS = {"games": 200}
"""Flags of ``corral eval`` that mean nothing without opponents, with their defaults."""


class _Subject(NamedTuple):
    """What a command evaluates or shows: the policy of a run and its env, or an env alone."""

    model: Model | None
    factory: EnvFactory
    reset_options: dict[str, Any] | None
    """The options with which the env is reset."""
    name: str
    """The run directory or the env, as the user names it."""


# ---- corral eval ---------------------------------------------------------------------------------------------


def run_eval(options: argparse.Namespace) -> int:
    """Evaluate a run's policy in its env, or in games against opponents."""
    plays_games = bool(options.opponent or options.vs)
    for name in _EPISODE_FLAGS if plays_games else _GAME_FLAGS:
        if getattr(options, name) is not None:
            purpose = f"{'episodes, not for ' if plays_games else ''}games against --opponent or --vs"
            raise UsageError(f"--{name.replace('_', '-')} is for {purpose}; leave it out")
    for name, default in {**_EPISODE_FLAGS, **_GAME_FLAGS}.items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    _check_positive(options, "episodes", "max_steps", "games")
    subject = _find_subject(options)
    if not plays_games:
        _eval_episodes(options, subject)
    elif subject.model is None:
        raise UsageError(f"{options.run} is an env, not a run: there is no policy to play against others")
    else:
        _eval_games(options, subject.model, subject.factory, subject.name)
    return 0


def _eval_episodes(options: argparse.Namespace, subject: _Subject) -> None:
    """Play evaluation episodes and print their statistics."""
    model, factory, samples = subject.model, subject.factory, _samples_actions(options, subject.model)
    env = make_vector_env(factory, 1, backend="serial", infos="full")
    actor = None if model is None else model.actor
    plan = EpisodePlan(
        episodes=options.episodes,
        seed=options.seed,
        max_steps=options.max_steps,
        options=subject.reset_options,
        sample=samples,
    )
    try:
        with Progress(transient=True) as bar:
            task = bar.add_task("episodes", total=options.episodes)
            result = evaluate_actor(env, actor, plan, on_episode=lambda: bar.advance(task))
    finally:
        env.close()
    rewards = result.rewards
    actions = "actions as likely as in training" if samples else "most likely actions"
    if model is None:
        actions = "random legal moves"
    rows = [
        ("episodes", f"{len(rewards)}, {actions}, seed {options.seed}{_describe_options(subject.reset_options)}"),
        ("mean reward", f"{result.mean_reward:.2f} ± {_confidence_interval(rewards):.2f} (95% interval)"),
        ("deviation, lowest, highest", f"{result.std_reward:.2f}, {min(rewards):.2f}, {max(rewards):.2f}"),
        ("mean length", f"{result.mean_length:.1f}"),
        *(
            (f"{name}, at the end", f"{np.mean(values):.4g} ± {_confidence_interval(values):.2g}")
            for name, values in result.infos.items()
        ),
    ]
    if model is not None:
        rows.insert(0, ("policy", f"{subject.name} ({options.checkpoint}, {model.timesteps:,} steps)"))
    if result.cut_off:
        rows.append(("cut off", f"{result.cut_off} episodes after {options.max_steps} steps"))
    print_table(Console(highlight=False, emoji=False), factory.name, rows)


def _eval_games(options: argparse.Namespace, model: Model, factory: EnvFactory, name: str) -> None:
    """Play games against opponents of the env and policies of other runs, and print how many were won."""
    env_opponents = probe_env(factory).opponents
    if not env_opponents:
        raise UsageError(f"{factory.name} has no opponents: --opponent and --vs mean nothing for it")
    for opponent in options.opponent:
        if opponent not in env_opponents:
            hint = did_you_mean(opponent, env_opponents)
            raise UsageError(f"unknown opponent {opponent!r}{hint}; there are: {', '.join(env_opponents)}")
    spaces = model.observation_space, model.action_space
    opponents: list[str | FrozenPolicy] = [
        *options.opponent,
        *(_load_opponent(run, spaces, model) for run in options.vs),
    ]
    title = f"{name} ({options.checkpoint}, {model.timesteps:,} steps), most likely moves"
    play_matches(factory, model.frozen(options.run), opponents, options.games, options.seed, title)


def _load_opponent(run: str, spaces: tuple[Any, Any], model: Model | None) -> FrozenPolicy:
    """Return the policy of another run as an opponent.

    If its network is the user's code, that code is imported only if ``model``, which the user named, has the same.
    """
    directory = find_run(run)
    network = directory.read_config().policy
    model_network = None if model is None else model.config.policy
    if network is not None and (
        model_network is None or without_directory(network) != without_directory(model_network)
    ):
        raise UsageError(
            f"{run} has a network of its own, {network}, so it can only play against runs with the same network, not "
            f"{'random play' if model is None else model_network or 'the built-in one'}"
        )
    opponent = load(directory.path, policy=None if network is None or model is None else model.network)
    if (opponent.observation_space, opponent.action_space) != spaces:
        raise UsageError(f"{run} was trained on other observations or actions, so the two cannot play together")
    return opponent.frozen(run)


# ---- corral play ---------------------------------------------------------------------------------------------


def run_play(options: argparse.Namespace) -> int:
    """Show episodes in the terminal, in a window, or in a file."""
    if options.human:
        return _play_as_human(options)
    options.episodes = 1 if options.episodes is None else options.episodes
    options.max_steps = 2000 if options.max_steps is None else options.max_steps
    _check_positive(options, "episodes", "max_steps", "every", *(["fps"] if options.fps is not None else []))
    path = Path(options.save) if options.save else None
    _check_save_flags(options, path)
    model, factory, reset_options, _ = _find_subject(options)
    if model is None:
        print(f"{options.run} is an env, not a run: playing random legal moves")
    reset_options = {**(reset_options or {}), **_opponent_reset_options(options.opponent, factory, model)} or None
    plan = EpisodePlan(
        episodes=options.episodes,
        seed=options.seed,
        max_steps=options.max_steps,
        options=reset_options,
        sample=_samples_actions(options, model),
    )
    render_mode = "rgb_array" if path else _choose_render_mode(factory, options.watch)
    moments = play_episodes(factory, None if model is None else model.actor, plan, render_mode=render_mode)
    if path is None:
        _show_in_terminal(moments, options, factory)
    elif path.suffix == ".png":
        _save_contact_sheets(path, moments, f"{options.run}{_describe_options(reset_options)}")
    else:
        shown = (moment for moment in _print_episodes(moments) if moment.done or moment.step % options.every == 0)
        save_video(path, (_enlarged(moment.frame) for moment in shown), options.fps or _frame_rate(factory))
        print(f"saved to {path}")
    return 0


def _check_save_flags(options: argparse.Namespace, path: Path | None) -> None:
    """Raise ``UsageError`` for a file that cannot be written, or flags that do not fit its kind."""
    if path is not None:
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame then needs no screen
        check_video(path)
    if options.every != 1 and (path is None or path.suffix == ".png"):
        raise UsageError("--every is about the frames of a clip; name one, .gif or .mp4, with --save")
    if options.fps is not None and path is not None and path.suffix == ".png":
        raise UsageError("--fps is about clips, but --save names a picture; leave it out")
    if path is not None and options.watch:
        raise UsageError("--watch shows it in the terminal, --save in a file; leave one of them out")


def _play_as_human(options: argparse.Namespace) -> int:
    """Let a person play an env in a window."""
    unused = {"save": None, "watch": False, "opponent": None, "every": 1, "episodes": None, "max_steps": None}
    for name, default in unused.items():
        if getattr(options, name) != default:
            flag = name.replace("_", "-")
            raise UsageError(f"--human is for a person who plays in a window until it is closed; leave --{flag} out")
    _check_positive(options, *(["fps"] if options.fps is not None else []))
    model, factory, _, _ = _find_subject(options)
    if model is not None:
        raise UsageError(f"{options.run} is a run; a person plays an env: corral play {factory.name} --human")
    kwargs = {**HUMAN_PLAY_KWARGS.get(factory.name, {}), **factory.kwargs}
    play_as_human(resolve_env(factory.name, kwargs) if kwargs else factory, options.seed, options.fps)
    return 0


def _enlarged(frame: Any) -> npt.NDArray[np.uint8]:
    """Return a frame that is repeated pixel by pixel until it is wide enough to be seen well."""
    pixels = np.asarray(frame, np.uint8)  # [height, width, 3]
    times = max(1, _MIN_CLIP_WIDTH // pixels.shape[1])
    return pixels.repeat(times, 0).repeat(times, 1)


def _print_episodes(moments: Iterable[RenderedStep]) -> Iterator[RenderedStep]:
    """Yield every moment, and print a line at the end of each episode."""
    for moment in moments:
        yield moment
        if moment.done:
            print(f"episode {moment.episode + 1}: reward {moment.reward:.2f} in {moment.step} steps")


def _show_in_terminal(moments: Iterable[RenderedStep], options: argparse.Namespace, factory: EnvFactory) -> None:
    """Print every frame that is text or a picture; an env with a window has no such frames and shows itself."""
    screen = Screen(options.fps or _frame_rate(factory)) if options.watch else None
    for moment in _print_episodes(moments):
        if not isinstance(moment.frame, str | np.ndarray):
            continue
        caption = f"step {moment.step}, reward {moment.reward:.2f}"
        if screen is not None:
            screen.show(moment.frame, caption)
        else:
            print(f"{moment.frame}\n{caption}\n", flush=True)
            time.sleep(1 / options.fps if options.fps else 0)


def _save_contact_sheets(path: Path, moments: Iterable[RenderedStep], title: str) -> None:
    """Save one picture of each episode: the first at ``path``, the others with a number in their names."""
    sheet, count = ContactSheet(), 0
    for moment in _print_episodes(moments):
        numbers = {"reward": moment.reward, **moment.info} if moment.step else {}
        sheet.add(moment.step, np.asarray(moment.frame, np.uint8), numbers)
        if moment.done:
            count += 1
            sheet_path = path if count == 1 else path.with_stem(f"{path.stem}-{count}")
            sheet.save(sheet_path, title)
            print(f"saved to {sheet_path}")
            sheet = ContactSheet()


def _opponent_reset_options(opponent: str | None, factory: EnvFactory, model: Model | None) -> dict[str, Any]:
    """Return the reset options that choose an opponent: one of the env's, or the policy of a run."""
    if opponent is None:
        return {}
    env_info = probe_env(factory)
    if not env_info.opponents:
        raise UsageError(f"{factory.name} has no opponents: --opponent means nothing for it")
    if opponent in env_info.opponents:
        return {OPPONENT: opponent}
    if not is_file(Path(opponent) / "config.yaml"):
        raise UsageError(f"--opponent {opponent}: should be one of {', '.join(env_info.opponents)}, or a run directory")
    return {OPPONENT: _load_opponent(opponent, (env_info.observation_space, env_info.action_space), model).player()}


def _frame_rate(factory: EnvFactory) -> int:
    """Return the frames per second that the env's metadata name, or 30."""
    return int(probe_env(factory).metadata.get("render_fps") or 30)


def _choose_render_mode(factory: EnvFactory, in_terminal: bool) -> str:
    """Return the render mode for text, for pictures in the terminal, or for a window."""
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


# ---- what is evaluated or shown ------------------------------------------------------------------------------


def _find_subject(options: argparse.Namespace) -> _Subject:
    """Return the run or the env that the user named."""
    if options.run == "latest" or exists(Path(options.run) / "config.yaml"):
        return _load_run(options)
    if exists(options.run) or options.run.startswith(("runs/", "./", "/")):
        raise UsageError(f"{options.run!r} is not a run directory: it has no config.yaml")
    if options.sample is not None:
        raise UsageError(f"{options.run} is an env, not a run: random moves are drawn anyway; leave --sample out")
    if options.env or options.policy or options.checkpoint != "best":
        raise UsageError(f"{options.run} is an env, not a run: --env, --policy and --checkpoint mean nothing for it")
    kwargs = parse_env_kwargs(merge_env_flags(options, options.run, options.env_kwargs))
    try:
        return _Subject(None, resolve_env(options.run, kwargs), None, options.run)
    except UsageError as error:
        raise UsageError(f"{options.run!r} is not a run directory, and no env either: {error}") from None


def _load_run(options: argparse.Namespace) -> _Subject:
    """Return the policy of a run and its env.

    A run with stages is evaluated and shown with the reset options of its last stage, except for those that
    ``--env-kwargs`` override.
    """
    directory = find_run(options.run)
    config = directory.read_config()
    require_same_code(config, options.env, options.policy)
    overrides = parse_env_kwargs(merge_env_flags(options, config.env, options.env_kwargs))
    factory = resolve_env(options.env or config.env, {**config.env_kwargs, **overrides})
    policy = options.policy or config.policy
    network = import_callable(policy, "policy") if policy is not None else None
    model = load(directory.path, checkpoint=options.checkpoint, policy=network)
    env_info = probe_env(factory)
    if (env_info.observation_space, env_info.action_space) != (model.observation_space, model.action_space):
        env = f"with {overrides} the env" if overrides else factory.name
        raise UsageError(f"{env} has other observations or actions than the run was trained on")
    stage_options = config.stages[-1].options if config.stages else {}
    reset_options = {name: value for name, value in stage_options.items() if name not in overrides} or None
    return _Subject(model, factory, reset_options, directory.display_path)


def _samples_actions(options: argparse.Namespace, model: Model | None) -> bool:
    """Return whether actions are sampled: as ``--sample`` says, otherwise as in the run's evaluations."""
    if options.sample is not None:
        return bool(options.sample)
    return model is not None and model.config.eval_sample


def _describe_options(options: Mapping[str, Any] | None) -> str:
    return "".join(f", {name} {value}" for name, value in (options or {}).items() if isinstance(value, str | int))


def _check_positive(options: argparse.Namespace, *names: str) -> None:
    """Raise ``UsageError`` if one of these flags is less than 1, or the seed less than 0."""
    if options.seed < 0:
        raise UsageError(f"--seed {options.seed}: should be at least 0")
    for name in names:
        if getattr(options, name) < 1:
            raise UsageError(f"--{name.replace('_', '-')} {getattr(options, name)}: should be at least 1")


def _confidence_interval(values: tuple[float, ...]) -> float:
    """Return half the width of the 95% confidence interval of the mean."""
    return 1.96 * float(np.std(values, ddof=1)) / len(values) ** 0.5 if len(values) > 1 else float("nan")
