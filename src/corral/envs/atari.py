"""Atari games of the Arcade Learning Environment (ALE), with the usual preprocessing for deep RL.

The preprocessing follows Mnih et al. (2015, doi:10.1038/nature14236) and Machado et al. (2018, arXiv:1709.06009). A
step repeats one action for ``skip`` frames. The observation stacks the last four steps; each is the pixel-wise maximum
of the step's last two frames, in grey and resized to 84 x 84. An episode begins with a random number of no-op frames,
and with the fire button in games that wait for it. A lost life is reported in ``info``, so that a learner can end the
return there, but it does not end the episode.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.errors import MissingPackage, UsageError
from corral.core.types import LIFE_LOST

__all__ = ["ATARI", "ATARI_SETTINGS", "AtariGame", "is_atari", "make", "register", "uses_atari_wrappers"]

SIDE = 84
"""Height and width of an observation in pixels."""
FRAMES = 4
"""Steps that an observation stacks."""
NO_OPS = 30
"""Largest number of no-op frames at the beginning of an episode; the smallest is two."""
_NO_OP, _FIRE = 0, 1
"""Indices of actions."""
_REFUSED_ARGUMENTS = {
    "obs_type": "which make observations of their own",
    "continuous": "which have discrete actions",
    "sound_obs": "which have no sound",
    "max_episode_steps": "which take max_num_frames_per_episode instead",
}
"""Arguments of Gymnasium's Atari envs that the wrappers do not support, and why."""
_HEADER = struct.Struct("<5sII")
"""The beginning of a saved state: ``_MAGIC``, and the lengths of its JSON and of the emulator's state."""
_MAGIC = b"atari"
Pixels = npt.NDArray[np.uint8]


def register() -> None:
    """Register the ids of the Atari games with Gymnasium."""
    _import_ale()


def make(game: str, atari_wrappers: bool = True, render_mode: str | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    """Make the game of an ``ALE/...`` id, with or without the Atari wrappers; ``kwargs`` go to Gymnasium's env."""
    register()
    if not isinstance(atari_wrappers, bool):
        raise UsageError(f"atari_wrappers {atari_wrappers!r}: should be true or false")
    if not atari_wrappers:
        return gym.make(game, disable_env_checker=True, render_mode=render_mode, **kwargs)
    for name, reason in _REFUSED_ARGUMENTS.items():
        if name in kwargs:
            raise UsageError(
                f"{game}: {name} {kwargs[name]!r} cannot be used with the Atari wrappers, {reason}; leave it out, or "
                "add --no-atari-wrappers"
            )
    spec = gym.spec(game)
    skip = kwargs.pop("frameskip", 4)
    sticky = {**spec.kwargs, **kwargs}["repeat_action_probability"]
    if not isinstance(skip, int) or isinstance(skip, bool) or skip < 1:
        raise UsageError(f"{game}: frameskip {skip!r}: should be a whole number of frames, at least 1")
    if not isinstance(sticky, int | float) or not 0 <= sticky < 1:
        raise UsageError(f"{game}: repeat_action_probability {sticky!r}: should be from 0 to less than 1")
    kwargs |= {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "grayscale"}
    return AtariGame(gym.make(spec, disable_env_checker=True, render_mode=render_mode, **kwargs), skip, float(sticky))


class AtariGame(gym.Wrapper[Pixels, Any, Any, Any]):
    """An Atari game in which the seed of a reset decides the whole episode.

    ``env`` is Gymnasium's, with one frame per step and without sticky actions. This wrapper draws the sticky actions
    (``sticky`` is the probability, in each frame, that the previous action is repeated) and the number of no-op frames.
    """

    frame_stacks = {"": FRAMES}

    def __init__(self, env: gym.Env[Any, Any], skip: int = 4, sticky: float = 0.25) -> None:
        super().__init__(env)
        import cv2

        cv2.setNumThreads(1)  # frames are small, and other processes need the cores
        self._resize, self._interpolation = cv2.resize, cv2.INTER_AREA
        self.skip, self.sticky = skip, sticky
        self.observation_space = spaces.Box(0, 255, (FRAMES, SIDE, SIDE), np.uint8)
        self.metadata = {**env.metadata, "render_fps": 60 // skip}
        game: Any = env.unwrapped
        self._ale, self._action_codes = game.ale, game._action_set
        meanings = game.get_action_meanings()
        self._needs_fire = len(meanings) > 2 and meanings[_FIRE] == "FIRE"
        env.reset(seed=0)
        self._ale.act(self._action_codes[_NO_OP])  # before the first frame, the states of a few games are incomplete
        self._initial_state = self._ale.cloneState(include_rng=True)  # faster than loading the game for every episode
        self._rng = np.random.default_rng()
        self._held_action, self._lives = _NO_OP, 0
        self._observation = np.zeros((FRAMES, SIDE, SIDE), np.uint8)
        self._screens = np.zeros((2, *self._ale.getScreenDims()), np.uint8)  # the last two frames

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Pixels, dict[str, Any]]:
        """Begin an episode."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._ale.restoreState(self._initial_state)
        self._held_action = _NO_OP
        self._repeat_action(_NO_OP, int(self._rng.integers(1, NO_OPS)))  # the initial state is after one more
        self._press_fire()
        self._lives = self._ale.lives()
        self._observation[...] = self._newest_frame()
        return self._observation.copy(), {}

    def step(self, action: Any) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        """Repeat an action for ``skip`` frames. ``info`` reports a lost life, unless it was the last one."""
        ale, info = self._ale, dict[str, Any]()
        reward = self._repeat_action(int(action), self.skip)
        lives = ale.lives()
        if 0 < lives < self._lives:  # some games report 0 lives for a moment, and continue
            info[LIFE_LOST] = True
            reward += self._press_fire()
        self._lives = lives
        self._observation[:-1] = self._observation[1:]
        self._observation[-1] = self._newest_frame()
        is_over = ale.game_over(with_truncation=False)
        return self._observation.copy(), float(reward), is_over, ale.game_truncated() and not is_over, info

    def get_state(self) -> bytes:
        """Return everything that decides how the episode continues, as plain data."""
        state = {
            "skip": self.skip,
            "sticky": self.sticky,
            "held": self._held_action,
            "lives": self._lives,
            "random": self._rng.bit_generator.state,
        }
        text, emulator = json.dumps(state).encode(), bytes(self._ale.cloneState(include_rng=True).serialize())
        return _HEADER.pack(_MAGIC, len(text), len(emulator)) + text + emulator + self._observation.tobytes()

    def set_state(self, state: bytes) -> None:
        """Restore a state that an env of the same game and settings returned; raise a ValueError for any other."""
        try:
            magic, text_size, emulator_size = _HEADER.unpack_from(state)
            size = _HEADER.size + text_size + emulator_size + self._observation.nbytes
            if magic != _MAGIC or len(state) != size:
                raise ValueError("its first bytes or its length are wrong")
            emulator_start = _HEADER.size + text_size
            wrapper = json.loads(state[_HEADER.size : emulator_start])
            for name, current in (("skip", self.skip), ("sticky", self.sticky)):
                if wrapper[name] != current:
                    raise ValueError(f"its {name} is {wrapper[name]}, here it is {current}")
            self._ale.restoreState(_import_ale().ALEState(state[emulator_start:][:emulator_size]))
            self._held_action, self._lives = int(wrapper["held"]), int(wrapper["lives"])
            self._rng.bit_generator.state = wrapper["random"]
        except (struct.error, ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
            raise ValueError(f"not a state of this game: {error}") from None
        observation = np.frombuffer(state[-self._observation.nbytes :], np.uint8)
        self._observation[...] = observation.reshape(self._observation.shape)

    def _repeat_action(self, action: int, frames: int) -> float:
        """Play an action for some frames and return the sum of their rewards.

        The last two frames are kept in ``_screens``. After the end of the game, frames do not change.
        """
        ale, codes, reward = self._ale, self._action_codes, 0.0
        draws = self._rng.random(frames).tolist() if self.sticky else (1.0,) * frames
        for i, draw in enumerate(draws):
            if draw >= self.sticky:
                self._held_action = action
            reward += ale.act(codes[self._held_action])
            if i == frames - 2:
                ale.getScreenGrayscale(self._screens[0])
        ale.getScreenGrayscale(self._screens[1])
        if frames == 1:
            self._screens[0] = self._screens[1]
        return reward

    def _press_fire(self) -> float:
        """Press the fire button in games that may wait for it, and return the reward."""
        return self._repeat_action(_FIRE, self.skip) if self._needs_fire else 0.0

    def _newest_frame(self) -> Pixels:
        """Return the maximum of the last two frames, resized: games draw some objects in every other frame only."""
        maximum = np.maximum(self._screens[0], self._screens[1], out=self._screens[0])
        resized: Pixels = self._resize(maximum, (SIDE, SIDE), interpolation=self._interpolation)
        return resized


def _import_ale() -> Any:
    """Return the package ``ale_py``, which registers its ids when it is imported."""
    try:
        import ale_py
        import cv2  # noqa: F401
    except ImportError as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name in ("ale_py", "cv2")
        reason = "" if is_missing else f", and what is installed fails ({error})"
        raise MissingPackage(f'Atari games need ale-py and OpenCV{reason}: pip install "corral[atari]"') from None
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # otherwise the first game prints a banner
    return ale_py


ATARI = "ALE/"
"""The prefix of the ids of Atari games."""


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
"""Recommended settings of Atari games: those of RL Baselines3 Zoo, and evaluation with sampled actions."""


def is_atari(name: str) -> bool:
    """Return whether a name is the id of an Atari game."""
    return name.startswith(ATARI)


def uses_atari_wrappers(env_kwargs: Any) -> bool:
    """Return whether ``env_kwargs``, a mapping or a list of ``name=value``, leaves ``atari_wrappers`` on."""
    if isinstance(env_kwargs, Mapping):
        pairs = list(env_kwargs.items())
    else:
        pairs = [(name, value) for name, _, value in (str(argument).partition("=") for argument in env_kwargs)]
    return not any(name == "atari_wrappers" and str(value).lower() in ("false", "no", "off") for name, value in pairs)
