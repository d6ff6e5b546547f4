"""What Corral knows of envs by their names: where they are, the settings that suit them, and their own flags."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.entry_points import import_own
from corral.envs.atari import ATARI, ATARI_SETTINGS, is_atari, is_prepared

__all__ = [
    "BUILT_IN",
    "BY_HAND",
    "ENVPOOL",
    "OWN_FLAGS",
    "PATHS",
    "SETTINGS",
    "SWITCHES",
    "is_code",
    "own_flags",
    "settings_of",
]


BUILT_IN: dict[str, str] = {
    "card-battle": "corral_games.card_battle.env:make",
    "game-boy": "corral_games.game_boy.env:GameBoy",
    "territory": "corral_games.territory.env:Territory",
    "toy-maze": "corral.envs.toys.toys:MaskedMaze",
    "toy-everything": "corral.envs.toys.toys:Everything",
    "toy-sight": "corral.envs.toys.odd_one_out:Sight",
    "toy-recall": "corral.envs.toys.recall:Recall",
    "toy-work": "corral.envs.toys.toys:BusyWork",
}
"""Built-in envs: name to ``module:callable``."""


SETTINGS: dict[str, dict[str, Any]] = {
    "card-battle": {
        "opponent": "greedy",
        "timesteps": 300_000,
        "n_steps": 256,
        "batch_size": 256,
        "n_epochs": 4,
        "learning_rate": 1e-3,
        "gae_lambda": 0.8,
        "ent_coef": 0.003,
        "eval_episodes": 100,
    },
    "game-boy": {
        "timesteps": 200_000,
        "n_steps": 256,
        "batch_size": 256,
        "n_epochs": 6,
        "learning_rate": 1e-3,
        "ent_coef": 0.01,
        "eval_sample": True,
    },
    "territory": {
        "timesteps": 100_000,
        "n_steps": 256,
        "batch_size": 256,
        "n_epochs": 4,
        "learning_rate": 5e-4,
        "gamma": 0.995,
        "ent_coef": 0.005,
        "eval_sample": True,
    },
    "toy-sight": {
        "timesteps": 24_576,
        "n_steps": 64,
        "batch_size": 128,
        "n_epochs": 2,
        "learning_rate": 1e-3,
        "gamma": 0.0,
    },
    "toy-recall": {
        "recurrent": "gru",
        "timesteps": 60_000,
        "n_steps": 128,
        "batch_size": 256,
        "n_epochs": 8,
        "learning_rate": 1e-3,
        "learning_rate_end": 1e-4,
        "gamma": 0.5,  # credit for the answer, and not for what was done while waiting
        "normalize_advantage": False,
        "eval_episodes": 50,
    },
}
"""Settings that suit a built-in env better than the defaults; what the user says comes first."""


OWN_FLAGS: dict[str, dict[str, str]] = {
    f"{ATARI}...": {"atari_wrappers": "prepare games for learners, see docs/atari.md [yes]"},
    "game-boy": {
        "rom": "file of a Game Boy game [Stray Bell, which is part of Corral]",
        "memory_map": "YAML file that says what the game's memory means [Stray Bell's]",
        "observation": "ram, pixels or both [ram]",
        "episode_length": "steps after which an episode is cut off [500]",
    },
    "territory": {"num_bots": "bots on the map, 1 to 50 [10]"},
}
"""Arguments of a built-in env's constructor that are flags of the command line too, and what help says of them."""


PATHS = ("rom", "memory_map")
"""Those that are files: a run remembers where they are, whatever the directory it was started in."""


SWITCHES = ("atari_wrappers",)
"""Those that are on or off."""


BY_HAND: dict[str, dict[str, Any]] = {"game-boy": {"frames_per_step": 1, "episode_length": 36_000}}
"""Arguments that suit a person who plays: here sixty steps a second, for ten minutes."""


ENVPOOL = "envpool:"
ATARI_MODULE, ENVPOOL_MODULE = "corral.envs.atari", "corral.envs.envpool"
"""The adapters, by name: importing the registry loads neither."""


def own_flags(env: str) -> dict[str, str]:
    """The flags that an env has of its own, and what help says of them."""
    return OWN_FLAGS.get(f"{ATARI}..." if is_atari(env) else env, {})


def settings_of(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A built-in env's own settings, as far as they go together with what was given."""
    own = SETTINGS.get(name, {})
    kwargs = given.get("env_kwargs") or {}  # a mapping, or words as they were typed
    if is_atari(name) and is_prepared(kwargs):
        own = ATARI_SETTINGS
    elif name.startswith(ENVPOOL):
        own = import_own(f"{ENVPOOL_MODULE}:settings")(name.removeprefix(ENVPOOL))
    if any(str(word).partition("=")[0] == "opponent" for word in kwargs):
        given = {**given, "opponent": None}
    budget = {"timesteps", "num_episodes", "duration", "stages"}
    network = ({"policy", "net_arch"}, {"policy", "recurrent"}, {"policy", "cnn_features"}, {"cnn", "cnn_features"})
    line = {"learning_rate_end", *(budget - {"timesteps"})}  # which ends with the steps
    together = ({"n_steps", "batch_size"}, *network, {"opponent", "stages"}, budget, line)
    taken = {other for group in together if group & given.keys() for other in group}
    return {key: value for key, value in own.items() if key not in given and key not in taken}


def is_code(spec: str) -> bool:
    """Whether an env's name makes Python import something: such a name is not followed when it comes from a file."""
    return spec not in BUILT_IN and not spec.startswith(ENVPOOL) and (":" in spec or spec.endswith(".py"))
