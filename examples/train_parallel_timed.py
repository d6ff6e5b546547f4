"""Train PPO for a given time with worker processes, and write benchmark_metrics.json for comparisons.

    python examples/train_parallel_timed.py --duration 0.017 --num-workers 2 --num-envs-per-worker 4
    python examples/train_parallel_timed.py --duration 1.0 --seed 1 --output-dir runs/parallel

--duration is in hours. The env is Procgen's coinrun, unless --env names another. Settings come from
config/ppo_parallel.yaml, unless --config names another file; flags override the file. On a machine with fewer cores
than the workers of the file, the script uses fewer workers.
"""

from recipe_script import run_timed

if __name__ == "__main__":
    raise SystemExit(run_timed(sequential=False))
