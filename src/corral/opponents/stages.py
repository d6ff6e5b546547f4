"""The stages of a run: who is played against in each, by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from corral.config.schema import TrainConfig
from corral.config.values import Stage
from corral.core.sums import parse_mix
from corral.envs.opponent_protocol import OPPONENT

__all__ = ["mix_of", "reset_options_of", "stages_of"]


def stages_of(config: TrainConfig) -> tuple[Stage, ...]:
    """The stages of a run; one without end, if it only has an opponent."""
    if config.opponent is not None:
        return (Stage(name="all", opponent=config.opponent),)
    return config.stages


def mix_of(stage: Stage, known: Sequence[str] | None = None) -> dict[str, float]:
    """How often whom, by name; a stage with options goes by its own name."""
    return {stage.name: 1.0} if stage.opponent is None else parse_mix(stage.opponent, known)


def reset_options_of(stages: Sequence[Stage], opponents: Sequence[str]) -> tuple[tuple[str, Mapping[str, Any]], ...]:
    """What the env offers, by name, and what it is reset with: the stages' own options, or its opponents."""
    if stages[0].opponent is None:
        return tuple((stage.name, stage.options) for stage in stages)
    return tuple((name, {OPPONENT: name}) for name in opponents)
