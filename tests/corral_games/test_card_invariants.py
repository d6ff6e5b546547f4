"""Invariants of card battle: properties that hold in every duel, whatever is played."""

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
    """Return all cards of a player, in all zones."""
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


def check_invariants(duel):
    """Assert what is always true when a player has to decide."""
    for seat, side in enumerate(duel.sides):
        assert cards_of(duel, seat) == list(DECKS[duel.deck_names[seat]])
        assert side.hand == sorted(side.hand)
        assert all(0 <= untapped <= lands for untapped, lands in zip(side.untapped, side.lands, strict=True))
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
        assert options == sorted(options, key=canonical_key)
        if duel.phase != BLOCKING:
            assert options[0] == Action(PASS)
    else:
        assert options == []
        assert duel.winner in (0, 1, 2)


def canonical_key(action):
    """Return the key by which legal actions are sorted: by kind, then lands and spells by cost and card number."""
    kind = action.kind
    return (kind, COST[action.subject], action.subject) if kind in (LAND, CAST) else (kind, 0, 0)


@settings(max_examples=60, deadline=None)
@given(SEEDS, DECK, DECK)
def test_random_games_keep_all_cards_and_end(seed, first, second):
    duel = new_duel((first, second), seed)
    rng = random.Random(seed)
    check_invariants(duel)
    for _ in range(2000):
        if duel.winner is not None:
            break
        duel.apply(rng.choice(duel.legal()))
        check_invariants(duel)
    assert duel.winner is not None


def is_allowed(duel, action):
    """Return whether the player to act may take an action, by an implementation of the rules of its own."""
    kind, subject, target = action
    seat = duel.to_act
    own_side, opponent = duel.sides[seat], duel.sides[1 - seat]
    creatures = {c.uid: c for side in duel.sides for c in side.creatures}
    half_blocked = [c for c in opponent.creatures if c.attacking and has_keyword(c, "menace") and c.blocked == 1]
    if kind == PASS:
        return not (duel.phase == BLOCKING and half_blocked)
    at_sorcery_speed = duel.phase == MAIN and not duel.stack
    if kind == LAND:
        return (
            at_sorcery_speed
            and CARDS[subject].kind == TERRAIN
            and subject in own_side.hand
            and not own_side.land_played
        )
    if kind == CAST:
        card = CARDS[subject]
        if card.kind == TERRAIN or subject not in own_side.hand or not can_pay(card, own_side.untapped):
            return False
        if not at_sorcery_speed and (card.kind != INSTANT or not (duel.stack or duel.phase == FIGHTING)):
            return False
        if card.kind == CREATURE and len(own_side.creatures) == BOARD_LIMIT:
            return False
        if card.target == SPELL:
            return bool(duel.stack) and target == duel.stack[-1].uid
        targets = {
            NOTHING: [],
            FRIEND: [c.uid for c in own_side.creatures],
            FOE: [c.uid for c in opponent.creatures],
            FOE_OR_FACE: [FACE, *(c.uid for c in opponent.creatures)],
        }[card.target]
        target_is_optional = card.target == NOTHING or (card.kind == CREATURE and not targets)
        return target in targets or (target == 0 and target_is_optional)
    creature = creatures.get(subject)
    if creature is None or creature.seat != seat or creature.tapped or has_keyword(creature, "bound") or duel.stack:
        return False
    if kind == ATTACK:
        ready = (
            not creature.attacking
            and not has_keyword(creature, "defender")
            and (not creature.sick or has_keyword(creature, "haste"))
        )
        return duel.phase == RAIDING and seat == duel.active and ready
    attacker = creatures.get(target)
    if duel.phase != BLOCKING or seat == duel.active or attacker is None or not attacker.attacking or creature.blocking:
        return False
    able_blockers = [c for c in own_side.creatures if not c.tapped and not c.blocking and can_block(c, attacker)]
    if creature not in able_blockers or (half_blocked and attacker not in half_blocked):
        return False
    return not has_keyword(attacker, "menace") or attacker.blocked > 0 or len(able_blockers) > 1


def has_keyword(creature, keyword):
    return bool(creature.keywords & KEYWORDS[keyword])


def can_block(blocker, attacker):
    can_reach = not has_keyword(attacker, "flying") or has_keyword(blocker, "flying") or has_keyword(blocker, "reach")
    return can_reach and not has_keyword(blocker, "bound")


def can_pay(card, untapped):
    remaining = list(untapped)
    for colour, number in card.pips:
        remaining[colour] -= number
    return min(remaining) >= 0 and sum(remaining) >= card.generic


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_legal_actions_equal_a_second_implementation_of_the_rules(seed):
    duel = new_duel(("random", "random"), seed)
    rng = random.Random(seed)
    while duel.winner is None and duel.turn < 40:
        legal = duel.legal()
        expected = {action for action in all_actions(duel, duel.sides[duel.to_act].hand) if is_allowed(duel, action)}
        assert expected >= set(legal)
        # Of several equal creatures, the legal actions contain only one.
        legal_by_names = {describe_by_names(duel, action) for action in legal}
        assert {describe_by_names(duel, action) for action in expected} == legal_by_names
        duel.apply(rng.choice(legal))


@settings(max_examples=30, deadline=None)
@given(SEEDS, STEPS)
def test_illegal_actions_are_refused_and_do_not_change_the_duel(seed, steps):
    duel = play_randomly(seed, steps)
    legal = set(duel.legal())
    before = duel.get_state()
    malformed = {Action(9), Action(CAST, -1), Action(ATTACK, 10**6)}
    for action in (all_actions(duel, range(len(CARDS))) | malformed) - legal:
        with pytest.raises(ValueError, match="not legal"):
            duel.apply(action)
    assert duel.get_state() == before
    for action in legal:
        duel.clone().apply(action)
    assert duel.get_state() == before


def all_actions(duel, cards):
    """Return all actions with these cards and with everything on the board and on the stack, legal or not."""
    uids = [creature.uid for side in duel.sides for creature in side.creatures]
    uids += [spell.uid for spell in duel.stack]
    actions = {Action(PASS)} | {Action(LAND, card) for card in cards}
    actions |= {Action(CAST, card, target) for card in cards for target in (0, FACE, *uids)}
    return (
        actions
        | {Action(ATTACK, uid) for uid in uids}
        | {Action(BLOCK, blocker, attacker) for blocker in uids for attacker in uids}
    )


def describe_by_names(duel, action):
    """Return an action with the names of creatures in place of their uids."""
    names_by_uid = {creature.uid: CARDS[creature.card].name for side in duel.sides for creature in side.creatures}
    subject = action.subject if action.kind in (LAND, CAST) else names_by_uid.get(action.subject)
    return action.kind, subject, names_by_uid.get(action.target, action.target)


@settings(max_examples=60, deadline=None)
@given(SEEDS, STEPS)
def test_clones_and_restored_duels_continue_exactly(seed, steps):
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
def test_playing_a_clone_does_not_change_the_original(seed, steps):
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
    """Return everything that a player sees, as plain data."""
    own_side, opponent_side = duel.sides[seat], duel.sides[1 - seat]
    sides = [
        (side.life, side.land_played, side.lands, side.untapped, side.grants, side.graveyard, side.exile, side.charms)
        for side in (own_side, opponent_side)
    ]
    boards = [[creature.to_ints() for creature in side.creatures] for side in (own_side, opponent_side)]
    counts = [len(own_side.library), len(opponent_side.library), len(opponent_side.hand), sorted(own_side.library)]
    public = (
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
    return sides, boards, counts, own_side.hand, sorted(opponent_side.hand + opponent_side.library), public


@settings(max_examples=60, deadline=None)
@given(SEEDS, STEPS, st.integers(0, 1))
def test_determinized_changes_only_hidden_cards(seed, steps, seat):
    duel = play_randomly(seed, steps)
    before = duel.get_state()
    redealt = duel.determinized(seat, random.Random(1))
    assert duel.get_state() == before
    assert visible(redealt, seat) == visible(duel, seat)
    if duel.to_act == seat:
        assert redealt.legal() == duel.legal()
    elif duel.winner is None:
        assert redealt.legal()
    redealt_twice = redealt.determinized(seat, random.Random(2)).determinized(seat, random.Random(1))
    assert redealt_twice.get_state() == redealt.get_state(), (
        "the result depends only on visible cards and the random generator"
    )
    rng = random.Random(seed)
    while redealt.winner is None:
        redealt.apply(rng.choice(redealt.legal()))
    for player in (0, 1):
        assert cards_of(redealt, player) == cards_of(duel, player)


def test_determinized_can_deal_every_unseen_card():
    duel = play_randomly(5, 10, ("ember", "tide"))
    hands = [duel.determinized(0, random.Random(seed)).sides[1].hand for seed in range(200)]
    unseen = set(duel.sides[1].hand + duel.sides[1].library)
    assert set().union(*hands) == unseen
    assert len({tuple(hand) for hand in hands}) > 150


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_menace_attacker_never_ends_with_one_blocker(seed):
    duel = new_duel(("gloom-ember", "gloom"), seed)
    rng = random.Random(seed)
    while duel.winner is None:
        options = duel.legal()
        if duel.phase == BLOCKING and not duel.stack and Action(PASS) in options:
            for creature in duel.sides[duel.active].creatures:
                assert not (creature.attacking and creature.keywords & MENACE and creature.blocked == 1)
        duel.apply(rng.choice(options))


def test_logging_does_not_change_the_duel():
    without_log, with_log = new_duel(("random", "random"), 4), new_duel(("random", "random"), 4)
    with_log.log = []
    rng = random.Random(4)
    while without_log.winner is None:
        action = rng.choice(without_log.legal())
        without_log.apply(action)
        with_log.apply(action)
    assert without_log.get_state() == with_log.get_state()
    assert len(with_log.log) > 20


def _play_games(first_seed, count):
    """Play random games, with the invariants checked only at the end of each; return how many ended."""
    rng = random.Random(first_seed)
    ended = 0
    for seed in range(first_seed, first_seed + count):
        duel = new_duel(("random", "random"), seed)
        decisions = 0
        while duel.winner is None:
            options = duel.legal()
            assert 1 < len(options) <= MAX_OPTIONS
            duel.apply(options[int(rng.random() * len(options))])
            decisions += 1
            assert decisions < 5000
        check_invariants(duel)
        ended += 1
    return ended


@pytest.mark.deep
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_random_games_end_without_an_exception():
    processes = os.cpu_count() or 1
    with ProcessPoolExecutor(processes) as pool:
        results = pool.map(_play_games, range(0, 100_000, 1000), [1000] * 100)
        assert sum(results) == 100_000
