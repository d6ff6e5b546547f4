"""The card battle env: spaces and masks, seeds, opponents, reward shaping, saved states and text rendering."""

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


class WrapsIllegalActions(CardBattle):
    """Card battle that maps any action to a legal one, because ``check_env`` samples actions without the mask."""

    def step(self, action):
        return super().step(action % max(int(self.action_masks().sum()), 1))


class LastActionModel:
    """A model with ``predict`` like Stable-Baselines3's; it chooses the last legal action and records its calls."""

    def __init__(self):
        self.calls = []

    def predict(self, observation, state=None, episode_start=None, deterministic=False, action_masks=None):
        self.calls.append((observation, deterministic))
        return np.int64(np.flatnonzero(action_masks)[-1]), None


def random_player(observation, mask, generator):
    """Choose a random legal action."""
    return generator.choice(np.flatnonzero(mask))


OPPONENTS = {
    "random": "random",
    "greedy": "greedy",
    "mixed": "mixed:random=1,greedy=1",
    "player": random_player,
    "predict": LastActionModel(),
}


def play(env, steps, seed=None, options=None, reset=True):
    """Take random legal actions, episode after episode; return everything that the env returned."""
    rng = np.random.default_rng(0)
    trace = [env.reset(seed=seed, options=options)] if reset else []
    for _ in range(steps):
        mask = env.action_masks()
        trace.append(mask)
        outcome = env.step(rng.choice(np.flatnonzero(mask)))
        trace.append(outcome)
        if outcome[2] or outcome[3]:
            trace.append(env.reset())
    return trace


def are_equal(first, second):
    """Return whether two nested structures of arrays are equal."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(are_equal(first[key], second[key]) for key in first)
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(are_equal(a, b) for a, b in zip(first, second, strict=True))
    return np.array_equal(first, second)


def play_to_end(env):
    """Take random legal actions to the end of the episode; return what the last step returned."""
    rng = np.random.default_rng(1)
    while True:
        step = env.step(rng.choice(np.flatnonzero(env.action_masks())))
        if step[2] or step[3]:
            return step


# ---- env API ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("action_features", [False, True])
def test_it_passes_the_env_checker_of_gymnasium(action_features):
    check_env(WrapsIllegalActions("random", action_features=action_features), skip_render_check=True)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.booleans())
def test_observations_are_in_their_space_and_masks_count_the_legal_actions(seed, action_features):
    env = CardBattle("random", action_features=action_features)
    observation, info = env.reset(seed=seed)
    rng = np.random.default_rng(seed)
    done = False
    while not done:
        assert env.observation_space.contains(observation)
        mask = env.action_masks()
        assert mask.shape == (200,) and mask.dtype == np.bool_
        assert mask.tolist() == [i < len(env._duel.legal()) for i in range(200)]
        assert env._duel.to_act == env._seat and mask.sum() > 1
        observation, reward, terminated, truncated, info = env.step(rng.choice(np.flatnonzero(mask)))
        done = terminated or truncated
        assert done or (reward == 0 and info == {})
    assert env.observation_space.contains(observation)
    assert set(info) == {"turns", "won"} and info["won"] == outcome(reward, terminated)


def test_returned_arrays_are_not_reused_by_the_env():
    env = CardBattle("random", action_features=True)
    trace = play(env, 60, seed=1)
    trace_of_new_env = play(CardBattle("random", action_features=True), 60, seed=1)
    assert are_equal(trace, trace_of_new_env)
    env.reset(seed=2)
    mask = env.action_masks()
    mask[:] = False
    assert env.action_masks().any()


@pytest.mark.parametrize("action", [-1, 199, 200, 10**6])
def test_an_illegal_action_is_refused_and_does_not_change_the_env(action):
    env = CardBattle("random")
    env.reset(seed=0)
    before = env.get_state()
    n = int(env.action_masks().sum())
    with pytest.raises(ValueError, match=f"action {action} is not legal: there are {n} now, from 0 to {n - 1}"):
        env.step(action)
    assert env.get_state() == before


def test_step_before_reset_and_after_the_end_raises():
    env = CardBattle("random")
    for call in (lambda: env.step(0), env.action_masks, env.get_state):
        with pytest.raises(gym.error.ResetNeeded):
            call()
    env.reset(seed=0)
    play_to_end(env)
    assert not env.action_masks().any()
    with pytest.raises(gym.error.ResetNeeded, match=r"call reset\(\)"):
        env.step(0)


def test_an_episode_is_truncated_at_max_steps():
    env = CardBattle("random", max_steps=7, shaping=0.5)
    trace = play(env, 7, seed=0)
    last = trace[-2]
    assert last[2:4] == (False, True) and last[4]["won"] == 0.5
    assert not any(step[3] for step in trace[2:-2:2])


def test_it_passes_the_doctor():
    findings = {f.what: f for f in examine("card-battle", {"opponent": "random"}, n_envs=4, steps=300)}
    assert {f.level for f in findings.values()} == {"pass"}, findings
    assert "get_state and set_state" in findings


def test_the_env_name_has_action_features_by_default():
    assert corral.make_env("card-battle").observation_space.keys() == {"observation", "action_features"}
    assert corral.make_env("card-battle", action_features=False).observation_space.shape == (36,)
    assert make(opponent="random", render_mode="ansi").render_mode == "ansi"


# ---- seeds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opponent", OPPONENTS)
def test_the_same_seed_gives_the_same_episode(opponent):
    new, used = CardBattle(OPPONENTS[opponent]), CardBattle(OPPONENTS[opponent])
    play(used, 30, seed=99)
    assert are_equal(play(new, 120, seed=5), play(used, 120, seed=5))
    assert not are_equal(play(new, 20, seed=5), play(used, 20, seed=6))


def test_the_seed_decides_seat_decks_and_opponent():
    env = CardBattle("mixed:random=1,greedy=1")
    infos = [env.reset(seed=seed)[1] for seed in range(60)]
    assert {info["seat"] for info in infos} == {0, 1}
    assert {info["opponent"] for info in infos} == {"random", "greedy"}
    assert {info["deck"] for info in infos} == {info["opponent_deck"] for info in infos} == set(DECK_NAMES)
    assert infos == [env.reset(seed=seed)[1] for seed in range(60)]


def test_a_reset_option_changes_only_the_setting_it_names():
    env = CardBattle("random")
    without_options = env.reset(seed=3)[1]
    with_options = env.reset(seed=3, options={"opponent": "greedy", "deck": "ember"})[1]
    assert with_options == {**without_options, "opponent": "greedy", "deck": "ember"}
    assert env.reset(seed=3)[1] == without_options


def test_decks_and_shuffles_stay_with_the_seat_number_when_the_agent_changes_seats():
    env = CardBattle("random")
    for seed in range(5):
        info_in_seat_0 = env.reset(seed=seed, options={"seat": 0})[1]
        cards_by_seat = [side.hand + side.library for side in env._duel.sides]
        info_in_seat_1 = env.reset(seed=seed, options={"seat": 1})[1]
        assert info_in_seat_0["deck"] == info_in_seat_1["opponent_deck"]
        assert info_in_seat_0["opponent_deck"] == info_in_seat_1["deck"]
        side = env._duel.sides[0]
        assert sorted(cards_by_seat[0]) == sorted(side.hand + side.library + cards_played_by_seat_0(env))


def cards_played_by_seat_0(env):
    """Return the cards of seat 0 that are neither in its hand nor in its library."""
    side = env._duel.sides[0]
    lands = [card for card, n in enumerate(side.lands) for _ in range(n)]
    return lands + side.graveyard + [creature.card for creature in side.creatures] + side.charms


def test_advise_gives_legal_actions_and_does_not_change_the_duel():
    env, without_advice = CardBattle("random"), CardBattle("random")
    observation, _ = env.reset(seed=4)
    without_advice.reset(seed=4)
    done = False
    while not done:
        action = env.advise("greedy")
        assert env.advise("random") < env.action_masks().sum()
        observation, _, terminated, truncated, _ = env.step(action)
        assert are_equal(observation, without_advice.step(action)[0])
        done = terminated or truncated
    with pytest.raises(gym.error.ResetNeeded, match="no action to advise"):
        env.advise("greedy")


def test_states_of_other_opponents_and_damaged_states_are_refused():
    player_env = CardBattle(lambda observation, mask, generator: 0)
    player_env.reset(seed=0)
    bot_env = CardBattle("greedy")
    bot_env.reset(seed=0)
    with pytest.raises(ValueError, match="saved with a Player"):
        bot_env.set_state(player_env.get_state())
    state = bot_env.get_state()
    for damaged in (state + bytes(4), state[:-4], state.replace(b'"seat"', b'"tear"'), b"", b"x" * 50):
        with pytest.raises(ValueError, match="pass what get_state"):
            bot_env.set_state(damaged)
    bot_env.set_state(state)


@pytest.mark.parametrize("seat", [0, 1])
def test_the_seat_can_be_chosen(seat):
    by_option, by_setting = CardBattle("random"), CardBattle("random", seat=seat)
    for seed in range(8):
        observation, info = by_option.reset(seed=seed, options={"seat": seat})
        assert info["seat"] == seat and are_equal(observation, by_setting.reset(seed=seed)[0])
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


def test_it_implements_the_opponent_protocol():
    env = CardBattle()
    assert isinstance(env, HasOpponents)
    assert env.opponents == ("random", "greedy", "mcts-fast", "mcts", "mcts-strong")


@pytest.mark.parametrize("opponent", ["random", "greedy", "mcts-fast"])
def test_each_opponent_can_be_chosen_by_name(opponent):
    env = CardBattle("random")
    assert env.reset(seed=0, options={"opponent": opponent})[1]["opponent"] == opponent
    play(env, 4, seed=1, options={"opponent": opponent})


def test_an_opponent_function_observes_its_own_side_like_the_agent():
    calls = []

    def watcher(observation, mask, generator):
        duel = env._duel_in_play()
        calls.append((observation, mask.copy(), duel.to_act, len(duel.legal())))
        assert isinstance(generator, np.random.Generator)
        return int(generator.choice(np.flatnonzero(mask)))

    class Watched(CardBattle):
        def _let_opponent_play(self, duel):
            self._duel_in_play = lambda: duel
            super()._let_opponent_play(duel)

    for action_features in (False, True):
        env = Watched(watcher, action_features=action_features)
        calls.clear()
        _, info = env.reset(seed=0)
        assert info["opponent"] == "watcher"
        play_to_end(env)
        assert len(calls) > 5
        for observation, mask, to_act, n_legal in calls:
            assert env.observation_space.contains(observation)
            assert to_act == 1 - info["seat"] and mask.sum() == n_legal


def test_agent_and_opponent_with_the_same_policy_play_the_same_duel_from_both_seats():
    """The result of a duel between two copies of a policy does not depend on which of them is the agent."""

    def policy(observation, mask, generator):
        return 0 if observation[10] < 0.5 else int(np.flatnonzero(mask)[-1])

    results = []
    for seat in (0, 1):
        env = CardBattle(policy, deck="sun", opponent_deck="sun", seat=seat)
        observation, _ = env.reset(seed=11)
        done = False
        while not done:
            observation, reward, terminated, truncated, info = env.step(policy(observation, env.action_masks(), None))
            done = terminated or truncated
        results.append((reward * (1 - 2 * seat), info["turns"]))
    assert results[0] == results[1]


def test_an_opponent_with_predict_is_called_with_deterministic():
    model = LastActionModel()
    env = CardBattle(model, action_features=True)
    assert env.reset(seed=0)[1]["opponent"] == "LastActionModel"
    play_to_end(env)
    assert model.calls and all(deterministic for _, deterministic in model.calls)
    assert env.observation_space.contains(model.calls[0][0])


class CountingModel(LastActionModel):
    """A recurrent model whose state is the number of actions it has chosen in this duel."""

    def __init__(self):
        super().__init__()
        self.states = []

    def predict(self, *args, state=None, **kwargs):
        self.states.append(state)
        return super().predict(*args, **kwargs)[0], (state or 0) + 1


def test_an_opponent_with_predict_gets_its_recurrent_state_back_within_a_duel():
    model = CountingModel()
    env = CardBattle(model)
    for seed in range(3):
        model.states.clear()
        env.reset(seed=seed, options={"seat": 1})  # The opponent has the first turn.
        assert env.get_state() is None
        play_to_end(env)
        assert model.states == [None, *range(1, len(model.states))]


def test_an_opponent_that_chooses_an_illegal_action_is_named_in_the_error():
    def clumsy(observation, mask, generator):
        return 199

    env = CardBattle(clumsy)
    with pytest.raises(ValueError, match="the opponent clumsy chose action 199, but only 0 to"):
        for seed in range(20):
            env.reset(seed=seed)
            play_to_end(env)


@pytest.mark.parametrize(
    ("settings", "message"),
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
def test_an_invalid_setting_is_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        CardBattle(**settings)
    if set(settings) <= {"opponent", "deck", "opponent_deck", "seat"}:
        with pytest.raises(UsageError, match=message):
            CardBattle("random").reset(seed=0, options=settings)


def test_an_unknown_option_is_refused():
    with pytest.raises(UsageError, match="unknown reset option 'decks' \\(did you mean 'deck'\\?\\)"):
        CardBattle("random").reset(options={"decks": "sun"})


# ---- shaping ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_shaping_adds_up_to_the_difference_of_potentials(seed):
    gamma, shaping = 0.9, 0.8
    plain, shaped = CardBattle("random"), CardBattle("random", shaping=shaping, gamma=gamma)
    rng = np.random.default_rng(seed)
    assert are_equal(plain.reset(seed=seed), shaped.reset(seed=seed))
    potential = 0.5 * shaping * lead(shaped._duel, shaped._seat)
    initial_potential, total, discount, done = potential, 0.0, 1.0, False
    while not done:
        assert np.array_equal(plain.action_masks(), shaped.action_masks())
        action = rng.choice(np.flatnonzero(plain.action_masks()))
        plain_step, shaped_step = plain.step(action), shaped.step(action)
        assert are_equal(plain_step[0], shaped_step[0]) and plain_step[2:] == shaped_step[2:]
        done = plain_step[2] or plain_step[3]
        next_potential = 0.0 if plain_step[2] else 0.5 * shaping * lead(shaped._duel, shaped._seat)
        assert abs(next_potential) < 0.5
        assert shaped_step[1] - plain_step[1] == pytest.approx(gamma * next_potential - potential)
        total += discount * (shaped_step[1] - plain_step[1])
        discount *= gamma
        potential = next_potential
    assert total == pytest.approx(-initial_potential, abs=1e-9)
    assert outcome(plain_step[1], plain_step[2]) == outcome(shaped_step[1], shaped_step[2])


# ---- saved states ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opponent", OPPONENTS)
@pytest.mark.parametrize("steps", [0, 1, 17, 60])
def test_another_env_continues_exactly_from_a_state(opponent, steps):
    env, restored = (CardBattle(OPPONENTS[opponent], shaping=0.5, max_steps=90) for _ in range(2))
    play(env, steps, seed=4)
    play(restored, 5, seed=77)
    state = env.get_state()
    assert isinstance(state, bytes)
    restored.set_state(state)
    assert restored.get_state() == state
    assert are_equal(play(env, 150, reset=False), play(restored, 150, reset=False))


def test_a_state_restores_a_named_opponent_but_not_a_player_object():
    env, restored = CardBattle("random"), CardBattle("random")
    env.reset(seed=1, options={"opponent": "greedy"})
    restored.reset(seed=2)
    restored.set_state(env.get_state())
    assert restored._opponent.name == "greedy"
    env.reset(seed=1, options={"opponent": random_player})
    restored.reset(seed=2, options={"opponent": LastActionModel()})
    restored.set_state(env.get_state())
    assert restored._opponent.name == "LastActionModel"
    assert restored.reset(seed=3)[1]["opponent"] == "random"


def test_a_state_of_a_finished_episode_restores_as_finished():
    env, restored = CardBattle("random"), CardBattle("random")
    env.reset(seed=0)
    play_to_end(env)
    restored.reset(seed=1)
    restored.set_state(env.get_state())
    with pytest.raises(gym.error.ResetNeeded):
        restored.step(0)
    assert are_equal(env.reset(), restored.reset())


@pytest.mark.parametrize("data", [b"", b"nothing", b"CB01" + bytes(8), bytes(4000)])
def test_invalid_states_are_refused_and_do_not_change_the_env(data):
    env = CardBattle("random")
    env.reset(seed=0)
    before = env.get_state()
    with pytest.raises(ValueError, match="are not a state of card-battle"):
        env.set_state(data)
    with pytest.raises(ValueError, match="are not a state of card-battle"):
        env.set_state(before[:-9])
    assert env.get_state() == before


# ---- text rendering --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("opponent", ["random", "greedy"])
def test_render_shows_events_and_legal_actions_in_100_columns(opponent):
    env = CardBattle(opponent, render_mode="ansi")
    env.reset(seed=8)
    rng = np.random.default_rng(0)
    texts, done = [], False
    while not done:
        duel = env._duel
        text = env.render()
        texts.append(text)
        lines = text.splitlines()
        assert max(map(len, lines)) <= WIDTH and not any(line != line.rstrip() for line in lines)
        for i, action in enumerate(duel.legal()):
            assert f"{i:>4}  {describe(duel, action)}" in lines
        own_side, opponent_side = duel.sides[env._seat], duel.sides[1 - env._seat]
        assert f"life {own_side.life}" in lines[[line[:3] for line in lines].index("YOU")]
        assert f"life {opponent_side.life}   hand {len(opponent_side.hand)}" in lines[2]
        done = env.step(rng.choice(np.flatnonzero(env.action_masks())))[2]
    last_text = env.render()
    assert last_text.splitlines()[-1] in ("You won.", "You lost.", "A draw.")
    assert any("  opponent  cast " in text for text in texts) and any("  you       " in text for text in texts)


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.integers(0, 60))
def test_render_does_not_show_hidden_cards(seed, steps):
    import random

    from corral_games.card_battle.render import render_text

    env = CardBattle("random")
    play(env, steps, seed=seed)
    redealt = env._duel.determinized(env._seat, random.Random(seed))
    assert render_text(env._duel, env._seat) == render_text(redealt, env._seat)


def test_render_shows_each_event_once():
    env = CardBattle("random", render_mode="ansi")
    play(env, 12, seed=0)
    assert "What happened:" in env.render()
    assert "What happened:" not in env.render()


def test_render_without_a_render_mode_warns_and_returns_none():
    env = CardBattle("random")
    env.reset(seed=0)
    with pytest.warns(UserWarning, match="render_mode='ansi'"):
        assert env.render() is None
