"""The Territory env: observations, action masks, rewards, saved states and rendering."""

import os
import subprocess
import sys
import zlib

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import corral
from corral.core.errors import UsageError
from corral.doctor.checks import examine
from corral_games.territory import ticks_numpy
from corral_games.territory.bots import Patient
from corral_games.territory.env import _HEADER, SHARES, WAIT, Territory
from corral_games.territory.observe import GLOBALS, PLANES
from corral_games.territory.rules import ANYONE, EVERYWHERE, capacity
from corral_games.territory.state import World
from tests.corral_games.territory_worlds import border_tiles

SEEDS = st.integers(0, 2**31 - 1)


class WaitsIfIllegal(Territory):
    """Territory that takes any illegal action for WAIT, because ``check_env`` samples actions without the mask."""

    def step(self, action):
        return super().step(action if self.action_masks()[action] else WAIT)


def small_env(**kwargs):
    """Return an env with a small map, few bots and short episodes."""
    return Territory(**{"size": 32, "num_bots": 5, "max_steps": 60, **kwargs})


def random_player(observation, mask, rng):
    """Choose a random legal action."""
    return int(rng.choice(np.flatnonzero(mask)))


def play(env, player=random_player, seed=None, steps=10**9):
    """Play an episode to its end, from a reset if a seed is given; return what each step returned."""
    rng = np.random.default_rng(0)
    observation = env._observation() if seed is None else env.reset(seed=seed)[0]
    trace = []
    for _ in range(steps):
        trace.append(env.step(player(observation, env.action_masks(), rng)))
        observation = trace[-1][0]
        if trace[-1][2] or trace[-1][3]:
            break
    return trace


def are_equal(first, second):
    """Return whether two nested structures of arrays are equal."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(are_equal(first[key], second[key]) for key in first)
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(are_equal(a, b) for a, b in zip(first, second, strict=True))
    return np.array_equal(first, second)


# ---- env API ---------------------------------------------------------------------------------------------------


def test_it_passes_the_env_checker_of_gymnasium():
    check_env(WaitsIfIllegal(size=32), skip_render_check=True)


def test_it_passes_the_doctor():
    settings = {"size": 32, "num_bots": 6, "max_steps": 150}
    findings = list(examine("territory", settings, n_envs=2, steps=400))
    # The speed is left out because it varies on a busy machine.
    failures = [f for f in findings if f.level != "pass" and f.what != "speed of a step"]
    assert failures == [] and len(findings) > 9


def test_the_same_seed_gives_the_same_game():
    assert are_equal(play(small_env(), seed=3), play(small_env(), seed=3))
    assert not are_equal(play(small_env(), seed=3, steps=20), play(small_env(), seed=4, steps=20))
    used = small_env()
    play(used, seed=9, steps=7)
    assert are_equal(play(used, seed=3, steps=20), play(small_env(), seed=3, steps=20))


def test_the_numpy_implementation_plays_the_same_game():
    env = small_env()
    env._ticks = ticks_numpy
    assert are_equal(play(env, seed=5), play(small_env(), seed=5))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 31}, "size 31 should be a whole number from 32 to 128"),
        ({"num_bots": 0}, "num_bots 0 should be a whole number from 1 to 50"),
        ({"num_bots": 51}, "num_bots 51"),
        ({"num_bots": "many"}, "num_bots 'many'"),
        ({"size": "big"}, "size 'big' should be a whole number from 32 to 128"),
        ({"size": 64.7}, "size 64.7"),
        ({"max_steps": "x"}, "max_steps 'x'"),
        ({"reward": "terrtory"}, "did you mean 'territory'"),
        ({"max_steps": 0}, "max_steps 0"),
        ({"render_mode": "human"}, "rgb_array or ansi"),
    ],
)
def test_invalid_settings_raise_usage_errors(settings, message):
    with pytest.raises(UsageError, match=message):
        Territory(**settings)


def test_illegal_actions_and_calls_before_reset_or_after_the_end_are_refused():
    env = small_env(max_steps=1)
    for call in (env.action_masks, env.get_state, lambda: env.step(WAIT)):
        with pytest.raises(ResetNeeded):
            call()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action 0 is not legal"):
        env.step(0)
    env.step(WAIT)
    with pytest.raises(ResetNeeded, match="over"):
        env.step(WAIT)


# ---- observations ----------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(SEEDS, st.integers(1, 50))
def test_observations_masks_and_infos_describe_the_world(seed, bots):
    env = small_env(num_bots=bots, max_steps=40)
    observation, info = env.reset(seed=seed)
    rng, done = np.random.default_rng(seed), False
    while not done:
        assert env.observation_space.contains(observation)
        world, mask = env._world, env.action_masks()
        sectors = set(border_tiles(world, 0).values())
        legal = np.zeros((9, 5), bool)
        legal[list(sectors), 1:] = True
        legal[8, 1:] = bool(sectors)
        legal[8, 0] = True
        assert np.array_equal(mask, legal.ravel())
        own_land, enemy_land, free_land, own_troops, enemy_troops = observation["map"][-5:]
        owner = world.owner.reshape(world.width, world.width)[1:-1, 1:-1]
        assert np.array_equal(own_land > 0, owner == 0) and np.array_equal(enemy_land > 0, owner > 0)
        assert np.array_equal(free_land > 0, owner == -1)
        assert not own_troops[owner != 0].any() and not enemy_troops[owner <= 0].any()
        global_features = dict(zip(GLOBALS, observation["global"][-16:].tolist(), strict=True))
        assert global_features["own share of all land"] == pytest.approx(info["land_share"])
        assert global_features["free share of all land"] == pytest.approx((owner == -1).sum() / world.all_land)
        home_share = min(1, world.home[0] / capacity(world.land[0]))
        assert global_features["troops at home, of the most one can have"] == pytest.approx(home_share)
        assert info["rank"] == world.rank(0) and info["bots_alive"] == (world.land[1:] > 0).sum()
        assert info["mean_bot_share"] == pytest.approx(world.land[1:].mean() / world.all_land)
        observation, _, terminated, truncated, info = env.step(rng.choice(np.flatnonzero(mask)))
        done = terminated or truncated
        assert ("won" in info) == done
    assert env.observation_space.contains(observation)


def test_a_reset_repeats_the_first_frame_and_a_step_shifts_the_stack_by_one():
    env = small_env()
    assert Territory.frame_stacks == {"map": 4, "global": 4} and len(PLANES) == 5 and len(GLOBALS) == 16
    for seed in (1, 2):
        previous, _ = env.reset(seed=seed)
        for name in ("map", "global"):
            frames = previous[name].reshape(4, -1)
            assert (frames == frames[-1]).all()
        for observation, *_ in play(env, steps=30):
            for name in ("map", "global"):
                assert np.array_equal(observation[name].reshape(4, -1)[:-1], previous[name].reshape(4, -1)[1:])
            previous = observation


def test_global_features_stay_within_bounds_through_whole_games():
    for seed, player in ((1, random_player), (2, Patient()), (3, lambda *_: WAIT)):
        env = small_env(max_steps=300)
        for observation, *_ in play(env, player, seed=seed):
            assert np.abs(observation["global"]).max() <= 1


def test_troops_above_capacity_are_observed_as_full():
    env = small_env()
    env.reset(seed=1)
    env._world.home[0] *= 100
    assert env.observation_space.contains(env.step(WAIT)[0])


def test_changing_returned_arrays_does_not_change_the_env():
    env, other = small_env(), small_env()
    env.reset(seed=1)[0]["map"][:] = 7
    other.reset(seed=1)
    for _ in range(3):
        env.action_masks()[:] = False
        step, other_step = env.step(WAIT), other.step(WAIT)
        assert are_equal(step, other_step)
        step[0]["map"][:] = 9
        step[0]["global"][:] = 9


def test_the_reset_option_num_bots_holds_for_one_episode():
    env = small_env()
    assert env.reset(seed=1)[1]["bots_alive"] == 5
    space = env.observation_space
    observation, info = env.reset(seed=1, options={"num_bots": 9})
    assert info["bots_alive"] == 9 and space.contains(observation)
    assert are_equal(observation, small_env(num_bots=9).reset(seed=1)[0])
    for options, message in (({"num_bots": 51}, "from 1 to 50"), ({"bots": 3}, "did you mean 'num_bots'")):
        with pytest.raises(UsageError, match=message):
            env.reset(options=options)
    assert env.reset(seed=2)[1]["bots_alive"] == 5 and are_equal(env.reset(seed=1)[0], small_env().reset(seed=1)[0])


def test_the_wait_action_lets_an_attack_continue():
    env = small_env()
    env.reset(seed=1)
    env.step(WAIT + SHARES.index(40))
    env._world.order(0, EVERYWHERE, 90, ANYONE)
    expected = World.from_bytes(env._world.to_bytes(), env.size)
    assert expected.away[0] > 0
    env._ticks.advance(expected, 10)
    env.step(WAIT)
    assert env._world.to_bytes() == expected.to_bytes()


# ---- rewards and ends of episodes ------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_the_territory_reward_is_ten_times_the_gain_in_land_share(seed):
    env = small_env(num_bots=1, max_steps=120)
    start = env.reset(seed=seed)[1]["land_share"]
    trace = play(env, Patient(), seed=seed)
    *_, terminated, _truncated, info = trace[-1]
    bonus = (1 if info["won"] else -1) if terminated else 0
    assert sum(step[1] for step in trace) == pytest.approx(10 * (info["land_share"] - start) + bonus)


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(1, 6))
def test_the_rank_reward_sums_to_five_for_rank_one_in_every_step(seed, bots):
    steps = 150
    env = small_env(num_bots=bots, reward="rank", max_steps=steps)
    trace = play(env, Patient(), seed=seed)
    total_weight = steps * (steps + 1) / 2
    weighted_rank = sum((t + 1) * (1 - (step[4]["rank"] - 1) / bots) for t, step in enumerate(trace)) / total_weight
    *_, terminated, _truncated, info = trace[-1]
    if info["won"]:
        weighted_rank += sum(range(len(trace) + 1, steps + 1)) / total_weight
    bonus = (1 if info["won"] else -1) if terminated else 0
    total = sum(step[1] for step in trace)
    assert total == pytest.approx(5 * weighted_rank + bonus) and -1 <= total <= 6


def last_step_when_all_land_is_owned_by(owner, **kwargs):
    """Give all land to ``owner`` and return what the next step returns, which is the last of the game."""
    env = small_env(**kwargs)
    env.reset(seed=0)
    world = env._world
    world.owner[world.owner >= -1] = owner
    world.land[:] = 0
    world.land[owner] = world.all_land
    return env.step(WAIT)


def test_a_game_ends_with_a_winner_or_without_land_or_at_max_steps():
    _, reward, terminated, truncated, info = last_step_when_all_land_is_owned_by(0)
    assert terminated and not truncated and info["won"] == 1 and info["rank"] == 1 and reward > 0
    _, reward, terminated, truncated, info = last_step_when_all_land_is_owned_by(2)
    assert terminated and not truncated and info["won"] == 0 and info["land_share"] == 0 and reward < 0
    _, _, terminated, truncated, info = play(small_env(max_steps=3), lambda *_: WAIT, seed=0)[-1]
    assert truncated and not terminated and info["won"] == 0


# ---- saved states ----------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(0, 59), st.integers(1, 20))
def test_another_env_continues_exactly_from_a_state(seed, steps, bots):
    env, restored = small_env(), small_env()
    env.reset(seed=seed, options={"num_bots": bots})
    play(env, steps=steps)
    state = env.get_state()
    restored.set_state(state)
    assert restored.get_state() == state and np.array_equal(env.action_masks(), restored.action_masks())
    assert are_equal(env._observation(), restored._observation())
    if not env._is_over:
        assert are_equal(play(env), play(restored))
    assert are_equal(env.reset(), restored.reset())  # The next episode is the same too: its map and number of bots.


def test_invalid_states_are_refused_and_do_not_change_the_env():
    env = small_env()
    env.reset(seed=1)
    env.step(WAIT)
    state = env.get_state()
    before = env._observation()
    larger = small_env(size=40)
    larger.reset(seed=1)
    invalid_states = [
        b"",
        b"nonsense",
        state[:-7],
        state[:40],
        b"XX" + state[2:],
        larger.get_state(),
        state[:-40] + bytes(40),
    ]
    for invalid in invalid_states:
        with pytest.raises(ValueError, match=r"not a state of this territory env .*give what get_state"):
            env.set_state(invalid)
        assert are_equal(env._observation(), before)
    _, length = _HEADER.unpack_from(state)
    with pytest.raises(ValueError, match="it unpacks to more than"):
        env.set_state(state[: _HEADER.size + length] + zlib.compress(bytes(1 << 25), 9))
    with pytest.raises(ValueError, match="saved with max_steps 60, here it is 9"):
        small_env(max_steps=9).set_state(state)


# ---- rendering, bots and Numba ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "bots"), [(32, 1), (64, 10), (100, 30), (128, 50)])
def test_rendered_images_and_text_fit_the_screen(size, bots):
    env = Territory(size=size, num_bots=bots, render_mode="rgb_array")
    env.reset(seed=1)
    image = env.render()
    assert image.dtype == np.uint8 and image.shape[2] == 3
    assert 450 <= image.shape[1] <= 576 and image.shape[1] < image.shape[0] < 730
    env.render_mode = "ansi"
    lines = env.render().split("\n")
    assert max(line.count("▀") for line in lines) <= 80 and "step 0 of 1000" in lines[-7 if bots > 4 else -bots - 2]
    assert max(len(line) for line in lines if "▀" not in line) < 130


def test_territory_can_be_made_by_name():
    env = corral.make_env("territory", num_bots=3)
    assert isinstance(env, Territory) and env.num_bots == 3 and env.size == 64


def test_the_patient_bot_beats_the_bots_and_a_random_player_does_not():
    shares = {}
    for name, player in (("patient", Patient()), ("random", random_player)):
        infos = [play(Territory(max_steps=400), player, seed=seed)[-1][4] for seed in range(4)]
        shares[name] = np.mean([(info["land_share"], info["mean_bot_share"]) for info in infos], axis=0)
    (patient_share, bots_against_patient), (random_share, bots_against_random) = shares["patient"], shares["random"]
    assert patient_share > 2 * bots_against_patient and patient_share > 3 * random_share
    assert random_share < bots_against_random


@pytest.mark.parametrize(
    ("name", "tile", "value"),
    [
        ("owner", 40, -128),
        ("owner", 40, 9),
        ("terrain", 45, 120),
        ("home", 1, -5),
        ("heading", 0, 77),
        ("target", 1, 77),
        ("rows", 0, 1),
        ("terrain", 0, 1),
    ],
)
def test_inconsistent_states_are_refused(name, tile, value):
    """The compiled code does not check array bounds, so that such a state could write outside the arrays."""
    env = small_env()
    env.reset(seed=3)
    getattr(env._world, name)[tile] = value
    with pytest.raises(ValueError, match="do not agree"):
        small_env().set_state(env.get_state())


def test_without_numba_the_game_is_the_same_and_a_message_recommends_numba(monkeypatch):
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "from corral_games.territory.env import Territory\n"
        "env = Territory(size=32, num_bots=5)\nenv.reset(seed=3)\n"
        "print(env._ticks.__name__, [env.step(42)[1] for _ in range(3)])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    env = small_env(max_steps=1000)
    env.reset(seed=3)
    assert result.stdout.strip() == f"corral_games.territory.ticks_numpy {[env.step(42)[1] for _ in range(3)]}"
    assert result.stderr.count("seven times as fast with numba") == 1


@pytest.mark.deep  # Compiles everything three times.
def test_a_damaged_numba_cache_is_compiled_again(tmp_path):
    script = (
        "from corral_games.territory.env import Territory\n"
        "env = Territory(size=32, num_bots=5)\nenv.reset(seed=3)\nprint(env.step(42)[1])"
    )
    environ = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    run = lambda: subprocess.run(  # noqa: E731
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environ
    )
    first = run().stdout
    damaged = [path for path in tmp_path.rglob("*.nb[ic]") if path.write_bytes(b"") == 0]
    assert damaged and run().stdout == first
