"""What holds in every duel, whatever is played."""

import os
import random
from concurrent.futures import ProcessPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral_games.card_battle.engine.cards import (
    CARDS,
    COST,
    CREATURE,
    FOE,
    FOE_OR_FACE,
    FRIEND,
    INSTANT,
    KEYWORDS,
    MENACE,
    NOTHING,
    SPELL,
    TERRAIN,
)
from corral_games.card_battle.engine.decks import DECK_NAMES, DECKS
from corral_games.card_battle.engine.effects import BOARD_LIMIT
from corral_games.card_battle.engine.options import MAX_OPTIONS
from corral_games.card_battle.engine.pieces import (
    ATTACK,
    BLOCK,
    BLOCKING,
    CAST,
    FACE,
    FIGHTING,
    LAND,
    MAIN,
    PASS,
    RAIDING,
    Action,
)
from corral_games.card_battle.engine.rules import Duel, new_duel
from tests.corral_games.card_positions import play_randomly

SEEDS = st.integers(0, 2**31 - 1)
STEPS = st.integers(0, 120)
DECK = st.sampled_from([*DECK_NAMES, "random"])


def cards_of(duel, seat):
    """All cards of a player, wherever they lie."""
    side = duel.sides[seat]
    cards = side.hand + side.library + side.graveyard + side.exile + side.charms
    cards += [land for land, count in enumerate(side.lands) for _ in range(count)]
    cards += [spell.card for spell in duel.stack if spell.seat == seat]
    for board in duel.sides:
        for creature in board.creatures:
            if creature.seat == seat and not CARDS[creature.card].token:
                cards.append(creature.card)
            for mark in creature.marks:
                helpful = CARDS[mark].target == 2
                if (creature.seat if helpful else 1 - creature.seat) == seat:
                    cards.append(mark)
    return sorted(cards)


def check(duel):
    """Everything that is always true between two decisions."""
    for seat, side in enumerate(duel.sides):
        assert cards_of(duel, seat) == list(DECKS[duel.deck_names[seat]])
        assert side.hand == sorted(side.hand)
        assert all(0 <= free <= all_of_them for free, all_of_them in zip(side.untapped, side.lands, strict=True))
        assert len(side.creatures) <= BOARD_LIMIT
        assert all(creature.seat == seat == creature.uid & 1 for creature in side.creatures)
        if duel.winner is None:
            assert side.life > 0
            assert all(creature.damage < creature.toughness for creature in side.creatures)
    uids = [creature.uid for side in duel.sides for creature in side.creatures] + [spell.uid for spell in duel.stack]
    assert len(set(uids)) == len(uids)
    assert all(uid >> 1 <= duel.uids for uid in uids)
    options = duel.legal()
    if duel.winner is None:
        assert 1 < len(options) <= MAX_OPTIONS
        assert len(set(options)) == len(options)
        assert options == sorted(options, key=canonical)
        if duel.phase != BLOCKING:
            assert options[0] == Action(PASS)
    else:
        assert options == []
        assert duel.winner in (0, 1, 2)


def canonical(action):
    """Kinds in their order, then lands and spells by cost and number; choices of creatures stay as they are."""
    kind = action.kind
    return (kind, COST[action.subject], action.subject) if kind in (LAND, CAST) else (kind, 0, 0)


@settings(max_examples=60, deadline=None)
@given(SEEDS, DECK, DECK)
def test_random_games_keep_all_cards_and_end(seed, first, second):
    duel = new_duel((first, second), seed)
    rng = random.Random(seed)
    check(duel)
    for _ in range(2000):
        if duel.winner is not None:
            break
        duel.apply(rng.choice(duel.legal()))
        check(duel)
    assert duel.winner is not None


def allowed(duel, action):
    """The rules in other words than the game's own: whether ``to_act`` may do this."""
    kind, subject, target = action
    me = duel.to_act
    mine, foe = duel.sides[me], duel.sides[1 - me]
    creatures = {creature.uid: creature for side in duel.sides for creature in side.creatures}
    half_blocked = [c for c in foe.creatures if c.attacking and has(c, "menace") and c.blocked == 1]
    if kind == PASS:
        return not (duel.phase == BLOCKING and half_blocked)
    quiet = duel.phase == MAIN and not duel.stack
    if kind == LAND:
        return quiet and CARDS[subject].kind == TERRAIN and subject in mine.hand and not mine.land_played
    if kind == CAST:
        card = CARDS[subject]
        if card.kind == TERRAIN or subject not in mine.hand or not payable(card, mine.untapped):
            return False
        if not quiet and (card.kind != INSTANT or not (duel.stack or duel.phase == FIGHTING)):
            return False
        if card.kind == CREATURE and len(mine.creatures) == BOARD_LIMIT:
            return False
        if card.target == SPELL:
            return bool(duel.stack) and target == duel.stack[-1].uid
        aims = {
            NOTHING: [],
            FRIEND: [c.uid for c in mine.creatures],
            FOE: [c.uid for c in foe.creatures],
            FOE_OR_FACE: [FACE, *(c.uid for c in foe.creatures)],
        }[card.target]
        may_miss = card.target == NOTHING or (card.kind == CREATURE and not aims)
        return target in aims or (target == 0 and may_miss)
    one = creatures.get(subject)
    if one is None or one.seat != me or one.tapped or has(one, "bound") or duel.stack:
        return False
    if kind == ATTACK:
        ready = not one.attacking and not has(one, "defender") and (not one.sick or has(one, "haste"))
        return duel.phase == RAIDING and me == duel.active and ready
    other = creatures.get(target)
    if duel.phase != BLOCKING or me == duel.active or other is None or not other.attacking or one.blocking:
        return False
    able = [c for c in mine.creatures if not c.tapped and not c.blocking and reaches(c, other)]
    if one not in able or (half_blocked and other not in half_blocked):
        return False
    return not has(other, "menace") or other.blocked > 0 or len(able) > 1


def has(creature, keyword):
    return bool(creature.keywords & KEYWORDS[keyword])


def reaches(blocker, attacker):
    flies = not has(attacker, "flying") or has(blocker, "flying") or has(blocker, "reach")
    return flies and not has(blocker, "bound")


def payable(card, untapped):
    left = list(untapped)
    for colour, number in card.pips:
        left[colour] -= number
    return min(left) >= 0 and sum(left) >= card.generic


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_what_is_legal_is_what_the_rules_say(seed):
    duel = new_duel(("random", "random"), seed)
    rng = random.Random(seed)
    while duel.winner is None and duel.turn < 40:
        legal = duel.legal()
        right = {action for action in conceivable(duel, duel.sides[duel.to_act].hand) if allowed(duel, action)}
        assert right >= set(legal)
        shown = {kinds_of(duel, action) for action in legal}  # of creatures that are alike, one is enough
        assert {kinds_of(duel, action) for action in right} == shown
        duel.apply(rng.choice(legal))


@settings(max_examples=30, deadline=None)
@given(SEEDS, STEPS)
def test_what_is_not_legal_is_not_accepted(seed, steps):
    duel = play_randomly(seed, steps)
    legal = set(duel.legal())
    before = duel.get_state()
    strange = {Action(9), Action(CAST, -1), Action(ATTACK, 10**6)}
    for action in (conceivable(duel, range(len(CARDS))) | strange) - legal:
        with pytest.raises(ValueError, match="not legal"):
            duel.apply(action)
    assert duel.get_state() == before
    for action in legal:
        duel.clone().apply(action)
    assert duel.get_state() == before


def conceivable(duel, cards):
    """All actions that can be put into words, with these cards."""
    uids = [creature.uid for side in duel.sides for creature in side.creatures]
    uids += [spell.uid for spell in duel.stack]
    actions = {Action(PASS)} | {Action(LAND, card) for card in cards}
    actions |= {Action(CAST, card, target) for card in cards for target in (0, FACE, *uids)}
    return actions | {Action(ATTACK, uid) for uid in uids} | {Action(BLOCK, one, two) for one in uids for two in uids}


def kinds_of(duel, action):
    """An action with cards in place of creatures."""
    at = {creature.uid: CARDS[creature.card].name for side in duel.sides for creature in side.creatures}
    subject = action.subject if action.kind in (LAND, CAST) else at.get(action.subject)
    return action.kind, subject, at.get(action.target, action.target)


@settings(max_examples=60, deadline=None)
@given(SEEDS, STEPS)
def test_clones_and_saves_go_on_in_the_same_way(seed, steps):
    duel = play_randomly(seed, steps)
    data = duel.get_state()
    copies = [duel.clone(), Duel.from_state(data), Duel((0, 0))]
    copies[2].set_state(data)
    assert {copy.get_state() for copy in copies} == {data}
    rng = random.Random(seed)
    while duel.winner is None:
        action = rng.choice(duel.legal())
        for copy in copies:
            assert copy.legal() == duel.legal()
            copy.apply(action)
        duel.apply(action)
        assert {copy.get_state() for copy in copies} == {duel.get_state()}


@settings(max_examples=40, deadline=None)
@given(SEEDS, STEPS)
def test_a_clone_shares_nothing_that_changes(seed, steps):
    duel = play_randomly(seed, steps)
    before = duel.get_state()
    legal = list(duel.legal())
    copy = duel.clone()
    rng = random.Random(seed)
    while copy.winner is None:
        copy.apply(rng.choice(copy.legal()))
    assert duel.get_state() == before
    assert duel.legal() == legal


def visible(duel, seat):
    """All that a player sees, as plain data."""
    mine, other = duel.sides[seat], duel.sides[1 - seat]
    both = [
        (side.life, side.land_played, side.lands, side.untapped, side.grants, side.graveyard, side.exile, side.charms)
        for side in (mine, other)
    ]
    boards = [[creature.to_ints() for creature in side.creatures] for side in (mine, other)]
    counts = [len(mine.library), len(other.library), len(other.hand), sorted(mine.library)]
    table = (
        duel.decks,
        duel.stack,
        duel.turn,
        duel.active,
        duel.phase,
        duel.passed,
        duel.to_act,
        duel.winner,
        duel.uids,
    )
    return both, boards, counts, mine.hand, sorted(other.hand + other.library), table


@settings(max_examples=60, deadline=None)
@given(SEEDS, STEPS, st.integers(0, 1))
def test_determinized_moves_only_hidden_cards(seed, steps, seat):
    duel = play_randomly(seed, steps)
    before = duel.get_state()
    dealt = duel.determinized(seat, random.Random(1))
    assert duel.get_state() == before
    assert visible(dealt, seat) == visible(duel, seat)
    if duel.to_act == seat:
        assert dealt.legal() == duel.legal()
    elif duel.winner is None:
        assert dealt.legal()
    again = dealt.determinized(seat, random.Random(2)).determinized(seat, random.Random(1))
    assert again.get_state() == dealt.get_state(), "it follows from what is seen and from the generator alone"
    rng = random.Random(seed)
    while dealt.winner is None:
        dealt.apply(rng.choice(dealt.legal()))
    for player in (0, 1):
        assert cards_of(dealt, player) == cards_of(duel, player)


def test_determinized_deals_every_unseen_card_at_some_time():
    duel = play_randomly(5, 10, ("ember", "tide"))
    hands = [duel.determinized(0, random.Random(seed)).sides[1].hand for seed in range(200)]
    unseen = set(duel.sides[1].hand + duel.sides[1].library)
    assert set().union(*hands) == unseen
    assert len({tuple(hand) for hand in hands}) > 150


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_menacing_attacker_never_ends_with_one_blocker(seed):
    duel = new_duel(("gloom-ember", "gloom"), seed)
    rng = random.Random(seed)
    while duel.winner is None:
        options = duel.legal()
        if duel.phase == BLOCKING and not duel.stack and Action(PASS) in options:
            for creature in duel.sides[duel.active].creatures:
                assert not (creature.attacking and creature.keywords & MENACE and creature.blocked == 1)
        duel.apply(rng.choice(options))


def test_a_log_changes_nothing():
    quiet, told = new_duel(("random", "random"), 4), new_duel(("random", "random"), 4)
    told.log = []
    rng = random.Random(4)
    while quiet.winner is None:
        action = rng.choice(quiet.legal())
        quiet.apply(action)
        told.apply(action)
    assert quiet.get_state() == told.get_state()
    assert len(told.log) > 20


def _play_games(first, count):
    """Random games without checks but those of the rules; how many ended."""
    rng = random.Random(first)
    ended = 0
    for seed in range(first, first + count):
        duel = new_duel(("random", "random"), seed)
        decisions = 0
        while duel.winner is None:
            options = duel.legal()
            assert 1 < len(options) <= MAX_OPTIONS
            duel.apply(options[int(rng.random() * len(options))])
            decisions += 1
            assert decisions < 5000
        check(duel)
        ended += 1
    return ended


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_random_games_end_without_an_exception():
    processes = os.cpu_count() or 1
    with ProcessPoolExecutor(processes) as pool:
        results = pool.map(_play_games, range(0, 100_000, 1000), [1000] * 100)
        assert sum(results) == 100_000
