"""Observations and action features of card battle: in bounds, without hidden cards, and right in known positions."""

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
from tests.corral_games.card_positions import find_creature, make_duel, play_actions, play_randomly

SEEDS = st.integers(0, 2**31 - 1)
STEPS = st.integers(0, 120)
KINDS = ("pass", "land", "cast", "attack", "block")


def with_stats(duel, **stats_by_name):
    """Set power and toughness of creatures, because those on the cards may change; return the duel."""
    for name, (power, toughness) in stats_by_name.items():
        creature = find_creature(duel, name.replace("_", " "))
        creature.power, creature.toughness = power, toughness
    return duel


def features_of(duel, seat=None):
    """Return the observation of a seat (default: the player to act) as {feature: value}."""
    values = observe(duel, duel.to_act if seat is None else seat)
    return dict(zip(FEATURES, values.tolist(), strict=True))


def action_row(duel, start):
    """Return the action features of the first legal action whose description starts with the text: {feature: value}."""
    rows = describe_actions(duel)
    for i, action in enumerate(duel.legal()):
        if describe(duel, action).startswith(start):
            return dict(zip(ACTION_FEATURES, rows[i].tolist(), strict=True))
    raise AssertionError(f"{start!r} is not among {[describe(duel, action) for action in duel.legal()]}")


# ---- any position ----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(SEEDS, STEPS)
def test_features_are_within_their_bounds(seed, steps):
    duel = play_randomly(seed, steps)
    for seat in (0, 1):
        values = observe(duel, seat)
        assert values.shape == (36,) and values.dtype == np.float32
        assert values.min() >= -1 and values.max() <= 2
    rows = describe_actions(duel)
    assert rows.shape == (MAX_OPTIONS, 32) and rows.dtype == np.float16
    assert rows.min() >= -1 and rows.max() <= 2


@settings(max_examples=60, deadline=None)
@given(SEEDS, STEPS)
def test_each_legal_action_has_a_row_and_the_rest_is_zero(seed, steps):
    duel = play_randomly(seed, steps)
    options = [] if duel.winner is not None else duel.legal()
    rows = describe_actions(duel)
    assert not rows[len(options) :].any()
    for action, row in zip(options, rows, strict=False):
        assert row[: len(KINDS)].tolist() == [kind == action.kind for kind in range(len(KINDS))]


@settings(max_examples=100, deadline=None)
@given(SEEDS, STEPS, SEEDS)
def test_features_do_not_depend_on_hidden_cards(seed, steps, deal_seed):
    duel = play_randomly(seed, steps)
    for seat in (0, 1):
        redealt = duel.determinized(seat, random.Random(deal_seed))
        assert np.array_equal(observe(duel, seat), observe(redealt, seat))
        assert lead(duel, seat) == lead(redealt, seat)
    redealt = duel.determinized(duel.to_act, random.Random(deal_seed))
    assert duel.legal() == redealt.legal()
    assert np.array_equal(describe_actions(duel), describe_actions(redealt))


@settings(max_examples=30, deadline=None)
@given(SEEDS, STEPS)
def test_returned_arrays_are_not_reused_and_observing_does_not_change_the_duel(seed, steps):
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


def test_the_lead_of_one_side_is_minus_the_lead_of_the_other():
    duel = play_randomly(3, 60)
    assert -1 < lead(duel, 0) == -lead(duel, 1) < 1
    assert features_of(duel, 0)["lead"] == pytest.approx(lead(duel, 0), abs=1e-6)


# ---- the observation in known positions ------------------------------------------------------------------------


def test_features_count_life_lands_and_cards():
    duel = make_duel(
        hand=["Ember Bolt", "Meadow", "Banner Rider", "Tusked Grazer"], opponent_hand=["Firespit"] * 3, lands=1
    )
    duel.sides[0].life, duel.sides[1].life = 10, 45
    features = features_of(duel, 0)
    assert (features["my_life"], features["foe_life"], features["foe_hand"]) == pytest.approx((0.5, 2.0, 3 / 7))
    assert (features["my_lands"], features["my_mana"], features["foe_lands"]) == pytest.approx((5 / 8, 5 / 8, 2.0))
    assert (features["hand_lands"], features["hand_creatures"], features["hand_spells"]) == pytest.approx(
        (0.25, 0.5, 0.25)
    )
    assert features["castable"] == pytest.approx(0.75)
    assert (features["my_turn"], features["main"], features["land_drop"], features["turn"]) == pytest.approx(
        (1, 1, 0, 0.45)
    )
    assert features["lead"] < 0 < features_of(duel, 1)["lead"]


def test_features_sum_up_the_creatures_on_the_board():
    duel = make_duel(["Squall Gull", "Tusked Grazer"], ["Bog Stalker"])
    with_stats(duel, Squall_Gull=(3, 3), Tusked_Grazer=(4, 4), Bog_Stalker=(3, 2))
    features = features_of(duel, 0)
    assert (features["my_creatures"], features["foe_creatures"]) == pytest.approx((2 / 6, 1 / 6))
    assert (features["my_power"], features["my_toughness"], features["foe_power"]) == pytest.approx(
        (7 / 15, 7 / 15, 3 / 15)
    )
    assert (features["my_evasion"], features["foe_evasion"]) == pytest.approx((0.3, 0.0))
    assert (features["my_ready"], features["my_guards"], features["foe_guards"]) == pytest.approx(
        (7 / 15, 2 / 6, 1 / 6)
    )


def test_attack_features_have_opposite_signs_for_the_two_sides():
    duel = with_stats(
        make_duel(["Tusked Grazer", "Squall Gull"], ["Bog Stalker"]), Tusked_Grazer=(4, 4), Squall_Gull=(3, 3)
    )
    duel.sides[1].life = 3
    play_actions(duel, "attack with Tusked", "attack with Squall")
    assert duel.to_act == 1
    assert (features_of(duel, 0)["raid"], features_of(duel, 1)["raid"]) == pytest.approx((0.7, -0.7))
    assert (features_of(duel, 0)["lethal"], features_of(duel, 1)["lethal"], features_of(duel, 1)["blocking"]) == (
        1,
        -1,
        1,
    )


def test_a_spell_on_the_stack_is_a_threat_to_the_other_side():
    duel = make_duel(["Tusked Grazer"], [], hand=["Blazing Ruin"], opponent_hand=["Nullwave"])
    play_actions(duel, "cast Blazing Ruin")
    assert duel.to_act == 1
    assert features_of(duel, 1)["threat"] == pytest.approx(0.2 + 4 / 6) and features_of(duel, 0)["threat"] == 0
    answer = action_row(duel, "cast Nullwave")
    assert answer["kills"] == 1 and answer["swing"] > 0 and answer["instant"] == 1


# ---- action features in known positions ------------------------------------------------------------------------


def test_features_of_a_damage_spell_show_what_it_kills():
    duel = make_duel([], ["Bog Stalker", "Old Mammoth"], hand=["Ember Bolt"])
    with_stats(duel, Bog_Stalker=(3, 2), Old_Mammoth=(7, 6))
    stalker, mammoth = action_row(duel, "cast Ember Bolt on Bog"), action_row(duel, "cast Ember Bolt on Old")
    assert (stalker["kills"], mammoth["kills"]) == (1, 0) and stalker["swing"] > mammoth["swing"]
    assert (mammoth["target_power"], mammoth["damage"]) == pytest.approx((7 / 6, 0.5), abs=1e-3)
    face = action_row(duel, "cast Ember Bolt at")
    assert (face["on_face"], face["lethal"]) == (1, 0) and face["face"] == pytest.approx(3 / 20, abs=1e-3)
    duel.sides[1].life = 3
    assert action_row(duel, "cast Ember Bolt at")["lethal"] == 1


def test_temporary_removal_counts_less_than_permanent_removal():
    duel = make_duel([], ["Old Mammoth"], hand=["Quiet Blade", "Back to the Shallows", "Golden Manacles"])
    kills = [
        action_row(duel, f"cast {name}")["kills"] for name in ("Quiet Blade", "Golden Manacles", "Back to the Shallows")
    ]
    assert kills == sorted(kills, reverse=True) and kills[0] == 1 and kills[-1] > 0


def test_a_spell_that_damages_all_creatures_counts_both_boards():
    ahead = make_duel(["Old Mammoth"], ["Bog Stalker", "Brine Skipper"], hand=["Rotting Fog"])
    behind = make_duel(["Bog Stalker", "Brine Skipper"], ["Old Mammoth"], hand=["Rotting Fog"])
    assert action_row(ahead, "cast Rotting Fog")["swing"] > 0 > action_row(behind, "cast Rotting Fog")["swing"]


def test_features_of_creatures_and_lands_show_keywords_cost_and_use():
    duel = make_duel(hand=["Kilnwing Drake", "Meadow", "Crag", "Banner Rider"], lands=2)
    duel.sides[0].lands[0] = 0
    duel.sides[0].land_played = False
    duel.options = None
    drake = action_row(duel, "cast Kilnwing")
    assert [drake[name] for name in ("cast", "creature", "flying", "haste", "cost")] == [1, 1, 1, 1, 1]
    assert (
        action_row(duel, "play Meadow")["use"] == pytest.approx(1 / 3, abs=1e-3)
        and action_row(duel, "play Crag")["use"] == 0
    )


def test_features_of_an_attack_show_which_creatures_would_die():
    duel = make_duel(["Tusked Grazer", "Squall Gull", "Brine Skipper"], ["Banner Rider"])
    with_stats(duel, Tusked_Grazer=(4, 4), Brine_Skipper=(2, 2), Banner_Rider=(3, 3))
    grazer, gull, skipper = (action_row(duel, f"attack with {name}") for name in ("Tusked", "Squall", "Brine"))
    assert (grazer["dies"], grazer["kills"], grazer["free"]) == (0, 1, 0)
    assert (gull["dies"], gull["free"]) == (0, 1)
    assert (skipper["dies"], skipper["kills"]) == (1, 0) and skipper["swing"] < 0
    assert {action_row(duel, "attack")["lethal"], action_row(duel, "done")["lethal"]} == {0}


def test_an_attack_that_wins_against_every_block_is_lethal():
    duel = make_duel(["Tusked Grazer", "Squall Gull", "Brine Skipper"], ["Banner Rider"])
    with_stats(duel, Tusked_Grazer=(4, 4), Squall_Gull=(3, 3), Brine_Skipper=(2, 2))
    duel.sides[1].life = 5
    assert action_row(duel, "attack with Squall")["lethal"] == 1 and action_row(duel, "done")["lethal"] == 0
    play_actions(duel, "attack with Squall", "attack with Brine", "attack with Tusked")
    assert action_row(duel, "done")["lethal"] == -1  # The same attack, seen by the blocking player.


def test_features_of_an_attack_show_the_exposure_to_a_counterattack():
    duel = make_duel(["Banner Rider", "Tusked Grazer"], ["Slag Boar", "Pit Ogre"])
    with_stats(duel, Slag_Boar=(4, 3), Pit_Ogre=(5, 4))
    duel.sides[0].life = 8
    rider, grazer, no_attack = (
        action_row(duel, name)["exposed"] for name in ("attack with Banner", "attack with Tusked", "done")
    )
    assert (rider, grazer, no_attack) == pytest.approx((0, 0.5, 0), abs=1e-3)


def test_features_of_a_block_show_kills_deaths_and_saved_life():
    duel = make_duel(["Old Mammoth", "Tusked Grazer"], ["Banner Rider", "Vine Adder", "Rampart Bear"])
    with_stats(duel, Tusked_Grazer=(4, 4), Banner_Rider=(3, 3), Vine_Adder=(1, 1), Rampart_Bear=(5, 5))
    duel.sides[1].life = 4
    play_actions(duel, "attack with Tusked")
    play_actions(duel, "done")
    assert action_row(duel, "done")["lethal"] == -1
    rider, adder, bear = (
        action_row(duel, f"block Tusked Grazer (4/4) with {name}") for name in ("Banner", "Vine", "Rampart")
    )
    assert (rider["kills"], rider["dies"], rider["saves"], rider["face"]) == (0, 1, 1, 1)
    assert (adder["kills"], adder["dies"]) == (1, 1)
    assert (bear["kills"], bear["dies"]) == (1, 0) and bear["swing"] > max(adder["swing"], rider["swing"])


def test_features_of_a_second_block_include_the_first_blocker():
    duel = make_duel(["Old Mammoth"], ["Tusked Grazer", "Banner Rider"])
    with_stats(duel, Old_Mammoth=(7, 6), Tusked_Grazer=(4, 4), Banner_Rider=(3, 3))
    play_actions(duel, "attack with Old")
    assert action_row(duel, "block Old Mammoth (7/6) with Banner")["kills"] == 0
    play_actions(duel, "block Old Mammoth (7/6) with Tusked")
    assert action_row(duel, "block Old Mammoth (7/6) with Banner")["kills"] == 1


def test_features_of_a_boost_in_combat_show_what_it_saves_and_kills():
    duel = make_duel(["Banner Rider"], ["Tusked Grazer"], hand=["Surge of Sap"], lands=3, opponent_lands=3)
    with_stats(duel, Banner_Rider=(3, 3), Tusked_Grazer=(4, 4))
    play_actions(duel, "pass", "attack with Banner", "block Banner")
    trick = action_row(duel, "cast Surge of Sap")
    assert (trick["saves"], trick["kills"], trick["on_mine"], trick["target_busy"]) == (1, 1, 1, 1)


def test_a_boost_of_an_unblocked_attacker_can_be_lethal():
    duel = with_stats(
        make_duel(["Banner Rider"], [], hand=["Surge of Sap"], lands=3, opponent_lands=3), Banner_Rider=(3, 3)
    )
    duel.sides[1].life = 6
    play_actions(duel, "pass", "attack with Banner")
    assert action_row(duel, "cast Surge of Sap")["lethal"] == 1


# ---- lookahead -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_name", ["Chapel Sentry", "Crypt Vermin", "Tusked Grazer", "Coral Bulwark"])
@pytest.mark.parametrize("second_name", ["Chapel Sentry", "Crypt Vermin", "Brine Skipper", "Ridge Raider"])
def test_predicted_fights_end_as_in_the_rules(first_name, second_name):
    duel = make_duel([first_name, "Foam Sprite"], [second_name])
    first, second = find_creature(duel, first_name), duel.sides[1].creatures[0]
    expected = fight(first.power, first.toughness, first.keywords, second.power, second.toughness, second.keywords)
    if first_name == "Coral Bulwark":  # A defender cannot attack, so that it blocks.
        duel = make_duel([second_name, "Foam Sprite"], [first_name])
        play_actions(duel, f"attack with {second_name}", "done", f"block {second_name}")
        alive = [bool(duel.sides[1].creatures), len(duel.sides[0].creatures) == 2]
    else:
        play_actions(duel, f"attack with {first_name}", "done", f"block {first_name}")
        alive = [len(duel.sides[0].creatures) == 2, bool(duel.sides[1].creatures)]
    assert [not dies for dies in expected] == alive


def test_every_effect_is_summarized_except_for_known_ones():
    summarized = {number for number, summary in enumerate(EFFECT_SUMMARIES) if summary != EffectSummary()}
    effects_without_summary = {
        effect for number, card in enumerate(CARDS) if number not in summarized for effect, *_ in card.effects
    }
    assert effects_without_summary <= {"token", "edict", "revive", "tap_all", "disenchant"}


def test_struct_packs_float16_as_numpy_does():
    assert np.frombuffer(struct.pack("=e", 0.3), np.float16)[0] == np.float16(0.3)
