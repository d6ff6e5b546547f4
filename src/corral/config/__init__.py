"""The configuration of a run: its settings, the rules between them, and config files."""
