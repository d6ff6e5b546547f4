"""Every metric that a run writes, with its meaning: the one table behind the writers, the console and the docs."""

from __future__ import annotations

__all__ = ["INFO_PREFIX", "METRICS"]

METRICS: dict[str, str] = {
    "time/total_timesteps": "steps taken so far, all envs together",
    "time/iterations": "rollouts collected and learned from so far",
    "time/fps": "steps per second since the first step: everything counts, except evaluation",
    "time/time_elapsed": "seconds since the first step, evaluation left out",
    "time/collect_s": "seconds of this iteration spent collecting",
    "time/update_s": "seconds of this iteration spent learning",
    "time/act_s": "seconds of this rollout that the slowest worker spent on choosing actions",
    "time/step_s": "seconds of this rollout that the slowest worker spent on stepping envs",
    "rollout/collectors": "processes that chose actions for this rollout",
    "rollout/ep_rew_mean": "mean reward of the last 100 episodes, as the env gave it",
    "rollout/ep_len_mean": "mean length of the last 100 episodes",
    "rollout/episodes": "episodes finished so far",
    "rollout/episodes_in_rollout": "episodes finished in this rollout",
    "rollout/truncated_fraction": "share of this rollout's finished episodes that were cut off rather than ended",
    "faults/restarts": "workers that died or hung and were replaced; this and the next four: so far, in all",
    "faults/recycled": "workers that were replaced because of their memory",
    "faults/retries": "steps and resets that raised, and worked in a new copy of the env",
    "faults/env_faults": "episodes cut off because the env raised at the same step again",
    "faults/inexact": "episodes cut off because the env could not be brought back to where it was",
    "train/learning_rate": "step size used in this iteration",
    "train/loss": "total loss; this and the next six are means over the minibatches of the update",
    "train/policy_gradient_loss": "clipped surrogate loss",
    "train/value_loss": "squared error of the values",
    "train/entropy_loss": "minus the mean entropy of the policy; rises to 0 as it becomes certain",
    "train/approx_kl": "how far the update moved the policy (Schulman's third estimator)",
    "train/clip_fraction": "share of steps whose ratio left the clip range",
    "train/grad_norm": "norm of the gradient before clipping",
    "train/explained_variance": "1: values predict returns; 0: no better than their mean; below: worse",
    "train/n_updates": "gradient steps taken so far",
    "train/rho": "with --overlap: mean importance weight, clipped at 1, before the update; 1 is no lag",
    "train/kl_ref": "with --kl-ref-coef: mean KL divergence of the policy from its reference, over the minibatches",
    "train/kl_ref_coef": "its weight in this iteration",
    "train/std": "mean standard deviation of continuous actions",
    "eval/mean_reward": "mean reward of the evaluation episodes: one env, most likely actions",
    "eval/std_reward": "its standard deviation over those episodes",
    "eval/mean_ep_length": "mean length of the evaluation episodes",
    "eval/seconds": "seconds the evaluation took",
    "system/trainer_cpu": "cores' worth of processor time that the trainer used, over the last second or so",
    "system/trainer_mb": "memory that the trainer shares with no other process, in MB",
    "system/worker_0_cpu": "the same for worker 0, and so on for each worker",
    "system/worker_0_mb": "the same for worker 0, and so on for each worker",
}
INFO_PREFIX = "info/"
"""Before the name of a number that envs reported in ``info``."""
