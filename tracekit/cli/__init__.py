"""The command line: one module a command, each parses its words, calls one function of the library and prints.

Nothing heavy is imported here: ``tracekit --help`` answers at once because every command imports what it needs
when it runs. ``main`` is the only place that prints errors.
"""

from __future__ import annotations

import gc
import sys
from typing import NoReturn

import typer

from tracekit._version import __version__
from tracekit.cli import analyze, diff, doctor, export, gate, ingest, redact, schedule
from tracekit.cli import open as open_module
from tracekit.errors import TracekitError

app = typer.Typer(
    name="tracekit",
    help="Where did my training step go, and how far is it from the schedule I meant to run?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help: drawing boxes would take longer than everything else together
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tracekit {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    pass


app.command()(analyze.analyze)
app.command()(ingest.ingest)
app.command()(diff.diff)
app.command(cls=gate.GateCommand)(gate.gate)
app.command()(export.export)
app.command("open")(open_module.open_)
app.command()(doctor.doctor)
app.command()(redact.redact)
app.command()(schedule.schedule)


def fail(error: TracekitError) -> int:
    """Print *error* as one line, with its hint, on stderr; return the exit code for unusable input."""
    typer.echo(f"error: {error.message}" + (f"; {error.hint}" if error.hint else ""), err=True)
    return 2


def main() -> None:
    """Run the command line."""
    gc.set_threshold(200_000)  # imports make many objects and no garbage: collecting meanwhile takes 0.2 s
    try:
        app()
    except TracekitError as error:
        sys.exit(fail(error))
    except BrokenPipeError:
        sys.stderr.close()  # the reader left (`| head`): nothing to say
        sys.exit(0)
    except KeyboardInterrupt:
        _interrupted()
    except SystemExit as ending:
        if ending.code == 130:  # typer turns Ctrl-C into this, without a word
            _interrupted()
        raise


def _interrupted() -> NoReturn:
    typer.echo("interrupted", err=True)
    sys.exit(130)
