"""Standard output and error of the command line."""

import contextlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import typer

from tracekit._util.text import counted, one_line
from tracekit.errors import Notice, is_quiet
from tracekit.report.notices import notice_sentence
from tracekit.report.text import in_ci_job, without_ci_commands


def prepare_streams() -> None:
    """Make standard output and error safe to write to.

    A stream that was closed (``2>&-``) is connected to the null device; otherwise the next file to
    be opened would get its descriptor. Of standard output that is for reading, so that a result nobody
    can get is an error. Characters that a stream's encoding does not have are written in ASCII.
    """
    flags = {"stdin": os.O_RDONLY, "stdout": os.O_RDONLY, "stderr": os.O_WRONLY}
    for name, flag in flags.items():
        if getattr(sys, name) is None:
            descriptor = os.open(os.devnull, flag)
            os.set_inheritable(descriptor, True)  # worker processes need it as well
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, open(descriptor, mode, encoding="utf-8"))  # noqa: PTH123, SIM115
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="tracekit")


def discard_stdout() -> None:
    """Send what is still to be printed to the null device: its reader has left, and the flush at exit would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_line(text: object, *, err: bool = False) -> None:
    """Print one line, with control characters and line breaks in it made harmless."""
    line = one_line(text)
    typer.echo(without_ci_commands(line) if in_ci_job() else line, err=err)


def print_text(text: str) -> None:
    """Print lines on standard output, none of which is a command to a machine that runs jobs."""
    typer.echo(without_ci_commands(text) if in_ci_job() else text)


def print_note(text: object) -> None:
    """Print one line beside the result, on stderr, such as the name of a file that was written.

    Not with --quiet.
    """
    if not is_quiet():
        print_line(text, err=True)


def shows_result(outputs: Collection[Path] | None) -> bool:
    """Return whether to print the result: always, but not with --quiet where it was written to files."""
    return not (is_quiet() and outputs)


def print_notices(notices: Iterable[Notice]) -> None:
    """Print notices on stderr, one line each; none with --quiet."""
    for notice in notices:
        print_note(f"note: {notice_sentence(notice)}")


def print_left_out(notices: Iterable[Notice]) -> None:
    """Print on stderr which files and ranks were left out, and why, also with --quiet: the result lacks them."""
    for notice in notices:
        if notice.code in ("rank-failed", "not-a-trace", "copied-ranks"):
            print_line(f"note: {notice_sentence(notice)}", err=True)


@contextlib.contextmanager
def note_partial_store(store: Path | None) -> Iterator[None]:
    """Print, if Ctrl-C ends the block, how many ranks *store* holds already."""
    try:
        yield
    except KeyboardInterrupt:
        from tracekit.store.files import is_store, open_store

        if store is not None and is_store(store):
            partial = open_store(store)
            hint = "" if partial.complete else "; --resume goes on with it"
            print_line(
                f"note: {store} holds {counted(len(partial.entries), 'rank')}{hint}", err=True
            )
        raise
