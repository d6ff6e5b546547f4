"""``corral VERB …``: reads the words, calls the function, turns errors into one line and an exit code."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from corral import __version__
from corral.cli.flags import Parser, add_config_flags, add_directory_flags, add_own_flags
from corral.config.schema import RESUMABLE
from corral.core.command import command
from corral.core.errors import CorralError, UnrepeatedCode
from corral.core.stdio import forgive_output
from corral.core.suggestions import did_you_mean
from corral.training import signals
from corral.training.signals import Interrupted

__all__ = ["Script", "guarded", "main", "verbs_of"]

_TIMED = ("env_kwargs", "n_envs", "num_workers", "n_steps", "batch_size", "n_epochs", "net_arch", "policy", "overlap")
"""Settings that help of ``tune`` and ``bench`` mentions; all of training's are taken."""
_ENV_HELP = "a built-in env, a Gymnasium id, envpool:ID, package.module:callable or file.py:callable"


@dataclass(frozen=True, slots=True)
class Script:
    """A script that stands for a verb: it has the verb's flags, and ``--env`` instead of the word ENV."""

    name: str
    """How its errors begin."""
    about: str
    """What ``--help`` says first."""
    env: str
    """The env that is trained on without ``--env``."""


def main(argv: Sequence[str] | None = None, script: Script | None = None) -> int:
    """Entry point of the ``corral`` command, and of scripts that stand for a verb; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    forgive_output()
    parser, verbs = verbs_of(script)
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            parser.error(f"{word!r} is not UTF-8 text, which the files of a run could not hold")
    if words and not words[0].startswith("-") and words[0] not in verbs:
        parser.error(f"unknown verb {words[0]!r}{did_you_mean(words[0], verbs)}; there are {', '.join(verbs)}")
    if not words or words[0].startswith("-"):
        parser.parse_args(words)
        parser.print_help()
        return 0
    verb, function = verbs[words[0]]
    options = verb.parse_args(words[1:])
    module, _, name = function.partition(":")
    call = lambda: int(getattr(importlib.import_module(module), name)(options))  # noqa: E731
    return guarded(verb.prog, words, call)


def guarded(prog: str, words: Sequence[str], call: Callable[[], int]) -> int:
    """The exit code of ``call``. An error is one line that begins with ``prog``; ``words`` are what was typed."""
    try:
        with _terminable(), _told_plainly():
            return call()
    except UnrepeatedCode as error:
        typed = f"{command()} {shlex.join(words)} {error.flags}"
        print(f"{prog}: the run names code to import; if you trust it, repeat it: {typed}", file=sys.stderr)
        return error.exit_code
    except CorralError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        return int(getattr(error, "exit_code", 130))  # SIGTERM has its own


@contextlib.contextmanager
def _told_plainly() -> Iterator[None]:
    """Let Python's warnings be a line each, without the place in the code."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"WARNING: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end things as Ctrl-C does, cleaned up and with its own code, also while a run is still starting."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        signals.early.append(number)
        raise Interrupted(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        signals.early.clear()
        for number, handler in before.items():
            signal.signal(number, handler)


def verbs_of(script: Script | None = None) -> tuple[Parser, dict[str, tuple[Parser, str]]]:
    """The parser of the command line; and of each verb, or of the ``script`` for it, with its ``module:function``."""
    verbs: dict[str, tuple[Parser, str]] = {}
    about: list[str] = []

    def verb(name: str, words: str, function: str, summary: str, examples: str) -> Parser:
        if script is None:
            usage = f"corral {name} {words} [--flag value ...]"
            parser = Parser(prog=f"corral {name}", usage=usage, description=summary, epilog=f"examples:\n{examples}")
        else:
            parser = Parser(prog=script.name, usage=f"{script.name} [--flag value ...]", description=script.about)
        verbs[name] = parser, function
        about.append(f"  {name:<8} {summary}")
        return parser

    train = verb(
        "train",
        "ENV",
        "corral.cli.train:run_train",
        "Train PPO on an env and write a run directory.",
        "  corral train CartPole-v1\n"
        "  corral train Pendulum-v1 --n-envs 16 --timesteps 300000 --gamma 0.9 --normalize-obs\n"
        "  corral train my_game.py:make_env --backend process --num-workers 4 --env-kwargs level=3\n"
        "  corral train CartPole-v1 --config my.yaml --seed 1",
    )
    _env_flags(train, script)
    if script is not None:
        train.add_argument("--eval", action="store_true", help="evaluate the final policy, which is the default")
    _closing_flags(train)
    add_config_flags(train)

    selfplay = verb(
        "selfplay",
        "ENV",
        "corral.cli.recipes:run_selfplay",
        "Train against past selves, the policy itself and the env's opponents, drawn for every episode.",
        "  corral selfplay card-battle\n  corral selfplay card-battle --timesteps 500000 --checkpoint-freq 10000",
    )
    curriculum = verb(
        "curriculum",
        "ENV",
        "corral.cli.recipes:run_curriculum",
        "Train through stages that get harder: the env's own, or opponents that get stronger.",
        "  corral curriculum card-battle\n  corral curriculum card-battle --preset v2 --quick\n"
        "  corral curriculum territory --n-envs 12\n"
        "  corral curriculum territory --no-curriculum --num-bots 5 --timesteps 10000",
    )
    hybrid = verb(
        "hybrid",
        "ENV",
        "corral.cli.recipes:run_hybrid",
        "Train against the strongest simple opponent first, then by self-play.",
        "  corral hybrid card-battle --timesteps 500000 --net-arch 256 256",
    )
    warmstart = verb(
        "warmstart",
        "ENV",
        "corral.cli.recipes:run_warmstart",
        "Imitate one of the env's opponents first, then train against it.",
        "  corral warmstart card-battle --expert greedy\n  corral warmstart card-battle --preset v2 --timesteps 300000",
    )
    warmstart.add_argument("--preset", choices=("v1", "v2"), default="v1", help="v2 fits the values too [v1]")
    hybrid.add_argument("--warmup", type=int, metavar="N", help="steps of the warm-up [200000, or a fifth of all]")
    for parser in (selfplay, hybrid):
        parser.add_argument("--current-weight", type=float, metavar="X", help="share against the policy itself [0.2]")
        parser.add_argument("--random-weight", type=float, metavar="X", help="share against the weakest [0.2]")
    curriculum.add_argument("--preset", choices=("v1", "v2"), help="v2 mixes opponents in between [v1]")
    curriculum.add_argument("--fast", "--quick", action="store_true", default=None, help="a fifth of each budget")
    curriculum.add_argument(
        "--no-curriculum", action="store_true", default=None, help="one stage, with the whole budget"
    )
    for parser in (selfplay, curriculum, hybrid, warmstart):
        _env_flags(parser, script)
        _closing_flags(parser)
        add_config_flags(parser, hidden=() if parser is warmstart else ("opponent",))

    resume = verb(
        "resume",
        "RUN",
        "corral.cli.train:run_resume",
        "Go on with a run from its newest valid checkpoint.",
        "  corral resume runs/CartPole-v1-20260101-120000 --timesteps 500000\n  corral resume latest --num-workers 4",
    )
    resume.add_argument("run", metavar="RUN", help="a run directory, or latest")
    resume.add_argument("--env", help="the env again, where it is code of yours")
    resume.add_argument("--policy", help="the policy again, where it is code of yours")
    _closing_flags(resume, default=None)
    add_config_flags(resume, shown=RESUMABLE)

    evaluate = verb(
        "eval",
        "RUN",
        "corral.cli.eval_play:run_eval",
        "Play evaluation episodes with a policy (or, for an env, random legal moves) and print their statistics.",
        "  corral eval latest\n  corral eval runs/my-run --episodes 100 --checkpoint latest\n"
        "  corral eval latest --opponent random greedy mcts-fast --games 200\n"
        "  corral eval runs/one --vs runs/other\n  corral eval territory --num-bots 25",
    )
    _policy_flags(evaluate)
    evaluate.add_argument("--episodes", type=int, metavar="N", help="how many episodes [20]")
    evaluate.add_argument("--max-steps", type=int, metavar="N", help="cut episodes off here [10000]")
    evaluate.add_argument("--opponent", nargs="+", default=[], metavar="NAME", help="play games against each of these")
    evaluate.add_argument("--vs", nargs="+", default=[], metavar="RUN", help="play games against other runs' policies")
    evaluate.add_argument("--games", type=int, metavar="N", help="against each, half from each seat [200]")

    play = verb(
        "play",
        "RUN",
        "corral.cli.eval_play:run_play",
        "Show a policy (or, for an env, random legal moves) at play, or save it as a picture that moves.",
        "  corral play latest --save clip.gif\n  corral play CartPole-v1 --save random.mp4 --episodes 2\n"
        "  corral play latest --save episode.png\n  corral play territory --watch\n  corral play game-boy --human",
    )
    _policy_flags(play)
    play.add_argument(
        "--save",
        metavar="FILE",
        help="clip.gif, clip.mp4, or one picture of an episode as .png, for envs that render rgb_array",
    )
    play.add_argument("--every", type=int, default=1, metavar="N", help="keep every Nth frame of a clip [1]")
    play.add_argument("--watch", action="store_true", help="in the terminal, each frame in the place of the last")
    play.add_argument("--human", action="store_true", help="play an env yourself, in a window, with the keyboard")
    play.add_argument("--episodes", type=int, metavar="N", help="how many episodes [1]")
    play.add_argument("--max-steps", type=int, metavar="N", help="cut episodes off here [2000]")
    play.add_argument("--fps", type=int, metavar="N", help="frames per second [the env's own]")
    play.add_argument("--opponent", metavar="NAME", help="who plays the other side, or a run directory")

    doctor = verb(
        "doctor",
        "ENV",
        "corral.cli.inspect:run_doctor",
        "Check an env before training: pickling, spaces, seeds, masks, speed, memory, limits.",
        "  corral doctor CartPole-v1\n  corral doctor my_game.py:make_env --env-kwargs level=3\n"
        "  corral doctor my_game.py:make_env --replay runs/my-run/faults/env-3-seed-1234-step-12.json",
    )
    doctor.add_argument("env", metavar="ENV", help=_ENV_HELP)
    doctor.add_argument("--env-kwargs", nargs="+", metavar="KEY=VALUE", default=[], help="arguments for the env")
    doctor.add_argument("--n-envs", type=int, default=8, metavar="N", help="envs you mean to use [8]")
    doctor.add_argument("--replay", metavar="FILE", help="play an episode again in which the env raised")
    doctor.add_argument("--steps", type=int, default=1000, metavar="N", help="steps to try [1000]")
    add_own_flags(doctor)

    tune = verb(
        "tune",
        "ENV",
        "corral.cli.bench:run_tune",
        "Try numbers of envs and workers for real, and recommend one.",
        "  corral tune CartPole-v1\n  corral tune my_game.py:make_env --n-envs 8 --seconds 10",
    )
    bench = verb(
        "bench",
        "ENV",
        "corral.cli.bench:run_bench",
        "Time an env in one process and with workers: speed-up, efficiency, and where the time goes.",
        "  corral bench CartPole-v1\n  corral bench my_game.py:make_env --n-envs 16 --num-workers 4",
    )
    for parser, seconds, repeats in ((tune, 2.0, 2), (bench, 4.0, 3)):
        _env_flags(parser, script)
        parser.add_argument("--seconds", type=float, default=seconds, metavar="X", help=f"of each run [{seconds:g}]")
        parser.add_argument("--repeats", type=int, default=repeats, metavar="N", help=f"runs of each [{repeats}]")
    tune.add_argument("--max-envs", type=int, default=64, metavar="N", help="try no more envs than this [64]")
    tune.add_argument("--output", metavar="DIR", help="where the picture goes [runs/tune-<env>-<date>-<time>]")
    for parser in (tune, bench):
        add_config_flags(parser, shown=_TIMED)

    sweep = verb(
        "sweep",
        "ENV",
        "corral.cli.sweep:run_sweep",
        "Train with different settings, presets or a search, and tell which are best.",
        "  corral sweep CartPole-v1 --preset A B C --timesteps 100000 --seeds 3\n"
        "  corral sweep CartPole-v1 --trials 20\n"
        "  corral sweep CartPole-v1 --trials 50 --search learning_rate=log:1e-5:1e-3 ent_coef=0:0.05 "
        "n_epochs=3,5,10 net_arch=64x64,256x256",
    )
    _env_flags(sweep, script, config=script is None)
    sweep.add_argument(
        *(("--preset",) if script is None else ("--preset", "--config")),
        dest="preset",
        nargs="+",
        metavar="NAME",
        help="train with these in turn: A (net_arch 512 512), B (256 256, ent_coef 0.05), C (256 256, learning_rate "
        "3e-4 falling to 1e-5), or those of --presets",
    )
    sweep.add_argument("--presets", metavar="FILE", help="YAML file with presets of your own, name: {setting: value}")
    sweep.add_argument("--trials", type=int, metavar="N", help="search, with this many trials [20]")
    sweep.add_argument(
        "--search",
        nargs="+",
        action="extend",
        metavar="NAME=VALUES",
        help="what to search: a:b, log:a:b or a,b,c for any setting of PPO, the network and opponents [a space for "
        "most envs]",
    )
    sweep.add_argument("--seeds", type=int, default=1, metavar="N", help="train with so many seeds each [1]")
    sweep.add_argument("--jobs", type=int, default=1, metavar="N", help="trials at a time, which share the cores [1]")
    sweep.add_argument(
        "--prune",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="give up trials of a search that fall behind the median [yes]",
    )
    add_config_flags(sweep)

    compare = verb(
        "compare",
        "A B",
        "corral.cli.bench:run_compare",
        "Compare two runs: a table, a picture of both over time and a report.",
        "  corral compare runs/sequential runs/parallel\n  corral compare runs/my-run latest --output comparison",
    )
    compare.add_argument("a", metavar="A", help="a run directory, or latest; speed-up is B over A")
    compare.add_argument("b", metavar="B", help="another")
    compare.add_argument(
        "--output", metavar="DIR", help="where picture and report go [comparison-<date>-<time> beside A]"
    )

    listing = verb(
        "list",
        "[envs|atari|envpool|runs]",
        "corral.cli.inspect:run_list",
        "List envs that can be trained on here, and runs.",
        "  corral list\n  corral list runs",
    )
    listing.add_argument(
        "what",
        nargs="?",
        choices=("envs", "atari", "envpool", "runs"),
        default="envs",
        help="envs, atari, envpool or runs [envs]",
    )

    top = Parser(
        prog="corral",
        description="Parallel PPO training that uses every core.\n\nverbs:\n" + "\n".join(about),
        epilog="`corral VERB --help` explains a verb. Start with:  corral train CartPole-v1",
    )
    top.add_argument("--version", action="version", version=f"corral {__version__}")
    return top, verbs


def _env_flags(parser: argparse.ArgumentParser, script: Script | None, config: bool = True) -> None:
    if script is None:
        parser.add_argument("env", metavar="ENV", nargs="?", help=_ENV_HELP)
    else:
        parser.add_argument("--env", help=f"{_ENV_HELP} [{script.env}]")
        parser.set_defaults(usual_env=script.env)
        add_directory_flags(parser)
    if config:
        parser.add_argument("--config", metavar="FILE", help="YAML file with settings; flags override it")
    else:
        parser.set_defaults(config=None)
    add_own_flags(parser)


def _closing_flags(parser: argparse.ArgumentParser, default: int | None = 100) -> None:
    parser.add_argument(
        "--eval-games",
        type=int,
        default=default,
        metavar="N",
        help="games against each of two opponents at the end, in envs that have opponents; 0 for none [100]",
    )


def _policy_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run directory, latest, or an env name for random play")
    parser.add_argument("--checkpoint", default="best", metavar="WHICH", help="best, latest or a directory [best]")
    parser.add_argument("--env", help="the env again, where it is code of yours")
    parser.add_argument("--policy", help="the policy again, where it is code of yours")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the episodes [0]")
    parser.add_argument(
        "--sample",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="draw actions as in training, instead of taking the most likely [as the run's eval_sample]",
    )
    parser.add_argument(
        "--env-kwargs", nargs="+", metavar="KEY=VALUE", default=[], help="arguments for the env; for a run's, changes"
    )
    add_own_flags(parser)
