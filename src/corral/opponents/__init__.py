"""Opponents of a run: those of the env, past selves and policies of other runs; how they are drawn and rated."""
