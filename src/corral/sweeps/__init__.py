"""Many runs of the same env with different settings: presets in turn, or a search that learns from its trials.

``request`` checks what is asked, ``presets`` and ``optuna_search`` decide what is tried, ``trial`` trains,
``trial_processes`` does so in several processes, ``results`` writes tables and the picture, ``api`` holds it together.
"""
