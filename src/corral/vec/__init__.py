"""Vector envs with Gymnasium's interface, in this process or in worker processes. Nothing here imports torch."""

from corral.vec.api import CorralVectorEnv
from corral.vec.make_vec import make_vector_env
from corral.vec.process import ProcessVectorEnv
from corral.vec.serial import SerialVectorEnv

__all__ = ["CorralVectorEnv", "ProcessVectorEnv", "SerialVectorEnv", "make_vector_env"]
