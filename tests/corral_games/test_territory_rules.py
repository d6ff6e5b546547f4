"""The rules of Territory, one by one, for the NumPy and the Numba implementation."""

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
from tests.corral_games.territory_worlds import TICK_MODULES, TICK_NAMES, border_tiles, world_of

for_each_implementation = pytest.mark.parametrize("ticks", TICK_MODULES, ids=TICK_NAMES)
EAST, WEST = 2, 6


def advance_until(ticks, world, condition, max_ticks=400):
    """Advance tick by tick until ``condition()`` holds; return home troops, attacking troops and land before that tick."""
    for _ in range(max_ticks):
        before = world.home.copy(), world.away.copy(), world.land.copy()
        ticks.advance(world, 1)
        if condition():
            return before
    raise AssertionError(f"the condition did not hold within {max_ticks} ticks")


# ---- growth ----------------------------------------------------------------------------------------------------


def test_troops_grow_fastest_at_half_capacity_and_not_at_full_capacity():
    cap = int(capacity(100))
    rates = [int(growth(cap * percent // 100, 0, 100)) for percent in range(0, 121, 5)]
    assert rates[0] > 0 and abs(rates.index(max(rates)) - 10) <= 1
    assert rates[20:] == [0] * 5 and min(rates) >= 0
    assert growth(cap // 4, cap // 4, 100) < growth(cap // 2, 0, 100)  # Attacking troops do not grow.
    assert growth(cap // 4, cap, 100) == 0  # They do count towards the capacity.


# ---- sectors ---------------------------------------------------------------------------------------------------


def test_sectors_are_the_eight_compass_directions():
    sectors = {}
    for down in range(-20, 21):
        for right in range(-20, 21):
            if down or right:
                angle = np.degrees(np.arctan2(right, -down))
                sectors[down, right] = (int(sector(down, right)), round(angle / 45) % 8)
    assert all(actual == expected for actual, expected in sectors.values())
    offsets = np.array(list(sectors))
    assert sector(offsets[:, 0], offsets[:, 1]).tolist() == [actual for actual, _ in sectors.values()]


@for_each_implementation
@pytest.mark.parametrize("heading", range(9))
def test_an_attack_takes_only_tiles_in_its_sector(ticks, heading):
    rows = ["." * 15] * 15
    rows[6:9] = ["." * 6 + "000" + "." * 6] * 3
    world = world_of(*rows, home=[400 * SOLDIER])
    world.order(0, heading, 100, ANYONE)
    for _ in range(60):
        allowed = {tile for tile, tile_sector in border_tiles(world, 0).items() if heading in (tile_sector, EVERYWHERE)}
        before = set(np.flatnonzero(world.owner == 0).tolist())
        ticks.advance(world, 1)
        assert set(np.flatnonzero(world.owner == 0).tolist()) - before <= allowed
    assert world.land[0] > 14


# ---- targets and costs -----------------------------------------------------------------------------------------


@for_each_implementation
@pytest.mark.parametrize(("target", "taken"), [(FREE, {FREE}), (1, {1}), (2, {2}), (ANYONE, {FREE, 1, 2})])
def test_an_attack_takes_only_from_its_target(ticks, target, taken):
    world = world_of("1110222", "1110222", "1110222", "...0...", "...0...", home=[500 * SOLDIER, 0, 0])
    before = world.owner.copy()
    world.order(0, EVERYWHERE, 100, target)
    ticks.advance(world, 30)
    changed = before != world.owner
    assert set(before[changed].tolist()) == taken and set(world.owner[changed].tolist()) == {0}


@for_each_implementation
@pytest.mark.parametrize(("character", "terrain"), [(".", PLAINS), ("^", HIGHLAND), ("A", MOUNTAIN)])
def test_taking_free_land_costs_the_tile_cost_of_its_terrain(ticks, character, terrain):
    world = world_of("0" + character, home=[100 * SOLDIER])
    world.order(0, EAST, 50, FREE)
    advance_until(ticks, world, lambda: world.land[0] == 2)
    assert world.away[0] == 50 * SOLDIER - TILE_COST[terrain] * SOLDIER
    assert TILE_COST[PLAINS] < TILE_COST[HIGHLAND] < TILE_COST[MOUNTAIN]


@for_each_implementation
@pytest.mark.parametrize("defenders_at_home", [0, 7 * SOLDIER, 12 * SOLDIER])
def test_taking_an_owned_tile_also_costs_troops_for_its_defenders(ticks, defenders_at_home):
    world = world_of("0111", home=[200 * SOLDIER, defenders_at_home])
    world.order(0, EAST, 50, 1)
    home_before, away_before, _ = advance_until(ticks, world, lambda: world.land[0] == 2)
    density = int(home_before[1]) // 3
    assert (
        world.away[0]
        == away_before[0] - TILE_COST[PLAINS] * OWNED_COST_FACTOR * SOLDIER - DEFENDER_COST[PLAINS] * density // 4
    )
    remaining = int(home_before[1]) - int(home_before[1]) // 3
    assert world.home[1] == remaining + growth(remaining, 0, 2)


@for_each_implementation
def test_an_attack_below_the_tile_cost_is_spent_and_takes_the_tile_by_chance(ticks):
    won = 0
    for seed in range(40):
        world = world_of("0.", home=[TILE_COST[PLAINS] * SOLDIER], seed=seed)
        world.order(0, EAST, 50, FREE)
        advance_until(ticks, world, lambda: world.away[0] == 0)
        won += int(world.land[0] == 2)
    assert 10 <= won <= 30  # The attack has half of the troops that the tile costs.


# ---- orders ----------------------------------------------------------------------------------------------------


@for_each_implementation
def test_an_attack_without_a_target_returns_home(ticks):
    world = world_of("0.", home=[40 * SOLDIER])
    world.order(0, WEST, 50, ANYONE)
    ticks.advance(world, 1)
    # The troops were at capacity before, so that they did not grow.
    assert world.away[0] == 0 and world.land[0] == 1 and world.home[0] == 40 * SOLDIER


def test_a_new_order_returns_the_troops_of_the_old_attack():
    world = world_of("0.", home=[40 * SOLDIER])
    world.order(0, WEST, 50, FREE)
    assert (world.home[0], world.away[0]) == (20 * SOLDIER, 20 * SOLDIER)
    world.order(0, EAST, 10, ANYONE)
    assert (world.home[0], world.away[0]) == (36 * SOLDIER, 4 * SOLDIER)
    assert (world.heading[0], world.target[0]) == (EAST, ANYONE)


# ---- ends of games ---------------------------------------------------------------------------------------------


@for_each_implementation
def test_a_player_without_land_is_eliminated(ticks):
    world = world_of("01.", home=[100 * SOLDIER, 5 * SOLDIER])
    world.order(0, EAST, 90, 1)
    world.order(1, EAST, 50, FREE)
    # Player 0 is not east of player 1, so that this attack returns home and its troops are lost with the land.
    world.target[1] = 0
    advance_until(ticks, world, lambda: world.land[1] == 0)
    assert world.home[1] == world.away[1] == 0 and world.due[1] == NEVER and not (world.owner == 1).any()
    ticks.advance(world, 50)
    assert world.home[1] == 0 and world.rank(1) == 2


def test_owning_80_percent_of_the_land_wins():
    world = world_of("00000001..", home=[0, 0])
    assert world.winner(world.all_land) is None
    world.land[0] = 8
    assert world.winner(world.all_land) == 0 and world.all_land == 10
    world.land[:] = (1, 9)
    assert world.winner(world.all_land) == 1


def test_players_with_equal_land_share_a_rank():
    world = world_of("0011", "2333", home=[0] * 4)
    assert [world.rank(player) for player in range(4)] == [2, 2, 4, 1]


# ---- randomness and bots ---------------------------------------------------------------------------------------


@for_each_implementation
def test_two_attacks_on_one_tile_win_equally_often(ticks):
    wins = np.zeros(2, int)
    for seed in range(300):
        world = world_of("0.1", home=[50 * SOLDIER, 50 * SOLDIER], seed=seed)
        world.order(0, EVERYWHERE, 50, FREE)
        world.order(1, EVERYWHERE, 50, FREE)
        advance_until(ticks, world, lambda: world.land.sum() == 3)
        wins += world.land - 1
    assert wins.sum() == 300 and abs(int(wins[0]) - 150) < 40


@for_each_implementation
def test_bots_give_an_order_every_40_to_80_ticks(ticks):
    world = world_of("0......", ".......", "......1", home=[50 * SOLDIER, 50 * SOLDIER])
    world.due[:] = (0, 3)
    due_ticks_by_player = {0: [], 1: []}
    for _ in range(1500):
        for player, due_ticks in due_ticks_by_player.items():
            if not due_ticks or world.due[player] != due_ticks[-1]:
                due_ticks.append(int(world.due[player]))
        ticks.advance(world, 1)
    pauses = np.concatenate([np.diff(due_ticks) for due_ticks in due_ticks_by_player.values()])
    assert pauses.min() >= 40 and pauses.max() <= 80 and len(set(pauses.tolist())) > 10


def test_bots_take_free_land_first_and_then_attack_if_they_are_strong_enough():
    land = np.array([100, 100, 100])
    full_troops = int(capacity(100))
    contacts = np.zeros((3, 4), np.int64)
    contacts[0] = (5, 0, 3, 7)
    assert bot_order(0, 0, np.array([full_troops, 0, 0]), land, contacts)[1] == FREE
    contacts[0, 0] = 0
    targets = [bot_order(0, draw, np.array([full_troops, 0, 0]), land, contacts)[1] for draw in range(10)]
    assert targets == [1] * 3 + [2] * 7  # Each neighbour is chosen in proportion to the length of the border with it.
    assert bot_order(0, 0, np.array([full_troops // 10, 0, 0]), land, contacts)[0] == 0
