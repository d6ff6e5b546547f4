"""Corral's VecEnv for Stable-Baselines3 behaves as ``DummyVecEnv`` does, and trains PPO and MaskablePPO."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from sb3_contrib.common.wrappers import ActionMasker
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

import corral.sb3
from tests.toy_envs import Counter, Masked, Reporter, Spaces


@pytest.fixture(params=["serial", "process"])
def make(request):
    """Return a function that makes a VecEnv with the backend of this test; close all of them afterwards."""
    made = []

    def build(env, n=3, **kwargs):
        if request.param == "process":
            kwargs.setdefault("num_workers", 2)
        made.append(corral.sb3.make_parallel_env(env, n, backend=request.param, **kwargs))
        return made[-1]

    yield build
    for env in made:
        env.close()


def _plain(value):
    """Return nested mappings as dictionaries, whose texts can be compared."""
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def cartpole():
    return gym.make("CartPole-v1")


@pytest.mark.parametrize(
    "env",
    [
        cartpole,
        lambda: gym.make("Pendulum-v1"),
        Reporter,
        lambda: Spaces(spaces.Dict(a=spaces.Box(-1, 1, (2,)), b=spaces.Discrete(3)), spaces.MultiDiscrete([2, 3])),
    ],
)
def test_reset_and_step_return_what_dummy_vec_env_returns(make, env):
    vec_env, dummy_vec_env = make(env), DummyVecEnv([env] * 3)
    vec_env.seed(5)
    dummy_vec_env.seed(5)
    dummy_vec_env.action_space.seed(0)
    assert repr(_plain(vec_env.reset())) == repr(_plain(dummy_vec_env.reset()))
    assert vec_env.reset_infos == dummy_vec_env.reset_infos
    for _ in range(60):
        actions = np.stack([dummy_vec_env.action_space.sample() for _ in range(3)])
        (obs, rewards, dones, infos), expected = vec_env.step(actions), dummy_vec_env.step(actions)
        assert (
            repr(_plain(obs)) == repr(_plain(expected[0]))
            and np.array_equal(rewards, expected[1])
            and np.array_equal(dones, expected[2])
        )
        assert rewards.dtype == expected[1].dtype and dones.dtype == expected[2].dtype
        for info, expected_info in zip(infos, expected[3], strict=True):
            info.pop("episode", None)
            assert repr(sorted(_plain(info).items())) == repr(sorted(_plain(expected_info).items()))


def test_infos_at_the_end_of_an_episode_have_the_keys_of_sb3(make):
    env = make(lambda: Counter(length=3, truncate=True), 2)
    env.reset()
    for _ in range(3):
        obs, _, dones, infos = env.step(np.zeros(2, int))
    assert dones.all() and obs[:, 1].tolist() == [0, 0]
    assert infos[0]["terminal_observation"][1] == 3 and infos[0]["TimeLimit.truncated"] is True
    assert infos[0]["episode"]["r"] == 6 and infos[0]["episode"]["l"] == 3


def test_returned_observations_are_not_changed_by_later_steps(make):
    env = make(Counter)
    observations = env.reset()
    observations_before = observations.copy()
    env.step(np.zeros(3, int))
    assert np.array_equal(observations, observations_before)


def test_attributes_methods_and_wrappers_of_envs_can_be_read_and_called(make):
    env = make(lambda: Monitor(Counter()))
    assert isinstance(env, VecEnv)
    assert env.get_attr("length") == [5, 5, 5] and env.get_attr("length", 1) == [5]
    env.set_attr("value", 8, indices=[0, 2])
    assert env.get_attr("value") == [8, 0, 8]
    assert env.env_method("double", 3) == [6, 6, 6] and env.env_method("double", 4, indices=2) == [8]
    assert env.env_is_wrapped(Monitor) == [True] * 3 and env.env_is_wrapped(gym.wrappers.TimeLimit, [1]) == [False]
    assert env.has_attr("length") and not env.has_attr("nothing")
    with pytest.raises(AttributeError):
        env.get_attr("nothing")


def test_envs_gives_the_env_objects_with_the_serial_backend_only():
    env = corral.sb3.make_parallel_env(lambda: Monitor(Counter()), 2, backend="serial")
    env.set_attr("dummy", 12)
    assert [sub_env.dummy for sub_env in env.envs] == [12, 12]
    env.close()
    env = corral.sb3.make_parallel_env(Counter, 2)
    with pytest.raises(AttributeError, match="live in worker processes"):
        env.envs  # noqa: B018
    env.close()


def test_env_is_wrapped_answers_for_each_env():
    for backend in ("serial", "process"):
        env = corral.sb3.make_parallel_env([Counter, lambda: Monitor(Counter())], backend=backend)
        assert env.env_is_wrapped(Monitor) == [False, True] and env.env_is_wrapped(Monitor, -1) == [True]
        env.close()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,))),
        spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)]),
        spaces.Discrete(3),
        spaces.MultiDiscrete([2, 3]),
    ],
)
def test_actions_are_a_sequence_with_one_action_per_env(make, space):
    env = make(lambda: Spaces(spaces.Box(-1, 1, (2,)), space))  # this env checks its actions
    env.reset()
    for sequence_type in (list, tuple):
        env.step(sequence_type(env.action_space.sample() for _ in range(3)))
    with pytest.raises(ValueError, match="2"):
        env.step([env.action_space.sample() for _ in range(2)])
    env.step([env.action_space.sample() for _ in range(3)])


def test_an_action_outside_the_space_is_a_value_error(make):
    env = make(lambda: Spaces(spaces.Box(-1, 1, (2,)), spaces.Dict(a=spaces.Discrete(3))))
    env.reset()
    with pytest.raises(ValueError, match="3"):
        env.step([{"a": 0}, {"a": 3}, {"a": 1}])
    env.step([{"a": 0}] * 3)


@pytest.mark.parametrize("by", ["info", "method"])
def test_action_masks_in_infos_equal_those_of_dummy_vec_env(make, by):
    vec_env, dummy_vec_env = make(lambda: Masked(by)), DummyVecEnv([lambda: Masked(by)] * 3)
    vec_env.seed(1)
    dummy_vec_env.seed(1)
    obs = vec_env.reset()
    dummy_vec_env.reset()
    for _ in range(12):
        assert repr(vec_env.reset_infos) == repr(dummy_vec_env.reset_infos)
        (obs, _, _, infos), (_, _, _, expected) = vec_env.step(obs), dummy_vec_env.step(obs)
        for info, expected_info in zip(infos, expected, strict=True):
            info.pop("episode", None)
            info["terminal_observation"] = expected_info.get("terminal_observation")
            assert repr(sorted(info.items())) == repr(sorted({"terminal_observation": None, **expected_info}.items()))


@pytest.mark.parametrize("algorithm", [PPO, MaskablePPO])
def test_a_gymnasium_vector_env_is_refused_with_the_function_to_use_instead(algorithm):
    env = corral.make_parallel_env(cartpole, 2, backend="serial")
    with pytest.raises(ValueError, match=r"^.*SerialVectorEnv.*use corral\.sb3\.make_parallel_env") as caught:
        algorithm("MlpPolicy", env)
    assert len(str(caught.value).splitlines()) == 1
    model = algorithm("MlpPolicy", "CartPole-v1", device="cpu")
    with pytest.raises(ValueError, match=r"use corral\.sb3\.make_parallel_env"):
        model.set_env(env)
    env.close()


def test_action_masks_of_a_method_reach_maskable_ppo(make):
    env = make(lambda: ActionMasker(Masked("method"), lambda e: e.action_masks()))
    obs = env.reset()
    assert is_masking_supported(env)
    for _ in range(12):
        masks = get_action_masks(env)
        assert np.array_equal(masks, np.eye(4, dtype=bool)[obs])
        obs, *_ = env.step(obs)


def test_action_masks_in_infos_reach_maskable_ppo(make):
    env = make("Taxi-v4", 2)
    assert is_masking_supported(env)
    model = MaskablePPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu")
    model.learn(32)


def test_an_info_dict_that_the_env_reuses_is_not_changed(make):
    class ReusesInfo(Counter):
        reused_info = {"x": 1}  # noqa: RUF012

        def step(self, action):
            return *super().step(action)[:4], self.reused_info

    env = make(lambda: ReusesInfo(length=2), 2)
    env.reset()
    infos = [env.step(np.zeros(2, int))[3][0] for _ in range(4)]
    assert ["episode" in info for info in infos] == [False, True, False, True]


def test_returned_infos_are_not_changed_by_later_steps(make):
    class AppendsToLog(Counter):
        def step(self, action):
            outcome = super().step(action)
            self.log = [0] if self.step_count == 1 else self.log
            self.log.append(self.step_count)
            return *outcome[:4], {"log": self.log}

    env = make(lambda: AppendsToLog(length=4), 2)
    env.reset()
    assert [env.step(np.zeros(2, int))[3][0]["log"] for _ in range(3)] == [[0, 1], [0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize("actions", [[0.7, 1.0, 0.0], [np.nan, 0.0, 1.0]])
def test_fractional_and_nan_actions_are_refused_for_a_discrete_space(make, actions):
    env = make(cartpole)
    env.reset()
    with pytest.raises(ValueError, match=r"actions are .* expected whole numbers for Discrete\(2\)"):
        env.step(actions)
    env.step([0.0, 1.0, 0.0])


def test_float_actions_are_accepted_only_if_they_equal_an_action_of_the_space(make):
    env = make(lambda: Spaces(spaces.Box(-1, 1, (2,)), spaces.MultiBinary(2)), 2)
    env.reset()
    env.step(np.array([[0.0, 1.0], [1.0, 0.0]]))
    for out_of_range in (256.0, -255.0, 1e300):
        with pytest.raises(ValueError, match=r"actions are|is not in MultiBinary"):
            env.step(np.array([[out_of_range, 1.0], [1.0, 0.0]]))


def test_reset_options_and_env_indices_work_as_in_sb3(make):
    class RecordsOptions(Counter):
        def reset(self, *, seed=None, options=None):
            self.given = options
            return super().reset(seed=seed)

    env = make(RecordsOptions)
    env.set_options([{"a": 1}, {}, {"b": 2}])
    env.reset()
    assert env.get_attr("given") == [{"a": 1}, None, {"b": 2}]
    assert env.get_attr("given", -1) == [{"b": 2}]
    with pytest.raises(IndexError):
        env.get_attr("given", 3)


def test_vec_env_wrappers_and_rendering_work(make):
    env = make("toy-maze", 2, render_mode="rgb_array")
    env.reset()
    assert env.render().shape == (256, 128, 3)
    wrapped = VecNormalize(VecFrameStack(VecMonitor(make(cartpole, 2)), 2))
    wrapped.reset()
    assert wrapped.step(np.zeros(2, int))[0].shape == (2, 8)


def test_ppo_trains_and_evaluates(make):
    env = make(cartpole, 4)
    model = PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=2, seed=0, device="cpu")
    model.learn(512)
    assert len(model.ep_info_buffer) > 0
    assert np.isfinite(evaluate_policy(model, env, n_eval_episodes=4)[0])


@pytest.mark.parametrize(
    "action_space", [spaces.MultiBinary(3), spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,)), spaces.Discrete(3)]
)
def test_ppo_trains_on_every_type_of_action_space(make, action_space):
    env = make(lambda: Spaces(spaces.Box(-1, 1, (3,)), action_space), 2)
    PPO("MlpPolicy", env, n_steps=16, batch_size=16, n_epochs=1, device="cpu").learn(32)


def test_maskable_ppo_trains_without_masked_actions(make):
    env = make("toy-maze", 4)  # this env raises if a masked action is taken
    model = MaskablePPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=2, seed=0, device="cpu")
    model.learn(512)


def test_ppo_has_the_same_weights_as_with_dummy_vec_env():
    """The data and their order are the same, so the weights are equal bit for bit."""
    weights = []
    for env in (corral.sb3.make_parallel_env(cartpole, 4, num_workers=2), DummyVecEnv([cartpole] * 4)):
        model = PPO("MlpPolicy", env, n_steps=64, batch_size=64, n_epochs=2, seed=3, device="cpu")
        model.learn(512)
        env.close()
        weights.append(np.concatenate([p.detach().numpy().ravel() for p in model.policy.parameters()]))
    assert np.array_equal(*weights)
