"""Measurements of runs: what they did, how fast, and one against another."""
