"""RLlib's side of ``compare_rllib.py``: trains in a process of its own, with the Python that has RLlib.

The argument is a job as JSON; the last line of the standard output is the result as JSON. This file imports nothing of
Corral, and ``compare_rllib.py`` imports nothing of RLlib.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import os
import platform
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

Job = dict[str, Any]
Result = dict[str, Any]
PACKAGES = ("ray", "torch", "numpy", "gymnasium")
ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # Ray lowers the priority of actors; Corral turns this off too
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_AUTH_MODE": "token",  # Ray listens on all network interfaces
}


@contextlib.contextmanager
def local_ray(num_cpus: int) -> Iterator[None]:
    """Start a Ray on this machine, with the settings of the Ray that Corral starts, and end it."""
    os.environ.update(ENVIRONMENT, RAY_AUTH_TOKEN=secrets.token_hex(32))  # before ray is imported
    import ray

    with tempfile.TemporaryDirectory(prefix="rllib-", ignore_cleanup_errors=True) as directory:
        try:
            ray.init(
                address="local",
                num_cpus=num_cpus,
                include_dashboard=False,
                log_to_driver=False,
                logging_level="ERROR",
                _temp_dir=directory,
            )
            signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # Ray's handler skips `finally`
            yield
        finally:
            ray.shutdown()


def configure(job: Job) -> Any:
    """Return RLlib's config: the settings of Corral's run, and what makes RLlib fast without a change of the result.

    RLlib's documentation recommends several env runners with several envs each. Where this is not enough to be fast or
    to compute what Corral computes, a comment says why a setting is there.
    """
    from ray.rllib.algorithms.ppo import PPOConfig
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
    from ray.tune.registry import register_env

    settings, runners = job["settings"], job["num_workers"]
    if job["env"] == "work":
        from compare_rllib_game import Work

        register_env("work", lambda config: Work())
    return (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        .framework("torch")
        .environment(
            job["env"],
            # This is an argument of gym.make. Corral turns Gymnasium's checker off too.
            env_config={} if job["env"] == "work" else {"disable_env_checker": True},
        )
        .env_runners(
            num_env_runners=runners,
            num_cpus_per_env_runner=1,
            num_envs_per_env_runner=settings["n_envs"] // runners,
            gym_env_vectorize_mode="sync",
            rollout_fragment_length=settings["n_steps"],
            batch_mode="truncate_episodes",
            merge_env_runner_states=False,  # the connectors have no state, so this only saves messages
            broadcast_env_runner_states=False,
        )
        .learners(num_learners=0, num_gpus_per_learner=0)  # the learner runs in this process
        .rl_module(
            model_config=DefaultModelConfig(
                fcnet_hiddens=settings["net_arch"],
                fcnet_activation=settings["activation_fn"],
                vf_share_layers=False,
            )
        )
        .training(
            train_batch_size_per_learner=settings["n_envs"] * settings["n_steps"],
            minibatch_size=settings["batch_size"],
            num_epochs=settings["n_epochs"],
            lr=settings["learning_rate"],
            gamma=settings["gamma"],
            lambda_=settings["gae_lambda"],
            clip_param=settings["clip_range"],
            vf_loss_coeff=settings["vf_coef"],
            entropy_coeff=settings["ent_coef"],
            grad_clip=settings["max_grad_norm"],
            grad_clip_by="global_norm",
            vf_clip_param=float("inf"),  # Corral does not clip the value loss by default
            use_kl_loss=False,  # nor does it add a KL divergence to the loss
        )
        .evaluation(evaluation_interval=None)
        .debugging(seed=job["seed"], log_level="ERROR", log_sys_usage=False)
    )


def check_network(algorithm: Any, job: Job) -> int:
    """Return the number of parameters of the policy and value networks; exit if Corral's have another number."""
    [learner] = algorithm.learner_group.foreach_learner(lambda learner: learner)
    module = learner.get().module["default_policy"]
    parameters = sum(p.numel() for p in module.parameters())
    expected = 0
    for outputs in (module.action_space.n, 1):
        sizes = [*module.observation_space.shape, *job["settings"]["net_arch"], outputs]
        expected += sum((before + 1) * after for before, after in itertools.pairwise(sizes))
    if parameters != expected:
        raise SystemExit(f"RLlib's networks have {parameters:,} parameters; Corral's have {expected:,}")
    return parameters


def check_iteration(result: Result, job: Job) -> int:
    """Return the steps of an iteration; exit if it is not one rollout by all env runners.

    A runner stops as soon as it has its share of the rollout. It does not count resets of envs, so the envs of a runner
    are not all at the same step, and it may exceed its share by less than one step for each of its envs.
    """
    settings, runners = job["settings"], job["num_workers"]
    rollout, steps = settings["n_envs"] * settings["n_steps"], int(result["env_runners"]["num_env_steps_sampled"])
    if not rollout <= steps <= rollout + settings["n_envs"] - runners:
        raise SystemExit(f"RLlib sampled {steps:,} steps in an iteration; a rollout has {rollout:,}")
    if result["num_training_step_calls_per_iteration"] != 1:
        raise SystemExit("RLlib made several updates in an iteration")
    faults = result["fault_tolerance"]
    if faults["num_healthy_workers"] != runners or faults["num_remote_worker_restarts"]:
        raise SystemExit(f"an env runner of RLlib failed: {faults}")
    return steps


def train(job: Job) -> Result:
    """Call RLlib's ``train()`` ``warm_up`` times and then ``iterations`` times; return what each of the latter took."""
    import torch

    if job["threads"] is not None:
        torch.set_num_threads(job["threads"])
    algorithm = configure(job).build_algo()
    try:
        parameters = check_network(algorithm, job)
        iterations = []
        for _ in range(job["warm_up"] + job["iterations"]):
            began = time.perf_counter()
            result = algorithm.train()
            seconds = time.perf_counter() - began
            trained = int(result["learners"]["default_policy"]["num_module_steps_trained"])
            gradient_steps = trained // job["settings"]["batch_size"]
            steps = check_iteration(result, job)
            episodes = int(result["env_runners"]["num_episodes"])
            iterations.append(
                {"seconds": seconds, "steps": steps, "gradient_steps": gradient_steps, "episodes": episodes}
            )
    finally:
        algorithm.stop()
    return {
        "iterations": iterations[job["warm_up"] :],
        "threads": torch.get_num_threads(),
        "parameters": parameters,
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in PACKAGES},
    }


def main() -> None:
    job: Job = json.loads(sys.argv[1])
    with local_ray(job["num_workers"]):
        result = train(job)
    print(json.dumps(result))


if __name__ == "__main__":
    main()
