"""Territory, rule by rule, with and without compilation."""

import numpy as np
import pytest

from corral_games.territory.bots import bot_order
from corral_games.territory.rules import (
    ANYONE,
    DEFENDER_COST,
    EVERYWHERE,
    FREE,
    HIGHLAND,
    MOUNTAIN,
    OWNED_COST_FACTOR,
    PLAINS,
    SOLDIER,
    TILE_COST,
    capacity,
    growth,
    sector,
)
from corral_games.territory.state import NEVER
from tests.corral_games.territory_worlds import TICK_NAMES, TICKS, fronts, world_of

both = pytest.mark.parametrize("ticks", TICKS, ids=TICK_NAMES)
E, W = 2, 6


def play_until(ticks, world, done, limit=400):
    """Tick by tick; the home troops, attack and land as they were before the last tick."""
    for _ in range(limit):
        before = world.home.copy(), world.away.copy(), world.land.copy()
        ticks.advance(world, 1)
        if done():
            return before
    raise AssertionError("it never happened")


# ---- growth ----------------------------------------------------------------------------------------------------


def test_troops_grow_most_at_half_and_not_at_all_when_full():
    cap = int(capacity(100))
    rates = [int(growth(cap * percent // 100, 0, 100)) for percent in range(0, 121, 5)]
    assert rates[0] > 0 and abs(rates.index(max(rates)) - 10) <= 1
    assert rates[20:] == [0] * 5 and min(rates) >= 0
    assert growth(cap // 4, cap // 4, 100) < growth(cap // 2, 0, 100)  # those who are away do not multiply
    assert growth(cap // 4, cap, 100) == 0  # but they count


# ---- sectors ---------------------------------------------------------------------------------------------------


def test_sectors_are_the_eight_winds():
    names = {}
    for down in range(-20, 21):
        for right in range(-20, 21):
            if down or right:
                angle = np.degrees(np.arctan2(right, -down))
                names[down, right] = (int(sector(down, right)), round(angle / 45) % 8)
    assert all(ours == true for ours, true in names.values())
    steps = np.array(list(names))
    assert sector(steps[:, 0], steps[:, 1]).tolist() == [ours for ours, _ in names.values()]


@both
@pytest.mark.parametrize("heading", range(9))
def test_an_attack_takes_only_tiles_in_its_sector(ticks, heading):
    rows = ["." * 15] * 15
    rows[6:9] = ["." * 6 + "000" + "." * 6] * 3
    world = world_of(*rows, home=[400 * SOLDIER])
    world.order(0, heading, 100, ANYONE)
    for _ in range(60):
        allowed = {tile for tile, seen in fronts(world, 0).items() if heading in (seen, EVERYWHERE)}
        before = set(np.flatnonzero(world.owner == 0).tolist())
        ticks.advance(world, 1)
        assert set(np.flatnonzero(world.owner == 0).tolist()) - before <= allowed
    assert world.land[0] > 14


# ---- targets, costs --------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize(("target", "taken"), [(FREE, {FREE}), (1, {1}), (2, {2}), (ANYONE, {FREE, 1, 2})])
def test_an_attack_takes_only_from_its_target(ticks, target, taken):
    world = world_of("1110222", "1110222", "1110222", "...0...", "...0...", home=[500 * SOLDIER, 0, 0])
    before = world.owner.copy()
    world.order(0, EVERYWHERE, 100, target)
    ticks.advance(world, 30)
    changed = before != world.owner
    assert set(before[changed].tolist()) == taken and set(world.owner[changed].tolist()) == {0}


@both
@pytest.mark.parametrize(("sign", "terrain"), [(".", PLAINS), ("^", HIGHLAND), ("A", MOUNTAIN)])
def test_free_land_costs_what_its_terrain_costs(ticks, sign, terrain):
    world = world_of("0" + sign, home=[100 * SOLDIER])
    world.order(0, E, 50, FREE)
    play_until(ticks, world, lambda: world.land[0] == 2)
    assert world.away[0] == 50 * SOLDIER - TILE_COST[terrain] * SOLDIER
    assert TILE_COST[PLAINS] < TILE_COST[HIGHLAND] < TILE_COST[MOUNTAIN]


@both
@pytest.mark.parametrize("home", [0, 7 * SOLDIER, 12 * SOLDIER])
def test_a_defended_tile_costs_its_defenders_too(ticks, home):
    world = world_of("0111", home=[200 * SOLDIER, home])
    world.order(0, E, 50, 1)
    homes, away, _ = play_until(ticks, world, lambda: world.land[0] == 2)
    density = int(homes[1]) // 3
    assert (
        world.away[0]
        == away[0] - TILE_COST[PLAINS] * OWNED_COST_FACTOR * SOLDIER - DEFENDER_COST[PLAINS] * density // 4
    )
    left = int(homes[1]) - int(homes[1]) // 3
    assert world.home[1] == left + growth(left, 0, 2)


@both
def test_troops_that_do_not_suffice_are_spent_and_sometimes_win(ticks):
    won = 0
    for seed in range(40):
        world = world_of("0.", home=[TILE_COST[PLAINS] * SOLDIER], seed=seed)
        world.order(0, E, 50, FREE)
        play_until(ticks, world, lambda: world.away[0] == 0)
        won += int(world.land[0] == 2)
    assert 10 <= won <= 30  # they are half of what it takes


# ---- orders ----------------------------------------------------------------------------------------------------


@both
def test_an_attack_that_meets_nobody_comes_home(ticks):
    world = world_of("0.", home=[40 * SOLDIER])
    world.order(0, W, 50, ANYONE)
    ticks.advance(world, 1)
    assert world.away[0] == 0 and world.land[0] == 1 and world.home[0] == 40 * SOLDIER  # it was full before


def test_a_new_order_calls_the_old_attack_home():
    world = world_of("0.", home=[40 * SOLDIER])
    world.order(0, W, 50, FREE)
    assert (world.home[0], world.away[0]) == (20 * SOLDIER, 20 * SOLDIER)
    world.order(0, E, 10, ANYONE)
    assert (world.home[0], world.away[0]) == (36 * SOLDIER, 4 * SOLDIER)
    assert (world.heading[0], world.target[0]) == (E, ANYONE)


# ---- ends ------------------------------------------------------------------------------------------------------


@both
def test_who_has_no_land_left_is_out(ticks):
    world = world_of("01.", home=[100 * SOLDIER, 5 * SOLDIER])
    world.order(0, E, 90, 1)
    world.order(1, E, 50, FREE)
    world.target[1] = 0  # its attack has no front, so it comes home to die
    play_until(ticks, world, lambda: world.land[1] == 0)
    assert world.home[1] == world.away[1] == 0 and world.due[1] == NEVER and not (world.owner == 1).any()
    ticks.advance(world, 50)
    assert world.home[1] == 0 and world.rank(1) == 2


def test_eighty_percent_of_the_land_wins():
    world = world_of("00000001..", home=[0, 0])
    assert world.winner(world.all_land) is None
    world.land[0] = 8
    assert world.winner(world.all_land) == 0 and world.all_land == 10
    world.land[:] = (1, 9)
    assert world.winner(world.all_land) == 1


def test_equals_share_a_rank():
    world = world_of("0011", "2333", home=[0] * 4)
    assert [world.rank(player) for player in range(4)] == [2, 2, 4, 1]


# ---- chance ----------------------------------------------------------------------------------------------------


@both
def test_claims_on_one_tile_are_decided_fairly(ticks):
    wins = np.zeros(2, int)
    for seed in range(300):
        world = world_of("0.1", home=[50 * SOLDIER, 50 * SOLDIER], seed=seed)
        world.order(0, EVERYWHERE, 50, FREE)
        world.order(1, EVERYWHERE, 50, FREE)
        play_until(ticks, world, lambda: world.land.sum() == 3)
        wins += world.land - 1
    assert wins.sum() == 300 and abs(int(wins[0]) - 150) < 40


@both
def test_bots_order_every_forty_to_eighty_ticks(ticks):
    world = world_of("0......", ".......", "......1", home=[50 * SOLDIER, 50 * SOLDIER])
    world.due[:] = (0, 3)
    seen = {0: [], 1: []}
    for _ in range(1500):
        for player, ticks_of in seen.items():
            if not ticks_of or world.due[player] != ticks_of[-1]:
                ticks_of.append(int(world.due[player]))
        ticks.advance(world, 1)
    pauses = np.concatenate([np.diff(ticks_of) for ticks_of in seen.values()])
    assert pauses.min() >= 40 and pauses.max() <= 80 and len(set(pauses.tolist())) > 10


def test_bots_take_free_land_first_and_then_attack_if_they_are_strong_enough():
    land = np.array([100, 100, 100])
    full = int(capacity(100))
    contacts = np.zeros((3, 4), np.int64)
    contacts[0] = (5, 0, 3, 7)
    assert bot_order(0, 0, np.array([full, 0, 0]), land, contacts)[1] == FREE
    contacts[0, 0] = 0
    chosen = [bot_order(0, draw, np.array([full, 0, 0]), land, contacts)[1] for draw in range(10)]
    assert chosen == [1] * 3 + [2] * 7  # by the length of the border
    assert bot_order(0, 0, np.array([full // 10, 0, 0]), land, contacts)[0] == 0
