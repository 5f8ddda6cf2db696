"""Hand one file to one reader: a server on loopback that answers a single address once, and is gone."""

from __future__ import annotations

import contextlib
import http.server
import os
import secrets
import shutil
import zlib
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from tracekit.errors import OutputError

HOST = "127.0.0.1"
PORT = 9001
"""The only port of this machine that the page of ui.perfetto.dev may read from."""
VIEWER = "https://ui.perfetto.dev"
PATIENCE_S = 30
"""How long a reader that says nothing is listened to."""


class OneReader:
    """Serves *file* at a secret address of this machine until it was read once.

    >>> with OneReader(Path("README.md"), port=0) as offer:
    ...     offer.link.startswith("https://ui.perfetto.dev/#!/?url=http://127.0.0.1:")
    True
    """

    def __init__(self, file: Path, *, port: int = PORT) -> None:
        self.file = file
        self.path = f"/{secrets.token_urlsafe(16)}/{quote(os.fsencode(file.name), safe='')}"
        self.read = False
        try:
            # A thread a reader: browsers open connections ahead and say nothing on them.
            self._server = http.server.ThreadingHTTPServer((HOST, port), _handler(self))
        except OSError as error:
            raise OutputError(
                f"port {port} of this machine cannot be used: {error.strerror}",
                hint=f"close what uses it: {VIEWER} reads from no other port",
            ) from error

    @property
    def port(self) -> int:
        """The port it serves on."""
        return int(self._server.server_port)

    @property
    def url(self) -> str:
        """Where the file can be read, once."""
        return f"http://{HOST}:{self._server.server_port}{self.path}"

    @property
    def link(self) -> str:
        """What to open in a browser."""
        return f"{VIEWER}/#!/?url={self.url}"

    def wait(self) -> None:
        """Answer until the file was read."""
        self._server.timeout = 0.2  # seconds between looks at whether it was
        while not self.read:
            self._server.handle_request()

    def __enter__(self) -> OneReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.server_close()


def _handler(offer: OneReader) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = PATIENCE_S
        server_version = "tracekit"
        sys_version = ""

        def do_GET(self) -> None:  # the name http.server looks for
            if not self._wanted():
                self.send_error(404)
                return
            # The reader may leave in the middle: then the file is still there for the next try.
            with contextlib.suppress(OSError), offer.file.open("rb") as file:
                self.send_response(200)
                self.send_header("Content-Type", "application/octet-stream")
                self.send_header("Content-Length", str(offer.file.stat().st_size))
                self._allow()
                self.end_headers()
                shutil.copyfileobj(file, self.wfile, 1 << 20)
                offer.read = True

        def do_OPTIONS(self) -> None:
            """Say to the browser that the viewer's page may read from this machine."""
            if not self._wanted():
                self.send_error(404)
                return
            self.send_response(204)
            self.send_header("Access-Control-Allow-Methods", "GET")
            self.send_header("Access-Control-Allow-Private-Network", "true")
            self._allow()
            self.end_headers()

        def _wanted(self) -> bool:
            # A page elsewhere that guesses the port still does not know the path; nor may it come under another name.
            host = self.headers.get("Host", "").rsplit(":", 1)[0]
            same = secrets.compare_digest(self.path.encode(), offer.path.encode())  # as text it takes ASCII alone
            return same and not offer.read and host in (HOST, "localhost")

        def _allow(self) -> None:
            self.send_header("Access-Control-Allow-Origin", VIEWER)
            self.send_header("Cache-Control", "no-store")
            self.send_header("X-Content-Type-Options", "nosniff")  # a file, whatever it begins with

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing: who reads is known."""

    return Handler


_HEAD = 1 << 16


def is_export(path: str | Path) -> bool:
    """Return whether *path* is a file that ``tracekit export`` wrote: it can be served as it is.

    >>> is_export("README.md")
    False
    """
    file = Path(path)
    if not file.is_file() or not file.name.endswith((".json", ".json.gz")):
        return False
    try:
        with file.open("rb") as stream:
            raw = stream.read(_HEAD)
        head = zlib.decompressobj(31).decompress(raw, _HEAD) if raw[:2] == b"\x1f\x8b" else raw
    except (OSError, zlib.error):
        return False
    before = head.partition(b'"traceEvents"')[0]
    return b'"tracekit"' in before
