"""Whole games of Territory: reproducible, equal with NumPy and Numba, consistent in every state, fair to all players."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corral_games.territory.rules import ANYONE, BLOCKED, FREE, WATER
from corral_games.territory.state import World, default_ticks, new_world
from corral_games.territory.terrain import generate_map
from tests.corral_games.territory_worlds import TICK_MODULES, border_tiles

SEEDS = st.integers(0, 2**62 - 1)
SHARES = (0, 5, 10, 25, 50, 100)
DEFAULT_TICKS = default_ticks()


def give_random_order(world, rng, player=0):
    share = SHARES[rng.integers(len(SHARES))]
    if share and world.land[player]:
        target = ANYONE if rng.random() < 0.7 else int(rng.integers(-1, world.players))
        world.order(player, int(rng.integers(9)), share, target)


def digest_of_game(seed, size, players, steps, ticks=DEFAULT_TICKS):
    """Return a hash of all states of a game in which player 0 gives random orders."""
    world, rng, digest = new_world(seed, size, players), np.random.default_rng(seed), hashlib.sha256()
    for _ in range(steps):
        give_random_order(world, rng)
        ticks.advance(world, 10)
        digest.update(world.to_bytes())
    return digest.hexdigest()[:16]


def check_invariants(world):
    """Assert what must be true in every state of a game."""
    players = world.players
    tile_counts = [int((world.owner == player).sum()) for player in range(players)]
    assert world.land.tolist() == tile_counts
    assert sum(tile_counts) + int((world.owner == FREE).sum()) == world.all_land
    assert ((world.owner == BLOCKED) == (world.terrain == WATER)).all()
    assert world.owner.min() >= BLOCKED and world.owner.max() < players
    assert (world.home >= 0).all() and (world.away >= 0).all()
    eliminated = world.land == 0
    assert not world.home[eliminated].any() and not world.away[eliminated].any()
    row, column = np.divmod(np.arange(len(world.owner)), world.width)
    for player in range(players):
        own_tiles = world.owner == player
        assert (world.rows[player], world.columns[player]) == (row[own_tiles].sum(), column[own_tiles].sum())
    ranks = [world.rank(player) for player in range(players)]
    assert ranks == [1 + sum(other > count for other in tile_counts) for count in tile_counts]


# ---- states ----------------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(SEEDS, st.integers(32, 48), st.integers(2, 51), st.sampled_from(TICK_MODULES))
def test_every_state_satisfies_the_invariants(seed, size, players, ticks):
    world, rng = new_world(seed, size, players), np.random.default_rng(seed)
    check_invariants(world)
    for _ in range(12):
        for player in range(0, players, 3):
            give_random_order(world, rng, player)
        ticks.advance(world, int(rng.integers(1, 25)))
        check_invariants(world)
        restored = World.from_bytes(world.to_bytes(), size)
        assert restored.to_bytes() == world.to_bytes()


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(2, 30))
def test_measure_border_equals_a_reference_implementation(seed, players):
    world = new_world(seed, 32, players)
    for _ in range(5):
        DEFAULT_TICKS.advance(world, 100)
        for player in np.flatnonzero(world.land)[:4].tolist():
            expected = border_tiles(world, player)
            for ticks in TICK_MODULES:
                sectors, contacts = ticks.measure_border(world, player)
                assert {s for s in range(8) if sectors[s]} == set(expected.values())
                owners = {int(world.owner[tile]) for tile in expected}
                assert {p - 1 for p in range(1 + players) if contacts[p]} == owners
                assert sectors.sum() == contacts.sum() >= len(expected)


# ---- maps ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "players"), [(32, 2), (32, 51), (47, 20), (64, 11), (128, 51)])
def test_all_land_is_connected_and_contains_every_start(size, players):
    for seed in range(6):
        terrain, starts, radius = generate_map(size, players, np.random.default_rng(seed))
        assert len({tuple(start) for start in starts.tolist()}) == players
        reached, queue = set(), [tuple(starts[0].tolist())]
        while queue:
            row, column = queue.pop()
            if (row, column) in reached or terrain[row, column] == WATER:
                continue
            reached.add((row, column))
            queue += [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
        assert len(reached) == np.count_nonzero(terrain) > 0.5 * size * size
        assert {tuple(start) for start in starts.tolist()} <= reached
        assert not terrain[[0, -1]].any() and not terrain[:, [0, -1]].any()
        land = new_world(seed, size, players).land
        assert set(land.tolist()) == {2 * radius * (radius + 1) + 1}


def test_most_maps_have_every_kind_of_terrain():
    terrains_by_map = [set(generate_map(64, 11, np.random.default_rng(seed))[0].ravel().tolist()) for seed in range(20)]
    assert sum(terrains == {0, 1, 2, 3} for terrains in terrains_by_map) >= 18


# ---- reproducibility -------------------------------------------------------------------------------------------


def test_a_seed_reproduces_the_recorded_game():
    assert digest_of_game(5, 32, 8, 150) == digest_of_game(5, 32, 8, 150) == RECORDED_DIGEST
    assert digest_of_game(6, 32, 8, 150) != RECORDED_DIGEST


@pytest.mark.skipif(len(TICK_MODULES) < 2, reason="numba is not installed")
@pytest.mark.parametrize(("size", "players", "steps"), [(32, 2, 60), (32, 51, 60), (40, 8, 200), (64, 11, 60)])
def test_numba_and_numpy_play_the_same_game(size, players, steps):
    worlds = [new_world(3, size, players) for _ in TICK_MODULES]
    rngs = [np.random.default_rng(0) for _ in TICK_MODULES]
    for _ in range(steps):
        for world, rng, ticks in zip(worlds, rngs, TICK_MODULES, strict=True):
            give_random_order(world, rng)
            ticks.advance(world, 10)
        assert worlds[0].to_bytes() == worlds[1].to_bytes()
    plane_values = np.random.default_rng(1).integers(0, 256, (4 + players, 5), np.uint8)
    frames = [np.zeros((5, size, size), np.uint8) for _ in TICK_MODULES]
    for world, ticks, frame in zip(worlds, TICK_MODULES, frames, strict=True):
        ticks.write_planes(world, plane_values, frame)
    assert np.array_equal(*frames)
    for player in range(players):
        numpy_border, numba_border = (
            ticks.measure_border(world, player) for world, ticks in zip(worlds, TICK_MODULES, strict=True)
        )
        assert all(np.array_equal(a, b) for a, b in zip(numpy_border, numba_border, strict=True))


@pytest.mark.skipif(len(TICK_MODULES) < 2, reason="numba is not installed")
def test_numba_compiles_in_memory_without_a_cache_directory(tmp_path):
    code = (
        "import numba.core.caching as c\n"
        "c.CacheImpl._locator_classes = []\n"
        "from corral_games.territory import ticks_numba as t\n"
        "from corral_games.territory.state import new_world\n"
        "w = new_world(1, 32, 3); s, n = t.measure_border(w, 0); print(s.sum() == n.sum() > 0)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=600)
    assert result.stdout.strip() == "True", result.stderr


# ---- fairness --------------------------------------------------------------------------------------------------


def count_winners(games, size=32, players=8, ticks=900):
    """Play games among bots; return how often each player number, and each direction of the start, had the most land."""
    wins_by_player, wins_by_direction = np.zeros(players), np.zeros(8)
    for seed in range(games):
        world = new_world(seed, size, players)
        world.due[0] = 1 + seed % 80  # A bot also plays for the agent.
        starts = np.stack([world.columns / world.land, world.rows / world.land], axis=1) - (size + 1) / 2
        directions = np.floor(np.degrees(np.arctan2(starts[:, 0], -starts[:, 1])) / 45).astype(int) % 8
        DEFAULT_TICKS.advance(world, ticks)
        winners = np.flatnonzero(world.land == world.land.max())
        np.add.at(wins_by_player, winners, 1 / len(winners))
        np.add.at(wins_by_direction, directions[winners], 1 / len(winners))
    return wins_by_player, wins_by_direction


def chi_square(counts):
    expected = counts.sum() / len(counts)
    return float(((counts - expected) ** 2 / expected).sum())


def test_no_player_number_and_no_start_direction_wins_more_often():
    for counts in count_winners(240):
        assert chi_square(counts) < 24.3, counts  # 7 degrees of freedom: p = 0.001.


@pytest.mark.deep
def test_no_player_number_and_no_start_direction_wins_more_often_in_many_games():
    for counts in count_winners(2000, ticks=2000):
        assert chi_square(counts) < 24.3, counts


RECORDED_DIGEST = "34392e2eb01a5bd2"
