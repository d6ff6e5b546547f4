"""A Game Boy game as a Gymnasium env: a step is a button and the four frames that follow."""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.core.files import inflate
from corral.core.suggestions import did_you_mean
from corral_games.game_boy.emulator import BUTTONS, Emulator, Rom, read_rom
from corral_games.game_boy.map_file import read_map
from corral_games.game_boy.memory_map import MemoryMap
from corral_games.game_boy.readings import Bytes, FeatureReader, Meter, key_of, sight_of

__all__ = ["ACTIONS", "FRAMES", "MAP", "ROM", "GameBoy"]

ACTIONS = ("none", *BUTTONS)
FRAMES, ROWS, COLUMNS = 4, 72, 80
"""The ``pixels`` observation: so many frames of the screen, every second row and column of it."""
ROM = Path(__file__).with_name("stray_bell.gb")
MAP = Path(__file__).parent / "maps" / "stray_bell.yaml"
"""The game that comes with Corral: Stray Bell."""
OBSERVATIONS = ("ram", "pixels", "both")
MOST_STEPS, MOST_FRAMES = 1_000_000, 60
_WALKING = ACTIONS.index("right")
"""Actions up to this one last; the buttons after it are let go in the last frame of a step, to be pressed anew, unless
that is its only frame."""
_LIGHT = np.array([77, 150, 29], np.uint16)
"""What red, green and blue add to brightness, of 256."""


class GameBoy(gym.Env[Any, Any]):
    """A game on a Game Boy, played with its eight buttons. The default is Stray Bell, which is part of Corral.

    ``rom`` is the file of another game, ``memory_map`` the YAML file that says where an episode of it begins, what
    pays, what ends it and what ``ram`` shows. Observation: ``ram``, features in [0, 1]; ``pixels``, 4 frames of the
    screen in grey at half size, oldest first (at a reset the first frame is there four times); or ``both``.

    A direction that is chosen again stays pressed; other buttons are let go in the last frame of a step of several.
    ``rewards`` gives terms of the map another weight. info has the map's ``shown`` values, and at the end of an episode
    what each term has paid.
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
            raise UsageError(f"unknown observation {observation!r}{guess}; it is ram, pixels or both")
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise UsageError(f"render_mode {render_mode!r}: Game Boy games are drawn with rgb_array")
        if rom is not None and memory_map is None:
            raise UsageError(
                f"ROM {str(rom)!r} needs a memory map, which says what in its memory pays and where an episode begins: "
                f"give memory_map too (--memory-map FILE.yaml); {MAP} is an example"
            )
        self.episode_length = _checked("episode_length", episode_length, 1, MOST_STEPS)
        self.frames_per_step = _checked("frames_per_step", frames_per_step, 1, MOST_FRAMES)
        self.observation, self.render_mode = observation, render_mode
        game = _insert(ROM if rom is None else rom, MAP if memory_map is None else memory_map)
        self.weights = _weigh(game.map, rewards)
        self._emulator = Emulator(game.rom)
        self._start, self._digest, self._seed_at = _start_of(game), game.digest, game.map.start.seed
        self._idle = game.map.start.idle
        self._draws = observation != "ram" or render_mode is not None
        self._in_colour = game.rom.in_colour
        sight = sight_of(game.map, observation != "pixels", game.rom.in_colour)
        self._look, self._meter = sight.look, Meter(game.map.rewards, self.weights, sight)
        self._ends = [sight.reader(value) for value in game.map.ends]
        self._shown = [(value.name, sight.reader(value)) for value in game.map.shown]
        self._features = FeatureReader(game.map.features, sight) if observation != "pixels" else None
        self._pixels = np.zeros((FRAMES, ROWS, COLUMNS), np.uint8)
        self._steps, self._held, self._over, self._begun, self._closed = 0, 0, True, False, False
        self.metadata = {**self.metadata, "render_fps": round(60 / frames_per_step)}
        self.action_space = spaces.Discrete(len(ACTIONS))
        self.observation_space, self.frame_stacks = self._space()

    # ---- Gymnasium ---------------------------------------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Go back to where an episode begins. There are no options."""
        if options:
            raise UsageError(f"unknown reset option {next(iter(options))!r}; Game Boy games have none")
        super().reset(seed=seed)
        emulator = self._running()
        emulator.load(self._start)
        if idle := int(self.np_random.integers(self._idle + 1)):
            emulator.run(idle, self._draws)
        if self._seed_at is not None:
            number = int(self.np_random.integers(1, 1 << 16))
            for i, byte in enumerate((number & 0xFF, number >> 8)):
                address = self._seed_at + i
                emulator.memory[key_of(address, address, self._in_colour)] = byte
        self._steps, self._held, self._over, self._begun = 0, 0, False, True
        seen = self._look(emulator.memory)
        self._meter.begin(seen)
        if self.observation != "ram":
            self._pixels[:] = self._picture()
        return self._observe(seen), self._info(seen)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Press a button, or none, and let some frames pass."""
        if self._over:
            raise gym.error.ResetNeeded(
                "the episode is over; call reset() before step()" if self._begun else "call reset() before step()"
            )
        index = int(action)
        if not 0 <= index < len(ACTIONS):
            raise ValueError(f"action {index} should be from 0 to {len(ACTIONS) - 1}")
        emulator = self._running()
        self._press(emulator, index)
        self._steps += 1
        seen = self._look(emulator.memory)
        reward = self._meter.pay(seen)
        terminated = False
        for end in self._ends:
            terminated = terminated or end(seen) != 0
        truncated = not terminated and self._steps >= self.episode_length
        self._over = terminated or truncated
        if self.observation != "ram":
            self._pixels[:-1] = self._pixels[1:]
            self._pixels[-1] = self._picture()
        info = self._info(seen)
        if self._over:
            meter = self._meter
            info.update((f"reward_{name}", earned) for name, earned in zip(meter.names, meter.earned, strict=True))
        return self._observe(seen), reward, terminated, truncated, info

    def render(self) -> Any:
        """The screen [144, 160, 3]."""
        if self.render_mode is None:
            gym.logger.warn("render() needs a render mode: make the env with render_mode='rgb_array'")
            return None
        if not self._begun:
            raise gym.error.ResetNeeded("there is nothing to see yet; call reset() first")
        return self._running().screen[:, :, :3].copy()

    def close(self) -> None:
        """Switch the Game Boy off."""
        if not self._closed:
            self._closed = True
            self._emulator.close()

    def get_keys_to_action(self) -> dict[tuple[int, ...], int]:
        """For ``gymnasium.utils.play``: one key, or two that are held together."""
        arrows = {"up": 1073741906, "down": 1073741905, "left": 1073741904, "right": 1073741903}
        others = {"a": ord("x"), "b": ord("z"), "start": 13, "select": 8}
        keys = arrows | others  # a later one counts, if two are held
        pairs = itertools.combinations(keys.items(), 2)
        both = {(first, second): ACTIONS.index(button) for (_, first), (button, second) in pairs}
        return both | {(key,): ACTIONS.index(button) for button, key in keys.items()}

    # ---- states ------------------------------------------------------------------------------------------------

    def get_state(self) -> bytes:
        """Everything that decides how the env goes on, as plain data."""
        if not self._begun:
            raise gym.error.ResetNeeded("there is no game yet; call reset() first")
        head = {
            **self._settings(),
            "steps": self._steps,
            "held": self._held,
            "over": self._over,
            "meter": self._meter.save(),
            "np_random": self.np_random.bit_generator.state,
        }
        text = json.dumps(head).encode()
        rest = struct.pack("<I", len(text)) + text + zlib.compress(self._running().save() + self._pixels.tobytes(), 1)
        return _MAGIC + _sum(rest) + rest

    def set_state(self, state: bytes) -> None:
        """Go to where an env with the same game and settings was."""
        emulator = self._running()
        if not isinstance(state, bytes):
            raise ValueError(f"a state should be the bytes that get_state() returned, not {state!r:.80}")
        try:
            if state[: len(_MAGIC)] != _MAGIC:
                raise ValueError("it begins with other bytes")
            check, rest = state[len(_MAGIC) : len(_MAGIC) + _SUM], state[len(_MAGIC) + _SUM :]
            if check != _sum(rest):  # PyBoy believes whatever it is given
                raise ValueError("it is damaged")
            (length,) = struct.unpack_from("<I", rest)
            head = json.loads(rest[4 : 4 + length])
            for name, here in self._settings().items():
                if head[name] != here:
                    raise ValueError(_other(name, head[name], here))
            packed = inflate(rest[4 + length :], len(self._start) + self._pixels.nbytes)
            machine, pixels = packed[: -self._pixels.nbytes], packed[-self._pixels.nbytes :]
            if len(machine) != len(self._start):
                raise ValueError("its emulator is another")
            steps, held, over = int(head["steps"]), int(head["held"]), bool(head["over"])
            self._meter.load(head["meter"])
            self.np_random.bit_generator.state = head["np_random"]
        except (struct.error, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{len(state)} bytes are no state of this Game Boy env ({error}); give what get_state() returned"
            ) from None
        emulator.load(machine)
        self._pixels.reshape(-1)[:] = np.frombuffer(pixels, np.uint8)
        self._steps, self._held, self._over, self._begun = steps, held, over, True

    # ---- the game ----------------------------------------------------------------------------------------------

    def _press(self, emulator: Emulator, index: int) -> None:
        if self._held and self._held != index:
            emulator.release(ACTIONS[self._held])
            self._held = 0
        if not index:
            emulator.run(self.frames_per_step, self._draws)
        elif index <= _WALKING or self.frames_per_step == 1:
            if self._held != index:
                emulator.press(ACTIONS[index])
                self._held = index
            emulator.run(self.frames_per_step, self._draws)
        else:
            emulator.press(ACTIONS[index])
            emulator.run(self.frames_per_step - 1)
            emulator.release(ACTIONS[index])
            emulator.run(1, self._draws)

    def _picture(self) -> npt.NDArray[np.uint8]:
        """The latest frame in grey, at half size."""
        screen = self._emulator.screen[::2, ::2]
        if not self._in_colour:
            return screen[:, :, 0]
        light: npt.NDArray[np.uint16] = screen[:, :, :3] @ _LIGHT  # [72, 80], up to 255 * 256
        return (light >> 8).astype(np.uint8)

    def _observe(self, seen: Bytes) -> Any:
        if self._features is None:
            return self._pixels.copy()
        features = self._features.read(seen)
        return features if self.observation == "ram" else {"pixels": self._pixels.copy(), "ram": features}

    def _info(self, seen: Bytes) -> dict[str, Any]:
        return {name: read(seen) for name, read in self._shown}

    def _space(self) -> tuple[spaces.Space[Any], dict[str, int]]:
        pixels = spaces.Box(0, 255, self._pixels.shape, np.uint8)
        if self._features is None:
            return pixels, {"": FRAMES}
        ram = spaces.Box(0.0, 1.0, (self._features.width,), np.float32)
        if self.observation == "ram":
            return ram, {}
        return spaces.Dict({"pixels": pixels, "ram": ram}), {"pixels": FRAMES}

    def _settings(self) -> dict[str, Any]:
        return {
            "game": self._digest,
            "PyBoy": self._emulator.version,
            "observation": self.observation,
            "episode_length": self.episode_length,
            "frames_per_step": self.frames_per_step,
            "rewards": self.weights,
        }

    def _running(self) -> Emulator:
        if self._closed:
            raise gym.error.ClosedEnvironmentError("the env is closed; make another one")
        return self._emulator


@dataclass(frozen=True)
class _Game:
    """A cartridge and what is known of its memory; equal if the files say the same."""

    digest: str
    rom: Rom = field(compare=False)
    map: MemoryMap = field(compare=False)


def _insert(rom_path: str | os.PathLike[str], map_path: str | os.PathLike[str]) -> _Game:
    rom, memory_map = read_rom(rom_path), read_map(map_path)
    if rom.title != memory_map.title:
        raise UsageError(
            f"ROM {rom.path!r} is called {rom.title!r} in its header, but memory map {memory_map.path!r} is for "
            f"{memory_map.title!r}; give the map of this game"
        )
    return _Game(hashlib.sha256((rom.digest + memory_map.digest).encode()).hexdigest(), rom, memory_map)


@functools.lru_cache(maxsize=8)
def _start_of(game: _Game) -> bytes:
    """The state of the machine where episodes begin; played once for each game and process."""
    emulator, start = Emulator(game.rom), game.map.start
    try:
        if start.state is not None:
            if len(start.state) != len(emulator.save()):
                raise UsageError(
                    f"memory map {game.map.path!r}: start.state has {len(start.state):,} bytes, but a state of ROM "
                    f"{game.rom.path!r} by this PyBoy has {len(emulator.save()):,}; save it anew with this ROM"
                )
            try:
                emulator.load(start.state)
            except Exception as error:  # PyBoy's own, by what it finds
                raise UsageError(f"memory map {game.map.path!r}: start.state cannot be used: {error}") from None
            for button in BUTTONS:
                emulator.release(button)
        for press in start.buttons:
            if press.button is not None:
                emulator.press(press.button)
            emulator.run(press.frames)
            if press.button is not None:
                emulator.release(press.button)
        emulator.run(1, draw=True)
        sight = sight_of(game.map, False, game.rom.in_colour)
        for value in game.map.ends:
            if sight.reader(value)(sight.look(emulator.memory)):
                raise UsageError(
                    f"memory map {game.map.path!r}: {value.name} ends an episode, but is not zero where one begins; "
                    "correct start, which may have led elsewhere, or ends"
                )
        return emulator.save()
    finally:
        emulator.close()


def _weigh(memory_map: MemoryMap, given: Mapping[str, float] | None) -> dict[str, float]:
    weights = {term.name: term.weight for term in memory_map.rewards}
    if given is not None and not isinstance(given, Mapping):
        raise UsageError(f"rewards {given!r:.80} should be weights by the names of terms: {', '.join(weights)}")
    for name, weight in (given or {}).items():
        if name not in weights:
            known = ", ".join(weights) or "none"
            raise UsageError(f"unknown reward {name!r}{did_you_mean(str(name), weights)}; the map has {known}")
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not abs(weight) < math.inf:
            raise UsageError(f"the weight of reward {name!r} is {weight!r}, expected a number")
        weights[name] = float(weight)
    return weights


def _other(name: str, there: Any, here: Any) -> str:
    if name == "game":
        return "it was saved with another ROM or another memory map"
    return f"it was saved with {name} {there!r}, here it is {here!r}"


def _checked(name: str, number: Any, least: int, most: int) -> int:
    whole = isinstance(number, int | np.integer) and not isinstance(number, bool)
    if not whole or not least <= number <= most:
        raise UsageError(f"{name} {number!r} should be a whole number from {least:,} to {most:,}")
    return int(number)


def _sum(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=_SUM).digest()


_MAGIC, _SUM = b"GB01", 16
