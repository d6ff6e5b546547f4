"""The files of a run directory: how they are written, and how they are validated when they are read."""
