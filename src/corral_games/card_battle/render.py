"""A duel as text for one player, 100 columns wide: both boards, the player's hand, the log and the legal actions."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

from corral_games.card_battle.engine.cards import CARDS, COLOURS, CREATURE, KIND_NAMES, TERRAIN, keyword_names
from corral_games.card_battle.engine.pieces import FACE, PHASE_NAMES, Creature, Side
from corral_games.card_battle.engine.rules import Duel, describe

__all__ = ["WIDTH", "render_text"]

WIDTH = 100
"""The number of columns."""
_LABEL_WIDTH = 10
_NO_BREAK_SPACE = "\N{NO-BREAK SPACE}"


def render_text(duel: Duel, seat: int, log_lines: Sequence[str] = ()) -> str:
    """Return what ``seat`` sees as text; ``log_lines`` are the lines of the duel's log to show."""
    me, foe = duel.sides[seat], duel.sides[1 - seat]
    names = duel.deck_names
    lines = [
        _heading(duel, seat),
        "",
        f"OPPONENT ({names[1 - seat]})   {_totals(foe)}",
        *_labelled("lands", _lands(foe)),
        *_labelled("charms", [CARDS[card].name for card in foe.charms]),
        *_board(duel, foe),
        "  " + "·  " * 32,
        *_board(duel, me),
        *_labelled("charms", [CARDS[card].name for card in me.charms]),
        *_labelled("lands", _lands(me)),
        *_labelled("hand", [_card(card, number) for card, number in _counted(me.hand)]),
        f"YOU ({names[seat]})   {_totals(me)}",
    ]
    if duel.stack:
        lines += ["", "Waiting to happen, the next one first:", *_stack(duel, seat)]
    if log_lines:
        lines += ["", "What happened:", *(_log_line(line, seat) for line in log_lines)]
    lines += ["", *_legal_actions(duel, seat)]
    return "\n".join(line.rstrip() for line in lines)


def _heading(duel: Duel, seat: int) -> str:
    turn_text = "your turn" if duel.active == seat else "opponent's turn"
    text = f" turn {duel.turn} · {turn_text} · {PHASE_NAMES[duel.phase]} "
    return f"──{text}".ljust(WIDTH, "─")


def _totals(side: Side) -> str:
    mana = " ".join(f"{number} {COLOURS[colour]}" for colour, number in enumerate(side.untapped) if number)
    return (
        f"life {side.life}   hand {len(side.hand)}   library {len(side.library)}   "
        f"graveyard {len(side.graveyard)}   mana {mana or 0}"
    )


def _lands(side: Side) -> list[str]:
    texts = []
    for colour, number in enumerate(side.lands):
        if number:
            untapped = side.untapped[colour]
            state = "" if untapped == number else ", tapped" if not untapped else f", {untapped} untapped"
            texts.append(f"{number} {CARDS[colour].name}{state}")
    return texts


def _labelled(label: str, items: Iterable[str]) -> list[str]:
    """Return the lines of a labelled list, wrapped between items; none if it is empty."""
    text = " · ".join(item.replace(" ", _NO_BREAK_SPACE) for item in items)
    indent = " " * (2 + _LABEL_WIDTH)
    lines = textwrap.wrap(text, WIDTH, initial_indent=f"  {label:<{_LABEL_WIDTH}}", subsequent_indent=indent)
    return [line.replace(_NO_BREAK_SPACE, " ") for line in lines]


def _board(duel: Duel, side: Side) -> list[str]:
    """Return one line for each creature."""
    lines = []
    for i, creature in enumerate(side.creatures):
        label = "board" if i == 0 else ""
        lines.append(f"  {label:<{_LABEL_WIDTH}}{_creature(duel, creature)}")
    return lines


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
    return " ".join(part for part in parts if part).rstrip()[: WIDTH - 2 - _LABEL_WIDTH]


def _counted(cards: Sequence[int]) -> list[tuple[int, int]]:
    """Return each different card with how often it occurs, in order of first occurrence."""
    return [(card, cards.count(card)) for card in dict.fromkeys(cards)]


def _card(card: int, number: int) -> str:
    data = CARDS[card]
    count = f"{number} " if number > 1 else ""
    if data.kind == TERRAIN:
        return f"{count}{data.name}"
    size = f"{data.power}/{data.toughness}" if data.kind == CREATURE else KIND_NAMES[data.kind]
    keywords = keyword_names(data.keywords) if data.kind == CREATURE else []
    return f"{count}{data.name} ({', '.join([data.cost_text, size, *keywords])})"


def _stack(duel: Duel, seat: int) -> list[str]:
    lines = []
    for spell in reversed(duel.stack):
        target = duel.find(spell.target) if spell.target > 0 else None
        target_text = f" on {CARDS[target.card].name}" if target is not None else ""
        if spell.target == FACE:
            target_text = " at the opponent" if spell.seat == seat else " at you"
        player = "you" if spell.seat == seat else "opponent"
        lines.append(f"  {player:<{_LABEL_WIDTH}}{CARDS[spell.card].name}{target_text}")
    return lines


def _log_line(line: str, seat: int) -> str:
    """Return a line of the log as ``seat`` reads it, with the player's number replaced by "you" or "opponent"."""
    number, _, text = line.partition(": ")
    return f"  {'you' if number == str(seat) else 'opponent':<{_LABEL_WIDTH}}{text}"[:WIDTH]


def _legal_actions(duel: Duel, seat: int) -> list[str]:
    """Return the numbered legal actions of ``seat``, or one line if there are none."""
    if duel.winner is not None:
        return ["A draw." if duel.winner == 2 else "You won." if duel.winner == seat else "You lost."]
    if duel.to_act != seat:
        return ["The opponent is to act."]
    return ["Choices:", *(f"{i:>4}  {describe(duel, action)}" for i, action in enumerate(duel.legal()))]
