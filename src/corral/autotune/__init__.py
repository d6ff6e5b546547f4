"""What is measured and chosen before a run starts: backend, envs, device, length of a rollout."""
