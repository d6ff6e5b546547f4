"""Each keyword in a small combat."""

from corral_games.card_battle.engine.cards import BOUND, KEYWORDS, keyword_bits, keyword_names
from corral_games.card_battle.engine.pieces import BLOCKING
from tests.corral_games.card_positions import arena, creature, do, names, words


def test_flying_is_blocked_only_by_flying_and_reach():
    duel = arena(["Mist Ray"], ["Briar Wolf", "Squall Gull", "Canopy Weaver"])
    do(duel, "attack with Mist Ray")
    assert words(duel) == [
        "done blocking",
        "block Mist Ray (2/2) with Squall Gull (3/3)",
        "block Mist Ray (2/2) with Canopy Weaver (2/4)",
    ]


def test_reach_does_not_fly():
    duel = arena(["Canopy Weaver"], ["Briar Wolf"])
    do(duel, "attack with Canopy Weaver")
    assert "block Canopy Weaver (2/4) with Briar Wolf (3/2)" in words(duel)


def test_haste_attacks_in_the_turn_it_comes():
    duel = arena(hand=["Forge Runt", "Briar Wolf"])
    do(duel, "cast Forge Runt", "cast Briar Wolf")
    assert words(duel) == ["done attacking", "attack with Forge Runt (2/2)"]


def test_trample_carries_what_blockers_do_not_need():
    duel = arena(["Slag Boar"], ["Lantern Squire", "Foam Sprite"])
    do(duel, "attack", "block Slag Boar (4/3) with Lantern Squire", "block Slag Boar (4/3) with Foam Sprite")
    assert duel.sides[1].life == 18
    assert duel.sides[1].creatures == []
    assert names(duel.sides[0].graveyard) == ["Slag Boar"]


def test_trample_goes_through_when_the_blocker_is_gone():
    duel = arena(["Slag Boar", "Briar Wolf"], ["Coral Bulwark"], hand=["Back to the Shallows"])
    do(duel, "pass", "attack with Slag Boar", "done", "block Slag Boar", "cast Back to the Shallows on Coral Bulwark")
    assert duel.sides[1].life == 16


def test_a_blocked_attacker_without_trample_deals_nothing_when_the_blocker_is_gone():
    duel = arena(["Tusked Grazer"], ["Coral Bulwark"], hand=["Back to the Shallows"])
    do(duel, "pass", "attack", "block", "cast Back to the Shallows on Coral Bulwark")
    assert duel.sides[1].life == 20


def test_first_strike_kills_before_it_is_hit():
    duel = arena(["Chapel Sentry"], ["Briar Wolf"])
    do(duel, "attack", "block")
    assert names(duel.sides[1].graveyard) == ["Briar Wolf"]
    assert creature(duel, "Chapel Sentry").damage == 0


def test_first_strike_on_both_sides_is_simultaneous():
    duel = arena(["Chapel Sentry"], ["Ridge Raider"])
    do(duel, "attack", "block")
    assert names(duel.sides[0].graveyard) == ["Chapel Sentry"]
    assert names(duel.sides[1].graveyard) == ["Ridge Raider"]


def test_who_survives_first_strike_strikes_back_once():
    duel = arena(["Chapel Sentry"], ["Tusked Grazer"])
    do(duel, "attack", "block")
    assert names(duel.sides[0].graveyard) == ["Chapel Sentry"]
    assert duel.sides[1].life == 20


def test_deathtouch_kills_whatever_it_hurts():
    duel = arena(["Old Mammoth"], ["Crypt Vermin"])
    do(duel, "attack", "block")
    assert names(duel.sides[0].graveyard) == ["Old Mammoth"]
    assert duel.sides[1].life == 14


def test_deathtouch_with_trample_needs_one_damage_per_blocker():
    duel = arena(["Old Mammoth"], ["Coral Bulwark", "Seafloor Titan"])
    creature(duel, "Old Mammoth").keywords |= keyword_bits("deathtouch")
    do(duel, "attack", "block Old Mammoth (7/6) with Coral", "block Old Mammoth (7/6) with Seafloor")
    assert duel.sides[1].life == 15
    assert duel.sides[1].creatures == []


def test_lifelink_heals_its_owner():
    duel = arena(["Crimson Matron"])
    do(duel, "attack")
    assert (duel.sides[0].life, duel.sides[1].life) == (23, 17)


def test_lifelink_heals_while_blocking_and_may_save_a_life():
    duel = arena(["Tusked Grazer", "Briar Wolf"], ["Crimson Matron"])
    duel.sides[1].life = 2
    do(duel, "attack with Tusked", "attack with Briar", "block Tusked Grazer")
    assert duel.winner is None
    assert duel.sides[1].life == 2 - 3 + 3


def test_vigilance_does_not_tap():
    duel = arena(["Banner Rider", "Briar Wolf"])
    do(duel, "attack with Banner Rider", "attack with Briar Wolf")
    assert not creature(duel, "Banner Rider").tapped
    assert creature(duel, "Briar Wolf").tapped


def test_menace_needs_two_blockers():
    duel = arena(["Bog Stalker"], ["Briar Wolf", "Lantern Squire"])
    do(duel, "attack", "block Bog Stalker (3/2) with Briar Wolf")
    assert duel.phase != BLOCKING, "the second block was the only way to go on, so it is made at once"
    assert names(duel.sides[0].graveyard) == ["Bog Stalker"]


def test_menace_cannot_be_left_with_one_blocker():
    duel = arena(["Bog Stalker"], ["Briar Wolf", "Lantern Squire", "Tusked Grazer"])
    do(duel, "attack", "block Bog Stalker (3/2) with Briar Wolf")
    assert words(duel) == [
        "block Bog Stalker (3/2) with Lantern Squire (2/1)",
        "block Bog Stalker (3/2) with Tusked Grazer (4/4)",
    ]
    do(duel, "block Bog Stalker (3/2) with Lantern Squire")
    assert words(duel) == ["done blocking", "block Bog Stalker (3/2) with Tusked Grazer (4/4)"]


def test_menace_against_a_single_blocker_cannot_be_blocked():
    duel = arena(["Bog Stalker", "Forge Runt"], ["Briar Wolf"])
    do(duel, "attack with Bog", "attack with Forge")
    assert words(duel) == ["done blocking", "block Forge Runt (2/2) with Briar Wolf (3/2)"]


def test_menace_counts_only_blockers_that_can_reach_it():
    duel = arena(["Bog Stalker"], ["Mist Ray", "Briar Wolf"])
    creature(duel, "Bog Stalker").keywords |= keyword_bits("flying")
    do(duel, "attack")
    assert duel.sides[1].life == 17


def test_defender_blocks_and_does_not_attack():
    duel = arena(["Coral Bulwark", "Briar Wolf"])
    assert words(duel) == ["done attacking", "attack with Briar Wolf (3/2)"]
    duel = arena(["Briar Wolf"], ["Coral Bulwark"])
    do(duel, "attack")
    assert "block Briar Wolf (3/2) with Coral Bulwark (1/5)" in words(duel)


def test_bound_neither_attacks_nor_blocks():
    duel = arena(["Briar Wolf", "Tusked Grazer"], ["Slag Boar"], hand=["Golden Manacles"])
    do(duel, "cast Golden Manacles on Slag Boar")
    assert creature(duel, "Slag Boar").keywords & BOUND
    do(duel, "attack with Briar Wolf", "done")
    assert duel.sides[1].life == 17, "nobody could block"
    duel.options = None
    creature(duel, "Slag Boar").sick = False
    assert "attack with Slag Boar (4/3)" not in words(duel)


def test_keywords_and_bits_are_inverse():
    for name in KEYWORDS:
        assert keyword_names(keyword_bits(name)) == [name]
    assert keyword_names(keyword_bits("first strike, flying")) == ["flying", "first strike"]
