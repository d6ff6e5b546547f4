"""A Game Boy env whose emulator crashes once."""

from __future__ import annotations

from corral_games.game_boy.env import GameBoy
from tests.faults.games import cause_fault, is_first


class Crashing(GameBoy):
    """Causes a fault once in the whole run, inside PyBoy, while it emulates a frame."""

    def __init__(self, how: str, marker: str, after: int = 50, **kwargs) -> None:
        super().__init__(**kwargs)
        self.how, self.marker, self.after, self.total = how, marker, after, 0

    def step(self, action):
        self.total += 1
        if self.total == self.after and is_first(self.marker):
            # PyBoy calls the hook before it executes the next instruction, so the fault happens inside its code.
            boy = self._emulator._pyboy
            boy.hook_register(0, boy.register_file.PC, cause_fault, self.how)
        return super().step(action)
