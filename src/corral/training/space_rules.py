"""Rules about settings that need properties of the env, which workers report; ``config.rules`` has the others.

A rule raises a UsageError if a setting has no effect with this env, because no setting is silently ignored.
"""

from __future__ import annotations

from collections.abc import Callable

from corral.config.schema import TrainConfig
from corral.core.errors import UsageError
from corral.envs.env_info import EnvInfo
from corral.policy.images import is_normalizable
from corral.policy.policy import Policy
from corral.ppo.minibatch_shards import shard_count

__all__ = ["check_env_settings", "check_used_settings"]


def check_env_settings(config: TrainConfig, env_info: EnvInfo, is_resumed: bool) -> None:
    """Raise a UsageError if a setting is impossible or has no effect with a vector env, and the env is one."""
    if env_info.is_vector and config.adaptive:
        raise UsageError(f"adaptive moves envs between workers, which {config.env} does not allow; leave it out")
    # Earlier versions began such runs, and ignored the options. A resume cannot leave the stages out, so it goes on.
    if env_info.is_vector and any(stage.options for stage in config.stages) and not is_resumed:
        raise UsageError(f"stages: {config.env} is reset without options, so they have no effect; leave stages out")


def check_used_settings(config: TrainConfig, policy: Policy) -> None:
    """Raise a UsageError if a setting has no effect with the spaces of this policy."""
    for rule in RULES:
        rule(config, policy)


def _check_normalize_obs(config: TrainConfig, policy: Policy) -> None:
    """Check that ``normalize_obs`` has observations to normalize."""
    if config.normalize_obs and not any(map(is_normalizable, policy.state_layout.leaves)):
        raise UsageError(
            "normalize_obs scales floats, and integers that are no image, but this env has neither; leave it out"
        )


def _check_settings_without_images(config: TrainConfig, policy: Policy) -> None:
    """Check that settings of convolutional networks come with images in the observations."""
    if policy.pictures is None and not policy.is_custom:
        for name, value in (("cnn", config.cnn), ("cnn_features", config.cnn_features), ("bf16", config.bf16)):
            if value not in (type(config).model_fields[name].default, "none"):
                raise UsageError(f"{name} {value} is for images, but the observations have none; leave it out")


def _check_learner_of_images(config: TrainConfig, policy: Policy) -> None:
    """Check that the settings of the learner are possible for a convolutional network."""
    if policy.pictures is None:
        return
    threads = config.learner_threads or 1
    if config.learner == "numpy":
        raise UsageError("learner numpy is for networks that numpy runs, but this one has images; leave it out")
    if config.compile and threads > 1:
        raise UsageError("compile and learner_threads: with images, only one of them; leave one out")
    if policy.log_std.device.type != "cpu" and config.learner_shares is not None:
        raise UsageError(f"learner_shares is for the CPU, but device is {policy.log_std.device}; leave it out")
    if 1 < (shards := shard_count(policy, config)) < threads:
        raise UsageError(
            f"learner_threads {config.learner_threads} is more than the {shards} shards of a minibatch; give fewer "
            "threads, or more shards with a larger batch_size or with learner_shares"
        )


def _check_shards_of_sequences(config: TrainConfig, policy: Policy) -> None:
    """Check that every shard of a recurrent policy's minibatch has a sequence."""
    sequences = config.minibatch_size // (config.sequence_length or 1)
    if policy.n_state and (config.learner_shares or 1) > sequences:
        raise UsageError(
            f"learner_shares {config.learner_shares} is more than the {sequences} sequences in a minibatch; give it "
            "fewer, or a larger batch_size, or a smaller sequence_length"
        )


def _check_shards_of_torch(config: TrainConfig, policy: Policy) -> None:
    """Check that ``learner_shares`` with the torch engine comes with images."""
    if policy.pictures is None and config.learner == "torch" and config.learner_shares is not None:
        raise UsageError(
            "learner_shares with learner torch is for images, but the observations have none; leave it out"
        )


def _check_log_std_init(config: TrainConfig, policy: Policy) -> None:
    """Check that ``log_std_init`` comes with continuous actions."""
    if config.log_std_init != 0 and not any(policy.codec.gaussian):
        raise UsageError("log_std_init is for continuous actions, but this env has none; leave it out")


RULES: tuple[Callable[[TrainConfig, Policy], None], ...] = (
    _check_normalize_obs,
    _check_settings_without_images,
    _check_learner_of_images,
    _check_shards_of_sequences,
    _check_shards_of_torch,
    _check_log_std_init,
)
