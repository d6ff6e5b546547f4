"""A replacement of ``SubprocVecEnv`` for Stable-Baselines3 and sb3-contrib.

from corral.sb3 import make_parallel_env
model = MaskablePPO("MlpPolicy", make_parallel_env(make_env, n_envs=12))
"""

from corral.interop.sb3 import CorralVecEnv, make_parallel_env

__all__ = ["CorralVecEnv", "make_parallel_env"]
