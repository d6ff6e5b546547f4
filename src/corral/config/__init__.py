"""The configuration of a run: its fields, its rules, and how it is written in YAML."""
