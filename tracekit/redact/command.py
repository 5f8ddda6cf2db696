"""``tracekit redact``: write a copy of a trace that can be shared."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit._util.text import size
from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.console import print_line, shows_result


def run(
    path: Annotated[str, typer.Argument(help="A trace, or a folder of traces.", metavar="PATH")],
    output: Annotated[
        Path, options.output("File to write; for a folder of traces, a folder.", metavar="OUT")
    ],
    words: Annotated[
        list[str] | None,
        typer.Option(
            "--word",
            help="Also replace this word although it is known; may be repeated.",
            metavar="WORD",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        options.value(
            "Also keep this: annotations, arguments, frames, header or metadata; may be repeated.",
            "WHAT",
        ),
    ] = None,
) -> None:
    """Write the same trace with known names and numbers only.

    All other text is dropped or replaced.
    """
    from tracekit.redact.files import redact_each

    for redacted in redact_each(path, output, words=words or (), keep=keep or ()):
        if shows_result([output]):
            print_line(f"Wrote {redacted.path} ({size(redacted.bytes)}): {redacted.summary()}")
