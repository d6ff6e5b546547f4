"""Long learning curves, per step: Corral beside Stable-Baselines3 where there is something to compare.

    python benchmarks/curves.py run pong --library sb3 --seed 1 --steps 1000000
    python benchmarks/curves.py run pong --library corral --seed 1 --duration 2
    python benchmarks/curves.py report        # writes curves.md beside this file, and docs/images/curves-*.png

A run writes one line for each rollout into benchmarks/curves/<library>_<task>_<seed>.jsonl: steps, the mean reward of
the last 100 training episodes, and seconds. Both libraries play the same games with the same settings. `random` plays
random actions. Timing is not compared here: runs may share the cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
IMAGES = HERE.parent / "docs" / "images"
ATARI = {"n_steps": 128, "batch_size": 256, "n_epochs": 4, "learning_rate": 2.5e-4, "clip_range": 0.1}
TASKS = {
    "pong": {
        "env": "envpool:Pong-v5",
        "env_kwargs": {"episodic_life": True, "reward_clip": True},
        "steps": 1_000_000,
        "settings": {**ATARI, "vf_coef": 0.5, "ent_coef": 0.01},
        "corral": {"cnn": "nature", "cnn_features": 512},
        "libraries": ("corral", "sb3"),
    },
    "halfcheetah": {
        "env": "envpool:HalfCheetah-v4",
        "env_kwargs": {},
        "steps": 500_000,
        "settings": {"n_steps": 256},
        "corral": {"normalize_obs": True, "normalize_reward": True},
        "libraries": ("corral", "sb3"),
    },
    "coinrun": {
        "env": "envpool:CoinrunEasy-v0",
        "env_kwargs": {},
        "n_envs": 16,
        "steps": 1_000_000,
        "settings": {
            "n_steps": 256,
            "batch_size": 512,
            "n_epochs": 3,
            "learning_rate": 5e-4,
            "gamma": 0.999,
            "ent_coef": 0.01,
        },
        "corral": {"cnn": "nature"},
        "libraries": ("corral", "random"),
    },
}
N_ENVS = 8
NAMES = {"corral": "Corral", "sb3": "Stable-Baselines3", "random": "random actions"}
COLOURS = {"corral": "tab:blue", "sb3": "tab:orange", "random": "tab:gray"}
RANDOM_EPISODES = 200


class Log:
    """One line for each rollout."""

    def __init__(self, path):
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")
        self.started = time.time()

    def __call__(self, steps, reward):
        """Write it."""
        line = {"steps": steps, "reward": round(float(reward), 3), "seconds": round(time.time() - self.started, 1)}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


def run_corral(task, seed, steps, hours, log):
    import corral

    def after_iteration(state):
        if "rollout/ep_rew_mean" in state.metrics:
            log(state.timesteps, state.metrics["rollout/ep_rew_mean"])

    with tempfile.TemporaryDirectory() as folder:
        corral.train(
            task["env"],
            env_kwargs=task["env_kwargs"],
            **task["settings"],
            **task["corral"],
            n_envs=task.get("n_envs", N_ENVS),
            timesteps=steps,
            duration=hours,
            seed=seed,
            eval_freq=0,
            tensorboard=False,
            quiet=True,
            output_dir=f"{folder}/run",
            callback=after_iteration,
        )


def run_sb3(task, seed, steps, hours, log):
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback

    class Callback(BaseCallback):
        def _on_step(self):
            return hours is None or time.time() - log.started < hours * 3600

        def _on_rollout_end(self):
            if self.model.ep_info_buffer:
                log(self.num_timesteps, np.mean([episode["r"] for episode in self.model.ep_info_buffer]))

    torch.set_num_threads(1)
    policy, env = sb3_env(task, seed)
    model = PPO(policy, env, seed=seed, device="cpu", **task["settings"])
    model.learn(10**12 if steps is None else steps, callback=Callback())


def sb3_env(task, seed):
    """The policy's kind and a vector env: of Pong, their own; of EnvPool's others, an adapter."""
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecEnv, VecFrameStack, VecMonitor, VecNormalize

    if task is TASKS["pong"]:
        import ale_py  # noqa: F401 - registers the games

        return "CnnPolicy", VecFrameStack(make_atari_env("PongNoFrameskip-v4", n_envs=N_ENVS, seed=seed), 4)
    import envpool

    class Pool(VecEnv):
        """EnvPool's envs, whose episodes begin in the step that ends the last."""

        def __init__(self):
            name = task["env"].removeprefix("envpool:")
            self.pool = envpool.make(name, env_type="gymnasium", num_envs=N_ENVS, seed=seed, num_threads=1)
            super().__init__(N_ENVS, self.pool.observation_space, self.pool.action_space)

        def reset(self):
            return self.pool.reset()[0]

        def step_async(self, actions):
            self.actions = actions

        def step_wait(self):
            seen, rewards, terminated, truncated, _ = self.pool.step(self.actions)
            done, seen = terminated | truncated, seen.copy()
            infos = [{} for _ in range(self.num_envs)]
            ended = np.flatnonzero(done)
            for i in ended:
                cut = bool(truncated[i] and not terminated[i])
                infos[i] = {"terminal_observation": seen[i].copy(), "TimeLimit.truncated": cut}
            if ended.size:
                seen[ended] = self.pool.reset(ended.astype(np.int32))[0]
            return seen, rewards, done, infos

        def close(self):
            pass

        def get_attr(self, name, indices=None):
            return [None] * self.num_envs

        def set_attr(self, *args, **kwargs):
            raise NotImplementedError

        def env_method(self, *args, **kwargs):
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class, indices=None):
            return [False] * self.num_envs

    return "MlpPolicy", VecNormalize(VecMonitor(Pool()))


def run_random(task, seed, _steps, _hours, log):
    """The mean of some episodes, at step 0."""
    import corral

    env = corral.make_env(task["env"], **task["env_kwargs"])
    env.action_space.seed(seed)
    rewards = []
    for episode in range(RANDOM_EPISODES):
        env.reset(seed=seed + episode)
        reward, over = 0.0, False
        while not over:
            _, earned, terminated, truncated, _ = env.step(env.action_space.sample())
            reward, over = reward + earned, terminated or truncated
        rewards.append(reward)
    log(0, np.mean(rewards))


def read_curves(folder):
    """By task and library, the curves of its seeds: steps and rewards."""
    curves = {}
    for path in sorted(folder.glob("*_*_*.jsonl")):
        library, task, _ = path.stem.split("_")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        if task in TASKS and library in NAMES and lines:
            curve = [line["steps"] for line in lines], [line["reward"] for line in lines]
            curves.setdefault(task, {}).setdefault(library, []).append(curve)
    return curves


def plot(task, libraries, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8))
    panel = figure.subplots()
    for library, curves in libraries.items():
        colour, name = COLOURS[library], f"{NAMES[library]} ({len(curves)} seed{'s' * (len(curves) > 1)})"
        if library == "random":
            panel.axhline(
                np.mean([rewards for _, rewards in curves]), color=colour, linestyle="--", label=NAMES[library]
            )
            continue
        for curve in curves:
            panel.plot(*curve, color=colour, alpha=0.35 if len(curves) > 1 else 1, linewidth=1)
        grid = np.linspace(max(s[0] for s, _ in curves), min(s[-1] for s, _ in curves), 300)
        panel.plot(grid, mean_at(curves, grid), color=colour, label=name)
    title = f"{TASKS[task]['env'].removeprefix('envpool:')}, {TASKS[task].get('n_envs', N_ENVS)} envs"
    panel.set(title=title, xlabel="steps", ylabel="reward, mean of last 100 episodes")
    panel.grid(alpha=0.3)
    panel.legend()
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def mean_at(curves, steps):
    return np.mean([np.interp(steps, *curve) for curve in curves], axis=0)


def table(libraries):
    """Rewards at quarters of the steps that all have, and the mean over them."""
    learned = [curve for library, curves in libraries.items() if library != "random" for curve in curves]
    first, last = max(steps[0] for steps, _ in learned), min(steps[-1] for steps, _ in learned)
    marks = [int(last * quarter / 4) for quarter in (1, 2, 3, 4)]
    grid = np.linspace(first, last, 400)
    lines = [
        f"| library | number of seeds | {' | '.join(f'{mark:,}' for mark in marks)} | mean of the curve |",
        "|---" * (len(marks) + 3) + "|",
    ]
    for library, curves in libraries.items():
        areas = [float(np.mean(np.interp(grid, *curve))) for curve in curves]
        spread = f" ± {np.std(areas, ddof=1):.1f}" if len(areas) > 1 else ""
        rewards = " | ".join(f"{reward:.1f}" for reward in mean_at(curves, marks))
        lines.append(f"| {NAMES[library]} | {len(curves)} | {rewards} | {np.mean(areas):.1f}{spread} |")
    return lines


def report(folder, markdown, images):
    text = [
        "# Learning curves",
        "",
        f"`python benchmarks/curves.py`, with {N_ENVS} envs unless `n_envs` is given. Rewards are means over the last",
        "100 training episodes, after the number of steps in the heading. The mean of the curve is taken over the",
        "steps that all runs have, ± its standard deviation over seeds.",
    ]
    for task, libraries in read_curves(folder).items():
        if not libraries.keys() - {"random"}:
            continue
        picture = images / f"curves-{task}.png"
        plot(task, libraries, picture)
        envs = {"n_envs": TASKS[task]["n_envs"]} if "n_envs" in TASKS[task] else {}
        settings = json.dumps({**TASKS[task]["env_kwargs"], **envs, **TASKS[task]["settings"], **TASKS[task]["corral"]})
        text += ["", f"## {task}", "", f"`{TASKS[task]['env']}`, `{settings}`.", "", *table(libraries), ""]
        text += [f"![{task}](../docs/images/{picture.name})"]
    markdown.write_text("\n".join(text) + "\n")
    print("\n".join(text))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="train, and write a curve")
    run.add_argument("task", choices=TASKS)
    run.add_argument("--library", choices=NAMES, default="corral")
    run.add_argument("--seed", type=int, default=1)
    run.add_argument("--steps", type=int, help="default: the task's own, unless there is a duration")
    run.add_argument("--duration", type=float, help="hours")
    run.add_argument("--out", type=Path, help="default: curves/<library>_<task>_<seed>.jsonl beside this file")
    report_verb = verbs.add_parser("report", help="draw and tabulate what was written")
    report_verb.add_argument("--folder", type=Path, default=HERE / "curves")
    report_verb.add_argument("--markdown", type=Path, default=HERE / "curves.md")
    report_verb.add_argument("--images", type=Path, default=IMAGES)
    options = parser.parse_args()
    if options.verb == "report":
        report(options.folder, options.markdown, options.images)
        return
    task = TASKS[options.task]
    if options.library not in task["libraries"]:
        parser.error(f"{options.task} is run with {' or '.join(task['libraries'])}, not with {options.library}")
    steps = options.steps or (None if options.duration else task["steps"])
    path = options.out or HERE / "curves" / f"{options.library}_{options.task}_{options.seed}.jsonl"
    how = {"corral": run_corral, "sb3": run_sb3, "random": run_random}[options.library]
    how(task, options.seed, steps, options.duration, Log(path))


if __name__ == "__main__":
    main()
