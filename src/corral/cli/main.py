"""``corral VERB …``: parses the command line and calls the verb's function; an error is one line and an exit code."""

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

from corral.cli.verbs import Script, build_parsers
from corral.core.deferred_signals import deferred_signals
from corral.core.errors import CodeNotConfirmed, CorralError
from corral.core.stdio import command, tolerate_closed_stdout
from corral.core.suggestions import did_you_mean
from corral.training import signals
from corral.training.signals import Interrupted

__all__ = ["deferred_signals", "guarded", "main"]


def main(argv: Sequence[str] | None = None, script: Script | None = None) -> int:
    """Run the ``corral`` command, or a ``script`` with the flags of a verb; return the exit code."""
    try:
        return _run_verb(list(sys.argv[1:] if argv is None else argv), script)
    except KeyboardInterrupt:  # before ``guarded`` handles it
        return 130


def _run_verb(arguments: list[str], script: Script | None) -> int:
    """Parse the command line and call the function of the verb or the script; return the exit code."""
    tolerate_closed_stdout()
    parser, verbs = build_parsers(script)
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            parser.error(f"{argument!r} is not UTF-8 text, so the files of a run could not contain it")
    if not arguments or arguments[0].startswith("-"):
        parser.parse_args(arguments)
        parser.print_help()
        return 0
    verb = arguments[0]
    if verb not in verbs:
        parser.error(f"unknown verb {verb!r}{did_you_mean(verb, verbs)}; there are {', '.join(verbs)}")
    verb_parser, function = verbs[verb]
    options = verb_parser.parse_args(arguments[1:])
    module, _, name = function.partition(":")

    def call() -> int:
        with deferred_signals():  # the import of torch aborts the process if a signal's handler raises in it
            verb_module = importlib.import_module(module)
        return int(getattr(verb_module, name)(options))

    return guarded(verb_parser.prog, arguments, call)


def guarded(prog: str, arguments: Sequence[str], call: Callable[[], int]) -> int:
    """Return the exit code of ``call``. An error becomes one line on standard error that begins with ``prog``.

    ``arguments`` are those of the command line: an error may print the command with more flags.
    """
    try:
        with _interruptible(), _plain_warnings():
            return call()
    except CodeNotConfirmed as error:
        confirmed = f"{command()} {shlex.join(arguments)} {error.flags}"
        print(f"{prog}: {error.reason}: {confirmed}", file=sys.stderr)
        return error.exit_code
    except CorralError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as error:
        return int(getattr(error, "exit_code", 130))  # SIGTERM has another exit code


@contextlib.contextmanager
def _plain_warnings() -> Iterator[None]:
    """Print each of Python's warnings as one line, without its location in the code."""
    previous_format = warnings.formatwarning
    warnings.formatwarning = lambda message, *_, **__: f"WARNING: {message}\n"
    try:
        yield
    finally:
        warnings.formatwarning = previous_format


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Raise ``Interrupted`` at SIGTERM and Ctrl-C, so that everything is cleaned up, also while a run is starting."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return

    def interrupt(number: int, _frame: FrameType | None) -> None:
        signals.signals_before_start.append(number)
        raise Interrupted(number)

    previous_handlers = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        signals.signals_before_start.clear()
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)
