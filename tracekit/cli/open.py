"""The command ``tracekit open``: an exported trace served from this machine to one reader."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from tracekit.cli import _options as options
from tracekit.cli._console import print_line, print_note, print_notices
from tracekit.errors import OptionError
from tracekit.parsers.source_refs import MAX_DIGITS, MAX_SHOWN_CHARS
from tracekit.report.text import size


def run(
    paths: options.Paths = None,
    *,
    schedule: options.DrawnIdeal = "auto",
    ranks: options.Ranks = None,
    roles: options.Roles = None,
    rank: options.Rank = None,
    rules: options.Rules = None,
    stacks: options.DrawnStacks = False,
    workers: options.Workers = None,
    nsys: options.Nsys = None,
    port: Annotated[
        int,
        options.value(
            "Port to serve on; ui.perfetto.dev reads only from 9001.", "PORT", min=0, max=65535
        ),
    ] = 9001,
    at: Annotated[
        str | None,
        options.value("Show this moment, as the page's details copy it.", "START_NS[:END_NS]"),
    ] = None,
) -> None:
    """Print a link that opens the trace at ui.perfetto.dev.

    It is served on loopback only and ends once read.
    """
    import tempfile

    from tracekit.report.perfetto.serve import SingleDownloadServer, is_export, moment_parameters
    from tracekit.run.export import export

    moment = None if at is None else parse_moment(at)
    exported = (
        Path(paths[0]) if paths is not None and len(paths) == 1 and is_export(paths[0]) else None
    )
    # The server is made first, so that a port in use is reported before the work.
    with (
        tempfile.TemporaryDirectory(prefix="tracekit-") as folder,
        SingleDownloadServer(exported or Path(folder) / "trace.json.gz", port=port) as server,
    ):
        if exported is None:
            done = export(
                options.role_paths(paths, roles, "open"),
                server.file,
                schedule=schedule,
                ranks=ranks,
                file_rank=rank,
                rules=rules,
                stacks=stacks,
                workers=workers,
            )
            print_notices(done.notices)
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
            f"{text[:MAX_SHOWN_CHARS]} is not a moment",
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
