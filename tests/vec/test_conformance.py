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

NESTED_SPACE = spaces.Dict(
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
    "nested spaces": lambda: Spaces(NESTED_SPACE, NESTED_SPACE),
    "infos": Reporter,
}


@pytest.fixture(params=["serial", "process"])
def make(request):
    """Return a function that makes vector envs with one backend; close them after the test."""
    vector_envs = []

    def build(env, n=3, **kwargs):
        if request.param == "process":
            kwargs.setdefault("num_workers", 2)
        vector_envs.append(make_parallel_env(env, n, backend=request.param, **kwargs))
        return vector_envs[-1]

    yield build
    for env in vector_envs:
        env.close()


def as_actions(codec, rows):
    """Decode the codec's rows [N, D] into a batch of actions of the env's action space."""
    actions = codec.layout.allocate(len(rows))
    codec.decode(rows, actions)
    return codec.layout.batch(actions)


def trace(env, steps=40, seed=None):
    """Return all that a vector env returns for a fixed sequence of actions, as text, and close it."""
    rng = np.random.default_rng(5)
    outputs = [repr(env.reset(seed=seed))]
    for _ in range(steps):
        rows = env.codec.random(env.masks, env.num_envs, rng)
        outputs.append(repr(env.step(as_actions(env.codec, rows))))
        outputs.append(repr(env.masks))
    env.close()
    return outputs


@pytest.mark.parametrize("case", CASES)
def test_any_number_of_workers_gives_bit_identical_steps(case):
    factory = resolve_env(CASES[case])
    expected = trace(make_vector_env(factory, 4, backend="serial", seed=9))
    for workers in (1, 3, 4):
        assert trace(make_vector_env(factory, 4, backend="process", num_workers=workers, seed=9)) == expected


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_every_start_method_gives_bit_identical_steps(method):
    class Local(Counter):  # a local class: only cloudpickle can pickle it
        pass

    factory = resolve_env(lambda: Local(3))
    expected = trace(make_vector_env(factory, 2, backend="serial", seed=1))
    assert trace(make_vector_env(factory, 2, backend="process", num_workers=2, start_method=method, seed=1)) == expected


@pytest.mark.parametrize("case", ["counter", "cartpole", "nested spaces", "infos"])
def test_steps_equal_those_of_gymnasiums_sync_vector_env(make, case):
    corral_env = make(CASES[case], 3)
    factory = resolve_env(CASES[case])
    gymnasium_env = SyncVectorEnv([factory] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    (obs, _), (expected_obs, _) = corral_env.reset(seed=4), gymnasium_env.reset(seed=4)
    assert repr(obs) == repr(expected_obs)
    corral_env.action_space.seed(0)
    for _ in range(30):
        actions = corral_env.action_space.sample()
        (*step, infos), (*expected_step, expected_infos) = corral_env.step(actions), gymnasium_env.step(actions)
        assert repr(step) == repr(expected_step)
        assert infos.keys() == expected_infos.keys()
        if "final_obs" in infos:
            assert repr(infos["final_obs"].tolist()) == repr(expected_infos["final_obs"].tolist())
            assert repr(infos["_final_obs"]) == repr(expected_infos["_final_obs"])
    gymnasium_env.close()


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
    "action", [None, spaces.Dict(a=spaces.Tuple([spaces.Discrete(3, start=1)]))], ids=["discrete", "nested"]
)
def test_envs_get_discrete_actions_as_python_ints_and_may_return_0d_arrays(make, action):
    env = make(lambda: IntsOnly(action), seed=0)
    env.reset()
    for _ in range(20):
        _, rewards, terminated, _, _ = env.step(as_actions(env.codec, np.zeros((3, 1), np.int64)))
        assert rewards.tolist() == [1.0] * 3
        assert terminated.dtype == np.bool_


def test_a_reward_with_a_batch_axis_is_refused(make):
    class Batched(Counter):
        def step(self, action):
            observation, reward, *rest = super().step(action)
            return observation, np.array([reward]), *rest

    env = make(Batched)
    env.reset()
    with pytest.raises(CorralError, match=r"the reward is an array of shape \(1,\).*expected a number"):
        env.step(np.zeros(3, np.int64))


def test_envs_autoreset_in_the_step_that_ends_the_episode(make):
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


def test_returned_observations_are_not_changed_by_later_steps(make):
    env = make(Mutating, 2)
    first, _ = env.reset(seed=0)
    copy_of_first = first.copy()
    second, *_ = env.step(np.zeros(2, int))
    env.step(np.zeros(2, int))
    assert np.array_equal(first, copy_of_first)
    assert second.tolist() == [[0, 1], [0, 1]]


def test_action_masks_are_an_attribute_and_in_infos(make):
    env = make(lambda: Masked("method"), 3)
    obs, infos = env.reset(seed=3)
    for _ in range(15):
        assert np.array_equal(env.masks, np.eye(4, dtype=bool)[obs])
        assert np.array_equal(infos["action_mask"], env.masks)
        obs, _, _, _, infos = env.step(obs)


def test_env_attributes_are_read_and_set_and_env_methods_are_called(make):
    env = make(Counter, 3)
    env.reset(seed=0)
    assert env.get_attr("length") == (5, 5, 5)
    assert env.call("double", 4) == (8, 8, 8)
    env.set_attr("value", [1, 2, 3])
    env.set_attr("length", 7)
    assert env.get_attr("value") == (1, 2, 3) and env.call("length") == (7, 7, 7)
    with pytest.raises(AttributeError):
        env.get_attr("no_such_thing")
    env.step(np.zeros(3, int))  # the error did not break the vector env


def test_numbers_in_infos_are_summed_in_the_workers():
    factory = resolve_env(Reporter)
    sums = []
    for workers in (1, 2):
        env = make_vector_env(factory, 4, backend="process", num_workers=workers, infos="summed")
        env.reset()
        env.arrays.actions[""][:] = 0
        for _ in range(6):
            env.send()
            assert env.recv() == []
        sums.append({key: (s.total, s.count) for key, s in merge_sums(env.take_report().infos).items()})
        assert merge_sums(env.take_report().infos) == {}
        env.close()
    assert sums[0] == sums[1] == {"height": (4 * (2 + 4 + 6 + 8 + 10 + 2), 24), "odd": (24.0, 24)}


def test_a_wrong_number_of_seeds_is_refused(make):
    with pytest.raises(ValueError, match="2 seeds, expected one for each of the 3"):
        make(Counter, 3).reset(seed=[1, 2])


def test_render_returns_a_frame_of_every_env(make):
    env = make("toy-maze", 2, render_mode="rgb_array")
    env.reset(seed=0)
    assert [frame.shape for frame in env.render()] == [(128, 128, 3)] * 2


class GlobalRandomEnv(gym.Env):
    """Draws its observations from the global random generators of its process."""

    def __init__(self):
        self.observation_space = spaces.Box(0.0, 1.0, (4,), np.float32)
        self.action_space = spaces.Discrete(2)
        self.draw_at_construction = random.random()

    def reset(self, *, seed=None, options=None):
        self.steps_left = 3
        return self._draw(), {}

    def step(self, action):
        self.steps_left -= 1
        return self._draw(), 0.0, self.steps_left == 0, False, {}

    def _draw(self):
        global_draws = [random.random(), np.random.rand(), float(torch.rand(1))]  # noqa: NPY002
        return np.array([self.draw_at_construction, *global_draws], np.float32)


def collect_observations(env, steps=8):
    """Return the observations of a reset and of the steps after it, [steps + 1, N, 4], and close the vector env."""
    try:
        env.reset_arrays()
        observations = [env.arrays.observations[""].copy()]
        for _ in range(steps):
            env.arrays.actions[""][...] = 0
            env.send()
            env.recv()
            observations.append(env.arrays.observations[""].copy())
        return np.stack(observations)
    finally:
        env.close()


def test_global_generators_are_seeded_the_same_in_every_backend_with_one_env_per_process():
    factory = resolve_env(GlobalRandomEnv)
    serial = [collect_observations(SerialVectorEnv(factory, 1, seed=5, infos="summed", first_env=i)) for i in range(2)]
    process = collect_observations(ProcessVectorEnv(factory, 2, num_workers=2, seed=5, infos="summed"))
    assert np.array_equal(process, np.concatenate(serial, axis=1))
    assert len(np.unique(process[..., 1:])) == process[..., 1:].size, "two episodes or envs drew the same numbers"


def test_outside_of_training_global_generators_are_not_seeded():
    random.seed(3)
    expected = random.Random(3).random()
    env = SerialVectorEnv(resolve_env(Counter), 1, seed=5)
    env.reset()
    env.close()
    assert random.random() == expected
