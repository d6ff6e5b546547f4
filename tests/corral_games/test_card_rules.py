"""Rules of card battle: turns, phases, the stack, mana, hands, decks, legal actions and saved duels."""

import pytest

from corral_games.card_battle.engine.board import BOARD_LIMIT
from corral_games.card_battle.engine.cards import CARDS, COLOURS, COST, CREATURE, FOE, FOE_OR_FACE, FRIEND, TERRAIN
from corral_games.card_battle.engine.decks import DECK_NAMES, DECKS
from corral_games.card_battle.engine.options import MAX_OPTIONS
from corral_games.card_battle.engine.pieces import BLOCKING, CAST, FIGHTING, MAIN, PASS, RAIDING, Action
from corral_games.card_battle.engine.rules import Duel, describe, new_duel
from corral_games.card_battle.engine.wording import card_text
from tests.corral_games.card_positions import (
    card_names,
    card_number,
    find_creature,
    legal_descriptions,
    make_duel,
    play_actions,
    play_randomly,
)


def test_a_new_duel_has_two_shuffled_decks_and_seven_cards_each():
    duel = new_duel(("sun", "tide-gloom"), 3)
    assert duel.deck_names == ("sun", "tide-gloom")
    for seat, name in enumerate(duel.deck_names):
        side = duel.sides[seat]
        assert side.life == 20
        assert len(side.hand) == 7
        assert sorted(side.hand + side.library) == list(DECKS[name])
        assert side.library != sorted(side.library)
    assert duel.turn == 1
    assert duel.to_act == duel.active == 0


def test_the_seed_determines_decks_and_shuffles():
    assert new_duel(("random", "random"), 8).get_state() == new_duel(("random", "random"), 8).get_state()
    assert new_duel(("sun", "sun"), 8).get_state() != new_duel(("sun", "sun"), 9).get_state()
    assert {new_duel(("random", "sun"), seed).deck_names[0] for seed in range(100)} == set(DECK_NAMES)


def test_an_unknown_deck_is_refused():
    with pytest.raises(ValueError, match=r"unknown deck 'moon'; there are: sun, tide, .*, or random"):
        new_duel(("sun", "moon"), 0)


def test_opening_hands_rarely_have_too_few_or_too_many_lands():
    lands = [sum(card < 5 for card in new_duel(("sun", "wild"), seed).sides[0].hand) for seed in range(600)]
    assert sum(count <= 1 or count >= 6 for count in lands) / len(lands) < 0.06, "a plain shuffle gives about 0.16"


@pytest.mark.parametrize("name", DECK_NAMES)
def test_a_deck_has_sixty_cards_that_its_lands_can_pay(name):
    deck = DECKS[name]
    assert len(deck) == 60
    colours = {CARDS[card].pips[0][0] for card in deck if CARDS[card].kind == TERRAIN}
    assert {COLOURS[colour] for colour in colours} == set(name.split("-"))
    for card in deck:
        assert not CARDS[card].token
        assert {colour for colour, _ in CARDS[card].pips} <= colours
        assert CARDS[card].kind == TERRAIN or deck.count(card) <= 4


def test_there_are_sixty_cards_or_more_and_each_is_in_a_deck():
    cards = [card for card in CARDS if not card.token and card.kind != TERRAIN]
    assert len(cards) >= 60
    assert len({card.name for card in CARDS}) == len(CARDS)
    used = set().union(*DECKS.values())
    assert [card.name for card in cards if card_number(card.name) not in used] == []


def test_cards_are_numbered_lands_first_then_by_cost():
    assert [CARDS[land].pips[0][0] for land in range(5)] == [0, 1, 2, 3, 4]
    costs = [card.cost for card in CARDS[5:] if not card.token]
    assert costs == sorted(costs)


def test_the_first_player_does_not_draw_in_the_first_turn():
    duel = new_duel(("sun", "sun"), 1)
    before = len(duel.sides[0].hand)
    assert before == 7
    while duel.turn == 1:
        duel.apply(Action(PASS))
    assert len(duel.sides[1].hand) == 8


def test_one_land_can_be_played_each_turn():
    duel = make_duel(["Briar Wolf"], hand=["Meadow", "Crag"], lands=0)
    duel.sides[0].land_played = False
    assert legal_descriptions(duel) == ["pass", "play Meadow", "play Crag"]
    play_actions(duel, "play Crag")
    assert duel.phase == RAIDING
    assert duel.sides[0].lands == [0, 0, 0, 1, 0] == duel.sides[0].untapped


def test_creatures_cannot_attack_in_the_turn_they_are_cast():
    duel = make_duel(hand=["Briar Wolf"], opponent_hand=["Firespit"], opponent_creatures=["Tusked Grazer"])
    play_actions(duel, "cast Briar Wolf", "no answer")
    assert duel.active == 1, "the attack phase is skipped without a creature that can attack"
    assert find_creature(duel, "Briar Wolf").sick
    play_actions(duel, "pass", "done", "pass")
    assert duel.active == 0
    assert not find_creature(duel, "Briar Wolf").sick
    assert "attack with Briar Wolf (3/2)" in legal_descriptions(duel)


def test_legal_actions_are_in_canonical_order():
    duel = make_duel(
        ["Briar Wolf"], ["Bog Stalker"], hand=["Old Mammoth", "Ember Bolt", "Lantern Squire", "Crag", "Meadow"]
    )
    duel.sides[0].land_played = False
    assert legal_descriptions(duel) == [
        "pass",
        "play Meadow",
        "play Crag",
        "cast Lantern Squire",
        "cast Ember Bolt at the other player",
        "cast Ember Bolt on Bog Stalker (3/2)",
        "cast Old Mammoth",
    ]


def test_equivalent_actions_are_listed_once():
    duel = make_duel(["Briar Wolf"] * 3, ["Bog Stalker"] * 2, hand=["Ember Bolt"] * 3)
    assert len(duel.legal()) == 3
    find_creature(duel, "Bog Stalker").damage = 1
    duel.options = None
    assert len(duel.legal()) == 4
    play_actions(duel, "pass")
    assert legal_descriptions(duel) == ["done attacking", "attack with Briar Wolf (3/2)"]
    play_actions(duel, "attack", "attack", "done")
    assert legal_descriptions(duel) == [
        "done blocking",
        "block Briar Wolf (3/2) with Bog Stalker (3/1)",
        "block Briar Wolf (3/2) with Bog Stalker (3/2)",
    ]
    play_actions(duel, "block Briar Wolf (3/2) with Bog Stalker (3/1)")
    assert len(duel.legal()) == 3, "the blocked wolf and the other one are no longer the same"


def test_equal_creatures_in_different_states_are_listed_separately():
    duel = make_duel(["Briar Wolf"] * 2, hand=["Deep Roots"])
    find_creature(duel, "Briar Wolf").counters = 1
    assert len(duel.legal()) == 3


def test_mana_pays_coloured_costs_first_and_keeps_scarce_colours():
    duel = make_duel(hand=["Ember Bolt", "Quiet Blade", "Forge Runt"], opponent_creatures=["Briar Wolf"], lands=0)
    duel.sides[0].lands = [0, 0, 3, 3, 0]
    duel.sides[0].untapped = [0, 0, 3, 3, 0]
    play_actions(duel, "cast Ember Bolt at the other")
    assert duel.sides[0].untapped == [0, 0, 2, 2, 0]
    assert "cast Quiet Blade on Briar Wolf (3/2)" in legal_descriptions(duel)
    play_actions(duel, "cast Forge Runt")
    assert duel.sides[0].untapped == [0, 0, 1, 1, 0]


def test_spells_that_cannot_be_paid_are_not_legal():
    duel = make_duel(["Briar Wolf"], hand=["Chapel Sentry", "Marching Hymn"], lands=0)
    duel.sides[0].untapped = [1, 5, 0, 0, 0]
    assert legal_descriptions(duel) == ["pass", "cast Chapel Sentry"]


def test_lands_untap_at_the_start_of_their_owners_turn():
    duel = make_duel(hand=["Briar Wolf"], lands=1)
    play_actions(duel, "cast Briar Wolf")
    assert duel.active == 1
    assert sum(duel.sides[0].untapped) == 3, "mana stays spent in the other player's turn"
    play_actions(duel, "pass")
    assert sum(duel.sides[0].untapped) == 5


def test_a_response_to_a_spell_can_be_responded_to():
    duel = make_duel(["Briar Wolf"], ["Bog Stalker"], hand=["Surge of Sap", "Ember Bolt"], opponent_hand=["Ember Bolt"])
    play_actions(duel, "cast Ember Bolt on Bog Stalker")
    assert duel.to_act == 1
    assert legal_descriptions(duel)[0] == "no answer"
    play_actions(duel, "cast Ember Bolt on Briar Wolf")
    assert duel.to_act == 0
    play_actions(duel, "cast Surge of Sap on Briar Wolf")
    assert duel.stack == []
    assert find_creature(duel, "Briar Wolf").damage == 3
    assert card_names(duel.sides[1].graveyard) == ["Ember Bolt", "Bog Stalker"]
    assert duel.phase == RAIDING


def test_a_spell_whose_target_has_left_has_no_effect():
    duel = make_duel(["Briar Wolf"], hand=["Oak Skin"], opponent_hand=["Firespit"])
    play_actions(duel, "cast Oak Skin on Briar Wolf", "cast Firespit on Briar Wolf")
    assert sorted(card_names(duel.sides[0].graveyard)) == ["Briar Wolf", "Oak Skin"]
    assert "0: Oak Skin has lost its target" in duel.log


def test_a_creature_with_a_targeted_effect_enters_the_board():
    duel = make_duel(
        opponent_creatures=["Night Moth"], hand=["Undertow Trickster"], opponent_hand=["Nullwave", "Choke the Candle"]
    )
    play_actions(duel, "cast Undertow Trickster on Night Moth", "no answer")
    assert find_creature(duel, "Undertow Trickster").power == 3
    assert "Night Moth" in card_names(duel.sides[1].hand)


def test_a_countered_spell_has_no_effect():
    duel = make_duel(["Lantern Squire"], hand=["Briar Wolf"], opponent_hand=["Nullwave"])
    play_actions(duel, "cast Briar Wolf", "cast Nullwave against Briar Wolf")
    assert card_names(duel.sides[0].graveyard) == ["Briar Wolf"]
    assert card_names(duel.sides[1].graveyard) == ["Nullwave"]


def test_a_counter_can_be_countered():
    duel = make_duel(["Lantern Squire"], hand=["Briar Wolf", "Nullwave"], opponent_hand=["Nullwave"])
    play_actions(duel, "cast Briar Wolf", "cast Nullwave against Briar Wolf", "cast Nullwave against Nullwave")
    assert find_creature(duel, "Briar Wolf")
    assert card_names(duel.sides[1].graveyard) == ["Nullwave"]


def test_a_counter_needs_a_spell_to_counter():
    duel = make_duel(["Lantern Squire"], hand=["Nullwave"])
    assert legal_descriptions(duel) == ["pass"]


def test_a_player_without_a_response_is_skipped_and_the_log_does_not_reveal_it():
    with_instant = make_duel(["Briar Wolf"], hand=["Lantern Squire"], opponent_hand=["Quiet Blade"], opponent_lands=0)
    without_instant = make_duel(
        ["Briar Wolf"], hand=["Lantern Squire"], opponent_hand=["Old Mammoth"], opponent_lands=0
    )
    for duel in (with_instant, without_instant):
        play_actions(duel, "cast Lantern Squire")
        assert duel.to_act == 0
    assert with_instant.log == without_instant.log
    without_instant.sides[1].hand = with_instant.sides[1].hand
    assert with_instant.get_state() == without_instant.get_state()


def test_sorceries_can_only_be_cast_in_ones_own_main_phase():
    duel = make_duel(
        ["Briar Wolf"], ["Bog Stalker"], hand=["Lesson of Fangs"], opponent_hand=["Leech Rite", "Quiet Blade"]
    )
    play_actions(duel, "cast Lesson of Fangs on Bog Stalker")
    assert legal_descriptions(duel) == ["no answer", "cast Quiet Blade on Briar Wolf (3/2)"]


def test_both_players_may_cast_instants_after_blocks_attacker_first():
    duel = make_duel(["Briar Wolf"], ["Tusked Grazer"], hand=["Surge of Sap"], opponent_hand=["Firespit", "Ember Bolt"])
    play_actions(duel, "pass", "attack", "block")
    assert (duel.phase, duel.to_act) == (FIGHTING, 0)
    play_actions(duel, "pass")
    assert (duel.phase, duel.to_act) == (FIGHTING, 1)
    play_actions(duel, "cast Firespit at the other player")
    assert duel.to_act == 0, "the first player may respond"
    play_actions(duel, "no answer")
    assert (duel.phase, duel.to_act) == (FIGHTING, 0), "the first player may act again after the spell has resolved"
    play_actions(duel, "cast Surge of Sap", "no answer", "pass")
    assert card_names(duel.sides[1].graveyard) == ["Firespit", "Tusked Grazer"]
    assert (find_creature(duel, "Briar Wolf").power, find_creature(duel, "Briar Wolf").damage) == (3, 0)


def test_without_attackers_the_combat_phase_is_skipped():
    duel = make_duel(["Briar Wolf"], ["Tusked Grazer"], hand=["Surge of Sap"], opponent_hand=["Firespit"])
    play_actions(duel, "pass", "done")
    assert (duel.turn, duel.phase, duel.to_act) == (10, MAIN, 1)


def test_attackers_are_tapped_and_cannot_block_in_the_next_turn():
    duel = make_duel(["Briar Wolf"], ["Tusked Grazer"])
    play_actions(duel, "attack", "done blocking")
    assert duel.active == 1
    play_actions(duel, "pass", "attack with Tusked Grazer")
    assert duel.sides[0].life == 16
    assert duel.active == 0


def test_an_attacker_deals_damage_to_the_weakest_blocker_first():
    duel = make_duel(["Tusked Grazer"], ["Canopy Weaver", "Bog Stalker"])
    play_actions(duel, "attack", "block Tusked Grazer (4/4) with Canopy", "block Tusked Grazer (4/4) with Bog")
    assert card_names(duel.sides[1].graveyard) == ["Bog Stalker"]
    assert card_names(duel.sides[0].graveyard) == ["Tusked Grazer"]


def test_damage_and_boosts_end_with_the_turn():
    duel = make_duel(["Tusked Grazer"], ["Briar Wolf"], hand=["Surge of Sap"])
    play_actions(duel, "cast Surge of Sap", "attack", "block")
    grazer = find_creature(duel, "Tusked Grazer")
    assert (grazer.power, grazer.toughness, grazer.damage, grazer.attacking, grazer.blocked) == (4, 4, 0, False, 0)


def test_a_player_without_life_loses():
    duel = make_duel(["Briar Wolf"])
    duel.sides[1].life = 3
    play_actions(duel, "attack")
    assert duel.winner == 0
    assert duel.legal() == []


def test_if_both_players_lose_all_life_the_duel_is_a_draw():
    duel = make_duel(["Ash Acolyte"], ["Furnace Hound"])
    duel.sides[0].life = 1
    duel.sides[1].life = 1
    duel.sides[0].creatures[0].card = card_number("Furnace Hound")
    play_actions(duel, "attack", "block")
    assert duel.winner == 2


def test_a_player_who_cannot_draw_loses():
    duel = make_duel(["Briar Wolf"])
    duel.sides[1].library = []
    play_actions(duel, "done")
    assert duel.winner == 0
    assert duel.log[-1] == "1: has no card left to draw"


def test_the_hand_is_discarded_to_seven_at_the_end_of_the_turn_costliest_first():
    duel = make_duel(["Briar Wolf"], hand=["Crag"] * 5 + ["Old Mammoth", "Pit Ogre", "Firespit", "Nullwave"], lands=0)
    play_actions(duel, "pass", "done")
    assert card_names(duel.sides[0].hand) == ["Crag"] * 5 + ["Firespit", "Nullwave"]
    assert card_names(duel.sides[0].graveyard) == ["Old Mammoth", "Pit Ogre"]


def test_no_creatures_beyond_the_board_limit():
    duel = make_duel(["Briar Wolf"] * BOARD_LIMIT, hand=["Briar Wolf", "Litter of Wolves", "Spark Juggler"])
    assert legal_descriptions(duel) == ["pass", "cast Litter of Wolves"]
    play_actions(duel, "cast Litter of Wolves")
    assert len(duel.sides[0].creatures) == BOARD_LIMIT


def test_legal_actions_are_limited_and_those_beyond_the_limit_are_refused():
    duel = make_duel(["Briar Wolf"] * (BOARD_LIMIT - 1), ["Briar Wolf"] * BOARD_LIMIT, hand=["Crag"])
    for side in duel.sides:
        for index, wolf in enumerate(side.creatures):
            wolf.counters = index
    duel.sides[0].hand = [index for index, card in enumerate(CARDS) if card.target in (FOE, FRIEND, FOE_OR_FACE)]
    assert len(duel.legal()) == len(set(duel.legal())) == MAX_OPTIONS
    costliest = duel.sides[0].hand[-1]
    with pytest.raises(ValueError, match="not legal"):
        duel.apply(Action(CAST, costliest, duel.sides[1].creatures[-1].uid))


def test_an_illegal_action_is_refused_and_changes_nothing():
    duel = make_duel(["Briar Wolf"], hand=["Ember Bolt"])
    before = duel.get_state()
    with pytest.raises(
        ValueError, match=r"Action\(.*\) is not legal for player 0 in the main phase; choose one of legal"
    ):
        duel.apply(Action(CAST, card_number("Old Mammoth")))
    assert duel.get_state() == before
    duel.sides[1].life = 2
    play_actions(duel, "cast Ember Bolt at")
    with pytest.raises(ValueError, match="after the end"):
        duel.apply(Action(PASS))


def test_a_damaged_saved_duel_is_refused():
    duel = new_duel(("sun", "tide"), 1)
    data = duel.get_state()
    with pytest.raises(ValueError, match="not a saved duel"):
        Duel.from_state(data[:-8])
    with pytest.raises(ValueError, match="not a saved duel"):
        Duel.from_state(data + b"\0")
    with pytest.raises(ValueError, match="another set of cards"):
        Duel.from_state(b"\1\2\3\4" + data[4:])


def test_the_log_records_events_and_a_clone_has_no_log():
    duel = make_duel(["Briar Wolf"], ["Bog Stalker"], hand=["Ember Bolt"])
    play_actions(duel, "cast Ember Bolt on Bog Stalker", "attack")
    assert duel.log == [
        "0: cast Ember Bolt on Bog Stalker (3/2)",
        "1: Bog Stalker dies",
        "0: attack with Briar Wolf (3/2)",
        "1: takes 3 damage",
        "1: turn 10",
    ]
    assert duel.clone().log is None


def test_every_action_can_be_described():
    for seed in range(30):
        duel = play_randomly(seed, seed * 4)
        texts = [describe(duel, action) for action in duel.legal()]
        assert all(text and "gone" not in text for text in texts)


def test_average_cost_and_creature_count_of_each_deck_are_in_range():
    for name, deck in DECKS.items():
        costs = [COST[card] for card in deck if CARDS[card].kind != TERRAIN]
        assert 2.3 <= sum(costs) / len(costs) <= 3.5, name
        assert sum(CARDS[card].kind == CREATURE for card in deck) >= 20, name


def test_blocks_are_chosen_by_the_defender():
    duel = make_duel(["Briar Wolf"], ["Tusked Grazer"])
    play_actions(duel, "attack")
    assert (duel.phase, duel.to_act, duel.active) == (BLOCKING, 1, 0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Crag", "Crag (land)"),
        ("Briar Wolf", "Briar Wolf (1W, creature 3/2)"),
        ("Ember Bolt", "Ember Bolt (1E, instant): 3 damage to the other player or one of their creatures"),
        ("Kiln Imps", "Kiln Imps (2E, creature 1/1): haste; when it comes, 2 × Imp (1/1 haste)"),
        ("Drumfire", "Drumfire (2E, charm): your creatures get +1/+0"),
        ("Frozen Sleep", "Frozen Sleep (2T, mark): put on a creature of the other side: cannot attack or block"),
        ("Wolf", "Wolf (creature 2/2)"),
    ],
)
def test_card_text_describes_a_card(name, text):
    assert card_text(CARDS[card_number(name)]) == text


def test_every_card_has_a_text_without_gaps():
    texts = [card_text(card) for card in CARDS]
    assert len(set(texts)) == len(texts)
    assert not any("{" in text or "  " in text or "None" in text for text in texts)


def test_a_creature_dies_if_the_end_of_a_boost_leaves_it_no_toughness():
    duel = make_duel(opponent_creatures=["Briar Wolf"], hand=["Withering Brand"], opponent_hand=["Surge of Sap"])
    play_actions(duel, "cast Withering Brand", "cast Surge of Sap")
    while duel.turn == 9 and duel.winner is None:
        duel.apply(Action(PASS))
    assert not duel.sides[1].creatures and card_number("Briar Wolf") in duel.sides[1].graveyard


def test_equal_creatures_are_separate_targets_while_a_spell_targets_one_of_them():
    duel = make_duel(
        opponent_creatures=["Briar Wolf", "Briar Wolf"],
        hand=["Quiet Blade", "Ember Bolt"],
        opponent_hand=["Glint of Insight"],
    )
    assert sum("Ember Bolt on Briar Wolf" in text for text in legal_descriptions(duel)) == 1
    play_actions(duel, "cast Quiet Blade", "cast Glint of Insight")
    assert sum("Ember Bolt on Briar Wolf" in text for text in legal_descriptions(duel)) == 2
