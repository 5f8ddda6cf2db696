"""The command ``tracekit watch``."""

from pathlib import Path
from typing import Annotated

import typer

from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.command_options import flag, value
from tracekit.report.terminal.console import print_text


def run(
    folder: Annotated[
        Path, typer.Argument(help="The folder that traces land in.", metavar="FOLDER")
    ],
    *,
    every: Annotated[float, value("Seconds between looks.", "SECONDS", min=0.1)] = 2.0,
    idle: Annotated[
        float | None, value("Stop after so long without a new recording.", "SECONDS", min=0)
    ] = None,
    prometheus: Annotated[
        Path | None,
        value("Write the last recording's figures to this file, for Prometheus.", "FILE"),
    ] = None,
    output: Annotated[
        list[Path] | None,
        options.output(
            "Add each recording to this page (.html), with its report beside it, or to this table (.parquet)."
        ),
    ] = None,
    json: Annotated[
        bool, flag("--json", "Print each recording's figures as a line of JSON.")
    ] = False,
) -> None:
    """Analyse each recording as it lands and print one line.

    One that is slower than the first is marked. Of a damaged one only the line says so: files keep the last good
    figures.
    """
    from tracekit._util.files import check_output_path
    from tracekit.diffs.history import history_point
    from tracekit.diffs.many_runs import add_to_runs
    from tracekit.diffs.scalars import json_line, scalars
    from tracekit.diffs.scalars import prometheus as prometheus_text
    from tracekit.diffs.watch_line import damage_of, line, run_of, verdict_of
    from tracekit.errors import OptionError
    from tracekit.report.html.history import add_to_history, check_history, write_report
    from tracekit.report.write import check_extension, write_file
    from tracekit.run.query import read_runs
    from tracekit.run.watch import watch

    if prometheus is not None:
        check_output_path(prometheus)
    outputs = {check_extension(path, (".html", ".parquet")): path for path in output or ()}
    if len(outputs) < len(output or ()):
        raise OptionError("-o: two outputs of one kind", hint="name one page and one table")
    history = outputs.get(".html")
    table = outputs.get(".parquet")
    if history is not None:
        check_history(history)
    if table is not None and table.exists():
        read_runs(table)
    first = None
    for recording in watch(folder, every_s=every, idle_s=idle, timeline=history is not None):
        is_damaged = bool(damage_of(recording))
        analysis = None if is_damaged else recording.analysis
        figures = {} if analysis is None else scalars(analysis)
        if prometheus is not None and figures:
            write_file(prometheus, prometheus_text(figures) + "\n")
        run = None if is_damaged else run_of(recording)
        if table is not None and analysis is not None:
            add_to_runs(table, analysis, name=recording.name, time_s=recording.modified_s)
        if history is not None and analysis is not None and run is not None:
            time_s = recording.modified_s
            report = write_report(analysis, history, recording.name)
            verdict = verdict_of(run, first)
            add_to_history(
                history, [history_point(run, time_s=time_s, report=report, verdict=verdict)]
            )
        if json:
            typer.echo(json_line(figures))
        else:
            print_text(line(recording, first=first))
        first = first or run
