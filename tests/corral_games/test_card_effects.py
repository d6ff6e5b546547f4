"""Every card can be cast and does what its data says; every word that cards use is checked on its own."""

import pytest

from corral_games.card_battle.engine.board import recompute_stats
from corral_games.card_battle.engine.cards import (
    CARDS,
    CHARM,
    CREATURE,
    FOE,
    FOE_OR_FACE,
    FRIEND,
    INSTANT,
    MARK,
    NOTHING,
    SORCERY,
    SPELL,
    TERRAIN,
    keyword_bits,
)
from corral_games.card_battle.engine.pieces import CAST, FACE
from tests.corral_games.card_positions import arena, creature, do, names, number

SPELLS = [card for card in CARDS if card.kind != TERRAIN and not card.token]
FRIENDS = ["Tusked Grazer", "Briar Wolf"]
FOES = ["Breaker Serpent", "Squall Gull"]


class Look:
    """What a duel looks like, to compare before and after."""

    def __init__(self, duel):
        self.life = [side.life for side in duel.sides]
        self.hand = [len(side.hand) for side in duel.sides]
        self.library = [len(side.library) for side in duel.sides]
        self.graveyard = [names(side.graveyard) for side in duel.sides]
        self.exile = [names(side.exile) for side in duel.sides]
        self.charms = [names(side.charms) for side in duel.sides]
        self.board = [[CARDS[found.card].name for found in side.creatures] for side in duel.sides]
        self.sizes = [{f.uid: (f.power, f.toughness, f.keywords) for f in side.creatures} for side in duel.sides]
        self.damage = [{found.uid: found.damage for found in side.creatures} for side in duel.sides]
        self.tapped = [{found.uid: found.tapped for found in side.creatures} for side in duel.sides]
        self.lands = [sum(side.lands) for side in duel.sides]


def position(card):
    """A board on which every card has something to do, and one friend outlives everything."""
    duel = arena(FRIENDS, FOES, hand=[card.name], their_hand=["Meadow", "Crag", "Fen"], their_lands=0)
    duel.sides[0].creatures[0].counters = 5
    recompute_stats(duel, duel.sides[0].creatures[0])
    for seat in (0, 1):
        duel.sides[seat].graveyard = [number("Cloud Lancer"), number("Surge of Sap"), number("Lantern Squire")]
    duel.sides[1].charms = [number("Drumfire")]
    return duel


def cast(duel, name, target=None):
    """Cast, and let it happen; the duel then waits for attackers."""
    card = number(name)
    for action in duel.legal():
        if action.kind == CAST and action.subject == card and (target is None or action.target == target):
            duel.apply(action)
            return action
    raise AssertionError(f"{name} cannot be cast")


@pytest.mark.parametrize("card", [card for card in SPELLS if card.target != SPELL], ids=lambda card: card.name)
def test_each_card_does_what_its_data_says(card):
    for target in targets_of(card, position(card)):
        duel = position(card)
        before = Look(duel)
        mana = sum(duel.sides[0].untapped)
        cast(duel, card.name, target)
        assert duel.winner is None
        assert duel.active == 0
        after = Look(duel)
        assert sum(duel.sides[0].untapped) == mana - card.cost
        check_where_it_went(card, duel, before, after, target)
        for word, *numbers in card.effects:
            CHECKS[word](duel, before, after, target, *numbers)
        check_that_nothing_else_happened(card, before, after)


def targets_of(card, duel):
    foes = [found.uid for found in duel.sides[1].creatures]
    friends = [found.uid for found in duel.sides[0].creatures]
    return {NOTHING: [0], FOE: foes, FRIEND: friends, FOE_OR_FACE: [FACE, *foes]}[card.target]


def check_where_it_went(card, duel, before, after, target):
    if card.kind == CREATURE:
        found = [found for found in duel.sides[0].creatures if found.card == number(card.name)][-1]
        assert (found.power, found.toughness, found.keywords) == (card.power, card.toughness, card.keywords)
        assert found.sick
        assert after.hand[0] - before.hand[0] == -1 + amount(card, "draw") + amount(card, "recall")
    elif card.kind == CHARM:
        assert after.charms[0] == [*before.charms[0], card.name]
        for uid, size in after.sizes[0].items():
            assert size == plus(before.sizes[0][uid], card.grants)
    elif card.kind == MARK:
        marked = duel.find(target)
        side = 0 if card.target == FRIEND else 1
        if marked is None:
            assert before.sizes[side][target][1] + card.grants[1] <= 0
        else:
            assert marked.marks == (number(card.name),)
            assert after.sizes[side][target] == plus(before.sizes[side][target], card.grants)
    else:
        assert card.name in after.graveyard[0]


def check_that_nothing_else_happened(card, before, after):
    words = {word for word, *_ in card.effects}
    if not words & {"gain", "lose", "drain"}:
        assert after.life[0] == before.life[0]
    if not words & {"damage", "damage_face", "drain"}:
        assert after.life[1] == before.life[1]
    if not words & {"land"}:
        assert after.lands == before.lands
    if not words & {"damage", "damage_all", "damage_foes", "destroy", "edict", "exile", "bounce", "bite", "boost"}:
        assert after.board[1] == before.board[1]
    if not words & {"draw", "land"}:
        assert after.library == before.library


def amount(card, wanted):
    return sum(numbers[0] for word, *numbers in card.effects if word == wanted)


def plus(size, grants):
    return size[0] + grants[0], size[1] + grants[1], size[2] | grants[2]


def took(before, after, side, uid, damage):
    """Whether a creature took that damage, or died of it."""
    if uid in after.damage[side]:
        return after.damage[side][uid] == before.damage[side][uid] + damage and damage < after.sizes[side][uid][1]
    return damage >= before.sizes[side][uid][1]


def check_damage(duel, before, after, target, damage):
    if target == FACE:
        assert after.life[1] == before.life[1] - damage
    else:
        assert took(before, after, 1, target, damage)


def check_damage_face(duel, before, after, target, damage):
    assert after.life[1] == before.life[1] - damage


def check_damage_foes(duel, before, after, target, damage):
    assert all(took(before, after, 1, uid, damage) for uid in before.sizes[1])


def check_damage_all(duel, before, after, target, damage):
    assert all(took(before, after, side, uid, damage) for side in (0, 1) for uid in before.sizes[side])


def check_destroy(duel, before, after, target):
    assert target not in after.sizes[1]
    assert len(after.graveyard[1]) == len(before.graveyard[1]) + 1


def check_edict(duel, before, after, target):
    assert after.board[1] == ["Breaker Serpent"]
    assert after.graveyard[1][-1] == "Squall Gull"


def check_exile(duel, before, after, target):
    assert target not in after.sizes[1]
    assert len(after.exile[1]) == 1
    assert after.graveyard[1] == before.graveyard[1]


def check_bounce(duel, before, after, target):
    assert target not in after.sizes[1]
    assert after.hand[1] == before.hand[1] + 1
    assert duel.sides[1].hand == sorted(duel.sides[1].hand)


def check_tap(duel, before, after, target):
    assert after.tapped[1][target]


def check_tap_all(duel, before, after, target):
    assert all(after.tapped[1].values())
    assert not any(after.tapped[0].values())


def check_boost(duel, before, after, target, power, toughness, keywords):
    side = target & 1
    grants = (power, toughness, keyword_bits(keywords))
    if target in after.sizes[side]:
        assert after.sizes[side][target] == plus(before.sizes[side][target], grants)
    else:
        assert before.sizes[side][target][1] + toughness <= 0


def check_boost_all(duel, before, after, target, power, toughness, keywords):
    for uid, size in after.sizes[0].items():
        assert size == plus(before.sizes[0][uid], (power, toughness, keyword_bits(keywords)))


def check_grow(duel, before, after, target, more):
    side = target & 1
    assert after.sizes[side][target] == plus(before.sizes[side][target], (more, more, 0))
    assert duel.find(target).counters in (more, 5 + more)


def check_bite(duel, before, after, target):
    assert took(before, after, 1, target, 9)


def check_token(duel, before, after, target, name, count):
    assert after.board[0].count(name) == count


def check_draw(duel, before, after, target, count):
    assert after.library[0] == before.library[0] - count
    assert names(duel.sides[0].hand).count("Meadow") == count


def check_discard(duel, before, after, target, count):
    assert after.hand[1] == before.hand[1] - count
    assert len(after.graveyard[1]) == len(before.graveyard[1]) + count


def check_gain(duel, before, after, target, life):
    assert after.life[0] == before.life[0] + life


def check_lose(duel, before, after, target, life):
    assert after.life[0] == before.life[0] - life


def check_drain(duel, before, after, target, life):
    assert after.life == [before.life[0] + life, before.life[1] - life]


def check_land(duel, before, after, target, count):
    assert after.lands[0] == before.lands[0] + count
    assert after.library[0] == before.library[0] - count


def check_recall(duel, before, after, target, count):
    assert "Cloud Lancer" in names(duel.sides[0].hand)
    assert "Cloud Lancer" not in after.graveyard[0]


def check_revive(duel, before, after, target):
    assert "Cloud Lancer" in after.board[0]
    assert "Cloud Lancer" not in after.graveyard[0]


def check_disenchant(duel, before, after, target):
    assert after.charms[1] == []
    assert after.graveyard[1][-1] == "Drumfire"


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


def test_every_word_of_every_card_is_checked():
    used = {str(word) for card in CARDS for word, *_ in card.effects + card.death + card.upkeep}
    assert used - set(CHECKS) <= {"counter", "grow_all"}, "these two have tests of their own"


@pytest.mark.parametrize("card", [card for card in SPELLS if card.death], ids=lambda card: card.name)
def test_last_effects_happen_when_the_creature_dies(card):
    duel = arena(["Briar Wolf", card.name], hand=["Clean Slate"])
    before = Look(duel)
    cast(duel, "Clean Slate")
    after = Look(duel)
    assert card.name in after.graveyard[0]
    for word, *numbers in card.death:
        CHECKS[word](duel, before, after, 0, *numbers)


@pytest.mark.parametrize("card", [card for card in SPELLS if card.upkeep], ids=lambda card: card.name)
def test_charms_act_at_the_beginning_of_their_owners_turns(card):
    duel = arena(FRIENDS, their_hand=["Crag"])
    duel.sides[0].charms = [number(card.name)]
    before = Look(duel)
    do(duel, "done")
    assert duel.active == 1
    assert Look(duel).life == before.life, "not in the other player's turn"
    do(duel, "pass")
    assert duel.active == 0
    after = Look(duel)
    for word, *numbers in card.upkeep:
        if word == "draw":
            assert after.library[0] == before.library[0] - numbers[0] - 1
        elif word == "grow_all":
            assert [found.counters for found in duel.sides[0].creatures] == numbers * 2
        else:
            CHECKS[word](duel, before, after, 0, *numbers)


@pytest.mark.parametrize("card", [card for card in SPELLS if card.target == SPELL], ids=lambda card: card.name)
def test_counters_stop_the_spell_that_they_answer(card):
    duel = arena(["Lantern Squire"], hand=["Briar Wolf"], their_hand=[card.name])
    do(duel, "cast Briar Wolf", f"cast {card.name} against Briar Wolf")
    assert names(duel.sides[0].graveyard) == ["Briar Wolf"]
    assert names(duel.sides[1].graveyard) == [card.name]


def test_a_charm_also_helps_creatures_that_come_later_and_ends_when_it_is_destroyed():
    duel = arena(["Briar Wolf"], hand=["Marching Hymn", "Lantern Squire"], their_hand=["Rust Beetle"])
    do(duel, "cast Marching Hymn", "cast Lantern Squire")
    assert (creature(duel, "Briar Wolf").power, creature(duel, "Lantern Squire").toughness) == (4, 2)
    do(duel, "done", "cast Rust Beetle")
    assert names(duel.sides[0].graveyard) == ["Marching Hymn"]
    assert (creature(duel, "Briar Wolf").power, creature(duel, "Lantern Squire").toughness) == (3, 1)


def test_who_lives_only_by_a_charm_dies_with_it():
    duel = arena(["Tusked Grazer"], ["Lantern Squire"], hand=["Rust Beetle"])
    duel.sides[1].charms = [number("Marching Hymn")]
    duel.sides[1].grants = (1, 1, 0)
    squire = creature(duel, "Lantern Squire")
    squire.power, squire.toughness, squire.damage = 3, 2, 1
    do(duel, "cast Rust Beetle")
    assert names(duel.sides[1].graveyard) == ["Marching Hymn", "Lantern Squire"]


def test_marks_go_to_the_graveyard_of_those_who_played_them():
    duel = arena(["Tusked Grazer"], ["Briar Wolf"], hand=["Frozen Sleep", "Quiet Blade"])
    do(duel, "cast Frozen Sleep", "cast Quiet Blade")
    assert sorted(names(duel.sides[0].graveyard)) == ["Frozen Sleep", "Quiet Blade"]
    assert names(duel.sides[1].graveyard) == ["Briar Wolf"]


@pytest.mark.parametrize("spell", ["Back to the Shallows", "Weighed and Found Light", "Quiet Blade"])
def test_tokens_leave_nothing_behind(spell):
    duel = arena(["Tusked Grazer"], ["Wolf"], hand=[spell])
    cast(duel, spell)
    side = duel.sides[1]
    assert side.creatures == side.hand == side.graveyard == side.exile == []


def test_growth_stays_and_boosts_end():
    duel = arena(["Briar Wolf"], hand=["Deep Roots", "Surge of Sap"])
    do(duel, "cast Deep Roots", "cast Surge of Sap")
    assert creature(duel, "Briar Wolf").power == 8
    do(duel, "done")
    assert (creature(duel, "Briar Wolf").power, creature(duel, "Briar Wolf").toughness) == (5, 4)


def test_bite_counts_the_keywords_of_the_hunter():
    duel = arena(["Crypt Vermin"], ["Seafloor Titan"], hand=["Lesson of Fangs"])
    do(duel, "cast Lesson of Fangs")
    assert names(duel.sides[1].graveyard) == ["Seafloor Titan"]


def test_bite_without_power_does_nothing():
    duel = arena(["Crypt Vermin"], ["Seafloor Titan"], hand=["Lesson of Fangs"])
    creature(duel, "Crypt Vermin").power = 0
    do(duel, "cast Lesson of Fangs")
    assert creature(duel, "Seafloor Titan").damage == 0


def test_a_chain_of_deaths_is_followed_to_its_end():
    duel = arena(["Ash Acolyte", "Tusked Grazer"], ["Furnace Hound"], hand=["Rotting Fog"])
    do(duel, "cast Rotting Fog")
    assert (duel.sides[0].life, duel.sides[1].life) == (20, 19)


def test_random_discards_follow_from_the_state():
    def discarded(rng_state):
        duel = arena(
            ["Lantern Squire"], hand=["Pocket Thief"], their_hand=["Crag", "Old Mammoth", "Nullwave"], their_lands=0
        )
        duel.rng_state = rng_state
        do(duel, "cast Pocket Thief")
        return names(duel.sides[1].graveyard)[0]

    results = [discarded(rng_state * 7919) for rng_state in range(40)]
    assert set(results) == {"Crag", "Old Mammoth", "Nullwave"}
    assert results == [discarded(rng_state * 7919) for rng_state in range(40)]


def test_lands_that_are_found_come_tapped_and_leave_the_library_in_order():
    duel = arena(["Briar Wolf"], hand=["Follow the Stream"])
    duel.sides[0].library = [number("Crag"), number("Nullwave"), number("Fen"), number("Firespit")]
    do(duel, "cast Follow the Stream")
    assert names(duel.sides[0].library) == ["Crag", "Nullwave", "Firespit"]
    assert duel.sides[0].lands[2] == 10
    assert duel.sides[0].untapped[2] <= 9


def test_kinds_are_what_they_should_be():
    for card in SPELLS:
        if card.kind in (INSTANT, SORCERY):
            assert card.effects
            assert card.toughness == 0
        elif card.kind in (CHARM, MARK):
            assert card.upkeep or card.grants != (0, 0, 0)
        else:
            assert card.toughness > 0
