"""Pictures are found, told apart from other observations, and seen."""

import numpy as np
import pytest
import torch
from gymnasium import spaces

from corral.core.errors import UsageError
from corral.core.spaces import Layout
from corral.policy.cnn import ImageEncoder
from corral.policy.device import is_slow_in_bf16
from corral.policy.images import image_leaves
from corral.policy.policy import Policy

BYTES = {"low": 0, "high": 255, "dtype": np.uint8}


def found(shape, **box):
    return image_leaves(Layout(spaces.Box(shape=shape, **{**BYTES, **box})))


@pytest.mark.parametrize(
    ("shape", "channels", "sides", "first"),
    [
        ((20, 64, 64), 20, (64, 64), True),
        ((84, 84, 3), 3, (84, 84), False),
        ((4, 60, 80), 4, (60, 80), True),
        ((60, 80, 4), 4, (60, 80), False),
        ((32, 16, 16), 32, (16, 16), True),  # more channels than pixels on a side
        ((16, 16, 32), 32, (16, 16), False),
        ((4, 84, 84, 3), 12, (84, 84), False),  # four frames
    ],
)
def test_channels_are_told_from_sides(shape, channels, sides, first):
    (picture,) = found(shape)
    assert (picture.channels, (picture.height, picture.width), picture.channels_first) == (channels, sides, first)


@pytest.mark.parametrize("shape", [(64,), (8, 8), (3, 7, 7), (4, 4, 1), (2, 2, 2, 64, 64)])
def test_other_shapes_are_no_pictures(shape):
    assert found(shape) == ()


def test_kinds_of_numbers():
    assert found((3, 8, 8))[0].scale == 1 / 255
    assert found((3, 8, 8), high=4)[0].scale == 1  # not the whole range of a byte: taken as they are
    assert found((3, 8, 8), low=-1, high=1, dtype=np.float32)[0].scale == 1
    assert found((3, 8, 8), dtype=np.int32) == ()


def test_channels_last_is_seen_as_channels_first():
    torch.manual_seed(0)
    first, last = (ImageEncoder(found(shape), "auto", 16, True) for shape in ((3, 40, 48), (40, 48, 3)))
    last.load_state_dict(first.state_dict())
    pixels = torch.randint(0, 256, (5, 3, 40, 48), dtype=torch.uint8)
    np.testing.assert_array_equal(
        first({"": pixels}).detach(), last({"": pixels.permute(0, 2, 3, 1).contiguous()}).detach()
    )


def test_frames_are_stacked_as_channels():
    torch.manual_seed(0)
    one, frames = (ImageEncoder(found(shape), "auto", 16, True) for shape in ((12, 40, 40), (4, 40, 40, 3)))
    frames.load_state_dict(one.state_dict())
    pixels = torch.randint(0, 256, (5, 4, 40, 40, 3), dtype=torch.uint8)
    joined = pixels.permute(0, 1, 4, 2, 3).flatten(1, 2)
    np.testing.assert_array_equal(one({"": joined}).detach(), frames({"": pixels}).detach())


def test_nature_is_that_of_stable_baselines():
    extractor = pytest.importorskip("stable_baselines3.common.torch_layers").NatureCNN
    torch.manual_seed(0)
    space = spaces.Box(shape=(4, 84, 84), **BYTES)
    theirs = extractor(space, features_dim=512)
    ours = ImageEncoder(image_leaves(Layout(space)), "nature", 512, True)
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            mine.copy_(other)
        pixels = torch.randint(0, 256, (6, 4, 84, 84), dtype=torch.uint8)
        np.testing.assert_allclose(ours({"": pixels}), theirs(pixels.float() / 255), atol=1e-6)


def test_initial_weights_are_those_of_stable_baselines():
    """As many, orthogonal with the same gains, and biases of 0: theirs start from other draws."""
    sb3 = pytest.importorskip("stable_baselines3")
    space = spaces.Box(shape=(4, 84, 84), **BYTES)
    theirs = sb3.common.policies.ActorCriticCnnPolicy(space, spaces.Discrete(6), lambda _: 1e-3)
    ours = Policy(space, spaces.Discrete(6), cnn_features=512)
    mine, others = ([p.detach() for p in policy.parameters() if p.numel()] for policy in (ours, theirs))
    assert sum(p.numel() for p in mine) == sum(p.numel() for p in others) == 1_687_719
    assert sorted(tuple(p.shape) for p in mine) == sorted(tuple(p.shape) for p in others)
    by_shape = {tuple(p.shape): p for p in others}
    pixels = torch.randint(0, 256, (6, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        for weight in mine:
            other = by_shape[tuple(weight.shape)]
            assert float(weight.norm()) == pytest.approx(float(other.norm()), rel=1e-4)
            weight.copy_(other)
        params, values = ours(ours.prepare({"": pixels.numpy()}))
        features = theirs.extract_features(pixels)
        np.testing.assert_allclose(params, theirs.action_net(features), atol=1e-6)
        np.testing.assert_allclose(values, theirs.value_net(features)[:, 0], atol=1e-5)


@pytest.mark.parametrize(("bf16", "amx"), [(False, False), (True, False), (False, True)])
def test_bf16_is_slow_where_a_processor_only_emulates_it(bf16, amx, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert is_slow_in_bf16(torch.device("cpu")) == (not bf16 and not amx)


def test_bf16_is_close_and_learns_whole_weights():
    torch.manual_seed(0)
    half, whole = (ImageEncoder(found((3, 40, 40)), "nature", 8, True, bf16) for bf16 in (True, False))
    whole.load_state_dict(half.state_dict())
    pixels = torch.randint(0, 256, (6, 3, 40, 40), dtype=torch.uint8)
    one, two = half({"": pixels}), whole({"": pixels})
    assert one.dtype == torch.float32 and not torch.equal(one, two)
    np.testing.assert_allclose(one.detach(), two.detach(), rtol=0.05, atol=0.02)
    one.sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in half.parameters())


def test_scale_is_learned_through():
    """Weights that are scaled get the gradient they would have with scaled pixels."""
    torch.manual_seed(0)
    encoder = ImageEncoder(found((3, 8, 8)), "small", 4, True)
    plain = ImageEncoder(found((3, 8, 8), low=0, high=1, dtype=np.float32), "small", 4, True)
    plain.load_state_dict(encoder.state_dict())
    pixels = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    encoder({"": pixels}).sum().backward()
    plain({"": pixels / 255}).sum().backward()
    for mine, other in zip(encoder.parameters(), plain.parameters(), strict=True):
        np.testing.assert_allclose(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_auto_takes_what_fits():
    assert ImageEncoder(found((20, 64, 64)), "auto", 8, True).architectures == ("nature",)
    assert ImageEncoder(found((20, 64, 24)), "auto", 8, True).architectures == ("small",)
    for cnn in ("small", "impala"):
        assert ImageEncoder(found((1, 8, 8)), cnn, 8, True)({"": torch.zeros(2, 1, 8, 8)}).shape == (2, 8)
    message = r"cnn nature needs images of at least 36 x 36, but the image is 24 x 64; auto or small or impala fit"
    with pytest.raises(UsageError, match=message):
        ImageEncoder(found((3, 24, 64)), "nature", 8, True)


def several():
    return spaces.Dict(
        features=spaces.Box(shape=(3, 16, 16), **BYTES),
        pair=spaces.Tuple((spaces.Box(-1, 1, (40, 40, 1), np.float32), spaces.Discrete(3))),
        vector=spaces.Box(-1, 1, (5,)),
    )


def leaves_of(policy, rows):
    policy.layout.space.seed(0)
    leaves = policy.layout.allocate(rows)
    for row in range(rows):
        policy.layout.write(leaves, row, policy.layout.space.sample())
    return leaves


def test_pictures_stand_beside_vectors():
    policy = Policy(several(), spaces.Discrete(4), cnn_features=10)
    assert policy.pictures.architectures == ("small", "nature") and policy.net_arch == ((64, 64), (64, 64))
    assert policy.network.pi[0].in_features == 8 + 2 * 10
    inputs = policy.prepare(leaves_of(policy, 6))
    assert inputs["image:features"].dtype == torch.uint8  # until the first layer
    params, values = policy(inputs)
    assert params.shape == (6, 4) and values.shape == (6,) and params.abs().max() < 0.1
    assert policy.mlp_shape() is None


def test_a_picture_alone_has_no_hidden_layers():
    space = spaces.Box(shape=(3, 40, 40), **BYTES)
    assert Policy(space, spaces.Discrete(4)).net_arch == ((), ())
    assert Policy(space, spaces.Discrete(4), net_arch={"pi": (8,), "vf": ()}).net_arch == ((8,), ())
    flat = Policy(space, spaces.Discrete(4), cnn="none")
    assert flat.pictures is None and flat.net_arch == ((64, 64), (64, 64)) and flat.mlp_shape() is not None


def test_bytes_are_not_normalised():
    policy = Policy(several(), spaces.Discrete(4), normalize_obs=True)
    assert policy.normalizer.paths == ("pair/0", "vector")
    leaves = leaves_of(policy, 3)
    assert policy.features(leaves)["image:features"] is leaves["features"]


def test_actions_are_scored_beside_a_picture():
    space = spaces.Dict(
        action_features=spaces.Box(-1, 1, (5, 3), np.float32), map=spaces.Box(shape=(2, 16, 16), **BYTES)
    )
    policy = Policy(space, spaces.Discrete(5), cnn_features=16)
    assert policy.n_action_features == 3 and policy.net_arch == ((64, 64), (64, 64))
    masks = torch.tensor([[True, False, True, True, False]] * 4)
    params, values = policy(policy.prepare(leaves_of(policy, 4)), masks)
    assert params.shape == (4, 5) and values.shape == (4,)
    assert (params[:, 1] < -1e6).all()
