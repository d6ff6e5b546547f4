"""The argument ``callback`` of ``corral.train``: a function that is called after each iteration, wrapped as a hook."""

from __future__ import annotations

from collections.abc import Callable

from corral.training.hooks.hook import Hook
from corral.training.iteration import Iteration

__all__ = ["Callback", "CallbackHook"]

Callback = Callable[[Iteration], None]


class CallbackHook(Hook):
    """Calls a function after each iteration."""

    name = ""  # the user's hooks have a name, so none has this one

    def __init__(self, callback: Callback) -> None:
        self._callback = callback

    def after_iteration(self, iteration: Iteration) -> None:
        """Call the function."""
        self._callback(iteration)
