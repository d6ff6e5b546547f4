"""Names that are written into files. Renaming something in the code must not change them: old runs have these names."""

import dataclasses
import json

import gymnasium as gym
import numpy as np
import pytest
import safetensors.numpy

import corral
from corral.core.errors import EnvFault, InvalidEnvData
from corral.core.files import to_attributes
from corral.core.types import FAULT_KEYS, FaultCounts
from corral.opponents.league_state import (
    OPPONENTS_KEYS,
    PAST_SELF_KEYS,
    STAGE_RESULT_KEYS,
    OpponentsState,
    PastSelf,
    StageResult,
)
from corral.policy.policy import Policy
from corral.storage.summary_file import SUMMARY_KEYS, Summary
from corral.sweeps.request import REQUEST_KEYS, SweepRequest
from corral.training.progress import PROGRESS_KEYS, Progress
from tests.toy_envs import Broken, Counter

FAULT_COUNTS = ["restarts", "recycled", "retries", "env_faults", "inexact"]
PROGRESS = [
    *("iteration", "timesteps", "episodes", "seconds", "eval_seconds", "discarded_seconds", "recent", "best_reward"),
    *("last_eval_reward", "mishaps"),
]
SUMMARY = [
    *("steps", "episodes", "seconds", "fps", "mean_reward", "eval_reward", "best_eval_reward", "n_envs", "backend"),
    *("num_workers", *FAULT_COUNTS, "seed", "weights_sha256", "exit_reason", "win_rates", "stages", "nodes"),
]
OPPONENTS = [
    *("stage", "since", "looked_at", "noted_at", "ended_at", "older", "now", "pool", "past", "rating", "ratings"),
    *("games", "outcomes", "rewards", "recent", "results"),
]
STAGE_RESULT = ["name", "played", "steps", "games", "win_rate", "target", "needed", "reward"]
REQUEST = ["env", "settings", "seed", "seeds", "presets", "search", "trials", "prune", "jobs"]


@pytest.mark.parametrize(
    ("saved_class", "keys", "names"),
    [
        (FaultCounts, FAULT_KEYS, FAULT_COUNTS),
        (Progress, PROGRESS_KEYS, PROGRESS),
        (Summary, SUMMARY_KEYS, SUMMARY),
        (OpponentsState, OPPONENTS_KEYS, OPPONENTS),
        (PastSelf, PAST_SELF_KEYS, ["slot", "step", "rating"]),
        (StageResult, STAGE_RESULT_KEYS, STAGE_RESULT),
        (SweepRequest, REQUEST_KEYS, REQUEST),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_every_attribute_is_saved_under_this_key(saved_class, keys, names):
    assert [*keys] == [field.name for field in dataclasses.fields(saved_class)], "an attribute has no key in the file"
    assert [*keys.values()] == names


def test_names_of_attributes_are_no_keys_of_files():
    data = {"now": 1, "current_slot": 5, "unknown": 2}
    assert to_attributes(data, OPPONENTS_KEYS) == {"current_slot": 1, "unknown": 2}


SMALL = {
    "n_steps": 16,
    "batch_size": 32,
    "n_epochs": 1,
    "eval_episodes": 1,
    "seed": 1,
    "backend": "serial",
    "tensorboard": False,
    "quiet": True,
}


def tensor_names(path):
    return sorted(safetensors.numpy.load_file(path))


def test_a_run_has_these_files_checkpoint_keys_and_metrics():
    run = corral.train(
        "CartPole-v1",
        **{**SMALL, "n_envs": 2, "timesteps": 64, "eval_freq": 32},
        normalize_obs=True,
        normalize_reward=True,
        overlap=True,
        kl_ref_coef=0.1,
        recurrent="gru",
    ).run_dir
    checkpoint = run / "checkpoints" / "ckpt-000000000064"
    assert sorted(file.name for file in checkpoint.iterdir()) == [
        *("behind.safetensors", "envs.safetensors", "manifest.json", "optimizer.safetensors", "policy.safetensors"),
        *("reference.safetensors", "state.json"),
    ]
    state = json.loads((checkpoint / "state.json").read_text())
    assert [*state] == [*PROGRESS, "seed", "n_updates", "parts", "opponents", "spaces", "masked", "encoding"]
    assert {name: [*part] for name, part in state["parts"].items()} == {
        "moments/": ["mean", "variance", "count"],
        "return_scaler": ["mean", "variance", "count", "return"],
    }
    assert [*state["spaces"]] == ["observation", "action"]
    assert tensor_names(checkpoint / "envs.safetensors") == [
        *("actions/0", "actions/1", "episode", "length", "memory", "observation/", "opponent", "reward"),
    ]
    assert [*json.loads((checkpoint / "manifest.json").read_text())] == ["format", "sha256", "bytes"]
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert [name for name in row if not name.startswith("system/")] == [
        *("time/total_timesteps", "time/iterations", "time/fps", "time/time_elapsed", "time/collect_s"),
        *("time/update_s", "time/act_s", "time/step_s", "rollout/collectors", "rollout/episodes"),
        *("rollout/episodes_in_rollout", "rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/truncated_fraction"),
        *(f"faults/{name}" for name in FAULT_COUNTS),
        *("train/learning_rate", "train/loss", "train/policy_gradient_loss", "train/value_loss", "train/entropy_loss"),
        *("train/approx_kl", "train/clip_fraction", "train/explained_variance", "train/grad_norm", "train/n_updates"),
        *(
            "train/rho",
            "train/kl_ref",
            "train/kl_ref_coef",
            "eval/mean_reward",
            "eval/std_reward",
            "eval/mean_ep_length",
            "eval/seconds",
        ),
    ]
    assert [*json.loads((run / "summary.json").read_text())] == SUMMARY
    assert sorted(file.name for file in run.iterdir()) == [
        *(".lock", "best", "checkpoints", "config.yaml", "metrics.jsonl", "progress.csv", "summary.json"),
    ]


def test_a_checkpoint_of_a_run_with_opponents_has_these_keys():
    run = corral.train(
        "card-battle",
        **{**SMALL, "n_envs": 2, "timesteps": 64, "eval_freq": 0, "net_arch": [8], "snapshot_freq": 32},
        opponent="mixed:checkpoint=1,current=1,random=1",
    ).run_dir
    checkpoint = run / "checkpoints" / "ckpt-000000000064"
    state = json.loads((checkpoint / "state.json").read_text())["opponents"]
    assert [*state] == OPPONENTS and [*state["pool"][0]] == ["slot", "step", "rating"]
    assert {"masks", "observation/action_features"} <= {*tensor_names(checkpoint / "envs.safetensors")}
    slot, name = tensor_names(checkpoint / "opponents.safetensors")[0].split("/")
    assert slot.isdigit() and name in tensor_names(checkpoint / "policy.safetensors")


def test_a_fault_file_has_these_keys(tmp_path):
    with pytest.raises(EnvFault):
        corral.train(
            lambda: Broken("raise", at=9), **{**SMALL, "n_envs": 1, "timesteps": 64}, output_dir=f"{tmp_path}/run"
        )
    fault_file = next((tmp_path / "run" / "faults").iterdir())
    assert {*json.loads(fault_file.read_text())} == {
        "env",
        "env_kwargs",
        "raised",
        "place",
        "seed",
        "options",
        "state",
        "actions",
    }


def layer_parameters(prefix, *names):
    """Return the names of the parameters of these layers."""
    return [f"{prefix}{name}.{part}" for name in names for part in ("weight", "bias")]


BOX, IMAGE = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
NORMALIZER = ["normalizer.mean_0", "normalizer.deviation_0"]
HEADS = [*layer_parameters("network.pi.", 0, 2, 4), *layer_parameters("network.vf.", 0, 2, 4)]
IMPALA_LAYERS = [
    *layer_parameters("", 0),
    *layer_parameters("", *(f"{block}.layers.{i}" for block in (2, 3) for i in (1, 3))),
    *layer_parameters("", 4),
    *layer_parameters("", *(f"{block}.layers.{i}" for block in (6, 7) for i in (1, 3))),
    *layer_parameters("", 8),
    *layer_parameters("", *(f"{block}.layers.{i}" for block in (10, 11) for i in (1, 3))),
    *layer_parameters("", 14),
]


@pytest.mark.parametrize(
    ("space", "actions", "options", "names"),
    [
        (BOX, gym.spaces.Discrete(2), {"normalize_obs": True}, [*NORMALIZER, *HEADS]),
        (
            gym.spaces.Dict(a=IMAGE, b=BOX),
            gym.spaces.Discrete(2),
            {"cnn": "nature", "recurrent": "gru"},
            [
                *layer_parameters("pictures.networks.0.", 0, 2, 4, 7),
                *layer_parameters("", "core"),
                *layer_parameters("core.", "input"),
                *HEADS,
            ],
        ),
        (
            IMAGE,
            BOX,
            {"cnn": "small", "recurrent": "lstm"},
            [
                *layer_parameters("pictures.networks.0.", 0, 2, 4, 7),
                *("core.weight", *layer_parameters("core.", "input"), *layer_parameters("network.", "pi.0", "vf.0")),
            ],
        ),
        (
            IMAGE,
            gym.spaces.Discrete(2),
            {"cnn": "impala"},
            [*(f"pictures.networks.0.{name}" for name in IMPALA_LAYERS), *layer_parameters("network.", "pi.0", "vf.0")],
        ),
        (
            gym.spaces.Dict(action_features=gym.spaces.Box(-1, 1, (5, 4)), b=BOX),
            gym.spaces.Discrete(5),
            {"normalize_obs": True, "score_actions": True},
            [*NORMALIZER, *HEADS, *layer_parameters("network.", "action"), "network.score.weight"],
        ),
    ],
    ids=["mlp", "images and gru", "small images and lstm", "impala", "scored actions"],
)
def test_weights_have_these_names_in_this_order(space, actions, options, names):
    """Checkpoints have these names as keys, hashes of weights include them, and norms are summed in their order."""
    assert [*Policy(space, actions, **options).state_dict()] == ["log_std", *names]


def test_an_env_that_returns_invalid_data_has_its_former_name_in_the_summary(tmp_path):
    class ReturnsNaN(Counter):
        total_steps = 0

        def step(self, action):
            ReturnsNaN.total_steps += 1
            observation, reward, *rest = super().step(action)
            return observation, float("nan") if self.total_steps > 40 else reward, *rest

    with pytest.raises(InvalidEnvData):
        corral.train(
            ReturnsNaN, n_envs=1, n_steps=16, batch_size=16, timesteps=64, output_dir=str(tmp_path / "run"), quiet=True
        )
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["exit_reason"] == "failed: BadEnvData"
