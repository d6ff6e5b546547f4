"""Opponents of a run: those of the env, past policies, and policies of other runs; how they are drawn and rated."""
