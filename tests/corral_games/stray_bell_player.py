"""Stray Bell in PyBoy for tests: buttons, the status block by name, and a player who knows the way."""

from __future__ import annotations

import heapq
import warnings
from pathlib import Path

import corral_games

ROM = Path(corral_games.__file__).parent / "game_boy" / "stray_bell.gb"
FRAMES_PER_STEP = 4
TITLE, PLAY, DIALOGUE, DEAD, WON = range(5)
DOWN, UP, LEFT, RIGHT = range(4)
FREE, SOLID, WATER, TALL_GRASS, COIN, HEART, KEY, LOCKED, CHEST, VILLAGER, DOORWAY, SIGN, OPEN_CHEST = range(13)
WALKABLE = {FREE, TALL_GRASS, COIN, HEART, KEY}
BYTES = {
    "mode": 0xC002, "room": 0xC003, "x": 0xC004, "y": 0xC005, "facing": 0xC006, "health": 0xC007,
    "max_health": 0xC008, "coins": 0xC009, "keys": 0xC00A, "door_open": 0xC00B, "chest_open": 0xC00C,
    "talks": 0xC00D, "in_dungeon": 0xC00E, "hurts": 0xC010, "sword": 0xC012, "shield_time": 0xC013,
    "beaten": 0xC014, "late": 0xC01A,
}  # fmt: skip
WORDS = {"rng": 0xC016, "frames": 0xC018}
MOVES = {"down": (1, 0), "up": (-1, 0), "left": (0, -1), "right": (0, 1)}
TITLE_FRAMES = 90


class Game:
    """One running game. The fields of the status block are attributes that can be read and written."""

    def __init__(self, seed: int = 1, start: bool = True) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pyboy import PyBoy
        boy = PyBoy(str(ROM), window="null", sound_emulated=False, log_level="ERROR")
        self.__dict__.update(boy=boy, memory=boy.memory, steps=0)
        self.wait(TITLE_FRAMES)
        if start:
            self.hold("start", 2)
            self.wait(8)
            self.rng = seed

    def __getattr__(self, name):
        if name in BYTES:
            return self.memory[BYTES[name]]
        if name in WORDS:
            return self.memory[WORDS[name]] + 256 * self.memory[WORDS[name] + 1]
        raise AttributeError(name)

    def __setattr__(self, name, value):
        if name in BYTES:
            self.memory[BYTES[name]] = value
        elif name in WORDS:
            self.memory[WORDS[name]], self.memory[WORDS[name] + 1] = value & 255, value >> 8
        else:
            self.__dict__[name] = value

    @property
    def tiles(self):
        codes = self.memory[0xC050:0xC0A0]
        return [list(codes[row * 10 : row * 10 + 10]) for row in range(8)]

    @property
    def enemies(self):
        """(kind, x, y, hits) of each of the four, also of those that are not there."""
        block = self.memory[0xC030:0xC040]
        return [tuple(block[i : i + 4]) for i in range(0, 16, 4)]

    @property
    def visited(self):
        bits = self.memory[0xC020] | self.memory[0xC021] << 8 | self.memory[0xC022] << 16
        return {room for room in range(24) if bits >> room & 1}

    @property
    def coins_taken(self):
        return sum(self.memory[0xC024 + i].bit_count() for i in range(3))

    def picture(self):
        """One more frame, drawn: its shades, row by row."""
        self.boy.tick(1, True, False)
        return self.boy.screen.ndarray[:, :, 0].tobytes()

    @property
    def ram(self):
        return bytes(self.memory[0xC000:0xE000])

    def wait(self, frames):
        self.boy.tick(frames, False)

    def hold(self, button, frames):
        self.boy.button_press(button)
        self.boy.tick(frames, False)
        self.boy.button_release(button)

    def step(self, button):
        """One step of the env: four frames. A and B are let go for the last of them, so that they count anew."""
        self.steps += 1
        if button in ("a", "b"):
            self.hold(button, FRAMES_PER_STEP - 1)
            self.wait(1)
        elif button is None:
            self.wait(FRAMES_PER_STEP)
        else:
            self.hold(button, FRAMES_PER_STEP)

    def go(self, room, x=64, y=64, clear=True):
        """Set up: the hero stands in another room, with no enemies unless `clear` is False."""
        self.memory[0xC030:0xC040] = [0] * 16
        self.wait(12)
        self.room, self.x, self.y = (room - 1, 144, 56) if room else (1, 0, 56)
        self.in_dungeon = room >= 16
        self.hold("right" if room else "left", 2)
        self.wait(6)
        assert self.room == room
        self.x, self.y = x, y
        if clear:
            self.memory[0xC030:0xC040] = [0] * 16
            self.wait(1)

    def find(self, *codes):
        return [(row, column) for row in range(8) for column in range(10) if self.tiles[row][column] in codes]

    def close(self):
        self.boy.stop(save=False)


def _danger(game, row, column):
    """What it costs to walk over a tile: more near an enemy."""
    near = [(abs(x - 16 * column), abs(y - 16 * row)) for kind, x, y, _ in game.enemies if kind]
    return 1 + sum(8 if max(dx, dy) < 20 else 3 if max(dx, dy) < 36 else 0 for dx, dy in near)


def path(game, goals):
    """Tiles from the hero to the cheapest of the goals, without the one under the hero."""
    tiles = game.tiles
    start = ((game.y + 11) // 16, (game.x + 8) // 16)
    queue, came = [(0, start, start)], {}
    while queue:
        cost, at, before = heapq.heappop(queue)
        if at in came:
            continue
        came[at] = before
        if at in goals:
            found = [at]
            while came[found[-1]] != found[-1]:
                found.append(came[found[-1]])
            return found[-2::-1]
        for rows, columns in MOVES.values():
            row, column = at[0] + rows, at[1] + columns
            inside = 0 <= row < 8 and 0 <= column < 10
            if inside and (tiles[row][column] in WALKABLE or (row, column) in goals):
                heapq.heappush(queue, (cost + _danger(game, row, column), (row, column), at))
    raise AssertionError(f"no way to {goals} in room {game.room}: {tiles}")


def _fight(game):
    """Whether an enemy is right before the sword; if so, swing."""
    rows, columns = list(MOVES.values())[game.facing]
    x, y = game.x + 14 * columns, game.y + 14 * rows
    if any(kind and abs(ex - x) < 14 and abs(ey - y) < 14 for kind, ex, ey, _ in game.enemies):
        game.step("b")
        return True
    return False


def walk(game, goals, until, limit=200):
    """Walk to one of the tiles (and into it, if it is solid) until `until()` is true."""
    for _ in range(limit):
        if until():
            return
        if game.mode != PLAY or game.sword or _fight(game):
            if game.sword:
                game.step(None)
            assert game.mode == PLAY, f"mode {game.mode}"
            continue
        way = path(game, goals)
        if not way:
            game.step(None)
            continue
        row, column = (game.y + 11) // 16, (game.x + 8) // 16
        game.step({move: name for name, move in MOVES.items()}[way[0][0] - row, way[0][1] - column])
    raise AssertionError(f"not there after {limit} steps: room {game.room} at {game.x}, {game.y}")


def walk_out(game, side):
    """Walk into the neighbouring room."""
    before = game.room
    edge = {
        "up": [(0, column) for column in range(10)],
        "down": [(7, column) for column in range(10)],
        "left": [(row, 0) for row in range(8)],
        "right": [(row, 9) for row in range(8)],
    }[side]
    goals = {(row, column) for row, column in edge if game.tiles[row][column] in WALKABLE}
    walk(game, goals, lambda: ((game.y + 11) // 16, (game.x + 8) // 16) in goals or game.room != before)
    for _ in range(20):
        if game.room != before:
            game.step(None)
            return
        game.step(side)
    raise AssertionError(f"no way out of room {before} {side}")


def finish_quest(game):
    """From the start to the bell brought home, by buttons alone. Returns the steps taken until each deed."""
    deeds = {}
    walk(game, set(game.find(VILLAGER)), lambda: _faces(game, VILLAGER))
    talk(game)
    deeds["talk"] = game.steps
    for side in ("right", "right", "up"):
        walk_out(game, side)
    walk(game, set(game.find(KEY)), lambda: game.keys == 1)
    deeds["key"] = game.steps
    for side in ("down", "left", "down"):
        walk_out(game, side)
    walk(game, set(game.find(LOCKED)), lambda: game.door_open == 1)
    deeds["door"] = game.steps
    walk(game, set(game.find(DOORWAY)), lambda: game.in_dungeon == 1)
    deeds["dungeon"] = game.steps
    for side in ("up", "right", "down"):
        walk_out(game, side)
    walk(game, set(game.find(CHEST)), lambda: game.chest_open == 1)
    talk(game)
    deeds["chest"] = game.steps
    for side in ("up", "left", "down"):
        walk_out(game, side)
    walk(game, set(game.find(DOORWAY)), lambda: game.in_dungeon == 0)
    for side in ("up", "left"):
        walk_out(game, side)
    walk(game, set(game.find(VILLAGER)), lambda: _faces(game, VILLAGER))
    talk(game)
    deeds["won"] = game.steps
    return deeds


def _faces(game, kind):
    """Whether the hero looks at a tile of this kind from close by."""
    rows, columns = list(MOVES.values())[game.facing]
    row, column = (game.y + 10 + 14 * rows) // 16, (game.x + 8 + 14 * columns) // 16
    return 0 <= row < 8 and 0 <= column < 10 and game.tiles[row][column] == kind


def talk(game, limit=30):
    """Press A until the dialogue is over."""
    for _ in range(limit):
        game.step("a")
        if game.mode != DIALOGUE:
            return
    raise AssertionError("the dialogue does not end")
