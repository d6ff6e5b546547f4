"""Draws the map in colours and a ranking of the players: as a picture, or as text for a terminal."""

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
"""The agent's colour. The colours of the bots are far from it."""
_FREE_COLOURS = np.array([(38, 58, 84), (226, 221, 205), (202, 193, 168), (168, 158, 138)], np.uint8)
"""Colours of water and free land, by terrain."""
_BRIGHTNESS = np.array([100, 100, 88, 74])
"""Percent by which the owner's colour is multiplied, by terrain."""
_PICTURE_WIDTH, _TEXT_COLUMNS = 512, 80
"""The approximate width of the map in pixels, and its largest width in characters."""
_BARS, _LINE_HEIGHT = 6, 18
"""Number of players in the ranking, and pixels of a line."""
_TEXT_COLOUR = (240, 240, 240)


def draw_picture(world: World, step: int, max_steps: int) -> Pixels:
    """Return pixels [H, W, 3]: the map with its borders, and below it bars for the largest players."""
    size = world.width - 2
    scale = round(_PICTURE_WIDTH / size)
    picture = _tile_colours(world).repeat(scale, axis=0).repeat(scale, axis=1)  # [S * scale, S * scale, 3]
    _draw_borders(picture, world, scale)
    ranking = Image.new("RGB", (picture.shape[1], 2 * _LINE_HEIGHT + _BARS * _LINE_HEIGHT), (24, 26, 30))
    draw, font = ImageDraw.Draw(ranking), ImageFont.load_default(12)
    draw.text((8, 4), _headline(world, step, max_steps), _TEXT_COLOUR, font)
    land, all_land = world.land.tolist(), world.all_land
    bar_length, largest = picture.shape[1] - 130, max(land)
    for line, player in enumerate(_largest_players(world)):
        top = (line + 1) * _LINE_HEIGHT + 8
        colour = tuple(_palette(world.players)[player].tolist())
        draw.text((8, top), _player_name(player), _TEXT_COLOUR, font)
        draw.rectangle((60, top + 2, 60 + bar_length * land[player] // largest, top + 13), colour)
        draw.text((68 + bar_length, top), f"{100 * land[player] / all_land:.1f}%", _TEXT_COLOUR, font)
    return np.concatenate([picture, np.asarray(ranking)])


def draw_text(world: World, step: int, max_steps: int) -> str:
    """Return the map as half-block characters in 24-bit colours, and a line for each of the largest players.

    The map is at most 80 columns wide. If standard output is a terminal, tiles are left out until all fits on it.
    """
    size = world.width - 2
    columns, lines_for_map = _TEXT_COLUMNS, size
    if sys.stdout.isatty():
        terminal = shutil.get_terminal_size()
        columns, lines_for_map = min(_TEXT_COLUMNS, terminal.columns), max(8, terminal.lines - _BARS - 3)
    stride = max(-(-size // columns), -(-size // (2 * lines_for_map)))  # a character shows two rows
    colours = _tile_colours(world)[::stride, ::stride]
    if len(colours) % 2:
        colours = np.concatenate([colours, np.zeros_like(colours[:1])])
    lines = [
        "".join(f"{_ansi(38, a)}{_ansi(48, b)}▀" for a, b in zip(above, below, strict=True)) + "\x1b[0m"
        for above, below in zip(colours[::2].tolist(), colours[1::2].tolist(), strict=True)
    ]
    lines.append(_headline(world, step, max_steps))
    for player in _largest_players(world):
        share = int(world.land[player]) / world.all_land
        bar = "█" * -(-50 * int(world.land[player]) // int(world.land.max()))
        colour = _ansi(38, _palette(world.players)[player].tolist())
        lines.append(f"{_player_name(player):<7}{100 * share:5.1f}% {colour}{bar}\x1b[0m")
    return "\n".join(lines)


def _headline(world: World, step: int, max_steps: int) -> str:
    land, home, away = int(world.land[0]), int(world.home[0]), int(world.away[0])
    alive = int(np.count_nonzero(world.land))
    troops = f"troops {100 * home // int(capacity(land))}% at home, {100 * away // int(capacity(land))}% attacking"
    return f"step {step} of {max_steps}   rank {world.rank(0)} of {world.players} ({alive} alive)   {troops}"


def _player_name(player: int) -> str:
    return "you" if player == 0 else f"bot {player}"


def _largest_players(world: World) -> list[int]:
    """Return the players with the most land, always including the agent."""
    order = np.argsort(-world.land, kind="stable").tolist()
    largest = order[:_BARS]
    return largest if 0 in largest else [*largest[:-1], 0]


def _palette(players: int) -> Pixels:
    """Return a colour for each player [P, 3]: the agent's red, and muted colours far from red for the bots."""
    colours: list[Any] = [AGENT]
    for bot in range(players - 1):
        hue = (35 + 290 * (bot * 0.618034 % 1)) / 360  # steps of the golden ratio keep neighbours in the list apart
        red, green, blue = colorsys.hsv_to_rgb(hue, (0.65, 0.4, 0.5)[bot % 3], (0.8, 0.9, 0.6)[bot % 3])
        colours.append((round(255 * red), round(255 * green), round(255 * blue)))
    return np.array(colours, np.uint8)


def _tile_colours(world: World) -> Pixels:
    """Return a colour for each tile [S, S, 3]."""
    owner, terrain = world.owner.astype(np.int64), world.terrain.astype(np.int64)
    owned = _palette(world.players)[np.maximum(owner, 0)] * _BRIGHTNESS[terrain][:, None] // 100  # [tiles, 3]
    colours = np.where((owner >= 0)[:, None], owned, _FREE_COLOURS[terrain]).astype(np.uint8)
    return colours.reshape(world.width, world.width, 3)[1:-1, 1:-1]


def _draw_borders(picture: Pixels, world: World, scale: int) -> None:
    """Darken the first row or column of pixels of a tile where the owner changes."""
    owner = world.owner.reshape(world.width, world.width)[1:-1, 1:-1]
    owner = np.maximum(owner, -1)  # water counts as free land, so that a coast is not a border
    above = (owner[1:] != owner[:-1]).repeat(scale, axis=1)
    left = (owner[:, 1:] != owner[:, :-1]).repeat(scale, axis=0)
    rows, columns = picture[scale::scale], picture[:, scale::scale]
    rows[above] = rows[above] // 3
    columns[left] = columns[left] // 3


def _ansi(layer: int, colour: list[int]) -> str:
    """Return the escape sequence that sets the colour of the text (layer 38) or of the background (layer 48)."""
    return f"\x1b[{layer};2;{colour[0]};{colour[1]};{colour[2]}m"
