"""Rules between settings, which need only the config; ``training.space_rules`` has those that need the env's spaces.

A rule raises a ``ValueError`` where settings contradict each other, and returns the settings that follow from others.
Rules apply in the order of ``RULES``: each sees what those before it have settled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral.config.schema import TrainConfig

__all__ = ["DEFAULT_TIMESTEPS", "MOST_ENVS", "MOST_WORKERS", "RULES"]

DEFAULT_TIMESTEPS = 100_000
MOST_ENVS, MOST_WORKERS = 65_536, 4_096
_LONGEST, _SHORTEST = 32, 8
"""The limits of a ``sequence_length`` that is chosen without being asked for."""


def _settle_budget(c: TrainConfig) -> Mapping[str, object]:
    if c.timesteps is not None or c.num_episodes is not None or c.duration is not None:
        return {}
    steps = [stage.timesteps or DEFAULT_TIMESTEPS for stage in c.stages]
    return {"timesteps": sum(steps) or DEFAULT_TIMESTEPS}


def _check_stage_names(c: TrainConfig) -> None:
    names = [stage.name for stage in c.stages]
    if len({*names}) < len(names):
        raise ValueError(f"stages {', '.join(names)}: each needs a name of its own")


def _check_unused(c: TrainConfig) -> None:
    """Imitation and self-play: what is set for them without them would be ignored."""
    asked = [name for name, field in type(c).model_fields.items() if getattr(c, name) != field.default]
    mixes = " ".join([c.opponent or "", *(stage.opponent or "" for stage in c.stages)])
    unused = [name for name in ("expert_steps", "expert_epochs", "expert_values") if c.expert is None]
    unused += [name for name in ("pool_size", "snapshot_freq") if not re.search("checkpoint|current", mixes)]
    if (name := next((name for name in unused if name in asked), None)) is not None:
        what = "expert" if name.startswith("expert") else "an opponent that is checkpoint or current"
        raise ValueError(f"{name} {getattr(c, name)} is of no use without {what}; leave it out")


def _check_warm_start(c: TrainConfig) -> None:
    if c.normalize_obs and (c.expert is not None or c.critic_warmup):
        why = "expert" if c.expert is not None else "critic_warmup"
        raise ValueError(f"{why} and normalize_obs: statistics that change would change the policy too")
    scaled = next((name for name in ("normalize_reward", "clip_reward") if getattr(c, name)), None)
    if scaled and c.expert_values:
        raise ValueError(f"expert_values and {scaled}: the values would be of another scale")
    if c.timesteps is not None and c.critic_warmup >= c.timesteps:
        raise ValueError(f"critic_warmup {c.critic_warmup} leaves nothing of timesteps {c.timesteps}")


def _check_stages(c: TrainConfig) -> None:
    if c.stages and c.opponent is not None:
        raise ValueError("opponent and stages: the stages say what is played; leave opponent out")
    if any(stage.timesteps is None for stage in c.stages[:-1]):
        raise ValueError("stages: every one but the last needs timesteps")
    if twice := sorted({name for stage in c.stages for name in stage.options} & c.env_kwargs.keys()):
        raise ValueError(f"env_kwargs {twice[0]}: the stages say it too, in their options; leave one of them out")
    if len({stage.opponent is None for stage in c.stages}) > 1:
        raise ValueError("stages: either all have an opponent or all have options")


def _settle_envs_per_worker(c: TrainConfig) -> Mapping[str, object]:
    """``num_envs_per_worker`` becomes None: ``n_envs`` and ``num_workers`` then say it in full."""
    n_envs, workers, each = c.n_envs, c.num_workers, c.num_envs_per_worker
    if each is None:
        return {}
    if workers is None:
        if each > n_envs:
            raise ValueError(
                f"num_envs_per_worker {each} is more than n_envs {n_envs}; give num_workers or a larger n_envs"
            )
        workers = math.ceil(n_envs / each)
    elif "n_envs" not in c.model_fields_set:
        n_envs = workers * each
    elif n_envs != workers * each:
        raise ValueError(
            f"n_envs {n_envs} disagrees with num_workers {workers} x num_envs_per_worker {each} = {workers * each}; "
            "leave one of the three out"
        )
    if n_envs > MOST_ENVS or workers > MOST_WORKERS:
        raise ValueError(f"that makes {n_envs} envs, {workers} workers; at most {MOST_ENVS}, {MOST_WORKERS}")
    return {"n_envs": n_envs, "num_workers": workers, "num_envs_per_worker": None}


def _check_workers(c: TrainConfig) -> None:
    if c.num_workers is not None:
        if c.backend == "serial" and c.num_workers > 1:
            raise ValueError(f"num_workers {c.num_workers} needs backend worker, but backend is serial")
        if c.num_workers > c.n_envs:
            raise ValueError(f"num_workers {c.num_workers} is more than n_envs {c.n_envs}: some would idle")


def _check_batch_size(c: TrainConfig) -> None:
    if c.batch_size < c.rollout_size and c.rollout_size % c.batch_size:
        raise ValueError(
            f"batch_size {c.batch_size} does not divide the rollout of n_steps {c.n_steps} x n_envs "
            f"{c.n_envs} = {c.rollout_size}; the nearest that do: "
            f"{_nearest_divisors(c.batch_size, c.rollout_size)}"
        )


def _check_serial(c: TrainConfig) -> None:
    if c.backend == "serial" and (name := c.needs_workers) is not None:
        raise ValueError(f"{name} {getattr(c, name)} is for workers, but backend is serial")


def _settle_sequences(c: TrainConfig) -> Mapping[str, object]:
    """The steps of one env that a policy with a memory learns from together."""
    kind, length = c.recurrent, c.sequence_length
    if kind == "none":
        asked = {"sequence_length": length is not None, "recurrent_size": c.recurrent_size != 128}
        if (name := next((name for name, given in asked.items() if given), None)) is not None:
            raise ValueError(
                f"{name} {getattr(c, name)} is of no use without recurrent; give that too, or leave it out"
            )
        return {}
    for name, given in {"policy": c.policy, "compile": c.compile, "expert": c.expert}.items():
        if given:
            why = {
                "policy": "a network of one's own is not told of a memory",
                "compile": "a loop over steps does not compile well",
                "expert": "imitation learns from single steps",
            }[name]
            raise ValueError(f"recurrent {kind} cannot be had with {name} {given}: {why}; leave one out")
    common = math.gcd(c.n_steps, c.minibatch_size)
    fit = _divisors(common)
    sizes = f"n_steps {c.n_steps} and the {c.minibatch_size} steps of a minibatch"
    if length is not None:
        if length not in fit:
            near = sorted(sorted(fit, key=lambda d: abs(d - length))[:3])
            raise ValueError(
                f"sequence_length {length} does not divide both {sizes}; those that do: {', '.join(map(str, near))}"
            )
        return {}
    chosen = max(d for d in fit if d <= _LONGEST)
    if chosen < min(_SHORTEST, c.n_steps):
        raise ValueError(
            f"recurrent {kind}: {sizes} have only sequences of {chosen} in common, through which little memory can be "
            f"learned; choose multiples of {_LONGEST}, or say sequence_length {chosen} if it is meant"
        )
    return {"sequence_length": chosen}


def _check_own_network(c: TrainConfig) -> None:
    if c.policy is not None:
        for name in ("net_arch", "activation_fn", "ortho_init", "score_actions", "cnn", "cnn_features", "bf16"):
            if getattr(c, name) != type(c).model_fields[name].default:
                raise ValueError(f"{name} shapes the built-in network, but policy is {c.policy}; set it there")


def _settle_learner(c: TrainConfig) -> Mapping[str, object]:
    needs_torch = {
        "compile": c.compile,
        f"recurrent {c.recurrent}": c.recurrent != "none",
        f"learner_threads {c.learner_threads}": (c.learner_threads or 1) > 1,
        f"policy {c.policy}": c.policy is not None,
        f"activation_fn {c.activation_fn}": c.activation_fn in ("gelu", "silu"),
        f"device {c.device}": c.device not in ("auto", "cpu"),
    }
    why = next((name for name, wanted in needs_torch.items() if wanted), None)
    if why is None:
        return {}
    if c.learner == "numpy":
        raise ValueError(f"{why} needs learner torch, but learner is numpy")
    return {"learner": "torch"}


def _check_learner_shares(c: TrainConfig) -> None:
    if c.learner_shares is not None:
        whole = next((name for name in ("compile", "policy") if getattr(c, name)), None)
        if whole is not None:
            raise ValueError(f"learner_shares {c.learner_shares} cannot be had with {whole}; leave one out")
        if c.learner_shares > c.minibatch_size:
            raise ValueError(f"learner_shares {c.learner_shares} is more than the {c.minibatch_size} rows")


def _check_adaptive(c: TrainConfig) -> None:
    if c.adaptive and c.backend in ("serial", "process"):
        raise ValueError(f"adaptive is for backend worker, but backend is {c.backend}")


def _check_learning_rate_end(c: TrainConfig) -> None:
    if c.learning_rate_end is not None and c.timesteps is None:
        raise ValueError("learning_rate_end needs timesteps, to know where the line ends")


def _settle_kl_reference(c: TrainConfig) -> Mapping[str, object]:
    if c.kl_ref_coef and c.kl_ref_steps is None:
        if c.timesteps is None:
            raise ValueError("kl_ref_coef needs kl_ref_steps or timesteps, to know when it has fallen to 0")
        return {"kl_ref_steps": c.timesteps}
    if c.kl_ref_steps is not None and not c.kl_ref_coef:
        raise ValueError(f"kl_ref_steps {c.kl_ref_steps} is for kl_ref_coef, which is 0; give that too")
    return {}


RULES: tuple[Callable[[TrainConfig], Mapping[str, object] | None], ...] = (
    _settle_budget,
    _check_stage_names,
    _check_unused,
    _check_warm_start,
    _check_stages,
    _settle_envs_per_worker,
    _check_workers,
    _check_batch_size,
    _check_serial,
    _settle_sequences,
    _check_own_network,
    _settle_learner,
    _check_learner_shares,
    _check_adaptive,
    _check_learning_rate_end,
    _settle_kl_reference,
)


def _divisors(total: int) -> list[int]:
    """All numbers that divide ``total``, the smallest first."""
    return sorted({d for i in range(1, math.isqrt(total) + 1) if total % i == 0 for d in (i, total // i)})


def _nearest_divisors(wanted: int, total: int) -> str:
    """The divisors of ``total`` next to ``wanted``, in words."""
    fitting = _divisors(total)
    below = max((d for d in fitting if d < wanted), default=None)
    above = min((d for d in fitting if d > wanted), default=None)
    return " and ".join(str(d) for d in (below, above) if d is not None)
