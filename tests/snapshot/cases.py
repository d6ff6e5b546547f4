"""The runs that are compared: each is one or several command lines that work on one run directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["CASES", "RUN", "Case"]

RUN = "{run}"
"""Placeholder for the run directory in a command line; ``{run}.marker`` is a file beside it."""
_ENVS = Path(__file__).with_name("envs.py")
_SMALL = (
    *("--n-envs", "4", "--n-steps", "32", "--batch-size", "64", "--n-epochs", "2", "--timesteps", "512"),
    *("--eval-freq", "256", "--eval-episodes", "2", "--checkpoint-freq", "256", "--seed", "7", "--no-tensorboard"),
)
"""Four iterations, two evaluations, two checkpoints."""
_WORKERS = ("--backend", "worker", "--num-workers", "2")
_PROCESSES = ("--backend", "process", "--num-workers", "2")
_SERIAL = ("--backend", "serial")


@dataclass(frozen=True)
class Case:
    """A run: its name, its command lines, and whether ``--short`` includes it."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    short: bool = False
    copy_of: Path | None = None
    """A run directory that is copied first, if any."""


def _train(name: str, env: str, *flags: str, verb: str = "train", short: bool = False) -> Case:
    """Return a run of one command."""
    env = env.replace("file:", f"{_ENVS}:")
    return Case(name, ((verb, env, *_SMALL, "--output-dir", RUN, *flags),), short)


def _resumed(name: str, env: str, *flags: str, resume: tuple[str, ...] = (), short: bool = False) -> Case:
    """Return a run that stops after half of its steps and is resumed."""
    first = _train(name, env, *flags, "--timesteps", "256")
    env_flags = ("--env", env.replace("file:", f"{_ENVS}:")) if env.startswith("file:") else ()
    return Case(name, (*first.commands, ("resume", RUN, *env_flags, "--timesteps", "512", *resume)), short)


def _old_run(name: str) -> Case:
    """Return a run of an earlier version that is resumed."""
    path = Path(__file__).parents[1] / "old_runs" / name
    return Case(f"old {name} resumed", (("resume", RUN, "--timesteps", "512"),), copy_of=path)


_CARDS = ("--eval-games", "4", "--net-arch", "16")
_PAST_SELVES = ("--snapshot-freq", "128", "--pool-size", "2")
_MIX = "mixed:checkpoint=1,current=1,random=1,greedy=1"
_DEADLY = ("file:DeadlyCartPole", "--env-kwargs", f"marker={RUN}.marker")

CASES = (
    _train("serial", "CartPole-v1", *_SERIAL, short=True),
    _train("process", "CartPole-v1", *_PROCESSES),
    _train("worker", "CartPole-v1", *_WORKERS),
    _train("serial torch", "CartPole-v1", *_SERIAL, "--learner", "torch"),
    _train("worker torch", "CartPole-v1", *_WORKERS, "--learner", "torch"),
    _train("worker overlap", "CartPole-v1", *_WORKERS, "--overlap"),
    _train("process overlap torch", "CartPole-v1", *_PROCESSES, "--overlap", "--learner", "torch"),
    _train("worker adaptive", "CartPole-v1", *_WORKERS, "--adaptive"),
    _train("episodes", "CartPole-v1", *_SERIAL, "--timesteps", "100000", "--num-episodes", "20", "--log-episodes"),
    _train(
        *("continuous normalised", "Pendulum-v1", *_WORKERS, "--normalize-obs", "--normalize-reward"),
        *("--learning-rate-end", "0", "--clip-range-vf", "0.2", "--ent-coef", "0.01"),
        short=True,
    ),
    _train("masks", "toy-maze", *_PROCESSES, "--clip-reward", "--target-kl", "0.01", "--critic-warmup", "128"),
    _train("every space", "toy-everything", *_WORKERS, "--normalize-obs", short=True),
    _train("frame stacks", "file:stacked_cartpole", *_SERIAL),
    _train("frame stacks overlap", "file:stacked_cartpole", *_WORKERS, "--overlap", "--normalize-obs", short=True),
    _train("pictures", "toy-sight", *_WORKERS, "--cnn-features", "16"),
    _train("gru", "toy-recall", *_SERIAL, "--recurrent", "gru", "--recurrent-size", "8", "--sequence-length", "8"),
    _train("lstm", "toy-recall", *_WORKERS, "--recurrent", "lstm", "--recurrent-size", "8", "--overlap"),
    _train("own network", "CartPole-v1", *_WORKERS, "--policy", f"{_ENVS}:small_network"),
    _train("env states", "file:StatefulCounter", *_WORKERS),
    _train("env faults", "file:FaultyCartPole", *_WORKERS),
    _train("self-play", "card-battle", *_SERIAL, *_CARDS, *_PAST_SELVES, verb="selfplay", short=True),
    _train("self-play overlap", "card-battle", *_WORKERS, "--overlap", *_CARDS, *_PAST_SELVES, verb="selfplay"),
    _train("curriculum", "card-battle", *_WORKERS, *_CARDS, verb="curriculum"),
    _train("stages of the env", "territory", *_SERIAL, "--eval-games", "0", verb="curriculum"),
    _train("hybrid", "card-battle", *_SERIAL, *_CARDS, *_PAST_SELVES, verb="hybrid"),
    _train(
        *("warm start", "card-battle", *_WORKERS, "--expert-steps", "256", "--expert-epochs", "2"),
        *("--kl-ref-coef", "0.1", *_CARDS),
        verb="warmstart",
        short=True,
    ),
    _resumed("resumed", "CartPole-v1", *_SERIAL, "--normalize-obs", resume=(*_WORKERS,)),
    _resumed("resumed overlap", "toy-maze", *_WORKERS, "--overlap", "--normalize-reward", short=True),
    _resumed(
        *("resumed recurrent self-play", "card-battle", *_WORKERS, "--opponent", _MIX, *_CARDS, *_PAST_SELVES),
        *("--recurrent", "gru", "--recurrent-size", "8"),
    ),
    _old_run("cartpole"),
    _old_run("self-play"),
    _old_run("recurrent"),
    _old_run("overlap"),
    _train("worker killed", *_DEADLY, *_WORKERS, short=True),
    _train("process killed", *_DEADLY, *_PROCESSES, "--tensorboard"),
)
