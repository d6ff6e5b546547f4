"""Builds stray_bell.gb from the C files and assets in this directory. Needs SDCC 4.2.0 (`apt install sdcc`).

python build.py            write ../stray_bell.gb
python build.py --check    build and compare with ../stray_bell.gb; exit code 1 if they differ
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from corral_games.game_boy.rom.assets import HEIGHT, KINDS, ROOMS, WALKERS, WIDTH, AssetError, Assets, read_assets
else:  # in a script, Python searches the script's directory first, so that corral_games need not be installed
    from assets import HEIGHT, KINDS, ROOMS, WALKERS, WIDTH, AssetError, Assets, read_assets

__all__ = ["SDCC_VERSION", "build", "find_sdcc", "main"]

FOLDER = Path(__file__).resolve().parent
ROM = FOLDER.parent / "stray_bell.gb"
SDCC_VERSION = "4.2.0"
SOURCES = ("main", "screen", "rooms", "hero", "enemies", "dialogue")
COMPILER_FLAGS = ("-msm83", "--std-c11", "--opt-code-speed", "--max-allocs-per-node", "500")
LINKER_FLAGS = ("-msm83", "--no-std-crt0", "--code-loc", "0x200", "--data-loc", "0xC200")
COUNTED_KINDS, MAX_COUNT = ("coin", "heart"), 24
"""Kinds of cells of which there are several in the world, and the largest number of each."""
UNIQUE_KINDS = ("locked", "doorway", "chest", "key")
"""Kinds of cells of which there is exactly one in the world."""
NO_TEXT = 255
"""The number of a text in a room without a sign."""


class BuildError(Exception):
    """The build failed; the text says why and what to do."""


def find_sdcc() -> str | None:
    """Return the version of the installed SDCC, or None if SDCC is not installed."""
    if any(shutil.which(tool) is None for tool in ("sdcc", "sdasgb", "makebin")):
        return None
    output = subprocess.run(["sdcc", "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"\b(\d+\.\d+\.\d+)\b", output)
    return version[1] if version else "unknown"


# ---- tables of the assets in C ---------------------------------------------------------------------------------


def write_tables(assets: Assets, folder: Path) -> None:
    """Write tables.h and tables.c: everything of the assets that the C files use."""
    tables = _make_tables(assets)
    constants = _make_constants(assets)
    header = ["#pragma once", "#include <stdint.h>"]
    header += [f"#define {name} {value}" for name, value in constants.items()]
    header += [f"extern const uint8_t {name}[{len(values)}];" for name, values in tables.items()]
    header += [f"extern const uint8_t *const words[{len(assets.texts)}];"]
    code = ['#include "tables.h"\n'] + [_format_array(name, values) for name, values in tables.items()]
    code += ["static " + _format_array(f"text_{name}", codes) for name, codes in assets.texts.items()]
    code += [f"const uint8_t *const words[] = {{{', '.join(f'text_{name}' for name in assets.texts)}}};\n"]
    (folder / "tables.h").write_text("\n".join(header) + "\n")
    (folder / "tables.c").write_text("\n".join(code))


def _make_constants(assets: Assets) -> dict[str, int]:
    """Return the constants of tables.h; raise a BuildError if the rooms have a wrong number of things."""
    constants = {f"PICTURE_{name.upper()}": number for number, name in enumerate(_large_pictures(assets))}
    constants |= {f"LOOK_{name.upper()}": number for name, number in assets.sprite_numbers.items()}
    constants |= {f"WORDS_{name.upper()}": number for number, name in enumerate(assets.texts)}
    constants |= {"BACKGROUND_TILES": len(assets.background), "SPRITE_TILES": len(assets.sprites)}
    constants |= {"LETTER_SPACE": assets.letters[" "], "WORDS_NONE": NO_TEXT}
    constants |= {f"{kind.upper()}_COUNT": len(_find_cells(assets, kind)) for kind in COUNTED_KINDS}
    for kind in UNIQUE_KINDS:
        positions = _find_cells(assets, kind)
        if len(positions) != 1:
            raise BuildError(f"rooms.txt: expected exactly one {kind}, found {len(positions)}")
        constants[f"{kind.upper()}_ROOM"], constants[f"{kind.upper()}_CELL"] = positions[0].room, positions[0].cell
    for kind in COUNTED_KINDS:
        count = constants[f"{kind.upper()}_COUNT"]
        if not 1 <= count <= MAX_COUNT:
            raise BuildError(f"rooms.txt: expected 1 to {MAX_COUNT} of {kind}, found {count}")
    return constants


def _make_tables(assets: Assets) -> dict[str, list[int]]:
    """Return the arrays of tables.c."""
    large_pictures = _large_pictures(assets)
    digits = [assets.pictures[f"tall_{digit}"] for digit in range(10)]
    letters, cells = list(assets.legend), list(assets.legend.values())
    rooms = [assets.rooms[number] for number in range(ROOMS)]
    text_names = list(assets.texts)
    tables = {
        "background_tiles": list(b"".join(assets.background)),
        "sprite_tiles": list(b"".join(assets.sprites)),
        "tall_digit_top": [tiles[0] for tiles in digits],
        "tall_digit_bottom": [tiles[1] for tiles in digits],
        "picture_tiles": [tile for name in large_pictures for tile in assets.pictures[name]],
        "cell_picture": [large_pictures.index(cell.picture) for cell in cells],
        "cell_kind": [KINDS.index(cell.kind) for cell in cells],
        "cell_walker": [WALKERS.index(cell.walker) for cell in cells],
        "room_cells": [letters.index(letter) for room in rooms for row in room.rows for letter in row],
        "room_sign": [NO_TEXT if room.sign is None else text_names.index(room.sign) for room in rooms],
    }
    for kind in COUNTED_KINDS:
        positions = _find_cells(assets, kind)
        tables[f"{kind}_room"] = [position.room for position in positions]
        tables[f"{kind}_cell"] = [position.cell for position in positions]
    return tables


def _large_pictures(assets: Assets) -> list[str]:
    """Return the names of the pictures of 16x16, in the order of their numbers."""
    return [name for name, tiles in assets.pictures.items() if len(tiles) == 4]


class _Position(NamedTuple):
    """Where a thing is: the number of the room, and of the cell in it."""

    room: int
    cell: int


def _find_cells(assets: Assets, kind: str) -> list[_Position]:
    """Return the positions of all cells of one kind."""
    return [
        _Position(number, row * WIDTH + column)
        for number in range(ROOMS)
        for row in range(HEIGHT)
        for column in range(WIDTH)
        if assets.legend[assets.rooms[number].rows[row][column]].kind == kind
    ]


def _format_array(name: str, values: list[int]) -> str:
    """Return the definition of an array in C, with 24 values in a line."""
    rows = (", ".join(map(str, values[i : i + 24])) for i in range(0, len(values), 24))
    return f"const uint8_t {name}[{len(values)}] = {{\n    " + ",\n    ".join(rows) + "};\n"


# ---- the ROM ---------------------------------------------------------------------------------------------------


def _run(folder: Path, *command: str) -> None:
    """Run a command in a directory and print its warnings; raise a BuildError if it fails."""
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{process.stdout}{process.stderr}")
    if process.stderr.strip():
        print(process.stderr.strip(), file=sys.stderr)


def build() -> bytes:
    """Return the ROM's 32,768 bytes. They do not depend on the temporary directory in which they are built."""
    assets = read_assets(FOLDER)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source in [*FOLDER.glob("*.c"), *FOLDER.glob("*.h"), *FOLDER.glob("*.s")]:
            shutil.copy(source, folder)
        write_tables(assets, folder)
        for stem in ("crt0", "status"):
            _run(folder, "sdasgb", "-o", f"{stem}.rel", f"{stem}.s")
        with ThreadPoolExecutor() as pool:
            sources = [*SOURCES, "tables"]
            compiler = ("sdcc", *COMPILER_FLAGS, "-c")
            list(pool.map(lambda stem: _run(folder, *compiler, f"{stem}.c", "-o", f"{stem}.rel"), sources))
        objects = [f"{stem}.rel" for stem in ("crt0", "status", *sources)]
        _run(folder, "sdcc", *LINKER_FLAGS, "-o", "game.ihx", *objects)
        _run(folder, "makebin", "-Z", "-yn", "STRAYBELL", "game.ihx", "game.gb")
        return (folder / "game.gb").read_bytes()


def main(arguments: list[str]) -> int:
    """Build the ROM and write it or, with ``--check``, compare it. Return the exit code."""
    if arguments not in ([], ["--check"]):
        print(f"unknown arguments {' '.join(arguments)!r}; the only option is --check", file=sys.stderr)
        return 2
    version = find_sdcc()
    if version is None:
        print("SDCC is not installed; install it with: apt install sdcc", file=sys.stderr)
        return 2
    if version != SDCC_VERSION:
        print(f"SDCC {version} may build other bytes than SDCC {SDCC_VERSION}", file=sys.stderr)
    try:
        rom = build()
    except (AssetError, BuildError) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments:
        is_equal = ROM.exists() and ROM.read_bytes() == rom
        print(f"{ROM.name} {'is equal to' if is_equal else 'differs from'} the ROM that these files build")
        return 0 if is_equal else 1
    ROM.write_bytes(rom)
    used = len(rom.rstrip(b"\xff\x00"))
    print(f"{ROM.name}: {len(rom):,} bytes, of which {used:,} are used")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
