"""Train PPO for a given time in one process, and write benchmark_metrics.json for comparisons.

    python examples/train_timed.py --duration 0.017 --n-envs 8 --output-dir runs/sequential
    python examples/train_timed.py --env Acrobot-v1 --n-envs 16 --duration 0.5 --seed 1

--duration is in hours. The env is Procgen's coinrun, unless --env names another. Settings come from
config/ppo_parallel.yaml, unless --config names another file; flags override the file. This script steps the envs of
all workers in one process, so it does the same work as train_parallel_timed.py.
"""

from recipe_script import run_timed

if __name__ == "__main__":
    raise SystemExit(run_timed(sequential=True))
