"""The names and meanings of all metrics that a run writes, as ``docs/metrics.md`` lists them.

The estimator k3 of ``train/approx_kl`` is the third in J. Schulman, 2020, "Approximating KL Divergence"
(http://joschu.net/blog/kl-approx.html).
"""

from __future__ import annotations

__all__ = ["INFO_PREFIX", "METRICS"]

METRICS: dict[str, str] = {
    "time/total_timesteps": "steps taken so far, summed over all envs",
    "time/iterations": "iterations completed so far (one rollout and one update each)",
    "time/fps": "steps per second since the first step, without the time of evaluations",
    "time/time_elapsed": "seconds since the first step, without the time of evaluations",
    "time/collect_s": "seconds that the trainer waited for this rollout; with --overlap, less than collecting it took",
    "time/update_s": "seconds of this iteration spent on the update",
    "time/act_s": "seconds of this rollout that the slowest worker spent on choosing actions",
    "time/step_s": "seconds of this rollout that the slowest worker spent on stepping envs",
    "rollout/collectors": "processes that chose actions for this rollout",
    "rollout/ep_rew_mean": "mean reward of the last 100 episodes, as the env gave it",
    "rollout/ep_len_mean": "mean length of the last 100 episodes",
    "rollout/episodes": "episodes finished so far",
    "rollout/episodes_in_rollout": "episodes finished in this rollout",
    "rollout/truncated_fraction": "share of the episodes finished in this rollout that were truncated, not terminated",
    "faults/restarts": "workers that died or hung and were replaced, since the run began",
    "faults/recycled": "workers that were replaced because they used too much memory, since the run began",
    "faults/retries": "steps and resets that raised, then succeeded in a new env, since the run began",
    "faults/env_faults": "episodes truncated because the env raised at the same step again, since the run began",
    "faults/inexact": "episodes truncated because the env could not be restored to its position, since the run began",
    "nodes/count": "with --backend ray: machines that hold envs",
    "nodes/192.0.2.1/groups": "with --backend ray: env groups on this machine; likewise for each machine",
    "nodes/192.0.2.1/rollouts": "parts of rollouts, each of one env group, that were collected on this machine",
    "nodes/192.0.2.1/lost": "workers that were lost on this machine, alone or with it",
    "nodes/192.0.2.1/silent": "workers on this machine that gave no sign of life for --node-timeout seconds",
    "nodes/192.0.2.1/slow": "workers on this machine that were much slower than all others",
    "nodes/192.0.2.1/moved": "env groups that moved from this machine to a better place",
    "nodes/192.0.2.1/differs": "1: its results differ from the trainer's in the last bits (--allow-mixed-numerics)",
    "train/learning_rate": "learning rate of this iteration",
    "train/loss": "total loss (mean over minibatches)",
    "train/policy_gradient_loss": "clipped surrogate loss (mean over minibatches)",
    "train/value_loss": "squared error of the values (mean over minibatches)",
    "train/entropy_loss": "negative entropy of the policy (mean over minibatches); rises as it becomes deterministic",
    "train/approx_kl": "KL divergence of the update, by Schulman's estimator k3 (mean over minibatches)",
    "train/clip_fraction": "share of steps whose probability ratio left the clip range (mean over minibatches)",
    "train/grad_norm": "norm of the gradient before clipping (mean over minibatches)",
    "train/explained_variance": "1: values predict returns exactly; 0: no better than their mean; negative: worse",
    "train/n_updates": "gradient steps taken so far",
    "train/rho": "with --overlap: mean of min(1, importance weight) before the update; 1: both policies act alike",
    "train/kl_ref": "with --kl-ref-coef: KL divergence from the reference policy (mean over minibatches)",
    "train/kl_ref_coef": "with --kl-ref-coef: weight of train/kl_ref in the loss of this iteration",
    "train/std": "mean standard deviation of the policy's continuous actions",
    "opponents/stage": "number of the current stage, from 0, in runs with an opponent or stages",
    "opponents/win_rate": "share of the last 100 games of the current stage that were won; a draw counts half",
    "opponents/win_rate/random": "share won of the last 100 games against this opponent, in all stages; one for each",
    "opponents/rating": "Elo rating of the policy, from games in training; the env's weakest opponent has 1000",
    "opponents/rating/random": "Elo rating of this opponent, from games in training; there is one for each",
    "opponents/pool_size": "number of past policies in the pool, from which the opponent named checkpoint is drawn",
    "opponents/pool_rating": "mean Elo rating of the past policies in the pool",
    "eval/mean_reward": "mean reward of the evaluation episodes, played in one env with the most likely actions",
    "eval/std_reward": "standard deviation of the reward over the evaluation episodes",
    "eval/mean_ep_length": "mean length of the evaluation episodes",
    "eval/seconds": "seconds that the evaluation took",
    "system/trainer_cpu": "CPU time of the trainer per second, in cores, over about the last second",
    "system/trainer_mb": "memory of the trainer that it shares with no other process, in MB",
    "system/worker_0_cpu": "CPU time of worker 0 per second, in cores; likewise for each worker",
    "system/worker_0_mb": "memory of worker 0 that it shares with no other process, in MB; likewise for each worker",
}
INFO_PREFIX = "info/"
"""Prefix of the metrics of numbers that envs report in ``info``."""
