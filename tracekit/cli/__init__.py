"""The command line: one module per command, which parses its options, calls one function of the library and prints.

Commands import what they need when they run, so that ``tracekit --help`` answers at once. Only
``main`` prints errors.
"""

import gc
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from tracekit._util.machine import check_address_space
from tracekit._util.os_errors import as_tracekit_error
from tracekit._version import __version__
from tracekit.cli import (
    analyze,
    demo,
    diff,
    doctor,
    export,
    gate,
    ingest,
    mcp,
    query,
    schedule,
    watch,
)
from tracekit.cli._removed import REMOVED_COMMANDS, successor_of_option
from tracekit.errors import DEBUG, OptionError, TracekitError
from tracekit.late import command as late
from tracekit.memory import command as memory
from tracekit.redact import command as redact
from tracekit.report.terminal.command_options import with_quiet
from tracekit.report.terminal.console import discard_stdout, prepare_streams, print_line

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""
WRONG_USAGE = 2
"""Exit code if the command line cannot be parsed."""
OBJECTS_BEFORE_COLLECTION = 100_000
"""New objects after which Python looks for unreachable cycles. Commands make next to none; looking as often as
Python does by default took 3 % of the time of ``analyze``."""

COMMANDS: dict[str, tuple[Callable[..., None], str]] = {
    "analyze": (analyze.run, "Show where a step's time went, and how far it is from its ideal."),
    "ingest": (ingest.run, "Write traces as a store that every command reads without parsing."),
    "diff": (diff.run, "Show what changed from run A to run B, the largest change first."),
    "gate": (gate.run, "Judge whether runs are slower than their baseline, beyond noise."),
    "export": (
        export.run,
        "Write the trace with labels for ui.perfetto.dev, or open it there.",
    ),
    "late": (late.run, "Show who joins collectives late over a whole run, and hangs."),
    "memory": (memory.run, "Show what fills GPUs, from memory snapshots without traces."),
    "doctor": (doctor.run, "Show what traces hold, what is missing, and how to record better."),
    "redact": (redact.run, "Copy the trace without environment, paths, names and stacks."),
    "schedule": (schedule.run, "Make an ideal schedule: order, times, bubbles, picture."),
    "demo": (demo.run, "Make and analyse a sample run; no trace needed."),
    "watch": (watch.run, "Analyse new recordings as they land, one line each."),
    "query": (query.run, "Answer SQL over the tables of a store."),
    "mcp": (mcp.run, "Serve tools for agents over standard input and output."),
}
"""The function and the short help of every command, in the order of the help."""
COMMAND_CLASSES: dict[str, type[TyperCommand]] = {
    "analyze": analyze.AnalyzeCommand,
    "gate": gate.GateCommand,
}
"""Commands that parse their words or write their help in a way of their own."""


class CommandGroup(TyperGroup):
    """All commands. A reader that leaves early (``| head``) is no failure: exit code 0."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; typer alone would turn a broken pipe into exit code 1."""
        check_address_space()
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            discard_stdout()
            raise typer.Exit(0) from None

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find the command; of one that was removed, say what takes its place."""
        if args and args[0] in REMOVED_COMMANDS:
            successor = REMOVED_COMMANDS[args[0]]
            raise OptionError(f"tracekit {args[0]} was removed", hint=f"use {successor}")
        return super().resolve_command(ctx, args)


def make_app() -> typer.Typer:
    """Return the command line with all commands."""
    app = typer.Typer(
        name="tracekit",
        cls=CommandGroup,
        help="Where did my training step go, and how far is it from the schedule I meant to run?",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: importing rich and drawing boxes takes longer than the rest
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    app.callback(invoke_without_command=True)(_root)
    for name, (function, short_help) in COMMANDS.items():
        command_class = COMMAND_CLASSES.get(name)
        app.command(name, cls=command_class, short_help=short_help)(with_quiet(function))
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"tracekit {__version__}")
        raise typer.Exit


def _root(
    ctx: typer.Context,
    _: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(WRONG_USAGE)


def main() -> NoReturn:
    """Run the command line and exit with its code."""
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    prepare_streams()
    try:
        code = make_app()(standalone_mode=False)
        sys.stdout.flush()
    except TracekitError as error:
        code = _print_error(error)
    except (KeyboardInterrupt, typer.Abort):
        code = INTERRUPTED
    except BrokenPipeError:
        discard_stdout()
        code = 0
    except OSError as error:
        if error.filename is None:
            error.filename = "standard output"
            discard_stdout()  # else Python tries again as it ends, and fails with an exit code of its own
        code = _print_error(as_tracekit_error(error))
    except Exception as error:
        # typer's errors of usage, which share no public base class.
        if hasattr(error, "format_message"):
            print_line(f"error: {usage_message(error)}", err=True)
            code = WRONG_USAGE
        else:
            code = _print_error(as_tracekit_error(error))
    if code == INTERRUPTED:
        print_line("interrupted", err=True)
    # Else Python visits all objects once more as it ends. DuckDB needs that: it names all that is left of it.
    if "duckdb" not in sys.modules:
        gc.freeze()
    sys.exit(code if isinstance(code, int) else 0)


def _print_error(error: TracekitError) -> int:
    """Print an error and its hint on one line of stderr, what it quotes below.

    Return its exit code.
    """
    if os.environ.get(DEBUG) and error.__cause__ is not None:
        traceback.print_exception(error.__cause__)
    message = error.message
    if error.notice is not None:
        from tracekit.report.notices import error_message

        message = error_message(error)
    print_line(f"error: {message}" + (f"; {error.hint}" if error.hint else ""), err=True)
    for line in error.quote:
        print_line(f"  {line}", err=True)
    return error.exit_code


def usage_message(error: Any) -> str:
    """Return one line for an error of usage that typer raised, with the command whose help to read.

    >>> from types import SimpleNamespace
    >>> usage_message(SimpleNamespace(ctx=None, format_message=lambda: "Missing option '--output'."))
    "missing option '--output'; see tracekit --help"
    """
    removed = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    if removed is not None and context is not None:
        successor = successor_of_option(context.info_name or "", removed)
        if successor is not None:
            return f"{removed} was removed; {successor}"
    text = " ".join(error.format_message().split()).rstrip(".")
    command = context.command_path if context is not None else "tracekit"
    return f"{text[:1].lower()}{text[1:]}; see {command} --help"
