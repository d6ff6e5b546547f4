"""The Game Boy env: observations, rewards, ends of episodes, saved states, and refused input."""

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
from tests.corral_games.game_boy_roms import TINY_MAP, tiny_rom, write_game_files

A, RIGHT, LEFT = ACTIONS.index("a"), ACTIONS.index("right"), ACTIONS.index("left")
ROOM, FLAG, COINS, HEALTH, OVER, AWAKE = range(0xC100, 0xC106)


@pytest.fixture
def files(tmp_path):
    return write_game_files(tmp_path)


@pytest.fixture
def make_env(files):
    def make(**kwargs):
        envs.append(GameBoy(**{**files, **kwargs}))
        return envs[-1]

    envs = []
    yield make
    for env in envs:
        env.close()


def write_memory(env, **values_by_name):
    """Write bytes to the addresses that the constants above name, for example ``room=2`` to ``ROOM``."""
    for name, value in values_by_name.items():
        env._emulator.memory[globals()[name.upper()]] = value


def play(env, steps, seed=0):
    """Take random actions; return all observations and rewards, and the contents of memory at the end."""
    rng, trace = np.random.default_rng(seed), []
    for _ in range(steps):
        observation, reward, *_ = env.step(int(rng.integers(len(ACTIONS))))
        leaves = observation.values() if isinstance(observation, dict) else [observation]
        trace.append((b"".join(leaf.tobytes() for leaf in leaves), reward))
    return trace, memory_contents(env)


def memory_contents(env):
    """Return video RAM, work RAM, and high RAM with the interrupt register."""
    memory = env._emulator.memory
    return bytes(memory[0x8000:0xA000]), bytes(memory[0xC000:0xE000]), bytes(memory[0xFF80:0x10000])


# ---- env API ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("observation", ["ram", "pixels", "both"])
def test_it_passes_the_env_checker_of_gymnasium(make_env, observation):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # It does not expect the shape of stacked frames.
        check_env(make_env(observation=observation), skip_render_check=True)


def test_observation_space_and_frame_stacks_follow_the_observation_setting(make_env):
    ram, pixels, both = (make_env(observation=kind) for kind in ("ram", "pixels", "both"))
    assert ram.observation_space.shape == (4 + 1 + 1 + 1 + 3,) and find_frame_stacks(ram) == {}
    assert pixels.observation_space.shape == (4, 72, 80) and find_frame_stacks(pixels) == {"": 4}
    assert set(both.observation_space) == {"ram", "pixels"} and find_frame_stacks(both) == {"pixels": 4}
    for env in (ram, pixels, both):
        assert env.observation_space.contains(env.reset(seed=1)[0])
        assert env.observation_space.contains(env.step(3)[0])


def test_a_repeated_direction_stays_pressed_until_another_action(make_env):
    env = make_env()
    env.reset(seed=0)
    assert [env.step(RIGHT)[4]["directions"] for _ in range(3)] == [1, 1, 1]
    assert env.step(LEFT)[4]["directions"] == 2
    assert env.step(A)[4]["directions"] == 0
    env.step(RIGHT)
    assert env.step(0)[4]["directions"] == 0


def test_a_repeated_button_is_pressed_again_in_each_step(make_env):
    env = make_env()
    presses_at_start = env.reset(seed=0)[1]["pressed"]
    assert [env.step(A)[4]["pressed"] - presses_at_start for _ in range(3)] == [1, 2, 3]


def test_with_one_frame_per_step_a_repeated_button_stays_pressed(make_env):
    env = make_env(frames_per_step=1)
    presses_at_start = env.reset(seed=0)[1]["pressed"]
    presses = [env.step(action)[4]["pressed"] - presses_at_start for action in (A, A, A, 0, 0, A, A, 0)]
    assert presses[-1] == 2 and env.metadata["render_fps"] == 60


def test_a_step_runs_frames_per_step_frames(make_env):
    for frames in (4, 7):
        env = make_env(frames_per_step=frames)
        env.reset(seed=0)
        before = env._emulator.memory[0xC018]
        for action in (0, RIGHT, A, A):
            env.step(action)
        assert env._emulator.memory[0xC018] - before == 4 * frames


def test_pixels_are_the_last_four_frames_oldest_first(make_env):
    env = make_env(observation="pixels")
    first_stack = env.reset(seed=3)[0]
    assert all(np.array_equal(first_stack[-1], stacked_frame) for stacked_frame in first_stack)
    assert len(np.unique(first_stack)) > 1
    frames = [first_stack[-1]]
    for _ in range(6):
        stack = env.step(0)[0]
        frames.append(stack[-1])
        assert np.array_equal(stack[:-1], [frames[max(0, i)] for i in range(len(frames) - 4, len(frames) - 1)])
        assert np.array_equal(stack[-1], env._emulator.screen[::2, ::2, 0])


def test_render_returns_the_same_screen_for_every_observation_setting(make_env):
    screens = {}
    for observation in ("ram", "pixels"):
        env = make_env(observation=observation, render_mode="rgb_array")
        env.reset(seed=3)
        for _ in range(5):
            env.step(RIGHT)
        screens[observation] = env.render()
    assert screens["ram"].shape == (144, 160, 3) and screens["ram"].dtype == np.uint8
    assert np.array_equal(screens["ram"], screens["pixels"])
    with pytest.warns(UserWarning, match="needs a render mode"):
        assert make_env().render() is None


def test_get_keys_to_action_covers_every_button(make_env):
    keys = make_env().get_keys_to_action()
    assert {*keys.values()} == {*range(1, 9)} and keys[(ord("x"),)] == A
    assert all(
        keys[arrow, ord("x")] == A for (arrow, *other_keys), action in keys.items() if not other_keys and action < A
    )


def test_close_can_be_repeated_and_step_and_reset_raise_afterwards(files):
    env = GameBoy(**files)
    env.reset(seed=0)
    env.close()
    env.close()
    with pytest.raises(ClosedEnvironmentError):
        env.step(0)
    with pytest.raises(ClosedEnvironmentError):
        env.reset()


# ---- Stray Bell ------------------------------------------------------------------------------------------------


def test_stray_bell_starts_after_the_title_screen_and_rewards_new_rooms():
    env = GameBoy(rewards={"new_tile": 0})
    _, info = env.reset(seed=0)
    memory = env._emulator.memory
    assert (bytes(memory[0xC000:0xC004]), info) == (b"SB\1\5", {"rooms": 1, "coins": 0, "health": 6})
    rewards = [env.step(ACTIONS.index("up"))[1] for _ in range(30)]
    assert sum(rewards) == 1.0 and max(rewards) == 1.0 and memory[0xC003] == 1
    env.close()


def test_stray_bell_repeats_an_episode_for_the_same_seed():
    results = []
    for play_first in (False, True):
        env = GameBoy(episode_length=5000, rewards={"death": 0})
        env._ends.clear()
        if play_first:
            env.reset(seed=2)
            play(env, 50, seed=1)
        env.reset(seed=4)
        rng = np.random.default_rng(0)
        for _ in range(120):
            action = int(rng.integers(len(ACTIONS)))
            for _ in range(8):
                env.step(action)
        results.append((memory_contents(env), env._reward_tracker.earned))
        env.close()
    assert results[0] == results[1]


# ---- rewards and ends of episodes ------------------------------------------------------------------------------


def test_each_reward_term_pays_as_the_map_says(make_env):
    env = make_env()
    env.reset(seed=0)
    assert env.step(0)[1] == 0
    write_memory(env, room=2)
    assert env.step(0)[1] == 1.0
    write_memory(env, room=0)
    assert env.step(0)[1] == 0  # The episode started in room 0.
    write_memory(env, flag=8, coins=3)
    assert env.step(0)[1] == 2.0 + 1.5
    write_memory(env, flag=0, coins=1, health=6)
    assert env.step(0)[1] == 0
    write_memory(env, flag=8, coins=4, health=4)
    assert env.step(0)[1] == 0.5 - 0.5  # One coin above the highest count so far; two units of health lost.


def test_a_reward_term_pays_nothing_while_its_when_condition_is_zero(make_env):
    env = make_env(rewards={"new_room": 0})
    env.reset(seed=0)
    write_memory(env, room=2)
    assert env.step(0)[1] == 0
    write_memory(env, awake=1)
    assert env.step(0)[1] == 4.0
    assert env.step(0)[1] == 0


def test_reward_weights_can_be_given_as_arguments(make_env):
    env = make_env(rewards={"coin": 10})
    env.reset(seed=0)
    write_memory(env, coins=2, room=1)
    assert env.step(0)[1] == 20 + 1


def test_rewards_start_again_in_each_episode_and_are_summed_in_the_last_info(make_env):
    env = make_env(episode_length=2)
    for _ in range(2):
        env.reset(seed=0)
        write_memory(env, room=2)
        _, reward, _, _, info = env.step(0)
        assert reward == 1.0 and "reward_new_room" not in info
        info = env.step(0)[4]
        assert (info["reward_new_room"], info["reward_coin"], info["coins"]) == (1.0, 0.0, 0)


def test_a_value_listed_in_ends_terminates_the_episode(make_env):
    env = make_env()
    env.reset(seed=0)
    write_memory(env, over=2)
    assert env.step(0)[2:4] == (False, False)
    write_memory(env, over=4)
    assert env.step(0)[2:4] == (True, False)
    with pytest.raises(ResetNeeded, match="reset"):
        env.step(0)


def test_an_episode_is_truncated_at_episode_length(make_env):
    env = make_env(episode_length=3)
    env.reset(seed=0)
    assert [env.step(0)[2:4] for _ in range(3)] == [(False, False), (False, False), (False, True)]
    with pytest.raises(ResetNeeded):
        env.step(0)


# ---- seeds and saved states ------------------------------------------------------------------------------------


@pytest.mark.parametrize("observation", ["ram", "pixels"])
def test_the_same_seed_repeats_an_episode_in_new_and_used_envs(make_env, observation):
    new, used = make_env(observation=observation, episode_length=2000), make_env(observation=observation)
    used.reset(seed=99)
    play(used, 77, seed=5)
    used.episode_length = 2000
    assert np.array_equal(new.reset(seed=7)[0], used.reset(seed=7)[0])
    assert play(new, 1000) == play(used, 1000)
    new.reset(seed=8)
    used.reset(seed=7)
    assert play(new, 3) != play(used, 3)


def test_resets_without_a_seed_give_new_episodes_that_follow_from_the_first_seed(make_env):
    first_env, second_env = make_env(), make_env()
    first_observations = [[env.reset(seed=1)[0], env.reset()[0], env.reset()[0]] for env in (first_env, second_env)]
    assert np.array_equal(first_observations[0], first_observations[1])
    assert len({observation.tobytes() for observation in first_observations[0]}) == 3


def test_maps_without_a_seed_address_vary_episodes_by_idle_frames(make_env, files):
    map_text = TINY_MAP.replace("seed: 0xC016", "idle: 40")
    files["memory_map"].write_text(map_text)
    env = make_env()
    start_frames = set()
    for seed in range(12):
        env.reset(seed=seed)
        start_frames.add(env._emulator.memory[0xC018])
    assert len(start_frames) > 5 and max(start_frames) - min(start_frames) <= 40


@pytest.mark.parametrize("observation", ["ram", "pixels", "both"])
@pytest.mark.parametrize("steps_before", [0, 1, 37])
def test_a_state_restores_exactly_in_new_and_used_envs(make_env, observation, steps_before):
    env, used, new = (make_env(observation=observation, episode_length=9999) for _ in range(3))
    used.reset(seed=1234)
    play(used, 20, seed=3)
    env.reset(seed=5)
    play(env, steps_before, seed=6)
    state = env.get_state()
    expected = play(env, 300)
    for restored in (used, new):
        restored.set_state(state)
        assert play(restored, 300) == expected
        assert np.array_equal(restored._emulator.screen, env._emulator.screen) or observation == "ram"


def test_a_state_contains_reward_progress_and_the_seeds_of_later_episodes(make_env):
    env, restored = make_env(), make_env()
    env.reset(seed=5)
    write_memory(env, room=2)
    env.step(0)
    restored.set_state(env.get_state())
    write_memory(env, room=0)
    write_memory(restored, room=0)
    assert env.step(0)[1] == restored.step(0)[1] == 0.0
    assert env._reward_tracker.earned == restored._reward_tracker.earned
    assert np.array_equal(env.reset()[0], restored.reset()[0])


def test_get_state_does_not_change_the_env(make_env):
    saved, unsaved = make_env(observation="pixels"), make_env(observation="pixels")
    saved.reset(seed=2)
    unsaved.reset(seed=2)
    for i in range(8):
        saved.get_state()
        assert play(saved, 5, seed=i) == play(unsaved, 5, seed=i)


def test_a_state_of_a_finished_episode_restores_as_finished(make_env):
    env, restored = make_env(episode_length=1), make_env(episode_length=1)
    env.reset(seed=0)
    env.step(0)
    restored.set_state(env.get_state())
    with pytest.raises(ResetNeeded):
        restored.step(0)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"observation": "both"}, "observation 'ram', here it is 'both'"),
        ({"episode_length": 7}, "episode_length 500, here it is 7"),
        ({"frames_per_step": 5}, "frames_per_step 4, here it is 5"),
        ({"rewards": {"coin": 3}}, "rewards"),
    ],
)
def test_a_state_saved_with_other_settings_is_refused(make_env, kwargs, message):
    env = make_env()
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        make_env(**kwargs).set_state(env.get_state())


def test_a_state_of_another_map_or_rom_is_refused_but_comments_do_not_count(make_env, files, tmp_path):
    env = make_env()
    env.reset(seed=0)
    state = env.get_state()
    other_map = tmp_path / "other.yaml"
    other_map.write_text(TINY_MAP.replace("weight: 0.5", "weight: 0.75"))
    other_rom = tmp_path / "other.gb"
    other_rom.write_bytes(tiny_rom()[:-1] + b"\1")
    for kwargs in ({"memory_map": other_map}, {"rom": other_rom}):
        with pytest.raises(ValueError, match="another ROM or another memory map"):
            make_env(**kwargs).set_state(state)
    commented = tmp_path / "commented.yaml"
    commented.write_text("# only a comment\n" + TINY_MAP)
    make_env(memory_map=commented).set_state(state)


def test_damaged_states_are_refused_and_do_not_change_the_env(tmp_path):
    env = GameBoy(**write_game_files(tmp_path))
    env.reset(seed=0)
    play(env, 3)
    state = env.get_state()

    @settings(max_examples=60, deadline=None)
    @given(st.integers(0, len(state) - 1), st.integers(1, 255), st.integers(0, len(state)))
    def check_damaged_states_are_refused(index, xor_mask, length):
        altered = bytearray(state)
        altered[index] ^= xor_mask
        for damaged in (bytes(altered), state[:length] if length < len(state) else state + b"\0"):
            with pytest.raises(ValueError, match="not a state of this Game Boy env"):
                env.set_state(damaged)

    check_damaged_states_are_refused()
    for invalid in (b"", b"GB01", b"x" * 100, state[:-1]):
        with pytest.raises(ValueError, match="not a state of this Game Boy env"):
            env.set_state(invalid)
    content = state[len(_MAGIC) + _CHECKSUM_BYTES :]
    json_part = content[: 4 + int.from_bytes(content[:4], "little")]
    oversized = json_part + zlib.compress(bytes(1 << 25), 9)
    with pytest.raises(ValueError, match="it unpacks to more than"):
        env.set_state(_MAGIC + _checksum(oversized) + oversized)
    restored = GameBoy(**write_game_files(tmp_path))
    restored.set_state(state)
    assert play(env, 20) == play(restored, 20)
    env.close()
    restored.close()


# ---- refused input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "message"),
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
def test_invalid_arguments_raise_usage_errors(files, kwargs, message):
    with pytest.raises(UsageError, match=message):
        GameBoy(**{**files, **kwargs})


@pytest.mark.parametrize(
    ("rom", "message"),
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
def test_invalid_rom_files_raise_usage_errors(tmp_path, rom, message):
    with pytest.raises(UsageError, match=message):
        GameBoy(**write_game_files(tmp_path, rom))


def test_a_rom_above_the_size_limit_is_refused(tmp_path):
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
def test_color_and_other_cartridge_types_play_and_restore(tmp_path, header, observation):
    files = write_game_files(tmp_path, tiny_rom(**header))
    env, restored = (GameBoy(**files, observation=observation) for _ in range(2))
    first_observation = env.reset(seed=1)[0]
    assert len(np.unique(first_observation)) > 1
    play(env, 20)
    restored.set_state(env.get_state())
    assert play(env, 50, seed=2) == play(restored, 50, seed=2)
    env.close()
    restored.close()


def test_unknown_actions_and_options_and_calls_before_reset_are_refused(make_env):
    env = make_env()
    with pytest.raises(ResetNeeded):
        env.step(0)
    with pytest.raises(ResetNeeded):
        env.get_state()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action 9"):
        env.step(9)
    with pytest.raises(UsageError, match="unknown reset option 'room'"):
        env.reset(options={"room": 3})


def test_episodes_start_from_the_start_state_of_the_map(make_env, files, tmp_path):
    emulator = Emulator(read_rom(files["rom"]))
    emulator.memory[COINS] = 7
    emulator.press("left")
    emulator.run(100)
    (tmp_path / "saved.state").write_bytes(emulator.save())
    emulator.close()
    files["memory_map"].write_text(TINY_MAP.replace("buttons: [wait 20, a]", "state: saved.state"))
    env = make_env()
    info = env.reset(seed=0)[1]
    assert info["coins"] == 7 and info["directions"] == 0
    (tmp_path / "saved.state").write_bytes(b"\0" * 1000)
    with pytest.raises(UsageError, match=r"start\.state has 1,000 bytes, but a state of ROM"):
        make_env()


def test_a_map_whose_end_condition_holds_at_the_start_is_refused(make_env, files):
    files["memory_map"].write_text(TINY_MAP.replace("equals: [3, 4]", "equals: 0"))
    with pytest.raises(UsageError, match="over ends an episode, but is not zero where one begins"):
        make_env()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs a timer that sends signals")
def test_exceptions_raised_by_signal_handlers_pass_through_the_emulator(capfd):
    env = GameBoy()
    env.reset(seed=0)
    previous_handler = signal.getsignal(signal.SIGALRM)
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
        signal.signal(signal.SIGALRM, previous_handler)
    assert caught == 40 and capfd.readouterr() == ("", "")


SCREEN_OFF_CODE = bytes.fromhex(
    # Turn the screen on. Once a frame, add the screen's status register to C018.
    "F3 31 FE DF 3E 01 E0 FF 3E 91 E0 40 FB 76 00 F0 41 21 18 C0 86 77"
    # While A is held: turn the screen off, set another row to compare with, wait long, turn the screen on.
    "3E 10 E0 00 F0 00 F0 00 E6 01 20 EB 3E 00 E0 40 3E 05 E0 45 01 00 60 0B 78 B1 20 FB 3E 91 E0 40 18 D5"
)


def test_states_restore_exactly_while_the_screen_is_off(tmp_path):
    rom = bytearray(tiny_rom())
    rom[0x150 : 0x150 + len(SCREEN_OFF_CODE)] = SCREEN_OFF_CODE
    files = write_game_files(tmp_path, bytes(rom), TINY_MAP.replace("[wait 20, a]", "[wait 20]"))
    env, restored = GameBoy(**files), GameBoy(**files)

    def play_on(env, steps=8):
        values = []
        for _ in range(steps):
            env.step(0)
            values.append(env._emulator.memory[0xC018])
        return values

    env.reset(seed=0)
    values_from_reset = play_on(env)
    env.reset(seed=0)
    env.step(A)
    assert not env._emulator.memory[0xFF40] & 0x80
    state = env.get_state()
    values_from_state = play_on(env)
    restored.set_state(state)
    assert play_on(restored) == values_from_state
    env.set_state(state)
    env.reset(seed=0)
    assert play_on(env) == values_from_reset


def test_color_games_read_work_ram_bank_1_whatever_bank_is_selected(tmp_path):
    files = write_game_files(
        tmp_path, tiny_rom(colour=0x80), TINY_MAP.replace("coins: {at: 0xC102}", "coins: {at: 0xD102}")
    )
    env = GameBoy(**files)
    env.reset(seed=0)
    memory = env._emulator.memory
    memory[1, 0xD102], memory[0xFF70] = 7, 2
    assert memory[0xD102] != 7
    assert env.step(0)[4]["coins"] == 7


def test_no_save_files_are_read_or_written_next_to_the_rom(tmp_path):
    files = write_game_files(tmp_path, tiny_rom(cartridge=0x03))  # A cartridge with a battery.
    for suffix in (".ram", ".rtc", ".state"):
        (tmp_path / f"tiny.gb{suffix}").write_bytes(b"\xaa" * 0x8000)
    files_before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    env = GameBoy(**files)
    env.reset(seed=0)
    assert 0xAA not in env._emulator.memory[0, 0xA000:0xA100]
    env.step(A)
    env.close()
    del env
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files_before


def test_without_pyboy_the_error_gives_the_install_command(files):
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
    result = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=600)
    assert result.stdout == "Game Boy games need PyBoy: pip install 'corral[gameboy]'\n" and not result.stderr


@pytest.mark.parametrize("cartridge", [0, 0x10])  # 0x10 has a real-time clock.
def test_pyboy_prints_nothing(tmp_path, cartridge):
    files = write_game_files(tmp_path, tiny_rom(cartridge=cartridge))
    code = (
        "from corral_games.game_boy.env import GameBoy\n"
        f"env = GameBoy({str(files['rom'])!r}, {str(files['memory_map'])!r})\n"
        "env.reset(seed=0); env.step(0); env.set_state(env.get_state()); env.close()"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_game_boy_can_be_made_by_name_in_a_parallel_env(files):
    envs = corral.make_parallel_env("game-boy", n_envs=2, seed=0, **{name: str(path) for name, path in files.items()})
    observation, _ = envs.reset(seed=0)
    assert observation.shape == (2, 10)
    envs.step(np.array([RIGHT, A]))
    envs.close()


def test_each_env_in_a_worker_takes_less_than_15_mb():
    envs = corral.make_parallel_env("game-boy", n_envs=16, num_workers=2)
    envs.reset(seed=0)
    for _ in range(5):
        envs.step(np.full(16, RIGHT))
    megabytes_by_worker = [psutil.Process(pid).memory_full_info().uss / 2**20 for pid in envs.pids]
    envs.close()
    assert len(megabytes_by_worker) == 2 and max(megabytes_by_worker) / 8 < 15, megabytes_by_worker
