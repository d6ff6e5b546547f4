"""Policies encode and normalise observations, build their networks and choose a device."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.core.spaces import Layout
from corral.envs.toys.toys import Everything
from corral.policy.device import choose_device
from corral.policy.observation_encoder import ObservationEncoder, encoded_size
from corral.policy.policy import Policy, n_action_params
from corral.rollout.actors import actor_spec


def test_observations_of_every_space_are_encoded_as_features():
    space = spaces.Dict(
        box=spaces.Box(-1, 1, (2,)),
        cue=spaces.Discrete(3, start=1),
        dice=spaces.MultiDiscrete([2, 3]),
        flags=spaces.MultiBinary(2),
        table=spaces.Box(0, 255, (1, 2), np.uint8),
    )
    layout = Layout(space)
    value = {
        "box": np.float32([0.5, -0.5]),
        "cue": 3,
        "dice": np.array([1, 0]),
        "flags": np.int8([1, 0]),
        "table": np.uint8([[255, 3]]),
    }
    arrays = layout.allocate(1)
    layout.write(arrays, 0, value)
    features = ObservationEncoder(layout)(arrays)
    expected = [0.5, -0.5, 0, 0, 1, 0, 1, 1, 0, 0, 1, 0, 255, 3]
    assert features.dtype == np.float32 and features.shape == (1, encoded_size(layout))
    np.testing.assert_allclose(features[0], expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "dtype", "high", "divided_by"),
    [
        ((6,), np.uint8, 255, 1),
        ((4, 6), np.uint8, 255, 1),  # stacked frames of a vector
        ((7, 7, 3), np.uint8, 255, 1),  # too small for an image
        ((8, 8, 3), np.uint8, 255, 255),
        ((2, 8, 8, 3), np.uint8, 255, 255),
        ((8, 8, 3), np.uint8, 254, 1),
        ((8, 8, 3), np.int64, 255, 1),
    ],
)
def test_only_bytes_of_images_are_scaled(shape, dtype, high, divided_by):
    layout = Layout(spaces.Box(0, high, shape, dtype))
    rows = np.random.default_rng(0).integers(0, high, (3, *shape)).astype(dtype)
    expected = rows.reshape(3, -1).astype(np.float32) / np.float32(divided_by)
    np.testing.assert_array_equal(ObservationEncoder(layout)({"": rows}), expected)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.int64, np.uint64])
def test_integer_vectors_are_normalised_alike_in_policy_and_actor(dtype):
    space = spaces.Dict(image=spaces.Box(0, 255, (8, 8, 1), np.uint8), vector=spaces.Box(0, 100, (3,), dtype))
    policy = Policy(space, spaces.Discrete(2), cnn="none", normalize_obs=True)
    assert policy.normalizer.paths == ("vector",)
    policy.normalizer.set("vector", np.array([1.0, 2.0, 50.0]), np.array([2.0, 0.001, 20.0]))
    leaves = {"image": np.full((1, 8, 8, 1), 51, np.uint8), "vector": np.array([[3, 3, 0]], dtype)}
    assert policy.prepare(leaves)["features"][0, -3:].tolist() == [1.0, 10.0, -2.5]
    actor = actor_spec(policy, None, torch.device("cpu"), 1).build(0, 1)
    actor.load({name: weight.numpy() for name, weight in policy.state_dict().items()})
    with torch.no_grad():
        _, values = policy(policy.prepare(leaves))
    np.testing.assert_allclose(actor.values(leaves, np.zeros(1, np.int64)), values.numpy(), rtol=1e-4, atol=1e-6)


def test_policy_and_value_have_separate_layers_and_first_logits_are_small():
    policy = Policy(
        spaces.Box(-1, 1, (4,)), spaces.Discrete(2), net_arch={"pi": (8,), "vf": (16, 16)}, activation_fn="relu"
    )
    shapes = [tuple(p.shape) for p in policy.network.pi.parameters() if p.ndim == 2]
    assert shapes == [(8, 4), (2, 8)]
    assert [tuple(p.shape) for p in policy.network.vf.parameters() if p.ndim == 2] == [(16, 4), (16, 16), (1, 16)]
    params, _ = policy(policy.prepare({"": np.random.default_rng(0).standard_normal((5, 4), np.float32)}))
    assert params.abs().max() < 0.1  # the first policy is nearly uniform


def test_log_std_starts_at_log_std_init():
    policy = Policy(spaces.Box(-1, 1, (4,)), spaces.Box(-1, 1, (3,)), log_std_init=-1.5)
    assert policy.log_std.tolist() == [-1.5] * 3
    assert Policy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2)).log_std.numel() == 0


def test_normalized_observations_are_scaled_and_clipped():
    policy = Policy(spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(2), normalize_obs=True)
    policy.normalizer.set("", np.array([1.0, 2.0]), np.array([2.0, 0.001]))
    features = policy.prepare({"": np.array([[3.0, 3.0]], np.float32)})["features"]
    assert features.tolist() == [[1.0, 10.0]]
    # It is part of the weights, so it is in checkpoints and is sent to actors.
    assert any(name.startswith("normalizer.") for name in policy.state_dict())


class CustomNetwork(torch.nn.Module):
    def __init__(self, observation_space, action_space):
        super().__init__()
        self.pi = torch.nn.LazyLinear(n_action_params(action_space))
        self.vf = torch.nn.LazyLinear(1)

    def forward(self, observations):
        features = torch.cat([observations["pair"][0], observations["image"].flatten(1) / 255], -1)
        return self.pi(features), self.vf(features).squeeze(-1)


def test_a_custom_network_gets_observations_as_the_env_returns_them():
    env = Everything()
    policy = Policy(env.observation_space, env.action_space, network=CustomNetwork)
    layout = policy.layout
    arrays = layout.allocate(2)
    for row in range(2):
        layout.write(arrays, row, env.reset(seed=row)[0])
    params, values = policy(policy.prepare(arrays))
    assert params.shape == (2, n_action_params(env.action_space)) and values.shape == (2,)


def test_a_custom_network_with_outputs_of_the_wrong_shape_is_refused():
    class WrongOutputs(torch.nn.Module):
        def forward(self, observations):
            return torch.zeros(len(observations), 3), torch.zeros(len(observations), 1)

    policy = Policy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), network=lambda o, a: WrongOutputs())
    with pytest.raises(UsageError, match=r"\(5, 3\) and \(5, 1\), expected \(5, 2\) .* \(5,\)"):
        policy(policy.prepare({"": np.zeros((5, 4), np.float32)}))
    with pytest.raises(UsageError, match=r"expected a torch\.nn\.Module"):
        Policy(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), network=lambda o, a: 3)


def test_device_auto_is_an_accelerator_only_for_images(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_device("auto", lambda: True).device.type == "cuda"
    assert choose_device("auto", lambda: False).device.type == "cpu"


def test_a_missing_device_is_refused():
    assert choose_device("cpu").device.type == choose_device("auto").device.type == "cpu"
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="0 CUDA devices; use --device cpu"):
            choose_device("cuda")
