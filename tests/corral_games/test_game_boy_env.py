"""The Game Boy env: what it shows, pays and refuses, and that it can go on from anywhere."""

import os
import signal
import subprocess
import sys
import warnings
import zlib

import numpy as np
import psutil
import pytest
from gymnasium.error import ClosedEnvironmentError, ResetNeeded
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st

import corral
from corral.core.errors import UsageError
from corral.core.frame_stacks import find_frame_stacks
from corral_games.game_boy.emulator import Emulator, read_rom
from corral_games.game_boy.env import _CHECKSUM_BYTES, _MAGIC, ACTIONS, GameBoy, _checksum
from tests.corral_games.game_boy_roms import MAP, put, tiny_rom

A, RIGHT, LEFT = ACTIONS.index("a"), ACTIONS.index("right"), ACTIONS.index("left")
ROOM, FLAG, COINS, HEALTH, OVER, AWAKE = range(0xC100, 0xC106)


@pytest.fixture
def files(tmp_path):
    return put(tmp_path)


@pytest.fixture
def tiny(files):
    def make(**kwargs):
        made.append(GameBoy(**{**files, **kwargs}))
        return made[-1]

    made = []
    yield make
    for env in made:
        env.close()


def poke(env, **bytes_):
    for name, number in bytes_.items():
        env._emulator.memory[globals()[name.upper()]] = number


def play(env, steps, seed=0):
    """What chosen actions lead to: all memory, the screen and what was returned."""
    rng, trace = np.random.default_rng(seed), []
    for _ in range(steps):
        observation, reward, *_ = env.step(int(rng.integers(len(ACTIONS))))
        seen = observation.values() if isinstance(observation, dict) else [observation]
        trace.append((b"".join(leaf.tobytes() for leaf in seen), reward))
    return trace, machine(env)


def machine(env):
    memory = env._emulator.memory
    return bytes(memory[0x8000:0xA000]), bytes(memory[0xC000:0xE000]), bytes(memory[0xFF80:0x10000])


# ---- an env ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("observation", ["ram", "pixels", "both"])
def test_gymnasium_finds_nothing_wrong(tiny, observation):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it wonders at a stack of frames
        check_env(tiny(observation=observation), skip_render_check=True)


def test_spaces_by_observation(tiny):
    ram, pixels, both = (tiny(observation=kind) for kind in ("ram", "pixels", "both"))
    assert ram.observation_space.shape == (4 + 1 + 1 + 1 + 3,) and find_frame_stacks(ram) == {}
    assert pixels.observation_space.shape == (4, 72, 80) and find_frame_stacks(pixels) == {"": 4}
    assert set(both.observation_space) == {"ram", "pixels"} and find_frame_stacks(both) == {"pixels": 4}
    for env in (ram, pixels, both):
        assert env.observation_space.contains(env.reset(seed=1)[0])
        assert env.observation_space.contains(env.step(3)[0])


def test_a_direction_that_is_repeated_stays_pressed_and_goes_when_another_comes(tiny):
    env = tiny()
    env.reset(seed=0)
    assert [env.step(RIGHT)[4]["directions"] for _ in range(3)] == [1, 1, 1]
    assert env.step(LEFT)[4]["directions"] == 2
    assert env.step(A)[4]["directions"] == 0
    env.step(RIGHT)
    assert env.step(0)[4]["directions"] == 0


def test_a_button_that_is_repeated_is_pressed_anew(tiny):
    env = tiny()
    begin = env.reset(seed=0)[1]["pressed"]
    assert [env.step(A)[4]["pressed"] - begin for _ in range(3)] == [1, 2, 3]


def test_steps_of_one_frame_are_as_a_person_presses(tiny):
    env = tiny(frames_per_step=1)
    begin = env.reset(seed=0)[1]["pressed"]
    pressed = [env.step(action)[4]["pressed"] - begin for action in (A, A, A, 0, 0, A, A, 0)]
    assert pressed[-1] == 2 and env.metadata["render_fps"] == 60


def test_a_step_is_four_frames_or_as_many_as_are_asked_for(tiny):
    for frames in (4, 7):
        env = tiny(frames_per_step=frames)
        env.reset(seed=0)
        before = env._emulator.memory[0xC018]
        for action in (0, RIGHT, A, A):
            env.step(action)
        assert env._emulator.memory[0xC018] - before == 4 * frames


def test_pixels_are_the_last_four_frames_oldest_first(tiny):
    env = tiny(observation="pixels")
    first = env.reset(seed=3)[0]
    assert all(np.array_equal(first[-1], frame) for frame in first)
    assert len(np.unique(first)) > 1
    newest = [first[-1]]
    for _ in range(6):
        stack = env.step(0)[0]
        newest.append(stack[-1])
        assert np.array_equal(stack[:-1], [newest[max(0, i)] for i in range(len(newest) - 4, len(newest) - 1)])
        assert np.array_equal(stack[-1], env._emulator.screen[::2, ::2, 0])


def test_render_shows_the_screen_whatever_is_observed(tiny):
    seen = {}
    for observation in ("ram", "pixels"):
        env = tiny(observation=observation, render_mode="rgb_array")
        env.reset(seed=3)
        for _ in range(5):
            env.step(RIGHT)
        seen[observation] = env.render()
    assert seen["ram"].shape == (144, 160, 3) and seen["ram"].dtype == np.uint8
    assert np.array_equal(seen["ram"], seen["pixels"])
    with pytest.warns(UserWarning, match="needs a render mode"):
        assert tiny().render() is None


def test_keys_to_play_with(tiny):
    keys = tiny().get_keys_to_action()
    assert {*keys.values()} == {*range(1, 9)} and keys[(ord("x"),)] == A
    assert all(keys[arrow, ord("x")] == A for (arrow, *more), action in keys.items() if not more and action < A)


def test_closing_twice_is_fine_and_nothing_goes_on_afterwards(files):
    env = GameBoy(**files)
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        env.step(0)
    with pytest.raises(ClosedEnvironmentError):
        env.reset()


# ---- Stray Bell ------------------------------------------------------------------------------------------------


def test_stray_bell_begins_in_play_and_pays_for_new_rooms():
    env = GameBoy(rewards={"new_tile": 0})
    _, info = env.reset(seed=0)
    memory = env._emulator.memory
    assert (bytes(memory[0xC000:0xC004]), info) == (b"SB\1\5", {"rooms": 1, "coins": 0, "health": 6})
    rewards = [env.step(ACTIONS.index("up"))[1] for _ in range(30)]
    assert sum(rewards) == 1.0 and max(rewards) == 1.0 and memory[0xC003] == 1
    env.close()


def test_stray_bell_is_the_same_for_the_same_seed():
    ends = []
    for used in (False, True):
        env = GameBoy(episode_length=5000, rewards={"death": 0})
        env._ends.clear()
        if used:
            env.reset(seed=2)
            play(env, 50, seed=1)
        env.reset(seed=4)
        rng = np.random.default_rng(0)
        for _ in range(120):
            action = int(rng.integers(len(ACTIONS)))
            for _ in range(8):
                env.step(action)
        ends.append((machine(env), env._reward_tracker.earned))
        env.close()
    assert ends[0] == ends[1]


# ---- rewards and ends ------------------------------------------------------------------------------------------


def test_each_term_pays_as_the_map_says(tiny):
    env = tiny()
    env.reset(seed=0)
    assert env.step(0)[1] == 0
    poke(env, room=2)
    assert env.step(0)[1] == 1.0
    poke(env, room=0)
    assert env.step(0)[1] == 0  # it began there
    poke(env, flag=8, coins=3)
    assert env.step(0)[1] == 2.0 + 1.5
    poke(env, flag=0, coins=1, health=6)
    assert env.step(0)[1] == 0
    poke(env, flag=8, coins=4, health=4)
    assert env.step(0)[1] == 0.5 - 0.5  # one more than there ever were; two units lost


def test_a_term_waits_for_what_it_names_in_when(tiny):
    env = tiny(rewards={"new_room": 0})
    env.reset(seed=0)
    poke(env, room=2)
    assert env.step(0)[1] == 0
    poke(env, awake=1)
    assert env.step(0)[1] == 4.0
    assert env.step(0)[1] == 0


def test_weights_can_be_given(tiny):
    env = tiny(rewards={"coin": 10})
    env.reset(seed=0)
    poke(env, coins=2, room=1)
    assert env.step(0)[1] == 20 + 1


def test_a_new_episode_pays_again_and_tells_at_its_end_what_was_earned(tiny):
    env = tiny(episode_length=2)
    for _ in range(2):
        env.reset(seed=0)
        poke(env, room=2)
        _, reward, _, _, info = env.step(0)
        assert reward == 1.0 and "reward_new_room" not in info
        info = env.step(0)[4]
        assert (info["reward_new_room"], info["reward_coin"], info["coins"]) == (1.0, 0.0, 0)


def test_what_the_map_names_ends_an_episode(tiny):
    env = tiny()
    env.reset(seed=0)
    poke(env, over=2)
    assert env.step(0)[2:4] == (False, False)
    poke(env, over=4)
    assert env.step(0)[2:4] == (True, False)
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)


def test_an_episode_is_cut_off_at_its_length(tiny):
    env = tiny(episode_length=3)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    with pytest.raises(ResetNeeded):
        env.step(0)


# ---- seeds and states ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("observation", ["ram", "pixels"])
def test_the_same_seed_is_the_same_episode_whatever_was_played_before(tiny, observation):
    fresh, used = tiny(observation=observation, episode_length=2000), tiny(observation=observation)
    used.reset(seed=99)
    play(used, 77, seed=5)
    used.episode_length = 2000
    assert np.array_equal(fresh.reset(seed=7)[0], used.reset(seed=7)[0])
    assert play(fresh, 1000) == play(used, 1000)
    fresh.reset(seed=8)
    used.reset(seed=7)
    assert play(fresh, 3) != play(used, 3)


def test_without_a_seed_episodes_differ_and_follow_from_the_first(tiny):
    one, two = tiny(), tiny()
    firsts = [[env.reset(seed=1)[0], env.reset()[0], env.reset()[0]] for env in (one, two)]
    assert np.array_equal(firsts[0], firsts[1])
    assert len({first.tobytes() for first in firsts[0]}) == 3


def test_without_a_seed_address_waiting_makes_episodes_differ(tiny, files):
    text = MAP.replace("seed: 0xC016", "idle: 40")
    files["memory_map"].write_text(text)
    env = tiny()
    frames = set()
    for seed in range(12):
        env.reset(seed=seed)
        frames.add(env._emulator.memory[0xC018])
    assert len(frames) > 5 and max(frames) - min(frames) <= 40


@pytest.mark.parametrize("observation", ["ram", "pixels", "both"])
@pytest.mark.parametrize("at", [0, 1, 37])
def test_a_state_goes_on_exactly_in_a_fresh_env_and_in_a_used_one(tiny, observation, at):
    env, used, fresh = (tiny(observation=observation, episode_length=9999) for _ in range(3))
    used.reset(seed=1234)
    play(used, 20, seed=3)
    env.reset(seed=5)
    play(env, at, seed=6)
    state = env.get_state()
    expected = play(env, 300)
    for other in (used, fresh):
        other.set_state(state)
        assert play(other, 300) == expected
        assert np.array_equal(other._emulator.screen, env._emulator.screen) or observation == "ram"


def test_a_state_has_the_next_episodes_and_what_was_earned_in_it(tiny):
    env, other = tiny(), tiny()
    env.reset(seed=5)
    poke(env, room=2)
    env.step(0)
    other.set_state(env.get_state())
    poke(env, room=0)
    poke(other, room=0)
    assert env.step(0)[1] == other.step(0)[1] == 0.0
    assert env._reward_tracker.earned == other._reward_tracker.earned
    assert np.array_equal(env.reset()[0], other.reset()[0])


def test_taking_a_state_changes_nothing(tiny):
    one, two = tiny(observation="pixels"), tiny(observation="pixels")
    one.reset(seed=2)
    two.reset(seed=2)
    for i in range(8):
        one.get_state()
        assert play(one, 5, seed=i) == play(two, 5, seed=i)


def test_a_state_of_an_episode_that_is_over_is_one(tiny):
    env, other = tiny(episode_length=1), tiny(episode_length=1)
    env.reset(seed=0)
    env.step(0)
    other.set_state(env.get_state())
    with pytest.raises(ResetNeeded):
        other.step(0)


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"observation": "both"}, "observation 'ram', here it is 'both'"),
        ({"episode_length": 7}, "episode_length 500, here it is 7"),
        ({"frames_per_step": 5}, "frames_per_step 4, here it is 5"),
        ({"rewards": {"coin": 3}}, "rewards"),
    ],
)
def test_a_state_of_other_settings_is_refused(tiny, kwargs, words):
    env = tiny()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=words):
        tiny(**kwargs).set_state(env.get_state())


def test_a_state_of_another_map_or_rom_is_refused(tiny, files, tmp_path):
    env = tiny()
    env.reset(seed=0)
    state = env.get_state()
    other_map = tmp_path / "other.yaml"
    other_map.write_text(MAP.replace("weight: 0.5", "weight: 0.75"))
    other_rom = tmp_path / "other.gb"
    other_rom.write_bytes(tiny_rom()[:-1] + b"\1")
    for kwargs in ({"memory_map": other_map}, {"rom": other_rom}):
        with pytest.raises(ValueError, match="another ROM or another memory map"):
            tiny(**kwargs).set_state(state)
    commented = tmp_path / "commented.yaml"
    commented.write_text("# the same\n" + MAP)
    tiny(memory_map=commented).set_state(state)


def test_damaged_states_are_refused_and_leave_the_env_as_it_was(tmp_path):
    env = GameBoy(**put(tmp_path))
    env.reset(seed=0)
    play(env, 3)
    state = env.get_state()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, len(state) - 1), st.integers(1, 255), st.integers(0, len(state)))
    def damage(place, change, end):
        changed = bytearray(state)
        changed[place] ^= change
        for bad in (bytes(changed), state[:end] if end < len(state) else state + b"\0"):
            with pytest.raises(ValueError, match="not a state of this Game Boy env"):
                env.set_state(bad)

    damage()
    for nothing in (b"", b"GB01", b"x" * 100, state[:-1]):
        with pytest.raises(ValueError, match="not a state of this Game Boy env"):
            env.set_state(nothing)
    rest = state[len(_MAGIC) + _CHECKSUM_BYTES :]
    head = rest[: 4 + int.from_bytes(rest[:4], "little")]
    bomb = head + zlib.compress(bytes(1 << 25), 9)
    with pytest.raises(ValueError, match="it unpacks to more than"):
        env.set_state(_MAGIC + _checksum(bomb) + bomb)
    other = GameBoy(**put(tmp_path))
    other.set_state(state)
    assert play(env, 20) == play(other, 20)
    env.close()
    other.close()


# ---- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"observation": "pixel"}, "did you mean 'pixels'"),
        ({"episode_length": 0}, "episode_length 0 should be a whole number"),
        ({"frames_per_step": 0}, "frames_per_step 0 should be a whole number from 1"),
        ({"render_mode": "human"}, "rgb_array"),
        ({"rewards": {"coins": 1}}, "unknown reward 'coins' .did you mean 'coin'"),
        ({"rewards": {"coin": "much"}}, "the weight of reward 'coin' is 'much'"),
        ({"rewards": [1]}, "by names of terms: new_room"),
        ({"memory_map": None}, "needs a memory map"),
        ({"rom": "nowhere.gb"}, "cannot read ROM 'nowhere.gb': No such file"),
        ({"rom": "."}, "^ROM '.' is a directory"),
        ({"rom": os.devnull}, "it is not a regular file"),
        ({"memory_map": "nowhere.yaml"}, "cannot read memory map 'nowhere.yaml'"),
    ],
)
def test_wrong_arguments_are_named(files, kwargs, words):
    with pytest.raises(UsageError, match=words):
        GameBoy(**{**files, **kwargs})


@pytest.mark.parametrize(
    ("rom", "words"),
    [
        (b"", "is empty"),
        (b"not a game", "it has 10 bytes, the header alone 336"),
        (b"once upon a time " * 3000, "not a Game Boy ROM, or is damaged"),
        (tiny_rom()[:0x4000], "is incomplete: it has 16,384 bytes, its header says 32,768"),
        (tiny_rom(size_code=1), "is incomplete"),
        (tiny_rom(title="OTHER"), "is called 'OTHER' in its header, but memory map .* is for 'TINY'"),
        (tiny_rom(cartridge=0xFC), "PyBoy cannot run ROM .*tiny.gb"),
        (tiny_rom(length=0x8001), "PyBoy cannot run ROM .*tiny.gb"),
    ],
)
def test_what_is_no_rom_is_named(tmp_path, rom, words):
    with pytest.raises(UsageError, match=words):
        GameBoy(**put(tmp_path, rom))


def test_a_rom_that_cannot_be_read_because_it_is_huge(tmp_path):
    path = tmp_path / "huge.gb"
    with path.open("wb") as file:
        file.truncate(9 << 20)
    with pytest.raises(UsageError, match="9,437,184 bytes"):
        read_rom(path)


@pytest.mark.parametrize(
    ("header", "observation"),
    [
        ({"colour": 0x80}, "pixels"),
        ({"cartridge": 0x03}, "ram"),
        ({"cartridge": 0x10}, "ram"),
        ({"cartridge": 0x1B}, "ram"),
    ],
)
def test_other_kinds_of_cartridges_can_be_played(tmp_path, header, observation):
    files = put(tmp_path, tiny_rom(**header))
    one, two = (GameBoy(**files, observation=observation) for _ in range(2))
    first = one.reset(seed=1)[0]
    assert len(np.unique(first)) > 1
    play(one, 20)
    two.set_state(one.get_state())
    assert play(one, 50, seed=2) == play(two, 50, seed=2)
    one.close()
    two.close()


def test_actions_and_options_that_there_are_not(tiny):
    env = tiny()
    with pytest.raises(ResetNeeded):
        env.step(0)
    with pytest.raises(ResetNeeded):
        env.get_state()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action 9"):
        env.step(9)
    with pytest.raises(UsageError, match="unknown reset option 'room'"):
        env.reset(options={"room": 3})


def test_a_start_state_is_where_episodes_begin(tiny, files, tmp_path):
    emulator = Emulator(read_rom(files["rom"]))
    emulator.memory[COINS] = 7
    emulator.press("left")
    emulator.run(100)
    (tmp_path / "there.state").write_bytes(emulator.save())
    emulator.close()
    files["memory_map"].write_text(MAP.replace("buttons: [wait 20, a]", "state: there.state"))
    env = tiny()
    info = env.reset(seed=0)[1]
    assert info["coins"] == 7 and info["directions"] == 0
    (tmp_path / "there.state").write_bytes(b"\0" * 1000)
    with pytest.raises(UsageError, match=r"start\.state has 1,000 bytes, but a state of ROM"):
        tiny()


def test_an_episode_that_would_be_over_as_it_begins_is_refused(tiny, files):
    files["memory_map"].write_text(MAP.replace("equals: [3, 4]", "equals: 0"))
    with pytest.raises(UsageError, match="over ends an episode, but is not zero where one begins"):
        tiny()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
def test_what_a_signal_raises_is_not_lost_in_the_emulator(capfd):
    env = GameBoy()
    env.reset(seed=0)
    before = signal.getsignal(signal.SIGALRM)
    caught = 0
    try:
        signal.signal(signal.SIGALRM, signal.default_int_handler)
        for i in range(40):
            signal.setitimer(signal.ITIMER_REAL, 0.0005 + 0.00001 * i)
            try:
                while True:
                    env._emulator.run(4)
            except KeyboardInterrupt:
                caught += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert caught == 40 and capfd.readouterr() == ("", "")


LCD = bytes.fromhex(
    # the screen on; once a frame, C018 adds up what its status register says
    "F3 31 FE DF 3E 01 E0 FF 3E 91 E0 40 FB 76 00 F0 41 21 18 C0 86 77"
    # while A is held: screen off, another row to compare with, a long wait, screen on
    "3E 10 E0 00 F0 00 F0 00 E6 01 20 EB 3E 00 E0 40 3E 05 E0 45 01 00 60 0B 78 B1 20 FB 3E 91 E0 40 18 D5"
)


def test_states_are_exact_while_the_screen_is_off(tmp_path):
    rom = bytearray(tiny_rom())
    rom[0x150 : 0x150 + len(LCD)] = LCD
    files = put(tmp_path, bytes(rom), MAP.replace("[wait 20, a]", "[wait 20]"))
    env, other = GameBoy(**files), GameBoy(**files)

    def go_on(env, steps=8):
        return [(env.step(0), env._emulator.memory[0xC018])[1] for _ in range(steps)]

    env.reset(seed=0)
    first = go_on(env)
    env.reset(seed=0)
    env.step(A)
    assert not env._emulator.memory[0xFF40] & 0x80
    state = env.get_state()
    rest = go_on(env)
    other.set_state(state)
    assert go_on(other) == rest
    env.set_state(state)
    env.reset(seed=0)
    assert go_on(env) == first


def test_in_colour_work_ram_is_read_whatever_bank_the_game_left_there(tmp_path):
    files = put(tmp_path, tiny_rom(colour=0x80), MAP.replace("coins: {at: 0xC102}", "coins: {at: 0xD102}"))
    env = GameBoy(**files)
    env.reset(seed=0)
    memory = env._emulator.memory
    memory[1, 0xD102], memory[0xFF70] = 7, 2
    assert memory[0xD102] != 7
    assert env.step(0)[4]["coins"] == 7


def test_nothing_is_read_or_written_beside_the_rom(tmp_path):
    files = put(tmp_path, tiny_rom(cartridge=0x03))  # with a battery
    for end in (".ram", ".rtc", ".state"):
        (tmp_path / f"tiny.gb{end}").write_bytes(b"\xaa" * 0x8000)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    env = GameBoy(**files)
    env.reset(seed=0)
    assert 0xAA not in env._emulator.memory[0, 0xA000:0xA100]
    env.step(A)
    env.close()
    del env
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_without_pyboy_one_line_says_what_to_install(files):
    code = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] == 'pyboy': raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "from corral_games.game_boy.env import GameBoy\n"
        "from corral.core.errors import UsageError\n"
        f"try: GameBoy({str(files['rom'])!r}, {str(files['memory_map'])!r})\n"
        "except UsageError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=600)
    assert done.stdout == "Game Boy games need PyBoy: pip install 'corral[gameboy]'\n" and not done.stderr


@pytest.mark.parametrize("cartridge", [0, 0x10])  # the latter has a clock
def test_pyboy_says_nothing_of_its_own(tmp_path, cartridge):
    files = put(tmp_path, tiny_rom(cartridge=cartridge))
    code = (
        "from corral_games.game_boy.env import GameBoy\n"
        f"env = GameBoy({str(files['rom'])!r}, {str(files['memory_map'])!r})\n"
        "env.reset(seed=0); env.step(0); env.set_state(env.get_state()); env.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_is_built_in_and_goes_through_a_parallel_env(files):
    envs = corral.make_parallel_env("game-boy", n_envs=2, seed=0, **{name: str(path) for name, path in files.items()})
    observation, _ = envs.reset(seed=0)
    assert observation.shape == (2, 10)
    envs.step(np.array([RIGHT, A]))
    envs.close()


def test_sixteen_in_two_workers_are_small():
    envs = corral.make_parallel_env("game-boy", n_envs=16, num_workers=2)
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(np.full(16, RIGHT))
    own = [psutil.Process(pid).memory_full_info().uss / 2**20 for pid in envs.pids]
    envs.close()
    assert len(own) == 2 and max(own) / 8 < 15, own
