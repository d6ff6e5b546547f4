"""Stray Bell in PyBoy for tests: buttons, the status block by name, and a scripted player that finishes the quest."""

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
BYTE_ADDRESSES = {
    "mode": 0xC002, "room": 0xC003, "x": 0xC004, "y": 0xC005, "facing": 0xC006, "health": 0xC007,
    "max_health": 0xC008, "coins": 0xC009, "keys": 0xC00A, "door_open": 0xC00B, "chest_open": 0xC00C,
    "talks": 0xC00D, "in_dungeon": 0xC00E, "hurts": 0xC010, "sword": 0xC012, "shield_time": 0xC013,
    "beaten": 0xC014, "late": 0xC01A,
}  # fmt: skip
WORD_ADDRESSES = {"rng": 0xC016, "frames": 0xC018}
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
        if name in BYTE_ADDRESSES:
            return self.memory[BYTE_ADDRESSES[name]]
        if name in WORD_ADDRESSES:
            return self.memory[WORD_ADDRESSES[name]] + 256 * self.memory[WORD_ADDRESSES[name] + 1]
        raise AttributeError(name)

    def __setattr__(self, name, value):
        if name in BYTE_ADDRESSES:
            self.memory[BYTE_ADDRESSES[name]] = value
        elif name in WORD_ADDRESSES:
            self.memory[WORD_ADDRESSES[name]], self.memory[WORD_ADDRESSES[name] + 1] = value & 255, value >> 8
        else:
            self.__dict__[name] = value

    @property
    def tiles(self):
        codes = self.memory[0xC050:0xC0A0]
        return [list(codes[row * 10 : row * 10 + 10]) for row in range(8)]

    @property
    def enemies(self):
        """(kind, x, y, hits) of each of the four enemies; kind is 0 for one that is absent."""
        block = self.memory[0xC030:0xC040]
        return [tuple(block[i : i + 4]) for i in range(0, 16, 4)]

    @property
    def visited(self):
        bits = self.memory[0xC020] | self.memory[0xC021] << 8 | self.memory[0xC022] << 16
        return {room for room in range(24) if bits >> room & 1}

    @property
    def coins_taken(self):
        return sum(self.memory[0xC024 + i].bit_count() for i in range(3))

    def render(self):
        """Run one frame and return its pixels, row by row."""
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
        """Run one step of the env: four frames. A and B are released in the last one, so that they can be pressed again."""
        self.steps += 1
        if button in ("a", "b"):
            self.hold(button, FRAMES_PER_STEP - 1)
            self.wait(1)
        elif button is None:
            self.wait(FRAMES_PER_STEP)
        else:
            self.hold(button, FRAMES_PER_STEP)

    def move_hero_to(self, room, x=64, y=64, remove_enemies=True):
        """Put the hero into another room, by way of its entrance, and remove the enemies from it."""
        self.memory[0xC030:0xC040] = [0] * 16
        self.wait(12)
        self.room, self.x, self.y = (room - 1, 144, 56) if room else (1, 0, 56)
        self.in_dungeon = room >= 16
        self.hold("right" if room else "left", 2)
        self.wait(6)
        assert self.room == room
        self.x, self.y = x, y
        if remove_enemies:
            self.memory[0xC030:0xC040] = [0] * 16
            self.wait(1)

    def find(self, *codes):
        return [(row, column) for row in range(8) for column in range(10) if self.tiles[row][column] in codes]

    def close(self):
        self.boy.stop(save=False)


def _tile_cost(game, row, column):
    """Return the cost of walking over a tile for the search of paths: more near an enemy."""
    distances = [(abs(x - 16 * column), abs(y - 16 * row)) for kind, x, y, _ in game.enemies if kind]
    return 1 + sum(8 if max(dx, dy) < 20 else 3 if max(dx, dy) < 36 else 0 for dx, dy in distances)


def find_path(game, goals):
    """Return the tiles from the hero to the goal of the cheapest path, without the tile under the hero (Dijkstra)."""
    tiles = game.tiles
    start = ((game.y + 11) // 16, (game.x + 8) // 16)
    queue, previous_tiles = [(0, start, start)], {}
    while queue:
        cost, tile, previous = heapq.heappop(queue)
        if tile in previous_tiles:
            continue
        previous_tiles[tile] = previous
        if tile in goals:
            path_backwards = [tile]
            while previous_tiles[path_backwards[-1]] != path_backwards[-1]:
                path_backwards.append(previous_tiles[path_backwards[-1]])
            return path_backwards[-2::-1]
        for dy, dx in MOVES.values():
            row, column = tile[0] + dy, tile[1] + dx
            inside = 0 <= row < 8 and 0 <= column < 10
            if inside and (tiles[row][column] in WALKABLE or (row, column) in goals):
                heapq.heappush(queue, (cost + _tile_cost(game, row, column), (row, column), tile))
    raise AssertionError(f"no path to {goals} in room {game.room}: {tiles}")


def _swing_at_enemy(game):
    """Swing the sword if an enemy is right in front of the hero; return whether that was so."""
    rows, columns = list(MOVES.values())[game.facing]
    x, y = game.x + 14 * columns, game.y + 14 * rows
    if any(kind and abs(ex - x) < 14 and abs(ey - y) < 14 for kind, ex, ey, _ in game.enemies):
        game.step("b")
        return True
    return False


def walk(game, goals, condition, max_steps=200):
    """Walk to one of the tiles (and into it, if it is solid) until ``condition()`` is true."""
    for _ in range(max_steps):
        if condition():
            return
        if game.mode != PLAY or game.sword or _swing_at_enemy(game):
            if game.sword:
                game.step(None)
            assert game.mode == PLAY, f"mode {game.mode}"
            continue
        path = find_path(game, goals)
        if not path:
            game.step(None)
            continue
        row, column = (game.y + 11) // 16, (game.x + 8) // 16
        game.step({move: name for name, move in MOVES.items()}[path[0][0] - row, path[0][1] - column])
    raise AssertionError(f"goal not reached after {max_steps} steps: room {game.room} at {game.x}, {game.y}")


def walk_to_next_room(game, side):
    """Walk into the neighbouring room on that side."""
    old_room = game.room
    edge = {
        "up": [(0, column) for column in range(10)],
        "down": [(7, column) for column in range(10)],
        "left": [(row, 0) for row in range(8)],
        "right": [(row, 9) for row in range(8)],
    }[side]
    goals = {(row, column) for row, column in edge if game.tiles[row][column] in WALKABLE}
    walk(game, goals, lambda: ((game.y + 11) // 16, (game.x + 8) // 16) in goals or game.room != old_room)
    for _ in range(20):
        if game.room != old_room:
            game.step(None)
            return
        game.step(side)
    raise AssertionError(f"no way out of room {old_room} {side}")


def finish_quest(game):
    """Play the whole quest by pressing buttons; return the number of steps until each goal."""
    steps_by_goal = {}
    walk(game, set(game.find(VILLAGER)), lambda: _hero_faces(game, VILLAGER))
    talk(game)
    steps_by_goal["talk"] = game.steps
    for side in ("right", "right", "up"):
        walk_to_next_room(game, side)
    walk(game, set(game.find(KEY)), lambda: game.keys == 1)
    steps_by_goal["key"] = game.steps
    for side in ("down", "left", "down"):
        walk_to_next_room(game, side)
    walk(game, set(game.find(LOCKED)), lambda: game.door_open == 1)
    steps_by_goal["door"] = game.steps
    walk(game, set(game.find(DOORWAY)), lambda: game.in_dungeon == 1)
    steps_by_goal["dungeon"] = game.steps
    for side in ("up", "right", "down"):
        walk_to_next_room(game, side)
    walk(game, set(game.find(CHEST)), lambda: game.chest_open == 1)
    talk(game)
    steps_by_goal["chest"] = game.steps
    for side in ("up", "left", "down"):
        walk_to_next_room(game, side)
    walk(game, set(game.find(DOORWAY)), lambda: game.in_dungeon == 0)
    for side in ("up", "left"):
        walk_to_next_room(game, side)
    walk(game, set(game.find(VILLAGER)), lambda: _hero_faces(game, VILLAGER))
    talk(game)
    steps_by_goal["won"] = game.steps
    return steps_by_goal


def _hero_faces(game, kind):
    """Return whether the hero stands next to a tile of this kind and faces it."""
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
