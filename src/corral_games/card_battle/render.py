"""A duel as text for one side of the table, 100 columns wide: both boards, one's own hand, the news and the choices."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from corral_games.card_battle.engine.cards import CARDS, COLOURS, CREATURE, KIND_NAMES, TERRAIN, keyword_names
from corral_games.card_battle.engine.pieces import FACE, PHASE_NAMES, Creature, Side
from corral_games.card_battle.engine.rules import Duel, describe

__all__ = ["WIDTH", "draw_table"]

WIDTH = 100
"""Columns."""
_LABEL = 10
_KEPT = "\N{NO-BREAK SPACE}"


def draw_table(duel: Duel, seat: int, news: Sequence[str] = ()) -> str:
    """Draw what ``seat`` sees; ``news`` are lines of the duel's log."""
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    names = duel.deck_names
    lines = [
        _heading(duel, seat),
        "",
        f"OPPONENT ({names[1 - seat]})   {_totals(foe)}",
        *_entry("lands", _lands(foe)),
        *_entry("charms", [CARDS[card].name for card in foe.charms]),
        *_board(duel, foe),
        "  " + "·  " * 32,
        *_board(duel, me),
        *_entry("charms", [CARDS[card].name for card in me.charms]),
        *_entry("lands", _lands(me)),
        *_entry("hand", [_card(card, number) for card, number in _counted(me.hand)]),
        f"YOU ({names[seat]})   {_totals(me)}",
    ]
    if duel.stack:
        lines += ["", "Waiting to happen, the next one first:", *_stack(duel, seat)]
    if news:
        lines += ["", "What happened:", *(_told(line, seat) for line in news)]
    lines += ["", *_choices(duel, seat)]
    return "\n".join(line.rstrip() for line in lines)


def _heading(duel: Duel, seat: int) -> str:
    whose = "your turn" if duel.active == seat else "opponent's turn"
    text = f" turn {duel.turn} · {whose} · {PHASE_NAMES[duel.phase]} "
    return f"──{text}".ljust(WIDTH, "─")


def _totals(side: Side) -> str:
    mana = " ".join(f"{number} {COLOURS[colour]}" for colour, number in enumerate(side.untapped) if number)
    return (
        f"life {side.life}   hand {len(side.hand)}   library {len(side.library)}   "
        f"graveyard {len(side.graveyard)}   mana {mana or 0}"
    )


def _lands(side: Side) -> list[str]:
    found = []
    for colour, number in enumerate(side.lands):
        if number:
            untapped = side.untapped[colour]
            state = "" if untapped == number else ", tapped" if not untapped else f", {untapped} untapped"
            found.append(f"{number} {CARDS[colour].name}{state}")
    return found


def _entry(label: str, items: Iterable[str]) -> list[str]:
    """A labelled list, wrapped; nothing if it is empty."""
    text = " · ".join(item.replace(" ", _KEPT) for item in items)
    indent = " " * (2 + _LABEL)
    lines = textwrap.wrap(text, WIDTH, initial_indent=f"  {label:<{_LABEL}}", subsequent_indent=indent)
    return [line.replace(_KEPT, " ") for line in lines]


def _board(duel: Duel, side: Side) -> list[str]:
    """One line for each creature."""
    return [f"  {'board' if i == 0 else '':<{_LABEL}}{_creature(duel, c)}" for i, c in enumerate(side.creatures)]


def _creature(duel: Duel, creature: Creature) -> str:
    name = CARDS[creature.card].name
    parts = [f"{name:<24} {creature.power}/{creature.toughness - creature.damage}".ljust(32)]
    parts.append(", ".join(keyword_names(creature.keywords)))
    state = []
    if creature.attacking:
        state.append("ATTACKING" + (" (blocked)" if creature.blocked else ""))
    elif creature.tapped:
        state.append("tapped")
    if creature.blocking:
        blocked = duel.find(creature.blocking)
        state.append(f"BLOCKING {CARDS[blocked.card].name}" if blocked is not None else "BLOCKING")
    if creature.sick:
        state.append("new")
    if creature.damage:
        state.append(f"damage {creature.damage}")
    state += [CARDS[mark].name for mark in creature.marks]
    if state:
        parts.append(f"[{', '.join(state)}]")
    return " ".join(part for part in parts if part).rstrip()[: WIDTH - 2 - _LABEL]


def _counted(cards: Sequence[int]) -> list[tuple[int, int]]:
    return [(card, cards.count(card)) for card in dict.fromkeys(cards)]


def _card(card: int, number: int) -> str:
    data = CARDS[card]
    several = f"{number} " if number > 1 else ""
    if data.kind == TERRAIN:
        return f"{several}{data.name}"
    size = f"{data.power}/{data.toughness}" if data.kind == CREATURE else KIND_NAMES[data.kind]
    words = keyword_names(data.keywords) if data.kind == CREATURE else []
    return f"{several}{data.name} ({', '.join([data.cost_text, size, *words])})"


def _stack(duel: Duel, seat: int) -> list[str]:
    lines = []
    for spell in reversed(duel.stack):
        target = duel.find(spell.target) if spell.target > 0 else None
        on = f" on {CARDS[target.card].name}" if target is not None else ""
        if spell.target == FACE:
            on = " at the opponent" if spell.seat == seat else " at you"
        lines.append(f"  {'you' if spell.seat == seat else 'opponent':<{_LABEL}}{CARDS[spell.card].name}{on}")
    return lines


def _told(line: str, seat: int) -> str:
    """A line of the log, for one of the players."""
    who, _, text = line.partition(": ")
    return f"  {'you' if who == str(seat) else 'opponent':<{_LABEL}}{text}"[:WIDTH]


def _choices(duel: Duel, seat: int) -> list[str]:
    if duel.winner is not None:
        return ["A draw." if duel.winner == 2 else "You won." if duel.winner == seat else "You lost."]
    if duel.to_act != seat:
        return ["The opponent is to act."]
    return ["Choices:", *(f"{i:>4}  {describe(duel, action)}" for i, action in enumerate(duel.legal()))]
