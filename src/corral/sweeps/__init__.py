"""Sweeps: many runs of one env with different settings, either a list of presets or a search with Optuna.

``request`` checks and stores what a sweep should do, ``presets`` and ``optuna_search`` choose the trials, ``trial``
trains one of them, ``trial_processes`` runs several at a time, ``results`` writes tables and a plot, and ``api`` runs
the sweep.
"""
