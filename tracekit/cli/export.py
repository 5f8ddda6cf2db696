"""The command ``tracekit export``."""

from pathlib import Path
from typing import Annotated

from tracekit._util.text import counted
from tracekit.cli import _options as options
from tracekit.cli._console import print_line, print_note, print_notices, shows_result
from tracekit.report.text import size


def run(
    paths: options.Paths = None,
    *,
    output: Annotated[
        Path, options.output("File to write: .json.gz, .json, or .tar with the ranks' own files.")
    ],
    schedule: options.DrawnIdeal = "auto",
    ranks: options.Ranks = None,
    roles: options.Roles = None,
    rank: options.Rank = None,
    rules: options.Rules = None,
    stacks: options.DrawnStacks = False,
    workers: options.Workers = None,
    nsys: options.Nsys = None,
) -> None:
    """Write the trace with tracks of labels, pipeline cells and ideal cells.

    Open it at ui.perfetto.dev.
    """
    from tracekit.run.export import export

    exported = export(
        options.role_paths(paths, roles, "export"),
        output,
        schedule=schedule,
        ranks=ranks,
        file_rank=rank,
        rules=rules,
        stacks=stacks,
        workers=workers,
    )
    print_notices(exported.notices)
    ranks_text = counted(len(exported.ranks), "rank")
    cells_text = f", {exported.cells:,} cells" if exported.cells else ""
    file_size = size(exported.path.stat().st_size)
    events_text = f", {exported.events:,} events" if exported.events else ""
    if shows_result([output]):
        print_line(f"Wrote {exported.path}: {ranks_text}{events_text}{cells_text}, {file_size}")
    other_way = ", or with: tracekit open" if exported.events else ""
    print_note(f"open it at https://ui.perfetto.dev{other_way}")
