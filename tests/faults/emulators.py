"""Game Boys whose emulator goes wrong once, in the middle of its work."""

from __future__ import annotations

from corral_games.game_boy.env import GameBoy
from tests.faults.games import _is_first, go_wrong


class Crashing(GameBoy):
    """Goes wrong once in the whole run, inside PyBoy, while it emulates a frame."""

    def __init__(self, how: str, marker: str, after: int = 50, **kwargs) -> None:
        super().__init__(**kwargs)
        self.how, self.marker, self.after, self.total = how, marker, after, 0

    def step(self, action):
        self.total += 1
        if self.total == self.after and _is_first(self.marker):
            # The emulator calls this before the instruction that it executes next, in the middle of its own code.
            boy = self._emulator._pyboy
            boy.hook_register(0, boy.register_file.PC, go_wrong, self.how)
        return super().step(action)
