"""The command line: one module per command; each parses its words, calls one function of the library and prints.

Nothing heavy is imported here: ``tracekit --help`` answers at once because every command imports what it needs
when it runs, and of a command that was named only its own module is imported. ``main`` is the only place that prints
errors.
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Any, NoReturn

import typer

from tracekit._util.os_errors import as_tracekit_error
from tracekit._version import __version__
from tracekit.cli._base import Command, Root, hush, mistake, say, speak_plainly
from tracekit.errors import DEBUG, TracekitError

COMMANDS = {
    "analyze": "Where the step went, what was hidden, how far from its ideal.",
    "ingest": "Write traces as a store that every command reads without parsing.",
    "diff": "What changed from run A to run B, the largest change first.",
    "gate": "Whether runs are slower than their baseline, beyond noise.",
    "export": "Write the trace with labels, cells and ideal for ui.perfetto.dev.",
    "open": "Open the trace at ui.perfetto.dev, served from this machine.",
    "doctor": "What traces hold, what is missing, and how to record better.",
    "redact": "Copy the trace without environment, paths, names and stacks.",
    "schedule": "An ideal schedule by name: order, times, bubbles, picture.",
    "demo": "Make and analyse a sample run; no trace needed.",
    "watch": "New recordings as they land, one line each.",
    "query": "SQL over a store's tables.",
    "mcp": "Tools for agents, over standard input and output.",
}
"""Every command, in the order of the help, and what it is for. Its module has its name, and in it ``run``."""


def make_app(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with these commands; one costs a sixth of what all of them do."""
    app = typer.Typer(
        name="tracekit",
        cls=Root,
        help="Where did my training step go, and how far is it from the schedule I meant to run?",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: drawing boxes would take longer than everything else together
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback()(_root)
    for name in names:
        module = import_module(f"tracekit.cli.{name}")
        kind = getattr(module, "KIND", Command)
        app.command(name, cls=kind, short_help=COMMANDS[name])(module.run)
    return app


def _named(words: Sequence[str]) -> Iterable[str]:
    """Return the one command that the words name; all of them where they ask for help, or name none."""
    first = next(iter(words), "")
    return [first] if first in COMMANDS else COMMANDS


def _version(wanted: bool) -> None:
    if wanted:
        say(f"tracekit {__version__}")
        raise typer.Exit


def _root(
    _: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


def fail(error: TracekitError) -> int:
    """Print *error* as one line, with its hint, on stderr; return its exit code."""
    if os.environ.get(DEBUG) and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    say(f"error: {error.message}" + (f"; {error.hint}" if error.hint else ""), err=True)
    return error.exit_code


def main() -> NoReturn:
    """Run the command line; exit with its code."""
    speak_plainly()
    try:
        code = make_app(_named(sys.argv[1:]))(standalone_mode=False)
    except TracekitError as error:
        code = fail(error)
    except (KeyboardInterrupt, typer.Abort):
        code = 130
    except BrokenPipeError:
        hush()
        code = 0
    except OSError as error:
        error.filename = error.filename or "standard output"
        code = fail(as_tracekit_error(error))
    except Exception as error:
        code = _wrong_words(error) if hasattr(error, "format_message") else fail(as_tracekit_error(error))
    if code == 130:
        say("interrupted", err=True)
    gc.freeze()  # the process ends: looking once more for garbage among all that was imported takes 0.1 s
    sys.exit(code if isinstance(code, int) else 0)


def _wrong_words(error: Any) -> int:
    """Print what is wrong with the command line; where it is empty, show the help."""
    if "NoArgs" in type(error).__name__:
        error.show()
    else:
        say(f"error: {mistake(error)}", err=True)
    return 2
