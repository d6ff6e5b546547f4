"""Hooks: what happens around iterations. One protocol for Corral's own and for a user's."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from corral.core.entry_points import PYTHON, code_error, import_callable
from corral.core.errors import CheckpointError, UsageError, one_line
from corral.core.suggestions import short_repr
from corral.training.iteration import End, Iteration, Start

__all__ = ["Hook", "HookList", "load_hooks", "plain_state", "restore_hooks"]

_LONGEST_NAME = 200
_LARGEST_STATE = 1 << 23
"""Bytes of a hook's state as JSON: a checkpoint is read only up to a size."""


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

    def on_end(self, end: End) -> None:
        """Finish, after the last checkpoint and before the envs are closed."""

    def state_dict(self) -> dict[str, Any]:
        """Return what the hook needs to go on after a resume, as plain JSON data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from what ``state_dict`` returned."""


class HookList:
    """The hooks of a run in the order in which they are called (see ``hook_order``)."""

    def __init__(
        self,
        before: Sequence[Hook],
        users: Sequence[Hook],
        after: Sequence[Hook],
        always: Sequence[Hook],
        last: Sequence[Hook],
    ) -> None:
        self._before, self._users, self._after, self._always, self._last = before, users, after, always, last
        self.end_errors: list[BaseException] = []
        """What hooks raised when the run ended."""
        self.started = False
        """Whether every hook has prepared."""

    def __iter__(self) -> Iterator[Hook]:
        return iter((*self._before, *self._users, *self._after, *self._always, *self._last))

    def on_start(self, start: Start) -> None:
        """Let every hook prepare; if one of them raises, those that have prepared finish."""
        prepared: list[Hook] = []
        try:
            for hook in self:
                hook.on_start(start)
                prepared.append(hook)
            states = {hook.name: plain_state(hook) for hook in self._users}
        except BaseException:
            self._end(prepared, End(start.run, None))
            raise
        self.started = True
        for name, state in states.items():
            start.run.refresh_recovery_point(name, state)

    def after_iteration(self, iteration: Iteration) -> None:
        """Call every hook; the row of metrics is written even if one of them raises or is interrupted."""
        try:
            for hook in self._before:
                hook.after_iteration(iteration)
            for hook in self._users:
                hook.after_iteration(iteration)
                iteration.run.refresh_recovery_point(hook.name, plain_state(hook))
            for hook in self._after:
                hook.after_iteration(iteration)
        finally:
            for hook in self._always:
                hook.after_iteration(iteration)
        for hook in self._last:
            hook.after_iteration(iteration)

    def on_end(self, end: End) -> None:
        """Let every hook finish, the last one first; what they raise is kept in ``end_errors``."""
        self._end([*self], end)

    def _end(self, hooks: Sequence[Hook], end: End) -> None:
        for hook in reversed(hooks):
            try:
                hook.on_end(end)
            except BaseException as error:  # even sys.exit() must not keep the other hooks from their end
                error.add_note(f"raised by on_end of the hook {hook.name}")
                self.end_errors.append(error)


def load_hooks(given: Sequence[str | Hook]) -> list[Hook]:
    """Return the user's hooks, importing those that are given as ``module:Class`` or ``file.py:Class``."""
    hooks = [_load_hook(hook) for hook in ((given,) if isinstance(given, str) else given)]
    names = [hook.name for hook in hooks]
    for name in names:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _LONGEST_NAME:
            raise UsageError(f"a hook is called {short_repr(name)}; set its attribute `name` to a few letters")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(f"two hooks are called {twice!r}; set the attribute `name` of one of them to something else")
    return hooks


def _load_hook(given: str | Hook) -> Hook:
    hook: Any = given
    if isinstance(given, str):
        if given.startswith(PYTHON):
            raise UsageError(f"the hook {given} is an object that only Python can give, as in hooks=[MyHook()]")
        make = import_callable(given, "hook")
        try:
            inspect.signature(make).bind()
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"hook {given!r} is made without arguments, but {error}; name a function that returns the hook"
            ) from None
        try:
            hook = make()
        except Exception as error:
            raise code_error(f"hook {given!r} cannot be made", error) from error
    if not isinstance(hook, Hook):
        advice = "give an instance, as in hooks=[MyHook()]" if isinstance(hook, type) else "derive it from corral.Hook"
        raise UsageError(f"hook {short_repr(given)} is {short_repr(hook)}, expected a corral.Hook; {advice}")
    return hook


def restore_hooks(hooks: Sequence[Hook], states: Mapping[str, Any], warn: Callable[[str], object]) -> None:
    """Let hooks go on from the states in a checkpoint; a UsageError if the hook of one is missing."""
    names = [hook.name for hook in hooks]
    if missing := sorted(states.keys() - {*names}):
        raise UsageError(
            f"the run has the state of a hook called {one_line(missing[0], 80)!r}, which was not given; "
            f"there are {', '.join(names) or 'none'}"
        )
    for hook in hooks:
        if hook.name in states:
            try:
                hook.load_state_dict(copy.deepcopy(states[hook.name]))
            except Exception as error:
                what = f"{type(error).__name__}: {one_line(error)}"
                raise CheckpointError(f"hook {hook.name}: load_state_dict() raised {what}") from error
        elif plain_state(hook):
            warn(f"the checkpoint has no state of the hook {hook.name}, which begins anew")


def plain_state(hook: Hook) -> dict[str, Any]:
    """Return a hook's state as JSON holds it; a UsageError if it is something else."""
    state = hook.state_dict()
    try:
        text = json.dumps(state, allow_nan=False) if state != {} else "{}"
        plain = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"hook {hook.name}: state_dict() should return plain JSON data ({error})") from None
    if len(text) > _LARGEST_STATE:
        raise UsageError(f"hook {hook.name}: state_dict() has {len(text):,} bytes, of at most {_LARGEST_STATE:,}")
    if not isinstance(plain, dict) or plain != state:
        raise UsageError(
            f"hook {hook.name}: state_dict() returned {short_repr(state)}, expected a dict of plain JSON data (text for "
            "keys, lists rather than tuples), so that load_state_dict() gets the very same"
        )
    return plain
