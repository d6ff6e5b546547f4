"""The configuration of a run: one typed, frozen object, checked before the first process starts.

The YAML key, the command-line flag (with dashes) and the attribute have the same name, which is Stable-Baselines3's
where it has one. ``--help`` prints the description of each field. ``parse_config`` is the only way to make a config: a
wrong key or value is a UsageError of one line that says what to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from corral.config.backends import BACKENDS
from corral.config.rules import MAX_ENVS, MAX_WORKERS, RULES
from corral.config.values import MAX_LAYER_WIDTH, Cnn, KeyValues, NetArch, Recurrent, Stage, check_text, validation_line
from corral.core.errors import UsageError
from corral.core.suggestions import did_you_mean, short_repr

__all__ = ["RESUMABLE", "SECTIONS", "TrainConfig", "parse_config", "parse_env_kwargs"]

SECTIONS = ("parallel", "training")
"""Optional headings under which a YAML file may group its keys."""
_MAX_ERRORS = 3
"""Errors of a config that one message lists."""
_PRINTED = ("env", "policy", "hooks", "ray_address", "ray_working_dir")
"""Settings whose values Corral prints in commands for the user to run."""
MAX_ROLLOUT_STEPS = 10**9
RECOVERY = ("step_timeout", "start_timeout", "max_restarts", "worker_max_rss")
"""Settings about workers that die, hang or use too much memory."""
CLUSTER = ("ray_address", "ray_working_dir", "ray_resources", "allow_mixed_numerics", "node_timeout")
"""Settings about the machines of backend ray."""
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
    *CLUSTER,
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
"""Settings that a resumed run may change: they decide how long and how fast it runs, not what it computes."""


def _field(default: Any, group: str, description: str, **limits: Any) -> Any:
    """Return a field of the config; ``group`` is its group in ``--help``."""
    return Field(default, description=description, json_schema_extra={"group": group}, validate_default=False, **limits)


class TrainConfig(BaseModel):
    """All settings of a training run."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    env: str = Field(description="A built-in game, a Gymnasium id, package.module:callable or file.py:callable.")
    env_kwargs: KeyValues = _field({}, "environment", "Arguments of the env's constructor, as key=value ...")

    timesteps: int | None = _field(
        None, "budget", "Stop after this many steps, summed over all envs (100,000 if no budget is given).", ge=1
    )
    num_episodes: int | None = _field(None, "budget", "Stop after this many finished episodes.", ge=1)
    duration: float | None = _field(
        None, "budget", "Stop after this many hours; the rollout that is incomplete then is discarded.", gt=0
    )

    backend: str = _field(
        "auto",
        "parallel",
        "Processes that step envs and choose actions: serial (this process does both), process (workers step), "
        "worker (workers do both) or ray (workers on many machines). The result is the same; auto measures which of "
        "the first three is fastest and prints why.",
    )
    n_envs: int = _field(
        8, "parallel", "Number of envs; auto measures which number is fastest and prints why.", ge=1, le=MAX_ENVS
    )
    num_workers: int | None = _field(
        None,
        "parallel",
        "Number of worker processes that share the envs (default: one per core).",
        ge=1,
        le=MAX_WORKERS,
    )
    num_envs_per_worker: int | None = _field(
        None,
        "parallel",
        "Number of envs in each worker; n_envs = num_workers x num_envs_per_worker.",
        ge=1,
        le=MAX_ENVS,
    )
    parallel_start_method: Literal["auto", "spawn", "forkserver", "fork"] = _field(
        "auto", "parallel", "How worker processes are started; auto is forkserver where it exists, else spawn."
    )

    overlap: bool = _field(
        False,
        "parallel",
        "Collect the next rollout during the update. This changes the result: the policy that collects lags one "
        "iteration behind, and importance weights correct for it.",
    )
    adaptive: bool = _field(
        False, "parallel", "Measure workers during the run, move envs between them, and use more or fewer of them."
    )

    ray_address: str = _field(
        "local",
        "cluster",
        "The Ray cluster of backend ray: local (a Ray on this machine that ends with the run), auto (the Ray that runs "
        "on this machine) or HOST:PORT.",
    )
    ray_working_dir: str | None = _field(
        None, "cluster", "Directory that is copied to every node, with the env's modules and files (default: none)."
    )
    ray_resources: KeyValues = _field(
        {}, "cluster", "Ray resources that every worker needs besides a core, as name=amount ..."
    )
    allow_mixed_numerics: bool = _field(
        False,
        "cluster",
        "Use machines whose results differ from those of the trainer's machine in the last bits, so that the weights "
        "depend on which machine collects what (default: refuse them).",
    )
    node_timeout: float = _field(
        15.0,
        "cluster",
        "Seconds without a sign of life from a node after which its envs are stepped on another node too.",
        ge=2,
    )

    step_timeout: float | None = _field(
        None,
        "recovery",
        "Seconds that one step of an env may take before its worker is considered hung and replaced (default: 60, or "
        "20 times the slowest step so far, if that is more).",
        gt=0,
    )
    start_timeout: float = _field(
        300.0, "recovery", "Seconds that a new worker may take to construct and reset its envs.", gt=0
    )
    max_restarts: int | None = _field(
        None, "recovery", "Stop the run instead of replacing workers more often than this (default: no limit).", ge=0
    )
    worker_max_rss: float | None = _field(
        None,
        "recovery",
        "Replace a worker that uses more than this many MB of memory, at the end of an episode (default: never).",
        gt=0,
    )

    opponent: str | None = _field(
        None,
        "opponents",
        "Opponent in envs that have one: a scripted opponent of the env, current (the policy itself), checkpoint (its "
        "past versions), a run directory, or a mix: mixed:random=1,greedy=3 (default: the env chooses).",
    )
    stages: tuple[Stage, ...] = _field(
        (), "opponents", "Stages of the run, one after the other; only in a config file."
    )
    pool_size: int = _field(
        20,
        "opponents",
        "Number of past versions of the policy that the opponent checkpoint is drawn from.",
        ge=1,
        le=1000,
    )
    snapshot_freq: int = _field(
        25_000,
        "opponents",
        "Save a past version of the policy, for the opponent checkpoint, every this many steps.",
        ge=1,
    )

    expert: str | None = _field(
        None, "expert", "Scripted opponent of the env that the policy learns to imitate before the first rollout."
    )
    expert_steps: int = _field(
        20_000, "expert", "Number of steps of the expert to imitate, summed over all envs.", ge=1
    )
    expert_epochs: int = _field(10, "expert", "Number of passes over the steps of the expert.", ge=1)
    expert_values: bool = _field(False, "expert", "Also fit the value function to the returns of the expert.")

    n_steps: int = _field(2048, "ppo", "Number of steps of each env in a rollout.", ge=1, le=MAX_ROLLOUT_STEPS)
    batch_size: int = _field(64, "ppo", "Number of steps in a minibatch (one gradient step).", ge=1)
    n_epochs: int = _field(10, "ppo", "Number of passes over each rollout.", ge=1)
    learning_rate: float = _field(3e-4, "ppo", "Learning rate of Adam.", gt=0)
    learning_rate_end: float | None = _field(
        None, "ppo", "Learning rate at the end of the budget, to which it falls linearly (default: constant).", ge=0
    )
    gamma: float = _field(0.99, "ppo", "Discount factor.", ge=0, le=1)
    gae_lambda: float = _field(
        0.95, "ppo", "Lambda of generalized advantage estimation: lower has more bias and less variance.", ge=0, le=1
    )
    clip_range: float = _field(0.2, "ppo", "Clip range of the probability ratio.", gt=0)
    clip_range_vf: float | None = _field(None, "ppo", "Clip range of the value function (default: not clipped).", gt=0)
    normalize_advantage: bool = _field(
        True, "ppo", "Normalize the advantages of each minibatch to mean 0 and standard deviation 1."
    )
    ent_coef: float = _field(0.0, "ppo", "Weight of the entropy bonus in the loss.", ge=0)
    vf_coef: float = _field(0.5, "ppo", "Weight of the value loss in the loss.", ge=0)
    max_grad_norm: float = _field(0.5, "ppo", "Scale gradients of a larger norm down to this norm.", gt=0)
    target_kl: float | None = _field(
        None, "ppo", "End an update early when its KL divergence exceeds 1.5 times this (default: never).", gt=0
    )
    kl_ref_coef: float = _field(
        0.0,
        "ppo",
        "Initial weight in the loss of the KL divergence from a reference policy: the policy at the start of the run, "
        "if no other is given.",
        ge=0,
    )
    kl_ref_steps: int | None = _field(
        None, "ppo", "Number of steps over which kl_ref_coef falls linearly to 0 (default: timesteps).", ge=1
    )
    critic_warmup: int = _field(
        0, "ppo", "Number of steps at the start in which only the value function learns and the policy is frozen.", ge=0
    )

    policy: str | None = _field(
        None, "policy", "Your own torch network, as module:callable or file.py:callable (see docs/python.md)."
    )
    net_arch: NetArch | None = _field(
        None,
        "policy",
        "Sizes of the hidden layers: 64 64 (default; none if all observations are images), or pi=64,64 vf=128 for "
        "different policy and value networks.",
    )
    cnn: Cnn = _field(
        "auto",
        "policy",
        "Convolutional network for images: nature (for sides of at least 36 pixels), small, impala (slow) or none; "
        "auto chooses by image size.",
    )
    cnn_features: int = _field(
        256, "policy", "Number of features that the convolutional network outputs.", ge=1, le=MAX_LAYER_WIDTH
    )
    bf16: bool = _field(
        False, "policy", "Run the convolutional network in bfloat16, which is faster on processors that support it."
    )
    recurrent: Recurrent = _field(
        "none", "policy", "Recurrent layer, for envs whose observations do not show everything: gru, lstm or none."
    )
    recurrent_size: int = _field(128, "policy", "Number of units of the recurrent layer.", ge=1, le=16_384)
    sequence_length: int | None = _field(
        None,
        "policy",
        "Number of steps of backpropagation through time (default: the largest number up to 32 that divides n_steps "
        "and batch_size).",
        ge=1,
    )
    activation_fn: Literal["tanh", "relu", "elu", "gelu", "silu", "leaky_relu"] = _field(
        "tanh", "policy", "Activation function of the hidden layers."
    )
    ortho_init: bool = _field(True, "policy", "Initialize weights orthogonally.")
    log_std_init: float = _field(0.0, "policy", "Initial log standard deviation of continuous actions.")
    score_actions: bool | None = _field(
        None,
        "policy",
        "Compute the logit of each action from its row of the observation action_features, instead of one output per "
        "action index (default: if the env has that observation; see docs/environments.md).",
    )
    normalize_obs: bool = _field(
        False, "policy", "Normalize observations, except uint8 images, by their running mean and standard deviation."
    )
    clip_reward: bool = _field(False, "policy", "Learn from the sign of rewards; logs show rewards unchanged.")
    normalize_reward: bool = _field(
        False, "policy", "Divide rewards by the running standard deviation of the discounted return."
    )

    seed: int | None = _field(
        None, "run", "Root seed of all random numbers (default: drawn at random and recorded).", ge=0, lt=2**63
    )
    device: str = _field("auto", "run", "Device of the policy: cpu, cuda, cuda:1, mps, or auto.")
    learner: Literal["auto", "numpy", "torch"] = _field(
        "auto",
        "learner",
        "Library that computes gradients; auto is numpy for built-in networks on the CPU, else torch.",
    )
    learner_shares: int | None = _field(
        None, "learner", "Number of shards of a minibatch, computed in parallel (default: 1 to 8, by batch_size).", ge=1
    )
    learner_threads: int | None = _field(
        None, "learner", "Number of threads of torch's updates (default: 1; with images one per core, up to 8).", ge=1
    )
    compile: bool = _field(
        False, "learner", "Compile the loss with torch.compile, which takes about a minute at the start."
    )
    output_dir: str | None = _field(None, "run", "Run directory (default: runs/<env>-<date>-<time>).")
    eval_freq: int = _field(50_000, "run", "Evaluate every this many steps and at the end; 0 for never.", ge=0)
    eval_episodes: int = _field(10, "run", "Number of episodes of each evaluation, in one env.", ge=1)
    eval_sample: bool = _field(
        False, "run", "Evaluate with sampled actions, as in training, instead of the most likely ones."
    )
    eval_max_steps: int = _field(10_000, "run", "Truncate evaluation episodes after this many steps.", ge=1)
    checkpoint_freq: int = _field(
        50_000, "run", "Save a checkpoint every this many steps and at the end; 0 for only at the end.", ge=0
    )
    keep_checkpoints: int = _field(3, "run", "Number of newest checkpoints to keep.", ge=1)
    tensorboard: bool = _field(True, "run", "Write TensorBoard event files.")
    log_episodes: bool = _field(False, "run", "Print a line for every env, episode, epoch and update.")
    hooks: tuple[str, ...] = _field(
        (),
        "run",
        "Your own hook, called after every iteration, as module:Class or file.py:Class (see docs/hooks.md).",
        max_length=100,
    )

    @field_validator("device")
    @classmethod
    def _check_device(cls, device: str) -> str:
        if device.split(":")[0] not in ("auto", "cpu", "cuda", "mps"):
            raise ValueError("should be cpu, cuda, cuda:<index>, mps or auto")
        return device

    @field_validator("backend")
    @classmethod
    def _check_backend(cls, backend: str) -> str:
        if backend not in (names := ("auto", *BACKENDS)):
            raise ValueError(f"should be {', '.join(map(repr, names[:-1]))} or {names[-1]!r}")
        return backend

    @field_validator("hooks", mode="before")
    @classmethod
    def _accept_single_hook(cls, hooks: Any) -> Any:
        return (hooks,) if isinstance(hooks, str) else hooks

    @field_validator("duration", mode="before")
    @classmethod
    def _check_duration(cls, duration: Any) -> Any:
        if isinstance(duration, str) and ":" in duration:
            raise ValueError("should be a number of hours, as in 1.5 for an hour and a half")
        return duration

    @model_validator(mode="after")
    def _apply_rules(self) -> TrainConfig:
        """Set the settings that rules derive; raise a ValueError if settings contradict each other."""
        for rule in RULES:
            for name, value in (rule(self) or {}).items():
                object.__setattr__(self, name, value)  # the model is frozen, but still under construction
        return self

    @property
    def shares(self) -> int:
        """Number of shards of a minibatch; the same on every machine, because the rounding of sums depends on it."""
        default = next((n for min_size, n in ((4096, 8), (1024, 4), (256, 2)) if self.minibatch_size >= min_size), 1)
        return self.learner_shares or default

    @property
    def worker_only_setting(self) -> str | None:
        """Name of a setting that was changed and applies only to worker processes; None if there is none."""
        names = ("parallel_start_method", *RECOVERY)
        return next((name for name in names if getattr(self, name) != type(self).model_fields[name].default), None)

    @property
    def changed_cluster_setting(self) -> str | None:
        """Name of a setting that was changed and applies only to backend ray; None if there is none."""
        return next((name for name in CLUSTER if getattr(self, name) != type(self).model_fields[name].default), None)

    @property
    def rollout_size(self) -> int:
        """Number of steps in a rollout, summed over all envs."""
        return self.n_steps * self.n_envs

    @property
    def minibatch_size(self) -> int:
        """Number of steps in a minibatch: ``batch_size``, or the rollout's if that is smaller."""
        return min(self.batch_size, self.rollout_size)


def parse_env_kwargs(given: Any) -> dict[str, Any]:
    """Return the arguments of an env's constructor, given as a mapping or as ``key=value`` words."""
    return parse_config({"env": "", "env_kwargs": given}).env_kwargs


def parse_config(values: Mapping[str, Any]) -> TrainConfig:
    """Return the config with these ``values`` from YAML, flags or keyword arguments; raise a UsageError if wrong."""
    for key in values:
        if key not in TrainConfig.model_fields:
            raise UsageError(f"unknown setting {short_repr(key)}{did_you_mean(str(key), TrainConfig.model_fields)}")
        try:
            check_text(values[key], printed=key in _PRINTED)
        except ValueError as error:
            raise UsageError(f"{key} {error}") from None
    try:
        return TrainConfig.model_validate({key: _parse_number(key, value) for key, value in values.items()})
    except ValidationError as error:
        lines = [*dict.fromkeys(validation_line(detail, values) for detail in error.errors())]
        more = f"; and {len(lines) - _MAX_ERRORS} more" if len(lines) > _MAX_ERRORS else ""
        raise UsageError("; ".join(lines[:_MAX_ERRORS]) + more) from None


def _parse_number(key: str, value: Any) -> Any:
    """Return ``value``, or a number if it is text such as ``1e6`` for an integer setting (YAML 1.1 reads it as text).

    Raise a UsageError for booleans and very large integers in the place of numbers.
    """
    types = {TrainConfig.model_fields[key].annotation, *get_args(TrainConfig.model_fields[key].annotation)}
    if isinstance(value, bool) and types & {int, float}:
        raise UsageError(f"{key} {value}: should be a number")
    if isinstance(value, int) and types & {int, float} and abs(value) >= 2**63:
        raise UsageError(f"{key} {short_repr(value)}: should be less than 2**63")
    if isinstance(value, str) and int in types and re.fullmatch(r"\d+(\.\d+)?[eE]\+?\d{1,2}", value):
        return float(value)  # pydantic accepts it if it is a whole number
    return value
