"""Reads the drawings, rooms and words of Stray Bell and turns them into C tables. Used by build.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["AssetError", "Assets", "read_assets"]

SHADES = ".-+#"
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
OPEN_KINDS = {"free", "tall_grass", "coin", "heart", "key"}
WALKERS = ["nobody", "burr", "goose", "wisp", "hen"]
WIDTH, HEIGHT, ROOMS = 10, 8, 20
NEW_LINE, NEW_PAGE, END = 0xFD, 0xFE, 0xFF
LINE_WIDTH, PAGE_LINES = 18, 4


class AssetError(Exception):
    """A mistake in an asset: which file, which line, what was expected."""

    def __init__(self, path: Path, line: int, text: str) -> None:
        super().__init__(f"{path.name}:{line}: {text}")


@dataclass
class Cell:
    """One letter of the rooms' legend."""

    picture: str
    kind: str
    walker: str = "nobody"


@dataclass
class Room:
    """One room: its rows of letters, where in the file they begin, and what its sign says."""

    rows: list[str]
    line: int
    sign: str | None = None


@dataclass
class Assets:
    """All that was read, with 8x8 tiles already numbered."""

    background: list[bytes] = field(default_factory=list)
    sprites: list[bytes] = field(default_factory=list)
    pictures: dict[str, list[int]] = field(default_factory=dict)  # background: 4 tiles; letters: 1; tall digits: 2
    looks: dict[str, int] = field(default_factory=dict)  # sprites: number of the first tile
    letters: dict[str, int] = field(default_factory=dict)
    legend: dict[str, Cell] = field(default_factory=dict)
    rooms: dict[int, Room] = field(default_factory=dict)
    words: dict[str, list[int]] = field(default_factory=dict)


def _lines(path: Path) -> list[tuple[int, str]]:
    """Lines with their numbers, without comments (from `;` on at the start of a line) and blank lines."""
    lines = list(enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1))
    for number, line in lines:
        if not line.isascii():
            raise AssetError(path, number, f"expected ASCII letters only, found {line!r}")
    return [(number, line.rstrip()) for number, line in lines if line.strip() and not line.startswith(";")]


def _tile(rows: list[str]) -> bytes:
    """Eight rows of eight shades as the LCD wants them: two bytes per row, low bits first."""
    data = bytearray()
    for row in rows:
        values = [SHADES.index(letter) for letter in row]
        data.append(sum((value & 1) << (7 - place) for place, value in enumerate(values)))
        data.append(sum((value >> 1) << (7 - place) for place, value in enumerate(values)))
    return bytes(data)


def _quarters(rows: list[str]) -> list[bytes]:
    """Top left, top right, bottom left, bottom right of a picture of 16x16."""
    return [_tile([row[x : x + 8] for row in rows[y : y + 8]]) for y in (0, 8) for x in (0, 8)]


def _number(assets: Assets, tile: bytes) -> int:
    """The number of a background tile; equal tiles share one."""
    if tile not in assets.background:
        assets.background.append(tile)
    return assets.background.index(tile)


def _blocks(path: Path, height: int, width: int, allowed: str) -> list[tuple[int, str, list[str], list[list[str]]]]:
    """Blocks of `kind: name name ...` with their pictures side by side: (line, kind, names, pictures)."""
    blocks = []
    lines = _lines(path)
    while lines:
        at, header = lines.pop(0)
        kind, colon, names = header.partition(":")
        if not colon or not names.split():
            raise AssetError(path, at, f"expected 'kind: names', found {header!r}")
        wanted = names.split()
        pictures: list[list[str]] = [[] for _ in wanted]
        for _ in range(height):
            if not lines:
                raise AssetError(path, at, f"the block ends before its {height} rows do")
            number, line = lines.pop(0)
            parts = line.split()
            if len(parts) != len(wanted):
                text = f"expected {len(wanted)} pieces of {width} characters, found {len(parts)}"
                raise AssetError(path, number, text)
            for name, part, picture in zip(wanted, parts, pictures, strict=True):
                if len(part) != width:
                    raise AssetError(path, number, f"{name}: expected {width} characters, found {len(part)}: {part}")
                unknown = set(part) - set(allowed)
                if unknown:
                    raise AssetError(path, number, f"{name}: unknown character {min(unknown)!r}, allowed: {allowed}")
                picture.append(part)
        blocks.append((at, kind.strip(), wanted, pictures))
    return blocks


def _read_font(path: Path, assets: Assets) -> None:
    """Letters of 5x7 become tiles of 8x8; digits also white on black and twice as tall, for the bar."""
    assets.letters[" "] = _number(assets, bytes(16))
    for at, kind, names, pictures in _blocks(path, 7, 5, ".#"):
        if kind != "letters":
            raise AssetError(path, at, f"expected 'letters:', found {kind!r}")
        for name, rows in zip(names, pictures, strict=True):
            cell = ["." * 8] + [f".{row}.." for row in rows]
            assets.letters[name] = _number(assets, _tile(cell))
            if name.isdigit():
                swapped = [row.translate(str.maketrans(".#", "#.")) for row in cell[1:]]
                tall = ["#" * 8] + [row for row in swapped for _ in (0, 1)] + ["#" * 8]
                assets.pictures["tall_" + name] = [_number(assets, _tile(tall[:8])), _number(assets, _tile(tall[8:]))]


def _read_big_letters(path: Path, assets: Assets, word: str) -> None:
    """The letters of the title: twice the size, with a shadow."""
    drawn: dict[str, list[str]] = {}
    for _, _, names, pictures in _blocks(path, 7, 5, ".#"):
        drawn |= dict(zip(names, pictures, strict=True))
    for name in sorted(set(word)):
        if name not in drawn:
            raise AssetError(path, 1, f"the title needs the letter {name!r}, which is not drawn")
        grid = [["."] * 16 for _ in range(16)]
        for shade, shift in (("+", 1), ("#", 0)):
            for y, row in enumerate(drawn[name]):
                for x, dot in enumerate(row):
                    if dot == "#":
                        for dy in (0, 1):
                            for dx in (0, 1):
                                grid[2 * y + dy + shift][2 * x + dx + 2 + shift] = shade
        assets.pictures["big_" + name] = [_number(assets, tile) for tile in _quarters(["".join(row) for row in grid])]


def _read_tiles(path: Path, assets: Assets) -> None:
    """Pictures of 16x16. `over grass floor: coin` draws coin over both; `_` lets the ground show through."""
    grounds: dict[str, list[str]] = {}
    for at, kind, names, pictures in _blocks(path, 16, 16, SHADES + "_"):
        for name, rows in zip(names, pictures, strict=True):
            if kind.startswith("over "):
                for place, ground in enumerate(kind.split()[1:]):
                    if ground not in grounds:
                        raise AssetError(path, at, f"unknown ground {ground!r}, drawn so far: {', '.join(grounds)}")
                    both = zip(rows, grounds[ground], strict=True)
                    merged = ["".join(b if a == "_" else a for a, b in zip(*pair, strict=True)) for pair in both]
                    full_name = name if place == 0 else f"{name}_on_{ground}"
                    assets.pictures[full_name] = [_number(assets, tile) for tile in _quarters(merged)]
            elif kind == "background":
                if any("_" in row for row in rows):
                    raise AssetError(path, at, f"{name}: '_' is only for 'over' pictures")
                grounds[name] = rows
                assets.pictures[name] = [_number(assets, tile) for tile in _quarters(rows)]
            elif kind == "sprites":
                assets.looks[name] = len(assets.sprites)
                top_left, top_right, bottom_left, bottom_right = _quarters(rows)
                assets.sprites += [top_left, bottom_left, top_right, bottom_right]
            else:
                raise AssetError(path, at, f"unknown kind {kind!r}; there are: background, over GROUND ..., sprites")


def _read_words(path: Path, assets: Assets) -> None:
    """Texts: `name:` and indented lines; a line of `---` begins a new page."""
    name = ""
    lines_on_page = 0
    for number, line in _lines(path):
        if not line.startswith(" "):
            if not line.endswith(":"):
                raise AssetError(path, number, f"expected 'name:' or an indented line, found {line!r}")
            name = line[:-1]
            assets.words[name], lines_on_page = [], 0
            continue
        text = line.strip()
        if not name or (text == "---" and not assets.words[name]):
            raise AssetError(
                path, number, f"{text!r} follows nothing; expected {'some text' if name else 'name:'} first"
            )
        if text == "---":
            assets.words[name][-1] = NEW_PAGE
            lines_on_page = 0
            continue
        unknown = [letter for letter in text if letter not in assets.letters]
        lines_on_page += 1
        if unknown:
            raise AssetError(path, number, f"no drawing for the letter {unknown[0]!r} in font.txt")
        if len(text) > LINE_WIDTH or lines_on_page > PAGE_LINES:
            raise AssetError(path, number, f"a page has {PAGE_LINES} lines of {LINE_WIDTH} letters; this is too long")
        assets.words[name] += [assets.letters[letter] for letter in text] + [NEW_LINE]
    for name, codes in assets.words.items():
        if not codes:
            raise AssetError(path, 1, f"{name!r} has no text")
        codes[-1] = END


def _read_rooms(path: Path, assets: Assets) -> None:
    """The legend (`legend` then `letter picture kind [walker]`), then `room N [sign NAME]` with its eight rows."""
    lines = _lines(path)
    room: Room | None = None
    for number, line in lines:
        parts = line.split()
        if parts[0] == "legend":
            continue
        if parts[0] == "room":
            if len(parts) not in (2, 4) or not parts[1].isdigit() or int(parts[1]) >= ROOMS:
                raise AssetError(path, number, f"expected 'room 0..{ROOMS - 1} [sign NAME]', found {line!r}")
            room = Room([], number, parts[3] if len(parts) == 4 else None)
            if room.sign is not None and room.sign not in assets.words:
                raise AssetError(path, number, f"words.txt has no {room.sign!r}")
            assets.rooms[int(parts[1])] = room
        elif room is None:
            if len(parts) not in (3, 4) or len(parts[0]) != 1:
                raise AssetError(path, number, f"expected 'letter picture kind [walker]', found {line!r}")
            whole = [name for name, numbers in assets.pictures.items() if len(numbers) == 4]
            walker = parts[3] if len(parts) == 4 else WALKERS[0]
            for value, known in ((parts[1], whole), (parts[2], KINDS), (walker, WALKERS)):
                if value not in known:
                    raise AssetError(path, number, f"unknown {value!r}; there are: {', '.join(known)}")
            assets.legend[parts[0]] = Cell(*parts[1:])
        else:
            if len(line) != WIDTH or len(room.rows) == HEIGHT:
                raise AssetError(path, number, f"expected {HEIGHT} rows of {WIDTH} letters, found {line!r}")
            for letter in line:
                if letter not in assets.legend:
                    letters = "".join(assets.legend)
                    raise AssetError(path, number, f"unknown letter {letter!r}; the legend has: {letters}")
            room.rows.append(line)
    for number in range(ROOMS):
        if number not in assets.rooms or len(assets.rooms[number].rows) != HEIGHT:
            raise AssetError(path, 1, f"room {number} is missing or has not {HEIGHT} rows")
    _check_rooms(path, assets)


def _open(assets: Assets, letter: str) -> bool:
    return assets.legend[letter].kind in OPEN_KINDS


def _check_walkers(path: Path, assets: Assets, number: int, room: Room) -> None:
    """At most four to a room, none right at a way in."""
    cells = [(row, column) for row in range(HEIGHT) for column in range(WIDTH)]
    walkers = [at for at in cells if assets.legend[room.rows[at[0]][at[1]]].walker != "nobody"]
    if len(walkers) > 4:
        raise AssetError(path, room.line, f"room {number} has more than 4 walkers")
    for row, column in cells:
        if not (row in (0, HEIGHT - 1) or column in (0, WIDTH - 1)) or not _open(assets, room.rows[row][column]):
            continue
        for at in walkers:
            if max(abs(at[0] - row), abs(at[1] - column)) < 2:
                text = f"room {number}: a walker must be 2 tiles from a way in, so that nobody is hurt on entering"
                raise AssetError(path, room.line + 1 + at[0], text)


def _check_rooms(path: Path, assets: Assets) -> None:
    """Borders of neighbours agree, ways out lead somewhere, signs have words, walkers leave the ways in free."""
    for number, room in assets.rooms.items():
        _check_walkers(path, assets, number, room)
        if any(assets.legend[letter].kind == "sign" for row in room.rows for letter in row) != (room.sign is not None):
            raise AssetError(path, room.line, f"room {number}: a sign in the rows needs 'sign NAME', and the reverse")
        _check_edges(path, assets, number, room)


def _check_edges(path: Path, assets: Assets, number: int, room: Room) -> None:
    """Each tile of an edge is open on both sides or on neither. Left and upper edges are their neighbours' affair."""
    first, columns = (0, 4) if number < 16 else (16, 2)
    row, column = divmod(number - first, columns)
    right = assets.rooms[number + 1] if column + 1 < columns else None
    below = assets.rooms[number + columns] if row + 1 < columns else None
    edges: list[tuple[str, str, str | None]] = [
        ("right", "".join(r[-1] for r in room.rows), "".join(r[0] for r in right.rows) if right else None),
        ("lower", room.rows[-1], below.rows[0] if below else None),
    ]
    edges += [("left", "".join(r[0] for r in room.rows), None)] if column == 0 else []
    edges += [("upper", room.rows[0], None)] if row == 0 else []
    for side, mine, theirs in edges:
        for place, letter in enumerate(mine):
            other = theirs[place] if theirs is not None else None
            if _open(assets, letter) != (other is not None and _open(assets, other)):
                beyond = f"{other!r} on the other side" if other is not None else "the end of the world"
                raise AssetError(
                    path, room.line, f"room {number}: {side} edge, tile {place}: {letter!r} meets {beyond}"
                )


def read_assets(folder: Path) -> Assets:
    """Read font.txt, tiles.txt, words.txt and rooms.txt; the first mistake raises AssetError."""
    assets = Assets()
    _read_font(folder / "font.txt", assets)
    _read_tiles(folder / "tiles.txt", assets)
    _read_big_letters(folder / "font.txt", assets, "STRAYBELL")
    for count, limit, what in ((len(assets.background), 256, "background"), (len(assets.sprites), 128, "sprite")):
        if count > limit:
            raise AssetError(folder / "tiles.txt", 1, f"{count} different {what} tiles of 8x8, at most {limit} fit")
    _read_words(folder / "words.txt", assets)
    _read_rooms(folder / "rooms.txt", assets)
    return assets
