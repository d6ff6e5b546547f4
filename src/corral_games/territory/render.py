"""The map in colours, with who is ahead: as a picture, or as text for a terminal."""

from __future__ import annotations

import colorsys
import shutil
import sys
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from corral_games.territory.rules import capacity
from corral_games.territory.state import World

__all__ = ["AGENT", "draw_picture", "draw_text"]

Pixels = npt.NDArray[np.uint8]
AGENT = (235, 30, 40)
"""The agent's colour: no bot has one like it."""
_FREE = np.array([(38, 58, 84), (226, 221, 205), (202, 193, 168), (168, 158, 138)], np.uint8)  # by terrain
_LIGHT = np.array([100, 100, 88, 74])  # percent, by terrain: land that somebody owns
_PIXELS, _COLUMNS = 512, 80
_BARS, _LINE = 6, 18


def draw_picture(world: World, step: int, max_steps: int) -> Pixels:
    """Pixels [H, W, 3]: the map with its borders, and below it bars for the largest players."""
    size = world.width - 2
    scale = round(_PIXELS / size)
    picture = _colour(world).repeat(scale, axis=0).repeat(scale, axis=1)
    _draw_borders(picture, world, scale)
    strip = Image.new("RGB", (picture.shape[1], 2 * _LINE + _BARS * _LINE), (24, 26, 30))
    draw, font = ImageDraw.Draw(strip), ImageFont.load_default(12)
    draw.text((8, 4), _headline(world, step, max_steps), (240, 240, 240), font)
    land, all_land = world.land.tolist(), world.all_land
    length, most = picture.shape[1] - 130, max(land)
    for line, player in enumerate(_largest(world)):
        top = (line + 1) * _LINE + 8
        colour = tuple(_palette(world.players)[player].tolist())
        draw.text((8, top), "you" if player == 0 else f"bot {player}", (240, 240, 240), font)
        draw.rectangle((60, top + 2, 60 + length * land[player] // most, top + 13), colour)
        draw.text((68 + length, top), f"{100 * land[player] / all_land:.1f}%", (240, 240, 240), font)
    return np.concatenate([picture, np.asarray(strip)])


def draw_text(world: World, step: int, max_steps: int) -> str:
    """Half-block characters in 24-bit colours, at most 80 columns, and a line for each of the largest players.

    On a terminal, as much as fits on it.
    """
    size = world.width - 2
    columns, room = _COLUMNS, size
    if sys.stdout.isatty():
        terminal = shutil.get_terminal_size()
        columns, room = min(_COLUMNS, terminal.columns), max(8, terminal.lines - _BARS - 3)
    every = max(-(-size // columns), -(-size // (2 * room)))
    colours = _colour(world)[::every, ::every]
    if len(colours) % 2:
        colours = np.concatenate([colours, np.zeros_like(colours[:1])])
    lines = [
        "".join(f"{_ansi(38, a)}{_ansi(48, b)}▀" for a, b in zip(above, below, strict=True)) + "\x1b[0m"
        for above, below in zip(colours[::2].tolist(), colours[1::2].tolist(), strict=True)
    ]
    lines.append(_headline(world, step, max_steps))
    for player in _largest(world):
        share = int(world.land[player]) / world.all_land
        bar = "█" * -(-50 * int(world.land[player]) // int(world.land.max()))
        name = "you" if player == 0 else f"bot {player}"
        colour = _ansi(38, _palette(world.players)[player].tolist())
        lines.append(f"{name:<7}{100 * share:5.1f}% {colour}{bar}\x1b[0m")
    return "\n".join(lines)


def _headline(world: World, step: int, max_steps: int) -> str:
    land, home, away = int(world.land[0]), int(world.home[0]), int(world.away[0])
    alive = int(np.count_nonzero(world.land))
    troops = f"troops {100 * home // int(capacity(land))}% at home, {100 * away // int(capacity(land))}% attacking"
    return f"step {step} of {max_steps}   rank {world.rank(0)} of {world.players} ({alive} alive)   {troops}"


def _largest(world: World) -> list[int]:
    """The players with most land, the agent among them."""
    order = np.argsort(-world.land, kind="stable").tolist()
    shown = order[:_BARS]
    return shown if 0 in shown else [*shown[:-1], 0]


def _palette(players: int) -> Pixels:
    """A colour for each player: the agent's, and muted ones, far from red, for the bots."""
    colours: list[Any] = [AGENT]
    for bot in range(players - 1):
        hue = (35 + 290 * (bot * 0.618034 % 1)) / 360
        red, green, blue = colorsys.hsv_to_rgb(hue, (0.65, 0.4, 0.5)[bot % 3], (0.8, 0.9, 0.6)[bot % 3])
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return np.array(colours, np.uint8)


def _colour(world: World) -> Pixels:
    """A colour for each tile [S, S, 3]."""
    owner, terrain = world.owner.astype(np.int64), world.terrain.astype(np.int64)
    owned = _palette(world.players)[np.maximum(owner, 0)] * _LIGHT[terrain][:, None] // 100
    tiles = np.where((owner >= 0)[:, None], owned, _FREE[terrain]).astype(np.uint8)
    return tiles.reshape(world.width, world.width, 3)[1:-1, 1:-1]


def _draw_borders(picture: Pixels, world: World, scale: int) -> None:
    """Darken the first row or column of pixels of a tile where the owner changes."""
    owner = world.owner.reshape(world.width, world.width)[1:-1, 1:-1]
    owner = np.maximum(owner, -1)  # a coast is no border
    above = (owner[1:] != owner[:-1]).repeat(scale, axis=1)
    left = (owner[:, 1:] != owner[:, :-1]).repeat(scale, axis=0)
    rows, columns = picture[scale::scale], picture[:, scale::scale]
    rows[above] = rows[above] // 3
    columns[left] = columns[left] // 3


def _ansi(ground: int, colour: list[int]) -> str:
    return f"\x1b[{ground};2;{colour[0]};{colour[1]};{colour[2]}m"
