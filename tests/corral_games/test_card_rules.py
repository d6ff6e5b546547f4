"""The turn, the stack, mana, hands and decks."""

import pytest

from corral_games.card_battle.engine.board import BOARD_LIMIT
from corral_games.card_battle.engine.cards import CARDS, COLOURS, COST, CREATURE, FOE, FOE_OR_FACE, FRIEND, TERRAIN
from corral_games.card_battle.engine.decks import DECK_NAMES, DECKS
from corral_games.card_battle.engine.options import MAX_OPTIONS
from corral_games.card_battle.engine.pieces import BLOCKING, CAST, FIGHTING, MAIN, PASS, RAIDING, Action
from corral_games.card_battle.engine.rules import Duel, describe, new_duel
from corral_games.card_battle.engine.wording import card_text
from tests.corral_games.card_positions import arena, creature, do, names, number, play_randomly, words


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


def test_everything_follows_from_the_seed():
    assert new_duel(("random", "random"), 8).get_state() == new_duel(("random", "random"), 8).get_state()
    assert new_duel(("sun", "sun"), 8).get_state() != new_duel(("sun", "sun"), 9).get_state()
    assert {new_duel(("random", "sun"), seed).deck_names[0] for seed in range(100)} == set(DECK_NAMES)


def test_an_unknown_deck_is_refused():
    with pytest.raises(ValueError, match=r"unknown deck 'moon'; there are: sun, tide, .*, or random"):
        new_duel(("sun", "moon"), 0)


def test_opening_hands_are_smoothed():
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


def test_there_are_many_cards_and_each_is_in_a_deck():
    cards = [card for card in CARDS if not card.token and card.kind != TERRAIN]
    assert len(cards) >= 60
    assert len({card.name for card in CARDS}) == len(CARDS)
    used = set().union(*DECKS.values())
    assert [card.name for card in cards if number(card.name) not in used] == []


def test_card_numbers_go_by_kind_of_land_and_then_by_cost():
    assert [CARDS[place].pips[0][0] for place in range(5)] == [0, 1, 2, 3, 4]
    costs = [card.cost for card in CARDS[5:] if not card.token]
    assert costs == sorted(costs)


def test_the_first_player_does_not_draw_in_the_first_turn():
    duel = new_duel(("sun", "sun"), 1)
    before = len(duel.sides[0].hand)
    assert before == 7
    while duel.turn == 1:
        duel.apply(Action(PASS))
    assert len(duel.sides[1].hand) == 8


def test_one_land_a_turn():
    duel = arena(["Briar Wolf"], hand=["Meadow", "Crag"], lands=0)
    duel.sides[0].land_played = False
    assert words(duel) == ["pass", "play Meadow", "play Crag"]
    do(duel, "play Crag")
    assert duel.phase == RAIDING
    assert duel.sides[0].lands == [0, 0, 0, 1, 0] == duel.sides[0].untapped


def test_new_creatures_are_sick_for_a_turn():
    duel = arena(hand=["Briar Wolf"], their_hand=["Firespit"], theirs=["Tusked Grazer"])
    do(duel, "cast Briar Wolf", "no answer")
    assert duel.active == 1, "nothing to attack with"
    assert creature(duel, "Briar Wolf").sick
    do(duel, "pass", "done", "pass")
    assert duel.active == 0
    assert not creature(duel, "Briar Wolf").sick
    assert "attack with Briar Wolf (3/2)" in words(duel)


def test_options_come_in_canonical_order():
    duel = arena(
        ["Briar Wolf"], ["Bog Stalker"], hand=["Old Mammoth", "Ember Bolt", "Lantern Squire", "Crag", "Meadow"]
    )
    duel.sides[0].land_played = False
    assert words(duel) == [
        "pass",
        "play Meadow",
        "play Crag",
        "cast Lantern Squire",
        "cast Ember Bolt at the other player",
        "cast Ember Bolt on Bog Stalker (3/2)",
        "cast Old Mammoth",
    ]


def test_equal_choices_are_listed_once():
    duel = arena(["Briar Wolf"] * 3, ["Bog Stalker"] * 2, hand=["Ember Bolt"] * 3)
    assert len(duel.legal()) == 3
    creature(duel, "Bog Stalker").damage = 1
    duel.options = None
    assert len(duel.legal()) == 4
    do(duel, "pass")
    assert words(duel) == ["done attacking", "attack with Briar Wolf (3/2)"]
    do(duel, "attack", "attack", "done")
    assert words(duel) == [
        "done blocking",
        "block Briar Wolf (3/2) with Bog Stalker (3/1)",
        "block Briar Wolf (3/2) with Bog Stalker (3/2)",
    ]
    do(duel, "block Briar Wolf (3/2) with Bog Stalker (3/1)")
    assert len(duel.legal()) == 3, "the blocked wolf and the other one are no longer the same"


def test_a_creature_in_different_condition_is_another_choice():
    duel = arena(["Briar Wolf"] * 2, hand=["Deep Roots"])
    creature(duel, "Briar Wolf").counters = 1
    assert len(duel.legal()) == 3


def test_mana_is_paid_coloured_first_and_then_from_what_is_least_needed():
    duel = arena(hand=["Ember Bolt", "Quiet Blade", "Forge Runt"], theirs=["Briar Wolf"], lands=0)
    duel.sides[0].lands = [0, 0, 3, 3, 0]
    duel.sides[0].untapped = [0, 0, 3, 3, 0]
    do(duel, "cast Ember Bolt at the other")
    assert duel.sides[0].untapped == [0, 0, 2, 2, 0]
    assert "cast Quiet Blade on Briar Wolf (3/2)" in words(duel)
    do(duel, "cast Forge Runt")
    assert duel.sides[0].untapped == [0, 0, 1, 1, 0]


def test_spells_that_cannot_be_paid_are_not_legal():
    duel = arena(["Briar Wolf"], hand=["Chapel Sentry", "Marching Hymn"], lands=0)
    duel.sides[0].untapped = [1, 5, 0, 0, 0]
    assert words(duel) == ["pass", "cast Chapel Sentry"]


def test_lands_untap_in_ones_own_turn():
    duel = arena(hand=["Briar Wolf"], lands=1)
    do(duel, "cast Briar Wolf")
    assert duel.active == 1
    assert sum(duel.sides[0].untapped) == 3, "mana stays spent in the other player's turn"
    do(duel, "pass")
    assert sum(duel.sides[0].untapped) == 5


def test_a_spell_may_be_answered_and_the_answer_too():
    duel = arena(["Briar Wolf"], ["Bog Stalker"], hand=["Surge of Sap", "Ember Bolt"], their_hand=["Ember Bolt"])
    do(duel, "cast Ember Bolt on Bog Stalker")
    assert duel.to_act == 1
    assert words(duel)[0] == "no answer"
    do(duel, "cast Ember Bolt on Briar Wolf")
    assert duel.to_act == 0
    do(duel, "cast Surge of Sap on Briar Wolf")
    assert duel.stack == []
    assert creature(duel, "Briar Wolf").damage == 3
    assert names(duel.sides[1].graveyard) == ["Ember Bolt", "Bog Stalker"]
    assert duel.phase == RAIDING


def test_a_spell_whose_target_is_gone_does_nothing():
    duel = arena(["Briar Wolf"], hand=["Oak Skin"], their_hand=["Firespit"])
    do(duel, "cast Oak Skin on Briar Wolf", "cast Firespit on Briar Wolf")
    assert sorted(names(duel.sides[0].graveyard)) == ["Briar Wolf", "Oak Skin"]
    assert "0: Oak Skin has lost its target" in duel.log


def test_a_creature_comes_though_its_target_is_gone():
    duel = arena(theirs=["Night Moth"], hand=["Undertow Trickster"], their_hand=["Nullwave", "Choke the Candle"])
    do(duel, "cast Undertow Trickster on Night Moth", "no answer")
    assert creature(duel, "Undertow Trickster").power == 3
    assert "Night Moth" in names(duel.sides[1].hand)


def test_a_countered_spell_never_happens():
    duel = arena(["Lantern Squire"], hand=["Briar Wolf"], their_hand=["Nullwave"])
    do(duel, "cast Briar Wolf", "cast Nullwave against Briar Wolf")
    assert names(duel.sides[0].graveyard) == ["Briar Wolf"]
    assert names(duel.sides[1].graveyard) == ["Nullwave"]


def test_a_counter_can_be_countered():
    duel = arena(["Lantern Squire"], hand=["Briar Wolf", "Nullwave"], their_hand=["Nullwave"])
    do(duel, "cast Briar Wolf", "cast Nullwave against Briar Wolf", "cast Nullwave against Nullwave")
    assert creature(duel, "Briar Wolf")
    assert names(duel.sides[1].graveyard) == ["Nullwave"]


def test_a_counter_needs_a_spell_to_counter():
    duel = arena(["Lantern Squire"], hand=["Nullwave"])
    assert words(duel) == ["pass"]


def test_who_cannot_answer_is_not_asked_and_nothing_shows_it():
    quiet = arena(["Briar Wolf"], hand=["Lantern Squire"], their_hand=["Quiet Blade"], their_lands=0)
    empty = arena(["Briar Wolf"], hand=["Lantern Squire"], their_hand=["Old Mammoth"], their_lands=0)
    for duel in (quiet, empty):
        do(duel, "cast Lantern Squire")
        assert duel.to_act == 0
    assert quiet.log == empty.log
    empty.sides[1].hand = quiet.sides[1].hand
    assert quiet.get_state() == empty.get_state()


def test_sorceries_are_for_ones_own_main_phase():
    duel = arena(["Briar Wolf"], ["Bog Stalker"], hand=["Lesson of Fangs"], their_hand=["Leech Rite", "Quiet Blade"])
    do(duel, "cast Lesson of Fangs on Bog Stalker")
    assert words(duel) == ["no answer", "cast Quiet Blade on Briar Wolf (3/2)"]


def test_both_may_use_instants_after_blocks_the_attacker_first():
    duel = arena(["Briar Wolf"], ["Tusked Grazer"], hand=["Surge of Sap"], their_hand=["Firespit", "Ember Bolt"])
    do(duel, "pass", "attack", "block")
    assert (duel.phase, duel.to_act) == (FIGHTING, 0)
    do(duel, "pass")
    assert (duel.phase, duel.to_act) == (FIGHTING, 1)
    do(duel, "cast Firespit at the other player")
    assert duel.to_act == 0, "the first player may answer"
    do(duel, "no answer")
    assert (duel.phase, duel.to_act) == (FIGHTING, 0), "and is asked again after it has happened"
    do(duel, "cast Surge of Sap", "no answer", "pass")
    assert names(duel.sides[1].graveyard) == ["Firespit", "Tusked Grazer"]
    assert (creature(duel, "Briar Wolf").power, creature(duel, "Briar Wolf").damage) == (3, 0)


def test_there_is_no_fight_without_attackers():
    duel = arena(["Briar Wolf"], ["Tusked Grazer"], hand=["Surge of Sap"], their_hand=["Firespit"])
    do(duel, "pass", "done")
    assert (duel.turn, duel.phase, duel.to_act) == (10, MAIN, 1)


def test_attackers_tap_and_cannot_block_in_the_next_turn():
    duel = arena(["Briar Wolf"], ["Tusked Grazer"])
    do(duel, "attack", "done blocking")
    assert duel.active == 1
    do(duel, "pass", "attack with Tusked Grazer")
    assert duel.sides[0].life == 16
    assert duel.active == 0


def test_damage_is_shared_among_blockers_weakest_first():
    duel = arena(["Tusked Grazer"], ["Canopy Weaver", "Bog Stalker"])
    do(duel, "attack", "block Tusked Grazer (4/4) with Canopy", "block Tusked Grazer (4/4) with Bog")
    assert names(duel.sides[1].graveyard) == ["Bog Stalker"]
    assert names(duel.sides[0].graveyard) == ["Tusked Grazer"]


def test_damage_and_boosts_end_with_the_turn():
    duel = arena(["Tusked Grazer"], ["Briar Wolf"], hand=["Surge of Sap"])
    do(duel, "cast Surge of Sap", "attack", "block")
    grazer = creature(duel, "Tusked Grazer")
    assert (grazer.power, grazer.toughness, grazer.damage, grazer.attacking, grazer.blocked) == (4, 4, 0, False, 0)


def test_no_life_loses():
    duel = arena(["Briar Wolf"])
    duel.sides[1].life = 3
    do(duel, "attack")
    assert duel.winner == 0
    assert duel.legal() == []


def test_both_without_life_is_a_draw():
    duel = arena(["Ash Acolyte"], ["Furnace Hound"])
    duel.sides[0].life = 1
    duel.sides[1].life = 1
    duel.sides[0].creatures[0].card = number("Furnace Hound")
    do(duel, "attack", "block")
    assert duel.winner == 2


def test_who_cannot_draw_loses():
    duel = arena(["Briar Wolf"])
    duel.sides[1].library = []
    do(duel, "done")
    assert duel.winner == 0
    assert duel.log[-1] == "1: has no card left to draw"


def test_the_hand_is_cut_to_seven_at_the_end_of_the_turn_the_costliest_first():
    duel = arena(["Briar Wolf"], hand=["Crag"] * 5 + ["Old Mammoth", "Pit Ogre", "Firespit", "Nullwave"], lands=0)
    do(duel, "pass", "done")
    assert names(duel.sides[0].hand) == ["Crag"] * 5 + ["Firespit", "Nullwave"]
    assert names(duel.sides[0].graveyard) == ["Old Mammoth", "Pit Ogre"]


def test_no_more_creatures_than_the_board_holds():
    duel = arena(["Briar Wolf"] * BOARD_LIMIT, hand=["Briar Wolf", "Litter of Wolves", "Spark Juggler"])
    assert words(duel) == ["pass", "cast Litter of Wolves"]
    do(duel, "cast Litter of Wolves")
    assert len(duel.sides[0].creatures) == BOARD_LIMIT


def test_options_are_cut_at_the_limit_and_what_is_cut_is_not_legal():
    duel = arena(["Briar Wolf"] * (BOARD_LIMIT - 1), ["Briar Wolf"] * BOARD_LIMIT, hand=["Crag"])
    for side in duel.sides:
        for place, wolf in enumerate(side.creatures):
            wolf.counters = place
    duel.sides[0].hand = [place for place, card in enumerate(CARDS) if card.target in (FOE, FRIEND, FOE_OR_FACE)]
    assert len(duel.legal()) == len(set(duel.legal())) == MAX_OPTIONS
    dearest = duel.sides[0].hand[-1]
    with pytest.raises(ValueError, match="not legal"):
        duel.apply(Action(CAST, dearest, duel.sides[1].creatures[-1].uid))


def test_an_illegal_action_is_refused_and_changes_nothing():
    duel = arena(["Briar Wolf"], hand=["Ember Bolt"])
    before = duel.get_state()
    with pytest.raises(
        ValueError, match=r"Action\(.*\) is not legal for player 0 in the main phase; choose one of legal"
    ):
        duel.apply(Action(CAST, number("Old Mammoth")))
    assert duel.get_state() == before
    duel.sides[1].life = 2
    do(duel, "cast Ember Bolt at")
    with pytest.raises(ValueError, match="after the end"):
        duel.apply(Action(PASS))


def test_a_damaged_save_is_refused():
    duel = new_duel(("sun", "tide"), 1)
    data = duel.get_state()
    with pytest.raises(ValueError, match="not a saved duel"):
        Duel.from_state(data[:-8])
    with pytest.raises(ValueError, match="not a saved duel"):
        Duel.from_state(data + b"\0")
    with pytest.raises(ValueError, match="another set of cards"):
        Duel.from_state(b"\1\2\3\4" + data[4:])


def test_the_log_tells_what_happens_and_a_clone_keeps_none():
    duel = arena(["Briar Wolf"], ["Bog Stalker"], hand=["Ember Bolt"])
    do(duel, "cast Ember Bolt on Bog Stalker", "attack")
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


def test_a_sensible_curve():
    for name, deck in DECKS.items():
        spells = [COST[card] for card in deck if CARDS[card].kind != TERRAIN]
        assert 2.3 <= sum(spells) / len(spells) <= 3.5, name
        assert sum(CARDS[card].kind == CREATURE for card in deck) >= 20, name


def test_blocks_are_chosen_by_the_defender():
    duel = arena(["Briar Wolf"], ["Tusked Grazer"])
    do(duel, "attack")
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
def test_cards_can_be_read(name, text):
    assert card_text(CARDS[number(name)]) == text


def test_every_card_has_a_text_without_gaps():
    texts = [card_text(card) for card in CARDS]
    assert len(set(texts)) == len(texts)
    assert not any("{" in text or "  " in text or "None" in text for text in texts)


def test_nobody_lives_on_without_toughness_once_a_boost_has_ended():
    duel = arena(theirs=["Briar Wolf"], hand=["Withering Brand"], their_hand=["Surge of Sap"])
    do(duel, "cast Withering Brand", "cast Surge of Sap")
    while duel.turn == 9 and duel.winner is None:
        duel.apply(Action(PASS))
    assert not duel.sides[1].creatures and number("Briar Wolf") in duel.sides[1].graveyard


def test_twins_can_be_told_apart_while_a_spell_is_aimed_at_one_of_them():
    duel = arena(
        theirs=["Briar Wolf", "Briar Wolf"], hand=["Quiet Blade", "Ember Bolt"], their_hand=["Glint of Insight"]
    )
    assert sum("Ember Bolt on Briar Wolf" in text for text in words(duel)) == 1
    do(duel, "cast Quiet Blade", "cast Glint of Insight")
    assert sum("Ember Bolt on Briar Wolf" in text for text in words(duel)) == 2
