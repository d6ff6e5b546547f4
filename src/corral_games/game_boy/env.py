"""A Game Boy game as a Gymnasium env: a step is a button and, by default, four frames."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.core.files import inflate
from corral.core.suggestions import did_you_mean
from corral_games.game_boy.emulator import BUTTONS, Emulator
from corral_games.game_boy.features_and_rewards import (
    FeatureReader,
    MemoryBytes,
    RewardTracker,
    build_layout,
    memory_key,
)
from corral_games.game_boy.game import make_start_state, read_game
from corral_games.game_boy.memory_map import MemoryMap

__all__ = ["ACTIONS", "FRAMES", "MAP", "ROM", "GameBoy"]

ACTIONS = ("none", *BUTTONS)
FRAMES, ROWS, COLUMNS = 4, 72, 80
"""The shape of the ``pixels`` observation: frames of the screen, with every second row and column of it."""
ROM = Path(__file__).with_name("stray_bell.gb")
"""Stray Bell, the game that is part of Corral."""
MAP = Path(__file__).parent / "maps" / "stray_bell.yaml"
"""The memory map of Stray Bell."""
OBSERVATIONS = ("ram", "pixels", "both")
MAX_STEPS, MAX_FRAMES = 1_000_000, 60
"""The largest ``episode_length`` and ``frames_per_step``."""
_LAST_DIRECTION = ACTIONS.index("right")
"""Actions from 1 to this are directions, which stay pressed from step to step."""
_LUMA_WEIGHTS = np.array([77, 150, 29], np.uint16)
"""Weights of red, green and blue in brightness (ITU-R BT.601), in units of 1/256."""
# A saved state is a magic number, a checksum of all that follows, the length of the JSON, JSON, and the compressed
# state of the emulator and frames.
_MAGIC, _CHECKSUM_BYTES = b"GB01", 16


class GameBoy(gym.Env[Any, Any]):
    """A game on a Game Boy, played with its eight buttons. The default is Stray Bell, which is part of Corral.

    For another game, ``rom`` is its file and ``memory_map`` a YAML file that describes where an episode starts, the
    rewards, what ends an episode, and the features of ``ram``.

    ``observation``: ``ram``, features in [0, 1]; ``pixels``, 4 frames of the screen in gray at half size, oldest first
    (a reset fills all four with the first one); or ``both``.

    A direction stays pressed while it is the action of consecutive steps. Any other button is released in the last
    frame of a step, so that the next step can press it again; in steps of a single frame it stays pressed too.

    ``rewards`` replaces the weights of terms in the map. ``info`` has the map's ``shown`` values, and at the end of an
    episode the sum of rewards of each term.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 15}
    key_help = "arrows walk, X is A, Z is B, Enter is START, Backspace is SELECT"

    def __init__(
        self,
        rom: str | os.PathLike[str] | None = None,
        memory_map: str | os.PathLike[str] | None = None,
        observation: str = "ram",
        episode_length: int = 500,
        frames_per_step: int = 4,
        rewards: Mapping[str, float] | None = None,
        render_mode: str | None = None,
    ) -> None:
        if observation not in OBSERVATIONS:
            guess = did_you_mean(str(observation), OBSERVATIONS)
            raise UsageError(f"unknown observation {observation!r}{guess}; choose ram, pixels or both")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise UsageError(f"unknown render_mode {render_mode!r}; choose rgb_array")
        if rom is not None and memory_map is None:
            raise UsageError(
                f"ROM {str(rom)!r} needs a memory map, which describes its start, rewards and features: give "
                f"memory_map too (--memory-map FILE.yaml); {MAP} is an example"
            )
        self.episode_length = _checked_int("episode_length", episode_length, 1, MAX_STEPS)
        self.frames_per_step = _checked_int("frames_per_step", frames_per_step, 1, MAX_FRAMES)
        self.observation, self.render_mode = observation, render_mode
        game = read_game(ROM if rom is None else rom, MAP if memory_map is None else memory_map)
        self.weights = _reward_weights(game.map, rewards)
        self._emulator = Emulator(game.rom)
        self._start_state, self._game_digest, self._start = make_start_state(game), game.digest, game.map.start
        self._draws = observation != "ram" or render_mode is not None
        self._is_color = game.rom.is_color
        has_features = observation != "pixels"
        layout = build_layout(game.map, has_features, game.rom.is_color)
        self._read_memory = layout.read_bytes
        self._reward_tracker = RewardTracker(game.map.rewards, self.weights, layout)
        self._ends = [layout.reader(value) for value in game.map.ends]
        self._shown = [(value.name, layout.reader(value)) for value in game.map.shown]
        self._features = FeatureReader(game.map.features, layout) if has_features else None
        self._pixels = np.zeros((FRAMES, ROWS, COLUMNS), np.uint8)
        self._steps = 0
        self._held = 0
        """The action whose button is pressed at the end of a step; 0 for none."""
        self._has_started, self._is_over, self._is_closed = False, True, False
        self.metadata = {**self.metadata, "render_fps": round(60 / frames_per_step)}
        self.action_space = spaces.Discrete(len(ACTIONS))
        self.observation_space, self.frame_stacks = self._make_space()

    # ---- Gymnasium ---------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Return to where episodes start. There are no options."""
        if options:
            raise UsageError(f"unknown reset option {next(iter(options))!r}; Game Boy games have none")
        super().reset(seed=seed)
        emulator = self._open_emulator()
        emulator.load(self._start_state)
        if idle_frames := int(self.np_random.integers(self._start.idle + 1)):
            emulator.run(idle_frames, self._draws)
        if self._start.seed is not None:
            number = int(self.np_random.integers(1, 1 << 16))
            for i, byte in enumerate((number & 0xFF, number >> 8)):
                address = self._start.seed + i
                emulator.memory[memory_key(address, address, self._is_color)] = byte
        self._steps, self._held, self._is_over, self._has_started = 0, 0, False, True
        data = self._read_memory(emulator.memory)
        self._reward_tracker.begin(data)
        if self.observation != "ram":
            self._pixels[:] = self._gray_frame()
        return self._observe(data), self._info(data)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Press a button or none, and emulate the frames of a step."""
        if self._is_over:
            raise gym.error.ResetNeeded(
                "the episode is over; call reset() before step()" if self._has_started else "call reset() before step()"
            )
        index = int(action)
        if not 0 <= index < len(ACTIONS):
            raise ValueError(f"action {index} should be from 0 to {len(ACTIONS) - 1}")
        emulator = self._open_emulator()
        self._run_action(emulator, index)
        self._steps += 1
        data = self._read_memory(emulator.memory)
        reward = self._reward_tracker.compute_reward(data)
        terminated = any(read(data) != 0 for read in self._ends)
        truncated = not terminated and self._steps >= self.episode_length
        self._is_over = terminated or truncated
        if self.observation != "ram":
            self._pixels[:-1] = self._pixels[1:]
            self._pixels[-1] = self._gray_frame()
        info = self._info(data)
        if self._is_over:
            tracker = self._reward_tracker
            info.update((f"reward_{name}", earned) for name, earned in zip(tracker.names, tracker.earned, strict=True))
        return self._observe(data), reward, terminated, truncated, info

    def render(self) -> Any:
        """Return the screen [144, 160, 3]."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render mode: make the env with render_mode='rgb_array'")
            return None
        if not self._has_started:
            raise gym.error.ResetNeeded("call reset() before render()")
        return self._open_emulator().screen[:, :, :3].copy()

    def close(self) -> None:
        """Stop the emulator."""
        if not self._is_closed:
            self._is_closed = True
            self._emulator.close()

    def get_keys_to_action(self) -> dict[tuple[int, ...], int]:
        """Return the actions of keys for ``gymnasium.utils.play``: of one key, or of two that are held together."""
        arrows = {"up": 1073741906, "down": 1073741905, "left": 1073741904, "right": 1073741903}
        others = {"a": ord("x"), "b": ord("z"), "start": 13, "select": 8}
        keys = arrows | others  # of two that are held, the later one in this order counts
        pairs = itertools.combinations(keys.items(), 2)
        two_keys = {(first, second): ACTIONS.index(button) for (_, first), (button, second) in pairs}
        return two_keys | {(key,): ACTIONS.index(button) for button, key in keys.items()}

    # ---- states ------------------------------------------------------------------------------------------------

    def get_state(self) -> bytes:
        """Return everything that determines the rest of the episode and the following ones, as bytes."""
        if not self._has_started:
            raise gym.error.ResetNeeded("call reset() before get_state()")
        header = {
            **self._settings(),
            "steps": self._steps,
            "held": self._held,
            "over": self._is_over,
            "meter": self._reward_tracker.save(),
            "np_random": self.np_random.bit_generator.state,
        }
        text = json.dumps(header).encode()
        data = self._open_emulator().save() + self._pixels.tobytes()
        body = struct.pack("<I", len(text)) + text + zlib.compress(data, 1)
        return _MAGIC + _checksum(body) + body

    def set_state(self, state: bytes) -> None:
        """Restore what ``get_state`` of an env with the same game and settings returned.

        Raise a ValueError for any other bytes.
        """
        emulator = self._open_emulator()
        if not isinstance(state, bytes):
            raise ValueError(f"a state should be the bytes that get_state() returned, not {state!r:.80}")
        try:
            saved = self._parse_state(state)
            self._reward_tracker.load(saved.meter)
            self.np_random.bit_generator.state = saved.np_random
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{len(state)} bytes are not a state of this Game Boy env ({error}); give what get_state() returned"
            ) from None
        emulator.load(saved.machine)
        self._pixels.reshape(-1)[:] = np.frombuffer(saved.pixels, np.uint8)
        self._steps, self._held, self._is_over, self._has_started = saved.steps, saved.held, saved.is_over, True

    def _parse_state(self, state: bytes) -> _SavedState:
        """Return the parts of a state; raise if it is damaged, or from another game or an env with other settings."""
        if state[: len(_MAGIC)] != _MAGIC:
            raise ValueError(f"it does not begin with {_MAGIC!r}")
        body_start = len(_MAGIC) + _CHECKSUM_BYTES
        checksum, body = state[len(_MAGIC) : body_start], state[body_start:]
        if checksum != _checksum(body):  # PyBoy does not check the states that it loads
            raise ValueError("it is damaged")
        (length,) = struct.unpack_from("<I", body)
        header = json.loads(body[4 : 4 + length])
        for name, setting in self._settings().items():
            if header[name] != setting:
                raise ValueError(_describe_difference(name, header[name], setting))
        data = inflate(body[4 + length :], len(self._start_state) + self._pixels.nbytes)
        machine, pixels = data[: -self._pixels.nbytes], data[-self._pixels.nbytes :]
        if len(machine) != len(self._start_state):
            raise ValueError("its emulator state has another length")
        return _SavedState(
            machine=machine,
            pixels=pixels,
            steps=int(header["steps"]),
            held=int(header["held"]),
            is_over=bool(header["over"]),
            meter=header["meter"],
            np_random=header["np_random"],
        )

    def _settings(self) -> dict[str, Any]:
        """Return what must be equal in the env that saved a state and the one that restores it."""
        return {
            "game": self._game_digest,
            "PyBoy": self._emulator.version,
            "observation": self.observation,
            "episode_length": self.episode_length,
            "frames_per_step": self.frames_per_step,
            "rewards": self.weights,
        }

    # ---- the game ----------------------------------------------------------------------------------------------

    def _run_action(self, emulator: Emulator, index: int) -> None:
        """Press the button of an action, release others, and emulate the frames of a step."""
        if self._held and self._held != index:
            emulator.release(ACTIONS[self._held])
            self._held = 0
        if not index:
            emulator.run(self.frames_per_step, self._draws)
        elif index <= _LAST_DIRECTION or self.frames_per_step == 1:
            if self._held != index:
                emulator.press(ACTIONS[index])
                self._held = index
            emulator.run(self.frames_per_step, self._draws)
        else:
            emulator.press(ACTIONS[index])
            emulator.run(self.frames_per_step - 1)
            emulator.release(ACTIONS[index])
            emulator.run(1, self._draws)

    def _gray_frame(self) -> npt.NDArray[np.uint8]:
        """Return the latest frame in gray, at half size [72, 80]."""
        screen = self._emulator.screen[::2, ::2]  # [72, 80, RGBA]
        if not self._is_color:
            return screen[:, :, 0]
        luma: npt.NDArray[np.uint16] = screen[:, :, :3] @ _LUMA_WEIGHTS  # [72, 80], up to 255 * 256
        return (luma >> 8).astype(np.uint8)

    def _observe(self, data: MemoryBytes) -> Any:
        if self._features is None:
            return self._pixels.copy()
        features = self._features.read(data)
        return features if self.observation == "ram" else {"pixels": self._pixels.copy(), "ram": features}

    def _info(self, data: MemoryBytes) -> dict[str, Any]:
        return {name: read(data) for name, read in self._shown}

    def _make_space(self) -> tuple[spaces.Space[Any], dict[str, int]]:
        """Return the observation space, and the number of stacked frames by leaf."""
        pixels = spaces.Box(0, 255, self._pixels.shape, np.uint8)
        if self._features is None:
            return pixels, {"": FRAMES}
        ram = spaces.Box(0.0, 1.0, (self._features.width,), np.float32)
        if self.observation == "ram":
            return ram, {}
        return spaces.Dict({"pixels": pixels, "ram": ram}), {"pixels": FRAMES}

    def _open_emulator(self) -> Emulator:
        if self._is_closed:
            raise gym.error.ClosedEnvironmentError("the env is closed; make another one")
        return self._emulator


class _SavedState(NamedTuple):
    """The parts of a saved state that are not settings."""

    machine: bytes
    """The state of the emulator."""
    pixels: bytes
    """The frames of the ``pixels`` observation."""
    steps: int
    held: int
    is_over: bool
    meter: Any
    """What ``RewardTracker.save`` returned."""
    np_random: Any
    """The state of the bit generator."""


def _reward_weights(memory_map: MemoryMap, overrides: Mapping[str, float] | None) -> dict[str, float]:
    """Return the weight of each reward term: the map's, or the one in ``overrides``."""
    weights = {term.name: term.weight for term in memory_map.rewards}
    if overrides is not None and not isinstance(overrides, Mapping):
        raise UsageError(f"rewards {overrides!r:.80} should be weights by names of terms: {', '.join(weights)}")
    for name, weight in (overrides or {}).items():
        if name not in weights:
            rewards = ", ".join(weights) or "none"
            raise UsageError(f"unknown reward {name!r}{did_you_mean(str(name), weights)}; the map has {rewards}")
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not abs(weight) < math.inf:
            raise UsageError(f"the weight of reward {name!r} is {weight!r}, expected a number")
        weights[name] = float(weight)
    return weights


def _describe_difference(name: str, saved: Any, setting: Any) -> str:
    if name == "game":
        return "it was saved with another ROM or another memory map"
    return f"it was saved with {name} {saved!r}, here it is {setting!r}"


def _checked_int(name: str, number: Any, least: int, most: int) -> int:
    is_int = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not is_int or not least <= number <= most:
        raise UsageError(f"{name} {number!r} should be a whole number from {least:,} to {most:,}")
    return int(number)


def _checksum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_CHECKSUM_BYTES).digest()
