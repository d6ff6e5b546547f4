"""What a side of a card battle sees: within bounds, only what it may see, and true."""

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral_games.card_battle.bots.lookahead import EFFECT_SUMMARIES, EffectSummary, fight
from corral_games.card_battle.engine.cards import CARDS
from corral_games.card_battle.engine.options import MAX_OPTIONS
from corral_games.card_battle.engine.rules import describe
from corral_games.card_battle.features.action_features import ACTION_FEATURES, describe_actions
from corral_games.card_battle.features.features import FEATURES, lead, observe
from tests.corral_games.card_positions import arena, creature, do, play_randomly

SEEDS = st.integers(0, 2**31 - 1)
STEPS = st.integers(0, 120)
KINDS = ("pass", "land", "cast", "attack", "block")


def fixed(duel, **sizes):
    """The duel, with creatures of given sizes: cards may be balanced anew."""
    for name, (power, toughness) in sizes.items():
        found = creature(duel, name.replace("_", " "))
        found.power, found.toughness = power, toughness
    return duel


def seen(duel, seat=None):
    numbers = observe(duel, duel.to_act if seat is None else seat)
    return dict(zip(FEATURES, numbers.tolist(), strict=True))


def told(duel, beginning):
    """The row of the first legal action whose words begin like this."""
    rows = describe_actions(duel)
    for i, action in enumerate(duel.legal()):
        if describe(duel, action).startswith(beginning):
            return dict(zip(ACTION_FEATURES, rows[i].tolist(), strict=True))
    raise AssertionError(f"{beginning!r} is not among {[describe(duel, action) for action in duel.legal()]}")


# ---- in any position -------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(SEEDS, STEPS)
def test_every_number_is_within_its_bounds(seed, steps):
    duel = play_randomly(seed, steps)
    for seat in (0, 1):
        numbers = observe(duel, seat)
        assert numbers.shape == (36,) and numbers.dtype == np.float32
        assert numbers.min() >= -1 and numbers.max() <= 2
    rows = describe_actions(duel)
    assert rows.shape == (MAX_OPTIONS, 32) and rows.dtype == np.float16
    assert rows.min() >= -1 and rows.max() <= 2


@settings(max_examples=60, deadline=None)
@given(SEEDS, STEPS)
def test_there_is_a_row_for_each_legal_action_and_zeros_below(seed, steps):
    duel = play_randomly(seed, steps)
    options = [] if duel.winner is not None else duel.legal()
    rows = describe_actions(duel)
    assert not rows[len(options) :].any()
    for action, row in zip(options, rows, strict=False):
        assert row[: len(KINDS)].tolist() == [kind == action.kind for kind in range(len(KINDS))]


@settings(max_examples=100, deadline=None)
@given(SEEDS, STEPS, SEEDS)
def test_hidden_cards_change_nothing(seed, steps, other):
    duel = play_randomly(seed, steps)
    for seat in (0, 1):
        dealt_anew = duel.determinized(seat, random.Random(other))
        assert np.array_equal(observe(duel, seat), observe(dealt_anew, seat))
        assert lead(duel, seat) == lead(dealt_anew, seat)
    dealt_anew = duel.determinized(duel.to_act, random.Random(other))
    assert duel.legal() == dealt_anew.legal()
    assert np.array_equal(describe_actions(duel), describe_actions(dealt_anew))


@settings(max_examples=30, deadline=None)
@given(SEEDS, STEPS)
def test_arrays_may_be_kept_and_looking_changes_nothing(seed, steps):
    duel = play_randomly(seed, steps)
    before = duel.get_state()
    observation, rows = observe(duel, 0), describe_actions(duel)
    kept = observation.copy(), rows.copy()
    observe(duel, 1), describe_actions(duel)
    if duel.winner is None:
        assert duel.get_state() == before
        duel.apply(duel.legal()[-1])
        observe(duel, 0), describe_actions(duel)
    assert np.array_equal(observation, kept[0]) and np.array_equal(rows, kept[1])
    rows[0, 0] = 1.5
    assert describe_actions(duel)[0, 0] != 1.5


def test_the_lead_is_what_the_other_side_lacks():
    duel = play_randomly(3, 60)
    assert -1 < lead(duel, 0) == -lead(duel, 1) < 1
    assert seen(duel, 0)["lead"] == pytest.approx(lead(duel, 0), abs=1e-6)


# ---- the observation in known positions ------------------------------------------------------------------------


def test_life_lands_and_cards_are_counted():
    duel = arena(hand=["Ember Bolt", "Meadow", "Banner Rider", "Tusked Grazer"], their_hand=["Firespit"] * 3, lands=1)
    duel.sides[0].life, duel.sides[1].life = 10, 45
    found = seen(duel, 0)
    assert (found["my_life"], found["foe_life"], found["foe_hand"]) == pytest.approx((0.5, 2.0, 3 / 7))
    assert (found["my_lands"], found["my_mana"], found["foe_lands"]) == pytest.approx((5 / 8, 5 / 8, 2.0))
    assert (found["hand_lands"], found["hand_creatures"], found["hand_spells"]) == pytest.approx((0.25, 0.5, 0.25))
    assert found["castable"] == pytest.approx(0.75)
    assert (found["my_turn"], found["main"], found["land_drop"], found["turn"]) == pytest.approx((1, 1, 0, 0.45))
    assert found["lead"] < 0 < seen(duel, 1)["lead"]


def test_the_board_is_summed_up():
    duel = arena(["Squall Gull", "Tusked Grazer"], ["Bog Stalker"])
    fixed(duel, Squall_Gull=(3, 3), Tusked_Grazer=(4, 4), Bog_Stalker=(3, 2))
    found = seen(duel, 0)
    assert (found["my_creatures"], found["foe_creatures"]) == pytest.approx((2 / 6, 1 / 6))
    assert (found["my_power"], found["my_toughness"], found["foe_power"]) == pytest.approx((7 / 15, 7 / 15, 3 / 15))
    assert (found["my_evasion"], found["foe_evasion"]) == pytest.approx((0.3, 0.0))
    assert (found["my_ready"], found["my_guards"], found["foe_guards"]) == pytest.approx((7 / 15, 2 / 6, 1 / 6))


def test_an_attack_is_seen_from_both_sides():
    duel = fixed(arena(["Tusked Grazer", "Squall Gull"], ["Bog Stalker"]), Tusked_Grazer=(4, 4), Squall_Gull=(3, 3))
    duel.sides[1].life = 3
    do(duel, "attack with Tusked", "attack with Squall")
    assert duel.to_act == 1
    assert (seen(duel, 0)["raid"], seen(duel, 1)["raid"]) == pytest.approx((0.7, -0.7))
    assert (seen(duel, 0)["lethal"], seen(duel, 1)["lethal"], seen(duel, 1)["blocking"]) == (1, -1, 1)


def test_a_spell_that_waits_is_a_threat_to_the_other_side():
    duel = arena(["Tusked Grazer"], [], hand=["Blazing Ruin"], their_hand=["Nullwave"])
    do(duel, "cast Blazing Ruin")
    assert duel.to_act == 1
    assert seen(duel, 1)["threat"] == pytest.approx(0.2 + 4 / 6) and seen(duel, 0)["threat"] == 0
    answer = told(duel, "cast Nullwave")
    assert answer["kills"] == 1 and answer["swing"] > 0 and answer["instant"] == 1


# ---- the actions in known positions ----------------------------------------------------------------------------


def test_burn_says_whom_it_kills():
    duel = arena([], ["Bog Stalker", "Old Mammoth"], hand=["Ember Bolt"])
    fixed(duel, Bog_Stalker=(3, 2), Old_Mammoth=(7, 6))
    stalker, mammoth = told(duel, "cast Ember Bolt on Bog"), told(duel, "cast Ember Bolt on Old")
    assert (stalker["kills"], mammoth["kills"]) == (1, 0) and stalker["swing"] > mammoth["swing"]
    assert (mammoth["target_power"], mammoth["damage"]) == pytest.approx((7 / 6, 0.5), abs=1e-3)
    face = told(duel, "cast Ember Bolt at")
    assert (face["on_face"], face["lethal"]) == (1, 0) and face["face"] == pytest.approx(3 / 20, abs=1e-3)
    duel.sides[1].life = 3
    assert told(duel, "cast Ember Bolt at")["lethal"] == 1


def test_removal_that_comes_back_counts_less():
    duel = arena([], ["Old Mammoth"], hand=["Quiet Blade", "Back to the Shallows", "Golden Manacles"])
    kills = [told(duel, f"cast {name}")["kills"] for name in ("Quiet Blade", "Golden Manacles", "Back to the Shallows")]
    assert kills == sorted(kills, reverse=True) and kills[0] == 1 and kills[-1] > 0


def test_a_sweep_counts_both_boards():
    ahead = arena(["Old Mammoth"], ["Bog Stalker", "Brine Skipper"], hand=["Rotting Fog"])
    behind = arena(["Bog Stalker", "Brine Skipper"], ["Old Mammoth"], hand=["Rotting Fog"])
    assert told(ahead, "cast Rotting Fog")["swing"] > 0 > told(behind, "cast Rotting Fog")["swing"]


def test_creatures_and_lands_are_told():
    duel = arena(hand=["Kilnwing Drake", "Meadow", "Crag", "Banner Rider"], lands=2)
    duel.sides[0].lands[0] = 0
    duel.sides[0].land_played = False
    duel.options = None
    drake = told(duel, "cast Kilnwing")
    assert [drake[name] for name in ("cast", "creature", "flying", "haste", "cost")] == [1, 1, 1, 1, 1]
    assert told(duel, "play Meadow")["use"] == pytest.approx(1 / 3, abs=1e-3) and told(duel, "play Crag")["use"] == 0


def test_an_attack_says_who_would_die():
    duel = arena(["Tusked Grazer", "Squall Gull", "Brine Skipper"], ["Banner Rider"])
    fixed(duel, Tusked_Grazer=(4, 4), Brine_Skipper=(2, 2), Banner_Rider=(3, 3))
    grazer, gull, skipper = (told(duel, f"attack with {name}") for name in ("Tusked", "Squall", "Brine"))
    assert (grazer["dies"], grazer["kills"], grazer["free"]) == (0, 1, 0)
    assert (gull["dies"], gull["free"]) == (0, 1)
    assert (skipper["dies"], skipper["kills"]) == (1, 0) and skipper["swing"] < 0
    assert {told(duel, "attack")["lethal"], told(duel, "done")["lethal"]} == {0}


def test_an_attack_that_no_block_can_stop_is_lethal():
    duel = arena(["Tusked Grazer", "Squall Gull", "Brine Skipper"], ["Banner Rider"])
    fixed(duel, Tusked_Grazer=(4, 4), Squall_Gull=(3, 3), Brine_Skipper=(2, 2))
    duel.sides[1].life = 5
    assert told(duel, "attack with Squall")["lethal"] == 1 and told(duel, "done")["lethal"] == 0
    do(duel, "attack with Squall", "attack with Brine", "attack with Tusked")
    assert told(duel, "done")["lethal"] == -1  # and so it is for the one who blocks


def test_an_attack_says_what_it_leaves_open():
    duel = arena(["Banner Rider", "Tusked Grazer"], ["Slag Boar", "Pit Ogre"])
    fixed(duel, Slag_Boar=(4, 3), Pit_Ogre=(5, 4))
    duel.sides[0].life = 8
    rider, grazer, done = (told(duel, name)["exposed"] for name in ("attack with Banner", "attack with Tusked", "done"))
    assert (rider, grazer, done) == pytest.approx((0, 0.5, 0), abs=1e-3)


def test_a_block_says_what_it_saves():
    duel = arena(["Old Mammoth", "Tusked Grazer"], ["Banner Rider", "Vine Adder", "Rampart Bear"])
    fixed(duel, Tusked_Grazer=(4, 4), Banner_Rider=(3, 3), Vine_Adder=(1, 1), Rampart_Bear=(5, 5))
    duel.sides[1].life = 4
    do(duel, "attack with Tusked")
    do(duel, "done")
    assert told(duel, "done")["lethal"] == -1
    rider, adder, bear = (
        told(duel, f"block Tusked Grazer (4/4) with {name}") for name in ("Banner", "Vine", "Rampart")
    )
    assert (rider["kills"], rider["dies"], rider["saves"], rider["face"]) == (0, 1, 1, 1)
    assert (adder["kills"], adder["dies"]) == (1, 1)
    assert (bear["kills"], bear["dies"]) == (1, 0) and bear["swing"] > max(adder["swing"], rider["swing"])


def test_a_second_blocker_helps_the_first():
    duel = arena(["Old Mammoth"], ["Tusked Grazer", "Banner Rider"])
    fixed(duel, Old_Mammoth=(7, 6), Tusked_Grazer=(4, 4), Banner_Rider=(3, 3))
    do(duel, "attack with Old")
    assert told(duel, "block Old Mammoth (7/6) with Banner")["kills"] == 0
    do(duel, "block Old Mammoth (7/6) with Tusked")
    assert told(duel, "block Old Mammoth (7/6) with Banner")["kills"] == 1


def test_a_trick_in_combat_says_whom_it_saves():
    duel = arena(["Banner Rider"], ["Tusked Grazer"], hand=["Surge of Sap"], lands=3, their_lands=3)
    fixed(duel, Banner_Rider=(3, 3), Tusked_Grazer=(4, 4))
    do(duel, "pass", "attack with Banner", "block Banner")
    trick = told(duel, "cast Surge of Sap")
    assert (trick["saves"], trick["kills"], trick["on_mine"], trick["target_busy"]) == (1, 1, 1, 1)


def test_growing_an_attacker_that_nobody_blocks_can_win():
    duel = fixed(arena(["Banner Rider"], [], hand=["Surge of Sap"], lands=3, their_lands=3), Banner_Rider=(3, 3))
    duel.sides[1].life = 6
    do(duel, "pass", "attack with Banner")
    assert told(duel, "cast Surge of Sap")["lethal"] == 1


# ---- looking ahead ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["Chapel Sentry", "Crypt Vermin", "Tusked Grazer", "Coral Bulwark"])
@pytest.mark.parametrize("second", ["Chapel Sentry", "Crypt Vermin", "Brine Skipper", "Ridge Raider"])
def test_a_fight_ends_as_the_rules_have_it(first, second):
    duel = arena([first, "Foam Sprite"], [second])
    one, two = creature(duel, first), duel.sides[1].creatures[0]
    expected = fight(one.power, one.toughness, one.keywords, two.power, two.toughness, two.keywords)
    if first == "Coral Bulwark":  # a defender does not attack: let it block
        duel = arena([second, "Foam Sprite"], [first])
        do(duel, f"attack with {second}", "done", f"block {second}")
        alive = [bool(duel.sides[1].creatures), len(duel.sides[0].creatures) == 2]
    else:
        do(duel, f"attack with {first}", "done", f"block {first}")
        alive = [len(duel.sides[0].creatures) == 2, bool(duel.sides[1].creatures)]
    assert [not dies for dies in expected] == alive


def test_every_word_on_a_card_shows_in_its_plan_or_in_its_points():
    planned = {number for number, plan in enumerate(EFFECT_SUMMARIES) if plan != EffectSummary()}
    unplanned = {word for number, card in enumerate(CARDS) if number not in planned for word, *_ in card.effects}
    assert unplanned <= {"token", "edict", "revive", "tap_all", "disenchant"}


def test_rows_are_float16_as_numpy_has_them():
    assert np.frombuffer(struct.pack("=e", 0.3), np.float16)[0] == np.float16(0.3)
