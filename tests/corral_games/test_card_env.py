"""Card battle as an env: seeded, exact in its states, open to any opponent."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import corral
from corral.core.errors import UsageError
from corral.doctor.checks import examine
from corral.envs.opponent_protocol import HasOpponents, outcome
from corral_games.card_battle.engine.decks import DECK_NAMES
from corral_games.card_battle.engine.rules import describe
from corral_games.card_battle.env import CardBattle, make
from corral_games.card_battle.features.features import lead
from corral_games.card_battle.render import WIDTH

SEEDS = st.integers(0, 2**31 - 1)


class Forgiving(CardBattle):
    """Takes any index for a legal one."""

    def step(self, action):
        return super().step(action % max(int(self.action_masks().sum()), 1))


class Keen:
    """Plays the last legal action, by way of ``predict``."""

    def __init__(self):
        self.asked = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False, action_masks=None):
        self.asked.append((observation, deterministic))
        return np.int64(np.flatnonzero(action_masks)[-1]), None


def chance(observation, mask, generator):
    """A player that plays anything legal."""
    return generator.choice(np.flatnonzero(mask))


OPPONENTS = {
    "random": "random",
    "greedy": "greedy",
    "mixed": "mixed:random=1,greedy=1",
    "player": chance,
    "predict": Keen(),
}


def play(env, steps, seed=None, options=None, first=None):
    """Everything that an env returns over random legal steps, episode after episode."""
    rng = np.random.default_rng(0)
    trace = [] if first is None else [first]
    if first is None:
        trace.append(env.reset(seed=seed, options=options))
    for _ in range(steps):
        mask = env.action_masks()
        trace.append(mask)
        outcome = env.step(rng.choice(np.flatnonzero(mask)))
        trace.append(outcome)
        if outcome[2] or outcome[3]:
            trace.append(env.reset())
    return trace


def same(one, two):
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return np.array_equal(one, two)


def finish(env):
    """Play on at random to the end; the last step."""
    rng = np.random.default_rng(1)
    while True:
        step = env.step(rng.choice(np.flatnonzero(env.action_masks())))
        if step[2] or step[3]:
            return step


# ---- an env ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action_features", [False, True])
def test_gymnasium_finds_nothing_wrong(action_features):
    check_env(Forgiving("random", action_features=action_features), skip_render_check=True)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.booleans())
def test_observations_are_in_their_space_and_masks_count_the_legal_actions(seed, action_features):
    env = CardBattle("random", action_features=action_features)
    observation, info = env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    over = False
    while not over:
        assert env.observation_space.contains(observation)
        mask = env.action_masks()
        assert mask.shape == (200,) and mask.dtype == np.bool_
        assert mask.tolist() == [i < len(env._duel.legal()) for i in range(200)]
        assert env._duel.to_act == env._seat and mask.sum() > 1
        observation, reward, terminated, truncated, info = env.step(rng.choice(np.flatnonzero(mask)))
        over = terminated or truncated
        assert over or (reward == 0 and info == {})
    assert env.observation_space.contains(observation)
    assert set(info) == {"turns", "won"} and info["won"] == outcome(reward, terminated)


def test_what_is_returned_may_be_kept_and_changed():
    env = CardBattle("random", action_features=True)
    kept = play(env, 60, seed=1)
    again = play(CardBattle("random", action_features=True), 60, seed=1)
    assert same(kept, again)
    env.reset(seed=2)
    mask = env.action_masks()
    mask[:] = False
    assert env.action_masks().any()


@pytest.mark.parametrize("action", [-1, 199, 200, 10**6])
def test_an_illegal_action_is_refused_and_changes_nothing(action):
    env = CardBattle("random")
    env.reset(seed=0)
    before = env.get_state()
    n = int(env.action_masks().sum())
    with pytest.raises(ValueError, match=f"action {action} is not legal: there are {n} now, from 0 to {n - 1}"):
        env.step(action)
    assert env.get_state() == before


def test_there_is_no_step_before_a_reset_nor_after_the_end():
    env = CardBattle("random")
    for use in (lambda: env.step(0), env.action_masks, env.get_state):
        with pytest.raises(gym.error.ResetNeeded):
            use()
    env.reset(seed=0)
    finish(env)
    assert not env.action_masks().any()
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\)"):
        env.step(0)


def test_an_episode_that_takes_too_long_is_truncated():
    env = CardBattle("random", max_steps=7, shaping=0.5)
    trace = play(env, 7, seed=0)
    last = trace[-2]
    assert last[2:4] == (False, True) and last[4]["won"] == 0.5
    assert not any(step[3] for step in trace[2:-2:2])


def test_doctor_finds_nothing_wrong():
    found = {f.what: f for f in examine("card-battle", {"opponent": "random"}, n_envs=4, steps=300)}
    assert {f.level for f in found.values()} == {"pass"}, found
    assert "get_state and set_state" in found


def test_the_name_gives_action_features_unless_told_otherwise():
    assert corral.make_env("card-battle").observation_space.keys() == {"observation", "action_features"}
    assert corral.make_env("card-battle", action_features=False).observation_space.shape == (36,)
    assert make(opponent="random", render_mode="ansi").render_mode == "ansi"


# ---- seeds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opponent", OPPONENTS)
def test_one_seed_is_one_episode(opponent):
    one, two = CardBattle(OPPONENTS[opponent]), CardBattle(OPPONENTS[opponent])
    play(two, 30, seed=99)
    assert same(play(one, 120, seed=5), play(two, 120, seed=5))
    assert not same(play(one, 20, seed=5), play(two, 20, seed=6))


def test_the_seed_decides_seat_decks_and_opponent():
    env = CardBattle("mixed:random=1,greedy=1")
    infos = [env.reset(seed=seed)[1] for seed in range(60)]
    assert {info["seat"] for info in infos} == {0, 1}
    assert {info["opponent"] for info in infos} == {"random", "greedy"}
    assert {info["deck"] for info in infos} == {info["opponent_deck"] for info in infos} == set(DECK_NAMES)
    assert infos == [env.reset(seed=seed)[1] for seed in range(60)]


def test_an_option_changes_only_what_it_is_about():
    env = CardBattle("random")
    plain = env.reset(seed=3)[1]
    asked = env.reset(seed=3, options={"opponent": "greedy", "deck": "ember"})[1]
    assert asked == {**plain, "opponent": "greedy", "deck": "ember"}
    assert env.reset(seed=3)[1] == plain


def test_with_the_seat_decks_and_hands_change_sides():
    env = CardBattle("random")
    for seed in range(5):
        one = env.reset(seed=seed, options={"seat": 0})[1]
        first = [side.hand + side.library for side in new_look(env)]
        two = env.reset(seed=seed, options={"seat": 1})[1]
        assert (one["deck"], one["opponent_deck"]) == (two["opponent_deck"], two["deck"])
        assert sorted(first[0]) == sorted(new_look(env)[0].hand + new_look(env)[0].library + list_played(env))


def new_look(env):
    return env._duel.sides


def list_played(env):
    side = new_look(env)[0]
    kept = [card for card, n in enumerate(side.lands) for _ in range(n)]
    return kept + side.graveyard + [creature.card for creature in side.creatures] + side.charms


def test_advice_is_legal_costs_nothing_and_ends_with_the_duel():
    one, two = CardBattle("random"), CardBattle("random")
    observation, _ = one.reset(seed=4)
    two.reset(seed=4)
    over = False
    while not over:
        action = one.advise("greedy")
        assert one.advise("random") < one.action_masks().sum()
        observation, _, terminated, truncated, _ = one.step(action)
        assert same(observation, two.step(action)[0])
        over = terminated or truncated
    with pytest.raises(gym.error.ResetNeeded, match="no action to advise"):
        one.advise("greedy")


def test_states_of_other_opponents_and_damaged_ones_are_refused():
    player = CardBattle(lambda observation, mask, generator: 0)
    player.reset(seed=0)
    bot = CardBattle("greedy")
    bot.reset(seed=0)
    with pytest.raises(ValueError, match="saved with a Player"):
        bot.set_state(player.get_state())
    state = bot.get_state()
    for damaged in (state + bytes(4), state[:-4], state.replace(b'"seat"', b'"tear"'), b"", b"x" * 50):
        with pytest.raises(ValueError, match="pass what get_state"):
            bot.set_state(damaged)
    bot.set_state(state)


@pytest.mark.parametrize("seat", [0, 1])
def test_the_seat_can_be_chosen(seat):
    by_option, by_setting = CardBattle("random"), CardBattle("random", seat=seat)
    for seed in range(8):
        observation, info = by_option.reset(seed=seed, options={"seat": seat})
        assert info["seat"] == seat and same(observation, by_setting.reset(seed=seed)[0])
    first_turns = {by_setting._duel.turn for _ in range(8) if by_setting.reset()}
    assert all((turn + seat) % 2 for turn in first_turns)


def test_a_seat_may_be_any_kind_of_integer():
    env = CardBattle("random", seat=np.int64(1))
    assert env.reset(seed=0)[1]["seat"] == 1
    assert env.reset(seed=0, options={"seat": np.int32(0)})[1]["seat"] == 0
    env.set_state(env.get_state())


def test_decks_can_be_chosen():
    env = CardBattle("random", deck="wild", opponent_deck="tide", seat=1)
    env.reset(seed=0)
    assert env._duel.deck_names == ("tide", "wild")
    env.reset(seed=0, options={"deck": "sun", "seat": 0})
    assert env._duel.deck_names == ("sun", "tide")


# ---- opponents -------------------------------------------------------------------------------------------------


def test_it_takes_part_in_choosing_opponents():
    env = CardBattle()
    assert isinstance(env, HasOpponents)
    assert env.opponents == ("random", "greedy", "mcts-fast", "mcts", "mcts-strong")


@pytest.mark.parametrize("opponent", ["random", "greedy", "mcts-fast"])
def test_each_can_be_asked_for_by_name(opponent):
    env = CardBattle("random")
    assert env.reset(seed=0, options={"opponent": opponent})[1]["opponent"] == opponent
    play(env, 4, seed=1, options={"opponent": opponent})


def test_a_player_sees_its_own_side_in_the_format_of_the_agent():
    seen = []

    def watcher(observation, mask, generator):
        duel = env._duel_in_play()
        seen.append((observation, mask.copy(), duel.to_act, len(duel.legal())))
        assert isinstance(generator, np.random.Generator)
        return int(generator.choice(np.flatnonzero(mask)))

    class Watched(CardBattle):
        def _let_opponent_play(self, duel):
            self._duel_in_play = lambda: duel
            super()._let_opponent_play(duel)

    for action_features in (False, True):
        env = Watched(watcher, action_features=action_features)
        seen.clear()
        _, info = env.reset(seed=0)
        assert info["opponent"] == "watcher"
        finish(env)
        assert len(seen) > 5
        for observation, mask, to_act, n in seen:
            assert env.observation_space.contains(observation)
            assert to_act == 1 - info["seat"] and mask.sum() == n


def test_the_same_moves_from_either_chair_make_the_same_duel():
    """What is played as the agent against a player is what that player would have played as the agent."""

    def first(observation, mask, generator):
        return 0 if observation[10] < 0.5 else int(np.flatnonzero(mask)[-1])

    results = []
    for seat in (0, 1):
        env = CardBattle(first, deck="sun", opponent_deck="sun", seat=seat)
        observation, _ = env.reset(seed=11)
        over = False
        while not over:
            observation, reward, terminated, truncated, info = env.step(first(observation, env.action_masks(), None))
            over = terminated or truncated
        results.append((reward * (1 - 2 * seat), info["turns"]))
    assert results[0] == results[1]


def test_a_predict_object_is_asked_for_its_best_action():
    keen = Keen()
    env = CardBattle(keen, action_features=True)
    assert env.reset(seed=0)[1]["opponent"] == "Keen"
    finish(env)
    assert keen.asked and all(deterministic for _, deterministic in keen.asked)
    assert env.observation_space.contains(keen.asked[0][0])


class Diarist(Keen):
    """Wants to be told how many moves it made before."""

    def __init__(self):
        super().__init__()
        self.told = []

    def predict(self, *args, state=None, **kwargs):
        self.told.append(state)
        return super().predict(*args, **kwargs)[0], (state or 0) + 1


def test_a_predict_object_is_given_what_it_remembers_of_this_duel():
    diarist = Diarist()
    env = CardBattle(diarist)
    for seed in range(3):
        diarist.told.clear()
        env.reset(seed=seed, options={"seat": 1})  # the opponent begins
        assert env.get_state() is None
        finish(env)
        assert diarist.told == [None, *range(1, len(diarist.told))]


def test_a_player_that_plays_what_is_not_legal_is_named():
    def clumsy(observation, mask, generator):
        return 199

    env = CardBattle(clumsy)
    with pytest.raises(ValueError, match="the opponent clumsy chose action 199, but only 0 to"):
        for seed in range(20):
            env.reset(seed=seed)
            finish(env)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"opponent": "gredy"}, "unknown opponent 'gredy'; there are: random, greedy"),
        ({"opponent": "mixed:random=x"}, "should be name=weight"),
        ({"opponent": 3}, "opponent 3 should be one of random, greedy"),
        ({"deck": "embr"}, "unknown deck 'embr' \\(did you mean 'ember'\\?\\); there are: sun, tide"),
        ({"opponent_deck": "fire"}, "unknown deck 'fire'"),
        ({"seat": 2}, "seat 2 should be 0"),
        ({"shaping": 1.5}, "shaping 1.5 should be from 0"),
        ({"gamma": 0}, "gamma 0 should be above 0"),
        ({"max_steps": 0}, "max_steps 0 should be at least 1"),
        ({"render_mode": "human"}, "render_mode 'human'"),
    ],
)
def test_a_wrong_setting_is_refused(settings, says):
    with pytest.raises(UsageError, match=says):
        CardBattle(**settings)
    if set(settings) <= {"opponent", "deck", "opponent_deck", "seat"}:
        with pytest.raises(UsageError, match=says):
            CardBattle("random").reset(seed=0, options=settings)


def test_an_unknown_option_is_refused():
    with pytest.raises(UsageError, match="unknown reset option 'decks' \\(did you mean 'deck'\\?\\)"):
        CardBattle("random").reset(options={"decks": "sun"})


# ---- shaping ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_shaping_adds_up_to_the_difference_of_potentials(seed):
    gamma, c = 0.9, 0.8
    plain, shaped = CardBattle("random"), CardBattle("random", shaping=c, gamma=gamma)
    rng = np.random.default_rng(seed)
    assert same(plain.reset(seed=seed), shaped.reset(seed=seed))
    potential = 0.5 * c * lead(shaped._duel, shaped._seat)
    start, total, discount, over = potential, 0.0, 1.0, False
    while not over:
        assert np.array_equal(plain.action_masks(), shaped.action_masks())
        action = rng.choice(np.flatnonzero(plain.action_masks()))
        one, two = plain.step(action), shaped.step(action)
        assert same(one[0], two[0]) and one[2:] == two[2:]
        over = one[2] or one[3]
        after = 0.0 if one[2] else 0.5 * c * lead(shaped._duel, shaped._seat)
        assert abs(after) < 0.5
        assert two[1] - one[1] == pytest.approx(gamma * after - potential)
        total += discount * (two[1] - one[1])
        discount *= gamma
        potential = after
    assert total == pytest.approx(-start, abs=1e-9)
    assert outcome(one[1], one[2]) == outcome(two[1], two[2])


# ---- states ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opponent", OPPONENTS)
@pytest.mark.parametrize("steps", [0, 1, 17, 60])
def test_another_env_goes_on_from_a_state_alike(opponent, steps):
    one, two = (CardBattle(OPPONENTS[opponent], shaping=0.5, max_steps=90) for _ in range(2))
    play(one, steps, seed=4)
    play(two, 5, seed=77)
    state = one.get_state()
    assert isinstance(state, bytes)
    two.set_state(state)
    assert two.get_state() == state
    assert same(play(one, 150, first=0), play(two, 150, first=0))


def test_an_opponent_by_option_is_in_the_state_and_a_player_is_whoever_is_seated():
    one, two = CardBattle("random"), CardBattle("random")
    one.reset(seed=1, options={"opponent": "greedy"})
    two.reset(seed=2)
    two.set_state(one.get_state())
    assert two._opponent.name == "greedy"
    one.reset(seed=1, options={"opponent": chance})
    two.reset(seed=2, options={"opponent": Keen()})
    two.set_state(one.get_state())
    assert two._opponent.name == "Keen"
    assert two.reset(seed=3)[1]["opponent"] == "random"


def test_a_state_after_the_end_is_over():
    one, two = CardBattle("random"), CardBattle("random")
    one.reset(seed=0)
    finish(one)
    two.reset(seed=1)
    two.set_state(one.get_state())
    with pytest.raises(gym.error.ResetNeeded):
        two.step(0)
    assert same(one.reset(), two.reset())


@pytest.mark.parametrize("data", [b"", b"nothing", b"CB01" + bytes(8), bytes(4000)])
def test_other_bytes_are_refused(data):
    env = CardBattle("random")
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(ValueError, match="are not a state of card-battle"):
        env.set_state(data)
    with pytest.raises(ValueError, match="are not a state of card-battle"):
        env.set_state(before[:-9])
    assert env.get_state() == before


# ---- text ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opponent", ["random", "greedy"])
def test_the_table_is_drawn_in_100_columns_with_news_and_choices(opponent):
    env = CardBattle(opponent, render_mode="ansi")
    env.reset(seed=8)
    rng = np.random.default_rng(0)
    told, over = [], False
    while not over:
        duel = env._duel
        text = env.render()
        told.append(text)
        lines = text.splitlines()
        assert max(map(len, lines)) <= WIDTH and not any(line != line.rstrip() for line in lines)
        for i, action in enumerate(duel.legal()):
            assert f"{i:>4}  {describe(duel, action)}" in lines
        me, foe = duel.sides[env._seat], duel.sides[1 - env._seat]
        assert f"life {me.life}" in lines[[line[:3] for line in lines].index("YOU")]
        assert f"life {foe.life}   hand {len(foe.hand)}" in lines[2]
        over = env.step(rng.choice(np.flatnonzero(env.action_masks())))[2]
    end = env.render()
    assert end.splitlines()[-1] in ("You won.", "You lost.", "A draw.")
    assert any("  opponent  cast " in text for text in told) and any("  you       " in text for text in told)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(0, 60))
def test_hidden_cards_are_not_drawn(seed, steps):
    import random

    from corral_games.card_battle.render import render_text

    env = CardBattle("random")
    play(env, steps, seed=seed)
    dealt_anew = env._duel.determinized(env._seat, random.Random(seed))
    assert render_text(env._duel, env._seat) == render_text(dealt_anew, env._seat)


def test_news_are_told_once():
    env = CardBattle("random", render_mode="ansi")
    play(env, 12, seed=0)
    assert "What happened:" in env.render()
    assert "What happened:" not in env.render()


def test_nothing_is_drawn_without_a_render_mode():
    env = CardBattle("random")
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode='ansi'"):
        assert env.render() is None
