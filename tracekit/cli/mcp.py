"""The command ``tracekit mcp``."""

from typing import Annotated

import typer


def run(
    folders: Annotated[
        list[str], typer.Argument(help="Folders whose traces may be read.", metavar="FOLDER")
    ],
) -> None:
    """Serve tools for agents over standard input and output.

    Read-only, and only under the given folders.
    """
    from tracekit.cli.mcp_server import make_server

    make_server(folders).run("stdio")
