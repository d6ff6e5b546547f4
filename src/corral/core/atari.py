"""What is known of Atari games without the emulator: what their ids look like, and what they are best learned with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["ATARI", "ATARI_SETTINGS", "is_atari", "is_prepared"]

ATARI = "ALE/"
"""What the ids of Atari games begin with."""

ATARI_SETTINGS: dict[str, Any] = {
    "timesteps": 1_000_000,
    "n_steps": 128,
    "batch_size": 256,
    "n_epochs": 4,
    "learning_rate": 2.5e-4,
    "clip_range": 0.1,
    "ent_coef": 0.01,
    "cnn_features": 512,
    "clip_reward": True,
    "eval_freq": 250_000,
    "eval_episodes": 5,
    "eval_sample": True,
}
"""Settings that suit them better than the defaults: Stable-Baselines3's, and an evaluation that draws its actions."""


def is_atari(name: str) -> bool:
    """Whether this is the id of an Atari game, which is prepared for learners unless ``atari_wrappers`` is false."""
    return name.startswith(ATARI)


def is_prepared(kwargs: Any) -> bool:
    """Whether an Atari game is, by the arguments for it: a mapping, or words as they were typed."""
    words = kwargs.items() if isinstance(kwargs, Mapping) else (str(word).split("=", 1) for word in kwargs)
    return not any(pair[0] == "atari_wrappers" and str(pair[-1]).lower() in ("false", "no", "off") for pair in words)
