"""Vector envs that others made: what they do is mapped to Corral's contract, and never more is promised than they can."""

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
from corral.core.types import RecoveryCounts
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
EVERYTHING = spaces.Dict(
    box=spaces.Box(-1, 1, (2, 3)), pair=spaces.Tuple([spaces.Discrete(3, start=2), spaces.MultiBinary(3)])
)


class Steady(Reporter):
    """Its episodes do not depend on seeds."""

    def reset(self, *, seed=None, options=None):
        _, info = super().reset(seed=seed)
        self.draw = 0.5
        return self._observe(), info


class Alternating(Masked):
    """Where it begins does not depend on seeds."""

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


def together(env, mode=AutoresetMode.SAME_STEP):
    """A factory of vector envs."""

    def make(num_envs):
        return SyncVectorEnv([env] * num_envs, autoreset_mode=mode)

    return make


def trace(factory, n=3, steps=40, backend="serial", **kwargs):
    """All that a vector env shows, step by step, and what it said in all."""
    env = make_vector_env(resolve_env(factory), n, backend=backend, seed=5, infos="summed", **kwargs)
    try:
        random, a, found = np.random.default_rng(0), env.arrays, []
        env.reset_arrays()
        for _ in range(steps):
            env.codec.decode(env.codec.random(env.masks, n, random), a.actions)
            env.send()
            env.recv()
            ended = a.terminated | a.truncated
            found.append([a.rewards.copy(), a.terminated.copy(), a.truncated.copy(), a.episode.copy()])
            found[-1] += [leaf.copy() for leaf in a.observations.values()]
            found[-1] += [leaf[ended] for leaf in a.final_observations.values()]
            found[-1] += [] if env.masks is None else [env.masks.copy()]
        return found, merge_sums(env.drain().infos)
    finally:
        env.close()


def same(one, two):
    return all(np.array_equal(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
@pytest.mark.parametrize(
    "env",
    [Steady, functools.partial(Steady, 4, True), Alternating, functools.partial(Alternating, "method")],
    ids=["ends", "cut off", "masks", "methods"],
)
def test_a_vector_env_shows_what_its_envs_would_show_one_by_one(env, mode):
    (one, said), (two, told) = trace(env), trace(together(env, mode))
    assert same(one, two)
    assert said == told


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_any_spaces(mode):
    shown, told = trace(together(lambda: Spaces(EVERYTHING, EVERYTHING), mode))
    again, _ = trace(together(lambda: Spaces(EVERYTHING, EVERYTHING), mode), backend="process", num_workers=2)
    assert same(shown, again)
    assert told["count"].count == 3 * 40 and "note" not in told and "start" not in told


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_infos_reach_who_asks_for_them(mode):
    env, plain = (
        make_parallel_env(factory, 2, backend="serial") for factory in (together(Steady, mode), lambda: Steady())
    )
    for vector in (env, plain):
        vector.reset(seed=1)
    for _ in range(7):
        (*_, one), (*_, two) = env.step(np.zeros(2, int)), plain.step(np.zeros(2, int))
        assert one.keys() == two.keys()
        assert np.array_equal(one.get("height"), two.get("height"))
        if "final_info" in one:
            assert np.array_equal(one["final_info"]["height"], two["final_info"]["height"])
            assert all(np.array_equal(a, b) for a, b in zip(one["final_obs"], two["final_obs"], strict=True))
    env.close(), plain.close()


class NextStepOnly(SyncVectorEnv):
    """As many vector envs are: what it is told about single envs it does not understand."""

    @property
    def unwrapped(self):
        return object()

    def reset(self, *, seed=None, options=None):
        assert not options
        return super().reset(seed=seed)


def test_where_no_env_can_begin_alone_each_is_made_alone():
    def make(num_envs):
        return NextStepOnly([Counter] * num_envs)

    with pytest.warns(UserWarning, match="made once for each env, which is slower: .* NEXT_STEP"):
        env = SerialVectorEnv(resolve_env(make), 3, seed=5, infos="summed")
    assert isinstance(env.stepper, Stepper)
    env.close()


def normalized(num_envs):
    """What is around it knows of no env alone."""
    return NormalizeObservation(SyncVectorEnv([Steady] * num_envs))


@pytest.mark.parametrize("n", [1, 3])
def test_what_is_around_a_vector_env_decides_too(n):
    with pytest.warns(UserWarning, match="which is slower: reset does not begin an episode in one env alone"):
        env = SerialVectorEnv(resolve_env(normalized), n, seed=5, infos="summed")
    env.reset_arrays()
    step(env, 12)
    assert isinstance(env.stepper, Stepper) and env.arrays.episode.min() > 0
    env.close()


class WholeOnly(gym.vector.VectorWrapper):
    """Does not pass on options."""

    def reset(self, *, seed=None, options=None):
        assert not options
        return super().reset(seed=seed)


@pytest.mark.filterwarnings("ignore:the vector env")
def test_envs_that_are_made_alone_have_their_masks():
    def make(num_envs):
        return WholeOnly(together(functools.partial(Alternating, "method"), MODES["next step"])(num_envs))

    one, two = trace(functools.partial(Alternating, "method")), trace(make)
    assert same(one[0], two[0])


@pytest.mark.filterwarnings("ignore:the vector env")
def test_envs_that_are_made_alone_are_seeded_as_any_other():
    def one_seed(num_envs):
        vector = SyncVectorEnv([Counter] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)
        reset = vector.reset
        vector.reset = lambda *, seed=None, options=None: reset(seed=operator.index(seed), options=options)
        return vector

    assert same(trace(lambda num_envs: NextStepOnly([Counter] * num_envs))[0], trace(Counter)[0])
    assert same(trace(one_seed)[0], trace(Counter)[0])
    shown, _ = trace("gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv", steps=60)
    assert shown[-1][3].sum() > 3  # episodes


def test_a_function_that_takes_num_envs_must_return_as_many():
    with pytest.raises(UsageError, match=r"takes num_envs.*should not take num_envs"):
        make_parallel_env(lambda num_envs: Counter(), 2, backend="serial")
    with pytest.raises(UsageError, match="of 2 envs"):
        make_parallel_env(lambda num_envs: SyncVectorEnv([Counter] * 3), 2, backend="serial")


def test_attributes_are_those_of_the_vector_env():
    env = make_parallel_env(together(Counter), 2, backend="serial")
    assert env.get_attr("num_envs") == (2, 2)
    with pytest.raises(CorralError, match="'value' cannot be set in one env of SyncVectorEnv"):
        env.set_attr("value", 3)
    with pytest.raises(UsageError, match="take no reset options"):
        env.reset(options={"hard": True})
    env.close()


# ---- accidents ---------------------------------------------------------------------------------------------------


class Fragile(SyncVectorEnv):
    """Raises, or returns nonsense, at some steps of its life."""

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


def fragile(**how):
    factory = resolve_env(lambda num_envs: Fragile(num_envs, **how))
    env = SerialVectorEnv(factory, 3, seed=1, infos="summed", heal=True)
    env.reset_arrays()
    return env


def step(env, times=1):
    for _ in range(times):
        for leaf in env.arrays.actions.values():
            leaf[...] = 0
        env.send()
        env.recv()


def test_what_raises_is_made_again_and_its_episodes_are_cut_off():
    env = fragile(at=(5,))
    step(env, 4)
    before = env.arrays.observations[""].copy()
    step(env)
    a = env.arrays
    assert a.truncated.all() and not a.terminated.any() and not a.rewards.any()
    assert np.array_equal(a.final_observations[""], before)
    assert (a.observations[""][:, 1] == 0).all() and (a.episode == 1).all()
    said = env.drain()
    assert said.recovery_counts == RecoveryCounts(env_faults=1, inexact=3) and "the dragon won" in str(said.faults[0])
    step(env, 3)
    assert env.drain().recovery_counts == RecoveryCounts()
    env.close()


def test_what_always_raises_ends_the_run_at_once():
    env = fragile(at=(1, 2, 3))
    with pytest.raises(EnvFault, match="envs 0 to 2 raised ValueError: the dragon won") as fault:
        step(env)
    assert fault.value.exit_code == 2 and "in step" in fault.value.env_traceback


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("nan", "not finite"),
        ("shape", r"are \(1, 2\) float32, expected \(3, 2\)"),
        ("rewards", r"rewards are \(1,\) float64, expected \(3,\)"),
        ("flags", r"terminated are \(3,\) float64, expected \(3,\) bool"),
        ("four", "step returned a tuple of 4"),
    ],
)
def test_data_that_no_learner_could_use_is_refused(how, words):
    env = fragile(at=(4,), how=how)
    step(env, 3)
    with pytest.raises(InvalidEnvData, match=words):
        step(env)


class Outside(SyncVectorEnv):
    """Shows numbers that its space does not have."""

    def __init__(self, n, space, value):
        super().__init__([lambda: Spaces(space, spaces.Discrete(2))] * n, autoreset_mode=AutoresetMode.SAME_STEP)
        self.value = value

    def step(self, actions):
        seen, *rest = super().step(actions)
        return np.full_like(seen, self.value, dtype=np.int64), *rest


@pytest.mark.parametrize(
    ("space", "value", "words"),
    [
        (spaces.Discrete(3), 7, r"values 7 to 7, not all in Discrete\(3\)"),
        (spaces.Discrete(3, start=1), 0, "values 0 to 0, not all in"),
        (spaces.MultiDiscrete([3, 9]), 5, "values 5 to 5, not all in"),
        (spaces.MultiBinary(2), 2, "not all in|cannot hold"),
        (spaces.Box(-9, 9, (2,), np.int8), 300, "values 300 to 300, which int8 cannot hold|are .* int64"),
    ],
)
def test_numbers_outside_a_space_of_choices_are_refused(space, value, words):
    env = SerialVectorEnv(resolve_env(lambda num_envs: Outside(num_envs, space, value)), 2, seed=1)
    env.reset_arrays()
    with pytest.raises(InvalidEnvData, match=words):
        step(env)


def test_what_raises_in_every_episode_ends_the_run():
    env = fragile(at=(5,))  # each new one at its fifth step
    with pytest.raises(EnvFault, match="the dragon won"):
        step(env, 16)
    assert env.drain().recovery_counts == RecoveryCounts(env_faults=2, inexact=6)


class Doomed(Counter):
    """Of those that differ: the last one raises in its step 9, whenever that is; the others' episodes are shorter."""

    def step(self, action):
        outcome = super().step(action)
        if self.length == 100 and outcome[0][1] == 9:
            raise ValueError("the dragon won")
        return outcome


def test_what_always_raises_in_one_env_ends_the_run_though_others_go_on():
    def make(num_envs):
        return SyncVectorEnv([functools.partial(Doomed, 4)] * (num_envs - 1) + [functools.partial(Doomed, 100)])

    env = SerialVectorEnv(resolve_env(make), 3, seed=1, infos="summed", heal=True)
    env.reset_arrays()
    with pytest.raises(EnvFault, match="the vector env of envs 0 to 2 raised ValueError: the dragon won"):
        step(env, 100)
    assert env.drain().recovery_counts == RecoveryCounts(env_faults=2, inexact=6)


def test_what_raises_now_and_then_goes_on():
    made = []

    def make(num_envs):
        made.append(num_envs)
        return Fragile(num_envs, at=(95 + len(made) % 3 * 10,))  # before and after the end of an episode

    env = SerialVectorEnv(resolve_env(make), 2, seed=1, infos="summed", heal=True)
    env.reset_arrays()
    step(env, 1000)
    assert env.drain().recovery_counts.env_faults >= 8
    env.close()


def test_a_wrong_mask_is_told_of_the_env_that_has_it():
    def make(num_envs):
        wrong = [functools.partial(Masked, "info", wrong="empty")]
        return SyncVectorEnv([Alternating] * (num_envs - 1) + wrong)

    env = SerialVectorEnv(resolve_env(make), 3, seed=1, infos="summed")
    env.reset_arrays()
    with pytest.raises(InvalidEnvData, match="forbids every action") as fault:
        for _ in range(3):
            env.codec.decode(env.codec.random(env.masks, 3, np.random.default_rng(0)), env.arrays.actions)
            env.send()
            env.recv()
    location = fault.value.location
    assert (location.env, location.step, location.seed) == (2, 3, episode_seed(1, 2, 0)) and location.action in "0123"


class Lives(SyncVectorEnv):
    """Games that begin with three lives, and have five when they are cut off."""

    counts_lives = True

    def __init__(self, n):
        super().__init__([lambda: Counter(4, truncate=True)] * n, autoreset_mode=AutoresetMode.DISABLED)

    def step(self, actions):
        seen, *rest, infos = super().step(actions)
        return seen, *rest, {**infos, "lives": np.where(seen[:, 1] < 2, 3, 5)}


def test_a_game_that_begins_with_fewer_lives_has_lost_none():
    env = SerialVectorEnv(resolve_env(lambda num_envs: Lives(num_envs)), 2, seed=1, infos="summed")
    env.reset_arrays()
    for _ in range(10):
        step(env)
        assert not env.arrays.life_lost.any()
    env.close()


class Mortal(Counter):
    """Says in every info that a life was lost."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0], {"life_lost": True}

    def step(self, action):
        return *super().step(action)[:4], {"life_lost": True}


@pytest.mark.parametrize("mode", MODES.values(), ids=MODES)
def test_no_life_is_lost_in_the_step_that_ends_an_episode(mode):
    env = SerialVectorEnv(resolve_env(together(lambda: Mortal(4, truncate=True), mode)), 2, seed=1, infos="summed")
    env.reset_arrays()
    for _ in range(9):
        step(env)
        assert np.array_equal(env.arrays.life_lost, ~env.arrays.truncated)
    env.close()


def test_a_position_cannot_be_reached_and_that_is_counted():
    env = fragile()
    step(env, 3)
    shown = {"": np.array([0.5, 77], np.float32)}
    position = EnvPosition(4, 1, 77, {"": np.zeros(77, np.int64)}, shown, None)
    assert env.restore([position] * 3) == [0, 1, 2]
    step(env)
    a = env.arrays
    assert a.truncated.all() and (a.final_observations[""] == shown[""]).all() and (a.episode == 5).all()
    assert env.drain().recovery_counts == RecoveryCounts(inexact=3)
    env.close()


@pytest.mark.parametrize("factory", [together(Counter), "envpool:CartPole-v1"], ids=["vector", "envpool"])
def test_before_its_first_step_a_new_worker_has_lost_nothing(factory):
    one, two = (SerialVectorEnv(resolve_env(factory), 2, seed=1, infos="summed") for _ in range(2))
    one.reset_arrays()
    blank = [EnvPosition(0, episode_seed(1, i, 0), 0, two.codec.layout.allocate(0), {}, None) for i in range(2)]
    two.has_masks = False
    assert two.restore(blank) == []
    assert np.array_equal(one.arrays.observations[""], two.arrays.observations[""])
    step(two)
    assert not two.arrays.truncated.any()
    one.close(), two.close()


# ---- EnvPool -------------------------------------------------------------------------------------------------------


def test_envpool_shows_the_same_to_any_number_of_workers():
    one, said = trace("envpool:MountainCarContinuous-v0", n=3, steps=60)
    two, told = trace("envpool:MountainCarContinuous-v0", n=3, steps=60, backend="process", num_workers=2)
    assert same(one, two)
    assert said == told and not {"env_id", "elapsed_step"} & said.keys()


@pytest.mark.parametrize("task", ["CartPole-v1", "CoinrunEasy-v0", "HalfCheetah-v4", "CheetahRun-v1"])
def test_envpools_envs_do_not_depend_on_their_neighbours(task):
    factory = resolve_env(f"envpool:{task}")
    whole = SerialVectorEnv(factory, 3, seed=5, infos="summed")
    part = SerialVectorEnv(factory, 2, seed=5, infos="summed", first_env=1)
    random = np.random.default_rng(0)
    for env in (whole, part):
        env.reset_arrays()
    for _ in range(60):
        actions = whole.codec.random(None, 3, random)
        for env, rows in ((whole, actions), (part, actions[1:])):
            env.codec.decode(rows, env.arrays.actions)
            env.send()
            env.recv()
        for path, leaf in part.arrays.observations.items():
            assert np.array_equal(whole.arrays.observations[path][1:], leaf)
        assert np.array_equal(whole.arrays.rewards[1:], part.arrays.rewards)
    whole.close(), part.close()


def test_envpool_ends_episodes_as_the_contract_says():
    factory = resolve_env("envpool:Pendulum-v1", {"max_episode_steps": 20})
    env = SerialVectorEnv(factory, 2, seed=1, infos="summed")
    assert isinstance(env.stepper, BatchStepper)
    env.reset_arrays()
    step(env, 19)
    before = env.arrays.observations[""].copy()
    step(env)
    a = env.arrays
    assert a.truncated.all() and not a.terminated.any()
    assert np.abs(a.final_observations[""] - before).max() < 1  # it went on from there ...
    first = a.observations[""].copy()
    step(env)
    assert (a.episode == 1).all() and np.abs(a.observations[""] - first).max() < 1  # ... and so did the next one
    assert not a.truncated.any() and (a.rewards < 0).all()
    env.close()


def test_envpool_stacks_are_kept_once_and_frames_are_what_they_say():
    import corral

    env = make_env("envpool:Pong-v5")
    observation, _ = env.reset(seed=3)
    assert env.frame_stacks == {"": 4} and (observation == observation[-1:]).all()
    env.close()
    settings = {"n_envs": 2, "n_steps": 8, "batch_size": 16, "n_epochs": 1, "timesteps": 16, "eval_freq": 0}
    result = corral.train("envpool:Pong-v5", **settings, seed=1, backend="serial", quiet=True)
    assert result.summary.steps == 16


def test_a_life_lost_in_envpools_atari_is_told_and_the_game_goes_on():
    env = SerialVectorEnv(resolve_env("envpool:Breakout-v5"), 2, seed=1, infos="summed")
    env.reset_arrays()
    lost = 0
    for _ in range(120):
        step(env)
        lost += int(env.arrays.life_lost.sum())
        assert not (env.arrays.life_lost & env.arrays.terminated).any()
        if lost:
            break
    assert lost and (env.arrays.episode == 0).all()
    env.close()


def test_envpools_envs_differ_without_a_seed_too():
    env = make_parallel_env("envpool:CartPole-v1", 4, num_workers=2)
    first = env.reset()[0]
    assert len({tuple(row) for row in first.tolist()}) == 4
    env.close()


def test_one_of_envpools_envs_is_an_env():
    env = make_env("envpool:CartPole-v1", render_mode="rgb_array")
    runs = []
    for seed in (1, 1, 2):
        shown = [env.reset(seed=seed)[0]]
        for _ in range(5):
            shown.append(env.step(1)[0])
        runs.append(np.array(shown))
    assert np.array_equal(runs[0], runs[1]) and not np.array_equal(runs[0], runs[2])
    assert not np.array_equal(env.reset()[0], env.reset()[0])
    assert env.render().shape[2] == 3
    env.close()


def test_processes_share_the_cores():
    def threads(task, processes):
        vector = resolve_env(f"envpool:{task}").for_processes(processes).make_vector(4)
        found = vector.config["num_threads"]
        vector.close()
        return found

    assert threads("HalfCheetah-v4", 1) == min(4, available_cores())
    assert threads("HalfCheetah-v4", available_cores()) == 1
    assert threads("CartPole-v1", 1) == 1


@pytest.mark.parametrize(
    ("task", "kwargs", "words"),
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
def test_mistakes_are_told(task, kwargs, words):
    with pytest.raises(UsageError, match=words):
        make_env(f"envpool:{task}", **kwargs)


@pytest.mark.skipif(sys.platform != "linux", reason="Qt is part of EnvPool elsewhere")
def test_procgen_without_qt_says_what_to_install(monkeypatch):
    def not_there(name, *args, **kwargs):
        raise OSError(f"{name}: cannot open shared object file: No such file or directory")

    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    envpool._load_qt.cache_clear()
    monkeypatch.setattr(envpool.ctypes, "CDLL", not_there)
    with pytest.raises(MissingPackage, match=r"cannot be loaded: .* cannot open shared .*`apt install libqt5gui5`"):
        make_env("envpool:CoinrunEasy-v0")
    monkeypatch.setattr(envpool.importlib.metadata, "distribution", not_installed)
    with pytest.raises(MissingPackage, match="pip install 'corral\\[procgen\\]'"):
        make_env("envpool:CoinrunEasy-v0")


def test_gymnasium_is_not_confused_with_it():
    assert resolve_env("CartPole-v1").is_vector is False
    assert isinstance(make_env("CartPole-v1").unwrapped, gym.Env)
