"""Benchmarks: the speed of runs, the search for the fastest settings, and comparisons of runs."""
