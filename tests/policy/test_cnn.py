"""Image leaves of an observation space are found, and CNNs encode them as features."""

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


def images_of(shape, **box):
    """Return the image leaves of a Box, which holds bytes unless told otherwise."""
    return image_leaves(Layout(spaces.Box(shape=shape, **{**BYTES, **box})))


@pytest.mark.parametrize(
    ("shape", "channels", "sides", "channels_first"),
    [
        ((20, 64, 64), 20, (64, 64), True),
        ((84, 84, 3), 3, (84, 84), False),
        ((4, 60, 80), 4, (60, 80), True),
        ((60, 80, 4), 4, (60, 80), False),
        ((32, 16, 16), 32, (16, 16), True),  # more channels than pixels on a side
        ((16, 16, 32), 32, (16, 16), False),
        ((4, 84, 84, 3), 12, (84, 84), False),  # four stacked frames
    ],
)
def test_the_channel_axis_of_an_image_is_found(shape, channels, sides, channels_first):
    (image,) = images_of(shape)
    assert (image.channels, (image.height, image.width), image.channels_first) == (channels, sides, channels_first)


@pytest.mark.parametrize("shape", [(64,), (8, 8), (3, 7, 7), (4, 4, 1), (2, 2, 2, 64, 64)])
def test_other_shapes_are_not_images(shape):
    assert images_of(shape) == ()


def test_only_bytes_with_the_full_range_are_scaled():
    assert images_of((3, 8, 8))[0].scale == 1 / 255
    assert images_of((3, 8, 8), high=4)[0].scale == 1  # not the full range of a byte: values are not scaled
    assert images_of((3, 8, 8), low=-1, high=1, dtype=np.float32)[0].scale == 1
    assert images_of((3, 8, 8), dtype=np.int32) == ()


def test_channels_last_and_channels_first_give_the_same_features():
    torch.manual_seed(0)
    first, last = (ImageEncoder(images_of(shape), "auto", 16, True) for shape in ((3, 40, 48), (40, 48, 3)))
    last.load_state_dict(first.state_dict())
    pixels = torch.randint(0, 256, (5, 3, 40, 48), dtype=torch.uint8)
    np.testing.assert_array_equal(
        first({"": pixels}).detach(), last({"": pixels.permute(0, 2, 3, 1).contiguous()}).detach()
    )


def test_stacked_frames_are_encoded_as_channels():
    torch.manual_seed(0)
    channels, frames = (ImageEncoder(images_of(shape), "auto", 16, True) for shape in ((12, 40, 40), (4, 40, 40, 3)))
    frames.load_state_dict(channels.state_dict())
    pixels = torch.randint(0, 256, (5, 4, 40, 40, 3), dtype=torch.uint8)
    joined = pixels.permute(0, 1, 4, 2, 3).flatten(1, 2)
    np.testing.assert_array_equal(channels({"": joined}).detach(), frames({"": pixels}).detach())


def test_the_nature_cnn_equals_that_of_stable_baselines3():
    extractor = pytest.importorskip("stable_baselines3.common.torch_layers").NatureCNN
    torch.manual_seed(0)
    space = spaces.Box(shape=(4, 84, 84), **BYTES)
    sb3_cnn = extractor(space, features_dim=512)
    corral_cnn = ImageEncoder(image_leaves(Layout(space)), "nature", 512, True)
    with torch.no_grad():
        for weight, sb3_weight in zip(corral_cnn.parameters(), sb3_cnn.parameters(), strict=True):
            weight.copy_(sb3_weight)
        pixels = torch.randint(0, 256, (6, 4, 84, 84), dtype=torch.uint8)
        np.testing.assert_allclose(corral_cnn({"": pixels}), sb3_cnn(pixels.float() / 255), atol=1e-6)


def test_initial_weights_have_the_shapes_and_norms_of_stable_baselines3():
    """Shapes, gains of the orthogonal weights and biases of 0 are the same; only the random numbers differ."""
    sb3 = pytest.importorskip("stable_baselines3")
    space = spaces.Box(shape=(4, 84, 84), **BYTES)
    sb3_policy = sb3.common.policies.ActorCriticCnnPolicy(space, spaces.Discrete(6), lambda _: 1e-3)
    corral_policy = Policy(space, spaces.Discrete(6), cnn_features=512)
    weights, sb3_weights = (
        [p.detach() for p in policy.parameters() if p.numel()] for policy in (corral_policy, sb3_policy)
    )
    assert sum(p.numel() for p in weights) == sum(p.numel() for p in sb3_weights) == 1_687_719
    assert sorted(tuple(p.shape) for p in weights) == sorted(tuple(p.shape) for p in sb3_weights)
    by_shape = {tuple(p.shape): p for p in sb3_weights}
    pixels = torch.randint(0, 256, (6, 4, 84, 84), dtype=torch.uint8)
    with torch.no_grad():
        for weight in weights:
            sb3_weight = by_shape[tuple(weight.shape)]
            assert float(weight.norm()) == pytest.approx(float(sb3_weight.norm()), rel=1e-4)
            weight.copy_(sb3_weight)
        params, values = corral_policy(corral_policy.prepare({"": pixels.numpy()}))
        features = sb3_policy.extract_features(pixels)
        np.testing.assert_allclose(params, sb3_policy.action_net(features), atol=1e-6)
        np.testing.assert_allclose(values, sb3_policy.value_net(features)[:, 0], atol=1e-5)


@pytest.mark.parametrize(("bf16", "amx"), [(False, False), (True, False), (False, True)])
def test_bf16_is_slow_on_a_cpu_without_bf16_instructions(bf16, amx, monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert is_slow_in_bf16(torch.device("cpu")) == (not bf16 and not amx)


def test_bf16_features_are_close_and_gradients_are_float32():
    torch.manual_seed(0)
    bf16_encoder, float32_encoder = (
        ImageEncoder(images_of((3, 40, 40)), "nature", 8, True, bf16) for bf16 in (True, False)
    )
    float32_encoder.load_state_dict(bf16_encoder.state_dict())
    pixels = torch.randint(0, 256, (6, 3, 40, 40), dtype=torch.uint8)
    bf16_features, float32_features = bf16_encoder({"": pixels}), float32_encoder({"": pixels})
    assert bf16_features.dtype == torch.float32 and not torch.equal(bf16_features, float32_features)
    np.testing.assert_allclose(bf16_features.detach(), float32_features.detach(), rtol=0.05, atol=0.02)
    bf16_features.sum().backward()
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in bf16_encoder.parameters())


def test_scaled_weights_get_the_gradients_of_scaled_pixels():
    """The encoder scales its weights rather than its pixels; gradients are those of scaled pixels."""
    torch.manual_seed(0)
    scaled_weights = ImageEncoder(images_of((3, 8, 8)), "small", 4, True)
    scaled_pixels = ImageEncoder(images_of((3, 8, 8), low=0, high=1, dtype=np.float32), "small", 4, True)
    scaled_pixels.load_state_dict(scaled_weights.state_dict())
    pixels = torch.randint(0, 256, (6, 3, 8, 8), dtype=torch.uint8)
    scaled_weights({"": pixels}).sum().backward()
    scaled_pixels({"": pixels / 255}).sum().backward()
    for weight, expected in zip(scaled_weights.parameters(), scaled_pixels.parameters(), strict=True):
        np.testing.assert_allclose(weight.grad, expected.grad, rtol=1e-4, atol=1e-5)


def test_auto_chooses_a_cnn_that_fits_the_image():
    assert ImageEncoder(images_of((20, 64, 64)), "auto", 8, True).architectures == ("nature",)
    assert ImageEncoder(images_of((20, 64, 24)), "auto", 8, True).architectures == ("small",)
    for cnn in ("small", "impala"):
        assert ImageEncoder(images_of((1, 8, 8)), cnn, 8, True)({"": torch.zeros(2, 1, 8, 8)}).shape == (2, 8)
    message = r"cnn nature needs images of at least 36 x 36, but the image is 24 x 64; auto or small or impala fit"
    with pytest.raises(UsageError, match=message):
        ImageEncoder(images_of((3, 24, 64)), "nature", 8, True)


def space_with_images():
    """Return a space with an image of bytes, an image of floats, a Discrete and a vector."""
    return spaces.Dict(
        features=spaces.Box(shape=(3, 16, 16), **BYTES),
        pair=spaces.Tuple((spaces.Box(-1, 1, (40, 40, 1), np.float32), spaces.Discrete(3))),
        vector=spaces.Box(-1, 1, (5,)),
    )


def sample_leaves(policy, rows):
    """Return random observations as leaves of the policy's layout."""
    policy.layout.space.seed(0)
    leaves = policy.layout.allocate(rows)
    for row in range(rows):
        policy.layout.write(leaves, row, policy.layout.space.sample())
    return leaves


def test_image_features_are_joined_with_vector_features():
    policy = Policy(space_with_images(), spaces.Discrete(4), cnn_features=10)
    assert policy.pictures.architectures == ("small", "nature") and policy.net_arch == ((64, 64), (64, 64))
    assert policy.network.pi[0].in_features == 8 + 2 * 10
    inputs = policy.prepare(sample_leaves(policy, 6))
    assert inputs["image:features"].dtype == torch.uint8  # images stay bytes until the first layer
    params, values = policy(inputs)
    assert params.shape == (6, 4) and values.shape == (6,) and params.abs().max() < 0.1
    assert policy.mlp_shape() is None


def test_a_policy_that_sees_only_an_image_has_no_hidden_layers():
    space = spaces.Box(shape=(3, 40, 40), **BYTES)
    assert Policy(space, spaces.Discrete(4)).net_arch == ((), ())
    assert Policy(space, spaces.Discrete(4), net_arch={"pi": (8,), "vf": ()}).net_arch == ((8,), ())
    without_cnn = Policy(space, spaces.Discrete(4), cnn="none")
    assert (
        without_cnn.pictures is None
        and without_cnn.net_arch == ((64, 64), (64, 64))
        and without_cnn.mlp_shape() is not None
    )


def test_images_of_bytes_are_not_normalised():
    policy = Policy(space_with_images(), spaces.Discrete(4), normalize_obs=True)
    assert policy.normalizer.paths == ("pair/0", "vector")
    leaves = sample_leaves(policy, 3)
    assert policy.features(leaves)["image:features"] is leaves["features"]


def test_actions_are_scored_with_image_observations():
    space = spaces.Dict(
        action_features=spaces.Box(-1, 1, (5, 3), np.float32), map=spaces.Box(shape=(2, 16, 16), **BYTES)
    )
    policy = Policy(space, spaces.Discrete(5), cnn_features=16)
    assert policy.n_action_features == 3 and policy.net_arch == ((64, 64), (64, 64))
    masks = torch.tensor([[True, False, True, True, False]] * 4)
    params, values = policy(policy.prepare(sample_leaves(policy, 4)), masks)
    assert params.shape == (4, 5) and values.shape == (4,)
    assert (params[:, 1] < -1e6).all()
