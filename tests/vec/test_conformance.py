"""Serial and process vector envs pass the same tests, and are compared with each other bit for bit."""

import random

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from corral.core.errors import CorralError
from corral.core.seeding import episode_seed
from corral.envs.factory import resolve_env
from corral.vec import ProcessVectorEnv, SerialVectorEnv, make_vector_env
from corral.vec.api import merge_sums
from corral.vec.make_vec import make_parallel_env
from tests.toy_envs import Counter, IntsOnly, Masked, Mutating, Reporter, Spaces

EVERYTHING = spaces.Dict(
    box=spaces.Box(-1, 1, (2, 3)),
    image=spaces.Box(0, 255, (4, 4), np.uint8),
    nested=spaces.Tuple(
        [spaces.Discrete(3, start=2), spaces.Dict(m=spaces.MultiBinary(3), d=spaces.MultiDiscrete([2, 5]))]
    ),
)
CASES = {
    "counter": Counter,
    "cartpole": "CartPole-v1",
    "pendulum": "Pendulum-v1",
    "blackjack": "Blackjack-v1",
    "taxi": "Taxi-v4",
    "maze": "toy-maze",
    "masks by method": lambda: Masked("method"),
    "masks by info": lambda: Masked("info"),
    "everything": lambda: Spaces(EVERYTHING, EVERYTHING),
    "infos": Reporter,
}


@pytest.fixture(params=["serial", "process"])
def make(request):
    """Makes vector envs of one kind and closes them."""
    made = []

    def build(env, n=3, **kwargs):
        if request.param == "process":
            kwargs.setdefault("num_workers", 2)
        made.append(make_parallel_env(env, n, backend=request.param, **kwargs))
        return made[-1]

    yield build
    for env in made:
        env.close()


def as_actions(codec, rows):
    out = codec.layout.allocate(len(rows))
    codec.decode(rows, out)
    return codec.layout.batch(out)


def trace(env, steps=40, seed=None):
    """Everything that an env gives out for a fixed sequence of actions."""
    generator = np.random.default_rng(5)
    out = [repr(env.reset(seed=seed))]
    for _ in range(steps):
        rows = env.codec.random(env.masks, env.num_envs, generator)
        out.append(repr(env.step(as_actions(env.codec, rows))))
        out.append(repr(env.masks))
    env.close()
    return out


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_workers_gives_the_same_bits(case):
    factory = resolve_env(CASES[case])
    expected = trace(make_vector_env(factory, 4, backend="serial", seed=9))
    for workers in (1, 3, 4):
        assert trace(make_vector_env(factory, 4, backend="process", num_workers=workers, seed=9)) == expected


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_every_start_method_gives_the_same_bits(method):
    class Local(Counter):  # a local class: only cloudpickle can carry it
        pass

    factory = resolve_env(lambda: Local(3))
    expected = trace(make_vector_env(factory, 2, backend="serial", seed=1))
    assert trace(make_vector_env(factory, 2, backend="process", num_workers=2, start_method=method, seed=1)) == expected


@pytest.mark.parametrize("case", ["counter", "cartpole", "everything", "infos"])
def test_agrees_with_gymnasiums_own_vector_env(make, case):
    ours = make(CASES[case], 3)
    factory = resolve_env(CASES[case])
    theirs = SyncVectorEnv([factory] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    (obs, _), (expected, _) = ours.reset(seed=4), theirs.reset(seed=4)
    assert repr(obs) == repr(expected)
    ours.action_space.seed(0)
    for _ in range(30):
        actions = ours.action_space.sample()
        one, two = ours.step(actions), theirs.step(actions)
        assert repr(one[:4]) == repr(two[:4])
        assert one[4].keys() == two[4].keys()
        if "final_obs" in one[4]:
            assert repr(one[4]["final_obs"].tolist()) == repr(two[4]["final_obs"].tolist())
            assert repr(one[4]["_final_obs"]) == repr(two[4]["_final_obs"])
    theirs.close()


def test_is_a_gymnasium_vector_env(make):
    env = make("CartPole-v1", 3)
    assert isinstance(env, gym.vector.VectorEnv) and env.num_envs == 3
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, _ = env.reset(seed=1)
    assert env.observation_space.contains(obs)
    obs, rewards, terminated, truncated, infos = env.step(env.action_space.sample())
    assert env.observation_space.contains(obs) and infos == {}
    assert rewards.shape == terminated.shape == truncated.shape == (3,)
    wrapped = gym.wrappers.vector.RecordEpisodeStatistics(env)
    wrapped.reset(seed=1)
    wrapped.step(env.action_space.sample())


@pytest.mark.parametrize(
    "action", [None, spaces.Dict(a=spaces.Tuple([spaces.Discrete(3, start=1)]))], ids=["plain", "nested"]
)
def test_discrete_actions_are_pythons_integers_and_arrays_without_axes_are_numbers(make, action):
    env = make(lambda: IntsOnly(action), seed=0)
    env.reset()
    for _ in range(20):
        _, rewards, terminated, _, _ = env.step(as_actions(env.codec, np.zeros((3, 1), np.int64)))
        assert rewards.tolist() == [1.0] * 3
        assert terminated.dtype == np.bool_


def test_numbers_with_an_axis_are_refused(make):
    class Batched(Counter):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, np.array([reward]), *rest

    env = make(Batched)
    env.reset()
    with pytest.raises(CorralError, match=r"the reward is an array of shape \(1,\).*expected a number"):
        env.step(np.zeros(3, np.int64))


def test_an_episode_restarts_in_the_step_that_ends_it(make):
    env = make(lambda: Counter(length=3, truncate=True), 2)
    env.reset(seed=0)
    for _ in range(2):
        _, _, _, truncated, infos = env.step(np.zeros(2, int))
        assert not truncated.any() and "final_obs" not in infos
    obs, rewards, terminated, truncated, infos = env.step(np.zeros(2, int))
    assert truncated.all() and not terminated.any() and rewards.tolist() == [3, 3]
    assert [final[1] for final in infos["final_obs"]] == [3, 3]
    assert obs[:, 1].tolist() == [0, 0]


def test_every_episode_of_every_env_has_its_own_seed(make):
    env = make(lambda: Counter(length=1), 2, seed=11)
    env.reset()
    draws = [env.arrays.observations[""][:, 0].copy()]
    for _ in range(3):
        env.step(np.zeros(2, int))
        draws.append(env.arrays.observations[""][:, 0].copy())
    expected = [
        [np.float32(np.random.Generator(np.random.PCG64(episode_seed(11, i, k))).random()) for i in range(2)]
        for k in range(4)
    ]
    assert np.array_equal(draws, expected)


def test_returned_arrays_are_the_callers_to_keep(make):
    env = make(Mutating, 2)
    first, _ = env.reset(seed=0)
    kept = first.copy()
    second, *_ = env.step(np.zeros(2, int))
    env.step(np.zeros(2, int))
    assert np.array_equal(first, kept)
    assert second.tolist() == [[0, 1], [0, 1]]


def test_masks_are_in_the_step_and_in_infos(make):
    env = make(lambda: Masked("method"), 3)
    obs, infos = env.reset(seed=3)
    for _ in range(15):
        assert np.array_equal(env.masks, np.eye(4, dtype=bool)[obs])
        assert np.array_equal(infos["action_mask"], env.masks)
        obs, _, _, _, infos = env.step(obs)


def test_attributes_and_methods_are_reached(make):
    env = make(Counter, 3)
    env.reset(seed=0)
    assert env.get_attr("length") == (5, 5, 5)
    assert env.call("double", 4) == (8, 8, 8)
    env.set_attr("value", [1, 2, 3])
    env.set_attr("length", 7)
    assert env.get_attr("value") == (1, 2, 3) and env.call("length") == (7, 7, 7)
    with pytest.raises(AttributeError):
        env.get_attr("no_such_thing")
    env.step(np.zeros(3, int))  # still in order after that


def test_numbers_in_infos_are_summed_where_the_env_lives():
    factory = resolve_env(Reporter)
    sums = []
    for workers in (1, 2):
        env = make_vector_env(factory, 4, backend="process", num_workers=workers, infos="summed")
        env.reset()
        env.arrays.actions[""][:] = 0
        for _ in range(6):
            env.send()
            assert env.recv() == []
        sums.append({key: (s.total, s.count) for key, s in merge_sums(env.drain().infos).items()})
        assert merge_sums(env.drain().infos) == {}
        env.close()
    assert sums[0] == sums[1] == {"height": (4 * (2 + 4 + 6 + 8 + 10 + 2), 24), "odd": (24.0, 24)}


def test_seeds_of_the_wrong_number_are_refused(make):
    with pytest.raises(ValueError, match="2 seeds, expected one for each of the 3"):
        make(Counter, 3).reset(seed=[1, 2])


def test_renders_every_env(make):
    env = make("toy-maze", 2, render_mode="rgb_array")
    env.reset(seed=0)
    assert [frame.shape for frame in env.render()] == [(128, 128, 3)] * 2


class GlobalDice(gym.Env):
    """Draws from generators that everything in its process shares."""

    def __init__(self):
        self.observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.made = random.random()

    def reset(self, *, seed=None, options=None):
        self.left = 3
        return self._throw(), {}

    def step(self, action):
        self.left -= 1
        return self._throw(), 0.0, self.left == 0, False, {}

    def _throw(self):
        return np.array([self.made, random.random(), np.random.rand(), float(torch.rand(1))], np.float32)  # noqa: NPY002


def thrown(env, steps=8):
    """What the envs show in so many steps."""
    try:
        env.reset_arrays()
        seen = [env.arrays.observations[""].copy()]
        for _ in range(steps):
            env.arrays.actions[""][...] = 0
            env.send()
            env.recv()
            seen.append(env.arrays.observations[""].copy())
        return np.stack(seen)
    finally:
        env.close()


def test_global_generators_are_seeded_alike_wherever_an_env_is_alone():
    factory = resolve_env(GlobalDice)
    alone = [thrown(SerialVectorEnv(factory, 1, seed=5, infos="summed", first_env=i)) for i in range(2)]
    together = thrown(ProcessVectorEnv(factory, 2, num_workers=2, seed=5, infos="summed"))
    assert np.array_equal(together, np.concatenate(alone, axis=1))
    assert len(np.unique(together[..., 1:])) == together[..., 1:].size, "no episode and no env repeats another"


def test_outside_of_training_global_generators_belong_to_the_caller():
    random.seed(3)
    expected = random.Random(3).random()
    env = SerialVectorEnv(resolve_env(Counter), 1, seed=5)
    env.reset()
    env.close()
    assert random.random() == expected
