"""The table of the verbs of ``corral VERB …``: their names, help texts, flags and functions."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any

from corral import __version__
from corral.cli import flags as flag_sets
from corral.cli.flags import Parser, add_config_flags, add_directory_flags, add_env_flags
from corral.config.schema import CLUSTER, RESUMABLE

__all__ = ["VERBS", "Script", "Verb", "build_parsers"]

_SPEED_SETTINGS = (
    "env_kwargs",
    "n_envs",
    "num_workers",
    "n_steps",
    "batch_size",
    "n_epochs",
    "net_arch",
    "policy",
    "overlap",
)
"""Settings that the help of ``tune`` and ``bench`` lists. These verbs accept all settings of training."""
_ENV_HELP = "a built-in env, a Gymnasium id, envpool:ID, package.module:callable or file.py:callable"


@dataclass(frozen=True, slots=True)
class Script:
    """A script with the flags of a verb, and the flag ``--env`` instead of the argument."""

    name: str
    """The script's name, with which its errors begin."""
    about: str
    """The description at the beginning of ``--help``."""
    env: str
    """The env if ``--env`` is not given."""
    function: str | None = None
    """What the script calls, as ``module:function``; None for the verb's own function."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of flags that are not given, and values for ``function`` that no flag sets."""


AddFlags = Callable[[Parser, Script | None], object]
"""A function that adds flags to the parser of a verb, or to that of a script with the flags of the verb."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb of the command line."""

    name: str
    arguments: str
    """The arguments after the verb, as its usage shows them."""
    function: str
    """The function that carries it out, as ``module:function``; imported when the verb is used."""
    summary: str
    examples: str
    flags: tuple[AddFlags, ...]
    """The flags in the order in which the help lists them."""


def build_parsers(script: Script | None = None) -> tuple[Parser, dict[str, tuple[Parser, str]]]:
    """Return the parser of ``corral`` and, by verb, the verb's parser and the ``module:function`` to call.

    With ``script``, the parsers of verbs and the functions are for that script.
    """
    function = None if script is None else script.function
    verbs = {verb.name: (_parser_of(verb, script), function or verb.function) for verb in VERBS}
    summaries = "\n".join(f"  {verb.name:<8} {verb.summary}" for verb in VERBS)
    corral_parser = Parser(
        prog="corral",
        description=f"Parallel PPO training that uses every core.\n\nverbs:\n{summaries}",
        epilog="`corral VERB --help` explains a verb. Start with:  corral train CartPole-v1",
    )
    corral_parser.add_argument("--version", action="version", version=f"corral {__version__}")
    return corral_parser, verbs


def _parser_of(verb: Verb, script: Script | None) -> Parser:
    if script is None:
        prog, examples = f"corral {verb.name}", f"examples:\n{verb.examples}"
        usage = f"{prog} {verb.arguments} [--flag value ...]"
        parser = Parser(prog=prog, usage=usage, description=verb.summary, epilog=examples)
    else:
        parser = Parser(prog=script.name, usage=f"{script.name} [--flag value ...]", description=script.about)
    for add_flags in verb.flags:
        add_flags(parser, script)
    if script is not None:
        parser.set_defaults(**script.defaults)
    return parser


# ---- flags ---------------------------------------------------------------------------------------------------


def _flag(*names: str, **options: Any) -> AddFlags:
    return lambda parser, script: parser.add_argument(*names, **options)


def _config_flags(shown: Container[str] | None = None, hidden: Container[str] = ()) -> AddFlags:
    return lambda parser, script: add_config_flags(parser, shown, hidden)


def _env_flags(parser: Parser, script: Script | None, config: bool = True) -> None:
    """Add the env, its arguments and, unless ``config`` is false, ``--config``."""
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
    add_env_flags(parser)


def _train_flags(parser: Parser, script: Script | None) -> None:
    _env_flags(parser, script)
    if script is not None:
        parser.add_argument("--eval", action="store_true", help="evaluate the final policy, which is the default")


def _sweep_flags(parser: Parser, script: Script | None) -> None:
    _env_flags(parser, script, config=script is None)
    parser.add_argument(
        *(("--preset",) if script is None else ("--preset", "--config")),
        dest="preset",
        nargs="+",
        metavar="NAME",
        help="train with these in turn: A (net_arch 512 512), B (256 256, ent_coef 0.05), C (256 256, learning_rate "
        "3e-4 falling to 1e-5), or those of --presets",
    )


def _eval_games(default: int | None = 100) -> AddFlags:
    text = "games against each of two opponents at the end, in envs that have opponents; 0 for none [100]"
    return _flag("--eval-games", type=int, default=default, metavar="N", help=text)


def _timing_flags(seconds: float, repeats: int) -> tuple[AddFlags, ...]:
    return (
        _env_flags,
        _flag("--seconds", type=float, default=seconds, metavar="X", help=f"seconds of each measurement [{seconds:g}]"),
        _flag("--repeats", type=int, default=repeats, metavar="N", help=f"measurements of each setting [{repeats}]"),
    )


_env_argument_flags: AddFlags = lambda parser, script: add_env_flags(parser)  # noqa: E731
_CODE_FLAGS = (
    _flag("--env", help="the env again, where it is code of yours"),
    _flag("--policy", help="the policy again, where it is code of yours"),
)
_POLICY_FLAGS = (
    _flag("run", metavar="RUN", help="a run directory, latest, or an env name for random play"),
    _flag("--checkpoint", default="best", metavar="WHICH", help="best, latest or a directory [best]"),
    *_CODE_FLAGS,
    _flag("--seed", type=int, default=0, metavar="N", help="seed of the episodes [0]"),
    _flag(
        "--sample",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="draw actions as in training, instead of taking the most likely [as the run's eval_sample]",
    ),
    _flag(
        "--env-kwargs", nargs="+", metavar="KEY=VALUE", default=[], help="arguments for the env; for a run's, changes"
    ),
    _env_argument_flags,
)
_SELF_PLAY_FLAGS = (
    _flag("--current-weight", type=float, metavar="X", help="share against the policy itself [0.2]"),
    _flag("--random-weight", type=float, metavar="X", help="share against the weakest [0.2]"),
)
_WITHOUT_OPPONENT = (_env_flags, _eval_games(), _config_flags(hidden=("opponent",)))

# ---- the table -----------------------------------------------------------------------------------------------

VERBS = (
    Verb(
        "train",
        "ENV",
        "corral.cli.train:run_train",
        "Train PPO on an env and write a run directory.",
        "  corral train CartPole-v1\n"
        "  corral train Pendulum-v1 --n-envs 16 --timesteps 300000 --gamma 0.9 --normalize-obs\n"
        "  corral train my_game.py:make_env --backend process --num-workers 4 --env-kwargs level=3\n"
        "  corral train CartPole-v1 --config my.yaml --seed 1",
        (_train_flags, _eval_games(), _config_flags()),
    ),
    Verb(
        "selfplay",
        "ENV",
        "corral.cli.recipes:run_selfplay",
        "Train against past versions of the policy, itself and the env's opponents, drawn for every episode.",
        "  corral selfplay card-battle\n  corral selfplay card-battle --timesteps 500000 --checkpoint-freq 10000",
        (*_SELF_PLAY_FLAGS, *_WITHOUT_OPPONENT),
    ),
    Verb(
        "curriculum",
        "ENV",
        "corral.cli.recipes:run_curriculum",
        "Train through stages that get harder: those of the env, or opponents that get stronger.",
        "  corral curriculum card-battle\n  corral curriculum card-battle --preset v2 --quick\n"
        "  corral curriculum territory --n-envs 12\n"
        "  corral curriculum territory --no-curriculum --num-bots 5 --timesteps 10000",
        (
            _flag("--preset", choices=("v1", "v2"), help="v2 mixes opponents in between [v1]"),
            _flag("--fast", "--quick", action="store_true", default=None, help="a fifth of each budget"),
            _flag("--no-curriculum", action="store_true", default=None, help="one stage, with the whole budget"),
            *_WITHOUT_OPPONENT,
        ),
    ),
    Verb(
        "hybrid",
        "ENV",
        "corral.cli.recipes:run_hybrid",
        "Train against the strongest simple opponent first, then by self-play.",
        "  corral hybrid card-battle --timesteps 500000 --net-arch 256 256",
        (
            _flag("--warmup", type=int, metavar="N", help="steps of the warm-up [200000, or a fifth of all]"),
            *_SELF_PLAY_FLAGS,
            *_WITHOUT_OPPONENT,
        ),
    ),
    Verb(
        "warmstart",
        "ENV",
        "corral.cli.recipes:run_warmstart",
        "Imitate one of the env's opponents first, then train against it.",
        "  corral warmstart card-battle --expert greedy\n  corral warmstart card-battle --preset v2 --timesteps 300000",
        (
            _flag("--preset", choices=("v1", "v2"), default="v1", help="v2 fits the values too [v1]"),
            _env_flags,
            _eval_games(),
            _config_flags(),
        ),
    ),
    Verb(
        "resume",
        "RUN",
        "corral.cli.train:run_resume",
        "Go on with a run from its newest valid checkpoint.",
        "  corral resume runs/CartPole-v1-20260101-120000 --timesteps 500000\n  corral resume latest --num-workers 4",
        (
            _flag("run", metavar="RUN", help="a run directory, or latest"),
            *_CODE_FLAGS,
            _flag(
                "--hook",
                dest="hooks",
                action="append",
                default=argparse.SUPPRESS,
                metavar="NAME",
                help="each hook of the run again; others may join them",
            ),
            _eval_games(default=None),
            _config_flags(shown=RESUMABLE),
        ),
    ),
    Verb(
        "eval",
        "RUN",
        "corral.cli.eval_play:run_eval",
        "Play evaluation episodes with a policy (or, for an env, random legal moves) and print their statistics.",
        "  corral eval latest\n  corral eval runs/my-run --episodes 100 --checkpoint latest\n"
        "  corral eval latest --opponent random greedy mcts-fast --games 200\n"
        "  corral eval runs/one --vs runs/other\n  corral eval territory --num-bots 25",
        (
            *_POLICY_FLAGS,
            _flag("--episodes", type=int, metavar="N", help="how many episodes [20]"),
            _flag("--max-steps", type=int, metavar="N", help="cut episodes off here [10000]"),
            _flag("--opponent", nargs="+", default=[], metavar="NAME", help="play games against each of these"),
            _flag("--vs", nargs="+", default=[], metavar="RUN", help="play games against other runs' policies"),
            _flag("--games", type=int, metavar="N", help="against each, half from each seat [200]"),
        ),
    ),
    Verb(
        "play",
        "RUN",
        "corral.cli.eval_play:run_play",
        "Show a policy (or, for an env, random legal moves) at play, or save it as a clip or a picture.",
        "  corral play latest --save clip.gif\n  corral play CartPole-v1 --save random.mp4 --episodes 2\n"
        "  corral play latest --save episode.png\n  corral play territory --watch\n  corral play game-boy --human",
        (
            *_POLICY_FLAGS,
            _flag(
                "--save",
                metavar="FILE",
                help="clip.gif, clip.mp4, or one picture of an episode as .png, for envs that render rgb_array",
            ),
            _flag("--every", type=int, default=1, metavar="N", help="keep every Nth frame of a clip [1]"),
            _flag("--watch", action="store_true", help="in the terminal, each frame in the place of the last"),
            _flag("--human", action="store_true", help="play an env yourself, in a window, with the keyboard"),
            _flag("--episodes", type=int, metavar="N", help="how many episodes [1]"),
            _flag("--max-steps", type=int, metavar="N", help="cut episodes off here [2000]"),
            _flag("--fps", type=int, metavar="N", help="frames per second [the env's own]"),
            _flag("--opponent", metavar="NAME", help="who plays the other side, or a run directory"),
        ),
    ),
    Verb(
        "doctor",
        "[ENV]",
        "corral.cli.inspect:run_doctor",
        "Check an env before training, or the machines of a Ray cluster.",
        "  corral doctor CartPole-v1\n  corral doctor my_game.py:make_env --env-kwargs level=3\n"
        "  corral doctor my_game.py:make_env --replay runs/my-run/faults/env-3-seed-1234-step-12.json\n"
        "  corral doctor --cluster --ray-address auto\n"
        "  corral doctor my_game.py:make_env --cluster --ray-address 10.0.0.1:6379 --ray-working-dir .",
        (
            _flag("env", metavar="ENV", nargs="?", help=f"{_ENV_HELP}; may be left out with --cluster"),
            _flag("--env-kwargs", nargs="+", metavar="KEY=VALUE", default=[], help="arguments for the env"),
            _flag("--n-envs", type=int, metavar="N", help="envs you mean to use [8]"),
            _flag("--replay", metavar="FILE", help="play an episode again in which the env raised"),
            _flag("--steps", type=int, metavar="N", help="steps to try [1000]"),
            flag_sets.add_cluster_flags,
            _env_argument_flags,
        ),
    ),
    Verb(
        "node",
        "--head | --join HOST:PORT",
        "corral.cli.node:run_node_verb",
        "Make this machine the head of a Ray cluster, or join it to one, until Ctrl-C or SIGTERM.",
        "  corral node --head\n  corral node --join 10.0.0.1:6379\n"
        "  corral train CartPole-v1 --backend ray --ray-address 10.0.0.1:6379",
        (flag_sets.add_node_flags,),
    ),
    Verb(
        "tune",
        "ENV",
        "corral.cli.bench:run_tune",
        "Try numbers of envs and workers for real, and recommend one.",
        "  corral tune CartPole-v1\n  corral tune my_game.py:make_env --n-envs 8 --seconds 10",
        (
            *_timing_flags(seconds=2.0, repeats=2),
            _flag("--max-envs", type=int, default=64, metavar="N", help="try no more envs than this [64]"),
            _flag("--output", metavar="DIR", help="where the picture goes [runs/tune-<env>-<date>-<time>]"),
            _config_flags(shown=_SPEED_SETTINGS),
        ),
    ),
    Verb(
        "bench",
        "ENV",
        "corral.cli.bench:run_bench",
        "Time an env in one process and with workers: speed-up, efficiency, and where the time goes.",
        "  corral bench CartPole-v1\n  corral bench my_game.py:make_env --n-envs 16 --num-workers 4\n"
        "  corral bench my_game.py:make_env --n-envs 32 --backend ray --ray-address auto",
        (
            *_timing_flags(seconds=4.0, repeats=3),
            _flag("--backend", metavar="ray", default=argparse.SUPPRESS, help="ray: time it on a Ray cluster too"),
            _config_flags(shown=(*_SPEED_SETTINGS, *CLUSTER)),
        ),
    ),
    Verb(
        "sweep",
        "ENV",
        "corral.cli.sweep:run_sweep",
        "Train with different settings, presets or a search, and tell which are best.",
        "  corral sweep CartPole-v1 --preset A B C --timesteps 100000 --seeds 3\n"
        "  corral sweep CartPole-v1 --trials 20\n"
        "  corral sweep CartPole-v1 --trials 50 --search learning_rate=log:1e-5:1e-3 ent_coef=0:0.05 "
        "n_epochs=3,5,10 net_arch=64x64,256x256",
        (
            _sweep_flags,
            _flag("--presets", metavar="FILE", help="YAML file with presets of your own, name: {setting: value}"),
            _flag("--trials", type=int, metavar="N", help="search, with this many trials [20]"),
            _flag(
                "--search",
                nargs="+",
                action="extend",
                metavar="NAME=VALUES",
                help="what to search: a:b, log:a:b or a,b,c for any setting of PPO, the network and opponents [a space "
                "for most envs]",
            ),
            _flag("--seeds", type=int, default=1, metavar="N", help="train with so many seeds each [1]"),
            _flag("--jobs", type=int, default=1, metavar="N", help="trials at a time, which share the cores [1]"),
            _flag(
                "--prune",
                action=argparse.BooleanOptionalAction,
                default=True,
                help="give up trials of a search that fall behind the median [yes]",
            ),
            _config_flags(hidden=("hooks",)),
        ),
    ),
    Verb(
        "compare",
        "A B",
        "corral.cli.bench:run_compare",
        "Compare two runs: a table, a picture of both over time and a report.",
        "  corral compare runs/sequential runs/parallel\n  corral compare runs/my-run latest --output comparison",
        (
            _flag("a", metavar="A", help="a run directory, or latest; speed-up is B over A"),
            _flag("b", metavar="B", help="another run directory, or latest"),
            _flag("--output", metavar="DIR", help="where picture and report go [comparison-<date>-<time> beside A]"),
        ),
    ),
    Verb(
        "list",
        "[envs|atari|envpool|runs]",
        "corral.cli.inspect:run_list",
        "List envs that can be trained on here, and runs.",
        "  corral list\n  corral list runs",
        (
            _flag(
                "what",
                nargs="?",
                choices=("envs", "atari", "envpool", "runs"),
                default="envs",
                help="envs, atari, envpool or runs [envs]",
            ),
        ),
    ),
)
