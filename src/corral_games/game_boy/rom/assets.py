"""Reads the pictures, rooms and texts of Stray Bell from text files, and checks them. Used by build.py."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

__all__ = ["AssetError", "Assets", "read_assets"]

SHADES = ".-+#"
"""The characters for the four shades, from white to black."""
KINDS = [
    "free",
    "solid",
    "water",
    "tall_grass",
    "coin",
    "heart",
    "key",
    "locked",
    "chest",
    "villager",
    "doorway",
    "sign",
    "open_chest",
]
"""Kinds of cells, in the order of their numbers in the C code."""
WALKABLE_KINDS = {"free", "tall_grass", "coin", "heart", "key"}
WALKERS = ["nobody", "burr", "goose", "wisp", "hen"]
"""Who walks on a cell when the hero enters its room, in the order of their numbers in the C code."""
WIDTH, HEIGHT, ROOMS = 10, 8, 20
"""Columns and rows of a room, and number of rooms."""
MAX_WALKERS, MIN_WALKER_DISTANCE = 4, 2
"""Limits for the walkers of a room: their number, and their distance in cells to an entrance."""
NEW_LINE, NEW_PAGE, END = 0xFD, 0xFE, 0xFF
"""Codes in texts, beside the numbers of letters."""
LINE_WIDTH, PAGE_LINES = 18, 4
"""Letters in a line and lines on a page of a text."""


class AssetError(Exception):
    """A mistake in an asset: which file, which line, what was expected."""

    def __init__(self, path: Path, line: int, text: str) -> None:
        super().__init__(f"{path.name}:{line}: {text}")


@dataclass
class Cell:
    """The meaning of one letter in the rooms."""

    picture: str
    kind: str
    walker: str = WALKERS[0]


@dataclass
class Room:
    """One room."""

    rows: list[str]
    """Eight rows of ten letters."""
    line: int
    """The line of the file in which the room starts."""
    sign: str | None = None
    """The name of the text on the room's sign."""


@dataclass
class Assets:
    """All assets, with their 8x8 tiles numbered."""

    background: list[bytes] = field(default_factory=list)
    """The tiles of the background."""
    sprites: list[bytes] = field(default_factory=list)
    """The tiles of sprites."""
    pictures: dict[str, list[int]] = field(default_factory=dict)
    """The numbers of background tiles of each picture: four for a picture of 16x16, two for a tall digit."""
    sprite_numbers: dict[str, int] = field(default_factory=dict)
    """The number of the first of the four tiles of each sprite."""
    letters: dict[str, int] = field(default_factory=dict)
    """The number of the background tile of each letter."""
    legend: dict[str, Cell] = field(default_factory=dict)
    rooms: dict[int, Room] = field(default_factory=dict)
    texts: dict[str, list[int]] = field(default_factory=dict)
    """Each text as numbers of letters and the codes NEW_LINE, NEW_PAGE and END."""

    def add_background(self, tile: bytes) -> int:
        """Return the number of a background tile, and add it if there is no equal one."""
        if tile not in self.background:
            self.background.append(tile)
        return self.background.index(tile)

    def is_walkable(self, letter: str) -> bool:
        """Return whether the hero can walk on cells with this letter."""
        return self.legend[letter].kind in WALKABLE_KINDS


def read_assets(folder: Path) -> Assets:
    """Read font.txt, tiles.txt, words.txt and rooms.txt; raise an AssetError at the first mistake."""
    assets = Assets()
    _read_font(folder / "font.txt", assets)
    _read_tiles(folder / "tiles.txt", assets)
    _read_title_letters(folder / "font.txt", assets, "STRAYBELL")
    for count, limit, kind in ((len(assets.background), 256, "background"), (len(assets.sprites), 128, "sprite")):
        if count > limit:
            raise AssetError(folder / "tiles.txt", 1, f"{count} different {kind} tiles of 8x8, at most {limit} fit")
    _read_texts(folder / "words.txt", assets)
    _read_rooms(folder / "rooms.txt", assets)
    _check_rooms(folder / "rooms.txt", assets)
    return assets


# ---- lines, blocks and tiles -----------------------------------------------------------------------------------


def _read_lines(path: Path) -> list[tuple[int, str]]:
    """Return the lines with their numbers, without blank lines and comments, which start with `;`."""
    lines = list(enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1))
    for number, line in lines:
        if not line.isascii():
            raise AssetError(path, number, f"expected ASCII letters only, found {line!r}")
    return [(number, line.rstrip()) for number, line in lines if line.strip() and not line.startswith(";")]


class _Block(NamedTuple):
    """A header `kind: name name ...` and the pictures below it, side by side."""

    line: int
    kind: str
    names: list[str]
    pictures: list[list[str]]
    """For each name, the rows of its picture."""

    def items(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the name and the rows of each picture."""
        return zip(self.names, self.pictures, strict=True)


def _read_blocks(path: Path, height: int, width: int, allowed: str) -> list[_Block]:
    """Return the blocks of a file, with pictures of ``height`` rows and ``width`` characters from ``allowed``."""
    blocks = []
    lines = _read_lines(path)
    while lines:
        header_line, header = lines.pop(0)
        kind, colon, names = header.partition(":")
        if not colon or not names.split():
            raise AssetError(path, header_line, f"expected 'kind: names', found {header!r}")
        block = _Block(header_line, kind.strip(), names.split(), [[] for _ in names.split()])
        for _ in range(height):
            if not lines:
                raise AssetError(path, header_line, f"the block ends before its {height} rows do")
            number, line = lines.pop(0)
            pieces = line.split()
            if len(pieces) != len(block.names):
                problem = f"expected {len(block.names)} pieces of {width} characters, found {len(pieces)}"
                raise AssetError(path, number, problem)
            for (name, rows), piece in zip(block.items(), pieces, strict=True):
                if len(piece) != width:
                    raise AssetError(path, number, f"{name}: expected {width} characters, found {len(piece)}: {piece}")
                unknown = set(piece) - set(allowed)
                if unknown:
                    raise AssetError(path, number, f"{name}: unknown character {min(unknown)!r}, allowed: {allowed}")
                rows.append(piece)
        blocks.append(block)
    return blocks


def _encode_tile(rows: list[str]) -> bytes:
    """Encode eight rows of eight shades for the LCD: for each row a byte of low bits, then a byte of high bits."""
    data = bytearray()
    for row in rows:
        shades = [SHADES.index(letter) for letter in row]
        data.append(sum((shade & 1) << (7 - x) for x, shade in enumerate(shades)))
        data.append(sum((shade >> 1) << (7 - x) for x, shade in enumerate(shades)))
    return bytes(data)


def _encode_quarters(rows: list[str]) -> list[bytes]:
    """Encode a picture of 16x16 as four tiles: top left, top right, bottom left, bottom right."""
    return [_encode_tile([row[x : x + 8] for row in rows[y : y + 8]]) for y in (0, 8) for x in (0, 8)]


# ---- pictures --------------------------------------------------------------------------------------------------


def _read_font(path: Path, assets: Assets) -> None:
    """Read letters of 5x7 as tiles of 8x8. Add digits also white on black and twice as tall, for the status bar."""
    assets.letters[" "] = assets.add_background(bytes(16))
    for block in _read_blocks(path, 7, 5, ".#"):
        if block.kind != "letters":
            raise AssetError(path, block.line, f"expected 'letters:', found {block.kind!r}")
        for name, rows in block.items():
            padded = ["." * 8] + [f".{row}.." for row in rows]
            assets.letters[name] = assets.add_background(_encode_tile(padded))
            if name.isdigit():
                inverted = [row.translate(str.maketrans(".#", "#.")) for row in padded[1:]]
                tall = ["#" * 8] + [row for row in inverted for _ in (0, 1)] + ["#" * 8]
                tiles = (_encode_tile(tall[:8]), _encode_tile(tall[8:]))
                assets.pictures["tall_" + name] = [assets.add_background(tile) for tile in tiles]


def _read_title_letters(path: Path, assets: Assets, title: str) -> None:
    """Add the letters of the title as pictures: twice the size, with a shadow."""
    letters: dict[str, list[str]] = {}
    for block in _read_blocks(path, 7, 5, ".#"):
        letters |= dict(block.items())
    for name in sorted(set(title)):
        if name not in letters:
            raise AssetError(path, 1, f"the title needs the letter {name!r}, which is not drawn")
        tiles = _encode_quarters(_enlarge_letter(letters[name]))
        assets.pictures["big_" + name] = [assets.add_background(tile) for tile in tiles]


def _enlarge_letter(rows: list[str]) -> list[str]:
    """Return a letter as a picture of 16x16: each dot becomes 2x2 dots, over a shadow one dot right and down."""
    grid = [["."] * 16 for _ in range(16)]
    dots = [(x, y) for y, row in enumerate(rows) for x, dot in enumerate(row) if dot == "#"]
    for shade, shift in (("+", 1), ("#", 0)):
        for x, y in dots:
            for dy in (0, 1):
                for dx in (0, 1):
                    grid[2 * y + dy + shift][2 * x + dx + 2 + shift] = shade
    return ["".join(row) for row in grid]


def _read_tiles(path: Path, assets: Assets) -> None:
    """Read pictures of 16x16: backgrounds, pictures drawn over backgrounds, and sprites."""
    grounds: dict[str, list[str]] = {}
    for block in _read_blocks(path, 16, 16, SHADES + "_"):
        for name, rows in block.items():
            if block.kind.startswith("over "):
                _add_overlay(path, assets, grounds, block, name, rows)
            elif block.kind == "background":
                if any("_" in row for row in rows):
                    raise AssetError(path, block.line, f"{name}: '_' is only for 'over' pictures")
                grounds[name] = rows
                assets.pictures[name] = [assets.add_background(tile) for tile in _encode_quarters(rows)]
            elif block.kind == "sprites":
                assets.sprite_numbers[name] = len(assets.sprites)
                top_left, top_right, bottom_left, bottom_right = _encode_quarters(rows)
                assets.sprites += [top_left, bottom_left, top_right, bottom_right]
            else:
                problem = f"unknown kind {block.kind!r}; there are: background, over GROUND ..., sprites"
                raise AssetError(path, block.line, problem)


def _add_overlay(
    path: Path, assets: Assets, grounds: dict[str, list[str]], block: _Block, name: str, rows: list[str]
) -> None:
    """Add a picture over each ground that its block names (`over grass floor: coin`); `_` shows the ground."""
    for i, ground in enumerate(block.kind.split()[1:]):
        if ground not in grounds:
            problem = f"unknown ground {ground!r}, drawn so far: {', '.join(grounds)}"
            raise AssetError(path, block.line, problem)
        row_pairs = zip(rows, grounds[ground], strict=True)
        merged = ["".join(b if a == "_" else a for a, b in zip(*pair, strict=True)) for pair in row_pairs]
        full_name = name if i == 0 else f"{name}_on_{ground}"
        assets.pictures[full_name] = [assets.add_background(tile) for tile in _encode_quarters(merged)]


# ---- texts -----------------------------------------------------------------------------------------------------


def _read_texts(path: Path, assets: Assets) -> None:
    """Read texts: `name:` and indented lines; a line of `---` starts a new page."""
    name = ""
    lines_on_page = 0
    for number, line in _read_lines(path):
        if not line.startswith(" "):
            if not line.endswith(":"):
                raise AssetError(path, number, f"expected 'name:' or an indented line, found {line!r}")
            name = line[:-1]
            assets.texts[name], lines_on_page = [], 0
            continue
        text = line.strip()
        if not name or (text == "---" and not assets.texts[name]):
            expected = "some text" if name else "name:"
            raise AssetError(path, number, f"{text!r} follows nothing; expected {expected} first")
        if text == "---":
            assets.texts[name][-1] = NEW_PAGE
            lines_on_page = 0
            continue
        unknown = [letter for letter in text if letter not in assets.letters]
        lines_on_page += 1
        if unknown:
            raise AssetError(path, number, f"no drawing for the letter {unknown[0]!r} in font.txt")
        if len(text) > LINE_WIDTH or lines_on_page > PAGE_LINES:
            raise AssetError(path, number, f"a page has {PAGE_LINES} lines of {LINE_WIDTH} letters; this is too long")
        assets.texts[name] += [assets.letters[letter] for letter in text] + [NEW_LINE]
    for name, codes in assets.texts.items():
        if not codes:
            raise AssetError(path, 1, f"{name!r} has no text")
        codes[-1] = END


# ---- rooms -----------------------------------------------------------------------------------------------------


def _read_rooms(path: Path, assets: Assets) -> None:
    """Read `legend` with its lines, then each `room N [sign NAME]` with its eight rows."""
    room: Room | None = None
    for number, line in _read_lines(path):
        parts = line.split()
        if parts[0] == "legend":
            continue
        if parts[0] == "room":
            room = _add_room(path, number, line, assets)
        elif room is None:
            _add_legend_letter(path, number, line, assets)
        else:
            _add_row(path, number, line, assets, room)
    for index in range(ROOMS):
        if index not in assets.rooms or len(assets.rooms[index].rows) != HEIGHT:
            raise AssetError(path, 1, f"room {index} is missing or does not have {HEIGHT} rows")


def _add_room(path: Path, number: int, line: str, assets: Assets) -> Room:
    """Add the room that a line `room N [sign NAME]` starts, and return it."""
    parts = line.split()
    if len(parts) not in (2, 4) or not parts[1].isdigit() or int(parts[1]) >= ROOMS:
        raise AssetError(path, number, f"expected 'room 0..{ROOMS - 1} [sign NAME]', found {line!r}")
    room = Room(rows=[], line=number, sign=parts[3] if len(parts) == 4 else None)
    if room.sign is not None and room.sign not in assets.texts:
        raise AssetError(path, number, f"words.txt has no {room.sign!r}")
    assets.rooms[int(parts[1])] = room
    return room


def _add_legend_letter(path: Path, number: int, line: str, assets: Assets) -> None:
    """Add the meaning of a letter from a line `letter picture kind [walker]`."""
    parts = line.split()
    if len(parts) not in (3, 4) or len(parts[0]) != 1:
        raise AssetError(path, number, f"expected 'letter picture kind [walker]', found {line!r}")
    pictures = [name for name, tiles in assets.pictures.items() if len(tiles) == 4]
    cell = Cell(picture=parts[1], kind=parts[2], walker=parts[3] if len(parts) == 4 else WALKERS[0])
    for value, known in ((cell.picture, pictures), (cell.kind, KINDS), (cell.walker, WALKERS)):
        if value not in known:
            raise AssetError(path, number, f"unknown {value!r}; there are: {', '.join(known)}")
    assets.legend[parts[0]] = cell


def _add_row(path: Path, number: int, line: str, assets: Assets, room: Room) -> None:
    """Add a row of letters to a room."""
    if len(line) != WIDTH or len(room.rows) == HEIGHT:
        raise AssetError(path, number, f"expected {HEIGHT} rows of {WIDTH} letters, found {line!r}")
    for letter in line:
        if letter not in assets.legend:
            raise AssetError(path, number, f"unknown letter {letter!r}; the legend has: {''.join(assets.legend)}")
    room.rows.append(line)


def _check_rooms(path: Path, assets: Assets) -> None:
    """Check the walkers, the sign and the edges of each room."""
    for number, room in assets.rooms.items():
        _check_walkers(path, assets, number, room)
        has_sign = any(assets.legend[letter].kind == "sign" for row in room.rows for letter in row)
        if has_sign != (room.sign is not None):
            raise AssetError(path, room.line, f"room {number}: a sign in the rows needs 'sign NAME', and the reverse")
        _check_edges(path, assets, number, room)


def _check_walkers(path: Path, assets: Assets, number: int, room: Room) -> None:
    """Check that a room has few enough walkers, and none near an entrance."""
    cells = [(row, column) for row in range(HEIGHT) for column in range(WIDTH)]
    walkers = [(row, column) for row, column in cells if assets.legend[room.rows[row][column]].walker != WALKERS[0]]
    if len(walkers) > MAX_WALKERS:
        raise AssetError(path, room.line, f"room {number} has more than {MAX_WALKERS} walkers")
    for row, column in cells:
        is_on_edge = row in (0, HEIGHT - 1) or column in (0, WIDTH - 1)
        if not is_on_edge or not assets.is_walkable(room.rows[row][column]):
            continue
        for walker_row, walker_column in walkers:
            if max(abs(walker_row - row), abs(walker_column - column)) < MIN_WALKER_DISTANCE:
                problem = f"room {number}: a walker must be {MIN_WALKER_DISTANCE} tiles from a way in, so that nobody "
                raise AssetError(path, room.line + 1 + walker_row, problem + "is hurt on entering")


def _check_edges(path: Path, assets: Assets, number: int, room: Room) -> None:
    """Check that each cell of an edge is walkable on both sides of the edge or on neither.

    The left and upper edges are checked with the neighbour on that side, unless they are the edge of the world.
    """
    first, columns = (0, 4) if number < 16 else (16, 2)  # the world has 4x4 rooms, the cave 2x2
    row, column = divmod(number - first, columns)
    right = assets.rooms[number + 1] if column + 1 < columns else None
    below = assets.rooms[number + columns] if row + 1 < columns else None
    edges: list[tuple[str, str, str | None]] = [
        ("right", "".join(r[-1] for r in room.rows), "".join(r[0] for r in right.rows) if right else None),
        ("lower", room.rows[-1], below.rows[0] if below else None),
    ]
    edges += [("left", "".join(r[0] for r in room.rows), None)] if column == 0 else []
    edges += [("upper", room.rows[0], None)] if row == 0 else []
    for side, cells, neighbour_cells in edges:
        for i, letter in enumerate(cells):
            neighbour = neighbour_cells[i] if neighbour_cells is not None else None
            if assets.is_walkable(letter) != (neighbour is not None and assets.is_walkable(neighbour)):
                beyond = f"{neighbour!r} on the other side" if neighbour is not None else "the end of the world"
                raise AssetError(path, room.line, f"room {number}: {side} edge, tile {i}: {letter!r} meets {beyond}")
