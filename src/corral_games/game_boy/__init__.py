"""Game Boy games as envs: ``emulator`` runs a ROM, ``memory_map`` says what its memory means, ``env`` plays it."""
