"""Builds stray_bell.gb from the C files and assets in this folder. Needs SDCC 4.2.0 (`apt install sdcc`).

python build.py            writes ../stray_bell.gb
python build.py --check    builds and compares with ../stray_bell.gb; exit 1 if they differ
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from corral_games.game_boy.rom.assets import HEIGHT, KINDS, ROOMS, WALKERS, WIDTH, AssetError, Assets, read_assets
else:  # run as a script, the folder is what Python finds first; no package is needed
    from assets import HEIGHT, KINDS, ROOMS, WALKERS, WIDTH, AssetError, Assets, read_assets

__all__ = ["SDCC_VERSION", "build", "find_sdcc", "main"]

FOLDER = Path(__file__).resolve().parent
ROM = FOLDER.parent / "stray_bell.gb"
SDCC_VERSION = "4.2.0"
SOURCES = ("main", "screen", "rooms", "hero", "enemies", "dialogue")
COMPILER_FLAGS = ("-msm83", "--std-c11", "--opt-code-speed", "--max-allocs-per-node", "500")


class BuildError(Exception):
    """The build cannot go on; the text says why and what to do."""


def find_sdcc() -> str | None:
    """The version of the installed SDCC, None without one."""
    if any(shutil.which(tool) is None for tool in ("sdcc", "sdasgb", "makebin")):
        return None
    told = subprocess.run(["sdcc", "--version"], capture_output=True, text=True, check=False).stdout
    found = re.search(r"\b(\d+\.\d+\.\d+)\b", told)
    return found[1] if found else "unknown"


def _array(name: str, values: list[int]) -> str:
    rows = (", ".join(map(str, values[i : i + 24])) for i in range(0, len(values), 24))
    return f"const uint8_t {name}[{len(values)}] = {{\n    " + ",\n    ".join(rows) + "};\n"


def _places(assets: Assets, kind: str) -> tuple[list[int], list[int]]:
    """Rooms and cells of every thing of one kind that lies in the world."""
    found = [
        (number, row * WIDTH + column)
        for number in range(ROOMS)
        for row in range(HEIGHT)
        for column in range(WIDTH)
        if assets.legend[assets.rooms[number].rows[row][column]].kind == kind
    ]
    return [room for room, _ in found], [cell for _, cell in found]


def write_tables(assets: Assets, folder: Path) -> None:
    """tables.h and tables.c: everything of the assets that the C files use."""
    names = list(assets.pictures)
    wide = [name for name in names if len(assets.pictures[name]) == 4]
    tall = [assets.pictures[f"tall_{digit}"] for digit in range(10)]
    constants = {f"PICTURE_{name.upper()}": number for number, name in enumerate(wide)}
    constants |= {f"LOOK_{name.upper()}": number for name, number in assets.looks.items()}
    constants |= {f"WORDS_{name.upper()}": number for number, name in enumerate(assets.words)}
    constants |= {"BACKGROUND_TILES": len(assets.background), "SPRITE_TILES": len(assets.sprites)}
    constants |= {"LETTER_SPACE": assets.letters[" "], "WORDS_NONE": 255}
    tables: dict[str, list[int]] = {
        "background_tiles": list(b"".join(assets.background)),
        "sprite_tiles": list(b"".join(assets.sprites)),
        "tall_digit_top": [tile[0] for tile in tall],
        "tall_digit_bottom": [tile[1] for tile in tall],
    }
    tables["picture_tiles"] = [tile for name in wide for tile in assets.pictures[name]]
    letters = list(assets.legend)
    cells = list(assets.legend.values())
    tables["cell_picture"] = [wide.index(cell.picture) for cell in cells]
    tables["cell_kind"] = [KINDS.index(cell.kind) for cell in cells]
    tables["cell_walker"] = [WALKERS.index(cell.walker) for cell in cells]
    rows = [assets.rooms[number].rows for number in range(ROOMS)]
    tables["room_cells"] = [letters.index(letter) for room in rows for row in room for letter in row]
    signs = [assets.rooms[number].sign for number in range(ROOMS)]
    tables["room_sign"] = [255 if sign is None else list(assets.words).index(sign) for sign in signs]
    for kind in ("coin", "heart"):
        tables[f"{kind}_room"], tables[f"{kind}_cell"] = _places(assets, kind)
        constants[f"{kind.upper()}_COUNT"] = len(tables[f"{kind}_room"])
    for kind in ("locked", "doorway", "chest", "key"):
        places = list(zip(*_places(assets, kind), strict=True))
        if len(places) != 1:
            raise BuildError(f"rooms.txt: expected exactly one {kind}, found {len(places)}")
        constants[f"{kind.upper()}_ROOM"], constants[f"{kind.upper()}_CELL"] = places[0]
    for kind in ("coin", "heart"):
        if not 1 <= constants[f"{kind.upper()}_COUNT"] <= 24:
            raise BuildError(f"rooms.txt: expected 1 to 24 of {kind}, found {constants[f'{kind.upper()}_COUNT']}")
    header = ["#pragma once", "#include <stdint.h>"]
    header += [f"#define {name} {value}" for name, value in constants.items()]
    header += [f"extern const uint8_t {name}[{len(values)}];" for name, values in tables.items()]
    header += [f"extern const uint8_t *const words[{len(assets.words)}];"]
    code = ['#include "tables.h"\n'] + [_array(name, values) for name, values in tables.items()]
    code += ["static " + _array(f"text_{name}", codes) for name, codes in assets.words.items()]
    code += [f"const uint8_t *const words[] = {{{', '.join(f'text_{name}' for name in assets.words)}}};\n"]
    (folder / "tables.h").write_text("\n".join(header) + "\n")
    (folder / "tables.c").write_text("\n".join(code))


def _run(folder: Path, *command: str) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise BuildError(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    if done.stderr.strip():
        print(done.stderr.strip(), file=sys.stderr)


def build() -> bytes:
    """The ROM's 32,768 bytes, built in a temporary folder that leaves no trace in them."""
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
        flags = ("-msm83", "--no-std-crt0", "--code-loc", "0x200", "--data-loc", "0xC200")
        _run(folder, "sdcc", *flags, "-o", "game.ihx", *objects)
        _run(folder, "makebin", "-Z", "-yn", "STRAYBELL", "game.ihx", "game.gb")
        return (folder / "game.gb").read_bytes()


def main(arguments: list[str]) -> int:
    """Build, or compare with ``--check``. Returns the exit code."""
    if arguments not in ([], ["--check"]):
        print(f"unknown arguments {' '.join(arguments)!r}; there is only --check", file=sys.stderr)
        return 2
    version = find_sdcc()
    if version is None:
        print("SDCC is not installed; install it with: apt install sdcc", file=sys.stderr)
        return 2
    if version != SDCC_VERSION:
        print(f"SDCC {version} may build other bytes than {SDCC_VERSION} does", file=sys.stderr)
    try:
        rom = build()
    except (AssetError, BuildError) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments:
        same = ROM.exists() and ROM.read_bytes() == rom
        print(f"{ROM.name} {'is what' if same else 'differs from what'} these files build")
        return 0 if same else 1
    ROM.write_bytes(rom)
    used = len(rom.rstrip(b"\xff\x00"))
    print(f"{ROM.name}: {len(rom):,} bytes, of which {used:,} are used")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
