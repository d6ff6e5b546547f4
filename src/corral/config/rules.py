"""Rules between settings that need only the config; ``training.space_rules`` has those that need the env's spaces.

A rule raises a ``ValueError`` if settings contradict each other, and returns the settings that it derives from others.
Rules apply in the order of ``RULES``; each sees the settings that the rules before it derived.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from corral.core.suggestions import short_repr

if TYPE_CHECKING:
    from corral.config.schema import TrainConfig

__all__ = ["DEFAULT_TIMESTEPS", "MAX_ENVS", "MAX_WORKERS", "RULES"]

DEFAULT_TIMESTEPS = 100_000
MAX_ENVS, MAX_WORKERS = 65_536, 4_096
_MIN_DERIVED_SEQUENCE, _MAX_DERIVED_SEQUENCE = 8, 32
"""Limits of a ``sequence_length`` that is derived; one that the user gives has no such limits."""

Derived = Mapping[str, object]
"""Settings that a rule derived, by name."""


def _derive_timesteps(config: TrainConfig) -> Derived:
    """Without any budget, set ``timesteps`` to the sum over the stages, or to the default."""
    if config.timesteps is not None or config.num_episodes is not None or config.duration is not None:
        return {}
    stage_timesteps = [stage.timesteps or DEFAULT_TIMESTEPS for stage in config.stages]
    return {"timesteps": sum(stage_timesteps) or DEFAULT_TIMESTEPS}


def _check_stage_names(config: TrainConfig) -> None:
    """Check that no two stages have the same name."""
    names = [stage.name for stage in config.stages]
    if len({*names}) < len(names):
        raise ValueError(f"stages {', '.join(names)}: each needs a name of its own")


def _check_expert_and_pool_settings(config: TrainConfig) -> None:
    """Check that settings of imitation and of the pool of past policies come with an expert or such an opponent."""
    opponents = " ".join([config.opponent or "", *(stage.opponent or "" for stage in config.stages)])
    without_effect = [name for name in ("expert_steps", "expert_epochs", "expert_values") if config.expert is None]
    without_effect += [
        name for name in ("pool_size", "snapshot_freq") if not re.search("checkpoint|current", opponents)
    ]
    for name in without_effect:
        if _is_set(config, name):
            needed = "expert" if name.startswith("expert") else "an opponent that is checkpoint or current"
            raise ValueError(f"{name} {getattr(config, name)} has no effect without {needed}; leave it out")


def _check_warm_start(config: TrainConfig) -> None:
    """Check that nothing else changes the policy during a warm start, or the scale of its values afterwards."""
    if config.normalize_obs and (config.expert is not None or config.critic_warmup):
        name = "expert" if config.expert is not None else "critic_warmup"
        raise ValueError(
            f"{name} and normalize_obs: the running statistics would change the policy too; leave one of them out"
        )
    scaling = next((name for name in ("normalize_reward", "clip_reward") if getattr(config, name)), None)
    if scaling and config.expert_values:
        raise ValueError(
            f"expert_values and {scaling}: values of the expert's games would have another scale; leave one of them out"
        )
    if config.timesteps is not None and config.critic_warmup >= config.timesteps:
        raise ValueError(
            f"critic_warmup {config.critic_warmup} leaves nothing of timesteps {config.timesteps}; make it smaller"
        )


def _check_stages(config: TrainConfig) -> None:
    """Check that stages all have opponents or all have options, that nothing else sets these, and how they end."""
    if config.stages and config.opponent is not None:
        raise ValueError("opponent and stages: the stages decide the opponents; leave opponent out")
    if any(stage.timesteps is None for stage in config.stages[:-1]):
        raise ValueError("stages: every one but the last needs timesteps")
    if twice := sorted({name for stage in config.stages for name in stage.options} & config.env_kwargs.keys()):
        raise ValueError(f"env_kwargs {twice[0]}: the options of the stages set it too; leave one of them out")
    if len({stage.opponent is None for stage in config.stages}) > 1:
        raise ValueError("stages: either all have an opponent or all have options")


def _derive_envs_and_workers(config: TrainConfig) -> Derived:
    """Replace ``num_envs_per_worker`` by ``n_envs`` and ``num_workers``."""
    n_envs, num_workers, per_worker = config.n_envs, config.num_workers, config.num_envs_per_worker
    if per_worker is None:
        return {}
    if num_workers is None:
        if per_worker > n_envs:
            raise ValueError(
                f"num_envs_per_worker {per_worker} is more than n_envs {n_envs}; give num_workers or a larger n_envs"
            )
        num_workers = math.ceil(n_envs / per_worker)
    elif "n_envs" not in config.model_fields_set:
        n_envs = num_workers * per_worker
    elif n_envs != num_workers * per_worker:
        raise ValueError(
            f"n_envs {n_envs} disagrees with num_workers {num_workers} x num_envs_per_worker {per_worker} = "
            f"{num_workers * per_worker}; leave one of the three out"
        )
    if n_envs > MAX_ENVS or num_workers > MAX_WORKERS:
        raise ValueError(
            f"num_workers {num_workers} x num_envs_per_worker {per_worker} is {n_envs} envs; at most {MAX_ENVS} envs "
            f"and {MAX_WORKERS} workers are possible"
        )
    return {"n_envs": n_envs, "num_workers": num_workers, "num_envs_per_worker": None}


def _check_num_workers(config: TrainConfig) -> None:
    """Check that every worker has an env, and that the serial backend has no workers."""
    if config.num_workers is not None:
        if config.backend == "serial" and config.num_workers > 1:
            raise ValueError(f"num_workers {config.num_workers} needs backend worker, but backend is serial")
        if config.num_workers > config.n_envs:
            raise ValueError(
                f"num_workers {config.num_workers} is more than n_envs {config.n_envs}: some workers would have no env"
            )


def _check_batch_size(config: TrainConfig) -> None:
    """Check that a rollout consists of whole minibatches."""
    if config.batch_size < config.rollout_size and config.rollout_size % config.batch_size:
        raise ValueError(
            f"batch_size {config.batch_size} does not divide the rollout of n_steps {config.n_steps} x n_envs "
            f"{config.n_envs} = {config.rollout_size}; the nearest that do: "
            f"{_nearest_divisors(config.batch_size, config.rollout_size)}"
        )


def _check_serial(config: TrainConfig) -> None:
    """Check that the serial backend has no settings that are about workers."""
    if config.backend == "serial" and (name := config.worker_only_setting) is not None:
        raise ValueError(f"{name} {getattr(config, name)} is for workers, but backend is serial; leave it out")


def _derive_sequence_length(config: TrainConfig) -> Derived:
    """Set ``sequence_length`` of a recurrent policy to a common divisor of ``n_steps`` and the minibatch, up to 32."""
    if config.recurrent == "none":
        _check_no_recurrent_settings(config)
        return {}
    _check_recurrent_combinations(config)
    lengths = _divisors(math.gcd(config.n_steps, config.minibatch_size))
    sizes = f"n_steps {config.n_steps} and the {config.minibatch_size} steps of a minibatch"
    if (given := config.sequence_length) is not None:
        if given not in lengths:
            nearest = sorted(sorted(lengths, key=lambda length: abs(length - given))[:3])
            raise ValueError(
                f"sequence_length {given} does not divide both {sizes}; those that do: {', '.join(map(str, nearest))}"
            )
        return {}
    longest = max(length for length in lengths if length <= _MAX_DERIVED_SEQUENCE)
    if longest < min(_MIN_DERIVED_SEQUENCE, config.n_steps):
        raise ValueError(
            f"recurrent {config.recurrent}: {sizes} have only sequences of {longest} steps in common, too few to learn "
            f"what to remember; choose multiples of {_MAX_DERIVED_SEQUENCE}, or set sequence_length {longest}"
        )
    return {"sequence_length": longest}


def _check_no_recurrent_settings(config: TrainConfig) -> None:
    """Check that settings of a recurrent policy come with one."""
    for name in ("sequence_length", "recurrent_size"):
        if _is_set(config, name):
            raise ValueError(
                f"{name} {getattr(config, name)} has no effect without recurrent; set recurrent too, or leave it out"
            )


def _check_recurrent_combinations(config: TrainConfig) -> None:
    """Check that no setting is given that does not work with a recurrent policy."""
    reasons = {
        "policy": "a network of your own gets no recurrent state",
        "compile": "a loop over steps does not compile well",
        "expert": "imitation learns from single steps",
    }
    for name, reason in reasons.items():
        if value := getattr(config, name):
            raise ValueError(
                f"recurrent {config.recurrent} cannot be combined with {name} {value}: {reason}; leave one of them out"
            )


def _check_network_settings(config: TrainConfig) -> None:
    """Check that settings of the built-in network do not come with a network of the user's own."""
    if config.policy is not None:
        for name in ("net_arch", "activation_fn", "ortho_init", "score_actions", "cnn", "cnn_features", "bf16"):
            if _is_set(config, name):
                raise ValueError(f"{name} shapes the built-in network, but policy is {config.policy}; set it there")


def _derive_learner(config: TrainConfig) -> Derived:
    """Set ``learner`` to torch if another setting needs it."""
    needs_torch = {
        "compile": config.compile,
        f"recurrent {config.recurrent}": config.recurrent != "none",
        f"learner_threads {config.learner_threads}": (config.learner_threads or 1) > 1,
        f"policy {config.policy}": config.policy is not None,
        f"activation_fn {config.activation_fn}": config.activation_fn in ("gelu", "silu"),
        f"device {config.device}": config.device not in ("auto", "cpu"),
    }
    setting = next((setting for setting, needed in needs_torch.items() if needed), None)
    if setting is None:
        return {}
    if config.learner == "numpy":
        raise ValueError(f"{setting} needs learner torch, but learner is numpy")
    return {"learner": "torch"}


def _check_learner_shares(config: TrainConfig) -> None:
    """Check that a minibatch can be split: not with ``compile`` or ``policy``, nor into more parts than steps."""
    if config.learner_shares is not None:
        name = next((name for name in ("compile", "policy") if getattr(config, name)), None)
        if name is not None:
            raise ValueError(
                f"learner_shares {config.learner_shares} cannot be combined with {name}; leave one of them out"
            )
        if config.learner_shares > config.minibatch_size:
            raise ValueError(
                f"learner_shares {config.learner_shares} is more than the {config.minibatch_size} steps of a minibatch"
            )


def _check_adaptive(config: TrainConfig) -> None:
    """Check that ``adaptive`` comes with workers that act, because only these can exchange envs."""
    if config.adaptive and config.backend not in ("auto", "worker"):
        raise ValueError(f"adaptive is for backend worker, but backend is {config.backend}")


def _check_cluster(config: TrainConfig) -> None:
    """Check the settings about the cluster of backend ray."""
    if config.backend != "ray":
        if (name := config.changed_cluster_setting) is not None:
            raise ValueError(
                f"{name} {getattr(config, name)} is for backend ray, but backend is {config.backend}; set backend ray"
            )
        return
    if config.ray_address not in ("local", "auto") and not re.fullmatch(r"[\w.\-\[\]:]+:\d{1,5}", config.ray_address):
        raise ValueError(f"ray_address {short_repr(config.ray_address)}: should be local, auto or HOST:PORT")
    for name, amount in config.ray_resources.items():
        if isinstance(amount, bool) or not isinstance(amount, int | float) or amount <= 0:
            raise ValueError(f"ray_resources {name}={amount!r}: should be a positive number")
        if name == "CPU":
            raise ValueError("ray_resources CPU: every worker has one core; leave it out")


def _check_learning_rate_end(config: TrainConfig) -> None:
    """Check that the steps are known over which the learning rate falls."""
    if config.learning_rate_end is not None and config.timesteps is None:
        raise ValueError("learning_rate_end needs timesteps, over which the learning rate falls")


def _derive_kl_reference_steps(config: TrainConfig) -> Derived:
    """Set ``kl_ref_steps``, over which ``kl_ref_coef`` falls to 0, to ``timesteps`` by default."""
    if config.kl_ref_coef and config.kl_ref_steps is None:
        if config.timesteps is None:
            raise ValueError("kl_ref_coef needs kl_ref_steps or timesteps, over which it falls to 0")
        return {"kl_ref_steps": config.timesteps}
    if config.kl_ref_steps is not None and not config.kl_ref_coef:
        raise ValueError(f"kl_ref_steps {config.kl_ref_steps} has no effect without kl_ref_coef; set that too")
    return {}


RULES: tuple[Callable[[TrainConfig], Derived | None], ...] = (
    _derive_timesteps,
    _check_stage_names,
    _check_expert_and_pool_settings,
    _check_warm_start,
    _check_stages,
    _derive_envs_and_workers,
    _check_num_workers,
    _check_batch_size,
    _check_serial,
    _derive_sequence_length,
    _check_network_settings,
    _derive_learner,
    _check_learner_shares,
    _check_adaptive,
    _check_cluster,
    _check_learning_rate_end,
    _derive_kl_reference_steps,
)


def _is_set(config: TrainConfig, name: str) -> bool:
    """Return whether a setting differs from its default."""
    return bool(getattr(config, name) != type(config).model_fields[name].default)


def _divisors(total: int) -> list[int]:
    """Return all divisors of ``total`` in ascending order."""
    return sorted({d for i in range(1, math.isqrt(total) + 1) if total % i == 0 for d in (i, total // i)})


def _nearest_divisors(number: int, total: int) -> str:
    """Return, as text, the divisors of ``total`` next below and next above ``number``."""
    divisors = _divisors(total)
    below = max((d for d in divisors if d < number), default=None)
    above = min((d for d in divisors if d > number), default=None)
    return " and ".join(str(d) for d in (below, above) if d is not None)
