"""Monte Carlo tree search for a game with hidden cards: every try deals them anew, and all tries share one tree.

The tree is that of the player who searches: an edge is an action of whoever is to act, whatever the hidden cards are,
and only the edges that are legal with this try's cards compete. A try goes down the tree, by the mean result of an edge
and by how good it looked at first sight (``action_value``); then both sides play what looks best, up to the beginning of a
later turn, and that position is judged.
"""

from __future__ import annotations

import random
from math import exp, sqrt

from corral.core.sums import add_up
from corral_games.card_battle.bots.action_value import best_option, play_best, score_options
from corral_games.card_battle.bots.board_value import win_chance_dealt
from corral_games.card_battle.engine.pieces import LAND, Action
from corral_games.card_battle.engine.rules import Duel

__all__ = ["search"]

_TURNS = 2
"""How many turns a try looks ahead, the one that goes on included; one less in the other player's turn."""
_CURIOSITY = 0.5
"""How much promising edges are tried before their results are believed."""
_WARMTH = 1.5
"""How many points of first sight make an edge e times as promising."""
_FLOOR = 0.05
"""What every edge is promised at least, in shares of the most promising one."""
_DRAWS = 8
"""How many cards at the top of each library are dealt anew; no try draws more, or only in the order of the rest."""


class _Edge:
    """An action in the tree, with what came of it for the one who took it."""

    __slots__ = ("nodes", "promise", "total", "visits")

    def __init__(self, promise: float) -> None:
        self.promise = promise
        self.visits = 0
        self.total = 0.0
        self.nodes: list[_Node | None] = [None, None]
        """What follows, by who is to act then: that may depend on hidden cards."""


class _Node:
    """A decision in the tree."""

    __slots__ = ("edges", "total", "visits")

    def __init__(self) -> None:
        self.edges: dict[Action, _Edge] = {}
        self.visits = 0
        self.total = 0.0


def search(duel: Duel, rng: random.Random, iterations: int) -> Action:
    """Choose for ``duel.to_act`` by so many tries (fewer if they cannot change the choice any more)."""
    options, seat = duel.legal(), duel.to_act
    limit = duel.turn + (_TURNS if duel.active == seat else _TURNS - 1)
    if len(options) == 1:
        return options[0]
    if options[1].kind == LAND:
        return best_option(duel)
    root = _Node()
    for left in range(iterations, 0, -1):
        _try(root, _deal(duel, seat, rng), seat, limit)
        if left & 7 == 0:
            visits = sorted(edge.visits for edge in root.edges.values())
            if visits[-1] - visits[-2] > left:
                break
    edges = [root.edges[action] for action in options]
    best = max(edges, key=lambda edge: (edge.visits, edge.total))
    return options[edges.index(best)]


def _deal(duel: Duel, seat: int, rng: random.Random) -> Duel:
    """Do what ``Duel.determinized`` does, at less cost: only those cards change places that a try can reach."""
    new = duel.clone()
    mine, other = new.sides[seat], new.sides[1 - seat]
    mine.library.sort()
    _shuffle_top(mine.library, _DRAWS, rng)
    unseen = other.library + other.hand
    unseen.sort()
    _shuffle_top(unseen, _DRAWS + len(other.hand), rng)
    kept = len(other.library)
    other.library, other.hand = unseen[:kept], sorted(unseen[kept:])
    new.chance = rng.getrandbits(31)
    return new


def _shuffle_top(cards: list[int], number: int, rng: random.Random) -> None:
    """Put so many cards, each drawn at random, at the end."""
    draw = rng.random
    for place in range(len(cards) - 1, max(len(cards) - number - 1, 0), -1):
        other = int(draw() * (place + 1))
        cards[place], cards[other] = cards[other], cards[place]


def _try(root: _Node, duel: Duel, seat: int, limit: int) -> None:
    """Go down the tree to something new, play on from there, and count the result."""
    node: _Node | None = root
    path: list[tuple[_Node, _Edge, bool]] = []
    while duel.winner is None and duel.turn < limit:
        assert node is not None
        options = duel.legal()
        action, edge = _select(node, duel, options)
        path.append((node, edge, duel.to_act == seat))
        duel.apply(action)
        if not edge.visits:
            break
        node = edge.nodes[duel.to_act]
        if node is None:
            node = edge.nodes[duel.to_act] = _Node()
    while duel.winner is None and duel.turn < limit:
        play_best(duel)
    result = win_chance_dealt(duel, seat)
    for node, edge, mine in path:
        gained = result if mine else 1.0 - result
        node.visits += 1
        node.total += gained
        edge.visits += 1
        edge.total += gained


def _select(node: _Node, duel: Duel, options: list[Action]) -> tuple[Action, _Edge]:
    """Choose the legal edge with the best mean result plus promise, which fades as the edge is tried."""
    edges = node.edges
    for action in options:
        if action not in edges:
            _add_edges(node, duel, options)
            break
    unknown = node.total / node.visits if node.visits else 0.5
    curiosity = _CURIOSITY * sqrt(node.visits + 1)
    most = -1.0
    for action in options:
        edge = edges[action]
        visits = edge.visits
        value = (edge.total / visits if visits else unknown) + curiosity * edge.promise / (1 + visits)
        if value > most:
            most, best, chosen = value, edge, action
    return chosen, best


def _add_edges(node: _Node, duel: Duel, options: list[Action]) -> None:
    """Add what is legal with these cards, each edge as promising as it looks."""
    scores = score_options(duel)
    top = max(scores)
    weights = [exp((score - top) / _WARMTH) + _FLOOR for score in scores]
    whole = add_up(weights)
    for action, weight in zip(options, weights, strict=True):
        if action not in node.edges:
            node.edges[action] = _Edge(weight / whole)
