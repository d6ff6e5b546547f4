"""The PPO algorithm: advantages, losses and the learner. It knows nothing of envs and processes."""
