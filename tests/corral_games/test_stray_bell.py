"""The rules of Stray Bell, the Game Boy game that is part of Corral, played in PyBoy."""

import random

import pytest

from tests.corral_games.stray_bell_player import (
    CHEST,
    COIN,
    DEAD,
    DIALOGUE,
    DOORWAY,
    DOWN,
    FREE,
    HEART,
    KEY,
    LEFT,
    LOCKED,
    OPEN_CHEST,
    PLAY,
    RIGHT,
    SIGN,
    SOLID,
    TALL_GRASS,
    TITLE,
    UP,
    VILLAGER,
    WATER,
    WON,
    Game,
    finish_quest,
    talk,
)

pytest.importorskip("pyboy", reason="pip install 'corral[gameboy]'")

BURR, GOOSE, WISP, HEN = 1, 2, 3, 4


@pytest.fixture
def game():
    game = Game()
    yield game
    game.close()


def place_enemy(game, kind, x, y, hits=2):
    """Put one enemy into the room and remove all others."""
    game.memory[0xC030:0xC040] = [kind, x, y, hits] + [0] * 12


def test_the_title_screen_waits_for_start():
    game = Game(start=False)
    assert bytes(game.memory[0xC000:0xC002]) == b"SB"
    assert game.mode == TITLE
    for button in ("a", "b", "select", "up"):
        game.step(button)
    assert game.mode == TITLE
    assert game.rng != 0
    game.close()


def test_the_status_block_has_its_initial_values_after_start(game):
    assert (game.mode, game.room, game.facing) == (PLAY, 5, DOWN)
    assert (game.x, game.y) == (64, 80)
    assert (game.health, game.max_health) == (6, 6)
    for name in ("coins", "keys", "door_open", "chest_open", "talks", "in_dungeon", "hurts", "sword", "shield_time"):
        assert getattr(game, name) == 0, name
    assert (game.beaten, game.late, game.coins_taken) == (0, 0, 0)
    assert game.visited == {5}
    assert game.tiles[0] == [SOLID] * 4 + [FREE] * 2 + [SOLID] * 4
    assert len(game.find(VILLAGER)) == len(game.find(SIGN)) == 1
    before = game.frames
    game.wait(10)
    assert game.frames == before + 10


@pytest.mark.parametrize(
    ("button", "facing", "dx", "dy"),
    [("up", UP, 0, -8), ("down", DOWN, 0, 8), ("left", LEFT, -8, 0), ("right", RIGHT, 8, 0)],
)
def test_one_step_moves_the_hero_eight_pixels(game, button, facing, dx, dy):
    game.step(button)
    assert (game.facing, game.x, game.y) == (facing, 64 + dx, 80 + dy)


def test_a_button_takes_effect_in_the_next_frame(game):
    for frame in range(1, 6):
        game.hold("right", 1)
        assert game.x == 64 + 2 * frame
    before = game.ram
    game.wait(1)
    changed_offsets = [offset for offset, (old, new) in enumerate(zip(before, game.ram, strict=True)) if old != new]
    assert 0x18 in changed_offsets, "the counter of frames changes"


@pytest.mark.parametrize("kind", [SOLID, WATER, LOCKED, VILLAGER, SIGN, OPEN_CHEST])
@pytest.mark.parametrize("button", ["up", "down", "left", "right"])
def test_solid_tiles_cannot_be_entered(game, kind, button):
    game.x, game.y = 64, 64
    game.memory[0xC050:0xC0A0] = [kind if cell != 44 else FREE for cell in range(80)]
    game.hold(button, 20)
    assert 60 <= game.x <= 68
    assert 58 <= game.y <= 64
    assert game.mode == PLAY


@pytest.mark.parametrize("kind", [FREE, TALL_GRASS])
def test_free_tiles_can_be_entered(game, kind):
    game.x, game.y = 64, 64
    game.memory[0xC050:0xC0A0] = [kind] * 80
    game.hold("left", 16)
    assert game.x == 32


@pytest.mark.parametrize("offset", range(-8, 10, 2))
def test_the_hero_slides_into_a_gap_of_one_tile(game, offset):
    game.x, game.y = 64, 64 + offset
    game.memory[0xC050:0xC0A0] = [SOLID if cell % 10 == 6 and cell != 46 else FREE for cell in range(80)]
    game.hold("right", 40)
    assert game.x > 96


def test_walking_over_the_edge_of_a_room_leads_to_the_next_one(game):
    for button, room, x, y in (("left", 4, 144, 64), ("right", 5, 0, 64)):
        game.x, game.y = (0, 64) if button == "left" else (144, 64)
        game.step(button)
        game.wait(12)
        assert (game.room, game.y) == (room, y)
        assert abs(game.x - x) <= 8
    assert game.visited == {4, 5}
    for button, room, edge in (("up", 1, 0), ("down", 5, 112), ("down", 9, 112), ("up", 5, 0)):
        game.x, game.y = 80, edge
        game.step(button)
        game.wait(12)
        assert game.room == room
        assert abs(game.y - (112 - edge)) <= 8
    assert game.visited == {1, 4, 5, 9}


def test_every_room_can_be_reached_without_items(game):
    game.move_hero_to(5)
    neighbours = {room: set() for room in range(20)}
    for room in range(20):
        game.move_hero_to(room)
        tiles = game.tiles
        rooms_per_row = 4 if room < 16 else 2
        for offset, edge_tiles in (
            (-rooms_per_row, tiles[0]),
            (rooms_per_row, tiles[7]),
            (-1, [row[0] for row in tiles]),
            (1, [row[9] for row in tiles]),
        ):
            open_tiles = sum(code in (FREE, TALL_GRASS, COIN, HEART) for code in edge_tiles)
            assert open_tiles == 0 or open_tiles >= 2, "passages are two tiles wide"
            if open_tiles:
                neighbours[room].add(room + offset)
    for start, expected in ((5, set(range(16))), (18, set(range(16, 20)))):
        reached, queue = {start}, [start]
        while queue:
            for neighbour in neighbours[queue.pop()] - reached:
                reached.add(neighbour)
                queue.append(neighbour)
        assert reached == expected


def test_there_are_sixteen_coins_and_each_sets_its_bit_when_taken(game):
    for room in range(20):
        game.move_hero_to(room)
        for row, column in game.find(COIN):
            before = game.coins
            game.x, game.y = 16 * column, 16 * row
            game.step("left" if column > 5 else "right")
            game.wait(2)
            assert game.coins == game.coins_taken == before + 1
            assert game.tiles[row][column] == FREE
    assert game.coins == 16
    game.move_hero_to(4)
    assert not game.find(COIN), "a coin that was taken does not come back"


def test_a_heart_is_taken_only_below_full_health(game):
    game.move_hero_to(0)
    (row, column) = game.find(HEART)[0]
    game.x, game.y = 16 * column, 16 * row
    game.step("left")
    assert game.tiles[row][column] == HEART
    game.health = 3
    game.step("right")
    assert (game.health, game.tiles[row][column]) == (5, FREE)
    game.health = 5
    game.move_hero_to(3)
    (row, column) = game.find(HEART)[0]
    game.x, game.y = 16 * column, 16 * row
    game.step("right")
    assert game.health == 6, "health does not exceed its maximum"


def test_the_key_opens_the_door_to_the_cave(game):
    game.move_hero_to(10, 112, 44)
    assert game.find(LOCKED) == [(2, 7)]
    game.hold("up", 16)
    assert (game.door_open, game.room) == (0, 10)
    game.move_hero_to(3)
    (row, column) = game.find(KEY)[0]
    game.x, game.y = 16 * column, 16 * row
    game.step("right")
    assert game.keys == 1
    game.move_hero_to(10, 112, 44)
    game.step("up")
    assert (game.keys, game.door_open) == (0, 1)
    assert game.find(DOORWAY) == [(2, 7)]
    game.hold("up", 16)
    game.wait(4)
    assert (game.room, game.in_dungeon) == (18, 1)
    game.hold("down", 16)
    game.wait(4)
    assert (game.room, game.in_dungeon) == (10, 0)
    game.move_hero_to(3)
    assert not game.find(KEY)


@pytest.mark.parametrize("button", ["a", "down"])
def test_opening_the_chest_gives_the_bell(game, button):
    game.move_hero_to(19, 64, 64)
    (row, column) = game.find(CHEST)[0]
    game.facing = DOWN
    game.step(button)
    game.step(None)
    assert (game.chest_open, game.mode) == (1, DIALOGUE)
    assert game.tiles[row][column] == OPEN_CHEST
    game.wait(8)
    talk(game)
    assert game.mode == PLAY
    game.move_hero_to(18)
    game.move_hero_to(19)
    assert not game.find(CHEST)


def move_hero_to_villager(game, dx=0):
    game.move_hero_to(5)
    (row, column) = game.find(VILLAGER)[0]
    game.x, game.y = 16 * column + dx, 16 * row + 10
    game.step("up")


@pytest.mark.parametrize("dx", [-8, -4, 0, 6])
def test_the_dialogue_of_the_villager_has_two_pages_and_stops_the_game(game, dx):
    move_hero_to_villager(game, dx)
    game.step("a")
    assert (game.mode, game.talks) == (DIALOGUE, 0)
    game.wait(8)
    game.step("a")
    assert (game.mode, game.talks) == (DIALOGUE, 0)
    before = (game.x, game.y, game.frames)
    game.hold("left", 20)
    assert (game.x, game.y, game.frames) == before, "the game stands still during a dialogue"
    game.step("a")
    assert (game.mode, game.talks) == (PLAY, 1)
    move_hero_to_villager(game)
    game.step("a")
    game.wait(8)
    assert game.mode == DIALOGUE
    talk(game)
    assert (game.mode, game.talks) == (PLAY, 1), "a second talk does not count"


def test_bringing_the_bell_wins_and_start_restarts_the_game(game):
    game.chest_open = 1
    move_hero_to_villager(game)
    game.step("a")
    game.wait(8)
    talk(game)
    game.wait(8)
    assert (game.mode, game.talks) == (WON, 2)
    game.step("a")
    assert game.mode == WON
    game.hold("start", 2)
    game.wait(8)
    assert (game.mode, game.room, game.talks, game.chest_open) == (PLAY, 5, 0, 0)


def test_reading_a_sign_opens_a_dialogue(game):
    (row, column) = game.find(SIGN)[0]
    game.x, game.y = 16 * column, 16 * row + 10
    game.step("up")
    game.step("a")
    assert game.mode == DIALOGUE
    game.wait(8)
    talk(game)
    assert (game.mode, game.talks) == (PLAY, 0)


@pytest.mark.parametrize(("room", "kind", "damage"), [(1, BURR, 1), (7, GOOSE, 1), (16, WISP, 2)])
def test_enemies_hurt_and_push_the_hero_who_is_then_invulnerable_for_a_while(game, room, kind, damage):
    game.move_hero_to(room, remove_enemies=False)
    place_enemy(game, kind, 64, 64)
    game.x, game.y = 72, 64
    game.wait(3)
    assert (game.health, game.hurts) == (6 - damage, 1)
    assert game.shield_time > 30
    game.wait(4)
    assert game.x > 80, "the hero is pushed away"
    for _ in range(8):
        _, x, y, _ = game.enemies[0]
        game.x, game.y = x, y
        game.wait(1)
    assert game.hurts == 1, "the hero is invulnerable for a while"
    game.shield_time = 0
    game.wait(3)
    assert game.hurts == 2


def test_the_hen_does_no_harm_and_cannot_be_beaten(game):
    game.move_hero_to(1, 64, 64, remove_enemies=False)
    game.facing = RIGHT
    place_enemy(game, HEN, 64, 64)
    game.wait(8)
    assert (game.health, game.hurts) == (6, 0)
    for _ in range(4):
        place_enemy(game, HEN, 80, 64)
        game.step("b")
        game.wait(16)
    assert game.enemies[0][0] == HEN and game.beaten == 0


def test_without_health_the_game_is_over_and_start_restarts_it(game):
    game.move_hero_to(1, remove_enemies=False)
    game.health = 1
    place_enemy(game, BURR, 64, 64)
    game.wait(6)
    assert (game.mode, game.health, game.hurts) == (DEAD, 0, 1)
    game.step("a")
    assert game.mode == DEAD
    game.hold("start", 2)
    game.wait(8)
    assert (game.mode, game.room, game.health, game.hurts) == (PLAY, 5, 6, 0)
    assert game.visited == {5}


def test_the_sword_beats_an_enemy_with_two_hits(game):
    game.move_hero_to(7, 64, 64, remove_enemies=False)
    game.facing = RIGHT
    place_enemy(game, GOOSE, 80, 64)
    game.step("b")
    assert 0 < game.sword <= 12
    assert game.enemies[0][3] == 1
    game.wait(12)
    assert game.sword == 0
    assert game.enemies[0][1] > 80, "the enemy is pushed back"
    game.wait(20)
    _, x, y, _ = game.enemies[0]
    game.x, game.y, game.facing, game.shield_time = x - 14, y, RIGHT, 60
    game.step("b")
    assert (game.enemies[0][0], game.beaten) == (0, 1)
    game.move_hero_to(6)
    game.move_hero_to(7, remove_enemies=False)
    assert game.enemies[0][0] == GOOSE, "a beaten enemy is back when the room is entered again"


def test_the_sword_cuts_tall_grass(game):
    game.move_hero_to(6, 48, 64)
    assert game.tiles[4][4] == TALL_GRASS
    game.facing = RIGHT
    game.step("b")
    assert game.tiles[4][4] == FREE


def test_select_pauses_the_game_while_held_and_start_does_nothing(game):
    game.step("start")
    assert game.mode == PLAY
    game.boy.button_press("select")
    game.wait(8)
    before = (game.frames, game.x)
    game.hold("left", 8)
    assert (game.frames, game.x) == before
    game.boy.button_release("select")
    game.hold("left", 8)
    assert game.frames > before[0]
    assert game.x < before[1]


def play_fixed_buttons(seed):
    """Play a fixed sequence of buttons and return all work RAM."""
    game = Game(seed)
    for button in ["up"] * 2 + ["left"] * 14 + ["b", "down", "a", "right", "up"] * 20:
        game.step(button)
    assert 4 in game.visited
    ram = game.ram
    game.close()
    return ram


def test_the_seed_determines_the_game():
    ram = play_fixed_buttons(12345)
    assert play_fixed_buttons(12345) == ram
    assert play_fixed_buttons(54321) != ram


def test_the_game_never_misses_a_frame(game):
    for room in range(20):
        game.move_hero_to(room, 64, 64, remove_enemies=False)
        for button in ("up", "b", "right", "a", "down", "left"):
            game.health = 6
            game.step(button)
    assert game.late == 0


@pytest.mark.parametrize("seed", [1, 2021])
def test_a_scripted_player_finishes_the_quest(seed):
    game = Game(seed)
    steps_by_goal = finish_quest(game)
    print(f"seed {seed}: {steps_by_goal}")
    assert (game.mode, game.talks, game.chest_open, game.late) == (WON, 2, 1, 0)
    assert steps_by_goal["chest"] < 350
    assert steps_by_goal["won"] < 500
    assert {5, 6, 7, 3, 10, 18, 16, 17, 19} <= game.visited
    game.close()


def test_the_status_block_has_the_tiles_next_to_the_hero(game):
    rng = random.Random(2)
    outside = 13
    codes_seen = set()
    for _ in range(300):
        game.step(rng.choice(["up", "down", "left", "right"]))
        game.health = 6
        row, column = (game.y + 10) // 16, (game.x + 8) // 16
        codes = {(r, c): game.memory[0xC050 + 10 * r + c] for r in range(8) for c in range(10)}
        below, above, left, right = game.memory[0xC040:0xC044]
        assert (below, above) == (codes.get((row + 1, column), outside), codes.get((row - 1, column), outside))
        assert (left, right) == (codes.get((row, column - 1), outside), codes.get((row, column + 1), outside))
        codes_seen |= {below, above, left, right}
    assert {FREE, SOLID, outside} <= codes_seen


@pytest.mark.parametrize("enemy_y", [86, 90])
def test_a_hero_pushed_into_a_doorway_goes_through_it(game, enemy_y):
    game.move_hero_to(18, 64, 96)
    game.x, game.y = 64, 96
    place_enemy(game, WISP, 64, enemy_y)
    game.wait(8)
    game.hold("down", 40)
    assert game.room < 16


def test_select_shows_the_map_and_the_screen_is_never_blank(game):
    before = game.render()
    game.boy.button_press("select")
    screens = [game.render() for _ in range(30)]
    assert all(len(set(screen)) > 1 for screen in screens)
    assert screens[5] == before != screens[-1]
    frames = game.frames
    game.boy.button_release("select")
    game.wait(4)
    assert game.render()[:160] == before[:160] and game.frames > frames
