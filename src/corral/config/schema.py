"""The whole configuration of a run: one typed, frozen object, checked before the first process starts.

The YAML key, the command-line flag (with dashes) and the attribute are the same word. Names are Stable-Baselines3's
where it has one. ``parse_config`` is the only way in: a wrong value or key becomes one line that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from corral.config.backends import BACKENDS
from corral.config.rules import MOST_ENVS, MOST_WORKERS, RULES
from corral.config.values import WIDEST_LAYER, Cnn, KeyValues, NetArch, Recurrent, Stage, check_text, validation_line
from corral.core.errors import UsageError
from corral.core.suggestions import did_you_mean, short_repr

__all__ = ["RESUMABLE", "SECTIONS", "TrainConfig", "parse_config", "parse_env_kwargs"]

SECTIONS = ("parallel", "training")
"""Optional headings under which a YAML file may group its keys."""
_MOST_COMPLAINTS = 3
_PRINTED = ("env", "policy", "hooks")
"""Names that commands to type are made of."""
MOST_STEPS = 10**9
RECOVERY = ("step_timeout", "start_timeout", "max_restarts", "worker_max_rss")
"""Settings about workers that die, hang or grow."""
RESUMABLE = (
    "timesteps",
    "num_episodes",
    "duration",
    "backend",
    "num_workers",
    "num_envs_per_worker",
    "parallel_start_method",
    "adaptive",
    *RECOVERY,
    "device",
    "eval_freq",
    "eval_episodes",
    "eval_sample",
    "eval_max_steps",
    "checkpoint_freq",
    "keep_checkpoints",
    "tensorboard",
    "log_episodes",
)
"""Settings that a resumed run may change: they decide how long and how fast, not what."""


def _field(default: Any, group: str, description: str, **limits: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"group": group}, validate_default=False, **limits)


class TrainConfig(BaseModel):
    """Everything that decides a training run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    env: str = Field(description="A built-in game, a Gymnasium id, package.module:callable or file.py:callable.")
    env_kwargs: KeyValues = _field({}, "environment", "Arguments for the env's constructor, as key=value ...")

    timesteps: int | None = _field(
        None, "budget", "Stop after this many steps, all envs together (100,000 if no budget is given).", ge=1
    )
    num_episodes: int | None = _field(None, "budget", "Stop after this many finished episodes.", ge=1)
    duration: float | None = _field(
        None, "budget", "Stop after this many hours; the rollout that is under way then is discarded.", gt=0
    )

    backend: str = _field(
        "auto",
        "parallel",
        "Who steps and acts: serial (this process), process (workers step), worker (workers step and act). The result "
        "is the same for all; auto measures and says why.",
    )
    n_envs: int = _field(
        8, "parallel", "How many envs are stepped side by side; auto measures and says why.", ge=1, le=MOST_ENVS
    )
    num_workers: int | None = _field(
        None, "parallel", "Worker processes that share the envs (default: one per core).", ge=1, le=MOST_WORKERS
    )
    num_envs_per_worker: int | None = _field(
        None, "parallel", "Envs in each worker; n_envs = num_workers x num_envs_per_worker.", ge=1, le=MOST_ENVS
    )
    parallel_start_method: Literal["auto", "spawn", "forkserver", "fork"] = _field(
        "auto", "parallel", "How workers are started; auto is forkserver where it exists, else spawn."
    )

    overlap: bool = _field(
        False,
        "parallel",
        "Collect the next rollout while learning from the last; changes the result: the policy lags one iteration "
        "behind, which is corrected for.",
    )
    adaptive: bool = _field(
        False, "parallel", "Move envs between workers, and use more or fewer of them, as measured during the run."
    )

    step_timeout: float | None = _field(
        None,
        "recovery",
        "Seconds that one step of an env may take before its worker is taken for hung and replaced (default: 60, or "
        "20 times the slowest step seen, if that is more).",
        gt=0,
    )
    start_timeout: float = _field(300.0, "recovery", "Seconds that a new worker may take to make and reset its envs.", gt=0)
    max_restarts: int | None = _field(
        None, "recovery", "Stop the run rather than replace workers more often than this (default: no limit).", ge=0
    )
    worker_max_rss: float | None = _field(
        None, "recovery", "MB of memory at which a worker is replaced, at the end of an episode (default: never).", gt=0
    )

    opponent: str | None = _field(
        None,
        "opponents",
        "Who plays the other side, in envs that have one: an opponent of the env's, current (the policy itself), "
        "checkpoint (its past), a run directory, or a mix: mixed:random=1,greedy=3 (default: as the env says).",
    )
    stages: tuple[Stage, ...] = _field((), "opponents", "What is played, one after the other; in a config file.")
    pool_size: int = _field(20, "opponents", "How many of its past selves checkpoint draws from.", ge=1, le=1000)
    snapshot_freq: int = _field(25_000, "opponents", "Another copy of the policy joins them every so many steps.", ge=1)

    expert: str | None = _field(
        None, "expert", "An opponent of the env's whose play the policy learns to imitate before the first rollout."
    )
    expert_steps: int = _field(20_000, "expert", "Steps of its games, all envs together.", ge=1)
    expert_epochs: int = _field(10, "expert", "Passes over them.", ge=1)
    expert_values: bool = _field(False, "expert", "Fit the value function to how its games ended, too.")

    n_steps: int = _field(2048, "ppo", "Steps of each env in a rollout.", ge=1, le=MOST_STEPS)
    batch_size: int = _field(64, "ppo", "Steps that one gradient step sees.", ge=1)
    n_epochs: int = _field(10, "ppo", "Passes over each rollout.", ge=1)
    learning_rate: float = _field(3e-4, "ppo", "Step size of Adam.", gt=0)
    learning_rate_end: float | None = _field(
        None, "ppo", "Where the learning rate ends, falling in a line over the budget (default: constant).", ge=0
    )
    gamma: float = _field(0.99, "ppo", "Discount of future reward.", ge=0, le=1)
    gae_lambda: float = _field(0.95, "ppo", "Bias against variance in the advantages.", ge=0, le=1)
    clip_range: float = _field(0.2, "ppo", "How far one update may move an action's probability ratio.", gt=0)
    clip_range_vf: float | None = _field(None, "ppo", "The same for values (default: not clipped).", gt=0)
    normalize_advantage: bool = _field(True, "ppo", "Give the advantages of each minibatch mean 0 and deviation 1.")
    ent_coef: float = _field(0.0, "ppo", "Weight of the entropy bonus.", ge=0)
    vf_coef: float = _field(0.5, "ppo", "Weight of the value loss.", ge=0)
    max_grad_norm: float = _field(0.5, "ppo", "Gradients are scaled down to this norm.", gt=0)
    target_kl: float | None = _field(None, "ppo", "End an update early once the policy moved 1.5 times this far.", gt=0)
    kl_ref_coef: float = _field(
        0.0,
        "ppo",
        "Weight, at first, of the KL divergence from a reference policy: the one the run starts from, if no other is "
        "given.",
        ge=0,
    )
    kl_ref_steps: int | None = _field(
        None, "ppo", "Steps over which kl_ref_coef falls to 0, in a line (default: timesteps).", ge=1
    )
    critic_warmup: int = _field(
        0, "ppo", "Steps at the start in which only the value function learns, and the policy stays as it is.", ge=0
    )

    policy: str | None = _field(
        None, "policy", "A torch network of your own, module:callable or file.py:callable (see docs/python.md)."
    )
    net_arch: NetArch | None = _field(
        None, "policy", "Hidden layers: 64 64 (default; pictures alone: none), or pi=64,64 vf=128 for separate ones."
    )
    cnn: Cnn = _field(
        "auto", "policy", "What sees pictures: nature (sides from 36 on), small, impala (slow) or none; auto: by size."
    )
    cnn_features: int = _field(256, "policy", "Numbers that it makes of a picture.", ge=1, le=WIDEST_LAYER)
    bf16: bool = _field(False, "policy", "See pictures in bfloat16, where a processor is faster with it.")
    recurrent: Recurrent = _field("none", "policy", "Memory, for what an observation does not show: gru, lstm or none.")
    recurrent_size: int = _field(128, "policy", "Numbers that it remembers.", ge=1, le=16_384)
    sequence_length: int | None = _field(
        None, "policy", "Steps back through which memory is learned (default: up to 32, as n_steps divides).", ge=1
    )
    activation_fn: Literal["tanh", "relu", "elu", "gelu", "silu", "leaky_relu"] = _field(
        "tanh", "policy", "Activation between the layers."
    )
    ortho_init: bool = _field(True, "policy", "Start from orthogonal weights.")
    log_std_init: float = _field(0.0, "policy", "Initial log standard deviation of continuous actions.")
    score_actions: bool | None = _field(
        None,
        "policy",
        "Score each legal action by its row of the observation action_features, rather than give each index an output "
        "(default: where an env offers that; see docs/environments.md).",
    )
    normalize_obs: bool = _field(
        False, "policy", "Scale observations, except pictures of bytes, by their running mean and deviation."
    )
    clip_reward: bool = _field(False, "policy", "Learn from the sign of rewards; they are logged as they are.")
    normalize_reward: bool = _field(False, "policy", "Scale rewards by the running deviation of the return.")

    seed: int | None = _field(
        None, "run", "Root of every random number (default: drawn, and recorded).", ge=0, lt=2**63
    )
    device: str = _field("auto", "run", "cpu, cuda, cuda:1, mps, or auto.")
    learner: Literal["auto", "numpy", "torch"] = _field(
        "auto", "learner", "What computes gradients; auto is numpy for the built-in network on the CPU, else torch."
    )
    learner_shares: int | None = _field(
        None, "learner", "Parts of a minibatch that are computed side by side (default: 1 to 8, by batch_size).", ge=1
    )
    learner_threads: int | None = _field(
        None, "learner", "Threads of a gradient step (torch; default: 1; for pictures one per core, up to 8).", ge=1
    )
    compile: bool = _field(False, "learner", "Compile the loss with torch.compile, which takes a minute at start.")
    output_dir: str | None = _field(None, "run", "The run directory (default: runs/<env>-<date>-<time>).")
    eval_freq: int = _field(50_000, "run", "Evaluate every so many steps, and at the end; 0 for never.", ge=0)
    eval_episodes: int = _field(10, "run", "Episodes of each evaluation, on one env.", ge=1)
    eval_sample: bool = _field(
        False, "run", "Evaluate with actions drawn as in training, instead of the most likely ones."
    )
    eval_max_steps: int = _field(10_000, "run", "Evaluation episodes are cut off after so many steps.", ge=1)
    checkpoint_freq: int = _field(
        50_000, "run", "Save every so many steps, and at the end; 0 for at the end only.", ge=0
    )
    keep_checkpoints: int = _field(3, "run", "How many of the newest checkpoints are kept.", ge=1)
    tensorboard: bool = _field(True, "run", "Write TensorBoard event files.")
    log_episodes: bool = _field(False, "run", "Print a line for every env, episode, epoch and update.")
    hooks: tuple[str, ...] = _field(
        (),
        "run",
        "Code of your own to run after every iteration, module:Class or file.py:Class (see docs/hooks.md).",
        max_length=100,
    )

    @field_validator("device")
    @classmethod
    def _known_device(cls, device: str) -> str:
        if device.split(":")[0] not in ("auto", "cpu", "cuda", "mps"):
            raise ValueError("should be cpu, cuda, cuda:<index>, mps or auto")
        return device

    @field_validator("backend")
    @classmethod
    def _known_backend(cls, backend: str) -> str:
        if backend not in (known := ("auto", *BACKENDS)):
            raise ValueError(f"should be {', '.join(map(repr, known[:-1]))} or {known[-1]!r}")
        return backend

    @field_validator("hooks", mode="before")
    @classmethod
    def _one_hook(cls, hooks: Any) -> Any:
        return (hooks,) if isinstance(hooks, str) else hooks

    @field_validator("duration", mode="before")
    @classmethod
    def _hours(cls, duration: Any) -> Any:
        if isinstance(duration, str) and ":" in duration:
            raise ValueError("should be a number of hours, as in 1.5 for an hour and a half")
        return duration

    @model_validator(mode="after")
    def _apply_rules(self) -> TrainConfig:
        """Settle what follows from what was given, and refuse what contradicts itself."""
        for rule in RULES:
            for name, value in (rule(self) or {}).items():
                object.__setattr__(self, name, value)  # frozen, but this is still its birth
        return self

    @property
    def shares(self) -> int:
        """Parts of a minibatch: part of the run, never of the machine, because sums depend on it."""
        by_size = next(
            (shares for least, shares in ((4096, 8), (1024, 4), (256, 2)) if self.minibatch_size >= least), 1
        )
        return self.learner_shares or by_size

    @property
    def needs_workers(self) -> str | None:
        """A setting that only worker processes can honour."""
        names = ("parallel_start_method", *RECOVERY)
        return next((name for name in names if getattr(self, name) != type(self).model_fields[name].default), None)

    @property
    def rollout_size(self) -> int:
        """Steps in one rollout, all envs together."""
        return self.n_steps * self.n_envs

    @property
    def minibatch_size(self) -> int:
        """``batch_size``, or the whole rollout where that is smaller."""
        return min(self.batch_size, self.rollout_size)


def parse_env_kwargs(given: Any) -> dict[str, Any]:
    """Constructor arguments, from a mapping or from ``key=value`` words."""
    return parse_config({"env": "", "env_kwargs": given}).env_kwargs


def parse_config(values: Mapping[str, Any]) -> TrainConfig:
    """Check ``values`` (from YAML, flags or keyword arguments) and freeze them."""
    for key in values:
        if key not in TrainConfig.model_fields:
            raise UsageError(f"unknown setting {short_repr(key)}{did_you_mean(str(key), TrainConfig.model_fields)}")
        try:
            check_text(values[key], printed=key in _PRINTED)
        except ValueError as error:
            raise UsageError(f"{key} {error}") from None
    try:
        return TrainConfig.model_validate({key: _number(key, value) for key, value in values.items()})
    except ValidationError as error:
        complaints = [*dict.fromkeys(validation_line(detail, values) for detail in error.errors())]
        more = f"; and {len(complaints) - _MOST_COMPLAINTS} more" if len(complaints) > _MOST_COMPLAINTS else ""
        raise UsageError("; ".join(complaints[:_MOST_COMPLAINTS]) + more) from None


def _number(key: str, value: Any) -> Any:
    """``1e6`` for a whole number, which YAML and the shell give as text; and no booleans for numbers."""
    kinds = {TrainConfig.model_fields[key].annotation, *get_args(TrainConfig.model_fields[key].annotation)}
    if isinstance(value, bool) and kinds & {int, float}:
        raise UsageError(f"{key} {value}: should be a number")
    if isinstance(value, int) and kinds & {int, float} and abs(value) >= 2**63:
        raise UsageError(f"{key} {short_repr(value)}: should be less than 2**63")
    if isinstance(value, str) and int in kinds and re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", value):
        return float(value)  # taken as a whole number if it is one
    return value
