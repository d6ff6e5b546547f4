"""The programs of a guide to parallel training with Stable-Baselines3 run with Corral's vector env instead."""

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.wrappers import ActionMasker

import corral.sb3
from corral_games import CardBattle

SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 1, "device": "cpu"}
N_ENVS = 2


def mask_fn(env: gym.Env) -> np.ndarray:
    assert isinstance(env, CardBattle)
    return env.action_masks()


def make_env(opponent: str = "greedy") -> gym.Env:
    env: gym.Env = CardBattle(opponent=opponent)
    return ActionMasker(env, mask_fn)


class SelfPlay(CardBattle):
    """A user's env that has a list of checkpoints and plays against a model."""

    def __init__(self):
        super().__init__(opponent="random")
        self.checkpoints, self.current_model = [], None

    def add_checkpoint(self, path):
        self.checkpoints.append(path)
        return len(self.checkpoints)

    def set_current_model(self, model):
        self.current_model = model
        self.reset(options={"opponent": model})

    def model_steps(self):
        return self.current_model.num_timesteps, type(self.current_model).__name__


def test_a_list_of_factories_is_accepted_as_by_subproc_vec_env():
    vec_env = corral.sb3.make_parallel_env([make_env for _ in range(N_ENVS)])
    model = MaskablePPO("MlpPolicy", vec_env, verbose=0, **SMALL)
    model.learn(total_timesteps=64)
    assert model.num_timesteps == 64 and vec_env.num_envs == N_ENVS
    vec_env.close()


def test_one_factory_and_a_number_of_envs_are_accepted():
    def make_custom_env():
        env = CardBattle(opponent="greedy")
        return ActionMasker(env, lambda e: e.action_masks())

    vec_env = corral.sb3.make_parallel_env(make_custom_env, n_envs=3)
    assert vec_env.num_envs == 3
    vec_env.reset()
    assert [mask.any() for mask in vec_env.env_method("action_masks")] == [True] * 3
    vec_env.close()


@pytest.mark.parametrize("backend", ["process", "serial"])
def test_env_method_reaches_methods_below_wrappers_and_can_send_a_model(tmp_path, backend):
    def make_self_play():
        return ActionMasker(gym.wrappers.TimeLimit(SelfPlay(), 50), lambda e: e.unwrapped.action_masks())

    vec_env = corral.sb3.make_parallel_env([make_self_play] * N_ENVS, backend=backend)
    model = MaskablePPO("MlpPolicy", vec_env, verbose=1, tensorboard_log=str(tmp_path / "log"), **SMALL)
    model.learn(total_timesteps=32)
    for i in range(N_ENVS):
        assert vec_env.env_method("add_checkpoint", f"step_{i}.zip", indices=[i]) == [1]
    for i in range(N_ENVS):
        vec_env.env_method("set_current_model", model, indices=[i])
    assert vec_env.get_attr("checkpoints") == [["step_0.zip"], ["step_1.zip"]]
    assert vec_env.env_method("model_steps") == [(32, "MaskablePPO")] * N_ENVS
    vec_env.set_attr("checkpoints", [])
    assert vec_env.env_method("add_checkpoint", "anew", indices=1) == [
        1
    ]  # set_attr set the attribute of the env below the wrappers
    model.learn(total_timesteps=32, reset_num_timesteps=False)
    vec_env.close()


def test_a_model_continues_with_new_envs_in_each_stage_of_a_curriculum():
    model, env = None, corral.sb3.make_parallel_env([lambda: make_env("random") for _ in range(N_ENVS)])
    for stage_idx, opponent in enumerate(["random", "greedy"]):
        if stage_idx > 0:
            env.close()
            env = corral.sb3.make_parallel_env([lambda: make_env(opponent) for _ in range(N_ENVS)])
            model.set_env(env)
        else:
            model = MaskablePPO("MlpPolicy", env, **SMALL)
        model.learn(total_timesteps=32, reset_num_timesteps=False)
        assert {info["opponent"] for info in env.reset_infos} == {opponent}
    env.close()


def test_a_masked_env_works_in_evaluation_without_vectorization():
    eval_env = make_env()
    observation, _ = eval_env.reset(seed=0)
    model = MaskablePPO("MlpPolicy", eval_env, **SMALL)
    action, _ = model.predict(observation, action_masks=eval_env.action_masks())
    assert eval_env.action_masks()[action]


@pytest.mark.parametrize("method", [None, "spawn"])
def test_start_method_is_accepted_as_by_subproc_vec_env(method):
    vec_env = corral.sb3.make_parallel_env([make_env], start_method=method)
    assert vec_env.num_envs == 1
    vec_env.close()
