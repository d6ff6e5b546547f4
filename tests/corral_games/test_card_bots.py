"""The scripted bots: strength, legal play, no use of hidden cards, and good choices in known positions."""

import random

import pytest

from corral.core.errors import UsageError
from corral_games.card_battle.bots import effect_value
from corral_games.card_battle.bots.action_value import best_option, play_best, score_options
from corral_games.card_battle.bots.board_value import (
    creature_value,
    life_value,
    win_probability,
    win_probability_determinized,
)
from corral_games.card_battle.bots.bots import BOT_NAMES, make_bot
from corral_games.card_battle.engine import effects
from corral_games.card_battle.engine.pieces import LAND
from corral_games.card_battle.engine.rules import Duel, describe, new_duel
from tests.corral_games.card_positions import find_creature, make_duel, play_actions

EVALUATING_BOTS = ("greedy", "mcts-fast", "mcts")


def choose_description(name: str, duel: Duel, seed: int = 0) -> str:
    """Return the description of the action that a bot chooses."""
    return describe(duel, make_bot(name).choose(duel, random.Random(seed)))


def play_to_end(duel: Duel, first: str, second: str, seed: int) -> Duel:
    """Let two bots play a duel to its end, and assert that every choice is legal."""
    bots, rng = (make_bot(first), make_bot(second)), random.Random(seed)
    while duel.winner is None:
        action = bots[duel.to_act].choose(duel, rng)
        assert action in duel.legal()
        duel.apply(action)
    return duel


def sample_positions(seed: int, every: int) -> list[Duel]:
    """Return about one in ``every`` positions of a duel between greedy bots that play 10 % random actions."""
    rng, duel, sampled = random.Random(seed), new_duel(("random", "random"), seed), []
    while duel.winner is None:
        if rng.random() < 1 / every:
            sampled.append(duel.clone())
        duel.apply(rng.choice(duel.legal()) if rng.random() < 0.1 else best_option(duel))
    return sampled


def test_an_unknown_bot_is_refused():
    with pytest.raises(
        UsageError, match=r"unknown bot 'mtcs'; there are: random, greedy, mcts-fast, mcts, mcts-strong"
    ):
        make_bot("mtcs")


def test_greedy_beats_random():
    points = 0.0
    for seed in range(20):
        for seat, bot_names in enumerate((("greedy", "random"), ("random", "greedy"))):
            winner = play_to_end(new_duel(("random", "random"), seed), *bot_names, seed).winner
            points += 0.5 if winner == 2 else winner == seat
    assert points / 40 >= 0.75


@pytest.mark.parametrize("name", BOT_NAMES)
def test_every_bot_plays_legal_actions_to_the_end(name):
    assert play_to_end(new_duel(("gloom-ember", "tide"), 4), name, "random", 4).winner in (0, 1, 2)
    assert play_to_end(new_duel(("wild-sun", "tide-gloom"), 5), "greedy", name, 5).winner in (0, 1, 2)


@pytest.mark.parametrize(("name", "every"), [("random", 2), ("greedy", 1), ("mcts-fast", 4), ("mcts", 16)])
def test_a_choice_depends_only_on_visible_cards_and_the_random_generator(name, every):
    bot = make_bot(name)
    for seed in range(8):
        for duel in sample_positions(seed, every):
            chosen = bot.choose(duel, random.Random(1))
            assert bot.choose(duel, random.Random(1)) == chosen
            redealt = duel.determinized(duel.to_act, random.Random(seed))
            assert bot.choose(redealt, random.Random(1)) == chosen


def test_choosing_does_not_change_the_duel():
    for name in EVALUATING_BOTS:
        for duel in sample_positions(3, 8):
            before = duel.get_state()
            make_bot(name).choose(duel, random.Random(2))
            assert duel.get_state() == before


def test_scores_cover_the_legal_actions_and_ignore_hidden_cards():
    for seed in range(30):
        for duel in sample_positions(seed, 1):
            scores = score_options(duel)
            assert len(scores) == len(duel.legal())
            assert scores == score_options(duel.determinized(duel.to_act, random.Random(seed)))


def test_play_best_equals_repeated_best_option():
    for seed in range(10):
        with_play_best, with_best_option = new_duel(("random", "random"), seed), new_duel(("random", "random"), seed)
        for _ in range(12):
            if with_play_best.winner is None:
                play_best(with_play_best)
        while with_best_option.winner is None and with_best_option.get_state() != with_play_best.get_state():
            with_best_option.apply(best_option(with_best_option))
        assert with_best_option.get_state() == with_play_best.get_state()


def test_every_effect_has_a_value_function():
    assert effect_value._VALUE_FUNCTIONS.keys() == effects._EFFECT_FUNCTIONS.keys()


def test_greedy_attacks_when_an_unblockable_attack_wins():
    duel = make_duel(creatures=["Briar Wolf"], opponent_creatures=[])
    duel.sides[1].life = 3
    duel.apply(make_bot("greedy").choose(duel, random.Random(0)))
    assert duel.winner == 0


@pytest.mark.parametrize("name", [name for name in EVALUATING_BOTS if name != "greedy"])
def test_search_bots_find_a_winning_attack(name):
    duel = make_duel(creatures=["Briar Wolf", "Briar Wolf", "Lantern Squire"], opponent_creatures=["Seafloor Titan"])
    duel.sides[1].life = 4
    while duel.winner is None and duel.active == 0 and duel.to_act == 0:
        duel.apply(make_bot(name).choose(duel, random.Random(0)))
    assert sum(creature.attacking for creature in duel.sides[0].creatures) == 3, (
        "whichever attacker is blocked, the others deal four damage"
    )


@pytest.mark.parametrize("name", EVALUATING_BOTS)
def test_a_damage_spell_that_wins_targets_the_player(name):
    duel = make_duel(opponent_creatures=["Gravewing Tyrant", "Lantern Squire"], hand=["Ember Bolt", "Noonday Colossus"])
    duel.sides[1].life = 3
    assert choose_description(name, duel) == "cast Ember Bolt at the other player"


@pytest.mark.parametrize("name", EVALUATING_BOTS)
def test_bots_block_to_prevent_a_loss(name):
    duel = make_duel(creatures=["Seafloor Titan"], opponent_creatures=["Foam Sprite"])
    duel.sides[1].life = 6
    play_actions(duel, "attack")
    assert choose_description(name, duel).startswith("block Seafloor Titan")


@pytest.mark.parametrize("name", EVALUATING_BOTS)
def test_bots_do_not_attack_when_the_attacker_only_dies(name):
    duel = make_duel(creatures=["Lantern Squire"], opponent_creatures=["Seafloor Titan", "Breaker Serpent"])
    assert choose_description(name, duel) == "done attacking"


@pytest.mark.parametrize("name", EVALUATING_BOTS)
def test_bots_cast_a_boost_to_win_a_fight(name):
    duel = make_duel(creatures=["Briar Wolf"], opponent_creatures=["Tusked Grazer"], hand=["Surge of Sap"])
    play_actions(duel, "pass", "attack", "block")
    assert choose_description(name, duel).startswith("cast Surge of Sap on Briar Wolf")


@pytest.mark.parametrize("name", EVALUATING_BOTS)
def test_removal_targets_the_strongest_creature(name):
    duel = make_duel(opponent_creatures=["Lantern Squire", "Gravewing Tyrant", "Brine Skipper"], hand=["Quiet Blade"])
    assert choose_description(name, duel).startswith("cast Quiet Blade on Gravewing Tyrant")


@pytest.mark.parametrize("name", EVALUATING_BOTS)
def test_bots_play_a_land_of_the_missing_colour_first(name):
    duel = make_duel(hand=["Meadow", "Thicket", "Briar Wolf"])
    side = duel.sides[0]
    side.lands, side.untapped, side.land_played, duel.options = [2, 0, 0, 0, 0], [2, 0, 0, 0, 0], False, None
    action = make_bot(name).choose(duel, random.Random(0))
    assert action.kind == LAND
    assert describe(duel, action) == "play Thicket"


def test_board_value_increases_with_power_toughness_and_life():
    assert creature_value(3, 3, 0) > creature_value(2, 3, 0) > creature_value(2, 2, 0)
    assert [life_value(life) for life in range(-3, 30)] == sorted(life_value(life) for life in range(-3, 30))
    even = make_duel(hand=["Briar Wolf"], opponent_hand=["Briar Wolf"])
    ahead = make_duel(hand=["Briar Wolf"], opponent_hand=["Briar Wolf"])
    ahead.sides[0].life += 3
    assert win_probability(ahead, 0) > win_probability(even, 0)
    assert win_probability_determinized(even, 0) + win_probability_determinized(even, 1) == pytest.approx(1)


def test_win_probability_does_not_depend_on_hidden_cards():
    for duel in sample_positions(11, 3):
        for seat in (0, 1):
            redealt = duel.determinized(seat, random.Random(5))
            assert win_probability(duel, seat) == win_probability(redealt, seat)
            assert 0 < win_probability(duel, seat) < 1


def test_win_probability_at_the_end_is_the_result():
    duel = make_duel(creatures=["Seafloor Titan"])
    duel.sides[1].life = 1
    play_actions(duel, "attack")
    assert duel.winner == 0
    assert (win_probability(duel, 0), win_probability(duel, 1)) == (1, 0)


def test_greedy_responds_with_a_boost_that_saves_the_creature():
    duel = make_duel(
        creatures=[], opponent_creatures=["Briar Wolf"], hand=["Ember Bolt"], opponent_hand=["Surge of Sap"]
    )
    play_actions(duel, "cast Ember Bolt on Briar Wolf")
    assert choose_description("greedy", duel) == "cast Surge of Sap on Briar Wolf (3/2)"
    assert find_creature(duel, "Briar Wolf").damage == 0
