"""The scripted players: strength, legality, what they may know, and what they should find."""

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
from tests.corral_games.card_positions import arena, creature, do

THINKERS = ("greedy", "mcts-fast", "mcts")


def choice(name: str, duel: Duel, seed: int = 0) -> str:
    return describe(duel, make_bot(name).choose(duel, random.Random(seed)))


def finish(duel: Duel, first: str, second: str, seed: int) -> Duel:
    players, rng = (make_bot(first), make_bot(second)), random.Random(seed)
    while duel.winner is None:
        action = players[duel.to_act].choose(duel, rng)
        assert action in duel.legal()
        duel.apply(action)
    return duel


def positions(seed: int, every: int) -> list[Duel]:
    """Positions of a duel between greedy players with a random move now and then."""
    rng, duel, found = random.Random(seed), new_duel(("random", "random"), seed), []
    while duel.winner is None:
        if rng.random() < 1 / every:
            found.append(duel.clone())
        duel.apply(rng.choice(duel.legal()) if rng.random() < 0.1 else best_option(duel))
    return found


def test_an_unknown_bot_is_refused():
    with pytest.raises(
        UsageError, match=r"unknown bot 'mtcs'; there are: random, greedy, mcts-fast, mcts, mcts-strong"
    ):
        make_bot("mtcs")


def test_greedy_beats_random():
    won = 0.0
    for seed in range(20):
        for seat, names in enumerate((("greedy", "random"), ("random", "greedy"))):
            winner = finish(new_duel(("random", "random"), seed), *names, seed).winner
            won += 0.5 if winner == 2 else winner == seat
    assert won / 40 >= 0.75


@pytest.mark.parametrize("name", BOT_NAMES)
def test_every_bot_plays_legally_to_the_end(name):
    assert finish(new_duel(("gloom-ember", "tide"), 4), name, "random", 4).winner in (0, 1, 2)
    assert finish(new_duel(("wild-sun", "tide-gloom"), 5), "greedy", name, 5).winner in (0, 1, 2)


@pytest.mark.parametrize(("name", "every"), [("random", 2), ("greedy", 1), ("mcts-fast", 4), ("mcts", 16)])
def test_a_choice_follows_from_what_the_seat_sees_and_the_generator(name, every):
    bot = make_bot(name)
    for seed in range(8):
        for duel in positions(seed, every):
            chosen = bot.choose(duel, random.Random(1))
            assert bot.choose(duel, random.Random(1)) == chosen
            other = duel.determinized(duel.to_act, random.Random(seed))
            assert bot.choose(other, random.Random(1)) == chosen


def test_choosing_leaves_the_duel_alone():
    for name in THINKERS:
        for duel in positions(3, 8):
            before = duel.get_state()
            make_bot(name).choose(duel, random.Random(2))
            assert duel.get_state() == before


def test_scores_are_those_of_the_legal_actions_and_the_seat():
    for seed in range(30):
        for duel in positions(seed, 1):
            scores = score_options(duel)
            assert len(scores) == len(duel.legal())
            assert scores == score_options(duel.determinized(duel.to_act, random.Random(seed)))


def test_playing_the_best_is_what_greedy_does():
    for seed in range(10):
        fast, slow = new_duel(("random", "random"), seed), new_duel(("random", "random"), seed)
        for _ in range(12):
            if fast.winner is None:
                play_best(fast)
        while slow.winner is None and slow.get_state() != fast.get_state():
            slow.apply(best_option(slow))
        assert slow.get_state() == fast.get_state()


def test_every_word_of_a_card_is_appraised():
    assert effect_value._VALUE_FUNCTIONS.keys() == effects._EFFECT_FUNCTIONS.keys()


def test_greedy_sees_an_attack_that_nobody_can_block():
    duel = arena(mine=["Briar Wolf"], theirs=[])
    duel.sides[1].life = 3
    duel.apply(make_bot("greedy").choose(duel, random.Random(0)))
    assert duel.winner == 0


@pytest.mark.parametrize("name", [name for name in THINKERS if name != "greedy"])
def test_an_attack_that_wins_is_found(name):
    duel = arena(mine=["Briar Wolf", "Briar Wolf", "Lantern Squire"], theirs=["Seafloor Titan"])
    duel.sides[1].life = 4
    while duel.winner is None and duel.active == 0 and duel.to_act == 0:
        duel.apply(make_bot(name).choose(duel, random.Random(0)))
    assert sum(one.attacking for one in duel.sides[0].creatures) == 3, "whichever is blocked, four damage come through"


@pytest.mark.parametrize("name", THINKERS)
def test_fire_that_wins_goes_to_the_player(name):
    duel = arena(theirs=["Gravewing Tyrant", "Lantern Squire"], hand=["Ember Bolt", "Noonday Colossus"])
    duel.sides[1].life = 3
    assert choice(name, duel) == "cast Ember Bolt at the other player"


@pytest.mark.parametrize("name", THINKERS)
def test_a_block_that_saves_the_game_is_found(name):
    duel = arena(mine=["Seafloor Titan"], theirs=["Foam Sprite"])
    duel.sides[1].life = 6
    do(duel, "attack")
    assert choice(name, duel).startswith("block Seafloor Titan")


@pytest.mark.parametrize("name", THINKERS)
def test_nobody_attacks_into_certain_death_for_nothing(name):
    duel = arena(mine=["Lantern Squire"], theirs=["Seafloor Titan", "Breaker Serpent"])
    assert choice(name, duel) == "done attacking"


@pytest.mark.parametrize("name", THINKERS)
def test_a_trick_turns_a_fight(name):
    duel = arena(mine=["Briar Wolf"], theirs=["Tusked Grazer"], hand=["Surge of Sap"])
    do(duel, "pass", "attack", "block")
    assert choice(name, duel).startswith("cast Surge of Sap on Briar Wolf")


@pytest.mark.parametrize("name", THINKERS)
def test_removal_goes_to_the_greatest_threat(name):
    duel = arena(theirs=["Lantern Squire", "Gravewing Tyrant", "Brine Skipper"], hand=["Quiet Blade"])
    assert choice(name, duel).startswith("cast Quiet Blade on Gravewing Tyrant")


@pytest.mark.parametrize("name", THINKERS)
def test_a_land_is_played_first_in_the_colour_that_is_missing(name):
    duel = arena(hand=["Meadow", "Thicket", "Briar Wolf"])
    side = duel.sides[0]
    side.lands, side.untapped, side.land_played, duel.options = [2, 0, 0, 0, 0], [2, 0, 0, 0, 0], False, None
    action = make_bot(name).choose(duel, random.Random(0))
    assert action.kind == LAND
    assert describe(duel, action) == "play Thicket"


def test_more_of_everything_is_judged_better():
    assert creature_value(3, 3, 0) > creature_value(2, 3, 0) > creature_value(2, 2, 0)
    assert [life_value(life) for life in range(-3, 30)] == sorted(life_value(life) for life in range(-3, 30))
    even = arena(hand=["Briar Wolf"], their_hand=["Briar Wolf"])
    ahead = arena(hand=["Briar Wolf"], their_hand=["Briar Wolf"])
    ahead.sides[0].life += 3
    assert win_probability(ahead, 0) > win_probability(even, 0)
    assert win_probability_determinized(even, 0) + win_probability_determinized(even, 1) == pytest.approx(1)


def test_the_chance_to_win_does_not_depend_on_hidden_cards():
    for duel in positions(11, 3):
        for seat in (0, 1):
            other = duel.determinized(seat, random.Random(5))
            assert win_probability(duel, seat) == win_probability(other, seat)
            assert 0 < win_probability(duel, seat) < 1


def test_the_chance_to_win_at_the_end_is_the_result():
    duel = arena(mine=["Seafloor Titan"])
    duel.sides[1].life = 1
    do(duel, "attack")
    assert duel.winner == 0
    assert (win_probability(duel, 0), win_probability(duel, 1)) == (1, 0)


def test_a_spell_that_saves_a_creature_answers_the_one_that_would_kill_it():
    duel = arena(mine=[], theirs=["Briar Wolf"], hand=["Ember Bolt"], their_hand=["Surge of Sap"])
    do(duel, "cast Ember Bolt on Briar Wolf")
    assert choice("greedy", duel) == "cast Surge of Sap on Briar Wolf (3/2)"
    assert creature(duel, "Briar Wolf").damage == 0
