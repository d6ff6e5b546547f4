"""Envs as people see them: videos, pictures, the terminal, and a game under human control."""
