"""The command ``tracekit export``: a file for ui.perfetto.dev, or the trace opened there."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tracekit._util.text import counted, size
from tracekit.errors import OptionError
from tracekit.parsers.rank_numbers import MAX_DIGITS, MAX_SHOWN_OPTION_CHARS
from tracekit.report.terminal import command_options as options
from tracekit.report.terminal.console import print_line, print_note, print_notices, shows_result

if TYPE_CHECKING:
    from tracekit.report.perfetto.export import Exported

PORT = 9001
"""Port that ui.perfetto.dev reads from."""


def run(
    paths: options.Paths = None,
    *,
    output: Annotated[
        Path | None,
        options.output("File to write: .json.gz, .json, or .tar with the ranks' own files."),
    ] = None,
    open_there: Annotated[
        bool,
        typer.Option(
            "--open",
            help="Write no file: print a link that opens the trace at ui.perfetto.dev, served once on loopback.",
        ),
    ] = False,
    schedule: Annotated[
        str, options.value("Ideal to draw: auto, a name, an order file or none.", "NAME")
    ] = "auto",
    ranks: options.Ranks = None,
    roles: options.Roles = None,
    file_rank: options.FileRank = None,
    rules: options.Rules = None,
    stacks: Annotated[bool, options.flag("--stacks", "Include Python frames.")] = False,
    workers: options.Workers = None,
    port: Annotated[
        int | None,
        options.value(
            f"With --open: port to serve on; ui.perfetto.dev reads only from {PORT}.",
            "PORT",
            min=0,
            max=65535,
        ),
    ] = None,
    at: Annotated[
        str | None,
        options.value(
            "With --open: show this moment, as the page's details copy it.", "START_NS[:END_NS]"
        ),
    ] = None,
) -> None:
    """Write the trace with tracks of labels, pipeline cells and ideal cells.

    Open it at ui.perfetto.dev, or with --open.
    """
    from tracekit.run.export import export

    if open_there == (output is not None):
        raise OptionError(
            "export writes a file or opens the trace", hint="give either -o FILE or --open"
        )
    if not open_there and (port is not None or at is not None):
        option = "--port" if at is None else "--at"
        raise OptionError(f"{option} is for --open", hint="leave it out, or give --open")
    moment = None if at is None else parse_moment(at)

    def write(file: Path) -> "Exported":
        exported = export(
            options.role_paths(paths, roles, "export"),
            file,
            schedule=schedule,
            ranks=ranks,
            file_rank=file_rank,
            rules=rules,
            stacks=stacks,
            workers=workers,
        )
        print_notices(exported.notices)
        return exported

    if output is None:
        _serve(paths, write, PORT if port is None else port, moment)
        return
    exported = write(output)
    ranks_text = counted(len(exported.ranks), "rank")
    cells_text = f", {exported.cells:,} cells" if exported.cells else ""
    file_size = size(exported.path.stat().st_size)
    events_text = f", {exported.events:,} events" if exported.events else ""
    if shows_result([output]):
        print_line(f"Wrote {exported.path}: {ranks_text}{events_text}{cells_text}, {file_size}")
    other_way = ", or with: tracekit export --open" if exported.events else ""
    print_note(f"open it at https://ui.perfetto.dev{other_way}")


def _serve(
    paths: list[str] | None,
    write: Callable[[Path], "Exported"],
    port: int,
    moment: tuple[int, int] | None,
) -> None:
    """Print the link that opens an exported trace, and serve it to one reader.

    Args:
        paths: What was named; a single file that was exported before is served as it is.
        write: Exports into a file.
        port: Port to serve on.
        moment: Start and end in ns of what is shown first.
    """
    import tempfile

    from tracekit.report.perfetto.serve import SingleDownloadServer, is_export, moment_parameters

    exported = (
        Path(paths[0]) if paths is not None and len(paths) == 1 and is_export(paths[0]) else None
    )
    # The server is made first, so that a port in use is reported before the work.
    with (
        tempfile.TemporaryDirectory(prefix="tracekit-") as folder,
        SingleDownloadServer(exported or Path(folder) / "trace.json.gz", port=port) as server,
    ):
        if exported is None:
            write(server.file)
        print_line(server.link + (moment_parameters(server.file, *moment) if moment else ""))
        if command := ssh_forward_command(server.server_port):
            print_note(
                f"over SSH: first run this on your own machine, then open the link there: {command}"
            )
        print_note(f"serving {size(server.file.stat().st_size)} to one reader; Ctrl-C ends it")
        server.wait()
        print_note("read; done")


def parse_moment(text: str) -> tuple[int, int]:
    """Return start and end in ns of a moment such as ``1500:1700`` or ``1500``.

    >>> parse_moment("1500:1700"), parse_moment("1500")
    ((1500, 1700), (1500, 1500))
    """
    start, _, end = text.partition(":")
    is_moment = start.isdecimal() and (end or start).isdecimal()
    is_short = max(len(start), len(end)) <= MAX_DIGITS + 1  # ns since 1970 have 19 digits
    if not is_moment or not is_short or int(start) > int(end or start):
        raise OptionError(
            f"{text[:MAX_SHOWN_OPTION_CHARS]} is not a moment",
            hint="give --at START_NS:END_NS, as the page's details copy it",
        )
    return int(start), int(end or start)


def ssh_forward_command(port: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the command that forwards *port* to the reader's own machine.

    None if this is no SSH session.

    >>> ssh_forward_command(9001, {"SSH_CONNECTION": "10.0.0.9 52514 10.0.0.7 22", "USER": "ada"})
    'ssh -N -L 9001:127.0.0.1:9001 ada@10.0.0.7'
    """
    addresses = environment.get("SSH_CONNECTION", "").split()
    if len(addresses) != 4:
        return None
    user = f"{environment['USER']}@" if environment.get("USER") else ""
    _, _, host, ssh_port = addresses
    port_option = f" -p {ssh_port}" if ssh_port != "22" else ""
    return f"ssh -N -L {port}:127.0.0.1:{port}{port_option} {user}{host}"
