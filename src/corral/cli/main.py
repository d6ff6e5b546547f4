"""``corral VERB …``: reads the words, calls the function, turns errors into one line and an exit code."""

from __future__ import annotations

import contextlib
import importlib
import shlex
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FrameType

from corral.cli.verbs import Script, verbs_of
from corral.core.errors import CodeNotConfirmed, CorralError
from corral.core.stdio import command, tolerate_closed_stdout
from corral.core.suggestions import did_you_mean
from corral.training import signals
from corral.training.signals import Interrupted

__all__ = ["guarded", "main"]


def main(argv: Sequence[str] | None = None, script: Script | None = None) -> int:
    """Entry point of the ``corral`` command, and of scripts that stand for a verb; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    tolerate_closed_stdout()
    parser, verbs = verbs_of(script)
    for word in words:
        try:
            word.encode()
        except UnicodeEncodeError:
            parser.error(f"{word!r} is not UTF-8 text, which the files of a run could not hold")
    if words and not words[0].startswith("-") and words[0] not in verbs:
        parser.error(f"unknown verb {words[0]!r}{did_you_mean(words[0], verbs)}; there are {', '.join(verbs)}")
    if not words or words[0].startswith("-"):
        parser.parse_args(words)
        parser.print_help()
        return 0
    verb, function = verbs[words[0]]
    options = verb.parse_args(words[1:])
    module, _, name = function.partition(":")
    call = lambda: int(getattr(importlib.import_module(module), name)(options))  # noqa: E731
    return guarded(verb.prog, words, call)


def guarded(prog: str, words: Sequence[str], call: Callable[[], int]) -> int:
    """The exit code of ``call``. An error is one line that begins with ``prog``; ``words`` are what was typed."""
    try:
        with _terminable(), _told_plainly():
            return call()
    except CodeNotConfirmed as error:
        typed = f"{command()} {shlex.join(words)} {error.flags}"
        print(f"{prog}: the run names code to import; if you trust it, repeat it: {typed}", file=sys.stderr)
        return error.exit_code
    except CorralError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        return int(getattr(error, "exit_code", 130))  # SIGTERM has its own


@contextlib.contextmanager
def _told_plainly() -> Iterator[None]:
    """Let Python's warnings be a line each, without the place in the code."""
    before = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"WARNING: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = before


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Let SIGTERM end things as Ctrl-C does, cleaned up and with its own code, also while a run is still starting."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def end(number: int, _frame: FrameType | None) -> None:
        signals.signals_before_start.append(number)
        raise Interrupted(number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        signals.signals_before_start.clear()
        for number, handler in before.items():
            signal.signal(number, handler)
