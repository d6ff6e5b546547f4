"""Vector envs of users and of EnvPool are stepped as if they were single envs; what they cannot do is refused."""

import functools
import importlib.metadata
import operator
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeObservation

from corral.core.errors import CorralError, EnvFault, InvalidEnvData, MissingPackage, UsageError
from corral.core.machine import available_cores
from corral.core.seeding import episode_seed
from corral.core.types import FaultCounts
from corral.envs import envpool
from corral.envs.factory import make_env, resolve_env
from corral.vec import make_vector_env
from corral.vec.api import merge_sums
from corral.vec.batch_stepper import BatchStepper
from corral.vec.env_stepper import Stepper
from corral.vec.make_vec import make_parallel_env
from corral.vec.replay_log import EnvPosition
from corral.vec.serial import SerialVectorEnv
from tests.toy_envs import Counter, Masked, Reporter, Spaces

MODES = {"same step": AutoresetMode.SAME_STEP, "next step": AutoresetMode.NEXT_STEP, "disabled": AutoresetMode.DISABLED}
NESTED_SPACE = spaces.Dict(
    box=spaces.Box(-1, 1, (2, 3)), pair=spaces.Tuple([spaces.Discrete(3, start=2), spaces.MultiBinary(3)])
)


class SeedlessReporter(Reporter):
    """A ``Reporter`` whose episodes do not depend on the seed."""

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        self.draw = 0.5
        return self._observe(), info


class SeedlessMasked(Masked):
    """A ``Masked`` whose observations do not depend on the seed."""

    def __init__(self, by="info"):
        super().__init__(by)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 1
        return self.at, self._info()

    def step(self, action):
        super().step(action)
        self.at = self.count % self.n
        return self.at, 1.0, self.count >= 10, False, self._info()


def sync_vector_factory(env, mode=AutoresetMode.SAME_STEP):
    """Return a factory of ``SyncVectorEnv``s with copies of ``env``."""

    def make(num_envs):
        return SyncVectorEnv([env] * num_envs, autoreset_mode=mode)

    return make


def trace(factory, n=3, steps=40, backend="serial", **kwargs):
    """Return the arrays of every step with random actions, and the sums of the infos over all steps."""
    env = make_vector_env(resolve_env(factory), n, backend=backend, seed=5, infos="summed", **kwargs)
    try:
        rng, arrays, trace_steps = np.random.default_rng(0), env.arrays, []
        env.reset_arrays()
        for _ in range(steps):
            env.codec.decode(env.codec.random(env.masks, n, rng), arrays.actions)
            env.send()
            env.recv()
            ended = arrays.terminated | arrays.truncated
            step_arrays = [arrays.rewards, arrays.terminated, arrays.truncated, arrays.episode]
            step_arrays += arrays.observations.values()
            step_arrays += [leaf[ended] for leaf in arrays.final_observations.values()]
            step_arrays += [] if env.masks is None else [env.masks]
            trace_steps.append([array.copy() for array in step_arrays])
        return trace_steps, merge_sums(env.take_report().infos)
    finally:
        env.close()


def traces_equal(first, second):
    steps = zip(first, second, strict=True)
    return all(np.array_equal(a, b) for one, other in steps for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(
    "env",
    [
        SeedlessReporter,
        functools.partial(SeedlessReporter, 4, True),
        SeedlessMasked,
        functools.partial(SeedlessMasked, "method"),
    ],
    ids=["terminates", "truncates", "masks in infos", "masks by method"],
)
def test_a_vector_env_gives_the_same_steps_as_its_envs_one_by_one(env, mode):
    (single_steps, single_infos), (vector_steps, vector_infos) = trace(env), trace(sync_vector_factory(env, mode))
    assert traces_equal(single_steps, vector_steps)
    assert single_infos == vector_infos


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_nested_spaces_give_the_same_steps_in_every_backend(mode):
    factory = sync_vector_factory(lambda: Spaces(NESTED_SPACE, NESTED_SPACE), mode)
    serial_steps, infos = trace(factory)
    process_steps, _ = trace(factory, backend="process", num_workers=2)
    assert traces_equal(serial_steps, process_steps)
    assert infos["count"].count == 3 * 40 and "note" not in infos and "start" not in infos


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_infos_equal_those_of_the_same_envs_one_by_one(mode):
    batched, single = (
        make_parallel_env(factory, 2, backend="serial")
        for factory in (sync_vector_factory(SeedlessReporter, mode), lambda: SeedlessReporter())
    )
    for env in (batched, single):
        env.reset(seed=1)
    for _ in range(7):
        (*_, infos), (*_, expected) = batched.step(np.zeros(2, int)), single.step(np.zeros(2, int))
        assert infos.keys() == expected.keys()
        assert np.array_equal(infos.get("height"), expected.get("height"))
        if "final_info" in infos:
            assert np.array_equal(infos["final_info"]["height"], expected["final_info"]["height"])
            assert all(np.array_equal(a, b) for a, b in zip(infos["final_obs"], expected["final_obs"], strict=True))
    batched.close(), single.close()


class NextStepOnly(SyncVectorEnv):
    """Cannot reset single envs, like most vector envs with this autoreset mode that are not Gymnasium's own."""

    @property
    def unwrapped(self):
        return object()

    def reset(self, *, seed=None, options=None):
        assert not options
        return super().reset(seed=seed)


def test_without_partial_reset_a_vector_env_is_made_for_each_env():
    def make(num_envs):
        return NextStepOnly([Counter] * num_envs)

    with pytest.warns(UserWarning, match="made once for each env, which is slower: .* NEXT_STEP"):
        env = SerialVectorEnv(resolve_env(make), 3, seed=5, infos="summed")
    assert isinstance(env.stepper, Stepper)
    env.close()


def make_normalized(num_envs):
    """Return a vector env in a wrapper that cannot reset single envs."""
    return NormalizeObservation(SyncVectorEnv([SeedlessReporter] * num_envs))


@pytest.mark.parametrize("n", [1, 3])
def test_a_wrapper_without_partial_reset_has_a_vector_env_made_for_each_env(n):
    with pytest.warns(UserWarning, match="which is slower: reset does not begin an episode in one env alone"):
        env = SerialVectorEnv(resolve_env(make_normalized), n, seed=5, infos="summed")
    env.reset_arrays()
    step(env, 12)
    assert isinstance(env.stepper, Stepper) and env.arrays.episode.min() > 0
    env.close()


class FullResetOnly(gym.vector.VectorWrapper):
    """A wrapper that takes no reset options, and so cannot reset single envs."""

    def reset(self, *, seed=None, options=None):
        assert not options
        return super().reset(seed=seed)


@pytest.mark.filterwarnings("ignore:the vector env")
def test_masks_are_used_where_a_vector_env_is_made_for_each_env():
    def make(num_envs):
        return FullResetOnly(SyncVectorEnv([single_env] * num_envs, autoreset_mode=MODES["next step"]))

    single_env = functools.partial(SeedlessMasked, "method")
    (expected, _), (steps, _) = trace(single_env), trace(make)
    assert traces_equal(expected, steps)


@pytest.mark.filterwarnings("ignore:the vector env")
def test_seeds_are_the_usual_ones_where_a_vector_env_is_made_for_each_env():
    def takes_one_seed(num_envs):
        vector = SyncVectorEnv([Counter] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        reset = vector.reset
        vector.reset = lambda *, seed=None, options=None: reset(seed=operator.index(seed), options=options)
        return vector

    assert traces_equal(trace(lambda num_envs: NextStepOnly([Counter] * num_envs))[0], trace(Counter)[0])
    assert traces_equal(trace(takes_one_seed)[0], trace(Counter)[0])
    steps, _ = trace("gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv", steps=60)
    _, _, _, episode, *_ = steps[-1]
    assert episode.sum() > 3


def test_a_factory_that_takes_num_envs_must_return_a_vector_env_of_that_many():
    with pytest.raises(UsageError, match=r"takes num_envs.*should not take num_envs"):
        make_parallel_env(lambda num_envs: Counter(), 2, backend="serial")
    with pytest.raises(UsageError, match="of 2 envs"):
        make_parallel_env(lambda num_envs: SyncVectorEnv([Counter] * 3), 2, backend="serial")


def test_attributes_are_read_from_the_vector_env_and_cannot_be_set_for_one_env():
    env = make_parallel_env(sync_vector_factory(Counter), 2, backend="serial")
    assert env.get_attr("num_envs") == (2, 2)
    with pytest.raises(CorralError, match="'value' cannot be set in one env of SyncVectorEnv"):
        env.set_attr("value", 3)
    with pytest.raises(UsageError, match="take no reset options"):
        env.reset(options={"hard": True})
    env.close()


# ---- exceptions and invalid data -----------------------------------------------------------------------------------


class FaultyVectorEnv(SyncVectorEnv):
    """Raises or returns invalid data (``how``) at some of the steps since it was made (``at``)."""

    def __init__(self, n, at=(), how="raise"):
        super().__init__([lambda: Counter(100)] * n, autoreset_mode=AutoresetMode.DISABLED)
        self.at, self.how, self.count = at, how, 0

    def step(self, actions):
        self.count += 1
        outcome = super().step(actions)
        if self.count not in self.at:
            return outcome
        match self.how:
            case "raise":
                raise ValueError("the dragon won")
            case "nan":
                outcome[0][1] = np.nan
            case "shape":
                return (outcome[0][:1], *outcome[1:])
            case "rewards":
                return (outcome[0], outcome[1][:1], *outcome[2:])
            case "flags":
                return (*outcome[:2], outcome[2] * 0.5, *outcome[3:])
            case "four":
                return outcome[:4]
        return outcome


def make_faulty(**kwargs):
    """Return a reset vector env whose 3 envs belong to one ``FaultyVectorEnv``, with recovery on."""
    factory = resolve_env(lambda num_envs: FaultyVectorEnv(num_envs, **kwargs))
    env = SerialVectorEnv(factory, 3, seed=1, infos="summed", recover=True)
    env.reset_arrays()
    return env


def step(env, times=1):
    """Step a vector env with actions that are all zero."""
    for _ in range(times):
        for leaf in env.arrays.actions.values():
            leaf[...] = 0
        env.send()
        env.recv()


def test_a_vector_env_that_raises_is_remade_and_all_its_episodes_are_truncated():
    env = make_faulty(at=(5,))
    step(env, 4)
    last_observations = env.arrays.observations[""].copy()
    step(env)
    arrays = env.arrays
    assert arrays.truncated.all() and not arrays.terminated.any() and not arrays.rewards.any()
    assert np.array_equal(arrays.final_observations[""], last_observations)
    assert (arrays.observations[""][:, 1] == 0).all() and (arrays.episode == 1).all()
    report = env.take_report()
    assert report.fault_counts == FaultCounts(env_faults=1, inexact=3)
    assert "the dragon won" in str(report.faults[0])
    step(env, 3)
    assert env.take_report().fault_counts == FaultCounts()
    env.close()


def test_a_vector_env_that_raises_in_its_first_step_ends_the_run():
    env = make_faulty(at=(1, 2, 3))
    with pytest.raises(EnvFault, match="envs 0 to 2 raised ValueError: the dragon won") as fault:
        step(env)
    assert fault.value.exit_code == 2 and "in step" in fault.value.env_traceback


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nan", "not finite"),
        ("shape", r"are \(1, 2\) float32, expected \(3, 2\)"),
        ("rewards", r"rewards are \(1,\) float64, expected \(3,\)"),
        ("flags", r"terminated are \(3,\) float64, expected \(3,\) bool"),
        ("four", "step returned a tuple of 4"),
    ],
)
def test_invalid_step_data_is_refused(how, message):
    env = make_faulty(at=(4,), how=how)
    step(env, 3)
    with pytest.raises(InvalidEnvData, match=message):
        step(env)


class OutOfSpace(SyncVectorEnv):
    """Its observations are filled with ``value``, which is not in ``space``."""

    def __init__(self, n, space, value):
        super().__init__([lambda: Spaces(space, spaces.Discrete(2))] * n, autoreset_mode=AutoresetMode.SAME_STEP)
        self.value = value

    def step(self, actions):
        observations, *rest = super().step(actions)
        return np.full_like(observations, self.value, dtype=np.int64), *rest


@pytest.mark.parametrize(
    ("space", "value", "message"),
    [
        (spaces.Discrete(3), 7, r"values 7 to 7, not all in Discrete\(3\)"),
        (spaces.Discrete(3, start=1), 0, "values 0 to 0, not all in"),
        (spaces.MultiDiscrete([3, 9]), 5, "values 5 to 5, not all in"),
        (spaces.MultiBinary(2), 2, "not all in|cannot hold"),
        (spaces.Box(-9, 9, (2,), np.int8), 300, "values 300 to 300, which int8 cannot hold|are .* int64"),
    ],
)
def test_integer_observations_outside_their_space_are_refused(space, value, message):
    env = SerialVectorEnv(resolve_env(lambda num_envs: OutOfSpace(num_envs, space, value)), 2, seed=1)
    env.reset_arrays()
    with pytest.raises(InvalidEnvData, match=message):
        step(env)


def test_a_vector_env_that_raises_in_every_episode_ends_the_run():
    env = make_faulty(at=(5,))  # every remade vector env raises at its fifth step
    with pytest.raises(EnvFault, match="the dragon won"):
        step(env, 16)
    assert env.take_report().fault_counts == FaultCounts(env_faults=2, inexact=6)


class RaisesInStep9(Counter):
    """Raises in step 9 of an episode, if its length is 100; shorter episodes do not get there."""

    def step(self, action):
        outcome = super().step(action)
        if self.length == 100 and outcome[0][1] == 9:
            raise ValueError("the dragon won")
        return outcome


def test_an_env_that_always_raises_ends_the_run_even_if_others_complete_episodes():
    def make(num_envs):
        lengths = [4] * (num_envs - 1) + [100]
        return SyncVectorEnv([functools.partial(RaisesInStep9, length) for length in lengths])

    env = SerialVectorEnv(resolve_env(make), 3, seed=1, infos="summed", recover=True)
    env.reset_arrays()
    with pytest.raises(EnvFault, match="the vector env of envs 0 to 2 raised ValueError: the dragon won"):
        step(env, 100)
    assert env.take_report().fault_counts == FaultCounts(env_faults=2, inexact=6)


def test_a_vector_env_that_raises_occasionally_does_not_end_the_run():
    made = []

    def make(num_envs):
        made.append(num_envs)
        # Raises before or after the end of its first episodes, which have 100 steps.
        return FaultyVectorEnv(num_envs, at=(95 + len(made) % 3 * 10,))

    env = SerialVectorEnv(resolve_env(make), 2, seed=1, infos="summed", recover=True)
    env.reset_arrays()
    step(env, 1000)
    assert env.take_report().fault_counts.env_faults >= 8
    env.close()


def test_an_invalid_mask_names_env_step_seed_and_action():
    def make(num_envs):
        invalid = [functools.partial(Masked, "info", wrong="empty")]
        return SyncVectorEnv([SeedlessMasked] * (num_envs - 1) + invalid)

    env = SerialVectorEnv(resolve_env(make), 3, seed=1, infos="summed")
    env.reset_arrays()
    with pytest.raises(InvalidEnvData, match="forbids every action") as fault:
        for _ in range(3):
            env.codec.decode(env.codec.random(env.masks, 3, np.random.default_rng(0)), env.arrays.actions)
            env.send()
            env.recv()
    location = fault.value.location
    assert (location.env, location.step, location.seed) == (2, 3, episode_seed(1, 2, 0)) and location.action in "0123"


class CountsLives(SyncVectorEnv):
    """Games that begin with three lives, and have five lives when they are truncated."""

    counts_lives = True

    def __init__(self, n):
        super().__init__([lambda: Counter(4, truncate=True)] * n, autoreset_mode=AutoresetMode.DISABLED)

    def step(self, actions):
        observations, *rest, infos = super().step(actions)
        return observations, *rest, {**infos, "lives": np.where(observations[:, 1] < 2, 3, 5)}


def test_fewer_lives_at_the_start_of_an_episode_are_no_lost_life():
    env = SerialVectorEnv(resolve_env(lambda num_envs: CountsLives(num_envs)), 2, seed=1, infos="summed")
    env.reset_arrays()
    for _ in range(10):
        step(env)
        assert not env.arrays.life_lost.any()
    env.close()


class AlwaysLosesLife(Counter):
    """Says in every info that a life was lost."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"life_lost": True}

    def step(self, action):
        return *super().step(action)[:4], {"life_lost": True}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_no_life_is_lost_in_the_step_that_ends_an_episode(mode):
    factory = resolve_env(sync_vector_factory(lambda: AlwaysLosesLife(4, truncate=True), mode))
    env = SerialVectorEnv(factory, 2, seed=1, infos="summed")
    env.reset_arrays()
    for _ in range(9):
        step(env)
        assert np.array_equal(env.arrays.life_lost, ~env.arrays.truncated)
    env.close()


def test_restore_to_a_position_truncates_the_episodes_and_counts_them_as_inexact():
    env = make_faulty()
    step(env, 3)
    observation = {"": np.array([0.5, 77], np.float32)}
    actions = {"": np.zeros(77, np.int64)}
    position = EnvPosition(episode=4, seed=1, steps=77, actions=actions, observation=observation, mask=None)
    assert env.restore([position] * 3) == [0, 1, 2]
    step(env)
    arrays = env.arrays
    assert arrays.truncated.all() and (arrays.episode == 5).all()
    assert (arrays.final_observations[""] == observation[""]).all()
    assert env.take_report().fault_counts == FaultCounts(inexact=3)
    env.close()


@pytest.mark.parametrize("factory", [sync_vector_factory(Counter), "envpool:CartPole-v1"], ids=["vector", "envpool"])
def test_restore_before_the_first_step_loses_no_episode(factory):
    was_reset, was_restored = (SerialVectorEnv(resolve_env(factory), 2, seed=1, infos="summed") for _ in range(2))
    was_reset.reset_arrays()
    no_actions = was_restored.codec.layout.allocate(0)
    positions = [EnvPosition(0, episode_seed(1, i, 0), 0, no_actions, {}, None) for i in range(2)]
    was_restored.has_masks = False
    assert was_restored.restore(positions) == []
    assert np.array_equal(was_reset.arrays.observations[""], was_restored.arrays.observations[""])
    step(was_restored)
    assert not was_restored.arrays.truncated.any()
    was_reset.close(), was_restored.close()


# ---- EnvPool -------------------------------------------------------------------------------------------------------


def test_envpool_gives_the_same_steps_with_any_number_of_workers():
    env = "envpool:MountainCarContinuous-v0"
    serial_steps, serial_infos = trace(env, n=3, steps=60)
    process_steps, process_infos = trace(env, n=3, steps=60, backend="process", num_workers=2)
    assert traces_equal(serial_steps, process_steps)
    assert serial_infos == process_infos and not {"env_id", "elapsed_step"} & serial_infos.keys()


@pytest.mark.parametrize("task", ["CartPole-v1", "CoinrunEasy-v0", "HalfCheetah-v4", "CheetahRun-v1"])
def test_envpool_envs_do_not_depend_on_other_envs_of_the_batch(task):
    factory = resolve_env(f"envpool:{task}")
    three_envs = SerialVectorEnv(factory, 3, seed=5, infos="summed")
    last_two = SerialVectorEnv(factory, 2, seed=5, infos="summed", first_env=1)
    rng = np.random.default_rng(0)
    for env in (three_envs, last_two):
        env.reset_arrays()
    for _ in range(60):
        actions = three_envs.codec.random(None, 3, rng)
        for env, rows in ((three_envs, actions), (last_two, actions[1:])):
            env.codec.decode(rows, env.arrays.actions)
            env.send()
            env.recv()
        for path, leaf in last_two.arrays.observations.items():
            assert np.array_equal(three_envs.arrays.observations[path][1:], leaf)
        assert np.array_equal(three_envs.arrays.rewards[1:], last_two.arrays.rewards)
    three_envs.close(), last_two.close()


def test_envpool_truncates_with_final_observations_and_autoresets_in_the_same_step():
    factory = resolve_env("envpool:Pendulum-v1", {"max_episode_steps": 20})
    env = SerialVectorEnv(factory, 2, seed=1, infos="summed")
    assert isinstance(env.stepper, BatchStepper)
    env.reset_arrays()
    step(env, 19)
    before_last_step = env.arrays.observations[""].copy()
    step(env)
    arrays = env.arrays
    assert arrays.truncated.all() and not arrays.terminated.any()
    assert np.abs(arrays.final_observations[""] - before_last_step).max() < 1  # one step away
    first = arrays.observations[""].copy()
    step(env)
    assert (arrays.episode == 1).all() and np.abs(arrays.observations[""] - first).max() < 1  # one step away
    assert not arrays.truncated.any() and (arrays.rewards < 0).all()
    env.close()


def test_envpool_atari_has_frame_stacks_and_trains():
    import corral

    env = make_env("envpool:Pong-v5")
    observation, _ = env.reset(seed=3)
    assert env.frame_stacks == {"": 4} and (observation == observation[-1:]).all()
    env.close()
    settings = {"n_envs": 2, "n_steps": 8, "batch_size": 16, "n_epochs": 1, "timesteps": 16, "eval_freq": 0}
    result = corral.train("envpool:Pong-v5", **settings, seed=1, backend="serial", quiet=True)
    assert result.summary.steps == 16


def test_a_lost_life_in_envpool_atari_is_flagged_and_the_episode_continues():
    env = SerialVectorEnv(resolve_env("envpool:Breakout-v5"), 2, seed=1, infos="summed")
    env.reset_arrays()
    lives_lost = 0
    for _ in range(120):
        step(env)
        lives_lost += int(env.arrays.life_lost.sum())
        assert not (env.arrays.life_lost & env.arrays.terminated).any()
        if lives_lost:
            break
    assert lives_lost and (env.arrays.episode == 0).all()
    env.close()


def test_unseeded_envpool_envs_differ():
    env = make_parallel_env("envpool:CartPole-v1", 4, num_workers=2)
    observations, _ = env.reset()
    assert len({tuple(observation) for observation in observations.tolist()}) == 4
    env.close()


def test_a_single_envpool_env_is_a_gymnasium_env_with_seeds_and_rendering():
    env = make_env("envpool:CartPole-v1", render_mode="rgb_array")
    episodes = []
    for seed in (1, 1, 2):
        observations = [env.reset(seed=seed)[0]]
        for _ in range(5):
            observations.append(env.step(1)[0])
        episodes.append(np.array(observations))
    assert np.array_equal(episodes[0], episodes[1]) and not np.array_equal(episodes[0], episodes[2])
    assert not np.array_equal(env.reset()[0], env.reset()[0])
    assert env.render().shape[2] == 3
    env.close()


def test_envpool_threads_are_divided_among_processes():
    def threads(task, processes):
        """Return the threads of EnvPool in each of so many processes."""
        vector = resolve_env(f"envpool:{task}").for_processes(processes).make_vector(4)
        num_threads = vector.config["num_threads"]
        vector.close()
        return num_threads

    assert threads("HalfCheetah-v4", 1) == min(4, available_cores())
    assert threads("HalfCheetah-v4", available_cores()) == 1
    assert threads("CartPole-v1", 1) == 1


@pytest.mark.parametrize(
    ("task", "kwargs", "message"),
    [
        ("Pong-v5", {"stack_num": 0}, "stack_num 0 for envpool:Pong-v5: should be 1 or more"),
        ("CartPol-v1", {}, r"EnvPool has no 'CartPol-v1' \(did you mean 'CartPole-v1'\?\)"),
        ("Pong-v5", {"stack_numb": 4}, r"no 'stack_numb' \(did you mean 'stack_num'\?\)"),
        ("Pong-v5", {"stack_num": "four"}, "does not take stack_num='four'"),
        ("Pong-v5", {"num_envs": 4}, "leave it out of env_kwargs"),
        ("Pong-v5", {"task": "breakout"}, "gets 'task' from its id"),
        ("Pong-v5", {"noop_max": 0}, "noop_max 0 for envpool:Pong-v5: should be 1 or more"),
        ("Ant-v4", {"num_threads": -1}, "should be 1 or more"),
    ],
)
def test_wrong_envpool_settings_are_refused_with_advice(task, kwargs, message):
    with pytest.raises(UsageError, match=message):
        make_env(f"envpool:{task}", **kwargs)


@pytest.mark.skipif(sys.platform != "linux", reason="on other systems EnvPool contains Qt")
def test_procgen_without_qt_says_what_to_install(monkeypatch):
    def fail_to_load(name, *args, **kwargs):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    envpool._load_qt.cache_clear()
    monkeypatch.setattr(envpool.ctypes, "CDLL", fail_to_load)
    with pytest.raises(MissingPackage, match=r"cannot be loaded: .* cannot open shared .*`apt install libqt5gui5`"):
        make_env("envpool:CoinrunEasy-v0")
    monkeypatch.setattr(envpool.importlib.metadata, "distribution", not_installed)
    with pytest.raises(MissingPackage, match="pip install 'corral\\[procgen\\]'"):
        make_env("envpool:CoinrunEasy-v0")


def test_an_id_without_envpool_prefix_is_a_gymnasium_env():
    assert resolve_env("CartPole-v1").is_vector is False
    assert isinstance(make_env("CartPole-v1").unwrapped, gym.Env)
