"""Hooks: what happens around iterations. One protocol for Corral's own and for a user's."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from corral.core.errors import UsageError
from corral.training.iteration import Discarded, End, Iteration, Start

__all__ = ["Hook", "HookList", "plain_state"]


class Hook:
    """Something that happens around iterations. Override what is needed.

    ``name`` is the key of its state in checkpoints and must be unique in a run; it is the class name if not given.
    """

    name: str = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def on_start(self, start: Start) -> None:
        """Prepare, before the first rollout of a new or resumed run; the hook's state was loaded already."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Do something after a rollout was collected and learned from."""

    def after_discarded_rollout(self, discarded: Discarded) -> None:
        """Do something after the run's duration ended in the middle of its last rollout, which was discarded."""

    def on_end(self, end: End) -> None:
        """Finish, after the last checkpoint and before the envs are closed."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the hook needs to go on after a resume, as plain JSON data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned."""


class HookList:
    """The hooks of a run in their order (see ``training.hooks``)."""

    def __init__(self, ordered: Sequence[Hook], always: Sequence[Hook], last: Sequence[Hook]) -> None:
        self._ordered, self._always, self._last = ordered, always, last

    def on_start(self, start: Start) -> None:
        """Let every hook prepare."""
        for hook in (*self._ordered, *self._always, *self._last):
            hook.on_start(start)

    def after_iteration(self, iteration: Iteration) -> None:
        """Call every hook; the row of metrics is written even if one of them raises or is interrupted."""
        try:
            for hook in self._ordered:
                hook.after_iteration(iteration)
                iteration.run.refresh_recovery_point(hook.name, plain_state(hook))
        finally:
            for hook in self._always:
                hook.after_iteration(iteration)
        for hook in self._last:
            hook.after_iteration(iteration)

    def after_discarded_rollout(self, discarded: Discarded) -> None:
        """Tell every hook."""
        for hook in (*self._ordered, *self._always, *self._last):
            hook.after_discarded_rollout(discarded)

    def on_end(self, end: End) -> None:
        """Let every hook finish, the last one first; what one of them raises is raised when all are done."""
        errors = []
        for hook in reversed((*self._ordered, *self._always, *self._last)):
            try:
                hook.on_end(end)
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def plain_state(hook: Hook) -> dict[str, Any]:
    """Return a hook's state as JSON holds it; a UsageError if it is something else."""
    state = hook.state_dict()
    if not state:
        return {}
    try:
        plain = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise UsageError(f"hook {hook.name}: state_dict() should return plain JSON data ({error})") from None
    if not isinstance(plain, dict):
        raise UsageError(f"hook {hook.name}: state_dict() returned {type(state).__name__}, expected a dict")
    return plain
