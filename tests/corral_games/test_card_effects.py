"""The effects of every card, as its data says; each kind of effect has a check function of its own."""

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
from tests.corral_games.card_positions import card_names, card_number, find_creature, make_duel, play_actions

SPELLS = [card for card in CARDS if card.kind != TERRAIN and not card.token]
OWN_CREATURES = ["Tusked Grazer", "Briar Wolf"]
OPPONENT_CREATURES = ["Breaker Serpent", "Squall Gull"]


class DuelSnapshot:
    """The parts of a duel that effects change, to compare before and after."""

    def __init__(self, duel):
        self.life = [side.life for side in duel.sides]
        self.hand = [len(side.hand) for side in duel.sides]
        self.library = [len(side.library) for side in duel.sides]
        self.graveyard = [card_names(side.graveyard) for side in duel.sides]
        self.exile = [card_names(side.exile) for side in duel.sides]
        self.charms = [card_names(side.charms) for side in duel.sides]
        self.board = [[CARDS[creature.card].name for creature in side.creatures] for side in duel.sides]
        self.stats = [
            {creature.uid: (creature.power, creature.toughness, creature.keywords) for creature in side.creatures}
            for side in duel.sides
        ]
        self.damage = [{creature.uid: creature.damage for creature in side.creatures} for side in duel.sides]
        self.tapped = [{creature.uid: creature.tapped for creature in side.creatures} for side in duel.sides]
        self.lands = [sum(side.lands) for side in duel.sides]


def position_for(card):
    """Return a duel in which every card has a target or another use, and one own creature survives every effect."""
    duel = make_duel(
        OWN_CREATURES, OPPONENT_CREATURES, hand=[card.name], opponent_hand=["Meadow", "Crag", "Fen"], opponent_lands=0
    )
    duel.sides[0].creatures[0].counters = 5
    recompute_stats(duel, duel.sides[0].creatures[0])
    for seat in (0, 1):
        duel.sides[seat].graveyard = [
            card_number("Cloud Lancer"),
            card_number("Surge of Sap"),
            card_number("Lantern Squire"),
        ]
    duel.sides[1].charms = [card_number("Drumfire")]
    return duel


def cast(duel, name, target=None):
    """Cast a card and let it resolve; the duel is then in the attack phase."""
    card = card_number(name)
    for action in duel.legal():
        if action.kind == CAST and action.subject == card and (target is None or action.target == target):
            duel.apply(action)
            return action
    raise AssertionError(f"{name} cannot be cast")


@pytest.mark.parametrize("card", [card for card in SPELLS if card.target != SPELL], ids=lambda card: card.name)
def test_each_card_has_the_effects_in_its_data(card):
    for target in targets_of(card, position_for(card)):
        duel = position_for(card)
        before = DuelSnapshot(duel)
        mana = sum(duel.sides[0].untapped)
        cast(duel, card.name, target)
        assert duel.winner is None
        assert duel.active == 0
        after = DuelSnapshot(duel)
        assert sum(duel.sides[0].untapped) == mana - card.cost
        check_card_moved(card, duel, before, after, target)
        for effect, *numbers in card.effects:
            EFFECT_CHECKS[effect](duel, before, after, target, *numbers)
        check_nothing_else_changed(card, before, after)


def targets_of(card, duel):
    opponent_uids = [creature.uid for creature in duel.sides[1].creatures]
    own_uids = [creature.uid for creature in duel.sides[0].creatures]
    return {NOTHING: [0], FOE: opponent_uids, FRIEND: own_uids, FOE_OR_FACE: [FACE, *opponent_uids]}[card.target]


def check_card_moved(card, duel, before, after, target):
    """Assert that the card left the hand for the board or the graveyard, with its own stats and grants."""
    if card.kind == CREATURE:
        creature = [creature for creature in duel.sides[0].creatures if creature.card == card_number(card.name)][-1]
        assert (creature.power, creature.toughness, creature.keywords) == (card.power, card.toughness, card.keywords)
        assert creature.sick
        assert after.hand[0] - before.hand[0] == -1 + effect_amount(card, "draw") + effect_amount(card, "recall")
    elif card.kind == CHARM:
        assert after.charms[0] == [*before.charms[0], card.name]
        for uid, size in after.stats[0].items():
            assert size == add_grants(before.stats[0][uid], card.grants)
    elif card.kind == MARK:
        marked = duel.find(target)
        side = 0 if card.target == FRIEND else 1
        if marked is None:
            assert before.stats[side][target][1] + card.grants[1] <= 0
        else:
            assert marked.marks == (card_number(card.name),)
            assert after.stats[side][target] == add_grants(before.stats[side][target], card.grants)
    else:
        assert card.name in after.graveyard[0]


def check_nothing_else_changed(card, before, after):
    """Assert that only those parts of the duel changed which the card's effects may change."""
    used_effects = {effect for effect, *_ in card.effects}
    if not used_effects & {"gain", "lose", "drain"}:
        assert after.life[0] == before.life[0]
    if not used_effects & {"damage", "damage_face", "drain"}:
        assert after.life[1] == before.life[1]
    if not used_effects & {"land"}:
        assert after.lands == before.lands
    if not used_effects & {
        "damage",
        "damage_all",
        "damage_foes",
        "destroy",
        "edict",
        "exile",
        "bounce",
        "bite",
        "boost",
    }:
        assert after.board[1] == before.board[1]
    if not used_effects & {"draw", "land"}:
        assert after.library == before.library


def effect_amount(card, effect_name):
    return sum(numbers[0] for effect, *numbers in card.effects if effect == effect_name)


def add_grants(stats, grants):
    return stats[0] + grants[0], stats[1] + grants[1], stats[2] | grants[2]


def took_damage(before, after, side, uid, damage):
    """Return whether a creature took that damage, or died of it."""
    if uid in after.damage[side]:
        return after.damage[side][uid] == before.damage[side][uid] + damage and damage < after.stats[side][uid][1]
    return damage >= before.stats[side][uid][1]


def check_damage(duel, before, after, target, damage):
    if target == FACE:
        assert after.life[1] == before.life[1] - damage
    else:
        assert took_damage(before, after, 1, target, damage)


def check_damage_face(duel, before, after, target, damage):
    assert after.life[1] == before.life[1] - damage


def check_damage_foes(duel, before, after, target, damage):
    assert all(took_damage(before, after, 1, uid, damage) for uid in before.stats[1])


def check_damage_all(duel, before, after, target, damage):
    assert all(took_damage(before, after, side, uid, damage) for side in (0, 1) for uid in before.stats[side])


def check_destroy(duel, before, after, target):
    assert target not in after.stats[1]
    assert len(after.graveyard[1]) == len(before.graveyard[1]) + 1


def check_edict(duel, before, after, target):
    assert after.board[1] == ["Breaker Serpent"]
    assert after.graveyard[1][-1] == "Squall Gull"


def check_exile(duel, before, after, target):
    assert target not in after.stats[1]
    assert len(after.exile[1]) == 1
    assert after.graveyard[1] == before.graveyard[1]


def check_bounce(duel, before, after, target):
    assert target not in after.stats[1]
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
    if target in after.stats[side]:
        assert after.stats[side][target] == add_grants(before.stats[side][target], grants)
    else:
        assert before.stats[side][target][1] + toughness <= 0


def check_boost_all(duel, before, after, target, power, toughness, keywords):
    for uid, size in after.stats[0].items():
        assert size == add_grants(before.stats[0][uid], (power, toughness, keyword_bits(keywords)))


def check_grow(duel, before, after, target, count):
    side = target & 1
    assert after.stats[side][target] == add_grants(before.stats[side][target], (count, count, 0))
    assert duel.find(target).counters in (count, 5 + count)


def check_bite(duel, before, after, target):
    assert took_damage(before, after, 1, target, 9)


def check_token(duel, before, after, target, name, count):
    assert after.board[0].count(name) == count


def check_draw(duel, before, after, target, count):
    assert after.library[0] == before.library[0] - count
    assert card_names(duel.sides[0].hand).count("Meadow") == count


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
    assert "Cloud Lancer" in card_names(duel.sides[0].hand)
    assert "Cloud Lancer" not in after.graveyard[0]


def check_revive(duel, before, after, target):
    assert "Cloud Lancer" in after.board[0]
    assert "Cloud Lancer" not in after.graveyard[0]


def check_disenchant(duel, before, after, target):
    assert after.charms[1] == []
    assert after.graveyard[1][-1] == "Drumfire"


EFFECT_CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


def test_every_effect_of_every_card_has_a_check():
    used = {str(effect) for card in CARDS for effect, *_ in card.effects + card.death + card.upkeep}
    assert used - set(EFFECT_CHECKS) <= {"counter", "grow_all"}, "these two are checked in tests of their own"


@pytest.mark.parametrize("card", [card for card in SPELLS if card.death], ids=lambda card: card.name)
def test_death_effects_happen_when_the_creature_dies(card):
    duel = make_duel(["Briar Wolf", card.name], hand=["Clean Slate"])
    before = DuelSnapshot(duel)
    cast(duel, "Clean Slate")
    after = DuelSnapshot(duel)
    assert card.name in after.graveyard[0]
    for effect, *numbers in card.death:
        EFFECT_CHECKS[effect](duel, before, after, 0, *numbers)


@pytest.mark.parametrize("card", [card for card in SPELLS if card.upkeep], ids=lambda card: card.name)
def test_charms_have_their_effect_at_the_start_of_their_owners_turns(card):
    duel = make_duel(OWN_CREATURES, opponent_hand=["Crag"])
    duel.sides[0].charms = [card_number(card.name)]
    before = DuelSnapshot(duel)
    play_actions(duel, "done")
    assert duel.active == 1
    assert DuelSnapshot(duel).life == before.life, "not in the other player's turn"
    play_actions(duel, "pass")
    assert duel.active == 0
    after = DuelSnapshot(duel)
    for effect, *numbers in card.upkeep:
        if effect == "draw":
            assert after.library[0] == before.library[0] - numbers[0] - 1
        elif effect == "grow_all":
            assert [creature.counters for creature in duel.sides[0].creatures] == numbers * 2
        else:
            EFFECT_CHECKS[effect](duel, before, after, 0, *numbers)


@pytest.mark.parametrize("card", [card for card in SPELLS if card.target == SPELL], ids=lambda card: card.name)
def test_counterspells_stop_the_spell_they_target(card):
    duel = make_duel(["Lantern Squire"], hand=["Briar Wolf"], opponent_hand=[card.name])
    play_actions(duel, "cast Briar Wolf", f"cast {card.name} against Briar Wolf")
    assert card_names(duel.sides[0].graveyard) == ["Briar Wolf"]
    assert card_names(duel.sides[1].graveyard) == [card.name]


def test_a_charm_affects_creatures_cast_later_until_it_is_destroyed():
    duel = make_duel(["Briar Wolf"], hand=["Marching Hymn", "Lantern Squire"], opponent_hand=["Rust Beetle"])
    play_actions(duel, "cast Marching Hymn", "cast Lantern Squire")
    assert (find_creature(duel, "Briar Wolf").power, find_creature(duel, "Lantern Squire").toughness) == (4, 2)
    play_actions(duel, "done", "cast Rust Beetle")
    assert card_names(duel.sides[0].graveyard) == ["Marching Hymn"]
    assert (find_creature(duel, "Briar Wolf").power, find_creature(duel, "Lantern Squire").toughness) == (3, 1)


def test_a_creature_kept_alive_by_a_charm_dies_when_the_charm_is_destroyed():
    duel = make_duel(["Tusked Grazer"], ["Lantern Squire"], hand=["Rust Beetle"])
    duel.sides[1].charms = [card_number("Marching Hymn")]
    duel.sides[1].grants = (1, 1, 0)
    squire = find_creature(duel, "Lantern Squire")
    squire.power, squire.toughness, squire.damage = 3, 2, 1
    play_actions(duel, "cast Rust Beetle")
    assert card_names(duel.sides[1].graveyard) == ["Marching Hymn", "Lantern Squire"]


def test_marks_go_to_the_graveyard_of_the_player_who_cast_them():
    duel = make_duel(["Tusked Grazer"], ["Briar Wolf"], hand=["Frozen Sleep", "Quiet Blade"])
    play_actions(duel, "cast Frozen Sleep", "cast Quiet Blade")
    assert sorted(card_names(duel.sides[0].graveyard)) == ["Frozen Sleep", "Quiet Blade"]
    assert card_names(duel.sides[1].graveyard) == ["Briar Wolf"]


@pytest.mark.parametrize("spell", ["Back to the Shallows", "Weighed and Found Light", "Quiet Blade"])
def test_tokens_go_to_no_hand_graveyard_or_exile(spell):
    duel = make_duel(["Tusked Grazer"], ["Wolf"], hand=[spell])
    cast(duel, spell)
    side = duel.sides[1]
    assert side.creatures == side.hand == side.graveyard == side.exile == []


def test_growth_is_permanent_and_boosts_end_with_the_turn():
    duel = make_duel(["Briar Wolf"], hand=["Deep Roots", "Surge of Sap"])
    play_actions(duel, "cast Deep Roots", "cast Surge of Sap")
    assert find_creature(duel, "Briar Wolf").power == 8
    play_actions(duel, "done")
    assert (find_creature(duel, "Briar Wolf").power, find_creature(duel, "Briar Wolf").toughness) == (5, 4)


def test_bite_applies_the_keywords_of_the_biting_creature():
    duel = make_duel(["Crypt Vermin"], ["Seafloor Titan"], hand=["Lesson of Fangs"])
    play_actions(duel, "cast Lesson of Fangs")
    assert card_names(duel.sides[1].graveyard) == ["Seafloor Titan"]


def test_bite_without_power_deals_no_damage():
    duel = make_duel(["Crypt Vermin"], ["Seafloor Titan"], hand=["Lesson of Fangs"])
    find_creature(duel, "Crypt Vermin").power = 0
    play_actions(duel, "cast Lesson of Fangs")
    assert find_creature(duel, "Seafloor Titan").damage == 0


def test_a_chain_of_death_effects_resolves_to_its_end():
    duel = make_duel(["Ash Acolyte", "Tusked Grazer"], ["Furnace Hound"], hand=["Rotting Fog"])
    play_actions(duel, "cast Rotting Fog")
    assert (duel.sides[0].life, duel.sides[1].life) == (20, 19)


def test_random_discards_are_determined_by_the_rng_state():
    def discarded(rng_state):
        duel = make_duel(
            ["Lantern Squire"],
            hand=["Pocket Thief"],
            opponent_hand=["Crag", "Old Mammoth", "Nullwave"],
            opponent_lands=0,
        )
        duel.rng_state = rng_state
        play_actions(duel, "cast Pocket Thief")
        return card_names(duel.sides[1].graveyard)[0]

    results = [discarded(rng_state * 7919) for rng_state in range(40)]
    assert set(results) == {"Crag", "Old Mammoth", "Nullwave"}
    assert results == [discarded(rng_state * 7919) for rng_state in range(40)]


def test_lands_fetched_from_the_library_enter_tapped_and_keep_its_order():
    duel = make_duel(["Briar Wolf"], hand=["Follow the Stream"])
    duel.sides[0].library = [card_number("Crag"), card_number("Nullwave"), card_number("Fen"), card_number("Firespit")]
    play_actions(duel, "cast Follow the Stream")
    assert card_names(duel.sides[0].library) == ["Crag", "Nullwave", "Firespit"]
    assert duel.sides[0].lands[2] == 10
    assert duel.sides[0].untapped[2] <= 9


def test_each_kind_of_card_has_the_data_it_needs():
    for card in SPELLS:
        if card.kind in (INSTANT, SORCERY):
            assert card.effects
            assert card.toughness == 0
        elif card.kind in (CHARM, MARK):
            assert card.upkeep or card.grants != (0, 0, 0)
        else:
            assert card.toughness > 0
