"""Names that are in files: whoever renames something in the code must not change these."""

import dataclasses
import json

import gymnasium as gym
import numpy as np
import pytest
import safetensors.numpy

import corral
from corral.core.errors import EnvFault
from corral.core.types import RECOVERY_KEYS, RecoveryCounts
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
from tests.toy_envs import Broken

MISHAPS = ["restarts", "recycled", "retries", "env_faults", "inexact"]
PROGRESS = [
    *("iteration", "timesteps", "episodes", "seconds", "eval_seconds", "discarded_seconds", "recent", "best_reward"),
    *("last_eval_reward", "mishaps"),
]
SUMMARY = [
    *("steps", "episodes", "seconds", "fps", "mean_reward", "eval_reward", "best_eval_reward", "n_envs", "backend"),
    *("num_workers", *MISHAPS, "seed", "weights_sha256", "exit_reason", "win_rates", "stages"),
]
OPPONENTS = [
    *("stage", "since", "looked_at", "noted_at", "ended_at", "older", "now", "pool", "past", "rating", "ratings"),
    *("games", "outcomes", "rewards", "recent", "results"),
]
STAGE_RESULT = ["name", "played", "steps", "games", "win_rate", "target", "needed", "reward"]
REQUEST = ["env", "settings", "seed", "seeds", "presets", "search", "trials", "prune", "jobs"]


@pytest.mark.parametrize(
    ("saved", "keys", "names"),
    [
        (RecoveryCounts, RECOVERY_KEYS, MISHAPS),
        (Progress, PROGRESS_KEYS, PROGRESS),
        (Summary, SUMMARY_KEYS, SUMMARY),
        (OpponentsState, OPPONENTS_KEYS, OPPONENTS),
        (PastSelf, PAST_SELF_KEYS, ["slot", "step", "rating"]),
        (StageResult, STAGE_RESULT_KEYS, STAGE_RESULT),
        (SweepRequest, REQUEST_KEYS, REQUEST),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_every_attribute_is_saved_under_its_name(saved, keys, names):
    assert [*keys] == [field.name for field in dataclasses.fields(saved)], "an attribute that is in no file"
    assert [*keys.values()] == names


SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 1, "seed": 1, "quiet": True, "backend": "serial"}
SMALL = {**SMALL, "eval_episodes": 1, "tensorboard": False}


def tensor_names(path):
    return sorted(safetensors.numpy.load_file(path))


def test_a_checkpoint_has_these_files_and_names():
    run = corral.train(
        "CartPole-v1",
        **{**SMALL, "n_envs": 2, "timesteps": 64, "eval_freq": 32},
        normalize_obs=True,
        normalize_reward=True,
        overlap=True,
        kl_ref_coef=0.1,
        recurrent="gru",
    ).run_dir
    path = run / "checkpoints" / "ckpt-000000000064"
    assert sorted(file.name for file in path.iterdir()) == [
        *("behind.safetensors", "envs.safetensors", "manifest.json", "optimizer.safetensors", "policy.safetensors"),
        *("reference.safetensors", "state.json"),
    ]
    state = json.loads((path / "state.json").read_text())
    assert [*state] == [*PROGRESS, "seed", "n_updates", "parts", "opponents", "spaces", "masked", "encoding"]
    assert {name: [*part] for name, part in state["parts"].items()} == {
        "moments/": ["mean", "variance", "count"],
        "return_scaler": ["mean", "variance", "count", "return"],
    }
    assert [*state["spaces"]] == ["observation", "action"]
    assert tensor_names(path / "envs.safetensors") == [
        *("actions/0", "actions/1", "episode", "length", "memory", "observation/", "opponent", "reward"),
    ]
    assert [*json.loads((path / "manifest.json").read_text())] == ["format", "sha256", "bytes"]
    row = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert [name for name in row if not name.startswith("system/")] == [
        *("time/total_timesteps", "time/iterations", "time/fps", "time/time_elapsed", "time/collect_s"),
        *("time/update_s", "time/act_s", "time/step_s", "rollout/collectors", "rollout/episodes"),
        *("rollout/episodes_in_rollout", "rollout/ep_rew_mean", "rollout/ep_len_mean", "rollout/truncated_fraction"),
        *(f"faults/{name}" for name in MISHAPS),
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


def test_a_run_against_opponents_has_these_names():
    run = corral.train(
        "card-battle",
        **{**SMALL, "n_envs": 2, "timesteps": 64, "eval_freq": 0, "net_arch": [8], "snapshot_freq": 32},
        opponent="mixed:checkpoint=1,current=1,random=1",
    ).run_dir
    path = run / "checkpoints" / "ckpt-000000000064"
    state = json.loads((path / "state.json").read_text())["opponents"]
    assert [*state] == OPPONENTS and [*state["pool"][0]] == ["slot", "step", "rating"]
    assert {"masks", "observation/action_features"} <= {*tensor_names(path / "envs.safetensors")}
    slot, name = tensor_names(path / "opponents.safetensors")[0].split("/")
    assert slot.isdigit() and name in tensor_names(path / "policy.safetensors")


def test_a_fault_file_has_these_names(tmp_path):
    with pytest.raises(EnvFault):
        corral.train(
            lambda: Broken("raise", at=9), **{**SMALL, "n_envs": 1, "timesteps": 64}, output_dir=f"{tmp_path}/run"
        )
    file = next((tmp_path / "run" / "faults").iterdir())
    assert {*json.loads(file.read_text())} == {
        "env",
        "env_kwargs",
        "raised",
        "place",
        "seed",
        "options",
        "state",
        "actions",
    }


def layers(prefix, *names):
    return [f"{prefix}{name}.{part}" for name in names for part in ("weight", "bias")]


BOX, PICTURE = gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(0, 255, (36, 36, 3), np.uint8)
NORMALIZER = ["normalizer.mean_0", "normalizer.deviation_0"]
HEADS = [*layers("network.pi.", 0, 2, 4), *layers("network.vf.", 0, 2, 4)]
BLOCKS = [
    *layers("", 0),
    *layers("", *(f"{block}.layers.{i}" for block in (2, 3) for i in (1, 3))),
    *layers("", 4),
    *layers("", *(f"{block}.layers.{i}" for block in (6, 7) for i in (1, 3))),
    *layers("", 8),
    *layers("", *(f"{block}.layers.{i}" for block in (10, 11) for i in (1, 3))),
    *layers("", 14),
]


@pytest.mark.parametrize(
    ("space", "actions", "options", "names"),
    [
        (BOX, gym.spaces.Discrete(2), {"normalize_obs": True}, [*NORMALIZER, *HEADS]),
        (
            gym.spaces.Dict(a=PICTURE, b=BOX),
            gym.spaces.Discrete(2),
            {"cnn": "nature", "recurrent": "gru"},
            [*layers("pictures.networks.0.", 0, 2, 4, 7), *layers("", "core"), *layers("core.", "input"), *HEADS],
        ),
        (
            PICTURE,
            BOX,
            {"cnn": "small", "recurrent": "lstm"},
            [
                *layers("pictures.networks.0.", 0, 2, 4, 7),
                *("core.weight", *layers("core.", "input"), *layers("network.", "pi.0", "vf.0")),
            ],
        ),
        (
            PICTURE,
            gym.spaces.Discrete(2),
            {"cnn": "impala"},
            [*(f"pictures.networks.0.{name}" for name in BLOCKS), *layers("network.", "pi.0", "vf.0")],
        ),
        (
            gym.spaces.Dict(action_features=gym.spaces.Box(-1, 1, (5, 4)), b=BOX),
            gym.spaces.Discrete(5),
            {"normalize_obs": True, "score_actions": True},
            [*NORMALIZER, *HEADS, *layers("network.", "action"), "network.score.weight"],
        ),
    ],
    ids=["mlp", "pictures and gru", "small pictures and lstm", "impala", "scored actions"],
)
def test_weights_have_these_names_in_this_order(space, actions, options, names):
    """Checkpoints are keyed by them, hashes contain them, and norms are summed in their order."""
    assert [*Policy(space, actions, **options).state_dict()] == ["log_std", *names]
