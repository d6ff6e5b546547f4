"""Game Boy games as envs: ``emulator`` runs a ROM, ``memory_map`` describes its memory, ``env`` is the env."""
