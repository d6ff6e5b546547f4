"""The choice of a run's device, from its config and its env."""

from __future__ import annotations

from corral.core.spaces import Layout
from corral.envs.factory import EnvFactory
from corral.envs.lifecycle import probe_env
from corral.policy.device import DeviceChoice, choose_device
from corral.policy.images import image_leaves
from corral.policy.policy import NetworkFactory

__all__ = ["device_for"]


def device_for(wanted: str, cnn: str, factory: EnvFactory, network: NetworkFactory | None) -> DeviceChoice:
    """Return the device called ``wanted``; ``auto`` depends on whether the built-in network gets images.

    The env is made only if ``auto`` has to know.
    """

    def has_images() -> bool:
        if network is not None or cnn == "none":
            return False
        return bool(image_leaves(Layout(probe_env(factory).observation_space)))

    return choose_device(wanted, has_images)
