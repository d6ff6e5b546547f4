"""The base class of hooks, the list that calls them, and how the user's hooks are loaded and restored."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from corral.core.entry_points import PYTHON_PREFIX, code_error, import_callable
from corral.core.errors import CheckpointError, UsageError, one_line
from corral.core.suggestions import short_repr
from corral.training.iteration import End, Iteration, Start

__all__ = ["Hook", "HookList", "load_hooks", "plain_state", "restore_hooks"]

_MAX_NAME_LENGTH = 200
_MAX_STATE_BYTES = 1 << 23
"""The largest state of a hook as JSON: ``state.json`` is read only up to a limited size."""


class Hook:
    """The base class of hooks, whose methods are called at the start, after each iteration and at the end of a run.

    Override the methods that you need. ``name`` is the key of the hook's state in checkpoints and must be unique in a
    run. Its default is the name of the class.
    """

    name: str = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__

    def on_start(self, start: Start) -> None:
        """Prepare before the first rollout of a new or resumed run; ``load_state_dict`` has been called before."""

    def after_iteration(self, iteration: Iteration) -> None:
        """Act after an iteration: a rollout was collected and the policy was updated."""

    def on_end(self, end: End) -> None:
        """Finish after the last checkpoint, before the envs are closed."""

    def state_dict(self) -> dict[str, Any]:
        """Return the hook's state for checkpoints, as plain JSON data."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state that ``state_dict`` returned."""


class HookList:
    """Calls the hooks of a run, group by group (``hook_order`` assigns them to the groups).

    ``before`` and ``after`` are Corral's hooks around ``users``, the user's hooks. ``always`` are called even if one of
    these raises. ``last`` are called if none raises.
    """

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
        """The exceptions that ``on_end`` of hooks raised."""
        self.started = False
        """Whether ``on_start`` of every hook has returned."""

    def __iter__(self) -> Iterator[Hook]:
        return iter((*self._before, *self._users, *self._after, *self._always, *self._last))

    def on_start(self, start: Start) -> None:
        """Call ``on_start`` of every hook; if one raises, call ``on_end`` of those that have started."""
        started: list[Hook] = []
        try:
            for hook in self:
                hook.on_start(start)
                started.append(hook)
            states = {hook.name: plain_state(hook) for hook in self._users}
        except BaseException:
            self._end(started, End(start.run, None))
            raise
        self.started = True
        for name, state in states.items():
            start.run.refresh_recovery_point(name, state)

    def after_iteration(self, iteration: Iteration) -> None:
        """Call every hook. The row of metrics is written even if a hook raises or is interrupted."""
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
        """Call ``on_end`` of every hook."""
        self._end([*self], end)

    def _end(self, hooks: Sequence[Hook], end: End) -> None:
        """Call ``on_end`` of these hooks in reverse order; keep the exceptions in ``end_errors``."""
        for hook in reversed(hooks):
            try:
                hook.on_end(end)
            except BaseException as error:  # also SystemExit: on_end of the other hooks must still be called
                error.add_note(f"raised by on_end of the hook {hook.name}")
                self.end_errors.append(error)


def load_hooks(given: Sequence[str | Hook]) -> list[Hook]:
    """Return the user's hooks; import those that are given as ``module:Class`` or ``file.py:Class``."""
    hooks = [_load_hook(hook) for hook in ((given,) if isinstance(given, str) else given)]
    names = [hook.name for hook in hooks]
    for name in names:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= _MAX_NAME_LENGTH:
            raise UsageError(f"a hook is called {short_repr(name)}; set its attribute `name` to a few letters")
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise UsageError(
            f"two hooks are called {duplicate!r}; set the attribute `name` of one of them to something else"
        )
    return hooks


def _load_hook(given: str | Hook) -> Hook:
    """Return the hook, or make the one that a name refers to; raise a UsageError if it is no hook."""
    hook: Any = _make_hook(given) if isinstance(given, str) else given
    if not isinstance(hook, Hook):
        advice = "give an instance, as in hooks=[MyHook()]" if isinstance(hook, type) else "derive it from corral.Hook"
        raise UsageError(f"hook {short_repr(given)} is {short_repr(hook)}, expected a corral.Hook; {advice}")
    return hook


def _make_hook(name: str) -> Any:
    """Import a class or function by name and call it without arguments."""
    if name.startswith(PYTHON_PREFIX):
        raise UsageError(f"the hook {name} is an object that only Python can give, as in hooks=[MyHook()]")
    make = import_callable(name, "hook")
    try:
        inspect.signature(make).bind()
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"hook {name!r} is made without arguments, but {error}; name a function that returns the hook"
        ) from None
    try:
        return make()
    except Exception as error:
        raise code_error(f"hook {name!r} cannot be made", error) from error


def restore_hooks(hooks: Sequence[Hook], states: Mapping[str, Any], warn: Callable[[str], object]) -> None:
    """Restore hooks from their states in a checkpoint; raise a UsageError if a state has no hook."""
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
                raised = f"{type(error).__name__}: {one_line(error)}"
                raise CheckpointError(f"hook {hook.name}: load_state_dict() raised {raised}") from error
        elif plain_state(hook):
            warn(f"the checkpoint has no state of the hook {hook.name}, which starts without one")


def plain_state(hook: Hook) -> dict[str, Any]:
    """Return a hook's state after a round trip through JSON; raise a UsageError if that changes it."""
    state = hook.state_dict()
    try:
        text = json.dumps(state, allow_nan=False) if state != {} else "{}"
        plain = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"hook {hook.name}: state_dict() should return plain JSON data ({error})") from None
    if len(text) > _MAX_STATE_BYTES:
        raise UsageError(f"hook {hook.name}: state_dict() has {len(text):,} bytes, of at most {_MAX_STATE_BYTES:,}")
    if not isinstance(plain, dict) or plain != state:
        raise UsageError(
            f"hook {hook.name}: state_dict() returned {short_repr(state)}, expected a dict of plain JSON data (text "
            "for keys, lists rather than tuples), so that load_state_dict() gets an equal one"
        )
    return plain
