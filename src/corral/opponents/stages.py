"""The stages of a run, and the opponents that are drawn in each of them, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.config.schema import TrainConfig
from corral.config.values import Stage
from corral.core.sums import parse_mix
from corral.envs.opponent_protocol import OPPONENT

__all__ = ["mix_of", "reset_options_of", "stages_of"]


def stages_of(config: TrainConfig) -> tuple[Stage, ...]:
    """Return the stages of a run; a run with only an ``opponent`` has one stage without a budget."""
    if config.opponent is not None:
        return (Stage(name="all", opponent=config.opponent),)
    return config.stages


def mix_of(stage: Stage, opponents: Sequence[str] | None = None) -> dict[str, float]:
    """Return the share of episodes for each opponent by name; a stage with reset options counts under its own name.

    Raise a UsageError for an opponent that is not among ``opponents``.
    """
    return {stage.name: 1.0} if stage.opponent is None else parse_mix(stage.opponent, opponents)


def reset_options_of(stages: Sequence[Stage], opponents: Sequence[str]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """Return pairs of a name and the options that the env is reset with for it.

    The names are the env's ``opponents``, or those of the stages if the stages have reset options.
    """
    if stages[0].opponent is None:
        return tuple((stage.name, stage.options) for stage in stages)
    return tuple((name, {OPPONENT: name}) for name in opponents)
