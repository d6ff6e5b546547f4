"""Rules about settings that need the env's spaces, which workers report; ``config.rules`` has the others."""

from __future__ import annotations

__all__ = ["check_used_settings"]

from corral.config.schema import TrainConfig
from corral.core.errors import UsageError
from corral.policy.images import is_normalizable
from corral.policy.policy import Policy
from corral.ppo.minibatch_shards import shares_of


def check_used_settings(config: TrainConfig, policy: Policy) -> None:
    """Refuse settings that these spaces have no use for: whatever is asked is done or refused, never ignored."""
    if config.normalize_obs and not any(map(is_normalizable, policy.state_layout.leaves)):
        raise UsageError(
            "normalize_obs scales floats, and integers that are no picture, but this env shows neither; leave it out"
        )
    if policy.pictures is None and not policy.custom:
        for name, value in (("cnn", config.cnn), ("cnn_features", config.cnn_features), ("bf16", config.bf16)):
            if value not in (type(config).model_fields[name].default, "none"):
                raise UsageError(f"{name} {value} is for pictures, but none is seen here; leave it out")
    if policy.pictures is not None and config.learner == "numpy":
        raise UsageError("learner numpy is for networks that numpy runs, but this one sees pictures; leave it out")
    if policy.pictures is not None and config.compile and (config.learner_threads or 1) > 1:
        raise UsageError("compile and learner_threads: with pictures, only one of them; leave one out")
    if policy.pictures is not None and policy.log_std.device.type != "cpu" and config.learner_shares is not None:
        raise UsageError(f"learner_shares is for the CPU, but device is {policy.log_std.device}; leave it out")
    if policy.pictures is not None and 1 < (shares := shares_of(policy, config)) < (config.learner_threads or 1):
        raise UsageError(
            f"learner_threads {config.learner_threads} is more than the {shares} parts of a minibatch; give it fewer, "
            "or more parts with a larger batch_size or with learner_shares"
        )
    sequences = config.minibatch_size // (config.sequence_length or 1)
    if policy.n_state and (config.learner_shares or 1) > sequences:
        raise UsageError(
            f"learner_shares {config.learner_shares} is more than the {sequences} sequences in a minibatch; give it "
            "fewer, or a larger batch_size, or a smaller sequence_length"
        )
    if policy.pictures is None and config.learner == "torch" and config.learner_shares is not None:
        raise UsageError("learner_shares with learner torch is for pictures, but none is seen here; leave it out")
    if config.log_std_init != 0 and not any(policy.codec.gaussian):
        raise UsageError("log_std_init is for continuous actions, but this env has none; leave it out")
