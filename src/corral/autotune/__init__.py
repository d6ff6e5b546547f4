"""What is measured and chosen before a run starts: backend, number of envs, device and length of a rollout."""
