"""A ROM with its memory map, and the state of the emulator in which its episodes start."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass, field

from corral.core.errors import UsageError
from corral_games.game_boy.emulator import BUTTONS, Emulator, Rom, read_rom
from corral_games.game_boy.features_and_rewards import build_layout
from corral_games.game_boy.map_file import read_map
from corral_games.game_boy.memory_map import MemoryMap

__all__ = ["Game", "make_start_state", "read_game"]


@dataclass(frozen=True)
class Game:
    """A ROM and its memory map. Games with equal contents of both files are equal."""

    digest: str
    rom: Rom = field(compare=False)
    map: MemoryMap = field(compare=False)


def read_game(rom_path: str | os.PathLike[str], map_path: str | os.PathLike[str]) -> Game:
    """Read a ROM and its memory map; raise a UsageError if they are for different games."""
    rom, memory_map = read_rom(rom_path), read_map(map_path)
    if rom.title != memory_map.title:
        raise UsageError(
            f"ROM {rom.path!r} is called {rom.title!r} in its header, but memory map {memory_map.path!r} is for "
            f"{memory_map.title!r}; give the map of this game"
        )
    digest = hashlib.sha256((rom.digest + memory_map.digest).encode()).hexdigest()
    return Game(digest=digest, rom=rom, map=memory_map)


@functools.lru_cache(maxsize=8)
def make_start_state(game: Game) -> bytes:
    """Return the emulator's state where episodes start; computed once for each game and process."""
    emulator = Emulator(game.rom)
    try:
        if game.map.start.state is not None:
            _load_start_state(emulator, game, game.map.start.state)
        for press in game.map.start.buttons:
            if press.button is not None:
                emulator.press(press.button)
            emulator.run(press.frames)
            if press.button is not None:
                emulator.release(press.button)
        emulator.run(1, draw=True)
        _check_not_over(emulator, game)
        return emulator.save()
    finally:
        emulator.close()


def _load_start_state(emulator: Emulator, game: Game, state: bytes) -> None:
    """Load the state that the memory map names, and release all buttons."""
    expected_bytes = len(emulator.save())
    if len(state) != expected_bytes:
        raise UsageError(
            f"memory map {game.map.path!r}: start.state has {len(state):,} bytes, but a state of ROM "
            f"{game.rom.path!r} by this PyBoy has {expected_bytes:,}; save it again with this ROM and PyBoy"
        )
    try:
        emulator.load(state)
    except Exception as error:  # PyBoy raises many kinds of exceptions, depending on the bytes
        raise UsageError(f"memory map {game.map.path!r}: start.state cannot be used: {error}") from None
    for button in BUTTONS:
        emulator.release(button)


def _check_not_over(emulator: Emulator, game: Game) -> None:
    """Raise a UsageError if an episode would end where it starts."""
    layout = build_layout(game.map, False, game.rom.is_color)
    data = layout.read_bytes(emulator.memory)
    for value in game.map.ends:
        if layout.reader(value)(data):
            raise UsageError(
                f"memory map {game.map.path!r}: {value.name} ends an episode, but is not zero where one begins; "
                "correct `start`, which may lead to another place than intended, or `ends`"
            )
