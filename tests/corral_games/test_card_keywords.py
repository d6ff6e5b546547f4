"""Each keyword of creatures, in a small combat."""

from corral_games.card_battle.engine.cards import BOUND, KEYWORDS, keyword_bits, keyword_names
from corral_games.card_battle.engine.pieces import BLOCKING
from tests.corral_games.card_positions import card_names, find_creature, legal_descriptions, make_duel, play_actions


def test_flying_is_blocked_only_by_flying_and_reach():
    duel = make_duel(["Mist Ray"], ["Briar Wolf", "Squall Gull", "Canopy Weaver"])
    play_actions(duel, "attack with Mist Ray")
    assert legal_descriptions(duel) == [
        "done blocking",
        "block Mist Ray (2/2) with Squall Gull (3/3)",
        "block Mist Ray (2/2) with Canopy Weaver (2/4)",
    ]


def test_a_creature_with_reach_does_not_fly():
    duel = make_duel(["Canopy Weaver"], ["Briar Wolf"])
    play_actions(duel, "attack with Canopy Weaver")
    assert "block Canopy Weaver (2/4) with Briar Wolf (3/2)" in legal_descriptions(duel)


def test_a_creature_with_haste_can_attack_in_the_turn_it_is_cast():
    duel = make_duel(hand=["Forge Runt", "Briar Wolf"])
    play_actions(duel, "cast Forge Runt", "cast Briar Wolf")
    assert legal_descriptions(duel) == ["done attacking", "attack with Forge Runt (2/2)"]


def test_trample_deals_excess_damage_to_the_player():
    duel = make_duel(["Slag Boar"], ["Lantern Squire", "Foam Sprite"])
    play_actions(duel, "attack", "block Slag Boar (4/3) with Lantern Squire", "block Slag Boar (4/3) with Foam Sprite")
    assert duel.sides[1].life == 18
    assert duel.sides[1].creatures == []
    assert card_names(duel.sides[0].graveyard) == ["Slag Boar"]


def test_trample_deals_all_damage_when_the_blocker_is_removed():
    duel = make_duel(["Slag Boar", "Briar Wolf"], ["Coral Bulwark"], hand=["Back to the Shallows"])
    play_actions(
        duel, "pass", "attack with Slag Boar", "done", "block Slag Boar", "cast Back to the Shallows on Coral Bulwark"
    )
    assert duel.sides[1].life == 16


def test_a_blocked_attacker_without_trample_deals_no_damage_when_the_blocker_is_removed():
    duel = make_duel(["Tusked Grazer"], ["Coral Bulwark"], hand=["Back to the Shallows"])
    play_actions(duel, "pass", "attack", "block", "cast Back to the Shallows on Coral Bulwark")
    assert duel.sides[1].life == 20


def test_first_strike_kills_before_the_other_creature_deals_damage():
    duel = make_duel(["Chapel Sentry"], ["Briar Wolf"])
    play_actions(duel, "attack", "block")
    assert card_names(duel.sides[1].graveyard) == ["Briar Wolf"]
    assert find_creature(duel, "Chapel Sentry").damage == 0


def test_first_strike_on_both_sides_is_simultaneous():
    duel = make_duel(["Chapel Sentry"], ["Ridge Raider"])
    play_actions(duel, "attack", "block")
    assert card_names(duel.sides[0].graveyard) == ["Chapel Sentry"]
    assert card_names(duel.sides[1].graveyard) == ["Ridge Raider"]


def test_a_creature_that_survives_first_strike_deals_damage_once():
    duel = make_duel(["Chapel Sentry"], ["Tusked Grazer"])
    play_actions(duel, "attack", "block")
    assert card_names(duel.sides[0].graveyard) == ["Chapel Sentry"]
    assert duel.sides[1].life == 20


def test_deathtouch_kills_any_creature_it_damages():
    duel = make_duel(["Old Mammoth"], ["Crypt Vermin"])
    play_actions(duel, "attack", "block")
    assert card_names(duel.sides[0].graveyard) == ["Old Mammoth"]
    assert duel.sides[1].life == 14


def test_deathtouch_with_trample_needs_one_damage_per_blocker():
    duel = make_duel(["Old Mammoth"], ["Coral Bulwark", "Seafloor Titan"])
    find_creature(duel, "Old Mammoth").keywords |= keyword_bits("deathtouch")
    play_actions(duel, "attack", "block Old Mammoth (7/6) with Coral", "block Old Mammoth (7/6) with Seafloor")
    assert duel.sides[1].life == 15
    assert duel.sides[1].creatures == []


def test_lifelink_gains_life_for_its_owner():
    duel = make_duel(["Crimson Matron"])
    play_actions(duel, "attack")
    assert (duel.sides[0].life, duel.sides[1].life) == (23, 17)


def test_lifelink_of_a_blocker_can_prevent_a_loss():
    duel = make_duel(["Tusked Grazer", "Briar Wolf"], ["Crimson Matron"])
    duel.sides[1].life = 2
    play_actions(duel, "attack with Tusked", "attack with Briar", "block Tusked Grazer")
    assert duel.winner is None
    assert duel.sides[1].life == 2 - 3 + 3


def test_a_creature_with_vigilance_does_not_tap_to_attack():
    duel = make_duel(["Banner Rider", "Briar Wolf"])
    play_actions(duel, "attack with Banner Rider", "attack with Briar Wolf")
    assert not find_creature(duel, "Banner Rider").tapped
    assert find_creature(duel, "Briar Wolf").tapped


def test_menace_needs_two_blockers():
    duel = make_duel(["Bog Stalker"], ["Briar Wolf", "Lantern Squire"])
    play_actions(duel, "attack", "block Bog Stalker (3/2) with Briar Wolf")
    assert duel.phase != BLOCKING, "the second block was the only legal action, so it was made automatically"
    assert card_names(duel.sides[0].graveyard) == ["Bog Stalker"]


def test_blocking_cannot_end_with_one_blocker_of_a_menace_creature():
    duel = make_duel(["Bog Stalker"], ["Briar Wolf", "Lantern Squire", "Tusked Grazer"])
    play_actions(duel, "attack", "block Bog Stalker (3/2) with Briar Wolf")
    assert legal_descriptions(duel) == [
        "block Bog Stalker (3/2) with Lantern Squire (2/1)",
        "block Bog Stalker (3/2) with Tusked Grazer (4/4)",
    ]
    play_actions(duel, "block Bog Stalker (3/2) with Lantern Squire")
    assert legal_descriptions(duel) == ["done blocking", "block Bog Stalker (3/2) with Tusked Grazer (4/4)"]


def test_menace_cannot_be_blocked_by_a_side_with_one_creature():
    duel = make_duel(["Bog Stalker", "Forge Runt"], ["Briar Wolf"])
    play_actions(duel, "attack with Bog", "attack with Forge")
    assert legal_descriptions(duel) == ["done blocking", "block Forge Runt (2/2) with Briar Wolf (3/2)"]


def test_menace_counts_only_creatures_that_can_block_it():
    duel = make_duel(["Bog Stalker"], ["Mist Ray", "Briar Wolf"])
    find_creature(duel, "Bog Stalker").keywords |= keyword_bits("flying")
    play_actions(duel, "attack")
    assert duel.sides[1].life == 17


def test_a_defender_can_block_and_cannot_attack():
    duel = make_duel(["Coral Bulwark", "Briar Wolf"])
    assert legal_descriptions(duel) == ["done attacking", "attack with Briar Wolf (3/2)"]
    duel = make_duel(["Briar Wolf"], ["Coral Bulwark"])
    play_actions(duel, "attack")
    assert "block Briar Wolf (3/2) with Coral Bulwark (1/5)" in legal_descriptions(duel)


def test_a_bound_creature_neither_attacks_nor_blocks():
    duel = make_duel(["Briar Wolf", "Tusked Grazer"], ["Slag Boar"], hand=["Golden Manacles"])
    play_actions(duel, "cast Golden Manacles on Slag Boar")
    assert find_creature(duel, "Slag Boar").keywords & BOUND
    play_actions(duel, "attack with Briar Wolf", "done")
    assert duel.sides[1].life == 17, "nobody could block"
    duel.options = None
    find_creature(duel, "Slag Boar").sick = False
    assert "attack with Slag Boar (4/3)" not in legal_descriptions(duel)


def test_keyword_bits_and_keyword_names_are_inverse():
    for name in KEYWORDS:
        assert keyword_names(keyword_bits(name)) == [name]
    assert keyword_names(keyword_bits("first strike, flying")) == ["flying", "first strike"]
