"""What Corral knows of envs by their names: entry points, recommended settings and flags of the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from corral.core.entry_points import import_internal
from corral.envs.atari import ATARI, ATARI_SETTINGS, is_atari, uses_atari_wrappers

__all__ = [
    "BOOLEAN_FLAGS",
    "BUILT_IN",
    "ENVPOOL",
    "ENV_FLAGS",
    "HUMAN_PLAY_KWARGS",
    "PATH_FLAGS",
    "RECOMMENDED_SETTINGS",
    "env_flags",
    "is_code",
    "recommended_settings",
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
"""The ``module:callable`` of each built-in env, by its name."""


RECOMMENDED_SETTINGS: dict[str, dict[str, Any]] = {
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
        "gamma": 0.5,  # the reward is for the answer, so actions before it should get little credit
        "normalize_advantage": False,
        "eval_episodes": 50,
    },
}
"""Recommended settings of built-in envs, where the defaults do worse. Settings that the user gives override them."""


_DEPENDENT_SETTINGS: tuple[frozenset[str], ...] = (
    frozenset({"n_steps", "batch_size"}),  # the two are tuned for each other
    # `policy` replaces the built-in network, which the other setting of each of these groups describes.
    frozenset({"policy", "net_arch"}),
    frozenset({"policy", "recurrent"}),
    frozenset({"policy", "cnn_features"}),
    frozenset({"cnn", "cnn_features"}),  # the number of features is chosen for the usual CNN
    frozenset({"opponent", "stages"}),  # every stage chooses its opponents
    frozenset({"timesteps", "num_episodes", "duration", "stages"}),  # the budget of a run
    frozenset({"learning_rate_end", "num_episodes", "duration", "stages"}),  # the learning rate falls with `timesteps`
)
"""Groups of settings that depend on each other. If the user gives one of a group, the env recommends none of it."""


ENV_FLAGS: dict[str, dict[str, str]] = {
    f"{ATARI}...": {"atari_wrappers": "use the usual Atari wrappers, see docs/atari.md [yes]"},
    "game-boy": {
        "rom": "file of a Game Boy game [Stray Bell, which is part of Corral]",
        "memory_map": "YAML file that says what the game's memory means [Stray Bell's]",
        "observation": "ram, pixels or both [ram]",
        "episode_length": "steps after which an episode is truncated [500]",
    },
    "territory": {"num_bots": "bots on the map, 1 to 50 [10]"},
}
"""By env, the arguments of its constructor that are also flags of the command line, with their help texts."""


PATH_FLAGS = ("rom", "memory_map")
"""Flags in ``ENV_FLAGS`` that name a file. A run records their absolute paths."""


BOOLEAN_FLAGS = ("atari_wrappers",)
"""Flags in ``ENV_FLAGS`` that are true or false."""


HUMAN_PLAY_KWARGS: dict[str, dict[str, Any]] = {"game-boy": {"frames_per_step": 1, "episode_length": 36_000}}
"""By env, constructor arguments for a human player: for the Game Boy 60 steps a second, for ten minutes."""


ENVPOOL = "envpool:"
"""The prefix of the names of EnvPool's envs."""
ATARI_MODULE, ENVPOOL_MODULE = "corral.envs.atari", "corral.envs.envpool"
"""The adapters by name, so that importing the registry imports neither emulator nor EnvPool."""


def env_flags(env: str) -> dict[str, str]:
    """Return the command line flags of an env with their help texts."""
    return ENV_FLAGS.get(f"{ATARI}..." if is_atari(env) else env, {})


def recommended_settings(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recommended settings of an env that do not conflict with ``given``, the settings of the user.

    A recommended setting is dropped if the user gave it, or gave another one of its group in ``_DEPENDENT_SETTINGS``.
    """
    env_kwargs = given.get("env_kwargs") or {}
    user_settings = set(given)
    if _has_env_kwarg("opponent", env_kwargs):
        user_settings.add("opponent")
    replaced = user_settings.union(*(group for group in _DEPENDENT_SETTINGS if group & user_settings))
    recommended = _recommended_settings(name, env_kwargs)
    return {setting: value for setting, value in recommended.items() if setting not in replaced}


def _recommended_settings(name: str, env_kwargs: Any) -> Mapping[str, Any]:
    """Return all recommended settings of an env; EnvPool and the Atari wrappers have them by family."""
    if is_atari(name) and uses_atari_wrappers(env_kwargs):
        return ATARI_SETTINGS
    if name.startswith(ENVPOOL):
        settings: Mapping[str, Any] = import_internal(f"{ENVPOOL_MODULE}:settings")(name.removeprefix(ENVPOOL))
        return settings
    return RECOMMENDED_SETTINGS.get(name, {})


def _has_env_kwarg(name: str, env_kwargs: Any) -> bool:
    """Return whether ``env_kwargs``, a mapping or a list of ``name=value``, has this name."""
    return any(str(argument).partition("=")[0] == name for argument in env_kwargs)


def is_code(spec: str) -> bool:
    """Return whether using the env means importing code that the name refers to.

    Such a name is not trusted when it comes from a file, as it would let the file run any code.
    """
    return spec not in BUILT_IN and not spec.startswith(ENVPOOL) and (":" in spec or spec.endswith(".py"))
