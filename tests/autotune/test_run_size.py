"""A run that is too large for the machine gives a warning or an error before training starts."""

import numpy as np
import pytest
from gymnasium import spaces

import corral
from corral.autotune.run_size import large_run_warning
from corral.config.schema import parse_config
from corral.core.errors import UsageError
from corral.policy.policy import Policy
from corral.vec.api import EnvInfo
from tests.toy_envs import Counter

SMALL = {"env": "x", "n_envs": 8, "n_steps": 2048, "batch_size": 64, "n_epochs": 10}


def warning(observations, actions, **settings):
    """Return the warning for a policy with so many inputs and outputs, or None."""
    box, choices = spaces.Box(-1, 1, (observations,), np.float32), spaces.Discrete(actions)
    policy = Policy(box, choices, net_arch={"pi": [8], "vf": [8]}, ortho_init=False)
    return large_run_warning(parse_config({**SMALL, **settings}), EnvInfo(box, choices, {}, None), policy, False)


@pytest.mark.parametrize(
    ("observations", "actions", "size"), [(4, 10**6, "1,000,000 outputs"), (300_000, 2, "300,000")]
)
def test_large_spaces_give_a_warning_with_their_cost_and_a_remedy(observations, actions, size):
    text = warning(observations, actions, n_epochs=100)
    assert size in text and "minutes" in text and "GB" in text and "--n-steps" in text and "\n" not in text


def test_usual_spaces_give_no_warning():
    assert warning(100, 20) is None


def test_a_rollout_that_does_not_fit_in_memory_is_refused(monkeypatch):
    monkeypatch.setattr("corral.rollout.buffers.available_memory", lambda: 1000)
    with pytest.raises(UsageError, match=r"n_steps 32 x n_envs 2 does not fit: it takes .* GB are free"):
        corral.train(Counter, n_envs=2, n_steps=32, batch_size=64, timesteps=64, backend="serial", quiet=True)
