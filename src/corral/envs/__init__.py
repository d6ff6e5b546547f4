"""Envs: the registry of their names, the factories that make them, and the protocols that they may implement."""
