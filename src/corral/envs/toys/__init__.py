"""Small envs for tests, examples and measurements."""
