"""Territory as an env: what it shows, allows and pays, and that it can go on from anywhere."""

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
from tests.corral_games.territory_worlds import fronts

SEEDS = st.integers(0, 2**31 - 1)


class Forgiving(Territory):
    """Waits instead of doing what is not legal."""

    def step(self, action):
        return super().step(action if self.action_masks()[action] else WAIT)


def small(**kwargs):
    return Territory(**{"size": 32, "num_bots": 5, "max_steps": 60, **kwargs})


def chance(observation, mask, rng):
    return int(rng.choice(np.flatnonzero(mask)))


def play(env, player=chance, seed=None, steps=10**9):
    """The rest of an episode, or all of one if there is a seed: what each step returned."""
    rng = np.random.default_rng(0)
    observation = env._observation() if seed is None else env.reset(seed=seed)[0]
    trace = []
    for _ in range(steps):
        trace.append(env.step(player(observation, env.action_masks(), rng)))
        observation = trace[-1][0]
        if trace[-1][2] or trace[-1][3]:
            break
    return trace


def same(one, two):
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(two) and all(same(a, b) for a, b in zip(one, two, strict=True))
    return np.array_equal(one, two)


# ---- an env ----------------------------------------------------------------------------------------------------


def test_gymnasium_finds_nothing_wrong():
    check_env(Forgiving(size=32), skip_render_check=True)


def test_the_doctor_finds_nothing_wrong():
    settings = {"size": 32, "num_bots": 6, "max_steps": 150}
    findings = list(examine("territory", settings, n_envs=2, steps=400))
    wrong = [f for f in findings if f.level != "pass" and f.what != "speed of a step"]  # a busy machine varies
    assert wrong == [] and len(findings) > 9


def test_the_same_seed_is_the_same_game():
    assert same(play(small(), seed=3), play(small(), seed=3))
    assert not same(play(small(), seed=3, steps=20), play(small(), seed=4, steps=20))
    used = small()
    play(used, seed=9, steps=7)
    assert same(play(used, seed=3, steps=20), play(small(), seed=3, steps=20))


def test_without_numba_it_is_the_same_game():
    plain = small()
    plain._ticks = ticks_numpy
    assert same(play(plain, seed=5), play(small(), seed=5))


@pytest.mark.parametrize(
    ("settings", "complaint"),
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
def test_wrong_settings_are_refused_with_advice(settings, complaint):
    with pytest.raises(UsageError, match=complaint):
        Territory(**settings)


def test_wrong_moments_and_actions_are_refused():
    env = small(max_steps=1)
    for call in (env.action_masks, env.get_state, lambda: env.step(WAIT)):
        with pytest.raises(ResetNeeded):
            call()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action 0 is not legal"):
        env.step(0)
    env.step(WAIT)
    with pytest.raises(ResetNeeded, match="over"):
        env.step(WAIT)


# ---- what it shows ---------------------------------------------------------------------------------------------


@settings(max_examples=12, deadline=None)
@given(SEEDS, st.integers(1, 50))
def test_observations_masks_and_infos_are_what_they_say(seed, bots):
    env = small(num_bots=bots, max_steps=40)
    observation, info = env.reset(seed=seed)
    rng, over = np.random.default_rng(seed), False
    while not over:
        assert env.observation_space.contains(observation)
        world, mask = env._world, env.action_masks()
        winds = set(fronts(world, 0).values())
        legal = np.zeros((9, 5), bool)
        legal[list(winds), 1:] = True
        legal[8, 1:] = bool(winds)
        legal[8, 0] = True
        assert np.array_equal(mask, legal.ravel())
        own, enemy, neutral, own_troops, enemy_troops = observation["map"][-5:]
        owner = world.owner.reshape(world.width, world.width)[1:-1, 1:-1]
        assert np.array_equal(own > 0, owner == 0) and np.array_equal(enemy > 0, owner > 0)
        assert np.array_equal(neutral > 0, owner == -1)
        assert not own_troops[owner != 0].any() and not enemy_troops[owner <= 0].any()
        now = dict(zip(GLOBALS, observation["global"][-16:].tolist(), strict=True))
        assert now["own share of all land"] == pytest.approx(info["land_share"])
        assert now["free share of all land"] == pytest.approx((owner == -1).sum() / world.all_land)
        home = min(1, world.home[0] / capacity(world.land[0]))
        assert now["troops at home, of the most one can have"] == pytest.approx(home)
        assert info["rank"] == world.rank(0) and info["bots_alive"] == (world.land[1:] > 0).sum()
        assert info["mean_bot_share"] == pytest.approx(world.land[1:].mean() / world.all_land)
        observation, _, terminated, truncated, info = env.step(rng.choice(np.flatnonzero(mask)))
        over = terminated or truncated
        assert ("won" in info) == over
    assert env.observation_space.contains(observation)


def test_frames_are_repeated_at_a_reset_and_move_up_by_one_in_each_step():
    env = small()
    assert Territory.frame_stacks == {"map": 4, "global": 4} and len(PLANES) == 5 and len(GLOBALS) == 16
    for seed in (1, 2):
        last, _ = env.reset(seed=seed)
        for name in ("map", "global"):
            frames = last[name].reshape(4, -1)
            assert (frames == frames[-1]).all()
        for observation, *_ in play(env, steps=30):
            for name in ("map", "global"):
                assert np.array_equal(observation[name].reshape(4, -1)[:-1], last[name].reshape(4, -1)[1:])
            last = observation


def test_numbers_stay_within_bounds_through_whole_games():
    for seed, player in ((1, chance), (2, Patient()), (3, lambda *_: WAIT)):
        env = small(max_steps=300)
        for observation, *_ in play(env, player, seed=seed):
            assert np.abs(observation["global"]).max() <= 1


def test_troops_beyond_the_cap_are_shown_as_full():
    env = small()
    env.reset(seed=1)
    env._world.home[0] *= 100
    assert env.observation_space.contains(env.step(WAIT)[0])


def test_what_is_returned_may_be_changed():
    env, other = small(), small()
    env.reset(seed=1)[0]["map"][:] = 7
    other.reset(seed=1)
    for _ in range(3):
        env.action_masks()[:] = False
        one, two = env.step(WAIT), other.step(WAIT)
        assert same(one, two)
        one[0]["map"][:] = 9
        one[0]["global"][:] = 9


def test_the_number_of_bots_is_an_option_of_an_episode():
    env = small()
    assert env.reset(seed=1)[1]["bots_alive"] == 5
    space = env.observation_space
    observation, info = env.reset(seed=1, options={"num_bots": 9})
    assert info["bots_alive"] == 9 and space.contains(observation)
    assert same(observation, small(num_bots=9).reset(seed=1)[0])
    for options, complaint in (({"num_bots": 51}, "from 1 to 50"), ({"bots": 3}, "did you mean 'num_bots'")):
        with pytest.raises(UsageError, match=complaint):
            env.reset(options=options)
    assert env.reset(seed=2)[1]["bots_alive"] == 5 and same(env.reset(seed=1)[0], small().reset(seed=1)[0])


def test_waiting_leaves_an_attack_under_way():
    env = small()
    env.reset(seed=1)
    env.step(WAIT + SHARES.index(40))
    env._world.order(0, EVERYWHERE, 90, ANYONE)
    world = World.from_bytes(env._world.to_bytes(), env.size)
    assert world.away[0] > 0
    env._ticks.advance(world, 10)
    env.step(WAIT)
    assert env._world.to_bytes() == world.to_bytes()


# ---- what it pays ----------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(SEEDS)
def test_territory_pays_ten_times_the_gain_in_land(seed):
    env = small(num_bots=1, max_steps=120)
    start = env.reset(seed=seed)[1]["land_share"]
    trace = play(env, Patient(), seed=seed)
    *_, terminated, _truncated, info = trace[-1]
    bonus = (1 if info["won"] else -1) if terminated else 0
    assert sum(step[1] for step in trace) == pytest.approx(10 * (info["land_share"] - start) + bonus)


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(1, 6))
def test_rank_pays_five_for_being_first_all_the_time(seed, bots):
    steps = 150
    env = small(num_bots=bots, reward="rank", max_steps=steps)
    trace = play(env, Patient(), seed=seed)
    weights = steps * (steps + 1) / 2
    earned = sum((t + 1) * (1 - (step[4]["rank"] - 1) / bots) for t, step in enumerate(trace)) / weights
    *_, terminated, _truncated, info = trace[-1]
    if info["won"]:
        earned += sum(range(len(trace) + 1, steps + 1)) / weights
    bonus = (1 if info["won"] else -1) if terminated else 0
    total = sum(step[1] for step in trace)
    assert total == pytest.approx(5 * earned + bonus) and -1 <= total <= 6


def ended(owner, **kwargs):
    """The last step of a game in which everything belongs to ``owner``."""
    env = small(**kwargs)
    env.reset(seed=0)
    world = env._world
    world.owner[world.owner >= -1] = owner
    world.land[:] = 0
    world.land[owner] = world.all_land
    return env.step(WAIT)


def test_a_game_ends_when_somebody_has_won_or_the_agent_is_gone():
    _, reward, terminated, truncated, info = ended(0)
    assert terminated and not truncated and info["won"] == 1 and info["rank"] == 1 and reward > 0
    _, reward, terminated, truncated, info = ended(2)
    assert terminated and not truncated and info["won"] == 0 and info["land_share"] == 0 and reward < 0
    _, _, terminated, truncated, info = play(small(max_steps=3), lambda *_: WAIT, seed=0)[-1]
    assert truncated and not terminated and info["won"] == 0


# ---- states ----------------------------------------------------------------------------------------------------


@settings(max_examples=10, deadline=None)
@given(SEEDS, st.integers(0, 59), st.integers(1, 20))
def test_another_env_goes_on_from_a_state(seed, steps, bots):
    env, other = small(), small()
    env.reset(seed=seed, options={"num_bots": bots})
    play(env, steps=steps)
    state = env.get_state()
    other.set_state(state)
    assert other.get_state() == state and np.array_equal(env.action_masks(), other.action_masks())
    assert same(env._observation(), other._observation())
    if not env._is_over:
        assert same(play(env), play(other))
    assert same(env.reset(), other.reset())  # on the same map, with as many bots


def test_bytes_that_are_no_state_of_this_env_are_refused():
    env = small()
    env.reset(seed=1)
    env.step(WAIT)
    state = env.get_state()
    before = env._observation()
    larger = small(size=40)
    larger.reset(seed=1)
    foreign = [b"", b"nonsense", state[:-7], state[:40], b"XX" + state[2:], larger.get_state(), state[:-40] + bytes(40)]
    for wrong in foreign:
        with pytest.raises(ValueError, match=r"not a state of this territory env .*give what get_state"):
            env.set_state(wrong)
        assert same(env._observation(), before)
    _, length = _HEADER.unpack_from(state)
    with pytest.raises(ValueError, match="it unpacks to more than"):
        env.set_state(state[: _HEADER.size + length] + zlib.compress(bytes(1 << 25), 9))
    with pytest.raises(ValueError, match="saved with max_steps 60, here it is 9"):
        small(max_steps=9).set_state(state)


# ---- pictures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "bots"), [(32, 1), (64, 10), (100, 30), (128, 50)])
def test_pictures_and_text_fit(size, bots):
    env = Territory(size=size, num_bots=bots, render_mode="rgb_array")
    env.reset(seed=1)
    picture = env.render()
    assert picture.dtype == np.uint8 and picture.shape[2] == 3
    assert 450 <= picture.shape[1] <= 576 and picture.shape[1] < picture.shape[0] < 730
    env.render_mode = "ansi"
    lines = env.render().split("\n")
    assert max(line.count("▀") for line in lines) <= 80 and "step 0 of 1000" in lines[-7 if bots > 4 else -bots - 2]
    assert max(len(line) for line in lines if "▀" not in line) < 130


def test_it_can_be_made_by_name():
    env = corral.make_env("territory", num_bots=3)
    assert isinstance(env, Territory) and env.num_bots == 3 and env.size == 64


def test_patience_pays_and_haste_does_not():
    ends = {}
    for name, player in (("patient", Patient()), ("random", chance)):
        infos = [play(Territory(max_steps=400), player, seed=seed)[-1][4] for seed in range(4)]
        ends[name] = np.mean([(info["land_share"], info["mean_bot_share"]) for info in infos], axis=0)
    (patient, their_bots), (haste, its_bots) = ends["patient"], ends["random"]
    assert patient > 2 * their_bots and patient > 3 * haste and haste < its_bots


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
def test_states_that_no_game_could_have_are_refused(name, tile, value):
    """The compiled ticks do not look where they write."""
    env = small()
    env.reset(seed=3)
    getattr(env._world, name)[tile] = value
    with pytest.raises(ValueError, match="do not agree"):
        small().set_state(env.get_state())


def test_without_numba_the_same_game_is_played_and_that_is_said(monkeypatch):
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "from corral_games.territory.env import Territory\n"
        "env = Territory(size=32, num_bots=5)\nenv.reset(seed=3)\n"
        "print(env._ticks.__name__, [env.step(42)[1] for _ in range(3)])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    env = small(max_steps=1000)
    env.reset(seed=3)
    assert done.stdout.strip() == f"corral_games.territory.ticks_numpy {[env.step(42)[1] for _ in range(3)]}"
    assert done.stderr.count("seven times as fast with numba") == 1


@pytest.mark.deep  # compiles everything, three times
def test_what_was_compiled_may_be_damaged(tmp_path):
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
