"""One measurement of ``throughput.py``, in a process of its own: a JSON job as argument, a JSON result as last line.

Every competitor is timed the same way, by the clock on the wall and in whole iterations (collecting and learning): the
first is a warm-up, then they are counted until the time is used up. Importing, making envs, starting workers and what
a library does before its first step are left out.
"""

from __future__ import annotations

import functools
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Job = dict[str, Any]
Result = dict[str, Any]
FOREVER = 10**9
"""Steps that no timed run reaches."""
EVAL_EVERY, EVAL_EPISODES = 2_560, 10


@dataclass
class Stopwatch:
    """When each iteration ended and how many steps there were by then; says when it has seen enough."""

    seconds: float
    marks: list[tuple[float, int]] = field(default_factory=list)

    def mark(self, steps: int) -> bool:
        """Note the end of an iteration; True once the time is used up, which is never at the first one."""
        self.marks.append((time.perf_counter(), steps))
        return len(self.marks) > 1 and self.marks[-1][0] - self.marks[0][0] >= self.seconds

    def result(self) -> Result:
        """Steps per second after the first iteration."""
        (began, before), (ended, after) = self.marks[0], self.marks[-1]
        return {"steps_per_s": (after - before) / (ended - began), "steps": after - before, "seconds": ended - began}


def make_one(job: Job) -> Callable[[], Any]:
    """A function that makes one env, the same for every competitor: by Corral, without Gymnasium's passive checker."""
    import corral

    return functools.partial(corral.make_env, job["env"], **job.get("env_kwargs", {}))


# ---- training ----------------------------------------------------------------------------------------------------


def train_corral(job: Job) -> Result:
    """Corral's PPO; with ``until``, the seconds until an evaluation reaches that reward."""
    import corral
    from corral.storage.metrics_file import read_metrics

    until, watch = job.get("until"), Stopwatch(job["seconds"])
    clock = {"evaluating": 0.0, "first step": 0.0}
    reached: Result = {"seconds_to_reward": None, "steps_to_reward": None}

    def after_iteration(state: Any) -> None:
        if until is None:
            if watch.mark(state.timesteps):
                state.stop("measured")
            return
        now = time.perf_counter()
        clock["evaluating"] += state.metrics.get("eval/seconds", 0.0)
        if state.iteration == 1:
            clock["first step"] = now - state.metrics["time/time_elapsed"]
        due = state.timesteps % EVAL_EVERY == 0  # Corral evaluates once more at its end
        if due and state.metrics.get("eval/mean_reward", -math.inf) >= until:
            seconds = now - clock["first step"] - clock["evaluating"]
            reached.update(seconds_to_reward=seconds, steps_to_reward=state.timesteps)
            state.stop("reached")

    with tempfile.TemporaryDirectory() as folder:
        done = corral.train(
            job["env"],
            env_kwargs=job.get("env_kwargs", {}),
            n_envs=job["n_envs"],
            backend=job["backend"],
            timesteps=job.get("timesteps", FOREVER),
            seed=job["seed"],
            device="cpu",
            quiet=True,
            eval_freq=EVAL_EVERY if until is not None else 0,
            eval_episodes=EVAL_EPISODES,
            tensorboard=False,
            checkpoint_freq=0,
            output_dir=f"{folder}/run",
            callback=after_iteration,
            **job["settings"],
        )
        rows = read_metrics(done.run_dir / "metrics.jsonl")[1:]  # without the warm-up
    chosen = {"backend": done.summary.backend, "num_workers": done.summary.num_workers, "own_fps": done.summary.fps}
    if until is not None:
        return reached | chosen
    collect_s = sum(row["time/collect_s"] for row in rows)
    size = job["settings"]["n_steps"] * job["n_envs"]
    return watch.result() | chosen | {"collect_steps_per_s": len(rows) * size / collect_s}


def train_sb3(job: Job) -> Result:
    """PPO of Stable-Baselines3, or MaskablePPO of sb3-contrib, as ``train_corral``."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    if job["threads"] is not None:
        torch.set_num_threads(job["threads"])
    until, watch = job.get("until"), Stopwatch(job["seconds"])
    reached: Result = {"seconds_to_reward": None, "steps_to_reward": None}
    eval_env = make_vec_env(make_one(job), seed=1000 + job["seed"]) if until is not None else None

    class Watch(BaseCallback):
        """An iteration ends where the next rollout starts; a run can only be stopped at its first step."""

        stopping = False
        first_step = evaluating = 0.0

        def _on_rollout_start(self) -> None:
            if self.num_timesteps == 0:
                self.first_step = time.perf_counter()
            elif until is None:
                self.stopping = watch.mark(self.num_timesteps)
            elif self.num_timesteps % EVAL_EVERY == 0:
                self._evaluate(until)

        def _evaluate(self, until: float) -> None:
            now = time.perf_counter()
            reward, _ = evaluate_policy(self.model, eval_env, n_eval_episodes=EVAL_EPISODES)  # most likely actions
            if reward >= until:
                seconds = now - self.first_step - self.evaluating
                reached.update(seconds_to_reward=seconds, steps_to_reward=self.num_timesteps)
                self.stopping = True
            self.evaluating += time.perf_counter() - now

        def _on_step(self) -> bool:
            return not self.stopping

    algorithm: Any = PPO
    if job.get("masked"):
        from sb3_contrib import MaskablePPO

        algorithm = MaskablePPO
    settings = dict(job["settings"])
    if settings.pop("learning_rate_end", None) is not None:  # which is 0
        first = settings["learning_rate"]
        settings["learning_rate"] = lambda remaining: first * remaining
    kind = {"dummy": DummyVecEnv, "subproc": SubprocVecEnv}[job["vec_env"]]
    if job.get("atari"):
        from stable_baselines3.common.env_util import make_atari_env
        from stable_baselines3.common.vec_env import VecFrameStack

        made = make_atari_env(job["env"], job["n_envs"], seed=job["seed"], vec_env_cls=kind)
        vec_env, policy = VecFrameStack(made, 4), "CnnPolicy"
    else:
        vec_env, policy = make_vec_env(make_one(job), job["n_envs"], seed=job["seed"], vec_env_cls=kind), "MlpPolicy"
    model = algorithm(policy, vec_env, seed=job["seed"], device="cpu", **settings)
    model.learn(job.get("timesteps", FOREVER), callback=Watch())
    vec_env.close()
    return (watch.result() if until is None else reached) | {"threads": torch.get_num_threads()}


# ---- stepping alone ----------------------------------------------------------------------------------------------


def make_stepper(job: Job) -> Any:
    """A vector env of any make."""
    import gymnasium as gym

    import corral

    n_envs, kind = job["n_envs"], job["vec_env"]
    if kind == "corral":
        return corral.make_parallel_env(job["env"], n_envs, num_workers=job.get("num_workers"))
    makers = [make_one(job)] * n_envs
    if kind == "gymnasium-async":
        return gym.vector.AsyncVectorEnv(makers, shared_memory=True)
    if kind == "gymnasium-sync":
        return gym.vector.SyncVectorEnv(makers)
    from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

    return {"sb3-dummy": DummyVecEnv, "sb3-subproc": SubprocVecEnv}[kind](makers)


def step_only(job: Job) -> Result:
    """A vector env's own ``step`` with random actions, in blocks of 64; the first block is the warm-up."""
    import numpy as np

    env, block = make_stepper(job), 64
    env.reset()
    actions = np.random.default_rng(job["seed"]).integers(0, 2, (block, job["n_envs"]))  # CartPole has two
    watch, steps, enough = Stopwatch(job["seconds"]), 0, False
    while not enough:
        for action in actions:
            env.step(action)
        steps += block * job["n_envs"]
        enough = watch.mark(steps)
    env.close()
    return watch.result()


def _step_bare(job: Job, n_envs: int, together: Any, results: Any) -> None:
    envs = [make_one(job)() for _ in range(n_envs)]
    for i, env in enumerate(envs):
        env.action_space.seed(job["seed"] + i)
        env.reset(seed=job["seed"] + i)
    together.wait()
    watch, steps, enough = Stopwatch(job["seconds"]), 0, False
    while not enough:
        for env in envs:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()
        steps += n_envs
        enough = watch.mark(steps)
    results.put(watch.result()["steps_per_s"])


def bare(job: Job) -> Result:
    """As many processes as cores, side by side, that do nothing but step their share of the envs: the limit."""
    from corral.core.machine import available_cores

    processes = min(available_cores(), job["n_envs"])
    context = multiprocessing.get_context("spawn")
    together, results = context.Barrier(processes), context.SimpleQueue()
    shares = [len(range(i, job["n_envs"], processes)) for i in range(processes)]
    started = [context.Process(target=_step_bare, args=(job, share, together, results)) for share in shares]
    for process in started:
        process.start()
    rates = [results.get() for _ in started]
    for process in started:
        process.join()
    return {"steps_per_s": sum(rates), "processes": processes}


# ---- starting ----------------------------------------------------------------------------------------------------


def start(job: Job) -> Result:
    """Seconds until the first reset has returned, and the memory that a worker shares with no other process."""
    import psutil

    make_one(job)().close()  # imports what the parent needs for an env
    if job["vec_env"].startswith("sb3"):
        import stable_baselines3.common.vec_env  # noqa: F401
    began = time.perf_counter()
    env = make_stepper(job)
    env.reset()
    seconds = time.perf_counter() - began
    pids = env.pids if job["vec_env"] == "corral" else [process.pid for process in env.processes]
    own = [psutil.Process(pid).memory_full_info().uss / 1e6 for pid in pids]
    env.close()
    return {"start_s": seconds, "worker_mb": statistics.median(own), "workers": len(pids)}


KINDS: dict[str, Callable[[Job], Result]] = {
    "train-corral": train_corral,
    "train-sb3": train_sb3,
    "step": step_only,
    "bare": bare,
    "start": start,
}

if __name__ == "__main__":
    given: Job = json.loads(sys.argv[1])
    print(json.dumps(KINDS[given["kind"]](given)))
