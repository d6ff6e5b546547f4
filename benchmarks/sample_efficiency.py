"""Does Corral learn as much from a step as Stable-Baselines3's PPO? Same env, same settings, several seeds.

    python benchmarks/sample_efficiency.py            # writes sample_efficiency.{json,md,png} beside this file

Curves are the mean reward of the last 100 training episodes, which both libraries log under the same name; the last
column is a deterministic evaluation of the final policy. Timing is not compared here: runs share the cores.
"""

from __future__ import annotations

import argparse
import csv
import json
import platform
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
TASKS = {
    "CartPole-v1": {"timesteps": 100_000, "n_envs": 8},
    "Acrobot-v1": {"timesteps": 100_000, "n_envs": 8, "n_steps": 256},
    "Pendulum-v1": {"timesteps": 100_000, "n_envs": 8, "n_steps": 256, "gamma": 0.9, "learning_rate": 1e-3},
}
EVAL_EPISODES = 20


def run_corral(env, seed, settings):
    import corral
    from corral.storage.metrics_file import read_metrics

    with tempfile.TemporaryDirectory() as folder:
        result = corral.train(
            env,
            **settings,
            seed=seed,
            quiet=True,
            backend="serial",
            output_dir=f"{folder}/run",
            eval_freq=10**9,
            eval_episodes=EVAL_EPISODES,
        )
        rows = read_metrics(result.run_dir / "metrics.jsonl")
    curve = [(r["time/total_timesteps"], r["rollout/ep_rew_mean"]) for r in rows if "rollout/ep_rew_mean" in r]
    return curve, result.summary.eval_reward


def run_sb3(env, seed, settings):
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.logger import configure

    torch.set_num_threads(1)
    settings = dict(settings)
    timesteps, n_envs = settings.pop("timesteps"), settings.pop("n_envs")
    vec_env = make_vec_env(env, n_envs=n_envs, seed=seed)
    model = PPO("MlpPolicy", vec_env, seed=seed, device="cpu", **settings)
    with tempfile.TemporaryDirectory() as folder:
        model.set_logger(configure(folder, ["csv"]))
        model.learn(timesteps)
        with (Path(folder) / "progress.csv").open() as file:
            rows = list(csv.DictReader(file))
    # SB3 logs an iteration's rollout before it learns from it; the last one is not logged at all
    curve = [
        (float(r["time/total_timesteps"]), float(r["rollout/ep_rew_mean"])) for r in rows if r["rollout/ep_rew_mean"]
    ]
    reward, _ = evaluate_policy(model, make_vec_env(env, seed=1000 + seed), n_eval_episodes=EVAL_EPISODES)
    return curve, float(reward)


def job(arguments):
    library, env, seed = arguments
    curve, final = (run_corral if library == "corral" else run_sb3)(env, seed, TASKS[env])
    print(f"{library:6} {env:12} seed {seed}: evaluation {final:.1f}", flush=True)
    return {"library": library, "env": env, "seed": seed, "curve": curve, "eval": final}


def plot(results, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(TASKS), 3.6))
    panels = figure.subplots(1, len(TASKS))
    for panel, env in zip(panels, TASKS, strict=True):
        for library, colour in (("corral", "tab:blue"), ("sb3", "tab:orange")):
            runs = [r["curve"] for r in results if r["library"] == library and r["env"] == env]
            for run in runs:
                panel.plot(*zip(*run, strict=True), color=colour, alpha=0.3, linewidth=1)
            steps = sorted({s for run in runs for s, _ in run})
            mean = np.mean([np.interp(steps, *zip(*run, strict=True)) for run in runs], axis=0)
            panel.plot(steps, mean, color=colour, label={"corral": "Corral", "sb3": "Stable-Baselines3"}[library])
        panel.set(title=env, xlabel="steps", ylabel="reward, mean of last 100 episodes")
        panel.grid(alpha=0.3)
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def table(results):
    lines = ["| env | library | mean of the curve | final evaluation, by seed | mean |", "|---|---|---|---|---|"]
    for env in TASKS:
        for library in ("corral", "sb3"):
            runs = [r for r in results if r["library"] == library and r["env"] == env]
            first = max(run["curve"][0][0] for run in results if run["env"] == env)
            last = min(run["curve"][-1][0] for run in results if run["env"] == env)
            grid = np.linspace(first, last, 200)
            areas = [np.mean(np.interp(grid, *zip(*run["curve"], strict=True))) for run in runs]
            finals = [run["eval"] for run in runs]
            lines.append(
                f"| {env} | {library} | {np.mean(areas):.1f} ± {np.std(areas, ddof=1):.1f} | "
                f"{', '.join(f'{x:.1f}' for x in finals)} | {np.mean(finals):.1f} |"
            )
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    work = [(library, env, seed) for env in TASKS for seed in options.seeds for library in ("corral", "sb3")]
    with ProcessPoolExecutor(options.jobs) as pool:
        results = list(pool.map(job, work))
    import gymnasium
    import stable_baselines3
    import torch

    import corral

    packages = {"corral": corral, "stable-baselines3": stable_baselines3, "torch": torch, "gymnasium": gymnasium}
    versions = ", ".join(f"{name} {package.__version__}" for name, package in packages.items())
    versions += f", Python {platform.python_version()}"
    (HERE / "sample_efficiency.json").write_text(json.dumps({"versions": versions, "results": results}) + "\n")
    plot(results, HERE / "sample_efficiency.png")
    text = [
        "# Reward per step: Corral and Stable-Baselines3",
        "",
        "`python benchmarks/sample_efficiency.py`, seeds "
        + ", ".join(map(str, options.seeds))
        + f". {versions}; {platform.machine()}, Linux.",
        "Both libraries use the default settings of PPO, except for these: "
        + "; ".join(f"{env} `{json.dumps(settings)}`" for env, settings in TASKS.items())
        + ".",
        "",
        *table(results),
        "",
        "The mean of the curve is taken over the steps of both, ± its standard deviation over seeds.",
        "",
        "![Training curves](sample_efficiency.png)",
    ]
    (HERE / "sample_efficiency.md").write_text("\n".join(text) + "\n")
    print("\n".join(text))


if __name__ == "__main__":
    main()
