"""Monte Carlo tree search with determinization, for a game with hidden cards.

This is single-observer information set MCTS (Cowling, Powley and Whitehouse 2012, "Information Set Monte Carlo Tree
Search", doi:10.1109/TCIAIG.2012.2200894): each iteration samples the hidden cards, and all iterations share one tree of
the searching player. An edge is an action of the player to act, whatever the hidden cards are; only the edges that are
legal with the sampled cards are considered.

Edges are selected by PUCT (Silver et al. 2017, doi:10.1038/nature24270), which adds priors to UCT (Kocsis and
Szepesvári 2006, doi:10.1007/11871842_29). The prior comes from the points of an action without search
(``action_value``). After the first new edge, both players play their best actions by points until a later turn begins.
The position there is evaluated statically (``board_value``).
"""

from __future__ import annotations

import random
from math import exp, sqrt

from corral.core.sums import add_up
from corral_games.card_battle.bots.action_value import best_option, play_best, score_options
from corral_games.card_battle.bots.board_value import win_probability_determinized
from corral_games.card_battle.engine.pieces import LAND, Action
from corral_games.card_battle.engine.rules import Duel

__all__ = ["search"]

_HORIZON = 2
"""The number of turns that an iteration plays, including the present one; one less in the opponent's turn."""
_EXPLORATION = 0.5
"""The exploration constant of PUCT: how strongly priors count against mean results."""
_PRIOR_TEMPERATURE = 1.5
"""The difference in points that makes a prior e times as high (before ``_PRIOR_FLOOR`` is added)."""
_PRIOR_FLOOR = 0.05
"""Added to each unnormalized prior, of which the highest is 1, so that every action is explored."""
_SAMPLED_DRAWS = 8
"""The number of cards on top of each library that are sampled; beyond them, an iteration draws in an order that is not
random."""


class _Edge:
    """An action in the tree. ``total`` sums up the results for the player that took it."""

    __slots__ = ("nodes", "prior", "total", "visits")

    def __init__(self, prior: float) -> None:
        self.prior = prior
        self.visits = 0
        self.total = 0.0
        self.nodes: list[_Node | None] = [None, None]
        """The next decision if player 0 is to act, and if player 1 is; the hidden cards can decide which."""


class _Node:
    """A decision in the tree. ``total`` sums up the results for the player to act."""

    __slots__ = ("edges", "total", "visits")

    def __init__(self) -> None:
        self.edges: dict[Action, _Edge] = {}
        self.visits = 0
        self.total = 0.0


def search(duel: Duel, rng: random.Random, iterations: int) -> Action:
    """Return the action of ``duel.to_act`` that was visited most, of equals the one with the higher total result.

    Stops before ``iterations`` if the rest cannot change the choice. If a land can be played, the action with the
    highest value is returned without search.
    """
    options, seat = duel.legal(), duel.to_act
    end_turn = duel.turn + (_HORIZON if duel.active == seat else _HORIZON - 1)
    if len(options) == 1:
        return options[0]
    if options[1].kind == LAND:
        return best_option(duel)
    root = _Node()
    for iterations_left in range(iterations, 0, -1):
        _run_iteration(root, _determinize(duel, seat, rng), seat, end_turn)
        if iterations_left & 7 == 0:
            visits = sorted(edge.visits for edge in root.edges.values())
            if visits[-1] - visits[-2] > iterations_left:
                break
    edges = [root.edges[action] for action in options]
    best = max(edges, key=lambda edge: (edge.visits, edge.total))
    return options[edges.index(best)]


def _determinize(duel: Duel, seat: int, rng: random.Random) -> Duel:
    """Do what ``Duel.determinized`` does, faster: sample only the hidden cards that an iteration can reach."""
    new = duel.clone()
    me, foe = new.sides[seat], new.sides[1 - seat]
    me.library.sort()
    _shuffle_top(me.library, _SAMPLED_DRAWS, rng)
    unseen = foe.library + foe.hand
    unseen.sort()
    _shuffle_top(unseen, _SAMPLED_DRAWS + len(foe.hand), rng)
    library_size = len(foe.library)
    foe.library, foe.hand = unseen[:library_size], sorted(unseen[library_size:])
    new.rng_state = rng.getrandbits(31)
    return new


def _shuffle_top(cards: list[int], number: int, rng: random.Random) -> None:
    """Move ``number`` cards, each drawn at random, to the end of the list (the top of a library)."""
    draw = rng.random
    for i in range(len(cards) - 1, max(len(cards) - number - 1, 0), -1):
        j = int(draw() * (i + 1))
        cards[i], cards[j] = cards[j], cards[i]


def _run_iteration(root: _Node, duel: Duel, seat: int, end_turn: int) -> None:
    """Descend the tree to a new edge, play on to ``end_turn``, and add the result to the edges and nodes passed."""
    node: _Node | None = root
    path: list[tuple[_Node, _Edge, bool]] = []  # with whether it was a decision of ``seat``
    while duel.winner is None and duel.turn < end_turn:
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
    while duel.winner is None and duel.turn < end_turn:
        play_best(duel)
    win_probability = win_probability_determinized(duel, seat)
    for node, edge, is_own in path:
        result = win_probability if is_own else 1.0 - win_probability
        node.visits += 1
        node.total += result
        edge.visits += 1
        edge.total += result


def _select(node: _Node, duel: Duel, options: list[Action]) -> tuple[Action, _Edge]:
    """Return the legal action with the highest PUCT value, and its edge.

    An edge without visits counts with the mean result of its node. The exploration term uses the visits of the node,
    where Cowling et al. count how often the action was available.
    """
    edges = node.edges
    for action in options:
        if action not in edges:
            _add_edges(node, duel, options)
            break
    mean = node.total / node.visits if node.visits else 0.5
    exploration = _EXPLORATION * sqrt(node.visits + 1)
    highest = -1.0
    for action in options:
        edge = edges[action]
        visits = edge.visits
        value = (edge.total / visits if visits else mean) + exploration * edge.prior / (1 + visits)
        if value > highest:
            highest, best_edge, best_action = value, edge, action
    return best_action, best_edge


def _add_edges(node: _Node, duel: Duel, options: list[Action]) -> None:
    """Add an edge for each legal action that has none, with a softmax of the points as its prior."""
    scores = score_options(duel)
    highest = max(scores)
    weights = [exp((score - highest) / _PRIOR_TEMPERATURE) + _PRIOR_FLOOR for score in scores]
    total = add_up(weights)
    for action, weight in zip(options, weights, strict=True):
        if action not in node.edges:
            node.edges[action] = _Edge(weight / total)
