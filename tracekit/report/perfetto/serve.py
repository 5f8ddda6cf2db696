"""Server on loopback that hands out one file, once, at a secret address."""

import contextlib
import http.server
import os
import re
import secrets
import shutil
import threading
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

from tracekit._util.files import read_start
from tracekit.errors import OutputError

HOST = "127.0.0.1"
VIEWER = "https://ui.perfetto.dev"
CONNECTION_TIMEOUT_S = 30
"""Time after which a connection without a request is closed."""


class SingleDownloadServer(http.server.ThreadingHTTPServer):
    """Server of *file* at a secret local address, until the file was read once.

    It has one thread per connection: browsers open connections in advance and send nothing on them.

    >>> with SingleDownloadServer(Path("README.md"), port=0) as server:
    ...     server.link.startswith("https://ui.perfetto.dev/#!/?url=http://127.0.0.1:")
    True
    """

    timeout = 0.2  # seconds after which handle_request returns without a request

    def __init__(self, file: Path, *, port: int) -> None:
        self.file = file
        self.path = f"/{secrets.token_urlsafe(16)}/{quote(os.fsencode(file.name), safe='')}"
        self.read = False
        self.contents: BinaryIO | None = None  # while it waits for the reader
        self.lock = threading.Lock()  # of the reader: one gets the file at a time
        try:
            super().__init__((HOST, port), _RequestHandler)
        except OSError as error:
            raise OutputError(
                f"port {port} of this machine cannot be used: {error.strerror}",
                hint=f"close what uses it: {VIEWER} reads from no other port",
            ) from error

    @property
    def url(self) -> str:
        """Address of the file."""
        return f"http://{HOST}:{self.server_port}{self.path}"

    @property
    def link(self) -> str:
        """Address that opens the file in Perfetto's interface."""
        return f"{VIEWER}/#!/?url={self.url}"

    def wait(self) -> None:
        """Answer requests until the file was read."""
        # Opened once, so that a missing file is an error here, and one that is deleted meanwhile
        # can still be read.
        with self.file.open("rb") as self.contents:
            while not self.read:
                self.handle_request()


class _RequestHandler(http.server.BaseHTTPRequestHandler):
    """Answer to one request of a ``SingleDownloadServer``."""

    server: SingleDownloadServer
    timeout = CONNECTION_TIMEOUT_S
    server_version = "tracekit"
    sys_version = ""

    def do_GET(self) -> None:
        """Send the file."""
        download = self.server
        # A reader may disconnect before the end: then the next one, who may be waiting here, gets
        # the file.
        with download.lock, contextlib.suppress(OSError):
            if download.contents is None or not self._is_allowed():
                self.send_error(404)
                return
            download.contents.seek(0)
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(os.fstat(download.contents.fileno()).st_size))
            self._send_access_headers()
            self.end_headers()
            shutil.copyfileobj(download.contents, self.wfile, 1 << 20)
            download.read = True

    def do_OPTIONS(self) -> None:
        """Answer the browser's check whether the viewer's page may read from this machine."""
        if not self._is_allowed():
            self.send_error(404)
            return
        self.send_response(204)
        self.send_header("Access-Control-Allow-Methods", "GET")
        self.send_header("Access-Control-Allow-Private-Network", "true")
        self._send_access_headers()
        self.end_headers()

    def _is_allowed(self) -> bool:
        """Return whether the request knows the secret path and addresses this machine by its local name.

        The name keeps out pages whose own domain points to 127.0.0.1 (DNS rebinding).
        """
        host = self.headers.get("Host", "").rsplit(":", 1)[0]
        # Compared as bytes: compare_digest accepts only ASCII text.
        knows_path = secrets.compare_digest(self.path.encode(), self.server.path.encode())
        return knows_path and not self.server.read and host in (HOST, "localhost")

    def _send_access_headers(self) -> None:
        self.send_header("Access-Control-Allow-Origin", VIEWER)
        self.send_header("Cache-Control", "no-store")
        # Treat as a file, whatever its contents.
        self.send_header("X-Content-Type-Options", "nosniff")

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: the only reader is the user."""


MIN_MARGIN_NS = 5_000
"""Time shown at least before and after a moment."""
MAX_HEADER_BYTES = 1 << 16
"""Start of a file that is searched for the mark of an export."""


def is_export(path: str | Path) -> bool:
    """Return whether *path* is a file that ``tracekit export`` wrote and can be served unchanged.

    >>> is_export("README.md")
    False
    """
    return b'"tracekit"' in _header(Path(path))


def moment_parameters(file: Path, start_ns: int, end_ns: int) -> str:
    """Return the parameters of a link that make the viewer show an export around a moment of the common clock."""
    match = re.search(rb'"baseTimeNanoseconds":(\d{1,19})(?!\d)', _header(file))
    base_ns = int(match[1]) if match else 0
    margin_ns = max(2 * (end_ns - start_ns), MIN_MARGIN_NS)
    return (
        f"&visStart={max(0, start_ns - margin_ns - base_ns)}&visEnd={end_ns + margin_ns - base_ns}"
    )


def _header(file: Path) -> bytes:
    """Return the start of a JSON file up to its events; empty if it is no such file."""
    if not file.is_file() or not file.name.endswith((".json", ".json.gz")):
        return b""
    return (read_start(file, MAX_HEADER_BYTES) or b"").partition(b'"traceEvents"')[0]
