"""Atari games of the Arcade Learning Environment, as they are usually played by learners.

A step is a few frames with one action; what is shown are the last four such moments, each the brighter of its last two
frames, grey and small. Games begin with a few frames of nothing, so that no two are alike, and with the fire button
where a game waits for it. A lost life is reported, because a learner should take it for an end; the game goes on.
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

__all__ = ["ATARI", "ATARI_SETTINGS", "AtariGame", "is_atari", "is_prepared", "make", "register"]

SIDE = 84
"""Pixels of a side of what is shown."""
FRAMES = 4
"""Moments that are shown."""
NO_OPS = 30
"""Frames of nothing at the beginning, at most; at least two."""
_NOTHING, _FIRE = 0, 1
_FIXED = {
    "obs_type": "pictures of their own",
    "continuous": "a joystick with buttons",
    "sound_obs": "no sound",
    "max_episode_steps": "max_num_frames_per_episode instead",
}
_HEAD = struct.Struct("<5sII")
_MAGIC = b"atari"
Pixels = npt.NDArray[np.uint8]


def register() -> None:
    """Make the games' ids known to Gymnasium."""
    _ale()


def make(game: str, atari_wrappers: bool = True, render_mode: str | None = None, **kwargs: Any) -> gym.Env[Any, Any]:
    """The game of an ``ALE/...`` id, prepared for learners, or as Gymnasium has it; ``kwargs`` are Gymnasium's."""
    register()
    if not isinstance(atari_wrappers, bool):
        raise UsageError(f"atari_wrappers {atari_wrappers!r}: should be true or false")
    if not atari_wrappers:
        return gym.make(game, disable_env_checker=True, render_mode=render_mode, **kwargs)
    for name, instead in _FIXED.items():
        if name in kwargs:
            raise UsageError(
                f"{game}: {name} {kwargs[name]!r} cannot be had with the Atari wrappers, which have {instead}; leave "
                "it out, or add --no-atari-wrappers"
            )
    spec = gym.spec(game)
    given = {**spec.kwargs, **kwargs}
    skip, sticky = kwargs.pop("frameskip", 4), given["repeat_action_probability"]
    if not isinstance(skip, int) or isinstance(skip, bool) or skip < 1:
        raise UsageError(f"{game}: frameskip {skip!r}: should be a whole number of frames, at least 1")
    if not isinstance(sticky, int | float) or not 0 <= sticky < 1:
        raise UsageError(f"{game}: repeat_action_probability {sticky!r}: should be from 0 to less than 1")
    kwargs |= {"frameskip": 1, "repeat_action_probability": 0.0, "obs_type": "grayscale"}
    return AtariGame(gym.make(spec, disable_env_checker=True, render_mode=render_mode, **kwargs), skip, float(sticky))


class AtariGame(gym.Wrapper[Pixels, Any, Any, Any]):
    """A game whose every episode follows from the seed of its reset.

    ``env`` is Gymnasium's, a frame a step, with no chance in it: repeated actions (``sticky`` is how likely one is, in
    each frame) and the number of frames at the beginning are drawn here.
    """

    frame_stacks = {"": FRAMES}

    def __init__(self, env: gym.Env[Any, Any], skip: int = 4, sticky: float = 0.25) -> None:
        super().__init__(env)
        import cv2

        cv2.setNumThreads(1)  # pictures are small, and other processes need the cores
        self._resize, self._by_area = cv2.resize, cv2.INTER_AREA
        self.skip, self.sticky = skip, sticky
        self.observation_space = spaces.Box(0, 255, (FRAMES, SIDE, SIDE), np.uint8)
        self.metadata = {**env.metadata, "render_fps": 60 // skip}
        game: Any = env.unwrapped
        self._ale, self._codes = game.ale, game._action_set
        meanings = game.get_action_meanings()
        self._needs_fire = len(meanings) > 2 and meanings[_FIRE] == "FIRE"
        env.reset(seed=0)
        self._ale.act(self._codes[_NOTHING])  # before the first frame, a few games' states are not all there is
        self._start = self._ale.cloneState(include_rng=True)  # loading the game for every episode takes long
        self._random = np.random.default_rng()
        self._held, self._lives = _NOTHING, 0
        self._shown = np.zeros((FRAMES, SIDE, SIDE), np.uint8)
        self._screens = np.zeros((2, *self._ale.getScreenDims()), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Pixels, dict[str, Any]]:
        """Begin a game."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._ale.restoreState(self._start)
        self._held = _NOTHING
        self._play(_NOTHING, int(self._random.integers(1, NO_OPS)))  # one was before the start
        self._serve()
        self._lives = self._ale.lives()
        self._shown[...] = self._look()
        return self._shown.copy(), {}

    def step(self, action: Any) -> tuple[Pixels, float, bool, bool, dict[str, Any]]:
        """Play an action for a few frames. ``info`` says if a life was lost, and the game goes on with the next."""
        ale, info = self._ale, dict[str, Any]()
        reward = self._play(int(action), self.skip)
        lives = ale.lives()
        if 0 < lives < self._lives:  # some games have none for a moment, and go on
            info[LIFE_LOST] = True
            reward += self._serve()
        self._lives = lives
        self._shown[:-1] = self._shown[1:]
        self._shown[-1] = self._look()
        over = ale.game_over(with_truncation=False)
        return self._shown.copy(), float(reward), over, ale.game_truncated() and not over, info

    def get_state(self) -> bytes:
        """Everything that decides how the game goes on, as plain data."""
        own = {
            "skip": self.skip,
            "sticky": self.sticky,
            "held": self._held,
            "lives": self._lives,
            "random": self._random.bit_generator.state,
        }
        text, game = json.dumps(own).encode(), bytes(self._ale.cloneState(include_rng=True).serialize())
        return _HEAD.pack(_MAGIC, len(text), len(game)) + text + game + self._shown.tobytes()

    def set_state(self, state: bytes) -> None:
        """Go to where an env of the same game was."""
        try:
            magic, text, game = _HEAD.unpack_from(state)
            if magic != _MAGIC or len(state) != _HEAD.size + text + game + self._shown.nbytes:
                raise ValueError("it has another beginning or length")
            own = json.loads(state[_HEAD.size : _HEAD.size + text])
            for name, mine in (("skip", self.skip), ("sticky", self.sticky)):
                if own[name] != mine:
                    raise ValueError(f"its {name} is {own[name]}, here it is {mine}")
            self._ale.restoreState(_ale().ALEState(state[_HEAD.size + text :][:game]))
            self._held, self._lives = int(own["held"]), int(own["lives"])
            self._random.bit_generator.state = own["random"]
        except (struct.error, ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
            raise ValueError(f"not a state of this game: {error}") from None
        self._shown[...] = np.frombuffer(state[-self._shown.nbytes :], np.uint8).reshape(self._shown.shape)

    def _play(self, action: int, frames: int) -> float:
        """Some frames with one action: what they earned. The last two are kept; a game that is over stands still."""
        ale, codes, reward = self._ale, self._codes, 0.0
        draws = self._random.random(frames).tolist() if self.sticky else (1.0,) * frames
        for i, draw in enumerate(draws):
            if draw >= self.sticky:
                self._held = action
            reward += ale.act(codes[self._held])
            if i == frames - 2:
                ale.getScreenGrayscale(self._screens[0])
        ale.getScreenGrayscale(self._screens[1])
        if frames == 1:
            self._screens[0] = self._screens[1]
        return reward

    def _serve(self) -> float:
        """Press the fire button where a game may wait for it."""
        return self._play(_FIRE, self.skip) if self._needs_fire else 0.0

    def _look(self) -> Pixels:
        """The brighter of the last two frames: some things are drawn in every other frame only."""
        brighter = np.maximum(self._screens[0], self._screens[1], out=self._screens[0])
        small: Pixels = self._resize(brighter, (SIDE, SIDE), interpolation=self._by_area)
        return small


def _ale() -> Any:
    """The package, which registers its ids when it is imported."""
    try:
        import ale_py
        import cv2  # noqa: F401
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name in ("ale_py", "cv2")
        why = "" if missing else f", and what is installed fails ({error})"
        raise MissingPackage(f'Atari games need ale-py and OpenCV{why}: pip install "corral[atari]"') from None
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)  # before the first game, which says hello otherwise
    return ale_py


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
